"""What ``blazr info`` prints: config, sizes, and where each value came from."""

from __future__ import annotations

from dataclasses import asdict

from blazr.models.checkpoint.base import ELEMENT_TYPES
from blazr.models.families.oxidizr import layer_type_of
from blazr.models.loading.plan import PlannedModel
from blazr.models.loading.storage import stored_as, stored_dtype
from blazr.models.sizing import size_of


def describe_plan(
    planned: PlannedModel, *, kv_dtype: str = "auto", state_dtype: str = "auto"
) -> dict[str, object]:
    """Describe a model whose headers have been read.

    Args:
        planned: The model.
        kv_dtype: What keys, values and latents would be stored in.
        state_dtype: What recurrent states would be kept in.

    Returns:
        Plain values, ready for JSON: ``name``, ``path``, ``family``, ``dtype`` (what most bytes
        are stored in: for packed blocks their type, as ``Q4_K``), ``files``, ``config``,
        ``parameters``, ``memory`` (bytes), ``derivation`` and ``warnings``.

    Raises:
        UnknownNameError: There is no such dtype of keys and values, or of states.
    """
    checkpoint = planned.checkpoint
    derivation = planned.derivation
    dtype = stored_dtype(planned.plan)
    stored = stored_as(planned.plan)
    size = size_of(derivation.config, dtype, kv_dtype=kv_dtype, state_dtype=state_dtype)
    # keys as the documents name them; where layers differ, the first layer's value
    config: dict[str, object] = {}
    for value in derivation.values:
        config.setdefault(value.name, value.value)
    types = [layer_type_of(layer) for layer in derivation.config.layers]
    config["mamba_layers"] = [i for i, name in enumerate(types) if name.startswith("Mamba")]
    config["layer_types"] = types
    return {
        "name": planned.name,
        "path": str(checkpoint.path),
        "family": planned.family.name,
        "dtype": str(dtype).removeprefix("torch.") if stored in ELEMENT_TYPES else stored,
        "files": [{"name": file.name, "bytes": n} for file, n in checkpoint.files.items()],
        "config": config,
        "parameters": {
            "total": size.parameters,
            "active_per_token": size.active_parameters,
            "embeddings": size.embedding_parameters,
        },
        "memory": {
            "weights_bytes": sum(info.nbytes for info in checkpoint.tensors.values()),
            "mamba_state_bytes_per_sequence": size.state_bytes_per_sequence,
            "working_bytes_per_sequence": size.working_bytes_per_sequence,
            "log_bytes_per_sequence": size.log_bytes_per_sequence,
            "mla_bytes_per_token": size.latent_bytes_per_token,
            "kv_bytes_per_token": size.kv_bytes_per_token,
        },
        "derivation": [asdict(value) for value in derivation.values],
        "warnings": list(derivation.warnings),
    }
