"""Compiles the CPU kernels into the wheel, or in place for an editable install.

Without a compiler, or where it fails, the install goes on: torch's operations run instead, and
``blazr doctor`` says why.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import tempfile
from pathlib import Path

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src/blazr/nn/kernels")


class KernelBuildHook(BuildHookInterface[BuilderConfig]):
    """Runs ``blazr/nn/kernels/compile.py``; the variable CXX chooses the compiler."""

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        """Compile, and make the wheel one for this platform."""
        spec = importlib.util.spec_from_file_location(
            "compile_kernels", Path(self.root) / KERNELS / "compile.py"
        )
        assert spec is not None
        assert spec.loader is not None
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        is_editable = version == "editable"
        self._directory = tempfile.TemporaryDirectory()
        target = kernels.LIBRARY if is_editable else Path(self._directory.name) / "library.so"
        why = kernels.compile_library(target, compiler=os.environ.get("CXX", ""))  # noqa: TID251  (builders set it)
        if why:
            self.app.display_warning(f"blazr is installed without its CPU kernels: {why}")
            return
        build_data["pure_python"] = False
        # no Python or torch ABI in it: one wheel per platform
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_')}"
        if not is_editable:
            inside = Path("blazr", *KERNELS.parts[2:], "cpu", kernels.LIBRARY.name)
            build_data["force_include"] = {str(target): inside.as_posix()}

    def finalize(self, *_: object) -> None:
        """Remove what was compiled for the wheel."""
        self._directory.cleanup()
