"""VOCABS: the named vocabularies, as the facts about them that no tokenizer file tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blazr.core.table import Table
from blazr.text.vocabs.agent_tokens import agent_token_ids

# Below this a model's size says nothing of its vocabulary: too many have 32,000 rows.
SMALLEST_KNOWN_MODEL = 32_101


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
        largest_model: A model with at most this many rows, and more than the next smaller
            vocabulary's, is taken to speak this one. Above ``size``, as models pad their rows.
    """

    name: str
    size: int
    base_size: int
    eos_id: int
    bos_id: int | None = None
    extra_stop_ids: tuple[int, ...] = ()
    agent_tokens: Mapping[str, int]
    unassigned: tuple[range, ...]
    largest_model: int

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end any text."""
        return (self.eos_id, *self.extra_stop_ids)

    @property
    def chat_stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a reply in a chat, besides `stop_ids`: another turn begins there."""
        return tuple(self.agent_tokens[name] for name in CHAT_STOP_NAMES)


CHAT_STOP_NAMES = ("<|system|>", "<|user|>", "<|assistant|>", "<|im_end|>", "<|stop|>")

VOCABS: Table[Vocab] = Table(
    "vocabulary",
    {
        row.name: row
        for row in (
            Vocab(
                name="cl100k_base",
                size=100_331,
                base_size=100_277,
                eos_id=100_257,
                agent_tokens=agent_token_ids(100_277),
                unassigned=(range(100_256, 100_257), range(100_261, 100_276)),
                largest_model=100_350,
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
                largest_model=128_400,
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
                largest_model=130_000,
            ),
            Vocab(
                name="o200k_base",
                size=200_073,
                base_size=200_019,
                eos_id=199_999,
                agent_tokens=agent_token_ids(200_019),
                unassigned=(range(199_998, 199_999), range(200_000, 200_018)),
                largest_model=201_500,
            ),
        )
    },
)


def vocab_of_model(vocab_size: int) -> Vocab | None:
    """The vocabulary a model with that many rows is taken to speak, None where that is unclear."""
    if vocab_size < SMALLEST_KNOWN_MODEL:
        return None
    rows = sorted(VOCABS.values(), key=lambda row: row.largest_model)
    return next((row for row in rows if vocab_size <= row.largest_model), None)
