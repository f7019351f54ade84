"""The network beside a reference that shares nothing with it.

Every layer gets what the reference's layers before it put out, so that one that is wrong cannot
hide in, or spoil, the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from blazr.bench.float64 import (
    float64_embedding,
    float64_layers,
    float64_logits,
    float64_run,
    float64_streams,
    in_float64,
)
from blazr.bench.reference.model import ReferenceModel
from blazr.bench.reference.open import open_reference
from blazr.bench.reference.refusal import NoReferenceError
from blazr.models.causal_lm import CausalLM
from blazr.models.checkpoint.base import Checkpoint, QuantizedInfo
from blazr.models.families.oxidizr import layer_type_of
from blazr.nn.layers.base import DecoderLayer
from blazr.nn.quant.weight import Weight
from blazr.pipelines.network import bars_on_terminals

# Of what float32 loses in the reference itself: norms and softmax are made in float32.
FACTOR = 10
_LEAST_LOSS = torch.finfo(torch.float32).eps
# Transformers makes norms, rotations and softmax in float32 even in float64 models.
THEIRS = 1e-3
# Classes of transformers that give logits, and which types of models each knows.
_AUTO_CLASSES = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}


@dataclass(frozen=True, slots=True)
class NetworkError:
    """How far what one layer of the network adds is from what the reference's adds.

    Args:
        index: Of the layer; -1 for the embedding.
        type: Of the layer.
        error: The relative error of the token with the least room.
        allowed: That token's allowance.
    """

    index: int
    type: str
    error: float
    allowed: float

    @property
    def is_ok(self) -> bool:
        """Whether float32 explains it."""
        return self.error <= self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What judged the network, and what it found.

    Args:
        name: Who it is, or why there is none.
        is_there: Whether there is one.
        layers: By layer, the embedding first; empty where only scores could be compared.
        logits: Of the scores; None where there is no witness.
    """

    name: str
    is_there: bool
    layers: tuple[NetworkError, ...] = ()
    logits: NetworkError | None = None

    @property
    def first_wrong_layer(self) -> int | None:
        """The first layer that is not the reference's, or None."""
        return next((each.index for each in self.layers if not each.is_ok), None)

    @property
    def agrees(self) -> bool:
        """Whether it found nothing wrong; without a witness nothing is found."""
        is_same = self.logits is None or self.logits.is_ok
        return is_same and self.first_wrong_layer is None


def ask_witness(module: CausalLM, checkpoint: Checkpoint, token_ids: Sequence[int]) -> Witness:
    """Compare a network with the reference for its files.

    Args:
        module: The network, on the CPU, with float32 for whatever is not packed.
        checkpoint: Where its files are; their contents are read anew.
        token_ids: What both are given.
    """
    files = sorted(checkpoint.files)
    try:
        exact, rough = (
            open_reference(files, checkpoint.config_path, dtype=dtype)
            for dtype in (torch.float64, torch.float32)
        )
        return _compare_layers(module, exact, rough, torch.tensor(token_ids))
    except NoReferenceError as error:
        missing = error.what
    theirs = transformers_logits(module, checkpoint, token_ids)
    if isinstance(theirs, str):
        return Witness(name=f"no independent reference for {missing}", is_there=False)
    *_, hidden = float64_layers(module, torch.tensor(token_ids))
    error_of = relative(float64_logits(module, hidden, plain=True), theirs)
    found = NetworkError(len(module.layers), "logits", float(error_of.max()), THEIRS)
    return Witness(
        name=f"transformers in float64, its scores alone: no reference for {missing}",
        is_there=True,
        logits=found,
    )


def _compare_layers(
    module: CausalLM, exact: ReferenceModel, rough: ReferenceModel, ids: Tensor
) -> Witness:
    if len(exact.layers) != len(module.layers):
        count = f"{len(exact.layers)} layers, and the network {len(module.layers)}"
        raise NoReferenceError(f"a model of which the reference has {count}")
    truth = exact.embed(ids)
    found = [
        _judge(
            -1,
            "Embedding",
            found=float64_embedding(module, ids, plain=True),
            truth=truth,
            single=rough.embed(ids),
        )
    ]
    types = [layer_type_of(layer) for layer in module.config.layers]
    x = embedded = truth
    run = float64_run(module, ids, embedded[None], plain=True)
    streams = float64_streams(module)
    if exact.split is not None and rough.split is not None and streams is not None:
        x = exact.split(embedded)
        ours = streams.split(embedded).detach()
        single = rough.split(embedded.float()).double()
        found.append(_judge(-1, "Streams", found=ours, truth=x, single=single))
    for index, layer in enumerate(module.layers):
        truth = exact.layers[index](x, embedded)
        single = rough.layers[index](x.float(), embedded.float()).double()
        with torch.enable_grad():
            whole = in_float64(layer, plain=True)
            assert isinstance(whole, DecoderLayer)
            ours = run(index, whole, x[None]).detach()[0]
        found.append(
            _judge(index, types[index], found=ours - x, truth=truth - x, single=single - x)
        )
        x = truth
    ours = float64_logits(module, x, plain=True)
    truth = exact.logits(x)
    single = rough.logits(x.float())
    logits = _judge(len(types), "logits", found=ours, truth=truth, single=single)
    return Witness(
        name=f"plain float64 formulas for {exact.kind}, from the file's bytes",
        is_there=True,
        layers=tuple(found),
        logits=logits,
    )


def _judge(index: int, kind: str, *, found: Tensor, truth: Tensor, single: Tensor) -> NetworkError:
    """The token with the least room: each may lose so many times what float32 loses for it."""
    error = relative(found, truth).flatten()
    loss = relative(single.double(), truth).flatten()
    usual = loss.nanmedian().clamp(min=_LEAST_LOSS)
    allowed = FACTOR * torch.where(loss.isfinite(), loss, usual).clamp(min=usual)
    worst = int((error / allowed).nan_to_num(nan=torch.inf).argmax())
    return NetworkError(index, kind, float(error[worst]), float(allowed[worst]))


def relative(found: Tensor, expected: Tensor) -> Tensor:
    """The relative error of every row; infinite where a number is not finite."""
    gap = (found.double() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-30)
    return gap.nan_to_num(nan=torch.inf, posinf=torch.inf)


def transformers_logits(
    module: CausalLM, checkpoint: Checkpoint, token_ids: Sequence[int]
) -> Tensor | str:
    """What the transformers library makes of the same files: (T, V), or why there is nothing."""
    if find_spec("transformers") is None:
        return "not installed"
    # of quantized files the library dequantizes to other numbers, if it can read them at all
    is_quantized = any(isinstance(info, QuantizedInfo) for info in checkpoint.tensors.values())
    is_packed = any(isinstance(part, Weight) for part in module.modules())
    if not checkpoint.path.is_dir() or is_quantized or is_packed:
        return "not applicable"
    import transformers
    from transformers.models.auto import modeling_auto

    kind = checkpoint.config.get("model_type")
    auto = next(
        (
            getattr(transformers, name)
            for name, types in _AUTO_CLASSES.items()
            if kind in getattr(modeling_auto, types)
        ),
        None,
    )
    if auto is None:
        return "not applicable"
    try:
        with bars_on_terminals():
            theirs = auto.from_pretrained(
                checkpoint.path,
                dtype=torch.float64,
                attn_implementation="eager",  # another lets PaliGemma's prompts see ahead
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
            )
        if any("experts" in name for name, _ in theirs.named_modules()):
            theirs.set_experts_implementation("eager")  # the others take no float64
        with torch.inference_mode():
            scores: Tensor = theirs(torch.tensor([token_ids]), use_cache=False).logits[0]
    except Exception as error:  # noqa: BLE001  (whatever it is, it says nothing of our network)
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:100]}"
    return scores
