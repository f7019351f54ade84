"""Images in chats: the same scores as transformers gives, whatever runs beside them."""

from __future__ import annotations

import copy
import io
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from blazr import LLM, SamplingParams
from blazr.core.errors import CheckpointError, RequestError
from blazr.llm.generation import as_message
from blazr.llm.results import Completion
from blazr.models.loading.convert import convert
from blazr.nn.operands.step import GRID
from blazr.text.images import Sound
from tests.support import vision_models

pytestmark = pytest.mark.sample

PICTURES = [
    vision_models.picture(31, 17, 1),
    vision_models.picture(90, 33, 2),
    vision_models.picture(28, 57, 3),
]
OPTIONS = {"device": "cpu", "dtype": "float32", "memory": "64MiB", "max_seq_len": 640}
GREEDY = SamplingParams(temperature=0, max_tokens=6, logprobs=0, prompt_logprobs=0, ignore_eos=True)
REUSING = SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)
_INPUTS = {"pixel_values", "image_sizes", "pixel_attention_mask", "spatial_shapes"}
_INPUTS |= {"image_grid_thw", "mm_token_type_ids", "token_type_ids", "batch_num_images"}
_INPUTS |= {"input_features", "input_features_mask", "feature_attention_mask"}


@dataclass
class Pair:
    """A case: the library's model, the same in float64, a processor, its place, what it takes."""

    name: str
    theirs: nn.Module
    exact: nn.Module
    processor: Any
    directory: Path
    things: Sequence[bytes]

    def inputs(self, text: str, images: Sequence[bytes]) -> dict[str, Tensor]:
        """What the library's network takes of a chat."""
        if isinstance(self.things[0], Sound):
            return self._heard(text, images)
        pixels = [Image.open(io.BytesIO(data)).convert("RGB") for data in images]
        if self.theirs.config.model_type == "paligemma":
            return self._read_ahead(text, pixels)
        found = self.processor(
            text=[text],
            images=[pixels] if pixels else None,
            return_tensors="pt",
            add_special_tokens=False,
            return_mm_token_type_ids=False,
        )
        return dict(found)

    def _read_ahead(self, text: str, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """The same of a chat with images wherever it has them: PaliGemma's begin with all."""
        mark, processor = self.processor.image_token, self.processor.image_processor
        text = text.replace(mark, mark * processor.image_seq_length)
        ids = self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        batch = {"input_ids": torch.tensor([ids])}
        if images:
            batch["pixel_values"] = processor(images, return_tensors="pt")["pixel_values"]
        return batch

    def _heard(self, text: str, sounds: Sequence[bytes]) -> dict[str, Tensor]:
        """The same of sounds, each by itself: not every processor takes several for a text."""
        mark = self.processor.audio_token
        parts: list[dict[str, Tensor]] = []
        for data in sounds:
            samples = soundfile.read(io.BytesIO(data), dtype="float32")[0]
            part = self.processor(text=[mark], audio=[samples], return_tensors="pt")
            text = text.replace(mark, "*" * part["input_ids"].shape[1], 1)
            parts.append({name: each for name, each in part.items() if "features" in name})
            parts[-1] |= {k: v for k, v in part.items() if k == "feature_attention_mask"}
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(self.directory)
        ids = tokenizer(text.replace("*", mark), add_special_tokens=False)
        whole = {"input_ids": torch.tensor([ids["input_ids"]])}
        return whole | {
            name: torch.cat([each[name] for each in parts]) for name in [*parts[:1], {}][0]
        }

    def scores(self, text: str, images: Sequence[bytes], reply: Sequence[int]) -> list[Tensor]:
        """Of a chat and its reply, log-probabilities after each token, as both models have them."""
        batch = self.inputs(text, images)
        self.ids = [*batch["input_ids"][0].tolist(), *reply]
        del batch["input_ids"]
        config: Any = self.theirs.config
        marker = getattr(config, "image_token_id", None)
        is_image = torch.tensor([[each == marker for each in self.ids]]).int()
        if "image_grid_thw" in batch:
            batch["mm_token_type_ids"] = is_image
        if config.model_type == "gemma3":
            batch["token_type_ids"] = is_image
        if config.model_type == "paligemma" and images:
            num_prompt = len(self.ids) - len(reply)
            batch["token_type_ids"] = (torch.arange(len(self.ids)) >= num_prompt).int()[None]
        inputs = {name: value for name, value in batch.items() if name in _INPUTS}
        return vision_models.scores_of(self.theirs, self.exact, self.ids, inputs)


@pytest.fixture(scope="module", params=vision_models.CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp(request.param)
    theirs, processor = vision_models.save(request.param, directory)
    things: Sequence[bytes] = PICTURES
    if vision_models.CASES[request.param].hears:
        things = [Sound(vision_models.sound(length, 1)) for length in (0.31, 0.86, 0.13)]
    return Pair(request.param, theirs, copy.deepcopy(theirs).double(), processor, directory, things)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    directory = tmp_path_factory.mktemp("llava")
    vision_models.save("llava", directory)
    with LLM(str(directory), **OPTIONS) as llm:
        yield llm


def chat(images: Sequence[bytes], *, before: str = "Look: ") -> list[dict[str, object]]:
    parts: list[dict[str, object]] = [{"type": "text", "text": before}]
    for data in images:
        kind = "audio" if isinstance(data, Sound) else "image"
        parts += [{"type": kind, kind: data}, {"type": "text", "text": " and "}]
    return [{"role": "user", "content": parts}]


def check(pair: Pair, llm: LLM, images: Sequence[bytes], found: Completion) -> None:
    """Every token of prompt and reply has the log-probability that transformers gives it."""
    assert llm.core.template is not None
    assert len(found.logprobs or ()) == GREEDY.max_tokens
    text = llm.core.template.render([as_message(each) for each in chat(images)])
    scores = pair.scores(text, images, found.token_ids)
    assert found.usage.prompt_tokens == len(pair.ids) - len(found.token_ids)
    num_known = len(found.prompt_logprobs or ()) + len(found.logprobs or ())
    vision_models.check_scores(found, pair.ids, scores, first=len(pair.ids) - num_known)


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_transformers_gives_the_same_scores(pair: Pair, turn: int) -> None:
    """With 0, 1 and 3 images of odd sizes: alone, beside strangers, cut, from cached prefixes.

    Models take turns with whether a step has room for an image.
    """
    sights = [pair.things[:count] for count in (0, 1, 3)]
    budget = (256, 19)[([*vision_models.CASES].index(pair.name) + turn) % 2]
    with LLM(str(pair.directory), token_budget=budget, **OPTIONS) as llm:
        alone = [llm.chat(chat(images), GREEDY) for images in sights]
        for images, found in zip(sights, alone, strict=True):
            check(pair, llm, images, found)
        strangers = [[{"role": "user", "content": "x" * count}] for count in (3, 40, 90)]
        unseen = [llm.chat(each, REUSING) for each in strangers]
        llm.core.engine.forget_prefixes()
        chats = [each for both in zip(map(chat, sights), strangers, strict=True) for each in both]
        company = llm.chat(chats, REUSING)
        again = llm.chat(chats, REUSING)
    for found in (company, again):
        assert [each.token_ids for each in found[::2]] == [each.token_ids for each in alone]
        assert [each.logprobs for each in found[::2]] == [each.logprobs for each in alone]
        assert [each.logprobs for each in found[1::2]] == [each.logprobs for each in unseen]
    assert again[4].usage.cached_tokens >= again[4].usage.prompt_tokens - GRID


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_files_as_they_were_first_published(name: str, tmp_path: Path) -> None:
    """One config for all, other names of tensors, and a file for the images' processor alone."""
    vision_models.save(name, tmp_path)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        wanted = llm.chat(chat(PICTURES[:1]), REUSING)
    path = tmp_path / "model.safetensors"
    tensors = {
        key.replace("model.language_model.", "model.").replace("model.visual.", "visual."): tensor
        for key, tensor in load_file(path).items()
    }
    save_file(tensors, path)
    path = tmp_path / "config.json"
    whole = json.loads(path.read_text())
    text = whole.pop("text_config")
    rope = text.pop("rope_parameters")
    rope = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    path.write_text(json.dumps({**text, **whole, "rope_theta": 10_000.0, "rope_scaling": rope}))
    path = tmp_path / "processor_config.json"
    own = json.loads(path.read_text())
    path.unlink()
    images = own["image_processor"]
    size = images.pop("size")
    images |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    images |= {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": own["processor_class"],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert llm.chat(chat(PICTURES[:1]), REUSING).logprobs == wanted.logprobs


def test_a_prefix_is_shared_up_to_the_first_other_image(llava: LLM) -> None:
    start = "A long instruction that fills several blocks of the prefix cache. " * 2
    end = [{"role": "user", "content": "What is it? " * 6}]
    one, other = ([*chat([each], before=start), *end] for each in PICTURES[:2])
    first, second = llava.chat(one, REUSING), llava.chat(other, REUSING)
    assert first.logprobs != second.logprobs
    before = len(start) // GRID * GRID
    assert second.usage.cached_tokens <= before + GRID
    assert llava.chat(one, REUSING).usage.cached_tokens > before
    assert llava.chat(one, REUSING).logprobs == first.logprobs


def test_the_next_turn_begins_where_the_last_ended(llava: LLM) -> None:
    asked = chat(PICTURES[:2])
    said = llava.chat(asked, REUSING)
    turn = [*asked, {"role": "assistant", "content": said.text}, {"role": "user", "content": "?"}]
    found = llava.chat(turn, REUSING)
    assert found.usage.cached_tokens >= said.usage.prompt_tokens // GRID * GRID
    # another image in the same words is another chat
    other = [*chat([PICTURES[0], PICTURES[2]]), *turn[1:]]
    assert llava.chat(other, REUSING).logprobs != found.logprobs


def test_what_a_client_writes_is_no_image(llava: LLM) -> None:
    message = [{"role": "user", "content": "<image> is a word"}]
    assert llava.chat(message, REUSING).finish_reason == "length"
    parts = [{"type": "text", "text": "<image>"}, {"type": "image", "image": PICTURES[0]}]
    assert llava.chat([{"role": "user", "content": parts}], REUSING).finish_reason == "length"


def test_the_oldest_turns_go_with_their_images(llava: LLM) -> None:
    turns = []
    for picture in PICTURES * 12:
        turns += [*chat([picture]), {"role": "assistant", "content": "yes"}]
    found = llava.chat([*turns, *chat(PICTURES[:1])], REUSING, truncation="auto")
    assert 0 < found.num_dropped_messages < len(turns)
    assert found.usage.prompt_tokens < 640
    with pytest.raises(RequestError, match=r"context|images"):
        llava.chat([*turns, *chat(PICTURES[:1])], REUSING)


def _gif() -> bytes:
    file = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def _blank(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


def _bomb() -> bytes:
    """A small file whose header says that it is 50,000 by 50,000 pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    header = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + header + vision_models.picture(8, 8)[33:]


BAD = {
    "cut": (PICTURES[0][: len(PICTURES[0]) // 2], "cannot be read"),
    "damaged": (PICTURES[0][:60] + bytes(40) + PICTURES[0][100:], "cannot be read"),
    "text": (b"hello", "cannot be read"),
    "empty": (b"", "cannot be read"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be read"),
    "bmp": (vision_models.picture(8, 8, kind="BMP"), "cannot be read"),
    "animated": (_gif(), "animated"),
    "bomb": (_bomb(), "cannot be read|too many pixels"),
    "wide": (_blank(8000, 6000), "too many pixels"),
    "large": (bytes(21 * 2**20), "too large"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_is_refused(llava: LLM, name: str) -> None:
    data, message = BAD[name]
    with pytest.raises(RequestError, match=message):
        llava.chat(chat([data]), REUSING)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF"])
def test_other_formats(llava: LLM, kind: str) -> None:
    found = llava.chat(chat([vision_models.picture(20, 30, kind=kind)]), REUSING)
    assert found.usage.prompt_tokens > 16


def test_a_file_by_its_path(llava: LLM, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(PICTURES[0])
    message = chat([PICTURES[0]])
    wanted = llava.chat(message, REUSING)
    message[0]["content"][1] = {"type": "image", "image": str(path)}  # type: ignore[index]
    assert llava.chat(message, REUSING).logprobs == wanted.logprobs
    with pytest.raises(RequestError, match="No such file"):
        llava.chat([{"role": "user", "content": [{"type": "image", "image": "none"}]}])


def test_images_of_extreme_forms_are_seen_or_refused(pair: Pair) -> None:
    if isinstance(pair.things[0], Sound):
        pytest.skip("it takes sounds")
    with LLM(str(pair.directory), **OPTIONS) as llm:
        for size in ((1, 1), (1, 2000), (2000, 1), (2, 5), (200, 3)):
            message = ""
            try:
                llm.chat(chat([vision_models.picture(*size)]), REUSING)
            except RequestError as error:
                message = error.message
            assert message in {"", "this model cannot take an image of this size."}, size


def test_where_the_library_fails_the_image_is_refused(tmp_path: Path) -> None:
    vision_models.save("llava", tmp_path)
    config = tmp_path / "processor_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "patch_size": 14}))
    with LLM(str(tmp_path), **OPTIONS) as llm:
        with pytest.raises(RequestError, match="of this size"):
            llm.chat(chat(PICTURES[:1]), REUSING)
        assert llm.chat(chat([]), REUSING).finish_reason == "length"


def test_too_many_images(llava: LLM) -> None:
    with pytest.raises(RequestError, match="too many images"):
        llava.chat(chat(PICTURES[:1] * 33), REUSING)


@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_a_converted_model_takes_images(tmp_path: Path, quantize: str | None) -> None:
    """Its tower and its processor were left out."""
    vision_models.save("llava", tmp_path / "model")
    convert(str(tmp_path / "model"), tmp_path / "out", quantize=quantize)
    asked = chat([vision_models.picture(40, 30)])
    with LLM(str(tmp_path / "model"), **OPTIONS) as llm:
        expected = llm.chat(asked, GREEDY)
    with LLM(str(tmp_path / "out"), **OPTIONS) as llm:
        found = llm.chat(asked, GREEDY)
    assert found.usage.prompt_tokens == expected.usage.prompt_tokens
    if quantize is None:
        assert found.token_ids == expected.token_ids


def test_a_text_model_takes_none() -> None:
    llm = LLM("nano", device="cpu", memory="64MiB")
    with llm, pytest.raises(RequestError, match="reads only text"):
        llm.chat(chat(PICTURES[:1]), REUSING)


def test_a_tower_that_lacks_tensors(tmp_path: Path) -> None:
    vision_models.save("llava", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors[next(name for name in tensors if "multi_modal_projector" in name)]
    save_file(tensors, path)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert llm.chat(chat([]), REUSING).finish_reason == "length"
        with pytest.raises(CheckpointError, match="missing"):
            llm.chat(chat(PICTURES[:1]), REUSING)


def test_a_model_without_a_processor(tmp_path: Path) -> None:
    vision_models.save("llava", tmp_path)
    (tmp_path / "processor_config.json").unlink()
    config = tmp_path / "tokenizer_config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps({k: v for k, v in said.items() if k != "processor_class"}))
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert llm.chat(chat([]), REUSING).finish_reason == "length"
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            llm.chat(chat(PICTURES[:1]), REUSING)
