"""Whether kernels in Triton can run here. Asking imports no Triton."""

from __future__ import annotations

from importlib.util import find_spec

from blazr.nn.device import cuda_capability

# Ampere, the first with bfloat16.
LEAST_CAPABILITY = (8, 0)


def missing() -> str:
    """Why no kernel in Triton can run here; empty where they can."""
    capability = cuda_capability()
    if capability is None:
        return "torch sees no CUDA device"
    if capability < LEAST_CAPABILITY:
        major, minor = capability
        return f"the GPU has compute capability {major}.{minor}, and Triton's kernels need 8.0"
    if find_spec("triton") is None:
        return "Triton is not installed: pip install 'blazr[triton]'"
    return ""


def in_use() -> str:
    """In which form they run, for people."""
    return "Triton"
