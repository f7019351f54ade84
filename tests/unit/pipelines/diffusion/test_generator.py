"""Images have the size and the number that is asked for; the same seed gives the same bytes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blazr.core.errors import CheckpointError, RequestError
from blazr.models.checkpoint.open import ModelFiles
from blazr.nn.device import resolve_device
from blazr.pipelines.diffusion.generation import (
    ImageEvent,
    ImageMade,
    ImageRequest,
    PartialImage,
    StepDone,
)
from blazr.pipelines.diffusion.generator import ImageGenerator
from blazr.pipelines.jobs import JobEndedError
from blazr.pipelines.kinds import IMAGE, kind_of
from tests.support import diffusion_pipelines
from tests.support.diffusion_pipelines import picture, size_of

pytestmark = diffusion_pipelines.NEEDS_IMAGE
SAVE: dict[str, Callable[[Path], None]] = {
    "stable-diffusion": diffusion_pipelines.save_stable_diffusion,
    "stable-diffusion-xl": diffusion_pipelines.save_stable_diffusion_xl,
    "flux": diffusion_pipelines.save_flux,
    "stable-diffusion-3": diffusion_pipelines.save_stable_diffusion_3,
    "qwen-image": diffusion_pipelines.save_qwen_image,
}
ASKED = ImageRequest(prompt="a red ball", steps=3, seed=3, size=(64, 64))


class Made:
    """What was made, until a number of steps were."""

    def __init__(self, ends_after: int | None = None) -> None:
        self.events: list[ImageEvent] = []
        self.ends_after = ends_after

    def emit(self, item: ImageEvent) -> None:
        self.events.append(item)

    def check(self) -> None:
        if self.ends_after is not None and self.num_steps >= self.ends_after:
            raise JobEndedError

    @property
    def num_steps(self) -> int:
        return sum(isinstance(each, StepDone) for each in self.events)

    @property
    def images(self) -> list[ImageMade]:
        return [each for each in self.events if isinstance(each, ImageMade)]


def load(path: Path) -> ImageGenerator:
    kind = kind_of(path)
    assert kind is not None
    assert kind.capabilities == (IMAGE,)
    found = kind.load(ModelFiles("image", path), device=resolve_device("cpu"), dtype="auto")
    assert isinstance(found, ImageGenerator)
    return found


# Some make larger images than these tests have time for in every run.
_SLOW = {"stable-diffusion-3", "qwen-image"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in _SLOW else ()) for name in SAVE],
)
def generator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ImageGenerator]:
    place = tmp_path_factory.mktemp("models") / request.param
    SAVE[request.param](place)
    found = load(place)
    for file in place.rglob("*"):  # nothing is read from it any more
        if file.is_file():
            file.write_bytes(b"")
    yield found
    found.close()


def make(generator: ImageGenerator, **more: object) -> Made:
    made = Made()
    generator.generate(replace(ASKED, **more), made)
    return made


def test_sizes_counts_and_seeds(generator: ImageGenerator) -> None:
    state = torch.get_rng_state()
    two = make(generator, num_images=2).images
    assert [each.image for each in two] == [0, 1]
    assert [size_of(each.data) for each in two] == [(64, 64)] * 2
    assert two[0].data != two[1].data
    own = make(generator, size=None, num_partial=1).events
    # two of them say that they are 128 latents wide
    side = 256 if generator.info.family in {"FluxPipeline", "QwenImagePipeline"} else 64
    shown = [each for each in own if not isinstance(each, StepDone)]
    assert [size_of(each.data) for each in shown] == [(side, side)] * 2
    wide = make(generator, size=(96, 64), form="jpeg").images[0]
    assert size_of(wide.data, "JPEG") == wide.size == (96, 64)
    # the same seed, the same bytes, whatever came between them and beside them
    assert make(generator).images[0].data == two[0].data
    assert make(generator, seed=4).images[0].data == two[1].data
    assert make(generator, prompt="a green cube").images[0].data != two[0].data
    assert torch.equal(torch.get_rng_state(), state)


def test_who_leaves_ends_the_work_between_two_steps(generator: ImageGenerator) -> None:
    whole = make(generator, num_images=2)
    assert whole.num_steps == 6
    left = Made(ends_after=2)
    with pytest.raises(JobEndedError):
        generator.generate(ASKED, left)
    assert left.num_steps == 2
    assert not left.images
    assert make(generator).images[0].data == whole.images[0].data


def test_unfinished_images_come_before_the_finished_one(generator: ImageGenerator) -> None:
    made = make(generator, steps=4, num_partial=3, size=(64, 96))
    shown = [each for each in made.events if not isinstance(each, StepDone)]
    assert [type(each) for each in shown] == [PartialImage] * 3 + [ImageMade]
    assert [each.index for each in shown if isinstance(each, PartialImage)] == [0, 1, 2]
    assert {size_of(each.data) for each in shown} == {(64, 96)}
    assert len({each.data for each in shown}) == 4
    assert make(generator, steps=4, size=(64, 96)).images[0].data == shown[-1].data
    assert len(make(generator, steps=1, num_partial=3).events) == 2  # there is nothing before it


def test_the_last_unfinished_state_is_the_image(
    generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "blazr.pipelines.diffusion.generator._partial_steps", lambda num_steps, _: [num_steps]
    )
    made = make(generator, num_partial=1)
    (shown,) = (each for each in made.events if isinstance(each, PartialImage))
    assert shown.data == made.images[0].data


def test_images_are_edited(generator: ImageGenerator) -> None:
    source = picture((100, 130))
    given = {"source": source, "size": None, "steps": 4}
    edited = make(generator, **given).images[0]
    assert size_of(edited.data) == (96, 128)  # what comes nearest
    assert make(generator, **given).images[0].data == edited.data
    shown = make(generator, **{**given, "steps": 8, "num_partial": 1}).events
    assert {e.size for e in shown if isinstance(e, PartialImage)} == {(96, 128)}
    other = {**given, "source": picture((100, 130), hole=(0, 0, 50, 50))}
    assert make(generator, **other).images[0].data != edited.data
    mask = picture((100, 130), hole=(0, 0, 50, 130))
    part = make(generator, **{**given, "mask": mask, "size": (64, 64)}).images[0]
    assert size_of(part.data) == (64, 64)
    for wrong, param in (
        ({"source": source, "steps": 1}, "steps"),
        ({"source": b"no image"}, "image"),
        ({"source": source, "mask": picture((64, 64), hole=(0, 0, 9, 9))}, "mask"),
        ({"source": source, "mask": picture((100, 130))}, "mask"),
    ):
        with pytest.raises(RequestError) as caught:
            make(generator, **{"steps": 4, **wrong})
        assert caught.value.param == param


@pytest.fixture
def place(tmp_path: Path) -> Path:
    diffusion_pipelines.save_stable_diffusion(tmp_path / "model")
    return tmp_path / "model"


class Exploding:
    def __reduce__(self) -> object:
        return (pytest.fail, ("a pickle was opened",))


def test_pickles_and_code_are_never_read(place: Path) -> None:
    bomb = pickle.dumps(Exploding())
    for folder, name in (("unet", "diffusion_pytorch_model"), ("text_encoder", "pytorch_model")):
        (place / folder / f"{name}.bin").write_bytes(bomb)
        (place / folder / "adapter_model.bin").write_bytes(bomb)
        (place / folder / "unet.py").write_text("raise SystemError")
    load(place).close()
    (place / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        load(place)


@pytest.mark.parametrize(
    "change",
    [
        {"_class_name": "os"},
        {"_class_name": ["pipeline", "Own"]},
        {"_class_name": "StableAudioPipeline"},
        {"unet": ["subprocess", "Popen"]},
        {"unet": ["own_unet", "Own"]},
        {"unet": {"subprocess": 1, "Popen": 2}},
        {"unet": [1, 2]},
    ],
)
def test_indexes_that_name_something_else_are_refused(place: Path, change: dict) -> None:
    file = place / "model_index.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointError):
        load(place)


def test_a_guidance_that_would_be_left_out_is_refused(tmp_path: Path) -> None:
    diffusion_pipelines.save_flux(tmp_path / "schnell")
    generator = load(tmp_path / "schnell")
    with pytest.raises(RequestError) as caught:
        make(generator, guidance=3.5)
    assert caught.value.param == "guidance"
    generator.close()


def test_a_flux_kontext_makes_the_size_that_is_asked_for(tmp_path: Path) -> None:
    diffusion_pipelines.save_flux(tmp_path)
    rename(tmp_path, "FluxKontextPipeline")
    generator = load(tmp_path)
    made = make(generator, size=(96, 64), num_partial=1).events
    assert {e.size for e in made if isinstance(e, (PartialImage, ImageMade))} == {(96, 64)}
    generator.close()


def test_a_model_that_paints_within_masks_asks_for_one(tmp_path: Path) -> None:
    diffusion_pipelines.save_stable_diffusion(tmp_path, in_channels=9)
    rename(tmp_path, "StableDiffusionInpaintPipeline")
    generator = load(tmp_path)
    source = picture((64, 64))
    for given in ({}, {"source": source}):
        with pytest.raises(RequestError) as caught:
            make(generator, **given, steps=4)
        assert caught.value.param == "mask"
    mask = picture((64, 64), hole=(0, 0, 32, 64))
    assert make(generator, source=source, mask=mask).images
    generator.close()


def test_what_is_steered_by_another_image_is_refused(place: Path) -> None:
    rename(place, "StableDiffusionControlNetPipeline")
    with pytest.raises(CheckpointError, match="image of another kind"):
        load(place)


@pytest.mark.filterwarnings("ignore:The configuration file of this scheduler:FutureWarning")
def test_an_edit_leaves_the_scheduler_of_others_as_it_is(place: Path) -> None:
    import diffusers

    diffusers.PNDMScheduler(skip_prk_steps=False).save_pretrained(place / "scheduler")
    file = place / "model_index.json"
    index = json.loads(file.read_text()) | {"scheduler": ["diffusers", "PNDMScheduler"]}
    file.write_text(json.dumps(index))
    generator = load(place)
    before = make(generator, steps=6)
    make(generator, steps=6, source=picture((64, 64)), mask=picture((64, 64), hole=(0, 0, 9, 64)))
    after = make(generator, steps=6)
    assert after.num_steps == before.num_steps
    assert after.images[0].data == before.images[0].data
    generator.close()


def rename(place: Path, pipeline: str) -> None:
    """Give a saved pipeline another class of the library."""
    file = place / "model_index.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "_class_name": pipeline}))
