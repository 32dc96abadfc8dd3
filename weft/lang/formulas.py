"""Functions of scalars that are formulas of others, written in the language: inlined in a kernel,
and differentiated as they stand. ``function_table.py`` says what stands for each in torch, NumPy
and Python's ``math``. What loses digits is computed in float64 and rounded once (``widened``).
"""

from __future__ import annotations

from typing import Any

from weft.lang import math
from weft.lang.elements import needs
from weft.lang.loops import static, stop_grad

_ROOT_HALF = 0.7071067811865476
_LOG_2 = 0.6931471805599453
_PI = 3.141592653589793
_HALF_LOG_2PI = 0.9189385332046728
_ROOT_2PI = 2.5066282746310002
# Of Stirling's series for the logarithm of the gamma function, and for its derivative: Bernoulli's
# numbers over 2 k (2 k - 1), and over 2 k (Abramowitz and Stegun 6.1.41, 6.3.18).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SHIFT = 10  # recurrences go up to arguments from which on the series are exact
_SERIES = 20.0  # Bessel functions: power series up to here, asymptotic ones beyond


# --- activations ----------------------------------------------------------------------------------
def gelu(x: Any, approximate: Any = "none") -> Any:
    """``x`` times the normal distribution's cumulative function, or its approximation by tanh."""
    needs(approximate == "tanh" or approximate == "none", "`approximate` is 'none' or 'tanh'")
    if static(approximate == "tanh"):
        return x * math.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return 0.5 * x * math.erfc(-_ROOT_HALF * x)


def silu(x: Any, inplace: Any = False) -> Any:
    return x * math.sigmoid(x)


def softplus(x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    """``log(1 + exp(beta x)) / beta``; ``x`` itself where ``beta x`` is above the threshold."""
    far = x * beta > threshold
    return math.select(far, x, math.log1p(math.exp(math.select(far, 0.0, x * beta))) / beta)


def logsigmoid(x: Any) -> Any:
    below = x < 0.0
    size = math.select(below, x, -x)
    return math.select(below, x, 0.0) - math.log1p(math.exp(size))


def mish(x: Any, inplace: Any = False) -> Any:
    return x * math.tanh(softplus(x))


def elu(x: Any, alpha: Any = 1.0, inplace: Any = False) -> Any:
    above = x > 0.0
    return math.select(above, x, alpha * math.expm1(math.select(above, 0.0, x)))


def celu(x: Any, alpha: Any = 1.0, inplace: Any = False) -> Any:
    above = x > 0.0
    return math.select(above, x, alpha * math.expm1(math.select(above, 0.0, x) / alpha))


def selu(x: Any, inplace: Any = False) -> Any:
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


def leaky_relu(x: Any, negative_slope: Any = 0.01, inplace: Any = False) -> Any:
    return math.select(x > 0.0, x, negative_slope * x)


def hardtanh(x: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: Any = False) -> Any:
    return math.select(x <= min_val, min_val, math.select(x >= max_val, max_val, x))


def relu6(x: Any, inplace: Any = False) -> Any:
    return hardtanh(x, 0.0, 6.0)


def hardsigmoid(x: Any, inplace: Any = False) -> Any:
    return hardtanh(x + 3.0, 0.0, 6.0) / 6.0


def hardswish(x: Any, inplace: Any = False) -> Any:
    low, high = x <= -3.0, x >= 3.0
    return math.select(low, x * 0.0, math.select(high, x, x * (x + 3.0) / 6.0))


def softsign(x: Any) -> Any:
    return x / (1.0 + abs(x))


def tanhshrink(x: Any) -> Any:
    return x - math.tanh(x)


def softshrink(x: Any, lambd: Any = 0.5) -> Any:
    return math.select(x > lambd, x - lambd, math.select(x < -lambd, x + lambd, x * 0.0))


def hardshrink(x: Any, lambd: Any = 0.5) -> Any:
    return math.select((x >= -lambd) & (x <= lambd), 0.0, x)


def threshold(x: Any, threshold: Any, value: Any, inplace: Any = False) -> Any:
    return math.select(x <= threshold, value, x)


# --- logarithms and exponentials ------------------------------------------------------------------
def logaddexp(x: Any, y: Any) -> Any:
    """``log(exp(x) + exp(y))``."""
    apart = _difference(x, y)
    below = apart < 0.0  # not a maximum: each side is smooth where they meet
    size = math.select(below, apart, -apart)
    return math.select(below, y, x) + math.log1p(math.exp(size))


def logaddexp2(x: Any, y: Any) -> Any:
    """``log2(2**x + 2**y)``."""
    apart = _difference(x, y)
    below = apart < 0.0
    size = math.select(below, apart, -apart)
    return math.select(below, y, x) + math.log1p(math.exp2(size)) / _LOG_2


def _difference(x: Any, y: Any) -> Any:
    """``x - y``, 0 of infinities of one sign."""
    return math.select((x == y) & (abs(x) == math.inf), 0.0, x - y)


def xlogy(x: Any, y: Any) -> Any:
    """``x log(y)``; 0 where x is 0, and NaN where y is."""
    none = (x == 0.0) & ((y <= 0.0) | (y == math.inf))  # elsewhere log(y) is the derivative at 0
    return math.select(none, 0.0, x * math.log(math.select(none, 1.0, y)))


def xlog1py(x: Any, y: Any) -> Any:
    """``x log(1 + y)``; 0 where x is 0, and NaN where y is."""
    none = (x == 0.0) & ((y <= -1.0) | (y == math.inf))
    return math.select(none, 0.0, x * math.log1p(math.select(none, 0.0, y)))


def entr(x: Any) -> Any:
    """``-x log(x)``, 0 at 0, minus infinity below."""
    inside, end = x > 0.0, x == 0.0
    found = -x * math.log(math.select(inside, x, 1.0))
    at_end = math.sqrt(math.select(end, x, 1.0) + 0.0)  # 0, whose derivative is infinite
    outside = math.select(x < 0.0, -math.inf, x)
    return math.select(inside, found, math.select(end, at_end, outside))


def logit(x: Any, eps: Any = None) -> Any:
    """``log(x / (1 - x))``, of x clamped to ``eps .. 1 - eps``."""
    inside = x if static(eps is None) else math.clamp(x, eps, 1.0 - eps)
    return math.log(inside) - math.log1p(-inside)


def sinc(x: Any) -> Any:
    """``sin(pi x) / (pi x)``, 1 at 0."""
    near = abs(x) < 0.1  # the series, whose derivatives lose no digits
    small = _PI * math.select(near, x, 0.0)
    square, series = small * small, 1.0 + _zeros(x)
    for k in static(range(7, 0, -1)):
        series = 1.0 - square / (2.0 * k * (2.0 * k + 1.0)) * series
    other = math.select(near, 1.0, x)
    found = math.sin(_PI * (other - 2.0 * math.round(0.5 * other))) / (_PI * other)
    return math.select(near, series, found)


def ldexp(x: Any, n: Any) -> Any:
    """``x * 2**n``."""
    return x * math.exp2(1.0 * n)


def _zeros(x: Any) -> Any:
    """0, for each element of a vector."""
    return math.select(x == x, 0.0, 0.0)


# --- the gamma and error functions ----------------------------------------------------------------
def _sin_pi(x: Any) -> Any:
    """``sin(pi x)`` up to its sign."""
    return math.sin(_PI * (x - math.round(x)))


def _log_gamma(x: Any) -> Any:
    """Of x from 0.5 on."""
    shifted = x < _SHIFT
    product = 1.0 + _zeros(x)
    for k in static(range(_SHIFT)):
        product = product * (math.select(shifted, x, 1.0) + k)
    z = math.select(shifted, x + _SHIFT, x)
    series = _zeros(x)
    for term in static(_STIRLING[::-1]):
        series = series / (z * z) + term
    found = (z - 0.5) * math.log(z) - z + _HALF_LOG_2PI + series / z
    return math.select(shifted, found - math.log(product), found)


def lgamma(x: Any) -> Any:
    """The logarithm of the gamma function's magnitude; infinite at 0 and negative integers."""
    wide = math.widened(x)
    below, finite = wide < 0.5, abs(wide) < math.inf
    found = _log_gamma(math.select(finite, math.select(below, 1.0 - wide, wide), 1.0))
    whole, zero = below & (wide == math.round(wide)), wide == 0.0
    sine = abs(_sin_pi(math.select(below & finite & (wide != math.round(wide)), wide, 0.5)))
    found = math.select(below, math.log(_PI / sine) - found, found)
    pole = math.select(whole, wide - math.round(wide), 1.0)
    endless = -math.log(math.select(zero, 1.0, pole * pole))  # its derivative is NaN
    found = math.select(whole, endless, found)
    found = math.select(zero, -math.log(math.select(zero, wide, 1.0)), found)
    return math.narrowed(math.select(finite, found, wide * wide), x)


def digamma(x: Any) -> Any:
    """The derivative of ``lgamma``; NaN at negative integers, infinite at 0 (with the other
    sign)."""
    wide = math.widened(x)
    below = wide < 0.5
    z = math.select(below, 1.0 - wide, wide)
    shifted = z < _SHIFT
    steps = _zeros(z)
    for k in static(range(_SHIFT)):
        steps = steps + 1.0 / (math.select(shifted, z, 1.0) + k)
    y = math.select(shifted, z + _SHIFT, z)
    series = _zeros(z)
    for term in static(_DIGAMMA[::-1]):
        series = (series + term) / (y * y)
    found = math.log(y) - 0.5 / y - series
    found = math.select(shifted, found - steps, found)
    pole = below & (wide == math.floor(wide))
    rest = math.select(below & (wide != math.floor(wide)), wide - math.round(wide), 0.25)
    cotangent = math.cos(_PI * rest) / math.sin(_PI * rest)
    found = math.select(below, found - _PI * cotangent, found)
    zero = wide == 0.0
    at_zero = -1.0 / math.select(zero, wide, 1.0)  # as it is near 0
    return math.narrowed(math.select(pole, math.select(zero, at_zero, math.nan), found), x)


def gamma(x: Any) -> Any:
    """The gamma function; NaN at negative integers, infinite at 0."""
    wide = math.widened(x)
    below, finite = wide < 0.5, abs(wide) < math.inf
    z = math.select(finite, math.select(below, 1.0 - wide, wide), 1.0)
    shifted = z < _SHIFT
    product = 1.0 + _zeros(z)
    for k in static(range(_SHIFT)):
        product = product * math.select(shifted, z + k, 1.0)
    y = math.select(shifted, z + _SHIFT, math.min(z, 200.0))  # of which it is infinite
    series = _zeros(y)
    for term in static(_STIRLING[::-1]):
        series = series / (y * y) + term
    factor = _ROOT_2PI * math.exp(series / y)
    half = math.pow(y, 0.5 * y - 0.25)  # twice: the whole would be infinite before the result is
    near = math.round(wide)
    odd = 0.5 * near != math.floor(0.5 * near)
    sine = _sin_pi(math.select(below & finite & (wide != near), wide, 0.5))
    sine = math.select(odd, -sine, sine)
    reflected = _PI / sine * math.exp(y) / half / half / factor * product
    found = math.select(below, reflected, half * math.exp(-y) * half * factor / product)
    pole = below & (wide == near)
    found = math.select(pole, math.select(wide == 0.0, 1.0 / wide, math.nan), found)
    return math.narrowed(math.select(finite, found, math.select(wide > 0.0, wide, math.nan)), x)


def erfinv(x: Any) -> Any:
    """The inverse of ``erf``: an approximation of few digits (Giles, GPU Computing Gems, 2011) and
    four steps of Halley's method."""
    wide = math.widened(x)
    below = math.copysign(1.0, wide) < 0.0
    whole = math.select(below, -wide, wide)  # whose derivative at 0 is 1
    inside = whole < 1.0
    rest = math.select(inside, 1.0 - whole, 0.5)  # exact
    w = -math.log(rest * (2.0 - rest))
    small = w < 5.0
    near = math.select(small, w, 2.5) - 2.5
    far = math.sqrt(math.select(small, 9.0, w)) - 3.0
    a = 1.50140941 + near * (0.246640727 + near * (-0.00417768164 - near * 0.00125372503))
    b = 2.83297682 + far * (1.00167406 + far * (0.00943887047 - far * 0.0076224613))
    size = math.select(inside, whole, 0.5)
    y = math.select(small, a, b) * size
    for _ in static(range(4)):
        slope = 1.1283791670955126 * math.exp(-y * y)
        short = math.select(size < 0.5, size - math.erf(y), math.erfc(y) - rest)
        step = short / slope
        y = y + step / (1.0 - y * step)  # Halley's
    found = math.select(below, -y, y)
    end = whole == 1.0
    at_end = -wide * math.log(math.select(end, 1.0 - whole, 1.0))  # both are infinite
    ends = math.select(end, at_end, math.nan)
    return math.narrowed(math.select(inside, found, ends), x)


def ndtr(x: Any) -> Any:
    """The normal distribution's cumulative function."""
    return 0.5 * math.erfc(-_ROOT_HALF * x)


def _erfcx(x: Any) -> Any:
    near = x < 7.0
    endless = x < -26.63
    small, large = math.select(near & (x >= -26.63), x, 0.0), math.select(near, 7.0, x)
    whole = math.floor(16.0 * small) / 16.0  # whose square is exact
    square = math.exp((small - whole) * (small + whole)) * math.exp(whole * whole)
    tail, q = 1.0 + _zeros(x), 0.5 / (large * large)
    for k in static(range(24, 0, -1)):
        tail = 1.0 - (2.0 * k - 1.0) * q * tail
    far = tail / (1.7724538509055161 * large)
    past = math.select(endless, x, 0.0)
    found = math.select(endless, 2.0 * math.exp(past * past), square * math.erfc(small))
    return math.select(near, found, far)


def erfcx(x: Any) -> Any:
    """``exp(x x) erfc(x)``: as it stands up to 7, beyond by the asymptotic series (Abramowitz and
    Stegun 7.1.23)."""
    return math.narrowed(_erfcx(math.widened(x)), x)


def log_ndtr(x: Any) -> Any:
    """``log(ndtr(x))``, below -1 by ``erfcx``, which does not vanish."""
    wide = math.widened(x)
    below = wide < -1.0
    low, high = math.select(below, wide, -1.0), math.select(below, -1.0, wide)
    left = math.log(0.5 * _erfcx(-_ROOT_HALF * low)) - 0.5 * low * low
    right = math.log1p(-0.5 * math.erfc(_ROOT_HALF * high))
    return math.narrowed(math.select(below, left, right), x)


def multigammaln(x: Any, p: Any) -> Any:
    """The logarithm of the multivariate gamma function of ``p`` dimensions, a constant: the sum of
    ``lgamma(x - j / 2)`` (DLMF 35.3.5)."""
    wide = math.widened(x)
    found = 0.25 * p * (p - 1) * math.log(_PI) + _zeros(wide)
    for j in static(range(p)):
        found = found + lgamma(wide - 0.5 * j)
    return math.narrowed(found, x)


# --- polynomials, of a degree that is a constant --------------------------------------------------
def _chebyshev(x: Any, n: Any, first: Any) -> Any:
    before, found = 1.0 + _zeros(x), first
    if static(n < 1):
        return _zeros(x) if static(n < 0) else before
    for _ in static(range(1, n)):
        before, found = found, 2.0 * x * found - before
    return found


def chebyshev_polynomial_t(x: Any, n: Any) -> Any:
    """The Chebyshev polynomial of the first kind, by its recurrence (DLMF 18.9)."""
    return _chebyshev(x, n, 1.0 * x)


def chebyshev_polynomial_u(x: Any, n: Any) -> Any:
    """The Chebyshev polynomial of the second kind, by its recurrence (DLMF 18.9)."""
    return _chebyshev(x, n, 2.0 * x)


def chebyshev_polynomial_v(x: Any, n: Any) -> Any:
    """The Chebyshev polynomial of the third kind, by its recurrence (DLMF 18.9)."""
    return _chebyshev(x, n, 2.0 * x - 1.0)


def chebyshev_polynomial_w(x: Any, n: Any) -> Any:
    """The Chebyshev polynomial of the fourth kind, by its recurrence (DLMF 18.9)."""
    return _chebyshev(x, n, 2.0 * x + 1.0)


def shifted_chebyshev_polynomial_t(x: Any, n: Any) -> Any:
    """``chebyshev_polynomial_t`` of ``2 x - 1`` (DLMF 18.7)."""
    return chebyshev_polynomial_t(2.0 * x - 1.0, n)


def shifted_chebyshev_polynomial_u(x: Any, n: Any) -> Any:
    """``chebyshev_polynomial_u`` of ``2 x - 1`` (DLMF 18.7)."""
    return chebyshev_polynomial_u(2.0 * x - 1.0, n)


def shifted_chebyshev_polynomial_v(x: Any, n: Any) -> Any:
    """``chebyshev_polynomial_v`` of ``2 x - 1`` (DLMF 18.7)."""
    return chebyshev_polynomial_v(2.0 * x - 1.0, n)


def shifted_chebyshev_polynomial_w(x: Any, n: Any) -> Any:
    """``chebyshev_polynomial_w`` of ``2 x - 1`` (DLMF 18.7)."""
    return chebyshev_polynomial_w(2.0 * x - 1.0, n)


def hermite_polynomial_h(x: Any, n: Any) -> Any:
    """The physicists' Hermite polynomial, by its recurrence (DLMF 18.9)."""
    before, found = 1.0 + _zeros(x), 2.0 * x
    if static(n < 1):
        return _zeros(x) if static(n < 0) else before
    for k in static(range(1, n)):
        before, found = found, 2.0 * x * found - 2.0 * k * before
    return found


def hermite_polynomial_he(x: Any, n: Any) -> Any:
    """The probabilists' Hermite polynomial, by its recurrence (DLMF 18.9)."""
    before, found = 1.0 + _zeros(x), 1.0 * x
    if static(n < 1):
        return _zeros(x) if static(n < 0) else before
    for k in static(range(1, n)):
        before, found = found, x * found - k * before
    return found


def laguerre_polynomial_l(x: Any, n: Any) -> Any:
    """The Laguerre polynomial, by its recurrence (DLMF 18.9)."""
    before, found = 1.0 + _zeros(x), 1.0 - x
    if static(n < 1):
        return _zeros(x) if static(n < 0) else before
    for k in static(range(1, n)):
        before, found = found, ((2 * k + 1 - x) * found - k * before) / (k + 1)
    return found


def legendre_polynomial_p(x: Any, n: Any) -> Any:
    """The Legendre polynomial, by its recurrence (DLMF 18.9)."""
    before, found = 1.0 + _zeros(x), 1.0 * x
    if static(n < 1):
        return _zeros(x) if static(n < 0) else before
    for k in static(range(1, n)):
        before, found = found, ((2 * k + 1) * x * found - k * before) / (k + 1)
    return found


# --- Bessel functions -----------------------------------------------------------------------------
def _bessel(x: Any, order: int) -> Any:
    """``exp(-|x|) I(x)``, of order 0 or 1 (Abramowitz and Stegun 9.6.10 and 9.7.1)."""
    size = abs(x)
    near = size < _SERIES
    small, large = math.select(near, x, 1.0), math.select(near, _SERIES, size)
    q, series = 0.25 * small * small, 1.0 + _zeros(x)
    for k in static(range(45, 0, -1)):
        series = 1.0 + q / (k * (k + order)) * series
    tail = 1.0 + _zeros(x)
    for k in static(range(24, 0, -1)):
        tail = 1.0 - (4.0 * order - (2.0 * k - 1.0) ** 2) / (8.0 * k * large) * tail
    far = tail / math.sqrt(2.0 * _PI * large)
    if static(order == 1):
        series = 0.5 * small * series
        far = math.select(x < 0.0, -far, far)
    return math.select(near, math.exp(-abs(small)) * series, far)


def _unscaled(y: Any, x: Any) -> Any:
    half = math.exp(0.5 * abs(x))  # of which the product overflows where the result does
    return half * (half * y)


def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind, order 0."""
    wide = math.widened(x)
    return math.narrowed(_unscaled(_bessel(wide, 0), wide), x)


def i0e(x: Any) -> Any:
    """``exp(-|x|) i0(x)``."""
    return math.narrowed(_bessel(math.widened(x), 0), x)


def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind, order 1."""
    wide = math.widened(x)
    return math.narrowed(_unscaled(_bessel(wide, 1), wide), x)


def i1e(x: Any) -> Any:
    """``exp(-|x|) i1(x)``."""
    return math.narrowed(_bessel(math.widened(x), 1), x)


def spherical_bessel_j0(x: Any) -> Any:
    """``sin(x) / x``, 1 at 0; 0 at infinity."""
    near, finite = abs(x) < 0.5, abs(x) < math.inf
    small, large = math.select(near, x, 0.0), math.select(near, 1.0, x)
    q, series = small * small, 1.0 + _zeros(x)
    for k in static(range(7, 0, -1)):
        series = 1.0 - q / (2 * k * (2 * k + 1)) * series
    large = math.select(finite | (x != x), large, 1.0)
    ends = math.select(finite | (x != x), 1.0, 0.0)
    return math.select(near, series, ends * math.sin(large) / large)


# --- comparisons and parts ------------------------------------------------------------------------
def isclose(x: Any, y: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> Any:
    """``|x - y| <= atol + rtol |y|``, or both the same infinity; of NaN only with ``equal_nan``."""
    close = (x == y) | (
        (abs(x - y) <= atol + rtol * abs(y)) & (abs(y) < math.inf) & (abs(x) < math.inf)
    )
    return close | ((x != x) & (y != y)) if static(equal_nan) else close


def math_isclose(a: Any, b: Any, *, rel_tol: Any = 1e-9, abs_tol: Any = 0.0) -> Any:
    """Python's: ``|a - b| <= max(rel_tol max(|a|, |b|), abs_tol)``, or both the same infinity."""
    larger = math.max(abs(a), abs(b))
    return (a == b) | (
        (larger < math.inf) & (abs(a - b) <= math.max(rel_tol * larger, abs_tol * 1.0))
    )


def heaviside(x: Any, values: Any) -> Any:
    """0 below 0, 1 above, ``values`` at 0."""
    return math.select(x == 0.0, values, math.select(x > 0.0, 1.0, 0.0))


def signbit(x: Any) -> Any:
    """Whether x is negative, or minus zero."""
    return math.copysign(1.0, x) < 0.0


def frac(x: Any) -> Any:
    """``x - trunc(x)``."""
    return x - math.trunc(x)


def clip(a: Any, a_min: Any, a_max: Any) -> Any:
    """``min(max(a, a_min), a_max)``."""
    return math.clamp(a, a_min, a_max)


def lerp(start: Any, end: Any, weight: Any) -> Any:
    """``start + weight (end - start)``."""
    return start + weight * (end - start)


def modf(x: Any) -> Any:
    """What is behind the point, and the whole number before it; both have the sign of ``x``."""
    given = 1.0 * x
    whole = math.trunc(given)
    rest = math.select(abs(given) == math.inf, 0.0, given - whole)
    return math.copysign(rest, given), whole


def ieee_remainder(x: Any, y: Any) -> Any:
    """``x - n * y`` of the whole number ``n`` that is nearest to ``x / y``, the even one of two."""
    size, by = abs(1.0 * x), abs(1.0 * y)
    rest = math.fmod(size, by)
    other = by - rest
    halves = rest - 2.0 * math.fmod(0.5 * (size - rest), by)
    found = math.select(rest < other, rest, math.select(rest > other, -other, halves))
    return math.copysign(1.0, 1.0 * x) * found


def length_of(*coordinates: Any) -> Any:
    """The root of the sum of squares, which do not overflow."""
    size = 0.0
    for part in static(coordinates):
        size = math.max(size, abs(1.0 * part))
    size = stop_grad(math.select((size > 0.0) & (size < math.inf), size, 1.0))
    total = 0.0
    for part in static(coordinates):
        total = total + (part / size) * (part / size)
    return size * math.sqrt(total)


def dist(p: Any, q: Any) -> Any:
    """The distance of two points."""
    needs(len(p) == len(q), "`dist` needs two points of as many coordinates")
    return length_of(*[1.0 * p[k] - 1.0 * q[k] for k in range(len(p))])


def sign_or_nan(x: Any) -> Any:
    """-1, 0 or 1; NaN of NaN."""
    return math.select(x == x, math.sign(x), x)
