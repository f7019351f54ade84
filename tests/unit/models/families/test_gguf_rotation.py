"""What GGUF files say of rotation in several words."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_gguf_family import logits, write

from blazr.models.loading.load import plan_model


# In the words of llama.cpp, of its converter for Mistral Large 3, and of Ollama; where no length is
# said, it is that of the context.
@pytest.mark.parametrize(
    ("said", "length"),
    [
        ({"attention.temperature_scale": 0.1, "rope.scaling.original_context_length": 5}, 5),
        ({"attention.temperature_scale": 0.1, "attention.temperature_length": 6}, 6),
        ({"rope.scaling_beta": 0.1, "rope.scaling.original_context_length": 5}, 5),
        ({"attention.temperature_scale": 0.1}, 64),
    ],
)
def test_scores_that_grow_with_the_position(
    said: dict[str, object], length: int, tmp_path: Path
) -> None:
    more = {f"llama.{key}": value for key, value in said.items()} | {"llama.context_length": 64}
    path = write("llama", tmp_path, **more)
    temperature = plan_model(str(path)).derivation.config.layers[0].mixer.rope.temperature
    assert (round(temperature.scale, 6), temperature.length) == (0.1, length)
    found, even = logits(path)[0], logits(write("llama", tmp_path))[0]
    changed = [bool(change > 0) for change in (found - even).abs().amax(1)]
    assert changed == [place >= length for place in range(len(changed))]


def test_yarn_in_the_words_of_ollama(tmp_path: Path) -> None:
    same = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
    words = [
        {"yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0, "yarn_log_multiplier": 1.0},
        {"beta_fast": 8.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    ]
    found = []
    for each in words:
        more = {f"qwen2.rope.scaling.{key}": value for key, value in (same | each).items()}
        path = write("qwen2", tmp_path, **more)
        found.append(plan_model(str(path)).derivation.config.layers[0].mixer.rope)
    assert found[0] == found[1]
    assert found[0].scaling.attention_factor == 1
    assert (found[0].scaling.beta_fast, found[0].scaling.beta_slow) == (8, 2)
