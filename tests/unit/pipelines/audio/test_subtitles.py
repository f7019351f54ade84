"""Subtitles have a form that players read, whatever is said."""

from __future__ import annotations

from blazr.pipelines.audio.subtitles import as_srt, as_vtt
from blazr.pipelines.audio.transcript import Segment

SEGMENTS = [
    Segment(start=0.0, end=1.5, text=" Hello.\n\nYou"),
    Segment(start=1.5, end=1.6, text="  "),
    Segment(start=3661.0005, end=3662.999, text=" a --> b & <c>"),
]


def test_subrip() -> None:
    assert as_srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello. You\n\n"
        "2\n01:01:01,000 --> 01:01:02,999\na -> b & <c>\n"
    )


def test_webvtt() -> None:
    assert as_vtt(SEGMENTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello. You\n\n"
        "01:01:01.000 --> 01:01:02.999\na -&gt; b &amp; &lt;c&gt;\n"
    )
    assert as_vtt([]) == "WEBVTT\n"
