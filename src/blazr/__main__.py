"""The ``blazr`` command, and ``python -m blazr``."""

import signal
import sys


def main() -> None:
    """Run the command line. Ctrl+C ends it quietly, also while it is still being imported."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else it is ignored, as in a script's background
        # not by an exception, which an import can swallow
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from blazr.cli.app import main as run

    signal.signal(signal.SIGINT, handler)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
