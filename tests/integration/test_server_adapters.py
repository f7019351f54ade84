"""Adapters over HTTP: loaded from below a folder, chosen by name, listed, and unloaded."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from blazr.cli.app import app
from blazr.core.errors import ConfigError
from blazr.llm.async_llm import AsyncLLM
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.server.config import ServerConfig
from blazr.server.models import Models, ModelSource
from tests.support.adapters import projections, save_adapter, save_bad_adapters
from tests.support.loopback import Loopback, serving, serving_models
from tests.support.references import save_reference
from tests.support.scripted import wait_until

pytest.importorskip("transformers")
BODY = {"prompt": [3, 5, 7, 11], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
BODY |= {"logprobs": 0}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    model = save_reference("llama", root / "model")
    for number in range(2):
        names = [*projections(model)]
        save_adapter(root / "adapters" / f"a{number}", model, names, seed=number)
    save_adapter(root / "secret", model, [*projections(model)])
    return root


@pytest.fixture(scope="module")
def bad(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Adapters below the folder that cannot be used, and what is to be said of each."""
    model = save_reference("llama", tmp_path_factory.mktemp("same"))
    sizes = {"hidden_size": 32}
    other = save_reference("llama", tmp_path_factory.mktemp("other"), changes=sizes)
    return save_bad_adapters(shelf / "adapters" / "bad", model, other)


@pytest.fixture
def server(shelf: Path) -> Iterator[Loopback]:
    core = load_text_engine(
        LoadOptions(str(shelf / "model"), adapter=f"first={shelf / 'adapters' / 'a0'}")
    )
    with serving(core, adapter_dir=shelf / "adapters", api_keys=("k",)) as running:
        running.client.headers["Authorization"] = "Bearer k"
        yield running


def tokens(server: Loopback, **body: object) -> list[float]:
    """The log-probabilities of a reply, which tell one adapter from another."""
    reply = server.client.post("/v1/completions", json=BODY | body)
    assert reply.is_success, reply.text
    found: list[float] = reply.json()["choices"][0]["logprobs"]["token_logprobs"]
    return found


def load(server: Loopback, path: str, name: str = "second") -> tuple[int, str]:
    body = {"lora_name": name, "lora_path": path}
    reply = server.client.post("/v1/load_lora_adapter", json=body)
    return reply.status_code, reply.text


def test_an_adapter_is_chosen_by_model_or_by_adapter(server: Loopback) -> None:
    base = tokens(server)
    first = tokens(server, model="first")
    assert first != base
    assert tokens(server, adapter="first") == first
    assert tokens(server, model="model", adapter="first") == first
    assert tokens(server) == base
    reply = server.client.post("/v1/completions", json=BODY | {"adapter": "second"})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "adapter"
    reply = server.client.post("/v1/completions", json=BODY | {"model": "second"})
    assert reply.status_code == 404
    assert "this server has 'model', 'first'." in reply.json()["error"]["message"]


def test_loaded_listed_and_unloaded(server: Loopback, shelf: Path) -> None:
    status, text = load(server, "a1")
    assert status == 200
    assert "the adapter 'second' is loaded" in text
    second = tokens(server, model="second")
    assert second not in (tokens(server), tokens(server, model="first"))
    listed = {each["id"]: each for each in server.client.get("/v1/models").json()["data"]}
    assert listed["model"]["parent"] is None
    assert (listed["second"]["parent"], listed["second"]["root"]) == ("model", "a1")
    assert server.client.get("/v1/models/first").json()["parent"] == "model"
    status, text = load(server, "a1")
    assert status == 400
    assert "has that name" in text
    assert load(server, str(shelf / "adapters" / "a0"), "third")[0] == 200
    assert tokens(server, model="third") == tokens(server, model="first")
    for name in ("second", "third", "first"):
        reply = server.client.post("/v1/unload_lora_adapter", json={"lora_name": name})
        assert reply.is_success, reply.text
        assert server.client.get(f"/v1/models/{name}").status_code == 404
    reply = server.client.post("/v1/unload_lora_adapter", json={"lora_name": "first"})
    assert reply.status_code == 404


def test_replaced_in_place(server: Loopback) -> None:
    base, first = tokens(server), tokens(server, model="first")
    body = {"lora_name": "first", "lora_path": "a1", "load_inplace": True}
    command(server, "/v1/load_lora_adapter", **body)
    second = tokens(server, model="first")
    assert second not in (base, first)
    command(server, "/v1/load_lora_adapter", **body | {"lora_name": "new"})
    assert tokens(server, model="new") == second
    command(server, "/v1/load_lora_adapter", **body | {"lora_path": "a0", "model": "model"})
    assert tokens(server, model="first") == first
    for changes, words in (
        ({"lora_name": "model"}, "has that name"),
        ({"load_inplace": False}, "load_inplace"),
        ({"lora_path": "nothing"}, "no such adapter"),
    ):
        reply = server.client.post("/v1/load_lora_adapter", json=body | changes)
        assert reply.status_code == 400
        assert words in reply.json()["error"]["message"]
    assert tokens(server, model="first") == first


@pytest.mark.parametrize("path", ["../secret", "/etc", "nothing", "", "a0/../../secret", "a\0b"])
def test_nothing_is_read_outside_the_folder(server: Loopback, shelf: Path, path: str) -> None:
    status, text = load(server, path)
    assert status == 400
    assert str(shelf) not in text
    assert "second" not in text.replace("second_", "")
    assert ("Found: " if path else "lora_path is missing") in text


def test_bad_adapters_say_what_is_wrong(server: Loopback, shelf: Path, bad: dict[str, str]) -> None:
    """And the server goes on."""
    expected = tokens(server)
    for name, words in bad.items():
        status, text = load(server, f"bad/{name}")
        assert status == 400, (name, text)
        assert re.search(words, text), (name, text)
        assert str(shelf) not in text
        error = server.client.post("/v1/completions", json=BODY | {"model": "second"})
        assert error.status_code == 404
        assert tokens(server) == expected
    assert [*server.core.adapters.by_name] == ["first"]


# Importing torch takes longer than any of these commands.
IN_ONE_PROCESS = """
import contextlib, io, json, sys
from blazr.cli.app import main

for args in json.load(sys.stdin):
    out, err, sys.argv = io.StringIO(), io.StringIO(), ["blazr", *args]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def test_commands_say_what_is_wrong_with_bad_adapters(shelf: Path, bad: dict[str, str]) -> None:
    folder = shelf / "adapters" / "bad"
    commands = [
        ["generate", str(shelf / "model"), "a", "--cpu", "--adapter", f"mine={folder / name}"]
        for name in bad
    ]
    done = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    for (name, words), (code, out, err) in zip(bad.items(), said, strict=True):
        assert code, name
        assert re.search(words, err), (name, err)
        assert "Traceback" not in err
        assert not out


def test_links_lead_nowhere_and_names_are_a_model_s_own(server: Loopback, shelf: Path) -> None:
    (shelf / "adapters" / "out").unlink(missing_ok=True)
    (shelf / "adapters" / "out").symlink_to(shelf / "secret")
    assert load(server, "out")[0] == 400
    assert load(server, "a1", "model")[0] == 400
    assert tokens(server, model="first")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"lora_name": "other"}, 404, "lora_name"),
        ({"lora_name": "other", "model": "model"}, 400, "lora_name"),
        ({"lora_name": "model"}, 400, "lora_name"),
        ({"lora_name": "first", "model": "other"}, 404, "model"),
    ],
)
def test_what_names_no_adapter_is_told_of(
    server: Loopback, body: dict[str, str], status: int, param: str
) -> None:
    refused = server.client.post("/v1/unload_lora_adapter", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)


def test_without_a_folder_none_are_read(shelf: Path) -> None:
    core = load_text_engine(LoadOptions(str(shelf / "model")))
    with serving(core, api_keys=("k",)) as server:
        server.client.headers["Authorization"] = "Bearer k"
        status, text = load(server, "a0")
    assert status == 400
    assert "--adapter-dir" in text


def test_an_adapter_s_name_loads_its_model(shelf: Path) -> None:
    adapter = f"first={shelf / 'adapters' / 'a0'}"

    def source(name: str, adapters: Mapping[str, Path]) -> ModelSource:
        def open_it() -> AsyncLLM:
            options = LoadOptions(str(shelf / "model"), adapter=adapter if adapters else None)
            return AsyncLLM.of(load_text_engine(options))

        return ModelSource(name=name, open=open_it, adapters=adapters)

    named = {"first": shelf / "adapters" / "a0"}
    config = ServerConfig(host="127.0.0.1", port=0)
    models = Models([source("plain", {}), source("changed", named)], config)
    with serving_models(models) as server:
        found = tokens(server, model="first")
        assert found == tokens(server, model="changed", adapter="first")
        assert found != tokens(server, model="plain")
        reply = server.client.post("/v1/completions", json=BODY | {"model": "second"})
        assert reply.status_code == 404


@pytest.mark.parametrize("name", ["own", "other", "default"])
def test_an_adapter_has_a_name_of_its_own(name: str) -> None:
    """A model's name would find the adapter, and nothing the model."""
    source = ModelSource(
        name="own",
        open=lambda: pytest.fail("it is loaded"),
        aliases=("other",),
        adapters={name: Path()},
    )
    with pytest.raises(ConfigError, match="the name of a model"):
        Models([source], ServerConfig())


def command(server: Loopback, path: str, **body: object) -> None:
    reply = server.client.post(path, json=body)
    assert reply.is_success, reply.text


def test_a_model_that_comes_back_has_the_adapters_it_had(shelf: Path) -> None:
    """Those of the command line and of commands alike, and none that was unloaded."""
    options = LoadOptions(str(shelf / "model"), adapter=f"first={shelf / 'adapters' / 'a0'}")
    source = ModelSource(
        name="model",
        open=lambda: AsyncLLM.of(load_text_engine(options)),
        adapters={"first": shelf / "adapters" / "a0"},
    )
    config = ServerConfig(adapter_dir=shelf / "adapters", api_keys=("k",))
    with serving_models(Models([source], config)) as server:
        server.client.headers["Authorization"] = "Bearer k"
        listed = {each["id"]: each for each in server.client.get("/v1/models").json()["data"]}
        assert (listed["first"]["parent"], listed["first"]["root"]) == ("model", "a0")
        assert load(server, "a1")[0] == 200
        first, second = tokens(server, model="first"), tokens(server, model="second")
        command(server, "/v1/unload_lora_adapter", lora_name="first")
        for level in (1, 2):
            command(server, "/sleep", level=level)
            listed = {each["id"]: each for each in server.client.get("/v1/models").json()["data"]}
            assert listed.keys() == {"model", "second"}
            assert load(server, "a0", "second")[0] == 400
            command(server, "/wake_up")
            assert tokens(server, model="second") == second
            reply = server.client.post("/v1/completions", json=BODY | {"model": "first"})
            assert reply.status_code == 404
        assert load(server, "a1", "first")[0] == 200
        for path, expected in (("a1", second), ("a0", first)):
            body = {"lora_name": "first", "lora_path": path, "load_inplace": True}
            command(server, "/v1/load_lora_adapter", **body)
            command(server, "/models/unload")
            wait_until(lambda: server.models.slots[0].status == "unloaded")
            assert tokens(server, model="first") == expected
        assert tokens(server, model="second") == second


def test_adapters_come_back_in_their_order(shelf: Path) -> None:
    options = LoadOptions(str(shelf / "model"), adapter=f"first={shelf / 'adapters' / 'a0'}")
    source = ModelSource(name="model", open=lambda: AsyncLLM.of(load_text_engine(options)))
    config = ServerConfig(adapter_dir=shelf / "adapters", api_keys=("k",))
    with serving_models(Models([source], config)) as server:
        server.client.headers["Authorization"] = "Bearer k"
        server.client.post("/v1/completions", json=BODY)
        names = ["first", "one", "two", "three", "four", "five"]
        for name in names[1:]:
            assert load(server, "a1", name)[0] == 200
        command(server, "/v1/unload_lora_adapter", lora_name="first")
        assert load(server, "a0", "first")[0] == 200  # now the last
        before = [each["id"] for each in server.client.get("/v1/models").json()["data"]]
        command(server, "/sleep", level=2)
        command(server, "/wake_up")
        after = [each["id"] for each in server.client.get("/v1/models").json()["data"]]
        assert after == before == ["model", *names[1:], "first"]


def test_an_adapter_that_is_gone_does_not_keep_its_model_away(
    shelf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = LoadOptions(str(shelf / "model"))
    source = ModelSource(name="model", open=lambda: AsyncLLM.of(load_text_engine(options)))
    gone = shelf / "adapters" / "gone"
    shutil.copytree(shelf / "adapters" / "a1", gone)
    config = ServerConfig(adapter_dir=shelf / "adapters", api_keys=("k",))
    with serving_models(Models([source], config)) as server:
        server.client.headers["Authorization"] = "Bearer k"
        assert load(server, "gone")[0] == 200
        expected = tokens(server)
        command(server, "/sleep", level=2)
        shutil.rmtree(gone)
        command(server, "/wake_up")
        assert tokens(server) == expected
        reply = server.client.post("/v1/completions", json=BODY | {"model": "second"})
        assert reply.status_code == 404
    assert "'second' cannot be loaded again" in caplog.text


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """The built-in model, which has a vocabulary, with an adapter that changes one projection."""
    base = nn.Module()
    base.add_module("out_proj", nn.Linear(384, 192))
    network = nn.Sequential()
    network.add_module("layers", nn.ModuleList([nn.ModuleDict({"mamba2": nn.Module()})]))
    network.get_submodule("layers.0.mamba2").add_module("mixer", base)
    folder = tmp_path_factory.mktemp("adapter")
    save_adapter(folder, network, ["layers.0.mamba2.mixer.out_proj"])
    with serving(load_text_engine(LoadOptions("nano", adapter=f"first={folder}"))) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"input": "a", "max_output_tokens": 2}),
        ("/v1/messages", CHAT),
        ("/completion", {"prompt": "a", "n_predict": 2}),
    ],
)
def test_replies_name_the_adapter_that_answers(
    talking: Loopback, path: str, body: dict[str, object], *, stream: bool
) -> None:
    """As vLLM's do; those of a model by one of its other names have its first."""
    asked = [({"model": name}, name) for name in ("first", "nano")]
    asked += [({"model": f"{name}:latest"}, name) for name in ("first", "nano")]
    for more, name in [({}, "nano"), ({"adapter": "first"}, "first"), *asked]:
        if "adapter" in more and path not in {"/v1/completions", "/v1/chat/completions"}:
            continue
        reply = talking.client.post(path, json=body | more | {"stream": stream})
        assert reply.is_success, reply.text
        assert set(re.findall(r'"model":"([^"]*)"', reply.text)) == {name}, more


def test_a_tag_says_nothing(server: Loopback) -> None:
    """Ollama's clients add one to each name."""
    first = tokens(server, model="first")
    assert tokens(server, model="first:latest") == first
    assert tokens(server, adapter="first:latest") == first
    assert server.client.get("/v1/models/first:latest").json()["id"] == "first"
    body = {"model": "first:latest", "prompt": "a", "raw": True, "stream": False}
    body["options"] = {"num_predict": 2}
    reply = server.client.post("/api/generate", json=body)
    assert reply.is_success or "vocabulary" in reply.text, reply.text
    tags = {each["name"]: each for each in server.client.get("/api/tags").json()["models"]}
    assert tags.keys() == {"model:latest", "first:latest"}
    assert tags["first:latest"]["details"]["parent_model"] == "model:latest"
    assert tags["model:latest"]["details"]["parent_model"] == ""
    reply = server.client.post("/v1/completions", json=BODY | {"model": "first:other"})
    assert reply.status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a b"}),
        ("/v1/score", {"text_1": "a b", "text_2": "c d"}),
        ("/v1/rerank", {"query": "a b", "documents": ["c d"]}),
        (
            "/v1/decisions",
            {"input": "a b", "questions": [{"type": "predicate", "instructions": "a"}]},
        ),
    ],
)
def test_adapters_score_and_embed_too(
    talking: Loopback, path: str, body: dict[str, object]
) -> None:
    def ask(**more: str) -> dict[str, object]:
        reply = talking.client.post(path, json=body | more)
        assert reply.is_success, reply.text
        found: dict[str, object] = reply.json()
        return {name: found[name] for name in found if name not in {"id", "created", "usage"}}

    first = ask(model="first")
    assert first["model"] == "first"
    assert first != ask() | {"model": "first"}
    assert ask(adapter="first") == ask(model="nano", adapter="first") == first
    reply = talking.client.post(path, json=body | {"adapter": "second"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "adapter")


@pytest.mark.parametrize("command", ["generate", "run"])
def test_commands_name_the_adapter_that_answers(talking: Loopback, command: str) -> None:
    adapter = f"first={talking.core.adapters.paths['first']}"
    line = [command, "nano", "Once", "--cpu", "--max-tokens=1", "--json", "--adapter", adapter]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    assert json.loads(done.stdout)["model"] == "first"
    assert "nano with first on cpu" in done.stderr
