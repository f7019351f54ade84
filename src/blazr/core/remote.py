"""What clients of a server share: its address, with or without ``/v1``, a key, and its streams."""

from __future__ import annotations

import re

from blazr.core.errors import ConfigError


def root_url(url: str) -> str:
    """The address of a server without the ``/v1`` that OpenAI's clients put behind it.

    Raises:
        ConfigError: It is no URL.
    """
    if not re.match(r"https?://[^/?#]", url):
        raise ConfigError(
            "the URL of the server is not understood.",
            found=repr(url)[:100],
            expected="http://127.0.0.1:8080, or https",
        )
    return url.rstrip("/").removesuffix("/v1")


def auth_headers(key: str | None) -> dict[str, str]:
    """The headers that show a server an API key; none without a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


class EventReader:
    """Cuts a stream of server-sent events into what their ``data`` lines hold.

    Lines end with a line feed, perhaps after a carriage return. The ``iter_lines`` of HTTP clients
    also ends them at U+2028, U+2029 and U+0085, which JSON may hold as they are.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes; the data of the lines that they end, without OpenAI's ``[DONE]``."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        fields = (line.partition(b":") for line in lines)
        found = (data.strip() for name, _, data in fields if name == b"data")
        return [data for data in found if data != b"[DONE]"]
