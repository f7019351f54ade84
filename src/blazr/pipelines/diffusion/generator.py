"""`ImageGenerator`: a pipeline of diffusers, which makes one image after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from typing_extensions import override

from blazr.core.errors import CheckpointError, RequestError
from blazr.models.checkpoint.open import PIPELINE_INDEX
from blazr.nn.device import seeded
from blazr.pipelines.diffusion.folder import only_data, read_index
from blazr.pipelines.diffusion.generation import (
    MAX_SIDE,
    MIN_SIDE,
    SIDE_STEP,
    ImageEvent,
    ImageMade,
    ImageRequest,
    PartialImage,
    StepDone,
)
from blazr.pipelines.diffusion.previews import can_preview, preview
from blazr.pipelines.images import open_image
from blazr.pipelines.jobs import Outlet
from blazr.pipelines.pipeline import Pipeline, PipelineInfo

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels

    from blazr.models.checkpoint.open import ModelFiles
    from blazr.nn.device import Device

_CALLBACK = "callback_on_step_end"
_WITH_MASK = 9
_EDIT_PIXELS = 2**20  # of an edited image whose size nobody has said


class _Task(NamedTuple):
    """What may be asked of a pipeline.

    Args:
        kind: The library's class that makes a pipeline for it of another one.
        refusal: What to say where there is none.
        param: The parameter that asks for it.
    """

    kind: str
    refusal: str
    param: str


_FROM_TEXT = _Task(
    "AutoPipelineForText2Image", "this model makes images from images alone.", "image"
)
_FROM_IMAGE = _Task(
    "AutoPipelineForImage2Image", "this model makes no images from images.", "image"
)
_INPAINTING = _Task("AutoPipelineForInpainting", "this model edits no parts of images.", "mask")


class ImageGenerator(Pipeline):
    """A model that makes images.

    Args:
        info: About it.
        pipe: The library's pipeline.
    """

    backend: ClassVar[str] = "diffusers"
    extra: ClassVar[str] = "image"
    packages: ClassVar[tuple[str, ...]] = ("diffusers", "transformers", "PIL")

    def __init__(self, info: PipelineInfo, pipe: Any) -> None:
        self._pipe = pipe
        self._pipes: dict[str, Any] = {}  # by the kind of a task; None where there is none
        super().__init__(info)

    @classmethod
    @override
    def read(
        cls, files: ModelFiles, capabilities: tuple[str, ...], *, device: Device, dtype: str
    ) -> Self:
        import diffusers

        name, parts = read_index(files.path)
        kind = _image_pipelines().get(name)
        if kind is None or _CALLBACK not in signature(kind.__call__).parameters:
            raise CheckpointError(
                f"{files.name} is no pipeline that makes images step by step.",
                found=name[:100],
                expected="one of those for images in the docs of diffusers: FluxPipeline, ...",
            )
        if "Control" in name:
            raise CheckpointError(
                f"{files.name} is steered by an image of another kind, which no request has.",
                found=name[:100],
                expected="a pipeline without a control network",
            )
        chosen = _dtype_of(files.path, parts, device) if dtype == "auto" else getattr(torch, dtype)
        diffusers.utils.logging.disable_progress_bar()
        with only_data(files.path) as view:
            pipe = kind.from_pretrained(
                view, dtype=chosen, use_safetensors=True, local_files_only=True
            )
            networks = [
                part.requires_grad_(requires_grad=False)
                for part in pipe.components.values()
                if isinstance(part, torch.nn.Module)
            ]
            weights = [each for network in networks for each in network.parameters()]
            if device.kind == "cpu":
                buffers = [each for network in networks for each in network.buffers()]
                # the library maps files, which somebody may cut or overwrite
                for each in weights + buffers:
                    each.data = each.data.clone()
        pipe.to(device.torch_device)
        pipe.set_progress_bar_config(disable=True)
        info = PipelineInfo(
            name=files.name,
            family=name,
            capabilities=capabilities,
            num_parameters=sum(each.numel() for each in weights),
            size_bytes=sum(each.nbytes for each in weights),
            device=str(device),
        )
        return cls(info, pipe)

    def check_request(self, request: ImageRequest) -> None:
        """Refuse what the model cannot do.

        Raises:
            RequestError: It cannot edit images, or not with a mask, or takes no such parameter.
        """
        pipe = self._pipe_for(request)
        known = signature(type(pipe).__call__).parameters
        for param, name in (("steps", "num_inference_steps"), ("guidance", _guidance_of(pipe))):
            if getattr(request, param) is not None and name not in known:
                raise RequestError(f"this model takes no {param}.", param=param)
        if request.guidance is not None and _is_distilled(pipe):
            raise RequestError("this model takes no guidance.", param="guidance")
        strength = known["strength"].default if "strength" in known else 1.0
        if request.steps is not None and int(request.steps * strength) < 1:
            raise RequestError(
                "so few steps leave the image as it is.",
                param="steps",
                found=str(request.steps),
                expected=f"at least {ceil(1 / strength)}",
            )
        if request.num_partial and not can_preview(pipe):
            raise RequestError(
                "unfinished images of this model cannot be shown.",
                param="partial_images",
                expected="0",
            )

    def generate(self, request: ImageRequest, outlet: Outlet[ImageEvent]) -> None:
        """Make images; the same seed gives the same.

        Args:
            request: Which.
            outlet: Gets each step, each unfinished state and each image; it may end the work
                between two steps.

        Raises:
            RequestError: What `check_request` raises, or an image cannot be read.
        """
        self.check_request(request)
        pipe = self._pipe_for(request)
        inputs = self._inputs(pipe, request)
        if "image" in inputs:  # an edit whose size nobody has said has one by now
            request = replace(request, size=inputs["image"].size)
        for image in range(request.num_images):
            outlet.check()
            seed = request.seed + image
            # what a scheduler draws beside the generator comes from the one that all share, which
            # gets its state back
            with torch.inference_mode(), seeded(self._pipe.device, seed):
                inputs["generator"] = torch.Generator().manual_seed(seed)
                inputs[_CALLBACK] = _step_callback(image, request, outlet)
                made = _call(pipe, inputs)
            outlet.emit(ImageMade(image, encode(made, request), made.size))

    def _pipe_for(self, request: ImageRequest) -> Any:
        """The pipeline for a task, of the same networks.

        Raises:
            RequestError: The model cannot do it.
        """
        import diffusers

        if request.source is None:
            task = _FROM_TEXT
        else:
            task = _FROM_IMAGE if request.mask is None else _INPAINTING
        if task.kind not in self._pipes:
            try:
                # some change the settings of their scheduler, which are not for the others
                pipe = getattr(diffusers, task.kind).from_pipe(
                    self._pipe, scheduler=deepcopy(self._pipe.scheduler)
                )
            except ValueError:
                pipe = None
            else:
                pipe.set_progress_bar_config(disable=True)
            self._pipes[task.kind] = pipe
        pipe = self._pipes[task.kind]
        if pipe is None:
            raise RequestError(task.refusal, param=task.param, found=self.info.family[:100])
        if request.mask is None and _paints_within_masks(pipe):
            raise RequestError(
                "this model needs an image and a mask.",
                param="mask",
                hint="edit an image: /v1/images/edits",
            )
        return pipe

    def _inputs(self, pipe: Any, request: ImageRequest) -> dict[str, Any]:
        known = signature(type(pipe).__call__).parameters
        size = request.size
        inputs: dict[str, Any] = {"prompt": request.prompt}
        if request.source is not None:
            source = open_image(request.source, param="image")
            size = size or _size_like(source.size)
            inputs["image"] = source.resize(size)
            if request.mask is not None:
                inputs["mask_image"] = _mask_image(request.mask, source.size).resize(size)
        if size is not None:
            inputs |= {
                key: side
                for key, side in zip(("width", "height"), size, strict=True)
                if key in known
            }
            if "max_area" in known:  # Flux Kontext scales what is asked for to so many pixels
                inputs["max_area"] = size[0] * size[1]
        if request.steps is not None:
            inputs["num_inference_steps"] = request.steps
        if request.guidance is not None:
            inputs[_guidance_of(pipe)] = request.guidance
            if "true_cfg_scale" in inputs:  # which compares with another prompt
                inputs["negative_prompt"] = " "
        return inputs


def _call(pipe: Any, inputs: Mapping[str, Any]) -> Pixels:
    """The image that a pipeline makes of its inputs.

    Raises:
        RequestError: The library refuses them.
    """
    try:
        made: Pixels = pipe(**inputs).images[0]
    except ValueError as error:
        raise RequestError(
            "this model makes no such image.", found=str(error).strip()[:200] or "a refusal"
        ) from error
    return made


def encode(image: Pixels, request: ImageRequest) -> bytes:
    """An image as a file."""
    file = BytesIO()
    quality = {} if request.form == "png" else {"quality": request.compression}
    image.save(file, request.form.upper(), **quality)
    return file.getvalue()


def _step_callback(
    image: int, request: ImageRequest, outlet: Outlet[ImageEvent]
) -> Callable[[Any, int, Any, dict[str, Any]], dict[str, Any]]:
    """What the library calls after each step."""

    def _on_step_end(
        pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]
    ) -> dict[str, Any]:
        del timestep
        outlet.check()
        num_steps = pipe.num_timesteps
        outlet.emit(StepDone(image, step + 1, num_steps))
        wanted = _partial_steps(num_steps, request.num_partial)
        if step + 1 in wanted:
            shown = preview(pipe, tensors["latents"], request.size)
            data = encode(shown, request)
            outlet.emit(PartialImage(image, wanted.index(step + 1), data, shown.size))
        return tensors

    return _on_step_end


def _partial_steps(num_steps: int, num_partial: int) -> list[int]:
    """After which steps an image is shown, evenly spread; never after the last."""
    steps = {round(num_steps * n / (num_partial + 1)) for n in range(1, num_partial + 1)}
    return sorted(steps - {0, num_steps})


def _image_pipelines() -> dict[str, Any]:
    """The library's pipelines for images, by the names of their classes."""
    from diffusers.pipelines import auto_pipeline

    tables: Iterable[dict[str, Any]] = (
        auto_pipeline.AUTO_TEXT2IMAGE_PIPELINES_MAPPING,
        auto_pipeline.AUTO_IMAGE2IMAGE_PIPELINES_MAPPING,
        auto_pipeline.AUTO_INPAINT_PIPELINES_MAPPING,
    )
    return {kind.__name__: kind for table in tables for kind in table.values()}


def _guidance_of(pipe: Any) -> str:
    """What the library calls the guidance of a pipeline."""
    is_qwen = type(pipe).__name__.startswith("QwenImage")
    return "true_cfg_scale" if is_qwen else "guidance_scale"


def _paints_within_masks(pipe: Any) -> bool:
    """Whether a denoiser reads a mask and an image beside the latents: 4, 1 and 4 channels."""
    unet = getattr(pipe, "unet", None)
    return unet is not None and unet.config.in_channels == _WITH_MASK


def _is_distilled(pipe: Any) -> bool:
    """Whether a pipeline takes a guidance and leaves it out, as those of Flux.1 schnell do."""
    is_flux = type(pipe).__name__.startswith(("FluxPipeline", "FluxI", "FluxKontext"))
    return is_flux and not pipe.transformer.config.guidance_embeds


def _dtype_of(directory: Path, parts: Iterable[str], device: Device) -> torch.dtype:
    """float32 on a CPU, and elsewhere that of the denoiser's weights."""
    from safetensors import safe_open

    if device.kind == "cpu":
        return torch.float32
    names = {"unet", "transformer"}.intersection(parts)
    files = [file for name in names for file in (directory / name).glob("*.safetensors")]
    if not files:
        raise CheckpointError(f"{PIPELINE_INDEX} names no network with weights.")
    with safe_open(files[0], framework="pt") as tensors:
        found: torch.dtype = tensors.get_tensor(next(iter(tensors.keys()))).dtype
    return found


def _size_like(size: tuple[int, int]) -> tuple[int, int]:
    """A size that can be made, with about the proportions of another one."""
    width, height = size
    scale = min(1.0, (_EDIT_PIXELS / (width * height)) ** 0.5)
    wide, high = (
        min(max(round(side * scale / SIDE_STEP) * SIDE_STEP, MIN_SIDE), MAX_SIDE)
        for side in (width, height)
    )
    return wide, high


def _mask_image(mask: bytes, size: tuple[int, int]) -> Pixels:
    """A mask as the library takes it: white where the source may change, else black.

    Raises:
        RequestError: It cannot be read, has another size, or nothing transparent.
    """
    from PIL import Image, ImageOps

    opened = open_image(mask, param="mask", mode="RGBA")
    if opened.size != size:
        raise RequestError(
            "the mask has another size than the image.",
            param="mask",
            found="{} by {}".format(*opened.size),
            expected="{} by {}".format(*size),
        )
    opaque: Image.Image = opened.getchannel("A")
    if opaque.getextrema()[0] == 255:
        raise RequestError(
            "the mask is transparent nowhere, so nothing would change.",
            param="mask",
            expected="a PNG or WebP that is transparent where the image may change",
        )
    return ImageOps.invert(opaque)
