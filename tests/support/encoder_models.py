"""Small random encoders, with a tokenizer of characters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from blazr.pipelines.encoders.encoder import Encoder
from tests.support.pipelines import load_pipeline
from tests.support.seeds import run_seed

NEEDS_TRANSFORMERS = pytest.mark.skipif(
    find_spec("transformers") is None, reason="the transformers extra is not installed"
)
_MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_SIZES = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
_DECODER = {**_SIZES, "num_key_value_heads": 1, "head_dim": 8}


def _bert(**more: Any) -> Any:
    import transformers

    return transformers.BertConfig(**_SIZES, **more)


def _modern_bert(**more: Any) -> Any:
    import transformers

    return transformers.ModernBertConfig(**_SIZES, local_attention=8, **more)


def _xlm_roberta(**more: Any) -> Any:
    import transformers

    return transformers.XLMRobertaConfig(**_SIZES, type_vocab_size=1, **more)


def _config(name: str, **more: Any) -> Any:
    import transformers

    return getattr(transformers, f"{name}Config")(**_SIZES, **more)


def _qwen3(**more: Any) -> Any:
    import transformers

    return transformers.Qwen3Config(**_DECODER, **more)


def _gemma3(**more: Any) -> Any:
    import transformers

    return transformers.Gemma3TextConfig(
        **_DECODER,
        query_pre_attn_scalar=8,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        use_bidirectional_attention=True,
        **more,
    )


_CONFIGS: Mapping[str, Callable[..., Any]] = {
    "bert": _bert,
    "modernbert": _modern_bert,
    "xlm-roberta": _xlm_roberta,
    "roberta": partial(_config, "Roberta"),
    "distilbert": partial(_config, "DistilBert", hidden_dim=32),
    "nomic_bert": partial(_config, "NomicBert"),
    "jina_embeddings_v3": partial(_config, "JinaEmbeddingsV3"),
    "eurobert": partial(_config, "EuroBert"),
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}


def save_encoder(
    path: Path,
    family: str,
    *,
    pooling: str | None = None,
    tokenizer: object = None,
    **more: object,
) -> None:
    """Save a random encoder.

    Args:
        path: Where to.
        family: A row of `_CONFIGS`.
        pooling: Of sentence-transformers, with two dense layers and length 1 behind it; None saves
            the network alone.
        tokenizer: The library's; None is one of characters.
        more: Of ``config_sentence_transformers.json``.
    """
    import transformers

    torch.manual_seed(run_seed())
    _save(path, transformers.AutoModel.from_config(_CONFIGS[family]()), family, tokenizer)
    if pooling is None:
        return
    kind = "sentence_transformers.models"
    rows = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    rows += [("3_Dense", "Dense"), ("4_Normalize", "Normalize")]
    modules = [{"path": place, "type": f"{kind}.{name}"} for place, name in rows]
    _write(path / "modules.json", modules)
    _write(path / "1_Pooling" / "config.json", {f"pooling_mode_{pooling}": True})
    for place, (width, height) in (("2_Dense", (16, 24)), ("3_Dense", (24, 12))):
        save_dense(path / place, width, height)
    _write(path / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    _write(path / "config_sentence_transformers.json", more)


def load_encoder(path: Path) -> Encoder:
    """A model in a directory or a GGUF file."""
    return load_pipeline(path, Encoder)


def save_dense(path: Path, width: int, height: int) -> None:
    """Save a random dense layer of sentence-transformers."""
    from safetensors.torch import save_file

    _write(
        path / "config.json",
        {
            "in_features": width,
            "out_features": height,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    save_file({"linear.weight": torch.randn(height, width)}, path / "model.safetensors")


def save_classifier(
    path: Path, family: str, *, num_labels: int, tokenizer: object = None, **more: object
) -> None:
    """Save a random classifier, which with one label is a cross-encoder; see `save_encoder`."""
    import transformers

    torch.manual_seed(run_seed())
    names = {place: f"label {place}" for place in range(num_labels)}
    config = _CONFIGS[family](num_labels=num_labels, id2label=names, **more)
    auto = transformers.AutoModelForSequenceClassification
    _save(path, auto.from_config(config), family, tokenizer)


def _save(path: Path, network: Any, family: str, tokenizer: object) -> None:
    with torch.no_grad():
        for parameter in network.parameters():  # so that texts differ
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    network.save_pretrained(path)
    given: Any = tokenizer or _tokenizer(has_types=family == "bert")
    given.save_pretrained(path)


def _tokenizer(*, has_types: bool) -> Any:
    """A tokenizer of ASCII characters that puts texts between marks."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    vocab = {mark: place for place, mark in enumerate(_MARKS)}
    vocab |= {chr(code): len(_MARKS) + code for code in range(32, 126)}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if has_types else [])]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=names,
        model_max_length=64,
    )


def _write(file: Path, value: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))
