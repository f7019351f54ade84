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
_WANTED = [
    "*.safetensors",
    "*.safetensors.index.json",
    "*config.json",
    "tokenizer*",
    "*.tiktoken",
    "*.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
]
_UNWANTED = ["*/*", "consolidated*", "adapter_*"]
_HINT = "pass a directory with model.safetensors, a .safetensors file, or a Hub id (org/name)"


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
    """Find a model by path, by the name ``nano``, or by Hub id. A path that exists always wins.

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
    raise CheckpointError(
        f"no model at {model[:100]!r}.", found=_closest(model) or "nothing there", hint=_HINT
    )


def fetch_model(model: str, *, revision: str | None = None) -> Path:
    """Fetch a model from the Hub, or what is missing of it, whatever lies here by its name.

    Args:
        model: Its Hub id.
        revision: Branch, tag or commit; None for the default branch.

    Returns:
        Its directory in the cache.

    Raises:
        CheckpointError: It is no Hub id, there is no such model, or it cannot be fetched.
    """
    if not _REPO_ID.fullmatch(model):
        raise CheckpointError(
            f"{model[:100]!r} is no Hub id.", expected="organisation/name, as on huggingface.co"
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
    from huggingface_hub import errors, snapshot_download  # slow to import

    try:
        return Path(
            snapshot_download(
                model, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
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
