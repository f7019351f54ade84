"""What GGUF files say of rotation, and of scores by position."""

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
