"""Kernels for processors: C++ compiled at installation, called through ctypes."""
