"""Whatever config.json or the shapes say: a config, or an error that is ours."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from blazr.core.errors import BlazrError
from blazr.models.families import FAMILIES
from blazr.models.families.base import ALIASES
from blazr.models.families.oxidizr import OXIDIZR
from tests.support import tiny
from tests.support.tiny import Tiny

KEYS = sorted(
    {alias.partition(".")[0] for names in ALIASES.values() for alias in names}
    | set(ALIASES)
    | {"vocab_size", "layer_types", "hybrid_layers", "model_type", "hidden_act", "sliding_window"}
    | {"use_sliding_window", "max_window_layers", "tie_word_embeddings", "intermediate_size"}
    | {"q_lora_rank", "v_head_dim", "n_group", "topk_group", "first_k_dense_replace"}
    | {"partial_rotary_factor", "original_max_position_embeddings", "no_rope_layers"}
    | {"mlp_only_layers", "decoder_sparse_step", "query_pre_attn_scalar", "attention_bias"}
    | {"layers_block_type", "hybrid_override_pattern", "attn_layer_indices", "full_attn_idxs"}
    | {"mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_expand"}
    | {"num_heads", "state_size", "expand", "n_groups", "time_step_limit", "time_step_rank"}
    | {"mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_mamba_heads", "num_mem_blocks"}
    | {"mamba_d_ssm", "mlp_multipliers", "ssm_multipliers", "lm_head_multiplier"}
    | {"attn_layer_period", "expert_layer_offset", "block_ff_dim", "block_multiple_of"}
    | {"block_ffn_dim_multiplier", "full_attention_interval", "linear_attn_config"}
    | {"linear_num_key_heads", "linear_num_value_heads", "mlp_layer_types"}
)
INNER = sorted({alias.partition(".")[2] for names in ALIASES.values() for alias in names} - {""})
SCALING = ("rope_type", "type", "factor", "low_freq_factor", "original_max_position_embeddings")
SCALING += ("short_factor", "long_factor", "mscale_all_dim", "beta_fast", "full_attention")
SCALING += ("llama_4_scaling_beta",)
numbers = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 31, 10**9, 10**12, -1, 10**400]) | st.floats()
words = st.sampled_from(
    [
        "llama3",
        "linear",
        "yarn",
        "longrope",
        "dynamic",
        "Mamba2",
        "mamba-1",
        "mistral",
        "ministral3",
        "qwen2",
        "auto",
        "linear_attention",
        "full_attention",
        "hybrid",
        "conv",
        "M*-E",
        "",
        "\ud800",
    ]
)
plain = st.none() | st.booleans() | numbers | words
values = (
    plain
    | st.lists(plain, max_size=3)
    | st.dictionaries(st.sampled_from([*INNER, *SCALING]), plain, max_size=4)
)
configs = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)
EVERY_KIND = Tiny(layers=("Mamba2", "Mamba3", "MlaWithMoe", "StandardTransformer", "Mamba1"))
HF = sorted(set(FAMILIES) - {"oxidizr", "mamba", "gguf"})
GQA = Tiny(layers=("StandardTransformer",))


@given(configs)
def test_configs(written: dict[str, object]) -> None:
    with suppress(BlazrError):
        OXIDIZR.derive(tiny.checkpoint(EVERY_KIND, written))


@given(st.sampled_from(HF), configs)
def test_hugging_face_configs(name: str, written: dict[str, object]) -> None:
    whole = {**tiny.hf_config(GQA, name), **written, "model_type": name}
    with suppress(BlazrError):
        FAMILIES[name].derive(tiny.checkpoint(GQA, whole, prefix="model."))


sizes = st.sampled_from([0, 1, 2, 3, 7, 8, 32, 64, 10**12])
shapes = st.lists(sizes, max_size=4).map(tuple)


@given(st.dictionaries(st.sampled_from(sorted(tiny.shapes(EVERY_KIND))), shapes | st.none()))
def test_shapes(changes: dict[str, tuple[int, ...] | None]) -> None:
    """Tensors of any shape, or missing."""
    changed = {**tiny.shapes(EVERY_KIND), **changes}
    kept = {name: shape for name, shape in changed.items() if shape is not None}
    with suppress(BlazrError):
        OXIDIZR.derive(tiny.from_shapes(kept, tiny.config(EVERY_KIND)))
