"""Images to what a language model reads in their place: by the processor and tower of transformers.

The language model is blazr's own. The part that sees is loaded when the first image comes, from
safetensors files alone; code that lies beside the weights is never run.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from inspect import signature
from itertools import groupby, takewhile
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from blazr.core.errors import RequestError
from blazr.engine.request import PromptEmbeddings
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.families import FAMILIES
from blazr.models.families.hf.vision import IMAGE_PREFIXES
from blazr.pipelines.images import open_frames, open_image
from blazr.pipelines.media_prompt import MediaPrompt
from blazr.pipelines.network import load_without_code, loading_errors, network_of, stored_infos
from blazr.pipelines.voxtral import VoxtralProcessor
from blazr.text.images import Video

if TYPE_CHECKING:
    from blazr.models.causal_lm import CausalLM

MAX_KEPT_BYTES = 256 * 2**20  # of images that were seen
_MOST_LINE_FEEDS = 64  # twice those of Gemma's longest token
_SEEING_AHEAD = {"gemma3"}
# Those that look at an image in parts where it is alone in its chat, and else at the whole of each.
_SEEING_ONE_CLOSER = {"llava_onevision"}
_PACKAGES = {"PIL": "pillow"}  # that are called otherwise than they are imported
_LANGUAGE_MODELS = {"language_model", "text_model"}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """The tokens and vectors that stand in a prompt for an image, a video or a sound.

    Args:
        token_ids: Its tokens.
        embeddings: Vectors for some of them, counted from the first.
        marker: Id that a chat template writes for it.
    """

    token_ids: tuple[int, ...]
    embeddings: tuple[PromptEmbeddings, ...]
    marker: int

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        tensors = (part for each in self.embeddings for part in (each.vectors, each.added))
        return sum(part.nbytes for part in tensors if part is not None)


def find_marks(token_ids: Sequence[int], images: Sequence[MediaTokens]) -> list[int]:
    """Where a prompt has the marks of images.

    Raises:
        RequestError: There are not as many as images, or in another order.
    """
    markers = {each.marker for each in images}
    places = [place for place, each in enumerate(token_ids) if each in markers]
    if [token_ids[place] for place in places] != [each.marker for each in images]:
        raise RequestError(
            "the chat template does not write a mark for each image.",
            param="messages",
            found=f"{len(places)} marks for {len(images)} images",
            hint="leave images out of messages of the system and of tools",
        )
    return places


def check_packages(packages: Iterable[str], noun: str, hint: str) -> None:
    """Check that what is needed is installed.

    Args:
        packages: What they are imported as.
        noun: What they are needed for.
        hint: How to install them.

    Raises:
        RequestError: One is not.
    """
    missing = [_PACKAGES.get(name, name) for name in packages if find_spec(name) is None]
    if missing:
        raise RequestError(
            f"this server cannot read {noun}.",
            param="messages",
            found=f"{' and '.join(missing)} not installed",
            hint=hint,
        )


@dataclass(frozen=True, slots=True)
class MediaEncoder:
    """The processor and the tower that make vectors of media; loaded with the first image.

    Args:
        processor: The library's, from images to pixels and tokens.
        tower: The library's network without its language model.
        marker: Id that a chat template writes for an image.
        token_id: Id of the tokens that have vectors.
        scale: What the language model multiplies embeddings with, these too.
        seed: Says whose vectors they are.
        sees_ahead: Whether an image's tokens attend to each other in both directions.
        line_feeds: Of tokens that are nothing else, how many they are.
    """

    processor: Any
    tower: Any
    marker: int
    token_id: int
    scale: float
    seed: bytes
    sees_ahead: bool
    line_feeds: Mapping[int, int]

    def join(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Two parts of a prompt that were tokenized apart, as if they had been one text.

        Gemma's images begin and end with line feeds, which make one token with those beside them.
        """
        ends = [*takewhile(self.line_feeds.get, reversed(before))]
        begins = [*takewhile(self.line_feeds.get, after)]
        if not ends or not begins:
            return [*before, *after]
        text = "\n" * sum(self.line_feeds[each] for each in ends + begins)
        seam = self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*before[: len(before) - len(ends)], *seam, *after[len(begins) :]]


class Vision:
    """The part of a model that sees. Thread-safe: one image is seen at a time.

    Args:
        path: Where the model lies.
        family: The family that it is of.
        language_model: Its language model, whose dtype and device the vectors are for.

    Attributes:
        medium: What it takes, as the library calls it.
        noun: The same, for people.
        auto: The library's class that knows its networks.
        extra: Of blazr, what installs the packages it needs.
        packages: What these are imported as.
        advice: What else to try where it cannot be loaded.
        kinds: Kinds of it that messages may have, as `blazr.text.images.Image.kind` has them.
        reads_ahead: Whether each token of a prompt with images attends to all of it.
    """

    medium: ClassVar = "image"
    noun: ClassVar = "an image"
    auto: ClassVar = "AutoModelForImageTextToText"
    extra: ClassVar = "vision"
    packages: ClassVar[tuple[str, ...]] = ("transformers", "PIL")
    advice: ClassVar = "see whether preprocessor_config.json is there"

    def __init__(self, path: Path, family: str, language_model: CausalLM) -> None:
        self.kinds = FAMILIES[family].takes
        self.reads_ahead = FAMILIES[family].reads_ahead
        self._path = path
        self._family = family
        self._sees_ahead = family in _SEEING_AHEAD
        self._dtype = language_model.dtype
        self._hidden_size = language_model.config.hidden_size
        self._device = language_model.device
        self._lock = Lock()
        self._encoder: MediaEncoder | None = None
        self._kept: OrderedDict[bytes, MediaTokens] = OrderedDict()  # the latest used last

    def forget(self) -> None:
        """Free what was loaded; the next image loads it again."""
        with self._lock:
            self._encoder = None
            self._kept.clear()

    def see(self, images: Sequence[bytes]) -> list[MediaTokens]:
        """What stands for the images of a chat; takes time for those that were not seen lately.

        Raises:
            RequestError: One is no image that can be read, or a package is not installed.
            CheckpointError: The part that sees cannot be loaded.
        """
        check_packages(self.packages, self.noun, f"pip install 'blazr[{self.extra}]'")
        if any(isinstance(each, Video) for each in images):
            hint = "install the torchvision that is built for the installed torch"
            check_packages(("torchvision",), "a video", hint)
        # some see an image otherwise if it has company
        num_images = sum(not isinstance(each, Video) for each in images)
        has_company = num_images > 1 and self._family in _SEEING_ONE_CLOSER
        digests = [sha256(data).digest() for data in images]
        if has_company:
            digests = [sha256(digest + b"in company").digest() for digest in digests]
        found = []
        for digest, data in zip(digests, images, strict=True):
            with self._lock:
                seen = self._kept.pop(digest, None)
                if seen is None:
                    seen = self._see(digest, data, copies=1 + has_company)
                self._kept[digest] = seen
            found.append(seen)
        with self._lock:
            while sum(each.nbytes for each in self._kept.values()) > MAX_KEPT_BYTES:
                self._kept.popitem(last=False)
        return found

    def insert(self, token_ids: Sequence[int], images: Sequence[MediaTokens]) -> MediaPrompt:
        """A prompt with images in the place of their marks.

        Args:
            token_ids: With one mark for each image.
            images: In order.

        Raises:
            RequestError: There are not as many marks as images.
        """
        if not images:
            return MediaPrompt(list(token_ids))
        encoder = self._load()
        places = find_marks(token_ids, images)
        prompt: list[int] = []
        embeddings: list[PromptEmbeddings] = []
        done = 0
        for place, image in zip(places, images, strict=True):
            prompt = encoder.join(prompt, token_ids[done:place])
            whole = encoder.join(prompt, image.token_ids)
            moved = len(whole) - len(image.token_ids)
            embeddings += (replace(each, start=moved + each.start) for each in image.embeddings)
            prompt = whole
            done = place + 1
        return MediaPrompt(encoder.join(prompt, token_ids[done:]), tuple(embeddings), places)

    def _load(self) -> MediaEncoder:
        if self._encoder is None:
            checkpoint = open_checkpoint(self._path)
            with loading_errors(
                f"the part of {checkpoint.path.name} that takes {self.noun} cannot be loaded.",
                hint=f"pip install 'blazr[{self.extra}]', and {self.advice}",
            ):
                self._encoder = self._build_encoder(checkpoint)
            log.info("loaded the part of %s that takes %s files", self._path.name, self.medium)
        return self._encoder

    def _build_encoder(self, checkpoint: Checkpoint) -> MediaEncoder:
        import transformers

        directory = checkpoint.directory
        config: Any = load_without_code(transformers.AutoConfig, directory)
        processor: Any = load_processor(directory, config)
        infos = {
            name: info
            for name, info in stored_infos(checkpoint).items()
            if name.startswith(IMAGE_PREFIXES)
        }
        tower = self._load_tower(
            config, {name: checkpoint.own(info) for name, info in infos.items()}
        )
        mark = getattr(processor, f"{self.medium}_token")
        stamps = [
            (info.name, info.shape, path.stat().st_size, path.stat().st_mtime_ns)
            for info in infos.values()
            for path in [info.file]
        ]
        return MediaEncoder(
            processor=processor,
            tower=tower,
            marker=processor.tokenizer.convert_tokens_to_ids(mark),
            token_id=getattr(config, f"{self.medium}_token_id"),
            # Granite's and its relatives multiply vectors and embeddings alike; Gemma's only these
            scale=float(getattr(config.get_text_config(), "embedding_multiplier", 1.0)),
            seed=sha256(repr((config.to_dict(), stamps)).encode()).digest(),
            sees_ahead=self._sees_ahead,
            line_feeds=line_feeds(processor.tokenizer),
        )

    def _load_tower(self, config: object, tensors: dict[str, Tensor]) -> torch.nn.Module:
        """The library's network without its language model, ready to run.

        Args:
            config: As the library reads it.
            tensors: By the library's names.

        Raises:
            CheckpointError: Tensors are missing.
        """
        kind = _without_language_model(self.auto, config)
        of = f"the part that takes {self.noun}"
        tower = network_of(kind, config, tensors, self._dtype, of=of, hint=self.advice)
        return tower.to(self._device)

    def _see(self, digest: bytes, data: bytes, copies: int) -> MediaTokens:
        opened, size = self._open(data)
        encoder = self._load()
        try:
            if isinstance(data, Video):
                return self._watch(encoder, opened, encoder.seed + digest)
            return self._run(encoder, [opened] * copies, encoder.seed + digest)
        except (torch.OutOfMemoryError, RequestError):
            raise
        # the library fails in many ways at images that are very small, or much longer than wide
        except Exception as error:
            log.warning("%s of %s was not taken", self.noun, size, exc_info=error)
            raise RequestError(
                f"this model cannot take {self.noun} of this size.",
                param="messages",
                found=f"{size}; {type(error).__name__}: {str(error)[:100]}",
                hint="scale it, or cut it, to a more usual form",
            ) from error

    def _open(self, data: bytes) -> tuple[Any, str]:
        """What a file holds, and how large that is, for people.

        Raises:
            RequestError: It cannot be read.
        """
        if isinstance(data, Video):
            frames = open_frames(data)
            size = f"{len(frames)} frames of {frames[0].width} by {frames[0].height} pixels"
            return frames, size
        pixels = open_image(data)
        return pixels, f"{pixels.width} by {pixels.height} pixels"

    @torch.inference_mode()
    def _run(self, encoder: MediaEncoder, copies: Sequence[Any], digest: bytes) -> MediaTokens:
        """See the first of an image's copies, all of which stand in one chat.

        Args:
            encoder: Its processor and tower.
            copies: The same image as often as is wanted, as `_open` gives it.
            digest: Says which image it is, and whose vectors come of it.
        """
        if self.reads_ahead:  # the whole processor also writes what stands behind the last image
            batch = encoder.processor.image_processor(images=list(copies), return_tensors="pt")
            batch["input_ids"] = torch.full(
                (1, encoder.processor.image_seq_length), encoder.token_id
            )
        else:
            batch = encoder.processor(
                images=[copies],
                text=[encoder.processor.image_token * len(copies)],
                add_special_tokens=False,
                return_mm_token_type_ids=False,
                return_tensors="pt",
            )
        token_ids: list[int] = batch["input_ids"][0].tolist()
        del token_ids[len(token_ids) // len(copies) :]
        vectors = self._features(encoder, batch, "image", copies=len(copies))
        size = _grid(encoder, batch.get("image_grid_thw"))
        return self._seen(encoder, token_ids, vectors, digest, size=size)

    @torch.inference_mode()
    def _watch(self, encoder: MediaEncoder, frames: Sequence[Any], digest: bytes) -> MediaTokens:
        """See a video.

        Args:
            encoder: Its processor and tower.
            frames: Its images, one a second.
            digest: Says which video it is, and whose vectors come of it.
        """
        count = len(frames)
        second = {"total_num_frames": count, "fps": 1.0, "duration": float(count)}
        batch = encoder.processor(
            videos=[list(frames)],
            text=[encoder.processor.video_token],
            video_metadata=[{**second, "frames_indices": [*range(count)]}],
            do_sample_frames=False,
            add_special_tokens=False,
            return_mm_token_type_ids=False,
            return_tensors="pt",
        )
        token_ids: list[int] = batch["input_ids"][0].tolist()
        per_second = getattr(encoder.tower.config.vision_config, "tokens_per_second", None)
        marker = encoder.processor.tokenizer.convert_tokens_to_ids(encoder.processor.video_token)
        return self._seen(
            replace(
                encoder, token_id=marker if marker in token_ids else encoder.token_id, marker=marker
            ),
            token_ids,
            self._features(encoder, batch, "video"),
            digest,
            size=_grid(encoder, batch.get("video_grid_thw")),
            interval=float(batch["second_per_grid_ts"][0]) * per_second if per_second else 1.0,
        )

    def _features(
        self, encoder: MediaEncoder, batch: Mapping[str, Any], medium: str, *, copies: int = 1
    ) -> Tensor:
        """What the tower makes of pixels, (1 + L, N, C): for embeddings, then for layers.

        Args:
            encoder: Its processor and tower.
            batch: What its processor made.
            medium: What that shows.
            copies: How often it is there, of which the first one counts.
        """
        features = getattr(encoder.tower.model, f"get_{medium}_features")
        wanted = signature(features).parameters
        inputs = self._placed(
            {name: value for name, value in batch.items() if name in wanted and value is not None}
        )
        found = features(**inputs, return_dict=True)
        pooled = found.pooler_output
        added = getattr(found, "deepstack_features", None) or ()
        first = _joined(pooled[: len(pooled) // copies]) * encoder.scale
        return torch.stack([first, *map(_joined, added)])

    def _placed(self, inputs: dict[str, Any]) -> Any:
        """Inputs of the network where it is, in its dtype."""
        from transformers import BatchFeature

        return BatchFeature(inputs).to(self._device, self._dtype)

    def _seen(
        self,
        encoder: MediaEncoder,
        token_ids: Sequence[int],
        vectors: Tensor,
        digest: bytes,
        *,
        size: tuple[int, int, int] | None = None,
        interval: float = 1.0,
    ) -> MediaTokens:
        """What stands for something, of its tokens and the vectors for some of them.

        Args:
            encoder: The processor and tower that it went through.
            token_ids: Its tokens.
            vectors: (1 + L, N, C), in the place of embeddings, and behind each of the first L
                layers.
            digest: Of it.
            size: How many images it has, and their rows and columns; where text stands between
                them, it says when they are.
            interval: From an image to the next in time, in positions, where none does.

        Raises:
            ValueError: There are not as many vectors as tokens that want one.
        """
        vectors = vectors.to("cpu", self._dtype)
        expected = (token_ids.count(encoder.token_id), self._hidden_size)
        if vectors.shape[1:] != expected:
            raise ValueError(f"vectors {tuple(vectors.shape)} for tokens {expected}")
        runs = _runs([each == encoder.token_id for each in token_ids], vectors, digest)
        grid: tuple[int, int] | None = None
        times: tuple[int, ...] = (0,)
        if size is not None:
            grid = size[1:]
            if len(runs) < size[0]:
                times = tuple(int(number * interval) for number in range(size[0]))
        whole = (
            replace(each, grid=grid, times=times, sees_ahead=encoder.sees_ahead) for each in runs
        )
        return MediaTokens(tuple(token_ids), tuple(whole), encoder.marker)


def _grid(encoder: MediaEncoder, patches: Tensor | None) -> tuple[int, int, int] | None:
    """How many images there are, their rows and their columns of tokens.

    Args:
        encoder: Its processor and tower.
        patches: The same in patches, (1, 3), some of which, side by side, make a token.
    """
    if patches is None:
        return None
    side = encoder.tower.config.vision_config.spatial_merge_size
    length, height, width = patches[0].tolist()
    return length, height // side, width // side


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Vectors of the parts of an image, one behind the other, (N, C)."""
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _runs(
    is_vector: Sequence[bool], vectors: Tensor, digest: bytes
) -> tuple[PromptEmbeddings, ...]:
    """One entry for each run of tokens that have vectors.

    Args:
        is_vector: By token of an image.
        vectors: (1 + L, N, C), in the place of embeddings, and behind each of the first L layers.
        digest: Of the image.
    """
    found: list[PromptEmbeddings] = []
    done = start = 0
    for has_vectors, run in groupby(is_vector):
        length = len(list(run))
        if has_vectors:
            own = sha256(digest + len(found).to_bytes(8, "little")).digest()
            part = vectors[:, done : done + length]
            added = part[1:] if len(part) > 1 else None
            found.append(PromptEmbeddings(start=start, vectors=part[0], added=added, digest=own))
            done += length
        start += length
    return tuple(found)


def line_feeds(tokenizer: Callable[..., Mapping[str, object]]) -> dict[int, int]:
    """Of tokens that are line feeds alone, how many they are."""
    texts = ["\n" * count for count in range(1, _MOST_LINE_FEEDS)]
    ids: Any = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return {each[0]: count for count, each in enumerate(ids, 1) if len(each) == 1}


def load_processor(directory: Path, config: object) -> Callable[..., dict[str, Tensor]]:
    """The library's processor of images beside a model.

    Args:
        directory: Where the model lies.
        config: As the library reads it.
    """
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    if getattr(config, "model_type", None) == "voxtral":
        return VoxtralProcessor(directory, config)
    kind: Any = transformers.AutoProcessor
    kinds: Any = PROCESSOR_MAPPING
    if find_spec("torchvision") is None and type(config) in kinds:
        # That of videos needs torchvision, and nobody sees any here.
        whole = kinds[type(config)]
        parts = [name for name in whole.get_attributes() if name != "video_processor"]
        kind = type(whole.__name__, (whole,), {"get_attributes": classmethod(lambda _: parts)})
    return cast("Callable[..., dict[str, Tensor]]", load_without_code(kind, directory))


def _without_language_model(auto: str, config: object) -> type:
    """The class of the library's network, but without its language model."""
    import transformers

    known: Any = config
    # tensors of a quantized checkpoint's tower are plain; a quantizer would not find its own
    known.quantization_config = None
    del known.quantization_config
    with torch.device("meta"):
        whole = type(getattr(transformers, auto).from_config(known, trust_remote_code=False))

    def _init(self: Any, config: Any) -> None:
        whole.__init__(self, config)
        self.lm_head = None
        for name in _LANGUAGE_MODELS & self.model._modules.keys():
            setattr(self.model, name, None)

    members = {
        "__init__": _init,
        "_tied_weights_keys": {},
        "get_input_embeddings": lambda _: None,
        "get_output_embeddings": lambda _: None,
        "__module__": whole.__module__,
    }
    return type(whole.__name__, (whole,), members)
