"""`Pipeline`: a model that another library runs as a whole, one job after the other."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from typing_extensions import override

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.open import ModelFiles, open_checkpoint
from blazr.nn.device import release_threads
from blazr.pipelines.jobs import MAX_WAITING, JobQueue
from blazr.pipelines.network import loading_errors, network_from

if TYPE_CHECKING:
    from blazr.models.checkpoint.base import Checkpoint
    from blazr.nn.device import Device

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInfo:
    """What there is to know about a pipeline from outside.

    Args:
        name: What it is called.
        family: Its ``model_type``.
        capabilities: What it can do.
        num_parameters: Weights in it.
        size_bytes: Memory they take.
        device: Where it runs, for people.
        max_seq_len: Tokens of the longest text; None where it reads none.
        vocab_size: Tokens that it knows; 0 where it reads no text.
        vector_size: Numbers of a vector that it makes; 0 where it makes none.
    """

    name: str
    family: str
    capabilities: tuple[str, ...]
    num_parameters: int
    size_bytes: int
    device: str
    max_seq_len: int | None = None
    vocab_size: int = 0
    vector_size: int = 0


class Pipeline(ABC):
    """A model in memory that another library runs.

    Args:
        info: About it.

    Attributes:
        backend: The library that runs it, and has written its files.
        extra: Of blazr, what installs the packages it needs.
        packages: Those, by what they are imported as.
        max_waiting: Most requests that wait for it.
        jobs: The thread it works on.
    """

    backend: ClassVar[str]
    extra: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    max_waiting: ClassVar[int] = MAX_WAITING

    def __init__(self, info: PipelineInfo) -> None:
        self.info = info
        self.jobs = JobQueue(info.name, max_waiting=self.max_waiting, on_idle=release_threads)

    @classmethod
    @abstractmethod
    def read(
        cls, files: ModelFiles, capabilities: tuple[str, ...], *, device: Device, dtype: str
    ) -> Self:
        """Read a model, as `load` says, which calls this once the packages are there.

        Raises:
            Exception: What the library raises where it cannot.
        """

    @classmethod
    def load(
        cls, files: ModelFiles, capabilities: tuple[str, ...], *, device: Device, dtype: str
    ) -> Self:
        """Load a model, from safetensors or GGUF alone; code that lies beside is never run.

        Args:
            files: Where it lies.
            capabilities: What it can do.
            device: Where to.
            dtype: ``auto`` is float32 on a CPU, and elsewhere the checkpoint's.

        Raises:
            ConfigError: Packages are missing.
            CheckpointError: It cannot be loaded.
        """
        missing = [name for name in cls.packages if find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"{files.name} cannot be run here.",
                found=f"{' and '.join(missing)} not installed",
                hint=f"pip install 'blazr[{cls.extra}]'",
            )
        written = f"a folder that save_pretrained of {cls.backend} has written"
        if files.path.suffix == ".gguf":
            written = "a file that llama.cpp's converter has written"
        with loading_errors(f"{files.name} cannot be loaded.", expected=written):
            return cls.read(files, capabilities, device=device, dtype=dtype)

    def limit_texts(self, max_tokens: int) -> None:  # noqa: B027  (most models read no texts)
        """Read none with more tokens than this, as if that were the model's own limit."""

    def close(self) -> None:
        """End what it does. Idempotent."""
        self.jobs.close()


class TransformersPipeline(Pipeline):
    """A network of transformers in memory.

    Args:
        info: About it.
        network: Its network.
        checkpoint: Its files.

    Attributes:
        auto: The library's class that knows its networks.
        unused: What the names of tensors begin with that may be missing.
    """

    backend: ClassVar[str] = "transformers"
    auto: ClassVar[str]
    unused: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, info: PipelineInfo, network: torch.nn.Module, checkpoint: Checkpoint
    ) -> None:
        self.network: Any = network
        self.device = next(network.parameters()).device
        self.dtype = next(network.parameters()).dtype
        self.prepare(checkpoint)
        super().__init__(info)

    @abstractmethod
    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read what else it needs."""

    @classmethod
    @override
    def read(
        cls, files: ModelFiles, capabilities: tuple[str, ...], *, device: Device, dtype: str
    ) -> Self:
        checkpoint = open_checkpoint(files.path)
        if dtype == "auto" and device.kind == "cpu":
            dtype = "float32"
        network: Any = cls.build(checkpoint, dtype)
        weights = list(network.parameters())
        info = PipelineInfo(
            name=files.name,
            family=network.config.model_type,
            capabilities=capabilities,
            num_parameters=sum(each.numel() for each in weights),
            size_bytes=sum(each.nbytes for each in weights),
            device=str(device),
        )
        return cls(info, network.to(device.torch_device), checkpoint)

    @classmethod
    def build(cls, checkpoint: Checkpoint, dtype: str) -> torch.nn.Module:
        """Build the network from its files.

        Raises:
            CheckpointError: Tensors are missing.
        """
        return network_from(checkpoint, cls.auto, dtype=dtype, unused=cls.unused)
