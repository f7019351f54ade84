"""Prompts read by one process and continued by another: the tokens are those of one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
import torch

from blazr import LLM, SamplingParams
from blazr.engine.cache.disk import DiskCache
from blazr.engine.cache.transfer import Incoming, export
from blazr.engine.request import Request
from blazr.llm.async_llm import AsyncLLM
from blazr.server.config import ServerConfig
from blazr.server.kv_nixl import Nixl
from blazr.server.models import Models, ModelSource
from tests.support import tiny
from tests.support.examples import MIXES, STORED_MIXES
from tests.support.loopback import Loopback, serving_models
from tests.support.networks import VOCAB, Lab, build_network

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "oxidizr"
PROMPT = [(7 * place + place * place % 11) % VOCAB for place in range(300)]
KINDS = ("Mamba2", "MlaWithMoe", "Mamba2")
SIZES = {"vocab_size": 1000, "hidden_size": 16, "max_seq_len": 4096}
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
PREFILL |= {"remote_engine_id": None, "remote_block_ids": None}
PREFILL |= {"remote_host": None, "remote_port": None}


def move(sender: DiskCache, receiver: DiskCache, names: list[bytes]) -> None:
    sender.flush()
    incoming = Incoming(receiver, names, 0)
    for frame in export(sender, names, 0):
        incoming.feed(frame)
    incoming.end()


@pytest.mark.sample
@pytest.mark.parametrize("name", [*MIXES, *STORED_MIXES])
def test_a_moved_prompt_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    mix, stored = STORED_MIXES.get(name, (name, {}))
    model = build_network(MIXES[mix], seed=6)
    alone = Lab(model, **stored)
    prefill = Lab(model, cache_dir=tmp_path / "a", **stored)
    decode = Lab(model, cache_dir=tmp_path / "b", **stored)
    prefill.ask(PROMPT, max_tokens=1)
    prefill.run()
    names = decode.engine.block_names(Request(prompt_ids=tuple(PROMPT)))
    move(prefill.memory.disk.files, decode.memory.disk.files, names)
    asked = decode.ask(PROMPT, max_tokens=12)
    wanted = alone.ask(PROMPT, max_tokens=12)
    decode.run()
    alone.run()
    assert decode.cached[asked] == 256
    tokens, logits = decode.answer(asked)
    assert tokens == alone.answer(wanted)[0]
    assert torch.equal(logits, alone.answer(wanted)[1])
    prefill.engine.close()
    decode.engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_moved_prompts_of_recorded_checkpoints(case: str, tmp_path: Path) -> None:
    """Read by one engine, continued by another, against one alone."""
    path = str(GOLDEN / case)
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, logprobs=1)
    with (
        LLM(path) as alone,
        LLM(path, cache_dir=str(tmp_path / "a")) as prefill,
        LLM(path, cache_dir=str(tmp_path / "b")) as decode,
    ):
        vocab, room = alone.core.info.vocab_size, alone.core.info.max_seq_len - 32
        ids = [(7 * place + place * place % 11) % vocab for place in range(min(300, room))]
        (wanted,) = alone.generate([ids], params)
        prefill.generate([ids], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
        engines = [each.core.engine for each in (prefill, decode)]
        names = engines[1].block_names(Request(prompt_ids=tuple(ids)))
        move(engines[0].files, engines[1].files, names)
        (found,) = decode.generate([ids], params)
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    assert found.usage.cached_tokens == (len(ids) - 1) // 64 * 64


class Proxy:
    """Stands before a server, and changes what that exports."""

    def __init__(self, target: str) -> None:
        self.change: Callable[[bytes], bytes] = lambda data: data
        self.status = 200
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {"Authorization": self.headers["authorization"]}
                found = httpx2.post(target + self.path, content=body, headers=headers)
                assert found.is_success
                data = proxy.change(found.content)
                self.send_response(proxy.status)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@contextmanager
def served(model: Path, **settings: object) -> Iterator[Loopback]:
    cache_dir = settings.pop("cache_dir", None)

    def load() -> AsyncLLM:
        return AsyncLLM(
            str(model), device="cpu", memory="24MiB", max_running=4, cache_dir=cache_dir
        )

    config = ServerConfig(
        **{"host": "127.0.0.1", "port": 0, "api_keys": ("k",), "admin_api_keys": ("a",), **settings}
    )
    with serving_models(Models([ModelSource(name="m", open=load)], config)) as running:
        running.client.headers["Authorization"] = "Bearer k"
        yield running


class Pair:
    """A server that reads prompts, one that goes on with them, and what may stand between."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        model = folder / "model"
        tiny.save(tiny.Tiny(layers=KINDS, **SIZES), model, seed=1)
        other = folder / "other"
        tiny.save(tiny.Tiny(layers=KINDS, **SIZES), other, seed=2)

        def start(name: str, path: Path = model, **settings: object) -> Loopback:
            folder_of = str(folder / name)
            return stack.enter_context(served(path, cache_dir=folder_of, **settings))

        self.prefill = start("prefill")
        self.other = start("other-files", other)
        self.proxy = Proxy(self.prefill.url)
        stack.callback(self.proxy.close)
        urls = (self.prefill.url, self.other.url, f"http://127.0.0.1:{self.proxy.port}")
        self.decode = start("decode", kv_peers=urls)
        self.sharing = start("prefill")  # the same folder
        self.alone = stack.enter_context(served(model))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path_factory.mktemp("pair"), stack)


def complete(running: Loopback, number: int, **more: object) -> dict:
    """Continue a prompt of 200 tokens, another for each number."""
    body = {"prompt": [(number + place * (number + 1)) % 1000 for place in range(200)]}
    body |= {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    reply = running.client.post("/v1/completions", json=body | more)
    assert reply.is_success, reply.text
    return reply.json()


def cached(reply: dict) -> int:
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_prompt_is_read_here_and_continued_there(pair: Pair) -> None:
    wanted = complete(pair.alone, 1)["choices"]
    told = complete(pair.prefill, 1, max_tokens=1, kv_transfer_params=PREFILL)
    port = int(pair.prefill.url.rpartition(":")[2])
    params = told["kv_transfer_params"]
    assert len(params.pop("remote_engine_id")) == 32
    assert params == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_host": "127.0.0.1",
        "remote_port": port,
    }
    assert "kv_transfer_params" not in complete(pair.alone, 1)
    reply = complete(pair.decode, 1, kv_transfer_params=told["kv_transfer_params"])
    assert reply["choices"] == wanted
    assert cached(reply) == 192
    disk = pair.decode.client.get("/debug/cache").json()["disk"]
    assert disk["received_bytes"] > 0
    sent = pair.prefill.client.get("/debug/cache").json()["disk"]["sent_bytes"]
    assert sent >= disk["received_bytes"]
    assert "blazr_engine_disk_sent_bytes_total" in pair.prefill.client.get("/metrics").text
    again = complete(pair.decode, 1, kv_transfer_params=told["kv_transfer_params"])
    assert again["choices"] == wanted
    assert pair.decode.client.get("/debug/cache").json()["disk"] == disk, "it was there already"


def test_a_folder_that_both_use_will_do(pair: Pair) -> None:
    wanted = complete(pair.alone, 11)["choices"]
    told = complete(pair.prefill, 11, max_tokens=1, kv_transfer_params=PREFILL)
    reply = complete(pair.sharing, 11, kv_transfer_params=told["kv_transfer_params"])
    assert reply["choices"] == wanted
    assert cached(reply) == 192


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("number", "status", "change"),
    [
        (2, 200, flipped),
        (3, 200, lambda data: data[:-1]),
        (4, 200, lambda data: data[:8] + (2**60).to_bytes(8, "little") + data[16:]),
        (5, 503, lambda _: b"{}"),
        (6, 200, lambda _: b""),
        (7, 200, lambda data: b"\0" * len(data)),
    ],
    ids=["corrupted", "truncated", "oversized", "refused", "empty", "zeros"],
)
def test_what_is_not_whole_is_computed(
    pair: Pair, number: int, status: int, change: Callable[[bytes], bytes]
) -> None:
    wanted = complete(pair.alone, number)["choices"]
    told = complete(pair.prefill, number, max_tokens=1, kv_transfer_params=PREFILL)
    params = told["kv_transfer_params"] | {"remote_port": pair.proxy.port}
    pair.proxy.status, pair.proxy.change = status, change
    reply = complete(pair.decode, number, kv_transfer_params=params)
    assert reply["choices"] == wanted
    assert cached(reply) == 0
    pair.proxy.status, pair.proxy.change = 200, lambda data: data
    assert complete(pair.decode, number, kv_transfer_params=params)["choices"] == wanted


def test_memory_is_lent_where_there_is_nixl(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nixl")
    lent = []
    read = Nixl.read
    monkeypatch.setattr(Nixl, "read", lambda self, offer: lent.append(offer) or read(self, offer))
    wanted = complete(pair.alone, 12)["choices"]
    told = complete(pair.prefill, 12, max_tokens=1, kv_transfer_params=PREFILL)
    reply = complete(pair.decode, 12, kv_transfer_params=told["kv_transfer_params"])
    assert reply["choices"] == wanted
    assert cached(reply) > 0
    assert [offer.num_bytes > 0 for offer in lent] == [True]


def test_another_model_has_nothing_to_send(pair: Pair) -> None:
    wanted = complete(pair.alone, 8)["choices"]
    told = complete(pair.other, 8, max_tokens=1, kv_transfer_params=PREFILL)
    reply = complete(pair.decode, 8, kv_transfer_params=told["kv_transfer_params"])
    assert reply["choices"] == wanted
    assert cached(reply) == 0


def test_nothing_is_fetched_from_a_server_that_only_a_client_names(pair: Pair) -> None:
    asked = []
    proxy = Proxy(pair.prefill.url)
    proxy.change = lambda data: asked.append(data) or data
    try:
        params = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": proxy.port}
        complete(pair.prefill, 9, max_tokens=1, kv_transfer_params=PREFILL)
        assert cached(complete(pair.decode, 9, kv_transfer_params=params)) == 0
    finally:
        proxy.close()
    assert not asked


@pytest.mark.parametrize(
    ("host", "told"),
    [("llm.example:81", ("llm.example", 81)), ("[::1]", ("::1", 80)), ("a:b", (None, None))],
)
def test_a_server_tells_the_address_at_which_it_was_reached(
    pair: Pair, host: str, told: tuple[str | None, int | None]
) -> None:
    body = {"prompt": [1] * 70, "max_tokens": 1, "kv_transfer_params": PREFILL}
    reply = pair.prefill.client.post("/v1/completions", json=body, headers={"Host": host})
    assert reply.is_success, reply.text
    params = reply.json()["kv_transfer_params"]
    assert (params.get("remote_host"), params.get("remote_port")) == told


def test_requests_that_cannot_be_moved_are_refused(pair: Pair) -> None:
    body = {"prompt": [1, 2, 3], "kv_transfer_params": PREFILL}
    for running, more, word in (
        (pair.alone, {}, "--cache-dir"),
        (pair.prefill, {"stream": True}, "stream"),
        (pair.prefill, {"kv_transfer_params": {"remote_port": "x"}}, "int"),
    ):
        refused = running.client.post("/v1/completions", json=body | more)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"].startswith("kv_transfer_params")
        assert word in refused.text


def test_only_operators_and_servers_of_the_fleet_may_fetch(pair: Pair) -> None:
    body = {"blocks": ["0" * 64], "num_known": 0}
    for key, status in (("k", 401), ("a", 200)):
        headers = {"Authorization": f"Bearer {key}"}
        found = pair.prefill.client.post("/kv_cache/export", json=body, headers=headers)
        assert found.status_code == status
    assert found.content == b""
    for wrong in (
        {"blocks": ["../x"]},
        {"num_known": -1},
        {"blocks": ["0" * 63 + "G"]},
        {"blocks": ["0" * 64 + "\n"]},
    ):
        reply = pair.prefill.client.post("/kv_cache/export", json=body | wrong, headers=headers)
        assert reply.status_code == 400
    reply = pair.alone.client.post("/kv_cache/export", json=body, headers=headers)
    assert reply.status_code == 400
    assert "--cache-dir" in reply.text


@contextmanager
def nano_servers(*words: tuple[str, ...]) -> Iterator[list[httpx2.Client]]:
    """Clients of servers in processes of their own; the word URL stands for the first one's."""
    command = [sys.executable, "-m", "blazr", "serve", "nano", "--port", "0", "--cpu"]
    command += ["--host", "127.0.0.1", "--memory", "64MiB", "--api-key", "k"]
    with ExitStack() as stack:
        clients: list[httpx2.Client] = []
        for more in words:
            given = [str(clients[0].base_url).rstrip("/") if x == "URL" else x for x in more]
            process = subprocess.Popen(
                [*command, *given],
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ.copy(),  # noqa: TID251  (what a user's shell passes on)
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stderr is not None
            found = None
            while found is None:
                line = process.stderr.readline()
                assert line, "the server ended"
                found = re.search(r"on (http://127\.0\.0\.1:\d+)", line)
            headers = {"Authorization": "Bearer k"}
            client = httpx2.Client(base_url=found[1], timeout=60, headers=headers)
            clients.append(stack.enter_context(client))
        yield clients


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    text = "Once upon a time there was a little girl. " * 40
    asked = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    with nano_servers(
        ("--cache-dir", str(tmp_path / "a")),
        ("--cache-dir", str(tmp_path / "b"), "--kv-peer", "URL"),
    ) as (prefill, decode):

        def move(path: str, body: dict) -> dict:
            read = body | {"max_tokens": 1, "kv_transfer_params": PREFILL}
            first = prefill.post(path, json=read).json()
            moved = body | {"kv_transfer_params": first["kv_transfer_params"]}
            found = decode.post(path, json=moved).json()
            assert cached(found) == (found["usage"]["prompt_tokens"] - 1) // 64 * 64
            return found["choices"][0]

        told = move("/v1/completions", asked | {"prompt": text, "logprobs": 1})
        messages = [{"role": "user", "content": text}]
        said = move("/v1/chat/completions", asked | {"messages": messages})
    with LLM("nano") as alone:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
        (wanted,) = alone.generate([text], params)
        assert said["message"]["content"] == alone.chat(messages, params).text
    assert told["text"] == wanted.text
    assert told["logprobs"]["token_logprobs"] == [token.logprob for token in wanted.logprobs]
