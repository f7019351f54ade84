"""PEFT's directories: ``adapter_config.json`` and ``adapter_model.safetensors``.

Source: Hugging Face PEFT's ``LoraConfig`` and checkpoint format.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.adapters.file import (
    MERGE_HINT,
    AdapterFile,
    LowRankChange,
    WholeChange,
    check_scaled,
    hash_of,
    pair_of,
    read_numbers,
)
from blazr.models.checkpoint.base import read_json
from blazr.models.checkpoint.safetensors import read_header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MLX = "adapters.safetensors"
_PICKLES = ("adapter_model.bin", "adapter_model.pt")
_PREFIX = "base_model.model."
# What a change is made of; where several adapters were in memory, the name of this one follows.
_PART = re.compile(
    r"(?P<path>.+)\.(?P<part>lora_(?:embedding_)?[AB]|lora_magnitude_vector)"
    r"(?:\.(?!weight$|bias$)[^.]+)?(?:\.(?P<end>weight|bias))?"
)
# The rows of tokens that were trained.
_TOKENS = re.compile(r"(?P<path>.+)\.token_adapter\.trainable_tokens_delta(?:\.[^.]+)?")
_INNER = ".base_layer"  # of a module that is wrapped
# A name of a module, or a regular expression of no power to take long: nothing repeated within what
# is repeated, and little side by side.
_NESTED = re.compile(r"[+*}?]\s*\)[*+{]|\)[*+{].*\)[*+{]")
_MAX_PATTERN = 300
_MAX_REPEATS = 4

_MERGE = "merge it with PEFT's merge_and_unload()"
_TRAIN_PLAIN = "train it as an ordinary LoRA"
# Kinds of adapters that are no change of weights, so that PEFT cannot merge them.
_NOT_MERGED = (
    *("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT", "CARTRIDGE"),
    *("ADAPTION_PROMPT", "XLORA", "POLY"),
)
# Keys that would change the result, the values that do not, and what to do.
_REFUSED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("lora_bias", (False,), "train it without lora_bias"),
    ("layer_replication", ((), []), "save the model whose layers are repeated, merged"),
    ("alora_invocation_tokens", ((), []), _TRAIN_PLAIN),
    ("use_qalora", (False,), _TRAIN_PLAIN),
    ("use_bdlora", (False,), _TRAIN_PLAIN),
    ("arrow_config", (), "load one of its adapters by itself"),
    ("kasa_config", (), _MERGE),
    ("monteclora_config", (), _MERGE),
    ("velora_config", (), _MERGE),
)
# Ways to begin the training that change the base model's weights, too.
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


# From a module's or a parameter's name to the rank of its change, and what that is multiplied with.
_ScaleOf = Callable[[str], tuple[int, float]]


def read_peft(directory: Path) -> AdapterFile:
    """Read an adapter.

    Args:
        directory: Holds both files.

    Raises:
        CheckpointError: A file is missing, is no safetensors file, or does not hold what the other
            says.
        ConfigError: The configuration is wrong, or of a kind of adapter that is not supported.
    """
    for name in (CONFIG, WEIGHTS):
        if not (directory / name).exists():
            raise _missing(directory, name)
    config = read_json(directory / CONFIG)
    _check_config(directory / CONFIG, config)
    scales = _read_scales(directory / CONFIG, config)
    path = directory / WEIGHTS
    parts: dict[str, dict[str, Tensor]] = {}
    whole: list[WholeChange] = []
    for name, numbers in read_numbers(path, read_header(path).tensors):
        match = _PART.fullmatch(name)
        if match is None:
            tokens = _TOKENS.fullmatch(name)
            whole.append(
                _rows(path, config, name=tokens["path"], numbers=numbers)
                if tokens is not None
                else _whole(path, name, numbers)
            )
            continue
        if match["end"] == "bias":
            raise _unsupported(path, name, "train it without lora_bias")
        module = match["path"].removeprefix(_PREFIX)
        own = parts.setdefault(module, {})
        if match["part"] in own:
            raise CheckpointError(
                f"{path}: tensor {name[:100]!r} is there by another name, too.",
                found=f"more than one {match['part']} of {module[:100]}",
                expected="one adapter in the file, as PEFT's save_pretrained() writes it",
            )
        own[match["part"]] = numbers
    if not parts and not whole:
        raise CheckpointError(f"{path} holds no tensors.", expected="lora_A and lora_B of modules")
    indices = config.get("trainable_token_indices")
    if indices and all(each.rows is None for each in whole):
        raise _wrong_tokens(path, "trainable_token_indices", indices)
    changes = [
        _low_rank(path, config, scales, module=module, parts=each) for module, each in parts.items()
    ]
    content = hash_of((directory / CONFIG).read_bytes(), path.read_bytes())
    return AdapterFile(
        path=directory,
        base=str(config.get("base_model_name_or_path") or "")[:300],
        fingerprint=content,
        low_rank=tuple(changes),
        whole=tuple(whole),
        release=_release(config),
    )


def _release(config: Mapping[str, object]) -> tuple[int, int]:
    """Which PEFT wrote a configuration; before 0.18 it did not say so."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", str(config.get("peft_version")), re.ASCII)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def _missing(directory: Path, name: str) -> CheckpointError:
    if name == WEIGHTS and (directory / _MLX).exists():
        return CheckpointError(
            f"{directory} is an adapter of mlx-lm, which has another format.",
            found=_MLX,
            expected=f"{WEIGHTS}, as PEFT's save_pretrained() writes it",
            hint="merge it with mlx_lm.fuse, and serve what that saves",
        )
    found = next((each for each in _PICKLES if (directory / each).exists()), None)
    if name == WEIGHTS and found is not None:
        return CheckpointError(
            f"{directory}: {found} is a pickle, which runs code as it is opened.",
            found=found,
            expected=WEIGHTS,
            hint="save the adapter again with PEFT's save_pretrained(), whose default this is",
        )
    if not directory.is_dir():
        return CheckpointError(
            f"{str(directory)[:300]} is no adapter.",
            found="a file" if directory.exists() else "nothing there",
            expected=f"a directory with {CONFIG} and {WEIGHTS}, or a .gguf file",
        )
    return CheckpointError(
        f"{directory} is no adapter: {name} is missing.",
        found=", ".join(sorted(each.name for each in directory.iterdir())[:8])[:200] or "nothing",
        expected=f"{CONFIG} and {WEIGHTS}, as PEFT's save_pretrained() writes them",
    )


def _check_config(path: Path, config: Mapping[str, object]) -> None:
    """Refuse adapters that are not supported.

    Raises:
        ConfigError: The kind, or a setting of it, is not supported.
    """
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ConfigError(
            f"{path}: this kind of adapter is not supported.",
            found=f"peft_type {str(kind)[:50]!r}",
            expected="'LORA'",
            hint=_TRAIN_PLAIN if kind in _NOT_MERGED else MERGE_HINT,
        )
    for key, harmless, instead in _REFUSED:
        value = config.get(key)
        if value is not None and value not in harmless:
            raise ConfigError(
                f"{path}: adapters with {key} are not supported.",
                found=f"{key} = {str(value)[:60]}",
                hint=instead,
            )
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGED_BASE):
        raise ConfigError(
            f"{path}: the adapter belongs to base weights that its training has changed.",
            found=f"init_lora_weights = {begun[:50]!r}",
            expected="an adapter of the base model's own weights",
            hint="save it with PEFT's path_initial_model_for_weight_conversion",
        )
    _flag(path, config, "use_dora")


def _read_scales(path: Path, config: Mapping[str, object]) -> _ScaleOf:
    """The rank of each module's change, and its factor: alpha over the rank, or over its root.

    Raises:
        ConfigError: A number or a pattern is wrong.
    """
    rank = _number(path, config, "r", 8)
    if rank < 1 or rank != int(rank):
        raise ConfigError(
            f"{path}: the rank is out of range.", found=f"r = {rank:g}", expected="1 or more"
        )
    alpha = _number(path, config, "lora_alpha", 8)
    ranks = _pattern(path, config, "rank_pattern", 1)
    alphas = _pattern(path, config, "alpha_pattern", None)
    is_rank_stabilised = _flag(path, config, "use_rslora")

    def scales(module: str) -> tuple[int, float]:
        own = int(_matching(ranks, module, rank))
        divisor = math.sqrt(own) if is_rank_stabilised else own
        return own, _matching(alphas, module, alpha) / divisor

    return scales


def _number(path: Path, config: Mapping[str, object], key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) < sys.float_info.max  # an int may be beyond floats
    ):
        raise ConfigError(
            f"{path}: {key} is wrong.", found=repr(value)[:60], expected="a finite number"
        )
    return value


def _flag(path: Path, config: Mapping[str, object], key: str) -> bool:
    value = config.get(key) or False
    if not isinstance(value, bool):
        raise ConfigError(
            f"{path}: {key} is wrong.", found=repr(value)[:60], expected="true or false"
        )
    return value


def _pattern(
    path: Path, config: Mapping[str, object], key: str, least: float | None
) -> Mapping[str, float]:
    """Values by patterns of modules' names."""
    given = config.get(key) or {}
    if not isinstance(given, dict):
        raise ConfigError(
            f"{path}: {key} is wrong.", found=type(given).__name__, expected="an object"
        )
    for name in given:
        value = _number(path, given, name, 0)
        is_wrong = given[name] is None or (least is not None and value < least)
        # Python warns of sets in sets, which it may understand otherwise one day
        is_wrong |= len(name) > _MAX_PATTERN or bool(_NESTED.search(name)) or "[[" in name
        is_wrong |= sum(map(name.count, "*+{")) > _MAX_REPEATS
        try:
            re.compile("" if is_wrong else name)
        except re.error:
            is_wrong = True
        if is_wrong:
            raise ConfigError(
                f"{path}: an entry of {key} is wrong.",
                found=f"{name[:80]!r}: {given[name]!r}",
                expected="names of modules or simple regular expressions, and numbers"
                + ("" if least is None else f" from {least:g} on"),
            )
    return given


def _matching(values: Mapping[str, float], module: str, default: float) -> float:
    """The value whose pattern a module's name ends with, as PEFT looks it up."""
    for name, value in values.items():
        if re.match(rf"(.*\.)?({name})$", module):
            return value
    return default


def _whole(path: Path, name: str, numbers: Tensor) -> WholeChange:
    """A tensor that was saved as it is: of `modules_to_save`, a bias, or a wrapped layer's own."""
    if "lora_" in name or "token_adapter" in name:
        raise _unsupported(path, name, _MERGE)
    own = name.removeprefix(_PREFIX)
    own = re.sub(r"\.(?:base_layer|modules_to_save(?:\.[^.]+)?)(?=\.)", "", own)
    return WholeChange(name=own, numbers=numbers)


def _rows(path: Path, config: Mapping[str, object], *, name: str, numbers: Tensor) -> WholeChange:
    """The rows of an embedding or a head that ``trainable_token_indices`` names, in its order.

    Args:
        path: The file, for messages.
        config: Says which rows, of the embedding or by modules' names.
        name: The module's.
        numbers: The rows; not their difference, whatever PEFT calls them.
    """
    own = name.removeprefix(_PREFIX).replace(_INNER, "")
    given = config.get("trainable_token_indices")
    if isinstance(given, dict):
        given = next((rows for key, rows in given.items() if own.endswith(key)), None)
    is_list = isinstance(given, list) and all(
        type(each) is int and 0 <= each < 2**31 for each in given
    )
    rows = tuple(given) if isinstance(given, list) and is_list else ()
    if not rows or len(set(rows)) < len(rows) or numbers.dim() != 2 or len(numbers) != len(rows):
        raise _wrong_tokens(path, f"{own} of {list(numbers.shape)}", given)
    return WholeChange(name=f"{own}.weight", numbers=numbers, rows=rows)


def _wrong_tokens(path: Path, what: str, indices: object) -> CheckpointError:
    return CheckpointError(
        f"{path}: the rows of tokens are not those that {CONFIG} names.",
        found=f"{what[:150]}, trainable_token_indices = {str(indices)[:60]}",
        expected="trainable_tokens_delta with a row for each token of the list, each token once",
    )


def _unsupported(path: Path, name: str, hint: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: tensor {name[:100]!r} is of a kind of adapter that is not supported.",
        expected="lora_A, lora_B, lora_embedding_A and _B, lora_magnitude_vector, whole modules",
        hint=hint,
    )


def _low_rank(
    path: Path,
    config: Mapping[str, object],
    scales: _ScaleOf,
    *,
    module: str,
    parts: Mapping[str, Tensor],
) -> LowRankChange:
    is_embedding = "lora_embedding_A" in parts
    kind = "lora_embedding_" if is_embedding else "lora_"
    a, b = pair_of(path, module, parts, (f"{kind}A", f"{kind}B"))
    own = module.replace(_INNER, "")
    targets = config.get("target_parameters")
    named = targets if isinstance(targets, list) else []
    leaves = [str(each).rpartition(".")[2] for each in named if _is_of(str(each), own)]
    # PEFT looks parameters up by their own names, and modules by theirs
    keys = {f"{own}.weight": own} | {each: each for each in (f"{own}.{leaf}" for leaf in leaves)}
    is_pair = a.dim() == b.dim() == 2 and 0 < a.shape[0] == b.shape[1]
    meanings: list[LowRankChange] = []
    for name, key in keys.items():
        rank, scale = scales(key)
        # experts in one tensor, which target_parameters name, have that rank each
        if is_pair and (a.shape[0] == rank or (key == name and not a.shape[0] % rank)):
            check_scaled(path, module, b, scale)
            meanings.append(
                LowRankChange(
                    name=name,
                    a=a,
                    b=b,
                    scale=scale,
                    rank=rank,
                    magnitude=parts.get("lora_magnitude_vector"),
                    is_flipped=is_embedding,  # PEFT ignores fan_in_fan_out of linear layers
                )
            )
    if not meanings:
        ranks = ", ".join(
            f"{rank}" for rank in dict.fromkeys(scales(key)[0] for key in keys.values())
        )
        raise CheckpointError(
            f"{path}: the matrices of {module[:100]} do not fit each other.",
            found=f"A {list(a.shape)}, B {list(b.shape)}, rank {ranks} in {CONFIG}",
            expected="A (rank, in) and B (out, rank)",
        )
    is_dora = config.get("use_dora") is True
    if is_dora != ("lora_magnitude_vector" in parts):
        raise CheckpointError(
            f"{path}: {module[:100]} has {'no ' if is_dora else ''}lengths of rows.",
            found=f"use_dora = {is_dora} in {CONFIG}, and " + ", ".join(sorted(parts)),
            expected="lora_magnitude_vector if and only if use_dora is true",
        )
    return replace(meanings[0], others=tuple(meanings[1:]))


def _is_of(parameter: str, module: str) -> bool:
    """Whether a name of ``target_parameters`` is one of a module's."""
    owner = parameter.rpartition(".")[0]
    return not owner or f".{module}".endswith(f".{owner}")
