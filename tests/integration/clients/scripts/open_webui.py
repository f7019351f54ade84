"""Open WebUI, by `blazr launch`, asked as its page in the browser asks it."""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

from checks import check, run

MODEL = "coder"
START_S = 900
QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "What is it?"}]}
ANSWER = "It is a story of a dog."


class Page:
    """The program, and who has signed up there."""

    def __init__(self, url: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.token = ""
        settings = [
            f"DATA_DIR={Path('data').resolve()}",
            "WEBUI_SECRET_KEY=none",
        ]
        launch = ["blazr", "launch", "open-webui", "--url", url, "--", "--port", str(port)]
        with Path("page.log").open("wb") as log:
            self.process = subprocess.Popen(["env", *settings, *launch], stdout=log, stderr=log)
        atexit.register(self.process.terminate)
        self.wait()
        who = {"name": "Lily", "email": "lily@example.org", "password": "A big dog, 1 sun."}
        self.token = json.loads(self.ask("/api/v1/auths/signup", who))["token"]

    def wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.ask("/health")
                return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(Path("page.log").read_text("utf-8", "replace")[-3000:])

    def ask(self, path: str, body: object = None) -> str:
        """What it answers to GET, or to POST of a body."""
        request = urllib.request.Request(
            self.address + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=100) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise AssertionError(f"{error.code}: {error.read()[:1000]!r}") from None
            raise


page = cache(Page)


def told(streamed: str) -> str:
    """The words of a stream."""
    lines = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert lines[-1] == "[DONE]", lines
    parts = [json.loads(line)["choices"] for line in lines[:-1]]
    return "".join(choice["delta"].get("content") or "" for part in parts for choice in part)


@check
def models(url: str) -> None:
    listed = json.loads(page(url).ask("/api/models"))["data"]
    assert MODEL in [row["id"] for row in listed], listed


@check
def chat(url: str) -> None:
    reply = json.loads(page(url).ask("/api/chat/completions", {**QUESTION, "stream": False}))
    assert reply["choices"][0]["message"]["content"] == ANSWER, reply


@check
def stream(url: str) -> None:
    answer = page(url).ask("/api/chat/completions", {**QUESTION, "stream": True})
    assert told(answer) == ANSWER, answer


@check
def tasks(url: str) -> None:
    """What it asks by itself after an answer: a title, tags, what might follow."""
    messages = [*QUESTION["messages"], {"role": "assistant", "content": ANSWER}]
    body = {"model": MODEL, "messages": messages, "stream": False}
    for task in ("title", "tags", "follow_up"):
        reply = json.loads(page(url).ask(f"/api/v1/tasks/{task}/completions", body))
        assert reply["choices"][0]["message"]["content"] == ANSWER, (task, reply)


@check
def connections(url: str) -> None:
    """The button that tries a connection, OpenAI's and Ollama's."""
    openai = page(url).ask("/openai/verify", {"url": f"{url}/v1", "key": "none"})
    assert MODEL in openai, openai
    ollama = json.loads(page(url).ask("/ollama/verify", {"url": url, "key": ""}))
    assert "version" in ollama, ollama


@check
def ollama(url: str) -> None:
    """The other connection, which an administrator adds."""
    settings = {"ENABLE_OLLAMA_API": True, "OLLAMA_BASE_URLS": [url], "OLLAMA_API_CONFIGS": {}}
    page(url).ask("/ollama/config/update", settings)
    listed = json.loads(page(url).ask("/ollama/api/tags"))["models"]
    name = listed[0]["model"]
    answer = page(url).ask("/ollama/api/chat", {**QUESTION, "model": name, "stream": True})
    parts = [json.loads(line) for line in answer.splitlines()]
    assert "".join(part["message"]["content"] for part in parts) == ANSWER, answer
    assert parts[-1]["done"] is True, parts[-1]


run()
