# ruff: noqa: RUF001  (letters of many scripts)
"""How byte-pair vocabularies in GGUF files split text into words before merging, by name (data).

A file names its way in ``tokenizer.ggml.pre``. Each is a list of regular expressions applied one
after the other: what one matches becomes a piece, and so does what lies between two matches.

Source: the ``tokenizer.json`` files of the models, and the list of names of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Pattern:
    """A way to split.

    Args:
        expressions: In the order they are applied.
        whole_words: Whether a piece that is a token is not merged from its parts.
        adds_bos: Whether a text begins with the beginning-of-text token, if the file says nothing.
    """

    expressions: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA_3 = rf"{_CONTRACTION}|{_START}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN_2 = rf"{_CONTRACTION}|{_START}\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN_35 = (
    rf"{_CONTRACTION}|{_START}[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}"
_GPT_4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
)
_GPT_4O_DIGITS = _GPT_4O.replace(r"\p{N}{1,3}", r"\p{N}")
# Runs of spaces fall into powers of two.
_RUNS = "|".join(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1))
_JAIS_2 = (
    rf"{_CONTRACTION}|{_START}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    rf"|{_RUNS}|\s{{1,2}}(?!\S)|\s{{1}}"
)
_EXAONE_MOE = (
    rf"{_CONTRACTION}|{_START}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
# Digits in threes from the right.
_THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_AYA_THREES = r"\d{1,3}(?=(?:\d{3})*\b)"
_EAST_ASIAN = (
    "[一-鿿㐀-䶿豈-﫿\u3040-ゟ゠-ヿ･-ﾟ⼀-⿟เ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-꧿가-\ud7afᄀ-ᇿ]+"
)
_YOUTU_WORDS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+"
# Han apart from other letters
_KIMI_UPPER, _KIMI_LOWER = (each[:-1] + r"&&[^\p{Han}]]" for each in (_UPPER, _LOWER))
_KIMI = (
    rf"[\p{{Han}}]+|{_START}{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTION}?"
    rf"|{_START}{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}|{_TAIL}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CJK = "[一-龥ࠀ-一가-퟿]+"
# Letters with case, as of the Unicode of its day; those that have another form are spelled out.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉ"
    "ⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]", rf"\s?[{_CASED}]+", "\\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}+",
)  # fmt: skip
_DEEPSEEK_V3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3 = (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK_V3_WORDS)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_BAILING = (
    rf"'(?i:[sdmt]|ll|ve|re)|{_START}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED_CODER = (
    rf"{_CONTRACTION}|{_START}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# What is taken where a file names nothing.
DEFAULT = Pattern((r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", r"[0-9][0-9][0-9]"))

_LIKE_GPT_2 = (
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe"
    " gigachat a.x-4.0 mellum modern-bert exaone4 mpt olmo jais trillion granite-docling"
)
_ROWS: tuple[tuple[str, Pattern], ...] = (
    ("default", DEFAULT),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Pattern((_LLAMA_3,), whole_words=True, adds_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", Pattern((_LLAMA_3,))),
    ("minicpm5", Pattern((r"\p{N}{1,3}", _LLAMA_3), whole_words=True)),
    ("tekken", Pattern((_TEKKEN,), whole_words=True, adds_bos=True)),
    ("kimi-k2", Pattern((_KIMI,), whole_words=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", Pattern((_GPT_4O,))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez solar-open grok-2",
        Pattern((_QWEN_2,)),
    ),
    ("qwen35", Pattern((_QWEN_35,))),
    ("deepseek-llm", Pattern(_DEEPSEEK_LLM)),
    ("deepseek-coder", Pattern(_DEEPSEEK_CODER)),
    ("deepseek-v3 hunyuan-dense joyai-llm", Pattern(_DEEPSEEK_V3)),
    ("falcon", Pattern((r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, r"[0-9][0-9][0-9]"))),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        Pattern((r"\p{N}", _GPT_2)),
    ),
    (_LIKE_GPT_2, Pattern((_GPT_2,))),
    ("poro-chat bloom gpt3-finnish", Pattern((_BLOOM,))),
    ("viking", Pattern((_BLOOM, r"\p{N}"))),
    ("bailingmoe bailingmoe2 llada-moe", Pattern((_BAILING,))),
    ("seed-coder", Pattern((_SEED_CODER,))),
    ("jais-2", Pattern((_JAIS_2,))),
    ("tiny_aya cohere2moe", Pattern((_AYA_THREES, _GPT_4O))),
    ("laguna", Pattern((r"[^\n]+|[\n]+", _QWEN_2))),
    ("youtu", Pattern((_YOUTU_WORDS, _GPT_4O_DIGITS), whole_words=True)),
    ("exaone-moe", Pattern((_EXAONE_MOE,))),
    ("afmoe", Pattern((_THREES, _EAST_ASIAN, _DEEPSEEK_V3_WORDS))),
    ("superbpe", Pattern((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
)

PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {name: pattern for names, pattern in _ROWS for name in names.split()}
)
