"""A GGUF file with a real model's shape and random weights, for blazr bench --vs llama.cpp.

    python benchmarks/random_gguf.py llama-1b q4_k_m /tmp/llama-1b-q4_k_m.gguf

Speed does not ask what weights mean. As Q4_K_M files have it, the head is of six bits, and so are
values and downward projections in every second layer.
"""

import argparse

import gguf
import numpy as np

from blazr.nn.quant.gguf import GGML_TYPES

SHAPES = {
    # layers, hidden, inner, heads, heads of keys, vocabulary, architecture
    "qwen2-0.5b": (24, 896, 4864, 14, 2, 151_936, "qwen2"),
    "llama-1b": (16, 2048, 8192, 32, 8, 128_256, "llama"),
}
MIXES = {
    "bf16": ("BF16",) * 3,
    "q8_0": ("Q8_0",) * 3,
    "q4_0": ("Q4_0", "Q4_0", "Q8_0"),  # usual weights, more important ones, the head
    "q4_k_m": ("Q4_K", "Q6_K", "Q6_K"),
}
HEAD_DIM = 64
# Where the float16 scales of a block are, and how large they may be.
SCALES = {
    "Q8_0": ((0,), 3e-4),
    "Q4_0": ((0,), 5e-3),
    "Q4_K": ((0, 2), 1e-4),
    "Q6_K": ((208,), 1e-5),
}


def blocks(name: str, rows: int, columns: int, draw: np.random.Generator) -> np.ndarray:
    """Random rows of blocks as bytes."""
    if name == "BF16":
        numbers = draw.standard_normal((rows, columns), dtype=np.float32) * 0.02
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    kind = GGML_TYPES[name]
    data = draw.integers(0, 256, (rows, columns // kind.length, kind.nbytes), dtype=np.uint8)
    places, size = SCALES[name]
    for place in places:
        scales = (draw.random(data.shape[:2]) * size).astype(np.float16)
        data[..., place : place + 2] = scales[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def write(shape: str, mix: str, path: str) -> None:
    layers, hidden, inner, heads, kv_heads, vocabulary, architecture = SHAPES[shape]
    usual, better, head = MIXES[mix]
    draw, writer = np.random.default_rng(0), gguf.GGUFWriter(path, architecture)
    writer.add_context_length(8192)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, rows: int, columns: int, kind: str) -> None:
        number = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.weight", blocks(kind, rows, columns, draw), raw_dtype=number)

    def vector(name: str, value: float, size: int) -> None:
        writer.add_tensor(name, np.full(size, value, dtype=np.float32))

    matrix("token_embd", vocabulary, hidden, head)
    for layer in range(layers):
        more = better if layer % 2 else usual
        for name, rows, columns, kind in (
            ("attn_q", heads * HEAD_DIM, hidden, usual),
            ("attn_k", kv_heads * HEAD_DIM, hidden, usual),
            ("attn_v", kv_heads * HEAD_DIM, hidden, more),
            ("attn_output", hidden, heads * HEAD_DIM, usual),
            ("ffn_gate", inner, hidden, usual),
            ("ffn_up", inner, hidden, usual),
            ("ffn_down", hidden, inner, more),
        ):
            matrix(f"blk.{layer}.{name}", rows, columns, kind)
            if architecture == "qwen2" and name in {"attn_q", "attn_k", "attn_v"}:
                vector(f"blk.{layer}.{name}.bias", 0, rows)
        for name in ("attn_norm", "ffn_norm"):
            vector(f"blk.{layer}.{name}.weight", 1, hidden)
    vector("output_norm.weight", 1, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("mix", choices=MIXES)
    parser.add_argument("path")
    options = parser.parse_args()
    write(options.shape, options.mix, options.path)
