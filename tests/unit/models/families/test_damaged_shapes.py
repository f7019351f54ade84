"""Files whose tensors do not fit together: the error is about what is wrong."""

import pytest
import torch

from blazr.core.errors import CheckpointError, ConfigError, ShapeError
from blazr.models.causal_lm import CausalLM
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.oxidizr import OXIDIZR
from blazr.models.loading.plan import LoadPlan, plan_load
from tests.support import tiny
from tests.support.tiny import Tiny


def plan(checkpoint: Checkpoint) -> LoadPlan:
    with torch.device("meta"):
        module = CausalLM(OXIDIZR.derive(checkpoint).config)
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    return plan_load(checkpoint.tensors, wanted, OXIDIZR.rules)


EVERY_KIND = Tiny(layers=("Mamba2", "Mamba3", "MlaWithMoe", "StandardTransformer", "Mamba1"))


# Nothing else tells the size of a kernel, and one other tensor that of Mamba-1's states.
ALONE = ("conv1d.weight", "mamba.a_log")


@pytest.mark.sample
@pytest.mark.parametrize(
    ("name", "dim"),
    [
        (name, dim)
        for name in sorted(tiny.shapes(EVERY_KIND))
        for dim in (0, -1)
        if dim == 0 or not name.endswith(ALONE)
    ],
)
def test_one_tensor_of_a_wrong_shape_is_named(name: str, dim: int) -> None:
    """The others outvote it: the error is about this tensor, whichever it is."""
    shapes = tiny.shapes(EVERY_KIND)
    shape = list(shapes[name])
    shape[dim] += 1
    checkpoint = tiny.from_shapes(shapes | {name: tuple(shape)}, tiny.config(EVERY_KIND))
    with pytest.raises((CheckpointError, ConfigError, ShapeError)) as caught:
        plan(checkpoint).check()
    assert name in str(caught.value)


def test_a_gap_in_the_layers_is_refused() -> None:
    shapes = tiny.shapes(Tiny(layers=("MlaWithMlp",) * 3))
    kept = {n: shape for n, shape in shapes.items() if not n.startswith("layers.1.")}
    with pytest.raises(CheckpointError, match="layer 1 is missing"):
        OXIDIZR.derive(tiny.from_shapes(kept))


def test_a_layer_number_of_nine_digits_costs_nothing() -> None:
    shapes = tiny.shapes(Tiny()) | {"layers.999999999.norm.weight": (32,)}
    with pytest.raises(CheckpointError, match="layer 2 is missing"):
        OXIDIZR.derive(tiny.from_shapes(shapes))


def test_no_layers_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no layers"):
        OXIDIZR.derive(tiny.from_shapes({"embed_tokens.weight": (4, 4)}))


def test_an_unknown_layer_lists_what_it_holds() -> None:
    shapes = {"embed_tokens.weight": (4, 4), "layers.0.rwkv.weight": (4, 4)}
    with pytest.raises(CheckpointError, match=r"q_proj\.weight is missing") as caught:
        OXIDIZR.derive(tiny.from_shapes(shapes))
    assert "rwkv.weight" in caught.value.found


@pytest.mark.parametrize("name", ["embed_tokens.weight", "layers.0.mamba2.mixer.A_log"])
def test_empty_tensors_are_refused(name: str) -> None:
    shapes = tiny.shapes(Tiny(layers=("Mamba2",), tied=True))
    emptied = {
        n: (0, *s[1:]) if n.rpartition(".")[0] == name.rpartition(".")[0] else s
        for n, s in shapes.items()
    }
    with pytest.raises(CheckpointError, match="is empty"):
        OXIDIZR.derive(tiny.from_shapes(emptied))


def test_heads_that_cannot_share_are_refused() -> None:
    model = Tiny(layers=("StandardTransformer",), num_heads=4, num_kv_heads=3)
    with pytest.raises(ShapeError, match="4 heads cannot share 3"):
        OXIDIZR.derive(tiny.checkpoint(model, tiny.config(model)))


def test_channels_that_cannot_be_cut_into_heads_are_refused() -> None:
    shapes = tiny.shapes(Tiny(layers=("Mamba2",)))
    fives = {f"layers.0.mamba2.mixer.{name}": (5,) for name in ("A_log", "D", "dt_bias")}
    with pytest.raises(ShapeError, match="64 channels cannot be cut into 5 heads"):
        OXIDIZR.derive(tiny.from_shapes(shapes | fives))
