"""The chat page's modules in node, without a page."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


def said_by(program: str, module: str) -> str:
    """What a program prints; it finds the address of a module in ``process.argv[1]``."""
    assert NODE is not None
    path = Path(str(files("blazr.server"))) / "ui" / module
    line = [NODE, "--input-type=module", "-e", program, path.as_uri()]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
