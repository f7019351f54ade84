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
        "bias": bias_step,
        "min_tokens": min_tokens_step,
        "repetition": repetition_step,
        "presence": presence_step,
        "frequency": frequency_step,
        "temperature": temperature_step,
        "top_k": top_k_step,
        "top_p": top_p_step,
        "min_p": min_p_step,
    },
)
