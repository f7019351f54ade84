"""A server whose chat template is hostile answers others as before, and says that it lives."""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from statistics import median

from blazr.core.errors import CheckpointError
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.text.templates.sandbox import compile_template
from tests.support.hostile_templates import SETUP, hostile_template
from tests.support.loopback import Loopback, serving
from tests.support.seeds import examples, run_seed

NUM_CLIENTS = 4
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
PROMPTS = ("Once upon a time", "The cat and the dog went")


def hostile_lines(count: int) -> list[str]:
    """What hostile templates do after their common beginning."""
    draw = random.Random(run_seed())
    lines: list[str] = []
    while len(lines) < count:
        source = hostile_template(draw)
        line = source.removeprefix(SETUP)
        if "{% block" in line:  # one of each name in a template
            continue
        try:
            compile_template(source, name="hostile")
        except CheckpointError:
            continue
        lines.append(line)
    return lines


def template_of(lines: list[str]) -> str:
    """A template that does what the last message says, or what is usual."""
    cases = (
        f"{{% if said.startswith('{number}!') %}}{line}{{% endif %}}"
        for number, line in enumerate(lines)
    )
    return (
        "{% set said = messages[-1].content %}{% if '!' in said %}"
        f"{SETUP}{''.join(cases)}{{% else %}}{PLAIN}{{% endif %}}"
    )


def ask(running: Loopback, text: str) -> tuple[int, str]:
    """The status of a greedy reply, and its text."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0}
    reply = running.client.post("/v1/chat/completions", json=body)
    if not reply.is_success:
        return reply.status_code, reply.text
    return reply.status_code, reply.json()["choices"][0]["message"]["content"]


def test_a_hostile_template_disturbs_nobody(tmp_path: Path) -> None:
    lines = hostile_lines(examples(80))
    path = tmp_path / "hostile.jinja"
    path.write_text(template_of(lines), encoding="utf-8")
    options = LoadOptions("nano", device="cpu", memory="32MiB", chat_template=str(path))
    with serving(load_text_engine(options)) as running:
        alone = [ask(running, prompt) for prompt in PROMPTS]
        assert {status for status, _ in alone} == {200}
        statuses: set[int] = set()
        beside: list[list[tuple[int, str]]] = []
        waits: list[float] = []
        is_over = threading.Event()

        def attack(first: int) -> None:
            for number in range(first, len(lines), NUM_CLIENTS):
                # every other one is too long for the event loop
                text = f"{number}!" + " a" * (600 * (number % 2))
                statuses.add(ask(running, text)[0])

        def talk() -> None:
            while not is_over.is_set():
                beside.append([ask(running, prompt) for prompt in PROMPTS])

        def watch() -> None:
            while not is_over.is_set():
                start = time.perf_counter()
                assert running.client.get("/health").is_success
                waits.append(time.perf_counter() - start)
                time.sleep(0.01)

        neighbours = [threading.Thread(target=each) for each in (talk, watch)]
        attackers = [threading.Thread(target=attack, args=(n,)) for n in range(NUM_CLIENTS)]
        for thread in (*neighbours, *attackers):
            thread.start()
        for thread in attackers:
            thread.join()
        is_over.set()
        for thread in neighbours:
            thread.join()
        assert statuses <= {200, 400}
        assert 400 in statuses
        assert beside
        assert all(replies == alone for replies in beside)
        sys.stdout.write(
            f"{len(lines)} attacks, {len(beside)} x {len(PROMPTS)} replies as before; "
            f"/health took {median(waits) * 1e3:.0f} ms, {max(waits) * 1e3:.0f} ms at most\n"
        )
