"""Functions of float32 written out as arithmetic, in the IR.

What a shading language promises of its own functions is little (sines to 2^-11, by Vulkan's
specification), and differs between drivers. Here they are made of operations that are exact or
rounded once, without relying on ``fma``: reductions take off products that are exact. The
decompositions are the usual ones (Muller, "Elementary Functions", 3rd edition; Cody and Waite,
"Software Manual for the Elementary Functions"; Payne and Hanek, "Radian reduction for
trigonometric functions"), the polynomials were fitted by us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.codegen.float32 import ERF, ERFC, EXP, LOG, TANH
from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.ir.types import f32, i1, i32

# (atan(x) / x - 1) / z for z = x^2 <= tan(pi/8)^2, and so on
_ATAN = (-0.3333333186378305, 0.19999559480153947, -0.14264506645712569, 0.10748854513928653,
         -0.06466825166724666)  # fmt: skip
_ASIN = (0.16666673136264343, 0.07498761620693127, 0.045020213650002375, 0.026433376055154178,
         0.03832827482085026)  # fmt: skip
_SIN = (-0.16666666663736976, 0.008333331831001588, -0.00019840063340549548,
        2.724690722659289e-06)  # fmt: skip
# ((cos(x) - 1) / z + 1/2) / z for z = x^2 <= pi^2 / 16
_COS = (0.04166666460343641, -0.0013888291909256614, 2.4545517320270412e-05)
_SINH = (0.16666666646808073, 0.008333339685006384, 0.0001983809938690718,
         2.806297921442596e-06)  # fmt: skip
# x exp(x^2) erfc(x) for u = 1 / x with 0.9 <= x <= 4, and with 3.9 <= x <= 10.2
_ERFCX_NEAR = (0.5641729355216503, -0.0003495175855083802, -0.27139332085525003,
               -0.10319041319919493, 0.9495952629884317, -1.5637940127700558, 1.4307848813737425,
               -0.795349661521416, 0.25230382674289387, -0.03519640962653197)  # fmt: skip
_ERFCX = (0.5641928808311265, -0.0001514416974231463, -0.27914993998643256, -0.031457517523666156,
          0.6221817548512313, -0.735232673610595, 0.2818392457776102)  # fmt: skip

# pi / 2 in parts of eleven bits, so that products with whole numbers below 2^13 are exact
_HALF_PI = (1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.5633440682570896e-12)
_REDUCED_BELOW = 12000.0
# The bits of 2 / pi, behind 32 zeros
_TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041,
                0xFE5163AB)  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # ten bits of ln(2), and the rest
_ROOT_HALF = 0x3F3504F3  # bits of sqrt(1/2)


def expand(name: str) -> Function:
    """The function ``name`` of float32, one of ``WRITTEN_OUT``: it yields its value."""
    write = WRITTEN_OUT[name]
    types = (f32, f32) if name in _OF_TWO else (f32,)
    made = Function(name, types, ("a", "b"))
    b = Builder(made.body)
    b.do("scf.yield", write(_Float32(b), *made.args))
    return made


class _Float32:
    """Operations on float32 and i32, appended to a block."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    def number(self, value: float | Value) -> Value:
        return value if isinstance(value, Value) else self.b.constant(value, f32)

    def whole(self, value: int | Value) -> Value:
        if isinstance(value, Value):
            return value
        value &= 0xFFFFFFFF
        return self.b.constant(value - (1 << 32) if value >> 31 else value, i32)

    def op(self, name: str, *operands: float | Value) -> Value:
        return self.b.op(f"arith.{name}", *map(self.number, operands))

    def add(self, a: float | Value, b: float | Value) -> Value:
        return self.op("addf", a, b)

    def sub(self, a: float | Value, b: float | Value) -> Value:
        return self.op("subf", a, b)

    def mul(self, a: float | Value, b: float | Value) -> Value:
        return self.op("mulf", a, b)

    def div(self, a: float | Value, b: float | Value) -> Value:
        return self.op("divf", a, b)

    def ints(self, name: str, a: int | Value, b: int | Value) -> Value:
        return self.b.op(f"arith.{name}", self.whole(a), self.whole(b))

    def math(self, name: str, *operands: Value) -> Value:
        return self.b.op(f"math.{name}", *operands)

    def absolute(self, x: Value) -> Value:
        return self.math("absf", x)

    def with_sign_of(self, value: Value, x: Value) -> Value:
        return self.math("copysign", value, x)

    def bits(self, x: Value) -> Value:
        return self.b.op("arith.bitcast", x, type=i32)

    def from_bits(self, n: Value) -> Value:
        return self.b.op("arith.bitcast", n, type=f32)

    def to_float(self, n: Value, *, unsigned: bool = False) -> Value:
        return self.b.op("arith.uitofp" if unsigned else "arith.sitofp", n, type=f32)

    def to_int(self, x: Value) -> Value:
        """Of a whole number below 2^22, from the bits of a sum: languages ask conversions what they
        make of numbers that do not fit. Of NaN any."""
        return self.ints("subi", self.bits(self.add(x, 12582912.0)), 0x4B400000)

    def test(self, compare: str, a: float | Value, b: float | Value) -> Value:
        return self.b.op("arith.cmpf", self.number(a), self.number(b), predicate=compare, type=i1)

    def test_ints(self, compare: str, a: Value, b: int | Value) -> Value:
        return self.b.op("arith.cmpi", a, self.whole(b), predicate=compare, type=i1)

    def choose(self, test: Value, a: float | Value, b: float | Value) -> Value:
        return self.b.op("arith.select", test, self.number(a), self.number(b))

    def where(self, compare: str, a: float | Value, b: float | Value, yes: float | Value,
              no: float | Value) -> Value:  # fmt: skip
        """``yes`` where ``a`` compares so with ``b`` (``o..``: never with NaN), else ``no``."""
        return self.choose(self.test(compare, a, b), yes, no)

    def polynomial(self, coefficients: Sequence[float], x: Value) -> Value:
        value = self.number(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            value = self.add(self.mul(value, x), coefficient)
        return value


def _exp(g: _Float32, x: Value) -> Value:
    """2^n exp(r) with n the integer nearest to x / ln(2)."""
    x = g.where("ogt", x, 90.0, 90.0, x)
    x = g.where("olt", x, -105.0, -105.0, x)
    n = g.math("roundeven", g.mul(x, 1 / math.log(2)))
    r = g.sub(g.sub(x, g.mul(n, _LN2_HIGH)), g.mul(n, _LN2_LOW))
    return _grown(g, r, n)


def _grown(g: _Float32, r: Value, n: Value) -> Value:
    """exp(r) 2^n by two factors: 2^n alone may be no float. The low bits of the sum are n + 254; of
    what is shifted to the exponent's place, nine are left."""
    grown = g.add(g.add(g.mul(g.mul(r, r), g.polynomial(EXP, r)), r), 1.0)
    both = g.bits(g.add(n, 12582912.0 + 254.0))
    half = g.ints("shrui", both, 1)
    for part in (half, g.ints("subi", both, half)):
        grown = g.mul(grown, g.from_bits(g.ints("shli", part, 23)))
    return grown


def _exp2(g: _Float32, x: Value) -> Value:
    x = g.where("ogt", x, 129.0, 129.0, x)
    x = g.where("olt", x, -151.0, -151.0, x)
    n = g.math("roundeven", x)
    return _grown(g, g.mul(g.sub(x, n), math.log(2)), n)


def _expm1(g: _Float32, x: Value) -> Value:
    near = g.add(g.mul(g.mul(x, x), g.polynomial(EXP, x)), x)
    return g.where("olt", g.absolute(x), 0.34, near, g.sub(_exp(g, x), 1.0))


def _split(g: _Float32, x: Value) -> tuple[Value, Value]:
    """k and f with x = 2^k (1 + f), 1 + f between sqrt(1/2) and sqrt(2), of a positive x."""
    tiny = g.test("olt", x, 2.0**-126)
    scaled = g.choose(tiny, g.mul(x, 2.0**23), x)
    shifted = g.ints("subi", g.bits(scaled), _ROOT_HALF)
    k = g.add(g.to_float(g.ints("shrsi", shifted, 23)), g.choose(tiny, -23.0, 0.0))
    mantissa = g.from_bits(g.ints("addi", g.ints("andi", shifted, 0x7FFFFF), _ROOT_HALF))
    return k, g.sub(mantissa, 1.0)


def _tail(g: _Float32, f: Value) -> Value:
    """log(1 + f) - f."""
    square = g.mul(f, f)
    return g.sub(g.mul(g.mul(square, f), g.polynomial(LOG, f)), g.mul(square, 0.5))


def _ends_of_log(g: _Float32, x: Value, value: Value) -> Value:
    value = g.where("olt", x, math.inf, value, x)  # inf and NaN are their own logarithms
    value = g.where("oeq", x, 0.0, -math.inf, value)
    return g.where("olt", x, 0.0, math.nan, value)


def _log(g: _Float32, x: Value) -> Value:
    k, f = _split(g, x)
    value = g.add(g.add(g.mul(k, _LN2_LOW), _tail(g, f)), f)
    return _ends_of_log(g, x, g.add(value, g.mul(k, _LN2_HIGH)))


def _log_to(base: float) -> Callable[[_Float32, Value], Value]:
    def log(g: _Float32, x: Value) -> Value:
        """k log(2) and log(1 + f) apart: of powers of two exactly k."""
        k, f = _split(g, x)
        part = g.mul(g.add(_tail(g, f), f), 1 / math.log(base))
        whole = k if base == 2 else g.add(g.mul(k, 0.301025390625), g.mul(k, 4.605038981195214e-06))
        return _ends_of_log(g, x, g.add(part, whole))

    return log


def _log1p(g: _Float32, x: Value) -> Value:
    """Near 0 without 1 + x, which a driver may take apart again."""
    near = g.add(_tail(g, x), x)
    far = _log(g, g.add(x, 1.0))
    return g.choose(g.test("olt", g.absolute(x), 0.29), near, far)


def _tanh(g: _Float32, x: Value) -> Value:
    size = g.absolute(x)
    large = g.sub(1.0, g.div(2.0, g.add(_exp(g, g.add(size, size)), 1.0)))
    z = g.mul(x, x)
    small = g.add(g.mul(g.polynomial(TANH, z), g.mul(z, size)), size)
    return g.with_sign_of(g.where("olt", size, 0.625, small, large), x)


def _sigmoid(g: _Float32, x: Value) -> Value:
    return g.div(1.0, g.add(_exp(g, g.op("negf", x)), 1.0))


def _halves(g: _Float32, x: Value) -> tuple[Value, Value]:
    """exp(|x|) / 2, which does not overflow before sinh and cosh do, and exp(-|x|) / 2."""
    size = g.absolute(x)
    half = _exp(g, g.mul(size, 0.5))
    return g.mul(g.mul(half, 0.5), half), g.mul(_exp(g, g.op("negf", size)), 0.5)


def _sinh(g: _Float32, x: Value) -> Value:
    size, z = g.absolute(x), g.mul(x, x)
    small = g.add(g.mul(g.polynomial(_SINH, z), g.mul(z, size)), size)
    large = g.op("subf", *_halves(g, x))
    return g.with_sign_of(g.where("olt", size, 1.0, small, large), x)


def _cosh(g: _Float32, x: Value) -> Value:
    return g.op("addf", *_halves(g, x))


def _asinh(g: _Float32, x: Value) -> Value:
    size = g.absolute(x)
    z = g.mul(size, size)
    root = g.math("sqrt", g.add(z, 1.0))
    near = _log1p(g, g.add(size, g.div(z, g.add(root, 1.0))))
    far = g.add(_log(g, size), math.log(2))
    return g.with_sign_of(g.where("olt", size, 1e4, near, far), x)


def _acosh(g: _Float32, x: Value) -> Value:
    t = g.sub(x, 1.0)
    near = _log1p(g, g.add(t, g.math("sqrt", g.add(g.add(t, t), g.mul(t, t)))))
    far = g.add(_log(g, x), math.log(2))
    value = g.where("olt", x, 1e4, near, far)
    return g.where("olt", x, 1.0, math.nan, value)


def _atanh(g: _Float32, x: Value) -> Value:
    size = g.absolute(x)
    value = g.mul(_log1p(g, g.div(g.add(size, size), g.sub(1.0, size))), 0.5)
    value = g.where("ogt", size, 1.0, math.nan, g.where("oeq", size, 1.0, math.inf, value))
    return g.with_sign_of(value, x)


# -- triangles


def _near_quarter(g: _Float32, x: Value) -> tuple[Value, Value]:
    """r and n with |x| = n pi / 2 + r, |r| no more than a bit above pi / 4, n of two bits."""
    size = g.absolute(x)

    def few() -> list[Value]:
        n = g.math("roundeven", g.mul(size, 2 / math.pi))
        r = size
        for part in _HALF_PI:
            r = g.sub(r, g.mul(n, part))
        return [r, g.to_int(n)]

    def many() -> list[Value]:
        return list(_payne_hanek(g, size))

    r, n = g.b.either(g.test("olt", size, _REDUCED_BELOW), few, many, [f32, i32])
    return r, n


def _payne_hanek(g: _Float32, size: Value) -> tuple[Value, Value]:
    """With 96 bits of 2 / pi, from that on with which a product by the mantissa is below 4."""
    exponent = g.ints("shrui", g.bits(size), 23)
    mantissa = g.ints("ori", g.ints("andi", g.bits(size), 0x7FFFFF), 0x800000)
    offset = g.ints("addi", exponent, 32 - 152)
    first, shift = g.ints("shrui", offset, 5), g.ints("andi", offset, 31)

    def word(k: int) -> Value:
        found = g.whole(_TWO_OVER_PI[min(k + 4, 7)])
        for place in range(3, -1, -1):
            at = g.test_ints("eq", first, place)
            found = g.b.op("arith.select", at, g.whole(_TWO_OVER_PI[place + k]), found)
        return found

    words = [word(k) for k in range(4)]
    rest = g.ints("subi", 32, shift)
    a = [g.ints("ori", g.ints("shli", words[k], shift), g.ints("shrui", words[k + 1], rest))
         for k in range(3)]  # fmt: skip
    carried, _ = _product(g, mantissa, a[2])
    high, middle = _product(g, mantissa, a[1])
    low = g.ints("addi", middle, carried)
    over = g.b.op("arith.extui", g.test_ints("ult", low, carried), type=i32)
    top = g.ints("addi", g.ints("addi", g.ints("muli", mantissa, a[0]), high), over)
    # Two bits of n, and a fraction, which is taken for one below zero from a half on.
    n = g.ints("shrui", g.ints("addi", top, 1 << 29), 30)
    above = g.ints("ori", g.ints("shli", top, 2), g.ints("shrui", low, 30))
    below = g.ints("shli", low, 2)
    negative = g.test_ints("slt", above, 0)
    mask = g.b.op("arith.extsi", negative, type=i32)
    above, below = g.ints("xori", above, mask), g.ints("xori", below, mask)
    fraction = g.add(
        g.mul(g.to_float(above, unsigned=True), 2.0**-32),
        g.mul(g.to_float(below, unsigned=True), 2.0**-64),
    )
    r = g.mul(fraction, math.pi / 2)
    return g.choose(negative, g.op("negf", r), r), n


def _product(g: _Float32, a: Value, b: Value) -> tuple[Value, Value]:
    """High and low word of a product of unsigned words, by halves."""
    a_high, a_low = g.ints("shrui", a, 16), g.ints("andi", a, 0xFFFF)
    b_high, b_low = g.ints("shrui", b, 16), g.ints("andi", b, 0xFFFF)
    low, cross = g.ints("muli", a_low, b_low), g.ints("muli", a_high, b_low)
    other = g.ints("muli", a_low, b_high)
    middle = g.ints("addi", g.ints("shrui", low, 16), g.ints("andi", cross, 0xFFFF))
    middle = g.ints("addi", middle, g.ints("andi", other, 0xFFFF))
    high = g.ints("addi", g.ints("muli", a_high, b_high), g.ints("shrui", middle, 16))
    high = g.ints("addi", high, g.ints("shrui", cross, 16))
    return g.ints("addi", high, g.ints("shrui", other, 16)), g.ints("muli", a, b)


def _sine_cosine(g: _Float32, x: Value) -> tuple[Value, Value]:
    """Of |x|; NaN where x is not finite."""
    r, n = _near_quarter(g, x)
    z = g.mul(r, r)
    sine = g.add(g.mul(g.polynomial(_SIN, z), g.mul(z, r)), r)
    cosine = g.add(g.sub(g.mul(g.mul(z, z), g.polynomial(_COS, z)), g.mul(z, 0.5)), 1.0)
    odd = g.test_ints("ne", g.ints("andi", n, 1), 0)
    sine, cosine = g.choose(odd, cosine, sine), g.choose(odd, sine, cosine)
    second = g.test_ints("ne", g.ints("andi", n, 2), 0)
    third = g.test_ints("ne", g.ints("andi", g.ints("addi", n, 1), 2), 0)
    sine = g.choose(second, g.op("negf", sine), sine)
    cosine = g.choose(third, g.op("negf", cosine), cosine)
    finite = g.test("olt", g.absolute(x), math.inf)
    return g.choose(finite, sine, math.nan), g.choose(finite, cosine, math.nan)


def _sin(g: _Float32, x: Value) -> Value:
    sine, _ = _sine_cosine(g, x)
    negative = g.test_ints("slt", g.bits(x), 0)
    return g.choose(negative, g.op("negf", sine), sine)


def _cos(g: _Float32, x: Value) -> Value:
    return _sine_cosine(g, x)[1]


def _tan(g: _Float32, x: Value) -> Value:
    sine, cosine = _sine_cosine(g, x)
    value = g.div(sine, cosine)
    return g.choose(g.test_ints("slt", g.bits(x), 0), g.op("negf", value), value)


def _angle(g: _Float32, t: Value) -> Value:
    """atan of 0 <= t <= 1."""
    far = g.test("ogt", t, math.tan(math.pi / 8))
    t = g.choose(far, g.div(g.sub(t, 1.0), g.add(t, 1.0)), t)
    z = g.mul(t, t)
    value = g.add(g.mul(g.polynomial(_ATAN, z), g.mul(z, t)), t)
    return g.choose(far, g.add(value, math.pi / 4), value)


def _atan(g: _Float32, x: Value) -> Value:
    size = g.absolute(x)
    far = g.test("ogt", size, 1.0)
    value = _angle(g, g.choose(far, g.div(1.0, size), size))
    return g.with_sign_of(g.choose(far, g.sub(math.pi / 2, value), value), x)


def _atan2(g: _Float32, y: Value, x: Value) -> Value:
    """The angle of the smaller over the larger, put into its eighth."""
    height, width = g.absolute(y), g.absolute(x)
    steep = g.test("ogt", height, width)
    low, high = g.choose(steep, width, height), g.choose(steep, height, width)
    t = g.div(low, high)
    t = g.where("oeq", low, high, g.where("oeq", high, 0.0, 0.0, 1.0), t)
    value = _angle(g, t)
    value = g.choose(steep, g.sub(math.pi / 2, value), value)
    value = g.choose(g.test_ints("slt", g.bits(x), 0), g.sub(math.pi, value), value)
    nan = g.b.op("arith.ori", g.test("uno", x, x), g.test("uno", y, y))
    return g.choose(nan, math.nan, g.with_sign_of(value, y))


def _asin_of(g: _Float32, size: Value) -> tuple[Value, Value, Value]:
    """Whether |x| > 1/2, and asin of |x|, or of sqrt((1 - |x|) / 2) there."""
    far = g.test("ogt", size, 0.5)
    z = g.choose(far, g.mul(g.sub(1.0, size), 0.5), g.mul(size, size))
    t = g.choose(far, g.math("sqrt", z), size)
    return far, g.add(g.mul(g.polynomial(_ASIN, z), g.mul(z, t)), t), t


def _asin(g: _Float32, x: Value) -> Value:
    far, value, _ = _asin_of(g, g.absolute(x))
    return g.with_sign_of(g.choose(far, g.sub(math.pi / 2, g.add(value, value)), value), x)


def _acos(g: _Float32, x: Value) -> Value:
    far, value, _ = _asin_of(g, g.absolute(x))
    double = g.add(value, value)
    negative = g.test("olt", x, 0.0)
    beyond = g.choose(negative, g.sub(math.pi, double), double)
    inside = g.choose(negative, g.add(value, math.pi / 2), g.sub(math.pi / 2, value))
    return g.choose(far, beyond, inside)


# -- others


def _erf(g: _Float32, x: Value) -> Value:
    size = g.absolute(x)
    top = g.where("ogt", size, 4.0, 4.0, size)
    large = g.sub(1.0, _exp2(g, g.op("negf", g.mul(top, g.polynomial(ERFC, top)))))
    small = g.add(g.mul(size, g.polynomial(ERF, g.mul(x, x))), size)
    return g.with_sign_of(g.where("olt", size, 0.9, small, large), x)


def _erfc(g: _Float32, x: Value) -> Value:
    """From 0.9 on exp(-x^2) Q(1/x) / x, with x^2 in two parts."""
    size = g.absolute(x)
    small = g.sub(1.0, _erf(g, size))
    head = _head(g, size)
    rest = g.op("negf", g.mul(g.sub(size, head), g.add(size, head)))
    power = g.mul(_exp(g, g.op("negf", g.mul(head, head))), _exp(g, rest))
    u = g.div(1.0, size)
    factor = g.where("olt", size, 4.0, g.polynomial(_ERFCX_NEAR, u), g.polynomial(_ERFCX, u))
    value = g.where("olt", size, 0.9, small, g.mul(g.mul(power, factor), u))
    value = g.where("ogt", size, 10.1, 0.0, value)
    value = g.choose(g.test("uno", x, x), x, value)
    return g.where("olt", x, 0.0, g.sub(2.0, value), value)


def _head(g: _Float32, x: Value) -> Value:
    """The upper twelve bits of x, of which products are exact."""
    return g.from_bits(g.ints("andi", g.bits(x), 0xFFFFF000))


def _cbrt(g: _Float32, x: Value) -> Value:
    """From a third of the exponent, by two steps of Halley."""
    size = g.absolute(x)
    tiny = g.test("olt", size, 2.0**-126)
    scaled = g.choose(tiny, g.mul(size, 2.0**24), size)
    third = g.ints("divui", g.bits(scaled), 3)
    y = g.from_bits(g.ints("addi", third, 709921077))
    for _ in range(2):
        cube = g.mul(g.mul(y, y), y)
        y = g.mul(y, g.div(g.add(cube, g.add(scaled, scaled)), g.add(g.add(cube, cube), scaled)))
    y = g.choose(tiny, g.mul(y, 2.0**-8), y)
    usual = g.b.op("arith.andi", g.test("olt", size, math.inf), g.test("ogt", size, 0.0))
    return g.with_sign_of(g.choose(usual, y, size), x)


def _hypot(g: _Float32, x: Value, y: Value) -> Value:
    a, b = g.absolute(x), g.absolute(y)
    large, small = g.where("ogt", a, b, a, b), g.where("ogt", a, b, b, a)
    ratio = g.div(small, large)
    value = g.mul(large, g.math("sqrt", g.add(g.mul(ratio, ratio), 1.0)))
    value = g.where("oeq", large, 0.0, 0.0, value)
    infinite = g.b.op("arith.ori", g.test("oeq", a, math.inf), g.test("oeq", b, math.inf))
    nan = g.b.op("arith.ori", g.test("uno", a, a), g.test("uno", b, b))
    return g.choose(infinite, math.inf, g.choose(nan, math.nan, value))


def _pow(g: _Float32, x: Value, y: Value) -> Value:
    """2^(y log2(|x|)), the whole part of the logarithm apart; then the cases of C (annex F)."""
    size = g.absolute(x)
    k, f = _split(g, size)
    high, low = _log2_of_fraction(g, f)
    head = _head(g, y)
    exact, product = g.mul(head, k), g.mul(head, high)
    rest = g.add(g.mul(g.sub(y, head), g.add(k, high)), g.mul(y, low))
    total = g.add(g.add(exact, product), rest)
    near = g.where("ogt", total, 200.0, 200.0, g.where("olt", total, -200.0, -200.0, total))
    n = g.math("roundeven", near)
    r = g.add(g.add(g.sub(exact, n), product), rest)
    r = g.where("olt", g.absolute(total), 200.0, r, 0.0)
    value = _grown_far(g, g.mul(r, math.log(2)), n)
    # Zero and infinity to some power; then the sign, and what has no real value.
    down = g.test("olt", y, 0.0)
    value = g.where("oeq", size, 0.0, g.choose(down, math.inf, 0.0), value)
    value = g.where("oeq", size, math.inf, g.choose(down, 0.0, math.inf), value)
    larger = g.test("ogt", size, 1.0)
    same = g.b.op("arith.xori", larger, down)
    endless = g.choose(same, math.inf, 0.0)
    endless = g.where("oeq", size, 1.0, 1.0, endless)
    value = g.where("oeq", g.absolute(y), math.inf, endless, value)
    whole = g.test("oeq", g.math("trunc", y), y)
    half = g.mul(y, 0.5)
    odd = g.b.op("arith.andi", whole, g.test("one", g.math("trunc", half), half))
    negative = g.test_ints("slt", g.bits(x), 0)
    flip = g.b.op("arith.andi", negative, odd)
    value = g.choose(flip, g.op("negf", value), value)
    none = g.b.op("arith.andi", g.test("olt", x, 0.0), g.test("ogt", size, 0.0))
    none = g.b.op("arith.andi", none, g.b.op("arith.xori", whole, g.b.constant(True, i1)))
    none = g.b.op("arith.andi", none, g.test("olt", size, math.inf))
    value = g.choose(none, math.nan, value)
    nan = g.b.op("arith.ori", g.test("uno", x, x), g.test("uno", y, y))
    value = g.choose(nan, math.nan, value)
    one = g.b.op("arith.ori", g.test("oeq", x, 1.0), g.test("oeq", y, 0.0))
    return g.choose(one, 1.0, value)


def _log2_of_fraction(g: _Float32, f: Value) -> tuple[Value, Value]:
    """log2(1 + f) as a number of twelve bits and what is missing: by f and 1 / log(2) in two
    parts each."""
    head, first = _head(g, f), 1.4423828125
    product = g.mul(head, first)
    high = _head(g, product)
    low = g.add(g.mul(g.sub(f, head), first), g.mul(f, 1 / math.log(2) - first))
    low = g.add(low, g.mul(_tail(g, f), 1 / math.log(2)))
    return high, g.add(g.sub(product, high), low)


def _grown_far(g: _Float32, r: Value, n: Value) -> Value:
    """exp(r) 2^n with n between -200 and 200."""
    n = g.where("ogt", n, 130.0, 130.0, g.where("olt", n, -152.0, -152.0, n))
    return _grown(g, r, n)


WRITTEN_OUT: dict[str, Callable[..., Value]] = {
    "exp": _exp, "exp2": _exp2, "expm1": _expm1, "log": _log, "log2": _log_to(2.0),
    "log10": _log_to(10.0), "log1p": _log1p, "tanh": _tanh, "sigmoid": _sigmoid, "sinh": _sinh,
    "cosh": _cosh, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh, "sin": _sin, "cos": _cos,
    "tan": _tan, "atan": _atan, "atan2": _atan2, "asin": _asin, "acos": _acos, "erf": _erf,
    "erfc": _erfc, "cbrt": _cbrt, "hypot": _hypot, "powf": _pow,
}  # fmt: skip
_OF_TWO = ("atan2", "hypot", "powf")
