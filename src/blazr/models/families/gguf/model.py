"""What a GGUF file says about its model: metadata and tensor sizes."""

from __future__ import annotations

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import Ledger
from blazr.models.families.config_reader import ConfigReader, Setting

# What blazr calls the values that `blazr info` shows.
_NAMES = {
    "block_count": "num_layers",
    "context_length": "max_seq_len",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_kv_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.scale": "attention_multiplier",
    "expert_used_count": "experts_per_tok",
    "rope.freq_base": "rope_theta",
    "rope.scaling.factor": "rope_scaling_factor",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "final_logit_softcapping": "logit_softcap",
    "attn_logit_softcapping": "attn_logit_softcap",
}


class GgufModel:
    """The metadata and tensors of a file, read under one architecture's names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.tensors = checkpoint.tensors
        self.checkpoint = checkpoint
        self.ledger = Ledger()
        nested: dict[str, dict[str, object]] = {}
        for key, value in checkpoint.metadata.items():
            outer, _, inner = key.partition(".")
            nested.setdefault(outer, {})[inner] = value
        self.reader = ConfigReader(nested, "the metadata")
        self.architecture = str(checkpoint.metadata["general.architecture"])
        self.hidden_size = self.size("token_embd.weight", 1)
        self.num_layers = self._count_layers() - self.integer("nextn_predict_layers", 0)

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

    def integer(self, name: str, default: int | None = None, *, layer: int | None = None) -> int:
        """A whole number, which may be given once or per layer.

        Raises:
            ConfigError: It is missing or something else.
        """
        key = self.key(name)
        values = self.checkpoint.metadata.get(key)
        found: Setting[int] | None
        if layer is not None and isinstance(values, memoryview) and layer < len(values):
            last = key.rpartition(".")[2]
            found = ConfigReader({last: values[layer]}, f"the metadata, {key}").integer(last)
        else:
            found = self.reader.integer(key)
        if found is None and default is None:
            raise ConfigError(
                f"the metadata has no {key!r}.",
                expected="a whole number",
                hint="the file is of an old or foreign converter: convert the model again",
            )
        if found is None:
            return default or 0
        return self.ledger.record(_NAMES.get(name, name), found.value, found.source)

    def flag(self, name: str, *, layer: int | None = None) -> bool | None:
        """A truth, which may be given per layer; None where nothing is said."""
        key = self.key(name)
        values = self.checkpoint.metadata.get(key)
        if isinstance(values, memoryview):
            return bool(values[layer]) if layer is not None and layer < len(values) else None
        found = self.reader.boolean(key) if isinstance(values, bool) else None
        return found.value if found else None

    def number(self, name: str, default: float) -> float:
        """A number above 0.

        Raises:
            ConfigError: It is something else.
        """
        found = self.reader.number(self.key(name), above=0)
        if found is None:
            return default
        return self.ledger.record(_NAMES.get(name, name), found.value, found.source)

    def any_number(self, name: str) -> float:
        """A number of which 0 means that there is none; 0 where it is not there.

        Raises:
            ConfigError: It is something else.
        """
        found = self.reader.number(self.key(name))
        return found.value if found else 0.0

    def _count_layers(self) -> int:
        count = self.integer("block_count")
        if not 1 <= count <= len(self.tensors):
            raise ConfigError(
                f"the metadata's {self.key('block_count')!r} does not fit the file.",
                found=f"{count:,} layers, {len(self.tensors):,} tensors",
                expected="at least one tensor a layer",
            )
        return count
