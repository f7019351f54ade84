"""ENCODERS: the architectures of GGUF files that make vectors or labels.

Importing this imports no torch, so that a server can tell what its models are before it loads one.

Source: GitHub ggml-org/llama.cpp, ``conversion/bert.py`` and ``gguf-py/gguf/tensor_mapping.py``
(what is written), ``src/models/bert.cpp`` and its neighbours (what it means).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from blazr.core.errors import CheckpointError
from blazr.core.gguf_header import ARCHITECTURE_KEY
from blazr.core.table import Table

if TYPE_CHECKING:
    from blazr.models.checkpoint.base import Checkpoint

# Where a file does not say more, of ModernBERT and of Gemma: one layer of so many sees all tokens.
_MODERN_BERT_PERIOD, _GEMMA_PERIOD = 3, 6
_MAX_SIZE = 2**31
_FULL, _SLIDING = "full_attention", "sliding_attention"


class EncoderFile:
    """The metadata and the tensors of a file, read under the names of its architecture.

    Args:
        checkpoint: The file.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.architecture = str(checkpoint.metadata.get(ARCHITECTURE_KEY))
        self.row: GgufEncoder = ENCODERS[self.architecture]
        if self.row.without_types is not None and not self.has("token_types.weight"):
            self.row = self.row.without_types

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self.checkpoint.tensors

    def size(self, name: str, dim: int) -> int:
        """A size of a tensor.

        Raises:
            CheckpointError: It is missing, or has fewer dimensions.
        """
        info = self.checkpoint.tensors.get(name)
        if info is None or dim >= len(info.shape):
            raise CheckpointError(
                f"{self.checkpoint.path}: tensor {name} is missing.",
                found="none" if info is None else f"shape {list(info.shape)}",
                hint="the file is incomplete, or of a kind that blazr does not know",
            )
        return info.shape[dim]

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number above 0.

        Raises:
            CheckpointError: It is missing, or something else.
        """
        found = self._value(key, default)
        if type(found) is int and 0 < found < _MAX_SIZE:
            return found
        raise self._unusable(key, found, "a whole number above 0")

    def number(self, key: str, default: float) -> float:
        """A number above 0.

        Raises:
            CheckpointError: It is something else.
        """
        found = self._value(key, default)
        if isinstance(found, int | float) and isfinite(found) and found > 0:
            return float(found)
        raise self._unusable(key, found, "a number above 0")

    def text(self, key: str, default: str) -> str:
        """A string.

        Raises:
            CheckpointError: It is something else.
        """
        found = self._value(key, default)
        if isinstance(found, str):
            return found
        raise self._unusable(key, found, "a string")

    def texts(self, key: str) -> list[str]:
        """A list of strings; an empty one where there is none."""
        found = self._value(key, [])
        return [str(each) for each in found] if isinstance(found, list) else []

    def windows(self, period: int, *, whole_first: bool) -> list[str]:
        """The types of layers, by what they see.

        Args:
            period: Of so many layers one sees all tokens, where the file has no other number.
            whole_first: Whether that is the first of them, and not the last.
        """
        count = self.num_layers
        stored = self._value("attention.sliding_window_pattern", period)
        if isinstance(stored, memoryview) and len(stored) >= count:
            slides = [bool(each) for each in stored[:count]]
        else:
            period = self.integer("attention.sliding_window_pattern", period)
            place = 0 if whole_first else period - 1
            slides = [index % period != place for index in range(count)]
        return [_SLIDING if each else _FULL for each in slides]

    @property
    def num_layers(self) -> int:
        """How many layers it has.

        Raises:
            CheckpointError: There cannot be so many.
        """
        found = self.integer("block_count")
        if found > len(self.checkpoint.tensors):
            most = f"at most {len(self.checkpoint.tensors)}, the number of tensors"
            raise self._unusable("block_count", found, most)
        return found

    @property
    def num_heads(self) -> int:
        """Heads of its attention.

        Raises:
            CheckpointError: They do not share its channels evenly, and have no size of their own.
        """
        found = self.integer("attention.head_count")
        size = self.size("token_embd.weight", 1)
        if size % found and self._value("attention.key_length", None) is None:
            raise self._unusable("attention.head_count", found, f"a divisor of {size}")
        return found

    @property
    def max_tokens(self) -> int:
        """The longest text; where positions are in a table, no longer than that."""
        most = self.integer("context_length", 512)
        if self.has("position_embd.weight"):
            most = min(most, self.size("position_embd.weight", 0))
        return most

    @property
    def common(self) -> dict[str, object]:
        """What the configs of all its networks have."""
        return {
            "vocab_size": self.size("token_embd.weight", 0),
            "hidden_size": self.size("token_embd.weight", 1),
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.integer("feed_forward_length"),
            "max_position_embeddings": self.max_tokens,
            "pad_token_id": self.pad_id,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
        }

    @property
    def pad_id(self) -> int:
        """What stands behind shorter texts; attention does not see it."""
        found = self.checkpoint.metadata.get("tokenizer.ggml.padding_token_id", 0)
        is_known = type(found) is int and 0 <= found < self.size("token_embd.weight", 0)
        return found if is_known and isinstance(found, int) else 0

    @property
    def num_types(self) -> int:
        """Rows of the table of types of tokens; those of a first and a second text differ."""
        return self.size("token_types.weight", 0) if self.has("token_types.weight") else 1

    def _value(self, key: str, default: object) -> object:
        return self.checkpoint.metadata.get(f"{self.architecture}.{key}", default)

    def _unusable(self, key: str, found: object, expected: str) -> CheckpointError:
        return CheckpointError(
            f"the metadata's '{self.architecture}.{key}' is not usable.",
            found="none" if found is None else repr(found)[:50],
            expected=expected,
            hint="the file is of an old or foreign converter: convert the model again",
        )


def _bert(file: EncoderFile) -> dict[str, object]:
    return {
        "layer_norm_eps": file.number("attention.layer_norm_epsilon", 1e-12),
        "type_vocab_size": file.num_types,
    }


def _distil_bert(file: EncoderFile) -> dict[str, object]:
    return {"hidden_dim": file.integer("feed_forward_length")}  # common names it as others do


def _with_rope(file: EncoderFile, theta: float) -> dict[str, object]:
    return {
        **_bert(file),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": file.number("rope.freq_base", theta),
        },
    }


def _nomic_moe(file: EncoderFile) -> dict[str, object]:
    return {
        **_bert(file),
        "rope_theta": file.number("rope.freq_base", 10_000.0),
        "experts_per_token": file.integer("expert_used_count"),
    }


def _modern_bert(file: EncoderFile) -> dict[str, object]:
    # as llama.cpp has it where a file of its earlier converters does not say
    pooling = file.integer("classifier.pooling_type", MEAN)
    types = file.windows(_MODERN_BERT_PERIOD, whole_first=True)
    has_window = file.checkpoint.metadata.get(f"{file.architecture}.attention.sliding_window")
    wide = file.number("rope.freq_base", 160_000.0)
    return {
        "norm_eps": file.number("attention.layer_norm_epsilon", 1e-5),
        "hidden_activation": file.text("hidden_activation", "gelu"),
        "layer_types": types if has_window else [_FULL] * len(types),
        "local_attention": file.integer("attention.sliding_window", 128) if has_window else 128,
        "rope_parameters": _ropes(wide, file.number("rope.freq_base_swa", 10_000.0)),
        "classifier_pooling": "cls" if pooling == CLS else "mean",
        "classifier_bias": file.has("cls.bias"),
    }


def _gemma(file: EncoderFile) -> dict[str, object]:
    return {
        "num_key_value_heads": file.integer("attention.head_count_kv", file.num_heads),
        "head_dim": file.integer("attention.key_length", 256),
        "query_pre_attn_scalar": file.integer("attention.key_length", 256),
        "rms_norm_eps": file.number("attention.layer_norm_rms_epsilon", 1e-6),
        "layer_types": file.windows(_GEMMA_PERIOD, whole_first=False),
        "sliding_window": file.integer("attention.sliding_window", 512),
        "use_bidirectional_attention": True,
        "rope_parameters": _ropes(
            file.number("rope.freq_base", 1_000_000.0), file.number("rope.freq_base_swa", 10_000.0)
        ),
    }


def _eurobert(file: EncoderFile) -> dict[str, object]:
    return {
        "num_key_value_heads": file.integer("attention.head_count_kv", file.num_heads),
        "rms_norm_eps": file.number("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": file.number("rope.freq_base", 250_000.0),
        },
    }


def _ropes(full: float, sliding: float) -> dict[str, object]:
    bases = {_FULL: full, _SLIDING: sliding}
    return {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufEncoder:
    """How files of one architecture become a network of transformers.

    Names are without what follows the last dot, and with a star for the number of a layer.

    Args:
        model_type: What the library calls such a model; one that it has not has a network of ours,
            ``PostNormBert``.
        config: The library's config, besides what all networks have.
        names: The library's names of the file's tensors; several where it has parts of one, the
            rows of which they share evenly.
        head: The same for what makes labels of a vector.
        zero_centered: Whether the library adds 1 to the weights of norms, and so has the converter.
        is_ours: Whether the network is ours.
        without_types: The row of files that have no types of tokens, where it is another.
    """

    model_type: str
    config: Callable[[EncoderFile], dict[str, object]]
    names: Mapping[str, str | tuple[str, ...]]
    head: Mapping[str, str] = field(default_factory=dict)
    zero_centered: bool = False
    is_ours: bool = False
    without_types: GgufEncoder | None = None

    def names_of(self, name: str) -> tuple[str, ...]:
        """The library's names of a tensor, or of its parts; none where it has no place for it."""
        stem, _, kind = name.rpartition(".")
        layer = _LAYER.match(stem)
        starred = stem if layer is None else f"blk.*.{stem[layer.end() :]}"
        found = self.names.get(starred, ())
        each = (found,) if isinstance(found, str) else found
        number = "" if layer is None else layer[1]
        return tuple(f"{own.replace('*', number)}.{kind}" for own in each)


_LAYER = re.compile(r"blk\.(\d{1,6})\.", re.ASCII)
MEAN, CLS, LAST = 1, 2, 3  # llama.cpp's numbers of poolings

_BERT_EMBEDDINGS = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
_BERT_LAYER = "encoder.layer.*"
_DISTIL_BERT_LAYER = "transformer.layer.*"
# It shares BERT's architecture in GGUF. Among the converter's models it alone has no types, and
# its head has a ReLU where that of the others has a tanh.
_DISTIL_BERT = GgufEncoder(
    model_type="distilbert",
    config=_distil_bert,
    names={
        "token_embd": "embeddings.word_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
        "position_embd": "embeddings.position_embeddings",
        "blk.*.attn_qkv": tuple(f"{_DISTIL_BERT_LAYER}.attention.{each}_lin" for each in "qkv"),
        "blk.*.attn_q": f"{_DISTIL_BERT_LAYER}.attention.q_lin",
        "blk.*.attn_k": f"{_DISTIL_BERT_LAYER}.attention.k_lin",
        "blk.*.attn_v": f"{_DISTIL_BERT_LAYER}.attention.v_lin",
        "blk.*.attn_output": f"{_DISTIL_BERT_LAYER}.attention.out_lin",
        "blk.*.attn_output_norm": f"{_DISTIL_BERT_LAYER}.sa_layer_norm",
        "blk.*.ffn_up": f"{_DISTIL_BERT_LAYER}.ffn.lin1",
        "blk.*.ffn_down": f"{_DISTIL_BERT_LAYER}.ffn.lin2",
        "blk.*.layer_output_norm": f"{_DISTIL_BERT_LAYER}.output_layer_norm",
    },
    head={"cls": "pre_classifier", "cls.output": "classifier"},
)
# The library's later networks share these names of a layer that has its norms behind its parts.
_POST_NORM: Mapping[str, str | tuple[str, ...]] = {
    **_BERT_EMBEDDINGS,
    "blk.*.attn_qkv": tuple(f"layers.*.self_attn.{each}_proj" for each in "qkv"),
    "blk.*.attn_q": "layers.*.self_attn.q_proj",
    "blk.*.attn_k": "layers.*.self_attn.k_proj",
    "blk.*.attn_v": "layers.*.self_attn.v_proj",
    "blk.*.attn_output": "layers.*.self_attn.o_proj",
    "blk.*.attn_output_norm": "layers.*.post_attention_layernorm",
    "blk.*.layer_output_norm": "layers.*.post_mlp_layernorm",
}
_GATED = {f"blk.*.ffn_{each}": f"layers.*.mlp.{each}_proj" for each in ("gate", "up", "down")}
# Those of decoders, whose norms are before their parts.
_PRE_NORM = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "blk.*.attn_norm": "layers.*.input_layernorm",
    "blk.*.attn_q": "layers.*.self_attn.q_proj",
    "blk.*.attn_k": "layers.*.self_attn.k_proj",
    "blk.*.attn_v": "layers.*.self_attn.v_proj",
    "blk.*.attn_output": "layers.*.self_attn.o_proj",
    **_GATED,
}

# By `general.architecture`.
ENCODERS: Table[GgufEncoder] = Table(
    "architecture of encoders in GGUF",
    {
        # BERT, RoBERTa and XLM-R. The converter has the positions of all count from 0; then they
        # compute the same, heads included.
        "bert": GgufEncoder(
            model_type="bert",
            config=_bert,
            names={
                **_BERT_EMBEDDINGS,
                "position_embd": "embeddings.position_embeddings",
                "blk.*.attn_qkv": tuple(
                    f"{_BERT_LAYER}.attention.self.{each}" for each in ("query", "key", "value")
                ),
                "blk.*.attn_q": f"{_BERT_LAYER}.attention.self.query",
                "blk.*.attn_k": f"{_BERT_LAYER}.attention.self.key",
                "blk.*.attn_v": f"{_BERT_LAYER}.attention.self.value",
                "blk.*.attn_output": f"{_BERT_LAYER}.attention.output.dense",
                "blk.*.attn_output_norm": f"{_BERT_LAYER}.attention.output.LayerNorm",
                "blk.*.ffn_up": f"{_BERT_LAYER}.intermediate.dense",
                "blk.*.ffn_down": f"{_BERT_LAYER}.output.dense",
                "blk.*.layer_output_norm": f"{_BERT_LAYER}.output.LayerNorm",
            },
            head={"cls": "bert.pooler.dense", "cls.output": "classifier"},
            without_types=_DISTIL_BERT,
        ),
        "nomic-bert": GgufEncoder(
            model_type="nomic_bert",
            config=lambda file: _with_rope(file, 1000.0),
            names={**_POST_NORM, **_GATED},
        ),
        "jina-bert-v3": GgufEncoder(
            model_type="jina_embeddings_v3",
            config=lambda file: _with_rope(file, 20_000.0),
            names={
                **_POST_NORM,
                "blk.*.ffn_up": "layers.*.mlp.fc1",
                "blk.*.ffn_down": "layers.*.mlp.fc2",
            },
        ),
        "nomic-bert-moe": GgufEncoder(
            model_type="nomic_bert_moe",
            config=_nomic_moe,
            names={
                **_POST_NORM,
                **_GATED,
                "blk.*.ffn_gate_inp": "layers.*.mlp.router",
                "blk.*.ffn_up_exps": "layers.*.mlp.up_exps",
                "blk.*.ffn_down_exps": "layers.*.mlp.down_exps",
            },
            is_ours=True,
        ),
        "jina-bert-v2": GgufEncoder(
            model_type="jina_bert",
            config=_bert,
            names={
                **_POST_NORM,
                **_GATED,
                "blk.*.attn_q_norm": "layers.*.self_attn.q_norm",
                "blk.*.attn_k_norm": "layers.*.self_attn.k_norm",
                "blk.*.attn_norm_2": "layers.*.second_layernorm",
            },
            is_ours=True,
        ),
        "gemma-embedding": GgufEncoder(
            model_type="gemma3_text",
            config=_gemma,
            names={
                **_PRE_NORM,
                "blk.*.attn_q_norm": "layers.*.self_attn.q_norm",
                "blk.*.attn_k_norm": "layers.*.self_attn.k_norm",
                "blk.*.post_attention_norm": "layers.*.post_attention_layernorm",
                "blk.*.ffn_norm": "layers.*.pre_feedforward_layernorm",
                "blk.*.post_ffw_norm": "layers.*.post_feedforward_layernorm",
            },
            zero_centered=True,
        ),
        "modern-bert": GgufEncoder(
            model_type="modernbert",
            config=_modern_bert,
            names={
                "token_embd": "embeddings.tok_embeddings",
                "token_embd_norm": "embeddings.norm",
                "output_norm": "final_norm",
                "blk.*.attn_norm": "layers.*.attn_norm",
                "blk.*.attn_qkv": "layers.*.attn.Wqkv",
                "blk.*.attn_output": "layers.*.attn.Wo",
                "blk.*.ffn_norm": "layers.*.mlp_norm",
                "blk.*.ffn_up": "layers.*.mlp.Wi",
                "blk.*.ffn_down": "layers.*.mlp.Wo",
            },
            head={"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"},
        ),
        "eurobert": GgufEncoder(
            model_type="eurobert",
            config=_eurobert,
            names={**_PRE_NORM, "blk.*.ffn_norm": "layers.*.post_attention_layernorm"},
        ),
    },
)
