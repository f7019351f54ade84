"""What this machine's memory can do, and how much of it a decode step must move.

Decoding reads every weight that a token passes through, and what is remembered of each sequence,
once a step; in all but the smallest models that is what bounds its speed.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blazr.models.causal_lm import CausalLM
    from blazr.nn.device import Device

BUFFER_BYTES = 2**30  # beyond any cache


def measure_bandwidth(device: Device, *, nbytes: int = BUFFER_BYTES, rounds: int = 5) -> float:
    """The best rate at which memory was moved, in bytes per second.

    On a CPU all threads sum a buffer, which reads it; on CUDA it is copied, read and written.

    Args:
        device: Whose memory.
        nbytes: Size of the buffer, at most a quarter of what is free.
        rounds: How often; the best counts, because others may be at work.
    """
    import torch

    is_cuda = device.kind == "cuda"
    size = min(nbytes, device.free_bytes() // 4) // 4
    # ones, because zeros need not be anywhere before they are written
    source = torch.ones(size, dtype=torch.float32, device=device.torch_device)
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
    return source.nbytes * (2 if is_cuda else 1) / best_s


def step_bytes(model: CausalLM, *, batch: float, context_len: float) -> float:
    """Bytes that one decode step must read.

    All weights once; but of an embedding that is not the head a few rows, and of each layer's
    experts those that ``batch`` tokens choose between them if each chooses evenly. And for each
    sequence its keys, values, latents and recurrent states.

    Args:
        model: The network.
        batch: Sequences in the step.
        context_len: Their mean length so far.
    """
    from blazr.models.sizing import size_of
    from blazr.nn.layers.moe import Moe

    nbytes: float = sum(weight.nbytes for weight in model.parameters())
    if not model.config.tie_word_embeddings:
        nbytes -= model.embed_tokens.weight.nbytes
    for module in model.modules():
        if isinstance(module, Moe):
            chosen = min(module.config.experts_per_token / module.config.num_experts, 1)
            experts = sum(weight.nbytes for weight in module.experts.parameters())
            nbytes -= experts * (1 - chosen) ** batch
    size = size_of(model.config, model.dtype)
    per_token = size.kv_bytes_per_token + size.latent_bytes_per_token
    return nbytes + batch * (per_token * context_len + size.state_bytes_per_sequence)


def peak_memory(device: Device) -> dict[str, int]:
    """Most memory this process has had, in bytes: the host's, and the device's if it has its own."""
    import resource

    import torch

    # Linux counts in units of 1024 bytes
    peak = {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.kind == "cuda":
        peak["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated()
    return peak
