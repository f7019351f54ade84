"""``blazr encode`` and ``blazr decode``: text and token ids, without a model."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from blazr.cli import options
from blazr.core.errors import ConfigError
from blazr.core.json_text import dump_json
from blazr.text.tokenizer import Tokenizer

_Vocab = Annotated[
    str, typer.Option(help="cl100k_base, o200k_base, llama3, deepseek_v3, …, or a tokenizer file.")
]


def encode(
    text_argument: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The same as --text.", show_default=False)
    ] = None,
    *,
    text: Annotated[
        str | None, typer.Option(help="Text to encode; - or nothing reads stdin.")
    ] = None,
    vocab: _Vocab = "cl100k_base",
    special: Annotated[
        bool,
        typer.Option(
            "--special",
            help="Encode names of special tokens in the text (<|user|>) as those tokens.",
        ),
    ] = False,
    as_json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Print the token ids of a text, separated by commas."""
    given = _read(
        text_argument if text is None else text, "give a text, or - to read it from stdin"
    )
    tokenizer = _open(vocab)
    ids = tokenizer.encode(given, allow_special=special)
    if as_json:
        print(dump_json({"vocab": tokenizer.name, "count": len(ids), "ids": ids}))
    else:
        print(",".join(map(str, ids)))


def decode(
    ids_argument: Annotated[
        str | None, typer.Argument(metavar="IDS", help="The same as --ids.", show_default=False)
    ] = None,
    *,
    ids: Annotated[
        str | None,
        typer.Option(help='Token ids to decode, such as "123,456"; - or nothing reads stdin.'),
    ] = None,
    vocab: _Vocab = "cl100k_base",
    as_json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001  (its callback does it)
) -> None:
    """Print the text of token ids, special tokens included."""
    given = _read(ids_argument if ids is None else ids, "give ids, or - to read them from stdin")
    tokenizer = _open(vocab)
    words = [word for word in re.split(r"[\s,\[\]]+", given) if word]
    wrong = next((word for word in words if not re.fullmatch(r"\d{1,9}", word)), None)
    numbers = [] if wrong else [int(word) for word in words]
    wrong = wrong or next((str(each) for each in numbers if each >= tokenizer.size), None)
    if wrong:
        raise ConfigError(
            "token ids are not understood.",
            found=repr(wrong[:50]),
            expected=f"numbers from 0 to {tokenizer.size - 1}, separated by commas",
        )
    text = tokenizer.decode(numbers, skip_special=False)
    print(dump_json({"vocab": tokenizer.name, "text": text}) if as_json else text)


def _read(given: str | None, what_to_give: str) -> str:
    """What is given, or what stdin holds; a terminal is not waited for unless ``-`` asks for it."""
    if given is None and sys.stdin.isatty():
        raise typer.BadParameter(what_to_give)
    return sys.stdin.read() if given is None or given == "-" else given


def _open(vocab: str) -> Tokenizer:
    from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer

    tokenizer = load_tokenizer(find_tokenizer(vocab=vocab))
    if tokenizer is None:
        raise ConfigError("there is no such vocabulary.", found=repr(vocab[:50]))
    return tokenizer
