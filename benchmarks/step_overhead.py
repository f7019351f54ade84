"""What a decode step costs in Python: all of it but the network, whose scores are made up.

Everything else is real: scheduler, cache manager, batch metadata, sampling of the likeliest token,
outputs. The aim is 100 us and 5 us a sequence.

    python benchmarks/step_overhead.py
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from blazr.bench.shapes import nano, random_network
from blazr.engine.cache.budget import plan_caches
from blazr.engine.cache.manager import CacheManager
from blazr.engine.cache.storage import plan_layout
from blazr.engine.config import EngineConfig
from blazr.engine.engine import Engine
from blazr.engine.replay import Replays
from blazr.engine.request import Request
from blazr.engine.runner import ModelRunner
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler
from blazr.models.causal_lm import CausalLM
from blazr.nn.device import resolve_device
from blazr.nn.layers.batch import ForwardBatch, LayerCache

STEPS = 300
CONTEXT = 512


class MadeUpScores(torch.nn.Module):
    """Has the face of a network and computes nothing."""

    def __init__(self, model: CausalLM, most: int) -> None:
        super().__init__()
        self.config, self.device = model.config, model.device
        self._hidden = torch.zeros(CONTEXT * most, model.config.hidden_size)
        self._scores = torch.randn(most, model.config.vocab_size)

    def forward(self, batch: ForwardBatch, _: tuple[LayerCache, ...]) -> Tensor:
        """Hidden states of the right shape; the kernels' table is made as layers would."""
        batch.table.numbers  # noqa: B018  (made at first sight)
        return self._hidden[: len(batch.token_ids)]

    def logits(self, hidden: Tensor, _: Tensor | None = None) -> Tensor:
        """Scores of the right shape."""
        return self._scores[: len(hidden)]


@torch.inference_mode()  # as the engine's thread is
def step_us(sequences: int) -> float:
    """Median microseconds of a step that decodes so many sequences."""
    device = resolve_device("cpu")
    model = random_network(nano(), device=device, dtype="float32")
    layout = plan_layout([layer.mixer.cache_spec(model.dtype) for layer in model.config.layers])
    config = EngineConfig(max_running=sequences)
    (shape,) = plan_caches([layout], config, device=device, max_seq_len=CONTEXT)
    runner, memory = ModelRunner(model, layout, shape), CacheManager(shape)
    runner.model = MadeUpScores(model, sequences)  # type: ignore[assignment]
    runner.replays = Replays(runner.model, runner.storage.layers, shape.max_blocks, lambda: None)
    engine = Engine(
        Scheduler(memory, token_budget=2048),
        lambda plan: runner.execute(plan, memory),
        vocab_size=model.config.vocab_size,
        max_seq_len=CONTEXT,
    )
    params = SamplingParams(temperature=0, max_tokens=CONTEXT - 32, ignore_eos=True)
    for number in range(sequences):
        prompt = tuple(range(number + 3, number + 23))
        engine.add(Request(prompt_ids=prompt, params=params), request_id=number, now=0.0, seed=0)
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        outputs = engine.step(0.0)
        times.append(time.perf_counter() - start)
        for failed in (each for each in outputs if each.error is not None):
            raise RuntimeError(failed.error)
    return statistics.median(times) * 1e6


def main() -> None:
    """Print a line for each number of sequences."""
    torch.set_num_threads(1)
    for sequences in (1, 8, 32, 128):
        print(f"{sequences:4d} sequences: {step_us(sequences):5.0f} us (aim {100 + 5 * sequences})")


if __name__ == "__main__":
    main()
