"""Python numbers of a dtype, as annotated parameters and locals hold in a kernel's host part.

They are ints and floats to everybody else. Arithmetic among them, and with Python's numbers, keeps
to the dtype as a device loop does: integers wrap, floats are rounded, types join. So do they beside
elements of fields and local arrays.
"""

from __future__ import annotations

import copy
import math
import operator
import struct
from collections.abc import Callable
from typing import Any

import torch

from weft.errors import KernelTypeError
from weft.lang.dtypes import (
    DTYPES,
    SYMBOLS,
    DType,
    Number,
    Scalar,
    as_dtype,
    bool_,
    from_torch,
    promoted,
    strongly,
)
from weft.lang.vectors import Matrix, MatrixType, Vector, VectorType


def plain(value: Any) -> Any:
    """``value`` as Python's own int or float, if it is a Number."""
    if isinstance(value, Number):
        return int(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]
    return value


def converted(value: float, dtype: DType) -> Any:
    """A Python number as the nearest one of ``dtype``, as a loop converts: integers wrap; floats
    lose their fraction, stop at the ends of the range, and NaN is 0."""
    if dtype.kind == "bool":
        return bool(value)
    if dtype.kind == "float":
        return _rounded(float(value), dtype)
    low, high = (-(1 << (dtype.bits - 1)) if dtype.signed else 0), 1 << dtype.bits
    if isinstance(value, float):
        top = low + high - 1
        if math.isnan(value):
            return 0
        return low if value <= low else top if value >= top else int(value)
    return (int(value) - low) % high + low


def _rounded(value: float, dtype: DType) -> float:
    if dtype.bits == 64 or not math.isfinite(value):
        return value
    if dtype.name == "f32":
        try:
            return struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    return torch.tensor(value, dtype=torch.float64, device="cpu").to(dtype.torch).item()


def strong(value: Any, dtype: DType) -> Any:
    """A Python number as one of ``dtype``; booleans are Python's own."""
    result = converted(plain(value), dtype)
    return result if dtype is bool_ else NUMBERS[dtype](result)


def cast(annotation: Any, value: Any) -> Any:
    """What ``name: annotation = value`` assigns in a host part. ``int``, ``float`` and ``bool``
    convert numbers; other annotations change nothing."""
    if isinstance(annotation, torch.dtype):
        annotation = as_dtype(annotation)
    if isinstance(annotation, DType):
        if isinstance(value, torch.Tensor) and value.dim() == 0 and not isinstance(value, Scalar):
            return value.to(annotation.torch)
        if isinstance(value, SYMBOLS):
            return value
        if isinstance(value, int | float):
            return strong(value, annotation)
        return annotation(value)
    if isinstance(annotation, VectorType | MatrixType):
        return annotation(value)
    if annotation in (int, float, bool) and isinstance(value, int | float):
        return annotation(plain(value))
    return value


def returned(annotation: Any, value: Any) -> Any:
    """What a kernel with the return annotation ``annotation`` gives for ``value``."""
    if isinstance(annotation, tuple):
        if not isinstance(value, tuple) or len(value) != len(annotation):
            raise KernelTypeError(
                f"a kernel that is annotated to return {len(annotation)} values returned something "
                "else", help="return a tuple of that length",
            )  # fmt: skip
        return tuple(map(returned, annotation, value))
    if isinstance(annotation, VectorType | MatrixType):
        return annotation(value)
    if isinstance(value, torch.Tensor):
        value = value.item()
    if isinstance(annotation, DType) and isinstance(value, int | float):
        return converted(plain(value), annotation)
    return plain(value)


def copied(value: Any) -> Any:
    """``value``; of a vector, a matrix or a struct a copy, for it is a value in a kernel."""
    if type(value) is Vector or type(value) is Matrix:
        return value.with_entries(value.entries())
    return copy.copy(value) if getattr(type(value), "assigned_as_copy", False) else value


def _joined(a: Any, b: Any) -> type[Any] | None:
    """The class of the result of an operation; None for Python's own number."""
    classes = [type(v) for v in (a, b) if isinstance(v, Number)]
    if len(classes) == 2:
        return NUMBERS[from_torch(promoted(classes[0].dtype.torch, classes[1].dtype.torch))]
    weak = b if isinstance(a, Number) else a
    return None if isinstance(weak, float) and issubclass(classes[0], int) else classes[0]


def _computed(function: Callable[..., Any], a: Any, b: Any) -> Any:
    if isinstance(a, SYMBOLS) or isinstance(b, SYMBOLS):
        return function(plain(a), plain(b))
    if isinstance(a, Scalar) or isinstance(b, Scalar):
        return function(strongly(a), strongly(b))
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return NotImplemented
    made, strong = _joined(a, b), isinstance(a, Number) and isinstance(b, Number)
    a, b = plain(a), plain(b)
    if strong and made in _WHOLE and function in (operator.floordiv, operator.mod):
        # Of sums, products and bits the conversion changes nothing.
        a, b = converted(a, made.dtype), converted(b, made.dtype)
    result = function(a, b)
    fits = made is not None and isinstance(result, int if issubclass(made, int) else float)
    return _of(made, result) if made is not None and fits else result


def _of(made: type[Any], result: Any) -> Any:
    # Halves are computed in f32, and rounded where they are stored or cast.
    dtype = DTYPES["f32"] if made.dtype.bits == 16 and made.dtype.kind == "float" else made.dtype
    return made(converted(result, dtype))


def _forward(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: _computed(function, self, other)


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: _computed(function, other, self)


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: _of(type(self), function(plain(self)))


def _made(dtype: DType) -> type[Any]:
    base = float if dtype.kind == "float" else int
    members: dict[str, Any] = {"__slots__": (), "dtype": dtype, "__module__": __name__}
    names = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
    names += [] if base is float else ["and_", "or_", "xor", "lshift", "rshift"]
    for name in names:
        function, word = getattr(operator, name), name.rstrip("_")
        members[f"__{word}__"], members[f"__r{word}__"] = _forward(function), _reflected(function)
    for name in ("neg", "pos", "abs", *(() if base is float else ("invert",))):
        members[f"__{name}__"] = _unary(getattr(operator, name))
    members["__divmod__"] = lambda self, other: (self // other, self % other)
    members["__rdivmod__"] = lambda self, other: (other // self, other % self)
    return type(dtype.name.upper(), (Number, base), members)


# By dtype; the classes are called I32, F32 and so on, and are picklable by these names.
NUMBERS: dict[DType, type[Any]] = {d: _made(d) for d in DTYPES.values() if d is not bool_}
_WHOLE = {made for dtype, made in NUMBERS.items() if dtype.kind == "int"}
globals().update({made.__name__: made for made in NUMBERS.values()})
