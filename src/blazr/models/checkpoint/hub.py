"""From what the user typed to files: a local path, the built-in model, or a Hub id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from blazr.core.errors import CheckpointError

BUILT_IN = "nano"
_REPO_ID = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}", re.ASCII)
_FILE = re.compile(
    r"(?P<repo>[\w][\w.-]{0,95}/[\w][\w.-]{0,95}):(?P<file>[\w][\w ./-]{0,250}\.gguf)", re.ASCII
)
_SHARD = re.compile(r"\d{5}(?=-of-\d{5}\.gguf$)", re.ASCII)
_SUFFIX = ".gguf"
_WANTED = [
    "*.safetensors",
    "*.safetensors.index.json",
    "*config.json",
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
]
# A star stands for slashes too: of what lies in folders only templates are wanted.
_UNWANTED = [
    *(f"*/{each}" for each in _WANTED if each != "*.jinja"),
    "tokenizer*/*",
    "consolidated*",
    "adapter_*",
]
_HINT = (
    "pass a directory with model.safetensors, a .safetensors or .gguf file, a Hub id (org/name), or"
    " a file of one (org/name:file.gguf)"
)
_LISTED = 12


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
    """
    path = _local(model)
    if path is not None:
        absolute = path.absolute()
        return ModelFiles(absolute.name if path.is_dir() else absolute.stem, path)
    if model == BUILT_IN:
        return ModelFiles(BUILT_IN, _built_in())
    if _REPO_ID.fullmatch(model) and not model.endswith((".safetensors", ".gguf")):
        return ModelFiles(model, _fetch(model, revision))
    if _FILE.fullmatch(model):
        path = _fetch_file(model, revision)
        return ModelFiles(path.stem, path)
    raise CheckpointError(
        f"no model at {model[:100]!r}.", found=_closest(model) or "nothing there", hint=_HINT
    )


def names_model(text: str) -> bool:
    """Whether a text looks like a model: a path, ``nano`` or a Hub id, be it there or not."""
    if _local(text) is not None or text == BUILT_IN:
        return True
    is_path = text.startswith(("/", "./", "../", "~")) or text.endswith((".safetensors", _SUFFIX))
    is_id = _REPO_ID.fullmatch(text) or _FILE.fullmatch(text)
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
    if _FILE.fullmatch(model):
        return _fetch_file(model, revision)
    if not _REPO_ID.fullmatch(model):
        raise CheckpointError(
            f"{model[:100]!r} is no Hub id.",
            expected="organisation/name, as on huggingface.co, or organisation/name:file.gguf",
        )
    return _fetch(model, revision)


def _local(model: str) -> Path | None:
    """The path as typed, if there is anything; no system accepts every string as a path."""
    try:
        path = Path(model).expanduser()
        return path if model and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _built_in() -> Path:
    path = Path(str(files("blazr") / "data" / BUILT_IN))
    if not path.is_dir():
        raise CheckpointError(
            f"the built-in model {BUILT_IN!r} is not in this installation.", hint=_HINT
        )
    return path


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


def _fetch(model: str, revision: str | None) -> Path:
    path = _snapshot(model, revision, _WANTED, _UNWANTED)
    files = [] if any(path.glob("*.safetensors")) else _gguf_files(model, revision)
    if files:
        raise CheckpointError(
            f"{model!r} holds GGUF files alone.",
            expected=", ".join(files[:_LISTED]) + (", ..." if len(files) > _LISTED else ""),
            hint=f"name one of them: {model}:{files[0]}",
        )
    return path


def _fetch_file(name: str, revision: str | None) -> Path:
    """One file, with the others that it is a part of."""
    found = _FILE.fullmatch(name)
    assert found is not None
    model, file = found["repo"], found["file"]
    is_sound = ".." not in file.split("/")
    path = _snapshot(model, revision, [_SHARD.sub("*", file)] if is_sound else [], None) / file
    if not is_sound or not path.exists():
        files = _gguf_files(model, revision)
        raise CheckpointError(
            f"{model!r} has no file {file[:100]!r}, as far as can be seen from here.",
            found=", ".join(files[:_LISTED]) + (", ..." if len(files) > _LISTED else ""),
            hint="name one that is there, as its page on huggingface.co lists it",
        )
    return path


def _gguf_files(model: str, revision: str | None) -> list[str]:
    """The GGUF files of a repository; none where the Hub cannot be asked."""
    from huggingface_hub import HfApi

    try:
        names = HfApi().list_repo_files(model, revision=revision)
    except (OSError, ValueError):
        return []
    return sorted(name for name in names if name.endswith(_SUFFIX))


def _snapshot(
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
