"""Prefixes on disk: the same bits as cold or warm, after every way in which a process can end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import torch

from blazr import LLM, SamplingParams
from blazr.llm.async_llm import AsyncLLM
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.nn.kernels.cpu import compiled
from blazr.server.config import ServerConfig
from blazr.server.models import Models, ModelSource
from tests.support import tiny
from tests.support.examples import MIXES, STORED_MIXES
from tests.support.loopback import Loopback, serving, serving_models
from tests.support.networks import VOCAB, Lab, build_network
from tests.support.scripted import wait_until

PROMPT = [(7 * place + place * place % 11) % VOCAB for place in range(300)]
SIZES = {"vocab_size": 1000, "hidden_size": 16, "max_seq_len": 4096}
KINDS = ("Mamba2", "MlaWithMoe", "Mamba2")


@pytest.mark.sample
@pytest.mark.parametrize("name", [*MIXES, *STORED_MIXES])
def test_cold_warm_and_from_disk_are_the_same_bits(name: str, tmp_path: Path) -> None:
    mix, stored = STORED_MIXES.get(name, (name, {}))
    model = build_network(MIXES[mix], seed=6)
    first = Lab(model, cache_dir=tmp_path, **stored)
    answers = []
    for lab in (first, first, Lab(model, cache_dir=tmp_path, **stored)):
        asked = lab.ask(PROMPT)
        lab.run()
        answers.append((*lab.answer(asked), lab.cached[asked]))
        if len(answers) == 2:
            first.engine.close()
    lab.engine.close()
    cold, warm, from_disk = answers
    assert cold[0] == warm[0] == from_disk[0]
    assert torch.equal(cold[1], warm[1])
    assert torch.equal(cold[1], from_disk[1])
    assert (cold[2], warm[2], from_disk[2]) == (0, 256, 256)


@pytest.mark.parametrize("stored", [{"kv_dtype": "q8_0"}, {"state_dtype": "bfloat16"}])
def test_what_was_written_in_another_dtype_is_not_read(
    stored: dict[str, str], tmp_path: Path
) -> None:
    model = build_network(MIXES["hybrid"], seed=6)
    cached = []
    for how in ({}, stored, stored, {}):
        lab = Lab(model, cache_dir=tmp_path, **how)
        asked = lab.ask(PROMPT)
        lab.run()
        lab.engine.close()
        cached.append(lab.cached[asked])
    assert cached == [0, 0, 256, 256]


def test_a_text_that_goes_on_or_parts(tmp_path: Path) -> None:
    """States at turns outlive the process, too, and those between them where it ended in order."""
    model = build_network(MIXES["hybrid"], seed=6)
    lab = Lab(model, cache_dir=tmp_path)
    lab.ask(PROMPT, anchors=(130,))
    lab.run()
    lab.memory.disk.files.flush()  # as if it had been killed after that
    for at, cached in ((130, 128), (299, 256), (200, 128)):
        other = Lab(model, cache_dir=tmp_path)
        asked = other.ask([*PROMPT[:at], (PROMPT[at] + 1) % VOCAB, *PROMPT[:50]])
        other.run()
        other.memory.disk.files.flush()
        assert other.cached[asked] == cached
    lab.engine.close()
    last = Lab(model, cache_dir=tmp_path)
    asked = last.ask([*PROMPT[:250], (PROMPT[250] + 1) % VOCAB])
    last.run()
    assert last.cached[asked] == 192, "a state between the turns"
    last.engine.close()


def test_scored_prompts_are_computed(tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=1, logprobs=2)
    text = "Once upon a time there was a little girl who liked the sun. " * 12
    found = []
    for _ in range(2):
        with LLM(cache_dir=str(tmp_path)) as llm:
            plain = llm.generate([text], SamplingParams(max_tokens=4, temperature=0, logprobs=2))[0]
            scored = llm.generate([text], params)[0]
            found.append((plain.token_ids, plain.logprobs, scored.prompt_logprobs))
            cached = plain.usage.cached_tokens
    assert found[0] == found[1]
    assert cached > 100


@pytest.mark.skipif(bool(compiled.missing()), reason="torch's operations are not exact")
def test_a_real_hybrid_with_states_in_bfloat16_gives_the_same_bits(tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=90, temperature=0, logprobs=2, ignore_eos=True)
    text = "Once upon a time there was a little girl who liked the sun. " * 12
    found, cached = [], []
    for budget, options in ((512, {}), (50, {}), (512, {"spec": "ngram"})):
        with LLM(
            cache_dir=str(tmp_path), token_budget=budget, state_dtype="bfloat16", **options
        ) as llm:
            for _ in range(2):
                reply = llm.generate([text], params)[0]
                found.append((reply.token_ids, reply.logprobs))
                cached.append(reply.usage.cached_tokens)
    assert cached[0] == 0
    assert min(cached[1:]) > 100
    assert all(each == found[0] for each in found)
    with LLM(state_dtype="bfloat16", token_budget=50) as llm:
        reply = llm.generate([text], params)[0]
        assert (reply.token_ids, reply.logprobs) == found[0]
    with LLM() as llm:
        assert llm.generate([text], params)[0].logprobs != found[0][1], "states were not rounded"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one network."""
    place = tmp_path_factory.mktemp("shelf")
    for name, seed in (("old", 1), ("new", 2)):
        tiny.save(tiny.Tiny(layers=KINDS, **SIZES), place / name, seed=seed)
    return place


@contextmanager
def served(shelf: Path, cache_dir: Path) -> Iterator[Loopback]:
    def load() -> AsyncLLM:
        path = str(shelf / "old")
        return AsyncLLM(path, device="cpu", memory="24MiB", max_running=4, cache_dir=str(cache_dir))

    models = Models(
        [ModelSource(name="m", open=load)],
        ServerConfig(host="127.0.0.1", port=0, api_keys=("k", "other"), weights_dir=shelf),
    )
    with serving_models(models) as running:
        running.client.headers["Authorization"] = "Bearer k"
        yield running


def ask(running: Loopback, **more: str) -> tuple[list[int], int]:
    body = {"prompt": list(range(200)), "n_predict": 8, "temperature": 0, "return_tokens": True}
    reply = running.client.post("/completion", json=body | {"ignore_eos": True}, headers=more)
    assert reply.is_success, reply.text
    return reply.json()["tokens"], reply.json()["tokens_cached"]


def test_a_server_that_sleeps_loses_nothing(shelf: Path, tmp_path: Path) -> None:
    with served(shelf, tmp_path) as running:
        told, cached = ask(running)
        assert cached == 0
        for command in ("/sleep", "/wake_up"):
            assert running.client.post(command, json={}).is_success
        assert ask(running) == (told, 192)
        assert ask(running, Authorization="Bearer other") == (told, 0), "another tenant"
        found = running.client.get("/debug/cache").json()["disk"]
        assert found["read_pages"] == 3
        assert found["read_states"] == 1
        assert found["bytes"] > 0
        assert "blazr_engine_disk_read_pages_total" in running.client.get("/metrics").text
    with served(shelf, tmp_path) as running:
        assert ask(running) == (told, 192)
        assert running.client.post("/reset_prefix_cache", json={}).is_success
        assert ask(running) == (told, 0), "what was reset is not on disk either"


def test_other_weights_find_nothing(shelf: Path, tmp_path: Path) -> None:
    with served(shelf, tmp_path) as running:
        told = ask(running)[0]
        changed = running.client.post("/update_weights", json={"path": "new"})
        assert changed.is_success, changed.text
        other, cached = ask(running)
        assert other != told
        assert cached == 0
    with served(shelf, tmp_path) as running:
        assert ask(running)[0] == told


@contextmanager
def killed_server(cache_dir: Path) -> Iterator[httpx2.Client]:
    """A client of a server that is killed at the end."""
    command = [sys.executable, "-m", "blazr", "serve", "nano", "--port", "0", "--cpu"]
    with subprocess.Popen(
        [*command, "--cache-dir", str(cache_dir), "--cache-disk", "1GiB"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),  # noqa: TID251  (what a user's shell passes on)
    ) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server ended"
            found = re.search(r"on http://0\.0\.0\.0:(\d+)", line)
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{found[1]}", timeout=60) as client:
                yield client
        finally:
            process.kill()


def is_written(cache: dict) -> bool:
    """Whether pages and a state are on disk: they are written behind a reply."""
    return cache["disk"]["written"] > cache["blocks"] or cache["disk"]["read_states"] > 0


@pytest.mark.slow
def test_a_server_that_is_killed(tmp_path: Path) -> None:
    text = "Once upon a time there was a little girl. " * 40
    body = {"prompt": text, "max_tokens": 8, "temperature": 0}
    replies = []
    for _ in range(2):
        with killed_server(tmp_path) as client:
            replies.append(client.post("/v1/completions", json=body).json())
            wait_until(lambda: is_written(client.get("/debug/cache").json()))
    first, second = replies
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


def test_slots_are_saved_and_restored(shelf: Path, tmp_path: Path) -> None:
    def use(running: Loopback, query: str, **body: str) -> dict:
        reply = running.client.post(f"/slots/{query}", json=body)
        assert reply.is_success, reply.text
        return reply.json()

    with served(shelf, tmp_path) as running:
        told = ask(running)[0]
        saved = use(running, "0?action=save", filename="chat.bin")
        assert saved["timings"].pop("save_ms") >= 0
        assert saved == {"id_slot": 0, "filename": "chat.bin", "n_saved": 192, "timings": {}}
        assert use(running, "0?action=erase") == {"id_slot": 0, "n_erased": 207}
        for query, body, param in (
            ("0?action=save", {"filename": "chat.bin"}, "id"),  # it was erased
            ("4?action=erase", {}, "id"),
            ("-1?action=erase", {}, "id"),
            ("x?action=erase", {}, "id"),
            ("0?action=save", {}, "filename"),
            ("0?action=save", {"filename": "../chat.bin"}, "filename"),
            ("0?action=save", {"filename": "chat.bin\n"}, "filename"),
            ("0?action=restore", {"filename": "other.bin"}, "filename"),
            ("0?action=sing", {}, "action"),
            ("0", {}, "action"),
        ):
            refused = running.client.post(f"/slots/{query}", json=body)
            assert refused.status_code == 400, query
            assert refused.json()["error"]["param"] == param, query
        refused = running.client.post("/slots/1e0?action=erase", json={})
        assert "1e0" in refused.json()["error"]["message"]
    with served(shelf, tmp_path) as running:
        restored = use(running, "2?action=restore", filename="chat.bin")
        assert restored["n_restored"] == 192
        assert running.client.get("/debug/cache").json()["blocks"] == 3
        assert ask(running) == (told, 192)


def test_slots_need_a_directory(shelf: Path) -> None:
    core = load_text_engine(LoadOptions(str(shelf / "old"), device="cpu", memory="24MiB"))
    with serving(core, api_keys=("k",), admin_api_keys=("a",)) as running:
        for key, status in (("k", 401), ("a", 400)):
            headers = {"Authorization": f"Bearer {key}"}
            refused = running.client.post("/slots/0?action=erase", json={}, headers=headers)
            assert refused.status_code == status
        assert "--cache-dir" in refused.json()["error"]["message"]
