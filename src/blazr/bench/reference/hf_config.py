"""What Hugging Face configs say, with what their classes take where they say nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.rotation import (
    Rotation,
    dynamic,
    fixed,
    llama3,
    mscale,
    plain,
    proportional,
    yarn,
)
from blazr.bench.reference.settings import Setting, Settings, T, as_like, number, section, text

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"


class Config:
    """A config.json; null counts as absent.

    Args:
        own: Its contents.
        defaults: What holds where it is silent.
    """

    def __init__(self, own: Settings, defaults: Settings) -> None:
        self.own = own
        self.defaults = defaults

    def _found(self, keys: tuple[str, ...]) -> tuple[str, Setting]:
        for source in (self.own, self.defaults):
            for key in keys:
                if source.get(key) is not None:
                    return key, source[key]
        return keys[0], None

    def get(self, *keys: str, default: T) -> T:
        """The value of the first key that has one, of the default's type.

        A null is false where that is a truth value, as for those who ask whether it is true.
        """
        key, found = self._found(keys)
        said = [self.own[each] for each in keys if each in self.own]
        if isinstance(default, bool) and said and all(each is None for each in said):
            found = False
        return default if found is None else as_like(found, default, key)

    def says(self, key: str) -> bool:
        """Whether a key has a value."""
        return self._found((key,))[1] is not None

    def number(self, key: str) -> float | None:
        """A number, or None if the config does not set it."""
        return number(self._found((key,))[1], key)

    def text(self, key: str) -> str | None:
        """A string, or None if the config does not set it."""
        return text(self._found((key,))[1], key)

    def section(self, key: str) -> Config:
        """What a section says, or nothing where there is none."""
        return Config(section(self._found((key,))[1], key), {})

    def size(self, *keys: str) -> int:
        """The integer of the first key that has one.

        Raises:
            NoReferenceError: None has.
        """
        return self._needed(keys, 0)

    def word(self, key: str) -> str:
        """A text that must be there.

        Raises:
            NoReferenceError: It is not.
        """
        return self._needed((key,), "")

    def _needed(self, keys: tuple[str, ...], like: T) -> T:
        key, found = self._found(keys)
        if found is None:
            raise NoReferenceError(f"a config.json without {key!r}")
        return as_like(found, like, key)

    def layer_type(self, index: int, key: str = "layer_types") -> str | None:
        """The type of a layer, where types are listed; old words count as today's."""
        types: Sequence[str] = self.get(key, default=())
        old = {"mamba": LINEAR, "attention": FULL}
        return old.get(types[index], types[index]) if types else None

    def window(self) -> int | None:
        """The sliding window, or None."""
        return self.get("sliding_window", default=0) or None

    def rope(self, layer_type: str | None = None) -> Config:
        """The part about rotation, for layers of one type."""
        if not self.says("rope_parameters"):
            return self.section("rope_scaling")
        new = self.section("rope_parameters")
        return new if layer_type is None or layer_type not in new.own else new.section(layer_type)


def rotation_of(
    config: Config,
    head_dim: int,
    parameters: Config | None = None,
    *,
    interleaved: bool = False,
) -> Rotation:
    """The rotation of heads of ``head_dim`` channels, as transformers' modeling_rope_utils has it.

    Args:
        config: The config.
        head_dim: Channels of a head.
        parameters: The part about rotation; None looks for it.
        interleaved: Whether the channels of a pair lie side by side.

    Raises:
        NoReferenceError: It is scaled in a way that nobody has written here.
    """
    rope = config.rope() if parameters is None else parameters
    theta = rope.number("rope_theta") or config.get("rope_theta", default=10_000.0)
    share = rope.number("partial_rotary_factor")
    dim = int(head_dim * (share or config.get("partial_rotary_factor", default=1.0)))
    kind = rope.get("rope_type", "type", default="default")
    longest = config.get("max_position_embeddings", "max_seq_len", default=2048)
    own_trained = rope.get("original_max_position_embeddings", default=0)
    trained = config.get("original_max_position_embeddings", default=own_trained or longest)
    factor = rope.number("factor") or longest / trained
    scale = 1.0
    temperature = None
    beta = rope.number("llama_4_scaling_beta")
    if config.text("model_type") == "ministral3" and beta:
        temperature = beta, float(own_trained or longest)
    match kind:
        case "default":
            frequencies = fixed(plain(dim, theta))
        case "linear":
            frequencies = fixed(plain(dim, theta, factor))
        case "dynamic":
            frequencies = lambda length: dynamic(dim, theta, factor, longest, length)  # noqa: E731
        case "llama3":
            frequencies = fixed(
                llama3(
                    dim,
                    theta,
                    factor,
                    rope.get("low_freq_factor", default=1.0),
                    rope.get("high_freq_factor", default=4.0),
                    trained,
                )
            )
        case "yarn":
            frequencies = fixed(
                yarn(
                    dim,
                    theta,
                    factor,
                    trained,
                    fast=rope.number("beta_fast") or 32.0,
                    slow=rope.number("beta_slow") or 1.0,
                    whole=rope.get("truncate", default=True),
                )
            )
            over, under = rope.number("mscale"), rope.number("mscale_all_dim")
            usual = mscale(factor, over) / mscale(factor, under) if over and under else None
            scale = rope.number("attention_factor") or usual or mscale(factor)
        case "proportional":
            frequencies = fixed(
                proportional(head_dim, theta, rope.number("factor") or 1.0, share or 1.0)
            )
        case "longrope" | "su":
            factors: Sequence[float] = ()
            short, long = (
                plain(
                    dim,
                    theta,
                    torch.tensor(rope.get(f"{name}_factor", default=factors), dtype=torch.float64),
                )
                for name in ("short", "long")
            )
            frequencies = lambda length: long if length > trained else short  # noqa: E731
            usual = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
            scale = rope.number("attention_factor") or usual
        case _:
            raise NoReferenceError(f"RoPE scaling {kind!r}")
    return Rotation(frequencies, scale, interleaved, temperature=temperature)
