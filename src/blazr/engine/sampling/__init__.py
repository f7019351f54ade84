"""From logits to tokens: steps in the order they apply, each only for the rows that ask."""

from __future__ import annotations

from blazr.core.table import Table
from blazr.engine.sampling.steps import (
    SamplingStep,
    allowed_step,
    bad_words_step,
    bias_step,
    dry_step,
    frequency_step,
    min_p_step,
    min_tokens_step,
    mirostat_step,
    presence_step,
    processors_step,
    repetition_step,
    temperature_step,
    top_k_step,
    top_n_sigma_step,
    top_p_step,
    typical_p_step,
    xtc_step,
)

SAMPLING_STEPS: Table[SamplingStep] = Table(
    "sampling step",
    {
        "bias": bias_step,
        "allowed": allowed_step,
        "bad_words": bad_words_step,
        "min_tokens": min_tokens_step,
        "repetition": repetition_step,
        "presence": presence_step,
        "frequency": frequency_step,
        "dry": dry_step,
        "processors": processors_step,
        "top_n_sigma": top_n_sigma_step,
        "typical_p": typical_p_step,
        "xtc": xtc_step,
        "mirostat": mirostat_step,
        "temperature": temperature_step,
        "top_k": top_k_step,
        "top_p": top_p_step,
        "min_p": min_p_step,
    },
)
