"""GGUF files: the header by ``core.gguf_header``, and where each tensor's bytes are.

Ollama's own converter has other names and keys. They are replaced by llama.cpp's when a header is
read, so that no other module needs to know both.

Source: GitHub ollama/ollama, ``convert/convert_*.go`` (what is written; rows name their file),
``model/models/*/model.go`` and ``ml/backend/ggml/ggml.go`` (what it means).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from struct import calcsize
from typing import NamedTuple

from blazr.core.errors import CheckpointError
from blazr.core.files import open_regular
from blazr.core.gguf_header import (
    ARCHITECTURE_KEY,
    GgufHeader,
    TensorEntry,
    Value,
    read_gguf_header,
)
from blazr.models.checkpoint.base import (
    ELEMENT_TYPES,
    Checkpoint,
    Header,
    NumberInfo,
    RelaidInfo,
    ScaledInfo,
    TensorInfo,
    check_ranges,
    unsound,
)
from blazr.nn.operands.packing import BlockType
from blazr.nn.quant.gguf import GGML_TYPES

# The type of Ollama's first files with MXFP4 (fs/ggml/type.go): neighbours share a byte, as in
# Hugging Face's.
_MXFP4_IN_PAIRS = 4
# Beside GGML_TYPES: llama.cpp's numbers for types that are read as they are.
_OTHERS = {"I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28}
_TYPES = {
    **{row.number: row for row in GGML_TYPES.values()},
    **{
        number: BlockType(name, number, 1, ELEMENT_TYPES[name][0], "")
        for name, number in _OTHERS.items()
    },
    _MXFP4_IN_PAIRS: GGML_TYPES["MXFP4"],
}

# Parameters of layers that files of these architectures have in arrays of their metadata, or as one
# number for all, with the shapes that Hugging Face's files have: those of Apertus's activation.
NUMBERS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "apertus": {"xielu.alpha_p": (1,), "xielu.alpha_n": (1,), "xielu.beta": (), "xielu.eps": ()}
}
_FLOATS = {"f": "F32", "d": "F64"}

_PART = re.compile(r"(blk\.\d+\.)(\w+\.?)(.*)", re.ASCII)
_PRE_TOKENIZER = "tokenizer.ggml.pre"
# What Ollama writes there of a pre-tokenizer that it does not recognise, or takes for Llama 3's.
_UNRECOGNISED = ("", "default", "llama-bpe")


class OllamaDialect(NamedTuple):
    """How Ollama's files of one architecture differ.

    Args:
        architecture: What llama.cpp calls it.
        pre_tokenizer: llama.cpp's name for its pre-tokenizer, where the file does not tell it.
        defaults: Values of keys that are left out.
        keys: Keys, and those by which llama.cpp means the same.
    """

    architecture: str
    pre_tokenizer: str = ""
    defaults: Mapping[str, Value] = {}
    keys: Mapping[str, str] = {}


# Under these keys Ollama has the sizes of one head, and llama.cpp those of the latent vector.
_HEAD_SIZE_KEYS = {
    f"attention.{each}_length": f"attention.{each}_length_mla" for each in ("key", "value")
}
OLLAMA_DIALECTS: Mapping[str, OllamaDialect] = {
    # convert_gptoss.go
    "gptoss": OllamaDialect("gpt-oss", "gpt-4o", {"rope.scaling.type": "yarn"}),
    "olmo3": OllamaDialect("olmo2", "dbrx"),  # convert_olmo.go
    # convert_glm4moelite.go
    "glm4moelite": OllamaDialect("deepseek2", "glm4", keys=_HEAD_SIZE_KEYS),
    "nemotron_h_omni": OllamaDialect("nemotron_h_moe"),  # convert_nemotron_h.go: it sees and hears
    "mistral3": OllamaDialect("mistral3", "tekken"),  # convert_mistral.go
    "lfm2": OllamaDialect("lfm2", "lfm2"),  # convert_lfm2.go
    "lfm2moe": OllamaDialect("lfm2moe", "lfm2"),
}
# model/models/gemma3/embed.go: what a file is that says how it pools
_POOLING_DIALECTS = {"gemma3": OllamaDialect("gemma-embedding")}
# convert_gptoss.go, convert_nemotron_h.go, convert_qwen3next.go: whole names, or up to the dot
_OLLAMA_TENSORS = {
    "gptoss ffn_norm.": "post_attention_norm.",
    "attn_out.": "attn_output.",
    "attn_sinks": "attn_sinks.weight",
    "dense.0.weight": "dense_2.weight",
    "dense.1.weight": "dense_3.weight",
    "exp_probs_b": "exp_probs_b.bias",
    "ffn_latent_in.": "ffn_latent_down.",
    "ffn_latent_out.": "ffn_latent_up.",
    "ssm_dt": "ssm_dt.bias",
}
# convert_gemma3.go, convert_mistral_causal.go, convert_qwen3.go
_OLLAMA_KEYS = {
    "norm_top_k_prob": "expert_weights_norm",
    "rope.global.freq_base": "rope.freq_base",
    "rope.local.freq_base": "rope.freq_base_swa",
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "rope.scaling_beta": "attention.temperature_scale",
}


def type_numbers() -> dict[str, int]:
    """The numbers that stand for types in files, by their names."""
    return {row.name: row.number for row in _TYPES.values()}


def read_header(path: Path) -> Header:
    """The tensors and the metadata of a file, in the words of llama.cpp.

    Raises:
        CheckpointError: The file cannot be read or is not sound.
    """
    with open_regular(path) as file:
        try:
            header = read_gguf_header(file)
        except CheckpointError as error:
            raise CheckpointError(
                f"{path}: {error.message}",
                found=error.found,
                expected=error.expected,
                hint=error.hint,
            ) from None
    tensors = {entry.name: _tensor_info(path, entry, header) for entry in header.tensors}
    check_ranges(path, tensors, header.size)
    tensors |= {info.name: info for info in _numbers(path, header)}
    return as_llama_cpp(Header(tensors, header.metadata))


def number_name(layer: int | str, key: str) -> str:
    """What a parameter is called that lies among the metadata; files do not name it.

    Args:
        layer: Its layer.
        key: Of the array that it is in.
    """
    return f"blk.{layer}.{key}"


def _numbers(path: Path, header: GgufHeader) -> Iterator[NumberInfo]:
    """The parameters that lie among the metadata.

    Raises:
        CheckpointError: There are more of them than there could be layers.
    """
    architecture = str(header.metadata.get(ARCHITECTURE_KEY))
    num_layers = header.metadata.get(f"{architecture}.block_count")
    for key, shape in NUMBERS.get(architecture, {}).items():
        values = header.metadata.get(key)
        first = header.places.get(key, 0)
        if isinstance(values, float) and first and isinstance(num_layers, int):
            letter, count, step = "f", num_layers, 0
        elif isinstance(values, memoryview) and values.format in _FLOATS:
            letter, count, step = values.format, len(values), values.itemsize
        else:
            continue  # the plan says what is missing
        if count > len(header.tensors):
            raise unsound(
                f"{path}: the metadata's {key!r} does not fit the file.",
                found=f"{count:,} numbers, {len(header.tensors):,} tensors",
                expected="one number a layer",
            )
        for layer in range(count):
            start = first + layer * step
            place = (shape, path, start, start + calcsize(f"<{letter}"))
            yield NumberInfo(number_name(layer, key), _FLOATS[letter], *place, key)


def check_parts(headers: Mapping[Path, Header]) -> None:
    """Refuse files that say that they are parts of a model and are not all of them, in order.

    A missing part may go unnoticed otherwise: in the place of its output head the embedding would
    be taken.

    Args:
        headers: By file, in order.

    Raises:
        CheckpointError: A file is a part, and another is missing or in its place.
    """
    for place, (file, header) in enumerate(headers.items()):
        count, number = (header.metadata.get(f"split.{key}") for key in ("count", "no"))
        # a file that parts were merged into says that it has none
        if not isinstance(count, int) or count < 2 or (count, number) == (len(headers), place):
            continue
        part = f"part {number + 1} of {count}" if isinstance(number, int) else f"one of {count}"
        raise CheckpointError(
            f"{file} is {part} of a model, and not read as that.",
            found=f"file {place + 1} of {len(headers)}",
            expected="all parts, under the names that they were made with:"
            f" ...-00001-of-{count:05}.gguf and so on",
            hint="download all parts again, and do not rename them",
        )


def join_scales(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the factors of NVFP4 matrices as parts of these.

    Beside ``x.weight`` there may be ``x.scale``, which its numbers are multiplied with, and
    ``x.input_scale``, which only activations of four bits need.

    Raises:
        CheckpointError: A factor does not fit its matrix.
    """
    tensors = dict(checkpoint.tensors)
    for name, info in checkpoint.tensors.items():
        base, _, kind = name.rpartition(".")
        weight = checkpoint.tensors.get(f"{base}.weight")
        if kind not in {"scale", "input_scale"} or weight is None or weight.dtype != "NVFP4":
            continue  # Gemma 4 has scales of another kind beside other blocks
        del tensors[name]
        if kind == "input_scale":
            continue
        count, allowed = prod(info.shape), {1, prod(weight.shape[:-2])}
        if info.is_packed or len(weight.shape) < 2 or count not in allowed:
            raise unsound(
                f"{info.file}: tensor {name[:100]!r} does not fit the matrix that it scales.",
                found=f"{count:,} of {info.dtype}",
                expected=" or ".join(f"{each:,}" for each in sorted(allowed)),
            )
        place = (weight.shape, weight.file, weight.start, weight.end)
        tensors[weight.name] = ScaledInfo(weight.name, weight.dtype, *place, scales=info)
    return replace(checkpoint, tensors=tensors)


def _tensor_info(path: Path, entry: TensorEntry, header: GgufHeader) -> TensorInfo:
    """One entry of the header, checked on its own."""
    label = f"{path}: tensor {entry.name[:100]!r}"
    if entry.offset % header.alignment:
        raise unsound(
            f"{label} is not aligned.",
            found=f"offset {entry.offset:,}",
            expected=f"a multiple of {header.alignment}",
        )
    row = _TYPES.get(entry.type_number)
    if row is None:
        raise CheckpointError(
            f"{label} is of a type that blazr does not know.",
            found=f"GGML type {entry.type_number}",
            expected=", ".join(GGML_TYPES),
            hint="take the same model in another quantization",
        )
    columns = entry.shape[-1] if entry.shape else 1
    if columns % row.length:
        raise unsound(
            f"{label} does not consist of whole blocks.",
            found=f"rows of {columns:,}",
            expected=f"a multiple of {row.length} for {row.name}",
        )
    start = header.data_start + entry.offset
    end = start + prod(entry.shape) // row.length * row.nbytes
    info = TensorInfo(entry.name, row.name, entry.shape, path, start, end)
    if entry.type_number != _MXFP4_IN_PAIRS:
        return info
    return RelaidInfo(entry.name, row.name, entry.shape, path, start, end, info, in_pairs=True)


def as_llama_cpp(header: Header) -> Header:
    """A header in the words of llama.cpp's converter; its own come back as they are."""
    name = header.metadata.get(ARCHITECTURE_KEY)
    if not isinstance(name, str):
        return header
    dialect = OLLAMA_DIALECTS.get(name, OllamaDialect(name))
    if f"{name}.pooling_type" in header.metadata:
        dialect = _POOLING_DIALECTS.get(name, dialect)
    tensors = {
        info.name: info
        for stored in header.tensors.values()
        for info in _tensors_of_ollama(stored, name, header.tensors)
    }
    begin = f"{name}."
    ours = dialect.architecture
    own = {
        key.removeprefix(begin): value
        for key, value in header.metadata.items()
        if key.startswith(begin)
    }
    metadata = {k: value for k, value in header.metadata.items() if not k.startswith(begin)}
    metadata[ARCHITECTURE_KEY] = ours
    if dialect.pre_tokenizer and metadata.get(_PRE_TOKENIZER, "") in _UNRECOGNISED:
        metadata[_PRE_TOKENIZER] = dialect.pre_tokenizer
    keys = {**dialect.defaults, **_keys_of_ollama(own, _OLLAMA_KEYS), **own}
    keys |= _keys_of_ollama(own, dialect.keys)
    return Header(tensors, metadata | {f"{ours}.{key}": value for key, value in keys.items()})


def _tensors_of_ollama(
    stored: TensorInfo, name: str, present: Mapping[str, TensorInfo]
) -> list[TensorInfo]:
    """A tensor under llama.cpp's name, or two that it consists of.

    It keeps its own name where the file has another by llama.cpp's; the plan then complains.
    """
    found = _PART.fullmatch(stored.name)
    at, part, end = found.groups() if found else ("", stored.name, "")
    part = _OLLAMA_TENSORS.get(f"{name} {part}", _OLLAMA_TENSORS.get(part, part))
    made: list[TensorInfo] = [replace(stored, name=at + part + end)]
    can_split = len(stored.shape) > 1 + stored.is_packed and stored.shape[1] % 2 == 0
    if name == "gptoss" and part == "ffn_gate_up_exps." and can_split:
        # the first releases have rows of gate and up in turns
        size, rows, *more = stored.shape
        base = stored.stored if isinstance(stored, RelaidInfo) else stored
        shape = (size, rows // 2, *more)
        half = stored.nbytes // 2
        made = [
            RelaidInfo(
                name=f"{at}ffn_{each}_exps.{end}",
                dtype=stored.dtype,
                shape=shape,
                file=stored.file,
                start=stored.start + first * half,
                end=stored.start + (first + 1) * half,
                stored=base,
                first=first,
                step=2,
                in_pairs=base is not stored,
            )
            for first, each in enumerate(("gate", "up"))
        ]
    return [stored] if any(each.name in present for each in made) else made


def _keys_of_ollama(own: Mapping[str, Value], keys: Mapping[str, str]) -> dict[str, Value]:
    """Values under llama.cpp's keys, without zeros: by these Ollama says that there is nothing."""
    return {keys[key]: own[key] for key in keys if own.get(key) or own.get(key) is False}
