"""From logits to tokens: steps in the order they apply, each only for the rows that ask."""

from __future__ import annotations

from blazr.core.table import Table
from blazr.engine.sampling.steps import (
    SamplingStep,
    bias_step,
    frequency_step,
    min_p_step,
    min_tokens_step,
    presence_step,
    repetition_step,
    temperature_step,
    top_k_step,
    top_p_step,
)

SAMPLING_STEPS: Table[SamplingStep] = Table(
    "sampling step",
    {
        step.name: step
        for step in (
            bias_step,
            min_tokens_step,
            repetition_step,
            presence_step,
            frequency_step,
            temperature_step,
            top_k_step,
            top_p_step,
            min_p_step,
        )
    },
)
