"""A GGUF file from end to end: text in, text out, alone and in company, packed and not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from blazr.core.errors import UnknownNameError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.llm import LLM
from tests.support import tiny
from tests.support.tiny import Tiny

GOLDEN = Path(__file__).parent.parent / "golden" / "gguf"
GREEDY = SamplingParams(max_tokens=24, temperature=0)


@pytest.fixture(scope="module", params=["q8_0", "q4_0"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(str(GOLDEN / f"stories260K-{request.param}.gguf"), device="cpu") as opened:
        yield opened


def test_it_speaks_its_own_vocabulary(llm: LLM) -> None:
    assert llm.tokenizer.size == 512
    assert llm.tokenizer.bos_id == 1
    assert llm.core.info.adds_bos
    (reply,) = llm.generate("Once upon a time", GREEDY)
    assert reply.text.startswith(", there was a ")
    assert reply.usage.prompt_tokens == 1 + len(llm.tokenizer.encode("Once upon a time"))


def test_company_changes_nothing(llm: LLM) -> None:
    cases = json.loads((GOLDEN / "greedy.json").read_text())["cases"]
    prompts = [case["prompt_ids"] for case in cases]
    alone = [llm.generate(prompt, GREEDY)[0].text for prompt in prompts]
    assert [each.text for each in llm.generate(prompts, GREEDY)] == alone


def test_packing_while_loading(tmp_path: Path) -> None:
    model = tiny.save(Tiny(layers=("Mamba2", "MlaWithMoe", "StandardTransformer")), tmp_path / "m")
    sizes = {}
    for quantize in (None, "q8_0", "q4_0", "experts=q4_0,lm_head=q8_0"):
        with LLM(str(model), device="cpu", quantize=quantize) as llm:
            assert len(llm.generate([[1, 2, 3]], GREEDY)) == 1
            sizes[quantize] = llm.core.info.size_bytes
            numbers = llm.core.info.num_parameters
    assert sizes["q4_0"] < sizes["q8_0"] < sizes[None] == 4 * numbers
    assert sizes["q4_0"] < sizes["experts=q4_0,lm_head=q8_0"] < sizes[None]


def test_an_unknown_quantization_is_told_at_once() -> None:
    with pytest.raises(UnknownNameError, match="q3_9"):
        LLM("nano", quantize="q3_9")
