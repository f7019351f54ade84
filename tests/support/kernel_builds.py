"""A pytest plugin: the kernels' tests with another build of the kernels.

``pytest -p tests.support.kernel_builds --kernels LIBRARY`` runs tests as they are, with that
library in the place of the installed one. One for 64-bit Arm runs elsewhere under QEMU: torch and
Python stay here, and every call of a kernel is sent to another process (``kernel_caller.cpp``),
with the memory that it is given.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

ARM_COMPILER = "aarch64-linux-gnu-g++"
ARM_SYSTEM = "/usr/aarch64-linux-gnu"  # its libraries, where Debian has them
_MEMORY = 1 << 30
_EM_AARCH64 = 183
_FIND, _CALL, _TEXT = range(3)
_REQUEST, _REPLY = struct.Struct("=q64s4q"), struct.Struct("=q64s")


_differ = ctypes.CDLL(None).memcmp
_differ.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def emulator() -> str:
    """Runs programs for 64-bit Arm; an empty string where there is none."""
    found = (shutil.which(name) for name in ("qemu-aarch64-static", "qemu-aarch64"))
    return next((path for path in found if path), "")


class Emulated:
    """Stands in for the ``ctypes.CDLL`` of a library for 64-bit Arm."""

    def __init__(self, library: Path, *, processor: str = "max") -> None:
        self._directory = tempfile.TemporaryDirectory()
        caller, memory = (str(Path(self._directory.name) / name) for name in ("caller", "memory"))
        source = str(Path(__file__).with_name("kernel_caller.cpp"))
        subprocess.run([ARM_COMPILER, "-O1", source, "-o", caller, "-ldl"], check=True)
        with Path(memory).open("wb+") as file:
            file.truncate(_MEMORY)
            self._memory = mmap.mmap(file.fileno(), _MEMORY)
        self._here = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._process = subprocess.Popen(
            [emulator(), "-cpu", processor, "-L", ARM_SYSTEM, caller, str(library), memory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._there, _ = self._answer()
        self._storages: dict[int, int] = {}  # address and bytes, those used last at the end
        self._functions: dict[str, _Function] = {}
        self._busy = threading.Lock()  # there is one memory and one pipe

    def __getattr__(self, name: str) -> _Function:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._functions:
            self._functions[name] = _Function(self, self.find(name))
        return self._functions[name]

    def find(self, name: str) -> int:
        """Where a function lies in the other process."""
        found, _ = self._ask(_FIND, name)
        if not found:
            raise AttributeError(name)
        return found

    def text(self, address: int) -> bytes:
        """The string at an address of the other process."""
        text = b""
        while piece := self._ask(_TEXT, "", address + len(text))[1].rstrip(b"\0"):
            text += piece
        return text

    def know(self, storage: torch.UntypedStorage) -> None:
        """Remember what memory an address is part of."""
        start = storage.data_ptr()
        self._storages.pop(start, None)
        self._storages[start] = storage.nbytes()

    def call(self, address: int, arguments: list[object]) -> int:
        """Call a function with structures and the memory they point to."""
        with self._busy:
            memory = _Placed(self._here, self._there, self._storages)
            numbers = [memory.argument(argument) for argument in arguments]
            result, _ = self._ask(_CALL, "", address, *numbers)
            memory.bring_back()
        return result

    def replayer(self, calls: list[tuple[int, ctypes.Structure]]) -> Callable[[], None]:
        """As ``compiled.replayer``, which knows addresses alone; memory is copied call by call."""

        def again() -> None:
            for address, call in calls:
                self.call(address, [ctypes.byref(call), torch.get_num_threads()])

        return again

    def close(self) -> None:
        """End the other process."""
        self._process.communicate()
        self._directory.cleanup()

    def _ask(self, kind: int, name: str, *arguments: int) -> tuple[int, bytes]:
        assert self._process.stdin
        numbers = (*arguments, 0, 0, 0, 0)[:4]  # an address and three arguments
        self._process.stdin.write(_REQUEST.pack(kind, name.encode(), *numbers))
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> tuple[int, bytes]:
        assert self._process.stdout
        reply = self._process.stdout.read(_REPLY.size)
        if len(reply) != _REPLY.size:
            pytest.exit(f"the emulated library died: {self._process.wait()}", 1)
        value, text = _REPLY.unpack(reply)
        return value, text


class _Placed:
    """What one call is given, copied to where both processes see it."""

    def __init__(self, here: int, there: int, storages: dict[int, int]) -> None:
        self._here, self._offset, self._storages = here, there - here, storages
        self._end = here
        self._copies: dict[int, int] = {}  # by the address of the storage
        self._tables: set[int] = set()  # of these copies, those that hold addresses

    def argument(self, value: object) -> int:
        """The address of a structure there; a number is a number, or an address there."""
        if value is None or isinstance(value, int):
            return value or 0
        original: ctypes.Structure = value._obj  # of ctypes.byref
        size = ctypes.sizeof(original)
        copy = type(original).from_address(self._room(size))
        ctypes.memmove(ctypes.addressof(copy), ctypes.addressof(original), size)
        for at, name in _pointers(type(original)):
            pointer = ctypes.c_void_p.from_address(ctypes.addressof(copy) + at)
            if pointer.value:
                placed = self._address(pointer.value)
                if name.endswith("entries") and pointer.value not in self._tables:
                    self._place_entries(pointer.value, placed - self._offset)
                pointer.value = placed
        return ctypes.addressof(copy) + self._offset

    def _place_entries(self, address: int, copy: int) -> None:
        """Place what the rows of a table of adapters point to: three addresses and a rank each."""
        self._tables.add(address)
        row = struct.Struct("=4q")
        for at in range(copy, copy + self._storages[address], row.size):
            *addresses, rank = row.unpack(ctypes.string_at(at, row.size))
            placed = [each and self._address(each) for each in addresses]
            ctypes.memmove(at, row.pack(*placed, rank), row.size)

    def bring_back(self) -> None:
        """Copy what the call wrote to where the caller has it; no call writes tables."""
        for start, copy in self._copies.items():
            if start in self._tables:
                continue
            size = self._storages[start]
            # unchanged memory may be a mapped file, which nobody may write
            if _differ(start, copy, size):
                ctypes.memmove(start, copy, size)

    def _address(self, address: int) -> int:
        for start, size in reversed(self._storages.items()):
            if start <= address < start + size:
                if start not in self._copies:
                    self._copies[start] = self._room(size, start % 64)
                    ctypes.memmove(self._copies[start], start, size)
                return self._copies[start] + address - start + self._offset
        message = "a pointer into no tensor"
        raise ValueError(message)

    def _room(self, size: int, remainder: int = 0) -> int:
        start = -(-self._end // 64) * 64 + remainder
        self._end = start + size
        assert self._end <= self._here + _MEMORY
        return start


def _pointers(kind: type, name: str = "") -> Iterator[tuple[int, str]]:
    """Where in a structure the pointers are, in bytes, and their names."""
    if kind is ctypes.c_void_p:
        yield 0, name
    elif issubclass(kind, ctypes.Structure):
        for field, part in kind._fields_:
            start = getattr(kind, field).offset
            yield from ((start + at, inner) for at, inner in _pointers(part, field))


class _Function:
    """Stands in for a function of a ``ctypes.CDLL``."""

    argtypes: object = None
    restype: object = ctypes.c_int

    def __init__(self, library: Emulated, address: int) -> None:
        self._library, self._address = library, address
        self._as_parameter_ = ctypes.c_void_p(address)  # for ctypes.cast

    def __call__(self, *arguments: object) -> object:
        result = self._library.call(self._address, list(arguments))
        if self.restype is ctypes.c_char_p:
            return self._library.text(result) if result else None
        return ctypes.c_int(result).value


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --kernels."""
    parser.addoption("--kernels", type=Path, metavar="LIBRARY", help="another build of the kernels")


def is_for_arm(library: Path) -> bool:
    """Whether a file is for 64-bit Arm, as its header says: dlopen tells only of no file here."""
    with library.open("rb") as file:
        header = file.read(20)
    return header[:4] == b"\x7fELF" and int.from_bytes(header[18:20], "little") == _EM_AARCH64


def open_here(library: Path | None) -> bool:
    """Open a library, or say that it takes the emulator.

    Raises:
        pytest.UsageError: It can be opened nowhere.
    """
    if library is None or not library.is_file():
        message = f"--kernels names no file: {library or 'it is missing'}"
        raise pytest.UsageError(message)
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        if is_for_arm(library) and platform.machine() != "aarch64":
            if emulator() and shutil.which(ARM_COMPILER):
                return False
            message = f"{library} is for 64-bit Arm: it takes qemu-user-static and {ARM_COMPILER}"
            raise pytest.UsageError(message) from None
        message = f"--kernels does not load: {error}"
        raise pytest.UsageError(message) from None
    return True


def pytest_configure(config: pytest.Config) -> None:
    """Put the library in the place of the installed one."""
    from blazr.nn.kernels.cpu import compiled

    given = config.getoption("--kernels")
    library = given and given.resolve()  # a name without a directory would be looked for elsewhere
    is_here = open_here(library)
    compiled.LIBRARY = library
    if not is_here:
        emulated = Emulated(library)
        config.add_cleanup(emulated.close)
        open_library, data_ptr = ctypes.CDLL, Tensor.data_ptr

        def known_data_ptr(tensor: Tensor) -> int:
            emulated.know(tensor.untyped_storage())
            return data_ptr(tensor)

        Tensor.data_ptr = known_data_ptr
        ctypes.CDLL = lambda path: emulated if path == str(library) else open_library(path)
        compiled.replayer = emulated.replayer


def pytest_report_header() -> str:
    """Say what is tested."""
    from blazr.nn.kernels.cpu import compiled

    return f"kernels: {compiled.explain()}"
