"""Folding events: any order of replies, any cutting of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blazr.core.errors import RequestError
from blazr.llm.generation import as_prompts
from blazr.llm.results import Fold, fold, total_usage
from blazr.text.events import Finished, PromptDone, TextDelta

pytestmark = pytest.mark.smoke


def reply(index: int, pieces: list[str]) -> list:
    deltas = [TextDelta(index, piece, (number,)) for number, piece in enumerate(pieces)]
    return [PromptDone(index, 3, 1), *deltas, Finished(index, "stop", len(pieces))]


@given(st.lists(st.lists(st.text(), max_size=5), min_size=1, max_size=4), st.randoms())
def test_interleaving_changes_nothing(texts: list[list[str]], chance) -> None:
    queues = [reply(index, pieces) for index, pieces in enumerate(texts)]
    apart = fold([event for queue in queues for event in queue])
    mixed = []
    while any(queues):
        mixed.append(chance.choice([queue for queue in queues if queue]).pop(0))
    assert fold(mixed) == apart
    assert [each.text for each in apart] == ["".join(pieces) for pieces in texts]
    assert [each.usage.completion_tokens for each in apart] == [len(p) for p in texts]


def test_an_unfinished_reply_is_aborted() -> None:
    gathered = Fold()
    for event in reply(0, ["a", "b"])[:-1]:
        gathered.push(event)
    (completion,) = gathered.completions()
    assert (completion.text, completion.finish_reason) == ("ab", "abort")
    assert completion.usage.completion_tokens == 2


def test_replies_to_one_prompt_share_its_tokens() -> None:
    completions = fold([event for index in range(4) for event in reply(index, ["a"])])
    usage = total_usage(completions, n=2)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (6, 2, 4)
    assert usage.total_tokens == 10


def test_what_is_one_prompt_and_what_are_many() -> None:
    assert as_prompts("ab") == ["ab"]
    assert as_prompts([1, 2]) == [[1, 2]]
    assert as_prompts(["a", [1, 2]]) == ["a", [1, 2]]
    assert as_prompts([[1], [2]]) == [[1], [2]]
    assert as_prompts([]) == []


@pytest.mark.parametrize("ids", [np.array([1, 2]), torch.tensor([1, 2]), [np.int64(1), 2], (1, 2)])
def test_ids_of_other_libraries_are_ids(ids: Sequence[int]) -> None:
    assert as_prompts(ids) == [[1, 2]]
    assert as_prompts([ids, "a"]) == [[1, 2], "a"]
    assert as_prompts({"prompt_token_ids": ids}) == [[1, 2]]
    (found_ids,) = as_prompts(ids)
    assert {type(each) for each in found_ids} == {int}


@pytest.mark.parametrize(
    "prompts",
    [5, None, b"ab", [b"ab"], ["a", None], [1.0], [["a"]], [[1, "a"]], {"prompt": 5}],
    ids=str,
)
def test_what_is_no_prompt_is_refused(prompts: object) -> None:
    """The bytes of a text are numbers, too, and were taken for ids."""
    with pytest.raises(RequestError, match="a prompt cannot be read"):
        as_prompts(prompts)
