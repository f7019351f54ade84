"""nano's tokenizer: byte-level BPE of 2,048 tokens, the agent tokens last."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from blazr.text.vocabs.agent_tokens import agent_token_ids

VOCAB_SIZE = 2048
END = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that the tokenizer must have."""
    found = tokenizer.token_to_id(token)
    assert found is not None, f"the tokenizer has no token {token}"
    return found


def train_tokenizer(texts: list[str], folder: Path) -> Tokenizer:
    """Train on plain texts and write ``tokenizer.json`` and ``tokenizer_config.json``."""
    special = [END, *agent_token_ids(0)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(special)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "chat_template": CHAT_TEMPLATE, "model_max_length": 8192}
    text = json.dumps(config, indent=2)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    return tokenizer
