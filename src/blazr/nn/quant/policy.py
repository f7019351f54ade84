"""Which weights are packed, and how: ``"q8_0"``, or ``"experts=q4_0,lm_head=q8_0"``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blazr.core.errors import ConfigError
from blazr.nn.quant import QUANTIZERS

KEEP = "none"
# Parts of a network by what their parameters' names hold, the most particular first.
PARTS: tuple[tuple[str, str], ...] = (
    ("lm_head", "lm_head."),
    ("embedding", "embed_tokens."),
    ("experts", ".experts."),
    ("mixer", ".mixer."),
    ("feed_forward", ".feed_forward."),
)
# Where little is stored in coarse steps, the scores still deserve finer ones.
_HEAD = {"q4_0": "q8_0", "q4_k": "q8_0", "int4": "int8"}
# In place of one whose blocks are longer than a weight's rows allow.
SHORTER = {"q4_k": "q8_0"}


@dataclass(frozen=True, slots=True)
class QuantizePolicy:
    """What to do with each weight while loading.

    Args:
        default: A name of QUANTIZERS for all weights without a rule, or None to keep them.
        rules: By part: a name of QUANTIZERS, or ``"none"``.
    """

    default: str | None = None
    rules: Mapping[str, str] = field(default_factory=dict)

    def choose(self, parameter: str, *, is_head: bool = False) -> str | None:
        """The quantizer of a parameter, or None to keep it as it is.

        Args:
            parameter: Its name in the network.
            is_head: Whether scores are computed with it; an embedding may be the head, too.
        """
        name = self.default
        if is_head and name is not None:
            name = _HEAD.get(name, name)
        parts = [part for part, mark in PARTS if mark in f".{parameter}"]
        for part in ["lm_head", *parts] if is_head else parts:
            if part in self.rules:
                name = self.rules[part]
                break
        return None if name == KEEP else name


def parse_policy(text: str | None) -> QuantizePolicy:
    """Read what the user asks for.

    Args:
        text: Names of QUANTIZERS, alone or behind a part and ``=``, with commas between them; None
            asks for nothing.

    Raises:
        ConfigError: A part is unknown, or said twice.
        UnknownNameError: A quantization is unknown.
    """
    default: str | None = None
    rules: dict[str, str] = {}
    for item in text.split(",") if text else ():
        part, _, name = (word.strip().lower() for word in item.rpartition("="))
        if name != KEEP and name not in QUANTIZERS:
            QUANTIZERS[name]  # says what there is
        if not part and default is None:
            default = name
        elif part in dict(PARTS) and part not in rules:
            rules[part] = name
        else:
            raise ConfigError(
                "what to quantize cannot be read.",
                found=repr(item)[:100],
                expected=f"a quantization, or part=quantization, each part once; parts:"
                f" {', '.join(dict(PARTS))}",
            )
    return QuantizePolicy(default, rules)
