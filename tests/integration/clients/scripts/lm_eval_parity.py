"""lm-eval over HTTP beside its own `hf` model: the same scores, the same words.

Its tasks are made here, of 50 items each: the network has none to give.
"""

from __future__ import annotations

import json
import math
import sys
import urllib.request
from pathlib import Path
from tempfile import mkdtemp

import lm_eval
from checks import check, run
from lm_eval.tasks import TaskManager

MODELS = Path(sys.argv[3])
OWN_TASKS = TaskManager(include_defaults=False)  # reading thousands of others takes long
NUM_ITEMS = 50
TALE = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park "
    "with her friends. One day, she saw a big dog. The dog was very sad. Lily said, Do not be sad, "
    "dog. I will play with you. They ran and jumped and had a lot of fun in the sun."
)
BEGINNINGS = [" ".join(TALE.split()[n : n + 2 + n % 20]) for n in range(NUM_ITEMS)]
# Four blocks of the prefix cache that items have in common.
LONG = [f"{TALE} " * 4 + end for end in ("Once upon a", "One")]
CHOICES = [" dog", " was a very big", " zebra", " and they all"]
CHOICE = {
    "texts": BEGINNINGS,
    "output_type": "multiple_choice",
    "doc_to_choice": CHOICES,
    "doc_to_target": 0,
    "target_delimiter": "",
}
LONG_CHOICE = {**CHOICE, "texts": LONG, "doc_to_choice": [" time", " day", " zebra"]}
PERPLEXITY = {
    "texts": BEGINNINGS,
    "doc_to_text": "",
    "output_type": "loglikelihood_rolling",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "word_perplexity"}],
}
WORDS = {
    "texts": BEGINNINGS,
    "output_type": "generate_until",
    "doc_to_target": "dog",
    "generation_kwargs": {"until": ["."], "max_gen_toks": 12, "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}


def task(kind: dict[str, object]) -> dict[str, object]:
    """A task of lm-eval, over a file of its texts."""
    kind = dict(kind)
    rows = Path("tales.jsonl").resolve()
    lines = (json.dumps({"text": text}) + "\n" for text in kind.pop("texts"))
    rows.write_text("".join(lines), encoding="utf-8")
    return {
        "task": "tales",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}, "cache_dir": mkdtemp()},
        "test_split": "test",
        "doc_to_text": "{{text}}",
        **kind,
    }


def evaluate(
    kind: dict[str, object], backend: str, *, is_chat: bool = False, **model_args: object
) -> tuple[dict[str, float], list[object]]:
    """A model's figures, and what it answered to each item."""
    found = lm_eval.simple_evaluate(
        model=backend,
        model_args=model_args,
        device="cpu",
        tasks=[task(kind)],
        task_manager=OWN_TASKS,
        apply_chat_template=is_chat,
        bootstrap_iters=0,
    )
    figures = {
        name: value
        for name, value in found["results"]["tales"].items()
        if isinstance(value, float) and "stderr" not in name
    }
    answers = {row["doc_id"]: row["resps"] for row in found["samples"]["tales"]}
    assert sorted(answers) == list(range(len(kind["texts"]))), sorted(answers)
    return figures, [answers[item] for item in sorted(answers)]


def by_hf(kind: dict[str, object], name: str, *, is_chat: bool = False, **more: object):
    path = str(MODELS / name)
    return evaluate(kind, "hf", is_chat=is_chat, pretrained=path, dtype="float32", **more)


def by_server(url: str, kind: dict[str, object], name: str, **more: object):
    """As docs/how-to/clients.md says to ask."""
    return evaluate(
        kind,
        "local-completions",
        model=name,
        base_url=f"{url}/v1/completions",
        tokenizer_backend="huggingface",
        tokenizer=str(MODELS / name),
        max_retries=1,
        **more,
    )


def are_alike(ours: object, theirs: object) -> None:
    """Fail unless two results are the same: words to the letter, numbers to rounding."""
    if isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), (ours, theirs)
        for one, other in zip(ours, theirs, strict=True):
            are_alike(one, other)
    elif isinstance(theirs, dict):
        are_alike(sorted(ours.items()), sorted(theirs.items()))
    elif isinstance(theirs, float):
        assert math.isclose(float(ours), theirs, rel_tol=1e-4, abs_tol=1e-4), (ours, theirs)
    else:  # `hf` reads a reply's tokens by themselves, and so loses the space before the first word
        assert str(ours).lstrip() == str(theirs).lstrip(), (ours, theirs)


@check
def choices(url: str) -> None:
    """One answer after another, and several at once; there is no beginning-of-text token."""
    theirs = by_hf(CHOICE, "stories-without-bos")
    for batch_size in (1, 8):
        ours = by_server(url, CHOICE, "stories-without-bos", batch_size=batch_size)
        are_alike(ours, theirs)


@check
def remote_tokenizer(url: str) -> None:
    """It needs no files; and a context that several answers share is read once."""

    def num_cached() -> float:
        with urllib.request.urlopen(f"{url}/metrics") as page:
            lines = page.read().decode().splitlines()
        name = 'blazr_engine_cached_tokens_total{model="stories-without-bos"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    theirs = by_hf(LONG_CHOICE, "stories-without-bos")
    greedy = {row[0][1] for item in theirs[1] for row in item}
    assert greedy == {True, False}, theirs
    for batch_size in (1, 8):
        before = num_cached()
        ours = evaluate(
            LONG_CHOICE,
            "local-completions",
            model="stories-without-bos",
            base_url=f"{url}/v1/completions",
            tokenizer_backend="remote",
            max_retries=1,
            batch_size=batch_size,
        )
        are_alike(ours, theirs)
        num_again = len(LONG) * len(LONG_CHOICE["doc_to_choice"]) - 1
        assert num_cached() - before >= num_again * 256, num_cached() - before


@check
def choices_after_bos(url: str) -> None:
    theirs = by_hf(CHOICE, "stories", add_bos_token=True)
    are_alike(by_server(url, CHOICE, "stories", add_bos_token=True, batch_size=8), theirs)


@check
def perplexity(url: str) -> None:
    for name, bos in (("stories", {"add_bos_token": True}), ("stories-without-bos", {})):
        are_alike(by_server(url, PERPLEXITY, name, **bos), by_hf(PERPLEXITY, name, **bos))


@check
def completions(url: str) -> None:
    for name, bos in (("stories", {"add_bos_token": True}), ("stories-without-bos", {})):
        are_alike(by_server(url, WORDS, name, **bos), by_hf(WORDS, name, **bos))


@check
def chat(url: str) -> None:
    """The server renders its own template, which is the same."""
    theirs = by_hf(WORDS, "stories", is_chat=True)
    ours = evaluate(
        WORDS,
        "local-chat-completions",
        is_chat=True,
        model="stories",
        base_url=f"{url}/v1/chat/completions",
        max_retries=1,
    )
    are_alike(ours, theirs)


run()
