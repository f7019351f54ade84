"""Attention with caps, sinks and windows: against the formulas, one score at a time."""

from __future__ import annotations

import math

import pytest
import torch

from blazr.nn.operands.attention import AttentionParams, Pages
from blazr.nn.operands.step import GRID, BidirectionalSpan, Span, StepTable
from blazr.nn.ops.attention import QUERIES_AT_ONCE, attend_bidirectionally, attention

pytestmark = pytest.mark.smoke


def by_hand(q, k, v, *, scale, window, softcap, sinks):
    """One query, one head, one key after the other, in Python's own numbers."""
    queries, heads, _ = q.shape
    tokens, shared = k.shape[:2]
    out = torch.zeros(queries, heads, v.shape[-1], dtype=torch.float64)
    for row in range(queries):
        place = tokens - queries + row
        for head in range(heads):
            owner = head // (heads // shared)
            first = 0 if window is None else max(0, place - window + 1)
            scores = []
            for token in range(first, place + 1):
                score = scale * float(q[row, head].double() @ k[token, owner].double())
                scores.append(score if softcap is None else softcap * math.tanh(score / softcap))
            total = sum(math.exp(score) for score in scores)
            total += 0 if sinks is None else math.exp(float(sinks[head]))
            for token, score in zip(range(first, place + 1), scores, strict=True):
                out[row, head] += math.exp(score) / total * v[token, owner].double()
    return out.float()


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize(("queries", "tokens"), [(1, 6), (4, 9), (5, 5)])
def test_the_formulas(window, softcap, has_sinks: bool, queries: int, tokens: int) -> None:
    q, k, v = torch.randn(queries, 4, 6), torch.randn(tokens, 2, 6), torch.randn(tokens, 2, 5)
    options = {
        "scale": 0.7,
        "window": window,
        "softcap": softcap,
        "sinks": torch.randn(4) if has_sinks else None,
    }
    expected = by_hand(q, k, v, **options)
    torch.testing.assert_close(
        attention(q, k, v, AttentionParams(**options)), expected, atol=1e-5, rtol=1e-5
    )


def test_many_queries_are_taken_some_at_a_time() -> None:
    count = 2 * QUERIES_AT_ONCE + 3
    q, k, v = (torch.randn(2, count, 2, 4) for _ in range(3))
    plain = attention(q, k, v, AttentionParams(scale=0.5))
    capped = attention(q, k, v, AttentionParams(scale=0.5, softcap=1e6))
    torch.testing.assert_close(capped, plain, atol=1e-4, rtol=1e-4)
    drained = attention(q, k, v, AttentionParams(scale=0.5, sinks=torch.full((2,), -1e4)))
    torch.testing.assert_close(drained, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("has_window", [True, False])
def test_tokens_that_see_ahead(window, softcap, has_window) -> None:
    """They attend to all before the last of them, and the same numbers come of any beginning."""
    chance = torch.Generator().manual_seed(3)
    keys, values = torch.randn(2, 6, GRID, 2, 8, generator=chance)
    queries = torch.randn(110, 4, 8, generator=chance)
    params = AttentionParams(scale=0.3, window=window, softcap=softcap)
    pages = Pages(keys=keys, values=values, params=params)
    tables = torch.tensor([[0, 0], [4, 1]])
    first, last = 70, 100

    def step(start: int) -> torch.Tensor:
        """A sequence of 7 tokens beside one from a place to its 110th."""
        spans = Span(0, 7, 0, 0), Span(7, 110 - start, start, 0)
        table = StepTable(
            spans, tables, bidirectional_spans=(BidirectionalSpan(1, first, last, has_window),)
        )
        q = torch.cat((queries[:7], queries[start:]))
        out = torch.full_like(q, 7.0)
        attend_bidirectionally(out, q, pages, table)
        return out

    found = step(60)
    k, v = (each[[4, 1]].flatten(0, 1)[:last] for each in (keys, values))
    for place in range(first, last):
        low = max(0, place - window + 1) if window and has_window else 0
        # one query at the end of what it sees is causal attention
        seen = by_hand(
            queries[place][None],
            k[low:],
            v[low:],
            scale=0.3,
            window=None,
            softcap=softcap,
            sinks=None,
        )
        assert torch.allclose(found[7 + place - 60], seen[0], atol=1e-5)
    untouched = [*range(7 + first - 60), *range(7 + last - 60, 57)]
    assert (found[untouched] == 7).all()
    for start in (first, first + 1, last - 1):
        again = step(start)
        assert torch.equal(again[7 : 7 + last - start], found[7 + start - 60 : 7 + last - 60])
