"""Vectors in the place of tokens: those of other tokens give what a prompt of these gives."""

from __future__ import annotations

from array import array
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest
import torch

from blazr.engine.request import PromptEmbeddings
from blazr.models.causal_lm import CausalLM
from blazr.nn.operands.step import GRID
from tests.support.examples import MIXES
from tests.support.networks import VOCAB, Lab, build_network

IMAGE = 3  # the id that stands where the vectors do


def ids_of(length: int, seed: int) -> list[int]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCAB, (length,), generator=chance).tolist()


def hidden(
    model: CausalLM, ids: list[int], *ranges: tuple[int, int]
) -> tuple[list[int], tuple[PromptEmbeddings, ...]]:
    """The same prompt, with the embeddings of some of its tokens instead of their ids."""
    prompt = list(ids)
    embeddings = []
    for start, end in ranges:
        prompt[start:end] = [IMAGE] * (end - start)
        vectors = model._embed(torch.tensor(ids[start:end]))
        digest = sha256(str(ids[start:end]).encode()).digest()
        embeddings.append(PromptEmbeddings(start=start, vectors=vectors, digest=digest))
    return prompt, tuple(embeddings)


def same(lab: Lab, found: int, other: Lab, wanted: int) -> bool:
    tokens, logits = lab.answer(found)
    expected, rows = other.answer(wanted)
    return tokens == expected and torch.equal(logits, rows)


@pytest.mark.sample
@pytest.mark.parametrize(
    ("mix", "budget"),
    [
        # mixes take turns with whether a step has room for a prompt
        pytest.param(mix, budget, marks=[pytest.mark.slow] * ((number + turn) % 2))
        for number, mix in enumerate(MIXES)
        for turn, budget in enumerate((23, 256))
    ],
)
def test_alone_among_strangers_cut_and_from_a_cached_prefix(mix: str, budget: int) -> None:
    model = build_network(MIXES[mix], seed=3)
    texts = [ids_of(length, seed=length) for length in (30, 90, 150)]
    ranges = [[(5, 14), (20, 21)], [(0, 70)], [(40, 100), (101, 149)]]
    plain = Lab(model, prefix_cache=False)
    strangers = [ids_of(length, seed=length) for length in (7, 33, 80)]
    wanted = [plain.ask(each) for each in (*texts, *strangers)]
    plain.run()
    lab = Lab(model, budget=budget)
    for _ in range(2):  # the second time from cached prefixes
        found = []
        for text, places, stranger in zip(texts, ranges, strangers, strict=True):
            prompt, embeddings = hidden(model, text, *places)
            found.append(lab.ask(prompt, embeddings=embeddings))
            found.append(lab.ask(stranger))
        lab.run()
        order = [0, 3, 1, 4, 2, 5]
        for request, place in zip(found, order, strict=True):
            assert same(lab, request, plain, wanted[place])
    assert lab.cached[found[2]] >= GRID
    assert lab.cached[found[4]] >= 2 * GRID


def with_grids(
    model: CausalLM, text: list[int], **grids: tuple[int, int]
) -> tuple[list[int], tuple[PromptEmbeddings, ...]]:
    """A prompt with images in rows and columns, by where they begin: ``at_3=(2, 4)``.

    Something is added to them behind two layers, too.
    """
    starts = [int(name.removeprefix("at_")) for name in grids]
    ends = [
        start + rows * columns
        for start, (rows, columns) in zip(starts, grids.values(), strict=True)
    ]
    prompt, images = hidden(model, text, *zip(starts, ends, strict=True))
    return prompt, tuple(
        replace(each, grid=grid, added=torch.stack((each.vectors, -each.vectors)))
        for each, grid in zip(images, grids.values(), strict=True)
    )


@pytest.mark.parametrize("budget", [256, 23])
@pytest.mark.parametrize("drafts_itself", [False, True])
def test_images_in_rows_and_columns(drafts_itself: bool, budget: int) -> None:
    """Cut, among strangers, preempted, forked, and from cached prefixes, replies are the same."""
    mix = ("gqa_axes+mlp", "gated_delta+mlp", "gqa_axes")
    model = build_network(mix, mtp="gqa_axes+mlp" if drafts_itself else None, seed=3)
    texts = [ids_of(length, seed=length) for length in (30, 90, 150)]
    given = [
        with_grids(model, texts[0], at_3=(2, 4)),
        with_grids(model, texts[1], at_0=(10, 7)),
        with_grids(model, texts[2], at_40=(4, 15), at_101=(23, 2)),
        *((ids_of(length, seed=length), ()) for length in (7, 33, 80)),
    ]
    plain = Lab(model, prefix_cache=False, replay=False)
    flat = [plain.ask(text) for text in texts]
    wanted = [plain.ask(each, max_tokens=20, embeddings=images) for each, images in given]
    plain.run()
    for one, other in zip(flat, wanted[:3], strict=True):
        assert not torch.equal(plain.answer(one)[1][0], plain.answer(other)[1][0])
    lab = Lab(model, budget=budget, drafts_itself=drafts_itself)
    for _ in range(2):  # the second time from cached prefixes
        found = [lab.ask(each, max_tokens=20, n=2, embeddings=images) for each, images in given]
        for step in count():
            if not lab.engine.has_work():
                break
            lab.step()
            if step % 7 == 6 and lab.scheduler.running:
                lab.scheduler.preempt(lab.scheduler.running[-1])
        for mine, theirs in zip(found, wanted, strict=True):
            assert [lab.tokens[mine, index] for index in (0, 1)] == [plain.tokens[theirs, 0]] * 2
    assert lab.cached[found[2]] >= 2 * GRID


@pytest.mark.parametrize("mix", ["gqa and mlp", "hybrid"])
def test_two_images_share_no_more_than_what_is_before_them(mix: str, tmp_path: Path) -> None:
    """At one time, one after the other, and from disk."""
    model = build_network(MIXES[mix], seed=3)
    before, behind = ids_of(2 * GRID + 3, seed=1), ids_of(GRID, seed=2)
    images = [ids_of(GRID, seed=seed) for seed in (5, 6)]
    texts = [[*before, *image, *behind] for image in images]
    where = (len(before), len(before) + GRID)
    plain = Lab(model, prefix_cache=False)
    wanted = [plain.ask(text) for text in texts]
    plain.run()
    lab = Lab(model, budget=20, cache_dir=tmp_path)
    prompts = [hidden(model, text, where) for text in texts]
    assert prompts[0][0] == prompts[1][0]
    at_once = [lab.ask(prompt, embeddings=given) for prompt, given in prompts]
    lab.run()
    later = [lab.ask(prompt, embeddings=given) for prompt, given in prompts]
    lab.run()
    for place, request in enumerate([*at_once, *later]):
        assert same(lab, request, plain, wanted[place % 2])
    assert min(lab.cached[each] for each in later) >= 3 * GRID
    lab.engine.close()
    lab = Lab(model, cache_dir=tmp_path)
    from_disk = [lab.ask(prompt, embeddings=given) for prompt, given in prompts]
    as_text = lab.ask(prompts[0][0])
    lab.run()
    for place, request in enumerate(from_disk):
        assert same(lab, request, plain, wanted[place])
        assert lab.cached[request] >= 3 * GRID
    assert lab.cached[as_text] <= 2 * GRID


def test_the_last_token_of_a_prompt_may_be_one() -> None:
    """Where all before it is in memory, it is computed like a token of the reply."""
    model = build_network(MIXES["gqa and mlp"], seed=3)
    text = ids_of(2 * GRID + 1, seed=1)
    prompt, embeddings = hidden(model, text, (GRID, 2 * GRID + 1))
    lab = Lab(model, replay=True)
    wanted = [lab.ask(text) for _ in range(4)]
    lab.run()
    for _ in range(4):
        found = lab.ask(prompt, embeddings=embeddings)
        lab.run()
        assert same(lab, found, lab, wanted[0])
    assert lab.cached[found] == 2 * GRID


def test_replies_go_on_from_a_shared_prompt() -> None:
    model = build_network(MIXES["hybrid"], seed=3)
    text = ids_of(100, seed=1)
    prompt, embeddings = hidden(model, text, (50, 99))
    lab = Lab(model)
    wanted = lab.ask(text, n=2, temperature=1.0, seed=5)
    found = lab.ask(prompt, embeddings=embeddings, n=2, temperature=1.0, seed=5)
    lab.run()
    for index in range(2):
        assert lab.answer(found, index)[0] == lab.answer(wanted, index)[0]


def test_where_vectors_lie_in_a_block_is_part_of_its_key() -> None:
    memory = Lab(build_network(MIXES["gqa and mlp"], seed=3)).memory
    tokens = array("i", [IMAGE] * 2 * GRID)
    given = [
        PromptEmbeddings(start=start, vectors=torch.ones(GRID, 2), digest=digest)
        for start in (0, 1, 2)
        for digest in (b"a" * 32, b"b" * 32)
    ]
    keys = [memory.trie.block_key(tokens, 0, each) for each in [(), *((one,) for one in given)]]
    assert len(set(keys)) == 7
    assert memory.trie.block_key(tokens, 1, given[:1]) == keys[0]
