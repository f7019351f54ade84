"""The ``blazr`` command, and ``python -m blazr``."""

import os
import signal
import sys
import threading
from types import FrameType


def main() -> None:
    """Run the command line. Ctrl+C ends it quietly, also while something is being imported."""
    # else it is ignored, as in a script's background
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    from blazr.cli.app import main as run

    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, but in an import end the process.

    Imports can swallow an exception, as numpy's do, and the command would go on. With another
    thread something has begun that must be ended in order.
    """
    if threading.active_count() == 1 and _is_importing(frame):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    signal.default_int_handler(number, frame)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    main()
