"""What is packaged for fleets says what the server has: metrics, probes, flags."""

import json
import re
from pathlib import Path

import pytest

from blazr.cli.serve import variables
from blazr.core.metrics import METRICS
from blazr.server.replicas.metrics import LABEL, REPLICA_METRICS
from blazr.server.routes import ROUTES

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
ENDINGS = {"counter": {"_total"}, "gauge": {""}, "histogram": {"_bucket", "_sum", "_count"}}


def labels_by_name() -> dict[str, set[str]]:
    """The labels of every series that is shown."""
    labels = {
        name + ending: {*row.all_labels, LABEL, "le"}
        for name, row in METRICS.items()
        for ending in ENDINGS[row.kind]
    }
    for name in REPLICA_METRICS:
        labels |= {name: {LABEL}, f"{name}_total": {LABEL}}
    return labels


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    dashboard = json.loads((PACKAGING / "grafana-dashboard.json").read_text("utf-8"))
    known = labels_by_name()
    queries = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    assert len(queries) > 20
    for query in queries:
        names = re.findall(r"blazr_\w+", query)
        assert names, query
        assert set(names) <= known.keys(), query
        asked = set(re.findall(r"(\w+)=~?\"", query))
        for group in re.findall(r"by \(([^)]*)\)", query):
            asked |= set(re.split(r",\s*", group))
        assert asked <= set.union(*(known[name] for name in names)), query
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"blazr_\w+", json.dumps(dashboard["templating"]))) <= known.keys()


def test_the_manifest_asks_for_what_there_is() -> None:
    yaml = pytest.importorskip("yaml")
    objects = list(yaml.safe_load_all((PACKAGING / "kubernetes.yaml").read_text("utf-8")))
    by_kind = {each["kind"]: each for each in objects}
    template = by_kind["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    ports = {each["name"] for each in container["ports"]}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        assert ROUTES[f"GET {probe['path']}"].is_open  # a probe shows no key
        assert probe["port"] in ports
    assert {each["name"] for each in container["env"]} <= {each.name for each in variables()}
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in template["spec"]["volumes"]}
    for kind in ("Service", "PodDisruptionBudget"):
        selector = by_kind[kind]["spec"]["selector"]
        labels = selector.get("matchLabels", selector)
        assert labels.items() <= template["metadata"]["labels"].items()
