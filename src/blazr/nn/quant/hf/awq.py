"""AWQ: four-bit numbers with a scale and a zero point per group of columns [arXiv:2306.00978].

    qweight   int32, (in, out / 8): a word holds eight rows of one column
    qzeros    int32, (groups, out / 8), in the same order
    scales    float16, (groups, out)

Numbers are ``(q - zero) * scale``. The places of a word, lowest first, hold rows 0, 2, 4, 6, 1, 3,
5, 7 (version ``gemm``).

Source: AutoAWQ's description of the format.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from typing_extensions import override

from blazr.nn.quant.hf.scheme import (
    Grid,
    GridLayout,
    Layout,
    Parts,
    QuantizationConfig,
    Read,
    Scheme,
    agree,
    group_size,
    need,
)
from blazr.nn.quant.hf.words import WORD, span, unpack

BITS = 4
# Which place of a word each row is in.
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


class AwqLayout(GridLayout):
    """A matrix as AWQ stores it: words along the rows, in an order of their own.

    Args:
        shape: (out, in).
        size: Columns of a group.
    """

    def __init__(self, shape: tuple[int, int], size: int) -> None:
        super().__init__("awq-int4", shape)
        self.size = size

    @override
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        words, inside = span(rows, self.shape[0], BITS)
        codes = unpack(parts["qweight"][:, words], BITS, 1, PLACES)[:, inside]
        zeros = unpack(parts["qzeros"][:, words], BITS, 1, PLACES)[:, inside]
        return Grid(codes.T, parts["scales"][:, rows].float().T, zeros.T, self.size, BITS)


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout:
    del read
    version = settings.text("version", "gemm")
    if version.lower() != "gemm":
        raise settings.wrong("version", "gemm")
    if settings.integer("bits", settings.integer("w_bit", BITS)) != BITS:
        raise settings.wrong("bits", str(BITS))
    inner, words = need(parts, "qweight", ("I32",), 2)
    groups, out = need(parts, "scales", ("F16", "BF16", "F32"), 2)
    agree(parts, (words,), (-(-out * BITS // WORD),), "words of a column:")
    agree(parts, need(parts, "qzeros", ("I32",), 2), (groups, words), "qzeros")
    wanted = settings.integer("group_size", settings.integer("q_group_size", 0))
    return AwqLayout((out, inner), group_size(parts, inner, groups, wanted))


AWQ = Scheme(mains=("qweight",), others=("qzeros", "scales"), layout=_layout)
