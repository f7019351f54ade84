"""The child process in which a grammar is compiled first, because it can be killed."""

from __future__ import annotations

import json
import selectors
import subprocess
import threading
import weakref
from dataclasses import dataclass

from blazr.core.child import end_child, start_child
from blazr.core.errors import EngineError, GrammarError
from blazr.text.grammars import child

# Of the wall clock, for a child that neither answers nor computes; the limit that counts is CPU_S.
SILENCE_S = 10.0
START_S = 60.0
_NO_START = "the process that compiles grammars does not start."


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a trial.

    Args:
        error: What is wrong with the grammar; empty if nothing is.
        num_bytes: Memory it takes, about.
    """

    error: str
    num_bytes: int


class Trial:
    """Compiles grammars in a process of its own, one at a time.

    A process that dies of a grammar is replaced at the next. Thread-safe.

    Args:
        vocabulary: The model's tokens.
    """

    def __init__(self, vocabulary: child.Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: weakref.finalize[..., Trial] | None = None
        self._is_ready = False

    def start(self) -> None:
        """Start the process without waiting for it; `run` does so too where none runs."""
        with self._lock:
            self._launch()

    def run(self, source: str) -> Verdict:
        """Try a grammar.

        Raises:
            GrammarError: It takes too much time or memory.
            EngineError: The process cannot be started.
        """
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                self._stop()
                process = self._launch()
            if not self._is_ready and _answer(process, START_S) is None:
                self._stop()
                raise EngineError(_NO_START)
            self._is_ready = True
            was_sent = _send(process, source.encode(), SILENCE_S)
            answer = _answer(process, SILENCE_S) if was_sent else None
            if answer is None:
                self._stop()
                raise GrammarError(
                    "the grammar is too complex.",
                    expected=f"one that compiles in {child.CPU_S:g} s and "
                    f"{child.MEMORY_BYTES >> 20} MB",
                    hint="fewer and smaller repetitions, alternatives and bounds",
                )
            verdict = json.loads(answer)
            if verdict["needs_restart"]:
                self._stop()
        return Verdict(verdict["error"], verdict["bytes"])

    def close(self) -> None:
        """End the process. May be called twice; a later `run` starts another."""
        with self._lock:
            self._stop()

    def _launch(self) -> subprocess.Popen[bytes]:
        try:
            process = start_child(child.__file__, stdout=subprocess.PIPE)
        except OSError as error:
            raise EngineError(_NO_START, found=str(error)[:100]) from error
        self._process = process
        self._reaper = weakref.finalize(self, end_child, process)
        _send(process, child.pack_vocabulary(self._vocabulary), START_S)
        return process

    def _stop(self) -> None:
        if self._reaper is not None:
            self._reaper()
        self._process = self._reaper = None
        self._is_ready = False


def _send(process: subprocess.Popen[bytes], frame: bytes, timeout_s: float) -> bool:
    """Send a frame; False where the process died. One that does not read it in time is killed."""
    assert process.stdin is not None
    # a pipe holds 64 KB: more is written only as fast as it is read
    limit = threading.Timer(timeout_s, process.kill)
    limit.daemon = True
    limit.start()
    try:
        child.write_frame(process.stdin, frame)
    except OSError:
        return False
    finally:
        limit.cancel()
    return True


def _answer(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
    """Get the answer; None where the process died or keeps silent."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            return None
    return child.read_frame(process.stdout)
