"""Arithmetic of single unsigned integers of 16, 32 and 64 bits, which torch has tensors of and, but
for a few operations, no arithmetic. Integers wrap; comparisons are by value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

UNSIGNED: dict[torch.dtype, int] = {torch.uint16: 16, torch.uint32: 32, torch.uint64: 64}

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "lshift": lambda a, n: a << min(n, 64), "rshift": lambda a, n: a >> min(n, 64),
    "minimum": min, "maximum": max,
}  # fmt: skip
_COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_UNARY: dict[str, Callable[[int], int]] = {
    "neg": operator.neg, "invert": operator.invert, "abs": abs, "positive": operator.pos,
    "sign": lambda a: int(a > 0), "floor": int, "ceil": int, "trunc": int, "round": int,
}  # fmt: skip
_PYTHON: dict[str, Callable[[Any], Any]] = {
    "__int__": int,
    "__index__": int,
    "__float__": float,
    "__bool__": bool,
}
_ALIASES = {
    "floor_divide": "floordiv", "remainder": "mod", "bitwise_and": "and", "bitwise_or": "or",
    "bitwise_xor": "xor", "bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift",
    "bitwise_not": "invert", "absolute": "abs", "negative": "neg", "subtract": "sub",
    "multiply": "mul", "fix": "trunc",
}  # fmt: skip
_BY_VALUE = ("minimum", "maximum")


def promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """torch's promotion; where it has none, for an unsigned integer beside another integer, the
    wider of the two, or the unsigned one of equal width, as in C."""
    if not ({a, b} & UNSIGNED.keys()) or a.is_floating_point or b.is_floating_point:
        return torch.promote_types(a, b)
    return max(a, b, key=lambda d: (0 if d is torch.bool else d.itemsize, d in UNSIGNED))


def wrapped(value: int, dtype: torch.dtype) -> torch.Tensor:
    """An integer of any size as a 0-d tensor of ``dtype``, an integer type."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    signed = dtype.is_signed and value >> (bits - 1)
    return torch.tensor(value - (1 << bits) if signed else value, dtype=dtype, device="cpu")


def whole(value: float, dtype: torch.dtype) -> int:
    """A float as an integer of ``dtype``: without its fraction, at the ends of the range beyond
    it, and 0 for NaN."""
    range = torch.iinfo(dtype)
    if value != value:
        return 0
    # Compared with powers of two: the largest integer is no float.
    return range.min if value <= range.min else range.max if value > range.max else int(value)


def stored(value: Any, dtype: torch.dtype) -> Any:
    """What is assigned to an element of ``dtype``. Into integers floats stop at the ends of the
    range, and of those that torch has no arithmetic for, a Python int wraps."""
    if type(value) is int and dtype in UNSIGNED:
        return wrapped(value, dtype)
    single = isinstance(value, torch.Tensor) and not value.dim() and value.is_floating_point()
    if (single or type(value) is float) and not (dtype.is_floating_point or dtype.is_complex):
        if dtype is torch.bool:
            return value
        return wrapped(whole(float(value), dtype), dtype)
    return value


def involved(args: Sequence[Any]) -> bool:
    """Whether one of ``args`` is a 0-d tensor of these dtypes."""
    return any(isinstance(a, torch.Tensor) and a.dtype in UNSIGNED and not a.dim() for a in args)


def computed(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """``function``, one of torch's, of scalars; ``NotImplemented`` where torch's own is right."""
    word = getattr(function, "__name__", "")
    if word in _PYTHON:
        return _PYTHON[word](args[0].item())
    name = word.strip("_")
    name = _ALIASES.get(name, name)
    if name in _UNARY and len(args) == 1:
        return wrapped(_UNARY[name](args[0].item()), args[0].dtype)
    if word.startswith("__r") and name not in ("rshift",):
        name, args = _ALIASES.get(name[1:], name[1:]), args[::-1]
    if len(args) != 2 or not all(map(_is_integer, args)):
        return NotImplemented
    strong = [a.dtype for a in args if isinstance(a, torch.Tensor)]
    dtype = promoted(strong[0], strong[-1])
    a, b = map(_number, args)
    if name in _COMPARISONS:
        return torch.tensor(_COMPARISONS[name](a, b), device="cpu")
    if name == "pow" and b >= 0:
        return wrapped(pow(a, b, 1 << 64), dtype)
    if name not in _ARITHMETIC:
        return NotImplemented
    weak = len(strong) == 1 and dtype is not torch.uint64  # by value, also beyond the range
    if name not in _BY_VALUE and not weak:
        a, b = (_number(wrapped(x, dtype)) for x in (a, b))
    return wrapped(_ARITHMETIC[name](a, b), dtype)


def _number(value: Any) -> int:
    return int(value.item() if isinstance(value, torch.Tensor) else value)


def _is_integer(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        kind = value.dtype
        return not (value.dim() or kind.is_floating_point or kind.is_complex)
    return isinstance(value, int)
