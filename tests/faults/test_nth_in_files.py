"""Each write of a converted model fails once, and nothing is left behind."""

from __future__ import annotations

import errno
import io
from contextlib import suppress
from pathlib import Path

import pytest

from blazr.core.errors import CapacityError
from blazr.models.loading.convert import convert
from tests.faults.nth import Nth, every_nth
from tests.support import tiny

MODEL = tiny.Tiny(layers=("StandardTransformer", "StandardTransformer"), vocab_size=97)


class FailingFile(io.FileIO):
    """A file on a disk that fails once, or is full from then on."""

    nth: Nth
    stays_full = False

    def write(self, data: object) -> int:
        if self.stays_full and self.nth.was_hit:
            raise no_room()
        self.nth.check()
        return super().write(data)


def no_room() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("stays_full", [False, True])
@pytest.mark.parametrize("name", ["model", "model.gguf"])
def test_a_write_that_fails_is_told_and_leaves_nothing(
    name: str, stays_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tiny.save(MODEL, tmp_path / "source", layout="hf"))
    convert(source, tmp_path / "right" / name)
    right = contents(tmp_path / "right")
    opened = Path.open
    monkeypatch.setattr(FailingFile, "stays_full", stays_full)
    for nth in every_nth(no_room):
        out = tmp_path / str(nth.n)
        out.mkdir()

        def open_or_fail(path: Path, mode: str = "r", nth: Nth = nth, **kwargs: object) -> object:
            if mode != "ab":
                return opened(path, mode, **kwargs)
            raw = FailingFile(path, mode)
            raw.nth = nth
            return io.BufferedWriter(raw, 1000)

        monkeypatch.setattr(Path, "open", open_or_fail)
        with suppress(CapacityError):
            convert(source, out / name)
        assert contents(out) == ({} if nth.was_hit else right)
    assert nth.n > 3


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
