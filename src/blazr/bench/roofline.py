"""What this machine's memory and arithmetic can do, and how much of them decoding and prefill use.

A decode step reads every weight that a token passes through, and what is remembered of each of its
sequences; in all but the smallest models that is what bounds its speed. Prefill reads weights once
for many tokens, and is bound by the products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import TYPE_CHECKING

from blazr.bench.load import Record
from blazr.bench.report import spread_of

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.models.causal_lm import CausalLM
    from blazr.nn.device import Device
    from blazr.nn.operands.packing import Packing
    from blazr.nn.quant.weight import Weight

BUFFER_BYTES = 2**30  # beyond any cache


def measure_bandwidth(device: Device, *, nbytes: int = BUFFER_BYTES, rounds: int = 5) -> float:
    """The best rate at which memory was moved, in bytes per second.

    On a CPU all threads sum a buffer, which reads it; on CUDA it is copied, read and written. The
    buffer is of ``nbytes``, at most a quarter of what is free.
    """
    import torch

    from blazr.nn.device import release_threads, zero_bytes

    is_cuda = device.kind == "cuda"
    size = min(nbytes, device.free_bytes() // 4) // 4
    # in large pages, as weights are; ones, because zeros need not be anywhere before that
    source = zero_bytes(torch.Size((4 * size,)), device.torch_device).view(torch.float32).fill_(1)
    copy = torch.empty_like(source) if is_cuda else source
    best_s = float("inf")
    for _ in range(rounds):
        started_s = perf_counter()
        if is_cuda:
            copy.copy_(source)
            torch.cuda.synchronize()
        else:
            source.sum()
        best_s = min(best_s, perf_counter() - started_s)
    release_threads()  # of this thread; an engine's may compute next
    return source.nbytes * (2 if is_cuda else 1) / best_s


def measure_arithmetic(kind: str, *, rounds: int = 5) -> float:
    """The best rate of products and sums that the CPU's kernels could reach, per second.

    All threads multiply and add in registers, with the instruction set in use, so that nothing
    waits for memory.

    Args:
        kind: What is multiplied (``blazr.nn.ops.peak.ARITHMETIC``).
        rounds: The best of so many is taken.

    Raises:
        OSError: The kernels cannot run here.
    """
    from blazr.nn.ops.peak import multiply_in_registers

    best = 0.0
    for _ in range(rounds):
        started_s = perf_counter()
        operations = multiply_in_registers(kind, 2**31)
        best = max(best, operations / (perf_counter() - started_s))
    return best


def measure_rates(device: Device) -> dict[str, float]:
    """``measure_arithmetic`` of every kind; of none where the CPU's kernels do not compute."""
    from blazr.nn.ops.peak import ARITHMETIC, has_kernels

    if device.kind != "cpu" or not has_kernels():
        return {}
    return {kind: measure_arithmetic(kind) for kind in ARITHMETIC}


def arithmetic_of(weight: Tensor | Weight) -> str:
    """The kind of arithmetic (``blazr.nn.ops.peak``) that a CPU's products with a weight are."""
    packing = getattr(weight, "packing", None)
    if packing is None:
        return str(weight.dtype).removeprefix("torch.")
    return packed_arithmetic_of(packing)


def packed_arithmetic_of(packing: Packing) -> str:
    """The same of weights that are packed so."""
    # small codes can be added in fewer bits; what a table gives has all eight
    return "int8" if packing.bits == 8 or packing.table else "int4"


def step_bytes(model: CausalLM, *, batch: float, context_len: float) -> float:
    """Bytes that one decode step must read.

    All weights once; but of an embedding that is not the head a few rows, and of each layer's
    experts those that ``batch`` tokens choose between them if each chooses evenly. And for each of
    ``batch`` sequences, of ``context_len`` tokens so far, its keys, values, latents and states.
    """
    from blazr.models.sizing import size_of
    from blazr.nn.layers.moe import Moe
    from blazr.nn.quant.weight import stored_weights

    nbytes: float = sum(weight.nbytes for weight in stored_weights(model))
    if not model.config.tie_word_embeddings:
        nbytes -= model.embed_tokens.weight.nbytes
    for module in model.modules():
        if isinstance(module, Moe):
            chosen = min(module.config.experts_per_token / module.config.num_experts, 1)
            experts = sum(weight.nbytes for weight in stored_weights(module.experts))
            nbytes -= experts * (1 - chosen) ** batch
    size = size_of(model.config, model.dtype)
    per_token = size.kv_bytes_per_token + size.latent_bytes_per_token
    return nbytes + batch * (per_token * context_len + size.state_bytes_per_sequence)


def bandwidth_use(model: CausalLM, records: Sequence[Record], bandwidth: float) -> dict[str, float]:
    """What a decode step read, and its share of bytes per second at the median gap of tokens."""
    ok = [record for record in records if record.is_ok and record.decode_s]
    gaps = spread_of(gap for record in ok for gap in record.gaps_s)
    if gaps is None or not gaps["p50"]:
        return {}
    # sequences that decoded at once, on average
    span_s = max(r.token_s[-1] for r in ok) - min(r.token_s[0] for r in ok)
    batch = max(sum(record.decode_s for record in ok) / span_s, 1.0)
    context_len = sum(r.prompt_tokens + r.output_tokens / 2 for r in ok) / len(ok)
    nbytes = step_bytes(model, batch=batch, context_len=context_len)
    share = nbytes / gaps["p50"] / bandwidth
    return {"step_batch": batch, "step_bytes": nbytes, "bandwidth_share": share}


def product_counts(model: CausalLM) -> dict[str, float]:
    """Numbers of the weights that a token of a prompt is multiplied with, by kind of arithmetic.

    All but embeddings and the head, which the last token alone needs; of each layer's experts those
    that are chosen. Products within attention and recurrent layers are left out.
    """
    from blazr.nn.layers.moe import Moe
    from blazr.nn.quant.weight import stored_weights

    found: dict[str, float] = {}
    share: dict[int, float] = {}
    for module in model.modules():
        if isinstance(module, Moe):
            chosen = min(module.config.experts_per_token / module.config.num_experts, 1)
            share.update((id(weight), chosen) for weight in stored_weights(module.experts))
    for weight in stored_weights(model.layers):
        if len(weight.shape) > 1:
            kind = arithmetic_of(weight)
            found[kind] = found.get(kind, 0) + share.get(id(weight), 1) * weight.numel()
    return found


def arithmetic_use(
    model: CausalLM, records: Sequence[Record], rates: Mapping[str, float]
) -> dict[str, float]:
    """The share of operations per second that prefill uses at its median speed.

    Tokens from the cache are not multiplied with anything, and do not count.

    Args:
        model: What was measured.
        records: Of the requests of one level.
        rates: Of ``measure_arithmetic``, by kind.
    """
    ok = [record for record in records if record.is_ok]
    speed = spread_of((r.prompt_tokens - r.cached_tokens) / r.ttft_s for r in ok)
    counts = product_counts(model)
    if speed is None or not counts.keys() <= rates.keys():
        return {}
    needed_s = sum(2 * count / rates[kind] for kind, count in counts.items())
    return {"arithmetic_share": speed["p50"] * needed_s}


def peak_memory(device: Device) -> dict[str, int]:
    """Most memory this process has had, in bytes: on the host, and on the device if it has one."""
    import torch

    # Linux counts in units of 1024 bytes
    peak = {"peak_memory_bytes": getrusage(RUSAGE_SELF).ru_maxrss * 1024}
    if device.kind == "cuda":
        peak["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated()
    return peak
