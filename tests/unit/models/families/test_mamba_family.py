"""Mamba in mamba_ssm's form: behind ``backbone.``, and inside an oxidizr directory."""

import pytest

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.mamba import MAMBA
from blazr.models.families.oxidizr import OXIDIZR
from blazr.models.loading.plan import detect_family
from blazr.nn.layers.mamba1 import Mamba1Config
from tests.support import tiny
from tests.support.tiny import Tiny

MIXER = {
    "in_proj.weight": (128, 32),
    "conv1d.weight": (64, 1, 4),
    "conv1d.bias": (64,),
    "x_proj.weight": (2 + 2 * 16, 64),
    "dt_proj.weight": (64, 2),
    "dt_proj.bias": (64,),
    "A_log": (64, 16),
    "D": (64,),
    "out_proj.weight": (32, 64),
}
WANTED = Mamba1Config(
    hidden_size=32, inner_size=64, state_size=16, dt_rank=2, conv_kernel=4, variant="mamba_ssm"
)


@pytest.mark.parametrize("embedding", ["embedding", "embeddings"])
def test_backbone(embedding: str) -> None:
    shapes = {f"backbone.{embedding}.weight": (50, 32), "backbone.norm_f.weight": (32,)}
    for index in range(2):
        at = f"backbone.layers.{index}."
        shapes |= {at + "norm.weight": (32,)} | {
            f"{at}mixer.{name}": shape for name, shape in MIXER.items()
        }
    checkpoint = tiny.from_shapes(shapes, {"layer_norm_epsilon": 1e-4, "model_type": "mamba"})
    assert detect_family(checkpoint) is MAMBA
    found = MAMBA.derive(checkpoint)
    assert [layer.mixer for layer in found.config.layers] == [WANTED, WANTED]
    assert found.config.layers[0].mixer_norm.eps == 1e-4
    assert found.config.tie_word_embeddings
    assert all(MAMBA.rules.match(name) for name in shapes)


MIXER2 = {
    "in_proj.weight": (2 * 64 + 2 * 2 * 12 + 4, 32),
    "conv1d.weight": (64 + 2 * 2 * 12, 1, 4),
    "conv1d.bias": (64 + 2 * 2 * 12,),
    "A_log": (4,),
    "D": (4,),
    "dt_bias": (4,),
    "norm.weight": (64,),
    "out_proj.weight": (32, 64),
}
SSM = {"layer": "Mamba2", "ngroups": 2}


def mamba2(embedding: str, config: dict[str, object]) -> Checkpoint:
    shapes = {f"backbone.{embedding}.weight": (50, 32), "backbone.norm_f.weight": (32,)}
    for index in range(2):
        at = f"backbone.layers.{index}."
        shapes |= {at + "norm.weight": (32,)} | {
            f"{at}mixer.{name}": shape for name, shape in MIXER2.items()
        }
    return tiny.from_shapes(shapes, config)


def test_mamba2_is_what_hugging_face_makes_of_it() -> None:
    checkpoint = mamba2("embedding", {"d_model": 32, "n_layer": 2, "ssm_cfg": SSM})
    assert detect_family(checkpoint) is MAMBA
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "num_heads": 4}
    sizes |= {"head_dim": 16, "state_size": 12, "n_groups": 2, "layer_norm_epsilon": 1e-5}
    converted = mamba2("embeddings", {"model_type": "mamba2", "tie_word_embeddings": True, **sizes})
    own, other = (detect_family(each).derive(each).config for each in (checkpoint, converted))
    assert own.layers == other.layers
    assert all(MAMBA.rules.match(name) for name in checkpoint.tensors)


@pytest.mark.parametrize("key", ["norm_before_gate", "dt_limit"])
def test_options_of_mamba2_that_no_tensor_tells_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"ssm_cfg.{key}"):
        MAMBA.derive(mamba2("embedding", {"ssm_cfg": {**SSM, key: [0, 1]}}))


@pytest.mark.parametrize(("kind", "is_it"), [(None, True), ("mamba", True), ("mamba2", False)])
def test_of_names_behind_backbone_it_takes_its_own(kind: str | None, is_it: bool) -> None:
    shapes = {"backbone.embeddings.weight": (5, 4), "backbone.layers.0.norm.weight": (4,)}
    assert MAMBA.matches(tiny.from_shapes(shapes, {"model_type": kind})) is is_it


def test_other_activations_are_refused() -> None:
    with pytest.raises(ConfigError, match="hidden_act"):
        MAMBA.derive(tiny.from_shapes({}, {"model_type": "mamba", "hidden_act": "relu"}))


def test_inside_an_oxidizr_model() -> None:
    shapes = tiny.shapes(Tiny(layers=("Mamba1",)))
    kept = {n: shape for n, shape in shapes.items() if ".mamba." not in n}
    kept |= {f"layers.0.mamba.{name}": shape for name, shape in MIXER.items()}
    found = OXIDIZR.derive(tiny.from_shapes(kept))
    assert found.config.layers[0].mixer == WANTED
    assert all(OXIDIZR.rules.match(name) for name in kept)
