"""Random adapters in PEFT's format, and the base model with one merged into its weights."""

from __future__ import annotations

import copy
import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

PREFIX = "base_model.model."


def projections(model: nn.Module, wanted: str = "") -> dict[str, nn.Linear]:
    """The projections of a network of transformers by name, those that a pattern is found in."""
    return {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and re.search(wanted, name)
    }


def save_adapter(
    directory: Path,
    model: nn.Module,
    names: list[str],
    *,
    rank: int = 4,
    seed: int = 0,
    config: Mapping[str, object] | None = None,
    tensors: Callable[[dict[str, Tensor]], None] = lambda _: None,
) -> nn.Module:
    """Write an adapter, and return a copy of the model with it merged.

    Args:
        directory: Where to.
        model: The base, as transformers has it, in float32.
        names: Of its projections and embeddings.
        rank: Of all changes that ``rank_pattern`` says nothing of.
        seed: Of the numbers.
        config: Keys of ``adapter_config.json`` beside or in place of the usual ones.
        tensors: Changes what is written.
    """
    rng = torch.Generator().manual_seed(seed)
    about = {
        "peft_type": "LORA",
        "base_model_name_or_path": "base",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in names}),
        **(config or {}),
    }
    merged = copy.deepcopy(model)
    written: dict[str, Tensor] = {}
    for name in names:
        part = merged.get_submodule(name)
        own_rank = _matching(about.get("rank_pattern"), name, rank)
        alpha = _matching(about.get("alpha_pattern"), name, about["lora_alpha"])
        scale = alpha / (math.sqrt(own_rank) if about.get("use_rslora") else own_rank)
        rows, columns = part.weight.shape
        if isinstance(part, nn.Embedding):
            rows, columns = columns, rows
        a = torch.randn(own_rank, columns, generator=rng) * 0.2
        b = torch.randn(rows, own_rank, generator=rng) * 0.2
        is_embedding = isinstance(part, nn.Embedding)
        kind = "lora_embedding_" if is_embedding else "lora_"
        end = "" if is_embedding else ".weight"
        written |= {f"{PREFIX}{name}.{kind}A{end}": a, f"{PREFIX}{name}.{kind}B{end}": b}
        change = scale * (b.double() @ a.double())
        whole = part.weight.double() + (change.T if is_embedding else change)
        if about.get("use_dora"):
            lengths = part.weight.norm(dim=1) * (1 + 0.2 * torch.rand(rows, generator=rng))
            written[f"{PREFIX}{name}.lora_magnitude_vector"] = lengths
            whole = whole * (lengths / whole.norm(dim=1))[:, None]
        part.weight = nn.Parameter(whole.float(), requires_grad=False)
    tensors(written)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(written, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(about))
    return merged


def _matching(values: object, name: str, default: int) -> int:
    for pattern, value in (values or {}).items():  # type: ignore[attr-defined]
        if re.match(rf"(.*\.)?({pattern})$", name):
            return value
    return default


def save_bad_adapters(directory: Path, model: nn.Module, other: nn.Module) -> dict[str, str]:
    """Write adapters that cannot be used, each in a directory of its own.

    Args:
        directory: Where to.
        model: The base.
        other: One of other sizes.

    Returns:
        By the name of the directory, a pattern of what is to be said of it.
    """
    names = [*projections(model, "self_attn")]
    save = functools.partial(save_adapter, model=model, names=names)

    def spoil(change: Callable[[Tensor], Tensor], part: str) -> Callable[[dict[str, Tensor]], None]:
        def tensors(written: dict[str, Tensor]) -> None:
            name = next(each for each in written if part in each)
            written[name] = change(written[name])

        return tensors

    save_adapter(directory / "of another model", other, [*projections(other, "self_attn")])
    save(directory / "rank 0", config={"r": 0})
    save(directory / "another rank", config={"r": 3})
    save(directory / "NaN", tensors=spoil(lambda each: each * math.nan, "lora_A"))
    save(directory / "infinity", tensors=spoil(lambda each: each / 0, "lora_B"))
    save(directory / "narrow", tensors=spoil(lambda each: each[:, :-1].clone(), "lora_A"))
    save(directory / "one of a pair", tensors=lambda written: written.pop(next(iter(written))))
    save(directory / "another kind", config={"peft_type": "IA3"})
    for missing in ("adapter_config.json", "adapter_model.safetensors"):
        save(directory / f"no {missing}")
        (directory / f"no {missing}" / missing).unlink()
    save(directory / "no JSON")
    (directory / "no JSON" / "adapter_config.json").write_text("{")
    save(directory / "pickle")
    weights = directory / "pickle" / "adapter_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    save(directory / "cut short")
    weights = directory / "cut short" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    (directory / "no.gguf").write_bytes(b"GGUF")
    return {
        "of another model": "not of this model",
        "rank 0": "rank is out of range",
        "another rank": "do not fit each other",
        "NaN": "NaN or infinity",
        "infinity": "NaN or infinity",
        "narrow": "not of this model",
        "one of a pair": "no pair of matrices",
        "another kind": "kind of adapter is not supported",
        "no adapter_config.json": "adapter_config.json is missing",
        "no adapter_model.safetensors": "adapter_model.safetensors is missing",
        "no JSON": "not valid JSON",
        "pickle": "is a pickle",
        "cut short": "bytes",
        "no.gguf": "short|cut|ends|bytes",
        "nothing there": "no such adapter|is no adapter",
    }
