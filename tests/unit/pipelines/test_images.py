"""Images have the pixels that are in their files, whatever form these have."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from blazr.pipelines.images import open_image


def test_16_bits_of_grey_are_scaled_and_not_cut() -> None:
    image = pytest.importorskip("PIL.Image")
    file = BytesIO()
    grey = np.array([[0, 255, 256, 0x1000], [0x7FFF, 0x8000, 0xFF00, 0xFFFF]], np.uint16)
    image.fromarray(grey).save(file, "PNG")
    found = np.asarray(open_image(file.getvalue()))
    assert found[..., 1].tolist() == [[0, 0, 1, 16], [127, 128, 255, 255]]  # as with colours
    assert (found == found[..., :1]).all()
