"""Encoders as GGUF files: llama.cpp's names by the ``gguf`` package, and tiny vocabularies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support import ggufs
from tests.support.encoder_models import save_classifier, save_encoder

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SPACE = "▁"
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5
_VOCAB_SIZE = 300
_OF_DISTIL_BERT = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}
POOLINGS = {"mean_tokens": 1, "cls_token": 2, "lasttoken": 3}


class Vocabulary(NamedTuple):
    """A tokenizer twice: the library's, and as the metadata of a GGUF file."""

    tokenizer: Any
    metadata: Mapping[str, object]


def _metadata(kind: str, tokens: list[str], controls: int, **more: object) -> dict[str, object]:
    """Metadata with tokens for all rows of the embedding, as the converter writes them."""
    unused = [f"[PAD{place}]" for place in range(len(tokens), _VOCAB_SIZE)]
    types = [_CONTROL] * controls + [_NORMAL] * (len(tokens) - controls) + [_UNUSED] * len(unused)
    found: dict[str, object] = {"model": kind, "tokens": tokens + unused, "token_type": types}
    return {f"tokenizer.ggml.{key}": each for key, each in (found | more).items()}


def _wrap(raw: Any, first: str, last: str, between: str, **more: Any) -> Any:
    import transformers
    from tokenizers import processors

    raw.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {between} $B:1 {last}:1",
        special_tokens=[(each, raw.token_to_id(each)) for each in (first, last)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, cls_token=first, sep_token=last, model_max_length=64, **more
    )


def word_pieces(*, has_types: bool = True) -> Vocabulary:
    """BERT's, and without types of tokens DistilBERT's."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    own = [*marks, *_LETTERS, *(f"##{each}" for each in _LETTERS), "the", "##own", ".", "'"]
    raw = Tokenizer(models.WordPiece({text: i for i, text in enumerate(own)}, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    phantom = [*marks, *(each[2:] if each.startswith("##") else _SPACE + each for each in own[4:])]
    metadata = _metadata(
        "bert",
        phantom,
        len(marks),
        bos_token_id=2,
        eos_token_id=3,
        seperator_token_id=3,
        unknown_token_id=1,
        padding_token_id=0,
    )
    inputs = ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"]
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_input_names": inputs}
    return Vocabulary(_wrap(raw, "[CLS]", "[SEP]", "[SEP]", **named), metadata)


def unigrams() -> Vocabulary:
    """XLM-R's."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    marks = ["<pad>", "<s>", "</s>", "<unk>"]
    pieces = [*_LETTERS, _SPACE, ".", "'", f"{_SPACE}the", "own", f"{_SPACE}ca"]
    scores = [0.0] * 4 + [-5.0 - i / 8 for i in range(len(pieces) - 3)] + [-3.0, -3.5, -4.0]
    raw = Tokenizer(models.Unigram(list(zip(marks + pieces, scores, strict=True)), unk_id=3))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    metadata = _metadata(
        "t5",
        marks + pieces,
        len(marks),
        scores=scores + [-10_000.0] * (_VOCAB_SIZE - len(scores)),
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=3,
        padding_token_id=0,
        add_bos_token=True,
        add_eos_token=True,
        add_space_prefix=True,
        remove_extra_whitespaces=True,
    )
    metadata["tokenizer.ggml.token_type"][3] = _UNKNOWN  # type: ignore[index]
    named = {"pad_token": "<pad>", "unk_token": "<unk>"}
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    return Vocabulary(_wrap(raw, "<s>", "</s>", "</s> </s>", **named, **inputs), metadata)


def byte_pairs(first: str, last: str, between: str) -> Vocabulary:
    """Those of RoBERTa, ModernBERT and EuroBERT, with what is around texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "w"), ("ow", "n")]
    own = ["[PAD]", first, last, *alphabet, *map("".join, merges)]
    raw = Tokenizer(models.BPE({text: i for i, text in enumerate(own)}, merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    metadata = _metadata(
        "gpt2",
        own,
        3,
        pre="gpt-2",
        merges=[" ".join(each) for each in merges],
        bos_token_id=1,
        eos_token_id=2,
        padding_token_id=0,
        add_bos_token=True,
        add_eos_token=True,
    )
    inputs = {"model_input_names": ["input_ids", "attention_mask"], "pad_token": "[PAD]"}
    return Vocabulary(_wrap(raw, first, last, between, **inputs), metadata)


def sentence_pieces() -> Vocabulary:
    """Gemma's."""
    from tokenizers import Tokenizer, models, normalizers

    marks = ["<pad>", "<eos>", "<bos>", "<unk>"]
    merges = [("t", "h"), ("th", "e"), (_SPACE, "the"), ("o", "w"), ("ow", "n")]
    own = [*marks, *_LETTERS, _SPACE, ".", "'", *map("".join, merges)]
    vocabulary = {text: i for i, text in enumerate(own)}
    raw = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True))
    raw.normalizer = normalizers.Replace(" ", _SPACE)
    metadata = _metadata(
        "llama",
        own,
        len(marks),
        scores=[-1.0 * i for i in range(_VOCAB_SIZE)],
        bos_token_id=2,
        eos_token_id=1,
        unknown_token_id=3,
        padding_token_id=0,
        add_bos_token=True,
        add_eos_token=True,
        add_space_prefix=False,
    )
    named = {"pad_token": "<pad>", "unk_token": "<unk>"}
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    return Vocabulary(_wrap(raw, "<bos>", "<eos>", "<eos> <eos>", **named, **inputs), metadata)


def tensors_of(directory: Path, architecture: str) -> dict[str, Tensor]:
    """A model's tensors under llama.cpp's names, laid out as its converter says."""
    import gguf

    kind = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, 8)
    config = json.loads((directory / "config.json").read_text())
    found = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        plain = name
        for prefix in ("bert.", "distilbert.", "roberta.", "model."):
            plain = plain.removeprefix(prefix)
        if plain.startswith("pooler."):  # which the converter leaves out
            continue
        if plain == "classifier.weight" or plain == "classifier.bias":
            plain = plain.replace("classifier", "classifier.out_proj")
        tries = (
            names.get_name(p, try_suffixes=(".weight", ".bias")) for p in (plain, f"model.{plain}")
        )
        theirs = next((each for each in tries if each is not None), None)
        assert theirs is not None, name
        if theirs == "position_embd.weight" and config["model_type"] in {"roberta", "xlm-roberta"}:
            tensor = tensor[config["pad_token_id"] + 1 :]  # noqa: PLW2901
        if architecture == "gemma-embedding" and theirs.endswith("norm.weight"):
            tensor = tensor + 1  # noqa: PLW2901
        found[theirs] = tensor.contiguous()
    for place, folder in enumerate(("2_Dense", "3_Dense"), 2):
        file = directory / folder / "model.safetensors"
        if file.is_file():
            found[f"dense_{place}.weight"] = load_file(file)["linear.weight"]
    return found


def metadata_of(directory: Path, architecture: str, pooling: str | None) -> dict[str, object]:
    """What llama.cpp's converter says of a model's config."""
    import gguf

    keys = gguf.Keys
    config = json.loads((directory / "config.json").read_text())
    for name, theirs in _OF_DISTIL_BERT.items():
        config.setdefault(name, config.get(theirs))
    heads = config["num_attention_heads"]
    shifted = config["model_type"] in {"roberta", "xlm-roberta"}
    longest = config["max_position_embeddings"] - shifted * (config["pad_token_id"] + 1)
    found: dict[str, object] = {
        keys.LLM.BLOCK_COUNT: config["num_hidden_layers"],
        keys.LLM.CONTEXT_LENGTH: longest,
        keys.LLM.EMBEDDING_LENGTH: config["hidden_size"],
        keys.LLM.FEED_FORWARD_LENGTH: config["intermediate_size"],
        keys.Attention.HEAD_COUNT: heads,
        keys.Attention.HEAD_COUNT_KV: config.get("num_key_value_heads") or heads,
        keys.Attention.KEY_LENGTH: config.get("head_dim") or config["hidden_size"] // heads,
        keys.Attention.CAUSAL: False,
    }
    for theirs, key in (
        ("layer_norm_eps", keys.Attention.LAYERNORM_EPS),
        ("norm_eps", keys.Attention.LAYERNORM_EPS),
        ("rms_norm_eps", keys.Attention.LAYERNORM_RMS_EPS),
        ("local_attention", keys.Attention.SLIDING_WINDOW),
        ("sliding_window", keys.Attention.SLIDING_WINDOW),
    ):
        if config.get(theirs) is not None:
            found[key] = config[theirs]
    if types := config.get("layer_types"):
        slides = [int(each == "sliding_attention") for each in types]
        found[keys.Attention.SLIDING_WINDOW_PATTERN] = slides
    rope = config.get("rope_parameters") or {}
    if whole := rope.get("full_attention", rope).get("rope_theta"):
        found[keys.Rope.FREQ_BASE] = float(whole)
    if rope.get("sliding_attention"):
        found[keys.Rope.FREQ_BASE_SWA] = float(rope["sliding_attention"]["rope_theta"])
    if pooling is not None:
        found[keys.LLM.POOLING_TYPE] = POOLINGS[pooling]
    own = {key.format(arch=architecture): value for key, value in found.items()}
    return {"general.architecture": architecture, **own}


def quantized(tensor: Tensor, name: str) -> ggufs.Blocks:
    """A matrix in blocks, by the ``gguf`` package."""
    import gguf

    kind = gguf.GGMLQuantizationType[name]
    blocks = torch.from_numpy(gguf.quantize(tensor.numpy(), kind))
    return int(kind), tuple(tensor.shape), blocks


VOCABULARIES: Mapping[str, Callable[[], Vocabulary]] = {
    "word pieces": word_pieces,
    "word pieces without types": lambda: word_pieces(has_types=False),
    "unigrams": unigrams,
    "RoBERTa": lambda: byte_pairs("<s>", "</s>", "</s> </s>"),
    "ModernBERT": lambda: byte_pairs("[CLS]", "[SEP]", "[SEP]"),
    "sentence pieces": sentence_pieces,
}


@dataclass(frozen=True)
class Model:
    """A model as a folder, and as the parts of a GGUF file."""

    architecture: str
    folder: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, object]

    def write(
        self,
        path: Path,
        tensors: Mapping[str, Tensor | ggufs.Blocks] | None = None,
        **more: object,
    ) -> Path:
        """The file, with other tensors, and other values of keys; None leaves one out."""
        metadata = dict(self.metadata)
        for key, value in more.items():
            name = key if key.startswith("tokenizer.") else f"{self.architecture}.{key}"
            metadata.pop(name, None)
            if value is not None:
                metadata[name] = value
        return ggufs.write(path, self.tensors if tensors is None else tensors, metadata)


def save_embedding_model(
    folder: Path, architecture: str, family: str, pooling: str, vocabulary: str
) -> Model:
    """A random model that makes vectors.

    Args:
        folder: Where to save it as a folder.
        architecture: What GGUF calls it.
        family: What the library calls it.
        pooling: Of sentence-transformers.
        vocabulary: A row of `VOCABULARIES`.
    """
    tokens = VOCABULARIES[vocabulary]()
    save_encoder(folder, family, pooling=pooling, tokenizer=tokens.tokenizer)
    metadata = {**metadata_of(folder, architecture, pooling), **tokens.metadata}
    return Model(architecture, folder, tensors_of(folder, architecture), metadata)


def save_ranking_model(
    folder: Path,
    architecture: str,
    family: str,
    vocabulary: str,
    *,
    num_labels: int = 1,
    **more: object,
) -> Model:
    """A random model that labels texts, and with one label ranks them; see the function above."""
    tokens = VOCABULARIES[vocabulary]()
    save_classifier(folder, family, num_labels=num_labels, tokenizer=tokens.tokenizer, **more)
    metadata = {**metadata_of(folder, architecture, None), **tokens.metadata}
    names = [f"label {place}" for place in range(num_labels)]
    metadata[f"{architecture}.classifier.output_labels"] = names
    return Model(architecture, folder, tensors_of(folder, architecture), metadata)
