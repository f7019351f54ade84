"""Headers, shards and config.json become one Checkpoint, and its tensors read back."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.checkpoint.open import INDEX, open_checkpoint


def test_a_single_file_with_config_beside_it(tmp_path: Path) -> None:
    save_file({"a": torch.arange(6.0).view(2, 3)}, tmp_path / "x_final.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    for path in (tmp_path, tmp_path / "x_final.safetensors"):
        found = open_checkpoint(path)
        assert found.config == {"hidden_size": 3}
        assert found.directory == tmp_path
        assert found.read("a").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_config_is_optional(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).config == {}


def test_a_config_that_is_a_broken_link_is_not_taken_for_none(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(tmp_path / "blobs" / "4d7a")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be opened") as raised:
        open_checkpoint(tmp_path)
    assert raised.value.found.startswith("a link to")


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(2)}, tmp_path / "model-00002-of-00002.safetensors")
    found = open_checkpoint(tmp_path)
    assert set(found.tensors) == {"a", "b"}
    assert found.read("b").tolist() == [0, 0]


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        save_file({"a": torch.ones(1)}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="in two files"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "where",
    [
        {"a": "y.safetensors", "b": "y.safetensors"},
        {"a": "x.safetensors", "b": "y.safetensors", "c": "y.safetensors"},
    ],
)
def test_an_index_that_is_wrong_is_refused(tmp_path: Path, where: dict[str, str]) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "y.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    with pytest.raises(CheckpointError, match="disagree"):
        open_checkpoint(tmp_path)


def test_no_tensors_is_refused(tmp_path: Path) -> None:
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="no tensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "\xff", "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_checkpoint(tmp_path)


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8])


@given(st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=5), st.integers(0, 2**31))
def test_write_then_read_is_identity(tmp_path_factory, wanted, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"t{index}": (torch.randn(shape, generator=generator) * 10).to(dtype)
        for index, (shape, dtype) in enumerate(wanted)
    }
    path = tmp_path_factory.getbasetemp() / "identity.safetensors"
    save_file(tensors, path)
    found = open_checkpoint(path)
    for name, tensor in tensors.items():
        read = found.read(name)
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)


def test_tensors_that_the_file_does_not_align_are_read_all_the_same(tmp_path: Path) -> None:
    header = json.dumps(
        {
            "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "odd": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    data = b"\x07" + struct.pack("<2f", 1.5, -2.0)
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    found = open_checkpoint(tmp_path / "m.safetensors")
    assert found.tensors["odd"].start % 4
    assert found.read("odd").tolist() == [1.5, -2.0]


def test_views_share_the_mapping_and_never_write_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(4)}, path)
    before = path.read_bytes()
    found = open_checkpoint(path)
    first, second = found.read("a"), found.read("a")
    assert first.data_ptr() == second.data_ptr()
    first[0] = 5
    assert second[0] == 5
    assert path.read_bytes() == before


def test_dropped_pages_read_the_file_again(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.arange(100_000.0)}, path)
    found = open_checkpoint(path)
    view = found.read("a")
    found.drop(found.tensors["a"])
    assert torch.equal(view, torch.arange(100_000.0))


def test_a_file_that_changed_since_its_header_was_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(4)}, path)
    found = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="has changed"):
        found.read("a")


def test_headers_are_read_without_torch(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    program = (
        "import sys; from pathlib import Path\n"
        "sys.modules['torch'] = None\n"
        "from blazr.models.checkpoint.open import open_checkpoint\n"
        "import blazr.models.families.rules\n"
        "print(open_checkpoint(Path(sys.argv[1])).tensors['a'].shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "(4,)\n", done.stderr
