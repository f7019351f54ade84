"""A network of transformers, built from the tensors of a checkpoint."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from blazr.core.errors import BlazrError, CheckpointError
from blazr.models.checkpoint.base import QuantizedInfo
from blazr.nn.quant.gguf import GGML_TYPES

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint, TensorInfo

_LISTED_NAMES = 5
_log = logging.getLogger(__name__)


@contextmanager
def loading_errors(message: str, *, expected: str = "", hint: str = "") -> Iterator[None]:
    """Tell whatever a library raises as an error of the checkpoint, with this message.

    Raises:
        CheckpointError: It raised something.
        BlazrError: An error of blazr's own, as it is.
    """
    try:
        yield
    except BlazrError:
        raise
    except Exception as error:
        raise CheckpointError(
            message,
            found=f"{type(error).__name__}: {str(error).strip()[:300]}",
            expected=expected,
            hint=hint,
        ) from error


def load_without_code(kind: type, directory: Path) -> object:
    """What a class of the library reads of a directory; code that lies there is never run.

    Raises:
        Exception: What the class raises where it cannot.
    """
    reader: Any = kind
    found: object = reader.from_pretrained(
        directory, trust_remote_code=False, local_files_only=True
    )
    return found


def stored_infos(checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    """The tensors of a checkpoint as its files hold them, by their names there."""
    return {
        part.name: part
        for info in checkpoint.tensors.values()
        for part in (info.parts.values() if isinstance(info, QuantizedInfo) else (info,))
    }


def decoded(checkpoint: Checkpoint, info: TensorInfo) -> Tensor:
    """A tensor of a GGUF file as plain numbers, float32."""
    stored = checkpoint.own(info)
    numbers = GGML_TYPES[info.dtype].decode(stored) if info.is_packed else stored
    return numbers.float().reshape(info.shape)


def network_of(
    kind: type,
    config: object,
    tensors: Mapping[str, Tensor],
    dtype: str | torch.dtype,
    *,
    of: str,
    hint: str = "fetch its files again: they are incomplete, or of another model",
    unused: tuple[str, ...] = (),
) -> torch.nn.Module:
    """A network of the library, ready to run.

    Args:
        kind: Its class.
        config: As the library reads it.
        tensors: By the library's names.
        dtype: What to compute in; ``auto`` is that of the config.
        of: What people call it.
        hint: What to try where tensors are missing, or have another shape.
        unused: What the names of tensors begin with that may be missing.

    Raises:
        CheckpointError: Tensors are missing, or have another shape.
        Exception: What the library raises where it cannot.
    """
    network_class: Any = kind
    own: Any = config
    # The library gets tensors and no path: in a directory it would also look for pickles
    # (pytorch_model.bin, adapter_model.bin, distributed checkpoints) and unpickle them.
    own.transformers_weights = None
    with bars_on_terminals(), _without_report():
        network, problems = network_class.from_pretrained(
            None,
            config=own,
            state_dict=tensors,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # else it names them in the log alone
        )
    others = sorted(problems["mismatched_keys"])
    if others:
        name, found, wanted = others[0]
        raise CheckpointError(
            f"{len(others)} tensors of {of} have another shape than the configuration says.",
            found=f"{name[:100]} {list(found)}",
            expected=f"{list(wanted)}",
            hint=hint,
        )
    missing = sorted(name for name in problems["missing_keys"] if not name.startswith(unused))
    if missing:
        raise CheckpointError(
            f"{len(missing)} tensors of {of} are missing.",
            found=", ".join(name[:100] for name in missing[:_LISTED_NAMES]),
            hint=hint,
        )
    if unexpected := sorted(problems["unexpected_keys"]):
        names = ", ".join(name[:100] for name in unexpected[:_LISTED_NAMES])
        _log.warning("%s holds %d tensors that are not used: %s", of, len(unexpected), names)
    ready: torch.nn.Module = network.eval().requires_grad_(requires_grad=False)
    return ready


@contextmanager
def _without_report() -> Iterator[None]:
    """Keep the library's table of tensors out of the log: what it warns of is said by us."""
    logger = logging.getLogger("transformers.modeling_utils")

    def refuse(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)


@contextmanager
def bars_on_terminals() -> Iterator[None]:
    """Keep the library's progress bars out of files, pipes and the logs of servers."""
    from transformers.utils import logging

    if sys.stderr.isatty() or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def network_from(
    checkpoint: Checkpoint, kind_name: str, *, dtype: str, unused: tuple[str, ...] = ()
) -> torch.nn.Module:
    """Build a network, ready to run.

    Code that lies beside the weights is never run, and no pickle there is opened.

    Args:
        checkpoint: Its files.
        kind_name: The class of transformers: one that knows its kind, ``AutoModelForCausalLM`` and
            such, or that of the network itself.
        dtype: What to compute in; ``auto`` is the checkpoint's.
        unused: What the names of tensors begin with that may be missing.

    Raises:
        CheckpointError: Tensors are missing, or have another shape.
        Exception: What transformers raises where it cannot.
    """
    import transformers

    kind: Any = getattr(transformers, kind_name)
    is_auto = not issubclass(kind, transformers.PreTrainedModel)
    configs = transformers.AutoConfig if is_auto else kind.config_class
    config = load_without_code(configs, checkpoint.directory)
    if is_auto:
        with torch.device("meta"):
            kind = type(kind.from_config(config, trust_remote_code=False))
    tensors = {name: checkpoint.own(info) for name, info in stored_infos(checkpoint).items()}
    return network_of(kind, config, tensors, dtype, of=checkpoint.path.name, unused=unused)


def generation_config(network: torch.nn.Module, directory: Path) -> object:
    """How a network generates: what its directory says, or what it has by default."""
    import transformers

    if not (directory / "generation_config.json").exists():
        return getattr(network, "generation_config", None)
    found: object = transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)
    return found
