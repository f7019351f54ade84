"""EAGLE-3 heads from files of both formats, against the mathematics of the paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from blazr import LLM, SamplingParams
from blazr.core.errors import BlazrError, CheckpointError, ConfigError, ShapeError
from blazr.models.loading.eagle import with_eagle3
from blazr.models.loading.load import LoadedModel, load
from blazr.nn.device import resolve_device
from tests.support.drafts import EagerSpeculator
from tests.support.seeds import run_seed

STORIES = Path(__file__).parents[1] / "golden/stories260k"
SIZE, HEADS, KV_HEADS, DIM, INNER, LAYERS, VOCAB = 64, 4, 2, 16, 96, 5, 512
IDS = "eagle_aux_hidden_state_layer_ids"
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": SIZE,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
}


def head_tensors(num_guessed: int, *, has_embedding: bool, num_taps: int = 3) -> dict[str, Tensor]:
    torch.manual_seed(run_seed(7))
    layer = {
        "self_attn.q_proj": (HEADS * DIM, 2 * SIZE),
        "self_attn.k_proj": (KV_HEADS * DIM, 2 * SIZE),
        "self_attn.v_proj": (KV_HEADS * DIM, 2 * SIZE),
        "self_attn.o_proj": (SIZE, HEADS * DIM),
        "mlp.gate_proj": (INNER, SIZE),
        "mlp.up_proj": (INNER, SIZE),
        "mlp.down_proj": (SIZE, INNER),
        "hidden_norm": (SIZE,),
        "input_layernorm": (SIZE,),
        "post_attention_layernorm": (SIZE,),
    }
    sizes = {f"midlayer.{name}": size for name, size in layer.items()}
    sizes |= {"fc": (SIZE, num_taps * SIZE), "norm": (SIZE,), "lm_head": (num_guessed, SIZE)}
    if has_embedding:
        sizes["embed_tokens"] = (VOCAB, SIZE)
    tensors = {f"{name}.weight": torch.randn(size) * 0.3 for name, size in sizes.items()}
    guessed = torch.randperm(VOCAB)[:num_guessed].sort().values
    tensors["d2t"] = guessed - torch.arange(num_guessed)
    tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, guessed, value=True)
    return tensors


def save(path: Path, tensors: dict[str, Tensor], **config: object) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG | config), "utf-8")
    save_file(tensors, path / "model.safetensors")
    return path


def authors_head(path: Path) -> Path:
    tensors = head_tensors(100, has_embedding=False)
    return save(path, tensors, draft_vocab_size=100, eagle_config={IDS: [0, 1, 3]})


def speculators_head(path: Path) -> Path:
    named = {
        name.replace("midlayer", "layers.0"): tensor
        for name, tensor in head_tensors(VOCAB, has_embedding=True, num_taps=2).items()
    }
    return save(
        path,
        named,
        speculators_model_type="eagle3",
        transformer_layer_config=CONFIG,
        norm_before_residual=True,
        **{IDS: [1, 4]},
    )


# What writes a head; how many tokens it guesses, whether it has an embedding, and what it taps.
MAKERS = {
    "authors": (authors_head, (100, False, (1, 2, 4))),
    "speculators": (speculators_head, (VOCAB, True, (1, 4))),
}


def stories() -> LoadedModel:
    return load(str(STORIES), device=resolve_device("cpu"))


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def rotate(x: Tensor) -> Tensor:
    """(T, H, D), by the token's place."""
    angles = torch.outer(torch.arange(len(x)), 10000.0 ** (-torch.arange(0, DIM, 2) / DIM))
    cos, sin = (f(angles).repeat(1, 2)[:, None] for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def expected_scores(
    tensors: dict[str, Tensor], taps: tuple[int, ...], ids: Tensor, *, norms_first: bool
) -> Tensor:
    """What the head guesses behind each token, as the paper has it, (T, V')."""
    network = LlamaForCausalLM.from_pretrained(STORIES, dtype=torch.float32)
    with torch.inference_mode():
        seen = network(ids[None], output_hidden_states=True).hidden_states
        w = {name.removesuffix(".weight"): tensor for name, tensor in tensors.items()}
        fused = F.linear(torch.cat([seen[each][0] for each in taps], -1), w["fc"])
        previous = F.pad(fused, (0, 0, 1, 0))[:-1]
        embedding = w.get("embed_tokens", network.get_input_embeddings().weight)
        normed = rms(previous, w["midlayer.hidden_norm"])
        x = torch.cat((rms(embedding[ids], w["midlayer.input_layernorm"]), normed), -1)
        q, k, v = (
            F.linear(x, w[f"midlayer.self_attn.{name}_proj"]).unflatten(-1, (-1, DIM))
            for name in "qkv"
        )
        heads = F.scaled_dot_product_attention(
            rotate(q).transpose(0, 1),
            rotate(k).transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0),
            v.transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0),
            is_causal=True,
        )
        mixed = F.linear(heads.transpose(0, 1).flatten(-2), w["midlayer.self_attn.o_proj"])
        hidden = (normed if norms_first else previous) + mixed
        inner = rms(hidden, w["midlayer.post_attention_layernorm"])
        gate, up = (F.linear(inner, w[f"midlayer.mlp.{name}_proj"]) for name in ("gate", "up"))
        hidden = hidden + F.linear(F.silu(gate) * up, w["midlayer.mlp.down_proj"])
        return F.linear(rms(hidden, w["norm"]), w["lm_head"])


@pytest.mark.parametrize("kind", MAKERS)
def test_it_guesses_what_the_paper_says(tmp_path, kind):
    make, (num_guessed, has_embedding, taps) = MAKERS[kind]
    loaded = with_eagle3(stories(), str(make(tmp_path / "head")))
    tensors = head_tensors(num_guessed, has_embedding=has_embedding, num_taps=len(taps))
    ids = torch.randint(VOCAB, (40,))
    expected = expected_scores(tensors, taps, ids, norms_first=kind == "speculators")
    with torch.inference_mode():
        got = loaded.module.draft_sequences(ids[None])[0]
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)
    assert loaded.module.guesses(got) == [
        int(each + tensors["d2t"][each]) for each in got.argmax(-1)
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replies_are_the_same(tmp_path, monkeypatch, kind, dtype):
    monkeypatch.setattr("blazr.engine.build.Speculator", EagerSpeculator)
    make, _ = MAKERS[kind]
    spec = f"ngram,eagle3:{make(tmp_path / 'head')}"
    prompts = [[1, 5, 9, 40], [1, 77], list(range(3, 90))]
    params = [
        SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
        SamplingParams(temperature=0.8, seed=4, max_tokens=60, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=30, ignore_eos=True),
    ]
    replies = []
    for each in (None, spec):
        with LLM(str(STORIES), dtype=dtype, spec=each) as llm:
            for _ in range(2):  # the second time from the cache
                found = llm.generate(prompts, params)
                replies.append([one.token_ids for one in found])
            stats = llm.core.engine.stats()
    assert all(each == replies[0] for each in replies)
    assert stats["draft_tokens"] > 200


def without(name: str):
    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: tensor for key, tensor in tensors.items() if key != name}

    return change


def as_they_are(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


@pytest.mark.parametrize(
    ("change", "config", "error", "found"),
    [
        (without("fc.weight"), {}, ConfigError, "is no EAGLE-3 head"),
        (without("norm.weight"), {}, CheckpointError, "norm.weight"),
        (lambda t: t | {"fc.bias": torch.zeros(SIZE)}, {}, CheckpointError, "fc.bias"),
        (lambda t: t | {"fc.weight": t["fc.weight"].T.contiguous()}, {}, ShapeError, "fc.weight"),
        (lambda t: t | {"d2t": t["d2t"] + 10}, {}, ShapeError, "points to tokens"),
        (lambda t: t | {"d2t": t["d2t"][:-1].clone()}, {}, ShapeError, "d2t"),
        (as_they_are, {"hidden_size": 32, "head_dim": DIM}, ShapeError, "as wide"),
        (as_they_are, {"num_hidden_layers": 2}, ConfigError, "one layer"),
        (as_they_are, {"norm_before_fc": True}, ConfigError, "norm_before_fc"),
        (as_they_are, {"eagle_config": {IDS: [0, 1, 4]}}, ConfigError, "does not fit"),
        (as_they_are, {"eagle_config": {IDS: [1, 0, 3]}}, ConfigError, "does not fit"),
        (as_they_are, {IDS: "all"}, ConfigError, "does not fit"),
        (as_they_are, {"num_key_value_heads": 3}, ConfigError, "cannot share"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(tmp_path, change, config, error, found):
    tensors = change(head_tensors(100, has_embedding=False))
    path = save(tmp_path / "head", tensors, **{"eagle_config": {IDS: [0, 1, 3]}, **config})
    with pytest.raises(error, match=found):
        with_eagle3(stories(), str(path))


def test_it_is_refused_beside_the_models_own_module():
    with pytest.raises(ConfigError, match="do not work together"):
        LLM(spec="mtp,eagle3:somewhere")
    with pytest.raises(BlazrError, match="somewhere"):
        LLM(spec="eagle3:somewhere")
