"""What is measured: an engine in this process, and a real server on a loopback port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blazr.bench.load import Record, drive, run_level
from blazr.bench.offline import EngineTarget
from blazr.bench.online import connect
from blazr.bench.workload import BenchRequest, Workload
from blazr.cli.app import app
from blazr.core.errors import ConfigError, EngineError
from blazr.engine.build import build_engine
from blazr.engine.config import EngineConfig
from blazr.nn.device import resolve_device
from tests.support.loopback import Loopback, serving
from tests.support.networks import VOCAB, build_network
from tests.support.scripted import scripted_core


@pytest.fixture
def target() -> Iterator[EngineTarget]:
    network = build_network(("mamba2", "mla+moe", "gqa+mlp"))
    engine = build_engine(
        network, resolve_device("cpu"), config=EngineConfig(max_running=4, memory="16MiB")
    )
    yield EngineTarget(engine, vocab_size=VOCAB)
    engine.close()


def nothing() -> None:
    pass


def test_an_engine_is_measured_token_by_token(target: EngineTarget) -> None:
    workload = Workload(
        requests=[BenchRequest(prompt_tokens=130, output_tokens=5)], shared_prefix=128
    )
    records, counters = asyncio.run(
        run_level(target, workload, 2, count=4, warmup=1, on_end=nothing)
    )
    assert [(r.prompt_tokens, r.output_tokens, r.error) for r in records] == [(130, 5, "")] * 4
    for record in records:
        assert len(record.token_s) == 5
        assert record.token_s == sorted(record.token_s)
        assert record.arrival_s < record.token_s[0]
        assert record.token_s[-1] <= record.end_s
    assert sum(record.cached_tokens for record in records) >= 2 * 128
    assert counters["generated_tokens"] == 20
    assert counters["prompt_tokens"] == 520
    assert counters["cached_tokens"] == sum(record.cached_tokens for record in records)
    assert "num_running" not in counters


def test_an_engines_refusal_is_a_record(target: EngineTarget) -> None:
    requests = [BenchRequest(prompt_ids=(VOCAB,)), BenchRequest(prompt_ids=(1,), output_tokens=2)]
    refused, answered = asyncio.run(drive(target, requests))
    assert "out of range" in refused.error
    assert answered.is_ok


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with serving(scripted_core(), api_keys=("secret",)) as running:
        yield running


def ask_server(
    url: str, requests: list[BenchRequest], **changes: object
) -> tuple[object, list[Record]]:
    async def run() -> tuple[object, list[Record]]:
        settings = {"model": None, "api_key": "secret", **changes}
        async with connect(url, **settings) as server:
            return server, await drive(server, requests, 2, salt="s")

    return asyncio.run(run())


def test_a_server_is_measured_as_it_streams(loopback: Loopback) -> None:
    server, records = ask_server(
        loopback.url + "/", [BenchRequest(prompt_ids=(5, 6, 7), output_tokens=6)] * 3
    )
    assert server.model == "scripted"
    assert server.vocab_size == 100331
    for record in records:
        assert not record.error
        assert record.output_tokens == len(record.token_s) == 6
        assert record.cached_tokens == 2, "as the server says"
        assert record.arrival_s < record.token_s[0] <= record.token_s[-1] <= record.end_s
    request = loopback.engine.submitted[-1]
    assert request.prompt_ids == (5, 6, 7)
    assert request.params.ignore_eos
    assert request.params.is_greedy
    assert request.cache_salt.endswith("/s")


def test_text_may_hold_what_ends_a_line_elsewhere() -> None:
    with serving(scripted_core(text="one\u2028two\x85three")) as running:
        _, (record,) = ask_server(running.url, [BenchRequest(prompt_ids=(5,), output_tokens=30)])
    assert not record.error


def test_a_servers_refusal_is_a_record(loopback: Loopback) -> None:
    _, (record,) = ask_server(loopback.url, [BenchRequest(prompt_ids=(1,) * 600)])
    assert "HTTP 400" in record.error
    assert not record.is_ok


def test_a_servers_failure_in_the_stream_is_a_record(loopback: Loopback) -> None:
    loopback.engine.fails_with = "the memory is gone"
    try:
        _, (record,) = ask_server(loopback.url, [BenchRequest(prompt_ids=(1,))])
    finally:
        loopback.engine.fails_with = ""
    assert "the memory is gone" in record.error


def test_where_nobody_serves_it_is_said() -> None:
    with pytest.raises(EngineError, match="no list of models at"):
        ask_server("http://127.0.0.1:9", [])


def test_a_wrong_key_is_said(loopback: Loopback) -> None:
    with pytest.raises(EngineError, match="401"):
        ask_server(loopback.url, [], api_key="wrong")


def test_the_command_measures_here(tmp_path: Path) -> None:
    words = "--random=nano --prompt-tokens=20 --output-tokens=4 --requests=3 --concurrency=1,2"
    words += f" --goodput=ttft:60000 --warmup=0 --device=cpu --history={tmp_path / 'runs.jsonl'}"
    table = _bench(*words.split())
    assert "random nano on cpu" in table
    assert "of the bandwidth" in table
    report = json.loads((tmp_path / "runs.jsonl").read_text())
    assert report["load_s"] > 0
    assert report["peak_memory_bytes"] > 0
    assert [level["concurrency"] for level in report["levels"]] == [1, 2]
    for level in report["levels"]:
        assert level["output_tokens"] == 12
        assert level["goodput_share"] == 1
        assert level["bandwidth_share"] > 0  # of so small a model it may be more than all


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", ["history", "plot"])
def test_figures_are_printed_before_a_file_is_refused(tmp_path: Path, option: str) -> None:
    words = "bench --random=nano --device=cpu --prompt-tokens=4 --output-tokens=2 --requests=1"
    run = CliRunner().invoke(app, [*words.split(), f"--{option}={tmp_path / 'none' / 'file'}"])
    assert isinstance(run.exception, ConfigError)
    assert "cannot be written" in str(run.exception)
    assert "output tokens/s" in run.stdout


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLAZR_API_KEY", "secret,other")


@pytest.mark.usefixtures("_key")
def test_the_command_measures_a_server_and_draws(loopback: Loopback, tmp_path: Path) -> None:
    workload = tmp_path / "w.jsonl"
    picture = tmp_path / "p.png"
    workload.write_text('{"prompt_tokens": 3, "output_tokens": 4}\n{"arrival_s": 0.01}\n')
    line = [f"--url={loopback.url}", f"--workload={workload}", "--output-tokens=2"]
    table = _bench(*line, "--rate=200", f"--plot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"scripted at {loopback.url}" in table
    assert "between tokens, ms" in table
    assert "of the bandwidth" not in table
    report = json.loads(_bench(*line, "--concurrency=2", "--json"))
    assert report["model"] == "scripted"
    (level,) = report["levels"]
    assert (level["num_requests"], level["concurrency"], level["output_tokens"]) == (2, 2, 6)


@pytest.mark.usefixtures("_key")
def test_the_command_fails_where_everything_does(loopback: Loopback, tmp_path: Path) -> None:
    workload = tmp_path / "w.jsonl"
    history = tmp_path / "none.jsonl"
    workload.write_text(json.dumps({"prompt_ids": [1] * 600}) + "\n")
    with pytest.raises(EngineError, match="every request"):
        _bench(f"--url={loopback.url}", f"--workload={workload}", f"--history={history}")
    assert not history.exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--random=nano", "--url=http://x"],
        ["--random=nano", "--model=x"],
        ["--spec=ngram", "--url=http://x"],
        ["--threads=2", "--url=http://x"],
        ["--device=cpu", "--url=http://x"],
        ["--dtype=bfloat16", "--url=http://x"],
        ["--concurrency=0"],
        ["--concurrency=1;2"],
    ],
    ids=" ".join,
)
def test_flags_that_contradict_are_refused(flags: list[str]) -> None:
    with pytest.raises(ConfigError):
        _bench(*flags)


def _bench(*flags: str) -> str:
    """What the command prints on stdout."""
    return CliRunner().invoke(app, ["bench", *flags], catch_exceptions=False).stdout
