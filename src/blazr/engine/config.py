"""How the engine divides the machine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from os import PathLike, fspath
from typing import get_type_hints

from blazr.core.errors import ConfigError

LEAST_CONTEXT = 2  # tokens
_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine divides the machine.

    Args:
        max_running: Most replies computed at once; more are queued.
        max_waiting: Most requests that wait in the queue; a server refuses one more.
        token_budget: Most tokens computed in one step.
        prefill_share: While sequences decode, a step with prefill may take this many times as long
            as one without.
        memory: Memory for caches: a size (8GiB), a share of what is free (0.6), or auto.
        kv_dtype: What keys, values and latents are stored in: auto (as computed), q8_0 or fp8_e4m3.
        state_dtype: What states of recurrent layers are kept in: auto (float32) or bfloat16, to
            which they are rounded every 64 tokens. Models without such layers have none.
        max_seq_len: Context length in tokens, of an encoder its longest text, at most the model's;
            by default the model's.
        prefix_cache: Reuse prefixes of earlier requests.
        context_shift: Continue a reply when the context is full: drop the older half of the tokens
            after the instructions and compute the rest again.
        spec: Speculative decoding: verify drafts of the next tokens together with the last token.
            ngram drafts from prompt and reply, suffix also from earlier replies, prefix from texts
            in the prefix cache, mtp with the model's own multi-token prediction module, eagle3:PATH
            with an EAGLE-3 head, draft:MODEL with a smaller model of the same vocabulary. Separate
            several with commas; the first that has a draft is used. Replies stay the same.
        cache_dir: Directory where prefixes are kept on disk, for the next start; none by default.
        cache_disk: Most that the files of all models in cache_dir may take.
        warm_up: Compute a few tokens and record the usual decode steps before requests are taken,
            so that the first one is as fast as the next.
        sharers: Processes that share the machine's free memory, where ``memory`` is auto or a share
            of it.
    """

    max_running: int = 32
    max_waiting: int = 128
    token_budget: int = 512
    prefill_share: float = 1.75
    memory: str = "auto"
    kv_dtype: str = "auto"
    state_dtype: str = "auto"
    max_seq_len: int | None = None
    prefix_cache: bool = True
    context_shift: bool = False
    spec: str | None = None
    cache_dir: str | None = None
    cache_disk: str = "20GiB"
    warm_up: bool = False
    sharers: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.memory, int | float):  # as a share is written in Python
            object.__setattr__(self, "memory", str(self.memory))
        self._check_types()
        if self.max_seq_len is not None and self.max_seq_len < LEAST_CONTEXT:
            raise ConfigError(
                "max_seq_len is out of range.",
                found=str(self.max_seq_len),
                expected=f"at least {LEAST_CONTEXT} tokens",
            )
        for name in ("max_running", "max_waiting", "token_budget", "sharers"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} is out of range.",
                    found=str(getattr(self, name)),
                    expected="at least 1",
                )
        if self.prefill_share < 1:
            raise ConfigError(
                "prefill_share is out of range.",
                found=str(self.prefill_share),
                expected="at least 1 (a step with prefill over one without)",
            )
        if self.cache_dir == "":  # as of a shell variable that is not set; it would be this one
            raise ConfigError("cache_dir is empty.", found="''", hint="leave it out")
        if self.memory != "auto":
            parse_memory(self.memory, free_bytes=0)
        parse_memory(self.cache_disk, free_bytes=0, name="cache_disk")

    def _check_types(self) -> None:
        """From Python a value may be anything; the command line has read it."""
        hints = get_type_hints(type(self))
        for name in (each.name for each in fields(self)):
            value, kind = getattr(self, name), hints[name]
            if isinstance(value, PathLike):
                value = fspath(value)
            elif isinstance(value, Integral) and not isinstance(value, bool):  # numpy's, too
                value = int(value)
            object.__setattr__(self, name, value)
            wanted = int | float if kind is float else kind
            if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
                raise ConfigError(
                    f"{name} has the wrong type.",
                    found=f"{value!r:.80}",
                    expected=getattr(kind, "__name__", str(kind).replace(" | None", "")),
                )


def parse_memory(text: str, *, free_bytes: int | None, name: str = "memory") -> int:
    """Turn ``"8GiB"``, ``"500MB"``, ``"1073741824"`` or ``"0.6"`` into bytes.

    Args:
        text: What the user wrote. A number of at most 1 is a share of ``free_bytes``.
        free_bytes: What is free now, in memory or on the disk; None where a share means nothing.
        name: What it is the size of, for the error.

    Raises:
        ConfigError: It is neither a size nor a share.
    """
    word = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = _UNITS.get(word[-1:], 1)
    try:
        number = float(word[:-1] if unit > 1 else word)
    except ValueError:
        number = -1.0
    if not 0 < number < 2**60 or (free_bytes is None and number * unit < 1):
        share = "" if free_bytes is None else " or a share of what is free (0.6)"
        raise ConfigError(
            f"{name} is not a size.",
            found=repr(text)[:100],
            expected=f"a size (8GiB, 500MB){share}",
        )
    if free_bytes is not None and unit == 1 and number <= 1:
        return int(number * free_bytes)
    return int(number * unit)
