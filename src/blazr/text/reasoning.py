"""REASONING: where a model's thinking begins and ends in what it writes."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from blazr.core.table import Table
from blazr.text.splitter import SPACE, Scan, Sink, Splitter, stream_until
from blazr.text.tokenizer import Tokenizer
from blazr.text.tool_calls import harmony


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """One way in which models mark their thinking.

    Args:
        name: What ``--reasoning-parser`` calls it.
        begin: Before it. A prompt that ends so has begun it already.
        end: After it.
        force_end: What to make the model write to end it early; by default ``end``.
        link: What stands after ``end``, before the answer.
        header: What the answer begins with, whether something was thought or not.
        is_anywhere: Whether it may begin after other text; else only where the reply begins.
        drops: Markers around the answer, which belong to neither.
        tokens: Special tokens it is made of, besides ``begin`` and ``end``.
        signs: What a chat template for it holds, all of them; by default ``begin``.
        families: Kinds of checkpoint that use it.
        scan: Reads a reply that is not so simple, given which of what follows stood before.
        markers: What begins a part of such a reply.
        starters: What begins one where the reply begins, besides.
    """

    name: str
    begin: str
    end: str
    force_end: str = ""
    link: str = ""
    header: str = ""
    is_anywhere: bool = False
    drops: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    scan: Callable[[str, Sink], Scan] | None = None
    markers: tuple[str, ...] = ()
    starters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "force_end", self.force_end or self.end)
        object.__setattr__(self, "signs", self.signs or (self.begin,))

    @property
    def special_names(self) -> frozenset[str]:
        """Names of special tokens whose text the splitter must see."""
        return frozenset((self.begin.strip(), self.end, *self.drops, *self.tokens))

    def has_begun(self, prompt: str) -> bool:
        """Whether a prompt ends where the model thinks already."""
        return prompt.rstrip().endswith(self.begin.rstrip())

    def splitter(self, *, is_inside: bool = False) -> Splitter:
        """What parts one reply into thinking and text.

        Args:
            is_inside: The prompt has begun the thinking.
        """
        if self.scan is not None:
            return Splitter(
                self.scan, markers=self.markers, starters=self.starters, is_inside=is_inside
            )
        begins = (self.begin,)
        return Splitter(
            self._scan,
            markers=(begins if self.is_anywhere else ()) + self.drops,
            starters=() if self.is_anywhere else begins,
            is_inside=is_inside,
        )

    def has_ended(self, prompt: str) -> bool:
        """Whether a prompt ends where the model has thought already, or may not."""
        return prompt.rstrip().endswith(self.end.strip()) and not self.has_begun(prompt)

    def end_ids(self, tokenizer: Tokenizer, *, with_header: bool = True) -> tuple[int, ...]:
        """The tokens to make the model write when its budget of thinking is spent.

        Args:
            tokenizer: The model's.
            with_header: Whether what begins an answer is to come too.
        """
        text = self.force_end if with_header else self.force_end.removesuffix(self.header)
        return tuple(tokenizer.encode(text, allow_special=True))

    def _scan(self, marker: str, sink: Sink) -> Scan:
        sink.is_thinking = marker not in self.drops
        c = yield
        if sink.is_thinking:
            stop = sink.stop_thinking
            _, c = yield from stream_until(c, (self.end,), sink.reasoning, trim=SPACE, at_end=stop)
        sink.consume(ahead=True)
        return c


REASONING: Table[ReasoningFormat] = Table.of(
    "reasoning format",
    (
        ReasoningFormat(
            name="harmony",
            begin="<|channel|>analysis<|message|>",
            end="<|end|>",
            force_end="<|end|><|start|>assistant<|channel|>final<|message|>",
            link="<|start|>assistant",
            header="<|channel|>final<|message|>",
            tokens=harmony.TOKENS,
            signs=("<|channel|>", "<|message|>"),
            scan=harmony.scan_channels,
            markers=harmony.MARKERS,
            starters=harmony.STARTERS,
        ),
        ReasoningFormat(
            name="gemma4",
            begin="<|channel>thought\n",
            end="<channel|>",
            force_end="\n<channel|>",
            is_anywhere=True,
            tokens=("<|channel>",),
            signs=("<|channel>thought", "<channel|>"),
        ),
        ReasoningFormat(name="cohere", begin="<|START_THINKING|>", end="<|END_THINKING|>"),
        ReasoningFormat(
            name="apertus",
            begin="<|inner_prefix|>",
            end="<|inner_suffix|>",
            is_anywhere=True,
        ),
        ReasoningFormat(
            name="apriel",
            begin="Here are my reasoning steps:",
            end="[BEGIN FINAL RESPONSE]",
            force_end="\n[BEGIN FINAL RESPONSE]\n",
            drops=("[END FINAL RESPONSE]",),
            signs=("[BEGIN FINAL RESPONSE]",),
        ),
        ReasoningFormat(name="mistral", begin="[THINK]", end="[/THINK]", is_anywhere=True),
        ReasoningFormat(
            name="seed_oss",
            begin="<seed:think>",
            end="</seed:think>",
            force_end="\n</seed:think>",
        ),
        ReasoningFormat(
            name="granite",
            begin="<think>",
            end="</think>",
            force_end="\n</think>\n",
            drops=("<response>", "</response>"),
            signs=("<think>", "<response>"),
            families=("granite",),
        ),
        # Granite 3.2, before it had tags
        ReasoningFormat(
            name="granite32",
            begin="Here is my thought process:",
            end="Here is my response:",
            force_end="\nHere is my response:\n",
            families=("granite",),
        ),
        # Qwen, DeepSeek, GLM, Kimi, Nemotron, SmolLM3 and many more
        ReasoningFormat(
            name="think",
            begin="<think>",
            end="</think>",
            force_end="\n</think>\n\n",
        ),
        # the tokens of oxidizr's vocabularies
        ReasoningFormat(
            name="agent",
            begin="<|think|>",
            end="<|/think|>",
            is_anywhere=True,
            signs=("<|think|>", "<|/think|>"),
            families=("oxidizr",),
        ),
    ),
)


def choose_reasoning(
    template_source: str, family: str, vocab: Container[str] = (), *, name: str | None = None
) -> ReasoningFormat | None:
    """Find how a model marks its thinking.

    Args:
        template_source: Its chat template.
        family: What kind of checkpoint it is.
        vocab: The names of its special tokens.
        name: The format to use, or ``"none"``, whatever the model says.

    Returns:
        The format; None where none is wanted or the model does not think.

    Raises:
        UnknownNameError: ``name`` is no format.
    """
    if name is not None:
        return None if name == "none" else REASONING[name]
    rows = list(REASONING.values())
    for row in rows:
        if all(sign in template_source for sign in row.signs):
            return row
    for row in rows:
        is_known = not row.families and row.begin in vocab and row.end in vocab
        if family in row.families or is_known:
            return row
    return None


# Most tokens of thinking by effort, where the chat template cannot tell the model of it.
EFFORTS = {"none": 0, "minimal": 128, "low": 1024, "medium": 4096}


def thinking_budget(
    template_source: str, variables: Mapping[str, object] | None, *, most: int | None = None
) -> int | None:
    """Most tokens that a reply may think; None is no bound.

    Args:
        template_source: The model's chat template, which tells it of some of the variables.
        variables: Those that `thinking_variables` knows, or a client gave.
        most: What the client asked for; less goes before more.
    """
    variables = variables or {}
    bounds = [] if most is None else [most]
    if variables.get("enable_thinking") is False and "enable_thinking" not in template_source:
        bounds.append(0)
    effort = variables.get("reasoning_effort")
    if "reasoning_effort" not in template_source and effort in EFFORTS:
        bounds.append(EFFORTS[str(effort)])
    return min(bounds, default=None)


def thinking_variables(
    *, enabled: bool | None = None, effort: str | None = None
) -> dict[str, object]:
    """What chat templates call the switches of thinking; nothing for what is left open.

    Args:
        enabled: Whether to think.
        effort: How much, ``"none"`` (not at all) to ``"high"``.
    """
    if effort == "none" and enabled is None:
        enabled = False
    found: dict[str, object] = {} if effort is None else {"reasoning_effort": effort}
    return found if enabled is None else {"enable_thinking": enabled, "thinking": enabled, **found}
