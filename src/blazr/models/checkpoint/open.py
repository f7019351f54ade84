"""From what the user typed to a Checkpoint: find the files, read their headers and config.json.

What is typed is a path, the name of the built-in model, or a Hub id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.checkpoint import FORMATS
from blazr.models.checkpoint.base import Checkpoint, TensorInfo, read_json
from blazr.models.checkpoint.gguf import check_parts, join_scales
from blazr.models.checkpoint.mlx import as_released
from blazr.models.checkpoint.quantized import join_quantized

BUILT_IN = "nano"
INDEX = "model.safetensors.index.json"
_SUFFIXES = tuple(f".{name}" for name in FORMATS)
_REPO = r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}"
_REPO_ID = re.compile(_REPO, re.ASCII)
_HUB_FILE = re.compile(rf"(?P<repo>{_REPO}):(?P<file>[\w][\w ./-]{{0,250}}\.gguf)", re.ASCII)
_SHARD = re.compile(
    r"(?P<stem>.+)-\d{5}-of-(?!00000)(?P<total>\d{5})\.(?P<suffix>safetensors|gguf)", re.ASCII
)
_SHARD_NUMBER = re.compile(r"\d{5}(?=-of-\d{5}\.gguf$)", re.ASCII)
_STEP = re.compile(r".*_step_(?P<step>\d{1,18})\.safetensors")
_LAYER = re.compile(r"layers\.\d", re.ASCII)
_UNPREFIXED = ("lm_head.", "mtp.")  # how names begin that have no prefix in whole models
_TRANSFORMERS_KEYS = ("architectures", "transformers_version")  # in a config.json that it writes
_PROGRAM_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# What a tokenizer and chat templates are read from.
TEXT_FILES = (
    "tokenizer*",
    "*.tiktoken",
    "*.tiktoken.json",
    "*.model",
    "tekken.json",
    "*.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
_WANTED = [
    "*.safetensors",
    "*.safetensors.index.json",
    "*config.json",
    "config_sentence_transformers.json",
    "modules.json",
    *TEXT_FILES,
]
# A star stands for slashes, too. Only templates are wanted from folders, and the modules of
# sentence-transformers, whose folders are numbered.
_UNWANTED = [
    *(f"[!0-9]*/{each}" for each in _WANTED if each != "*.jinja"),
    "tokenizer*/*",
    "consolidated*",
    "adapter_*",
]
# What diffusers saves: an index, and a folder for each part of a pipeline.
PIPELINE_INDEX = "model_index.json"
_WANTED_PARTS = [f"*/*{end}" for end in (".json", ".txt", ".model", ".jinja", ".safetensors")]
_UNWANTED_PARTS = ["*/*/*", "*.fp16*", "*.bf16*", "*non_ema*"]
_HINT = (
    "pass a directory with model.safetensors, a .safetensors or .gguf file, a Hub id (org/name), or"
    " a file of one (org/name:file.gguf)"
)
_MAX_LISTED = 12  # names in a message
_MMPROJ = "mmproj"  # how the names of the files of vision encoders begin


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model is.

    Args:
        name: What to call it.
        path: Its directory or file.
    """

    name: str
    path: Path


def find_model(model: str, *, revision: str | None = None) -> ModelFiles:
    """Find a model by path, by the name ``nano``, or on the Hub. A path that exists always wins.

    On the Hub a model is ``org/name``, or a GGUF file in it, ``org/name:file.gguf``.

    The Hub's client honours HF_HOME, HF_TOKEN and HF_HUB_OFFLINE; all files come from one revision,
    and its progress bars go to stderr.

    Args:
        model: What the user typed.
        revision: Branch, tag or commit for a Hub id; None for the default branch.

    Raises:
        CheckpointError: There is no such model, or it cannot be fetched.
        ConfigError: There is a revision, and the model is a path or built in.
    """
    path = _existing_path(model)
    if revision is not None and (path is not None or model == BUILT_IN):
        raise ConfigError(
            "only a Hub id has revisions.",
            found=f"revision {revision[:50]!r} of {model[:100]!r}, which is here",
            expected="organisation/name, as on huggingface.co, and no such path",
        )
    if path is not None:
        absolute = path.absolute()
        return ModelFiles(absolute.name if path.is_dir() else absolute.stem, path)
    if model == BUILT_IN:
        path = Path(str(files("blazr") / "data" / BUILT_IN))
        if not path.is_dir():
            raise CheckpointError(
                f"the built-in model {BUILT_IN!r} is not in this installation.", hint=_HINT
            )
        return ModelFiles(BUILT_IN, path)
    if _REPO_ID.fullmatch(model) and not model.endswith(_SUFFIXES):
        return ModelFiles(model, fetch_model(model, revision=revision))
    if _HUB_FILE.fullmatch(model):
        path = fetch_model(model, revision=revision)
        return ModelFiles(path.stem, path)
    raise CheckpointError(
        f"no model at {model[:100]!r}.", found=_closest(model) or _obstacle(model), hint=_HINT
    )


def names_model(text: str) -> bool:
    """Whether a text looks like a model: a path, ``nano`` or a Hub id, be it there or not."""
    if _existing_path(text) is not None or text == BUILT_IN:
        return True
    is_path = text.startswith(("/", "./", "../", "~")) or text.endswith(_SUFFIXES)
    is_id = _REPO_ID.fullmatch(text) or _HUB_FILE.fullmatch(text)
    return bool(is_id or (is_path and not any(map(str.isspace, text))))


def fetch_model(model: str, *, revision: str | None = None) -> Path:
    """Fetch a model from the Hub, or what is missing of it, whatever lies here by its name.

    Args:
        model: Its Hub id, or that and a GGUF file: ``org/name:file.gguf``, of several parts any.
        revision: Branch, tag or commit; None for the default branch.

    Returns:
        Its directory in the cache, or the file.

    Raises:
        CheckpointError: It is no Hub id, there is no such model, or it cannot be fetched.
    """
    if found := _HUB_FILE.fullmatch(model):
        repo, file = found["repo"], found["file"]
        is_sound = ".." not in file.split("/")
        # the other shards of its model come with it
        wanted = [_SHARD_NUMBER.sub("*", file)] if is_sound else []
        path = _download(repo, revision, wanted, None) / file
        if not is_sound or not path.exists():
            gguf = _gguf_files(repo, revision)
            raise CheckpointError(
                f"{repo!r} has no file {file[:100]!r}, as far as can be seen from here.",
                found=_listed(gguf, _MAX_LISTED),
                hint="name one that is there, as its page on huggingface.co lists it",
            )
        return path
    if not _REPO_ID.fullmatch(model):
        raise CheckpointError(
            f"{model[:100]!r} is no Hub id.",
            expected="organisation/name, as on huggingface.co, or organisation/name:file.gguf",
        )
    path = _download(model, revision, [PIPELINE_INDEX], None)
    if (path / PIPELINE_INDEX).is_file():  # at its root may lie the same weights in one file
        return _download(model, revision, _WANTED_PARTS, _UNWANTED_PARTS)
    path = _download(model, revision, _WANTED, _UNWANTED)
    gguf = [] if any(path.glob("*.safetensors")) else _gguf_files(model, revision)
    if gguf:
        raise CheckpointError(
            f"{model!r} holds GGUF files alone.",
            expected=_listed(gguf, _MAX_LISTED),
            hint=f"name one of them: {model}:{gguf[0]}",
        )
    return path


def _listed(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _existing_path(model: str) -> Path | None:
    """The path as typed, if there is anything; no system accepts every string as a path."""
    try:
        path = Path(model).expanduser()
        return path if model and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _obstacle(model: str) -> str:
    """Why there is nothing at a path, or nothing that can be seen."""
    try:
        Path(model).expanduser().stat()
    except PermissionError as error:
        return f"{error.strerror}: what is there cannot be seen"
    except (OSError, ValueError, RuntimeError):
        pass
    return "nothing there"


def _closest(model: str) -> str:
    """The nearest name beside where the model was looked for."""
    path = Path(model)
    try:
        beside = [
            entry.name
            for entry in path.expanduser().parent.iterdir()
            if not entry.name.startswith(".")
        ]
    except (OSError, ValueError, RuntimeError):
        beside = []
    near = get_close_matches(path.name, beside, n=1)
    if near:
        return f"closest: {path.parent / near[0]}"
    return f"closest: {BUILT_IN}" if get_close_matches(model, [BUILT_IN]) else ""


def _gguf_files(model: str, revision: str | None) -> list[str]:
    """The GGUF files of a repository; none where the Hub cannot be asked."""
    from huggingface_hub import HfApi

    try:
        names = HfApi().list_repo_files(model, revision=revision)
    except (OSError, ValueError):
        return []
    return sorted(name for name in names if name.endswith(".gguf"))


def _download(
    model: str, revision: str | None, wanted: list[str], unwanted: list[str] | None
) -> Path:
    from huggingface_hub import errors, snapshot_download  # slow to import

    try:
        return Path(
            snapshot_download(
                model, revision=revision, allow_patterns=wanted, ignore_patterns=unwanted
            )
        )
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{model!r} asks for its licence to be accepted first.",
            hint=f"accept it at https://huggingface.co/{model} and set HF_TOKEN",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"{model!r} has no such revision.", found=str(revision)[:100]
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"no model {model!r}, neither here nor on the Hub.",
            found=_closest(model),
            hint="check the spelling; for a private model set HF_TOKEN. " + _HINT,
        ) from error
    except (OSError, ValueError, errors.EntryNotFoundError) as error:
        raise CheckpointError(
            f"no model at {model!r}, and the Hub cannot be reached or does not have it.",
            found=_closest(model) or f"{type(error).__name__}, and nothing in the cache",
            hint="download it elsewhere and pass the folder; HF_HUB_OFFLINE=1 skips the attempt",
        ) from error


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of a model's files; no tensor is read yet, and torch is not imported.

    Args:
        path: A directory or a file.

    Raises:
        CheckpointError: The files cannot be found or are not sound.
        ConfigError: config.json is not a JSON object, or the weights are quantized in a way that
            is not supported.
    """
    found = find_weights(path)
    tensors: dict[str, TensorInfo] = {}
    headers = {file: FORMATS[file.name.rpartition(".")[2]](file) for file in found.files}
    check_parts(headers)
    for header in headers.values():
        for name, info in header.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor {name[:100]!r} is in two files.",
                    found=f"{tensors[name].file.name} and {info.file.name}",
                )
            tensors[name] = info
    for name, shard in (found.index or {}).items():
        place = tensors[name].file.name if name in tensors else "no shard"
        if place != shard:
            raise CheckpointError(
                f"the index and the shards disagree about tensor {name[:100]!r}.",
                found=f"it is in {place}",
                expected=f"it is in {shard[:100]}",
                hint="copy or download the model again, all files from one revision",
            )
    metadata = next(iter(headers.values())).metadata
    if not tensors:
        raise CheckpointError(
            f"{path} holds no tensors.",
            hint="it may be a vocabulary alone, which --vocab takes" if metadata else "",
        )
    config_path = (path if path.is_dir() else path.parent) / "config.json"
    # a file that describes itself is not described by what happens to lie beside it
    has_config = os.path.lexists(config_path) and not metadata  # a broken link is not none
    checkpoint = Checkpoint(
        path=path,
        files={file: file.stat().st_size for file in found.files},
        tensors=tensors,
        config=read_json(config_path) if has_config else {},
        config_path=config_path if has_config else None,
        metadata=metadata,
    )
    if checkpoint.metadata:
        return join_scales(checkpoint)
    return join_quantized(as_released(_with_prefix(checkpoint)))


def _with_prefix(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the prefix that names lack where transformers has saved no head.

    oxidizr's names lack it as well and are to stay so. Its config.json may have a ``model_type``,
    but none of the other keys that transformers writes.
    """
    tensors, own = checkpoint.tensors, checkpoint.config
    is_of_transformers = "model_type" in own and not own.keys().isdisjoint(_TRANSFORMERS_KEYS)
    if not is_of_transformers or not any(map(_LAYER.match, tensors)):
        return checkpoint
    prefix = "backbone." if "norm_f.weight" in tensors else "model."
    named = {n if n.startswith(_UNPREFIXED) else prefix + n: info for n, info in tensors.items()}
    return replace(checkpoint, tensors={n: replace(info, name=n) for n, info in named.items()})


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
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if not entry.is_dir())
        found = next(_choices(path, names), None)
        if found is None:
            raise _nothing_suits(path, names)
        return found
    if path.name == INDEX:
        return _indexed(path.parent)
    if path.suffix not in _SUFFIXES:
        raise _no_weights(path)
    shard = _SHARD.fullmatch(path.name)
    return _numbered(path.parent, {_shard_set(shard)}) if shard else WeightFiles((path,))


def find_mmproj(path: Path) -> Path | None:
    """The vision encoder's file beside a GGUF model; of several the first by name."""
    directory = path if path.is_dir() else path.parent
    return min(directory.glob(f"{_MMPROJ}*.gguf"), default=None)


def _choices(directory: Path, names: Sequence[str]) -> Iterator[WeightFiles]:
    """What a directory can be loaded from, in the order of preference."""
    if "model.safetensors" in names:
        yield WeightFiles((directory / "model.safetensors",))
    if INDEX in names:
        yield _indexed(directory)
    sets = {_shard_set(found) for name in names if (found := _SHARD.fullmatch(name))}
    sets = {each for each in sets if each.suffix == "safetensors"} or sets
    sets = {each for each in sets if each.stem == "model"} or sets
    if sets:
        yield _numbered(directory, sets)
    if "pytorch_model.safetensors" in names:
        yield WeightFiles((directory / "pytorch_model.safetensors",))
    if finals := [directory / name for name in names if name.endswith("_final.safetensors")]:
        yield WeightFiles((max(finals, key=_written_at),))
    matches = (found for name in names if (found := _STEP.fullmatch(name)))
    if steps := [(int(found["step"]), directory / found[0]) for found in matches]:
        yield WeightFiles((max(steps, key=lambda step: (step[0], _written_at(step[1])))[1],))
    safetensors = [name for name in names if name.endswith(".safetensors")]
    gguf = [name for name in names if name.endswith(".gguf")]
    language = [name for name in gguf if not name.startswith(_MMPROJ)]
    for only in (safetensors, language):
        if len(only) > 1:
            raise _unclear(directory, only)
        if only:
            yield WeightFiles((directory / only[0],))


def _written_at(path: Path) -> tuple[int, str]:
    """When a file was written, and its name, to sort by; 0 where the system does not tell."""
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name


class ShardSet(NamedTuple):
    """The numbered files of one model."""

    stem: str
    total: int
    suffix: str

    def name(self, number: str) -> str:
        """The name of one of them."""
        return f"{self.stem}-{number}-of-{self.total:05}.{self.suffix}"


def _shard_set(shard: re.Match[str]) -> ShardSet:
    return ShardSet(shard["stem"], int(shard["total"]), shard["suffix"])


def _numbered(directory: Path, sets: set[ShardSet]) -> WeightFiles:
    if len(sets) > 1:
        raise _unclear(directory, [each.name("*") for each in sorted(sets)])
    (shards,) = sets
    names = [shards.name(f"{number:05}") for number in range(1, shards.total + 1)]
    return WeightFiles(_all_present(directory, names))


def _indexed(directory: Path) -> WeightFiles:
    weight_map = read_json(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{directory / INDEX} names no shards.", expected='"weight_map": tensor name to file'
        )
    for file in weight_map.values():
        is_plain = (
            isinstance(file, str)
            and file.endswith(".safetensors")
            and Path(file).name == file
            and file.isprintable()
            and "\\" not in file
        )
        if not is_plain:
            raise CheckpointError(
                f"{directory / INDEX} names a shard that is not a file beside it.",
                found=repr(file)[:100],
                expected="a plain name that ends in .safetensors",
            )
    return WeightFiles(_all_present(directory, sorted(set(weight_map.values()))), weight_map)


def _all_present(directory: Path, names: list[str]) -> tuple[Path, ...]:
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise CheckpointError(
            f"{directory} lacks {len(missing)} of {len(names)} shards.",
            found="missing " + _listed(missing, 5),
            hint="copy or download the missing files",
        )
    return tuple(directory / name for name in names)


def _unclear(directory: Path, names: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"{directory} holds more than one model.",
        found=", ".join(names[:5]),
        hint="name the file instead of the directory",
    )


def _nothing_suits(directory: Path, names: list[str]) -> CheckpointError:
    return _runs_code(directory, names) or CheckpointError(
        f"no weights in {directory}.",
        found=_listed([name[:40] for name in names], 5) or "nothing",
        expected="model.safetensors, shards, *_final.safetensors, *_step_N.safetensors or *.gguf",
        hint="pass a directory with one of these, one of these files, or a Hub id (org/name)",
    )


def _no_weights(file: Path) -> CheckpointError:
    """The error for a file that was named and is of another kind."""
    return _runs_code(file.parent, [file.name]) or CheckpointError(
        f"{file} is a file without weights.",
        found=f"a name that ends in {file.suffix[:40]}" if file.suffix else "a name without an end",
        expected=f"a name that ends in {' or '.join(_SUFFIXES)}, or {INDEX}",
        hint="pass the directory of the model, one of these files, or a Hub id (org/name)",
    )


def _runs_code(directory: Path, names: list[str]) -> CheckpointError | None:
    unsafe = [name for name in names if name.endswith(_PROGRAM_SUFFIXES)]
    if not unsafe:
        return None
    return CheckpointError(
        f"{directory / unsafe[0]} can run code when it is opened, so blazr does not open it.",
        expected="safetensors",
        hint="where you trust it, load it with the program that wrote it and save it again with"
        " safetensors.torch.save_file(state_dict, 'model.safetensors')",
    )
