"""VOCABS: the named vocabularies, as the facts about them that no tokenizer file tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blazr.core.table import Table
from blazr.text.vocabs.agent_tokens import agent_token_ids

# Embeddings are padded to a multiple of one of these.
PADDINGS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocab:
    """A named vocabulary. The pieces themselves are inside the ``splintr`` package.

    Args:
        name: What ``--vocab`` and config.json's ``tokenizer_vocab`` call it.
        size: Its ids are below this.
        base_size: The ids of the original vocabulary are below this; agent tokens come after.
        eos_id: The end-of-text token.
        bos_id: The beginning-of-text token, None where there is none.
        extra_stop_ids: Other tokens that end a reply, in a chat or not.
        agent_tokens: The 54 agent tokens: ``"<|user|>"`` to its id.
        unassigned: Ranges of ids below ``size`` that mean nothing.
        published: Rows of released models that are padded otherwise than to a next multiple.
    """

    name: str
    size: int
    base_size: int
    eos_id: int
    bos_id: int | None = None
    extra_stop_ids: tuple[int, ...] = ()
    agent_tokens: Mapping[str, int]
    unassigned: tuple[range, ...]
    published: tuple[int, ...] = ()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end any text."""
        return (self.eos_id, *self.extra_stop_ids)


# The tokens that end a reply in a chat, besides `stop_ids`: another turn begins there.
CHAT_STOP_NAMES = ("<|system|>", "<|user|>", "<|assistant|>", "<|im_end|>", "<|stop|>")

VOCABS: Table[Vocab] = Table.of(
    "vocabulary",
    (
        Vocab(
            name="cl100k_base",
            size=100_331,
            base_size=100_277,
            eos_id=100_257,
            agent_tokens=agent_token_ids(100_277),
            unassigned=(range(100_256, 100_257), range(100_261, 100_276)),
        ),
        Vocab(
            name="llama3",
            size=128_354,
            base_size=128_256,
            eos_id=128_001,
            bos_id=128_000,
            extra_stop_ids=(128_008, 128_009),  # <|eom_id|>, <|eot_id|>
            agent_tokens=agent_token_ids(128_300, first_media_id=128_256),
            unassigned=(
                range(128_011, 128_256),
                range(128_262, 128_300),
                range(128_342, 128_348),
            ),
        ),
        Vocab(
            name="deepseek_v3",
            size=128_954,
            base_size=128_815,
            eos_id=1,
            bos_id=0,
            extra_stop_ids=(128_805,),  # <|EOT|>
            agent_tokens=agent_token_ids(128_900),
            unassigned=(range(128_000, 128_798), range(128_815, 128_900)),
            published=(129_280,),
        ),
        Vocab(
            name="o200k_base",
            size=200_073,
            base_size=200_019,
            eos_id=199_999,
            agent_tokens=agent_token_ids(200_019),
            unassigned=(range(199_998, 199_999), range(200_000, 200_018)),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class VocabGuess:
    """A vocabulary told by the rows of an embedding.

    Args:
        vocab: The vocabulary, None where none or several fit.
        reason: Why, as a clause: ``"128,256 rows are those of llama3"``.
    """

    vocab: Vocab | None
    reason: str


def guess_vocab(num_rows: int) -> VocabGuess:
    """The vocabulary whose number of tokens an embedding has, exactly or padded."""
    for vocab in VOCABS.values():
        if vocab.base_size <= num_rows <= vocab.size:
            agents = sum(each < num_rows for each in vocab.agent_tokens.values())
            return VocabGuess(
                vocab, f"{num_rows:,} rows are {vocab.name} with {agents} of 54 agent tokens"
            )
    fitting = [
        vocab
        for vocab in VOCABS.values()
        if num_rows in vocab.published
        or any(
            num_rows == -(-size // step) * step
            for size in (vocab.base_size, vocab.size)
            for step in PADDINGS
        )
    ]
    names = " and ".join(vocab.name for vocab in fitting)
    if len(fitting) == 1:
        return VocabGuess(fitting[0], f"{num_rows:,} rows are {names} with padding")
    if fitting:
        return VocabGuess(None, f"{num_rows:,} rows fit {names} with padding")
    return VocabGuess(None, f"{num_rows:,} rows are those of no known vocabulary")
