"""Record `converted/`: what llama.cpp's converter makes of tiny models of transformers.

Run: PYTHONPATH=src:. python tests/golden/gguf/record.py LLAMA_CPP

LLAMA_CPP is a checkout, or `vendor/llama.cpp` of llama-cpp-python's source package. The vocabulary
is left out, as the converter knows released ones only. Weights are multiples of 1/32, so that the
files can be compressed.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support.converted import MODELS, Changes
from tests.support.hybrids import classic_layers
from tests.support.networks import VOCAB
from tests.support.references import CASES, reference_logits, rewrite_config, save_reference

HERE = Path(__file__).resolve().parent / "converted"
TOKENS = [3 + (7 * index) % 41 for index in range(50)]
KEPT = 2  # rows of logits, the last ones
STEP = 32

# What files of releases say and those of this version of transformers do not.
SAID: dict[str, Changes] = {
    "mistral3": {"architectures": ["Mistral3ForConditionalGeneration"]},
    "deepseek2-v3": {"scoring_func": "sigmoid"},
    "granitehybrid-bamba": {"attn_rotary_emb": 4},
    "kimi-linear": {
        "first_k_dense_replace": 1,
        "moe_router_activation_func": "sigmoid",
        "mlp_layer_types": None,
    },
}


def _spelled(directory: Path, name: str) -> None:
    """The config as the converter expects it."""
    written = json.loads((directory / "config.json").read_text())
    classic = {} if name.startswith("qwen3") else classic_layers(written)
    classic.pop("num_hidden_layers", None)
    rewrite_config(directory, **classic, **SAID.get(name, {}))
    if name == "kimi-linear":  # whose dense layers this version writes under another name
        path = directory / "model.safetensors"
        tensors = {
            re.sub(r"block_sparse_moe\.(?=(gate|up|down)_proj)", "mlp.", key): tensor
            for key, tensor in load_file(path).items()
        }
        save_file(tensors, path, {"format": "pt"})
    vocabulary = {"model": {"vocab": {str(i): i for i in range(VOCAB)}}, "added_tokens": []}
    (directory / "tokenizer.json").write_text(json.dumps(vocabulary))


def _convert(directory: Path, path: Path) -> None:
    import gguf  # llama.cpp's own
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(directory, False)
    kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    kind = getattr(kind, "Ministral3Model", kind)  # inside a class that only chooses
    without = {
        "model_arch": kind.model_arch,
        "no_mtp": True,
        "set_vocab": lambda self: self.gguf_writer.add_tokenizer_model("none"),
    }
    converter = type(kind.__name__, (kind,), without)
    with torch.inference_mode():
        converter(directory, gguf.LlamaFileType.ALL_F32, path, model_name="tiny").write()


def record(name: str) -> list[list[float]]:
    """Write one file; the last rows of its model's logits."""
    case, changes = MODELS[name]
    kind, settings = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        theirs = save_reference(kind, directory, seed=7, changes=settings | changes)
        for tensor in theirs.parameters():
            tensor.mul_(STEP).round_().div_(STEP)
        theirs.save_pretrained(directory)
        logits = reference_logits(theirs, TOKENS)
        _spelled(directory, name)
        path = directory / "model.gguf"
        _convert(directory, path)
        (HERE / f"{name}.gguf.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
    return [[round(value, 6) for value in row] for row in logits[-KEPT:].tolist()]


def main() -> None:
    """Record all."""
    root = Path(sys.argv[1])
    sys.path[:0] = [str(root), str(root / "gguf-py")]
    HERE.mkdir(exist_ok=True)
    logits = {name: record(name) for name in MODELS}
    lines = [f'"{name}": {json.dumps(rows)}' for name, rows in logits.items()]
    text = f'{{"tokens": {TOKENS},\n"logits": {{\n' + ",\n".join(lines) + "\n}}\n"
    (HERE / "expected.json").write_text(text)


if __name__ == "__main__":
    main()
