"""The evaluation harness against our server: its scores are transformers', its chats are ours.

It needs ``blazr[clients]``; run it with ``-m clients``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.support.loopback import serving

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")

from blazr.llm.load import load_text_engine  # noqa: E402  (after what is skipped)
from blazr.llm.options import LoadOptions  # noqa: E402

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # theirs are not ours to mend
]
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
QUESTIONS = ["Once upon a time there was a", "The dog was very", "Tim went to the"]


# Longer than a block of the prefix cache, so that there is something to reuse.
TALE = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park "
    "with her friends. One day, she saw a big dog. The dog was very sad. Lily said, "
)
TALE *= 6
ROWS = [
    {"q": TALE + '"Why are you', "choices": [" sad?", " happy today?", " a big red ball?"]},
    {"q": TALE + '"Do not', "choices": [" be sad.", " worry, dog.", " cry"]},
    {"q": "The", "choices": [" dog", " sun was hot", " zebra"]},
    {"q": "Tim and Sam went to the", "choices": [" park", " store to buy a toy", " xylophone"]},
]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model and its tokenizer in one directory."""
    path = tmp_path_factory.mktemp("stories260k")
    parts = GOLDEN / "stories260k", GOLDEN / "tokenizers" / "stories260k"
    for file in (each for part in parts for each in part.iterdir()):
        shutil.copy(file, path)
    return path


def reference(path: Path, context: str, choice: str) -> tuple[float, bool]:
    """What transformers gives a choice after a context, and whether it would have chosen it."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(path)
    ids = tokenizer.encode(context + choice, add_special_tokens=False)
    start = len(tokenizer.encode(context, add_special_tokens=False))
    with torch.inference_mode():
        logits = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)(
            torch.tensor([ids])
        ).logits
    scores = logits[0, start - 1 : -1].log_softmax(-1)
    wanted = torch.tensor(ids[start:])
    is_greedy = bool((scores.argmax(-1) == wanted).all())
    return float(scores.gather(1, wanted[:, None]).sum()), is_greedy


@pytest.mark.parametrize("batch_size", [1, 8])
def test_local_completions(stories: Path, tmp_path: Path, batch_size: int) -> None:
    rows = tmp_path / "tales.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    task = {
        "task": "tales",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}, "cache_dir": str(tmp_path)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": 0,
        "target_delimiter": "",
    }
    with serving(load_text_engine(LoadOptions(str(stories), device="cpu"))) as running:
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={
                "model": "default",
                "base_url": f"{running.url}/v1/completions",
                "tokenizer_backend": "remote",
                "max_retries": 1,
                "batch_size": batch_size,
            },
            tasks=[task],
            bootstrap_iters=0,
        )
        stats = running.core.engine.stats()
    told, expected = [], []
    for sample in found["samples"]["tales"]:
        told += [each[0] for each in sample["resps"]]
        row = sample["doc"]
        expected += [reference(stories, row["q"], choice) for choice in row["choices"]]
    assert len(told) == sum(len(row["choices"]) for row in ROWS)
    assert [float(score) for score, _ in told] == pytest.approx([s for s, _ in expected], abs=1e-4)
    assert [is_greedy for _, is_greedy in told] == [is_greedy for _, is_greedy in expected]
    assert len({is_greedy for _, is_greedy in told}) == 2  # some are, and some are not
    # the long context was read once: of the other five, all but the last 128 tokens at most
    assert stats["cached_tokens"] >= 5 * 256, stats


def test_local_chat_completions(tmp_path: Path) -> None:
    rows = tmp_path / "tales.jsonl"
    rows.write_text("".join(json.dumps({"q": q, "a": "cat"}) + "\n" for q in QUESTIONS))
    task = {
        "task": "tales",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}, "cache_dir": str(tmp_path)},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{q}}",
        "doc_to_target": "{{a}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    with serving(load_text_engine(LoadOptions(device="cpu"))) as running:
        found = lm_eval.simple_evaluate(
            model="local-chat-completions",
            model_args={
                "model": "default",
                "base_url": f"{running.url}/v1/chat/completions",
                "max_retries": 1,
            },
            tasks=[task],
            apply_chat_template=True,
            bootstrap_iters=0,
        )
        told = [each["resps"][0][0] for each in found["samples"]["tales"]]
        asked = [
            {
                "messages": [{"role": "user", "content": question}],
                "temperature": 0,
                "max_tokens": 12,
                "stop": "\n",
            }
            for question in QUESTIONS
        ]
        replies = [running.client.post("/v1/chat/completions", json=body).json() for body in asked]
    assert told == [reply["choices"][0]["message"]["content"] for reply in replies]
