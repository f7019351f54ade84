"""The evaluation harness against our server: its chats run, and its answers are what we said.

It needs ``blazr[clients]``; run it with ``-m clients``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.loopback import serving

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")

from blazr.llm.open import open_model  # noqa: E402  (after what is skipped)

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("default"),  # theirs are not ours to mend
]
QUESTIONS = ["Once upon a time there was a", "The dog was very", "Tim went to the"]


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
    with serving(open_model(device="cpu")) as running:
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
