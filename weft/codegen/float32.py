"""Functions of float32 written out as arithmetic, so that LLVM inlines and vectorises them.

About 1 unit in the last place, as SLEEF's, in a quarter (``tanh``) to three quarters (``log``)
of its time (65,536 numbers, AVX-512), and with no call that empties the registers. Every
step that rounding must not change is an ``llvm.fma`` or carries no flags. The polynomials
are those of least largest error (Remez), fitted by us; the decompositions are the usual ones
(Muller, "Elementary Functions", 3rd edition, chapter 11).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.codegen.emit import Emitter
from weft.ir.types import f32, i1, i32

# (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2
EXP = (0.4999999403953552, 0.1666651964187622, 0.04166839271783829, 0.008368780836462975,
        0.0013814467238262296)  # fmt: skip
# (log(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) - 1 <= f <= sqrt(2) - 1
LOG = (0.3333331346511841, -0.25000008940696716, 0.2000211924314499, -0.1666799634695053,
        0.14219552278518677, -0.1240558922290802, 0.11888162046670914, -0.11675652116537094,
        0.06746641546487808)  # fmt: skip
# (tanh(x) / x - 1) / z for z = x^2 <= 25/64
TANH = (-0.3333328391848926, 0.13331491133548634, -0.05374348687876737, 0.020650554435307132,
         -0.00571701145946891)  # fmt: skip
# erf(x) / x - 1 for z = x^2 <= 0.81, and -log2(1 - erf(x)) / x for 0.9 <= x <= 4
ERF = (0.1283791537981, -0.3761252327889, 0.1128214083884, -0.02677890985693, 0.00501196414677,
       -0.000609036647796)  # fmt: skip
ERFC = (1.6281101313436, 0.9171203558580, 0.1518967807900, -0.03304638870131, 0.00464543317775,
        -0.000309593964713)  # fmt: skip
# 2^x for |x| <= 1 / 2
EXP2 = (1.0, 0.693147205737, 0.240226468909, 0.055503287773, 0.00961848891504,
        0.00133999311366, 0.000153458248957)  # fmt: skip

# 1.5 * 2^23: added to a small number it leaves the nearest integer in the low bits.
_MAGIC = 12582912.0
_LN2_HIGH = 0.693147182464599609375  # ln(2) as a float32
_LN2_LOW = -1.904654299957767e-9  # ln(2) less that
_ROOT_HALF = 0x3F3504F3  # bits of sqrt(1/2)


class _Float32:
    """Instructions on float32 and i32 of the emitter's number of lanes."""

    def __init__(self, e: Emitter) -> None:
        self.e = e
        self.scales = e.target.scales
        self.type, self.int, self.bool = e.type(f32), e.type(i32), e.type(i1)

    def number(self, value: float) -> str:
        return self.e.literal(value, f32)

    def op(self, instruction: str, a: str, b: str) -> str:
        return self.e.inst(f"{instruction} {self.type} {a}, {b}")

    def ints(self, instruction: str, a: str, b: str | int) -> str:
        right = self.e.literal(b, i32) if isinstance(b, int) else b
        return self.e.inst(f"{instruction} {self.int} {a}, {right}")

    def fma(self, a: str, b: str, c: str) -> str:
        t = self.type
        return self.e.intrinsic(f"llvm.fma.{self.e.suffix(f32)}", t, (t, a), (t, b), (t, c))

    def absolute(self, x: str) -> str:
        return self.e.intrinsic(f"llvm.fabs.{self.e.suffix(f32)}", self.type, (self.type, x))

    def with_sign_of(self, value: str, x: str) -> str:
        name, t = f"llvm.copysign.{self.e.suffix(f32)}", self.type
        return self.e.intrinsic(name, t, (t, value), (t, x))

    def bits(self, x: str) -> str:
        return self.e.inst(f"bitcast {self.type} {x} to {self.int}")

    def from_bits(self, n: str) -> str:
        return self.e.inst(f"bitcast {self.int} {n} to {self.type}")

    def where(self, compare: str, a: str, b: str, then: str, other: str) -> str:
        """``then`` where ``a`` compares so with ``b`` (``o..``: never with NaN), else ``other``."""
        test = self.e.inst(f"fcmp {compare} {self.type} {a}, {b}")
        t = self.type
        return self.e.inst(f"select {self.bool} {test}, {t} {then}, {t} {other}")

    def polynomial(self, coefficients: Sequence[float], x: str) -> str:
        value = self.number(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            value = self.fma(value, x, self.number(coefficient))
        return value

    def clamped(self, x: str, low: float, high: float) -> str:
        """``x`` between two numbers; NaN stays."""
        x = self.where("ogt", x, self.number(high), self.number(high), x)
        return self.where("olt", x, self.number(low), self.number(low), x)


def exp(e: Emitter, x: str) -> str:
    """2^n exp(r) with n the integer nearest to x / ln(2); overflows to inf, underflows by way of
    subnormal numbers to 0."""
    g = _Float32(e)
    x = g.clamped(x, -105.0, 90.0)
    shifted = g.fma(x, g.number(1 / math.log(2)), g.number(_MAGIC))
    n = g.op("fsub", shifted, g.number(_MAGIC))
    r = g.fma(n, g.number(-_LN2_HIGH), x)
    return _scaled(g, g.fma(n, g.number(-_LN2_LOW), r), shifted)


def exp2(e: Emitter, x: str) -> str:
    """2^n exp((x - n) ln(2)) with n the integer nearest to x."""
    g = _Float32(e)
    x = g.clamped(x, -151.0, 129.0)
    shifted = g.op("fadd", x, g.number(_MAGIC))
    fraction = g.op("fsub", x, g.op("fsub", shifted, g.number(_MAGIC)))
    return _scaled(g, g.op("fmul", fraction, g.number(_LN2_HIGH)), shifted)


def _scaled(g: _Float32, r: str, shifted: str) -> str:
    """exp(r) * 2^n, where ``shifted`` is n + ``_MAGIC``. By hand two factors: 2^n alone may be no
    float."""
    square = g.op("fmul", r, r)
    grown = g.op("fadd", g.fma(square, g.polynomial(EXP, r), r), g.number(1.0))
    n = g.ints("sub", g.bits(shifted), 0x4B400000)  # the bits of _MAGIC
    if g.scales:
        name = f"llvm.ldexp.{g.e.suffix(f32)}.{g.e.suffix(i32)}"
        return g.e.intrinsic(name, g.type, (g.type, grown), (g.int, n))
    half = g.ints("ashr", n, 1)
    for part in (half, g.ints("sub", n, half)):
        power = g.from_bits(g.ints("shl", g.ints("add", part, 127), 23))
        grown = g.op("fmul", grown, power)
    return grown


def log(e: Emitter, x: str) -> str:
    """k ln(2) + log(1 + f) with 1 + f between sqrt(1/2) and sqrt(2)."""
    g = _Float32(e)
    zero, infinity = g.number(0.0), g.number(math.inf)
    tiny = g.number(2.0**-126)
    scaled = g.where("olt", x, tiny, g.op("fmul", x, g.number(2.0**23)), x)
    extra = g.where("olt", x, tiny, g.number(-23.0), zero)
    shifted = g.ints("sub", g.bits(scaled), _ROOT_HALF)
    k = e.inst(f"sitofp {g.int} {g.ints('ashr', shifted, 23)} to {g.type}")
    k = g.op("fadd", k, extra)
    mantissa = g.from_bits(g.ints("add", g.ints("and", shifted, 0x7FFFFF), _ROOT_HALF))
    f = g.op("fsub", mantissa, g.number(1.0))
    square = g.op("fmul", f, f)
    tail = g.op("fmul", g.op("fmul", square, f), g.polynomial(LOG, f))
    tail = g.fma(k, g.number(_LN2_LOW), tail)
    tail = g.fma(square, g.number(-0.5), tail)
    value = g.fma(k, g.number(_LN2_HIGH), g.op("fadd", tail, f))
    value = g.where("olt", x, infinity, value, x)  # inf and NaN are their own logarithms
    value = g.where("oeq", x, zero, g.number(-math.inf), value)
    return g.where("olt", x, zero, g.number(math.nan), value)


def tanh(e: Emitter, x: str) -> str:
    """From 5/8 on 1 - 2 / (exp(2 |x|) + 1), below |x| + |x| z P(z) with z = x^2."""
    g = _Float32(e)
    size = g.absolute(x)
    power = exp(e, g.op("fadd", size, size))
    part = g.op("fdiv", g.number(2.0), g.op("fadd", power, g.number(1.0)))
    large = g.op("fsub", g.number(1.0), part)
    z = g.op("fmul", x, x)
    small = g.fma(g.polynomial(TANH, z), g.op("fmul", z, size), size)
    return g.with_sign_of(g.where("olt", size, g.number(0.625), small, large), x)


def erf(e: Emitter, x: str) -> str:
    """From 0.9 on 1 - 2^(-|x| Q(|x|)), below |x| + |x| P(x^2); 1 from 4 on, where it rounds
    to."""
    g = _Float32(e)
    size = g.absolute(x)
    top = g.where("ogt", size, g.number(4.0), g.number(4.0), size)
    rate = e.inst(f"fneg {g.type} {g.polynomial(ERFC, top)}")
    shifted = g.fma(top, rate, g.number(_MAGIC))
    n = g.op("fsub", shifted, g.number(_MAGIC))
    part = g.polynomial(EXP2, g.fma(top, rate, e.inst(f"fneg {g.type} {n}")))
    grown = g.ints("add", g.bits(part), g.ints("shl", g.bits(shifted), 23))
    large = g.op("fsub", g.number(1.0), g.from_bits(grown))
    small = g.fma(size, g.polynomial(ERF, g.op("fmul", x, x)), size)
    return g.with_sign_of(g.where("oge", size, g.number(0.9), large, small), x)


FUNCTIONS: dict[str, Callable[[Emitter, str], str]] = {
    "exp": exp, "exp2": exp2, "log": log, "tanh": tanh, "erf": erf,
}  # fmt: skip
