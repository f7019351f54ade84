"""Media to what a language model reads in their place: by the processor and tower of transformers.

The language model is blazr's own. The encoder is loaded when the first file comes, from safetensors
files alone; code that lies beside the weights is never run.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
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
from blazr.pipelines.media import MediaPrompt, MediaTokens, check_packages, find_marks
from blazr.pipelines.network import load_without_code, loading_errors, network_of, stored_infos
from blazr.pipelines.voxtral import VoxtralProcessor

if TYPE_CHECKING:
    from blazr.models.causal_lm import CausalLM

MAX_CACHE_BYTES = 256 * 2**20  # of the vectors of media
_MOST_LINE_FEEDS = 64  # twice those of Gemma's longest token
_BIDIRECTIONAL = {"gemma3"}  # among the tokens of one image
_PROCESSOR_CONFIGS = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
_LANGUAGE_MODELS = {"language_model", "text_model"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncoderParts:
    """The processor and the tower that make vectors of media; loaded with the first file.

    Args:
        processor: The library's, from media to what the tower reads, and tokens.
        tower: The library's network without its language model.
        marker: Id of the token that a chat template writes in the place of an image or a sound.
        token_id: Id of the tokens that have vectors.
        scale: What the language model multiplies embeddings with, these too.
        seed: A hash of the encoder's configurations and files. What the prefix cache knows an image
            by is made of it, so that no other encoder's vectors are taken for this one's.
        is_bidirectional: Whether an image's tokens attend to each other in both directions.
        line_feeds: How many line feeds a token has, by the ids of those that have nothing else.
    """

    processor: Any
    tower: Any
    marker: int
    token_id: int
    scale: float
    seed: bytes
    is_bidirectional: bool
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


class TowerEncoder(ABC):
    """A media encoder by the processor and the tower of transformers. Thread-safe: one at a time.

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
        kinds: See `MediaEncoder`.
        has_bidirectional_prompts: See `MediaEncoder`.
    """

    medium: ClassVar[str]
    noun: ClassVar[str]
    auto: ClassVar[str]
    extra: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    advice: ClassVar[str] = "see whether preprocessor_config.json is there"

    def __init__(self, path: Path, family: str, language_model: CausalLM) -> None:
        self.kinds = FAMILIES[family].takes
        self.has_bidirectional_prompts = FAMILIES[family].has_bidirectional_prompts
        self._path = path
        self._family = family
        self._is_bidirectional = family in _BIDIRECTIONAL
        self._dtype = language_model.dtype
        self._hidden_size = language_model.config.hidden_size
        self._device = language_model.device
        self._lock = Lock()
        self._parts: EncoderParts | None = None
        self._cache: OrderedDict[bytes, MediaTokens] = OrderedDict()  # the latest used last

    def unload(self) -> None:
        """Free what was loaded; the next use loads it again."""
        with self._lock:
            self._parts = None
            self._cache.clear()

    def encode(self, media: Sequence[bytes]) -> list[MediaTokens]:
        """What stands for the media of a chat; takes time for those that did not come lately.

        Raises:
            RequestError: One cannot be read, or a package is not installed.
            CheckpointError: The encoder cannot be loaded.
        """
        self._check_packages(media)
        num_copies = self._num_copies(media)
        digests = [sha256(data).digest() for data in media]
        if num_copies > 1:
            digests = [sha256(digest + b"in company").digest() for digest in digests]
        found = []
        for digest, data in zip(digests, media, strict=True):
            with self._lock:
                tokens = self._cache.pop(digest, None)
                if tokens is None:
                    tokens = self._encode(digest, data, num_copies)
                self._cache[digest] = tokens
            found.append(tokens)
        with self._lock:
            while sum(each.nbytes for each in self._cache.values()) > MAX_CACHE_BYTES:
                self._cache.popitem(last=False)
        return found

    def insert(self, token_ids: Sequence[int], media: Sequence[MediaTokens]) -> MediaPrompt:
        """A prompt with media in the place of their marks.

        Args:
            token_ids: With one mark for each.
            media: In order.

        Raises:
            RequestError: There are not as many marks as media.
            CheckpointError: The encoder, which was unloaded, cannot be loaded again.
        """
        if not media:
            return MediaPrompt(list(token_ids))
        places = find_marks(token_ids, media)
        prompt: list[int] = []
        embeddings: list[PromptEmbeddings] = []
        done = 0
        with self._lock:
            parts = self._load()
            for place, medium in zip(places, media, strict=True):
                prompt = parts.join(prompt, token_ids[done:place])
                whole = parts.join(prompt, medium.token_ids)
                moved = len(whole) - len(medium.token_ids)
                embeddings += (replace(e, start=moved + e.start) for e in medium.embeddings)
                prompt = whole
                done = place + 1
            prompt = parts.join(prompt, token_ids[done:])
        return MediaPrompt(prompt, tuple(embeddings), places)

    def _check_packages(self, media: Sequence[bytes]) -> None:  # noqa: ARG002
        """Check that what these media need is installed.

        Raises:
            RequestError: It is not.
        """
        check_packages(self.packages, self.noun, f"pip install 'blazr[{self.extra}]'")

    def _num_copies(self, media: Sequence[bytes]) -> int:  # noqa: ARG002
        """How often the processor gets each of the media of a chat at once."""
        return 1

    def _load(self) -> EncoderParts:
        """The processor and the tower, loaded where they are not; the lock is held."""
        if self._parts is None:
            checkpoint = open_checkpoint(self._path)
            with loading_errors(
                f"the part of {checkpoint.path.name} that takes {self.noun} cannot be loaded.",
                hint=f"pip install 'blazr[{self.extra}]', and {self.advice}",
            ):
                self._parts = self._build(checkpoint)
            _log.info("loaded the part of %s that takes %s files", self._path.name, self.medium)
        return self._parts

    def _build(self, checkpoint: Checkpoint) -> EncoderParts:
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
        settings = [
            (name, (directory / name).read_bytes())
            for name in _PROCESSOR_CONFIGS
            if (directory / name).is_file()
        ]
        return EncoderParts(
            processor=processor,
            tower=tower,
            marker=processor.tokenizer.convert_tokens_to_ids(mark),
            token_id=getattr(config, f"{self.medium}_token_id"),
            # Granite's and its relatives multiply vectors and embeddings alike; Gemma's only these
            scale=float(getattr(config.get_text_config(), "embedding_multiplier", 1.0)),
            seed=sha256(repr((config.to_dict(), stamps, settings)).encode()).digest(),
            is_bidirectional=self._is_bidirectional,
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

    def _encode(self, digest: bytes, data: bytes, num_copies: int) -> MediaTokens:
        opened, size = self._open(data)
        parts = self._load()
        try:
            return self._run(parts, opened, parts.seed + digest, num_copies)
        except (torch.OutOfMemoryError, RequestError):
            raise
        # the library fails in many ways at images that are very small, or much longer than wide
        except Exception as error:
            _log.warning("%s of %s was not taken", self.noun, size, exc_info=error)
            raise RequestError(
                f"this model cannot take {self.noun} of this size.",
                param="messages",
                found=f"{size}; {type(error).__name__}: {str(error)[:100]}",
                hint="scale it, or cut it, to a more usual form",
            ) from error

    @abstractmethod
    def _open(self, data: bytes) -> tuple[Any, str]:
        """What a file holds, and how large that is, for people.

        Raises:
            RequestError: It cannot be read.
        """

    @abstractmethod
    def _run(self, parts: EncoderParts, opened: Any, digest: bytes, num_copies: int) -> MediaTokens:
        """Make tokens and vectors.

        Args:
            parts: The processor and the tower.
            opened: What a file holds, as `_open` gives it.
            digest: What the prefix cache knows it by.
            num_copies: How often the processor gets it; the vectors of the first copy are taken.
        """

    def _placed(self, inputs: dict[str, Any]) -> Any:
        """Inputs of the network where it is, in its dtype."""
        from transformers import BatchFeature

        return BatchFeature(inputs).to(self._device, self._dtype)

    def _tokens_of(
        self,
        parts: EncoderParts,
        token_ids: Sequence[int],
        vectors: Tensor,
        digest: bytes,
        *,
        size: tuple[int, int, int] | None = None,
        interval: float = 1.0,
    ) -> MediaTokens:
        """What stands for something, of its tokens and the vectors for some of them.

        Args:
            parts: The processor and the tower that it went through.
            token_ids: Its tokens.
            vectors: (1 + L, N, C), in the place of embeddings, and behind each of the first L
                layers.
            digest: What the prefix cache knows it by.
            size: Of an image or a video: frames, and the rows and columns of tokens of each. Where
                text stands between the frames, the text says when each is seen.
            interval: Positions from a frame to the next one, where no text says so.

        Raises:
            ValueError: There are not as many vectors as tokens that want one.
            RequestError: Some of their numbers are not finite.
        """
        vectors = vectors.to("cpu", self._dtype)
        if not vectors.isfinite().all():
            raise RequestError(
                f"this model makes no finite numbers of {self.noun}.",
                param="messages",
                found=f"NaN or infinity, computed in {str(self._dtype).removeprefix('torch.')}",
                hint="load the model with --dtype bfloat16 or float32, whose numbers reach further",
            )
        expected = (token_ids.count(parts.token_id), self._hidden_size)
        if vectors.shape[1:] != expected:
            raise ValueError(f"vectors {tuple(vectors.shape)} for tokens {expected}")
        runs = _runs([each == parts.token_id for each in token_ids], vectors, digest)
        grid: tuple[int, int] | None = None
        times: tuple[int, ...] = (0,)
        if size is not None:
            grid = size[1:]
            if len(runs) < size[0]:
                times = tuple(int(number * interval) for number in range(size[0]))
        whole = (
            replace(each, grid=grid, times=times, is_bidirectional=parts.is_bidirectional)
            for each in runs
        )
        return MediaTokens(tuple(token_ids), tuple(whole), parts.marker)


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
    """How many line feeds a token has, by the ids of those that have nothing else."""
    texts = ["\n" * count for count in range(1, _MOST_LINE_FEEDS)]
    ids: Any = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return {each[0]: count for count, each in enumerate(ids, 1) if len(each) == 1}


def load_processor(directory: Path, config: object) -> Callable[..., dict[str, Tensor]]:
    """The library's processor of media beside a model.

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
