"""A transformer block that several layers share, each before a mixer of its own (Zamba2)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import FeedForwardConfig, Mixer, MixerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, merge_specs
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, under
from blazr.nn.operands.step import StepTable
from blazr.nn.ops.pointwise import add


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """The shared block.

    Args:
        hidden_size: C.
        attention: Sees the residual stream beside the embedded tokens, 2 * C channels.
        feed_forward: Sees what attention puts out.
        eps: Of the norms before both.
        users: Numbers of the layers that use it.
        adapted: Its matrices that have an adapter for each user, such as ``"attention.q_proj"``.
        adapter_rank: Of these adapters.
    """

    hidden_size: int
    attention: MixerConfig
    feed_forward: FeedForwardConfig
    eps: float
    users: tuple[int, ...]
    adapted: tuple[str, ...] = ()
    adapter_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlockConfig(MixerConfig):
    """A layer's use of the block, and its own mixer.

    Args:
        block: The block.
        user: This layer's number among all that use such blocks.
        owns: Whether the block's parameters are found in this layer.
        mixer: Sees the residual stream plus what the block puts out.
        mixer_norm: Before it.
    """

    block: BlockConfig
    user: int
    owns: bool
    mixer: MixerConfig
    mixer_norm: NormConfig

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """What the block's attention and the mixer remember for this layer."""
        parts = {"attention": self.block.attention, "mixer": self.mixer}
        return merge_specs({name: part.cache_spec(dtype) for name, part in parts.items()})

    def length_class(self, length: int) -> int:
        """As the parts have it."""
        return max(self.block.attention.length_class(length), self.mixer.length_class(length))

    def part(self, rank: Rank) -> tuple[SharedBlockConfig, Parts]:
        """The block is cut, and the mixer."""
        attention, of_attention = self.block.attention.part(rank)
        feed_forward, of_feed = self.block.feed_forward.part(rank)
        mixer, of_mixer = self.mixer.part(rank)
        block = under("attention", of_attention) | under("feed_forward", of_feed)
        parts = under("mixer", of_mixer)
        if self.owns:
            parts |= under("block", block) | under("block.adapters", self._of_adapters(block))
        changed = replace(self.block, attention=attention, feed_forward=feed_forward)
        return replace(self, block=changed, mixer=mixer), parts

    def _of_adapters(self, block: Parts) -> Parts:
        """Their upper matrices make what the base makes, their lower ones see what it sees."""
        parts: dict[str, Held] = {}
        for user in self.block.users:
            for path in self.block.adapted:
                held = block.get(path)
                if isinstance(held, Rows):
                    parts[f"{user}.{_key(path)}.up"] = held
                elif isinstance(held, Columns):
                    parts[f"{user}.{_key(path)}.down"] = held
        return parts

    def build(self) -> SharedBlockMixer:
        """The module, with uninitialised parameters; without the block unless it owns that."""
        return SharedBlockMixer(self)


class Adapter(nn.Module):
    """A correction of low rank."""

    def __init__(self, base: Linear, rank: int) -> None:
        super().__init__()
        rows, columns = base.weight.shape
        self.down = Linear(columns, rank)
        self.up = Linear(rank, rows)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return self.up(self.down(x))


class _Adapted(nn.Module):
    """``base(x) + adapter(x)``; both belong to others, so neither counts as a part."""

    def __init__(self, base: nn.Module, adapter: nn.Module) -> None:
        super().__init__()
        self._each = (base, adapter)

    def forward(self, x: Tensor) -> Tensor:
        base, adapter = self._each
        return add(base(x), adapter(x))


class Block(nn.Module):
    """The block's parameters, and the adapters of all its users."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.attention_norm = NormConfig(2 * config.hidden_size, config.eps).build()
        self.attention = config.attention.build()
        self.feed_forward_norm = NormConfig(config.hidden_size, config.eps).build()
        self.feed_forward = config.feed_forward.build()
        self.adapters = nn.ModuleDict()
        for user in config.users:
            own = {}
            for path in config.adapted:
                base = self.get_submodule(path)
                assert isinstance(base, Linear)
                own[_key(path)] = Adapter(base, config.adapter_rank)
            self.adapters[str(user)] = nn.ModuleDict(own)

    def adapted(self, name: str, user: int) -> nn.Module:
        """A part of the block as one user has it; its parameters stay the block's."""
        part = getattr(self, name)
        changes = {
            path.removeprefix(f"{name}."): path
            for path in self.config.adapted
            if path.startswith(f"{name}.")
        }
        if not changes:
            return part
        twin = copy.copy(part)
        twin._modules = dict(part._modules)  # else the part itself would change
        adapters = self.adapters[str(user)]
        assert isinstance(adapters, nn.ModuleDict)
        for own, path in changes.items():
            setattr(twin, own, _Adapted(getattr(part, own), adapters[_key(path)]))
        return twin


class SharedBlockMixer(Mixer):
    """``mixer(norm(x + linear(block(x, embedded))))`` [arXiv:2411.15242].

    The block is one object, used by several layers; each has its own share of memory.
    """

    config: SharedBlockConfig

    def __init__(self, config: SharedBlockConfig) -> None:
        super().__init__(config)
        hidden = config.block.hidden_size
        self.linear = Linear(hidden, hidden)
        self.mixer_norm = config.mixer_norm.build()
        self.mixer = config.mixer.build()
        self._block: tuple[Block, nn.Module, nn.Module] | None = None  # a tuple is no part
        if config.owns:
            self.block = Block(config.block)
            self._use(self.block)

    def share(self, owner: Mixer) -> None:
        """Use the block of a layer before this one."""
        assert isinstance(owner, SharedBlockMixer)
        self._use(owner.block)

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, 2 * C), the residual stream beside the embedded tokens, to (T, C)."""
        block, attention, feed_forward = self.parts()
        mixed = self.ranks.sum(attention(block.attention_norm(x), batch, cache.of("attention")))
        fed = self.ranks.sum(self.linear(feed_forward(block.feed_forward_norm(mixed))))
        seen = self.mixer_norm(x[..., : fed.shape[-1]] + fed)
        out: Tensor = self.mixer(seen, batch, cache.of("mixer"))
        return out

    def rewind(self, table: StepTable, cache: LayerCache) -> None:
        """As the mixer does; the block remembers keys and values."""
        self.mixer.rewind(table, cache.of("mixer"))

    def _use(self, block: Block) -> None:
        user = self.config.user
        parts = (block.adapted(name, user) for name in ("attention", "feed_forward"))
        self._block = (block, *parts)  # type: ignore[assignment]  # exactly two

    def parts(self) -> tuple[Block, nn.Module, nn.Module]:
        """The block, perhaps another layer's; its attention and MLP as they are adapted here."""
        assert self._block is not None, "the network gives layers their shared blocks"
        return self._block


def _key(path: str) -> str:
    return path.replace(".", "_")  # names of modules hold no dots
