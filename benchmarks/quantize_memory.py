"""How much memory quantizing at load takes: the peak beside what the result takes.

Run: python benchmarks/quantize_memory.py [--gigabytes 1] [--quantize q4_0]

The law: never more than 1.2 times the result and 300 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

PROGRAM = """
import json, re, sys
from pathlib import Path
import torch
from blazr.models.loading.load import load
from blazr.nn.device import resolve_device
from blazr.nn.quant.weight import stored_weights
def peak():  # of this program; resource.getrusage counts its parent's too
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
before = peak()
model = load(sys.argv[1], device=resolve_device("cpu"), quantize=sys.argv[2]).module
result = sum(each.nbytes for each in stored_weights(model))
print(json.dumps({"peak": peak() - before, "result": result}))
"""
HIDDEN, INNER, VOCAB = 2048, 5632, 32000
MEGABYTE = 10**6
ALLOWED_FACTOR, ALLOWED_BYTES = 1.2, 300 * MEGABYTE


def write_llama(directory: Path, num_bytes: int) -> int:
    """A Llama of about so many bytes in bfloat16; how many it became."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    norms = ("input_layernorm.weight", "post_attention_layernorm.weight")
    layer: dict[str, tuple[int, ...]] = dict.fromkeys(norms, (HIDDEN,))
    layer |= {f"self_attn.{p}_proj.weight": (HIDDEN, HIDDEN) for p in "qkvo"}
    layer |= {f"mlp.{p}_proj.weight": (INNER, HIDDEN) for p in ("gate", "up")}
    layer["mlp.down_proj.weight"] = (HIDDEN, INNER)
    own = 2 * sum(torch.Size(shape).numel() for shape in layer.values())
    rest = 2 * sum(torch.Size(shape).numel() for shape in shapes.values())
    count = max(1, round((num_bytes - rest) / own))
    for index in range(count):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    noise = torch.randn(INNER * HIDDEN).bfloat16()
    tensors = {
        name: noise[torch.arange(torch.Size(shape).numel()) % len(noise)].view(shape)
        for name, shape in shapes.items()
    }
    save_file(tensors, directory / "model.safetensors")
    config = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": count, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": VOCAB, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return (directory / "model.safetensors").stat().st_size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--quantize", default="q4_0")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        size = write_llama(Path(directory), int(args.gigabytes * 1e9))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, directory, args.quantize],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    found = json.loads(done.stdout)
    allowed = ALLOWED_FACTOR * found["result"] + ALLOWED_BYTES
    print(f"checkpoint {size / 1e9:.2f} GB, {args.quantize}: result {found['result'] / 1e9:.3f} GB")
    print(f"peak {found['peak'] / 1e9:.3f} GB, allowed {allowed / 1e9:.3f} GB")
    return int(found["peak"] > allowed)


if __name__ == "__main__":
    sys.exit(main())
