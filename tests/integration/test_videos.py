"""Videos in chats, as frames: the scores of transformers, whatever runs beside them."""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from blazr import LLM, SamplingParams
from blazr.core.errors import RequestError
from blazr.llm.generation import as_message
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support import vision_models
from tests.support.loopback import serving

CASES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "llava_onevision")
PICTURE = vision_models.picture(31, 17, 1)
FRAMES = [vision_models.picture(88, 40, seed) for seed in range(3)]
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "memory": "64MiB",
    "max_seq_len": 640,
}
GREEDY = SamplingParams(temperature=0, max_tokens=6, logprobs=0, prompt_logprobs=0, ignore_eos=True)
REUSING = SamplingParams(temperature=0, max_tokens=6, logprobs=0, ignore_eos=True)

needs_torchvision = pytest.mark.skipif(
    find_spec("torchvision") is None, reason="the processors of videos need torchvision"
)


def chat(frames: Sequence[bytes], *, picture: bytes | None = None) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = [{"type": "video", "video": frames}]
    parts.append({"type": "text", "text": "What then? "})
    if picture is not None:
        parts.append({"type": "image", "image": picture})
    return [{"role": "user", "content": parts}]


@needs_torchvision
@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of GLM's processor
@pytest.mark.parametrize("name", CASES)
def test_transformers_gives_the_same_scores(name: str, tmp_path: Path) -> None:
    """Of 3 frames, which the library makes 4 where it takes them in pairs, and an image."""
    theirs, processor = vision_models.save(name, tmp_path)
    library: Any = processor
    picture = None if name == "glm4v" else PICTURE  # its network takes one or the other
    messages = chat(FRAMES, picture=picture)
    stranger = [{"role": "user", "content": "x" * 40}]
    with LLM(str(tmp_path), token_budget=19, **OPTIONS) as llm:
        found = llm.chat(messages, GREEDY)
        other = llm.chat(chat(FRAMES[::-1], picture=picture), REUSING)
        llm.core.engine.forget_prefixes()
        company = llm.chat([messages, stranger], REUSING)[0]
        again = llm.chat([messages, stranger], REUSING)[0]
        assert llm.core.template is not None
        text = llm.core.template.render([as_message(each) for each in messages])
    assert found.token_ids == company.token_ids == again.token_ids
    assert found.logprobs == company.logprobs == again.logprobs
    assert other.logprobs != found.logprobs
    frames = [Image.open(io.BytesIO(data)).convert("RGB") for data in FRAMES]
    batch = library(
        text=[text],
        images=[[Image.open(io.BytesIO(picture)).convert("RGB")]] if picture else None,
        videos=[frames],
        video_metadata=[{"total_num_frames": 3, "fps": 1.0, "frames_indices": [0, 1, 2]}],
        do_sample_frames=False,
        add_special_tokens=False,
        return_tensors="pt",
    )
    ids = [*batch.pop("input_ids")[0].tolist(), *found.token_ids]
    batch.pop("attention_mask")
    kinds = batch.pop("mm_token_type_ids", None)
    if name != "llava_onevision":
        behind = torch.zeros(1, len(found.token_ids), dtype=torch.int64)
        batch["mm_token_type_ids"] = torch.cat((kinds, behind), 1)
    exact = copy.deepcopy(theirs).double()
    vision_models.check_scores(found, ids, vision_models.scores_of(theirs, exact, ids, batch))


def _black(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


@needs_torchvision
def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    vision_models.save("qwen2_vl", tmp_path)
    bad = {
        "cannot be read": [FRAMES[0], b"hello"],
        "several sizes": [FRAMES[0], PICTURE],
        "too many pixels": [_black(6000, 6000)] * 4,
    }
    with LLM(str(tmp_path), **OPTIONS) as llm:
        for message, frames in bad.items():
            with pytest.raises(RequestError, match=message):
                llm.chat(chat(frames), REUSING)
        assert llm.chat(chat(FRAMES[:1]), REUSING).finish_reason == "length"


@needs_torchvision
def test_a_server_shows_a_video(tmp_path: Path) -> None:
    vision_models.save("qwen2_vl", tmp_path)

    def body(frames: str) -> dict[str, object]:
        url = f"data:video/jpeg;base64,{frames}"
        parts = [
            {"type": "video_url", "video_url": {"url": url}},
            {"type": "text", "text": "What then? "},
        ]
        asked = {"messages": [{"role": "user", "content": parts}], "max_tokens": 6}
        return {**asked, "temperature": 0, "ignore_eos": True}

    frames = ",".join(base64.b64encode(each).decode() for each in FRAMES)
    options = LoadOptions(str(tmp_path), **OPTIONS)
    with serving(load_text_engine(options)) as running, LLM(str(tmp_path), **OPTIONS) as llm:
        post = partial(running.client.post, "/v1/chat/completions")
        reply = post(json=body(frames)).raise_for_status().json()
        expected = llm.chat(chat(FRAMES), REUSING)
        for wrong in ("", "AAAA", frames[:200], f"{frames},!"):
            assert post(json=body(wrong)).status_code == 400
    assert reply["choices"][0]["message"]["content"] == expected.text
    assert reply["usage"]["prompt_tokens"] == expected.usage.prompt_tokens


def test_a_model_that_takes_images_alone(tmp_path: Path) -> None:
    vision_models.save("llava", tmp_path)
    with (
        LLM(str(tmp_path), **OPTIONS) as llm,
        pytest.raises(RequestError, match="reads only text and image files"),
    ):
        llm.chat(chat(FRAMES), REUSING)


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
def test_what_has_to_be_installed_is_said(tmp_path: Path) -> None:
    vision_models.save("qwen2_vl", tmp_path)
    with (
        LLM(str(tmp_path), **OPTIONS) as llm,
        pytest.raises(RequestError, match="cannot read a video") as refused,
    ):
        llm.chat(chat(FRAMES), REUSING)
    assert refused.value.found == "torchvision not installed"
