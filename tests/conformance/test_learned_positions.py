"""Models with a table of positions: to its last row, by every way of computing a step."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from blazr.core.errors import ConfigError, ContextLengthError
from blazr.engine.build import build_engine, dry_run
from blazr.engine.config import EngineConfig
from blazr.engine.outputs import FinishReason, TokenOutput
from blazr.engine.replay import Size
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.models.causal_lm import CausalLM
from blazr.models.loading.convert import convert
from blazr.models.loading.load import load
from blazr.models.loading.plan import plan_model
from blazr.models.sizing import size_of
from blazr.nn.device import resolve_device
from blazr.nn.kernels.cpu import compiled
from blazr.nn.layers.embedding import LearnedPositions
from blazr.nn.quant.weight import Weight
from tests.support.drafts import GuessingDrafter
from tests.support.graphs import RecordedGraphs
from tests.support.networks import CONTEXT, VOCAB, Lab
from tests.support.references import CASES, reference_truth, rewrite_config, save_reference
from tests.support.seeds import run_seed
from tests.support.tolerances import assert_greedy

pytest.importorskip("transformers", reason="the reference is the transformers library")

CPU = resolve_device("cpu")
KINDS = ["gpt2", "gpt_bigcode", "gpt_neo", "opt"]
ROOM = 14  # tokens that fit behind the prompts below


@dataclass(frozen=True)
class Model:
    """One of transformers, and ours of its files."""

    directory: Path
    theirs: nn.Module
    exact: nn.Module  # in float64
    ours: CausalLM


def make(directory: Path, case: str, **changes: object) -> Model:
    kind, settings = CASES[case]
    theirs = save_reference(kind, directory, seed=3, changes={**settings, **changes})
    ours = load(str(directory), device=CPU, dtype="float32").module
    return Model(directory, theirs, deepcopy(theirs).double(), ours)


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(tmp_path_factory.mktemp("model"), request.param)


def prompt_of(length: int) -> list[int]:
    chance = torch.Generator().manual_seed(run_seed(length))
    return torch.randint(3, VOCAB, (length,), generator=chance).tolist()


def reply_of(lab: Lab, prompt: Sequence[int]) -> list[int]:
    asked = lab.ask(prompt, max_tokens=3 * ROOM)
    lab.run()
    assert lab.reasons[asked, 0] is FinishReason.LENGTH
    return lab.tokens[asked, 0]


def assert_likeliest(reply: Sequence[int], model: Model, prompt: Sequence[int]) -> None:
    truth, loss = reference_truth(model.theirs, [*prompt, *reply[:-1]], model.exact)
    assert_greedy(reply, truth[len(prompt) - 1 :], loss)


def test_a_reply_ends_with_the_table(model: Model) -> None:
    prompt = prompt_of(CONTEXT - ROOM)
    alone = reply_of(Lab(model.ours, replay=False), prompt)
    assert len(alone) == ROOM
    assert_likeliest(alone, model, prompt)
    known = [*prompt, *alone]
    ways = {
        "replayed": Lab(model.ours),
        "as graphs": Lab(model.ours, graphs=RecordedGraphs()),
        "with drafts": Lab(
            model.ours, drafter=GuessingDrafter(lambda seen: known[len(seen)], VOCAB, 0.7)
        ),
        "with a draft model": Lab(model.ours, draft_model=Lab(model.ours)),
    }
    for way, lab in ways.items():
        reply = reply_of(lab, prompt)
        assert len(reply) == ROOM, way
        assert_likeliest(reply, model, prompt)


def test_a_prompt_that_is_longer_than_the_table_is_refused(model: Model) -> None:
    lab = Lab(model.ours)
    with pytest.raises(ContextLengthError):
        lab.ask(prompt_of(CONTEXT + 1))
    asked = lab.ask(prompt_of(CONTEXT - 1))  # room for one more
    lab.run()
    assert len(lab.tokens[asked, 0]) == 1


@pytest.mark.skipif(bool(compiled.missing()), reason="the kernels are not compiled")
def test_decode_steps_are_recorded_whole_and_give_the_same_bits(model: Model) -> None:
    found = []
    for replay in (False, True):
        lab = Lab(model.ours, replay=replay)
        asked = [lab.ask(prompt_of(5 + 9 * index), max_tokens=12) for index in range(3)]
        lab.run()
        found.append([lab.answer(each) for each in asked])
    assert lab.runner.replays.num_python(Size(3, 3)) == 0
    for (tokens, logits), (wanted, scores) in zip(*found, strict=True):
        assert tokens == wanted
        assert torch.equal(logits, scores)


def test_a_draft_model_with_a_shorter_table_stops_where_it_ends(
    model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = make(tmp_path, next(iter(KINDS)), max_position_embeddings=40)
    prompt = prompt_of(20)
    lab = Lab(model.ours, draft_model=Lab(small.ours))
    assert_likeliest(reply_of(lab, prompt), model, prompt)
    assert lab.scheduler.counts.drafts > 0
    assert "has failed" not in caplog.text


def test_what_a_shifted_context_still_sees_has_the_first_places(tmp_path: Path) -> None:
    """All of it is computed again, so that its places are those of the table's beginning."""
    context = 24
    model = make(tmp_path, KINDS[0], max_position_embeddings=context)
    prompt = prompt_of(context - 4)
    wanted, seen = 10, [*prompt]
    reply = generate(model.ours, prompt, wanted, context_shift=True)
    assert len(reply) == wanted
    for place in range(wanted):
        truth, loss = reference_truth(model.theirs, seen, model.exact)
        assert_greedy(reply[place : place + 1], truth[-1:], loss)
        seen.append(reply[place])
        if len(seen) == context:  # the first four tokens stay, and the younger half of the others
            seen = seen[:4] + seen[4 + (context - 3) // 2 :]
    assert len(generate(model.ours, prompt, wanted)) == 4


def generate(model: CausalLM, prompt: Sequence[int], count: int, **options: bool) -> list[int]:
    """Greedy tokens of an engine that has as many places as the model."""
    engine = build_engine(model, CPU, config=EngineConfig(max_running=2, **options))
    found: list[int] = []
    ended = threading.Event()

    def sink(output: TokenOutput) -> None:
        found.extend(output.token_ids)
        if output.finish_reason is not None:
            ended.set()

    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    try:
        engine.submit(Request(prompt_ids=tuple(prompt), params=params), sink)
        assert ended.wait(60)
    finally:
        engine.close()
    return found


def test_the_largest_step_may_have_more_tokens_than_there_are_places(model: Model) -> None:
    """A step's budget is that of several sequences."""
    dry_run(model.ours, 2 * CONTEXT, 3)


@pytest.mark.parametrize("case", [case for case, (kind, _) in CASES.items() if kind in KINDS])
def test_the_table_is_counted_and_never_packed(case: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "ffn_dim": 96, "n_inner": 96}
    made = make(tmp_path, case, **sizes)
    assert size_of(made.ours.config, torch.float32).parameters == sum(
        parameter.numel() for parameter in made.ours.parameters()
    )
    packed = load(str(tmp_path), device=CPU, dtype="float32", quantize="q8_0").module
    table, plain = packed.positions, made.ours.positions
    assert isinstance(table, LearnedPositions)
    assert isinstance(plain, LearnedPositions)
    assert torch.equal(table.weight, plain.weight)
    own = dict(made.ours.named_modules())
    weights = [(name, each) for name, each in packed.named_modules() if isinstance(each, Weight)]
    assert len(weights) >= 6 * len(packed.layers)
    for name, weight in weights:
        expected = own[name.removesuffix(".weight")].weight
        lost = weight.dequantize(torch.float32) - expected
        assert lost.norm() < 0.02 * expected.norm(), name


@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_what_is_converted_gives_the_same_scores(
    model: Model, quantize: str | None, tmp_path: Path
) -> None:
    """Matrices that lie on their side are left as they are."""
    convert(str(model.directory), tmp_path / "out", quantize=quantize)
    again = load(str(tmp_path / "out"), device=CPU, dtype="float32").module
    ids = torch.tensor([prompt_of(30)])
    with torch.inference_mode():
        found, expected = (each.forward_sequences(ids) for each in (again, model.ours))
    assert (found - expected).norm() <= (0.05 if quantize else 0) * expected.norm()


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gpt2", {"position_embedding_type": "rope"}, "'position_embedding_type'"),
        ("gpt2", {"attention_head_type": "multiquery"}, "'attention_head_type'"),
        ("gpt2", {"add_cross_attention": True}, "only causal decoders"),
        ("gpt_neo", {"attention_types": [["global", "local"]]}, "'attention_types'"),
        ("gpt_neo", {"attention_types": [[["global"], 2**40]]}, "'attention_types'"),
        ("gpt_neo", {"attention_layers": ["global"]}, "too short"),
        ("gpt_neo", {"attention_layers": ["global", "local", "sparse"]}, "not supported"),
        ("opt", {"_remove_final_layer_norm": True}, "'_remove_final_layer_norm'"),
    ],
)
def test_what_is_not_implemented_is_refused(
    kind: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    save_reference(kind, tmp_path, changes=CASES[kind][1])
    rewrite_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        plan_model(str(tmp_path))
