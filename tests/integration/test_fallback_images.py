"""Images in models that run through transformers whole."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from blazr import LLM, SamplingParams
from blazr.core.errors import CheckpointError, RequestError, UnknownFamilyError
from blazr.llm.generation import as_message
from tests.support import vision_models

KINDS = ("vipllava", "glm46v", "llava of another")
OPTIONS: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
PICTURES = [
    vision_models.picture(31, 17, 1),
    vision_models.picture(90, 33, 2),
    vision_models.picture(28, 57, 3),
]
GREEDY = SamplingParams(temperature=0, max_tokens=6, logprobs=0, prompt_logprobs=0, ignore_eos=True)


def chat(images: Sequence[bytes]) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = [{"type": "text", "text": "Look: "}]
    for data in images:
        parts += [{"type": "image", "image": data}, {"type": "text", "text": " and "}]
    return [{"role": "user", "content": parts}]


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of GLM's processor
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_gives_the_same_scores(kind: str, tmp_path: Path) -> None:
    """With 0, 1 and 3 images of odd sizes, alone and beside others."""
    theirs, processor = vision_models.save(kind, tmp_path, vision_models.WHOLE)
    library: Any = processor
    exact = copy.deepcopy(theirs).double()
    with LLM(str(tmp_path), **OPTIONS) as llm:
        chats = [chat(PICTURES[:count]) for count in (0, 1, 3)]
        alone = [llm.chat(each, GREEDY) for each in chats]
        company = llm.chat(chats, GREEDY)
        assert llm.core.template is not None
        texts = [llm.core.template.render([as_message(m) for m in each]) for each in chats]
    for count, text, found, beside in zip((0, 1, 3), texts, alone, company, strict=True):
        assert beside.token_ids == found.token_ids
        pixels = [Image.open(io.BytesIO(data)).convert("RGB") for data in PICTURES[:count]]
        batch = library(
            text=[text],
            images=[pixels] if pixels else None,
            add_special_tokens=False,
            return_tensors="pt",
        )
        ids = [*batch.pop("input_ids")[0].tolist(), *found.token_ids]
        del batch["attention_mask"]
        for name in [each for each in batch if each.endswith("token_type_ids")]:
            behind = torch.zeros(1, len(found.token_ids), dtype=torch.int64)
            batch[name] = torch.cat((batch[name], behind), 1)
        vision_models.check_scores(found, ids, vision_models.scores_of(theirs, exact, ids, batch))


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    vision_models.save("vipllava", tmp_path, vision_models.WHOLE)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        with pytest.raises(RequestError, match="cannot be read"):
            llm.chat(chat([b"hello"]), GREEDY)
        with pytest.raises(RequestError, match="reads only text and image files"):
            llm.chat([{"role": "user", "content": [{"type": "video", "video": PICTURES}]}], GREEDY)
        assert llm.chat(chat(PICTURES[:1]), GREEDY).finish_reason == "length"


def test_a_model_without_a_processor(tmp_path: Path) -> None:
    vision_models.save("vipllava", tmp_path, vision_models.WHOLE)
    (tmp_path / "processor_config.json").unlink()
    config = tmp_path / "tokenizer_config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps({k: v for k, v in said.items() if k != "processor_class"}))
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert llm.chat(chat([]), GREEDY).finish_reason == "length"
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            llm.chat(chat(PICTURES[:1]), GREEDY)


def test_an_encoder_with_a_decoder_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model("pix2struct")
    for part in (config.text_config, config.vision_config):
        part.hidden_size = part.d_kv = part.d_ff = 8
        part.num_layers = part.num_hidden_layers = part.num_heads = 1
        part.num_attention_heads = 1
    config.text_config.vocab_size = 97
    transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UnknownFamilyError, match="cannot load"):
        LLM(str(tmp_path), **OPTIONS)
