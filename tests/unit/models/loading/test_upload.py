"""Weights on their way to a GPU."""

from __future__ import annotations

import pytest
import torch

from blazr.models.loading import upload as uploading
from blazr.models.loading.upload import Stages, upload
from tests.support.graphs import RecordedGraphs


@pytest.mark.parametrize("hurries", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_everything_arrives_whatever_the_buffers_hold(monkeypatch, dtype, hurries):
    graphs = RecordedGraphs(hurries=hurries)
    stages = Stages(graphs, nbytes=64)
    monkeypatch.setattr(uploading, "_stages_of", lambda _: stages)
    given = [torch.randint(0, 100, shape).to(dtype) for shape in ((5, 7), (3, 2, 11), (0, 4), ())]
    given.append(given[0].t())
    found = [upload(each, torch.device("cpu")) for each in given]
    wanted = [each.clone() for each in given]
    for each in given:
        each.zero_()  # it may change once it was read
    graphs.join()
    assert sum(graphs.uploaded) == sum(each.nbytes for each in wanted)
    for mine, own in zip(found, wanted, strict=True):
        assert mine.dtype == own.dtype
        assert torch.equal(mine.float(), own.float())


def test_without_a_gpu_nothing_is_copied():
    tensor = torch.ones(3)
    assert upload(tensor, torch.device("cpu")).data_ptr() == tensor.data_ptr()
