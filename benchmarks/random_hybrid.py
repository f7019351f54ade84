"""A hybrid of 0.4B with random weights, for benchmarks/versus.py.

    python benchmarks/random_hybrid.py /tmp/hybrid-0.4b

Granite 4's kind (``GraniteMoeHybrid``): Mamba-2 layers, every sixth attention, each followed by
eight experts of which two are used and one that is shared, in bfloat16.
"""

import argparse

import torch
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

LAYERS = 24


def main() -> None:
    """Write config.json and the weights."""
    parser = argparse.ArgumentParser(description="Write a hybrid of 0.4B with random weights.")
    parser.add_argument("directory", help="where config.json and the weights go")
    directory = parser.parse_args().directory
    config = GraniteMoeHybridConfig(
        vocab_size=49_160,
        hidden_size=1024,
        num_hidden_layers=LAYERS,
        layer_types=["attention" if i % 6 == 5 else "mamba" for i in range(LAYERS)],
        num_attention_heads=16,
        num_key_value_heads=4,
        mamba_n_heads=32,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_n_groups=1,
        intermediate_size=256,
        num_local_experts=8,
        num_experts_per_tok=2,
        shared_intermediate_size=1024,
        tie_word_embeddings=True,
        position_embedding_type="nope",
    )
    torch.manual_seed(0)
    model = GraniteMoeHybridForCausalLM(config).bfloat16()
    print(f"{sum(p.numel() for p in model.parameters()):,} numbers")
    model.save_pretrained(directory)


if __name__ == "__main__":
    main()
