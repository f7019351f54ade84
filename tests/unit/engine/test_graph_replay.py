"""Decode steps by graphs under random use, against the same requests alone, every step computed.

The device is a recorder (`tests/support/graphs.py`) that refuses what a graph could not do, and
does its work when it likes. Then mistakes are planted that must be noticed.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from blazr.engine import graph_replay
from blazr.engine.cache.arena import ItemClass
from blazr.engine.outputs import FinishReason
from blazr.engine.sequence import Phase as SequencePhase
from blazr.nn.kernels.recording import UnrecordableError
from blazr.nn.operands.step import GRID
from tests.support.examples import LENGTH_MIXES, MIXES
from tests.support.graphs import RecordedGraphs
from tests.support.networks import VOCAB, Lab, build_network
from tests.support.without_kernels import without_kernels

MOST_TOKENS = 9
MIX = ("mamba2", "gqa+mlp", "gated_delta")
LENGTHS = (1, 58, 62, 63, 64, 124)  # of prompts: most replies pass a grid edge
WISHES = (
    {},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": -1},
    {"frequency_penalty": 0.5},
)


@pytest.fixture(autouse=True)
def references(monkeypatch):
    monkeypatch.setattr(graph_replay, "SEEN", 1)
    monkeypatch.setattr(graph_replay, "LEAST_BLOCKS", 1)
    with without_kernels():
        yield


@cache
def network():
    return build_network(MIX, seed=3)


def prompt_of(length: int, kind: int) -> tuple[int, ...]:
    """Prompts of one kind begin alike."""
    return tuple((5 + 7 * kind + place * (kind + 3)) % VOCAB for place in range(length))


@cache
def reply_of(length: int, kind: int, wish: int) -> list[int]:
    """What is answered alone."""
    lab = Lab(network(), replay=False, max_running=1, prefix_cache=False)
    asked = lab.ask(prompt_of(length, kind), max_tokens=MOST_TOKENS, **WISHES[wish])
    lab.run()
    return lab.tokens[asked, 0]


class GraphMachine(RuleBasedStateMachine):
    plant = staticmethod(lambda lab: None)

    @initialize(
        running=st.integers(1, 5),
        pages=st.sampled_from([5, 8, 40]),
        prefix_cache=st.booleans(),
        hurries=st.booleans(),
        seen=st.sampled_from([1, 1, 3]),
    )
    def build(self, running, pages, prefix_cache, hurries, seen):
        graph_replay.SEEN = seen  # the fixture puts it back
        self.graphs = RecordedGraphs(hurries=hurries)
        self.lab = Lab(
            network(),
            max_running=running,
            tokens=pages * GRID,
            prefix_cache=prefix_cache,
            graphs=self.graphs,
        )
        self.asked: dict[int, list[int]] = {}
        self.plant(self.lab)

    @rule(
        length=st.sampled_from(LENGTHS),
        kind=st.integers(0, 1),
        max_tokens=st.integers(1, MOST_TOKENS),
        wish=st.sampled_from([0, 0, 1, 2, 3]),
        stops=st.sampled_from([False, False, True]),
    )
    def ask(self, length, kind, max_tokens, wish, stops):
        reply = reply_of(length, kind, wish)[:max_tokens]
        ends = [reply[-1]] if stops else []
        asked = self.lab.ask(
            prompt_of(length, kind),
            max_tokens=max_tokens + 5 * stops,
            stop_token_ids=ends,
            **WISHES[wish],
        )
        self.asked[asked] = reply[: reply.index(ends[0])] if stops else reply

    @rule(steps=st.integers(1, 12))
    def step(self, steps):
        for _ in range(steps):
            self.lab.step()

    @rule(which=st.integers(0, 9))
    def abort(self, which):
        asked = [*self.asked]
        if asked:
            self.lab.take(self.lab.engine.abort(asked[which % len(asked)]))

    @rule(which=st.integers(0, 9))
    def preempt(self, which):
        running = self.lab.scheduler.running
        if running:
            self.lab.scheduler.preempt(running[which % len(running)])

    @rule(cls=st.sampled_from(list(ItemClass)), times=st.integers(1, 5))
    def evict(self, cls, times):
        self.graphs.join()  # what is evicted is spoilt at once, and a step under way may read it
        for _ in range(times):
            self.lab.memory.trie.evict(cls)

    @invariant()
    def replies_are_right(self):
        for asked, reply in getattr(self, "asked", {}).items():
            key = (asked, 0)
            got, reason = self.lab.tokens.get(key, []), self.lab.reasons.get(key)
            assert self.lab.errors.get(key) is None
            assert got == reply[: len(got)]
            if reason in {FinishReason.STOP, FinishReason.LENGTH}:
                assert got == reply

    def teardown(self):
        if hasattr(self, "lab"):
            for _ in range(1000):
                if not self.lab.engine.has_work():
                    break
                self.lab.step()
            assert not self.lab.engine.has_work()
            self.graphs.join()
            self.replies_are_right()
            assert self.lab.reasons.keys() == {(asked, 0) for asked in self.asked}
            memory = self.lab.memory
            assert sorted(memory.free_run_slots) == list(range(memory.shape.max_running))
            held = sum(not node.locks for node in memory.trie.nodes())
            assert memory.arena.used(ItemClass.PAGE) == held == memory.trie.num_nodes


def profile(examples: int, *, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


def test_graphs_answer_as_computed_steps_do():
    run_state_machine_as_test(GraphMachine, settings=profile(10, steps=12))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_graphs_answer_as_computed_steps_do_at_length():
    run_state_machine_as_test(GraphMachine, settings=profile(400, steps=40))


def pages_are_not_sent(lab):
    lab.memory.block_tables.write = lambda slot, first, pages: np.put(
        lab.memory.block_tables.rows[slot], range(first, first + len(pages)), pages
    )


def rows_are_not_sent(lab):
    pad, first = lab.runner.replays._pad, {}
    lab.runner.replays._pad = lambda runs, count: first.setdefault(count, pad(runs, count))


def padding_belongs_to_others(lab):
    pad = lab.runner.replays._pad
    others = [*range(lab.runner.shape.max_running)]
    lab.runner.replays._pad = lambda runs, count: pad(
        [*runs, *(each for each in others if each not in runs)][:count], count
    )


def next_state_is_not_sent(lab):
    cells_of = lab.runner.replays._cells_of
    lab.runner.replays._cells_of = lambda sequence: (
        *cells_of(sequence)[:4],
        graph_replay._UNKNOWN,
        *cells_of(sequence)[5:],
    )


def the_last_known_token_is_sent(lab):
    cells_of = lab.runner.replays._cells_of
    lab.runner.replays._cells_of = lambda sequence: (sequence.tokens[-1], *cells_of(sequence)[1:])


def changes_overtake_each_other(lab):
    lab.runner.replays._changes = lab.runner.replays._changes[:1] * 2


def results_overtake_each_other(lab):
    lab.runner.replays._results = lab.runner.replays._results[:1] * 2


def results_are_not_pinned(lab):
    lab.runner.replays._results = [torch.zeros_like(each) for each in lab.runner.replays._results]


def what_the_device_knows_moves(lab):
    replays, launch = lab.runner.replays, lab.runner.replays.launch

    def moving(*args):
        replays._graphs.join()
        replays._state = replays._state.clone()
        return launch(*args)

    replays.launch = moving


def a_result_comes_too_late(lab):
    launch, kept = lab.engine._launch_step, []

    def late(plan):
        read = launch(plan)
        if read is None:
            return None
        kept.append(read)
        return kept[max(len(kept) - 2, 0)]

    lab.engine._launch_step = late


def what_ended_goes_on(lab):
    """The engine takes what was drawn for sequences that have ended or lost their memory."""
    launch = lab.engine._launch_step

    def careless(plan):
        read = launch(plan)

        def revive():
            for row in plan.rows:
                row.sequence.phase = SequencePhase.RUNNING
            return read()

        return None if read is None else revive

    lab.engine._launch_step = careless


def pages_planned_in_vain_are_not_cleared(lab):
    lab.scheduler.drop = lambda plan: None


PLANTED = (
    pages_are_not_sent,
    rows_are_not_sent,
    next_state_is_not_sent,
    the_last_known_token_is_sent,
    results_overtake_each_other,
    what_the_device_knows_moves,
)
SLOWLY_NOTICED = (
    padding_belongs_to_others,
    changes_overtake_each_other,
    results_are_not_pinned,
    a_result_comes_too_late,
    what_ended_goes_on,
    pages_planned_in_vain_are_not_cleared,
)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "bug", [*PLANTED, *(pytest.param(bug, marks=pytest.mark.slow) for bug in SLOWLY_NOTICED)]
)
def test_a_planted_mistake_is_noticed(bug):
    broken = type("Broken", (GraphMachine,), {"plant": staticmethod(bug)})
    plan = settings(profile(200, steps=15), phases=[Phase.generate])
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError, UnrecordableError)):
        run_state_machine_as_test(broken, settings=plan)


def test_nothing_is_sent_in_a_step_but_what_changes():
    graphs = RecordedGraphs()
    lab = Lab(network(), graphs=graphs)
    asked = [lab.ask(prompt_of(50, kind), max_tokens=30) for kind in (0, 1)]
    lab.run()
    assert [lab.tokens[each, 0][:9] for each in asked] == [reply_of(50, kind, 0) for kind in (0, 1)]
    assert graphs.num_captured == 2  # the second has room for a page more
    # two sequences that begin, then each one's slot for a state, and each one's next page
    assert len(graphs.uploaded) == 3
    assert graphs.uploaded[1:] == [2 * 2, 2 * 2]
    assert graphs.num_launched == 28 + 1


@pytest.mark.parametrize("wish", WISHES[:3])
def test_the_host_is_a_step_behind(wish):
    lab = Lab(network(), graphs=RecordedGraphs())
    asked = lab.ask(prompt_of(1, 0), max_tokens=4, **wish)
    got = []
    while lab.engine.has_work():
        lab.step()
        got.append(len(lab.tokens.get((asked, 0), [])))
    assert got == [0, 1, 2, 3, 4]


@pytest.mark.sample
@pytest.mark.parametrize("mix", [*MIXES, *LENGTH_MIXES])
def test_layers_that_can_be_captured_answer_alike(mix):
    model = build_network((MIXES | LENGTH_MIXES)[mix], seed=5)
    replies = []
    for graphs in (None, RecordedGraphs()):
        lab = Lab(model, replay=graphs is not None, graphs=graphs)
        asked = [lab.ask(prompt_of(length, 0), max_tokens=4) for length in (1, 62, 63)]
        lab.run()
        replies.append([lab.tokens[each, 0] for each in asked])
    assert replies[0] == replies[1]
    # how long a text may become, which turns some, is for the host to know
    assert (graphs.num_launched > 0) == (mix not in LENGTH_MIXES)


@torch.inference_mode()
@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
        lambda x: int(x[0]),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda x: x.copy_(torch.from_numpy(np.ones(3, np.float32))),
        lambda x: x.add_(torch.from_numpy(np.ones(3, np.float32))),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(run):
    with pytest.raises(UnrecordableError):
        RecordedGraphs().capture(lambda: run(torch.ones(3)))


def test_the_first_step_of_a_network_can_be_captured():
    graphs = RecordedGraphs()
    lab = Lab(build_network(MIX, seed=3), graphs=graphs)
    lab.ask(prompt_of(1, 0), max_tokens=2)
    lab.step()
    assert graphs.num_captured == 1


def test_a_token_that_only_the_device_knows_is_there_when_steps_are_captured_again():
    """As they are when an adapter is loaded while a step is under way."""
    graphs = RecordedGraphs(hurries=False)
    lab = Lab(network(), graphs=graphs)
    asked = lab.ask(prompt_of(1, 0), max_tokens=MOST_TOKENS)
    while graphs.num_launched < 3:
        lab.step()
    lab.runner._forget_recorded()
    lab.run()
    assert lab.tokens[asked, 0] == reply_of(1, 0, 0)
    assert graphs.num_captured == 2


class FullGraphs(RecordedGraphs):
    def capture(self, run):
        self.num_captured += 1
        raise torch.OutOfMemoryError


def test_steps_are_computed_where_there_is_no_memory_for_their_graphs(caplog):
    graphs = FullGraphs()
    lab = Lab(network(), graphs=graphs)
    asked = lab.ask(prompt_of(1, 0), max_tokens=MOST_TOKENS)
    lab.run()
    assert lab.errors[asked, 0] is None
    assert lab.tokens[asked, 0] == reply_of(1, 0, 0)
    assert graphs.num_captured == 1
    assert "no memory left" in caplog.text


@torch.inference_mode()
def test_a_graph_does_again_what_was_captured_and_decides_nothing_anew():
    memory, y, steps = {"x": torch.zeros(3)}, torch.zeros(3), []

    def run():
        steps.append(len(steps))
        y.copy_(memory["x"] * 2 + steps[-1])

    again = RecordedGraphs().capture(run)
    memory["x"].fill_(5)
    again()
    assert steps == [0, 1, 2]
    assert y.tolist() == [12.0] * 3
    memory.clear()
    with pytest.raises(UnrecordableError, match="there no more"):
        again()
