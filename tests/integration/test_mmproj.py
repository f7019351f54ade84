"""GGUF models that see: the same scores as transformers gives the model they were made of."""

from __future__ import annotations

import base64
import copy
from pathlib import Path

import pytest
import torch

from blazr import LLM
from blazr.core.errors import BlazrError, CheckpointError, ConfigError, RequestError
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.integration.test_images import GREEDY, OPTIONS, PICTURES, REUSING, Pair, chat, check
from tests.support import ggufs, mmproj, vision_models
from tests.support.loopback import serving

KINDS = ("gemma3", "idefics3", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def made(name: str, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A random model, its twin, and its two files."""
    directory = tmp_path_factory.mktemp(name)
    theirs, processor = vision_models.save(name, directory)
    target = directory.with_name(f"{directory.name} as gguf")
    mmproj.write(theirs, directory, target)
    return Pair(name, theirs, copy.deepcopy(theirs).double(), processor, target, PICTURES)


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return made(request.param, tmp_path_factory)


def test_transformers_gives_the_same_scores(pair: Pair) -> None:
    """With 0, 1 and 3 images: alone, and beside strangers."""
    with LLM(str(pair.directory), **OPTIONS) as llm:
        alone = [llm.chat(chat(PICTURES[:count]), GREEDY) for count in (0, 1, 3)]
        for count, found in zip((0, 1, 3), alone, strict=True):
            check(pair, llm, PICTURES[:count], found)
        strangers = [[{"role": "user", "content": "x" * count}] for count in (3, 90)]
        chats = [chat(PICTURES[:1]), strangers[0], chat(PICTURES), strangers[1]]
        together = llm.chat(chats, REUSING)
    assert [each.token_ids for each in together[::2]] == [each.token_ids for each in alone[1:]]
    assert [each.logprobs for each in together[::2]] == [each.logprobs for each in alone[1:]]


def test_names_of_older_converters(pair: Pair, tmp_path: Path) -> None:
    """The tower's feed-forward matrices had each other's names, and numbers had two bytes."""
    source = pair.directory.with_name(pair.directory.name.removesuffix(" as gguf"))
    mmproj.write(pair.theirs, source, tmp_path / "swapped", swaps=True)
    mmproj.write(pair.theirs, source, tmp_path / "halves", encode=lambda each: each.half())
    asked, found = chat(PICTURES[:2]), []
    for directory in (pair.directory, tmp_path / "swapped", tmp_path / "halves"):
        with LLM(str(directory), **OPTIONS) as llm:
            found.append(llm.chat(asked, GREEDY))
    whole, swapped, halves = ((answer.logprobs or ())[0].logprob for answer in found)
    assert whole == swapped
    assert whole != halves
    assert whole == pytest.approx(halves, abs=0.05)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("gemma3", tmp_path_factory).directory


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip.projector_type": "resampler"}, "unknown kind of mmproj file 'resampler'"),
        ({"clip.vision.projection_dim": 25}, "is of another model"),
        ({"general.architecture": "llama"}, "is no mmproj file"),
    ],
)
def test_what_cannot_be_read_is_refused_where_it_was_asked_for(
    gemma: Path,
    tmp_path: Path,
    changes: dict[str, object],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tensors, found = mmproj.read(gemma / "mmproj.gguf")
    (tmp_path / "model.gguf").write_bytes((gemma / "model.gguf").read_bytes())
    path = ggufs.write(tmp_path / "mmproj.gguf", tensors, found | changes)
    with pytest.raises(BlazrError, match=message):
        LLM(str(gemma), mmproj=str(path), **OPTIONS)
    with LLM(str(tmp_path), **OPTIONS) as llm:  # one that lies there is left out
        assert message in caplog.text
        assert llm.chat(chat(()), REUSING).finish_reason == "length"
        with pytest.raises(RequestError, match="reads only text"):
            llm.chat(chat(PICTURES[:1]), REUSING)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip.vision.image_mean": [0.5, 0.5]}, "image_mean"),
        ({"clip.vision.attention.head_count": 2**30}, "head_count"),
        ({"clip.vision.projector.scale_factor": 0}, "scale_factor"),
        ({"v.patch_embd.weight": None}, "v.patch_embd.weight"),
        (
            {"mm.soft_emb_norm.weight": None},
            "1 tensors of the part that takes an image are missing",
        ),
        ({"v.blk.1.ln1.weight": None}, "missing"),
        ({"v.position_embd.weight": torch.zeros(10**6, 16)}, "cannot be loaded|too large"),
        (
            {"v.blk.0.attn_q.weight": torch.zeros(3, 3)},
            r"another shape(?s:.)*q_proj.weight \[3, 3\]",
        ),
    ],
)
def test_spoiled_files(
    gemma: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    """They are read with the first image; text is answered all the same."""
    tensors, found = mmproj.read(gemma / "mmproj.gguf")
    for name, value in changes.items():
        (found if name.startswith("clip.") else tensors)[name] = value
    tensors = {name: value for name, value in tensors.items() if value is not None}
    path = ggufs.write(tmp_path / "mmproj-x.gguf", tensors, found)
    with LLM(str(gemma / "model.gguf"), mmproj=str(path), **OPTIONS) as llm:
        for _ in range(2):
            with pytest.raises(CheckpointError, match=message):
                llm.chat(chat(PICTURES[:1]), REUSING)
            assert llm.chat(chat(()), REUSING).finish_reason == "length"


def test_a_directory_has_the_file(gemma: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes((gemma / path.name).read_bytes())
    with LLM(str(path), mmproj=str(gemma), **OPTIONS) as llm:
        assert llm.chat(chat(PICTURES[:1]), REUSING).finish_reason == "length"
    with pytest.raises(CheckpointError, match="has no mmproj file"):
        LLM(str(path), mmproj=str(tmp_path), **OPTIONS)
    with pytest.raises(CheckpointError, match="no model at"):
        LLM(str(path), mmproj=str(tmp_path / "mmproj.gguf"), **OPTIONS)


def test_only_gguf_models_have_such_files(gemma: Path) -> None:
    with pytest.raises(ConfigError, match="GGUF"):
        LLM("nano", mmproj=str(gemma / "mmproj.gguf"), device="cpu", memory="24MiB")


def test_a_server_shows_pictures_to_a_gguf_model(gemma: Path) -> None:
    options = LoadOptions(str(gemma), mmproj=str(gemma / "mmproj.gguf"), **OPTIONS)
    url = "data:image/png;base64," + base64.b64encode(PICTURES[0]).decode()
    with serving(load_text_engine(options)) as running, LLM(str(gemma), **OPTIONS) as llm:
        parts = [
            {"type": "text", "text": "Look: "},
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": " and "},
        ]
        body = {
            "messages": [{"role": "user", "content": parts}],
            "max_tokens": 6,
            "temperature": 0,
            "ignore_eos": True,
        }
        reply = running.client.post("/v1/chat/completions", json=body).json()
        expected = llm.chat(chat(PICTURES[:1]), REUSING)
    assert reply["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    assert reply["choices"][0]["message"]["content"] == expected.text
