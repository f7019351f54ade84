"""What attention is given."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blazr.nn.operands.lora import HeadLoras


@dataclass(frozen=True, slots=True)
class AttentionTemperature:
    """Scores that grow with the position of the query, as texts become longer (Llama 4).

    Those of position p are multiplied with ``1 + scale * log(1 + floor(p / length))``.

    Args:
        scale: By how much; 0.1 in released models.
        length: Positions that have one factor, as a rule those of the trained context.
    """

    scale: float
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParams:
    """How queries attend to keys.

    Args:
        scale: Applied to the scores.
        window: Sliding window in tokens, or None.
        softcap: Scores z become ``softcap * tanh(z / softcap)`` [arXiv:2408.00118]; None leaves
            them.
        sinks: (H,), float32, one more score per head that takes its share and gives nothing
            [arXiv:2309.17453]; None for none.
        temperature: How scores grow with the position, or None.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    temperature: AttentionTemperature | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What queries attend to, (pages, GRID, K, what ``size`` numbers take), and how.

    Their dtype tells how numbers are stored; see ``kv_dtype.py``.

    Args:
        keys: Keys, or their first part.
        more_keys: The second part, or None.
        values: May be ``keys``.
        params: How they are attended to.
    """

    keys: Tensor
    values: Tensor
    params: AttentionParams
    more_keys: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How heads are rotated, and where keys and values go.

    Args:
        cos: (T, pairs), float32.
        sin: (T, pairs), float32.
        interleaved: Whether the channels of a pair lie side by side, not ``pairs`` apart.
        slots: (T,), int64, page id * GRID + offset.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    slots: Tensor


@dataclass(frozen=True, slots=True)
class LatentRows:
    """What latent attention takes of T tokens beside the queries' parts that stay.

    Args:
        q_rope: The queries' parts that are rotated, (T, H, P).
        k_rope: The key's, one for all heads, (T, 1, P).
        latent: What is remembered of keys and values, (T, R).
    """

    q_rope: Tensor
    k_rope: Tensor
    latent: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Latents:
    """The memory of latent attention, and how it is attended to.

    Tensors are (pages, GRID, what ``size`` numbers take); see ``kv_dtype.py``.

    Args:
        latents: Of keys and values, R numbers a token.
        keys: Rotated keys, P numbers a token.
        k_up: From latents to keys, (H, R, D).
        v_up: From latents to values, (H, E, R).
        params: How they are attended to.
        k_loras: What adapters change in ``k_up``; None for nothing.
        v_loras: What they change in ``v_up``.
    """

    latents: Tensor
    keys: Tensor
    k_up: Tensor
    v_up: Tensor
    params: AttentionParams
    k_loras: HeadLoras | None = None
    v_loras: HeadLoras | None = None

    @property
    def pages(self) -> Pages:
        """As one head of keys that all queries share, the latents their first part and values."""
        latents = self.latents.unsqueeze(2)
        return Pages(
            keys=latents,
            more_keys=self.keys.unsqueeze(2),
            values=latents,
            params=self.params,
        )
