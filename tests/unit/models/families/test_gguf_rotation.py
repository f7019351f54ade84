"""What GGUF files say of rotation, and of scores by position."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from test_gguf_family import logits, write

from blazr.core.errors import ConfigError
from blazr.models.loading.plan import plan_model


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


@pytest.mark.parametrize("blend", [1.0, -1.0, 0.0])
def test_only_the_usual_ramp_of_yarn_is_read(blend: float, tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 16}
    more = {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    usual = logits(write("llama", tmp_path, **more))
    more["llama.rope.scaling.yarn_ext_factor"] = blend
    path = write("llama", tmp_path, **more)
    if blend:
        assert torch.equal(logits(path), usual)
    else:
        with pytest.raises(ConfigError, match="yarn_ext_factor"):
            plan_model(str(path))


# What rotation stretches by: as usual with YaRN, in words of llama.cpp, and as config.json says it.
@pytest.mark.parametrize(
    ("said", "stretched"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attn_factor": 0.5}, 0.5 * (0.1 * math.log(4) + 1)),
        ({"yarn_attn_factor": 0.8}, 0.8),
        ({"yarn_attn_factor": 1.0}, 0.1 * math.log(4) + 1),
        ({"yarn_log_multiplier": 0.1}, 1.0),
    ],
)
def test_what_yarn_stretches_by(said: dict[str, float], stretched: float, tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 16, **said}
    more = {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    path = write("llama", tmp_path, **more)
    rope = plan_model(str(path)).derivation.config.layers[0].mixer.rope
    assert math.isclose(rope.scaling.attention_factor, stretched, rel_tol=1e-6)
