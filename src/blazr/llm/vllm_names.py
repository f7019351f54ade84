"""Arguments of vLLM's `LLM`: what they are called here, or what to write instead.

Source: the reference of vLLM's ``LLM`` and ``EngineArgs``.
"""

from __future__ import annotations

from collections.abc import Mapping

# They mean the same under another name.
_RENAMED = {
    "tokenizer": "vocab",
    "max_model_len": "max_seq_len",
    "max_num_seqs": "max_running",
    "max_num_batched_tokens": "token_budget",
    "enable_prefix_caching": "prefix_cache",
    "kv_cache_dtype": "kv_dtype",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
}
_DTYPES = {"half": "float16", "float": "float32"}
# With these values they ask for what blazr does anyway.
_ALREADY_SO: Mapping[str, tuple[object, ...]] = {
    "trust_remote_code": (False, True),  # code that comes with a model is never run
    "enforce_eager": (False, True),  # the numbers are the same either way
    "disable_log_stats": (False, True),
    "runner": ("auto", "generate", "pooling"),  # what a model does is recognised
    "tokenizer_mode": ("auto",),
    "load_format": ("auto", "safetensors", "gguf"),
    "skip_tokenizer_init": (False,),
    "quantization": (None,),
    "enable_lora": (False,),
    "speculative_config": (None,),
    "cpu_offload_gb": (0,),
    "swap_space": (0,),
    "seed": (None, 0),
}
_NOT_YET = "nothing (leave it out: blazr does not have this yet)"
_INSTEAD = {
    "data_parallel_size": "nothing (blazr serve --replicas N)",
    "quantization": "quantize='q8_0' to pack plain weights, nothing for a quantized checkpoint",
    "gpu_memory_utilization": "memory='0.8' (a share of what is free, for caches alone)",
    "kv_cache_memory_bytes": "memory='8GiB'",
    "engine": "its fields, as in LLM(max_running=4, memory='8GiB')",
    "seed": "SamplingParams(seed=...), for each request",
    "hf_overrides": "nothing (change config.json in the model's directory)",
    "limit_mm_per_prompt": "nothing (a prompt may hold up to 32 images)",
    "enable_lora": "adapter='NAME=PATH', and adapter='NAME' for each request",
    "speculative_config": "spec='ngram', 'draft:MODEL' or another drafter",
    "cpu_offload_gb": "cpu_moe=True to keep the experts on the CPU, nothing for a dense model",
    "tokenizer_mode": "nothing (the form of a tokenizer is recognised)",
    "load_format": "nothing (the format of a checkpoint is recognised)",
    "skip_tokenizer_init": "nothing (prompts may be token ids in any case)",
    "runner": "'generate' or 'pooling'",
}


def translate(arguments: Mapping[str, object], known: frozenset[str]) -> dict[str, object]:
    """Return the arguments under blazr's names.

    Args:
        arguments: Keyword arguments that `LLM` does not declare.
        known: The names that blazr has for settings of the engine, and ``"vocab"``.

    Raises:
        TypeError: An argument is unknown, or asks for what blazr does not do.
    """
    found: dict[str, object] = {}
    for name, value in arguments.items():
        own = _RENAMED.get(name, name)
        if own in known:
            found[own] = value
        elif value not in _ALREADY_SO.get(name, ()):
            instead = _INSTEAD.get(name, _NOT_YET if name in _ALREADY_SO else "")
            expected = instead or f"one of {', '.join(sorted(known))}"
            message = f"LLM() does not take {name}={value!r:.50}; write instead: {expected}"
            raise TypeError(message)
    return found


def dtype_name(dtype: object) -> str:
    """Return blazr's name of a dtype: ``"half"`` and ``torch.float16`` are ``"float16"``."""
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.get(name, name)
