"""What each scalar operation computes: one rule for each pure row of arith and math.

``SCALAR_RULES[name](op, *operands)`` gives the value of the one result. Values are as ``interp``
says. Rules compute on Python integers and numpy floats, and round or wrap to the result's type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir import float8, philox
from weft.ir.core import Op
from weft.ir.types import ScalarType, Type, bf16, i1

if TYPE_CHECKING:
    from fractions import Fraction

Rule = Callable[..., Any]

_FLOATS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_BITS = {"f16": np.uint16, "f32": np.uint32, "f64": np.uint64}


def wrap(value: int, type: ScalarType) -> int | bool:
    """``value`` modulo the type's width, signed; i1 as a bool."""
    if type is i1:
        return bool(value & 1)
    value &= (1 << type.bits) - 1
    return value - (1 << type.bits) if value >> (type.bits - 1) else value


def unsigned(value: int, type: ScalarType) -> int:
    return value & ((1 << type.bits) - 1)


def signed(value: int, type: ScalarType) -> int:
    """As ``value`` is, but for i1, whose only bit is the sign: true is -1."""
    return -int(value) if type is i1 else value


def to_float(value: Any, type: ScalarType) -> Any:
    """``value`` rounded to nearest even in ``type``."""
    if type.name in _FLOATS:
        return _FLOATS[type.name](value)
    if type.bits == 8:
        return np.float32(float8.decode(float8.encode(float(np.float32(value)), type), type))
    value = np.float32(value)
    if not np.isfinite(value):
        return value
    bits = int(value.view(np.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)
    return np.uint32(bits & 0xFFFF0000).view(np.float32)


def bits_of(value: Any, type: ScalarType) -> int:
    """The bits of a value of ``type``, as an unsigned integer."""
    if type is bf16:
        return int(np.float32(value).view(np.uint32)) >> 16
    if type.is_float and type.bits == 8:
        return float8.encode(float(value), type)
    if type.is_float:
        return int(value.view(_BITS[type.name]))
    return unsigned(int(value), type)


def from_bits(bits: int, type: ScalarType) -> Any:
    """The value of ``type`` with these bits."""
    if type is bf16:
        return np.uint32(bits << 16).view(np.float32)
    if type.is_float and type.bits == 8:
        return np.float32(float8.decode(bits, type))
    if type.is_float:
        return _BITS[type.name](bits).view(_FLOATS[type.name])
    return wrap(bits, type)


def _result(op: Op) -> Any:
    return op.results[0].type


def _operand(op: Op) -> Any:
    return op.operands[0].type


# --- integers ----------------------------------------------------------------------------------


def _whole(
    function: Callable[[int, int], int], read: Callable[[int, ScalarType], int] = signed
) -> Rule:
    """Computes on mathematical integers, as ``read`` has the operands, then wraps."""

    def rule(op: Op, a: int, b: int) -> int:
        type = _result(op)
        return wrap(function(read(a, type), read(b, type)), type)

    return rule


def _or_zero(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """Division by zero gives 0: operations that may be moved have a result for every operand."""
    return lambda a, b: function(a, b) if b else 0


def _remsi(a: int, b: int) -> int:
    return int(math.copysign(1, a)) * (abs(a) % abs(b))


def _shift(function: Callable[[int, int], int], operand: Callable[..., int]) -> Rule:
    """A shift by the width or more shifts everything out: nothing is undefined here."""

    def rule(op: Op, a: int, b: int) -> int:
        type = _result(op)
        return wrap(function(operand(a, type), min(unsigned(b, type), type.bits)), type)

    return rule


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def _table(op: Op, at: int) -> Any:
    values = op.attrs["values"]
    return literal(values[min(unsigned(int(at), _operand(op)), len(values) - 1)], _result(op))


def _cmpi(op: Op, a: int, b: int) -> bool:
    predicate = op.attrs["predicate"]
    read = unsigned if predicate[0] == "u" else signed
    type = _operand(op)
    return _COMPARE[predicate[-2:]](read(a, type), read(b, type))


# --- floats ------------------------------------------------------------------------------------


def _float(function: Callable[..., Any], of: Callable[[Any], Any] = lambda a: a) -> Rule:
    """Computes in the operands' own type: numpy's scalars do, with correct rounding."""

    def rule(op: Op, *operands: Any) -> Any:
        return to_float(function(*map(of, operands)), _result(op))

    return rule


def _wide(function: Callable[..., Any]) -> Rule:
    """Computes in f64 and rounds to the result's type."""
    return _float(function, np.float64)


def _maximum(a: Any, b: Any) -> Any:
    if np.isnan(a) or np.isnan(b):
        return a + b
    if a == b:  # 0.0 is more than -0.0
        return b if np.signbit(a) else a
    return max(a, b)


def _minimum(a: Any, b: Any) -> Any:
    return -_maximum(-a, -b)


def _skipping_nan(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``rule`` of two numbers; the other operand where one is NaN."""
    return lambda a, b: b if np.isnan(a) else a if np.isnan(b) else rule(a, b)


def _cmpf(op: Op, a: Any, b: Any) -> bool:
    predicate = op.attrs["predicate"]
    unordered = bool(np.isnan(a) or np.isnan(b))
    if predicate in ("ord", "uno"):
        return unordered == (predicate == "uno")
    if unordered:
        return predicate[0] == "u"
    return bool(_COMPARE[predicate[-2:]](a, b))


def _fma(op: Op, a: Any, b: Any, c: Any) -> Any:
    type = _result(op)
    rounded_twice = a * b + c
    if not all(np.isfinite([a, b, c])):  # a product of numbers does not overflow on the way
        return c if np.isfinite(a) and np.isfinite(b) else rounded_twice
    exact = _exactly(float(a)) * _exactly(float(b)) + _exactly(float(c))
    if exact == 0:
        return rounded_twice  # its sign is that of the sum
    return _nearest(exact, type)


def _nearest(exact: Fraction, type: ScalarType) -> Any:
    """The float of ``type`` nearest to ``exact``; at a tie the one with an even last bit."""
    try:
        guess = to_float(float(exact), type)
    except OverflowError:
        return to_float(math.inf if exact > 0 else -math.inf, type)
    if not np.isfinite(guess) or type.name == "f64":
        return guess
    around = [np.nextafter(guess, guess.dtype.type(s * np.inf)) for s in (-1, 1)]
    finite = [x for x in (guess, *around) if np.isfinite(x)]
    return min(finite, key=lambda x: (abs(_exactly(float(x)) - exact), bits_of(x, type) & 1))


def _of_integer(value: int, type: ScalarType) -> Any:
    if abs(value) < 1 << 53 and float(made := to_float(float(value), type)) == value:
        return made
    return _nearest(_exactly(value), type)


def _exactly(value: float) -> Fraction:
    # Compiling a loop seldom needs it, and it takes a fiftieth of the time of a first call.
    from fractions import Fraction

    return Fraction(value)


# --- conversions -------------------------------------------------------------------------------


def _saturated(op: Op, value: Any, low: int, high: int) -> int:
    if np.isnan(value):
        return wrap(0, _result(op))
    if np.isinf(value):
        return wrap(high if value > 0 else low, _result(op))
    return wrap(min(max(int(value), low), high), _result(op))


def _fptosi(op: Op, a: Any) -> int:
    half = 1 << (_result(op).bits - 1)
    return _saturated(op, a, -half, half - 1)


def _fptoui(op: Op, a: Any) -> int:
    return _saturated(op, a, 0, (1 << _result(op).bits) - 1)


def literal(value: bool | int | float, type: Type) -> Any:
    """A literal of the IR as a value of the interpreter."""
    assert isinstance(type, ScalarType)
    return to_float(value, type) if type.is_float else wrap(int(value), type)


def _unary_library(name: str) -> Rule:
    return _wide(getattr(np, {"asin": "arcsin", "acos": "arccos", "atan": "arctan",
                              "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}
                         .get(name, name)))  # fmt: skip


SCALAR_RULES: dict[str, Rule] = {
    "arith.constant": lambda op: literal(op.attrs["value"], _result(op)),
    "arith.addi": _whole(lambda a, b: a + b),
    "arith.subi": _whole(lambda a, b: a - b),
    "arith.muli": _whole(lambda a, b: a * b),
    "arith.floordivsi": _whole(_or_zero(lambda a, b: a // b)),
    "arith.divui": _whole(_or_zero(lambda a, b: a // b), unsigned),
    "arith.remsi": _whole(_or_zero(_remsi)),
    "arith.remui": _whole(_or_zero(lambda a, b: a % b), unsigned),
    "arith.andi": _whole(lambda a, b: a & b),
    "arith.ori": _whole(lambda a, b: a | b),
    "arith.xori": _whole(lambda a, b: a ^ b),
    "arith.shli": _shift(lambda a, b: a << b, signed),
    "arith.shrsi": _shift(lambda a, b: a >> b, signed),
    "arith.shrui": _shift(lambda a, b: a >> b, unsigned),
    "arith.minsi": _whole(min),
    "arith.maxsi": _whole(max),
    "arith.minui": _whole(min, unsigned),
    "arith.maxui": _whole(max, unsigned),
    "arith.addf": _float(lambda a, b: a + b),
    "arith.subf": _float(lambda a, b: a - b),
    "arith.mulf": _float(lambda a, b: a * b),
    "arith.divf": _float(lambda a, b: a / b),
    "arith.remf": _float(np.fmod),
    "arith.maximumf": _float(_maximum),
    "arith.minimumf": _float(_minimum),
    "arith.maxnumf": _float(_skipping_nan(_maximum)),
    "arith.minnumf": _float(_skipping_nan(_minimum)),
    "arith.negf": _float(lambda a: -a),
    "arith.cmpi": _cmpi,
    "arith.cmpf": _cmpf,
    "arith.select": lambda op, condition, a, b: a if condition else b,
    "arith.table": _table,
    "arith.extsi": lambda op, a: wrap(signed(a, _operand(op)), _result(op)),
    "arith.extui": lambda op, a: wrap(unsigned(a, _operand(op)), _result(op)),
    "arith.trunci": lambda op, a: wrap(int(a), _result(op)),
    "arith.index_cast": lambda op, a: wrap(signed(a, _operand(op)), _result(op)),
    "arith.sitofp": lambda op, a: _of_integer(signed(a, _operand(op)), _result(op)),
    "arith.uitofp": lambda op, a: _of_integer(unsigned(a, _operand(op)), _result(op)),
    "arith.fptosi": _fptosi,
    "arith.fptoui": _fptoui,
    "arith.extf": lambda op, a: to_float(a, _result(op)),
    "arith.truncf": lambda op, a: to_float(a, _result(op)),
    "arith.bitcast": lambda op, a: from_bits(bits_of(a, _operand(op)), _result(op)),
    **{
        f"math.{name}": _unary_library(name)
        for name in (
            "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cbrt", "sin", "cos", "tan",
            "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
        )
    },
    "math.detach": lambda op, a: a,
    "math.absf": _float(np.abs),
    "math.sqrt": _float(np.sqrt),
    "math.rsqrt": _wide(lambda a: 1.0 / np.sqrt(a)),
    "math.sigmoid": _wide(lambda a: 1.0 / (1.0 + np.exp(-a))),
    "math.erf": _wide(math.erf),
    "math.erfc": _wide(math.erfc),
    "math.floor": _float(np.floor),
    "math.ceil": _float(np.ceil),
    "math.trunc": _float(np.trunc),
    "math.roundeven": _float(np.rint),
    "math.powf": _wide(np.power),
    "math.atan2": _wide(np.arctan2),
    "math.hypot": _wide(np.hypot),
    "math.copysign": _float(np.copysign),
    "math.fma": _fma,
    "math.absi": lambda op, a: wrap(abs(signed(a, _result(op))), _result(op)),
    "math.isnan": lambda op, a: bool(np.isnan(a)),
    "math.isinf": lambda op, a: bool(np.isinf(a)),
    "math.ctpop": lambda op, a: wrap(unsigned(a, _result(op)).bit_count(), _result(op)),
    "math.philox": lambda op, *operands: wrap(philox.word(*operands), _result(op)),
}  # fmt: skip
