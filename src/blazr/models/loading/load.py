"""From what the user typed to a network with its weights in place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch
from torch import nn

from blazr.core import env
from blazr.core.errors import CapacityError, CheckpointError, ConfigError, UnknownFamilyError
from blazr.core.gguf_header import Value
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.checkpoint.base import Checkpoint, QuantizedInfo
from blazr.models.checkpoint.open import find_model, open_checkpoint
from blazr.models.families import FAMILIES
from blazr.models.families.base import ConfigReader, Derivation, Derived, Family
from blazr.models.families.hf.derive import model_type
from blazr.models.loading.kept import kept_weights
from blazr.models.loading.plan import LoadPlan, plan_load
from blazr.models.loading.weights import (
    choose_dtype,
    choose_storage,
    copied_bytes,
    dequantize_if_room,
    place,
    read_weights,
    stored_as,
)
from blazr.nn.device import Device
from blazr.nn.layers.cache_spec import CacheSpec
from blazr.nn.layers.decoder_layer import DecoderLayer
from blazr.nn.layers.mamba2 import Mamba2
from blazr.nn.layers.mamba3 import Mamba3
from blazr.nn.quant.policy import parse_policy

log = logging.getLogger(__name__)

SSM_A = ("stored", "trained")
_LISTED_NAMES = 5
_OTHER_MODELS = (
    "'blazr generate', 'chat', 'serve' and 'info' run what transformers knows through that library"
    " (pip install 'blazr[transformers]')"
)
# Of what is free, for weights that are plain though they need not be.
_ROOM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A network ready to run.

    Args:
        module: The network, in evaluation mode, without gradients.
        config: Its sizes.
        family: Which kind of checkpoint it came from.
        path: The directory or file.
        name: What to call it.
        derivation: Where each value of the config came from.
        metadata: The contents of config.json; empty where there is none.
        gguf: The metadata of a GGUF file; empty for other files.
    """

    module: CausalLM
    config: ModelConfig
    family: str
    path: Path
    name: str
    derivation: tuple[Derived, ...]
    metadata: Mapping[str, object]
    gguf: Mapping[str, Value]

    @property
    def vocab_size(self) -> int:
        """Rows of its embedding."""
        return self.config.vocab_size

    @property
    def max_seq_len(self) -> int:
        """Its context, tokens."""
        return self.config.max_seq_len

    @property
    def is_unbounded(self) -> bool:
        """Whether it reads prompts of any length (no attention in it)."""
        return not any(spec.paged for spec in self._cache_specs())

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer has a state that stands for all tokens before it."""
        return any(spec.checkpoint for spec in self._cache_specs())

    @property
    def directory(self) -> Path | None:
        """Where the tokenizer and its files lie, unless the model's file holds all of it."""
        if self.gguf:
            return None
        return self.path if self.path.is_dir() else self.path.parent

    def _cache_specs(self) -> list[CacheSpec]:
        return [layer.mixer.cache_spec(self.module.dtype) for layer in self.config.layers]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model whose headers have been read, and nothing else.

    Args:
        name: What to call it.
        checkpoint: Its files.
        family: Its kind.
        derivation: Its config and how that was found.
        module: The network without weights, on the meta device.
        plan: Which tensors go where; checked.
    """

    name: str
    checkpoint: Checkpoint
    family: Family
    derivation: Derivation
    module: CausalLM
    plan: LoadPlan


def plan_model(model: str, *, revision: str | None = None) -> PlannedModel:
    """Find a model, derive its config and match every tensor, reading headers only.

    Args:
        model: A directory, a file, ``nano``, or a Hub id.
        revision: Branch, tag or commit of a Hub id.

    Raises:
        CheckpointError: There is no such model, or its tensors are not those of its kind.
        ShapeError: Its tensors do not fit each other.
        ConfigError: config.json has a wrong value.
    """
    files = find_model(model, revision=revision)
    checkpoint = open_checkpoint(files.path)
    family = detect_family(checkpoint)
    derivation = family.derive(checkpoint)
    with torch.device("meta"):
        module = CausalLM(derivation.config)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    rules = derivation.rules
    # some quantizers write biases of nothing but zeros where the layer has none
    zero_biases = []
    for name in checkpoint.tensors:
        weight = checkpoint.tensors.get(f"{name.removesuffix('.bias')}.weight")
        if not name.endswith(".bias") or not isinstance(weight, QuantizedInfo):
            continue
        match = rules.match(name)
        has_place = match is not None and match.parameter in shapes
        if not has_place and not checkpoint.read(name).count_nonzero():
            zero_biases.append(name)
    plan = plan_load(
        checkpoint.tensors,
        shapes,
        rules,
        ignored=family.ignored,
        ignored_beginnings=(*derivation.unused, *zero_biases),
    )
    plan.check()
    return PlannedModel(
        name=files.name,
        checkpoint=checkpoint,
        family=family,
        derivation=derivation,
        module=module,
        plan=plan,
    )


def detect_family(checkpoint: Checkpoint) -> Family:
    """The family whose tensor names or whose ``model_type`` these are.

    Raises:
        CheckpointError: They are no family's.
        UnknownFamilyError: config.json names a type of model that blazr does not know.
    """
    for family in FAMILIES.values():
        if family.matches(checkpoint):
            return family
    kind = model_type(checkpoint)
    if kind is not None:
        raise UnknownFamilyError(
            "config.json: this model_type is not supported.",
            found=repr(kind)[:100],
            expected=", ".join(FAMILIES),
            hint=_OTHER_MODELS,
        )
    names = ", ".join(name[:40] for name in list(checkpoint.tensors)[:4])
    raise CheckpointError(
        f"{checkpoint.path} is not a language model of a kind that blazr knows.",
        found=f"tensors such as {names}",
        expected="embed_tokens.weight and layers.0.* (oxidizr), the same behind model."
        " (Llama), backbone.* (Mamba), or a config.json that says",
    )


def load(
    model: str,
    *,
    device: Device,
    dtype: str = "auto",
    revision: str | None = None,
    ssm_a: str | None = None,
    quantize: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Load a model.

    Args:
        model: A directory, a file, ``nano``, or a Hub id.
        device: Where to.
        dtype: ``"auto"`` (as stored, or float32 where the device lacks that), ``"float32"``,
            ``"bfloat16"`` or ``"float16"``.
        revision: Branch, tag or commit of a Hub id.
        ssm_a: ``"stored"`` takes Mamba's decay rates from the file, ``"trained"`` takes the
            -1, -2, ... that oxidizr's trainer really used; None does what config.json's
            ``ssm_a`` says, else ``"stored"``.
        quantize: Pack plain weights while they are read: ``"q8_0"``, ``"q4_0"``, or by part
            (``"experts=q4_0,lm_head=q8_0"``). None keeps all as they are stored.
        progress: Told the bytes that have been read, and all of them.

    Raises:
        CheckpointError: There is no such model, or its tensors are not those of its kind.
        ShapeError: Its tensors do not fit each other.
        ConfigError: config.json or an option has a wrong value.
        UnknownNameError: There is no such dtype or quantization.
        CapacityError: There is not enough memory.
    """
    policy = parse_policy(quantize)
    planned = plan_model(model, revision=revision)
    checkpoint = planned.checkpoint
    module = planned.module
    declared = ConfigReader(checkpoint.config).text("ssm_a")
    ssm_a = ssm_a or (declared.value if declared else SSM_A[0])
    if ssm_a not in SSM_A:
        raise ConfigError("unknown ssm_a.", found=repr(ssm_a)[:100], expected=" or ".join(SSM_A))
    for warning in planned.derivation.warnings:
        log.warning("%s", warning)
    for value in planned.derivation.values:
        if value.is_assumed:
            log.warning("assuming %s = %s: %s", value.name, value.value, value.note)
    chosen = choose_dtype(dtype, planned.plan, device, planned.derivation.config)
    storage = choose_storage(planned.plan, module, policy)
    free = device.free_bytes()
    storage = dequantize_if_room(planned.plan, storage, chosen, room=int(free * _ROOM))
    needed = copied_bytes(planned.plan, chosen, device.torch_device, storage)
    if needed > free:
        raise CapacityError(
            f"the weights need about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free.",
            hint="pack them (--quantize q4_0), choose a smaller model, or free memory",
        )
    log.debug(
        "%s is %s: %d layers, %d tensors stored as %s, computed in %s",
        planned.name,
        planned.family.name,
        len(planned.derivation.config.layers),
        len(planned.plan.steps),
        stored_as(planned.plan),
        chosen,
    )
    started_s = monotonic()
    kept = None
    if env.flag("BLAZR_KEEP_PACKED"):
        kept = kept_weights(checkpoint, planned.name, quantize=quantize, dtype=chosen)
    weights = read_weights(
        planned.plan,
        checkpoint,
        dtype=chosen,
        device=device.torch_device,
        storage=storage,
        kept=kept,
        progress=progress,
    )
    if weights.not_finite:
        names = ", ".join(name[:100] for name in weights.not_finite[:_LISTED_NAMES])
        log.warning("%d tensors hold NaN or infinity: %s", len(weights.not_finite), names)
    log.debug("read the weights in %.2f s", monotonic() - started_s)
    place(module, weights.tensors)
    module.requires_grad_(requires_grad=False).eval()
    _apply_ssm_a(module, ssm_a)
    return LoadedModel(
        module=module,
        config=planned.derivation.config,
        family=planned.family.name,
        path=checkpoint.path,
        name=planned.name,
        derivation=planned.derivation.values,
        metadata=checkpoint.config or {},
        gguf=checkpoint.metadata,
    )


def _apply_ssm_a(module: CausalLM, choice: str) -> None:
    """Replace the decay rates if asked to; mention that one could, where they look untrained."""
    mixers = [
        layer.mixer
        for layer in module.layers
        if isinstance(layer, DecoderLayer) and isinstance(layer.mixer, Mamba2 | Mamba3)
    ]
    if choice == "trained":
        for mixer in mixers:
            steps = torch.arange(1, len(mixer.a_log) + 1, device=mixer.a_log.device)
            mixer.a_log = nn.Parameter(steps.float().log(), requires_grad=False)
    elif mixers and all(
        len(mixer.a_log) > 8 and mixer.a_log.abs().max().item() <= 1 for mixer in mixers
    ):
        log.info(
            "all stored decay rates lie near their initial value; if the model was trained with"
            " oxidizr, ssm_a = 'trained' may be what it learned with"
        )
