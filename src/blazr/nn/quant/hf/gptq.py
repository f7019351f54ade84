"""GPTQ: whole numbers with a scale and a zero point per group of columns [arXiv:2210.17323].

    qweight   int32, (in * bits / 32, out): a word holds numbers of one row, first column lowest
    qzeros    int32, (groups, out * bits / 32)
    scales    float16, (groups, out)
    g_idx     int32, (in,): the group of each column; with "act order" groups are not runs

Numbers are ``(q - zero) * scale``. The first version of the format stores zero points less one
(``checkpoint_format`` ``"gptq"``), the second as they are (``"gptq_v2"``).

Source: AutoGPTQ's and GPTQModel's description of the format.
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
    check_groups,
    group_size,
    need,
)
from blazr.nn.quant.hf.words import WORD, span, unpack

WIDTHS = (2, 3, 4, 8)
_FORMATS = {"gptq": 1, "gptq_v2": 0}


class GptqLayout(GridLayout):
    """A matrix as GPTQ stores it: words of whole numbers, with zero points and an order of columns.

    Args:
        shape: (out, in).
        bits: Of a number.
        size: Columns of a group, where there is no ``g_idx``.
        offset: What is added to the stored zero points.
    """

    def __init__(self, shape: tuple[int, int], bits: int, size: int, *, offset: int) -> None:
        super().__init__(f"gptq-int{bits}", shape)
        self.bits = bits
        self.size = size
        self.offset = offset

    @override
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        words, inside = span(rows, self.shape[0], self.bits)
        zeros = unpack(parts["qzeros"][:, words], self.bits, 1)[:, inside]
        # the writer wraps a zero point of 0 around to the largest number
        zeros = (zeros + self.offset) & (2**self.bits - 1)
        groups = parts.get("g_idx")
        return Grid(
            codes=unpack(parts["qweight"][:, rows], self.bits, 0).T,
            scales=parts["scales"][:, rows].float().T,
            zeros=zeros.T,
            size=self.size,
            bits=self.bits,
            groups=None if groups is None else groups.long(),
        )


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout:
    kind = settings.text("checkpoint_format", "gptq")
    if kind not in _FORMATS:
        raise settings.wrong("checkpoint_format", ", ".join(_FORMATS))
    groups, out = need(parts, "scales", ("F16", "BF16", "F32"), 2)
    packed, columns = need(parts, "qweight", ("I32",), 2)
    agree(parts, (columns,), (out,), "qweight's rows")
    zero_shape = need(parts, "qzeros", ("I32",), 2)
    said = settings.integer("bits", zero_shape[1] * WORD // max(out, 1))
    if said not in WIDTHS:
        raise settings.wrong("bits", ", ".join(map(str, WIDTHS)))
    # "dynamic" settings give some matrices another width, which their zero points show
    fitting = (b for b in (said, *WIDTHS) if zero_shape == (groups, -(-out * b // WORD)))
    bits = next(fitting, said)
    agree(parts, (packed * WORD % bits,), (0,), "qweight's words beside whole numbers:")
    inner = packed * WORD // bits
    agree(parts, zero_shape, (groups, -(-out * bits // WORD)), "qzeros")
    size = 1
    if "g_idx" in parts:
        check_groups(parts, "g_idx", read, columns=inner, groups=groups)
    else:
        size = group_size(parts, inner, groups, settings.integer("group_size", 0))
    return GptqLayout((out, inner), bits, size, offset=_FORMATS[kind])


GPTQ = Scheme(mains=("qweight",), others=("qzeros", "scales", "g_idx"), layout=_layout)
