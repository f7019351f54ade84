"""Names of devices, and memory on them."""

import pytest
import torch

from blazr.core.errors import ConfigError
from blazr.nn.device import resolve_device, zero_bytes


@pytest.mark.parametrize("name", ["gpu", "GPU", "cuda:0"])
def test_other_names_of_a_gpu_are_told_the_right_one(name: str) -> None:
    with pytest.raises(ConfigError, match="cuda is the name of the GPU"):
        resolve_device(name)


def test_an_unknown_device_gets_no_such_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_device("tpu")
    assert caught.value.hint == ""


@pytest.mark.parametrize("size", [0, 100, 3 * 2**21 + 5])
def test_fresh_memory_is_zero_and_ours(size: int) -> None:
    memory = zero_bytes(torch.Size((size,)))
    assert memory.shape == (size,)
    assert not memory.any()
    memory.fill_(1)
    assert not zero_bytes(torch.Size((size,))).any()
