"""From what the user typed to a network with its weights in place, which are read one at a time.

They are read in the order on disk, in memory of their own: a model that serves does not depend on
what becomes of its files. What is converted on the way is read through a map, and the pages that it
was made of are given back, so that memory holds one copy of each weight.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
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
from blazr.models.checkpoint.base import Checkpoint, QuantizedInfo, TensorInfo
from blazr.models.families.base import ConfigReader, Derived, value_or
from blazr.models.families.rules import (
    Mxfp4,
    RuleBook,
    Stack,
    TiledColumns,
    Transform,
    Transpose,
    in_order,
)
from blazr.models.loading.kept import KeptWeights, kept_weights
from blazr.models.loading.parts import part_of_config, part_of_tensor, part_of_weight
from blazr.models.loading.plan import LoadPlan, LoadStep, PlannedModel, plan_model, stage_name
from blazr.models.loading.stacks import join_stack
from blazr.models.loading.storage import (
    Storage,
    Storing,
    choose_dtype,
    choose_storage,
    dequantize_if_room,
    is_as_stored,
    stored_as,
    weight_bytes,
)
from blazr.models.loading.upload import upload
from blazr.nn.device import Device, require_exact
from blazr.nn.layers.base import DecoderLayer
from blazr.nn.layers.cache_spec import CacheSpec
from blazr.nn.layers.mamba2 import Mamba2
from blazr.nn.layers.mamba3 import Mamba3
from blazr.nn.layers.moe import Experts
from blazr.nn.layers.ranks import ALONE, Ranks
from blazr.nn.operands.packing import TILE, BlockType
from blazr.nn.ops.stored import stored_linear
from blazr.nn.quant.exact import ShiftedWeight, in_blocks, mxfp4_blocks
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.quantize import Quantizer
from blazr.nn.quant.packed import QuantizePolicy, can_pack, pack_weight, parse_policy
from blazr.nn.quant.weight import (
    FloatWeight,
    GgufWeight,
    PlainWeight,
    StoredStack,
    StoredWeight,
    Weight,
)

_log = logging.getLogger(__name__)
# Told the bytes done so far and the bytes in all; first before anything is done.
Progress = Callable[[int, int], None]
SSM_A = ("stored", "trained")
_LISTED_NAMES = 5
# Of the free memory, the share that weights may take as plain numbers, which are faster.
_PLAIN_SHARE = 0.5
_CPU = torch.device("cpu")


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


def no_progress(_done: int, _total: int) -> None:
    """The `Progress` that nobody is told of."""


def read_weights(
    plan: LoadPlan,
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    storage: Storage,
    stays: Callable[[str], bool] = lambda _: False,
    kept: KeptWeights | None = None,
    progress: Progress | None = None,
) -> dict[str, Tensor | Weight]:
    """Every parameter by name; there is a warning of those that hold NaN or infinity.

    Args:
        plan: A plan that was checked.
        checkpoint: Where its tensors are.
        dtype: Of plain parameters, and of products with packed ones.
        device: Where they go.
        storage: Which are packed, and how.
        stays: Which go to the CPU instead.
        kept: Where they are taken from if they are there, and put if not.
        progress: Told the bytes that have been read, and all of them.

    Raises:
        CheckpointError: A file has gone or changed.
    """
    tensors: dict[str, Tensor | Weight] = {}
    extremes: list[tuple[str, Tensor]] = []  # the smallest and the largest element of each tensor
    total = sum(info.nbytes for step in plan.steps for info in step.sources)
    done = 0
    report = progress or no_progress
    for step in plan.steps:
        report(done, total)
        done += sum(info.nbytes for info in step.sources)
        storing = storage.get(step.parameter)
        where = _CPU if stays(step.parameter) else device
        if storing is not None:
            weight: Weight | None = None
            if kept and where.type == "cpu":  # by its kernels, which read what is kept
                weight = kept.find(step, dtype)
            if weight is None:
                weight = read_weight(step, checkpoint, storing, dtype=dtype, device=where)
            tensors[step.parameter] = weight
            continue
        tensor = _read_tensor(step, checkpoint, dtype, where)
        if step.held is not None:
            tensor = part_of_tensor(tensor, step.held)
        tensors[step.parameter] = tensor
        parts = tensor if isinstance(step.transform, Stack) else (tensor,)
        for part, info in zip(parts, step.sources[: len(parts)], strict=True):
            # these tell in one pass without temporaries; a part that was cast is judged by what it
            # was cast to
            if part.numel():
                extremes.append((info.name, torch.stack(part.aminmax())))
    # asked at the end, because a GPU would be waited for
    not_finite = [name for name, both in extremes if not all(map(math.isfinite, both.tolist()))]
    if not_finite:
        names = ", ".join(name[:100] for name in not_finite[:_LISTED_NAMES])
        _log.warning("%d tensors hold NaN or infinity: %s", len(not_finite), names)
    checkpoint.check_unchanged()
    report(total, total)
    if kept:
        kept.keep(tensors)
    return tensors


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


def _read_tensor(
    step: LoadStep, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Make a plain tensor."""
    if isinstance(step.transform, Stack):
        whole = torch.empty(step.shape, dtype=dtype, device=device)
        for part, info in zip(whole, step.sources, strict=True):
            part.copy_(_placed(read_plain(info, checkpoint), device))
            checkpoint.drop(info)
        return whole
    (info,) = step.sources
    if device.type == "cpu" and is_as_stored(step, None, dtype):
        return step.transform.read(checkpoint.own(info)).reshape(step.shape)
    tensor = step.transform.read(read_plain(info, checkpoint))
    tensor = _placed(tensor.reshape(step.shape), device).to(dtype).contiguous()
    checkpoint.drop(info)
    return tensor


def read_weight(
    step: LoadStep,
    checkpoint: Checkpoint,
    storing: Storing,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Weight:
    """Make a weight that is no plain tensor, in the order that kernels read where they can.

    Args:
        step: Its tensors.
        checkpoint: Where they are.
        storing: What it is to be.
        dtype: What products with it come in.
        device: Where it goes.

    Raises:
        CheckpointError: A file has gone or changed.
    """
    if storing != "as stored":
        read = _read_blocks(step, checkpoint, storing, dtype=dtype, device=device)
        if isinstance(storing, BlockType):  # else the factors are in the numbers
            read = _with_scales(read, step, checkpoint)
    elif isinstance(step.transform, Stack):
        read = StoredStack([read_matrix(each, checkpoint, dtype, _CPU) for each in step.sources])
    else:
        read = read_matrix(step.sources[0], checkpoint, dtype, device)
    if step.held is not None:
        read = part_of_weight(read, step.held)
    if isinstance(read, StoredStack) and device.type != "cpu":
        weight = join_stack(read, device)
    else:
        weight = pack_weight(read)
    if weight is not read:
        for info in step.sources:
            checkpoint.drop(info)
    return weight


def _read_blocks(
    step: LoadStep,
    checkpoint: Checkpoint,
    storing: BlockType | Quantizer,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Weight:
    kind = storing.kind if isinstance(storing, Quantizer) else storing
    first = step.sources[0]
    if is_as_stored(step, storing, dtype):
        is_copied = device.type != "cpu" or can_pack(kind, dtype)
        blocks = checkpoint.view(first) if is_copied else checkpoint.own(first)
        if device.type != "cpu":
            blocks = upload(blocks, device)
            checkpoint.drop(first)
        return GgufWeight(blocks, kind, dtype)
    whole = torch.empty((*step.shape[:-1], kind.row_bytes(step.shape[-1])), dtype=torch.uint8)
    if isinstance(step.transform, Mxfp4):
        each = (checkpoint.view(info) for info in step.sources)
        for part, codes, exponents in zip(whole, *each, strict=True):
            part.copy_(mxfp4_blocks(codes, exponents))
            for info in step.sources:
                checkpoint.drop(info)
    elif isinstance(step.transform, Transpose):
        assert isinstance(storing, Quantizer)
        # one matrix, or a stack of them
        both = whole, checkpoint.view(first)
        matrices = (each.reshape(-1, *each.shape[-2:]) for each in both)
        for part, numbers in zip(*matrices, strict=True):
            part.copy_(storing(numbers.mT.contiguous()))
            checkpoint.drop(first)
    else:
        parts = whole.flatten(0, -2).chunk(len(step.sources))
        for part, info in zip(parts, step.sources, strict=True):
            _fill(part, info, checkpoint, storing=storing, transform=step.transform)
    stored = GgufWeight(_placed(whole, device), kind, dtype)
    if isinstance(step.transform, TiledColumns) and isinstance(storing, BlockType):
        return _with_columns_moved(stored, step.transform)
    return stored


def _with_scales(stored: Weight, step: LoadStep, checkpoint: Checkpoint) -> Weight:
    """Blocks, and what their rows are multiplied with where the file says so."""
    scales = [checkpoint.row_scales(info) for info in step.sources]
    if all(each is None for each in scales):
        return stored
    rows = math.prod(step.shape[:-1]) // len(scales)
    each = [torch.ones(rows) if one is None else one for one in scales]
    whole = _placed(torch.cat(each).view(step.shape[:-1]), stored.device)
    if isinstance(stored, ShiftedWeight):  # columns in another order
        return ShiftedWeight(stored.inner, scale=whole, order=stored.order, piece=stored.piece)
    return ShiftedWeight(stored, scale=whole)


def _placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device."""
    return tensor if device.type == "cpu" else upload(tensor, device)


def _with_columns_moved(stored: GgufWeight, columns: TiledColumns) -> Weight:
    """Blocks with their columns in the network's order.

    Where a block holds columns of several heads it stays where it is, and inputs are reordered.
    """
    piece = stored.shape[-1] // columns.heads.heads
    kind = stored.kind
    if piece % kind.length == 0:
        return GgufWeight(in_order(stored.blocks, columns.heads.order()), kind, stored.dtype)
    order = torch.tensor(columns.heads.stored_order(), device=stored.device)
    return ShiftedWeight(stored, order=order, piece=piece)


def _fill(
    out: Tensor,
    info: TensorInfo,
    checkpoint: Checkpoint,
    *,
    storing: BlockType | Quantizer,
    transform: Transform,
) -> None:
    """Write a tensor's blocks to ``out``, (rows, bytes of a row), and drop the pages it was in."""
    if isinstance(storing, BlockType):
        out.copy_(checkpoint.view(info).flatten(0, -2))
    else:
        for rows, numbers in tiles_of(info, checkpoint):
            out[rows] = storing(transform.read(numbers))
            checkpoint.drop(info)
    checkpoint.drop(info)


def _rows_of(tensor: Tensor) -> Tensor:
    """The tensor as a matrix of all its rows; a vector, which some files have in blocks, is one."""
    return tensor.flatten(0, -2) if tensor.dim() > 1 else tensor[None]


def tiles_of(info: TensorInfo, checkpoint: Checkpoint) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a tensor as plain numbers, some at a time, whatever it is stored in."""
    if isinstance(info, QuantizedInfo):
        weight = stored_weight(info, checkpoint, torch.float32)
        for part in weight.tiles():
            yield part, weight.layout.decode(weight.parts, part)
        return
    tensor, scales = checkpoint.view(info), checkpoint.row_scales(info)
    # matrices of a stack that is cut are made contiguous a tile at a time
    is_apart = tensor.dim() == 3 and not tensor.is_contiguous()
    step = max(1, TILE // max(1, info.shape[-1]))
    first = 0
    for rows in tensor if is_apart else (_rows_of(tensor),):
        for low in range(0, len(rows), step):
            tile = rows[low : low + step].contiguous()
            part = slice(first + low, first + low + len(tile))
            numbers = GGML_TYPES[info.dtype].decode(tile) if info.is_packed else tile
            if scales is not None:
                numbers = numbers * scales[part, None]
            yield part, numbers
        first += len(rows)


def stored_weight(info: QuantizedInfo, checkpoint: Checkpoint, dtype: torch.dtype) -> StoredWeight:
    """A quantized matrix whose tensors stay in the file."""
    parts = {key: checkpoint.view(part) for key, part in info.parts.items()}
    return StoredWeight(info.layout, parts, dtype)


def read_matrix(
    info: TensorInfo, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Weight:
    """A matrix as GGML blocks where these stand for the same numbers, else as it is stored."""
    if not isinstance(info, QuantizedInfo):
        return PlainWeight(_placed(checkpoint.own(info), device).to(dtype))
    parts = {key: checkpoint.own(part) for key, part in info.parts.items()}
    stored = StoredWeight(info.layout, parts, dtype)
    found = in_blocks(stored)
    if found is not stored:
        return found.to(device)
    floats = info.layout.floats(parts)
    if floats is not None:  # of several parameters' tensors each uploads its own rows
        moved = floats.map(lambda each: _placed(each.contiguous(), device))
        return FloatWeight(moved, info.layout.name, dtype)
    uploaded = {key: _placed(part, device) for key, part in parts.items()}
    return StoredWeight(stored.layout, uploaded, dtype)


def read_plain(info: TensorInfo, checkpoint: Checkpoint) -> Tensor:
    """A tensor as plain numbers, whatever it is stored in."""
    if not info.is_packed:
        return checkpoint.view(info)
    whole = torch.empty(info.shape)
    flat = _rows_of(whole)
    for part, numbers in tiles_of(info, checkpoint):
        flat[part] = numbers
    return whole


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
