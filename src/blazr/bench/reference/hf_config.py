"""What Hugging Face configs say, with what their classes take where they say nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.rotation import Rotation, dynamic, fixed, llama3, mscale, plain, yarn
from blazr.bench.reference.weights import Setting

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"


class Config:
    """A config.json; null counts as absent.

    Args:
        own: Its contents.
        defaults: What holds where it is silent.
    """

    def __init__(self, own: Mapping[str, Setting], defaults: Mapping[str, Setting]) -> None:
        self.own = own
        self.defaults = defaults

    def get(self, *keys: str, default: Setting = None) -> Setting:
        """The value of the first key that has one."""
        for source in (self.own, self.defaults):
            for key in keys:
                if source.get(key) is not None:
                    return source[key]
        return default

    def __getitem__(self, key: str) -> Setting:
        found = self.get(key)
        if found is None:
            raise NoReferenceError(f"a config.json without {key!r}")
        return found

    def layer_type(self, index: int, key: str = "layer_types") -> str | None:
        """The type of a layer, where types are listed; old words count as today's."""
        types = self.get(key)
        old = {"mamba": LINEAR, "attention": FULL}
        return old.get(types[index], types[index]) if types else None

    def window(self) -> int | None:
        """The sliding window, or None."""
        return self.get("sliding_window") or None

    def rope(self, layer_type: str | None = None) -> Mapping[str, Setting]:
        """The part about rotation, for layers of one type."""
        new, old = self.get("rope_parameters"), self.get("rope_scaling")
        if new is not None and layer_type in new:
            return new[layer_type] or {}
        return new or old or {}


def rotation_of(
    config: Config,
    head_dim: int,
    parameters: Mapping[str, Setting] | None = None,
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
    said = config.rope() if parameters is None else parameters
    theta = float(said.get("rope_theta") or config.get("rope_theta", default=10_000.0))
    share = said.get("partial_rotary_factor") or config.get("partial_rotary_factor", default=1.0)
    dim = int(head_dim * share)
    kind = said.get("rope_type") or said.get("type") or "default"
    longest = config.get("max_position_embeddings", "max_seq_len", default=2048)
    own_trained = said.get("original_max_position_embeddings")
    trained = config.get("original_max_position_embeddings") or own_trained or longest
    factor = said.get("factor") or longest / trained
    scale = 1.0
    temperature = None
    if config.get("model_type") == "ministral3" and said.get("llama_4_scaling_beta"):
        temperature = float(said["llama_4_scaling_beta"]), float(own_trained or longest)
    match kind:
        case "default":
            frequencies = fixed(plain(dim, theta))
        case "linear":
            frequencies = fixed(plain(dim, theta, factor))
        case "dynamic":
            frequencies = lambda length: dynamic(dim, theta, factor, longest, length)  # noqa: E731
        case "llama3":
            low, high = said.get("low_freq_factor", 1.0), said.get("high_freq_factor", 4.0)
            frequencies = fixed(llama3(dim, theta, factor, low, high, trained))
        case "yarn":
            frequencies = fixed(
                yarn(
                    dim,
                    theta,
                    factor,
                    trained,
                    fast=said.get("beta_fast") or 32.0,
                    slow=said.get("beta_slow") or 1.0,
                    whole=said.get("truncate", True),
                )
            )
            over, under = said.get("mscale"), said.get("mscale_all_dim")
            usual = mscale(factor, over) / mscale(factor, under) if over and under else None
            scale = said.get("attention_factor") or usual or mscale(factor)
        case "longrope" | "su":
            short, long = (
                plain(dim, theta, torch.tensor(said[f"{name}_factor"], dtype=torch.float64))
                for name in ("short", "long")
            )
            frequencies = lambda length: long if length > trained else short  # noqa: E731
            usual = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
            scale = said.get("attention_factor") or usual
        case _:
            raise NoReferenceError(f"RoPE scaling {kind!r}")
    return Rotation(frequencies, scale, interleaved, temperature=temperature)
