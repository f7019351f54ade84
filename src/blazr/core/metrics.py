"""Every metric, in one table, over prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family

from blazr.core.table import Table


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        help: What it counts or measures, with its unit.
        labels: Names of its labels, besides the model's.
        buckets: Upper edges of a histogram, seconds; none makes it a counter.
        figure: Name of the engine's figure it shows; with a label, the beginning of the names of
            several, of which the rest is the label's value.
        is_gauge: Whether that figure may also fall.
        by_model: Whether each model has its own.
        vllm: What vLLM calls the same, without its prefix; it is shown under that name, too.
    """

    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    figure: str = ""
    is_gauge: bool = False
    by_model: bool = True
    vllm: str = ""

    @property
    def kind(self) -> str:
        """``"histogram"``, ``"gauge"`` or ``"counter"``."""
        return "histogram" if self.buckets else "gauge" if self.is_gauge else "counter"

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Names of its labels, the model's first."""
        return ("model", *self.labels) if self.by_model else self.labels


_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

# https://docs.vllm.ai/en/stable/usage/metrics/
_VLLM_ENGINE = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "usage": "kv_cache_usage_perc",
    "preemptions": "num_preemptions",
    "prompt_tokens": "prefix_cache_queries",
    "cached_tokens": "prefix_cache_hits",
    "draft_steps": "spec_decode_num_drafts",
    "draft_tokens": "spec_decode_num_draft_tokens",
    "kept_draft_tokens": "spec_decode_num_accepted_tokens",
}
# Of those called otherwise than their metrics.
_ENGINE_FIGURES = {"running": "num_running", "waiting": "num_waiting"}
_VLLM_LABELS = {"model": "model_name", "reason": "finished_reason"}

METRICS: Table[Metric] = Table(
    "metric",
    {
        "blazr_requests": Metric(
            "requests to generate, by outcome: ok, cancelled, failed, rejected", ("outcome",)
        ),
        "blazr_http_responses": Metric(
            "HTTP answers, by status; none where the client left first",
            ("status",),
            by_model=False,
        ),
        "blazr_model_loads": Metric("times a model was loaded, by outcome", ("outcome",)),
        "blazr_prompt_tokens": Metric("prompt tokens read", vllm="prompt_tokens"),
        "blazr_cached_prompt_tokens": Metric("prompt tokens that were not computed again"),
        "blazr_generated_tokens": Metric("tokens generated", vllm="generation_tokens"),
        "blazr_time_to_first_token_seconds": Metric(
            "from the request to its first token",
            buckets=_FIRST_TOKEN_S,
            vllm="time_to_first_token_seconds",
        ),
        "blazr_inter_token_seconds": Metric(
            "between tokens of a reply",
            buckets=_BETWEEN_TOKENS_S,
            vllm="inter_token_latency_seconds",
        ),
        "blazr_request_seconds": Metric(
            "from the request to the end of its reply",
            buckets=_FIRST_TOKEN_S,
            vllm="e2e_request_latency_seconds",
        ),
        **{
            f"blazr_engine_{name}": Metric(
                text,
                figure=_ENGINE_FIGURES.get(name, name),
                is_gauge=True,
                vllm=_VLLM_ENGINE.get(name, ""),
            )
            for name, text in (
                ("running", "replies being computed"),
                ("max_running", "replies that can be computed at once"),
                ("waiting", "replies in the queue"),
                ("usage", "share of the memory for replies that running ones hold, 0 to 1"),
                ("pages_used", "pages in use, by replies or for reuse"),
                ("pages_idle", "of these, pages kept for reuse alone"),
                ("pages_free", "pages that can be had without evicting"),
                ("states_used", "recurrent states in use, by replies or for reuse"),
                ("states_free", "states that can be had without evicting"),
                ("prefix_blocks", "blocks of prompts and replies that are known"),
                ("cache_bytes", "memory set aside for caches"),
                ("block_tokens", "tokens of a block of a prefix"),
                ("page_bytes", "of a page, for all layers"),
                ("state_bytes", "of a recurrent state, for all layers"),
                ("disk_bytes", "of all files in --cache-dir, when last counted"),
            )
        },
        **{
            f"blazr_engine_{name}": Metric(text, figure=name, vllm=_VLLM_ENGINE.get(name, ""))
            for name, text in (
                ("steps", "steps computed"),
                ("computed_tokens", "tokens computed, of prompts and replies"),
                ("generated_tokens", "tokens generated, counted as they are"),
                ("prompt_tokens", "prompt tokens of requests that began to run"),
                ("cached_tokens", "of these, tokens that were not computed again"),
                ("draft_steps", "times drafts of a reply were computed, of one token or more"),
                ("draft_tokens", "drafts computed"),
                ("kept_draft_tokens", "of these, drafts that turned out to be the reply"),
                ("preemptions", "times a running reply gave its memory back"),
                ("page_evictions", "pages taken from prefixes nobody used"),
                ("state_evictions", "recurrent states taken from prefixes nobody used"),
                ("disk_read_pages", "pages read from --cache-dir"),
                ("disk_read_states", "recurrent states read from there"),
                ("disk_written", "pages and states written there"),
                ("disk_deleted", "files deleted there, for want of room or because spoiled"),
                ("disk_spoiled", "files there whose content was not what had been written"),
                ("disk_skipped", "pages and states not written, as too much was waiting"),
                ("disk_errors", "errors of the file system there"),
                ("disk_sent_bytes", "bytes of files there that other servers have fetched"),
                ("disk_received_bytes", "bytes of files there fetched from other servers"),
                ("restarts", "times the engine failed and began afresh"),
            )
        },
        "blazr_engine_prefixes": Metric(
            "replies begun, by why no more of the prompt was reused", ("reason",), figure="reuse_"
        ),
        "blazr_engine_finished": Metric(
            "replies ended, by why: stop, length, abort, error",
            ("reason",),
            figure="finished_",
            vllm="request_success",
        ),
    },
)


Figures = Callable[[], Mapping[str, int | float]]


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._engines: dict[str, Figures] = {}
        self._registry.register(_EngineFigures(self._engines))
        self._counters = {
            name: Counter(name, row.help, row.all_labels, registry=self._registry)
            for name, row in METRICS.items()
            if not row.buckets and not row.figure
        }
        self._histograms = {
            name: Histogram(
                name, row.help, row.all_labels, buckets=row.buckets, registry=self._registry
            )
            for name, row in METRICS.items()
            if row.buckets
        }

    def watch(self, model: str, figures: Figures) -> None:
        """Show the figures of a model's engine, asked for whenever the metrics are rendered."""
        self._engines[model] = figures

    def unwatch(self, model: str) -> None:
        """The model's engine has gone."""
        self._engines.pop(model, None)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def observer(self, name: str, **labels: str) -> Callable[[float], None]:
        """What puts durations, in seconds, into a histogram; kept, it looks nothing up."""
        histogram = self._histograms[name]
        observe: Callable[[float], None] = histogram.labels(**labels).observe
        return observe

    def render(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry) + generate_latest(
            _VllmNames(self._registry, self._engines)
        )


class _EngineFigures:
    def __init__(self, engines: Mapping[str, Figures]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        figures = {model: ask() for model, ask in self._engines.items()}
        for name, row in METRICS.items():
            if not row.figure:
                continue
            kind = GaugeMetricFamily if row.is_gauge else CounterMetricFamily
            family = kind(name, row.help, labels=row.all_labels)
            for model, values in figures.items():
                for label, value in _figures_of(row, values):
                    family.add_metric([model, label] if row.labels else [model], value)
            yield family


def _figures_of(
    row: Metric, values: Mapping[str, int | float]
) -> Iterator[tuple[str, int | float]]:
    """The figures of a row: what their names have behind the row's, and their values."""
    for name, value in values.items():
        if name == row.figure or (row.labels and name.startswith(row.figure)):
            yield name.removeprefix(row.figure), value


class _VllmNames:
    """What vLLM measures too, under its names, for routers and dashboards that ask for these."""

    def __init__(self, registry: CollectorRegistry, engines: Mapping[str, Figures]) -> None:
        self._registry = registry
        self._engines = engines

    def collect(self) -> Iterator[Family]:
        yield self._sizes()
        for family in self._registry.collect():
            row = METRICS.get(family.name)
            if row is None or not row.vllm:
                continue
            renamed = Family(f"vllm:{row.vllm}", family.documentation, family.type)
            for sample in family.samples:
                labels = {_VLLM_LABELS.get(key, key): text for key, text in sample.labels.items()}
                name = renamed.name + sample.name.removeprefix(family.name)
                renamed.add_sample(name, labels, sample.value)
            yield renamed

    def _sizes(self) -> Family:
        """The sizes of the memory for prefixes, which vLLM has in labels."""
        family = GaugeMetricFamily(
            "vllm:cache_config_info",
            "tokens of a block, and how many blocks there are",
            labels=("model_name", "block_size", "num_gpu_blocks"),
        )
        for model, ask in self._engines.items():
            figures = ask()
            if "block_tokens" in figures:
                num_blocks = figures["pages_used"] + figures["pages_free"]
                sizes = [f"{figures['block_tokens']:.0f}", f"{num_blocks:.0f}"]
                family.add_metric([model, *sizes], 1)
        return family
