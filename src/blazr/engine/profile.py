"""A profile: what the engine's thread did, for chrome://tracing or https://ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import ProfilerActivity, profile, supported_activities


class Profile:
    """Records from now on. It starts and stops on the thread whose work it records."""

    def __init__(self) -> None:
        wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & supported_activities()
        # torch does not know our kernels: the Python functions that call them stand for them
        self._profile = profile(activities=wanted, with_stack=True)
        self._profile.start()

    def end(self) -> None:
        """Record no more."""
        self._profile.stop()

    def save(self, path: Path) -> None:
        """Write it, as gzipped JSON; on any thread.

        Raises:
            OSError: It cannot be written.
        """
        with path.open("xb"):  # torch would fail without a word
            pass
        self._profile.export_chrome_trace(str(path))
