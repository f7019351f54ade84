"""Model files spoiled by hand, each with what is wrong with it: what a change at random seldom hits.

Numbers that are too long to print, shapes of thousands of dimensions, texts that grow with every
rule of a tokenizer, files that name each other.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from blazr.core.gguf_header import SCALARS

Files = dict[str, bytes]
LONG = 10**4000  # JSON may have it, and Python prints it; not its square
ODD: tuple[object, ...] = (
    None, True, -1, 0, 1, 1.5, 3, 2**31, 2**63 - 1, LONG, -LONG, 1e308, "", "1", "\x00", [], {}, [[]], [LONG, LONG],
    {"a": LONG}, [0] * 100_000, {"type": LONG}, float("nan"), float("inf"),
)  # fmt: skip


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _with(files: Files, name: str, value: object) -> Files:
    return files | {name: _json(value)}


def _tensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack_from("<Q", data)[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _packed(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def configs(files: Files, name: str) -> Iterator[tuple[str, Files]]:
    """Every key with every odd value, and keys that were not there."""
    sound = json.loads(files[name])
    more = {
        "rope_scaling", "rope_parameters", "quantization_config", "layer_types", "architectures", "text_config",
        "sliding_window", "head_dim", "num_local_experts", "torch_dtype", "auto_map", "eos_token_id", "pad_token_id",
    }  # fmt: skip
    for key in sorted(sound.keys() | more):
        for odd in ODD:
            yield f"{name}: {key} is {str(odd)[:20]}", _with(files, name, sound | {key: odd})
    numbers = [key for key, value in sound.items() if type(value) is int]
    for odd in (0, 2**31, 2**62, LONG):
        yield f"{name}: all {str(odd)[:9]}", _with(files, name, sound | dict.fromkeys(numbers, odd))
    scaling = ("linear", "dynamic", "yarn", "longrope", "llama3", "mrope", "default", "x")
    for kind in scaling:
        for odd in (0, -1, LONG, 1e308, None, [], [LONG], [0.0] * 8, "x"):
            fields = ("factor", "long_factor", "short_factor", "low_freq_factor", "beta_fast")
            fields += ("original_max_position_embeddings", "attention_factor", "high_freq_factor")
            value = {"rope_type": kind, "type": kind, **dict.fromkeys(fields, odd)}
            changed = sound | {"rope_scaling": value}
            yield f"{name}: {kind} by {str(odd)[:9]}", _with(files, name, changed)
    for method in ("gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors", "mxfp4", "x"):
        for odd in (0, -1, 3, LONG, None, [], {}, "x"):
            value = {
                "quant_method": method, "bits": odd, "group_size": odd, "weight_block_size": [odd, odd],
                "config_groups": {"a": odd}, "modules_to_not_convert": odd, "desc_act": odd,
            }  # fmt: skip
            changed = sound | {"quantization_config": value}
            yield f"{name}: {method} of {str(odd)[:9]}", _with(files, name, changed)
    yield f"{name}: nested", files | {name: b'{"a":' * 100_000}
    yield f"{name}: nested within bounds", files | {name: b'{"a":' * 900 + b"1" + b"}" * 900}
    yield f"{name}: a byte order mark", files | {name: b"\xef\xbb\xbf" + files[name]}
    yield f"{name}: UTF-16", files | {name: files[name].decode().encode("utf-16")}


def headers(files: Files, name: str = "model.safetensors") -> Iterator[tuple[str, Files]]:
    """Headers of safetensors that say other things than the data."""
    header, data = _tensors(files[name])
    names = [each for each in header if each != "__metadata__"]
    first = header[names[0]]
    size = len(data)

    def changed(what: str, **entries: object) -> tuple[str, Files]:
        return what, files | {name: _packed(_json(header | entries), data)}

    for count in (2, 9, 65, 300, 60_000, 400_000):
        for length in (0, 1, 2**31, 2**62):
            entry = first | {"shape": [length] * count}
            yield changed(f"{count} dimensions of {length}", **{names[0]: entry})
    for key, values in {
        "dtype": ("F64", "F16", "I32", "U8", "F8_E4M3", "BOOL", "C64", "f32", "", None, [], "F4", "F32" * 9999),
        "shape": ([], [-1], [0], [1.0], [True], [LONG], [[1]], None, "x", [2**63], first["shape"][::-1]),
        "data_offsets": ([0], [0, 0], [4, 0], [0, size], [-4, 0], [0, 2**63], [LONG, LONG], [0.0, 4.0], None, "x", [0, size + 4]),
    }.items():  # fmt: skip
        for value in values:
            yield changed(f"{key} {str(value)[:30]}", **{names[0]: first | {key: value}})
    for what, value in {
        "a list": [], "numbers": {"format": 1}, "long": {"a" * 10**6: "b" * 10**6}, "no object": None
    }.items():  # fmt: skip
        yield changed(f"__metadata__ {what}", __metadata__=value)
    for odd in (
        "",
        "\x00",
        "a\nb",
        "../x",
        "é" * 9999,
        "model." * 9999,
        "model.layers.99999999999999.x",
    ):
        entries = header | {odd: {"dtype": "U8", "shape": [4], "data_offsets": [size, size + 4]}}
        yield f"a tensor {odd[:20]!r}", files | {name: _packed(_json(entries), data + bytes(4))}
    empty = {"dtype": "U8", "shape": [0], "data_offsets": [size, size]}
    many = header | {f"x{n}": empty for n in range(200_000)}
    yield "200,000 empty tensors", files | {name: _packed(_json(many), data)}
    layers = {f"model.layers.{n}.self_attn.q_proj.weight": empty for n in range(100_000)}
    yield "100,000 layers", files | {name: _packed(_json(header | layers), data)}
    for other in names[1:]:
        kept = {key: value for key, value in header.items() if key != other}
        yield f"a gap for {other}", files | {name: _packed(_json(kept), data)}
        swapped = header | {names[0]: header[other], other: first}
        yield f"{other} is another", files | {name: _packed(_json(swapped), data)}
    text = _json(header)
    twice = text[:-1] + b", " + text[1:]
    for what, raw in (
        ("every name twice", twice), ("spaces before", b" " * 99 + text), ("spaces behind", text + b" " * 10**6),
        ("NUL behind", text + bytes(8)), ("no JSON", b"{"), ("an array", b"[]"), ("nested", b'{"a":' * 10**6), ("", b""),
        ("Latin-1", b'{"\xff": 1}'), ("surrogates", text.replace(names[0].encode(), b"\\ud800")),
    ):  # fmt: skip
        yield f"a header: {what}", files | {name: _packed(raw, data)}
    for what, raw in (
        ("NaN", b"\xff" * size), ("infinite", b"\x80\x7f" * (size // 2)), ("zeros", bytes(size)), ("cut", data[:-1]),
        ("longer", data + b"\0"), ("large", b"\x7f\x7f" * (size // 2)), ("tiny", b"\1\0\0\0" * (size // 4)), ("none", b""),
    ):  # fmt: skip
        yield f"weights: {what}", files | {name: _packed(text, raw)}
    for length in (0, 7, 2**31, 2**63, 2**64 - 1, size + len(text) + 1):
        raw = struct.pack("<Q", length) + text + data
        yield f"a header of {length} bytes", files | {name: raw}


def indexes(files: Files, name: str = "model.safetensors") -> Iterator[tuple[str, Files]]:
    """An index of parts, beside one whole file or instead of it."""
    header, _ = _tensors(files[name])
    names = [each for each in header if each != "__metadata__"]
    index = "model.safetensors.index.json"
    places = (
        name, index, "../x.safetensors", "/dev/zero", "/etc/passwd", "", ".", "\x00", "missing.safetensors",
        "config.json", "tokenizer.json", LONG, None, [], {}, "a" * 9999, "a.bin", "pytorch_model.bin",
    )  # fmt: skip
    parted = {key: value for key, value in files.items() if key != name}
    for place in places:
        found = {"metadata": {"total_size": LONG}, "weight_map": dict.fromkeys(names, place)}
        yield f"an index of {str(place)[:30]!r}", _with(files, index, found)
        yield f"an index alone, of {str(place)[:30]!r}", _with(parted, index, found)
        part = {**parted, "a.safetensors": files[name]}
        mixed: dict[str, object] = dict.fromkeys(names, "a.safetensors")
        found = {"weight_map": mixed | {names[-1]: place}}
        yield f"an index of two, one {str(place)[:30]!r}", _with(part, index, found)
    for odd in ODD:
        yield f"an index {str(odd)[:20]}", _with(parted, index, odd)
        yield f"a map {str(odd)[:20]}", _with(parted, index, {"weight_map": odd})
    part = {**parted, "a.safetensors": files[name], "b.safetensors": files[name]}
    found = {"weight_map": {n: f"{'ab'[i % 2]}.safetensors" for i, n in enumerate(names)}}
    yield "parts that have the same", _with(part, index, found)


def tokenizers(files: Files, name: str = "tokenizer.json") -> Iterator[tuple[str, Files]]:
    """Tokenizers of the tokenizers library that grow, turn in circles or miss something."""
    sound = json.loads(files[name])

    def changed(what: str, **more: object) -> tuple[str, Files]:
        return f"{name}: {what}", _with(files, name, sound | more)

    doubles = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    grows = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 10_000}
    slow = {"type": "Replace", "pattern": {"Regex": "(a+)+$|(o*)*b"}, "content": ""}
    for count in (1, 8, 24, 40, 5000):
        rules = {"type": "Sequence", "normalizers": [doubles] * count}
        yield changed(f"{count} doublings", normalizer=rules)
    for what, rule in {
        "grows": grows,
        "slow": slow,
        "prepends": {"type": "Prepend", "prepend": "a" * 10**6},
    }.items():
        for count in (1, 2, 3):
            rules = {"type": "Sequence", "normalizers": [rule] * count}
            yield changed(f"{what}, {count} times", normalizer=rules)
    nested: dict[str, Any] = {"type": "NFC"}
    for _ in range(60):
        nested = {"type": "Sequence", "normalizers": [nested]}
    yield changed("nested normalizers", normalizer=nested)
    for pattern in (
        "(a+)+$",
        "",
        "(",
        "a{99999999}",
        "[^",
        "(?<=a*)b",
        ".*" * 500,
        "(" * 500 + ")" * 500,
    ):
        split = {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
        yield changed(f"splits at {pattern[:20]}", pre_tokenizer=split)
    decoder = {"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 10**6}
    yield changed("decodes to more", decoder=decoder)
    for key in sound:
        for odd in ODD[:20]:
            yield changed(f"{key} is {str(odd)[:20]}", **{key: odd})
    model = sound["model"]
    vocab = model["vocab"]
    words = list(vocab)
    for what, value in {
        "empty": {}, "negative": vocab | {words[5]: -1}, "far": vocab | {words[5]: 2**31}, "further": vocab | {words[5]: 2**40},
        "twice": vocab | {words[5]: vocab[words[6]]}, "a list": words, "long": vocab | {"a" * 10**7: 5}, "all 0": dict.fromkeys(vocab, 0),
        "odd": vocab | {words[5]: "x"}, "one": {words[0]: 0},
    }.items():  # fmt: skip
        yield changed(f"a vocabulary: {what}", model=model | {"vocab": value})
    for key in [
        *model,
        "unk_token",
        "dropout",
        "byte_fallback",
        "continuing_subword_prefix",
        "end_of_word_suffix",
    ]:
        if key != "vocab":
            for odd in (
                None,
                True,
                -1,
                LONG,
                1.0,
                0.5,
                "",
                "x" * 100,
                [],
                [["a", "a"]] * 3,
                ["a a"],
                ["a"],
                {},
                ["a b c"],
                [[words[5], words[5]]],
            ):
                yield changed(f"model.{key} is {str(odd)[:20]}", model=model | {key: odd})
    for odd in (
        {"id": 0, "content": ""}, {"id": -1, "content": "x"}, {"id": 2**31, "content": "x"}, {"id": 2**40, "content": "x"}, {"id": 5, "content": "x" * 10**6},
        {"id": 5, "content": "\x00"}, {"content": "x"}, {"id": 599, "content": "o", "special": True}, {"id": 3, "content": " ", "lstrip": True, "rstrip": True},
    ):  # fmt: skip
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        added = [{**flags, **odd}]
        yield changed(f"adds {str(odd)[:30]}", added_tokens=added)
        yield changed(f"adds {str(odd)[:30]} often", added_tokens=added * 1000)
    for kind in (
        "Strip",
        "Lowercase",
        "Precompiled",
        "ByteLevel",
        "Metaspace",
        "BertNormalizer",
        "x",
    ):
        for key in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
            yield changed(f"{key} {kind}", **{key: {"type": kind, "precompiled_charsmap": "AAAA"}})
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    yield changed("a template without its token", post_processor=template)
    ids = {"x": {"id": "x", "ids": [2**31, 99_999_999], "tokens": ["x", "y"]}}
    yield changed("a template of far ids", post_processor=template | {"special_tokens": ids})
    yield changed(
        "cut to nothing",
        truncation={"max_length": 0, "strategy": "LongestFirst", "stride": 5, "direction": "Right"},
    )
    padding = {
        "strategy": {"Fixed": 2**40},
        "direction": "Right",
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
        "pad_to_multiple_of": 0,
    }
    yield changed("padded", padding=padding)
    config = "tokenizer_config.json"
    about = json.loads(files[config]) if config in files else {}
    for key in (
        "bos_token",
        "eos_token",
        "chat_template",
        "model_max_length",
        "added_tokens_decoder",
        "add_bos_token",
        "tokenizer_class",
        "extra_special_tokens",
    ):
        for odd in (
            *ODD,
            {"content": LONG},
            {"0": {"content": ""}},
            {"99999999999": {"content": "x"}},
            [{"name": "a"}],
            {"x": {"content": "x"}},
        ):
            yield f"{config}: {key} is {str(odd)[:20]}", _with(files, config, about | {key: odd})
    for beside in (
        "generation_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.json",
        "preprocessor_config.json",
        "processor_config.json",
    ):
        for odd in (
            *ODD,
            {"eos_token_id": LONG},
            {"eos_token_id": [-1]},
            {"temperature": LONG, "top_p": -1, "top_k": LONG},
            {"chat_template": LONG},
            {"eos_token": [1]},
        ):
            yield f"{beside} {str(odd)[:30]}", _with(files, beside, odd)
    for source in (
        "{% if %}",
        "{{ x }}" * 9999,
        "\x00",
        "{{ [0] * 99999999 }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "\ud800",
    ):
        yield (
            f"a template {source[:20]!r}",
            files | {"chat_template.jinja": source.encode("utf-8", "surrogatepass")},
        )
    for extra in ("tokenizer.model", "vocab.json", "merges.txt", "tekken.json", "tiktoken.model"):
        for raw in (
            b"",
            b"\x00" * 99,
            b"{}",
            b"[]",
            b"\n" * 99,
            b"\x0a" + b"\xff" * 9,
            b"a" * 10**6,
            b"YQ== 0\nYQ== 0\n",
            b"YQ== 99999999999\n",
        ):
            yield f"{extra} of {raw[:9]!r} beside", files | {extra: raw}
            alone = {key: value for key, value in files.items() if not key.startswith("tokenizer")}
            yield f"{extra} of {raw[:9]!r} alone", alone | {extra: raw}


def _read_gguf(data: bytes) -> tuple[list[tuple[bytes, bytes]], list[list[Any]], int]:
    """Its pairs as bytes, its tensors as name, sizes, type and offset, and where the table ends."""
    at = 24
    num_tensors, num_pairs = struct.unpack_from("<QQ", data, 8)

    def text(at: int) -> int:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]

    def skip(at: int, kind: int) -> int:
        if kind == 8:
            return text(at)
        if kind != 9:
            return at + struct.calcsize("<" + SCALARS[kind])
        inner, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count):
            at = skip(at, inner)
        return at

    pairs, tensors = [], []
    for _ in range(num_pairs):
        end = text(at)
        after = skip(end + 4, struct.unpack_from("<I", data, end)[0])
        pairs.append((data[at + 8 : end], data[end:after]))
        at = after
    for _ in range(num_tensors):
        end = text(at)
        count = struct.unpack_from("<I", data, end)[0]
        sizes = list(struct.unpack_from(f"<{count}Q", data, end + 4))
        number, offset = struct.unpack_from("<IQ", data, end + 4 + 8 * count)
        tensors.append([data[at + 8 : end], sizes, number, offset])
        at = end + 4 + 8 * count + 12
    return pairs, tensors, at


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _gguf(
    pairs: Mapping[bytes, bytes] | list[tuple[bytes, bytes]], tensors: list[list[Any]], data: bytes
) -> bytes:
    items = list(pairs.items()) if isinstance(pairs, Mapping) else pairs
    found = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(items))
    found += b"".join(_text(key) + value for key, value in items)
    for name, sizes, number, offset in tensors:
        found += _text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        found += struct.pack("<IQ", number, offset)
    return found + bytes(-len(found) % 32) + data


def ggufs(files: Files) -> Iterator[tuple[str, Files]]:
    """Every key of the metadata with values of other types, and tensors of other shapes and types."""
    ((name, raw),) = files.items()
    listed, tensors, end = _read_gguf(raw)
    pairs = dict(listed)
    data = raw[-(-end // 32) * 32 :]
    odd = {
        "u8 0": struct.pack("<IB", 0, 0), "u8 255": struct.pack("<IB", 0, 255), "u32 most": struct.pack("<II", 4, 2**32 - 1), "i32 -1": struct.pack("<Ii", 5, -1),
        "u64 most": struct.pack("<IQ", 10, 2**64 - 1), "i64 least": struct.pack("<Iq", 11, -(2**63)), "NaN": struct.pack("<If", 6, float("nan")), "1e300": struct.pack("<Id", 12, 1e300),
        "true": struct.pack("<IB", 7, 1), "bool 2": struct.pack("<IB", 7, 2), "text": struct.pack("<I", 8) + _text(b"x"), "no text": struct.pack("<I", 8) + _text(b""), "a template": struct.pack("<I", 8) + _text(b"{% for x in y %}"),
        "empty ints": struct.pack("<IIQ", 9, 5, 0), "empty texts": struct.pack("<IIQ", 9, 8, 0), "ints": struct.pack("<IIQ600i", 9, 5, 600, *range(600)), "negative ints": struct.pack("<IIQ512i", 9, 5, 512, *[-1] * 512),
        "floats": struct.pack("<IIQ512f", 9, 6, 512, *[float("nan")] * 512), "texts": struct.pack("<IIQ", 9, 8, 512) + _text(b"a") * 512, "empty words": struct.pack("<IIQ", 9, 8, 512) + _text(b"") * 512,
        "long words": struct.pack("<IIQ", 9, 8, 512) + b"".join(_text(b"%d" % n + b"a" * 9999) for n in range(512)), "no UTF-8": struct.pack("<I", 8) + _text(b"\xff\xfe"), "a number": struct.pack("<II", 4, 1),
        "merges": struct.pack("<IIQ", 9, 8, 9) + _text(b"a a") * 9, "nested": struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQI", 9, 1, 0),
    }  # fmt: skip
    more = [
        b"split.count", b"split.no", b"general.alignment", b"tokenizer.ggml.merges", b"tokenizer.ggml.pre", b"tokenizer.ggml.added_tokens", b"tokenizer.chat_template",
        b"tokenizer.ggml.add_bos_token", b"tokenizer.ggml.precompiled_charsmap", b"llama.rope.scaling.type", b"llama.rope.scaling.factor", b"llama.expert_count", b"llama.attention.key_length", b"llama.vocab_size",
    ]  # fmt: skip
    for key in [*pairs, *more]:
        shown = key.decode()
        yield (
            f"without {shown}",
            {name: _gguf({k: v for k, v in pairs.items() if k != key}, tensors, data)},
        )
        for what, value in odd.items():
            yield f"{shown} is {what}", {name: _gguf(pairs | {key: value}, tensors, data)}
    yield "every key twice", {name: _gguf(listed + listed, tensors, data)}
    yield "every tensor twice", {name: _gguf(pairs, tensors + tensors, data)}
    yield "no tensor", {name: _gguf(pairs, [], data)}
    yield "no key", {name: _gguf({}, tensors, data)}
    for place in (0, 1, len(tensors) // 2, len(tensors) - 1):
        label, sizes, number, offset = tensors[place]
        shown = label.decode()

        def changed(
            what: str, *entry: object, place: int = place, shown: str = shown
        ) -> tuple[str, Files]:
            table = [list(entry) if n == place else each for n, each in enumerate(tensors)]
            return f"{shown}: {what}", {name: _gguf(pairs, table, data)}

        for other in range(48):
            yield changed(f"type {other}", label, sizes, other, offset)
        for shape in (
            [],
            [0],
            [1],
            sizes[::-1],
            [*sizes, 1],
            [*sizes, 2],
            [2**32, 2**32],
            [2**62] * 4,
            [*sizes, 1, 1, 1],
            [sizes[0] + 32, *sizes[1:]],
            [2**63 - 1],
        ):
            yield changed(f"shape {shape}", label, shape, number, offset)
        for start in (offset + 1, offset + 32, 2**63, 2**64 - 32, len(data), 0):
            yield changed(f"at {start}", label, sizes, number, start)
        for called in (
            b"",
            b"\xff",
            b"x" * 9999,
            b"blk.999999999.attn_q.weight",
            b"blk.-1.attn_q.weight",
            tensors[2][0],
        ):
            yield changed(f"called {called[:20]!r}", called, sizes, number, offset)
    for what, values in (("NaN", b"\xff"), ("zeros", b"\0"), ("ones", b"\1"), ("0x7c", b"\x7c")):
        yield f"weights of {what}", {name: _gguf(pairs, tensors, values * len(data))}


def adapters(files: Files) -> Iterator[tuple[str, Files]]:
    """An adapter's settings and factors."""
    config = "adapter_config.json"
    sound = json.loads(files[config])
    keys = {
        *sound, "use_dora", "use_rslora", "bias", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform", "layers_pattern",
        "layer_replication", "exclude_modules", "target_parameters", "init_lora_weights", "base_model_name_or_path", "task_type", "trainable_token_indices",
    }  # fmt: skip
    patterns = (
        {"q_proj": LONG},
        {"(a+)+$": 1},
        {"(": 1},
        {"q_proj": 0},
        {"q_proj": -1},
        {"": 2},
        ["(a+)+$"],
        ["q_proj"] * 9999,
        "all-linear",
        "(a+)+b",
        ".*",
    )
    for key in sorted(keys):
        for odd in (*ODD, *patterns):
            yield f"{config}: {key} is {str(odd)[:20]}", _with(files, config, sound | {key: odd})
    yield from headers(files, "adapter_model.safetensors")


BY_HAND: Mapping[str, Callable[[Files], Iterator[tuple[str, Files]]]] = {
    "configs": lambda files: configs(files, "config.json"),
    "headers": headers,
    "indexes": indexes,
    "tokenizers": tokenizers,
    "ggufs": ggufs,
    "adapters": adapters,
}
