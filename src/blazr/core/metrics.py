"""Every metric, in one table, over prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from blazr.core.table import Table


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        help: What it counts or measures, with its unit.
        labels: Names of its labels.
        buckets: Upper edges of a histogram, seconds; none makes it a counter.
    """

    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

METRICS: Table[Metric] = Table(
    "metric",
    {
        "blazr_requests": Metric(
            "requests to generate, by outcome: ok, cancelled, failed, rejected", ("outcome",)
        ),
        "blazr_http_responses": Metric(
            "HTTP answers, by status; none where the client left first", ("status",)
        ),
        "blazr_prompt_tokens": Metric("prompt tokens read"),
        "blazr_cached_prompt_tokens": Metric("prompt tokens that were not computed again"),
        "blazr_generated_tokens": Metric("tokens generated"),
        "blazr_time_to_first_token_seconds": Metric(
            "from the request to its first token", buckets=_FIRST_TOKEN_S
        ),
        "blazr_inter_token_seconds": Metric("between tokens of a reply", buckets=_BETWEEN_TOKENS_S),
    },
)


class Metrics:
    """The metrics of one server.

    Args:
        stats: Gives the engine's gauges by name; read when the metrics are rendered.
    """

    def __init__(self, stats: Callable[[], Mapping[str, int | float]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineGauges(stats))
        self._counters = {
            name: Counter(name, row.help, row.labels, registry=self._registry)
            for name, row in METRICS.items()
            if not row.buckets
        }
        self._histograms = {
            name: Histogram(name, row.help, buckets=row.buckets, registry=self._registry)
            for name, row in METRICS.items()
            if row.buckets
        }

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def observe(self, name: str, value_s: float) -> None:
        """Put a duration into a histogram."""
        self._histograms[name].observe(value_s)

    def render(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineGauges:
    def __init__(self, stats: Callable[[], Mapping[str, int | float]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, value in self._stats().items():
            title = name.replace("_", " ").removeprefix("num ")
            yield GaugeMetricFamily(f"blazr_engine_{name}", f"of the engine: {title}", value)
