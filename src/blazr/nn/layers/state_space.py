"""State spaces with heads that share B and C by groups: what Mamba-2 and Mamba-3 have in common."""

from __future__ import annotations

from dataclasses import dataclass

from blazr.nn.layers.base import MixerConfig
from blazr.nn.layers.ranks import Rank, Runs, channels_of


@dataclass(frozen=True, slots=True)
class StateSpaceRuns:
    """What a rank has of a state space.

    Args:
        heads: Its heads.
        groups: The groups that these use.
        inner: Its channels of x, and of z.
        conv: Its channels of x | B | C.
        projected: Its channels of z | x | B | C | dt.
    """

    heads: range
    groups: range
    inner: range
    conv: Runs
    projected: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceConfig(MixerConfig):
    """Sizes of a state space.

    Args:
        hidden_size: C.
        num_heads: H.
        head_dim: P; the inner size is H * P.
        state_size: N.
        num_groups: G, how many input and output maps the heads share.
        conv_kernel: K, taps of the causal convolution.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int = 1
    conv_kernel: int = 4

    @property
    def inner_size(self) -> int:
        """Channels of x, z and the output: H * P."""
        return self.num_heads * self.head_dim

    @property
    def map_size(self) -> int:
        """Channels of B, and of C: G * N."""
        return self.num_groups * self.state_size

    @property
    def conv_size(self) -> int:
        """Channels the convolution runs over: x, B and C."""
        return self.inner_size + 2 * self.map_size

    def runs(self, rank: Rank) -> StateSpaceRuns:
        """Cut by heads; ranks share B and C where these have fewer groups.

        Raises:
            ConfigError: Heads or groups cannot be cut.
        """
        own = rank.equal_run(self.num_heads, "heads")
        shared = rank.shared_run(self.num_groups, self.num_heads, "groups")
        width, size = self.inner_size, self.map_size
        inner = channels_of(own, self.head_dim)
        b, c = (channels_of(shared, self.state_size, offset) for offset in (width, width + size))
        conv = (inner, b, c)
        behind_z = (channels_of(each, 1, width) for each in conv)
        projected = (inner, *behind_z, channels_of(own, 1, 2 * (width + size)))
        return StateSpaceRuns(own, shared, inner, conv, projected)
