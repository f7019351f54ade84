"""Random models that see images, with the processors that transformers has for them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

from blazr.llm.results import Completion
from blazr.pipelines.tower_encoder import load_processor
from tests.support.references import SIZES
from tests.support.seeds import run_seed

VOCAB = 352
TEMPLATE = """{%- for message in messages -%}
<|turn|>{{ message['role'] }}:{% for part in message['content'] -%}
{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'video' %}VIDEO{% else -%}
MARK{% endif %}{% endfor %}
{% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"""
_HEADS = {"num_attention_heads": 2, "intermediate_size": 20}
_TOWER = {**_HEADS, "hidden_size": 16, "num_hidden_layers": 2}
_SQUARE = {**_TOWER, "image_size": 28, "patch_size": 7}
_CLIP = {**_SQUARE, "model_type": "clip_vision_model"}
_PINPOINTS = [[28, 56], [56, 28], [56, 56]]


@dataclass(frozen=True, kw_only=True)
class Seeing:
    """What is said of a model beside sizes.

    Args:
        kind: Its `model_type`, where that is not its name here.
        marks: Special tokens; the first is that of an image.
        text: Of its language model.
        tower: Of the part that sees.
        whole: Of both.
        processor: The library's class, by name, and what makes one of its module and a tokenizer.
        needs: Packages that its processor is not made without.
        named: Names of marks in the library's tokenizer.
        spread: Of its random weights.
        written: What its chat template writes for an image, where that is not the first mark.
        film: The same for a video, where that is not the mark that is named so.
        merges: Whether its tokenizer makes one token of several line feeds.
        hears: Whether it takes sounds, and no images.
    """

    kind: str | None = None
    marks: tuple[str, ...]
    text: dict[str, object]
    tower: dict[str, object]
    whole: dict[str, object] = field(default_factory=dict)
    processor: Callable[[Any, Any], Any]
    needs: tuple[str, ...] = ()
    named: dict[str, str] = field(default_factory=dict)
    spread: float = 0.3
    written: str = ""
    film: str = ""
    merges: bool = False
    hears: bool = False

    @property
    def medium(self) -> str:
        """What it takes, as the library calls it."""
        return "audio" if self.hears else "image"


_EAR = {"num_mel_bins": 8, "d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2}
_EAR |= {"encoder_ffn_dim": 20, "max_source_positions": 100}


_IDEFICS_MARKS = (
    "<image>",
    "<fake_token_around_image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)


_QWEN_MARKS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1]}
_M_ROPE = {"rope_parameters": _ROPE}
_QWEN_TOWER = {"depth": 2, "hidden_size": 16, "out_hidden_size": 24, "num_heads": 2}
_QWEN_TOWER |= {"intermediate_size": 20}
_QWEN3_TOWER = {"patch_size": 7, "num_position_embeddings": 16}
_MIXED_ROPE = {**_ROPE, "mrope_section": [3, 2, 1], "mrope_interleaved": True}
_QWEN3 = {"rope_parameters": _MIXED_ROPE, "head_dim": 12}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "linear_conv_kernel_dim": 3,
    "rope_parameters": {**_MIXED_ROPE, "partial_rotary_factor": 0.5},
    "head_dim": 24,
}


_GLM_MARKS = ("<|image|>", "<|video|>", "<|begin_of_video|>", "<|end_of_video|>")
_GLM_ROPE = {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5}}
_GLM_TOWER = {**_QWEN_TOWER, "image_size": 28, "patch_size": 7}


_PALIGEMMA_VOCAB = 1472  # its processor adds 1,152 tokens for places
_PALIGEMMA = {"projection_dim": SIZES["hidden_size"], "hidden_size": SIZES["hidden_size"]}


def _paligemma_processor(library: Any, tokenizer: Any) -> Any:
    size = {"height": 28, "width": 28}
    return library.PaliGemmaProcessor(
        library.SiglipImageProcessorPil(size=size, image_seq_length=16), tokenizer
    )


def _grid_processor(name: str, images: str, videos: str) -> Callable[[Any, Any], Any]:
    """One that cuts images into rows and columns of patches.

    Its part for videos needs torchvision, and is left out without.
    """

    def _make(library: Any, tokenizer: Any) -> Any:
        whole = getattr(library, f"{name}Processor")
        parts = [
            getattr(library, f"{images}ImageProcessorPil")(
                size={"shortest_edge": 28 * 28, "longest_edge": 84 * 84}, patch_size=7
            ),
            tokenizer,
        ]
        if find_spec("torchvision") is not None:
            size = {"shortest_edge": 28 * 28, "longest_edge": 6 * 56 * 56}
            kind = getattr(library, f"{videos}VideoProcessor")
            return whole(*parts, kind(size=size, patch_size=7))
        return _without_videos(whole)(*parts)

    return _make


class _Apart:
    """A processor in parts, where the whole cannot be made."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def save_pretrained(self, directory: Path) -> None:
        """Write each."""
        for part in self._parts:
            part.save_pretrained(directory)


def _llava_next_processor(library: Any, tokenizer: Any) -> Any:
    return library.LlavaNextProcessor(
        library.LlavaNextImageProcessorPil(
            size={"shortest_edge": 28},
            crop_size={"height": 28, "width": 28},
            image_grid_pinpoints=_PINPOINTS,
        ),
        tokenizer,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def _onevision_processor(library: Any, tokenizer: Any) -> Any:
    size = {"height": 28, "width": 28}
    parts = [
        library.LlavaOnevisionImageProcessorPil(size=size, image_grid_pinpoints=_PINPOINTS),
        tokenizer,
    ]
    whole = library.LlavaOnevisionProcessor
    if find_spec("torchvision") is not None:
        parts.append(library.LlavaOnevisionVideoProcessor(size=size))
    else:
        whole = _without_videos(whole)
    return whole(*parts, num_image_tokens=16, vision_feature_select_strategy="full")


def _without_videos(processor: Any) -> Any:
    """A processor's class whose part for videos, which needs torchvision, is left out."""
    names = {"get_attributes": classmethod(lambda _: ["image_processor", "tokenizer"])}
    return type(processor.__name__, (processor,), names)


CASES: dict[str, Seeing] = {
    "llava": Seeing(
        marks=("<image>",),
        text={"model_type": "llama"},
        tower=_CLIP,
        processor=lambda library, tokenizer: library.LlavaProcessor(
            library.CLIPImageProcessorPil(
                size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
            ),
            tokenizer,
            patch_size=7,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
    ),
    "llava_next": Seeing(
        marks=("<image>",),
        text={"model_type": "mistral", "head_dim": 6, "sliding_window": None},
        tower=_CLIP,
        whole={"image_grid_pinpoints": _PINPOINTS},
        processor=_llava_next_processor,
    ),
    "granite vision": Seeing(
        kind="llava_next",
        marks=("<image>",),
        # the library does not divide the scores of a Granite within another model
        text={"model_type": "granite", "embedding_multiplier": 3.0, "logits_scaling": 1.0},
        tower=_CLIP,
        whole={"image_grid_pinpoints": _PINPOINTS, "vision_feature_layer": [-2, -1]},
        processor=_llava_next_processor,
    ),
    "idefics3": Seeing(
        marks=_IDEFICS_MARKS,
        text={"model_type": "llama"},
        tower=_SQUARE,
        whole={"scale_factor": 2},
        processor=lambda library, tokenizer: library.Idefics3Processor(
            library.Idefics3ImageProcessorPil(
                size={"longest_edge": 56}, max_image_size={"longest_edge": 28}
            ),
            tokenizer,
            image_seq_len=4,
        ),
    ),
    "mistral3": Seeing(
        marks=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        text={"model_type": "mistral", "head_dim": 6, "sliding_window": None},
        tower={**_SQUARE, "image_size": 56, "model_type": "pixtral", "head_dim": 8},
        whole={"spatial_merge_size": 2, "vision_feature_layer": -1},
        processor=lambda library, tokenizer: library.PixtralProcessor(
            library.PixtralImageProcessorPil(
                size={"longest_edge": 56}, patch_size={"height": 14, "width": 14}
            ),
            tokenizer,
            patch_size=7,
            spatial_merge_size=2,
        ),
        needs=("torchvision",),
    ),
    "glm4v": Seeing(
        marks=_GLM_MARKS,
        text={"hidden_size": 48, "head_dim": 12, **_GLM_ROPE},
        tower={**_GLM_TOWER, "out_hidden_size": 48},
        processor=_grid_processor("Glm4v", "Glm4v", "Glm4v"),
        film="<|begin_of_video|><|video|><|end_of_video|>",
    ),
    "glm4v_moe": Seeing(
        marks=_GLM_MARKS,
        text={**_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "head_dim": 12}
        | _GLM_ROPE,
        tower=_GLM_TOWER,
        processor=_grid_processor("Glm4v", "Glm4v", "Glm4v"),
        film="<|begin_of_video|><|video|><|end_of_video|>",
    ),
    "qwen2_vl": Seeing(
        marks=_QWEN_MARKS,
        text=_M_ROPE,
        tower={"depth": 2, "embed_dim": 16, "hidden_size": 24, "num_heads": 2, "patch_size": 7},
        processor=_grid_processor("Qwen2VL", "Qwen2VL", "Qwen2VL"),
    ),
    "qwen2_5_vl": Seeing(
        marks=_QWEN_MARKS,
        text=_M_ROPE,
        tower={**_QWEN_TOWER, "window_size": 28, "fullatt_block_indexes": [1], "patch_size": 7}
        | {"tokens_per_second": 2},
        processor=_grid_processor("Qwen2_5_VL", "Qwen2VL", "Qwen2VL"),
    ),
    "qwen3_vl": Seeing(
        marks=_QWEN_MARKS,
        text=_QWEN3,
        tower={**_QWEN_TOWER, **_QWEN3_TOWER, "deepstack_visual_indexes": [0, 1]},
        processor=_grid_processor("Qwen3VL", "Qwen2VL", "Qwen3VL"),
    ),
    "qwen3_vl_moe": Seeing(
        marks=_QWEN_MARKS,
        text={**_QWEN3, **_EXPERTS},
        tower={**_QWEN_TOWER, **_QWEN3_TOWER, "deepstack_visual_indexes": [1]},
        processor=_grid_processor("Qwen3VL", "Qwen2VL", "Qwen3VL"),
    ),
    "qwen3_5": Seeing(
        marks=_QWEN_MARKS,
        text=_DELTA,
        tower={**_QWEN_TOWER, **_QWEN3_TOWER},
        processor=_grid_processor("Qwen3VL", "Qwen2VL", "Qwen3VL"),
        spread=0.15,
    ),
    "qwen3_5_moe": Seeing(
        marks=_QWEN_MARKS,
        text={**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 28},
        tower={**_QWEN_TOWER, **_QWEN3_TOWER},
        processor=_grid_processor("Qwen3VL", "Qwen2VL", "Qwen3VL"),
        spread=0.15,
    ),
    "gemma3": Seeing(
        marks=("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        text={"head_dim": 6, "query_pre_attn_scalar": 6, "sliding_window": 40}
        | {"layer_types": ["sliding_attention", "full_attention"]},
        tower={**_SQUARE, "image_size": 56, "model_type": "siglip_vision_model"},
        whole={"mm_tokens_per_image": 64},
        processor=lambda library, tokenizer: library.Gemma3Processor(
            library.Gemma3ImageProcessorPil(size={"height": 56, "width": 56}),
            tokenizer,
            image_seq_length=64,
        ),
        named={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        written="\n<start_of_image>\n",
        merges=True,
    ),
    "paligemma": Seeing(
        marks=("<image>",),
        text={"model_type": "gemma", "head_dim": 6, "vocab_size": _PALIGEMMA_VOCAB},
        tower={**_SQUARE, "model_type": "siglip_vision_model", "vision_use_head": False},
        whole=_PALIGEMMA,
        processor=_paligemma_processor,
    ),
    "paligemma 2": Seeing(
        kind="paligemma",
        marks=("<image>",),
        text={"model_type": "gemma2", "head_dim": 6, "query_pre_attn_scalar": 6}
        | {"sliding_window": 24, "vocab_size": _PALIGEMMA_VOCAB},
        tower={**_SQUARE, "model_type": "siglip_vision_model", "vision_use_head": False},
        whole=_PALIGEMMA,
        processor=_paligemma_processor,
    ),
    "llava_onevision": Seeing(
        marks=("<image>", "<video>"),
        text={"model_type": "qwen2"},
        tower={**_SQUARE, "model_type": "siglip_vision_model", "vision_use_head": False},
        whole={"image_grid_pinpoints": _PINPOINTS},
        processor=_onevision_processor,
    ),
    "qwen2_audio": Seeing(
        marks=("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
        text={"model_type": "qwen2"},
        tower=_EAR,
        processor=lambda library, tokenizer: library.Qwen2AudioProcessor(
            library.WhisperFeatureExtractor(feature_size=8, chunk_length=2), tokenizer
        ),
        written="<|audio_bos|><|AUDIO|><|audio_eos|>",
        hears=True,
    ),
    "audioflamingo3": Seeing(
        marks=("<sound>",),
        text={"model_type": "qwen2"},
        tower=_EAR,
        processor=lambda library, tokenizer: library.AudioFlamingo3Processor(
            library.WhisperFeatureExtractor(feature_size=8, chunk_length=2), tokenizer
        ),
        hears=True,
    ),
    "voxtral": Seeing(
        marks=("[AUDIO]", "[BEGIN_AUDIO]"),
        text={"model_type": "llama", "head_dim": 6},
        tower={**_TOWER, "intermediate_size": 64, "num_mel_bins": 8, "max_source_positions": 100},
        processor=lambda library, tokenizer: _Apart(
            library.WhisperFeatureExtractor(feature_size=8, chunk_length=2), tokenizer
        ),
        written="[BEGIN_AUDIO][AUDIO]",
        hears=True,
    ),
    "smolvlm": Seeing(
        marks=_IDEFICS_MARKS,
        text={"model_type": "llama"},
        tower=_SQUARE,
        whole={"scale_factor": 2},
        processor=lambda library, tokenizer: library.SmolVLMProcessor(
            library.SmolVLMImageProcessor(
                size={"longest_edge": 56}, max_image_size={"longest_edge": 28}
            ),
            tokenizer,
            library.SmolVLMVideoProcessor(),
            image_seq_len=4,
        ),
        needs=("torchvision", "num2words"),
    ),
    "internvl": Seeing(
        marks=("<IMG_CONTEXT>", "<img>", "</img>", "<video>"),
        text={"model_type": "qwen2"},
        tower={**_TOWER, "image_size": [28, 28], "patch_size": [7, 7]},
        whole={"downsample_ratio": 0.5},
        processor=lambda library, tokenizer: library.InternVLProcessor(
            library.GotOcr2ImageProcessor(size={"height": 28, "width": 28}, max_patches=4),
            tokenizer,
            library.InternVLVideoProcessor(),
            image_seq_length=4,
        ),
        needs=("torchvision",),
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "lfm2_vl": Seeing(
        marks=(
            "<image>",
            "<|image_start|>",
            "<|image_end|>",
            "<|img_thumbnail|>",
            *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)),
        ),
        text={
            "model_type": "lfm2",
            "layer_types": ["conv", "full_attention"],
            "head_dim": 6,
            "block_auto_adjust_ff_dim": False,
        },
        tower={**_TOWER, "num_patches": 16, "patch_size": 7, "model_type": "siglip2_vision_model"},
        processor=lambda library, tokenizer: library.Lfm2VlProcessor(
            library.Lfm2VlImageProcessor(
                encoder_patch_size=7,
                tile_size=28,
                min_image_tokens=4,
                max_image_tokens=8,
                max_tiles=4,
            ),
            tokenizer,
        ),
        needs=("torchvision",),
    ),
}


# Those that transformers runs whole.
WHOLE: dict[str, Seeing] = {
    "vipllava": replace(
        CASES["llava"],
        whole={"vision_feature_layers": [-2, -1]},
        kind="vipllava",
    ),
    "glm46v": replace(
        CASES["glm4v"],
        kind="glm46v",
        text={**CASES["glm4v"].text, "model_type": "glm4v_text"},
        tower={**CASES["glm4v"].tower, "model_type": "glm4v_vision"},
        processor=_grid_processor("Glm46V", "Glm46V", "Glm46V"),
    ),
    "llava of another": replace(
        CASES["llava"],
        kind="llava",
        text={
            "model_type": "persimmon",
            "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0},
        },
    ),
}


def tokenizer_of(marks: tuple[str, ...], *, merges: bool = False) -> Tokenizer:
    """One token for each byte, behind three special ones, and the marks.

    Args:
        marks: Special tokens.
        merges: Whether two, three and four line feeds are one token.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    line = "\u010a"  # as it is written in vocabularies of bytes
    pairs = [(line, line), (line * 2, line), (line * 2, line * 2)] if merges else []
    words = ["<pad>", "<s>", "</s>", *alphabet, *("".join(pair) for pair in pairs)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<pad>", "<s>", "</s>", "<|turn|>", *marks]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def save(
    name: str, directory: Path, cases: Mapping[str, Seeing] = CASES
) -> tuple[nn.Module, Callable[..., dict[str, Tensor]]]:
    """Write a random model, with its tokenizer, its processor and a chat template.

    Returns:
        The network of transformers, float32, and its processor.
    """
    transformers = pytest.importorskip("transformers")
    case = cases[name]
    for package in case.needs:
        if find_spec(package) is None:
            pytest.skip(f"the processor needs {package}")
    raw = tokenizer_of(case.marks, merges=case.merges)
    mark = raw.token_to_id(case.marks[0])
    video = next((each for each in case.marks if "video" in each), case.marks[0])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={f"{case.medium}_token": case.marks[0], **case.named},
    )
    torch.manual_seed(run_seed(sum(name.encode())))
    config = transformers.CONFIG_MAPPING[case.kind or name](
        text_config={**SIZES, "vocab_size": VOCAB, **case.text},
        **{"audio_config" if case.hears else "vision_config": case.tower},
        **{f"{case.medium}_token_id": mark, f"{case.medium}_token_index": mark},
        **{name: raw.token_to_id(video) for name in ("video_token_id", "video_token_index")},
        **case.whole,
    )
    auto = transformers.AutoModelForImageTextToText
    if case.hears:
        auto = transformers.AutoModelForSeq2SeqLM
    model = auto.from_config(config).eval().float()
    for parameter, values in model.named_parameters():
        is_wide = "embed" in parameter or parameter.endswith("norm.weight")
        nn.init.normal_(values, 0.0, 1.0 if is_wide else case.spread)
    model.save_pretrained(directory)
    if case.kind == "paligemma" or name == "paligemma":
        model.set_attn_implementation("eager")  # another caps no scores, and has text see ahead
    if "experts" in repr(model):
        model.set_experts_implementation("eager")  # the others have no float64
    processor = case.processor(transformers, tokenizer)
    processor.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(
        TEMPLATE.replace("MARK", case.written or case.marks[0]).replace("VIDEO", case.film or video)
    )
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": False}))
    # its images are made by another backend where torchvision is installed
    return model.requires_grad_(requires_grad=False), load_processor(directory, config)


def sound(seconds: float, seed: int = 0) -> bytes:
    """Noise of 16,000 samples a second, as a WAV file."""
    import soundfile

    chance = np.random.default_rng(run_seed(seed))
    file = io.BytesIO()
    samples = chance.uniform(-0.5, 0.5, int(seconds * 16_000)).astype(np.float32)
    soundfile.write(file, samples, 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def picture(width: int, height: int, seed: int = 0, *, kind: str = "PNG") -> bytes:
    """An image of random colours, as a file."""
    chance = np.random.default_rng(run_seed(seed))
    pixels = chance.integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def scores_of(
    theirs: nn.Module, exact: nn.Module, ids: Sequence[int], inputs: Mapping[str, Tensor]
) -> list[Tensor]:
    """The log-probabilities after each of some tokens, (tokens, vocabulary) in float64.

    Args:
        theirs: A model of transformers.
        exact: The same in float64.
        ids: The tokens.
        inputs: What else both take.

    Returns:
        Those of the first model, and those of the second.
    """
    found = []
    for model in (theirs, exact):
        dtype = next(model.parameters()).dtype
        own = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), **own).logits[0]
        found.append(logits.double().log_softmax(-1))
    return found


def check_scores(
    found: Completion, ids: Sequence[int], scores: Sequence[Tensor], first: int = 0
) -> None:
    """Assert that prompt and reply have the scores of a model, to ten times what float32 loses.

    Args:
        found: With the log-probabilities of its prompt and its reply.
        ids: The tokens of both.
        scores: As `scores_of` returns them.
        first: From which of them on their log-probabilities were asked for.
    """
    loss = (scores[0] - scores[1]).abs().max().item()
    known = [*(found.prompt_logprobs or ()), *(found.logprobs or ())]
    assert [each.token_id for each in known] == ids[first:]
    for place, each in enumerate(known, first):
        if place:
            expected = scores[1][place - 1, ids[place]].item()
            assert each.logprob == pytest.approx(expected, abs=max(1e-4, 10 * loss))
