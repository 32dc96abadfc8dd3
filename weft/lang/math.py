"""``weft.math``: functions of scalars and vectors.

Arguments are Python numbers, 0-d tensors, or vectors and matrices (element by element). Of Python
numbers the result is a Python number, computed in float64; of tensors it has the dtype that torch
gives. Outside their domain functions give NaN or infinity, as torch does, and never raise.
"""

from __future__ import annotations

import builtins
import importlib
import math as python_math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from weft.errors import KernelTypeError
from weft.lang.dtypes import (
    UNSIGNED,
    DType,
    Number,
    Scalar,
    as_dtype,
    f64,
    i32,
    involves_unsigned,
    is_float,
    joined,
    own_float,
    owned,
    quietly,
    read,
    scalar,
    strongly,
    tensor_of,
    to_float,
    u32,
    weakly,
    wrapped,
)
from weft.lang.elements import Elementwise
from weft.lang.vectors import Matrix, MatrixType, Vector, VectorType

pi = python_math.pi
tau = python_math.tau
e = python_math.e
inf = python_math.inf
nan = python_math.nan

vec2, vec3, vec4 = VectorType(2), VectorType(3), VectorType(4)
ivec2, ivec3, ivec4 = (VectorType(n, "int", i32) for n in (2, 3, 4))
uvec2, uvec3, uvec4 = (VectorType(n, "int", u32) for n in (2, 3, 4))
mat2, mat3, mat4 = MatrixType(2, 2), MatrixType(3, 3), MatrixType(4, 4)


_INTEGERS = (
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, *UNSIGNED,
)  # fmt: skip


def _weak(value: Any) -> torch.Tensor:
    """A Python number as a tensor of Python's own width."""
    return torch.tensor(
        value, dtype=torch.float64 if isinstance(value, float) else torch.int64, device="cpu"
    )


def _spread(function: Callable[..., Any], *args: Any) -> Any:
    """``function`` element by element where an argument is a vector or matrix."""
    for k, arg in enumerate(args):
        if isinstance(arg, Elementwise):
            others = [*args[:k], *args[k + 1 :]]

            def at(item: Any, *rest: Any, place: int = k) -> Any:
                return function(*rest[:place], item, *rest[place:])

            return arg.map(at, *others)
    return function(*args)


def _unary(torch_function: Callable[..., Any], *, float_of_int: bool, doc: str) -> Any:
    def scalar(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return torch_function(x)
        with quietly():
            return torch_function(_weak(float(x) if float_of_int else x)).item()

    def function(x: Any) -> Any:
        return _spread(scalar, x)

    function.__name__ = function.__qualname__ = torch_function.__name__.lstrip("_")
    function.__doc__ = doc
    return function


def _float_unary(torch_function: Callable[..., Any], doc: str = "") -> Any:
    return _unary(torch_function, float_of_int=True, doc=doc or f"{torch_function.__name__}(x)")


def _cbrt(x: torch.Tensor) -> torch.Tensor:
    x = to_float(x)
    return torch.copysign(torch.pow(torch.abs(x), 1.0 / 3.0), x)


sin, cos, tan = _float_unary(torch.sin), _float_unary(torch.cos), _float_unary(torch.tan)
asin, acos, atan = _float_unary(torch.asin), _float_unary(torch.acos), _float_unary(torch.atan)
sinh, cosh, tanh = _float_unary(torch.sinh), _float_unary(torch.cosh), _float_unary(torch.tanh)
asinh, acosh = _float_unary(torch.asinh), _float_unary(torch.acosh)
atanh = _float_unary(torch.atanh)
exp, exp2, expm1 = _float_unary(torch.exp), _float_unary(torch.exp2), _float_unary(torch.expm1)
log, log2, log10 = _float_unary(torch.log), _float_unary(torch.log2), _float_unary(torch.log10)
log1p = _float_unary(torch.log1p)
sqrt, rsqrt = _float_unary(torch.sqrt), _float_unary(torch.rsqrt)
cbrt = _float_unary(_cbrt, "The real cube root.")
sigmoid = _float_unary(torch.sigmoid, "1 / (1 + exp(-x)).")
erf, erfc = _float_unary(torch.erf), _float_unary(torch.erfc)
radians = _float_unary(torch.deg2rad, "Degrees to radians.")
degrees = _float_unary(torch.rad2deg, "Radians to degrees.")
isnan = _float_unary(torch.isnan, "Whether x is NaN.")
isinf = _float_unary(torch.isinf, "Whether x is an infinity.")

_KEEPS = "Rounds {}. A float stays a float, an integer is kept; ``dtype`` converts it."


def _rounding(torch_function: Callable[..., Any], how: str) -> Any:
    plain = _unary(torch_function, float_of_int=False, doc=_KEEPS.format(how))

    def function(x: Any, dtype: Any = None) -> Any:
        return plain(x) if dtype is None else cast(plain(x), dtype)

    function.__name__ = function.__qualname__ = plain.__name__
    function.__doc__ = plain.__doc__
    return function


floor, ceil = _rounding(torch.floor, "down"), _rounding(torch.ceil, "up")
round = _rounding(torch.round, "to nearest, halves to even")
trunc = _rounding(torch.trunc, "towards zero")
abs = _unary(torch.abs, float_of_int=False, doc="The absolute value.")
sign = _unary(torch.sign, float_of_int=False, doc="-1, 0 or 1, in the type of x.")


def _pair(a: Any, b: Any, floats: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Two scalars, at least one a tensor, as tensors of the dtype that torch's promotion gives;
    ``floats``: integers as the kernel's own float, each by its value."""
    anchor = a if isinstance(a, torch.Tensor) else b
    whole = not any(isinstance(x, float) or is_float(x) for x in (a, b))
    with quietly():
        if whole and not floats and involves_unsigned((a, b)):
            plain = [x if isinstance(x, torch.Tensor) else wrapped(x, anchor.dtype) for x in (a, b)]
            return scalar(plain[0]), scalar(plain[1])
        dtype = own_float() if whole and floats else joined(a, b)
        plain = [weakly(tensor_of(x, anchor.device).to(dtype), a, b) for x in (a, b)]
    return plain[0], plain[1]


def _extreme(torch_function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    """The largest or smallest, each taken by its value: an int beyond an integer tensor's dtype
    is compared, and given, in 64 bits. Beside a number, a tensor has all of the derivative."""

    def pair(a: Any, b: Any) -> Any:
        for x, y in ((a, b), (b, a)):
            if isinstance(x, torch.Tensor) and type(y) is int and x.dtype in _INTEGERS:
                info = torch.iinfo(x.dtype)
                if info.min <= y <= info.max:
                    continue
                if x.dtype is torch.uint64:
                    return x if (y < 0) == (torch_function is torch.maximum) else y
                return _binary(torch_function, x.to(torch.int64), y)
            if isinstance(x, torch.Tensor) and x.requires_grad and isinstance(y, int | float):
                own, other = _pair(x, y)
                return _value(torch.where(own == other, own, torch_function(own, other)))
        return _binary(torch_function, a, b)

    return reduce(pair, values)


def _binary(torch_function: Callable[..., Any], *args: Any, floats: bool = False) -> Any:
    def scalar(a: Any, b: Any) -> Any:
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            return _value(torch_function(*_pair(a, b, floats)))
        weak = float if floats or isinstance(a, float) or isinstance(b, float) else int
        with quietly():
            return torch_function(_weak(weak(a)), _weak(weak(b))).item()

    return _spread(scalar, *args)


def _value(result: torch.Tensor) -> Any:
    plain = result.dim() == 0 and not isinstance(result, Scalar)
    return scalar(result) if plain else result


def min(*values: Any) -> Any:
    """The smallest; NaN if one is NaN. Of vectors, element by element."""
    return _extreme(torch.minimum, values)


def max(*values: Any) -> Any:
    """The largest; NaN if one is NaN. Of vectors, element by element."""
    return _extreme(torch.maximum, values)


def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), between -pi and pi."""
    return _binary(torch.atan2, y, x, floats=True)


def copysign(x: Any, y: Any) -> Any:
    """The magnitude of x with the sign of y."""
    return _binary(torch.copysign, x, y, floats=True)


def pow(x: Any, y: Any) -> Any:
    """``x ** y``. Integers to a negative power are an error, as in torch, and an element to the
    power of a half is its root."""
    if isinstance(x, torch.Tensor) and isinstance(y, float) and abs(y) == 0.5:
        return _binary(lambda a, _: torch.pow(a, y), x, y)
    return _binary(torch.pow, x, y)


def mod(x: Any, y: Any) -> Any:
    """``x - y * floor(x / y)``: Python's ``%``, with the sign of y."""
    return _binary(torch.remainder, x, y)


def fmod(x: Any, y: Any) -> Any:
    """C's remainder, with the sign of x."""
    return _binary(torch.fmod, x, y)


def clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    """``min(max(x, low), high)``; one of the bounds may be left out."""
    if low is None and high is None:
        raise KernelTypeError("clamp() needs a bound", help="write clamp(x, low, high)")
    x = x if low is None else max(x, low)
    return x if high is None else min(x, high)


def fract(x: Any) -> Any:
    """``x - floor(x)``."""
    return x - floor(x)


def cast(value: Any, dtype: Any) -> Any:
    """``value`` as ``dtype``, weft's, torch's or Python's: Taichi's name for ``dtype(value)``. Of a
    vector each element."""
    if isinstance(value, Elementwise) and isinstance(dtype, type):
        return value.map(dtype)
    return (as_dtype(dtype) if isinstance(dtype, torch.dtype) else dtype)(value)


def widened(x: Any) -> Any:
    """``x`` in float64: for formulas that lose digits, whose result is ``narrowed``."""
    return _spread(lambda item: f64(item) if isinstance(item, torch.Tensor) else float(item), x)


def narrowed(y: Any, x: Any) -> Any:
    """``y`` as a float of the type of ``x``; of an integer, the kernel's own."""

    def scalar(y: Any, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return float(y)
        return _value(y.to(x.dtype)) if x.dtype.is_floating_point else owned(y)

    return _spread(scalar, y, x)


def mix(x: Any, y: Any, a: Any) -> Any:
    """``x * (1 - a) + y * a``."""
    return x * (1.0 - a) + y * a


def step(edge: Any, x: Any) -> Any:
    """0.0 where ``x < edge``, else 1.0."""
    return select(x < edge, 0.0, 1.0)


def smoothstep(low: Any, high: Any, x: Any) -> Any:
    """``t * t * (3 - 2 t)``, t being ``(x - low) / (high - low)`` clamped to 0..1."""
    t = clamp((x - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once: computed in float64, exact enough for f32 and narrower."""

    def scalar(a: Any, b: Any, c: Any) -> Any:
        plain = a * b + c
        if not isinstance(plain, torch.Tensor) or not plain.dtype.is_floating_point:
            return plain
        x, y, z = (torch.as_tensor(v, dtype=torch.float64, device=plain.device) for v in (a, b, c))
        return _value((x * y + z).to(plain.dtype))

    return _spread(scalar, a, b, c)


def select(condition: Any, a: Any, b: Any) -> Any:
    """``a`` where ``condition`` holds, else ``b``; both are evaluated."""

    def scalar(condition: Any, a: Any, b: Any) -> Any:
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            weak = float if isinstance(a, float) or isinstance(b, float) else type(a)
            return weak(a if bool(condition) else b)
        return _value(_pair(a, b)[0 if bool(condition) else 1].clone())

    return _spread(scalar, condition, a, b)


def _of_bits(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, also of annotated numbers of a host part, whose width is that of their type."""

    def scalar(x: Any, *rest: Any) -> Any:
        if isinstance(x, Number):
            return type(x)(function(strongly(x), *rest).item())  # type: ignore[call-arg]
        return function(x, *rest)

    return scalar


def bit_count(x: Any) -> Any:
    """The number of one bits: of two's complement in the width of x (64 for a Python int)."""

    @_of_bits
    def scalar(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return (int(x) & (2**64 - 1)).bit_count()
        bits = 1 if x.dtype is torch.bool else 8 * x.element_size()
        count = (int(x) & (2**bits - 1)).bit_count()
        return _value(torch.tensor(count, dtype=x.dtype, device=x.device))

    return _spread(scalar, x)


popcnt = bit_count


def clz(x: Any) -> Any:
    """The number of zero bits before the first one, in the type of x: of its width, or of the 64
    bits of a Python int."""

    @_of_bits
    def scalar(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return 64 - (int(x) & (2**64 - 1)).bit_length()
        bits = 8 * x.element_size()
        count = bits - (int(x) & (2**bits - 1)).bit_length()
        return _value(torch.tensor(count, dtype=x.dtype, device=x.device))

    return _spread(scalar, x)


def dot(a: Vector, b: Vector) -> Any:
    return a.dot(b)


def cross(a: Vector, b: Vector) -> Any:
    return a.cross(b)


def length(v: Vector) -> Any:
    """``v.norm()``."""
    return v.norm()


def distance(a: Vector, b: Vector) -> Any:
    """``(a - b).norm()``."""
    return (a - b).norm()


def normalize(v: Vector) -> Vector:
    """``v.normalized()``."""
    return v.normalized()


def reflect(v: Vector, normal: Vector) -> Vector:
    """``v`` mirrored at the plane with this unit normal."""
    return v - 2.0 * normal.dot(v) * normal


def determinant(m: Matrix) -> Any:
    return m.determinant()


def inverse(m: Matrix) -> Matrix:
    return m.inverse()


def eye(n: int) -> Matrix:
    """The ``n`` by ``n`` identity, of weak floats."""
    return Matrix([[float(i == j) for j in range(n)] for i in range(n)])


# --- types and bits, by their names in Taichi
def _like(x: Any, value: int) -> Any:
    if isinstance(x, Elementwise):
        return x.map(lambda item: _like(item, value))
    if isinstance(x, torch.Tensor):
        with quietly():
            return _value(torch.full_like(x, value))
    return type(x)(value)


def zero(x: Any) -> Any:
    """0 of the type of ``x``; of a vector or matrix, for each element."""
    return _like(x, 0)


def one(x: Any) -> Any:
    """1 of the type of ``x``; of a vector or matrix, for each element."""
    return _like(x, 1)


def _bits(x: Any) -> tuple[int, int, torch.dtype]:
    """An integer's bits, how many they are, and its dtype."""
    if isinstance(x, torch.Tensor) and not x.dtype.is_floating_point and not x.dtype.is_complex:
        count = 1 if x.dtype is torch.bool else 8 * x.element_size()
        with quietly():
            return int(x.item()) & ((1 << count) - 1), count, x.dtype
    if isinstance(x, int):
        return x & ((1 << 64) - 1), 64, torch.int64
    raise KernelTypeError("bits are those of integers, and this is a float",
                          help="write int(...), or take its bits with weft.bit_cast")  # fmt: skip


def bit_shr(x: Any, n: Any) -> Any:
    """``x`` shifted right by ``n`` bits, with zeros from the left, whatever its sign."""

    @_of_bits
    def scalar(x: Any, n: Any) -> Any:
        bits, _, dtype = _bits(x)
        found = wrapped(bits >> builtins.min(int(n), 64), dtype)
        return _value(found) if isinstance(x, torch.Tensor) else found.item()

    return _spread(scalar, x, n)


def bit_cast(x: Any, dtype: Any) -> Any:
    """The bits of ``x`` as a number of ``dtype``, which has as many. A number of Python is taken as
    a float or integer of that width. Raises ``KernelTypeError`` where widths differ."""
    kind = as_dtype(dtype)

    def scalar(x: Any) -> Any:
        own = x.dtype if isinstance(x, torch.Tensor) else _width(x, kind)
        if 8 * own.itemsize != kind.bits:
            raise KernelTypeError(
                f"bit_cast of {8 * own.itemsize} bits to {kind!r}, which has {kind.bits}",
                help="cast to a type of as many bits first",
            )
        with quietly():
            value = x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=own, device="cpu")
            return _value(read(value.as_subclass(torch.Tensor).clone().view(kind.torch)))

    return _spread(scalar, x)


def _width(x: Any, kind: DType) -> torch.dtype:
    floats = {16: torch.float16, 32: torch.float32, 64: torch.float64}
    ints = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
    return (floats if isinstance(x, float) else ints).get(kind.bits, torch.float64)


def _whole(x: Any) -> bool:
    return isinstance(x, int) or (isinstance(x, torch.Tensor) and not x.dtype.is_floating_point)


def raw_div(a: Any, b: Any) -> Any:
    """C's division: of integers the quotient towards zero, else ``a / b``."""

    def scalar(a: Any, b: Any) -> Any:
        if not (_whole(a) and _whole(b)):
            return a / b
        rest = raw_mod(a, b)
        return (a - rest) // b

    return _spread(scalar, a, b)


def raw_mod(a: Any, b: Any) -> Any:
    """C's remainder, with the sign of ``a``."""

    def scalar(a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            rest = builtins.abs(a) % builtins.abs(b)
            return -rest if a < 0 else rest
        return fmod(a, b)

    return _spread(scalar, a, b)


def frexp(x: Any) -> Any:
    """(m, e) with ``x == m * 2 ** e`` and 0.5 <= abs(m) < 1; of 0, infinities and NaN (x, 0)."""
    if isinstance(x, torch.Tensor):
        with quietly():
            mantissa, exponent = torch.frexp(x.as_subclass(torch.Tensor))
            return _value(mantissa), _value(exponent)
    return python_math.frexp(x)


# Of geometry, by their module's names: imported where they are asked for.
_GEOMETRY = (
    "vdir", "rotation2d", "rotation3d", "rot_by_axis", "rot_yaw_pitch_roll", "translate", "scale",
    "refract", "cconj", "cmul", "cinv", "cdiv", "cexp", "clog", "cpow", "csqrt",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _GEOMETRY:
        return getattr(importlib.import_module("weft.lang.geometry"), name)
    if not name.startswith("_"):
        table = importlib.import_module("weft.lang.function_table")
        if name in table.FORMULAS:
            return table.formula(name)
    raise AttributeError(f"module 'weft.math' has no attribute {name!r}")


__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bit_count",
    "cbrt",
    "ceil",
    "clamp",
    "clz",
    "copysign",
    "cos",
    "cosh",
    "cross",
    "degrees",
    "determinant",
    "distance",
    "dot",
    "e",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "eye",
    "floor",
    "fma",
    "fmod",
    "fract",
    "inf",
    "inverse",
    "isinf",
    "isnan",
    "ivec2",
    "ivec3",
    "ivec4",
    "length",
    "log",
    "log1p",
    "log2",
    "log10",
    "mat2",
    "mat3",
    "mat4",
    "max",
    "min",
    "mix",
    "mod",
    "nan",
    "normalize",
    "pi",
    "popcnt",
    "pow",
    "radians",
    "reflect",
    "round",
    "rsqrt",
    "select",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "smoothstep",
    "sqrt",
    "step",
    "tan",
    "tanh",
    "tau",
    "trunc",
    "uvec2",
    "uvec3",
    "uvec4",
    "vec2",
    "vec3",
    "vec4",
]  # fmt: skip
