"""A model in memory, from which engines are started, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from blazr.core.errors import ShapeError
from blazr.engine.request import Pooling
from blazr.text.chat_template import ChatTemplate
from blazr.text.stream import ReplyFormat
from blazr.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from blazr.engine.ranks.processes import RankProcesses
    from blazr.llm.options import LoadOptions
    from blazr.llm.rank_head import RankHead
    from blazr.models.loading.load import LoadedModel
    from blazr.nn.device import Device
    from blazr.pipelines.fallback import FallbackModel
    from blazr.pipelines.media import MediaEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What there is to know about the model from outside.

    Args:
        name: What it is called.
        family: What kind of checkpoint it came from.
        vocab_size: Rows of its embedding.
        max_seq_len: Its context, tokens.
        num_parameters: Weights in it.
        size_bytes: Memory they take.
        device: Where it runs, for people.
        adds_bos: Whether a text prompt begins with the beginning-of-text token.
        stop_ids: Ids that end a reply, besides the tokenizer's own.
        is_unbounded: Whether it reads prompts of any length (no attention in it).
        is_recurrent: Whether a layer of it has a state, so that not every prefix can be resumed.
        sampling: Its own sampling defaults, by the names of `SamplingParams`.
        pooling: How it makes a vector of a text, unless a request says otherwise.
        ends_vectors: Whether the end-of-text token stands behind a text that becomes a vector.
    """

    name: str
    family: str
    vocab_size: int
    max_seq_len: int
    num_parameters: int = 0
    size_bytes: int = 0
    device: str = "cpu"
    adds_bos: bool = False
    stop_ids: frozenset[int] = frozenset()
    is_unbounded: bool = False
    is_recurrent: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)
    pooling: Pooling = "mean"
    ends_vectors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBundle:
    """A model in memory, without an engine.

    Args:
        weights: Its network.
        load_weights: Loads the network of another checkpoint in the same way.
        device: Where it runs.
        config: How it is loaded, and the sizes and limits of its engines.
        info: About it.
        tokenizer: Text to ids and back.
        template: Chats to ids; None where it has no vocabulary.
        reply_format: How it writes its thinking and its calls of tools.
        media_encoder: Reads images or sounds; None where the model reads text alone.
        processes: The other ranks, where the network is the first one's part.
        draft_model: What drafts for it, where a model does.
        rank_head: How it scores documents, where it was made for that.
    """

    weights: LoadedModel | FallbackModel
    load_weights: Callable[[str], LoadedModel | FallbackModel]
    device: Device
    config: LoadOptions
    info: ModelInfo
    tokenizer: Tokenizer
    template: ChatTemplate | None
    reply_format: ReplyFormat
    media_encoder: MediaEncoder | None = None
    processes: RankProcesses | None = None
    draft_model: LoadedModel | None = None
    rank_head: RankHead | None = None

    def offload(self) -> None:
        """Move the weights to the CPU's memory, until an engine is started again."""
        self.weights.module.to("cpu")
        if self.draft_model is not None:
            self.draft_model.module.to("cpu")
        if self.media_encoder is not None:
            self.media_encoder.unload()

    def loader_of(self, path: str) -> Callable[[], ModelBundle]:
        """Return what loads the bundle again with the weights of a checkpoint.

        It keeps no reference to the present weights, so that they can be freed meanwhile.
        """
        load_weights = self.load_weights
        others = {each.name: getattr(self, each.name) for each in fields(self)}
        del others["weights"]
        return lambda: ModelBundle(weights=load_weights(path), **others)

    def with_weights(self, path: str) -> ModelBundle:
        """The same with the weights of another checkpoint; its text side is not looked at.

        Raises:
            ShapeError: That is a model of another shape.
            BlazrError: It cannot be loaded.
        """
        found = self.load_weights(path)
        if _shape(found) != _shape(self.weights):
            raise ShapeError(
                "the weights are those of another model.",
                found=f"{found.family}, {sum(1 for _ in found.module.parameters())} parameters",
                expected="a checkpoint of the same family, with the same config",
            )
        return replace(self, weights=found)


def _shape(weights: LoadedModel | FallbackModel) -> object:
    """Equal where the weights of one network fit into the other."""
    from blazr.pipelines.fallback import FallbackModel

    if isinstance(weights, FallbackModel):
        sizes = {name: tuple(each.shape) for name, each in weights.module.named_parameters()}
        return weights.family, weights.vocab_size, weights.max_seq_len, sizes
    return weights.config
