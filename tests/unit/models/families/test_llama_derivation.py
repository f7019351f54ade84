"""Llama and its relatives: what config.json says beyond the shapes, and what is refused."""

import math

import pytest

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.families import FAMILIES
from blazr.models.families.base import Derivation
from blazr.models.families.llama import LLAMA
from blazr.models.loading.plan import detect_family
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.rope import RopeConfig, RopeScaling
from tests.support import tiny
from tests.support.tiny import Tiny

MODEL = Tiny(layers=("StandardTransformer",) * 3)


def derive(model: Tiny = MODEL, model_type: str = "llama", **changes: object) -> Derivation:
    written = tiny.hf_config(model, model_type) | changes
    return FAMILIES[model_type].derive(tiny.checkpoint(model, written, prefix="model."))


def attention(found: Derivation) -> list[AttentionConfig]:
    mixers = [layer.mixer for layer in found.config.layers]
    assert all(isinstance(mixer, AttentionConfig) for mixer in mixers)
    return mixers


def test_sizes_and_eps() -> None:
    found = derive()
    assert attention(found)[0] == AttentionConfig(
        hidden_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rope=RopeConfig(8),
        norm_eps=1e-6,
    )
    assert found.config.final_norm.eps == 1e-6
    assert found.warnings == ()


def test_heads_may_be_wider_than_the_hidden_size() -> None:
    wide = Tiny(layers=("StandardTransformer",), head_dim=24)
    assert attention(derive(wide))[0].head_dim == 24


def test_qwen_has_biases_or_norms() -> None:
    qwen2 = Tiny(layers=("StandardTransformer",), qkv_bias=True)
    qwen3 = Tiny(layers=("StandardTransformer",), qk_norm=True, tied=True)
    assert attention(derive(qwen2, "qwen2"))[0].qkv_bias
    found = derive(qwen3, "qwen3")
    assert attention(found)[0].qk_norm
    assert found.config.tie_word_embeddings


@pytest.mark.parametrize(
    ("model_type", "changes", "windows"),
    [
        ("mistral", {"sliding_window": 64}, [64, 64, 64]),
        ("mistral", {"sliding_window": None}, [None, None, None]),
        ("llama", {"sliding_window": 64}, [None, None, None]),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False}, [None, None, None]),
        (
            "qwen2",
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2},
            [None, None, 64],
        ),
        (
            "qwen3",
            {
                "sliding_window": 64,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            [None, 64, None],
        ),
    ],
)
def test_sliding_windows(model_type: str, changes, windows: list[int | None]) -> None:
    found = derive(model_type=model_type, **changes)
    assert [mixer.sliding_window for mixer in attention(found)] == windows


# at this factor a weight of -10 makes scores of nothing
YARN = {"type": "yarn", "factor": math.e, "original_max_position_embeddings": 16}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 5e5},
        {"rope_scaling": {"type": "llama3", **LLAMA3}, "rope_theta": 5e5},
        {
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
            "rope_theta": None,
        },
    ],
)
def test_llama3_scaling_as_old_and_new_configs_write_it(changes: dict[str, object]) -> None:
    scaling = RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_seq_len=16,
    )  # fmt: skip
    assert attention(derive(**changes))[0].rope == RopeConfig(8, 5e5, scaling)


def test_a_scaling_added_beside_the_new_spelling_is_not_passed_over() -> None:
    """transformers takes the old one, and forgets the theta of the new one."""
    new = {"rope_type": "default", "rope_theta": 1e6}
    with pytest.raises(ConfigError, match="contradict"):
        derive(rope_parameters=new, rope_scaling={"type": "linear", "factor": 2.0})
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
    both = derive(rope_parameters=linear, rope_scaling={"type": "linear", "factor": 2.0})
    assert both.config == derive(rope_parameters=linear).config


def test_linear_scaling() -> None:
    rope = attention(derive(rope_scaling={"type": "linear", "factor": 4}))[0].rope
    assert rope.scaling == RopeScaling(kind="linear", factor=4.0)


@pytest.mark.parametrize(
    "value", [None, {}, {"rope_type": "default"}, {"rope_type": "default", "factor": 8.0}]
)
def test_no_scaling(value: object) -> None:
    assert attention(derive(rope_scaling=value))[0].rope.scaling is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"partial_rotary_factor": 0.01}, "rotated channels"),
        ({"partial_rotary_factor": 1.5}, "rotated channels"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, "RoPE scaling"),
        ({"rope_scaling": {"type": "dynamic"}}, "'factor' is missing"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "'short_factor'"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"intermediate_size": 2**39}, "out of range"),
        ({"position_embedding_type": "alibi"}, "'position_embedding_type'"),
        ({"rope_scaling": "linear"}, "'rope_scaling'"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "'factor'"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 5.0}}, "high_freq"),
        ({"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": -10.0}}, "mscale_all_dim"),
    ],
)
def test_what_would_compute_something_else_is_refused(changes, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        derive(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_dropout": 0.1, "torch_dtype": "bfloat16", "_name_or_path": "x", "top_k": 50},
        {"attention_twist": None, "mlp_twist": False, "initializer_range": 0.02},
        {"bos_token_id": 1, "eos_token_id": [2, 3], "layer_types": ["full_attention"] * 3},
    ],
)
def test_what_changes_nothing_is_accepted(changes: dict[str, object]) -> None:
    assert derive(**changes).config == derive().config


def test_an_unknown_type_is_refused_by_name() -> None:
    written = tiny.hf_config(MODEL, "llama17")
    with pytest.raises(ConfigError, match="model_type") as caught:
        detect_family(tiny.checkpoint(MODEL, written, prefix="model."))
    assert "qwen3_moe" in caught.value.expected


def test_missing_layers_are_refused() -> None:
    """Unlike oxidizr's, these configs do not go stale: fewer layers means half a download."""
    with pytest.raises(CheckpointError, match="does not hold all layers"):
        derive(num_hidden_layers=4)


def test_without_config_the_heads_are_asked_for() -> None:
    wide = Tiny(layers=("StandardTransformer",), num_heads=8, num_kv_heads=4, head_dim=32)
    with pytest.raises(CheckpointError, match="cannot be read from tensor shapes"):
        LLAMA.derive(tiny.checkpoint(wide, prefix="model."))
