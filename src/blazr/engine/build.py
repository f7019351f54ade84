"""From a loaded network to a running engine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from blazr.engine.async_engine import AsyncEngine
from blazr.engine.cache.budget import plan_caches
from blazr.engine.cache.disk import DiskCache
from blazr.engine.cache.fingerprint import fingerprint
from blazr.engine.cache.manager import CacheManager
from blazr.engine.cache.storage import CacheLayout, plan_layout
from blazr.engine.config import EngineConfig, parse_memory
from blazr.engine.draft_model import DraftModel
from blazr.engine.engine import Engine
from blazr.engine.pacing import Pacing
from blazr.engine.runner import ModelRunner
from blazr.engine.scheduler import Scheduler
from blazr.engine.speculation import DRAFTERS, parse_spec
from blazr.engine.speculation.drafter import Sources
from blazr.engine.speculation.speculator import COUNTS, MOST_DRAFTS, Speculator
from blazr.models.causal_lm import CausalLM
from blazr.nn.device import Device, release_threads
from blazr.nn.layers.batch import whole_sequences

if TYPE_CHECKING:
    from blazr.engine.ranks.processes import RankProcesses


def build_engine(
    model: CausalLM,
    device: Device,
    *,
    config: EngineConfig,
    banned_ids: Sequence[int] = (),
    processes: RankProcesses | None = None,
    draft_model: CausalLM | None = None,
) -> AsyncEngine:
    """Plan the caches, take the memory, start the thread.

    Args:
        model: Weights in place, on the device.
        device: Where it is.
        config: How to divide the machine.
        banned_ids: Ids that are never generated.
        processes: The other ranks, where the network is the first one's part.
        draft_model: What drafts, where ``config.spec`` says that a model does. Its memory is taken
            from the same, so that both have room for as many tokens.

    Raises:
        CapacityError: The memory holds not even one sequence.
        UnknownNameError: There is no such dtype of keys and values, of states, or no such drafter.
    """
    drafters = [DRAFTERS[name] for name in parse_spec(config.spec)]
    max_seq_len = min(model.config.max_seq_len, config.max_seq_len or model.config.max_seq_len)
    runner, small = _make_runners(
        model,
        draft_model,
        device,
        config=replace(config, max_seq_len=max_seq_len),
        banned_ids=banned_ids,
        processes=processes,
    )
    layout, shape = runner.layout, runner.shape
    disk = open_disk_cache(runner, config)

    def replace_model(other: nn.Module) -> None:
        runner.replace(other)
        if disk is not None:
            disk.use(fingerprint(runner.model, layout))

    def speculate(memory: CacheManager) -> Speculator:
        follower = None
        if small is not None:
            own = CacheManager(small.shape, prefix_cache=config.prefix_cache)
            follower = DraftModel(small, own, token_budget=config.token_budget)
        compute = partial(runner.draft, memory=memory)
        sources = Sources(grid=shape.grid, compute=compute, draft_model=follower)
        return Speculator(
            (make(sources) for make in drafters),
            grid=shape.grid,
            crosses_blocks=not shape.has_states,
        )

    def build() -> Engine:
        memory = CacheManager(shape, prefix_cache=config.prefix_cache, disk=disk)
        speculator = speculate(memory) if drafters else None
        return Engine(
            Scheduler(memory, token_budget=config.token_budget, speculator=speculator),
            lambda plan: runner.execute(plan, memory),
            launch=partial(runner.launch, memory=memory) if runner.launches else None,
            vocab_size=model.config.vocab_size,
            max_seq_len=max_seq_len,
            context_is_hard=shape.has_pages,
            context_shift=config.context_shift,
            length_class=model.config.length_class,
        )

    release_threads()  # of this thread, which has loaded the weights; the engine's now computes
    engine = AsyncEngine(
        build,
        logits=runner.logits,
        replace=replace_model,
        put_adapter=runner.put_adapter if processes is None else None,
        drop_adapter=runner.drop_adapter,
        pacing=Pacing(share=config.prefill_share, token_budget=config.token_budget),
        max_unfinished=shape.max_running + config.max_waiting,
    )
    try:
        for each in filter(None, (runner, small)):
            each.before_recording = engine.expect_recording
        if processes is not None:
            engine.lasting_failure = lambda: processes.failure
        engine.call(device.use)  # by its thread, which alone computes from now on
        if config.warm_up:
            drafts = [count for count in COUNTS if drafters and count <= MOST_DRAFTS]
            engine.warm_up(partial(runner.record, num_drafts=drafts))
    except BaseException:  # Ctrl-C, too: the thread would keep the weights
        engine.close()
        raise
    return engine


def _make_runners(
    model: CausalLM,
    draft_model: CausalLM | None,
    device: Device,
    *,
    config: EngineConfig,
    banned_ids: Sequence[int],
    processes: RankProcesses | None,
) -> tuple[ModelRunner, ModelRunner | None]:
    """Take the memory of the model, and of the one that drafts for it."""
    if processes is not None and device.kind == "cpu":  # ranks share the machine's memory
        config = replace(config, sharers=config.sharers * processes.ranks.rank.count)
    step_bytes = 0  # ranks compute together or not at all
    if processes is None:
        most = config.token_budget, config.max_running
        step_bytes = device.peak_bytes(lambda: dry_run(model, *most))
    layout = _layout_of(model, config, working_copies=2 if config.spec else 1)
    others = [] if draft_model is None else [_layout_of(draft_model, config)]
    shape, *shapes = plan_caches(
        [layout, *others],
        config,
        device=device,
        max_seq_len=config.max_seq_len or model.config.max_seq_len,
        step_bytes=step_bytes,
    )
    runner = ModelRunner(model, layout, shape, banned_ids=banned_ids, processes=processes)
    if draft_model is None:
        return runner, None
    unknown = range(model.config.vocab_size, draft_model.config.vocab_size)
    return runner, ModelRunner(draft_model, others[0], shapes[0], banned_ids=unknown)


def _layout_of(model: CausalLM, config: EngineConfig, *, working_copies: int = 1) -> CacheLayout:
    specs = model.config.cache_specs(model.dtype)
    stored = [spec.stored_as(config.kv_dtype, config.state_dtype) for spec in specs]
    return plan_layout(stored, working_copies=working_copies)


@torch.inference_mode()
def dry_run(model: CausalLM, num_tokens: int, num_rows: int) -> None:
    """Compute the largest step there will be, on memory of its own.

    Args:
        model: Weights in place.
        num_tokens: Tokens of one sequence.
        num_rows: Of how many of them scores are made.
    """
    specs = model.config.cache_specs(model.dtype)
    made = [whole_sequences(1, num_tokens, spec, model.device) for spec in specs]
    batch = made[0][0]
    # a step may have more tokens than a sequence has places
    places = batch.positions % model.config.max_seq_len
    batch = replace(batch, token_ids=torch.zeros_like(batch.token_ids), positions=places)
    hidden = model(batch, [cache for _, cache in made])
    model.logits(hidden[:num_rows])


def open_disk_cache(runner: ModelRunner, config: EngineConfig) -> DiskCache | None:
    """Where prefixes of the runner's network are kept on disk, if anywhere.

    Raises:
        ConfigError: The directory cannot be used, or somebody else could write there.
    """
    if config.cache_dir is None or not config.prefix_cache:
        return None
    directory = Path(config.cache_dir).expanduser()
    there = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    storage = runner.storage
    return DiskCache(
        directory,
        limit=parse_memory(config.cache_disk, free_bytes=shutil.disk_usage(there).free),
        fingerprint=fingerprint(runner.model, runner.layout),
        sizes=storage.item_bytes,
        read=storage.read,
        write=storage.write,
    )
