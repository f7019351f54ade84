"""The errors blazr raises on purpose.

    BlazrError
    ├── ConfigError            a config.json, flag or option is wrong
    │   └── UnknownFamilyError     config.json names a kind of model that blazr has no network for
    ├── CheckpointError        a file cannot be read, or does not hold what the model needs
    ├── ShapeError             tensors do not fit together
    ├── UnknownNameError       a name that is in no table
    ├── RequestError           a request asks for something impossible
    │   ├── ContextLengthError     the prompt is longer than the model's context
    │   ├── GrammarError           a grammar or schema is wrong, or too complex
    │   └── TemplateLimitError     a chat template takes too much, or reaches for what it may not
    ├── CapacityError          no room: the queue is full, or the memory is
    └── EngineError            the engine failed or has stopped

Every message says what was found, what was expected, and what to try. Users get these; ``assert``
is for our own invariants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sized
from contextlib import contextmanager

# What is raised to end the process. Code that answers for a failure lets these pass and catches
# BaseException for the rest, because a panic in an extension written in Rust is no Exception.
EXITS = (KeyboardInterrupt, SystemExit)


class BlazrError(Exception):
    """Base of all errors that blazr raises on purpose.

    Args:
        message: What went wrong, one sentence.
        found: What was there.
        expected: What should have been there.
        hint: What the user can try.
    """

    def __init__(
        self, message: str, *, found: str = "", expected: str = "", hint: str = ""
    ) -> None:
        self.message = message
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(self.render())

    def render(self) -> str:
        """The message with its three parts on lines of their own."""
        lines = [self.message]
        for label, text in (
            ("found", self.found),
            ("expected", self.expected),
            ("try", self.hint),
        ):
            if text:
                body = text.replace("\n", "\n" + " " * 12)
                lines.append(f"  {label:<8}  {body}")
        return "\n".join(lines)


class ConfigError(BlazrError):
    """A configuration file, flag or option is wrong."""


class UnknownFamilyError(ConfigError):
    """config.json names a kind of model that blazr has no network for."""


class CheckpointError(BlazrError):
    """A checkpoint cannot be read, or does not hold what the model needs."""


class ShapeError(BlazrError):
    """Tensors do not fit together."""


class UnknownNameError(BlazrError):
    """A name that is in no table."""


class RequestError(BlazrError):
    """A request asks for something impossible.

    Args:
        message: What is wrong.
        param: The field at fault, for the HTTP error's ``param``.
        found: What was there.
        expected: What should have been there.
        hint: What the caller can try.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        found: str = "",
        expected: str = "",
        hint: str = "",
    ) -> None:
        self.param = param
        super().__init__(message, found=found, expected=expected, hint=hint)


class ContextLengthError(RequestError):
    """The prompt is longer than the model's context.

    Args:
        message: What is wrong.
        num_tokens: Tokens of the prompt; at least so many, where they were not counted.
        limit: Tokens that the context holds.
        param: The field at fault.
        parts: The other parts of a `RequestError`.
    """

    def __init__(
        self,
        message: str,
        *,
        num_tokens: int = 0,
        limit: int = 0,
        param: str | None = None,
        **parts: str,
    ) -> None:
        self.num_tokens = num_tokens
        self.limit = limit
        super().__init__(message, param=param, **parts)


class GrammarError(RequestError):
    """A grammar or schema is wrong, too complex, or asks for what cannot be enforced."""

    def __init__(
        self, message: str, *, found: str = "", expected: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, param="grammar", found=found, expected=expected, hint=hint)


class TemplateLimitError(RequestError):
    """A chat template takes too much time or memory, or reaches for what it may not.

    Spelling the chat in another way for it would not help.
    """


class CapacityError(BlazrError):
    """There is no room: the queue is full, or the memory is."""


class EngineError(BlazrError):
    """The engine failed or has stopped."""


def said_by(error: BaseException) -> str:
    """What another library says, without the addresses of the objects that it names."""
    return re.sub(r"(?:image file )?'?<[^<>]* at 0x[0-9a-f]+>'?", "the file", str(error))


@contextmanager
def as_config_error(
    message: str, kinds: type[Exception] | tuple[type[Exception], ...] = OSError
) -> Iterator[None]:
    """Tell of a file that cannot be read or written.

    Args:
        message: What cannot be done.
        kinds: What may be raised.

    Raises:
        ConfigError: One of them was.
    """
    try:
        yield
    except kinds as error:
        raise ConfigError(message, found=str(error)[:200]) from None


def outside_vocabulary(vocab_size: int) -> RequestError:
    """The error for a token that the model does not know, where it knows so many."""
    return RequestError(
        "a token id is outside the vocabulary.",
        param="tokens",
        expected=f"0 to {vocab_size - 1}",
    )


def too_many(items: Sized, most: int, noun: str, *, param: str | None) -> RequestError:
    """The error for more items than a request may have.

    Args:
        items: What it has.
        most: How many there may be.
        noun: What they are called, in the plural.
        param: The field that they are in.
    """
    return RequestError(
        f"there are too many {noun}.",
        param=param,
        found=str(len(items)),
        expected=f"at most {most}",
    )
