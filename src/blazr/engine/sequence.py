"""One running reply: its tokens, and what of them is in memory."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from blazr.engine.block import Node, StateKind
from blazr.engine.constraint import Constraint
from blazr.engine.outputs import TokenLogprobs
from blazr.engine.positions import position_shift_after
from blazr.engine.request import Request


class Phase(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """One reply to a request.

    Args:
        request_id: The engine's id.
        request: What was asked.
        index: Which of the request's replies.
        order: Its place in line: priority, arrival, index. Lower goes first.
        tokens: Prompt and output, less what it has forgotten.
        seed: Of its random draws.
        max_length: Most tokens it may ever have in memory.
        max_output: Most tokens it may generate.
        deadline: Monotonic time after which it is aborted, or None.
        constraint: What its output must follow, after the output so far; None is nothing.
        phase: Where it is in its life.
        num_cached: Prompt tokens that were reused when it first started.
        reuse: Why no more of the prompt was reused.
        resumed_at: Why the recurrent state had been kept from which it went on; empty without one.
        num_preemptions: How often it lost its memory.
        num_overtaken: How many started before it because it had no room, or its turn to read had
            not come.
        num_drafts: Drafts of it that were computed.
        num_kept_drafts: Of these, how many were kept.
        num_dropped: Tokens that it has forgotten, to go on beyond its context.
        computed: Tokens whose entries are in memory.
        pages: Page of each block, for models with pages.
        checkpoint: Slot of the recurrent state it continues from, or None at the beginning.
        checkpoint_length: Tokens before that state; a multiple of the grid.
        was_truncated: Whether working states are not those behind ``computed``; they are brought
            there, by the log, before the next step.
        working_copy: Which of its working states count.
        working_length: If it was truncated, tokens before these or, where those are no more, before
            the checkpoint.
        pending: (tokens of this step until a grid edge, slot) for states this step writes.
        wanted: Grid edges whose state is to be kept for others, and why.
        run_slot: Row of its log and first working states, or None while it waits.
        node: Deepest published block of its prefix; locked while it runs.
        published: Blocks of it that are in the trie.
        created: Nodes it put there.
        scores: Log-probabilities of the prompt's tokens so far, until they are handed out.
        most_surprise: Of the next token, bits, where mirostat limits it.
        takes_drafts: Whether drafts of it are computed, where there are any.
        draws_plainly: Whether a draw takes its scores and filters, and nothing else, ever.
        takes_likeliest: Whether its next token is the argmax and nothing more is asked, ever.
        ends: Tokens that end the reply.
        asks_of_prompt: Whether the prompt's own tokens are asked about, not only what follows.
        forks_at_end: Whether other replies to its request can begin where its prompt ends.
        num_prompt: Tokens of the prompt.
        num_prompt_left: Of these, tokens that it has not forgotten.
        max_computed: Most tokens of it that may ever be computed: the last one drawn is not.
        embeddings_end: Behind this token, none has an embedding other than its id's.
        bidirectional_spans: First token and end of each run of tokens that attend to each other in
            both directions, in ascending order.
        has_grids: Whether it has images whose tokens stand in rows and columns.
        position_shift: How far the tokens behind all images stand, for rotary embeddings, from
            their places in the sequence.
    """

    request_id: int
    request: Request
    index: int
    order: tuple[int, int, int]
    tokens: array[int]
    seed: int
    max_length: int
    max_output: int
    deadline: float | None = None
    constraint: Constraint | None = None
    phase: Phase = Phase.WAITING
    num_cached: int = 0
    reuse: str = ""
    resumed_at: StateKind | Literal[""] = ""
    num_preemptions: int = 0
    num_overtaken: int = 0
    num_drafts: int = 0
    num_kept_drafts: int = 0
    num_dropped: int = 0
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    checkpoint: int | None = None
    checkpoint_length: int = 0
    was_truncated: bool = False
    working_copy: int = 0
    working_length: int = 0
    pending: list[tuple[int, int]] = field(default_factory=list)
    wanted: dict[int, StateKind] = field(default_factory=dict)
    run_slot: int | None = None
    node: Node | None = None
    published: int = 0
    created: list[Node] = field(default_factory=list)
    scores: list[TokenLogprobs | None] | None = None
    most_surprise: float = field(init=False)
    takes_drafts: bool = field(init=False)
    draws_plainly: bool = field(init=False)
    takes_likeliest: bool = field(init=False)
    ends: frozenset[int] = field(init=False)
    asks_of_prompt: bool = field(init=False)
    forks_at_end: bool = field(init=False)
    num_prompt: int = field(init=False)
    num_prompt_left: int = field(init=False)
    max_computed: int = field(init=False)
    embeddings_end: int = field(init=False)
    bidirectional_spans: tuple[tuple[int, int], ...] = field(init=False)
    has_grids: bool = field(init=False)
    position_shift: int = field(init=False)

    def __post_init__(self) -> None:
        """Compute once what every step asks."""
        request = self.request
        params = self.request.params
        self.draws_plainly = self.constraint is None and params.draws_plainly
        self.takes_likeliest = self.draws_plainly and params.is_greedy
        self.takes_drafts = params.speculate
        self.ends = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.ends |= request.stop_ids
        self.most_surprise = 2 * params.mirostat_tau
        self.asks_of_prompt = request.pooling is not None or params.prompt_logprobs is not None
        self.forks_at_end = params.n > 1 and not self.asks_of_prompt
        self.num_prompt = self.num_prompt_left = len(request.prompt_ids)
        self.max_computed = max(self.num_prompt, self.max_length - 1)
        self.embeddings_end = request.embeddings[-1].end if request.embeddings else 0
        self.bidirectional_spans = tuple(
            (each.start, each.end) for each in request.embeddings if each.is_bidirectional
        )
        if request.is_bidirectional:
            self.bidirectional_spans = ((0, self.num_prompt),)
        self.has_grids = any(each.grid for each in request.embeddings)
        self.position_shift = position_shift_after(request.embeddings)

    @property
    def adapter_slot(self) -> int:
        """Where the network has its adapter; 0 without one."""
        adapter = self.request.adapter
        return 0 if adapter is None else adapter.slot

    @property
    def num_output(self) -> int:
        """Tokens generated."""
        return len(self.tokens) + self.num_dropped - self.num_prompt

    def forget_oldest(self) -> None:
        """Drop the older half of what follows its beginning, so that there is room again.

        Its beginning are the instructions, where the request says where they end, if they leave
        half of the room to others. Otherwise it is four tokens: attention that has nothing to look
        at goes to the first ones, and breaks down without them.

        Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks",
        arXiv:2309.17453.
        """
        length = len(self.tokens)
        first = min(self.request.anchors, default=0)
        kept = first if 0 < first <= length // 2 else min(4, self.num_prompt_left, length // 2)
        dropped = (length - kept + 1) // 2
        del self.tokens[kept : kept + dropped]
        self.num_dropped += dropped
        self.num_prompt_left = max(self.num_prompt_left - dropped, kept)

    def whole_chunk(self, num_tokens: int) -> int:
        """How many of its next tokens to compute, about so many, to cut none that belong together.

        The step ends before them, or behind them where they come next.
        """
        end = self.computed + num_tokens
        for first, last in self.bidirectional_spans:
            if first < end < last:
                return (first if first > self.computed else last) - self.computed
        return num_tokens

    @property
    def remaining(self) -> int:
        """Tokens that must be computed before the next can be sampled.

        1 while decoding, and 0 while a step is under way of which nobody waits.
        """
        return len(self.tokens) - self.computed


class Fork(NamedTuple):
    """Memory for a reply that goes on where another stands: at its prompt's end, or before.

    Args:
        sequence: The reply.
        source: The other.
        run_slot: Where the other's log and working state are copied to.
        page: Where its last page is copied to, or -1 where no page is begun.
        length: Tokens that they share.
        samples: Whether it draws a token of its own from the other's last scores; else it has to
            read the rest of its prompt.
    """

    sequence: Sequence
    source: Sequence
    run_slot: int
    page: int
    length: int
    samples: bool
