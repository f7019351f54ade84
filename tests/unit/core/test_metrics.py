"""What is counted is rendered in Prometheus' format; every row can be used."""

from blazr.core.metrics import METRICS, Metrics


def test_counts_durations_and_figures_are_rendered() -> None:
    figures = {"num_running": 3, "steps": 7, "reuse_no-state": 2, "reuse_whole": 1}
    metrics = Metrics(lambda: figures)
    metrics.count("blazr_requests", outcome="ok")
    metrics.count("blazr_requests", 2, outcome="ok")
    metrics.observe("blazr_inter_token_seconds", 0.004)
    text = metrics.render().decode()
    assert 'blazr_requests_total{outcome="ok"} 3.0' in text
    assert 'blazr_inter_token_seconds_bucket{le="0.005"} 1.0' in text
    assert 'blazr_inter_token_seconds_bucket{le="0.0025"} 0.0' in text
    assert "blazr_engine_running 3.0" in text
    assert "blazr_engine_steps_total 7.0" in text
    assert 'blazr_engine_prefixes_total{reason="no-state"} 2.0' in text
    assert 'blazr_engine_prefixes_total{reason="whole"} 1.0' in text


def test_every_row_can_be_used() -> None:
    figures = {row.figure + "x" * len(row.labels): 1 for row in METRICS.values()}
    metrics = Metrics(lambda: figures)
    for name, row in METRICS.items():
        if row.figure:
            continue
        if row.buckets:
            metrics.observe(name, row.buckets[0])
        else:
            metrics.count(name, **dict.fromkeys(row.labels, "x"))
    text = metrics.render().decode()
    for name, row in METRICS.items():
        shown = name + {"counter": "_total", "histogram": "_count", "gauge": ""}[row.kind]
        labels = "".join(f'{{{label}="x"}}' for label in row.labels)
        assert f"\n{shown}{labels} 1.0\n" in text


def test_two_servers_count_for_themselves() -> None:
    first, second = Metrics(dict), Metrics(dict)
    first.count("blazr_generated_tokens", 5)
    assert "blazr_generated_tokens_total 0.0" in second.render().decode()
