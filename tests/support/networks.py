"""Small networks of every layer mix in memory, and an engine over them without thread or clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from blazr.engine.build import open_disk_cache
from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.cache.storage import plan_layout
from blazr.engine.config import EngineConfig
from blazr.engine.constraint import Constraint
from blazr.engine.draft_model import DraftModel
from blazr.engine.engine import Engine
from blazr.engine.outputs import FinishReason
from blazr.engine.ranks.processes import RankProcesses
from blazr.engine.request import PromptEmbeddings, Request
from blazr.engine.runner import ModelRunner, StepResult
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler, StepPlan
from blazr.engine.speculation.drafter import Drafter
from blazr.engine.speculation.mtp import MtpDrafter
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.eagle import Eagle3Config
from blazr.nn.layers.mtp import MtpConfig
from blazr.nn.layers.parallel import ParallelMixerConfig
from blazr.nn.layers.shared_block import SharedBlockConfig
from blazr.nn.operands.step import GRID
from blazr.nn.ops.graphs import GraphDevice
from tests.support.drafts import eager_speculator
from tests.support.examples import FEED_FORWARD_EXAMPLES, HIDDEN, MIXER_EXAMPLES, SHARED_AGAIN
from tests.support.seeds import run_seed

VOCAB, CONTEXT = 53, 1024
NAN_BYTE = 0xFF


def build_network(
    mix: Sequence[str],
    *,
    mtp: str | None = None,
    eagle3: Eagle3Config | None = None,
    seed: int = 0,
    std: float = 0.35,
) -> CausalLM:
    """A network of these layers (``mixer`` or ``mixer+feed_forward``) with random weights.

    Its module for multi-token prediction has a layer like that, if one is wanted, or it has an
    EAGLE-3 head; the network is the same with it and without.
    """
    torch.manual_seed(run_seed(seed))
    rms, layer = NormConfig(HIDDEN, 1e-5), NormConfig(HIDDEN, 1e-6, "layer")
    layers = []
    for kind in mix:
        name, _, feed = kind.partition("+")
        mixer = {"none": ParallelMixerConfig(), "again": SHARED_AGAIN}.get(name)
        mixer = mixer or MIXER_EXAMPLES[name]
        is_shared = isinstance(mixer, SharedBlockConfig)
        layers.append(
            LayerConfig(
                mixer=mixer,
                mixer_norm=layer if name in {"mamba2", "mamba3"} else None if is_shared else rms,
                joins_embedding=is_shared,
                shares_layer=mix.index("shared_block") if name == "again" else None,
                feed_forward=FEED_FORWARD_EXAMPLES[feed] if feed else None,
                feed_forward_norm=rms if feed else None,
            )
        )
    own, _, feed = (mtp or "").partition("+")
    predicting = own and LayerConfig(
        mixer=MIXER_EXAMPLES[own],
        mixer_norm=rms,
        feed_forward=FEED_FORWARD_EXAMPLES[feed] if feed else None,
        feed_forward_norm=rms if feed else None,
    )
    config = ModelConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        max_seq_len=CONTEXT,
        layers=tuple(layers),
        final_norm=rms,
        mtp=MtpConfig(layer=predicting, norm=rms) if predicting else eagle3,
    )
    model = CausalLM(config)
    # the module's last, so that those of the others do not depend on it
    for name, parameter in sorted(model.named_parameters(), key=lambda each: "mtp." in each[0]):
        spread = 1.0 if "embed" in name or name.endswith("norm.weight") else std
        torch.nn.init.normal_(parameter, 0.0, spread)
    return model.eval().requires_grad_(requires_grad=False)


class Lab:
    """An engine in the open: every step is asked for, every row of logits is kept.

    Memory that nobody owns is filled with NaN, so that reading it cannot go unnoticed.

    Args:
        model: The network.
        max_running: Sequences at once.
        tokens: Room for this many tokens, and a few recurrent states.
        budget: Tokens per step.
        prefix_cache: Whether prefixes are reused.
        replay: Whether decode steps are recorded and made again.
        cache_dir: Where prefixes are kept on disk, if anywhere.
        kv_dtype: What keys, values and latents are stored in.
        state_dtype: What recurrent states are kept in.
        drafter: Guesses what may follow, if anything does; as much as can be computed of it is.
        drafts_itself: Whether the network's own module does.
        draft_model: A lab of the network that does; no request is put to it.
        processes: The other ranks, where the network is the first one's part.
        graphs: Captures decode steps as graphs; the engine is then a step ahead where it can be.

    Attributes:
        sample: Draws from a step's logits, as `Draws.draw` does; tests put others in its place.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        max_running: int = 16,
        tokens: int = 16 * CONTEXT,
        budget: int = 256,
        prefix_cache: bool = True,
        replay: bool = True,
        cache_dir: Path | None = None,
        kv_dtype: str = "auto",
        state_dtype: str = "auto",
        drafter: Drafter | None = None,
        drafts_itself: bool = False,
        draft_model: Lab | None = None,
        processes: RankProcesses | None = None,
        graphs: GraphDevice | None = None,
    ) -> None:
        layout = plan_layout(
            [
                spec.stored_as(kv_dtype, state_dtype)
                for spec in model.config.cache_specs(model.dtype)
            ],
            working_copies=2 if drafter or drafts_itself or draft_model else 1,
        )
        pages, states = layout.pages_per_superpage, layout.states_per_superpage
        superpages = 2 + (-(-tokens // GRID // pages) if pages else 0)
        superpages += -(-(2 * max_running + 9) // states) if states else 0
        shape = CacheShape(
            grid=GRID,
            num_superpages=superpages,
            pages_per_superpage=pages,
            states_per_superpage=states,
            max_running=max_running,
            max_blocks=CONTEXT // GRID,
            working_copies=layout.working_copies,
        )
        self.runner = ModelRunner(
            model, layout, shape, replay=replay, processes=processes, graphs=graphs
        )
        disk = open_disk_cache(
            self.runner, EngineConfig(cache_dir=None if cache_dir is None else str(cache_dir))
        )
        self.memory = CacheManager(shape, prefix_cache=prefix_cache, disk=disk)
        if drafts_itself:
            drafter = MtpDrafter(partial(self.runner.draft, memory=self.memory), GRID)
        if draft_model is not None:
            drafter = DraftModel(draft_model.runner, draft_model.memory, token_budget=budget)
        speculator = None if drafter is None else eager_speculator(drafter, shape)
        self.scheduler = Scheduler(self.memory, token_budget=budget, speculator=speculator)
        self.engine = Engine(
            self.scheduler,
            self.execute,
            launch=lambda plan: self.runner.launch(plan, self.memory),
            vocab_size=VOCAB,
            max_seq_len=CONTEXT,
            length_class=model.config.length_class,
        )
        self.logits: dict[tuple[int, int], dict[int, Tensor]] = {}
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.reasons: dict[tuple[int, int], FinishReason] = {}
        self.errors: dict[tuple[int, int], str | None] = {}
        self.cached: dict[int, int] = {}
        self._ids = 0
        self._poison()
        self._record()

    def ask(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 12,
        anchors: tuple[int, ...] = (),
        embeddings: tuple[PromptEmbeddings, ...] = (),
        constraint: Constraint | None = None,
        **params: object,
    ) -> int:
        """Queue a greedy request and return its id."""
        self._ids += 1
        sampling = SamplingParams(**{"temperature": 0, "max_tokens": max_tokens, **params})  # type: ignore[arg-type]
        request = Request(
            prompt_ids=tuple(prompt),
            params=sampling,
            anchors=anchors,
            embeddings=embeddings,
            constraint=constraint,
        )
        self.engine.add(request, request_id=self._ids, now=0.0, seed=7)
        return self._ids

    def execute(self, plan: StepPlan) -> StepResult:
        """What the engine has computed."""
        return self.runner.execute(plan, self.memory)

    def step(self, prefill_budget: int | None = None) -> None:
        """One step of the engine."""
        self.take(self.engine.step(0.0, prefill_budget))

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.engine.has_work():
            self.step()

    def take(self, outputs: Sequence[object]) -> None:
        """Collect outputs."""
        for output in outputs:
            key = (output.request_id, output.index)
            self.tokens.setdefault(key, []).extend(output.token_ids)
            self.cached[output.request_id] = output.num_cached_tokens
            if output.finish_reason is not None:
                self.reasons[key] = output.finish_reason
                self.errors[key] = output.error

    def answer(self, request_id: int, index: int = 0) -> tuple[list[int], Tensor]:
        """Tokens and the logits they were chosen from, (tokens, V)."""
        key = (request_id, index)
        assert self.errors[key] is None, self.errors[key]
        rows = [self.logits[key][position] for position in range(len(self.tokens[key]))]
        return self.tokens[key], torch.stack(rows)

    def _poison(self) -> None:
        storage, arena, memory = self.runner.storage, self.memory.arena, self.memory
        release, release_all = arena.release, memory.release
        shape = memory.shape

        def spoil(cls: ItemClass, item: int, byte: int = NAN_BYTE) -> None:
            storage.write(cls, item, bytearray([byte]) * storage.item_bytes[cls])

        storage._arena[: storage.nbytes].fill_(NAN_BYTE)  # item by item takes milliseconds
        if shape.has_states:
            spoil(ItemClass.STATE, 0, 0)  # the zero state

        def poisoning_release(cls: ItemClass, item: int) -> bool:
            is_free = release(cls, item)
            if is_free:
                spoil(cls, item)
            return is_free

        def poisoning_release_all(sequence, *, publish=True):
            run_slot = sequence.run_slot
            release_all(sequence, publish=publish)
            for cache in storage.layers:
                for tensor in (*cache.log.values(), *cache.working.values()):
                    if run_slot is not None:
                        tensor[run_slot :: shape.max_running] = float("nan")

        arena.release = poisoning_release  # type: ignore[method-assign]
        memory.release = poisoning_release_all  # type: ignore[method-assign]

    def _record(self) -> None:
        draws = self.runner.sampler.draws
        self.sample = lambda logits, rows: draws(logits).draw(rows)

        def draw(logits, rows):
            for place, sequence in rows:
                key = (sequence.request_id, sequence.index)
                self.logits.setdefault(key, {})[sequence.num_output] = logits[place].clone()
            return self.sample(logits, rows)

        self.runner.sampler.draws = lambda logits: SimpleNamespace(  # type: ignore[method-assign]
            draw=partial(draw, logits),
            likeliest=lambda _, count: [-1] * count,  # each is drawn, and so seen
        )
