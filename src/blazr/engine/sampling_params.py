"""How a reply is sampled, and the limits on what may be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, InitVar, dataclass, field, replace
from json import loads
from numbers import Integral, Real
from typing import Any, Protocol, Self, runtime_checkable

from blazr.core.errors import RequestError

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_IDS = 1024
MAX_BAD_WORDS = 128
SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")


LogitsProcessor = Callable[[Sequence[int], Any], Any]
"""The ids of a reply so far and logits, a tensor (V,) float32, to other logits."""


class DefaultFloat(float):
    """The value of a field that was left out: the model's own default goes before it."""

    __slots__ = ()


class DefaultInt(int):
    """The same of a whole number; see `DefaultFloat`."""

    __slots__ = ()


@runtime_checkable
class Array(Protocol):
    """An array of numpy's, or a tensor."""

    def tolist(self) -> object:
        """Return its items in lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """What a reply must follow, with vLLM's names; exactly one is given.

    Args:
        json: A JSON Schema, as a dictionary or as text.
        regex: A regular expression.
        choice: Texts of which it is one.
        grammar: A grammar in Lark's or GBNF's notation.
        json_object: Any JSON object.
    """

    json: Mapping[str, object] | str | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    @property
    def grammar_row(self) -> Mapping[str, object]:
        """The same as `SamplingParams.grammar` has it.

        Raises:
            RequestError: None or several are given, or the JSON Schema is not JSON.
        """
        schema: object = self.json
        if isinstance(self.json, str):
            try:
                schema = loads(self.json)
            except ValueError as error:
                raise RequestError(
                    "the JSON Schema is not JSON.",
                    param="structured_outputs",
                    found=str(error)[:100],
                ) from None
        given = {
            "json_schema": schema,
            "regex": self.regex,
            "choice": list(self.choice) if self.choice is not None else None,
            "gbnf" if "::=" in (self.grammar or "") else "lark": self.grammar,
            "json_object": self.json_object or None,
        }
        rows = {name: value for name, value in given.items() if value is not None}
        if len(rows) != 1:
            _refuse("structured_outputs", ", ".join(rows) or "nothing", "one kind of structure")
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a reply is sampled.

    A field that is left out or None takes the model's own default where it has one (see
    `with_defaults`), and blazr's otherwise.

    Args:
        temperature: 0 is greedy (exactly argmax); up to 2.
        top_p: Keep the smallest set of tokens whose probabilities sum to this.
        top_k: Keep this many tokens; 0 or -1 keeps all.
        min_p: Drop tokens below this share of the most probable one.
        repetition_penalty: Divide the logits of tokens in prompt and reply by this (multiply, where
            they are negative), 0.01 to 100; 1 is off.
        presence_penalty: Subtract once from tokens already generated; 0 is off.
        frequency_penalty: Subtract per occurrence from tokens already generated; 0 is off.
        repeat_last_n: The three penalties look at this many of the latest tokens; -1 is all.
        typical_p: Keep the smallest set of tokens whose probabilities sum to this, beginning with
            those whose surprise (minus log-probability) is nearest to the expected one; 1 is off.
        top_n_sigma: Drop tokens whose logits are more than this many standard deviations below the
            largest; 0 or less is off.
        xtc_probability: Chance, at each token, of dropping all candidates with a probability of
            `xtc_threshold` or more but the least likely of them; 0 is off.
        xtc_threshold: See `xtc_probability`; above 0.5 it does nothing.
        mirostat: 2 is Mirostat 2.0: keep the tokens whose surprise is at most a limit, which is
            adjusted after each token so that replies have `mirostat_tau` on average; top_k, top_p
            and min_p are then ignored. 0 is off.
        mirostat_tau: The surprise to aim at, in bits.
        mirostat_eta: How fast the limit is adjusted.
        dry_multiplier: Penalty (DRY) on tokens that would continue a repetition; 0 is off.
        dry_base: The penalty grows by this factor with each repeated token.
        dry_allowed_length: Repetitions of up to this many tokens are not penalized.
        dry_penalty_last_n: Look for repetitions in this many of the latest tokens; -1 is all.
        dry_sequence_breakers: Texts across which nothing counts as a repetition.
        bad_words: Texts that are not generated: the token that would complete one is ruled out.
        allowed_token_ids: The only ids that may be generated, those that end the text included;
            None allows all.
        logits_processors: Functions from the ids of the reply so far (those that context_shift has
            kept) and the logits, (V,) float32, to the logits to use. They run before the filters,
            on the engine's thread, and so cannot ask the same `LLM` for anything.
        samplers: The order in which to apply SAMPLERS, all of them; empty for the usual one.
        seed: Makes sampling repeatable whatever else runs; None draws a fresh one.
        max_tokens: Most tokens to generate; 0 only reads the prompt, None or -1 fills the context.
        min_tokens: No end-of-text, stop id, stop string or mark of the next turn before this many
            tokens.
        stop: Strings that end the reply; they are not part of it.
        stop_token_ids: Token ids that end the reply.
        ignore_eos: Go on after the end-of-text token.
        include_stop: Leave the stop string in the text.
        skip_special_tokens: Leave special tokens out of the text.
        logprobs: Report the chosen token's log-probability and up to 20 of the likeliest; None
            reports nothing.
        prompt_logprobs: The same for the tokens of the prompt.
        logit_bias: Added to the logits of these token ids, -100 to 100.
        speculate: Whether to use speculative decoding where the engine does; the reply is the same.
        n: How many replies to generate for one prompt, up to 16.
        grammar: What the reply must follow, as one row of GRAMMARS and its value:
            ``{"json_schema": {...}}``, ``{"regex": "..."}``, ``{"choice": ["yes", "no"]}``.
        structured_outputs: The same in vLLM's form, see `StructuredOutputsParams`.
        include_stop_str_in_output: vLLM's name of ``include_stop``.

    Raises:
        RequestError: A value is outside its range; ``param`` names it.
        TypeError: There is no such parameter; the message says what to write instead.
    """

    temperature: float = DefaultFloat(0.7)
    top_p: float = DefaultFloat(0.9)
    top_k: int = DefaultInt(40)
    min_p: float = DefaultFloat(0.0)
    repetition_penalty: float = DefaultFloat(1.0)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = -1
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    bad_words: Sequence[str] = ()
    allowed_token_ids: Sequence[int] | None = None
    logits_processors: Sequence[LogitsProcessor] = ()
    samplers: Sequence[str] = ()
    seed: int | None = None
    max_tokens: int | None = DefaultInt(100)
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    speculate: bool = True
    n: int = 1
    grammar: Mapping[str, object] | None = None
    structured_outputs: InitVar[StructuredOutputsParams | None] = None
    include_stop_str_in_output: InitVar[bool | None] = None

    def __new__(cls, **given: object) -> Self:
        """Refuse unknown names before the generated ``__init__`` does, with what to write."""
        for name in given:
            if name not in cls.__dataclass_fields__:
                instead = _INSTEAD.get(name, "one of the fields that help(SamplingParams) lists")
                message = f"SamplingParams() does not take {name!r}; write instead: {instead}"
                raise TypeError(message)
        return object.__new__(cls)

    def __post_init__(
        self,
        structured_outputs: StructuredOutputsParams | None,
        include_stop_str_in_output: bool | None,
    ) -> None:
        if structured_outputs is not None:
            if not isinstance(structured_outputs, StructuredOutputsParams):
                expected = "StructuredOutputsParams(json=…), or regex, choice or grammar"
                _refuse("structured_outputs", repr(structured_outputs), expected)
            object.__setattr__(self, "grammar", structured_outputs.grammar_row)
        if include_stop_str_in_output is not None:
            object.__setattr__(self, "include_stop", include_stop_str_in_output)
        self._resolve_aliases()
        self._check_types()
        self._check_ranges()
        self._check_lists()
        if self.samplers and sorted(self.samplers) != sorted(SAMPLERS):
            _refuse("samplers", ", ".join(self.samplers), ", ".join(SAMPLERS) + ", each once")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            _refuse("logit_bias", f"{len(self.logit_bias)} ids", f"at most {MAX_LOGIT_BIAS}")
        if self.grammar is not None and len(self.grammar) != 1:
            _refuse("grammar", f"{len(self.grammar)} grammars", "one")
        if any(not -100 <= bias <= 100 for bias in self.logit_bias.values()):
            _refuse("logit_bias", "a bias out of range", "-100 to 100")

    def _check_types(self) -> None:
        """Make tuples of lists, and of a text alone; from Python a value may be anything."""
        for name, (kind, expected) in _LISTS.items():
            given = getattr(self, name)
            if given is None or given is self.__dataclass_fields__[name].default:
                continue
            if isinstance(given, str):
                given = (given,)
            elif isinstance(given, Array):
                given = given.tolist()
            if not isinstance(given, Iterable) or not are_all(kind, values := tuple(given)):
                _refuse(name, repr(given), expected)
            object.__setattr__(self, name, values)
        for name in _FLAGS:
            if getattr(self, name) not in (True, False):  # "no" would count as true
                _refuse(name, repr(getattr(self, name)), "True or False")
        bias = self.logit_bias
        are_numbers = isinstance(bias, Mapping) and are_all(Real, bias.values())
        if bias != {} and not (are_numbers and are_all(Integral, bias)):
            _refuse("logit_bias", repr(bias), "{id of a token: number}")
        if self.grammar is not None and not isinstance(self.grammar, Mapping):
            _refuse("grammar", repr(self.grammar), '{"json_schema": {...}}, {"regex": "..."}, ...')

    def _check_lists(self) -> None:
        """Texts and ids that may or may not come."""
        for name, noun, most in (
            ("stop", "string", MAX_STOP_STRINGS),
            ("dry_sequence_breakers", "text", MAX_BAD_WORDS),
            ("bad_words", "text", MAX_BAD_WORDS),
        ):
            texts = getattr(self, name)
            if len(texts) > most:
                _refuse(name, f"{len(texts)} {noun}s", f"at most {most}")
            if any(not text or len(text) > MAX_STOP_CHARACTERS for text in texts):
                _refuse(name, f"an empty or long {noun}", f"1 to {MAX_STOP_CHARACTERS} characters")
        if len(self.stop_token_ids) > MAX_STOP_IDS:
            _refuse("stop_token_ids", f"{len(self.stop_token_ids)} ids", f"at most {MAX_STOP_IDS}")
        allowed = self.allowed_token_ids
        if allowed is not None and (not allowed or min(allowed) < 0):
            _refuse("allowed_token_ids", "none, or a negative id", "ids of tokens")

    def _resolve_aliases(self) -> None:
        """Turn the other ways of leaving a field out, or switching it off, into the usual one."""
        for name, default in _DEFAULTS.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if self.max_tokens == -1:
            object.__setattr__(self, "max_tokens", None)

    def _check_ranges(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            try:
                fits = low <= value <= high  # NaN does not
                fits = fits and (name not in _WHOLE or isinstance(value, Integral))
            except TypeError:  # no number
                fits, value = False, repr(value)[:80]
            if not fits:
                kind = "whole number" if name in _WHOLE else "number"
                _refuse(name, value, f"a {kind} from {_plain(low)} to {_plain(high)}")
        if self.mirostat not in {0, 2}:
            _refuse("mirostat", self.mirostat, "0, or 2 for its second version")
        most = self.max_tokens
        # what was left out is no bound in a chat, which only the request knows
        if not (most is None or isinstance(most, DefaultInt)) and self.min_tokens > most:
            _refuse("min_tokens", self.min_tokens, f"at most max_tokens ({most})")

    @classmethod
    def of(cls, **values: object) -> SamplingParams:
        """From values of which those that are None were not given."""
        given: dict[str, Any] = {k: value for k, value in values.items() if value is not None}
        return cls(**given)

    def with_defaults(self, defaults: Mapping[str, float]) -> SamplingParams:
        """The same with plain numbers for what was left out.

        Args:
            defaults: The model's own, by the names of the fields that are in MODEL_DEFAULTS.
        """
        filled: dict[str, Any] = {}
        for name in MODEL_DEFAULTS:
            value = getattr(self, name)
            if isinstance(value, DefaultFloat):
                filled[name] = float(defaults.get(name, value))
            elif isinstance(value, DefaultInt):
                filled[name] = int(defaults.get(name, value))
        return replace(self, **filled) if filled else self

    @property
    def draws_plainly(self) -> bool:
        """Whether a draw takes the logits, temperature, top_k, top_p, min_p, and nothing else."""
        return (
            not self.has_penalties
            and not self.logit_bias
            and not self.min_tokens
            and not self.has_rules
            and not self.has_rare_filters
            and (self.is_greedy or not self.samplers)
            and self.logprobs is None
        )

    @property
    def has_rules(self) -> bool:
        """Whether it asks for something besides filters that its usual draw does not do."""
        return (
            self.dry_multiplier > 0
            or self.allowed_token_ids is not None
            or bool(self.bad_words or self.logits_processors)
        )

    @property
    def has_rare_filters(self) -> bool:
        """Whether it filters besides by temperature, top_k, top_p and min_p."""
        rare = self.typical_p < 1 or self.top_n_sigma > 0 or self.xtc_probability > 0
        return (rare or self.has_mirostat) and not self.is_greedy

    @property
    def has_mirostat(self) -> bool:
        """Whether the surprise of what was drawn limits that of what comes next."""
        return self.mirostat == 2 and not self.is_greedy

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that have come are less likely to come again, or more."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0


_INSTEAD = {
    "best_of": "n, and choose among outputs",
    "use_beam_search": "n, to sample several replies (there is no beam search)",
    "guided_decoding": "structured_outputs=StructuredOutputsParams(...)",
    "detokenize": "nothing: outputs have token_ids and text",
    "truncate_prompt_tokens": "a shorter prompt",
    "max_new_tokens": "max_tokens",
    "stop_strings": "stop",
}
"""What other engines call otherwise or do besides."""

MODEL_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The fields whose defaults a model may come with."""

_DEFAULTS = {
    name: {} if each.default is MISSING else each.default
    for name, each in SamplingParams.__dataclass_fields__.items()
    if "None" not in each.type
}
"""What None stands for, where it has no meaning of its own."""

_WHOLE = frozenset(
    name
    for name, each in SamplingParams.__dataclass_fields__.items()
    if each.type in {"int", "int | None"}
)

_FLAGS = tuple(
    name for name, each in SamplingParams.__dataclass_fields__.items() if each.type == "bool"
)

_LISTS: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(
        ("stop", "bad_words", "dry_sequence_breakers", "samplers"), (str, "a list of texts")
    ),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), (Integral, "a list of ids of tokens")),
    "logits_processors": (Callable, "a list of functions of ids and logits"),
}
"""What the lists are of."""

RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),  # scores divided by less could become infinite
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repeat_last_n": (-1, 2**31 - 1),
    "typical_p": (0, 1),
    "top_n_sigma": (-1, 1000),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "mirostat": (0, 2),
    "mirostat_tau": (0, 100),
    "mirostat_eta": (0, 1),
    "dry_multiplier": (0, 100),
    "dry_base": (1, 10),
    "dry_allowed_length": (0, 2**31 - 1),
    "dry_penalty_last_n": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**64 - 1),
    "max_tokens": (0, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "n": (1, MAX_CHOICES),
}
"""The least and the greatest value of each number, both included."""


def are_all(kind: type, values: Iterable[object]) -> bool:
    """Whether all are of a kind; of many values hardly more are looked at than there are types."""
    return all(issubclass(each, kind) for each in set(map(type, values)))


def _plain(number: float) -> str:
    """All digits of a whole number."""
    return str(int(number)) if number == int(number) else f"{number:g}"


def _refuse(name: str, found: object, expected: str) -> None:
    raise RequestError(
        f"{name} is out of range.", param=name, found=str(found)[:100], expected=expected
    )
