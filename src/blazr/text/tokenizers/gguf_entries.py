"""The metadata of a tokenizer, ``tokenizer.ggml.*``, read without trusting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blazr.core.errors import CheckpointError
from blazr.core.gguf_header import Value
from blazr.text.tokenizer import LARGEST_ID

# Kinds of tokens, as SentencePiece numbers them and GGUF does after it.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
BYTE = 6
# Ours: a user-defined token that SentencePiece finds itself, after it has marked the spaces.
WHOLE = 7
KEY = "tokenizer.ggml."
# Ours: what follows a token that was found by its name begins without a space.
SPACE_PREFIX_ONCE = "space_prefix_once"
# Ours: characters are composed first, Unicode's form NFC.
COMPOSES = "composes"
# Llama's tokens, which llama.cpp takes where SentencePiece's byte pairs name none, as in files that
# were converted from Meta's own.
_USUAL = {"bos_token_id": (1, "<s>"), "unknown_token_id": (0, "<unk>")}


class Entries:
    """The metadata of a tokenizer, read without trusting them."""

    def __init__(self, metadata: Mapping[str, Value]) -> None:
        self._metadata = metadata
        self.tokens: list[str] = self.texts("tokens")
        if not 0 < len(self.tokens) <= LARGEST_ID:
            raise wrong("tokens", f"{len(self.tokens)} of them")
        types = self._metadata.get(KEY + "token_type")
        self.types: Sequence[int] = types if isinstance(types, memoryview) else ()
        if self.types and len(self.types) < len(self.tokens):
            raise wrong("token_type", f"{len(self.types)} for {len(self.tokens)} tokens")
        self.types = self.types or [NORMAL] * len(self.tokens)
        self.model_name = str(metadata.get("general.name", "")).lower()

    def has(self, key: str) -> bool:
        """Whether the file says anything of it."""
        return KEY + key in self._metadata

    def text(self, key: str) -> str:
        """A string; an empty one where there is none."""
        value = self._metadata.get(KEY + key, "")
        if not isinstance(value, str):
            raise wrong(key, repr(value))
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; an empty one where there is none."""
        value = self._metadata.get(KEY + key, [])
        if isinstance(value, memoryview) and not value:
            return []  # some writers give an empty list the type of numbers
        if not isinstance(value, list):
            raise wrong(key, repr(value))
        return [str(each) for each in value]

    def scores(self) -> Sequence[float]:
        """The score of each token, for SentencePiece."""
        value = self._metadata.get(KEY + "scores", ())
        count = len(value) if isinstance(value, memoryview | tuple) else 0
        if not isinstance(value, memoryview) or count < len(self.tokens):
            raise wrong("scores", f"{count} for {len(self.tokens)} tokens")
        return value

    def bytes(self, key: str) -> bytes:
        """Bytes; none where there are none."""
        value = self._metadata.get(KEY + key)
        return value.tobytes() if isinstance(value, memoryview) else b""

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001  (as `dict.get` takes it)
        """A boolean; the default where there is none."""
        value = self._metadata.get(KEY + key, default)
        if not isinstance(value, bool):
            raise wrong(key, repr(value))
        return value

    def token_ids(self, key: str) -> list[int]:
        """The ids of the tokens that share a role, for keys of Ollama's (convert/convert.go)."""
        value = self._metadata.get(KEY + key)
        listed = value.tolist() if isinstance(value, memoryview) else []
        return [each for each in listed if isinstance(each, int) and 0 <= each < len(self.tokens)]

    def token_id(self, key: str) -> int | None:
        """The id of the token with a role; None where none is named and none is usual."""
        value = self._metadata.get(KEY + key)
        if type(value) is int and 0 <= value < len(self.tokens):
            return value
        if key in _USUAL and self._metadata.get(KEY + "model") == "llama":
            usual, name = _USUAL[key]
            return usual if self.tokens[usual : usual + 1] == [name] else None
        return None


def unused_name(token_id: int) -> str:
    """The name of an id that no token has, as llama.cpp's converter writes it."""
    return f"[PAD{token_id}]"


def wrong(key: str, found: str) -> CheckpointError:
    """The error about a key."""
    return CheckpointError(
        f"the metadata {KEY}{key} of the GGUF file cannot be used.",
        found=found[:100],
        hint="convert the model again, or name a tokenizer.json with --vocab",
    )
