"""guidellm: a benchmark of four chats, one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from checks import MAX_TOKENS, MODEL, check, run

PROMPTS = ["Once upon a time", "The dog was", "Lily had", "One day"]


@check
def benchmark(url: str) -> None:
    rows = [json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS]
    Path("data.jsonl").write_text("".join(rows), encoding="utf-8")
    backend = f"kind=openai_http,target={url},model={MODEL},max_tokens={MAX_TOKENS}"
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("guidellm"), "run", "--backend", backend),
            *("--profile", "kind=synchronous", "--data", "kind=json_file,path=data.jsonl"),
            *("--constraint", f"kind=max_requests,count={len(PROMPTS)}"),
            *("--output", "kind=json,path=report.json", "--disable-console"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(Path("report.json").read_text("utf-8"))["benchmarks"]
    made = report["scheduler_metrics"]["requests_made"]
    assert made["successful"] == len(PROMPTS), made
    assert made["errored"] == made["incomplete"] == 0, made
    assert all(request["output"] for request in report["requests"]["successful"])


run()
