"""Whether the kernels for GPUs are right, and how fast models run, on the GPU that is here.

Takes less than ten minutes and stops by itself. Needs no checkpoint: weights are random numbers
made on the device. Every result is a line of JSON, written at once, so that a run that is cut off
has told what it knew. First come the device's own rates, then correctness: every kernel against its
operation's reference, replies in company against replies alone, graphs against computed steps; then
the speed of models, beside the time that reading their weights and memory takes at least, and of
transformers where it is installed.

Run: python -m benchmarks.gpu_check [--device cuda:1] [--out build/gpu_check.jsonl] [--only ops]

``--device cpu --tiny`` tries the script itself. The exit status is 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blazr.bench import RANDOM_SHAPES
from blazr.bench.roofline import measure_bandwidth, product_counts, step_bytes
from blazr.bench.shapes import random_network
from blazr.core.errors import ConfigError
from blazr.engine.build import dry_run
from blazr.engine.cache.budget import plan_caches
from blazr.engine.cache.manager import CacheManager
from blazr.engine.cache.storage import plan_layout
from blazr.engine.config import EngineConfig
from blazr.engine.engine import Engine
from blazr.engine.request import Request
from blazr.engine.runner import ModelRunner
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler
from blazr.models.causal_lm import CausalLM, ModelConfig
from blazr.nn.device import Device, exactness, resolve_device
from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.kernel import Kernel
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.gated_delta import GatedDeltaConfig
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.packing import BlockType, Packing
from blazr.nn.ops import OPS
from tests.support.agreement import agree, fits
from tests.support.examples import MIXES
from tests.support.graphs import RecordedGraphs
from tests.support.networks import Lab, build_network
from tests.support.op_samples import SAMPLES
from tests.support.without_kernels import without_kernels

SECONDS = 560
_ROOM = 0.6  # of what is free, for weights; the rest is for caches and steps


class Report:
    """Lines of JSON, and the time that is left.

    Args:
        path: Where they are appended.
        seconds: How long everything may take.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._ends = time.monotonic() + seconds
        self._lock = threading.Lock()
        self.is_right = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self._ends - time.monotonic()

    def say(self, stage: str, name: str, **figures: object) -> None:
        """Write a result; one with an ``error`` is wrong."""
        self.is_right = self.is_right and "error" not in figures
        line = json.dumps({"stage": stage, "name": name, **figures})
        with self._lock:
            for file in (self._file, sys.stdout):
                print(line, file=file, flush=True)

    def attempt(self, stage: str, name: str, work: Callable[[], dict[str, object]]) -> None:
        """Say what some work finds out, or that there was no time for it, or what went wrong."""
        if self.left_s <= 0:
            self.say(stage, name, skipped="no time is left")
            return
        started = time.monotonic()
        try:
            figures = work()
        except Exception as error:  # noqa: BLE001  (whatever it is, the others are tried)
            figures = {"error": f"{type(error).__name__}: {error}"[:500]}
        self.say(stage, name, **figures, took_s=round(time.monotonic() - started, 2))

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """End the process when the time is up before the block ends, whatever it waits for."""

        def stop() -> None:
            self.say("end", "stopped", error="the time was up in the middle of something")
            os._exit(1)

        timer = threading.Timer(max(self.left_s, 0) + 20, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def check_device(report: Report, device: Device, *, tiny: bool) -> dict[str, float]:
    """The rates that all others are compared with: bytes and floating-point operations a second."""
    rates = {"bytes_per_s": 1.0, "flops_per_s": 1.0}

    def measure() -> dict[str, object]:
        rates["bytes_per_s"] = measure_bandwidth(device, nbytes=2**20 if tiny else 2**30)
        size = 64 if tiny else 8192
        dtype = torch.float32 if tiny else torch.bfloat16
        x = torch.ones(size, size, dtype=dtype, device=device.torch_device)
        seconds = min(_seconds(device, lambda: x @ x) for _ in range(5))
        rates["flops_per_s"] = 2 * size**3 / seconds
        return {"device": str(device), "torch": torch.__version__, **rates}

    report.attempt("device", "rates", measure)
    return rates


def check_ops(report: Report, device: Device, *, tiny: bool) -> None:
    """Every kernel for this kind of device against its operation's reference."""
    for name, row in KERNELS.items():
        if row.device == device.kind and row.op in OPS and not row.missing():
            for dtype in row.dtypes:
                label = f"{name} {str(dtype).removeprefix('torch.')}"
                report.attempt("ops", label, partial(_compare_op, row, dtype, device, tiny=tiny))


def _compare_op(
    row: Kernel, dtype: torch.dtype, device: Device, *, tiny: bool
) -> dict[str, object]:
    count = 0
    samples = (each for each in SAMPLES[row.op](dtype) if fits(row, each))
    for arguments in islice(samples, 1 if tiny else None):
        agree(row, dtype, tuple(_moved(each, device) for each in arguments), (device.kind,))
        count += 1
    return {"samples": count}


def check_replies(report: Report, device: Device, *, tiny: bool) -> None:
    """Replies alone against those in company, and graphs against computed steps."""
    names = ["hybrid of all", "pure mamba2", "gqa and mlp"][2 if tiny else 0 :]
    names += [] if tiny else [name for name in MIXES if name not in names]
    for name in names:
        report.attempt("replies", name, partial(_compare_replies, name, device))


def _compare_replies(name: str, device: Device) -> dict[str, object]:
    model = build_network(MIXES[name], seed=5).to(device.torch_device)
    model = model if device.kind == "cpu" else model.half()  # not all kernels take float32
    graphs = RecordedGraphs() if device.kind == "cpu" else None
    prompts = [[(7 * index + place) % 53 for place in range(length)] for index, length in PROMPTS]

    def replies(chosen: Sequence[Sequence[int]], *, is_replayed: bool) -> list[list[int]]:
        lab = Lab(model, replay=is_replayed, graphs=graphs if is_replayed else None)
        asked = [lab.ask(prompt, max_tokens=20) for prompt in chosen]
        lab.run()
        return [lab.tokens[each, 0] for each in asked]

    def compare() -> tuple[int, int, int]:
        alone = [replies([prompt], is_replayed=False)[0] for prompt in prompts]
        together = replies(prompts, is_replayed=False)
        captured = replies(prompts, is_replayed=True)
        in_company, in_graphs = (
            sum(one != other for one, other in zip(found, together, strict=True))
            for found in (alone, captured)
        )
        return sum(map(len, alone)), in_company, in_graphs

    # on a CPU a recorder stands for the GPU, and sees no kernels
    with without_kernels() if graphs is not None else nullcontext():
        with exactness(is_exact=True):
            tokens, in_company, in_graphs = compare()
        _, usually_in_company, usually_in_graphs = compare()
    wrong = []
    if in_company:
        wrong.append(f"{in_company} replies in company differ from those alone")
    if in_graphs or usually_in_graphs:
        wrong.append("graphs differ from computed steps")
    found = {"tokens": tokens, "other_replies_in_company_without_exact": usually_in_company}
    return found | ({"error": "; ".join(wrong)} if wrong else {})


# Numbers and lengths of prompts: some pass a grid edge while they are answered, and one has more
# rows than products of few rows take.
PROMPTS = ((0, 1), (1, 50), (2, 63), (3, 130), (4, 300))


def check_speed(report: Report, device: Device, rates: dict[str, float], *, tiny: bool) -> None:
    """How fast models run, and what share that is of what their bytes allow."""
    shapes = {"tiny": _tiny} if tiny else SHAPES
    for name, make in shapes.items():

        def measure(name: str = name, make: Callable[[], ModelConfig] = make) -> dict[str, object]:
            config, num_cut = _cut_to_fit(make(), int(_ROOM * device.free_bytes()))
            dtype = "float32" if tiny else "bfloat16"
            model = random_network(config, device=device, dtype=dtype)
            subject = Subject(model, device, rates)
            _measure_subject(report, name, subject, tiny=tiny)
            return {
                "parameters": subject.parameters,
                "layers": len(config.layers),
                "layers_left_out": num_cut,
            }

        report.attempt("speed", name, measure)


def _measure_subject(report: Report, name: str, subject: Subject, *, tiny: bool) -> None:
    context = 20 if tiny else 1024
    for batch in (1, 2) if tiny else (1, 32, 256):
        for is_replayed in (True, False) if batch == 1 else (True,):
            how = "graphs" if is_replayed else "computed"
            work = partial(subject.decode, batch, context, is_replayed=is_replayed)
            report.attempt("decode", f"{name}, {batch} at once, {how}", work)
    for length in (16, 40) if tiny else (64, 4096):
        report.attempt("prompt", f"{name}, {length} tokens", partial(subject.read, length))
    with exactness(is_exact=True):  # what it costs
        for batch in (1,) if tiny else (1, 32):
            work = partial(subject.decode, batch, context, is_replayed=True)
            report.attempt("decode", f"{name}, {batch} at once, graphs, exact", work)
        length = 40 if tiny else 4096
        report.attempt("prompt", f"{name}, {length} tokens, exact", partial(subject.read, length))


@dataclass(frozen=True, slots=True)
class Subject:
    """A network that is measured.

    Args:
        model: The network.
        device: Where it is.
        rates: The device's own, as `check_device` has them.
    """

    model: CausalLM
    device: Device
    rates: dict[str, float]

    @property
    def parameters(self) -> int:
        """How many it has."""
        return sum(each.numel() for each in self.model.parameters())

    def decode(self, batch: int, context: int, *, is_replayed: bool) -> dict[str, object]:
        """The speed of so many replies at once, each after so many tokens."""
        steps = 8 if context < 100 else 64
        engine = self._engine(batch, context + 2 * steps, is_replayed=is_replayed)
        for number in range(batch):
            _ask(engine, number, context, 2 * steps)
        while any(each.remaining > 1 for each in engine.scheduler.sequences()):
            engine.step(0.0)
        for _ in range(steps // 2):  # until graphs are captured
            engine.step(0.0)
        started = time.perf_counter()
        count = sum(len(each.token_ids) for _ in range(steps) for each in engine.step(0.0))
        _synchronize(self.device)
        seconds = time.perf_counter() - started
        nbytes = step_bytes(self.model, batch=batch, context_len=context)
        least = nbytes / self.rates["bytes_per_s"]
        return {
            "tokens_per_s": round(count / seconds, 1),
            "ms_a_step": round(1000 * seconds / steps, 4),
            "least_ms": round(1000 * least, 4),
            "share_of_bandwidth": round(least * steps / seconds, 4),
        }

    def read(self, length: int) -> dict[str, object]:
        """How long a prompt takes to its first token."""
        times = []
        for number in range(3):
            engine = self._engine(1, length + 8, is_replayed=False, budget=length)
            _ask(engine, number, length, 2)
            started = time.perf_counter()
            while not engine.step(0.0):
                pass
            times.append(time.perf_counter() - started)
        flops = 2 * sum(product_counts(self.model).values()) * length
        return {
            "first_token_ms": round(1000 * min(times), 3),
            "tokens_per_s": round(length / min(times), 1),
            "share_of_products": round(flops / min(times) / self.rates["flops_per_s"], 4),
        }

    def _engine(self, batch: int, length: int, *, is_replayed: bool, budget: int = 2048) -> Engine:
        gc.collect()  # the caches of the one before
        model, device = self.model, self.device
        config = EngineConfig(max_running=batch, token_budget=budget)
        layout = plan_layout(model.config.cache_specs(model.dtype))
        most = device.peak_bytes(lambda: dry_run(model, budget, batch))
        (shape,) = plan_caches([layout], config, device=device, max_seq_len=length, step_bytes=most)
        runner, memory = ModelRunner(model, layout, shape, replay=is_replayed), CacheManager(shape)
        return Engine(
            Scheduler(memory, token_budget=budget),
            lambda plan: runner.execute(plan, memory),
            launch=lambda plan: runner.launch(plan, memory),
            vocab_size=model.config.vocab_size,
            max_seq_len=length,
        )


def _ask(engine: Engine, number: int, length: int, max_tokens: int) -> None:
    prompt = tuple((31 * number + 7 * place + 3) % engine.vocab_size for place in range(length))
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    engine.add(Request(prompt_ids=prompt, params=params), request_id=number, now=0.0, seed=0)


def check_rivals(report: Report, device: Device, rates: dict[str, float], *, tiny: bool) -> None:
    """The same in transformers, where it is installed; its gated delta is then that of fla."""
    if importlib.util.find_spec("transformers") is None:
        report.say("rivals", "transformers", skipped="it is not installed")
        return
    for name, make, own in RIVALS:
        compare = partial(_transformers, make, own, device, rates, tiny=tiny)
        report.attempt("rivals", f"transformers, {name}", compare)


def _llama(*, tiny: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32 if tiny else 2048,
        intermediate_size=64 if tiny else 8192,
        num_hidden_layers=1 if tiny else 16,
        vocab_size=100 if tiny else 128_256,
        num_attention_heads=2 if tiny else 32,
        num_key_value_heads=1 if tiny else 8,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def _qwen3_next(*, tiny: bool) -> Any:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    expert_size = 16 if tiny else 512
    config = Qwen3NextConfig(
        hidden_size=32 if tiny else 2048,
        moe_intermediate_size=expert_size,
        num_experts=4 if tiny else 256,
        vocab_size=100 if tiny else 151_936,
        num_hidden_layers=_DELTA_LAYERS,
        num_experts_per_tok=2 if tiny else 8,
        shared_expert_intermediate_size=expert_size,
        head_dim=16 if tiny else 256,
    )
    return Qwen3NextForCausalLM(config)


def _transformers(
    make: Callable[..., Any],
    own: Callable[[], ModelConfig],
    device: Device,
    rates: dict[str, float],
    *,
    tiny: bool,
) -> dict[str, object]:
    """Replies of one stream there and here."""
    theirs = _transformers_speed(make, device, tiny=tiny)
    gc.collect()
    dtype = "float32" if tiny else "bfloat16"
    model = random_network(_tiny() if tiny else own(), device=device, dtype=dtype)
    context = 8 if tiny else 1024
    found = Subject(model, device, rates).decode(1, context, is_replayed=True)
    return {
        "tokens_per_s": round(theirs, 1),
        "blazr_tokens_per_s": found["tokens_per_s"],
        "has_fla": importlib.util.find_spec("fla") is not None,
    }


def _transformers_speed(make: Callable[..., Any], device: Device, *, tiny: bool) -> float:
    with torch.device(device.torch_device):
        model = make(tiny=tiny).to(torch.float32 if tiny else torch.bfloat16).eval()
    length, count = (8, 4) if tiny else (1024, 64)
    prompt = torch.arange(length, device=device.torch_device)[None] % model.config.vocab_size

    def answer(tokens: int) -> Callable[[], object]:
        return lambda: model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )

    answer(2)()
    return count / (_seconds(device, answer(count + 1)) - _seconds(device, answer(1)))


def _seconds(device: Device, work: Callable[[], object]) -> float:
    _synchronize(device)
    started = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - started


def _synchronize(device: Device) -> None:
    if device.kind == "cuda":
        torch.cuda.synchronize(device.torch_device)


def _moved(argument: object, device: Device) -> object:
    """Everything within it on the device."""
    if isinstance(argument, Tensor):
        # from the beginning of a memory of its own, with the strides it has
        whole = argument.as_strided(
            (argument.untyped_storage().nbytes() // argument.element_size(),), (1,), 0
        )
        where = argument.shape, argument.stride(), argument.storage_offset()
        return whole.to(device.torch_device).as_strided(*where)
    if isinstance(argument, tuple):
        moved_parts = [_moved(each, device) for each in argument]
        # one with names stays one
        return argument._make(moved_parts) if hasattr(argument, "_make") else tuple(moved_parts)
    if is_dataclass(argument) and not isinstance(argument, (type, Packing, BlockType)):
        moved = {
            each.name: _moved(getattr(argument, each.name), device)
            for each in fields(argument)
            if each.init
        }
        return replace(argument, **moved)
    return argument


def _cut_to_fit(config: ModelConfig, nbytes: int) -> tuple[ModelConfig, int]:
    """With as many layers, from the first on, as there is memory for; and how many are left out."""
    layers = config.layers

    def size(count: int) -> int:
        with torch.device("meta"):
            model = CausalLM(replace(config, layers=layers[:count]))
        return 2 * sum(each.numel() for each in model.parameters())

    count = len(layers)
    while count > 4 and size(count) > nbytes:
        count -= 4
    return replace(config, layers=layers[:count]), len(layers) - count


def _network(layers: Iterator[LayerConfig], size: int, vocab_size: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=size,
        max_seq_len=32_768,
        layers=tuple(layers),
        final_norm=NormConfig(size, 1e-6),
    )


def _layer(mixer: MixerConfig, feed: FeedForwardConfig, size: int) -> LayerConfig:
    norm = NormConfig(size, 1e-6)
    return LayerConfig(mixer=mixer, mixer_norm=norm, feed_forward=feed, feed_forward_norm=norm)


def _delta_hybrid(size: int, feed: FeedForwardConfig, *, layers: int, heads: int) -> ModelConfig:
    """Three gated delta layers, then attention, and so on, as Qwen3-Next has them."""
    delta = GatedDeltaConfig(
        hidden_size=size, num_key_heads=16, num_heads=heads, key_head_dim=128, value_head_dim=128
    )
    attention = AttentionConfig(
        hidden_size=size,
        num_heads=heads // 2,
        num_kv_heads=2 if size < 4096 else 4,
        head_dim=256,
        rope=RopeConfig(64, 1e7),
        qk_norm=True,
        output_gate=True,
    )
    mixers = (delta, delta, delta, attention)
    return _network((_layer(mixers[at % 4], feed, size) for at in range(layers)), size, 151_936)


def _delta_27b() -> ModelConfig:
    """Like Qwen 3.5 with 27 billion parameters."""
    mlp = MlpConfig(hidden_size=5120, intermediate_size=17_408)
    return _delta_hybrid(5120, mlp, layers=64, heads=48)


def _delta_35b(layers: int = 40) -> ModelConfig:
    """Like Qwen 3.5 with 35 billion parameters, of which a token uses three."""
    experts = MoeConfig(
        hidden_size=2048,
        intermediate_size=512,
        num_experts=256,
        experts_per_token=8,
        shared_expert=True,
        shared_expert_gate=True,
    )
    return _delta_hybrid(2048, experts, layers=layers, heads=32)


def _deepseek_lite() -> ModelConfig:
    """DeepSeek-V2-Lite: latent attention and experts, 15.7 billion parameters."""
    mixer = DeepseekMlaConfig(
        hidden_size=2048,
        num_heads=16,
        head_dim=128,
        rope_dim=64,
        kv_latent=512,
        q_latent=None,
        rope=RopeConfig(64, interleaved=True),
        v_head_dim=128,
        attention_multiplier=192**-0.5,
    )
    experts = MoeConfig(
        hidden_size=2048,
        intermediate_size=1408,
        num_experts=64,
        experts_per_token=6,
        shared_expert=True,
        shared_intermediate_size=2816,
        norm_topk_prob=False,
    )
    first = MlpConfig(hidden_size=2048, intermediate_size=10_944)
    layers = (_layer(mixer, experts if at else first, 2048) for at in range(27))
    return _network(layers, 2048, 102_400)


def _tiny() -> ModelConfig:
    attention = AttentionConfig(
        hidden_size=32, num_heads=2, num_kv_heads=1, head_dim=16, rope=RopeConfig(16)
    )
    mlp = MlpConfig(hidden_size=32, intermediate_size=64)
    return _network((_layer(attention, mlp, 32) for _ in range(2)), 32, 100)


SHAPES: dict[str, Callable[[], ModelConfig]] = {
    "Llama-3.2-1B": RANDOM_SHAPES["llama-3.2-1b"],
    "Granite-4.0-H-1B": RANDOM_SHAPES["granite-4.0-h-1b"],
    "Llama-3.1-8B": RANDOM_SHAPES["llama-3.1-8b"],
    "DeepSeek-V2-Lite": _deepseek_lite,
    "hybrid of 27B": _delta_27b,
    "hybrid of 35B with experts": _delta_35b,
}
_DELTA_LAYERS = 4  # of 40, which is enough to compare
RIVALS = (
    ("Llama-3.2-1B", _llama, RANDOM_SHAPES["llama-3.2-1b"]),
    ("four layers of the hybrid of 35B", _qwen3_next, lambda: _delta_35b(layers=_DELTA_LAYERS)),
)
STAGES = ("device", "ops", "replies", "speed", "rivals")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what the arguments say.

    Returns:
        0 if nothing was wrong.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="little of everything, for a CPU")
    parser.add_argument("--out", type=Path, default=Path("build/gpu_check.jsonl"))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", choices=STAGES, action="append")
    options = parser.parse_args(arguments)
    try:
        device = resolve_device(options.device)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    device.use()
    report = Report(options.out, options.seconds)
    wanted = options.only or STAGES
    with closing(report), report.in_time(), torch.inference_mode():
        rates = check_device(report, device, tiny=options.tiny)
        if "ops" in wanted:
            check_ops(report, device, tiny=options.tiny)
        if "replies" in wanted:
            check_replies(report, device, tiny=options.tiny)
        if "speed" in wanted:
            check_speed(report, device, rates, tiny=options.tiny)
        if "rivals" in wanted:
            check_rivals(report, device, rates, tiny=options.tiny)
        report.say("end", "done", seconds_left=round(report.left_s, 1))
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
