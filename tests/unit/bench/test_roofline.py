"""The machine's limit: how much a step reads, and what share of what there is."""

from __future__ import annotations

import pytest
import torch

from blazr.bench import RANDOM_SHAPES
from blazr.bench.load import Record
from blazr.bench.roofline import (
    arithmetic_use,
    bandwidth_use,
    measure_bandwidth,
    measure_rates,
    peak_memory,
    product_counts,
    step_bytes,
)
from blazr.bench.shapes import random_network
from blazr.models.sizing import size_of
from blazr.nn.device import resolve_device
from blazr.nn.ops.peak import ARITHMETIC, has_kernels
from tests.support.networks import HIDDEN, VOCAB, build_network

CPU = resolve_device("cpu")
# of tests.support.networks, float32
EXPERTS = 5
CHOSEN = 2
EXPERT_BYTES = 3 * HIDDEN * 20 * 4


def test_one_token_reads_the_weights_it_passes_through() -> None:
    model = build_network(("mla+moe", "mamba2", "gqa+mlp"))
    size = size_of(model.config, torch.float32)
    head = VOCAB * HIDDEN
    weights = 4 * (size.active_parameters - size.embedding_parameters + head)
    remembered = 10 * (size.kv_bytes_per_token + size.latent_bytes_per_token)
    expected = weights + remembered + size.state_bytes_per_sequence
    assert step_bytes(model, batch=1, context_len=10) == pytest.approx(expected)


def test_a_batch_reads_weights_once_and_memory_for_each() -> None:
    model = build_network(("mamba2", "gqa+mlp"))
    size = size_of(model.config, torch.float32)
    one, four = (step_bytes(model, batch=batch, context_len=7) for batch in (1, 4))
    per_sequence = 7 * size.kv_bytes_per_token + size.state_bytes_per_sequence
    assert four - one == pytest.approx(3 * per_sequence)


def test_many_tokens_choose_every_expert() -> None:
    model = build_network(("mla+moe",))
    one, two, many = (step_bytes(model, batch=batch, context_len=0) for batch in (1, 2, 500))
    assert many - one == pytest.approx((EXPERTS - CHOSEN) * EXPERT_BYTES)
    # the second token chooses each expert that the first did not with a chance of 2 in 5
    assert two - one == pytest.approx((EXPERTS - CHOSEN) * CHOSEN / EXPERTS * EXPERT_BYTES)


def test_the_share_is_bytes_a_step_times_steps_a_second() -> None:
    model = build_network(("gqa+mlp",))
    tokens = [1.0 + 0.1 * step for step in range(5)]
    records = [
        Record(prompt_tokens=30, token_s=tokens, output_tokens=5),
        Record(prompt_tokens=50, token_s=tokens, output_tokens=5),
        Record(prompt_tokens=9000, error="gone"),
    ]
    use = bandwidth_use(model, records, 1e6)
    assert use["step_batch"] == pytest.approx(2)
    assert use["step_bytes"] == pytest.approx(step_bytes(model, batch=2, context_len=42.5))
    assert use["bandwidth_share"] == pytest.approx(use["step_bytes"] * 10 / 1e6)


def test_where_nothing_was_decoded_there_is_no_share() -> None:
    model = build_network(("gqa",))
    assert bandwidth_use(model, [Record(prompt_tokens=3, token_s=[1.0])], 1e6) == {}


def test_bandwidth_and_memory_are_of_this_machine() -> None:
    bandwidth = measure_bandwidth(CPU, nbytes=2**22, rounds=3)
    assert 1e8 < bandwidth < 1e14
    assert 2**25 < peak_memory(CPU)["peak_memory_bytes"] < 2**45


def test_a_token_is_multiplied_with_every_layer_and_the_experts_it_chooses() -> None:
    model = build_network(("gqa+mlp", "mla+moe"))
    matrices = [weight for weight in model.layers.parameters() if weight.dim() > 1]
    unused = (EXPERTS - CHOSEN) * EXPERT_BYTES / 4
    expected = sum(weight.numel() for weight in matrices) - unused
    assert product_counts(model) == {"float32": pytest.approx(expected)}


def test_the_share_is_products_of_the_computed_tokens_times_tokens_a_second() -> None:
    model = build_network(("gqa+mlp",))
    record = Record(prompt_tokens=120, cached_tokens=20, arrival_s=1.0, token_s=[3.0])
    failed = Record(prompt_tokens=9000, error="gone")
    use = arithmetic_use(model, [record, failed], {"float32": 1e6})
    expected = 50 * 2 * product_counts(model)["float32"] / 1e6
    assert use == {"arithmetic_share": pytest.approx(expected)}
    assert arithmetic_use(model, [record], {}) == {}
    assert arithmetic_use(model, [failed], {"float32": 1e6}) == {}


@pytest.mark.skipif(not has_kernels(), reason="the kernels are not compiled")
def test_rates_are_of_this_machine() -> None:
    rates = measure_rates(CPU)
    assert rates.keys() == set(ARITHMETIC)
    assert all(1e8 < rate < 1e15 for rate in rates.values()), rates


PARAMETERS = {
    "qwen2-0.5b": 494_032_768,  # as its makers count
    "llama-3.2-1b": 1_235_814_400,  # as its makers count
    "llama-3.1-8b": 8_030_261_248,  # as its makers count
    "granite-4.0-h-1b": 1_461_538_368,
    "nemotron-nano-9b": 8_888_227_328,
    "hybrid-0.4b": 374_009_088,
    "hybrid-120m": 123_157_248,
    "nano": 2_750_208,
}


@pytest.mark.parametrize("name", RANDOM_SHAPES)
def test_shapes_have_the_size_they_say(name: str) -> None:
    assert size_of(RANDOM_SHAPES[name](), torch.bfloat16).parameters == PARAMETERS[name]


def test_a_random_network_is_the_same_every_time_and_has_no_equal_rows() -> None:
    config = build_network(("mamba2", "mla+moe")).config
    first, second = (random_network(config, device=CPU, dtype="auto") for _ in range(2))
    assert first.dtype == torch.float32, "small networks are exact on a CPU"
    for (name, one), two in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two), name
        assert not one.requires_grad
    rows = first.embed_tokens.weight
    assert len(rows.unique(dim=0)) == VOCAB
    assert rows.std().item() == pytest.approx(0.02, rel=0.2)
    half = random_network(config, device=CPU, dtype="bfloat16")
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
