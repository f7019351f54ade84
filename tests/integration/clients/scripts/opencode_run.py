"""opencode, by `blazr launch`: one question, and one file to write."""

from __future__ import annotations

from checks import check, run, writes_hello


@check
def tools(url: str) -> None:
    writes_hello(url, "opencode", "asked", "run", "Write hello.txt.")


run()
