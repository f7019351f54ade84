"""Experts that are not where the rest of the network is."""

from __future__ import annotations

import pytest
import torch

from blazr.nn.device import fetch
from blazr.nn.layers import moe
from blazr.nn.layers.moe import MoeConfig

ELSEWHERE = torch.device("cuda")  # there is none, and nothing goes there: moves are counted


@pytest.mark.parametrize("has_shared", [False, True])
@pytest.mark.parametrize("latent_size", [None, 8])
@torch.inference_mode()
def test_tokens_go_to_the_experts_and_back_beside_what_all_share(
    monkeypatch, has_shared, latent_size
):
    torch.manual_seed(0)
    layer = MoeConfig(
        hidden_size=12,
        intermediate_size=16,
        num_experts=6,
        experts_per_token=2,
        shared_expert=has_shared,
        shared_expert_gate=has_shared,
        latent_size=latent_size,
    ).build()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(5, 12)
    expected = layer(x)
    moves: list[object] = []

    def fetch(tensors, device):
        assert device == ELSEWHERE
        moves.append(sum(each.nbytes for each in tensors))

        def wait():
            moves.append("waits")
            return tensors

        return wait

    monkeypatch.setattr(moe, "fetch", fetch)
    if has_shared:
        shared = layer.shared_expert.forward

        def compute(x):
            moves.append("shared")
            return shared(x)

        layer.shared_expert.forward = compute
    monkeypatch.setattr(moe.Experts, "device", property(lambda _: ELSEWHERE))
    assert torch.equal(layer(x), expected)
    # the tokens, and two weights and numbers of experts of each
    nbytes = 5 * (4 * (latent_size or 12) + 2 * 4 + 2 * 8)
    assert moves == [nbytes, *["shared"] * has_shared, "waits"]


def test_they_stay_where_they_are_when_the_rest_is_cast_or_moved():
    layer = MoeConfig(
        hidden_size=4, intermediate_size=4, num_experts=2, experts_per_token=1, shared_expert=True
    ).build()
    layer.experts.stays = True
    layer.to(torch.bfloat16)
    assert layer.experts.down_proj.dtype == torch.float32
    assert layer.shared_expert.down_proj.weight.dtype == torch.bfloat16


@torch.inference_mode()
def test_on_one_device_nothing_is_moved():
    x = torch.ones(2, 3)
    (found,) = fetch([x], torch.device("cpu"))()
    assert found.data_ptr() == x.data_ptr()
