"""Comparing with another engine: what rounds come to, what is refused, both sides on one file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.rival import BlazrSide, Match, RivalSide, rival
from benchmarks.rival_process import Job
from benchmarks.versus import main
from blazr.core.errors import BlazrError, ConfigError

MODEL = Path(__file__).parents[2] / "golden" / "gguf" / "stories260K-q8_0.gguf"
JOB = Job([[1, 5, 9], [1, 8, 8, 8]], 6)


def test_the_ratio_is_that_of_rounds_and_not_of_medians() -> None:
    match = Match(2, "decode", [10.0, 40.0, 30.0], [10.0, 20.0, 60.0], [1e9, 4e9, 3e9])
    figures = match.figures()
    assert figures["blazr_tokens_per_s"] == 30
    assert figures["rival_tokens_per_s"] == 20
    assert (figures["ratio_min"], figures["ratio"], figures["ratio_max"]) == (0.5, 1, 2)
    # 5 steps a second of 1e8 bytes, of 1e9 bytes a second; and so in each round
    assert match.share(1e8) == pytest.approx(0.5)


def test_an_unknown_rival_is_refused() -> None:
    with (
        pytest.raises(ConfigError, match="rival"),
        rival("ollama", MODEL, threads=1, context=8, streams=1),
    ):
        pass


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"gguf|llama-cpp"),
        rival("llama.cpp", tmp_path, threads=1, context=8, streams=1),
    ):
        pass


def test_a_rival_that_is_not_installed_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.rival.find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["versus", "llama.cpp", str(MODEL)])
    with pytest.raises(SystemExit, match=r"(?s)needs llama-cpp-python.*pip install 'blazr"):
        main()


@pytest.mark.parametrize("flag", ["--levels", "--rounds", "--prompt-tokens", "--threads"])
@pytest.mark.parametrize("text", ["x", "", "0", "-1", "1.5", "9" * 5000])
def test_what_is_no_number_is_told(
    flag: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["versus", "llama.cpp", str(MODEL), f"{flag}={text}"])
    with pytest.raises(SystemExit):
        main()
    message = capsys.readouterr().err
    assert f"argument {flag}: {text[:50]!r} is no whole number from 1" in message


def test_our_side_gives_tokens_per_second() -> None:
    from blazr.bench.offline import EngineTarget
    from blazr.engine.build import build_engine
    from blazr.engine.config import EngineConfig
    from blazr.models.loading.load import load
    from blazr.nn.device import resolve_device

    cpu = resolve_device("cpu")
    engine = build_engine(load(str(MODEL), device=cpu).module, cpu, config=EngineConfig())
    try:
        side = BlazrSide(EngineTarget(engine, vocab_size=512))
        assert side.run(JOB) > 0
        assert side.run(Job(JOB.prompts, 1)) > 0
    finally:
        engine.close()


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
def test_their_side_gives_tokens_per_second_or_says_why_not(tmp_path: Path) -> None:
    with rival("llama.cpp", MODEL, threads=1, context=64, streams=2) as side:
        assert side.run(JOB) > 0
        assert side.run(Job(JOB.prompts, 1)) > 0
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(BlazrError):
        RivalSide("llama.cpp", broken, threads=1, context=64, streams=1)


@pytest.mark.slow
def test_transformers_runs_a_directory(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    with rival("transformers", tmp_path, threads=1, context=16, streams=2) as side:
        assert side.run(Job([[1, 5, 9], [1, 8, 8]], 6)) > 0
        assert side.run(Job([[1, 5, 9]], 1)) > 0
    with (
        pytest.raises(ConfigError, match="directory"),
        rival("transformers", MODEL, threads=1, context=8, streams=1),
    ):
        pass


def test_the_random_hybrid_explains_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    from benchmarks import random_hybrid

    monkeypatch.setattr(random_hybrid, "GraniteMoeHybridForCausalLM", None)
    monkeypatch.setattr("sys.argv", ["random_hybrid", "--help"])
    with pytest.raises(SystemExit) as caught:
        random_hybrid.main()
    assert caught.value.code == 0
    assert "directory" in capsys.readouterr().out
