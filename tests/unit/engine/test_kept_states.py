"""Where recurrent states are kept, which go first, and how much of a prompt is read again."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.manager import CacheManager, CacheShape, blocks_between, geometric_blocks
from blazr.engine.engine import Engine
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler
from tests.support.fake_model import VOCAB, FakeModel
from tests.support.seeds import examples


class Text(NamedTuple):
    """A prompt and its reply, as far as both were computed; of these, tokens that were reused."""

    tokens: tuple[int, ...]
    num_cached: int
    anchors: tuple[int, ...]


class Memory:
    """An engine that answers one request after the other."""

    def __init__(
        self, grid: int = 64, *, superpages: int = 400, kinds: str = "hybrid", budget: int = 256
    ) -> None:
        shape = CacheShape(
            grid=grid,
            num_superpages=superpages,
            pages_per_superpage=0 if kinds == "recurrent" else 4,
            states_per_superpage=0 if kinds == "attention" else 2,
            max_running=2,
            max_blocks=superpages * 4,
        )
        self.manager = CacheManager(shape)
        self.model = FakeModel(self.manager)
        self.scheduler = Scheduler(self.manager, token_budget=budget)
        self.engine = Engine(
            self.scheduler, self.model.execute, vocab_size=VOCAB, max_seq_len=2**20
        )
        self.num_asked = 0
        self.resumed_at = ""

    def ask(self, prompt: Tokens[int], *, max_tokens: int = 1, anchors: Tokens[int] = ()) -> Text:
        self.num_asked += 1
        request = Request(
            prompt_ids=tuple(prompt),
            params=SamplingParams(temperature=0, max_tokens=max_tokens),
            anchors=tuple(anchors),
        )
        self.engine.add(request, request_id=self.num_asked, now=0.0, seed=0)
        outputs = []
        while self.engine.has_work():
            outputs += self.engine.step(0.0)
        reply = [token for output in outputs for token in output.token_ids]
        self.resumed_at = outputs[-1].resumed_at
        # the last token that was drawn is not computed
        inside = tuple(anchor for anchor in anchors if anchor <= len(prompt))
        return Text((*prompt, *reply[:-1]), outputs[-1].num_cached_tokens, inside)

    def states(self) -> list[int]:
        """After how many blocks states are kept."""
        nodes = self.manager.trie.nodes()
        return sorted(node.depth for node in nodes if node.state is not None)


def numbers(count: int, seed: int = 0) -> list[int]:
    return Random(seed).choices(range(VOCAB), k=count)


def shared(a: Tokens[int], b: Tokens[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


tails = st.tuples(st.integers(0, 90), st.integers(0, 10**6)).map(lambda drawn: numbers(*drawn))


@settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kinds=st.sampled_from(["hybrid", "recurrent", "attention"]),
    budget=st.sampled_from([3, 16, 200]),
    asked=st.lists(
        st.tuples(
            st.integers(0, 20),
            st.integers(0, 200),
            tails,
            st.sampled_from([1, 1, 2, 30]),
            st.lists(st.integers(0, 200), max_size=2),
        ),
        min_size=2,
        max_size=7,
    ),
)
def test_what_is_read_again_is_at_most_what_went_on(kinds, budget, asked) -> None:
    """With ample memory: at most a block, and as many tokens as the earlier text went on behind.

    Of an earlier text that counts which it computed itself; what it reused, another one computed.
    """
    grid = 4
    memory = Memory(grid, kinds=kinds, budget=budget)
    texts = [Text((), 0, ())]
    for base, cut, tail, max_tokens, anchors in asked:
        prompt = [*texts[base % len(texts)].tokens[:cut], *tail] or [0]
        new = memory.ask(prompt, max_tokens=max_tokens, anchors=anchors)
        for old in texts:
            same = shared(prompt, old.tokens)
            ends = [len(old.tokens)] if same > old.num_cached else []
            ends += [2 * same - at for at in old.anchors if old.num_cached < at <= same]
            assert all(same - new.num_cached <= grid + end - same for end in ends)
        texts.append(new)


def test_states_of_a_prompt_lie_twice_as_far_apart_each_time() -> None:
    assert blocks_between(100, 0, {100}) == {99, 97, 93, 85, 69, 37}
    assert blocks_between(100, 50, {100}) == {99, 97, 93, 85, 69}
    assert blocks_between(100, 0, {100, 99, 95, 80}) == {97, 89, 59, 17}
    assert blocks_between(1, 0, {1}) == blocks_between(0, 0, {0}) == set()


@settings(max_examples=examples(200), deadline=None)
@given(count=st.integers(0, 200), first=st.integers(0, 200), kept=st.sets(st.integers(1, 200)))
def test_every_prefix_of_a_prompt_finds_a_state(count: int, first: int, kept: set[int]) -> None:
    kept = {block for block in kept if block < count} | {count}
    more = blocks_between(count, first, kept)
    assert not more & kept
    assert all(block > first for block in more)
    states = {block for block in kept if block > first} | more | {first}
    for shared in range(first, count):
        assert any(2 * shared - count + 1 <= block <= shared for block in states), shared


def test_four_users_of_one_system_prompt() -> None:
    system = numbers(1000)
    for anchors in ((), (1000,)):
        memory = Memory()
        users = [[*system, (user + 1) % VOCAB, *numbers(49, user)] for user in range(4)]
        found = [memory.ask(user, anchors=anchors).num_cached for user in users]
        assert found == [0, 960, 960, 960]
        assert memory.resumed_at == ("anchor" if anchors else "geometric")


@pytest.mark.parametrize("cut", [2900, 2000, 1500, 700])
def test_a_conversation_that_is_cut(cut: int) -> None:
    conversation = numbers(3000)
    with_anchors, without = Memory(), Memory()
    with_anchors.ask(conversation, anchors=(2900, 2000, 1500, 700))
    without.ask(conversation)
    other = [*conversation[:cut], (conversation[cut] + 1) % VOCAB, *numbers(50)]
    assert with_anchors.ask(other).num_cached >= cut - 64
    assert without.ask(other).num_cached >= cut - 64 - (3000 - cut)


def test_who_parts_where_no_state_was_kept_leaves_one() -> None:
    memory = Memory()
    conversation = numbers(3000)
    memory.ask(conversation)
    for times in range(2):
        other = [*conversation[:700], (conversation[700] + 1 + times) % VOCAB, *numbers(80)]
        found = memory.ask(other).num_cached
    assert found == 640
    assert memory.resumed_at == "parted"


def test_a_growing_reply_keeps_few_states() -> None:
    memory = Memory()
    memory.ask(numbers(70), max_tokens=1500)
    blocks = (70 + 1500 - 1) // 64
    assert set(memory.states()) == {1, *geometric_blocks(blocks)}  # the prompt's end, the reply's
    assert len(memory.states()) < 3 * blocks.bit_length()


def test_a_long_document_leaves_the_system_prompts_of_many() -> None:
    """Its states are worth little, each beside the next; theirs save a thousand tokens each."""
    memory = Memory(superpages=150)
    prompts = [numbers(1030, 1000 * user) for user in range(20)]
    for prompt in prompts:
        memory.ask(prompt, anchors=(1000,))
        memory.ask([*prompt[:1000], *numbers(30, 9)], anchors=(1000,))
    memory.ask(numbers(100 * 64, 77), max_tokens=200)
    for number in range(30):  # what else comes has to go somewhere
        memory.ask(numbers(200, 31 * number + 7))
    found = [memory.ask([*prompt[:1000], *numbers(30, 5)]).num_cached for prompt in prompts]
    assert sum(cached >= 960 for cached in found) >= 18, found


def test_states_that_running_sequences_go_on_from_stay() -> None:
    memory = Memory(grid=4, superpages=8)
    prompt = numbers(33)
    memory.ask(prompt)
    memory.engine.add(
        Request(prompt_ids=tuple(prompt), params=SamplingParams(temperature=0, max_tokens=9)),
        request_id=99,
        now=0.0,
        seed=0,
    )
    memory.engine.step(0.0)
    (running,) = memory.scheduler.running
    while memory.manager.trie.evict(ItemClass.STATE):
        pass
    assert memory.manager.arena.references[ItemClass.STATE][running.checkpoint] > 1


def test_prefixes_that_are_used_outlive_those_that_are_not() -> None:
    memory = Memory(grid=4, superpages=12, kinds="attention")
    used = numbers(40)
    memory.ask(used)
    for number in range(40):
        memory.ask(numbers(60, 100 + 37 * number))
        assert memory.ask(used).num_cached >= 36, number
