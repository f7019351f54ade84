"""A model of a real size that says what a small one says, to measure what drafts of that one gain.

The small one is a Llama of 0.26 million parameters. Its weights stand in the corner of larger
matrices: what is behind them in a layer's input has no effect, and is computed all the same.
Further layers add nothing. So drafts of the small model are kept as often as can be.

Run: python -m benchmarks.widened FOLDER [--hidden 896] [--intermediate 4864] [--layers 24]
     python -m benchmarks.speculation FOLDER --spec draft:tests/golden/stories260k
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "tests/golden"
SMALL = GOLDEN / "stories260k"
TOKENIZER = GOLDEN / "tokenizers/stories260k"


def widen(weight: Tensor, rows: int, columns: int, *, fills_rows: bool) -> Tensor:
    """A matrix with another in its corner.

    Args:
        weight: The other, (R, C).
        rows: At least R.
        columns: At least C.
        fills_rows: Whether rows behind R have some effect, as nobody looks at their outputs; or
            else those outputs are zero.
    """
    wide = torch.zeros(rows, columns)
    if fills_rows:
        torch.nn.init.normal_(wide[weight.shape[0] :], 0.0, 0.02)
    wide[: weight.shape[0], : weight.shape[1]] = weight
    return wide


def widened(config: dict[str, int], small: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model of these sizes, from those of the small one."""
    hidden, inner, head = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    queries, keys = (head * config[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    own = small["model.norm.weight"].shape[0]
    sizes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    # the mean square is that of more numbers, the further ones of which are zero
    norms = math.sqrt(own / hidden)

    def norm(name: str) -> Tensor:
        wide = torch.zeros(hidden)
        wide[:own] = small[name] * norms if name in small else 0
        return wide

    vocab_size = config["vocab_size"]
    embedding = small["model.embed_tokens.weight"]
    found = {
        "model.embed_tokens.weight": widen(embedding, vocab_size, hidden, fills_rows=False),
        "model.norm.weight": norm("model.norm.weight"),
    }
    nothing = torch.zeros(0, 0)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for kind in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{kind}.weight"] = norm(f"{prefix}{kind}.weight")
        for kind, (rows, columns) in sizes.items():
            name = f"{prefix}{kind}.weight"
            fills = not kind.endswith(("o_proj", "down_proj"))
            found[name] = widen(small.get(name, nothing), rows, columns, fills_rows=fills)
    return found


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--intermediate", type=int, default=4864)
    parser.add_argument("--layers", type=int, default=24)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = json.loads((SMALL / "config.json").read_text("utf-8"))
    own, heads = config["hidden_size"], args.hidden // config["head_dim"]
    config |= {
        "hidden_size": args.hidden,
        "intermediate_size": args.intermediate,
        "num_hidden_layers": args.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "rms_norm_eps": config["rms_norm_eps"] * own / args.hidden,
        "torch_dtype": "bfloat16",
    }
    shutil.copytree(TOKENIZER, args.folder, dirs_exist_ok=True)
    (args.folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    weights = widened(config, load_file(SMALL / "model.safetensors"))
    save_file({k: v.bfloat16() for k, v in weights.items()}, args.folder / "model.safetensors")


if __name__ == "__main__":
    main()
