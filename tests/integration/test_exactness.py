"""The same bits for a request, whatever else runs, however its prompt is cut, on any threads.

Each prompt is first answered alone, read whole, on one thread, every step computed. Then it is
answered among others. Tokens and the logits that they were chosen from must be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from blazr.engine.replay import Size
from blazr.models.causal_lm import CausalLM, Embedding, ModelConfig
from blazr.nn.kernels.cpu import compiled
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import Experts, MoeConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.packing import PACKINGS
from blazr.nn.quant.packed import PackedWeight
from tests.support.examples import LENGTH_MIXES, MIXES, STORED_MIXES
from tests.support.networks import CONTEXT, VOCAB, Lab, build_network
from tests.support.op_samples import random_packed
from tests.support.seeds import run_seed

BATCHES, CHUNKS, THREADS = (1, 2, 3, 7, 16, 33), (1, 7, 64, 300), (1, 2, 4)
LONGEST = {1: 70, 7: 140, 64: 150, 300: 310}  # tokens of the longest prompt, by chunk
WIDE = 256  # a superblock

pytestmark = [
    pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled"),
    pytest.mark.usefixtures("kernels_as_before"),
]


def wide_network(names: tuple[str, ...], dtype: torch.dtype) -> CausalLM:
    """Attention, experts and Mamba-2, whose matrices take turns with these packings, if any."""
    torch.manual_seed(run_seed(2))
    norm = NormConfig(WIDE, 1e-5)
    attention = AttentionConfig(
        hidden_size=WIDE, num_heads=4, num_kv_heads=2, head_dim=64, rope=RopeConfig(64)
    )
    mamba = Mamba2Config(hidden_size=WIDE, num_heads=4, head_dim=64, state_size=16)
    mlp = MlpConfig(hidden_size=WIDE, intermediate_size=WIDE)
    moe = MoeConfig(hidden_size=WIDE, intermediate_size=WIDE, num_experts=4, experts_per_token=2)
    layers = tuple(
        LayerConfig(mixer=mixer, mixer_norm=norm, feed_forward=feed, feed_forward_norm=norm)
        for mixer, feed in ((attention, mlp), (mamba, moe))
    )
    config = ModelConfig(
        vocab_size=VOCAB, hidden_size=WIDE, max_seq_len=CONTEXT, layers=layers, final_norm=norm
    )
    model = CausalLM(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.1)
    model = model.to(dtype).eval().requires_grad_(requires_grad=False)
    count = 0
    for module in list(model.modules()):
        kinds = {Linear: ("weight",), Embedding: ("weight",), Experts: tuple(module._parameters)}
        for name in kinds.get(type(module), ()):
            if names:
                _pack(module, name, names[count // 3 % len(names)])
                count += 1
    return model


def _pack(module: nn.Module, name: str, packing: str) -> None:
    plain: Tensor = getattr(module, name)
    *stack, rows, columns = plain.shape
    kind = PACKINGS[packing]
    packed = random_packed(kind, rows, columns // kind.columns, *stack)
    weight = PackedWeight(kind, packed.blocks, rows, plain.dtype, row_scales=packed.row_scales)
    delattr(module, name)
    setattr(module, name, weight)


KINDS: dict[str, Callable[[torch.dtype], CausalLM]] = {
    **{
        name: lambda dtype, mix=mix: build_network(mix, seed=4).to(dtype)
        for name, mix in (MIXES | LENGTH_MIXES).items()
    },
    **{
        f"packed, {name}": partial(wide_network, (name,))
        for name in ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4", "int8", "int4 by 64")
    },
    "plain and wide": partial(wide_network, ()),
    "packed in turns": partial(wide_network, tuple(PACKINGS)),
    "wide in q8_0": partial(wide_network, ()),
    "wide in fp8": partial(wide_network, ()),
    "wide with states in bfloat16": partial(wide_network, ()),
    **{
        name: lambda dtype, mix=mix: build_network(MIXES[mix], seed=4).to(dtype)
        for name, (mix, _) in STORED_MIXES.items()
    },
}
STORED = {
    "wide in q8_0": {"kv_dtype": "q8_0"},
    "wide in fp8": {"kv_dtype": "fp8_e4m3"},
    "wide with states in bfloat16": {"state_dtype": "bfloat16"},
    **{name: stored for name, (_, stored) in STORED_MIXES.items()},
}


def prompts_of(batch: int, chunk: int) -> list[tuple[int, ...]]:
    """One is long; it comes among the others."""
    lengths = [1 + 7 * index % 23 for index in range(batch)]
    lengths[batch // 2] = LONGEST[chunk]
    return [
        tuple((11 * place + 5 * index + place * place % 7) % VOCAB for place in range(length))
        for index, length in enumerate(lengths)
    ]


class Network:
    """A network, and what it answers to each prompt alone."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        self.lab_of = partial(Lab, KINDS[kind](dtype), prefix_cache=False, **STORED.get(kind, {}))
        self.alone = cache(self._alone)

    def _alone(self, prompt: tuple[int, ...], length: int) -> tuple[list[int], Tensor]:
        torch.set_num_threads(1)
        lab = self.lab_of(max_running=1, budget=CONTEXT, replay=False)
        asked = lab.ask(prompt, max_tokens=length)
        lab.run()
        return lab.answer(asked)

    def check(self, batch: int, chunk: int, threads: int, *, replay: bool) -> bool:
        """Ask all together, for the answers given alone; says whether steps were recorded."""
        prompts = prompts_of(batch, chunk)
        lengths = [8 + index % 5 for index in range(batch)]
        expected = list(map(self.alone, prompts, lengths))
        torch.set_num_threads(threads)
        lab = self.lab_of(
            max_running=batch, tokens=512 + 64 * batch, budget=chunk + batch, replay=replay
        )
        asked = [
            lab.ask(prompt, max_tokens=length)
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        while lab.engine.has_work():
            lab.step(prefill_budget=chunk)
        for request, (tokens, logits) in zip(asked, expected, strict=True):
            got, scores = lab.answer(request)
            where = batch, chunk, threads, replay, request
            assert got == tokens, where
            assert torch.equal(scores, logits), where
        replays = lab.runner.replays
        return replays is not None and any(
            replays.num_python(Size(n, n)) is not None for n in range(1, 34)
        )


# One of each in turn: the whole product takes six minutes.
_SOME = list(
    zip((2, 7, 3, 16), (64, 1, 300, 7), (2, 1, 4, 1), (True, False, True, True), strict=True)
)


@pytest.mark.parametrize(
    ("kind", "case"), [(k, _SOME[i % 4]) for i, k in enumerate(KINDS)], ids=str
)
def test_some_of_the_product(kind: str, case: tuple[int, int, int, bool]) -> None:
    *sizes, replay = case
    Network(kind, torch.float32).check(*sizes, replay=replay)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_product(kind: str) -> None:
    network = Network(kind, torch.bfloat16)
    recorded = [
        network.check(batch, chunk, threads, replay=replay)
        for batch, chunk, threads, replay in product(BATCHES, CHUNKS, THREADS, (False, True))
    ]
    assert sum(recorded) > 30
