"""Record `converted/`: what llama.cpp's converter makes of tiny models of transformers.

Run: PYTHONPATH=src:. python tests/golden/gguf/record.py LLAMA_CPP [NAME ...]

LLAMA_CPP is a checkout, or `vendor/llama.cpp` of llama-cpp-python's source package. The models that
are named are recorded, or else all. The vocabulary is left out, as the converter knows released
ones only. Weights are multiples of 1/32, so that the files can be compressed.
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

from tests.support.converted import MODELS, READ, Changes
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
    "deepseek2-sarvam": {"scoring_func": "sigmoid"},
    "glm4moe-solar": {"partial_rotary_factor": 1.0, "scoring_func": "sigmoid"},
    "granitehybrid-bamba": {"attn_rotary_emb": 4},
    "kimi-linear": {
        "first_k_dense_replace": 1,
        "moe_router_activation_func": "sigmoid",
        "mlp_layer_types": None,
    },
    "phimoe": {
        "architectures": ["PhiMoEForCausalLM"],
        "original_max_position_embeddings": 512,
    },
    "mistral4": {"architectures": ["Mistral3ForConditionalGeneration"]},
    "granite_swa-still": {"no_rope_layers": [0, 1, 1]},
    "mimo2": {
        "hybrid_layer_pattern": [0, 1, 0],
        "swa_head_dim": 12,
        "swa_v_head_dim": 10,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "num_key_value_heads": 1,
        "layernorm_epsilon": 1e-5,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "swa_rope_theta": 10_000.0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5_000_000.0,
            "partial_rotary_factor": 0.334,
        },
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
    own = "Mistral4Model" if hparams.get("model_type") == "mistral4" else "Ministral3Model"
    kind = getattr(kind, own, kind)  # inside a class that only chooses
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
    case, changes = (MODELS | READ)[name]
    kind, settings = CASES.get(case, (case, {}))
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
    path = HERE / "expected.json"
    known = json.loads(path.read_text())["logits"] if sys.argv[2:] else {}
    names = [*MODELS, *READ]
    logits = known | {name: record(name) for name in sys.argv[2:] or names}
    logits = {name: logits[name] for name in names}
    lines = [f'"{name}": {json.dumps(rows)}' for name, rows in logits.items()]
    text = f'{{"tokens": {TOKENS},\n"logits": {{\n' + ",\n".join(lines) + "\n}}\n"
    path.write_text(text)


if __name__ == "__main__":
    main()
