"""Generation through transformers, for kinds of models that blazr has no network for.

Scheduling, sampling, grammars and streaming are the engine's own, the network and its caches the
library's. Sequences that decode are computed together, behind padding, where the caches are plain
keys and values; prompts run one by one and are not cut, no prefix is reused, and the memory of
caches has no bound but the number of sequences.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.core.errors import CheckpointError, ConfigError, EngineError, UnknownFamilyError
from blazr.engine.async_engine import AsyncEngine
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.pacing import Pacing
from blazr.engine.runner import StepResult, draw_tokens
from blazr.engine.sampling.sampler import Sampler
from blazr.engine.scheduler import Scheduler, StepPlan
from blazr.models.checkpoint.base import ELEMENT_TYPES, most_used_type
from blazr.models.checkpoint.open import find_model, open_checkpoint
from blazr.nn.device import release_threads
from blazr.nn.operands.step import GRID
from blazr.pipelines.fallback_image_encoder import TYPE_IDS
from blazr.pipelines.kinds import check_language_model, check_language_model_at
from blazr.pipelines.network import load_without_code, network_from
from blazr.pipelines.padded import PaddedBatch, cache_name, can_join, join

if TYPE_CHECKING:
    from blazr.core.gguf_header import Value
    from blazr.engine.config import EngineConfig
    from blazr.engine.sequence import Sequence as RunningSequence
    from blazr.models.checkpoint.base import Checkpoint
    from blazr.nn.device import Device

MAX_RUNNING = 8
DEFAULT_CONTEXT = 2048
_LIMITS = "runs through transformers: no prefix is reused, and its caches' memory is not known."
_DELTAS = "rope_deltas"
# Relative difference between a cached step and a whole pass that rounding can explain.
_AGREES = 0.02

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackModel:
    """A network of transformers, ready to run.

    Args:
        module: A causal language model of that library, in evaluation mode.
        reads_images: Whether it takes images.
        family: Its ``model_type``.
        directory: Where it lies.
        name: What to call it.
        metadata: The contents of config.json.
        vocab_size: Rows of its embedding.
        max_seq_len: Its context, tokens.
    """

    module: torch.nn.Module
    reads_images: bool
    family: str
    directory: Path
    name: str
    metadata: Mapping[str, object]
    vocab_size: int
    max_seq_len: int

    # as a LoadedModel says it: transformers has a context by its config, and caches of its own
    gguf: ClassVar[Mapping[str, Value]] = {}
    is_unbounded: ClassVar[bool] = False
    is_recurrent: ClassVar[bool] = False

    @property
    def num_parameters(self) -> int:
        """Weights in it."""
        return sum(each.numel() for each in self.module.parameters())


def load_fallback(
    model: str,
    cause: UnknownFamilyError,
    *,
    device: Device,
    dtype: str = "auto",
    revision: str | None = None,
) -> FallbackModel:
    """Load a model through transformers, from safetensors files alone.

    Code that lies beside the weights is never run, and no pickle there is opened.

    Args:
        model: A directory or a Hub id.
        cause: Why blazr does not run it by itself; raised again where transformers cannot either.
        device: Where to.
        dtype: As `blazr.models.loading.load.load` takes it.
        revision: Branch, tag or commit of a Hub id.

    Raises:
        UnknownFamilyError: transformers is not installed, or does not know the model.
        CheckpointError: The files do not hold what the network needs, or it gives no text.
    """
    files = find_model(model, revision=revision)
    checkpoint = open_checkpoint(files.path)
    check_language_model(checkpoint.config)
    _import_transformers(cause)
    network: Any
    try:
        network = network_from(checkpoint, _auto_name(checkpoint), dtype=dtype)
    except CheckpointError:
        raise
    except Exception as error:
        raise _not_loaded(cause, error) from error
    if network.config.is_encoder_decoder:
        raise _not_loaded(cause, TypeError("it has an encoder and a decoder"))
    config = network.config.get_text_config()
    _log.warning(
        "%s (%s) runs through transformers: without prefix reuse, or kernels of ours",
        files.name,
        network.config.model_type,
    )
    return FallbackModel(
        module=network.to(device.torch_device),
        reads_images="image" in network.input_modalities,
        family=network.config.model_type,
        directory=checkpoint.directory,
        name=files.name,
        metadata=network.config.to_dict(),
        vocab_size=network.get_output_embeddings().weight.shape[0],
        max_seq_len=_context(config),
    )


def _import_transformers(cause: UnknownFamilyError) -> Any:
    """The transformers module; the cause is raised again where it is not installed."""
    if find_spec("transformers") is None:
        raise UnknownFamilyError(
            cause.message,
            found=cause.found,
            expected=cause.expected,
            hint="pip install 'blazr[transformers]': what transformers knows runs through it",
        )
    import transformers

    return transformers


def _auto_name(checkpoint: Checkpoint) -> str:
    """The class of transformers that knows a model, by its config: with images if there is one."""
    from transformers.models.auto import modeling_auto

    name = checkpoint.config.get("model_type")
    reads_images = name in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return "AutoModelForImageTextToText" if reads_images else "AutoModelForCausalLM"


def _not_loaded(cause: UnknownFamilyError, error: Exception) -> UnknownFamilyError:
    return UnknownFamilyError(
        f"{cause.message[:-1]}, and transformers cannot load it either.",
        found=f"{cause.found}; {type(error).__name__}: {str(error)[:200]}",
        expected=f"one of {cause.expected}, or what transformers knows (code is never run)",
    )


def _context(config: Any) -> int:
    """The tokens that a config says a model was made for, under any of the usual names."""
    names = (
        "max_position_embeddings",
        "n_positions",
        "seq_length",
        "max_seq_len",
        "context_length",
    )
    found = (getattr(config, name, None) for name in names)
    return next((each for each in found if isinstance(each, int) and each > 0), DEFAULT_CONTEXT)


def describe_fallback(
    model: str, cause: UnknownFamilyError, *, revision: str | None = None
) -> dict[str, object]:
    """Describe such a model from its headers and its config, as `describe` does others.

    Args:
        model: A directory or a Hub id.
        cause: Why blazr does not run it by itself.
        revision: Branch, tag or commit of a Hub id.

    Raises:
        UnknownFamilyError: transformers is not installed, or does not know the model.
        CheckpointError: It gives no text.
    """
    files = find_model(model, revision=revision)
    checkpoint = open_checkpoint(files.path)
    check_language_model(checkpoint.config)
    transformers = _import_transformers(cause)
    try:
        config: Any = load_without_code(transformers.AutoConfig, checkpoint.directory)
        auto = getattr(transformers, _auto_name(checkpoint))
        with torch.device("meta"):
            network = auto.from_config(config, trust_remote_code=False)
    except Exception as error:
        raise _not_loaded(cause, error) from error
    head = network.get_output_embeddings().weight
    text = config.get_text_config()
    sizes = {"vocab_size": head.shape[0], "hidden_size": head.shape[1]}
    layers = getattr(text, "num_hidden_layers", None)
    sizes |= {} if layers is None else {"num_layers": layers}
    stored = most_used_type((info.dtype, info.nbytes) for info in checkpoint.tensors.values())
    return {
        "name": files.name,
        "path": str(checkpoint.path),
        "family": config.model_type,
        "dtype": ELEMENT_TYPES[stored][1] if stored in ELEMENT_TYPES else stored,
        "files": [{"name": file.name, "bytes": n} for file, n in checkpoint.files.items()],
        "config": {**sizes, "max_seq_len": _context(text)},
        "parameters": {"total": sum(each.numel() for each in network.parameters())},
        "memory": {"weights_bytes": sum(info.nbytes for info in checkpoint.tensors.values())},
        "derivation": [],
        "warnings": [f"{config.model_type} {_LIMITS}"],
    }


@contextmanager
def own_networks_only(purpose: str, model: str) -> Iterator[None]:
    """Refuse, by name, models that run through transformers.

    Args:
        purpose: What is only done for networks of blazr's own, as ``"blazr convert"``.
        model: Of which model.

    Raises:
        CheckpointError: The model is no language model.
        UnknownFamilyError: It is one that only transformers might know.
    """
    try:
        yield
    except ConfigError as error:
        check_language_model_at(find_model(model).path)
        if not isinstance(error, UnknownFamilyError):
            raise
        raise UnknownFamilyError(
            f"{purpose} works on networks of blazr's own, not on what runs through transformers.",
            found=f"model_type {error.found}",
            expected=f"one of {error.expected}",
            hint="blazr generate, chat, serve, bench and info take it, if transformers knows it",
        ) from None


def build_fallback_engine(
    model: FallbackModel, *, config: EngineConfig, banned_ids: Sequence[int] = ()
) -> AsyncEngine:
    """The engine over such a network.

    Args:
        model: Weights in place, on the device.
        config: How many sequences run and wait.
        banned_ids: Ids that are never generated.
    """
    if config.spec:
        _log.warning("through transformers nothing is computed on speculation: --spec does nothing")
    runner = TransformersRunner(model.module, model.vocab_size, banned_ids)
    running = min(config.max_running, MAX_RUNNING)
    max_seq_len = min(model.max_seq_len, config.max_seq_len or model.max_seq_len)
    shape = CacheShape(
        grid=GRID,
        num_superpages=0,
        pages_per_superpage=0,
        states_per_superpage=0,
        max_running=running,
        max_blocks=0,
    )

    def build() -> Engine:
        memory = CacheManager(shape, prefix_cache=False)
        return Engine(
            Scheduler(memory, token_budget=config.token_budget, cuts_prompts=False),
            runner.execute,
            vocab_size=model.vocab_size,
            max_seq_len=max_seq_len,
        )

    release_threads()  # of this thread; the engine's now computes
    return AsyncEngine(
        build,
        logits=runner.logits,
        replace=runner.replace,
        pacing=Pacing(share=config.prefill_share, token_budget=config.token_budget),
        max_unfinished=running + config.max_waiting,
    )


class TransformersRunner:
    """Executes plans with a network of transformers.

    Args:
        network: A causal language model of that library.
        vocab_size: Rows of its embedding.
        banned_ids: Ids that are never drawn.
    """

    def __init__(
        self, network: torch.nn.Module, vocab_size: int, banned_ids: Sequence[int] = ()
    ) -> None:
        self.network: Any = network
        self._device = next(network.parameters()).device
        self._sampler = Sampler(vocab_size, banned_ids, self._device)
        self._pasts: dict[int, Any] = {}
        # By slot, how far what follows images stands from its place, where the network keeps that.
        self._deltas: dict[int, Any] = {}
        self._dtype = next(network.parameters()).dtype
        self._takes = signature(network.forward).parameters
        self._takes_positions = "position_ids" in self._takes
        self._cache_name = cache_name(network)
        self._resumes = self._can_resume()
        self._batch: PaddedBatch | None = None
        self._batches = self._resumes and self._can_batch()
        if not self._resumes:
            _log.warning(
                "its cache does not agree with a whole pass: every step computes all again"
            )
        elif not self._batches:
            _log.warning("its caches cannot be joined: sequences are computed one after the other")

    def replace(self, network: torch.nn.Module) -> None:
        """Go on with another network of the same config."""
        self.network = network
        self._pasts.clear()
        self._deltas.clear()
        self._batch = None

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a step: what decodes together, then one sequence after the other."""
        for slot in plan.fresh_run_slots:
            self._split_batch(slot)
            self._pasts.pop(slot, None)
            self._deltas.pop(slot, None)
        result = StepResult()
        parts = []
        together = self._compute_together(plan) if self._batches else {}
        for index, (sequence, length, samples, _) in enumerate(plan.rows):
            if index in together:
                parts.append(together[index])
                continue
            out = self._compute_one(sequence, length)
            how = sequence.request.pooling
            if how is not None:
                hidden = out.hidden_states[-1][0, -length:]
                states = hidden if how == "mean" else hidden[-1:]
                result.pooled[index] = states.sum(0, dtype=torch.float64).cpu().numpy()
            elif sequence.asks_of_prompt:
                parts.append(out.logits[0, -length:])
            elif samples:
                parts.append(out.logits[0, -1:])
        for fork in plan.forks:
            assert fork.source.run_slot is not None
            self._split_batch(fork.source.run_slot)
            self._pasts[fork.run_slot] = copy.deepcopy(self._pasts.get(fork.source.run_slot))
            self._deltas[fork.run_slot] = self._deltas.get(fork.source.run_slot)
        if parts:
            draw_tokens(self._sampler, plan, torch.cat(parts).float(), result)
        return result

    @torch.inference_mode()
    def logits(
        self,
        token_ids: Sequence[int],
        cuts: Sequence[int] = (),
        network: torch.nn.Module | None = None,
    ) -> Tensor:
        """Scores at every position of one sequence, (T, V) float32; ``cuts`` change nothing."""
        del cuts
        return self._forward(token_ids, None, network=network).logits[0].float()

    def _compute_one(self, sequence: RunningSequence, length: int) -> Any:
        start = sequence.computed
        slot = sequence.run_slot
        assert slot is not None
        self._split_batch(slot)
        past = self._pasts.get(slot) if start and self._resumes else None
        first = start if past is not None else 0
        ids = sequence.tokens[first : start + length]
        wants_hidden = sequence.request.pooling is not None
        inputs: dict[str, Tensor | None] = {}
        if past is None:
            inputs |= self._inputs(sequence.request.inputs, len(ids))
        inner: Any = getattr(self.network, "model", self.network)
        keeps_deltas = _DELTAS in vars(inner)
        if keeps_deltas:
            inner.rope_deltas = self._deltas.get(slot)
            if inner.rope_deltas is not None:  # else it counts from the beginning of the mask
                inputs["attention_mask"] = None
        out = self._forward(
            ids, past, wants_hidden=wants_hidden, keeps_cache=self._resumes, inputs=inputs
        )
        if keeps_deltas:
            self._deltas[slot] = inner.rope_deltas
        if self._resumes:
            self._pasts[slot] = self._cache_of(out)
        return out

    def _inputs(self, given: Mapping[str, Tensor] | None, length: int) -> dict[str, Tensor]:
        """What the network takes beside so many tokens, where it is; those of a reply are text."""
        found = {}
        for name, value in (given or {}).items():
            if name in self._takes:
                dtype = self._dtype if value.is_floating_point() else value.dtype
                found[name] = value.to(self._device, dtype)
            if name in found and name.endswith(TYPE_IDS):
                found[name] = F.pad(found[name], (0, length - value.shape[1]))
        return found

    def _compute_together(self, plan: StepPlan) -> dict[int, Tensor]:
        """Scores (1, V) of the rows that were computed together, by their index in the plan."""
        rows = {
            row.sequence.run_slot: index
            for index, row in enumerate(plan.rows)
            if row.num_tokens == 1 and row.samples and row.sequence.computed
            if self._deltas.get(row.sequence.run_slot or 0) is None
            if row.sequence.request.pooling is None and not row.sequence.asks_of_prompt
        }
        held = {*self._pasts, *(self._batch.slots if self._batch else ())}
        slots = tuple(slot for slot in rows if slot is not None and slot in held)
        if len(slots) < 2:
            return {}
        if self._batch is None or set(self._batch.slots) != set(slots):
            self._split_batch()
            self._batch = join({slot: self._pasts.pop(slot) for slot in slots})
        of_slot = {slot: plan.rows[rows[slot]].sequence for slot in slots}
        batch = self._batch
        tokens = [of_slot[slot].tokens[of_slot[slot].computed] for slot in batch.slots]
        logits = self._decode_batch(batch, tokens)
        return {rows[slot]: logits[row] for row, slot in enumerate(batch.slots)}

    def _decode_batch(self, batch: PaddedBatch, tokens: Sequence[int]) -> Tensor:
        """Scores (B, 1, V) of one more token of each sequence."""
        inputs: dict[str, Any] = batch.inputs(tokens, self._device)
        if not self._takes_positions:  # it counts what the mask lets through
            del inputs["position_ids"]
        inputs[self._cache_name] = batch.cache
        out = self._call(use_cache=True, **inputs)
        batch.cache = self._cache_of(out)
        logits: Tensor = out.logits
        return logits

    def _split_batch(self, slot: int | None = None) -> None:
        """Give each sequence its own cache again, if they are joined; where a slot's own is."""
        if self._batch is not None and (slot is None or slot in self._batch.slots):
            self._pasts |= self._batch.split()
            self._batch = None

    @torch.inference_mode()
    def _can_batch(self) -> bool:
        """Whether sequences of two lengths get the scores together that they get alone."""
        prompts = ([1, 2, 3, 1, 2, 3, 1], [2, 1])
        expected = []
        pasts = {}
        try:
            for slot, prompt in enumerate(prompts):
                pasts[slot] = self._cache_of(self._forward(prompt, None, keeps_cache=True))
                if not can_join(pasts[slot]):
                    return False
                expected.append(self._forward([*prompt, 3, 2], None).logits[0, -2:].float())
            batch = join(pasts)
            found = torch.cat([self._decode_batch(batch, [each, each]) for each in (3, 2)], 1)
        except EngineError:
            return False
        whole = torch.stack(expected)
        return bool((found.float() - whole).abs().max() / whole.abs().max() < _AGREES)

    def _forward(
        self,
        token_ids: Sequence[int],
        past: Any,
        *,
        wants_hidden: bool = False,
        keeps_cache: bool = False,
        network: torch.nn.Module | None = None,
        inputs: Mapping[str, Tensor | None] | None = None,
    ) -> Any:
        """Run the network on tokens that follow a cache.

        Args:
            token_ids: Tokens.
            past: A cache, or None.
            wants_hidden: Whether to give the hidden states of all layers, too.
            keeps_cache: Whether to give the cache behind these tokens, too.
            network: Another one of the same config, in place of the present one.
            inputs: What it takes besides.

        Raises:
            EngineError: The library fails.
        """
        known = 0 if past is None else past.get_seq_length()
        ids = torch.tensor(np.array(token_ids, np.int64), device=self._device)[None]
        mask = torch.ones(1, known + ids.shape[1], dtype=torch.int64, device=self._device)
        kwargs: dict[str, Any] = {"attention_mask": mask, **(inputs or {})}
        if past is not None:
            kwargs[self._cache_name] = past
        if wants_hidden:
            kwargs["output_hidden_states"] = True
        return self._call(input_ids=ids, use_cache=keeps_cache, network=network, **kwargs)

    def _cache_of(self, out: Any) -> Any:
        return getattr(out, self._cache_name, None)

    def _call(self, *, network: torch.nn.Module | None = None, **kwargs: Any) -> Any:
        try:
            return (network or self.network)(return_dict=True, **kwargs)
        except Exception as error:  # whatever that library raises
            raise EngineError(
                "transformers failed to run the model.",
                found=f"{type(error).__name__}: {str(error)[:200]}",
                hint="try another version of transformers: it computes models of this type",
            ) from error

    @torch.inference_mode()
    def _can_resume(self) -> bool:
        """Whether a few tokens computed from the cache get the scores of a whole pass."""
        import transformers

        ids = [1, 2, 3, 1, 2, 3]
        whole = self._forward(ids, None).logits[0].float()
        past = None
        scores = []
        for piece in ([1, 2, 3, 1], [2], [3]):
            try:
                out = self._forward(piece, past, keeps_cache=True)
            except EngineError:
                return False
            past = self._cache_of(out)
            if not isinstance(past, transformers.Cache):
                return False
            scores.append(out.logits[0].float())
        error = (torch.cat(scores) - whole).abs().max() / whole.abs().max()
        return bool(error < _AGREES)
