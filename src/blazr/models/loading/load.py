"""From what the user typed to a network with its weights in place."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor, nn

from blazr.core import env
from blazr.core.errors import CapacityError, ConfigError
from blazr.core.gguf_header import Value
from blazr.core.sizes import size_text
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.families.base import ConfigReader, Derived, value_or
from blazr.models.families.rules import RuleBook
from blazr.models.loading.kept import kept_weights
from blazr.models.loading.parts import part_of_config
from blazr.models.loading.plan import LoadPlan, PlannedModel, plan_model, stage_name
from blazr.models.loading.read import Progress, read_weights
from blazr.models.loading.storage import (
    Storage,
    choose_dtype,
    choose_storage,
    dequantize_if_room,
    stored_as,
    weight_bytes,
)
from blazr.nn.device import Device, require_exact
from blazr.nn.layers.base import DecoderLayer
from blazr.nn.layers.cache_spec import CacheSpec
from blazr.nn.layers.mamba2 import Mamba2
from blazr.nn.layers.mamba3 import Mamba3
from blazr.nn.layers.moe import Experts
from blazr.nn.layers.ranks import ALONE, Ranks
from blazr.nn.ops.stored import stored_linear
from blazr.nn.quant.packed import QuantizePolicy, parse_policy
from blazr.nn.quant.weight import Weight

_log = logging.getLogger(__name__)
SSM_A = ("stored", "trained")
# Of the free memory, the share that weights may take as plain numbers, which are faster.
_PLAIN_SHARE = 0.5


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
        rules: From the names of the file's tensors to those of the network's parameters.
        num_parameters: Weights in it, those of all ranks.
    """

    module: CausalLM
    config: ModelConfig
    family: str
    path: Path
    name: str
    derivation: tuple[Derived, ...]
    metadata: Mapping[str, object]
    gguf: Mapping[str, Value]
    rules: RuleBook
    num_parameters: int

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
        return self.config.cache_specs(self.module.dtype)


def load(  # noqa: PLR0913  (one argument for each thing that may be chosen)
    model: str,
    *,
    device: Device,
    dtype: str = "auto",
    revision: str | None = None,
    ssm_a: str | None = None,
    quantize: str | None = None,
    with_mtp: bool = False,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
    free_bytes: int | None = None,
    in_stages: bool = False,
    cpu_experts: int = 0,
    exact: bool = False,
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
        with_mtp: Whether to load the module for multi-token prediction, too.
        progress: Told the bytes that have been read, and all of them.
        ranks: Who has the other parts of the network, of which this is one.
        free_bytes: Memory that the weights may take; None for what is free. Ranks must be told the
            same, as it decides what is kept packed.
        in_stages: Whether each of the ranks has some of the layers, and not a part of each.
        cpu_experts: Of so many layers, from the first on, the experts stay on the CPU.
        exact: Whether numbers must not depend on what else is computed in a step, where that costs
            time; of all models of this process from here on.

    Raises:
        CheckpointError: There is no such model, or its tensors are not those of its kind.
        ShapeError: Its tensors do not fit each other.
        ConfigError: config.json or an option has a wrong value.
        UnknownNameError: There is no such dtype or quantization.
        CapacityError: There is not enough memory.
    """
    if exact:
        require_exact()
    policy = parse_policy(quantize)
    planned = plan_model(model, revision=revision, with_mtp=with_mtp)
    checkpoint = planned.checkpoint
    part = _plan_part(planned, ranks, in_stages=in_stages)
    module, config, plan = part.module, part.module.config, part.plan
    ssm_a = ssm_a or value_or(ConfigReader(checkpoint.config).text("ssm_a"), SSM_A[0])
    if ssm_a not in SSM_A:
        raise ConfigError("unknown ssm_a.", found=repr(ssm_a)[:100], expected=" or ".join(SSM_A))
    for warning in planned.derivation.warnings:
        _log.warning("%s", warning)
    for value in planned.derivation.values:
        if value.is_assumed:
            _log.warning("assuming %s = %s: %s", value.name, value.value, value.note)
    chosen = choose_dtype(dtype, planned.plan, device, planned.derivation.config)
    free = device.free_bytes() if free_bytes is None else free_bytes
    stays = partial(_stays_on_cpu, num_layers=cpu_experts if device.kind != "cpu" else 0)
    # of the whole model, so that all ranks choose the same
    whole = _storage_in_room(planned, policy, chosen, device, free=free, stays=stays)
    named = ((stage_name(name, config), each) for name, each in whole.items())
    storage = {name: each for name, each in named if name is not None}
    size_of = partial(weight_bytes, dtype=chosen, storage=storage)
    _check_room(plan, size_of, stays, device=device, free=free)
    _log.debug(
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
    if env.flag("BLAZR_KEEP_PACKED") and ranks.rank.count == 1:
        kept = kept_weights(checkpoint, planned.name, quantize=quantize, dtype=chosen)
    weights = read_weights(
        plan,
        checkpoint,
        dtype=chosen,
        device=device.torch_device,
        storage=storage,
        stays=stays,
        kept=kept,
        progress=progress,
    )
    _log.debug("read the weights in %.2f s", monotonic() - started_s)
    place(module, weights)
    _leave_on_cpu(module, stays)
    module.activation_dtype = chosen
    module.requires_grad_(requires_grad=False).eval()
    _apply_ssm_a(module, ssm_a)
    return LoadedModel(
        module=module,
        config=config,
        family=planned.family.name,
        path=checkpoint.path,
        name=planned.name,
        derivation=planned.derivation.values,
        metadata=checkpoint.config,
        gguf=checkpoint.metadata,
        rules=planned.derivation.rules,
        num_parameters=sum(math.prod(step.shape) for step in planned.plan.steps),
    )


def _plan_part(planned: PlannedModel, ranks: Ranks, *, in_stages: bool) -> PlannedModel:
    """What one of several ranks loads; of a single rank the whole plan."""
    rank, config = ranks.rank, planned.derivation.config
    if rank.count == 1:
        return planned
    if in_stages:
        config = config.as_stage(rank)
        plan = planned.plan.of_stage(config)
    else:
        config, parts = part_of_config(config, rank)
        plan = planned.plan.part(parts, rank)
    with torch.device("meta"):
        module = CausalLM(config)
    module.join(ranks)
    return replace(planned, module=module, plan=plan)


def _storage_in_room(
    planned: PlannedModel,
    policy: QuantizePolicy,
    dtype: torch.dtype,
    device: Device,
    *,
    free: int,
    stays: Callable[[str], bool],
) -> Storage:
    """How parameters are to be packed; plain where that is faster and there is room.

    Args:
        planned: The whole model.
        policy: What was asked for.
        dtype: What it is computed in.
        device: Where it goes.
        free: Bytes that are free there.
        stays: Which parameters go to the CPU instead.
    """
    storage = choose_storage(planned.plan, planned.module, policy)
    storage = dequantize_if_room(
        planned.plan,
        storage,
        dtype,
        room=int(free * _PLAIN_SHARE),
        has_kernels=stored_linear.has_kernel(dtype, device.kind),
        is_on_cpu=device.kind == "cpu",
        lies_there=lambda parameter: not stays(parameter),
    )
    if not any(stays(name) for name in storage):
        return storage
    room = int(Device("cpu", "").free_bytes() * _PLAIN_SHARE)
    return dequantize_if_room(
        planned.plan, storage, dtype, room=room, is_on_cpu=True, lies_there=stays
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
            first = 1 + module.ranks.rank.number * len(mixer.a_log)
            steps = torch.arange(first, first + len(mixer.a_log), device=mixer.a_log.device)
            mixer.a_log = nn.Parameter(steps.float().log(), requires_grad=False)
    elif mixers and all(
        len(mixer.a_log) > 8 and mixer.a_log.abs().max().item() <= 1 for mixer in mixers
    ):
        _log.info(
            "all stored decay rates lie near their initial value; if the model was trained with"
            " oxidizr, ssm_a = 'trained' may be what it learned with"
        )


_EXPERTS = re.compile(r"layers\.(\d+)\.feed_forward\.experts\.")


def _stays_on_cpu(parameter: str, *, num_layers: int) -> bool:
    """Whether a parameter belongs to the experts of one of the first ``num_layers`` layers."""
    found = _EXPERTS.match(parameter)
    return found is not None and int(found[1]) < num_layers


def _leave_on_cpu(module: CausalLM, stays: Callable[[str], bool]) -> None:
    """Let experts on the CPU stay there when the rest of the network is moved."""
    for name, part in module.named_modules():
        if isinstance(part, Experts):
            part.stays = stays(f"{name}.")


def _check_room(
    plan: LoadPlan,
    size_of: Callable[..., int],
    stays: Callable[[str], bool],
    *,
    device: Device,
    free: int,
) -> None:
    """Refuse weights that do not fit into memory.

    Args:
        plan: All of them.
        size_of: The bytes of some, and whether they go to the CPU.
        stays: Which go to the CPU instead.
        device: Where the others go.
        free: Bytes that are free for them.

    Raises:
        CapacityError: There is less memory than they need.
    """
    apart = [step for step in plan.steps if stays(step.parameter)]
    others = [step for step in plan.steps if not stays(step.parameter)]
    needs = [(size_of(others, is_on_cpu=device.kind == "cpu"), free)]
    if apart:
        needs.append((size_of(apart, is_on_cpu=True), Device("cpu", "").free_bytes()))
        _log.info("%s of experts stay on the CPU", size_text(needs[-1][0]))
    for size, room in needs:
        if size > room:
            raise CapacityError(
                f"the weights need about {size_text(size)}, {size_text(room)} are free.",
                hint="pack them (--quantize q4_0), choose a smaller model, or free memory; beside a"
                " GPU, experts can stay on the CPU (--cpu-moe)",
            )


def place(module: CausalLM, tensors: Mapping[str, Tensor | Weight]) -> None:
    """Put weights in the place of a network's empty parameters."""
    plain = {name: each for name, each in tensors.items() if isinstance(each, Tensor)}
    result = module.load_state_dict(plain, assign=True, strict=False)
    packed = {name: each for name, each in tensors.items() if isinstance(each, Weight)}
    assert not result.unexpected_keys
    assert set(result.missing_keys) == set(packed)
    for name, weight in packed.items():
        owner, _, attribute = name.rpartition(".")
        parent: nn.Module = module.get_submodule(owner)
        delattr(parent, attribute)  # a parameter's place takes parameters only
        setattr(parent, attribute, weight)
