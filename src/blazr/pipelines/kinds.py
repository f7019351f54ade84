"""PIPELINES: the kinds of models that another library runs as a whole, and what each can do.

Importing this imports no torch, so that a server can tell what its models are before it loads one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blazr.core.errors import BlazrError, CheckpointError
from blazr.core.files import open_regular
from blazr.core.gguf_header import ARCHITECTURE_KEY, read_architecture
from blazr.core.table import Table
from blazr.models.checkpoint.gguf import read_header
from blazr.models.checkpoint.open import find_weights
from blazr.pipelines.encoders.gguf_architectures import ENCODERS

if TYPE_CHECKING:
    from blazr.models.checkpoint.open import ModelFiles
    from blazr.nn.device import Device
    from blazr.pipelines.pipeline import Pipeline

COMPLETION = "completion"
EMBEDDING = "embedding"
RERANKING = "reranking"
CLASSIFICATION = "classification"
TRANSCRIPTION = "transcription"
SPEECH = "speech"
IMAGE = "image"
VISION = "vision"  # of a language model: its messages may have images
AUDIO = "audio"  # of a language model: its messages may have sounds
LANGUAGE_MODEL = (COMPLETION, EMBEDDING, RERANKING)  # what a language model can do
_OF_DIFFUSERS = "diffusers"
_MAX_CONFIG_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class PipelineKind:
    """A kind of model.

    Args:
        capabilities: What it can do.
        pipeline: Its `Pipeline`, as ``"package.module:Class"``.
    """

    capabilities: tuple[str, ...]
    pipeline: str

    def load(self, files: ModelFiles, *, device: Device, dtype: str) -> Pipeline:
        """Load a model of this kind.

        Args:
            files: Where it lies.
            device: Where to.
            dtype: What to compute in; ``auto`` is float32 on a CPU, and elsewhere the checkpoint's.

        Raises:
            BlazrError: It cannot be loaded.
        """
        module, _, name = self.pipeline.partition(":")
        kind: type[Pipeline] = getattr(import_module(module), name)
        return kind.load(files, self.capabilities, device=device, dtype=dtype)


_ENCODER = PipelineKind((EMBEDDING, RERANKING), "blazr.pipelines.encoders.embedder:Embedder")
_CLASSIFIER = "blazr.pipelines.encoders.classifier:Classifier"
_FOR_LABELS = "ForSequenceClassification"
_FOR_TEXT = ("ForCausalLM", "LMHeadModel")  # of an encoder's type too, whose layers then look back
_ONE_LABEL = f"{_FOR_LABELS}-1"
_BY_MODULES = "modules.json"
_BY_FILES = frozenset({_OF_DIFFUSERS, _FOR_LABELS, _ONE_LABEL, _BY_MODULES})
_CTC = PipelineKind((TRANSCRIPTION,), "blazr.pipelines.audio.listeners:Ctc")
_WITH_CTC = ("hubert", "parakeet_ctc", "wav2vec2", "wav2vec2-bert", "wav2vec2-conformer", "wavlm")
_ENCODERS = ("bert", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta")

# Ollama has embedding models among the Gemmas: their headers are read to see which they are.
_GGUF_NAMES = frozenset({*ENCODERS, "gemma3"})

# By `model_type` in config.json; `kind_of` says which rows other files decide.
PIPELINES: Table[PipelineKind] = Table(
    "pipeline",
    {
        "whisper": PipelineKind((TRANSCRIPTION,), "blazr.pipelines.audio.whisper:Whisper"),
        **dict.fromkeys(_WITH_CTC, _CTC),
        "moonshine": PipelineKind((TRANSCRIPTION,), "blazr.pipelines.audio.listeners:Moonshine"),
        "bark": PipelineKind((SPEECH,), "blazr.pipelines.audio.bark:Bark"),
        "csm": PipelineKind((SPEECH,), "blazr.pipelines.audio.csm:Csm"),
        "dia": PipelineKind((SPEECH,), "blazr.pipelines.audio.dia:Dia"),
        "speecht5": PipelineKind((SPEECH,), "blazr.pipelines.audio.speecht5:SpeechT5"),
        "vits": PipelineKind((SPEECH,), "blazr.pipelines.audio.vits:Vits"),
        _OF_DIFFUSERS: PipelineKind((IMAGE,), "blazr.pipelines.diffusion.generator:ImageGenerator"),
        _FOR_LABELS: PipelineKind((CLASSIFICATION,), _CLASSIFIER),
        _ONE_LABEL: PipelineKind((RERANKING, CLASSIFICATION), _CLASSIFIER),
        **dict.fromkeys((_BY_MODULES, *_ENCODERS), _ENCODER),
    },
)


# What to do with a model that has no text to give, by the first thing that it can.
_INSTEAD = {
    TRANSCRIPTION: "blazr transcribe, or blazr serve and /v1/audio/transcriptions",
    SPEECH: "blazr speak, or blazr serve and /v1/audio/speech",
    EMBEDDING: "LLM.embed in Python, or blazr serve and /v1/embeddings",
    RERANKING: "LLM.score in Python, or blazr serve and /v1/rerank",
    CLASSIFICATION: "LLM.classify in Python, or blazr serve and /classify",
}


def check_language_model(config: Mapping[str, object]) -> None:
    """Refuse a model that is none, by its config.json.

    Raises:
        CheckpointError: Its type is of another kind; the message says what it is for.
    """
    name, architectures = config.get("model_type"), config.get("architectures")
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if first.endswith(_FOR_TEXT):
        return
    if isinstance(name, str) and name in PIPELINES and name not in _BY_FILES:
        kind = _for_labels(config) if first.endswith(_FOR_LABELS) else PIPELINES[name]
        raise _no_language_model(f"model_type {name!r:.50}", kind)


def check_gguf_language_model(place: Path) -> None:
    """The same for a GGUF file, or the one of a directory.

    Raises:
        CheckpointError: It holds an encoder.
    """
    kind = _kind_of_gguf(place)
    if kind is not None:
        raise _no_language_model(place.name[:50], kind)


def check_language_model_at(place: Path) -> None:
    """The same for a directory, or a GGUF file.

    Raises:
        CheckpointError: It holds a model of another kind.
    """
    check_gguf_language_model(place)
    config = _read_config(place)
    if config is not None:
        check_language_model(config)


def _no_language_model(found: str, kind: PipelineKind) -> CheckpointError:
    capability = kind.capabilities[0]
    return CheckpointError(
        "this is no language model.",
        found=f"{found}, a model for {capability}",
        hint=_INSTEAD[capability],
    )


def _kind_of_gguf(place: Path) -> PipelineKind | None:
    """The kind of an encoder in a GGUF file, or in the one of a directory; None where it is none.

    One with an output behind a head ranks or labels texts.
    """
    if (place / "config.json").is_file():
        return None
    try:
        file = find_weights(place).files[0]
        if file.suffix != ".gguf" or _architecture(file) not in _GGUF_NAMES:
            return None
        header = read_header(file)
    except (BlazrError, OSError):  # whoever loads it tells why
        return None
    if header.metadata.get(ARCHITECTURE_KEY) not in ENCODERS:
        return None
    output = header.tensors.get("cls.output.weight")
    if output is None:
        return _ENCODER
    return PIPELINES[_ONE_LABEL if output.shape[0] == 1 else _FOR_LABELS]


def _architecture(file: Path) -> str | None:
    with open_regular(file) as stream:
        return read_architecture(stream)


def kind_of(place: Path) -> PipelineKind | None:
    """The kind of a model; None where it is a language model, or nothing is.

    A `model_index.json` is of diffusers. One for labels says so in its architecture, and where
    there is one label, that is how well two texts fit. An architecture that writes text is a
    language model, of whichever type. A `modules.json` of sentence-transformers
    makes vectors of any network's states. A GGUF file says what it is by its architecture.
    """
    return _kind_of_gguf(place) or _kind_of_directory(place)


def _kind_of_directory(place: Path) -> PipelineKind | None:
    if (place / "model_index.json").is_file():
        return PIPELINES[_OF_DIFFUSERS]
    found = _read_config(place)
    if found is None:
        return None
    try:
        name = found.get("model_type")
        first = str((found.get("architectures") or [""])[0])
        if first.endswith(_FOR_LABELS):
            return _for_labels(found)
    except (LookupError, TypeError):
        return None
    is_known = isinstance(name, str) and name in PIPELINES and name not in _BY_FILES
    if is_known and not first.endswith(_FOR_TEXT):
        return PIPELINES[str(name)]
    return PIPELINES[_BY_MODULES] if (place / _BY_MODULES).is_file() else None


def _for_labels(config: Mapping[str, Any]) -> PipelineKind:
    """The kind of a classifier: with one label it says how well two texts fit.

    Raises:
        TypeError: Its labels are not understood.
    """
    num_labels = len(config.get("id2label") or ("", ""))  # as transformers counts
    return PIPELINES[_ONE_LABEL if num_labels == 1 else _FOR_LABELS]


def _read_config(place: Path) -> dict[str, Any] | None:
    """A directory's config.json; None where there is none that can be read."""
    config = place / "config.json"
    try:
        if config.stat().st_size > _MAX_CONFIG_BYTES:
            return None
        found = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
