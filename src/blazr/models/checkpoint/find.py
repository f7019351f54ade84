"""Which files of a directory are the model: final, packed, sharded, the latest step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.disk import read_json

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.(?P<suffix>safetensors|gguf)"
)
_SUFFIXES = (".safetensors", ".gguf")
_STEP = re.compile(r".*_step_(?P<step>\d{1,18})\.safetensors")
_PROGRAM_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files that hold a model's tensors.

    Args:
        files: In order.
        index: Which file each tensor is in, by name, where an index says so.
    """

    files: tuple[Path, ...]
    index: Mapping[str, str] | None = None


def find_weights(path: Path) -> WeightFiles:
    """Choose the files to load from a directory, or take the file that was named.

    In a directory: ``model.safetensors``, the index or numbered shards,
    ``pytorch_model.safetensors``, the newest ``*_final``, the highest ``*_step_N``, or the only
    ``*.safetensors`` or ``*.gguf`` there is.

    Raises:
        CheckpointError: Nothing suits, a shard is missing, or the choice is not clear.
    """
    if not path.is_dir():
        return _from_file(path)
    names = sorted(entry.name for entry in path.iterdir() if not entry.is_dir())
    for choose in _CHOICES:
        found = choose(path, names)
        if found is not None:
            return found
    raise _nothing_suits(path, names)


def _from_file(path: Path) -> WeightFiles:
    if path.name == INDEX:
        return _indexed(path.parent)
    if path.suffix not in _SUFFIXES:
        raise _nothing_suits(path.parent, [path.name])
    shard = _SHARD.fullmatch(path.name)
    if shard:
        return _numbered(path.parent, _set_of(shard))
    return WeightFiles((path,))


def _named(name: str) -> Callable[[Path, list[str]], WeightFiles | None]:
    def choose(directory: Path, names: list[str]) -> WeightFiles | None:
        return WeightFiles((directory / name,)) if name in names else None

    return choose


def _choose_shards(directory: Path, names: list[str]) -> WeightFiles | None:
    if INDEX in names:
        return _indexed(directory)
    sets = {_set_of(m) for name in names if (m := _SHARD.fullmatch(name))}
    sets = {each for each in sets if each.suffix == "safetensors"} or sets
    sets = {each for each in sets if each.stem == "model"} or sets
    if len(sets) > 1:
        raise _unclear(directory, (each.name("*") for each in sorted(sets)))
    return _numbered(directory, sets.pop()) if sets else None


def _choose_final(directory: Path, names: list[str]) -> WeightFiles | None:
    finals = [directory / name for name in names if name.endswith("_final.safetensors")]
    return WeightFiles((max(finals, key=_age),)) if finals else None


def _choose_step(directory: Path, names: list[str]) -> WeightFiles | None:
    steps = [(int(m["step"]), directory / name) for name in names if (m := _STEP.fullmatch(name))]
    return WeightFiles((max(steps, key=lambda s: (s[0], _age(s[1])))[1],)) if steps else None


def _choose_only(directory: Path, names: list[str]) -> WeightFiles | None:
    files = [name for name in names if name.endswith(".safetensors")]
    if len(files) > 1:
        raise _unclear(directory, files)
    return WeightFiles((directory / files[0],)) if files else None


def _choose_gguf(directory: Path, names: list[str]) -> WeightFiles | None:
    # the other file of a pair sees images
    files = [name for name in names if name.endswith(".gguf") and not name.startswith("mmproj")]
    if len(files) > 1:
        raise _unclear(directory, files)
    return WeightFiles((directory / files[0],)) if files else None


_CHOICES = (
    _named("model.safetensors"),
    _choose_shards,
    _named("pytorch_model.safetensors"),
    _choose_final,
    _choose_step,
    _choose_only,
    _choose_gguf,
)


def _age(path: Path) -> tuple[int, str]:
    """Sorts by time of writing; a file that cannot be asked sorts first."""
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name


class _Set(NamedTuple):
    """Files that are parts of one model."""

    stem: str
    total: int
    suffix: str

    def name(self, number: str) -> str:
        """The name of a part."""
        return f"{self.stem}-{number}-of-{self.total:05}.{self.suffix}"


def _set_of(shard: re.Match[str]) -> _Set:
    return _Set(shard["stem"], int(shard["total"]), shard["suffix"])


def _numbered(directory: Path, parts: _Set) -> WeightFiles:
    names = [parts.name(f"{number:05}") for number in range(1, parts.total + 1)]
    return WeightFiles(_existing(directory, names))


def _indexed(directory: Path) -> WeightFiles:
    where = read_json(directory / INDEX).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise CheckpointError(
            f"{directory / INDEX} names no shards.", expected='"weight_map": tensor name to file'
        )
    for file in where.values():
        if not isinstance(file, str) or not _is_plain(file):
            raise CheckpointError(
                f"{directory / INDEX} names a shard that is not a file beside it.",
                found=repr(file)[:100],
                expected="a plain name that ends in .safetensors",
            )
    return WeightFiles(_existing(directory, sorted(set(where.values()))), where)


def _is_plain(name: str) -> bool:
    return (
        name.endswith(".safetensors")
        and Path(name).name == name
        and name.isprintable()
        and "\\" not in name
    )


def _existing(directory: Path, names: list[str]) -> tuple[Path, ...]:
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise CheckpointError(
            f"{directory} lacks {len(missing)} of {len(names)} shards.",
            found="missing " + ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else ""),
            hint="copy or download the missing files",
        )
    return tuple(directory / name for name in names)


def _unclear(directory: Path, names: Iterable[str]) -> CheckpointError:
    return CheckpointError(
        f"{directory} holds more than one model.",
        found=", ".join(list(names)[:5]),
        hint="name the file instead of the directory",
    )


def _nothing_suits(directory: Path, names: list[str]) -> CheckpointError:
    unsafe = [name for name in names if name.endswith(_PROGRAM_SUFFIXES)]
    if unsafe:
        return CheckpointError(
            f"{directory / unsafe[0]} can run code when it is opened, so blazr does not open it.",
            expected="safetensors",
            hint="where you trust it, load it with the program that wrote it and save it again with"
            " safetensors.torch.save_file(state_dict, 'model.safetensors')",
        )
    listed = ", ".join(name[:40] for name in names[:5]) + (", ..." if len(names) > 5 else "")
    return CheckpointError(
        f"no weights in {directory}.",
        found=listed or "nothing",
        expected="model.safetensors, shards, *_final.safetensors, *_step_N.safetensors or *.gguf",
        hint="pass a directory with one of these, one of these files, or a Hub id (org/name)",
    )
