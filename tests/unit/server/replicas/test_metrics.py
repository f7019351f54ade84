"""One page of metrics for all replicas."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from blazr.core.metrics import Metrics
from blazr.server.replicas.metrics import merge
from blazr.server.replicas.replica import Replica


def test_samples_of_all_stand_together_and_say_whose_they_are(tmp_path: Path) -> None:
    pages = {}
    for number in range(2):
        metrics = Metrics()
        metrics.count("blazr_prompt_tokens", 10 + number, model="m")
        metrics.observer("blazr_request_seconds", model="m")(0.2)
        pages[str(number)] = metrics.render().decode()
    text = merge(pages, [Replica(0, tmp_path, ()), Replica(1, tmp_path, ())]).decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    values = {
        (sample.name, sample.labels["replica"]): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
    assert values["blazr_prompt_tokens_total", "0"] == 10
    assert values["blazr_prompt_tokens_total", "1"] == 11
    assert values["vllm:prompt_tokens_total", "1"] == 11
    assert values["blazr_request_seconds_count", "1"] == 1
    assert values["blazr_replica_ready", "0"] == 0
