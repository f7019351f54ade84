"""Layers that attend to keys of an earlier layer: no memory of their own, the same replies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from blazr.core.errors import ConfigError
from blazr.engine.cache.storage import plan_layout
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.sizing import size_of
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.ranks import Rank
from blazr.nn.layers.rope import RopeConfig
from tests.support.networks import VOCAB, Lab

HIDDEN = 24
NORM = NormConfig(HIDDEN, 0.1)
WINDOWED = AttentionConfig(
    hidden_size=HIDDEN,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    rope=RopeConfig(6, 50.0),
    qk_norm=True,
    v_norm=True,
    sliding_window=37,
)
WHOLE = replace(WINDOWED, num_kv_heads=1, head_dim=10, rope=RopeConfig(10), sliding_window=None)
# the last two attend to what the first two remember
MIXERS = (WINDOWED, WHOLE, replace(WHOLE, kv_layer=1), replace(WINDOWED, kv_layer=0))
CONFIG = ModelConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    max_seq_len=1024,
    layers=tuple(
        LayerConfig(
            mixer=mixer,
            mixer_norm=NORM,
            feed_forward=MlpConfig(hidden_size=HIDDEN, intermediate_size=30),
            feed_forward_norm=NORM,
        )
        for mixer in MIXERS
    ),
    final_norm=NORM,
)


@pytest.fixture(scope="module")
def model() -> CausalLM:
    torch.manual_seed(5)
    made = CausalLM(CONFIG)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.4)
    return made.eval().requires_grad_(requires_grad=False)


def tokens_of(count: int, seed: int) -> list[int]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (count,), generator=chance).tolist()


def test_pages_hold_the_keys_of_their_owners_alone(model: CausalLM) -> None:
    specs = CONFIG.cache_specs(torch.float32)
    assert [spec.owner for spec in specs] == [None, None, 1, 0]
    owned = [layer.mixer.cache_spec(torch.float32) for layer in CONFIG.layers[:2]]
    assert plan_layout(specs).page_bytes == plan_layout(owned).page_bytes
    per_token = size_of(CONFIG, torch.float32).kv_bytes_per_token
    assert per_token == 4 * 2 * (2 * 6 + 1 * 10)
    first, second, third, fourth = Lab(model).runner.storage.layers
    assert third is second
    assert fourth is first


def test_a_sharing_layer_has_no_projection_of_keys(model: CausalLM) -> None:
    names = {name for name, _ in model.layers[2].mixer.named_parameters()}
    assert names == {"q_proj.weight", "o_proj.weight", "q_norm.weight"}


def test_scores_are_the_same_whole_and_in_chunks(model: CausalLM) -> None:
    ids = tokens_of(150, seed=1)
    with torch.inference_mode():
        whole = model.forward_sequences(torch.tensor([ids]))[0]
    runner = Lab(model).runner
    for cuts in ((), (1, 63, 64, 65, 100, 101, 102)):
        torch.testing.assert_close(runner.logits(ids, cuts), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv_dtype", ["auto", "q8_0"])
def test_replies_are_the_same_from_a_prefix_and_after_a_preemption(
    model: CausalLM, kv_dtype: str
) -> None:
    prompts = [tokens_of(count, seed=2) for count in (5, 80, 140)]
    alone = []
    for prompt in prompts:
        lab = Lab(model, max_running=1, prefix_cache=False, kv_dtype=kv_dtype)
        asked = lab.ask(prompt)
        lab.run()
        alone.append(lab.answer(asked)[0])
    lab = Lab(model, kv_dtype=kv_dtype)
    asked = [lab.ask(prompt) for prompt in prompts]
    for _ in range(6):
        lab.step()
    lab.scheduler.preempt(lab.scheduler.running[-1])
    lab.run()
    assert lab.scheduler.counts.preempted == 1
    assert [lab.answer(each)[0] for each in asked] == alone
    again = [lab.ask(prompt) for prompt in prompts]
    lab.run()
    assert [lab.cached[each] > 0 for each in again] == [False, True, True]
    assert [lab.answer(each)[0] for each in again] == alone


def test_layers_that_share_keys_are_not_cut_in_stages() -> None:
    with pytest.raises(ConfigError, match="share parameters or keys"):
        CONFIG.as_stage(Rank(0, 2))
