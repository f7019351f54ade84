"""What is counted is rendered in Prometheus' format; every row can be used."""

from blazr.core.metrics import METRICS, Metrics


def test_counts_durations_and_figures_are_rendered() -> None:
    metrics = Metrics()
    metrics.watch("a", lambda: {"num_running": 3, "steps": 7, "reuse_no-state": 2})
    metrics.watch("b", lambda: {"num_running": 1, "reuse_whole": 1})
    metrics.count("blazr_requests", model="a", outcome="ok")
    metrics.count("blazr_requests", 2, model="a", outcome="ok")
    metrics.observer("blazr_inter_token_seconds", model="a")(0.004)
    text = metrics.render().decode()
    assert 'blazr_requests_total{model="a",outcome="ok"} 3.0' in text
    assert 'blazr_inter_token_seconds_bucket{le="0.005",model="a"} 1.0' in text
    assert 'blazr_inter_token_seconds_bucket{le="0.0025",model="a"} 0.0' in text
    assert 'blazr_engine_running{model="a"} 3.0' in text
    assert 'blazr_engine_running{model="b"} 1.0' in text
    assert 'blazr_engine_steps_total{model="a"} 7.0' in text
    assert 'blazr_engine_prefixes_total{model="a",reason="no-state"} 2.0' in text
    assert 'blazr_engine_prefixes_total{model="b",reason="whole"} 1.0' in text


def test_what_vllm_measures_too_has_its_names() -> None:
    metrics = Metrics()
    sizes = {"block_tokens": 64, "pages_used": 3, "pages_free": 7}
    figures = {"num_running": 3, "usage": 0.25, "finished_stop": 2, "steps": 1, **sizes}
    metrics.watch("a", lambda: figures)
    metrics.observer("blazr_time_to_first_token_seconds", model="a")(0.004)
    metrics.count("blazr_prompt_tokens", 9, model="a")
    lines = metrics.render().decode().splitlines()
    assert {
        'vllm:num_requests_running{model_name="a"} 3.0',
        'vllm:kv_cache_usage_perc{model_name="a"} 0.25',
        'vllm:request_success_total{finished_reason="stop",model_name="a"} 2.0',
        'vllm:time_to_first_token_seconds_bucket{le="0.01",model_name="a"} 1.0',
        'vllm:time_to_first_token_seconds_count{model_name="a"} 1.0',
        'vllm:prompt_tokens_total{model_name="a"} 9.0',
        "# TYPE vllm:prompt_tokens_total counter",
        'vllm:cache_config_info{block_size="64",model_name="a",num_gpu_blocks="10"} 1.0',
    } <= set(lines)
    names = [row.vllm for row in METRICS.values() if row.vllm]
    assert len(names) == len(set(names))


def test_every_row_can_be_used() -> None:
    metrics = Metrics()
    metrics.watch("x", lambda: {row.figure + "x" * len(row.labels): 1 for row in METRICS.values()})
    for name, row in METRICS.items():
        if row.figure:
            continue
        labels = dict.fromkeys(row.all_labels, "x")
        if row.buckets:
            metrics.observer(name, **labels)(row.buckets[0])
        else:
            metrics.count(name, **labels)
    text = metrics.render().decode()
    for name, row in METRICS.items():
        shown = name + {"counter": "_total", "histogram": "_count", "gauge": ""}[row.kind]
        labels = ",".join(f'{label}="x"' for label in row.all_labels)
        assert f"\n{shown}{{{labels}}} 1.0\n" in text


def test_an_engine_that_has_gone_shows_no_figures() -> None:
    metrics = Metrics()
    metrics.watch("a", lambda: {"num_running": 3})
    metrics.unwatch("a")
    assert "blazr_engine_running{" not in metrics.render().decode()


def test_two_servers_count_for_themselves() -> None:
    first, second = Metrics(), Metrics()
    first.count("blazr_generated_tokens", 5, model="a")
    assert "blazr_generated_tokens_total{" not in second.render().decode()
