"""Kernels that do whole steps agree with the mixers they stand in for, of any size, in any step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blazr.nn.kernels.cpu import compiled
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import MixerConfig
from blazr.nn.layers.batch import ForwardBatch
from blazr.nn.layers.gated_delta import GatedDeltaConfig, KimiDeltaConfig, OlmoDeltaConfig
from blazr.nn.layers.lightning import LightningConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mamba3 import Mamba3Config
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.rg_lru import RgLruConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.layers.short_conv import ShortConvConfig
from blazr.nn.operands.kv_dtype import KV_DTYPES
from blazr.nn.operands.state_dtype import STATE_DTYPES
from blazr.nn.operands.step import GRID, Span
from tests.support.examples import MIXER_EXAMPLES
from tests.support.kernel_shapes import Sizes
from tests.support.mixers import PAGES, SLOTS, copy_of, memory_of, mixer_of, step_of, tensors_of
from tests.support.without_kernels import without_kernels

# How far results of a few numbers may lie apart by luck.
DTYPES = {torch.float32: 3e-6, torch.float16: 2**-8, torch.bfloat16: 2**-5}
NORM_EPS = 0.1  # the norm of a few channels that are all small would blow up every rounding

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")


def _gqa(sizes: Sizes) -> AttentionConfig:
    kv_heads, dim = sizes.size(3), sizes.size(140, limit=512)
    turned = RopeConfig(2 * sizes.size(max(1, dim // 2)), interleaved=sizes.one_of(False, True))
    return AttentionConfig(
        hidden_size=sizes.size(40),
        num_heads=kv_heads * sizes.size(6),
        num_kv_heads=kv_heads,
        head_dim=dim,
        rope=sizes.one_of(None, turned if dim > 1 else None),
        qkv_bias=sizes.one_of(False, True),
        qk_norm=sizes.one_of(False, True),
        norm_eps=NORM_EPS,
        sliding_window=sizes.one_of(None, sizes.size(150)),
        attn_logit_softcap=sizes.one_of(None, 3.0),
        sinks=sizes.one_of(False, True),
        output_gate=sizes.one_of(False, True),
    )


def _mla(sizes: Sizes) -> DeepseekMlaConfig:
    rope_dim = 2 * sizes.size(32)
    return DeepseekMlaConfig(
        hidden_size=sizes.size(40),
        num_heads=sizes.size(20),
        head_dim=sizes.size(40),
        rope_dim=rope_dim,
        kv_latent=sizes.size(70, limit=512),
        q_latent=sizes.one_of(None, sizes.size(40)),
        rope=sizes.one_of(None, RopeConfig(rope_dim, interleaved=sizes.one_of(False, True))),
        v_head_dim=sizes.size(40),
        norm_eps=NORM_EPS,
        attention_multiplier=0.2,
    )


def _mamba1(sizes: Sizes) -> Mamba1Config:
    return Mamba1Config(
        hidden_size=sizes.size(40),
        inner_size=sizes.size(70),
        state_size=sizes.size(40, limit=256),
        dt_rank=sizes.size(9),
        conv_kernel=1 + sizes.size(7),
        conv_bias=sizes.one_of(False, True),
        inner_norms=sizes.one_of("none", "plain", "weighted"),
        norm_eps=NORM_EPS,
    )


def _mamba2(sizes: Sizes) -> Mamba2Config:
    groups = sizes.size(3)
    heads, dim = groups * sizes.size(6), sizes.one_of(32, sizes.size(40, limit=128))
    return Mamba2Config(
        hidden_size=sizes.size(40),
        num_heads=heads,
        head_dim=dim,
        state_size=sizes.one_of(16, sizes.size(40, limit=256)),
        num_groups=groups,
        conv_kernel=1 + sizes.size(7),
        norm=sizes.one_of("gate_first", "norm_first", "none"),
        norm_groups=sizes.one_of(1, groups, heads),
        norm_eps=NORM_EPS,
        multipliers=sizes.one_of(None, (0.5, 1.5, 0.7, 1.2, 2.0)),
    )


def _lightning(sizes: Sizes) -> LightningConfig:
    heads, dim = sizes.size(6), sizes.one_of(32, sizes.size(40, limit=128))
    turned = RopeConfig(2 * sizes.size(max(1, dim // 2)))
    return LightningConfig(
        hidden_size=sizes.size(40),
        head_dim=dim,
        rates=tuple(0.9 / (i + 1) for i in range(heads)),
        norm_eps=NORM_EPS,
        norm_groups=sizes.one_of(1, heads),
        activation=sizes.one_of("silu", None),
        qk_norm=sizes.one_of(False, True),
        rope=sizes.one_of(None, turned if dim > 1 else None),
        scale=sizes.one_of(1.0, 0.2),
    )


def _mamba3(sizes: Sizes) -> Mamba3Config:
    groups, is_turned = sizes.size(2), sizes.one_of(False, True)
    states = sizes.size(40, limit=256)
    return Mamba3Config(
        hidden_size=sizes.size(40),
        num_heads=groups * sizes.size(2),
        head_dim=sizes.size(40, limit=256),
        state_size=states + states % 2 if is_turned else states,
        num_groups=groups,
        conv_kernel=1 + sizes.size(7),
        use_conv=sizes.one_of(False, True),
        complex_rope=is_turned,
        mimo_rank=sizes.one_of(0, 2, 4),
        norm_eps=NORM_EPS,
    )


def _gated_delta(sizes: Sizes) -> GatedDeltaConfig:
    heads = sizes.size(3)
    return GatedDeltaConfig(
        hidden_size=sizes.size(40),
        num_key_heads=heads,
        num_heads=heads * sizes.size(3),
        key_head_dim=sizes.size(40, limit=256),
        value_head_dim=sizes.size(90, limit=256),
        conv_kernel=1 + sizes.size(7),
        norm_eps=NORM_EPS,
    )


def _olmo_delta(sizes: Sizes) -> OlmoDeltaConfig:
    heads = sizes.size(3)
    return OlmoDeltaConfig(
        hidden_size=sizes.size(40),
        num_key_heads=heads,
        num_heads=heads * sizes.size(3),
        key_head_dim=sizes.size(40, limit=256),
        value_head_dim=sizes.size(90, limit=256),
        conv_kernel=1 + sizes.size(7),
        norm_eps=NORM_EPS,
        beta_scale=2.0,
    )


def _kimi_delta(sizes: Sizes) -> KimiDeltaConfig:
    heads, dim = sizes.size(4), sizes.size(90, limit=256)
    return KimiDeltaConfig(
        hidden_size=sizes.size(40),
        num_key_heads=heads,
        num_heads=heads,
        key_head_dim=dim,
        value_head_dim=dim,
        conv_kernel=1 + sizes.size(7),
        norm_eps=NORM_EPS,
    )


def _rg_lru(sizes: Sizes) -> RgLruConfig:
    return RgLruConfig(
        hidden_size=sizes.size(40),
        num_heads=sizes.size(3),
        head_dim=sizes.size(40),
        conv_kernel=1 + sizes.size(7),
    )


def _short_conv(sizes: Sizes) -> ShortConvConfig:
    return ShortConvConfig(
        hidden_size=sizes.size(300),
        conv_kernel=1 + sizes.size(7),
        bias=sizes.one_of(False, True),
    )


# What each calls, besides products and what is done to numbers and rows alone.
KINDS: dict[str, tuple[Callable[[Sizes], MixerConfig], set[str]]] = {
    "gqa": (_gqa, {"rotate", "attention"}),
    "mla": (_mla, {"rotate", "attention"}),
    "mamba1": (_mamba1, {"convolution", "mamba1"}),
    "mamba2": (_mamba2, {"mamba2"}),
    "lightning": (_lightning, {"mamba2"}),
    "mamba3": (_mamba3, {"mamba3", "gated_rows"}),
    "gated_delta": (_gated_delta, {"convolution", "gated_delta"}),
    "olmo_delta": (_olmo_delta, {"convolution", "gated_delta"}),
    "kimi_delta": (_kimi_delta, {"convolution", "gated_delta"}),
    "rg_lru": (_rg_lru, {"convolution", "rg_lru"}),
    "short_conv": (_short_conv, {"convolution"}),
}


def _step(sizes: Sizes) -> ForwardBatch:
    """Up to four sequences, those of one token first."""
    lengths = sorted(sizes.one_of(1, sizes.size(20), sizes.size(100)) for _ in range(sizes.size(4)))
    pages, slots = torch.randperm(PAGES).tolist(), torch.randperm(SLOTS).tolist()
    spans, tables = [], []
    for length in lengths:
        start = sizes.one_of(0, 64, sizes.size(150) - 1)
        first, logged = sum(span.length for span in spans), start % GRID
        edges = range(GRID - logged, length + 1, GRID)
        spans.append(Span(first, length, start, logged, tuple((at, slots.pop()) for at in edges)))
        tables.append([pages.pop() for _ in range(-(-(start + length) // GRID))])
    return step_of(
        spans,
        pages=tables,
        states=slots[: len(spans)],
        runs=torch.randperm(SLOTS)[: len(spans)].tolist(),
    )


def _error(found: Tensor, truth: Tensor) -> float:
    """Root of the mean square, as a share of the largest."""
    wide = found.double() - truth.double()
    return float(wide.square().mean().sqrt() / truth.abs().max().clamp(min=1e-3))


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(data=st.data())
def test_kernels_are_as_right_as_the_mixer(kind: str, data: st.DataObject) -> None:
    _agree(kind, Sizes(data))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_so_are_the_largest_that_kernels_have_room_for(kind: str, data: st.DataObject) -> None:
    _agree(kind, Sizes(data, is_large=True))


@torch.inference_mode()
def _agree(kind: str, sizes: Sizes) -> None:
    """What the definition loses in this dtype is allowed twice."""
    config, dtype, step = KINDS[kind][0](sizes), sizes.one_of(*DTYPES), _step(sizes)
    has_pages = bool(config.cache_spec(dtype).paged)
    memory = memory_of(
        config,
        dtype,
        kv_dtype=sizes.one_of(*KV_DTYPES) if has_pages else "auto",
        state_dtype=sizes.one_of(*STATE_DTYPES),
    )
    mixer = mixer_of(config, dtype)
    x = torch.randn(len(step.positions), config.hidden_size).to(dtype)
    found = {}
    for isa in compiled.isas():
        compiled.use(isa)
        cache = copy_of(memory)
        found[isa] = {"out": mixer(x, step, cache), **tensors_of(cache)}
    with without_kernels():
        cache = copy_of(memory)
        usual = {"out": mixer(x, step, cache), **tensors_of(cache)}
        wide = copy_of(memory, memory_of(config, torch.float64))
        exact = mixer_of(config, torch.float64)
        exact.load_state_dict(mixer.state_dict())
        truth = {"out": exact(x.double(), step, wide), **tensors_of(wide)}
    for isa, tensors in found.items():
        for name, tensor in tensors.items():
            lost = _error(usual[name], truth[name])
            assert _error(tensor, truth[name]) <= 2 * lost + DTYPES[dtype], (
                isa,
                name,
                dtype,
                config,
            )


@torch.inference_mode()
def test_small_steps_after_large_ones_keep_their_digits() -> None:
    """Sums of decays grow large, and their differences count."""
    config = MIXER_EXAMPLES["mamba2_bare"]
    mixer, memory = mixer_of(config), memory_of(config, torch.float32)
    # the first channel says how large a step is
    mixer.in_proj.weight[-config.num_heads :] = 0
    mixer.in_proj.weight[-config.num_heads :, 0] = 1
    x = torch.randn(60, config.hidden_size)
    x[:20, 0], x[20:, 0] = 20, -3
    step = step_of([Span(0, len(x), 0, 0)])
    with without_kernels():
        expected = mixer(x, step, copy_of(memory))
    for isa in compiled.isas():
        compiled.use(isa)
        found = mixer(x, step, copy_of(memory))
        assert (found - expected).abs().max() < 3e-6 * expected.abs().max(), isa


@torch.inference_mode()
def test_every_kernel_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind runs what it is here to try."""
    library, called = compiled.kernels(), set()

    class Noted:
        def __getattr__(self, name: str) -> object:
            called.add(name.removeprefix("blazr_"))
            return getattr(library, name)

    monkeypatch.setattr(compiled, "kernels", Noted)
    for sizes_of, expected in KINDS.values():
        called.clear()
        sizes = _Smallest()
        config, step = sizes_of(sizes), _step(sizes)
        x = torch.randn(len(step.positions), config.hidden_size)
        mixer_of(config)(x, step, memory_of(config, torch.float32))
        assert expected <= called


class _Smallest(Sizes):
    """The first of every choice."""

    def __init__(self) -> None:
        pass

    def size(self, most: int = 140, *, limit: int = 0) -> int:
        return min(most, 2)

    def one_of(self, *choices: object) -> object:
        return choices[0]
