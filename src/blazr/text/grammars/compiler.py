"""From what a request asks for to a constraint: tried in a child, compiled once, remembered."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from blazr.core.errors import CapacityError, EngineError, GrammarError
from blazr.text.grammars import GRAMMARS
from blazr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from blazr.text.grammars.constraint import GrammarConstraint
    from blazr.text.grammars.trial import Trial

MAX_SOURCE_BYTES = 1 << 20
MAX_CACHED = 32
MAX_CACHED_BYTES = 256 << 20
MAX_PENDING = 128

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Entry:
    """What became of a grammar: a constraint at its beginning, or why there is none."""

    constraint: GrammarConstraint | None
    error: GrammarError | None
    num_bytes: int

    @property
    def needs_recompile(self) -> bool:
        """Whether it is better compiled anew."""
        return self.constraint is not None and self.constraint.needs_recompile


class GrammarCompiler:
    """Compiles grammars for one vocabulary. Thread-safe; waits, so never call it on an event loop.

    A grammar is compiled once however many ask for it at the same time. One that is refused is
    remembered too. Nothing starts and nothing is imported before the first.

    Args:
        tokenizer: The model's.
        vocab_size: Rows of its embedding.
        special_ids: Tells the ids that no text produces, besides those the tokenizer knows.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        special_ids: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._special_ids = special_ids
        self._lock = threading.Lock()
        self._cache: OrderedDict[bytes, _Entry] = OrderedDict()
        self._running: dict[bytes, Future[_Entry]] = {}
        self._start = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._num_pending = 0
        self._is_closed = False

    def compile(
        self,
        grammar: Mapping[str, object],
        *,
        after: str | None = None,
        begin: str | None = None,
        header: str = "",
    ) -> GrammarConstraint:
        """What a reply must follow.

        Special tokens in these texts are spelled by name.

        Args:
            grammar: One row's name in GRAMMARS and its value, such as ``{"regex": "[a-z]+"}``.
            after: What ends a free part before it, such as ``"</think>"``; None is no such part.
            begin: What the free part begins with, such as ``"<think>"``; then there may be none.
                Without it there must be one.
            header: What stands between that and the grammar.

        Returns:
            The beginning; every reply forks its own from it.

        Raises:
            GrammarError: It is wrong, too complex, or cannot be enforced.
        """
        if not self._tokenizer.size:
            hint = "name the vocabulary: --vocab llama3"
            raise GrammarError("this model has no known vocabulary.", hint=hint)
        if len(grammar) != 1 or next(iter(grammar)) not in GRAMMARS:
            expected = "one of " + ", ".join(GRAMMARS)
            raise GrammarError("the kind of grammar is unknown.", expected=expected)
        [(name, value)] = grammar.items()
        source = GRAMMARS[name](value, self._tokenizer.special_ids)
        if after is not None or header:
            source = _with_free_part(source, after, begin, header, self._tokenizer.special_ids)
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise GrammarError("the grammar is too long.", expected=f"{MAX_SOURCE_BYTES} bytes")
        entry = self._entry(source)
        if entry.constraint is not None:
            return entry.constraint
        assert entry.error is not None
        raise copy(entry.error)  # because raising changes an exception

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Run something that compiles on threads of its own, where it delays no other request.

        Raises:
            CapacityError: Too much of it waits.
            EngineError: This is closed; or the future raises it, where it is closed meanwhile.
        """

        def run() -> R:
            self._check_open()
            return work()

        with self._lock:
            self._check_open()
            if self._num_pending >= MAX_PENDING:
                raise CapacityError("too many grammars wait.", expected=f"at most {MAX_PENDING}")
            self._num_pending += 1
            if self._threads is None:
                self._threads = ThreadPoolExecutor(2, "blazr-grammar")
            future = self._threads.submit(run)

        def leave(_: Future[R]) -> None:
            with self._lock:
                self._num_pending -= 1

        future.add_done_callback(leave)
        return future

    def close(self) -> None:
        """End the child process and the threads. May be called twice."""
        with self._lock:
            self._is_closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        if "_tools" in self.__dict__:
            self._tools[1].close()

    def _check_open(self) -> None:
        # a future that is cancelled instead would look to a task as if it was cancelled itself
        if self._is_closed:
            raise EngineError("the engine is not running.", found="it was closed")

    def _entry(self, source: str) -> _Entry:
        """What becomes of a grammar; whoever asks first compiles it, the others wait for that."""
        key = hashlib.sha256(source.encode()).digest()
        mine: Future[_Entry] = Future()
        with self._lock:
            known = self._cache.get(key)
            if known is not None and not known.needs_recompile:
                self._cache.move_to_end(key)
                return known
            running = self._running.setdefault(key, mine)
        if running is not mine:
            return running.result()
        try:
            entry = self._compile(source)
        except GrammarError as error:
            entry = _Entry(None, error, 0)
        except BaseException as error:
            with self._lock:
                del self._running[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._running[key]
            self._cache[key] = entry
            size = sum(each.num_bytes for each in self._cache.values())
            while len(self._cache) > MAX_CACHED or (
                size > MAX_CACHED_BYTES and len(self._cache) > 1
            ):
                _, oldest = self._cache.popitem(last=False)
                size -= oldest.num_bytes
        mine.set_result(entry)
        return entry

    def _compile(self, source: str) -> _Entry:
        from blazr.text.grammars.child import make_matcher
        from blazr.text.grammars.constraint import GrammarConstraint
        from blazr.text.grammars.refusal import refusal

        with self._start:
            tokenizer, trial = self._tools
        verdict = trial.run(source)
        if verdict.error:
            raise refusal(verdict.error, source)
        constraint = GrammarConstraint(make_matcher(tokenizer, source), self._vocab_size)
        constraint.check_start()
        return _Entry(constraint, None, verdict.num_bytes + len(source))

    @cached_property
    def _tools(self) -> tuple[LLTokenizer, Trial]:
        from blazr.text.grammars.child import make_tokenizer
        from blazr.text.grammars.constraint import make_vocabulary
        from blazr.text.grammars.trial import Trial

        vocabulary = make_vocabulary(self._tokenizer, self._vocab_size, self._special_ids())
        trial = Trial(vocabulary)
        trial.start()  # it gets ready while we do
        return make_tokenizer(vocabulary), trial


def _with_free_part(  # noqa: PLR0917
    source: str,
    end: str | None,
    begin: str | None,
    header: str,
    special_ids: Mapping[str, int],
) -> str:
    """A grammar with a free part before it, or a header, or both."""
    from blazr.text.grammars.tool_call import text_with_specials

    def spell(text: str) -> str:
        return text_with_specials(text, special_ids) if text else ""

    lines: list[str] = []
    free = ""
    if end is not None:
        free = "free /\\n{0,2}/" if begin is None else f"({spell(begin)} free /\\n{{0,2}}/)?"
        has_special = any(name and name in end for name in special_ids)
        suffix = "" if has_special else f"[suffix={json.dumps(end)}]"
        lines = [f"free{suffix}: /(?s:.*)/ {spell(end) if has_special else ''}"]
    first = {"lark_grammar": "\n".join([f"start: {free} {spell(header)} @body", *lines])}
    grammars = (
        json.loads(source)["grammars"] if source.startswith("{") else [{"lark_grammar": source}]
    )
    body = {"name": "body", **grammars[0]}
    return json.dumps({"grammars": [first, body, *grammars[1:]]})
