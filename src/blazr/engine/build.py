"""From a loaded network to a running engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from blazr.engine.async_engine import AsyncEngine
from blazr.engine.cache.budget import plan_cache
from blazr.engine.cache.disk import DiskCache
from blazr.engine.cache.fingerprint import fingerprint
from blazr.engine.cache.manager import CacheManager
from blazr.engine.cache.storage import plan_layout
from blazr.engine.config import EngineConfig, parse_memory
from blazr.engine.engine import Engine
from blazr.engine.pacing import Pacing
from blazr.engine.runner import ModelRunner, StepResult
from blazr.engine.scheduler import Scheduler, StepPlan
from blazr.engine.speculation import DRAFTERS, drafter_names
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
) -> AsyncEngine:
    """Plan the caches, take the memory, start the thread.

    Args:
        model: Weights in place, on the device.
        device: Where it is.
        config: How to divide the machine.
        banned_ids: Ids that are never generated.
        processes: The other ranks, where the network is the first one's part.

    Raises:
        CapacityError: The memory holds not even one sequence.
        UnknownNameError: There is no such dtype of keys and values, of states, or no such drafter.
    """
    drafters = [DRAFTERS[name] for name in drafter_names(config.spec)]
    max_seq_len = min(model.config.max_seq_len, config.max_seq_len or model.config.max_seq_len)
    specs = [
        spec.stored_as(config.kv_dtype, config.state_dtype)
        for spec in model.config.cache_specs(model.dtype)
    ]
    layout = plan_layout(specs, working_copies=2 if drafters else 1)
    if processes is not None and device.kind == "cpu":  # ranks share the machine's memory
        config = replace(config, sharers=config.sharers * processes.ranks.rank.count)
    step_bytes = 0  # ranks compute together or not at all
    if processes is None:
        most = config.token_budget, config.max_running
        step_bytes = device.peak_bytes(lambda: dry_run(model, *most))
    shape = plan_cache(
        layout, config, device=device, max_seq_len=max_seq_len, step_bytes=step_bytes
    )
    runner = ModelRunner(model, layout, shape, banned_ids=banned_ids, processes=processes)
    disk = open_disk_cache(runner, config)

    def replace_model(other: nn.Module) -> None:
        runner.replace(other)
        if disk is not None:
            disk.use(fingerprint(runner.model, layout))

    def build() -> Engine:
        memory = CacheManager(shape, prefix_cache=config.prefix_cache, disk=disk)
        speculator = None
        if drafters:
            draft = partial(runner.draft, memory=memory)
            speculator = Speculator((make(draft, shape.grid) for make in drafters), grid=shape.grid)

        def launch(plan: StepPlan) -> Callable[[], StepResult] | None:
            device.use()  # this thread is the engine's; it launches before it computes
            return runner.launch(plan, memory)

        return Engine(
            Scheduler(memory, token_budget=config.token_budget, speculator=speculator),
            lambda plan: runner.execute(plan, memory),
            launch=launch,
            vocab_size=model.config.vocab_size,
            max_seq_len=max_seq_len,
            context_is_hard=shape.has_pages,
            context_shift=config.context_shift,
            length_class=model.config.length_class,
        )

    drafts = [count for count in COUNTS if drafters and count <= MOST_DRAFTS]
    release_threads()  # of this thread, which has loaded the weights; the engine's now computes
    engine = AsyncEngine(
        build,
        logits=runner.logits,
        replace=replace_model,
        put_adapter=runner.put_adapter if processes is None else None,
        drop_adapter=runner.drop_adapter,
        pacing=Pacing(share=config.prefill_share, token_budget=config.token_budget),
        max_unfinished=shape.max_running + config.max_waiting,
        record=partial(runner.record, num_drafts=drafts) if config.warm_up else None,
    )
    runner.before_recording = engine.expect_recording
    if processes is not None:
        engine.lasting_failure = lambda: processes.failure
    return engine


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
    batch = replace(batch, token_ids=torch.zeros_like(batch.token_ids))
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
