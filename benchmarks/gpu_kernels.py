"""What a compiler makes of the kernels for GPUs, and the least that each step takes.

No GPU is needed. Compiles every row of KERNELS for ``cuda`` at the sizes of released models, for
GPUs of compute capability 8.0, 9.0 and 10.0 (A100, H100 and H200, B200), and says what each uses:
registers, shared memory, local memory, warps that fit a multiprocessor. Beside it stands the
arithmetic: bytes and floating-point operations of the step, and the time that an H200 needs at
least for them.

Run: python -m benchmarks.gpu_kernels [--op OP] [--write docs/explanation/gpu-kernels.md]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks.gpu_steps import STEPS
from blazr.nn.kernels import KERNELS

CAPABILITIES = (80, 90, 100)
# What copies and products of bfloat16 reach on an H200.
BYTES_PER_S, FLOPS_PER_S = 4.3e12, 790e12
# Of a multiprocessor: registers, warps, blocks, and KiB of shared memory for blocks.
REGISTERS, WARPS, BLOCKS = 65536, 64, 32
SHARED_KIB = {80: 163, 90: 227, 100: 227}
# Instructions that multiply tiles, or go to local memory, where registers do not suffice.
_COUNTED = ("HMMA", "HGMMA", "UTCHMMA", "LDL", "STL")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class Build:
    """A kernel as it is compiled for one kind of GPU.

    Args:
        op: The operation.
        step: What it computes.
        kernel: Its function.
        capability: Such as 90.
        warps: Of a block.
        registers: Of a thread.
        stack: Bytes of local memory of a thread.
        shared: Bytes of shared memory of a block.
        occupancy: Warps that fit a multiprocessor together, as a share of the most.
        instructions: How many of each counted kind.
    """

    op: str
    step: str
    kernel: str
    capability: int
    warps: int
    registers: int
    stack: int
    shared: int
    occupancy: float
    instructions: dict[str, int]


class _Absent:
    """Stands in for Triton's driver where there is no GPU: kernels are compiled and not run."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        """Caches of compiled kernels are kept by this number."""
        return self.capability

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


def compile_step(
    function: Callable[..., Tensor], arguments: tuple[object, ...], capability: int
) -> Iterator[CompiledKernel]:
    """The kernels that a call would launch, each as Triton compiles it, none launched."""
    found = []
    launch = JITFunction.run

    def _compile_only(
        self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any
    ) -> Any:
        del warmup
        kernel = launch(self, *args, grid=grid, warmup=True, **kwargs)
        found.append(kernel)
        return kernel

    driver.set_active(_Absent(capability))
    JITFunction.run = _compile_only
    try:
        with torch.no_grad():
            function(*arguments)
    finally:
        JITFunction.run = launch
    return iter(found)


def examine(kernel: CompiledKernel, op: str, step: str, capability: int) -> Build:
    """Read what the compiled code uses."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        dumps = [
            subprocess.run(
                [tools / "cuobjdump", what, file.name], capture_output=True, text=True, check=True
            ).stdout
            for what in ("--dump-resource-usage", "--dump-sass")
        ]
    resources = _RESOURCES.search(dumps[0])
    assert resources is not None, dumps[0]
    registers, stack = map(int, resources.groups())
    warps, shared = kernel.metadata.num_warps, kernel.metadata.shared
    # registers are given out 8 a thread at a time, shared memory a KiB at a time and one more
    by_registers = REGISTERS // (-(-registers // 8) * 8 * 32 * warps)
    by_shared = SHARED_KIB[capability] // (-(-shared // 1024) + 1)
    blocks = min(by_registers, by_shared, BLOCKS, WARPS // warps)
    return Build(
        op,
        step,
        kernel.name,
        capability,
        warps,
        registers,
        stack,
        shared,
        blocks * warps / WARPS,
        {name: len(re.findall(rf"\b{name}\b", dumps[1])) for name in _COUNTED},
    )


def builds(op: str, capabilities: tuple[int, ...] = CAPABILITIES) -> Iterator[Build]:
    """All kernels of an operation's steps, for each kind of GPU."""
    module, _, name = KERNELS[f"triton.{op}"].target.partition(":")
    function = getattr(import_module(module), name)
    for step in STEPS[op]:
        arguments = step.arguments()
        for capability in capabilities:
            for kernel in compile_step(function, arguments, capability):
                yield examine(kernel, op, step.name, capability)


def render(found: list[Build]) -> str:
    """Two tables in Markdown: steps, and kernels."""
    lines = [
        "| operation | step | MB | GFLOP | at least, us | bound by |",
        "|---|---|--:|--:|--:|---|",
    ]
    for op in dict.fromkeys(build.op for build in found):
        for step in STEPS[op]:
            by_memory, by_products = step.nbytes / BYTES_PER_S, step.flops / FLOPS_PER_S
            bound = "memory" if by_memory > by_products else "products"
            lines.append(
                f"| `{op}` | {step.name} | {step.nbytes / 1e6:,.1f} | {step.flops / 1e9:,.1f} "
                f"| {max(by_memory, by_products) * 1e6:,.1f} | {bound} |"
            )
    lines += [
        "",
        "| kernel, step | for | warps | registers | shared KiB | local bytes | occupancy | uses |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for build in found:
        products = [name for name in _COUNTED[:3] if build.instructions[name]]
        lines.append(
            f"| `{build.kernel}`, {build.step} | {build.capability / 10} | {build.warps} "
            f"| {build.registers} | {build.shared / 1024:.1f} | {build.stack} "
            f"| {build.occupancy:.0%} | {', '.join(products)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compile, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append", choices=STEPS, help="only these")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each kernel")
    parser.add_argument("--write", type=Path, help="put the tables behind this file's last heading")
    chosen = parser.parse_args()
    found = [build for op in chosen.op or STEPS for build in builds(op)]
    if chosen.json:
        print("\n".join(json.dumps(asdict(build)) for build in found))
    elif chosen.write:
        head = chosen.write.read_text(encoding="utf-8").partition("\n<!-- tables -->\n")[0]
        version = f"Triton {triton.__version__}"
        text = f"{head}\n<!-- tables -->\n\nCompiled by {version}:\n\n{render(found)}"
        chosen.write.write_text(text, encoding="utf-8")
    else:
        print(render(found), end="")


if __name__ == "__main__":
    main()
