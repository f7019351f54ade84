"""Claude Code, by `blazr launch`: one question, and one file to write."""

from __future__ import annotations

from checks import check, run, writes_hello


@check
def tools(url: str) -> None:
    writes_hello(
        url, "claude", "asked", "--print", "Write hello.txt.", "--permission-mode", "acceptEdits"
    )


run()
