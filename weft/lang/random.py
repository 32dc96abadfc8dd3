"""Random numbers of a loop's iterations, which torch's generator decides on.

A launch of a loop draws one number of 63 bits from torch's generator (of the device where the loop
runs), its **key**. What an iteration draws follows from the key, from the iteration's indices and
from how much it has drawn before: random words by Philox (``weft.ir.philox``), numbered from 0.
So ``torch.manual_seed`` decides, and neither threads nor schedules matter. A number takes the next
words, of which two begin at an even number and four at a multiple of four:

===============================  =====  ===========================================================
``random`` of up to 32 bits      1      the word; a float of the highest 24 bits (f16: 11, bf16: 8)
``random`` of 64 bits, of weak   2      the first word is the high one; a float of 53 bits
``randn`` of up to 32 bits       2      Box and Muller's method, the cosine
``randn`` of f64, of weak        4      the same, of 53 and 64 bits
``randint``                      2      ``low``, and the high 64 bits of the product with the range
===============================  =====  ===========================================================

Plain Python does not know of iterations: there each word is drawn from torch's own generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from weft.errors import KernelTypeError, KernelValueError
from weft.lang.dtypes import EIGHT_BITS, DType, as_dtype, complex_type, quietly

KEY = ("random key",)  # where a loop's key stands among its arguments (``RegionArg.key``)
KEY_NAME = "random_key"
DRAWS = frozenset({"random", "randn", "randint"})  # canonical names

Words = Callable[[int], list[int]]  # as many random words of 32 bits, unsigned

# How many of the highest bits of a word a float in [0, 1) is made of.
FLOAT_BITS = {"f16": 11, "bf16": 8, "f32": 24}


def from_torch(count: int) -> list[int]:
    """Words that torch's generator of the CPU gives."""
    with quietly():
        return torch.randint(0, 1 << 32, (count,), dtype=torch.int64).tolist()


_SOURCE: ContextVar[Words] = ContextVar("weft_random", default=from_torch)


@contextmanager
def drawing(source: Words) -> Generator[None]:
    """Lets ``random``, ``randn`` and ``randint`` take their words from ``source``."""
    before = _SOURCE.set(source)
    try:
        yield
    finally:
        _SOURCE.reset(before)


def new_key(device: torch.device | str) -> torch.Tensor:
    """The key of a launch, 0-d int64, drawn from the generator of ``device``."""
    if torch.device(device).type == "mps":  # whose generator has integers of 32 bits
        high, low = torch.randint(0, (1 << 31) - 1, (2,), dtype=torch.int64, device=device).unbind()
        return high * (1 << 31) + low
    return torch.randint(0, (1 << 63) - 1, (), dtype=torch.int64, device=device)


def read_key(args: Sequence[Any]) -> torch.Tensor:
    """The key of a launch with these arguments, drawn on the device of the first tensor."""
    return new_key(_device(args) or "cpu")


def _device(args: Sequence[Any]) -> torch.device | None:
    for value in args:
        if isinstance(value, torch.Tensor):
            return value.device
        found = _device(value) if isinstance(value, list | tuple) else None
        if found is not None:
            return found
    return None


def number_type(dtype: Any, name: str) -> Any:
    """The dtype, or ``float``, ``int`` or ``bool``, that is drawn. Raises ``KernelTypeError``."""
    if dtype in (float, int, bool):
        return dtype
    if complex_type(dtype) is not None or dtype is complex:
        raise KernelTypeError(
            f"{name}() of complex numbers", help=f"write complex(weft.{name}(), weft.{name}())"
        )
    found = as_dtype(dtype)
    if found.torch in EIGHT_BITS:
        raise KernelTypeError(
            f"{name}() of {found!r}", help=f"round one of float32: {found!r}(...)"
        )
    return found


def float_type(dtype: Any) -> Any:
    """What ``randn`` draws. Raises ``KernelTypeError`` for what is no float."""
    found = number_type(dtype, "randn")
    if found is not float and getattr(found, "kind", "") != "float":
        shown = getattr(dtype, "__name__", dtype)
        raise KernelTypeError(f"randn() of {shown}", help="normal numbers are floats: weft.f32")
    return found


def is_wide(dtype: Any) -> bool:
    """Whether a number takes twice as many words."""
    return dtype in (float, int) or (isinstance(dtype, DType) and dtype.bits == 64)


def random(dtype: Any = float) -> Any:
    """A random number: of a float dtype uniform in [0, 1), of an integer dtype all bits random.

    ``float`` and ``int`` (64 bits) give weak numbers, as Python's are. Raises ``KernelTypeError``
    for complex dtypes.
    """
    found = number_type(dtype, "random")
    words = _SOURCE.get()(1 + is_wide(found))
    name = getattr(found, "name", "")
    if found is float or name == "f64":
        return _as(found, (_joined(words) >> 11) * 2.0**-53)
    if name in FLOAT_BITS:
        bits = FLOAT_BITS[name]
        return found((words[0] >> 32 - bits) * 2.0**-bits)
    if found is bool or name == "bool":
        return _as(found, bool(words[0] & 1))
    return _as(found, _signed(_joined(words), 64) if is_wide(found) else _signed(words[0], 32))


def randn(dtype: Any = float) -> Any:
    """A normally distributed random number (mean 0, variance 1), of a float dtype."""
    found = float_type(dtype)
    wide = is_wide(found)
    words = _SOURCE.get()(4 if wide else 2)
    if wide:
        size = (_joined(words[:2]) >> 11) * 2.0**-53 + 2.0**-54
        angle = _signed(_joined(words[2:]), 64) * (2 * math.pi * 2.0**-64)
        return _as(found, math.sqrt(-2 * math.log(size)) * math.cos(angle))
    f32 = np.float32
    size = f32(words[0]) * f32(2.0**-32) + f32(2.0**-33)
    angle = f32(_signed(words[1], 32)) * f32(2 * math.pi * 2.0**-32)
    return found(float(np.sqrt(f32(-2) * np.log(size)) * np.cos(angle)))


def randint(low: Any, high: Any) -> Any:
    """A random integer from ``low`` to ``high - 1``. Raises ``KernelValueError`` where there is
    none."""
    begin, end = int(low), int(high)
    if begin != low or end != high:
        raise KernelTypeError("randint() of floats", help="write int(...) around the bounds")
    if end <= begin:
        raise KernelValueError(f"randint({begin}, {end}): no integer is between them",
                               help="the first bound is less than the second")  # fmt: skip
    found = begin + (_joined(_SOURCE.get()(2)) * (end - begin) >> 64)
    strong = [v for v in (low, high) if isinstance(v, torch.Tensor)]
    if not strong:
        return found
    dtypes = [v.dtype for v in strong]
    return as_dtype(torch.promote_types(dtypes[0], dtypes[-1]))(found)


def _joined(words: list[int]) -> int:
    return words[0] << 32 | words[1]


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def _as(dtype: Any, value: Any) -> Any:
    return value if dtype in (float, int, bool) else dtype(value)
