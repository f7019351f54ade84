"""Random networks over two ranks, in processes that a whole module of tests shares."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import torch
from torch import Tensor
from typing_extensions import override

from blazr.engine.ranks.collectives import ProcessRanks
from blazr.engine.ranks.orders import Member
from blazr.engine.ranks.processes import RankProcesses
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.models.loading.parts import held_of, part_of_config, part_of_tensor
from blazr.models.loading.plan import stage_name
from blazr.nn.device import resolve_device
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.ranks import Rank, Ranks
from blazr.nn.layers.shared_block import SharedBlockConfig
from tests.support.examples import HIDDEN, MIXER_EXAMPLES, SHARED_AGAIN

ROOT = Path(__file__).resolve().parents[2]
VOCAB = 53  # odd, so that ranks have different shares of it

# Examples whose heads are no multiple of two, with as many as can be cut.
EVEN: dict[str, dict[str, int]] = {
    "gqa_window": {"num_heads": 4},
    "gqa_sinks": {"num_heads": 4, "num_kv_heads": 2},
    "gqa_nope": {"num_heads": 4, "num_kv_heads": 4},
    "mla_deepseek": {"num_heads": 4},
    "mla_temperature": {"num_heads": 4},
    "mla": {"num_heads": 4},
    "mla_window": {"num_heads": 4},
    "mamba2_odd": {"num_heads": 6},
    "mamba2_bare": {"num_heads": 4},
    "kimi_delta": {"num_heads": 4, "num_key_heads": 4},
    "kimi_delta_limited": {"num_heads": 4, "num_key_heads": 4},
}


def even_mixer(name: str) -> MixerConfig:
    """The example of that name, or one like it that two ranks can share."""
    return replace(MIXER_EXAMPLES[name], **EVEN.get(name, {}))


def config_of(mixers: Sequence[MixerConfig], feed: FeedForwardConfig | None, **more) -> ModelConfig:
    """A network of such layers; behind one with a shared block comes another that uses it."""
    norm = NormConfig(HIDDEN, 1e-5)
    layers = []
    for mixer in mixers:
        is_shared = isinstance(mixer, SharedBlockConfig)
        layer = LayerConfig(
            mixer=mixer,
            mixer_norm=None if is_shared else norm,
            joins_embedding=is_shared,
            feed_forward=feed,
            feed_forward_norm=None if feed is None else norm,
        )
        layers.append(layer)
        if is_shared:
            layers.append(replace(layer, mixer=SHARED_AGAIN, shares_layer=len(layers) - 1))
    return ModelConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        max_seq_len=1024,
        layers=tuple(layers),
        final_norm=norm,
        **more,
    )


def network(config: ModelConfig, seed: int) -> CausalLM:
    """With random weights, the same in every process."""
    torch.manual_seed(seed)
    model = CausalLM(config)
    for name, parameter in model.named_parameters():
        spread = 1.0 if "embed" in name or name.endswith("norm.weight") else 0.25
        torch.nn.init.normal_(parameter, 0.0, spread)
    return model.eval().requires_grad_(requires_grad=False)


def part_of(model: CausalLM, ranks: Ranks) -> CausalLM:
    """A rank's part of a network."""
    config, parts = part_of_config(model.config, ranks.rank)
    part = CausalLM(config)
    held = {name: held_of(name, parts, ranks.rank) for name, _ in model.named_parameters()}
    tensors = {
        name: tensor if held[name] is None else part_of_tensor(tensor, held[name])
        for name, tensor in model.named_parameters()
    }
    part.load_state_dict(tensors, assign=True)
    part.join(ranks)
    return part.eval().requires_grad_(requires_grad=False)


class ThreadRanks(ProcessRanks):
    """Ranks in threads of one process, for more of them than processes are cheap."""

    def __init__(self, rank: Rank, slots: list[Tensor | None], barrier: Barrier) -> None:
        self.rank = rank
        self._slots = slots
        self._barrier = barrier

    @override
    def gather(self, x: Tensor) -> list[Tensor]:
        self._slots[self.rank.number] = x.clone()
        self._barrier.wait()
        found = [each.clone() for each in self._slots if each is not None]
        self._barrier.wait()
        return found


def logits_in_threads(model: CausalLM, ids: Tensor, count: int) -> list[Tensor]:
    """What so many ranks make of whole sequences, each for itself."""
    slots: list[Tensor | None] = [None] * count
    barrier = Barrier(count, timeout=60)

    def run(number: int) -> Tensor:
        try:
            with torch.inference_mode():
                part = part_of(model, ThreadRanks(Rank(number, count), slots, barrier))
                return part.forward_sequences(ids)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


def build(member: Member, config: ModelConfig, seed: int) -> None:
    """Have a random network's part."""
    member.model = part_of(network(config, seed), member.ranks)


def stage_of(model: CausalLM, ranks: Ranks) -> CausalLM:
    """A rank's layers of a network."""
    config = model.config.as_stage(ranks.rank)
    stage = CausalLM(config)
    named = {stage_name(name, config): tensor for name, tensor in model.named_parameters()}
    del named[None]
    stage.load_state_dict(named, assign=True)
    stage.join(ranks)
    return stage.eval().requires_grad_(requires_grad=False)


def build_stage(member: Member, config: ModelConfig, seed: int) -> None:
    """Have some of a random network's layers."""
    member.model = stage_of(network(config, seed), member.ranks)


def fail(_: Member) -> None:
    """Fail in the way that a program does that has a mistake."""
    raise ValueError("a mistake")


@contextmanager
def two_ranks() -> Iterator[RankProcesses]:
    """This process and another, which knows the modules of the tests, too."""
    before = os.environ.get("PYTHONPATH")  # noqa: TID251  (the other process's, not ours)
    paths = [str(ROOT), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # noqa: TID251
    try:
        processes = RankProcesses(2, resolve_device("cpu"))
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]  # noqa: TID251
        else:
            os.environ["PYTHONPATH"] = before  # noqa: TID251
    with processes:
        yield processes
