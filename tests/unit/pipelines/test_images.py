"""Images have the pixels that are in their files, whatever form these have."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from blazr.core.errors import RequestError
from blazr.pipelines.images import open_image


def test_16_bits_of_grey_are_scaled_and_not_cut() -> None:
    image = pytest.importorskip("PIL.Image")
    file = BytesIO()
    grey = np.array([[0, 255, 256, 0x1000], [0x7FFF, 0x8000, 0xFF00, 0xFFFF]], np.uint16)
    image.fromarray(grey).save(file, "PNG")
    found = np.asarray(open_image(file.getvalue()))
    assert found[..., 1].tolist() == [[0, 0, 1, 16], [127, 128, 255, 255]]  # as with colours
    assert (found == found[..., :1]).all()


def test_a_camera_s_picture_is_read_without_the_previews_behind_it() -> None:
    """Such a JPEG is an MPO to pillow, and was said to be animated."""
    image = pytest.importorskip("PIL.Image")
    picture, preview = image.new("RGB", (30, 20), (200, 30, 30)), image.new("RGB", (6, 4))
    file = BytesIO()
    picture.save(file, "MPO", save_all=True, append_images=[preview])
    found = open_image(file.getvalue())
    assert found.size == (30, 20)
    assert np.asarray(found).mean(axis=(0, 1)) == pytest.approx((200, 30, 30), abs=4)


def test_an_animated_image_is_refused() -> None:
    image = pytest.importorskip("PIL.Image")
    frames = [image.new("L", (4, 4), grey) for grey in (0, 255)]
    for kind in ("GIF", "PNG", "WEBP"):
        file = BytesIO()
        frames[0].save(file, kind, save_all=True, append_images=frames[1:])
        with pytest.raises(RequestError, match="animated"):
            open_image(file.getvalue())
