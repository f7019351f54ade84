"""Break the readers of strangers' files: models and their configs, adapters, tokenizers, templates.

Run: python tools/fuzz.py TARGET [--seconds N | --runs N] [--seed N] [--save DIRECTORY]
                          [--corpus FILE]

Sound files are changed a little, by bytes and by values, and read. Whatever is raised must be a
BlazrError, within `TIME_LIMIT` seconds of the processor and `MEMORY_LIMIT` bytes above what was
taken before.
An input that fails is saved, and so is the one at work when the process dies. The corpus has the
smallest input for each place of the code that refused one; later runs change these, too.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import random
import resource
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from blazr.core.errors import BlazrError

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
TIME_LIMIT = 10
MEMORY_LIMIT = 500_000_000
# Address space beyond what the sound files took: a forged size must not take the machine along.
ADDRESS_LIMIT = 2_000_000_000
TEXT = "Once upon a time, \u00e9\u4f60\U0001f600 <s>\n 1234  <|im_end|>"

Files = dict[str, bytes]
HOSTILE: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 2**31, -(2**31), 2**63 - 1, 2**64, 10**30, 0.5, -1e308, 1e-320,
    float("inf"), float("nan"), "", "x", "\ud800", "\x00", "a" * 5000, "{{", "(", "(a+)+$", "[^",
    [], {}, [None], [[]], {"": None}, [0] * 5000, "1" * 5000,
)  # fmt: skip
MAGIC = (0, 1, 2, 7, 8, 9, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
SNIPPETS = (
    "{% for i in range(999999999) %}x{% endfor %}", "{{ messages * 99999999 }}", "{{ ''.__mro__ }}",
    "{% set x = messages %}", "{{ raise_exception('no') }}", "{{ 9 ** 99999999 }}", "{% if %}",
    "{{ 'x' * 999999999 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ none.x }}",
    "{{ messages | tojson(indent=99999999) }}", "{{ 'x'.ljust(999999999) }}", "{% include 'x' %}",
    "{{ '%0999999999d' % 1 }}", "{{ '{:>999999999}'.format(1) }}", "{{ messages[0]['nothing'].x }}",
    "{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}", "{{ (" * 300,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """Something that reads files.

    Args:
        read: Reads what lies in a directory.
        seeds: Sound files, by name.
    """

    read: Callable[[Path], object]
    seeds: tuple[Files, ...]


def _plan(directory: Path) -> object:
    from blazr.models.loading.plan import plan_model

    files = sorted(directory.glob("*.gguf"))
    return plan_model(str(files[0] if files else directory))


def _tokenize(directory: Path) -> None:
    from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer

    file = next(iter(directory.glob("*.gguf")), next(iter(directory.glob("*.tiktoken")), directory))
    tokenizer = load_tokenizer(find_tokenizer(vocab=str(file)))
    assert tokenizer is not None
    tokenizer.decode(tokenizer.encode(TEXT))
    tokenizer.decode([*range(min(tokenizer.size, 600)), 2**20], skip_special=False)


def _render(directory: Path) -> None:
    from blazr.text.choose_template import choose_template
    from blazr.text.messages import Message
    from blazr.text.tokenizers.choose import find_tokenizer, load_tokenizer

    golden = GOLDEN / "tokenizers" / "byte_level"
    tokenizer = load_tokenizer(find_tokenizer(directory=golden))
    assert tokenizer is not None
    turns = {"system": "Be kind.", "user": "Hi", "assistant": "Hello"}
    chat = [Message(role=role, content=content) for role, content in turns.items()]
    template = choose_template(
        directory=directory, name_or_path=None, family="llama", tokenizer=tokenizer
    )
    template.render(chat, add_generation_prompt=True)
    template.prompt(chat, tokenizer).encode()


def _files(*names: str) -> Files:
    return {Path(name).name: (GOLDEN / name).read_bytes() for name in names}


def _headers(name: str) -> Files:
    """A GGUF file whose tensors are zeros: only the header is changed."""
    from blazr.core.gguf_header import read_gguf_header

    path = GOLDEN / "gguf" / name
    with path.open("rb") as file:
        start = read_gguf_header(file).data_start
    return {name: path.read_bytes()[:start] + bytes(path.stat().st_size - start)}


def _gguf() -> Target:
    packed = (_headers("stories260K-q8_0.gguf"), _headers("stories260K-q4_0.gguf"))
    names = ("qwen35moe", "deepseek2-lite", "nemotron_h_moe", "gpt-oss", "gemma3", "jamba")
    made = ((GOLDEN / "gguf" / "converted" / f"{name}.gguf.xz").read_bytes() for name in names)
    return Target(_plan, (*packed, *({"model.gguf": lzma.decompress(each)} for each in made)))


def _safetensors() -> Target:
    folders = ("hf_llama", "hybrid_nano", "mla_moe", "mamba3_mimo", "gqa_mlp")
    return Target(_plan, tuple(_plain(GOLDEN / "oxidizr" / each) for each in folders))


def _plain(directory: Path) -> Files:
    """A model whose tensors are zeros: only its config and the header are changed."""
    data = (directory / "model.safetensors").read_bytes()
    end = 8 + struct.unpack_from("<Q", data)[0]
    config = (directory / "config.json").read_bytes()
    return {"config.json": config, "model.safetensors": data[:end] + bytes(len(data) - end)}


def _read_adapter(directory: Path) -> None:
    from blazr.models.adapters.read import read_adapter

    read_adapter(directory)


def _adapter() -> Target:
    import torch
    from safetensors.torch import save

    config: dict[str, object] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    config |= {"base_model_name_or_path": "base", "target_modules": ["q_proj", "down_proj"]}
    more = {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 3}}
    at, parts = "base_model.model.model.layers.0.", ("self_attn.q_proj", "mlp.down_proj")
    tensors = {
        f"{at}{part}.lora_{side}.weight": torch.ones(shape)
        for part in parts
        for side, shape in (("A", (2, 8)), ("B", (8, 2)))
    }
    lengths = {f"{at}{part}.lora_magnitude_vector": torch.ones(8) for part in parts}
    kinds = ((config, tensors), (config | more, tensors), (config | {"use_dora": True}, lengths))
    return Target(
        _read_adapter,
        tuple(
            {
                "adapter_config.json": json.dumps(about).encode(),
                "adapter_model.safetensors": save(tensors | extra),
            }
            for about, extra in kinds
        ),
    )


def _tokenizer() -> Target:
    at = "tokenizers/"
    merged = _files(at + "sentencepiece/tokenizer.model")
    # messages of Protocol Buffers add up: the same pieces as unigrams, with a table of 16 units
    table = b"\x12\x48\x40\0\0\0" + bytes(range(68))
    unigrams = merged["tokenizer.model"] + b"\x12\x02\x18\x01" + b"\x1a\x4a" + table
    return Target(
        _tokenize,
        (
            _files(at + "byte_level/tokenizer.json", at + "byte_level/tokenizer_config.json"),
            _files(at + "stories260k/tokenizer.json", at + "stories260k/tokenizer_config.json"),
            _files(at + "ranks/tiny.tiktoken", at + "ranks/tiny.tiktoken.json"),
            merged,
            {"tokenizer.model": unigrams},
            _files(at + "tekken/tekken.json"),
            _files(at + "kimi/tiktoken.model", at + "kimi/tokenizer_config.json"),
            _files(
                at + "vocab_and_merges/vocab.json",
                at + "vocab_and_merges/merges.txt",
                at + "vocab_and_merges/tokenizer_config.json",
            ),
            _files("gguf/byte_level.gguf"),
            {"v.gguf": next(iter(_headers("stories260K-q8_0.gguf").values()))},
        ),
    )


def _template() -> Target:
    sources = sorted((GOLDEN / "templates").glob("*.jinja"))
    plain = tuple({"chat_template.jinja": each.read_bytes()} for each in sources)
    config = {"chat_template": sources[0].read_text(), "bos_token": "<s>", "eos_token": "</s>"}
    return Target(_render, (*plain, {"tokenizer_config.json": json.dumps(config).encode()}))


TARGETS: Mapping[str, Callable[[], Target]] = {
    "gguf": _gguf,
    "safetensors": _safetensors,
    "adapter": _adapter,
    "tokenizer": _tokenizer,
    "template": _template,
}


def changed(files: Files, chance: random.Random) -> Files:
    """The files with one to a few changes."""
    found = dict(files)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        name = chance.choice(list(found))
        data = found[name]
        if name.endswith(".json") and chance.random() < 0.8:
            data = _changed_json(data, chance)
        elif name.endswith(".safetensors") and chance.random() < 0.7:
            data = _changed_safetensors(data, chance)
        elif name.endswith((".jinja", ".tiktoken", ".txt", "tiktoken.model")):
            data = _changed_text(data, chance)
        else:
            data = _changed_bytes(data, chance)
        found[name] = data
    return found


def _place(data: bytes, chance: random.Random) -> int:
    """Mostly near the beginning, where counts and sizes are."""
    reach = chance.choice((32, 512, 12_000, len(data)))
    return chance.randrange(min(len(data), reach) + 1)


def _changed_bytes(data: bytes, chance: random.Random) -> bytes:
    at = _place(data, chance)
    width = chance.choice((1, 2, 4, 8))
    number = (chance.choice(MAGIC) + chance.randrange(-1, 2)) % 2 ** (8 * width)
    match chance.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]
        case 2:
            return data[:at] + data[at + chance.randrange(1, 65) :]
        case 3:
            other = _place(data, chance)
            return data[:at] + data[other : other + chance.randrange(1, 65)] + data[at:]
        case _:
            return data[:at] + number.to_bytes(width, "little") + data[at + width :]


def _changed_text(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at = chance.randrange(len(lines))
    match chance.randrange(5):
        case 0:
            lines.insert(at, chance.choice(SNIPPETS).encode())
        case 1:
            del lines[at]
        case 2:
            lines[at] *= chance.choice((2, 50))
        case 3:
            lines[at] = _changed_bytes(lines[at], chance)
        case _:
            return _changed_bytes(data, chance)
    return b"".join(lines)


def _changed_json(data: bytes, chance: random.Random) -> bytes:
    """One value inside in place of another; or the text itself is odd."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if chance.random() < 0.02:
        return b"[" * 200_000
    places = _places(value)
    if not places:
        return data
    node, key = chance.choice(places)
    match chance.randrange(5):
        case 0:
            del node[key]
        case 1:
            other, at = chance.choice(places)
            node[key] = json.loads(json.dumps(other[at])) if _holds(other, at) else None
        case 2 if isinstance(node, dict):
            node[str(chance.choice(HOSTILE))] = node[key]
        case _:
            node[key] = chance.choice(HOSTILE)
    return json.dumps(value).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every value inside: what holds it, and under which key."""
    places: list[tuple[Any, Any]] = []
    level = [value] if isinstance(value, dict | list) else []
    while level:
        node = level.pop()
        for key in range(min(len(node), 40)) if isinstance(node, list) else node:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                level.append(node[key])
    return places


def _holds(node: object, key: object) -> bool:
    if isinstance(node, list):
        return isinstance(key, int) and key < len(node)
    return isinstance(node, dict) and key in node


def _changed_safetensors(data: bytes, chance: random.Random) -> bytes:
    """The header's JSON changed, and its length told rightly."""
    (size,) = struct.unpack_from("<Q", data) if len(data) >= 8 else (0,)
    if size > len(data):
        return _changed_bytes(data, chance)
    header = _changed_json(data[8 : 8 + size], chance)
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


class OverdueError(Exception):
    """An input took too long."""


def _ring(number: int, _frame: FrameType | None) -> None:
    raise OverdueError(number)


def _limit_memory() -> None:
    """What forges a size gets a MemoryError and not the machine."""
    import_module("torch")  # takes much of it, and is no reader's fault
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_LIMIT, resource.RLIM_INFINITY))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _write(files: Files, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How reading went.

    Args:
        problem: What is wrong with that; empty where nothing is.
        refused_at: The place that refused the files, by its last three calls; else empty.
    """

    problem: str = ""
    refused_at: str = ""


def attempt(target: Target, files: Files, directory: Path) -> Outcome:
    """Read files as anyone would."""
    _write(files, directory)
    before, refused_at = _peak(), ""
    signal.signal(signal.SIGPROF, _ring)
    signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT)
    try:
        target.read(directory)
    except BlazrError as error:
        calls = traceback.extract_tb(error.__traceback__)[-3:]
        refused_at = " < ".join(f"{Path(c.filename).stem}:{c.lineno}" for c in reversed(calls))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001  (Rust's panics are no Exception)
        return Outcome(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    taken = _peak() - before
    return Outcome(f"took {taken:,} bytes" if taken > MEMORY_LIMIT else "", refused_at)


def _size(files: Files) -> int:
    return sum(len(data) for data in files.values())


def read_corpus(file: Path) -> list[Files]:
    """The inputs that `write_corpus` wrote."""
    found: dict[str, Files] = {}
    with tarfile.open(file) as archive:
        for member in archive:
            number, _, name = member.name.partition("/")
            data = archive.extractfile(member)
            assert data is not None
            found.setdefault(number, {})[name] = data.read()
    return list(found.values())


def write_corpus(file: Path, corpus: Iterable[Files]) -> None:
    """As one compressed archive, always the same for the same inputs."""
    with tarfile.open(file, "w:xz") as archive:
        for number, files in enumerate(corpus):
            for name, data in files.items():
                member = tarfile.TarInfo(f"{number}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def fuzz(
    name: str,
    *,
    seconds: float = float("inf"),
    runs: int | None = None,
    seed: int = 0,
    save: Path,
    corpus: Path | None = None,
) -> list[str]:
    """Try inputs until the time or the number of runs is over; what went wrong.

    Args:
        name: A row of TARGETS.
        seconds: How long.
        runs: How many inputs.
        seed: Of the changes.
        save: Where inputs that fail are left.
        corpus: An archive of inputs to begin with, if it exists; the new one is written there.
    """
    target, chance = TARGETS[name](), random.Random(seed)
    failures: dict[str, str] = {}
    kept: dict[str, Files] = {}
    old = read_corpus(corpus) if corpus is not None and corpus.exists() else []
    count, end = 0, time.monotonic() + seconds

    def read(files: Files, place: str) -> None:
        _write(files, save / f"{name}-last")
        found = attempt(target, files, Path(folder))
        if found.problem and found.problem[-300:] not in failures:
            failures[found.problem[-300:]] = found.problem
            _write(files, save / f"{name}-{place}")
            print(f"{name}-{place}: {found.problem}", flush=True)
        best = kept.get(found.refused_at)
        if found.refused_at and (best is None or _size(files) < _size(best)):
            kept[found.refused_at] = files

    with tempfile.TemporaryDirectory() as folder:
        for seed_files in target.seeds:
            problem = attempt(target, seed_files, Path(folder)).problem
            assert not problem, f"a sound file fails: {problem}"
        for number, files in enumerate(old):
            read(files, f"corpus-{number}")
        while time.monotonic() < end and (runs is None or count < runs):
            is_new = not kept or chance.random() < 0.7
            start = chance.choice(target.seeds if is_new else list(kept.values()))
            count += 1
            read(changed(start, chance), f"{seed}-{count}")
    if corpus is not None:
        write_corpus(corpus, (kept[place] for place in sorted(kept)))
    _write({}, save / f"{name}-last")
    peak_mb = _peak() // 10**6
    print(f"{name}: {count:,} inputs, refused in {len(kept)} places, {len(failures)} failures")
    print(f"peak {peak_mb} MB")
    return list(failures.values())


def main() -> int:
    """Run one target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--corpus", type=Path, help="an archive (.tar.xz) to begin with and keep")
    options = vars(parser.parse_args())
    _limit_memory()
    return 1 if fuzz(options.pop("target"), **options) else 0


if __name__ == "__main__":
    sys.exit(main())
