"""Faults planted in mixers, norms, rotations, routers and readers: verify finds every one.

Each is planted in the network or in what fills it, as a slip of its author would be; the engine,
which computes the same network, agrees with every one of them.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import typer
from torch import Tensor

from blazr.bench import independent
from blazr.bench.independent import Witness, ask_witness
from blazr.bench.reference import REFERENCES
from blazr.bench.verify import verify
from blazr.cli.verify import NO_REFERENCE
from blazr.cli.verify import verify as command
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.rules import TiledHeads
from blazr.models.loading import load as loading
from blazr.models.loading import plan as planning
from blazr.nn.device import resolve_device
from blazr.nn.layers import gated_delta, mamba1, mamba2, mamba3, rg_lru
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.gated_delta import OlmoDeltaConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import DeepseekMlaConfig, MlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig
from tests.support import ggufs, tiny
from tests.support.references import CASES, save_reference

CPU = resolve_device("cpu")
GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "gguf"
IDS = torch.randint(3, 53, (14,), generator=torch.Generator().manual_seed(0)).tolist()
HYBRID = tiny.Tiny(layers=("Mamba2", "Mamba1", "MlaWithMoe", "Mamba3", "GqaWithMoe"))
Plant = Callable[[pytest.MonkeyPatch], None]
Thing: TypeAlias = Any  # whatever a fault is planted in


def config_fault(kind: type, **changes: Callable[[Thing], Thing]) -> Plant:
    """Every config of a kind reads these fields otherwise than its files have them."""

    def changed(value: Thing) -> Thing:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        if not is_dataclass(value) or isinstance(value, type):
            return value
        own = {f.name: changed(getattr(value, f.name)) for f in fields(value) if f.init}
        if isinstance(value, kind):
            own |= {name: change(own[name]) for name, change in changes.items()}
        return replace(value, **own)

    def plant(patch: pytest.MonkeyPatch) -> None:
        build = loading.CausalLM
        patch.setattr(planning, "CausalLM", lambda config: build(changed(config)))

    return plant


def scaled(kind: type, name: str, factor: float) -> Plant:
    """A property of configs."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        own = vars(kind)[name]
        patch.setattr(kind, name, property(lambda self: own.fget(self) * factor))

    return plant


def weight_fault(part: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """Tensors whose parameters' names end like this come out otherwise."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        place = loading.place

        def wrong(module: Thing, tensors: dict[str, Thing]) -> None:
            assert any(name.endswith(part) for name in tensors), list(tensors)
            place(module, {n: change(t) if n.endswith(part) else t for n, t in tensors.items()})

        patch.setattr(loading, "place", wrong)

    return plant


def patch_reads(patch: pytest.MonkeyPatch, wrong: Callable[[Checkpoint, Thing], Tensor]) -> None:
    """Let a checkpoint read tensors otherwise, into memory of their own as well."""
    patch.setattr(Checkpoint, "view", wrong)
    patch.setattr(Checkpoint, "own", lambda self, info: self.view(info).clone())


def read_fault(change: Callable[[str, Tensor], Tensor]) -> Plant:
    """What a checkpoint's reader gives for a tensor, by its name."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        view = Checkpoint.view
        patch_reads(patch, lambda self, info: change(info.name, view(self, info)))

    return plant


def exchanged(first: str, second: str) -> Plant:
    """Parameters whose names end like this are loaded in each other's place."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        place = loading.place

        def wrong(module: Thing, tensors: dict[str, Thing]) -> None:
            other = {n: n.removesuffix(first) + second for n in tensors if n.endswith(first)}
            assert other, list(tensors)
            other |= {theirs: ours for ours, theirs in other.items()}
            place(module, {name: tensors[other.get(name, name)] for name in tensors})

        patch.setattr(loading, "place", wrong)

    return plant


def swapped(first: str, second: str) -> Plant:
    """Two tensors of every layer are taken for each other."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        view = Checkpoint.view

        def wrong(self: Checkpoint, info: Thing) -> Tensor:
            other = {first: second, second: first}
            names = [end for end in other if info.name.endswith(end)]
            name = info.name.removesuffix(names[0]) + other[names[0]] if names else info.name
            return view(self, self.tensors[name] if names else info)

        patch_reads(patch, wrong)

    return plant


def attribute(owner: Thing, name: str, wrap: Callable[[Thing], Thing]) -> Plant:
    return lambda patch: patch.setattr(owner, name, wrap(getattr(owner, name)))


def faster_rates(mixer: Thing) -> Plant:
    """The decay rates among the weights that a mixer's step takes."""

    def wrong(own: property) -> property:
        made = own.fget
        assert made is not None
        return property(lambda self: replace(made(self), a=made(self).a * 1.1))

    return attribute(mixer, "_weights", wrong)


def times(factor: float) -> Callable[[Thing], Thing]:
    return lambda function: lambda *args, **more: function(*args, **more) * factor


def twice(function: Thing) -> Thing:
    def doubled(*args: Thing) -> Thing:
        found = function(*args)
        return None if found is None else found * 2

    return doubled


def halves(x: Tensor) -> Tensor:
    return torch.cat(x.chunk(2, -2)[::-1], -2)


faster = lambda a_log: a_log + torch.log(torch.tensor(1.1))  # noqa: E731
THETA = config_fault(RopeConfig, theta=lambda theta: theta * 2)
PAIRS = config_fault(RopeConfig, interleaved=lambda was: not was)
EPS = config_fault(NormConfig, eps=lambda eps: eps * 100)
OTHER = {"silu": "gelu_tanh", "gelu_tanh": "silu", "relu2": "silu"}
GATE = config_fault(MlpConfig, activation=OTHER.__getitem__)
EXPERT_GATE = config_fault(MoeConfig, activation=OTHER.__getitem__)
NORMALISED = config_fault(MoeConfig, norm_topk_prob=lambda was: not was)
SCORING = config_fault(MoeConfig, scoring=lambda was: "sigmoid" if was == "softmax" else "softmax")
ROUTED = config_fault(MoeConfig, routed_scaling_factor=lambda was: was * 1.05)
FEWER = config_fault(MoeConfig, experts_per_token=lambda was: was - 1)
SCALE = scaled(AttentionConfig, "scale", 1.05)
RESIDUAL = config_fault(LayerConfig, residual_multiplier=lambda was: was * 1.02)
WINDOW = config_fault(AttentionConfig, sliding_window=lambda was: was and was + 1)
SOFTCAP = config_fault(AttentionConfig, attn_logit_softcap=lambda was: None)
QK_NORM = config_fault(AttentionConfig, norm_eps=lambda eps: eps * 100)
DELTA_DECAY = faster_rates(gated_delta.DeltaMixer)
DECAY = weight_fault(".a_log", faster)

# By the model: what is planted, by what that is. The name begins with the kind of file.
FAULTS: dict[str, dict[str, Plant]] = {
    "oxidizr": {
        "mla scale": scaled(MlaConfig, "scale", 1.05),
        "attention scale": SCALE,
        "rope base": THETA,
        "rope pairs": PAIRS,
        "norm eps": EPS,
        "mamba2 decay": attribute(mamba2, "decay_rates", times(1.1)),
        "mamba3 decay": attribute(mamba3, "decay_rates", times(1.1)),
        "mamba1 decay": faster_rates(mamba1.Mamba1),
        "mamba2 step limits": config_fault(Mamba2Config, dt_limits=lambda was: (was[0], 0.2)),
        "mamba2 gated norm's eps": config_fault(Mamba2Config, norm_eps=lambda eps: eps * 100),
        "mamba3 gated norm": attribute(mamba3, "gated_norm", times(1.001)),
        "router normalisation": NORMALISED,
        "router scoring": SCORING,
        "experts chosen": FEWER,
        "gate activation": EXPERT_GATE,
        "swapped tensors": swapped("w_uk.weight", "w_uv.weight"),
        "swapped projections": swapped("gate_proj.weight", "up_proj.weight"),
        "halves of a projection": weight_fault("mixer.in_proj.weight", halves),
        "a scale while reading": read_fault(
            lambda name, x: x * 1.01 if name.endswith("conv1d.weight") else x
        ),
    },
    "hf qwen3_moe": {
        "rope base": THETA,
        "attention scale": SCALE,
        "norm eps": EPS,
        "q/k norm's eps": QK_NORM,
        "q/k norm missing": weight_fault(".q_norm.weight", torch.ones_like),
        "router normalisation": NORMALISED,
        "gate activation": EXPERT_GATE,
        "swapped tensors": swapped("k_proj.weight", "v_proj.weight"),
    },
    "hf gemma2": {
        "softcap": SOFTCAP,
        "window": WINDOW,
        "gate activation": GATE,
        "norm offset": config_fault(NormConfig, unit_offset=lambda was: not was),
        "norms swapped": swapped("post_attention_layernorm.weight", "input_layernorm.weight"),
    },
    "hf gpt2": {
        "places": weight_fault("positions.weight", lambda x: x.roll(1, 0)),
        "attention scale": SCALE,
        "matrix on its side": weight_fault("o_proj.weight", lambda x: x.T.contiguous()),
    },
    "hf gpt_neo": {"window": WINDOW, "attention scale": SCALE},
    "hf codegen": {
        "values and keys": exchanged("k_proj.weight", "v_proj.weight"),
        "rope pairs": PAIRS,
    },
    "hf phi3": {
        "halves of gate and up": exchanged("gate_proj.weight", "up_proj.weight"),
        "rope base": THETA,
    },
    "hf granitemoehybrid": {
        "residual multiplier": RESIDUAL,
        "mamba2 decay": DECAY,
        "attention multiplier": SCALE,
        "norm groups": config_fault(Mamba2Config, norm_groups=lambda was: 1),
        "halves of gate and up": exchanged("experts.gate_proj", "experts.up_proj"),
    },
    "hf deepseek_v3": {
        "mla scale": scaled(DeepseekMlaConfig, "scale", 1.05),
        "rope pairs": PAIRS,
        "rope base": THETA,
        "router scoring": SCORING,
        "router scale": ROUTED,
        "router groups": config_fault(MoeConfig, groups=lambda was: None),
        "router bias": weight_fault("correction_bias", torch.zeros_like),
    },
    "hf gpt_oss": {
        "sinks": weight_fault(".sinks", torch.zeros_like),
        "experts' limit": config_fault(MoeConfig, swiglu_alpha=lambda was: was * 1.05),
        "window": WINDOW,
    },
    "hf qwen3_next": {
        "delta decay": DELTA_DECAY,
        "router normalisation": NORMALISED,
        "attention scale": SCALE,
    },
    "hf kimi_linear": {
        "delta decay": DELTA_DECAY,
        "mla scale": scaled(DeepseekMlaConfig, "scale", 1.05),
    },
    "hf olmo_hybrid": {
        "delta decay": DELTA_DECAY,
        "beta's scale": config_fault(OlmoDeltaConfig, beta_scale=lambda was: 1.0),
    },
    "hf jamba": {
        "mamba1 decay": DECAY,
        "inner norms' eps": config_fault(Mamba1Config, norm_eps=lambda eps: eps * 100),
        "router normalisation": NORMALISED,
    },
    "hf falcon_h1": {
        "multipliers": config_fault(Mamba2Config, multipliers=lambda was: was[::-1]),
        "norm before gate": config_fault(Mamba2Config, norm=lambda was: "norm_first"),
    },
    "hf lfm2": {
        "convolution": weight_fault("mixer.conv1d.weight", lambda x: x.flip(-1)),
        "q/k norm missing": weight_fault(".q_norm.weight", torch.ones_like),
    },
    "hf recurrent_gemma": {
        "decay": faster_rates(rg_lru.RgLru),
        "window": WINDOW,
        "activation": GATE,
    },
    "hf lfm3": {
        "window": WINDOW,
        "pairs that stand still": config_fault(RopeConfig, scaling=lambda was: None),
        "gates of heads": weight_fault(".gate_proj.weight", torch.zeros_like),
    },
    "hf zamba": {
        "attention scale": SCALE,
        "block's activation": config_fault(MlpConfig, activation=lambda was: "silu"),
        "step sizes": weight_fault(".dt_bias", lambda x: x + 0.1),
    },
    "hf zamba2": {
        "mamba2 decay": DECAY,
        "attention scale": SCALE,
        "block's activation": config_fault(MlpConfig, activation=lambda was: "silu"),
    },
    "gguf llama-rope": {
        "rope base": THETA,
        "rope pairs": PAIRS,
        "norm eps": EPS,
        "attention scale": SCALE,
        "gate activation": GATE,
        "swapped tensors": swapped("ffn_gate.weight", "ffn_up.weight"),
    },
    "gguf gemma3": {"rope base": THETA, "window": WINDOW, "attention scale": SCALE},
    "gguf deepseek2": {
        "mla scale": scaled(DeepseekMlaConfig, "scale", 1.05),
        "router scale": ROUTED,
        "swapped tensors": swapped("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
    },
    "gguf nemotron_h": {"mamba2 decay": DECAY, "activation": GATE},
    "gguf qwen35": {
        "delta decay": DELTA_DECAY,
        "heads' order": attribute(TiledHeads, "order", lambda _: lambda each: [*range(each.heads)]),
    },
    "gguf stories-q8_0": {
        "rope base": THETA,
        "dequantization": read_fault(lambda name, x: bump(x, 34) if "attn_q" in name else x),
    },
    "gguf stories-q4_0": {
        "dequantization": read_fault(lambda name, x: bump(x, 18) if "attn_q" in name else x),
    },
    "gguf nvfp4": {
        "dequantization": read_fault(lambda name, x: x | 1 if "attn_q.weight" in name else x),
        "factors": attribute(Checkpoint, "row_scales", twice),
    },
}
# One for each kind of mixer, norm, rotation, router and reader, and of file; the others are slow.
DAILY: dict[str, tuple[str, ...]] = {
    "oxidizr": (
        "mla scale",
        "rope base",
        "norm eps",
        "mamba2 decay",
        "mamba3 decay",
        "mamba1 decay",
        "router normalisation",
        "gate activation",
        "swapped tensors",
        "halves of a projection",
    ),
    "hf qwen3_moe": ("rope base", "q/k norm missing", "router normalisation", "swapped tensors"),
    "gguf llama-rope": ("rope base", "norm eps", "attention scale", "swapped tensors"),
    "gguf nvfp4": ("dequantization", "factors"),
    "gguf stories-q4_0": ("dequantization",),
}


def bump(blocks: Tensor, size: int) -> Tensor:
    """Blocks of Q8_0 or Q4_0 whose scales are off by a hundredth."""
    changed = blocks.clone().unflatten(-1, (-1, size))
    scale = changed[..., :2].contiguous().view(torch.float16)
    changed[..., :2] = (scale * 1.01).view(torch.uint8)
    return changed.flatten(-2)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Paths of tiny models by their names, each made once."""

    @cache
    def make(name: str) -> str:
        if name.startswith("hf"):
            pytest.importorskip("transformers")
        return _save(name, tmp_path_factory.mktemp(name.replace(" ", "-")))

    return make


def _save(name: str, folder: Path) -> str:
    kind, _, inner = name.partition(" ")
    if kind == "oxidizr":
        return str(tiny.save(HYBRID, folder / "m"))
    if kind == "hf":
        case, changes = CASES[inner]
        save_reference(case, folder, seed=1, changes=changes)
        return str(folder)
    path = folder / "model.gguf"
    if inner == "nvfp4":
        return str(ggufs.write(path, *_nvfp4()))
    if inner.startswith("stories-"):
        return str(GOLDEN / f"stories260K-{inner.removeprefix('stories-')}.gguf")
    path.write_bytes(lzma.decompress((GOLDEN / "converted" / f"{inner}.gguf.xz").read_bytes()))
    return str(path)


def _nvfp4() -> tuple[dict[str, Thing], dict[str, object]]:
    """A Llama of one layer, its matrices in blocks with factors of their own."""
    torch.manual_seed(0)
    size = 64

    def blocks() -> ggufs.Blocks:
        data = torch.randint(0, 256, (size, 36), dtype=torch.uint8)
        data[:, :4] = 0x20  # scales of 1/8
        return 40, (size, size), data.flatten()

    ones = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    matrices = [f"ffn_{name}" for name in ("gate", "up", "down")]
    matrices += [f"attn_{name}" for name in ("q", "k", "v", "output")]
    tensors: dict[str, Thing] = {
        "token_embd.weight": torch.randn(53, size),
        **{f"{name}.weight": torch.ones(size) for name in ones},
        **{f"blk.0.{name}.weight": blocks() for name in matrices},
        **{f"blk.0.{name}.scale": torch.rand(1) + 0.5 for name in matrices},
    }
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": size}
    sizes |= {"attention.head_count": 4, "attention.head_count_kv": 4}
    metadata: dict[str, object] = {f"llama.{key}": value for key, value in sizes.items()}
    metadata["llama.attention.layer_norm_rms_epsilon"] = 1e-5
    return tensors, {"general.architecture": "llama", **metadata}


def judged(path: str) -> Witness:
    """What verify asks, apart from the engine."""
    found = loading.load(path, device=CPU, dtype="float32")
    return ask_witness(found.module, loading.plan_model(path).checkpoint, IDS)


def daily(name: str, fault: str = "") -> list[pytest.MarkDecorator]:
    is_daily = name in DAILY and (not fault or fault in DAILY[name])
    return [] if is_daily else [pytest.mark.slow]


Models = Callable[[str], str]


@pytest.mark.parametrize("name", [pytest.param(name, marks=daily(name)) for name in FAULTS])
def test_a_sound_network_is_found_so(name: str, models: Models) -> None:
    found = judged(models(name))
    assert found.is_there
    assert found.agrees, found
    assert "formulas" in found.name


@pytest.mark.sample
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, fault, marks=daily(name, fault), id=f"{name}: {fault}")
        for name, faults in FAULTS.items()
        for fault in faults
    ],
)
def test_every_fault_is_found(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch, models: Models
) -> None:
    path = models(name)
    FAULTS[name][fault](monkeypatch)
    assert not judged(path).agrees


@pytest.mark.parametrize(
    "name", ["oxidizr", pytest.param("hf qwen3_moe", marks=pytest.mark.slow), "gguf llama-rope"]
)
def test_verify_says_so(name: str, monkeypatch: pytest.MonkeyPatch, models: Models) -> None:
    path = models(name)
    THETA(monkeypatch)
    found = verify(path, CPU, dtype="float32", max_tokens=2)
    assert not found.is_ok
    assert found.first_diverging_layer is None  # the engine computes what the network says
    assert found.greedy.agreeing == found.greedy.tokens


def test_a_wrong_embedding_and_a_wrong_head_are_found(
    monkeypatch: pytest.MonkeyPatch, models: Models
) -> None:
    path = models("oxidizr")
    with monkeypatch.context() as patch:
        weight_fault("lm_head.weight", lambda x: x.roll(1, 0))(patch)
        found = judged(path)
    assert found.first_wrong_layer is None
    assert found.logits is not None
    assert not found.logits.is_ok
    weight_fault("embed_tokens.weight", lambda x: x.roll(1, 0))(monkeypatch)
    assert judged(path).first_wrong_layer == -1


def test_transformers_is_the_witness_where_no_reference_is_written(
    monkeypatch: pytest.MonkeyPatch, models: Models
) -> None:
    path = models("hf qwen3_moe")
    monkeypatch.delitem(REFERENCES, "qwen3_moe")
    found = judged(path)
    assert found.agrees
    assert found.is_there
    assert found.name.startswith("transformers in float64, its scores alone: no reference for")
    THETA(monkeypatch)
    assert not judged(path).agrees


def test_without_any_witness_verify_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.save(tiny.Tiny(layers=("StandardTransformer",)), tmp_path / "m", layout="hf")
    monkeypatch.delitem(REFERENCES, "llama")
    monkeypatch.setattr(independent, "find_spec", lambda name: None)
    with pytest.raises(typer.Exit) as caught:
        command(str(path), dtype="float32", tokens=2, device="cpu")
    assert caught.value.exit_code == NO_REFERENCE
    said = capsys.readouterr().out
    assert "no independent reference for models of type 'llama'" in said
    assert "NOT VERIFIED" in said
