"""Names of devices."""

import pytest

from blazr.core.errors import ConfigError
from blazr.nn.device import resolve_device


@pytest.mark.parametrize("name", ["gpu", "GPU", "cuda:0"])
def test_other_names_of_a_gpu_are_told_the_right_one(name: str) -> None:
    with pytest.raises(ConfigError, match="cuda is the name of the GPU"):
        resolve_device(name)


def test_an_unknown_device_gets_no_such_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_device("tpu")
    assert caught.value.hint == ""
