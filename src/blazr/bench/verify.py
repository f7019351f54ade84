"""Is the network the model that its files describe, and does the engine compute that network?

The first is judged by a reference that shares nothing with the network (`bench.reference`) and by
transformers where it can read the files; the second by the network itself in float64, whose inputs
of packed products are rounded as theirs are defined to be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blazr.bench.float64 import float64_layers, float64_logits
from blazr.bench.independent import THEIRS, Witness, ask_witness, relative, transformers_logits
from blazr.bench.near_ties import Tally, following, recorded_scores
from blazr.core.errors import ConfigError, EngineError
from blazr.engine.async_engine import AsyncEngine
from blazr.engine.build import build_engine
from blazr.engine.config import EngineConfig
from blazr.engine.outputs import FinishReason, TokenOutput
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.models.causal_lm import CausalLM
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.oxidizr import layer_type_of
from blazr.models.loading.load import load
from blazr.models.loading.plan import plan_model
from blazr.nn.device import Device, resolve_device
from blazr.nn.quant.weight import Weight

# Relative errors that rounding explains. Packed products round their inputs to eight bits, as the
# reference does, and a hair's difference before may be a step's after.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}
PACKED_TOLERANCE = 2e-2
_PROMPT_LEN = 48
_MOST_FAULTS = 8


@dataclass(frozen=True, slots=True)
class LayerError:
    """How far a layer's output is off: the largest of its tokens' relative errors."""

    index: int
    type: str
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Greedy tokens of the engine beside the reference's.

    Args:
        tokens: How many were compared.
        agreeing: How many are the reference's first choice, or as good but for rounding.
        faults: Positions of the first others: prompt, token, what the engine chose, what it should.
    """

    tokens: int
    agreeing: int
    faults: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found.

    Args:
        model: Its name.
        family: Its family.
        dtype: What the engine computes in.
        device: Where.
        tolerance: The relative error that is allowed.
        layers: The error of every layer, the embedding first.
        logits_error: That of the scores.
        first_diverging_layer: The first that the engine computes otherwise than the network, or
            None; the first that the network computes wrongly is the witness's.
        greedy: Agreement of greedy tokens.
        choices: Of experts in the layers' comparison; see `blazr.bench.near_ties`.
        witness: What judged the network itself, apart from the engine.
        transformers: ``"agrees"``, ``"differs"``, or why it was not asked.
        transformers_error: The error of the network's scores beside theirs, or None.
    """

    model: str
    family: str
    dtype: str
    device: str
    tolerance: float
    layers: tuple[LayerError, ...]
    logits_error: float
    first_diverging_layer: int | None
    greedy: Greedy
    choices: Tally
    witness: Witness
    transformers: str
    transformers_error: float | None

    @property
    def is_ok(self) -> bool:
        """Whether nothing was found wrong; whether anybody could tell says ``witness``."""
        is_same = self.first_diverging_layer is None and self.logits_error <= self.tolerance
        is_greedy = self.greedy.agreeing == self.greedy.tokens
        is_model = self.witness.agrees and self.transformers != "differs"
        return is_same and is_greedy and is_model


def verify(
    model: str,
    device: Device,
    *,
    dtype: str = "auto",
    quantize: str | None = None,
    max_tokens: int = 16,
    tolerance: float | None = None,
) -> Verdict:
    """Run random prompts through the engine and through the reference.

    The engine reads a prompt in two pieces and generates for several prompts at once, so that its
    memory and its batches are at work.

    Args:
        model: A directory, a file, ``nano``, or a Hub id.
        device: Where the engine runs.
        dtype: What it computes in.
        quantize: As for loading; the reference has the same numbers.
        max_tokens: Greedy tokens for each prompt.
        tolerance: The relative error to allow; None for what the dtype explains.

    Raises:
        ConfigError: The tolerance is below 0, or no number.
        BlazrError: The model cannot be loaded or run.
    """
    if tolerance is not None and not tolerance >= 0:
        raise ConfigError(
            "the tolerance is out of range.", found=str(tolerance), expected="0 or more"
        )
    loaded = load(model, device=device, dtype=dtype, quantize=quantize)
    module = loaded.module
    is_packed = any(isinstance(part, Weight) for part in module.modules())
    usual = max(TOLERANCES[module.dtype], PACKED_TOLERANCE if is_packed else 0.0)
    allowed = usual if tolerance is None else tolerance
    prompts = _random_prompts(module)
    found = _run_engine(module, device, prompts, max_tokens)
    choices = Tally()
    with following(module, found.scores, allowed=allowed, tally=choices):
        layers, logits_error = _compare_outputs(module, prompts[0], found.outputs, found.logits)
    first = next((each.index for each in layers if not each.error <= allowed), None)
    greedy = _compare_greedy(module, prompts, found, allowed)
    name = loaded.name
    family = loaded.family
    is_exact = quantize is None
    dtype = str(module.dtype).removeprefix("torch.")
    if not is_exact or dtype != "float32" or device.torch_device.type != "cpu":
        del loaded, module  # the next one needs the memory
        module = load(model, device=resolve_device("cpu"), dtype="float32").module
    checkpoint = plan_model(model).checkpoint
    transformers, transformers_error = _compare_transformers(module, checkpoint, prompts[0])
    return Verdict(
        model=name,
        family=family,
        dtype=dtype,
        device=str(device),
        tolerance=allowed,
        layers=layers,
        logits_error=logits_error,
        first_diverging_layer=first,
        greedy=greedy,
        choices=choices,
        witness=ask_witness(module, checkpoint, prompts[0]),
        transformers=transformers,
        transformers_error=transformers_error,
    )


def _random_prompts(module: CausalLM) -> list[list[int]]:
    """Prompts of different lengths, the same for every network with this vocabulary."""
    vocab_size = module.config.vocab_size
    generator = torch.Generator().manual_seed(vocab_size)
    length = min(_PROMPT_LEN, module.config.max_seq_len // 2)
    return [
        torch.randint(vocab_size, (size,), generator=generator).tolist()
        for size in (length, max(1, length // 3))
    ]


class _EngineRun(NamedTuple):
    """What the engine computed.

    Args:
        outputs: Of the embedding and of every layer, for the first prompt, in pieces.
        logits: At every position of the first prompt, (T, V).
        scores: Of the first prompt's tokens, by router; see `recorded_scores`.
        replies: Greedy tokens for each prompt.
        reply_scores: The same of each prompt with its reply.
    """

    outputs: list[list[Tensor]]
    logits: Tensor
    scores: list[list[Tensor]]
    replies: list[list[int]]
    reply_scores: list[list[list[Tensor]]]


def _run_engine(
    module: CausalLM, device: Device, prompts: list[list[int]], max_tokens: int
) -> _EngineRun:
    max_seq_len = _PROMPT_LEN + max_tokens + 1
    config = EngineConfig(max_running=len(prompts), max_seq_len=max_seq_len)
    engine = build_engine(module, device, config=config)
    try:
        with _recorded_outputs(module) as outputs, recorded_scores(module) as scores:
            logits = engine.logits(prompts[0], (len(prompts[0]) // 2,))
        replies = _generate(engine, prompts, max_tokens)
        texts = [[*prompt, *reply[:-1]] for prompt, reply in zip(prompts, replies, strict=True)]
        again = [_scores_of(engine, module, text) for text in texts]
        return _EngineRun(outputs, logits, scores, replies, again)
    finally:
        engine.close()


def _scores_of(engine: AsyncEngine, module: CausalLM, ids: list[int]) -> list[list[Tensor]]:
    """What the routers make of a text in the engine; steps that were replayed do not tell it."""
    with recorded_scores(module) as scores:
        if scores:
            engine.logits(ids)
    return scores


def _compare_transformers(
    module: CausalLM, checkpoint: Checkpoint, prompt: list[int]
) -> tuple[str, float | None]:
    """``"agrees"``, ``"differs"`` or why transformers was not asked, and the relative error."""
    theirs = transformers_logits(module, checkpoint, prompt)
    if isinstance(theirs, str):
        return theirs, None
    *_, hidden = float64_layers(module, torch.tensor(prompt))
    error = _largest(float64_logits(module, hidden), theirs)
    return "agrees" if error <= THEIRS else "differs", error


@contextmanager
def _recorded_outputs(module: CausalLM) -> Iterator[list[list[Tensor]]]:
    """What the embedding and every layer put out, in pieces, while the engine runs."""
    outputs: list[list[Tensor]] = [[] for _ in range(len(module.layers) + 1)]

    def record(own: list[Tensor], part: nn.Module, inputs: object, output: Tensor) -> None:
        del part, inputs
        own.append(output.clone())

    embedding = module.embed_tokens if module.positions is None else module.positions
    with ExitStack() as hooks:
        for part, own in zip((embedding, *module.layers), outputs, strict=True):
            hooks.enter_context(part.register_forward_hook(partial(record, own)))
        yield outputs


def _compare_outputs(
    module: CausalLM, prompt: Sequence[int], outputs: list[list[Tensor]], scores: Tensor
) -> tuple[tuple[LayerError, ...], float]:
    """Errors of layers and scores."""
    ids = torch.tensor(prompt, dtype=torch.int64, device=module.device)
    types = ["Embedding", *(layer_type_of(layer) for layer in module.config.layers)]
    scale = torch.tensor(module.config.embedding_multiplier, dtype=module.dtype).double()
    errors = []
    hidden = torch.empty(0)
    for index, expected in enumerate(float64_layers(module, ids)):
        found = torch.cat(outputs[index]).double()
        found = found * scale.to(found.device) if index == 0 else found
        errors.append(LayerError(index - 1, types[index], _largest(found, expected)))
        hidden = expected
    return tuple(errors), _largest(scores, float64_logits(module, hidden))


def _largest(found: Tensor, expected: Tensor) -> float:
    """The largest relative error of a row; infinite where a number is not finite."""
    return float(relative(found, expected).max())


def _generate(engine: AsyncEngine, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Greedy tokens for all prompts at once.

    Raises:
        EngineError: A step failed.
    """
    replies: list[list[int]] = [[] for _ in prompts]
    ends = [threading.Event() for _ in prompts]
    errors: list[str] = []

    def sink_of(index: int) -> Callable[[TokenOutput], None]:
        def sink(output: TokenOutput) -> None:
            replies[index] += output.token_ids
            if output.finish_reason is FinishReason.ERROR:
                errors.append(output.error or "a step failed")
            if output.finish_reason is not None:
                ends[index].set()

        return sink

    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        request = Request(prompt_ids=tuple(prompt), params=params)
        engine.submit(request, sink_of(index))
    for end in ends:
        end.wait()
    if errors:
        raise EngineError("the engine could not generate.", found=errors[0][:100])
    return replies


def _compare_greedy(
    module: CausalLM, prompts: list[list[int]], found: _EngineRun, allowed: float
) -> Greedy:
    """Each token is the first choice of the reference, given those before it, or nearly."""
    total = 0
    faults = []
    for index, (prompt, reply) in enumerate(zip(prompts, found.replies, strict=True)):
        ids = torch.tensor([*prompt, *reply[:-1]], dtype=torch.int64, device=module.device)
        with following(module, found.reply_scores[index], allowed=allowed, tally=Tally()):
            *_, hidden = float64_layers(module, ids)
        scores = float64_logits(module, hidden[len(prompt) - 1 :])
        for position, (row, chosen) in enumerate(zip(scores, reply, strict=True)):
            total += 1
            best = int(row.argmax())
            if row[best] - row[chosen] > allowed * (row.max() - row.mean()):
                faults.append((index, position, chosen, best))
    first = tuple(faults[:_MOST_FAULTS])
    return Greedy(tokens=total, agreeing=total - len(faults), faults=first)
