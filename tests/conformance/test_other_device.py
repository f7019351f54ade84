"""Networks, engines and files on a device beside the CPU, where tensors of both do not mix.

A GPU refuses such a mixture, and a CPU does not notice it. What is computed there has to be what
the same operations give on the CPU.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from blazr import LLM, SamplingParams
from blazr.engine import graph_replay
from blazr.engine.engine import Engine
from blazr.engine.scheduler import StepPlan
from blazr.models.causal_lm import CausalLM
from blazr.models.families import FAMILIES
from blazr.models.loading.load import load
from blazr.nn.device import Device, resolve_device
from tests.support import tiny
from tests.support.examples import LENGTH_MIXES, MIXES, STORED_MIXES
from tests.support.graphs import RecordedGraphs
from tests.support.networks import VOCAB, Lab, build_network
from tests.support.other_device import OTHER, OtherTensor, other_device
from tests.support.own_families import network_of, own_families
from tests.support.quantized import KINDS, quantize_directory
from tests.support.references import CASES, save_reference
from tests.support.seeds import run_seed
from tests.support.without_kernels import without_kernels

T = TypeVar("T")
CPU = resolve_device("cpu")
ALL_MIXES = MIXES | LENGTH_MIXES
IDS = torch.tensor([[(7 * place) % VOCAB for place in range(70)]])
WISHES = (
    {},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": 5},
    {"frequency_penalty": 0.5, "logprobs": 3},
)

pytestmark = pytest.mark.sample(4)


def _raise(_: Engine, __: StepPlan, error: BaseException) -> NoReturn:
    raise error


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The device; both compute by references."""
    # else the sequences of a step that failed would be tried one by one
    monkeypatch.setattr(Engine, "_cancel", _raise)
    with other_device() as found, without_kernels():
        yield found


def test_tensors_of_both_do_not_mix() -> None:
    there, here = torch.ones(3, 4, device=OTHER), torch.ones(4)
    for mixed in (
        lambda: there + here,
        lambda: there @ here,
        lambda: torch.cat((there, torch.ones(1, 4))),
        lambda: there.index_put_((torch.tensor([1]),), here),
        lambda: here.add_(there[0]),
    ):
        with pytest.raises(RuntimeError, match="a tensor on cpu"):
            mixed()
    assert (there * torch.tensor(2.0)).tolist() == [[2.0] * 4] * 3  # a number may be anywhere
    assert there[torch.tensor([1])].cpu().tolist() == [[1.0] * 4]
    here.copy_(there[0] + 1)
    assert here.tolist() == [2.0] * 4


def test_a_layer_that_forgets_the_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_network(("gqa+mlp",)).to(OTHER)
    forward = type(model.norm).forward
    monkeypatch.setattr(
        type(model.norm), "forward", lambda self, x: forward(self, x) * torch.ones(x.shape[-1])
    )
    lab = Lab(model)
    lab.ask([1, 2, 3])
    with pytest.raises(RuntimeError, match="a tensor on cpu"):
        lab.run()


@pytest.mark.parametrize("mix", [*ALL_MIXES, *STORED_MIXES])
def test_replies(mix: str) -> None:
    """To prompts together, cut, drawn in several ways, and from cached prefixes."""
    name, stored = STORED_MIXES.get(mix, (mix, {}))

    def replies(model: CausalLM) -> list[tuple[list[int], Tensor]]:
        lab = Lab(model, budget=48, tokens=512, **stored)
        rng, asked = random.Random(run_seed(1)), []
        for _ in range(2):
            for wish in WISHES:
                prompt = [*range(40), *(rng.randrange(VOCAB) for _ in range(rng.randint(1, 60)))]
                asked.append(lab.ask(prompt, max_tokens=5, **wish))
            lab.run()
        return [lab.answer(each) for each in asked]

    _check(replies, lambda: build_network(ALL_MIXES[name], seed=3))


@pytest.mark.parametrize("mix", ALL_MIXES)
def test_replies_by_graphs(mix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of the device's has no tensor of the host's in it."""
    monkeypatch.setattr(graph_replay, "SEEN", 1)
    model = build_network(ALL_MIXES[mix], seed=3)

    def replies(model: CausalLM, graphs: RecordedGraphs | None) -> list[list[int]]:
        lab = Lab(model, graphs=graphs)
        prompts = [[(kind + 7 * place) % VOCAB for place in range(60 + kind)] for kind in range(4)]
        asked = [
            lab.ask(prompt, max_tokens=6, **wish)
            for prompt, wish in zip(prompts, WISHES, strict=True)
        ]
        lab.run()
        return [lab.tokens[each, 0] for each in asked]

    expected = replies(model, None)
    graphs = RecordedGraphs(OTHER)
    assert replies(model.to(OTHER), graphs) == expected
    assert bool(graphs.num_launched) == (mix not in LENGTH_MIXES)


@pytest.mark.parametrize("family", sorted(own_families()))
def test_families_of_configs(family: str) -> None:
    _check(_scores, lambda: network_of(FAMILIES[family]))


@pytest.mark.parametrize("case", CASES)
def test_families_of_the_library(case: str, tmp_path: Path, device: Device) -> None:
    pytest.importorskip("transformers")
    kind, changes = CASES[case]
    save_reference(kind, tmp_path, seed=sum(case.encode()), changes=changes)
    _check_file(tmp_path, device)


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_files(kind: str, tmp_path: Path, device: Device) -> None:
    model = tiny.Tiny(
        layers=("StandardTransformer",), hidden_size=64, intermediate_size=160, vocab_size=VOCAB
    )
    source = tiny.save(model, tmp_path / "source", layout="hf")
    quantize_directory(source, kind, tmp_path / "q", tmp_path / "plain")
    _check_file(tmp_path / "q", device)


@pytest.mark.sample(1)
@pytest.mark.parametrize("quantize", [None, "q8_0", "q4_0", "q4_k", "int8", "int4"])
def test_a_whole_program(quantize: str | None, tmp_path: Path) -> None:
    """Text in, text out: drafts, a grammar, an adapter, log-probabilities, prefixes from disk."""
    adapter = _adapter_of_nano(tmp_path / "adapter")
    prompts = ["Once upon a time", "The dog and the dog and the dog and the", "Lily said"]
    greedy = SamplingParams(temperature=0, max_tokens=6, logprobs=2)
    words = SamplingParams(temperature=0, max_tokens=6, grammar={"regex": "( [a-z]{2,7}){3}"})

    def texts(device: str) -> list[str]:
        with LLM(
            "nano",
            device=device,
            quantize=quantize,
            spec="ngram",
            adapter=f"own={adapter}",
            cache_dir=str(tmp_path / device),
            memory="16MiB",
        ) as llm:
            found = llm.generate(prompts, greedy)
            found += llm.generate(prompts, words)
            found += llm.generate(prompts, greedy, adapter="own")
            found += llm.generate(prompts, greedy)
            assert not [each.error for each in found if each.error]
            return [each.text for each in found]

    expected = texts("cpu")
    assert len(set(expected)) > len(prompts)
    assert texts(OTHER) == expected


def _adapter_of_nano(directory: Path) -> Path:
    """An adapter of a state-space layer and of an expert, with random numbers."""
    shapes = {
        "layers.0.mamba2.mixer.in_proj": (844, 192),
        "layers.2.moe.experts.1.up_proj": (128, 192),
    }
    directory.mkdir()
    about = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["in_proj", "up_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(about))
    chance = torch.Generator().manual_seed(run_seed(1))
    factors = {}
    for name, (rows, columns) in shapes.items():
        for letter, shape in (("A", (4, columns)), ("B", (rows, 4))):
            numbers = torch.randn(shape, generator=chance) / 8
            factors[f"base_model.model.{name}.lora_{letter}.weight"] = numbers
    save_file(factors, directory / "adapter_model.safetensors")
    return directory


def _scores(model: CausalLM) -> Tensor:
    with torch.inference_mode():
        return model.forward_sequences(IDS.to(model.device))[0]


def _check_file(path: Path, device: Device) -> None:
    expected, found = (_scores(load(str(path), device=each).module) for each in (CPU, device))
    assert isinstance(found, OtherTensor)
    _check_equal(found, expected)


def _check(compute: Callable[[CausalLM], T], make: Callable[[], CausalLM]) -> None:
    """A network gives the same on both."""
    expected, found = compute(make()), compute(make().to(OTHER))
    _check_equal(found, expected)


def _check_equal(found: object, expected: object) -> None:
    if isinstance(found, Tensor) and isinstance(expected, Tensor):
        assert isinstance(found, OtherTensor)
        assert (found.cpu() - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))
    elif isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            _check_equal(one, other)
    else:
        assert found == expected
