"""From a path to a Checkpoint: find the files, read their headers, and config.json beside them."""

from __future__ import annotations

from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint import FORMATS
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.models.checkpoint.disk import read_json
from blazr.models.checkpoint.find import find_weights
from blazr.models.checkpoint.quantized import join_quantized


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
    headers = []
    for file in found.files:
        reader = next(row for row in FORMATS.values() if file.name.endswith(row.suffix))
        header = reader.read_header(file)
        headers.append(header)
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
    if not tensors:
        raise CheckpointError(
            f"{path} holds no tensors.",
            hint="it may be a vocabulary alone, which --vocab takes" if headers[0].metadata else "",
        )
    config_path = (path if path.is_dir() else path.parent) / "config.json"
    # a file that describes itself is not described by what happens to lie beside it
    has_config = config_path.exists() and not headers[0].metadata
    checkpoint = Checkpoint(
        path=path,
        files={file: file.stat().st_size for file in found.files},
        tensors=tensors,
        config=read_json(config_path) if has_config else None,
        config_path=config_path if has_config else None,
        metadata=headers[0].metadata,
    )
    return checkpoint if checkpoint.metadata else join_quantized(checkpoint)
