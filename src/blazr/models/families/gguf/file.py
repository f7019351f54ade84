"""A GGUF file under one architecture's names: what its metadata and its tensors say."""

from __future__ import annotations

from collections.abc import Mapping

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.config_reader import ConfigReader
from blazr.models.families.gguf.architectures import ARCHITECTURES, Architecture
from blazr.models.families.gguf.keys import LAYER_EPS, METADATA_KEYS, RMS_EPS


class GgufFile:
    """The metadata and the tensors of a file, read under one architecture's names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.row = _row(checkpoint)
        self.architecture = str(checkpoint.metadata["general.architecture"])
        self.tensors = checkpoint.tensors
        self.metadata: dict[str, object] = {}
        for key, value in checkpoint.metadata.items():
            outer, _, inner = key.partition(".")
            if outer == self.architecture:
                self.metadata[inner] = value
        self.reader = self.reader_of({})
        self.hidden_size = self.size("token_embd.weight", 1)
        self.num_layers = self._count_layers() - self.integer("nextn_predict_layers", 0)

    def reader_of(self, words: Mapping[str, object]) -> ConfigReader:
        """A reader of config.json's keys: these words, and what the metadata say of others."""
        names = {word: (self.key(key),) for word, key in METADATA_KEYS.items() if word not in words}
        return ConfigReader({self.architecture: self.metadata, **words}, "the metadata", names)

    def key(self, name: str) -> str:
        """A key of this architecture."""
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self.tensors

    def size(self, name: str, dim: int) -> int:
        """A size of a tensor that must be there.

        Raises:
            CheckpointError: It is not, or has fewer dimensions.
        """
        info = self.tensors.get(name)
        if info is None or dim >= len(info.shape):
            raise CheckpointError(
                f"{self.checkpoint.path}: tensor {name} is missing.",
                found=", ".join(each[:40] for each in list(self.tensors)[:4]),
                hint="the file is incomplete, or of a kind that blazr does not know",
            )
        return info.shape[dim]

    def layers_with(self, name: str) -> list[int]:
        """The layers that have a tensor."""
        return [index for index in range(self.num_layers) if self.has(f"blk.{index}.{name}")]

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; of one for each layer, the largest.

        Raises:
            ConfigError: It is missing or something else.
        """
        key = self.key(name)
        values = self.metadata.get(name)
        if isinstance(values, memoryview) and len(values):
            last = key.rpartition(".")[2]
            found = ConfigReader({last: max(values)}, f"the metadata, {key}").integer(last)
        else:
            found = self.reader.integer(key)
        if found is None and default is None:
            raise ConfigError(
                f"the metadata has no {key!r}.",
                expected="a whole number",
                hint="the file is of an old or foreign converter: convert the model again",
            )
        return default or 0 if found is None else found.value

    def number(self, name: str, default: float) -> float:
        """A number above 0.

        Raises:
            ConfigError: It is something else.
        """
        found = self.reader.number(self.key(name), above=0)
        return default if found is None else found.value

    def any_number(self, name: str) -> float:
        """A number of which 0 means that there is none; 0 where it is not there.

        Raises:
            ConfigError: It is something else.
        """
        found = self.reader.number(self.key(name))
        return found.value if found else 0.0

    def flag(self, name: str) -> bool | None:
        """A truth, or None where nothing is said."""
        found = self.metadata.get(name)
        return found if isinstance(found, bool) else None

    @property
    def eps(self) -> float:
        """What norms add; some converters mix the two keys up."""
        return self.number(RMS_EPS, 0.0) or self.number(LAYER_EPS, self.row.eps)

    @property
    def head_dim(self) -> int:
        """Channels of a head of attention."""
        heads = self.integer("attention.head_count")
        return self.integer("attention.key_length", self.hidden_size // max(1, heads))

    def window(self, layer: int) -> int:
        """How many tokens a layer sees; 0 for all."""
        key, every = "attention.sliding_window_pattern", self.row.full_every
        told = self.metadata.get(key)
        slides = not every or (layer + 1) % every != 0
        if isinstance(told, memoryview) and layer < len(told):
            slides = bool(told[layer])
        elif isinstance(told, bool):
            slides = told
        return self.integer("attention.sliding_window", 0) if slides else 0

    def _count_layers(self) -> int:
        count = self.integer("block_count")
        if not 1 <= count <= len(self.tensors):
            raise ConfigError(
                f"the metadata's {self.key('block_count')!r} does not fit the file.",
                found=f"{count:,} layers, {len(self.tensors):,} tensors",
                expected="at least one tensor a layer",
            )
        return count


def _row(checkpoint: Checkpoint) -> Architecture:
    name = checkpoint.metadata.get("general.architecture")
    row = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if row is None:
        raise ConfigError(
            f"{checkpoint.path}: models of this architecture are not supported in GGUF.",
            found=repr(name)[:100],
            expected=", ".join(ARCHITECTURES),
            hint="where the model is also there as safetensors, try that",
        )
    return row
