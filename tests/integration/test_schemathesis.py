"""Requests made up from the OpenAPI document, valid and not: what comes back is what it says.

It needs ``blazr[clients]``; run it with ``-m clients``. By hand, with a model and every check:
``schemathesis run http://127.0.0.1:8080/openapi.json --exclude-path /models/sse`` (it has no end).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.loopback import serving
from tests.support.scripted import scripted_core

pytest.importorskip("schemathesis", reason="schemathesis is not installed")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "positive_data_acceptance",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
)
# What a request can be refused for although the document allows it.
BEYOND_A_SCHEMA = (
    # what the server holds, or was started with
    "only a response in the background",
    "cannot be loaded again",
    "this server has no tools",
    "nothing is kept that could be sent",
    # what the model is
    "this model has no prompts",
    "this model has no adapters",
    "a message has an unknown role",  # unless the model's template knows it
    "is empty.",  # a text, unless the model's vocabulary begins every text with a token
    "the context holds",
    "outside the vocabulary",
    "a token id of the prompt is out of range",
    "dimensions is out of range",
    # how fields go together
    "may not be empty",  # a chat without instructions, of turns that say nothing
    "there is no message to go on with",
    "leaves no tool",
    "a tool must be called",
    "top_logprobs needs logprobs",
    "at most max_tokens",
    "a question that is cut off",
    "the texts do not form pairs",
    "the number of",
    "give one grammar",
    # what is in fields that are free
    "chat templates come with the model",
    "the grammar is not valid",
    "the schema is no",  # also none in JSON, where it is sent as a text
    "the schema is not valid JSON",
    "an image is not in its request",
    "Invalid base64 encoded string",
    "a custom tool has no name",
    "the arguments of a tool call",
    "a tool call in a message",
    "a block is not text",
    "a block is neither text",
    # what could be said in many words
    "samplers are not understood",  # one of them comes twice
    "has the wrong shape",  # ids beside texts, or too many
    "logit_bias is out of range",
    "max_tokens is out of range",
    "got `str` - at `key` in",
    "got `float` - at",  # an integer with a fraction of zero, which a schema takes for one
)


def is_beyond_a_schema(failure: str) -> bool:
    """Whether a request was refused for what the document cannot say."""
    if "[501] Not Implemented" in failure:  # it has no such model, or was not started for that
        return True
    found = re.search(r"rejected$.*?^\[400\].*?`(\{.*\})`$", failure, re.MULTILINE | re.DOTALL)
    return found is not None and any(reason in found[1] for reason in BEYOND_A_SCHEMA)


def test_answers_are_what_the_document_says(tmp_path: Path) -> None:
    with serving(scripted_core()) as running:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/openapi.json"),
            *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "20"),
            *("--checks", ",".join(CHECKS), "--seed", "1", "--no-color"),
            *("--exclude-path", "/models/sse", "--continue-on-failure"),  # it has no end
        ]
        env = {**os.environ, "HYPOTHESIS_DATABASE_DIRECTORY": str(tmp_path)}  # noqa: TID251
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
    failures = re.split(r"^- (?=\w+ )", done.stdout, flags=re.MULTILINE)[1:]
    unknown = [each[:2000] for each in failures if not is_beyond_a_schema(each)]
    assert not unknown, "\n".join(unknown)
    assert done.returncode == bool(failures), done.stdout[-6000:] + done.stderr[-2000:]
    (num_cases,) = re.findall(r"(\d+) generated", done.stdout)
    assert int(num_cases) >= 5000
    phases = re.findall(r"^  [✅❌] (\w+)$", done.stdout, re.MULTILINE)
    assert phases == ["Examples", "Coverage", "Fuzzing", "Stateful"]
