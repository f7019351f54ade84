"""Arithmetic in registers: what a CPU's products are measured against."""

from __future__ import annotations

import torch

from blazr.nn.kernels.cpu.compiled import kernels, missing

# Numbers of a dtype, or packed codes of eight bits and of four; in the order of kernels.hpp.
ARITHMETIC = ("bfloat16", "float16", "float32", "int8", "int4")


def has_kernels() -> bool:
    """Whether the CPU's kernels can run here."""
    return not missing()


def multiply_in_registers(kind: str, operations: int) -> int:
    """Multiply and add on every thread, as kernels do, but with nothing read from memory.

    Args:
        kind: What is multiplied: one of ``ARITHMETIC``.
        operations: How many each thread does at least; a product and its sum are two.

    Returns:
        How many all threads did.

    Raises:
        OSError: The kernels cannot run here.
    """
    number, threads = ARITHMETIC.index(kind), torch.get_num_threads()
    done: int = kernels().blazr_peak(number, operations, threads)
    return done
