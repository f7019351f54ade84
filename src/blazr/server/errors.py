"""Errors as HTTP answers. Making one cannot fail, whatever the error holds."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Mapping

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from blazr.core.errors import (
    EXITS,
    BlazrError,
    CapacityError,
    ContextLengthError,
    EngineError,
    RequestError,
)

# What is raised to stop a request or the process. Everything else is the failure of one request.
STOPS = (CancelledError, *EXITS)
_MAX_MESSAGE = 600
_NO_THREAD = "can't start new thread"  # what Python says where there is no memory for its stack

# OpenAI's `type` by status, where it is not "invalid_request_error".
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class HttpError(Exception):
    """An answer other than 200.

    Args:
        status: The HTTP status.
        message: For people. Never holds more of the client's input than 100 characters.
        param: The field at fault.
        code: For programs.
        headers: Sent along.
        retry_after_s: When to ask again; None does not say.
        kind: OpenAI's ``type``, where it is not that of the status.
        figures: More about it, by the names that clients look for.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry_after_s: int | None = None,
        kind: str | None = None,
        figures: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)
        self.kind = kind or _TYPES.get(status, "invalid_request_error")
        self.figures = figures or {}

    @classmethod
    def of(cls, error: BaseException) -> HttpError:
        """The answer that an error amounts to; 500 for those nobody meant."""
        if isinstance(error, HttpError):
            return error
        if isinstance(error, ContextLengthError):
            return cls(  # OpenAI's clients look for the code, llama.cpp's for the type and figures
                400,
                on_one_line(error),
                param=error.param,
                code="context_length_exceeded",
                kind="exceed_context_size_error",
                figures={"n_prompt_tokens": error.num_tokens, "n_ctx": error.limit},
            )
        if isinstance(error, RequestError):
            return cls(400, on_one_line(error), param=error.param, code="invalid_value")
        if isinstance(error, CapacityError):
            return cls(429, on_one_line(error), code="overloaded", retry_after_s=1)
        if isinstance(error, EngineError):
            return cls(503, on_one_line(error), code="engine_unavailable", retry_after_s=1)
        return _answer_to_unforeseen(error)

    @classmethod
    def unsupported(cls, message: str, *, code: str = "not_implemented") -> HttpError:
        """The answer to what this server will never do."""
        # OpenAI's client would try again
        return cls(501, message, code=code, headers={"X-Should-Retry": "false"})

    @classmethod
    def missing(
        cls, kind: str, name: str, more: str = "", *, param: str | None = None
    ) -> HttpError:
        """The answer where a client names something that there is not.

        Args:
            kind: What it is to be.
            name: As the client has it.
            more: What else there is to say.
            param: The field that names it.
        """
        message = f"there is no {kind} {clean(name, 100)!r}{more}."
        return cls(404, message, param=param, code=f"{kind}_not_found")

    @property
    def text(self) -> str:
        """The message, fit to be shown."""
        return clean(self.message, _MAX_MESSAGE)

    def response(self, shape: ErrorShape) -> Response:
        """The whole answer, in a dialect's shape."""
        body = msgspec.json.encode(shape(self))
        return Response(body, self.status, headers=self.headers, media_type="application/json")


def _answer_to_unforeseen(error: BaseException) -> HttpError:
    if isinstance(error, MemoryError) or str(error) == _NO_THREAD:
        message = "the server has no memory left for this request."
        return HttpError(503, message, code="no_memory", retry_after_s=1)
    return HttpError(500, "something went wrong in the server.", code="internal_error")


# How a dialect writes an error; the return annotation is the schema.
ErrorShape = Callable[[HttpError], msgspec.Struct]


class ErrorBody(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class ErrorReply(msgspec.Struct):
    """An error, as OpenAI writes it."""

    error: ErrorBody


def openai_error(error: HttpError) -> ErrorReply:
    """OpenAI's error object."""
    body = ErrorBody(
        message=error.text,
        type=error.kind,
        param=clean(error.param, 100) if error.param is not None else None,
        code=error.code,
        **error.figures,
    )
    return ErrorReply(body)


def clean(text: str, limit: int) -> str:
    """Text that can be encoded and shown: control characters and surrogates escaped, cut."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def on_one_line(error: BlazrError) -> str:
    """An error's parts on one line."""
    parts = {"Found": error.found, "Expected": error.expected, "Try": error.hint}
    details = [f"{label}: {text}." for label, text in parts.items() if text]
    return " ".join([error.message, *details])
