"""What is counted is rendered in Prometheus' format; every row can be used."""

from blazr.core.metrics import METRICS, Metrics


def test_counts_durations_and_figures_are_rendered() -> None:
    metrics = Metrics(lambda: {"num_running": 3})
    metrics.count("blazr_requests", outcome="ok")
    metrics.count("blazr_requests", 2, outcome="ok")
    metrics.observe("blazr_inter_token_seconds", 0.004)
    text = metrics.render().decode()
    assert 'blazr_requests_total{outcome="ok"} 3.0' in text
    assert 'blazr_inter_token_seconds_bucket{le="0.005"} 1.0' in text
    assert 'blazr_inter_token_seconds_bucket{le="0.0025"} 0.0' in text
    assert "blazr_engine_num_running 3.0" in text


def test_every_row_can_be_used() -> None:
    metrics = Metrics(dict)
    for name, row in METRICS.items():
        if row.buckets:
            metrics.observe(name, row.buckets[0])
        else:
            metrics.count(name, **dict.fromkeys(row.labels, "x"))
    text = metrics.render().decode()
    assert all(name in text for name in METRICS)


def test_two_servers_count_for_themselves() -> None:
    first, second = Metrics(dict), Metrics(dict)
    first.count("blazr_generated_tokens", 5)
    assert "blazr_generated_tokens_total 0.0" in second.render().decode()
