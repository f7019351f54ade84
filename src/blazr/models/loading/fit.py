"""What a model needs on a machine, packed in each way, from its headers alone."""

from __future__ import annotations

from dataclasses import dataclass

from blazr.models.loading.plan import plan_model
from blazr.models.loading.storage import choose_dtype, choose_storage, weight_bytes
from blazr.nn.device import Device
from blazr.nn.operands.step import GRID
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.packed import QuantizePolicy

AS_STORED = "as stored"
# Beside weights and caches: torch itself, activations, the sampler.
_SPARE_BYTES = 2**29
# Recurrent states: a checkpoint of the sequence, room for the next, and the zeros it began with.
_STATES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FitChoice:
    """One way of holding the weights.

    Args:
        quantization: A name of QUANTIZERS, or AS_STORED.
        weights_bytes: What they take.
        context: The longest sequence that then fits, in tokens, at most the model's own; 0 where
            not even the weights do.
    """

    quantization: str
    weights_bytes: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A model on a machine.

    Args:
        device: The machine.
        free_bytes: What can be taken there now.
        dtype: What would be computed in.
        max_seq_len: The model's own context.
        bytes_per_token: What all layers remember of a token.
        state_bytes: What they remember of a running sequence, whatever its length: a checkpoint of
            the recurrent states, working copies, and the log.
        choices: One for each way.
    """

    device: str
    free_bytes: int
    dtype: str
    max_seq_len: int
    bytes_per_token: int
    state_bytes: int
    choices: tuple[FitChoice, ...]


def fit(
    model: str,
    device: Device,
    *,
    revision: str | None = None,
    kv_dtype: str = "auto",
    state_dtype: str = "auto",
) -> Fit:
    """Work out what fits; no tensor is read.

    Args:
        model: A directory, a file, ``nano``, or a Hub id.
        device: Where it would run.
        revision: Branch, tag or commit of a Hub id.
        kv_dtype: What keys, values and latents are stored in.
        state_dtype: What recurrent states are kept in.

    Raises:
        CheckpointError: There is no such model, or its tensors are not those of its kind.
        ShapeError: Its tensors do not fit each other.
        ConfigError: config.json has a wrong value.
        UnknownNameError: There is no such dtype of keys and values, or of states.
    """
    planned = plan_model(model, revision=revision)
    config = planned.derivation.config
    free = device.free_bytes()
    dtype = choose_dtype("auto", planned.plan, device, config)
    specs = [spec.stored_as(kv_dtype, state_dtype) for spec in config.cache_specs(dtype)]
    per_token = sum(spec.bytes_per_token for spec in specs)
    states = sum(spec.bytes_per_checkpoint for spec in specs)
    running = sum(spec.bytes_per_working_copy + spec.bytes_per_log for spec in specs)

    def choice(name: str) -> FitChoice:
        policy = QuantizePolicy(None if name == AS_STORED else name)
        storage = choose_storage(planned.plan, planned.module, policy)
        is_on_cpu = device.kind == "cpu"
        weights = weight_bytes(planned.plan.steps, dtype, storage, is_on_cpu=is_on_cpu)
        left = free - weights - _SPARE_BYTES - _STATES * states - running
        tokens = left // per_token // GRID * GRID if per_token else config.max_seq_len
        context = min(tokens, config.max_seq_len) if left > 0 else 0
        return FitChoice(quantization=name, weights_bytes=weights, context=context)

    return Fit(
        device=str(device),
        free_bytes=free,
        dtype=str(dtype).removeprefix("torch."),
        max_seq_len=config.max_seq_len,
        bytes_per_token=per_token,
        state_bytes=states + running,
        choices=tuple(choice(name) for name in (AS_STORED, *QUANTIZERS)),
    )
