"""A reply is the same with drafts and without them, whatever is asked of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from blazr import LLM, SamplingParams
from blazr.cli.app import app
from blazr.core.errors import UnknownNameError
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support.constrained import Automaton, RandomScores, ask, drain, engine_over
from tests.support.drafts import EagerSpeculator, GuessingDrafter
from tests.support.loopback import serving
from tests.support.seeds import examples, run_seed

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "oxidizr"
VOCAB = 20
MOVES = {0: {3: 1, 4: 2}, 1: {5: 2}, 2: {6: 3, 7: 0, 8: 1}, 3: {9: 4}, 4: {10: 0, 11: 2}}
TEXTS = {
    "JSON": '[{"name": "Tom", "age": 3}, {"name": "Lily", "age": 4}, {"name": "',
    "a story": "Lily had a red ball. The ball was round. Lily had a red ball. Lily had",
    "two words": "Once upon",
}


def speculator(model: RandomScores, right: float) -> EagerSpeculator:
    """Drafts the likeliest token, which is not always the one drawn."""

    def likeliest(history) -> int:
        return int(
            model.scores(torch.tensor(history, dtype=torch.int32).numpy().tobytes()).argmax()
        )

    return EagerSpeculator([GuessingDrafter(likeliest, VOCAB, right)], grid=64)


def replies(asked: list[dict], right: float | None):
    model = RandomScores(VOCAB, liked=(3, 5))
    engine = engine_over(model, speculator=None if right is None else speculator(model, right))
    for number, params in enumerate(asked):
        constraint = Automaton(MOVES, {4}, vocab_size=VOCAB) if params["shaped"] else None
        rest = {name: value for name, value in params.items() if name != "shaped"}
        ask(engine, constraint, number, **rest)
    got = {}
    for key, outputs in drain(engine).items():
        ids = [token for output in outputs for token in output.token_ids]
        scores = [each for output in outputs for each in output.logprobs]
        got[key] = ids, scores, outputs[-1].finish_reason, outputs[-1].stop_id
    return got, engine.stats()


ASKED = st.fixed_dictionaries(
    {
        "shaped": st.booleans(),
        "temperature": st.sampled_from([0.0, 0.7, 1.5]),
        "top_k": st.sampled_from([0, 3]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.5]),
        "mirostat": st.sampled_from([0, 0, 2]),
        "mirostat_tau": st.sampled_from([1.0, 3.0]),
        "max_tokens": st.integers(1, 40),
        "min_tokens": st.sampled_from([0, 1]),
        "logprobs": st.sampled_from([None, 2]),
        "n": st.integers(1, 3),
        "stop_ids": st.sampled_from([(), (2, 11)]),
        "stop_token_ids": st.sampled_from([(), (9,)]),
        "speculate": st.sampled_from([True, True, False]),
    }
)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(asked=st.lists(ASKED, min_size=1, max_size=5), right=st.sampled_from([0.0, 0.6, 1.0]))
def test_whatever_is_asked(asked, right):
    expected, _ = replies(asked, None)
    got, stats = replies(asked, right)
    assert got == expected
    assert stats["kept_draft_tokens"] <= stats["draft_tokens"]
    if not any(each["speculate"] for each in asked):
        assert stats["draft_tokens"] == 0


def test_what_is_drawn_is_distributed_as_the_scores_say():
    """Chi-square over 20,000 draws: of 17 degrees of freedom, 1 in 100,000 is above 53."""
    draws, temperature = 20_000, 1.3
    rng = Random(run_seed(5))
    scores = torch.tensor([rng.gauss(0, 1) for _ in range(18)])
    model = RandomScores(18)
    model.scores = lambda history: scores
    drafter = GuessingDrafter(lambda history: rng.randrange(18), 18, 1.0)
    engine = engine_over(model, speculator=EagerSpeculator([drafter], grid=64))
    for number in range(8):
        ask(engine, None, number, temperature=temperature, max_tokens=draws // 8)
    counts = Counter(
        token for outputs in drain(engine).values() for each in outputs for token in each.token_ids
    )
    assert engine.stats()["kept_draft_tokens"] > draws / 100
    expected = (scores / temperature).softmax(0) * draws
    assert sum(counts.values()) == draws
    assert sum((counts[i] - float(e)) ** 2 / float(e) for i, e in enumerate(expected)) < 53


@pytest.fixture
def eager(monkeypatch):
    """Drafts are computed whether they are worth their time or not: that is up to the machine."""
    monkeypatch.setattr("blazr.engine.build.Speculator", EagerSpeculator)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("spec", [None, "ngram"])
def test_stop_strings_wait_for_min_tokens(spec: str | None) -> None:
    """With drafts, several tokens come in a step; streamed and whole replies end alike."""
    with serving(load_text_engine(LoadOptions("nano", spec=spec))) as server:
        body = {"prompt": TEXTS["a story"], "temperature": 0, "max_tokens": 60, "stop": " ball"}
        ends = []
        for min_tokens in (0, 1, 10, 20, 60):
            asked = body | {"min_tokens": min_tokens}
            whole = server.client.post("/v1/completions", json=asked).json()
            (choice,) = whole["choices"]
            num_tokens = whole["usage"]["completion_tokens"]
            ends.append(num_tokens)
            assert num_tokens > min_tokens or choice["finish_reason"] == "length"
            assert min_tokens or " ball" not in choice["text"]
            streamed = server.client.post("/v1/completions", json=asked | {"stream": True}).text
            events = [json.loads(x[6:]) for x in streamed.split("\n\n") if x.startswith("data: {")]
            assert "".join(x["choices"][0]["text"] for x in events) == choice["text"]
            assert events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
        assert ends == sorted(ends)
        assert ends[0] < ends[-2] <= ends[-1] == 60
        drafted = server.core.engine.stats()["kept_draft_tokens"]
    assert bool(drafted) == (spec == "ngram")


@pytest.mark.usefixtures("eager")
def test_a_failure_behind_drafts_ends_its_own_reply_alone() -> None:
    """As one before them does, with the tokens that came until then."""

    def failing(at: int) -> SamplingParams:
        def fail(ids, logits):
            if len(ids) == at:
                raise ValueError("mine")
            return logits

        return SamplingParams(
            temperature=0, max_tokens=80, ignore_eos=True, logits_processors=(fail,)
        )

    story = TEXTS["a story"]
    usual = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)
    with LLM() as plain, LLM(spec="ngram") as drafting:
        (whole,) = plain.generate([story], usual)
        asked = [*map(failing, range(30, 60)), usual]
        found = drafting.generate([story] * len(asked), asked)
        assert drafting.core.engine.stats()["restarts"] == 0
        assert drafting.core.engine.stats()["kept_draft_tokens"] > 50
    for at, each in zip(range(30, 60), found, strict=False):
        assert (each.finish_reason, each.error) == ("error", "ValueError: mine")
        assert each.token_ids == whole.token_ids[:at]
    assert found[-1].token_ids == whole.token_ids


@pytest.mark.parametrize("spec", [None, "ngram"])
def test_a_recurrent_model_goes_on_beyond_its_context(spec: str | None) -> None:
    with LLM(str(GOLDEN / "mamba2_pure"), spec=spec, memory="300MB") as llm:
        length = llm.core.info.max_seq_len
        params = [
            SamplingParams(temperature=0, max_tokens=length + count, ignore_eos=True)
            for count in (1, 20, 40)
        ]
        prompts = [[3] * (length + 1), [3, 4], [5]]
        found = llm.generate(prompts, params)
        alone = [llm.generate([prompts[i]], params[i])[0] for i in range(3)]
    assert [each.finish_reason for each in found] == ["length"] * 3
    assert [each.token_ids for each in found] == [each.token_ids for each in alone]


BUILT_IN = [
    (text, each)
    for text in TEXTS.values()
    for each in (
        SamplingParams(temperature=0, max_tokens=80, ignore_eos=True),
        SamplingParams(temperature=0.6, seed=3, max_tokens=60, n=2, repetition_penalty=1.1),
        SamplingParams(temperature=0, max_tokens=60, stop=["ball.", "\n"], logprobs=3),
        SamplingParams(temperature=0, max_tokens=50, grammar={"regex": "([a-z]+, )+[a-z]+"}),
    )
]


@pytest.fixture(scope="module")
def expected():
    """What the built-in model replies without drafts."""
    with LLM() as plain:
        return [plain.generate([text], each)[0] for text, each in BUILT_IN]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("spec", ["ngram", "prefix,suffix"])
def test_the_built_in_model_says_the_same(expected, spec):
    prompts, wanted = [text for text, _ in BUILT_IN], [each for _, each in BUILT_IN]
    with LLM(spec=spec) as drafting:
        got = [drafting.generate([text], each)[0] for text, each in BUILT_IN]
        together = drafting.generate(prompts, wanted)
        stats = drafting.core.engine.stats()
    assert stats["kept_draft_tokens"] > 50
    for a, b, c in zip(expected, got, together, strict=True):
        for x, y, z in zip(a.outputs, b.outputs, c.outputs, strict=True):
            assert x.token_ids == y.token_ids == z.token_ids
            assert x.text == y.text == z.text
            assert x.finish_reason == y.finish_reason == z.finish_reason
            assert (x.logprobs is None) == (y.logprobs is None)
            for one, other in zip(x.logprobs or (), y.logprobs or (), strict=True):
                assert math.isclose(one.logprob, other.logprob, abs_tol=1e-6)


@pytest.mark.usefixtures("eager")
def test_a_server_says_what_was_drafted_and_leaves_it_to_the_request():
    with serving(load_text_engine(LoadOptions("nano", spec="ngram"))) as server:
        body = {"prompt": TEXTS["a story"], "max_tokens": 80, "temperature": 0, "ignore_eos": True}
        without = server.client.post("/v1/completions", json=body | {"speculate": False}).json()
        plain = {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        }
        assert without["usage"]["completion_tokens_details"] == plain
        reply = server.client.post("/v1/completions", json=body).json()
        assert reply["choices"][0]["text"] == without["choices"][0]["text"]
        details = reply["usage"]["completion_tokens_details"]
        num_kept = details["accepted_prediction_tokens"]
        num_drafts = num_kept + details["rejected_prediction_tokens"]
        assert 0 < num_kept <= num_drafts
        metrics = server.client.get("/metrics").text
        assert f'blazr_engine_draft_tokens_total{{model="nano"}} {num_drafts:.1f}' in metrics
        assert f'blazr_engine_kept_draft_tokens_total{{model="nano"}} {num_kept:.1f}' in metrics
        llama = {"prompt": TEXTS["a story"], "n_predict": 80, "temperature": 0, "ignore_eos": True}
        timings = server.client.post("/completion", json=llama).json()["timings"]
        assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
        assert all(slot["speculative"] for slot in server.client.get("/slots").json())


def test_a_drafter_that_is_unknown_is_refused():
    with pytest.raises(UnknownNameError, match="ngrams"):
        LLM(spec="ngrams")


def test_bench_compares_with_and_without() -> None:
    words = ["--prompt-tokens=24", "--output-tokens=32", "--requests=2", "--concurrency=1,2"]
    done = CliRunner().invoke(app, ["bench", "nano", "--spec=prefix,ngram", *words, "--json"])
    assert done.exit_code == 0, done.output
    for level in json.loads(done.stdout)["levels"]:
        counters = level["counters"]
        assert level["num_errors"] == 0
        assert level["speculation_gain"] > 0
        assert level["tokens_per_step"] > 0
        assert "bandwidth_share" not in level, "a gap between tokens is not a step"
        if counters["draft_steps"]:
            assert level["draft_depth"] == counters["draft_tokens"] / counters["draft_steps"]
            share = counters["kept_draft_tokens"] / counters["draft_tokens"]
            assert level["draft_acceptance"] == share
