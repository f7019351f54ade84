"""What ``blazr info`` prints: a model's sizes, where each came from, and its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

from blazr.core.errors import ConfigError, UnknownFamilyError
from blazr.core.gguf_header import ARCHITECTURE_KEY, Value
from blazr.models.checkpoint.base import ELEMENT_TYPES, most_used_type
from blazr.models.checkpoint.open import ModelFiles, find_model, open_checkpoint
from blazr.models.loading.describe import describe_plan
from blazr.models.loading.plan import plan_model
from blazr.pipelines.fallback import describe_fallback
from blazr.pipelines.kinds import PipelineKind, kind_of
from blazr.text.tokenizers.choose import find_tokenizer


def describe_model(
    model: str, *, revision: str | None = None, kv_dtype: str = "auto", state_dtype: str = "auto"
) -> dict[str, object]:
    """Describe a model from its headers; no tensor is read.

    Args:
        model: A directory, a file, ``nano``, or a Hub id.
        revision: Branch, tag or commit of a Hub id.
        kv_dtype: What keys, values and latents would be stored in.
        state_dtype: What recurrent states would be kept in.

    Returns:
        What `blazr.models.loading.describe.describe_plan` returns, for models that run through
        transformers as far as their config or their file tells, and ``vocabulary``: ``name`` (None
        where nothing tells) and ``reason``.

    Raises:
        BlazrError: There is no such model, or it cannot be loaded.
    """
    try:
        planned = plan_model(model, revision=revision)
    except UnknownFamilyError as error:
        report = describe_fallback(model, error, revision=revision)
        path = Path(str(report["path"]))
        config = report["config"]
        assert isinstance(config, Mapping)
        directory = path if path.is_dir() else path.parent
        return report | {"vocabulary": _vocabulary(directory, config["vocab_size"])}
    except ConfigError:
        files = find_model(model, revision=revision)
        kind = kind_of(files.path)
        if kind is None:
            raise
        return _describe_encoder(files, kind)
    checkpoint = planned.checkpoint
    vocabulary = _vocabulary(
        None if checkpoint.metadata else checkpoint.directory,
        planned.derivation.config.vocab_size,
        declared=checkpoint.config.get("tokenizer_vocab"),
        metadata=checkpoint.metadata,
    )
    described = describe_plan(planned, kv_dtype=kv_dtype, state_dtype=state_dtype)
    return described | {"vocabulary": vocabulary}


def _describe_encoder(files: ModelFiles, kind: PipelineKind) -> dict[str, object]:
    """The same of an encoder in a GGUF file."""
    checkpoint = open_checkpoint(files.path)
    infos = checkpoint.tensors.values()
    name = checkpoint.metadata[ARCHITECTURE_KEY]
    stored = most_used_type((info.dtype, info.nbytes) for info in infos)
    begin = f"{name}."
    config = {
        key.removeprefix(begin): value
        for key, value in checkpoint.metadata.items()
        if key.startswith(begin) and not isinstance(value, memoryview)
    }
    return {
        "name": files.name,
        "path": str(checkpoint.path),
        "family": name,
        "dtype": ELEMENT_TYPES[stored][1] if stored in ELEMENT_TYPES else stored,
        "files": [{"name": file.name, "bytes": n} for file, n in checkpoint.files.items()],
        "config": {"capabilities": list(kind.capabilities), **config},
        "parameters": {"total": sum(prod(info.shape) for info in infos)},
        "memory": {"weights_bytes": sum(info.nbytes for info in infos)},
        "derivation": [],
        "warnings": [f"{name} runs through transformers, its weights as plain numbers."],
        "vocabulary": _vocabulary(None, None, metadata=checkpoint.metadata),
    }


def _vocabulary(
    directory: Path | None,
    vocab_size: int | None,
    *,
    declared: object = None,
    metadata: Mapping[str, Value] | None = None,
) -> dict[str, object]:
    found = find_tokenizer(
        directory=directory,
        vocab=None,
        vocab_size=vocab_size,
        metadata=metadata,
        declared=declared if isinstance(declared, str) else None,
    )
    return {"name": found.name, "reason": found.reason}
