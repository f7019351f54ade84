"""Configs are found from shapes first, config.json second, defaults last."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.causal_lm import CausalLM
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import Derivation
from blazr.models.families.oxidizr import LAYER_TYPES, OXIDIZR, layer_type_of
from blazr.models.loading.plan import LoadPlan, plan_load
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig, NormConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mamba3 import Mamba3Config
from blazr.nn.layers.mla import MlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig
from tests.support import tiny
from tests.support.tiny import Tiny


def derive(model: Tiny, **changes: object) -> Derivation:
    """With the config oxidizr would write, changed; a None takes the key away."""
    written = tiny.config(model) | changes
    return OXIDIZR.derive(
        tiny.checkpoint(model, {k: v for k, v in written.items() if v is not None})
    )


def bare(model: Tiny) -> Derivation:
    return OXIDIZR.derive(tiny.checkpoint(model))


def sources(found: Derivation) -> dict[str, str]:
    return {value.name: value.source for value in found.values}


def mixer_of(model: Tiny, kind: str) -> MixerConfig:
    hidden, ssm = model.hidden_size, (model.ssm_heads, model.ssm_head_dim, model.state_size)
    if kind == "Mamba1":
        return Mamba1Config(
            hidden_size=hidden, inner_size=2 * hidden, state_size=16, dt_rank=2 * hidden,
            conv_kernel=model.conv_kernel, variant="oxidizr",
        )  # fmt: skip
    if kind == "Mamba2":
        return Mamba2Config(
            hidden_size=hidden, num_heads=ssm[0], head_dim=ssm[1], state_size=ssm[2],
            num_groups=model.num_groups, conv_kernel=model.conv_kernel,
        )  # fmt: skip
    if kind == "Mamba3":
        return Mamba3Config(
            hidden_size=hidden, num_heads=ssm[0], head_dim=ssm[1], state_size=ssm[2],
            num_groups=model.num_groups, conv_kernel=model.conv_kernel if model.use_conv else 4,
            use_conv=model.use_conv, complex_rope=model.complex_rope, mimo_rank=model.mimo_rank,
        )  # fmt: skip
    if kind.startswith("Mla"):
        return MlaConfig(
            hidden_size=hidden, num_heads=model.num_heads, head_dim=model.head_dim,
            rope_dim=model.rope_dim, kv_latent=model.kv_latent, q_latent=model.q_latent,
            rope=RopeConfig(model.rope_dim),
        )  # fmt: skip
    return AttentionConfig(
        hidden_size=hidden, num_heads=model.num_heads, num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim, rope=RopeConfig(model.head_dim), qkv_bias=model.qkv_bias,
        qk_norm=model.qk_norm, norm_eps=1e-5,
    )  # fmt: skip


def feed_forward_of(model: Tiny, kind: str) -> FeedForwardConfig | None:
    sizes = {"hidden_size": model.hidden_size, "intermediate_size": model.intermediate_size}
    if kind.endswith("Moe"):
        return MoeConfig(
            **sizes, num_experts=model.num_experts, shared_expert=model.shared_expert,
            experts_per_token=min(model.experts_per_tok, model.num_experts),
        )  # fmt: skip
    return None if kind.startswith("Mamba") else MlpConfig(**sizes)


KINDS = (*LAYER_TYPES, "GqaWithMoe")


@st.composite
def models(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> Tiny:
    groups = draw(st.sampled_from([1, 2, 4]))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    return Tiny(
        layers=tuple(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5))),
        vocab_size=draw(st.integers(1, 300)),
        hidden_size=draw(st.integers(1, 96)),
        max_seq_len=draw(st.integers(1, 100_000)),
        num_heads=kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 20)),
        intermediate_size=draw(st.integers(1, 99)),
        ssm_heads=groups * draw(st.integers(1, 4)),
        ssm_head_dim=draw(st.integers(1, 33)),
        state_size=2 * draw(st.integers(1, 20)),
        num_groups=groups,
        conv_kernel=draw(st.integers(2, 5)),
        complex_rope=draw(st.booleans()),
        use_conv=draw(st.booleans()),
        mimo_rank=draw(st.integers(0, 3)),
        kv_latent=draw(st.integers(1, 40)),
        q_latent=draw(st.integers(1, 40)),
        rope_dim=2 * draw(st.integers(1, 8)),
        num_experts=draw(st.integers(1, 6)),
        experts_per_tok=draw(st.integers(0, 7)),
        shared_expert=draw(st.booleans()),
        tied=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
    )


def check(model: Tiny, found: Derivation) -> None:
    config = found.config
    assert [layer.mixer for layer in config.layers] == [mixer_of(model, k) for k in model.layers]
    assert [layer.feed_forward for layer in config.layers] == [
        feed_forward_of(model, kind) for kind in model.layers
    ]
    assert [layer_type_of(layer) for layer in config.layers] == list(model.layers)
    assert (config.vocab_size, config.hidden_size) == (model.vocab_size, model.hidden_size)
    assert config.tie_word_embeddings == model.tied


def plan(checkpoint: Checkpoint) -> LoadPlan:
    with torch.device("meta"):
        module = CausalLM(OXIDIZR.derive(checkpoint).config)
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    return plan_load(checkpoint.tensors, wanted, OXIDIZR.rules)


@given(models())
def test_any_model_is_derived_and_planned(model: Tiny) -> None:
    """With the config oxidizr writes: every size, no warning, every tensor has its place."""
    found = derive(model)
    check(model, found)
    assert found.config.max_seq_len == model.max_seq_len
    assert not [w for w in found.warnings if "experts" not in w]
    plan(tiny.checkpoint(model, tiny.config(model))).check()


@given(models(kinds=("Mamba1", "Mamba3", "MlaWithMoe", "MlaWithMlp")))
def test_shapes_alone_tell_everything_but_grouped_attention(model: Tiny) -> None:
    wanted = Tiny(**{**model.__dict__, "experts_per_tok": 2})
    check(wanted, bare(wanted))


@given(models(kinds=("Mamba2",)))
def test_without_config_mamba2_is_taken_to_have_one_group(model: Tiny) -> None:
    merged = {"num_groups": 1, "state_size": model.num_groups * model.state_size}
    found = bare(model)
    check(Tiny(**{**model.__dict__, **merged}), found)
    assert sources(found)["mamba2_n_groups"] == "assumed"


def test_norms_are_oxidizrs() -> None:
    found = derive(Tiny(layers=("Mamba1", "Mamba2", "Mamba3", "MlaWithMlp")), rms_norm_eps=1e-4)
    rms, layer = NormConfig(32, 1e-4), NormConfig(32, 1e-6, "layer")
    assert [layer.mixer_norm for layer in found.config.layers] == [rms, layer, layer, rms]
    assert found.config.layers[3].feed_forward_norm == rms
    assert found.config.layers[2].feed_forward_norm is None
    assert found.config.final_norm == rms


def test_a_mamba_norm_without_bias_is_an_rms_norm() -> None:
    shapes = tiny.shapes(Tiny(layers=("Mamba2",)))
    del shapes["layers.0.mamba2.norm.bias"]
    found = OXIDIZR.derive(tiny.from_shapes(shapes))
    assert found.config.layers[0].mixer_norm == NormConfig(32, 1e-5)


def test_defaults() -> None:
    found = bare(Tiny(layers=("MlaWithMoe",)))
    assert found.config.max_seq_len == 4096
    mla = found.config.layers[0].mixer
    assert isinstance(mla, MlaConfig)
    assert mla.rope == RopeConfig(4, 10000.0)
    for name in ("max_seq_len", "rope_theta", "rms_norm_eps", "experts_per_tok"):
        assert sources(found)[name] == "default"
    assert sources(found)["d_rope"] == "tensor layers.0.self_attn.w_kr.weight"


@pytest.mark.parametrize(
    ("key", "stale"),
    [
        ("hidden_size", 64),
        ("num_layers", 7),
        ("vocab_size", 100),
        ("intermediate_size", 32),
        ("mamba2_num_heads", 4),
        ("mamba2_head_dim", 16),
        ("mamba2_state_size", 3),
        ("mamba2_conv_kernel", 2),
        ("kv_latent_dim", 8),
        ("q_latent_dim", 8),
        ("d_rope", 2),
        ("num_experts", 8),
        ("num_attention_heads", 8),
        ("num_kv_heads", 4),
        ("mamba2_n_groups", 4),
        ("tie_word_embeddings", True),
    ],
)
def test_the_tensors_win_over_a_stale_config(key: str, stale: object) -> None:
    layers = ("Mamba2", "MlaWithMoe", "MlaWithMlp")
    model = Tiny(layers=(*layers, "StandardTransformer") if key == "num_kv_heads" else layers)
    found = derive(model, **{key: stale})
    assert found.config == derive(model).config
    assert any(key in warning and str(stale) in warning for warning in found.warnings)


def test_every_attention_layer_has_the_declared_window() -> None:
    model = Tiny(layers=("Mamba2", "MlaWithMlp", "StandardTransformer"))
    found = derive(model, sliding_window=6)
    assert [getattr(each.mixer, "sliding_window", None) for each in found.config.layers] == [
        None,
        6,
        6,
    ]
    assert sources(found)["sliding_window"] == "config.json: sliding_window"
    assert "sliding_window" not in sources(derive(model))
    with pytest.raises(ConfigError, match="sliding_window"):
        derive(model, sliding_window=0)


@pytest.mark.parametrize("scaling", [{"factor": 4.0}, {"rope_type": "yarn", "factor": 4.0}])
def test_rope_is_scaled_in_a_known_way_or_refused(scaling: dict[str, object]) -> None:
    model = Tiny(layers=("MlaWithMlp",))
    with pytest.raises(ConfigError, match="rope_scaling") as caught:
        derive(model, rope_scaling=scaling)
    assert "llama3, linear, default" in caught.value.expected
    assert derive(model, rope_scaling={}).config == derive(model).config


def test_mamba3_flags_come_from_names() -> None:
    model = Tiny(layers=("Mamba3",), use_conv=True, complex_rope=False, mimo_rank=2)
    found = derive(
        model, mamba3_enabled=False, mamba3_use_conv=False, mamba3_complex_rope=True,
        mamba3_mimo_rank=0,
    )  # fmt: skip
    check(model, found)
    assert len(found.warnings) == 3


def test_an_expansion_that_contradicts_the_heads_is_outvoted() -> None:
    model = Tiny(layers=("Mamba2",))
    found = derive(model, mamba2_expand=3)
    check(model, found)
    [warning] = found.warnings
    assert "mamba2_expand = 3, the tensors say 2" in warning
    [expand] = [value for value in found.values if value.name == "mamba2_expand"]
    assert expand.value == 2
    assert "config.json says mamba2_expand = 3" in expand.note


def test_one_warning_speaks_for_all_layers() -> None:
    found = derive(Tiny(layers=("Mamba2",) * 4), mamba2_expand=3, mamba2_num_heads=4)
    assert len(found.warnings) == 2


def test_what_becomes_of_the_chunk_size_is_said() -> None:
    found = derive(Tiny(layers=("Mamba2",)), mamba2_chunk_size=64)
    [chunk] = [value for value in found.values if value.name == "mamba2_chunk_size"]
    assert chunk.value == 64
    assert "not used" in chunk.note
    assert found.warnings == ()


# The configuration document's examples, as they stand there.
DOCUMENTED = """
{
  "hidden_size": 1024,
  "num_layers": 12,
  "vocab_size": 128256,
  "max_seq_len": 4096,
  "rms_norm_eps": 1e-5,

  "mamba2_num_heads": 16,
  "mamba2_head_dim": 64,
  "mamba2_state_size": 64,
  "mamba2_chunk_size": 256,
  "mamba2_expand": 2,
  "mamba2_conv_kernel": 4,
  "mamba2_n_groups": 1,

  "num_attention_heads": 16,
  "kv_latent_dim": 256,
  "q_latent_dim": 384,
  "d_rope": 64,

  "num_experts": 8,
  "experts_per_tok": 2,
  "shared_expert_enabled": true,
  "intermediate_size": 4096,

  "num_kv_heads": 4
}
"""
TYPES = ("Mamba2", "Mamba2", "MlaWithMoe", "Mamba2", "MlaWithMoe")
DOCUMENTED_TYPES = """
{
  "layer_types": [
    "Mamba2",
    "Mamba2",
    "MlaWithMoe",
    "Mamba2",
    "MlaWithMoe"
  ]
}
"""
DOCUMENTED_LAYERS = """
{
  "mamba_layers": [0, 1, 3]
}
"""


@pytest.mark.parametrize("more", ["{}", DOCUMENTED_TYPES, DOCUMENTED_LAYERS])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_documented_config_derives(head_dim: int, more: str) -> None:
    """Its expansion of 2 and its heads contradict each other: the tensors say which is meant."""
    model = Tiny(
        layers=TYPES,
        vocab_size=128_256,
        hidden_size=1024,
        num_heads=16,
        head_dim=64,
        intermediate_size=4096,
        ssm_heads=16,
        ssm_head_dim=head_dim,
        state_size=64,
        kv_latent=256,
        q_latent=384,
        rope_dim=64,
        num_experts=8,
    )
    written = json.loads(DOCUMENTED) | json.loads(more)
    found = OXIDIZR.derive(tiny.checkpoint(model, written))
    mixer = found.config.layers[0].mixer
    assert isinstance(mixer, Mamba2Config)
    assert (mixer.num_heads, mixer.head_dim, mixer.num_groups) == (16, head_dim, 1)
    assert found.config.max_seq_len == 4096
    wrong = "mamba2_expand = 2" if head_dim == 64 else "mamba2_head_dim = 64"
    assert [wrong in warning for warning in found.warnings] == [False, True]
    assert "num_layers = 12" in found.warnings[0]


def test_unknown_keys_are_named_in_one_warning() -> None:
    found = derive(Tiny(), foo=1, lora_r=8, torch_dtype="float32", tokenizer_vocab="llama3", x=None)
    assert found.warnings == ("config.json: unknown keys are ignored: foo, lora_r.",)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_follow_from_the_state_size_or_their_number(groups: int) -> None:
    model = Tiny(layers=("Mamba2",), num_groups=groups)
    check(model, derive(model))
    check(model, derive(model, mamba2_state_size=None, mamba2_n_groups=groups))
    nested = {"ssm": {"n_groups": groups}, "mamba2_state_size": None}
    check(model, derive(model, **nested))


def test_the_shared_expert_is_there_when_its_tensors_are() -> None:
    with_one, without = Tiny(), Tiny(shared_expert=False)
    assert derive(with_one, shared_expert_enabled=False).warnings == ()
    check(with_one, derive(with_one, shared_expert_enabled=False))
    found = derive(without, shared_expert_enabled=True)
    check(without, found)
    assert "no shared expert" in found.warnings[0]


def test_too_many_experts_per_token_are_all_experts() -> None:
    found = derive(Tiny(), experts_per_tok=9)
    feed_forward = found.config.layers[1].feed_forward
    assert isinstance(feed_forward, MoeConfig)
    assert feed_forward.experts_per_token == 4
    assert "experts_per_tok = 9" in found.warnings[0]


# grouped-query attention: the shapes do not tell the number of heads

GQA = Tiny(layers=("StandardTransformer",), hidden_size=256, num_heads=8, num_kv_heads=4,
           head_dim=32)  # fmt: skip


@pytest.mark.parametrize(
    "written",
    [
        {"num_attention_heads": 8},
        {"num_heads": 8, "kv_heads": 4},
        {"n_heads": 8},
        {"attention": {"num_heads": 8, "num_kv_heads": 4}},
        {"head_dim": 32},
        {"attention": {"head_dim": 32}},
        {"num_attention_heads": 8, "head_dim": 32},
    ],
)
def test_heads_under_any_of_their_names(written: dict[str, object]) -> None:
    check(GQA, OXIDIZR.derive(tiny.checkpoint(GQA, written)))


def test_heads_that_cannot_be_told_are_asked_for() -> None:
    with pytest.raises(CheckpointError, match=r"heads of layers\.0 cannot be read") as caught:
        bare(GQA)
    assert "4 heads of 64 and 2 heads of 128" in caught.value.found
    assert '"num_attention_heads"' in caught.value.expected


def test_the_only_head_size_that_fits_is_assumed() -> None:
    model = Tiny(layers=("StandardTransformer",), num_heads=7, num_kv_heads=1, head_dim=8)
    found = bare(model)
    check(model, found)
    assert sources(found)["num_attention_heads"] == "assumed"


def test_no_usual_head_size_is_asked_for_too() -> None:
    model = Tiny(layers=("StandardTransformer",), num_heads=3, num_kv_heads=1, head_dim=10)
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        bare(model)
    assert "no usual head size" in caught.value.found


def test_heads_are_those_of_a_latent_layer_where_there_is_one() -> None:
    model = Tiny(layers=("StandardTransformer", "MlaWithMlp"))
    check(model, bare(model))


def test_the_norm_of_queries_tells_the_head_size() -> None:
    model = Tiny(layers=("StandardTransformer",), qk_norm=True)
    check(model, bare(model))
    found = derive(model, num_attention_heads=8)
    check(model, found)
    assert "num_attention_heads = 8" in found.warnings[0]


@pytest.mark.parametrize("heads", [3, 16, 64, 10**9])
def test_a_number_of_heads_that_does_not_fit_is_refused(heads: int) -> None:
    with pytest.raises(ConfigError, match=rf"{heads} attention heads .*num_attention_heads"):
        derive(Tiny(layers=("StandardTransformer",), head_dim=10), num_attention_heads=heads)


# layer types

MIXED = Tiny(layers=("Mamba2", "MlaWithMoe", "Mamba2"))


@pytest.mark.parametrize(
    "names",
    [
        ["Mamba2", "MlaWithMoe", "Mamba2"],
        ["mamba2", "mla-with-moe", "MAMBA_2"],
        ["mamba-2", "mla_with_moe", "Mamba 2"],
    ],
)
def test_layer_types_that_agree(names: list[str]) -> None:
    check(MIXED, derive(MIXED, layer_types=names))


def test_mamba_is_the_name_of_the_first_generation() -> None:
    model = Tiny(layers=("Mamba1",))
    check(model, derive(model, layer_types=["Mamba"]))


@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({"layer_types": ["Mamba2", "MlaWithMlp", "Mamba2"]}, 1),
        ({"layer_types": ["Mamba3", "MlaWithMoe", "Mamba2"]}, 0),
        ({"layer_types": ["Mamba2", "MlaWithMoe"]}, 2),
        ({"layer_types": ["Mamba2", "MlaWithMoe", "Mamba2", "Mamba2"]}, 3),
        ({"layer_types": ["Mamba2", "Transformer", "Mamba2"]}, 1),
        ({"mamba_layers": [0]}, 2),
        ({"mamba_layers": [0, 1, 2]}, 1),
        ({"mamba_layers": [0, 2, 9]}, 9),
        ({"mamba_layers": None, "hybrid_layers": {"ssm_layers": [2]}}, 0),
        ({"hybrid_layers": {"attention_layers": [0, 1]}}, 0),
    ],
)
def test_layer_types_that_contradict_the_tensors_name_the_layer(changes, layer: int) -> None:
    with pytest.raises(ConfigError, match=f"layer {layer} |layer {layer}\\."):
        derive(MIXED, **changes)


@pytest.mark.parametrize("value", [0, -1, 2**27, "many"])
def test_a_context_beyond_reason_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="max_seq_len"):
        derive(Tiny(), max_seq_len=value)
