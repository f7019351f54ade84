"""Keys of config.json that no reader asks for: ignored by name, or refused with a reason."""

import pytest

from blazr.core.errors import ConfigError
from blazr.models.families import FAMILIES
from blazr.models.families.base import Derivation
from blazr.models.families.unread import NOT_IMPLEMENTED
from blazr.nn.layers.attention import AttentionConfig
from tests.support import tiny
from tests.support.tiny import Tiny

MODEL = Tiny(layers=("StandardTransformer",) * 3)
# What fine-tuning scripts, converters and other engines leave in a config.json.
STRAYS: dict[str, object] = {
    "foo": 1,
    "model_name": "mine",
    "quantization": {"group_size": 64, "bits": 4},
    "num_experts": 0,
    "n_ctx": 2048,
    "lora_r": 8,
    "lora_alpha": 16.0,
    "num_labels": 2,
    "base_model": "org/name",
    "num_layers": 99,
    "max_seq_len": 7,
    "top_k": 50,
    "moe_intermediate_size": 5,
    "training_args": {"lr": 1e-4},
}


def derive(model_type: str = "llama", **changes: object) -> Derivation:
    written = tiny.hf_config(MODEL, model_type) | changes
    return FAMILIES[model_type].derive(tiny.checkpoint(MODEL, written, prefix="model."))


@pytest.mark.parametrize("key", STRAYS)
@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_a_stray_key_changes_nothing(model_type: str, key: str) -> None:
    found = derive(model_type, **{key: STRAYS[key]})
    assert found.config == derive(model_type).config


def test_one_warning_names_all_unknown_keys() -> None:
    found = derive(foo=1, attention_twist=0.5, rope_scaling={"type": "linear", "factor": 2, "x": 3})
    [warning] = found.warnings
    assert warning == (
        "config.json: unknown keys are ignored: attention_twist, foo, rope_scaling.x."
    )


def test_known_and_empty_keys_are_not_warned_of() -> None:
    assert not derive(torch_dtype="float32", foo=None, bar=False, baz=[], num_experts=0).warnings


@pytest.mark.parametrize("key", NOT_IMPLEMENTED)
def test_what_changes_the_result_is_refused(key: str) -> None:
    reason, harmless = NOT_IMPLEMENTED[key]
    with pytest.raises(ConfigError, match=key) as caught:
        derive(**{key: 0.25})
    assert reason in str(caught.value)
    assert "--model-impl transformers" in str(caught.value)
    for value in (None, False, *harmless):
        assert derive(**{key: value}).config == derive().config


def test_a_name_of_the_library_wins_over_another_name() -> None:
    found = derive(num_kv_heads=1)
    mixer = found.config.layers[0].mixer
    assert isinstance(mixer, AttentionConfig)
    assert mixer.num_kv_heads == MODEL.num_kv_heads
    assert "num_kv_heads" in found.warnings[0]
