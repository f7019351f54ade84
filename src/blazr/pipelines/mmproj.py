"""The vision encoder of a GGUF model: ``mmproj`` files, as llama.cpp's converter writes them.

They hold the tower and the projector under names of their own, and what is to be known of the
images' processor. The library's networks get these tensors; the text stays blazr's.

Source: https://github.com/ggml-org/llama.cpp, tools/mtmd and gguf-py/gguf/constants.py
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from math import isfinite, isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from blazr.core.errors import BlazrError, CheckpointError
from blazr.core.gguf_header import ARCHITECTURE_KEY
from blazr.core.table import Table
from blazr.models.checkpoint.gguf import read_header
from blazr.models.checkpoint.open import find_mmproj, find_model
from blazr.pipelines.image_encoder import ImageEncoder
from blazr.pipelines.network import decoded
from blazr.pipelines.tower_encoder import EncoderParts, line_feeds

if TYPE_CHECKING:
    from blazr.models.causal_lm import CausalLM
    from blazr.models.checkpoint.base import Checkpoint
    from blazr.text.tokenizer import Tokenizer

_HINT = "take the mmproj file that was made of the same model"
_MAX_SIDE = 2**14  # pixels
_MAX_PATCHES = 2**13  # of an image, each of which attends to all
_MAX_SCALE = 64
_MAX_PIXTRAL = 2**12  # pixels, of which it makes a table
_MIN_DEVIATION = 1e-3  # of colours from 0 to 1
_log = logging.getLogger(__name__)


def _mismatch(message: str, found: str, expected: str = "") -> CheckpointError:
    """The error for a file that does not fit the language model."""
    return CheckpointError(message, found=found, expected=expected, hint=_HINT)


class TowerSpec:
    """The sizes and options of a file's vision tower.

    Sizes are those of its tensors, which exist, and not those of its metadata, which may be absurd.

    Args:
        checkpoint: The file.

    Attributes:
        hidden_size: Of the tower.
        intermediate_size: Of its feed-forward layers.
        num_layers: Of the tower.
        projection_dim: Numbers of a vector for the language model.
        deep_layers: Those whose vectors layers of the language model add.
        patch_size: Pixels of a side of a patch.

    Raises:
        CheckpointError: A tensor or a value is missing, or has another form.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        patches = self._shape("v.patch_embd.weight", 4)
        self.hidden_size, self.patch_size = patches[0], patches[-1]
        both = {*self._shape("v.blk.0.ffn_up.weight", 2)}
        self.intermediate_size = next(iter(both - {self.hidden_size}), self.hidden_size)
        layers = _layers_of(_LAYER, checkpoint.tensors)
        self.num_layers = len(layers)
        self.deep_layers = _layers_of(_DEEP, checkpoint.tensors)
        self.projection_dim = self.integer("projection_dim", most=2**20)
        if layers != [*range(self.num_layers)]:
            raise _mismatch(f"{checkpoint.path.name} lacks layers.", f"layers {layers[:8]}")

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._checkpoint.tensors

    def _shape(self, name: str, num_dims: int) -> tuple[int, ...]:
        info = self._checkpoint.tensors.get(name)
        if info is None or len(info.shape) != num_dims:
            raise _mismatch(
                f"{self._checkpoint.path.name} has no tensor {name} of {num_dims} dimensions.",
                "none" if info is None else str(tuple(info.shape)),
            )
        return info.shape

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = _MAX_SIDE
    ) -> int:
        """A value of ``clip.vision.``, a whole number.

        Raises:
            CheckpointError: There is none, or it is out of range.
        """
        found = self._checkpoint.metadata.get(f"clip.vision.{key}", default)
        if type(found) is int and least <= found <= most:
            return found
        raise self._unusable(key, found, f"a whole number from {least} to {most}")

    @property
    def epsilon(self) -> float:
        """What norms add to the variance.

        Raises:
            CheckpointError: It is no number from 0 to 1.
        """
        key = "attention.layer_norm_epsilon"
        found = self._checkpoint.metadata.get(f"clip.vision.{key}", 1e-6)
        if isinstance(found, int | float) and 0 <= found <= 1:
            return float(found)
        raise self._unusable(key, found, "a number from 0 to 1")

    def _unusable(self, key: str, found: object, expected: str) -> CheckpointError:
        message = f"clip.vision.{key} of {self._checkpoint.path.name} is not usable."
        return _mismatch(message, repr(found)[:50], expected)

    def colours(self, key: str) -> list[float]:
        """Three values of ``clip.vision.``, for red, green and blue.

        Raises:
            CheckpointError: There are none.
        """
        found = self._checkpoint.metadata.get(f"clip.vision.{key}")
        values = [*found] if isinstance(found, list | tuple | memoryview) else []
        if len(values) != 3 or not all(isinstance(e, int | float) and isfinite(e) for e in values):
            raise self._unusable(key, values[:4] or found, "three numbers")
        return [float(each) for each in values]

    @property
    def image_size(self) -> int:
        """Pixels of a side of an image, where all are made square.

        Raises:
            CheckpointError: It is too large.
        """
        num_patches = self._shape("v.position_embd.weight", 2)[0]
        if num_patches > _MAX_PATCHES:
            raise CheckpointError(
                f"{self._checkpoint.path.name} wants images that are too large.",
                found=f"{num_patches} patches",
                expected=f"at most {_MAX_PATCHES}",
            )
        return isqrt(num_patches) * self.patch_size

    @property
    def num_heads(self) -> int:
        """Heads of its attention.

        Raises:
            CheckpointError: They do not share its channels evenly.
        """
        key = "attention.head_count"
        found = self.integer(key)
        if self.hidden_size % found:
            raise self._unusable(key, found, f"a divisor of the {self.hidden_size} channels")
        return found

    @property
    def merge_size(self) -> int:
        """Side of the square of patches that becomes one vector."""
        return self.integer("spatial_merge_size", 2, most=_MAX_SCALE)

    @property
    def merged_side(self) -> int:
        """Side of the same in pixels."""
        return self.patch_size * self.merge_size

    @property
    def uses_silu(self) -> bool:
        """Whether that is the activation, and not GELU."""
        return self._checkpoint.metadata.get("clip.use_silu") is True

    @property
    def siglip_config(self) -> dict[str, object]:
        """The library's config of it, where it is a SigLIP."""
        return {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "image_size": self.image_size,
            "patch_size": self.patch_size,
            "layer_norm_eps": self.epsilon,
            "hidden_act": "gelu_pytorch_tanh",
        }

    @property
    def normalization(self) -> dict[str, object]:
        """Mean and standard deviation of each colour, as the library's processors take them.

        Raises:
            CheckpointError: One is missing, or a deviation is 0 or negative.
        """
        deviations = self.colours("image_std")
        if min(deviations) < _MIN_DEVIATION:
            raise self._unusable("image_std", deviations, f"three numbers from {_MIN_DEVIATION} on")
        return {"image_mean": self.colours("image_mean"), "image_std": deviations}

    @property
    def scale_factor(self) -> int:
        """Side of the square of vectors that becomes one token."""
        return self.integer("projector.scale_factor", 4, most=_MAX_SCALE)

    @property
    def num_tokens(self) -> int:
        """Tokens that stand for an image, or a part of one, where all are square.

        Raises:
            CheckpointError: There would be none.
        """
        patches = self.image_size // self.patch_size
        if self.scale_factor > patches:
            expected = f"at most the {patches} patches of a side"
            raise self._unusable("projector.scale_factor", self.scale_factor, expected)
        return (patches // self.scale_factor) ** 2


_LAYER = re.compile(r"v\.blk\.(\d{1,6})\.")
_DEEP = re.compile(r"v\.deepstack\.(\d{1,6})\.")


def _layers_of(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    return sorted({int(each[1]) for each in map(pattern.match, names) if each})


_PARTS = {
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_QWEN_PARTS = {
    "ln1": "norm1",
    "ln2": "norm2",
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ffn_gate": "mlp.gate_proj",
}
_PIXTRAL_PARTS = {
    "ln1": "attention_norm",
    "ln2": "ffn_norm",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.o_proj",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}
_PIXTRAL_AROUND = {
    "v.patch_embd": "model.vision_tower.patch_conv",
    "v.pre_ln": "model.vision_tower.ln_pre",
    "mm.input_norm": "model.multi_modal_projector.norm",
    "mm.patch_merger": "model.multi_modal_projector.patch_merger.merging_layer",
    "mm.1": "model.multi_modal_projector.linear_1",
    "mm.2": "model.multi_modal_projector.linear_2",
}
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Projector:
    """How files of one kind become a network and a processor of the library.

    Args:
        family: What the library calls such a model.
        config: The library's config of it, besides that of its text.
        tensors: The library's tensors, of the file's.
        image_processor: The class that makes pixels of images, as its name begins.
        pixels: What that class is told, besides how colours are scaled.
        mark: What chat templates write for an image.
        token: What stands for a vector.
        write: The text that stands for an image, of what the image processor found.
    """

    family: str
    config: Callable[[TowerSpec], dict[str, Any]]
    tensors: Callable[[TowerSpec, Tensors], dict[str, Tensor]]
    image_processor: str
    pixels: Callable[[TowerSpec], dict[str, Any]]
    mark: str
    token: str
    write: Callable[[TowerSpec, Mapping[str, Any]], str]


def _renamed(
    tensors: Tensors, layers: str, parts: Mapping[str, str], around: Mapping[str, str]
) -> dict[str, Tensor]:
    """The tensors of a tower by the library's names.

    Args:
        tensors: Those of the file.
        layers: What the names of layers begin with there.
        parts: What parts of a layer are called.
        around: What those are called that are in no layer.
    """
    found = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"v\.blk\.(\d{1,6})\.(\w+)", stem)
        if stem in around:
            found[f"{around[stem]}.{kind}"] = tensor
        elif layer is not None and layer[2] in parts:
            found[f"{layers}.{layer[1]}.{parts[layer[2]]}.{kind}"] = tensor
    return found


def _of_siglip(tensors: Tensors, tower: str, around: Mapping[str, str]) -> dict[str, Tensor]:
    all_around = {
        "v.patch_embd": f"{tower}.embeddings.patch_embedding",
        "v.position_embd": f"{tower}.embeddings.position_embedding",
        "v.post_ln": f"{tower}.post_layernorm",
        **around,
    }
    return _renamed(tensors, f"{tower}.encoder.layers", _PARTS, all_around)


def _of_gemma(tower: TowerSpec, tensors: Tensors) -> dict[str, Tensor]:  # noqa: ARG001
    after = "model.multi_modal_projector."
    found = _of_siglip(tensors, "model.vision_tower", {})
    if "mm.input_projection.weight" in tensors:
        found[f"{after}mm_input_projection_weight"] = tensors["mm.input_projection.weight"]
    if "mm.soft_emb_norm.weight" in tensors:  # the library adds 1, and so has the converter
        found[f"{after}mm_soft_emb_norm.weight"] = tensors["mm.soft_emb_norm.weight"] - 1
    return found


def _of_idefics(tower: TowerSpec, tensors: Tensors) -> dict[str, Tensor]:  # noqa: ARG001
    around = {"mm.model.fc": "model.connector.modality_projection.proj"}
    return _of_siglip(tensors, "model.vision_model", around)


def _of_qwen(tower: TowerSpec, tensors: Tensors) -> dict[str, Tensor]:  # noqa: ARG001
    """Its queries, keys and values are one matrix in the library, and so are its two patches."""
    has_gates = "v.blk.0.ffn_gate.weight" in tensors
    mlp = ("up_proj", "down_proj") if has_gates else ("fc1", "fc2")
    return _of_any_qwen(tensors, mlp, ("ln_q", "mlp.0", "mlp.2"), {})


def _of_qwen_3(tower: TowerSpec, tensors: Tensors) -> dict[str, Tensor]:  # noqa: ARG001
    """The same, with vectors that layers add, whose parts are called by their tower's layers."""
    around = {}
    for place, layer in enumerate(_layers_of(_DEEP, tensors)):
        before = f"model.visual.deepstack_merger_list.{place}"
        around[f"v.deepstack.{layer}.norm"] = f"{before}.norm"
        around[f"v.deepstack.{layer}.fc1"] = f"{before}.linear_fc1"
        around[f"v.deepstack.{layer}.fc2"] = f"{before}.linear_fc2"
    mlp = ("linear_fc1", "linear_fc2")
    return _of_any_qwen(tensors, mlp, ("norm", *mlp), around)


def _of_any_qwen(
    tensors: Tensors, mlp: tuple[str, str], merger: tuple[str, str, str], more: Mapping[str, str]
) -> dict[str, Tensor]:
    """The library's tensors of Qwen's towers, of which some parts have names of their own.

    Args:
        tensors: Those of the file.
        mlp: The two matrices of a layer's MLP.
        merger: The norm and the two matrices behind the layers.
        more: What else is in no layer.
    """
    up, down = mlp
    norm, first, second = merger
    parts = {**_QWEN_PARTS, "ffn_up": f"mlp.{up}", "ffn_down": f"mlp.{down}"}
    around = {
        "v.patch_embd": "model.visual.patch_embed.proj",
        "v.position_embd": "model.visual.pos_embed",
        "v.post_ln": f"model.visual.merger.{norm}",
        "mm.0": f"model.visual.merger.{first}",
        "mm.2": f"model.visual.merger.{second}",
        **more,
    }
    return _renamed(_joined(tensors), "model.visual.blocks", parts, around)


def _of_pixtral(tower: TowerSpec, tensors: Tensors) -> dict[str, Tensor]:
    """Channels that are rotated together lie side by side in files, and half a head apart here."""
    whole = dict(tensors)
    for name, tensor in tensors.items():
        if ".attn_q." in name or ".attn_k." in name:
            heads = tensor.reshape(tower.num_heads, -1, 2, *tensor.shape[1:])
            whole[name] = heads.transpose(1, 2).reshape(tensor.shape)
    layers = "model.vision_tower.transformer.layers"
    return _renamed(whole, layers, _PIXTRAL_PARTS, _PIXTRAL_AROUND)


def _joined(tensors: Tensors) -> dict[str, Tensor]:
    """Queries, keys and values as one matrix, and the patches of two images as one."""
    whole = dict(tensors)
    for name in [name for name in whole if ".attn_q." in name]:
        names = [name.replace(".attn_q.", f".attn_{each}.") for each in "qkv"]
        if all(each in whole for each in names):
            whole[name.replace(".attn_q.", ".attn_qkv.")] = torch.cat([whole[n] for n in names])
    if "v.patch_embd.weight.1" in whole:
        both = [whole.pop("v.patch_embd.weight"), whole.pop("v.patch_embd.weight.1")]
        whole["v.patch_embd.weight"] = torch.stack(both, dim=2)
    return whole


def _write_gemma(tower: TowerSpec, batch: Mapping[str, Any]) -> str:  # noqa: ARG001  (of one part)
    soft = "<image_soft_token>" * tower.num_tokens
    return f"\n\n<start_of_image>{soft}<end_of_image>\n\n"


def _write_idefics(tower: TowerSpec, batch: Mapping[str, Any]) -> str:
    """The parts of an image row by row, and then the whole."""
    (rows,), (columns,) = batch["rows"][0], batch["cols"][0]
    around, image = "<fake_token_around_image>", "<image>" * tower.num_tokens
    text = ""
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            text += f"{around}<row_{row}_col_{column}>{image}"
        text += "\n"
    whole = f"{around}<global-img>{image}{around}"
    return f"{text}\n{whole}" if rows else whole


def _write_pixtral(tower: TowerSpec, batch: Mapping[str, Any]) -> str:
    """The tokens of each row, and what stands between rows."""
    side = tower.merged_side
    height, width = (int(each) // side for each in batch["image_sizes"][0])
    return "[IMG_BREAK]".join(["[IMG]" * width] * height) + "[IMG_END]"


def _write_qwen(tower: TowerSpec, batch: Mapping[str, Any]) -> str:
    return "<|image_pad|>" * (int(batch["image_grid_thw"].prod()) // tower.merge_size**2)


def _pixtral(tower: TowerSpec) -> dict[str, Any]:
    return {
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": tower.hidden_size,
            "intermediate_size": tower.intermediate_size,
            "num_hidden_layers": tower.num_layers,
            "num_attention_heads": tower.num_heads,
            "head_dim": tower.hidden_size // tower.num_heads,
            "image_size": _pixtral_size(tower),
            "patch_size": tower.patch_size,
            "hidden_act": "silu" if tower.uses_silu else "gelu",
        },
        "spatial_merge_size": tower.merge_size,
        "vision_feature_layer": -1,
        "multimodal_projector_bias": tower.has("mm.1.bias"),
    }


def _pixtral_size(tower: TowerSpec) -> int:
    """Pixels of the longest side of an image."""
    return tower.integer("image_size", least=tower.merged_side, most=_MAX_PIXTRAL)


def _pixtral_pixels(tower: TowerSpec) -> dict[str, Any]:
    side = tower.merged_side
    return {
        "size": {"longest_edge": _pixtral_size(tower)},
        "patch_size": {"height": side, "width": side},
    }


def _qwen_pixels(tower: TowerSpec) -> dict[str, Any]:
    sides = {
        "shortest_edge": tower.integer("image_min_pixels", 56 * 56, most=_MAX_SIDE**2),
        "longest_edge": tower.integer("image_max_pixels", 1280 * 28 * 28, most=_MAX_SIDE**2),
    }
    return {"size": sides, "patch_size": tower.patch_size, "merge_size": tower.merge_size}


def _qwen_2(tower: TowerSpec) -> dict[str, Any]:
    return {
        "embed_dim": tower.hidden_size,
        "hidden_size": tower.projection_dim,
        "mlp_ratio": tower.intermediate_size // tower.hidden_size,
    }


def _qwen_2_5(tower: TowerSpec) -> dict[str, Any]:
    period = tower.integer("n_wa_pattern", 8)
    return {
        **_later_sizes(tower),
        "window_size": tower.integer("window_size", 112, least=tower.merged_side),
        "fullatt_block_indexes": [*range(period - 1, tower.num_layers, period)],
    }


def _qwen_3(tower: TowerSpec) -> dict[str, Any]:
    return {
        **_later_sizes(tower),
        "num_position_embeddings": (tower.image_size // tower.patch_size) ** 2,
        "deepstack_visual_indexes": tower.deep_layers,
    }


def _later_sizes(tower: TowerSpec) -> dict[str, Any]:
    """What later Qwens call other sizes than the first."""
    return {
        "hidden_size": tower.hidden_size,
        "intermediate_size": tower.intermediate_size,
        "out_hidden_size": tower.projection_dim,
    }


def _qwen(
    family: str,
    sizes: Callable[[TowerSpec], dict[str, Any]],
    tensors: Callable[[TowerSpec, Tensors], dict[str, Tensor]],
) -> Projector:
    """A row of one of Qwen's models.

    Args:
        family: What the library calls it.
        sizes: Of its tower's config, what not all have.
        tensors: The library's tensors, of the file's.
    """

    def _config(tower: TowerSpec) -> dict[str, Any]:
        common = {
            "depth": tower.num_layers,
            "num_heads": tower.num_heads,
            "patch_size": tower.patch_size,
            "spatial_merge_size": tower.merge_size,
        }
        return {"vision_config": common | sizes(tower)}

    return Projector(
        family=family,
        config=_config,
        tensors=tensors,
        image_processor="Qwen2VL",
        pixels=_qwen_pixels,
        mark="<|image_pad|>",
        token="<|image_pad|>",
        write=_write_qwen,
    )


PROJECTORS: Table[Projector] = Table(
    "kind of mmproj file",
    {
        "gemma3": Projector(
            family="gemma3",
            config=lambda tower: {
                "vision_config": {**tower.siglip_config, "vision_use_head": False},
                "mm_tokens_per_image": tower.num_tokens,
            },
            tensors=_of_gemma,
            image_processor="Gemma3",
            pixels=lambda tower: {"size": {"height": tower.image_size, "width": tower.image_size}},
            mark="<start_of_image>",
            token="<image_soft_token>",
            write=_write_gemma,
        ),
        "idefics3": Projector(
            family="idefics3",
            config=lambda tower: {
                "vision_config": tower.siglip_config,
                "scale_factor": tower.scale_factor,
            },
            tensors=_of_idefics,
            image_processor="Idefics3",
            pixels=lambda tower: {
                "size": {"longest_edge": tower.integer("preproc_image_size", 4 * tower.image_size)},
                "max_image_size": {"longest_edge": tower.image_size},
                "return_row_col_info": True,
            },
            mark="<image>",
            token="<image>",
            write=_write_idefics,
        ),
        "pixtral": Projector(
            family="mistral3",
            config=_pixtral,
            tensors=_of_pixtral,
            image_processor="Pixtral",
            pixels=_pixtral_pixels,
            mark="[IMG]",
            token="[IMG]",
            write=_write_pixtral,
        ),
        "qwen2vl_merger": _qwen("qwen2_vl", _qwen_2, _of_qwen),
        "qwen2.5vl_merger": _qwen("qwen2_5_vl", _qwen_2_5, _of_qwen),
        "qwen3vl_merger": _qwen("qwen3_vl", _qwen_3, _of_qwen_3),
    },
)


def open_mmproj(path: Path, language_model: CausalLM) -> Projector:
    """How a file is to be read. Its header is looked at, and no tensor.

    Raises:
        CheckpointError: It is no such file, or of another model.
        UnknownNameError: Files of its kind are not read.
    """
    header = read_header(path)
    if header.metadata.get(ARCHITECTURE_KEY) != "clip":
        raise CheckpointError(
            f"{path.name} is no mmproj file.",
            found=f"architecture {str(header.metadata.get(ARCHITECTURE_KEY))[:50]!r}",
            expected="'clip'",
        )
    keys = ("clip.projector_type", "clip.vision.projector_type")
    kind = next((header.metadata[key] for key in keys if key in header.metadata), "mlp")
    row = PROJECTORS[str(kind)]
    size = header.metadata.get("clip.vision.projection_dim")
    if size != language_model.config.hidden_size:
        raise _mismatch(
            f"{path.name} is of another model.",
            f"vectors of {size!r:.50} numbers",
            f"{language_model.config.hidden_size}, as the language model has it",
        )
    return row


def load_mmproj(
    path: Path, language_model: CausalLM, tokenizer: Tokenizer, asked: str | None
) -> MmprojEncoder | None:
    """The vision encoder of a GGUF model; None where there is none that can be read.

    Args:
        path: Where the model lies.
        language_model: Its language model.
        tokenizer: Its vocabulary.
        asked: A file that was asked for, a directory that has one, or one on the Hub.

    Raises:
        BlazrError: That one cannot be read. One that only lies there is left out, with a warning.
    """
    place = path if asked is None else find_model(asked).path
    file = place if asked is not None and not place.is_dir() else find_mmproj(place)
    if file is None:
        if asked is None:
            return None
        raise CheckpointError(f"{asked[:100]} has no mmproj file.", expected="mmproj*.gguf")
    try:
        return MmprojEncoder(file, open_mmproj(file, language_model), language_model, tokenizer)
    except BlazrError as error:
        if asked is not None:
            raise
        _log.warning("leave out %s: %s", file.name, str(error).replace("\n", " "))
        return None


class MmprojEncoder(ImageEncoder):
    """The vision encoder of a GGUF model.

    Args:
        file: Of kind ``mmproj``.
        projector: How it is read.
        language_model: Its language model, whose dtype and device the vectors are for.
        tokenizer: The vocabulary of that.
    """

    advice: ClassVar = _HINT

    def __init__(
        self, file: Path, projector: Projector, language_model: CausalLM, tokenizer: Tokenizer
    ) -> None:
        super().__init__(file, projector.family, language_model)
        self.kinds = frozenset({self.medium})
        self._projector = projector
        self._tokenizer = tokenizer
        for name in (projector.mark, projector.token):
            if name not in tokenizer.special_ids:
                found = f"{file.name}, whose images need it"
                raise _mismatch(f"the vocabulary has no token {name}.", found)

    @override
    def _build(self, checkpoint: Checkpoint) -> EncoderParts:
        import transformers

        tower = TowerSpec(checkpoint)
        row, ids = self._projector, self._tokenizer.special_ids
        text = {"hidden_size": self._hidden_size, "num_hidden_layers": 1, "vocab_size": 8}
        heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": self._hidden_size}
        make: Any = transformers.CONFIG_MAPPING[row.family]
        config = make(text_config={**text, **heads, "pad_token_id": 0}, **row.config(tower))
        suffix = "" if find_spec("torchvision") else "Pil"
        kind = getattr(transformers, f"{row.image_processor}ImageProcessor{suffix}")
        images = kind(**row.pixels(tower), **tower.normalization)
        processor = _Processor(row, tower, images, self._tokenizer)
        stat = self._path.stat()
        stamp = (self._path.name, stat.st_size, stat.st_mtime_ns, config.to_dict())
        return EncoderParts(
            processor=processor,
            tower=self._load_tower(config, self._tensors(checkpoint, tower)),
            marker=ids[row.mark],
            token_id=ids[row.token],
            scale=1.0,
            seed=sha256(repr(stamp).encode()).digest(),
            is_bidirectional=self._is_bidirectional,
            line_feeds=line_feeds(processor.tokenizer),
        )

    def _tensors(self, checkpoint: Checkpoint, tower: TowerSpec) -> dict[str, Tensor]:
        """All of a file, float32, by the library's names."""
        # older converters called the two matrices by each other's names
        down = checkpoint.tensors.get("v.blk.0.ffn_down.weight")
        is_swapped = down is not None and down.shape[0] != tower.hidden_size
        found = {}
        for name, info in checkpoint.tensors.items():
            own = re.sub("ffn_(up|down)", _up_down_swapped, name) if is_swapped else name
            found[own] = decoded(checkpoint, info)
        return self._projector.tensors(tower, found)


def _up_down_swapped(match: re.Match[str]) -> str:
    return "ffn_down" if match[1] == "up" else "ffn_up"


class _Processor:
    """In the place of the library's, whose text side needs the library's tokenizer.

    Attributes:
        image_token: What stands for an image before it is seen.
        tokenizer: Texts to ids, called as the library's.
    """

    def __init__(
        self, projector: Projector, tower: TowerSpec, images: Any, tokenizer: Tokenizer
    ) -> None:
        self.image_token = projector.mark
        self._write = projector.write
        self._tower = tower
        self._images = images
        self._encode = tokenizer.encode

    def tokenizer(self, texts: str | Sequence[str], **_: object) -> dict[str, object]:
        if isinstance(texts, str):
            return {"input_ids": self._encode(texts)}
        return {"input_ids": [self._encode(each) for each in texts]}

    def __call__(self, *, images: Sequence[Sequence[Any]], **_: object) -> dict[str, Any]:
        """Pixels of the first image, and the tokens that stand for it, (1, T)."""
        batch = dict(self._images([images[0][0]], return_tensors="pt"))
        ids = self._encode(self._write(self._tower, batch), allow_special=True)
        return {**batch, "input_ids": torch.tensor([ids])}
