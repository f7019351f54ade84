"""`Encoder`: a network of transformers that reads whole texts, many at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from blazr.core.errors import RequestError, outside_vocabulary
from blazr.pipelines.encoders.gguf import gguf_network, gguf_texts
from blazr.pipelines.encoders.request import Cut, ReadRequest, TextsRead, without_prompts
from blazr.pipelines.jobs import Outlet
from blazr.pipelines.network import load_without_code
from blazr.pipelines.pipeline import TransformersPipeline

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from blazr.models.checkpoint.base import Checkpoint
    from blazr.pipelines.pipeline import PipelineInfo

MAX_BATCH_TOKENS = 8192  # with padding
MAX_STATES = 8192  # of one answer: at 1,024 numbers each about 100 MB of JSON
# Types whose first positions are for padding [Liu et al., 2019, RoBERTa, as fairseq has it].
_SHIFTED = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"})


class Encoder(TransformersPipeline):
    """A model that reads texts.

    Attributes:
        output: Of what the network returns, what the values of texts are made of.
    """

    output: ClassVar[str]
    extra: ClassVar[str] = "embed"
    packages: ClassVar[tuple[str, ...]] = ("transformers",)
    max_waiting: ClassVar[int] = 512  # each takes milliseconds, and clients send many at once

    def __init__(
        self, info: PipelineInfo, network: torch.nn.Module, checkpoint: Checkpoint
    ) -> None:
        super().__init__(info, network, checkpoint)
        self.info = replace(
            info,
            max_seq_len=self.max_tokens,
            # ids may have gaps, so that a vocabulary has fewer tokens than the highest id says
            vocab_size=max(len(self.tokenizer), getattr(network.config, "vocab_size", 0)),
            vector_size=self.vector_size,
        )

    @classmethod
    @override
    def build(cls, checkpoint: Checkpoint, dtype: str) -> torch.nn.Module:
        if checkpoint.metadata:
            return gguf_network(checkpoint, cls.auto, dtype=dtype, unused=cls.unused)
        return super().build(checkpoint, dtype)

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Read the tokenizer."""
        import transformers

        tokenizer: Any = (
            gguf_texts(checkpoint)
            if checkpoint.metadata
            else load_without_code(transformers.AutoTokenizer, checkpoint.directory)
        )
        self.tokenizer = tokenizer
        config = self.network.config
        config.use_cache = False
        if getattr(config, "pad_token_id", None) is None:  # where a text ends is told by it
            config.pad_token_id = tokenizer.pad_token_id
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and config.model_type in _SHIFTED:
            positions -= (config.pad_token_id or 0) + 1
        self.max_tokens = min(positions or 2**30, tokenizer.model_max_length)

    @override
    def limit_texts(self, max_tokens: int) -> None:
        self.max_tokens = min(self.max_tokens, max_tokens)
        self.info = replace(self.info, max_seq_len=self.max_tokens)

    @property
    def vector_size(self) -> int:
        """Numbers of a vector that it makes; 0 where it makes none."""
        return 0

    @abstractmethod
    def finish(self, out: Tensor, mask: Tensor, num_hidden: int) -> Tensor:
        """The values of some texts, (B, C).

        Args:
            out: The network's `output`, one row for each text.
            mask: Which of its positions hold tokens, (B, T).
            num_hidden: Tokens at the beginning of each text that are those of a prompt.
        """

    def prompt_of(self, request: ReadRequest) -> str:
        """What stands before each text of a request.

        Raises:
            RequestError: The model has no such prompt.
        """
        if request.prompt_name is not None:
            raise without_prompts()
        return ""

    def clean(self, text: str) -> str:
        """A text as the model wants it."""
        return text

    @torch.inference_mode()
    def read_texts(self, request: ReadRequest, outlet: Outlet[TextsRead]) -> None:
        """Read texts, those of about the same length at once.

        Args:
            request: Which.
            outlet: Gets what came of them, in no order; it may end the work between two batches.

        Raises:
            RequestError: One is too long, or there is no such prompt, or they have more hidden
                states than one answer may hold.
        """
        prompt = self.prompt_of(request)
        rows = []
        for text in request.texts:
            outlet.check()
            rows.append(self._tokenize(text, prompt, request.cut))
        num_hidden = self._num_tokens_of(prompt)
        num_tokens = sum(len(row["input_ids"]) for row in rows)
        if request.per_token and num_tokens > MAX_STATES:
            raise RequestError(
                "the texts have too many tokens for one answer.",
                param="input",
                found=str(num_tokens),
                expected=f"at most {MAX_STATES}",
                hint="ask for fewer texts at once",
            )
        for places in batches([len(row["input_ids"]) for row in rows]):
            outlet.check()
            inputs = self._pad([rows[place] for place in places])
            out = self.network(return_dict=True, **inputs)
            states = getattr(out, self.output)
            lengths = [len(rows[place]["input_ids"]) for place in places]
            values: Iterable[NDArray[np.float32]]
            if request.per_token:
                found = states.float().cpu().numpy()
                values = [row[:length] for row, length in zip(found, lengths, strict=True)]
            else:
                pooled = self.finish(states, inputs["attention_mask"], num_hidden)
                values = pooled.float().cpu().numpy()
            outlet.emit(TextsRead(places, values, lengths))

    def tokenize(self, text: str, *, adds_special: bool) -> list[tuple[int, str]]:
        """A text as tokens, and how the vocabulary spells each; on the pipeline's thread."""
        ids = self.tokenizer(self.clean(text), add_special_tokens=adds_special)["input_ids"]
        return list(zip(ids, self.tokenizer.convert_ids_to_tokens(ids), strict=True))

    def detokenize(self, ids: Sequence[int]) -> str:
        """Tokens as a text; on the pipeline's thread.

        Raises:
            RequestError: One is outside the vocabulary.
        """
        size = self.info.vocab_size
        if min(ids, default=0) < 0 or max(ids, default=0) >= size:
            raise outside_vocabulary(size)
        return str(self.tokenizer.decode(ids))

    def beginning(self, text: str, most: int) -> str:
        """The beginning of a text, of so many tokens; on the pipeline's thread."""
        cleaned = self.clean(text)
        if getattr(self.tokenizer, "is_fast", False):  # it knows where tokens are in the text
            row = self.tokenizer(
                cleaned, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            places = row["offset_mapping"]
            return text if len(places) <= most else cleaned[: places[most - 1][1]]
        ids = [token_id for token_id, _ in self.tokenize(text, adds_special=False)]
        return text if len(ids) <= most else self.detokenize(ids[:most])

    def _tokenize(
        self, text: str | tuple[str, str], prompt: str, cut: Cut | None
    ) -> Mapping[str, list[int]]:
        first, *second = (text,) if isinstance(text, str) else text
        given = [self.clean(each) for each in (prompt + first, *second)]
        most = self.max_tokens
        kwargs: dict[str, Any] = {"return_attention_mask": True}
        if cut is not None:
            most = min(most, cut.most or most)
            kwargs |= {"truncation": True, "max_length": most}
            self.tokenizer.truncation_side = cut.drops  # one thread alone uses it
        try:
            row: dict[str, list[int]] = self.tokenizer(*given, **kwargs)
        except Exception as error:  # as Rust panics where special tokens alone have no room
            raise RequestError(
                "a text cannot be cut so short.", found=f"{type(error).__name__}"
            ) from error
        if not 0 < len(row["input_ids"]) <= most:
            raise RequestError(
                "a text is empty, or too long for the model.",
                param="input",
                found=f"{len(row['input_ids'])} tokens",
                expected=f"1 to {most}",
                hint="truncate_prompt_tokens=-1 keeps what fits" if row["input_ids"] else "",
            )
        return row

    def _num_tokens_of(self, prompt: str) -> int:
        """How many tokens stand before a text that follows a prompt."""
        if not prompt:
            return 0
        ids = self.tokenizer(prompt)["input_ids"]
        ends = {self.tokenizer.sep_token_id, self.tokenizer.eos_token_id}
        return len(ids) - (ids[-1] in ends)

    def _pad(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
        """The inputs of a batch, (B, T) each; what is shorter ends with padding."""
        fillers = {
            "input_ids": self.tokenizer.pad_token_id or 0,
            "token_type_ids": self.tokenizer.pad_token_type_id,
            "attention_mask": 0,
        }
        return {
            name: pad_sequence(
                [torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=filler
            ).to(self.device)
            for name, filler in fillers.items()
            if name in rows[0]
        }


class Gathered:
    """An outlet that puts what came of texts in their order.

    Args:
        num_texts: How many there are.
        check: Raises where the work is to end.

    Attributes:
        lengths: How many tokens each text has, by place; 0 of those that are not there yet.
    """

    def __init__(self, num_texts: int, *, check: Callable[[], object] = lambda: None) -> None:
        self._check = check
        self._found: list[NDArray[np.float32] | None] = [None] * num_texts
        self.lengths = [0] * num_texts

    def emit(self, item: TextsRead) -> None:
        """Take what came of some texts."""
        for place, row, length in zip(item.places, item.values, item.lengths, strict=True):
            self._found[place] = row
            self.lengths[place] = length

    def check(self) -> None:
        """Raise where the work is to end."""
        self._check()

    @property
    def num_tokens(self) -> int:
        """How many tokens the texts have together."""
        return sum(self.lengths)

    @property
    def rows(self) -> list[NDArray[np.float32]]:
        """What came of each text: (C,), or for a request per token (T, C)."""
        return [row for row in self._found if row is not None]

    @property
    def values(self) -> NDArray[np.float32]:
        """What came of all texts, (N, C)."""
        return np.stack(self.rows)


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places of texts, in batches of similar lengths that take no more than so many tokens."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda each: lengths[each]):
        if batch and lengths[place] * (len(batch) + 1) > MAX_BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
