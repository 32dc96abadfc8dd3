"""Floats of eight bits, as torch has them: sign, exponent, mantissa, in the highest to lowest bits.

``f8e4m3``: 4 bits of exponent (bias 7), 3 of mantissa; no infinity, NaN is all ones, the largest
number is 448. ``f8e5m2``: 5 bits (bias 15) and 2; infinities and NaN as in IEEE 754, the largest
number is 57344. Format: Micikevicius et al., FP8 Formats for Deep Learning, 2022.
"""

from __future__ import annotations

import math

from weft.ir.types import ScalarType
from weft.values import frozen

NAN = 0x7F  # of both; what torch writes for any NaN, with its sign


@frozen
class Format:
    mantissa: int  # its bits
    bias: int  # of the exponent
    most: int  # the bits of what is too large becomes: the largest number, or infinity


FORMATS = {"f8e4m3": Format(3, 7, 0x7E), "f8e5m2": Format(2, 15, 0x7C)}


def encode(number: float, type: ScalarType) -> int:
    """The bits of the nearest number of ``type``; at a tie the one with an even last bit. What
    rounds beyond the largest one is that of f8e4m3, and infinity of f8e5m2."""
    form = FORMATS[type.name]
    sign = 0x80 if math.copysign(1.0, number) < 0 else 0
    if math.isnan(number):
        return sign | NAN
    if math.isinf(number):
        return sign | form.most
    exponent = max(math.frexp(number)[1] - 1 if number else -99, 1 - form.bias)
    units = round(math.ldexp(abs(number), form.mantissa - exponent))  # to even at a tie
    return sign | min(units + ((exponent + form.bias - 1) << form.mantissa), form.most)


def decode(bits: int, type: ScalarType) -> float:
    """The number of ``type`` with these bits."""
    form, magnitude = FORMATS[type.name], bits & 0x7F
    exponent = magnitude >> form.mantissa
    units = magnitude & ((1 << form.mantissa) - 1)
    if magnitude > form.most:
        number = math.nan
    elif type.name == "f8e5m2" and magnitude == form.most:
        number = math.inf
    else:
        units += (exponent > 0) << form.mantissa
        number = math.ldexp(units, max(exponent, 1) - form.bias - form.mantissa)
    return math.copysign(number, -1.0 if bits & 0x80 else 1.0)
