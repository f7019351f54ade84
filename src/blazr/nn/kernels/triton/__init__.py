"""Kernels for NVIDIA's GPUs, in Triton; imported when a row of KERNELS is chosen."""
