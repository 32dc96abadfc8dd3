"""Complex numbers: pairs of floats, which they are taken apart into while a kernel is lowered.

The formulas are torch's where those decide what infinities, NaN and signed zeros give: a real
operand is a complex number whose imaginary part is 0. Quotients are Smith's (Algorithm 116, CACM 5,
1962); roots and logarithms are scaled, so that no square of a part overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from weft.errors import KernelTypeError
from weft.frontend.kinds import Complex, Operand, Static, is_complex, promote
from weft.frontend.scalars import LARGEST_POWER, Scalars
from weft.ir.core import Value
from weft.source import Span

_NARROW = {"f16": "f32", "bf16": "f32"}  # torch's complex32 is no type of kernels
_LARGE = {"f32": 1e37, "f64": 1e306}  # from here on a sum of two may overflow
_SMALL = {"f32": 1e-30, "f64": 1e-290}  # below, digits may be lost
_DOWN, _UP = 2, 32  # by 4 to the power of these, such numbers are scaled


class _Real:
    """A float of the loop with Python's operators."""

    def __init__(self, scalars: Scalars, x: Operand, span: Span) -> None:
        self.scalars, self.x, self.span = scalars, x, span

    def made(self, x: Operand) -> _Real:
        return _Real(self.scalars, x, self.span)

    def other(self, y: Any) -> Operand:
        return y.x if isinstance(y, _Real) else Static(y)

    def __add__(self, y: Any) -> _Real:
        return self.made(self.scalars.binary("+", self.x, self.other(y), self.span))

    def __sub__(self, y: Any) -> _Real:
        return self.made(self.scalars.binary("-", self.x, self.other(y), self.span))

    def __mul__(self, y: Any) -> _Real:
        return self.made(self.scalars.binary("*", self.x, self.other(y), self.span))

    def __truediv__(self, y: Any) -> _Real:
        return self.made(self.scalars.binary("/", self.x, self.other(y), self.span))

    def __pow__(self, y: Any) -> _Real:
        return self.made(self.scalars.binary("**", self.x, self.other(y), self.span))

    def __neg__(self) -> _Real:
        return self.made(self.scalars.negate(self.x, self.span))

    def __abs__(self) -> _Real:
        return self.made(self.scalars.magnitude(self.x, self.span))

    def call(self, name: str, *others: Any) -> _Real:
        """``math.<name>`` of it."""
        arguments = [self.x, *map(self.other, others)]
        return self.made(self.scalars.function(name, arguments, self.span))

    def compared(self, symbol: str, y: Any) -> _Real:
        return self.made(self.scalars.compare(symbol, self.x, self.other(y), self.span))

    def both(self, symbol: str, y: _Real) -> _Real:
        """``self & y``, ``self | y`` of two conditions."""
        return self.made(self.scalars.binary(symbol, self.x, y.x, self.span))

    def choose(self, a: Any, b: Any) -> _Real:
        """``a`` where this condition holds, else ``b``."""
        condition = self.scalars.truth(self.x, self.span)
        x, y = self.other(a), self.other(b)
        return self.made(self.scalars.select(condition, x, y, self.span))


Pair = tuple[_Real, _Real]


def part_dtype(s: Scalars, x: Operand, span: Span) -> str:
    """The dtype that the parts of ``x`` have as a complex number."""
    if isinstance(x, Complex):
        return x.dtype
    if is_complex(x):
        return "float"
    dtype = promote(s.number(x, span), "float")
    return _NARROW.get(dtype, dtype)


def parts(x: Operand) -> tuple[Operand, Operand]:
    """The real and the imaginary part of a number."""
    if isinstance(x, Complex):
        return x.real, x.imag
    if isinstance(x, Static) and is_complex(x):
        return Static(x.value.real), Static(x.value.imag)
    return x, Static(0.0)


def cast(s: Scalars, x: Operand, dtype: str, span: Span) -> Complex:
    """``x`` as a complex number with parts of ``dtype``."""
    real, imag = parts(x)
    return Complex(s.cast(real, dtype, span), s.cast(imag, dtype, span))


def _joined(s: Scalars, operands: list[Operand], span: Span) -> tuple[list[Pair], str]:
    dtype = reduce(promote, [part_dtype(s, x, span) for x in operands])
    made = [cast(s, x, dtype, span) for x in operands]
    return [(_Real(s, z.real, span), _Real(s, z.imag, span)) for z in made], dtype


def _complex(pair: Pair, dtype: str, span: Span) -> Complex:
    real, imag = (p.scalars.cast(p.x, dtype, span) for p in pair)
    return Complex(real, imag)


def _times(x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    return a * c - b * d, a * d + b * c


def _quotient(x: Pair, y: Pair) -> Pair:
    """By the part of the divisor that is the larger one. Of a zero divisor: by +0.0, as torch."""
    (a, b), (c, d) = x, y
    by_real = abs(c).compared(">=", abs(d))
    large, small = by_real.choose(c, d), by_real.choose(d, c)
    zero = large.compared("==", 0.0)
    ratio = small / zero.choose(1.0, large)
    whole = zero.choose(0.0, large + small * ratio)
    first, second = by_real.choose(a, b), by_real.choose(b, a)
    imag = second - first * ratio
    return (first + second * ratio) / whole, by_real.choose(imag, -imag) / whole


def arithmetic(s: Scalars, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    """``a symbol b`` of two numbers of any sort."""
    if (is_complex(a) or is_complex(b)) and not (isinstance(a, Static) and isinstance(b, Static)):
        return binary(s, symbol, a, b, span)
    return s.binary(symbol, a, b, span)


def binary(s: Scalars, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    """``a symbol b`` where one of the two is a complex number."""
    if symbol == "**":
        return _power(s, a, b, span)
    if symbol not in ("+", "-", "*", "/"):
        raise KernelTypeError(
            f"`{symbol}` of complex numbers", span, help="write it of z.real and z.imag",
        )  # fmt: skip
    (x, y), dtype = _joined(s, [a, b], span)
    match symbol:
        case "+":
            found = x[0] + y[0], x[1] + y[1]
        case "-":
            found = x[0] - y[0], x[1] - y[1]
        case "*":
            found = _times(x, y)
        case _:
            found = _quotient(x, y)
    return _complex(found, dtype, span)


def compare(s: Scalars, symbol: str, a: Operand, b: Operand, span: Span) -> Operand:
    """``a == b``, ``a != b``. Raises ``KernelTypeError`` for an order, which there is none of."""
    if symbol not in ("==", "!="):
        raise KernelTypeError(
            f"`{symbol}` of complex numbers, which have no order", span,
            help="compare abs(z), z.real or z.imag",
        )  # fmt: skip
    (x, y), _ = _joined(s, [a, b], span)
    parts = [p.compared(symbol, q) for p, q in zip(x, y, strict=True)]
    return parts[0].both("&" if symbol == "==" else "|", parts[1]).x


def negate(s: Scalars, z: Complex, span: Span) -> Complex:
    return Complex(*(s.cast(s.negate(p, span), z.dtype, span) for p in (z.real, z.imag)))


def _integer_power(x: Pair, n: int, one: Pair) -> Pair:
    """By repeated squaring."""
    result: Pair | None = None
    while n:
        if n & 1:
            result = x if result is None else _times(result, x)
        n >>= 1
        if n:
            x = _times(x, x)
    return one if result is None else result


def _power(s: Scalars, a: Operand, b: Operand, span: Span) -> Operand:
    known: Any = b.value if isinstance(b, Static) else None
    if isinstance(known, complex):
        known = None if known.imag else known.real
    if known == 0.5:
        return function(s, "sqrt", [a], span)
    (x, y), dtype = _joined(s, [a, b], span)
    if known is not None and abs(known) <= LARGEST_POWER and known == int(known):
        one = x[0].made(s.constant(1.0, dtype)), x[0].made(s.constant(0.0, dtype))
        power = _integer_power(x, int(abs(known)), one)
        return _complex(power if known >= 0 else _quotient(one, power), dtype, span)
    zero, wide = _is_zero(x), s.type(dtype).name
    base = zero.choose(1.0, x[0]), x[1]
    found = _exp(_times(y, _log(base, wide)), wide)
    of_zero = _power_of_zero(x, y, zero)
    real, imag = (zero.choose(p, q) for p, q in zip(of_zero, found, strict=True))
    return _complex((real, imag), dtype, span)


def _power_of_zero(x: Pair, y: Pair, zero: _Real) -> Pair:
    """``x ** y`` where ``x`` is 0. The derivatives by ``x`` are torch's: 1 of ``y`` = 1, those of a
    square and of a cube, 0 of ``y`` = 0 and of an order below the real part, not finite of all
    others. (The fourth is not that of ``x ** 4``.) That by ``y`` is 0 where the value is known."""
    real, by = y[1].compared("==", 0.0), zero.choose(y[0], 1.0)
    nothing, one, two, three = (by.compared("==", n).both("&", real) for n in (0, 1, 2, 3))
    curved = by.compared(">", 1.0)
    smooth = curved.both("|", one).both("|", nothing)
    base = zero.choose(x[0], 1.0), zero.choose(x[1], 1.0)
    roots = [smooth.choose(1.0, p).call("sqrt") for p in base]
    order = curved.choose(real.choose(by, by.call("ceil") - 0.5), 1.0)
    own = zero.choose(x[0], 0.0), zero.choose(x[1], 0.0)
    square, powers = _times(own, own), [p**order for p in base]
    cube = _times(square, own)
    added = [
        one.choose(p, two.choose(q, three.choose(r, curved.choose(s, smooth.choose(0.0, t)))))
        for p, q, r, s, t in zip(x, square, cube, powers, roots, strict=True)
    ]  # zeros
    known = by.compared(">", 0.0).both("|", nothing)
    off = known.choose(0.0, by)  # squared: the second derivative is NaN, too
    value = off * off * known.choose(1.0, math.nan) + nothing.choose(1.0, 0.0)
    return added[0] + value, added[1] + 0.0


# --- functions ----------------------------------------------------------------------------------
def _is_zero(x: Pair) -> _Real:
    return x[0].compared("==", 0.0).both("&", x[1].compared("==", 0.0))


def _larger(a: _Real, b: _Real) -> _Real:
    return a.compared(">=", b).choose(a, b)


def _scaled(x: Pair, wide: str) -> tuple[Pair, _Real]:
    """``(x * 2 ** -2k, k)``, where a square of ``x`` would overflow or lose digits (k is 0 for all
    others). ``wide``: the IR's type of its parts."""
    a, b = x
    top = _larger(abs(a), abs(b))
    large, small = top.compared(">", _LARGE[wide]), top.compared("<", _SMALL[wide])
    k = large.choose(float(_DOWN), small.choose(float(-_UP), 0.0))
    by = large.choose(4.0**-_DOWN, small.choose(4.0**_UP, 1.0))
    return (a * by, b * by), k


def _abs(x: Pair, wide: str) -> _Real:
    """Without an overflow in between; the gradient at 0 is 0, as torch's."""
    zero = _is_zero(x)
    return zero.choose(0.0, zero.choose(1.0, x[0]).call("hypot", x[1]))


def _angle(x: Pair, wide: str) -> _Real:
    """The gradient at 0 is 0, as torch's."""
    a, b = x
    zero = _is_zero(x)
    back = a.made(a.scalars.constant(1.0, "float")).call("copysign", a).compared("<", 0.0)
    of_zero = back.choose(math.pi, 0.0).call("copysign", b)
    return zero.choose(of_zero, b.call("atan2", zero.choose(1.0, a)))


def _exp(x: Pair, wide: str) -> Pair:
    """A product with the sine also where that is 0, for the derivative; infinity times 0 is 0."""
    a, b = x
    size = a.call("exp")
    finite, flat = _finite(size), b.compared("==", 0.0)
    real, imag = size * b.call("cos"), size * b.call("sin")
    return (finite.choose(real, flat.choose(size, real)),
            finite.choose(imag, flat.choose(b, imag)))  # fmt: skip


def _log(x: Pair, wide: str) -> Pair:
    """Where the absolute value is about 1, of what it differs by from 1."""
    (a, b), k = _scaled(x, wide)
    size = a.call("hypot", b)
    p, q = abs(a), abs(b)
    top, low = _larger(p, q), p.compared(">=", q).choose(b, a)  # of 0, abs has the slope 0
    near = size.compared(">", 0.75).both("&", size.compared("<", 1.5))
    top, low = near.choose(top, 1.0), near.choose(low, 0.0)
    difference = (top - 1.0) * (top + 1.0) + low * low
    far = size.call("log") + k * (2.0 * math.log(2.0))
    return near.choose(difference.call("log1p") * 0.5, far), _angle(x, wide)


def _sqrt(x: Pair, wide: str) -> Pair:
    """Absolute values are products with signs, which have a slope at 0, too."""
    (a, b), k = _scaled(x, wide)
    zero, right = _is_zero(x), a.compared(">=", 0.0)
    size = right.choose(a, -a)
    part = (a.call("hypot", b) * 0.5 + size * 0.5).call("sqrt")
    other = zero.choose(b, b / (zero.choose(1.0, part) * 2.0))
    sign = a.made(a.scalars.constant(1.0, "float")).call("copysign", b)
    by, endless = k.call("exp2"), abs(x[1]).compared("==", math.inf)
    real, imag = right.choose(part, other * sign), right.choose(other, part * sign)
    return endless.choose(math.inf, real * by), endless.choose(x[1], imag * by)


def _sin(x: Pair, wide: str) -> Pair:
    a, b = x
    return a.call("sin") * b.call("cosh"), a.call("cos") * b.call("sinh")


def _cos(x: Pair, wide: str) -> Pair:
    a, b = x
    return a.call("cos") * b.call("cosh"), -(a.call("sin") * b.call("sinh"))


def _sinh(x: Pair, wide: str) -> Pair:
    a, b = x
    return a.call("sinh") * b.call("cos"), a.call("cosh") * b.call("sin")


def _cosh(x: Pair, wide: str) -> Pair:
    a, b = x
    return a.call("cosh") * b.call("cos"), a.call("sinh") * b.call("sin")


def _sign(x: Pair, wide: str) -> Pair:
    """``x / abs(x)``; of 0, 0 with its sign, and the derivative 0, as torch's."""
    size, zero = _abs(x, wide), _is_zero(x)
    by, none = zero.choose(1.0, size), x[0].made(x[0].scalars.constant(0.0, "float"))
    real, imag = (zero.choose(none.call("copysign", p), p / by) for p in x)
    return real, imag


_TO_COMPLEX: dict[str, Callable[[Pair, str], Pair]] = {
    "exp": _exp, "log": _log, "sqrt": _sqrt, "sin": _sin, "cos": _cos, "sinh": _sinh,
    "cosh": _cosh, "sgn": _sign,
}  # fmt: skip
_TO_REAL: dict[str, Callable[[Pair, str], _Real]] = {"abs": _abs, "angle": _angle}
_TESTS = {"isnan": "|", "isinf": "|", "isfinite": "&"}
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}
NAMES = (
    *_TO_COMPLEX, *_TO_REAL, *_TESTS, *_OPERATORS, "eq", "ne", "neg", "square", "reciprocal",
    "select", "conj",
)  # fmt: skip


def function(s: Scalars, name: str, arguments: Sequence[Operand], span: Span) -> Operand:
    """The function ``name``, one of ``NAMES``, of complex numbers."""
    x, *others = arguments
    if name in _OPERATORS:
        return binary(s, _OPERATORS[name], x, others[0], span)
    match name:
        case "eq" | "ne":
            return compare(s, "==" if name == "eq" else "!=", x, others[0], span)
        case "square":
            return binary(s, "*", x, x, span)
        case "reciprocal":
            return binary(s, "/", Static(1.0), x, span)
        case "select":
            return select(s, s.truth(x, span), others[0], others[1], span)
        case _:
            pass
    z = cast(s, x, part_dtype(s, x, span), span)
    if name == "neg":
        return negate(s, z, span)
    if name == "conj":
        return Complex(z.real, s.cast(s.negate(z.imag, span), z.dtype, span))
    parts = _Real(s, z.real, span), _Real(s, z.imag, span)
    if name in _TESTS:
        of_parts = [_finite(p) if name == "isfinite" else p.call(name) for p in parts]
        return of_parts[0].both(_TESTS[name], of_parts[1]).x
    wide = s.type(z.dtype).name
    if name in _TO_REAL:
        return s.cast(_TO_REAL[name](parts, wide).x, z.dtype, span)
    return _complex(_TO_COMPLEX[name](parts, wide), z.dtype, span)


def _finite(x: _Real) -> _Real:
    return abs(x).compared("<", math.inf)


def select(s: Scalars, condition: Value, a: Operand, b: Operand, span: Span) -> Complex:
    """``a`` where ``condition`` holds, else ``b``."""
    (x, y), dtype = _joined(s, [a, b], span)
    chosen = [s.select(condition, p.x, q.x, span) for p, q in zip(x, y, strict=True)]
    return Complex(*(s.cast(c, dtype, span) for c in chosen))


def of_parts(s: Scalars, parts: Sequence[Operand], span: Span) -> Complex:
    """``torch.complex(real, imag)``."""
    real, imag = parts
    dtype = promote(part_dtype(s, real, span), part_dtype(s, imag, span))
    return Complex(s.cast(real, dtype, span), s.cast(imag, dtype, span))


def polar(s: Scalars, size: Operand, angle: Operand, span: Span) -> Complex:
    """The number of this absolute value and angle."""
    made = of_parts(s, (size, angle), span)
    r, phi = _Real(s, made.real, span), _Real(s, made.imag, span)
    return _complex((r * phi.call("cos"), r * phi.call("sin")), made.dtype, span)
