"""Transcripts as subtitles: SubRip and WebVTT [https://www.w3.org/TR/webvtt1/]."""

from __future__ import annotations

from collections.abc import Iterable

from blazr.pipelines.audio.transcript import Segment


def as_srt(segments: Iterable[Segment]) -> str:
    """Segments as SubRip has them."""
    parts = [
        f"{number}\n{_time(each.start, ',')} --> {_time(each.end, ',')}\n{_line(each.text)}\n"
        for number, each in enumerate(_spoken(segments), start=1)
    ]
    return "\n".join(parts)


def as_vtt(segments: Iterable[Segment]) -> str:
    """Segments as WebVTT has them."""
    parts = [
        f"{_time(each.start, '.')} --> {_time(each.end, '.')}\n"
        + _line(each.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        + "\n"
        for each in _spoken(segments)
    ]
    return "\n".join(["WEBVTT\n", *parts])


def _spoken(segments: Iterable[Segment]) -> list[Segment]:
    return [each for each in segments if each.text.strip()]


def _line(text: str) -> str:
    """The text on one line; an empty one or an arrow would end or begin an entry."""
    return " ".join(text.split()).replace("-->", "->")


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    whole, rest = divmod(milliseconds, 1000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{whole:02}{point}{rest:03}"
