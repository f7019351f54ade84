"""The metrics of all replicas on one page, each sample with the number of its replica."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from blazr.server.replicas.replica import Replica

LABEL = "replica"
FRONT = "front"  # the label's value for what the process in front counted itself
# What there is besides: name without a counter's suffix, and help.
REPLICA_METRICS = {
    "blazr_replica_ready": "whether a replica takes requests, 0 or 1",
    "blazr_replica_requests": "requests that a replica was sent and has not answered to the end",
    "blazr_replica_known_blocks": "blocks of 256 bytes that a replica was sent and may still have",
    "blazr_replica_restarts": "times a replica was started again",
}


def merge(pages: Mapping[str, str], replicas: Iterable[Replica]) -> bytes:
    """One page in Prometheus' text format.

    Args:
        pages: A page of metrics by the value of their label.
        replicas: Told of, too.
    """
    families: dict[str, Metric] = {}
    for value, page in pages.items():
        for found in text_string_to_metric_families(page):
            family = families.setdefault(
                found.name, Metric(found.name, found.documentation, found.type)
            )
            for sample in found.samples:
                family.add_sample(sample.name, {**sample.labels, LABEL: value}, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families([*families.values(), *_own(replicas)]))
    return generate_latest(registry)


class _Families:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _own(replicas: Iterable[Replica]) -> Iterator[Metric]:
    values = {
        str(each.number): (
            float(each.is_ready),
            each.num_running,
            len(each.sent),
            max(each.num_starts - 1, 0),
        )
        for each in replicas
    }
    for place, (name, text) in enumerate(REPLICA_METRICS.items()):
        kind = CounterMetricFamily if name.endswith("_restarts") else GaugeMetricFamily
        family = kind(name, text, labels=[LABEL])
        for number, figures in values.items():
            family.add_metric([number], figures[place])
        yield family
