"""A GGUF file with a real model's shape and random weights, for benchmarks/versus.py.

    python benchmarks/random_gguf.py llama-1b q4_k_m /tmp/llama-1b-q4_k_m.gguf

Speed does not ask what weights mean. As Q4_K_M files have it, the head is of six bits, and so are
values and downward projections in every second layer; rows that superblocks do not fill have Q5_0
and Q8_0 instead.
"""

import argparse
from typing import NamedTuple

import gguf
import numpy as np

from blazr.nn.quant.gguf import GGML_TYPES


class Shape(NamedTuple):
    """Sizes of a model; what is 0 is not there."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int
    architecture: str
    experts: int = 0
    experts_used: int = 0
    state: int = 0


SHAPES = {
    "qwen2-0.5b": Shape(24, 896, 4864, 14, 2, 151_936, "qwen2"),
    "llama-1b": Shape(16, 2048, 8192, 32, 8, 128_256, "llama"),
    "moe-8x2": Shape(12, 1024, 2048, 16, 4, 128_256, "llama", experts=8, experts_used=2),
    "moe-64x6": Shape(12, 1024, 512, 16, 4, 128_256, "llama", experts=64, experts_used=6),
    "mamba2": Shape(12, 1024, 2048, 32, 0, 128_256, "mamba2", state=64),
}
MIXES = {
    "bf16": ("BF16",) * 3,
    "q8_0": ("Q8_0",) * 3,
    "q4_0": ("Q4_0", "Q4_0", "Q8_0"),  # usual weights, more important ones, the head
    "q4_k_m": ("Q4_K", "Q6_K", "Q6_K"),
    "q3_k": ("Q3_K", "Q3_K", "Q6_K"),
    "q2_k": ("Q2_K", "Q2_K", "Q6_K"),
    "iq3_s": ("IQ3_S", "IQ3_S", "Q6_K"),
    "iq3_xxs": ("IQ3_XXS", "IQ3_XXS", "Q6_K"),
    "iq2_xxs": ("IQ2_XXS", "IQ2_XXS", "Q6_K"),
    "iq1_s": ("IQ1_S", "IQ1_S", "Q6_K"),
    "tq2_0": ("TQ2_0", "TQ2_0", "Q6_K"),
}
# What rows have whose length is no multiple of 256.
NARROW = {"Q6_K": "Q8_0"} | dict.fromkeys(("Q4_K", "Q3_K", "Q2_K"), "Q5_0")
HEAD_DIM = 64
# Where the float16 scales of a block are, and how large they may be.
SCALES = {
    "Q8_0": ((0,), 3e-4),
    "Q4_0": ((0,), 5e-3),
    "Q5_0": ((0,), 3e-3),
    "Q4_K": ((0, 2), 1e-4),
    "Q3_K": ((108,), 1e-4),
    "Q2_K": ((80, 82), 1e-3),
    "Q6_K": ((208,), 1e-5),
    "IQ3_S": ((0,), 1e-4),
    "IQ3_XXS": ((0,), 1e-4),
    "IQ2_XXS": ((0,), 3e-4),
    "IQ1_S": ((0,), 4e-3),
    "TQ2_0": ((64,), 4e-2),
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


class Writer:
    """Random tensors of one file."""

    def __init__(self, path: str, architecture: str) -> None:
        self.draw = np.random.default_rng(0)
        self.file = gguf.GGUFWriter(path, architecture)

    def matrix(self, name: str, rows: int, columns: int, kind: str, *, stack: int = 0) -> None:
        """One, or a stack of them."""
        if kind in NARROW and columns % 256:
            kind = NARROW[kind]
        data = blocks(kind, max(stack, 1) * rows, columns, self.draw)
        data = data.reshape(stack, rows, -1) if stack else data
        number = gguf.GGMLQuantizationType[kind]
        self.file.add_tensor(f"{name}.weight", data, raw_dtype=number)

    def floats(self, name: str, value: float, *size: int) -> None:
        """The same number everywhere."""
        self.file.add_tensor(name, np.full(size, value, dtype=np.float32))


def write(shape: Shape, mix: str, path: str) -> None:
    writer, (usual, better, head) = Writer(path, shape.architecture), MIXES[mix]
    file = writer.file
    file.add_context_length(32768)
    file.add_embedding_length(shape.hidden)
    file.add_block_count(shape.layers)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_vocab_size(shape.vocabulary)
    file.add_tokenizer_model("no_vocab")
    file.add_feed_forward_length(0 if shape.state else shape.inner)
    file.add_head_count(0 if shape.state else shape.heads)
    if shape.state:
        file.add_ssm_conv_kernel(4)
        file.add_ssm_inner_size(shape.inner)
        file.add_ssm_state_size(shape.state)
        file.add_ssm_time_step_rank(shape.heads)
        file.add_ssm_group_count(1)
    else:
        file.add_head_count_kv(shape.kv_heads)
        file.add_rope_freq_base(500_000.0)
        file.add_rope_dimension_count(HEAD_DIM)
    if shape.experts:
        file.add_expert_count(shape.experts)
        file.add_expert_used_count(shape.experts_used)
    writer.matrix("token_embd", shape.vocabulary, shape.hidden, head)
    for layer in range(shape.layers):
        writer.floats(f"blk.{layer}.attn_norm.weight", 1, shape.hidden)
        if shape.state:
            write_state_space(writer, shape, f"blk.{layer}", usual)
        else:
            kinds = usual, better if layer % 2 else usual
            write_transformer(writer, shape, f"blk.{layer}", kinds)
    writer.floats("output_norm.weight", 1, shape.hidden)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def write_transformer(writer: Writer, shape: Shape, block: str, kinds: tuple[str, str]) -> None:
    usual, better = kinds
    hidden, inner, experts = shape.hidden, shape.inner, shape.experts
    queries, keys = shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM
    for name, rows, columns, kind in (
        ("attn_q", queries, hidden, usual),
        ("attn_k", keys, hidden, usual),
        ("attn_v", keys, hidden, better),
        ("attn_output", hidden, queries, usual),
    ):
        writer.matrix(f"{block}.{name}", rows, columns, kind)
        if shape.architecture == "qwen2" and name != "attn_output":
            writer.floats(f"{block}.{name}.bias", 0, rows)
    ending = "_exps" if experts else ""
    for name, rows, columns, kind in (
        ("ffn_gate", inner, hidden, usual),
        ("ffn_up", inner, hidden, usual),
        ("ffn_down", hidden, inner, better),
    ):
        writer.matrix(f"{block}.{name}{ending}", rows, columns, kind, stack=experts)
    if experts:
        choice = writer.draw.standard_normal((experts, hidden), dtype=np.float32)
        writer.file.add_tensor(f"{block}.ffn_gate_inp.weight", choice)
    writer.floats(f"{block}.ffn_norm.weight", 1, hidden)


def write_state_space(writer: Writer, shape: Shape, block: str, usual: str) -> None:
    inner, heads = shape.inner, shape.heads
    channels = inner + 2 * shape.state
    writer.matrix(f"{block}.ssm_in", inner + channels + heads, shape.hidden, usual)
    writer.matrix(f"{block}.ssm_out", shape.hidden, inner, usual)
    writer.floats(f"{block}.ssm_conv1d.weight", 0.25, channels, 4)
    writer.floats(f"{block}.ssm_conv1d.bias", 0, channels)
    writer.floats(f"{block}.ssm_dt.bias", 0, heads)
    writer.floats(f"{block}.ssm_a", -1, heads, 1)
    writer.floats(f"{block}.ssm_d", 1, heads, 1)
    writer.floats(f"{block}.ssm_norm.weight", 1, 1, inner)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("mix", choices=MIXES)
    parser.add_argument("path")
    options = parser.parse_args()
    write(SHAPES[options.shape], options.mix, options.path)
