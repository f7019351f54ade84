"""What is said where nothing independent can judge a model."""

from __future__ import annotations

from blazr.core.errors import BlazrError


class NoReferenceError(BlazrError):
    """Nobody has written a reference for this kind of model, tensor or setting."""

    def __init__(self, what: str) -> None:
        super().__init__(f"no independent reference for {what}.")
        self.what = what
