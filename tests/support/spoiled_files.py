"""Spoiled model files loaded for use, each in a process of its own with limits.

Run: python -m tests.support.spoiled_files KIND [KIND ...] [--count N] [--seed N]

At random, so many of each kind of model, or by hand, one in so many of what `spoiled_kit.py` has.

Unlike what `tools/fuzz.py` reads, everything is loaded, weights too, and asked for some tokens.
A line of JSON is written for each file that was not loaded or refused in the way it should be;
the last line of a kind counts the outcomes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors

from blazr.core.errors import BlazrError
from blazr.engine.outputs import TokenOutput
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support import tiny
from tests.support.spoiled_kit import BY_HAND, Files
from tools import fuzz

TIME_LIMIT_S = 30  # of the processor, and twice that on the wall
MEMORY_LIMIT = 1_000_000_000  # bytes of address space beyond what the sound file needs
FAILED, REFUSED, LOADED = 2, 1, 0
GOLDEN = fuzz.GOLDEN
MODEL = tiny.Tiny(layers=("StandardTransformer",) * 2, vocab_size=600, max_seq_len=128)
HYBRID = tiny.Tiny(layers=("Mamba2", "MlaWithMoe"), vocab_size=600, max_seq_len=128)


def _read(directory: Path) -> Files:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _gguf() -> list[Files]:
    names = ("stories260K-q8_0.gguf", "stories260K-q4_0.gguf")
    return [{name: (GOLDEN / "gguf" / name).read_bytes()} for name in names]


def _safetensors() -> list[Files]:
    tokenizer = _read(GOLDEN / "tokenizers" / "byte_level")
    with tempfile.TemporaryDirectory() as folder:
        like_llama = _read(tiny.save(MODEL, Path(folder) / "a", layout="hf"))
        hybrid = _read(tiny.save(HYBRID, Path(folder) / "b"))
    return [like_llama | tokenizer, hybrid | tokenizer]


def _adapter() -> list[Files]:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    at = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    width, heads = MODEL.hidden_size, MODEL.num_heads * MODEL.head_dim
    factors = {f"{at}A.weight": torch.ones(2, width), f"{at}B.weight": torch.ones(heads, 2)}
    files = {
        "adapter_config.json": json.dumps(config).encode(),
        "adapter_model.safetensors": save_tensors(factors),
    }
    return [files]


KINDS: dict[str, Callable[[], list[Files]]] = {
    "gguf": _gguf,
    "safetensors": _safetensors,
    "adapter": _adapter,
}

# What the ones by hand are loaded as, where it is not a model of several files.
LOADED_AS = {"ggufs": "gguf", "adapters": "adapter"}


def spoiled(files: Files, chance: random.Random) -> Files:
    """The files, with one of them spoiled as disks, networks and people do it; or as a fuzzer."""
    if chance.random() < 0.4:
        return fuzz.changed(files, chance)
    found = dict(files)
    name = chance.choice(list(found))
    data = found[name]
    at = chance.randrange(len(data))
    size = chance.choice((1, 16, 512, 4096))
    end = min(at + size, len(data))
    other = chance.choice(list(found.values()))
    found[name] = chance.choice(
        (
            data[:at],
            data[:at] + bytes(end - at) + data[end:],
            data[:at] + b"\xff" * (end - at) + data[end:],
            data[:at] + chance.randbytes(end - at) + data[end:],
            data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :],
            data[:at] + data[at:end] + data[at:],
            data[:at] + data[end:],
            data[size:],
            data + data,
            data + bytes(size),
            other[:at] + data[at:],
            b"",
            data.replace(b"\n", b"\r\n"),
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        )
    )
    if chance.random() < 0.03:
        del found[name]
    return found


def use(kind: str, directory: Path, base: Path) -> None:
    """Load what lies in a directory, and let it say something."""
    model, adapter = directory, None
    if kind == "adapter":
        model, adapter = base, f"x={directory}"
    elif kind == "gguf":
        model = next(iter(directory.iterdir()), directory)
    options = LoadOptions(
        str(model), device="cpu", memory="8MiB", max_running=2, max_seq_len=64, adapter=adapter
    )
    core = load_text_engine(options)
    outputs: list[TokenOutput] = []
    params = SamplingParams(temperature=0, max_tokens=4)
    ids = tuple(core.tokenizer.encode("once upon a time"))[:20] or (1,)
    core.engine.submit(Request(prompt_ids=ids, params=params), outputs.append)
    while not outputs or outputs[-1].finish_reason is None:
        time.sleep(0.002)
    core.engine.close()


def attempt(kind: str, directory: Path, base: Path, log: Path) -> int | None:
    """Use files in a process of its own; how it ended, None where it did not in time."""
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            with log.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
            most = pages * 4096 + MEMORY_LIMIT
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CPU, (TIME_LIMIT_S, TIME_LIMIT_S))
            use(kind, directory, base)
            status = LOADED
        except BlazrError as error:
            print(error, file=sys.stderr)  # noqa: T201  (of the child, to its log)
            status = REFUSED
        except BaseException:  # noqa: BLE001  (told in the log)
            traceback.print_exc()
        os._exit(status)
    end = time.monotonic() + 2 * TIME_LIMIT_S
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def at_random(kind: str, count: int, seed: int) -> Iterator[tuple[str, Files]]:
    """So many spoiled files of a kind, named by their number."""
    chance, seeds = random.Random(f"{seed} {kind}"), KINDS[kind]()
    for number in range(count):
        yield str(number), spoiled(chance.choice(seeds), chance)


def by_hand(kind: str, every: int, first: int) -> Iterator[tuple[str, Files]]:
    """One in so many of those that somebody has thought of."""
    (sound, *_) = KINDS[LOADED_AS.get(kind, "safetensors")]()
    yield from islice(BY_HAND[kind](sound), first, None, every)


def run(kind: str, spoiled_ones: Iterable[tuple[str, Files]]) -> Counter[int | None]:
    """Use the sound files of a kind of model, and spoiled ones; how these ended."""
    ends = Counter[int | None]()
    sound = [("sound", files) for files in KINDS[kind]()]
    with tempfile.TemporaryDirectory() as folder:
        directory, log = Path(folder) / "model", Path(folder) / "log"
        base = tiny.save(MODEL, Path(folder) / "base", layout="hf")
        for name, data in _read(GOLDEN / "tokenizers" / "byte_level").items():
            (base / name).write_bytes(data)
        for name, files in chain(sound, spoiled_ones):
            directory.mkdir(exist_ok=True)
            for old in directory.iterdir():
                old.unlink()
            for file, data in files.items():
                (directory / file).write_bytes(data)
            end = attempt(kind, directory, base, log)
            if name == "sound":
                assert end == LOADED, f"{end}: {log.read_text('utf-8', 'replace')}"
                continue
            ends[end] += 1
            if end not in {LOADED, REFUSED}:
                said = log.read_text("utf-8", "replace")[-1500:]
                report({"name": name, "ended": end, "log": said})
    return ends


def report(line: dict[str, object]) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run one kind after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="+", choices=[*KINDS, *BY_HAND])
    parser.add_argument("--count", type=int, default=400, help="of those at random")
    parser.add_argument("--every", type=int, default=1, help="one in so many of those by hand")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    is_right = True
    for kind in options.kinds:
        if kind in KINDS:
            ends = run(kind, at_random(kind, options.count, options.seed))
        else:
            spoiled_ones = by_hand(kind, options.every, options.seed % options.every)
            ends = run(LOADED_AS.get(kind, "safetensors"), spoiled_ones)
        found = {"loaded": ends[LOADED], "refused": ends[REFUSED], "of": ends.total()}
        report({"kind": kind, **found})
        is_right &= ends[LOADED] + ends[REFUSED] == ends.total()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
