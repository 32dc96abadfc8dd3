"""Functions of torch, NumPy and Python's math that are formulas in a kernel: their values, and
their derivatives, beside torch's in float64, over the whole range of floats, with its ends."""

from __future__ import annotations

import functools
import math
import operator

import numpy as np
import pytest
import torch
from torch.nn import functional

import weft
from tests.fuzz.check import function as made_of
from tests.lang import functions_page
from weft.errors import KernelTypeError
from weft.lang import function_table, names

special = torch.special
SMOOTH = [
    functional.gelu, functools.partial(functional.gelu, approximate="tanh"), functional.silu,
    functional.softplus, functools.partial(functional.softplus, beta=2.5, threshold=3.0),
    functional.logsigmoid, functional.mish, functional.elu,
    functools.partial(functional.elu, alpha=0.3), functional.celu, functional.selu,
    functional.leaky_relu, functional.hardtanh, functional.relu6, functional.hardsigmoid,
    functional.hardswish, functional.softsign, functional.tanhshrink, functional.softshrink,
    functional.hardshrink, functools.partial(functional.threshold, threshold=0.5, value=-2.0),
    special.ndtr, torch.i0, special.i1, special.i0e, special.i1e, torch.sinc, torch.frac,
]  # fmt: skip
# Those with poles or ends.
POLES = [
    torch.lgamma, torch.digamma, torch.erfinv, special.entr, torch.logit,
    functools.partial(torch.logit, eps=0.125),
]  # fmt: skip
UNARY = [SMOOTH, POLES]
BINARY = [torch.logaddexp, torch.logaddexp2, torch.xlogy, special.xlog1py, torch.heaviside]
# Where results cross 0 the error is one of what they are made of, of the size of the arguments.
CROSSING = {"tanhshrink", "lgamma", "digamma", "sinc", "entr", "logit", "logaddexp", "logaddexp2"}
ULPS = {"lgamma": 64.0, "digamma": 64.0}  # of float64; 8 of others


def digamma(x: torch.Tensor) -> torch.Tensor:
    """By reflection: torch's own is wrong in the twelfth digit near negative integers."""
    rest = x - x.round()
    turned = torch.digamma(1 - x) - math.pi / torch.tan(math.pi * rest)
    return torch.where((x < 0) & (rest != 0), turned, torch.digamma(x))


# torch's own lose the digits of small results.
EXACT = {
    "digamma": digamma,
    "ndtr": lambda x: 0.5 * torch.erfc(-x / math.sqrt(2)),
    "gelu": lambda x: 0.5 * x * torch.erfc(-x / math.sqrt(2)),
    "gelu tanh": lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
}


# How much more than a rounding that of an exponent is.
ROUNDED = {
    "softplus": lambda x: 2.5 * x, "gelu": torch.square, "ndtr": torch.square,
    "gelu tanh": lambda x: x**3,
}  # fmt: skip


def name_of(function) -> str:
    approximate = getattr(function, "keywords", {}).get("approximate", "")
    name = getattr(function, "func", function).__name__.removeprefix("special_")
    return f"{name} {approximate}".strip()


@weft.kernel
def unary(which: weft.template(), x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(UNARY[which]), x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        for k in weft.static(range(len(UNARY[which]))):
            out[k, i] = UNARY[which][k](x[i])
    return out


@weft.kernel
def binary(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(BINARY), x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        for k in weft.static(range(len(BINARY))):
            out[k, i] = BINARY[k](x[i], y[i])
    return out


def points(dtype: torch.dtype) -> torch.Tensor:
    """Many, of all magnitudes, close to where formulas change, and the ends of the range."""
    limits = torch.finfo(dtype)
    some = [torch.linspace(-30, 30, 1201, dtype=torch.float64) + 1e-3, torch.arange(-12.0, 25.0)]
    sizes = torch.logspace(
        math.log10(limits.tiny), math.log10(limits.max), 300, dtype=torch.float64
    )
    near = torch.logspace(-7 if dtype is torch.float32 else -15, 0, 60, dtype=torch.float64)
    some += [sizes, -sizes, 1 - near, near - 1, 1 + near, 2 + near]
    some += [torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, -0.5])]
    return torch.cat([s.double() for s in some]).to(dtype)


def compare(functions, found: torch.Tensor, *arguments: torch.Tensor) -> None:
    """With float64 on the CPU: on CUDA torch's hardsigmoid multiplies by the float32 of 1/6."""
    wide = [a.cpu().double() for a in arguments]
    for function, row in zip(functions, found.cpu(), strict=True):
        expected = EXACT.get(name_of(function), function)(*wide)
        size = expected.abs()
        size = size * (1 + ROUNDED.get(name_of(function), torch.zeros_like)(wide[0].abs()))
        if name_of(function) in CROSSING:
            size = torch.stack([size, torch.ones_like(size), *(a.abs() for a in wide)]).amax(0)
        limits = torch.finfo(row.dtype)
        ulps = ULPS.get(name_of(function), 8.0) if row.dtype is torch.float64 else 8.0
        room = ulps * limits.eps * size + 4 * limits.tiny
        rounded = expected.to(row.dtype)
        ends = ~rounded.isfinite() | ~row.isfinite()
        fits = (row == rounded) | (row.isnan() & rounded.isnan())
        near = size > limits.max * (1 - 64 * limits.eps)  # overflows
        wrong = torch.where(ends, ~(fits | near), (row.double() - expected).abs() > room)
        shown = [wide[0][wrong][:5], row[wrong][:5], expected[wrong][:5]]
        assert not wrong.any(), (name_of(function), shown)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
def test_functions_of_one_number(dtype):
    x = points(dtype)
    for which, functions in enumerate(UNARY):
        compare(functions, unary(which, x), x)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
def test_functions_of_two_numbers(dtype):
    torch.manual_seed(3)
    x = points(dtype)
    y = x[torch.randperm(len(x))]
    y[:20] = x[:20]
    compare(BINARY, binary(x, y), x, y)


@pytest.mark.parametrize("which", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_derivatives(which):
    """Of each function, at many points where it has one, and as torch has it where it bends."""
    plain = torch.linspace(-7.9, 7.9, 80, dtype=torch.float64)
    bends = torch.tensor([0.0, -3.0, 3.0, 1.0, -1.0, 6.0, 0.5, -0.5, 0.125], dtype=torch.float64)
    x = torch.cat([plain, plain / 8, *([bends] if which == 0 else [])]).requires_grad_()
    found = unary(which, x)
    for k, function in enumerate(UNARY[which]):
        own = x.detach().requires_grad_()
        function(own).nan_to_num(0.0, 0.0, 0.0).sum().backward()
        (g,) = torch.autograd.grad(found[k].nan_to_num(0.0, 0.0, 0.0).sum(), x, retain_graph=True)
        here = own.grad.isfinite() & found[k].isfinite()
        room = 1e-8 * (1 + own.grad.abs())  # torch has 1 / 6 of hardsigmoid in float32
        wrong = here & ~((g - own.grad).abs() <= room)
        assert not wrong.any(), (name_of(function), x[wrong], g[wrong], own.grad[wrong])


@weft.kernel
def whole(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor):
    for i in range(a.shape[0]):
        out[0, i] = math.gcd(a[i], b[i])
        out[1, i] = torch.lcm(a[i], b[i])
        out[2, i] = math.gcd(a[i], 12, b[i])


def test_common_divisors():
    a, b = torch.randint(-60, 61, (2, 200))
    a[0], b[0], a[1], b[2] = 0, 0, 0, 0
    out = torch.full((3, 200), -7)
    whole(a, b, out)
    expected = [torch.gcd(a, b), torch.lcm(a, b), torch.gcd(torch.gcd(a, torch.tensor(12)), b)]
    torch.testing.assert_close(out, torch.stack(expected))


@weft.kernel
def counts(n: torch.Tensor, k: torch.Tensor, out: torch.Tensor):
    for i in range(n.shape[0]):
        out[0, i] = math.isqrt(n[i])
        out[1, i] = math.comb(n[i], k[i])
        out[2, i] = math.perm(n[i], k[i]) + math.perm(k[i])
        out[3, i] = math.factorial(k[i])
        out[4, i] = math.prod((n[i], 2, k[i])) + math.prod(n[i] + j for j in range(3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8])
def test_counts_of_whole_numbers(dtype):
    """Exact wherever the result fits: the intermediate products of `comb` are divided first."""
    n = torch.tensor([0, 1, 2, 3, 4, 9, 10, 5, 4], dtype=dtype)
    k = torch.tensor([0, 1, 3, 2, 4, 4, 2, 3, 2], dtype=dtype)
    pairs = list(zip(n.tolist(), k.tolist(), strict=True))
    expected = [
        [math.isqrt(a) for a, _ in pairs], [math.comb(*pair) for pair in pairs],
        [math.perm(*pair) + math.perm(pair[1]) for pair in pairs],
        [math.factorial(b) for _, b in pairs],
        [math.prod((a, 2, b)) + math.prod(a + j for j in range(3)) for a, b in pairs],
    ]  # fmt: skip
    kept = slice(None) if dtype in (torch.int64, torch.int32) else slice(4)
    for call in (counts, counts.interpret):
        out = torch.full((5, len(n)), -7)
        call(n, k, out)
        assert out[kept].tolist() == expected[kept]  # products of elements of a byte wrap


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int64])
def test_what_is_an_int_or_a_float_to_python_does_not_wrap(dtype):
    def numbers(a, b, out):
        for i in range(a.shape[0]):
            out[0, i] = a[i].item() * 300 + b[i].item() * 300
            out[1, i] = math.floor(a[i]) * 300 + math.ceil(a[i]) * 300
            out[2, i] = math.fabs(a[i]) * 300
            out[3, i] = math.gcd(a[i], 12) * 300 + math.lcm(a[i], 7)
            out[4, i] = math.comb(a[i] % 8, 3) * 300 + math.perm(a[i] % 5, 2) * 300
            out[5, i] = math.isqrt(abs(int(a[i]))) * 300 + math.isqrt(a[i] & 31) * 300
            out[6, i] = math.dist((a[i], 0), (0, a[i]))

    ends = torch.iinfo(dtype) if dtype != torch.int64 else torch.iinfo(torch.int16)
    a = torch.tensor([0, 1, 5, 100, ends.max, ends.min], dtype=dtype)
    b = torch.tensor([True, False] * 3)
    expected = torch.empty(7, 6, dtype=torch.float64)
    numbers(a, b, expected)
    for call in (weft.kernel(numbers), weft.kernel(numbers).interpret):
        out = torch.empty(7, 6, dtype=torch.float64)
        call(a, b, out)
        torch.testing.assert_close(out, expected)

    @weft.kernel
    def magnitude(n: int, out):
        for i in out:
            out[i] = math.fabs(n) / 2**62 + (round(a[3 - i * 0]) * 300 if n < 0 else 0)

    magnitude(-(2**63), out := torch.empty(1, dtype=torch.float64))
    assert out.item() == 2 + 30000


def test_roots_and_binomials_up_to_the_end_of_64_bits():
    @weft.kernel
    def ends(n, out):
        for i in n:
            out[0, i] = math.isqrt(n[i])
            out[1, i] = math.comb(59 + i, 29)

    n = torch.tensor([2**63 - 1, 2**62, 2**62 - 1, 3037000499**2 - 1, 3037000499**2])
    out = torch.empty(2, 5, dtype=torch.int64)
    ends(n, out)
    assert out[0].tolist() == [math.isqrt(v) for v in n.tolist()]
    assert out[1].tolist() == [math.comb(59 + i, 29) for i in range(5)]

    def negative():
        ends(torch.tensor([4, -4, 1, 1, 1]), out)
        weft.sync()  # on a GPU, who waits hears of it

    with pytest.raises(weft.KernelAssertionError, match="`isqrt` of a negative integer"):
        negative()


@weft.kernel
def of_math(x: torch.Tensor, out: torch.Tensor):
    for i in range(x.shape[0]):
        out[0, i] = math.gamma(x[i])
        out[1, i], out[2, i] = math.modf(x[i])
        out[3, i] = math.remainder(x[i], 0.75) + math.remainder(1.5, 1.0)
        out[4, i] = math.dist((x[i], 2.0), (1.0, 2.0)) + math.hypot(x[i], 3.0, 0.0)
        out[5, i] = np.sign(x[i])


def by_python(v: float) -> list[float]:
    def known(function, *args):
        try:
            return function(*args)
        except ValueError:
            return math.copysign(math.inf, v) if v == 0 else math.nan
        except OverflowError:
            return math.inf

    return [
        known(math.gamma, v), *math.modf(v),
        known(math.remainder, v, 0.75) - 0.5, math.dist((v, 2.0), (1.0, 2.0)) + math.hypot(v, 3.0),
        float(np.sign(v)),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_of_pythons_math(dtype):
    ends = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        -1.0,
        -3.0,
        171.5,
        172.0,
        -180.5,
        1.125,
        0.375,
    ]
    x = torch.cat([torch.randn(500, dtype=torch.float64) * 6, torch.tensor(ends)]).to(dtype)
    expected = torch.tensor([by_python(v) for v in x.tolist()], dtype=torch.float64).T.to(dtype)
    out = torch.full_like(expected, 7.0)
    of_math(x, out)
    tolerance = 1e-13 if dtype is torch.float64 else 1e-6
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert torch.equal(
        out[:3].signbit(), expected[:3].signbit() | out[:3].isnan() & out[:3].signbit()
    )


def test_their_derivatives():
    x = torch.tensor([0.3, 2.5, 11.2, -1.3, 33.1, -7.7], dtype=torch.float64, requires_grad=True)

    def gamma(x):
        out = torch.empty(6, x.shape[0], dtype=x.dtype)
        of_math(x, out)
        return out[0]

    (found,) = torch.autograd.grad(gamma(x).sum(), x)
    torch.testing.assert_close(found, (gamma(x) * torch.digamma(x)).detach())

    @weft.kernel
    def lengths(x):
        out = torch.empty_like(x)
        for i in x:
            rest, whole = math.modf(x[i])
            out[i] = math.hypot(x[i], 2.0, x[i] * x[i]) + rest * whole + math.remainder(x[i], 0.7)
        return out

    assert torch.autograd.gradcheck(lengths, [x])
    assert torch.autograd.gradgradcheck(lengths, [x])


def test_methods_of_pythons_numbers():
    @weft.kernel
    def methods(out):
        for i in range(out.shape[1]):
            k = i - 4
            out[0, i] = k.bit_length()
            out[1, i] = k.bit_count()
            out[2, i] = (k / 2).is_integer()

    out = torch.empty(3, 9, dtype=torch.int64)
    methods(out)
    expected = torch.empty_like(out)
    methods.function(expected)
    assert torch.equal(out, expected)


@weft.kernel
def closeness(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor):
    for i in range(a.shape[0]):
        out[0, i] = torch.isclose(a[i], b[i])
        out[1, i] = torch.isclose(a[i], b[i], rtol=0.1, equal_nan=True)
        out[2, i] = math.isclose(a[i], b[i])
        out[3, i] = math.isclose(a[i], b[i], rel_tol=0.1, abs_tol=0.5)
        out[4, i] = torch.signbit(a[i])
        out[5, i] = np.isfinite(a[i])


def test_arguments_that_are_none():
    @weft.kernel
    def divisors(x):
        for i in x:
            x[i] = math.gcd(x[i], 4)

    with pytest.raises(KernelTypeError):
        divisors(torch.ones(1))

    @weft.kernel
    def approximated(x):
        for i in x:
            x[i] = functional.gelu(x[i], approximate="sigmoid")

    with pytest.raises(KernelTypeError, match="`approximate` is 'none' or 'tanh'"):
        approximated(torch.ones(1))


def test_closeness():
    ends = torch.tensor(
        [0.0, -0.0, 1.0, 1 + 1e-6, 1.09, math.inf, -math.inf, math.nan, 1e-9, 1e300]
    )
    a, b = torch.cartesian_prod(ends.double(), ends.double()).T
    out = torch.zeros(6, len(a), dtype=torch.bool)
    closeness(a, b, out)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    expected = torch.stack([
        torch.isclose(a, b), torch.isclose(a, b, rtol=0.1, equal_nan=True),
        torch.tensor([math.isclose(*pair) for pair in pairs]),
        torch.tensor([math.isclose(*pair, rel_tol=0.1, abs_tol=0.5) for pair in pairs]),
        torch.signbit(a), torch.isfinite(a),
    ])  # fmt: skip
    torch.testing.assert_close(out, expected)


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x, power=1):
        return self.factor * x**power


def weighted(x, weight, *, bias):
    return x * weight + bias


DOUBLED = Scaled(2.0)
BYTE = torch.iinfo(torch.int8)
BIASED = functools.partial(weighted, bias=0.5)
LIMITED = functools.partial(torch.clamp, min=0.25, max=0.75)


@weft.kernel
def habits(x: torch.Tensor, out: torch.Tensor):
    for i in range(x.shape[0]):
        out[0, i] = np.exp(x[i]) + np.pi * np.sqrt(x[i]) - np.log1p(x[i])
        out[1, i] = np.float64(x[i]) + np.float32(2.0)
        out[2, i] = (
            torch.finfo(x.dtype).eps + np.finfo(np.float32).max + torch.iinfo(torch.int8).max
        )
        out[3, i] = DOUBLED(x[i], power=2) + BIASED(x[i], 3.0) + LIMITED(x[i])
        larger = np.where(x[i] > 0.5, 1.0, 2.0)
        out[4, i] = np.maximum(x[i], 0.5) + np.clip(x[i], 0.2, 0.4) + larger
        out[5, i] = weft.math.lgamma(x[i]) + weft.math.gelu(x[i]) + torch.lerp(x[i], 2.0, 0.25)


def test_numpy_partials_and_objects_that_can_be_called():
    x = torch.rand(20)
    out = torch.zeros(6, 20, dtype=torch.float64)
    habits(x, out)
    v = x.double()
    expected = torch.stack([
        v.exp() + math.pi * v.sqrt() - v.log1p(), v + 2,
        torch.full_like(v, 2**-23 + float(np.finfo(np.float32).max) + 127),
        2 * v**2 + 3 * v + 0.5 + v.clamp(0.25, 0.75),
        v.clamp(min=0.5) + v.clamp(0.2, 0.4) + torch.where(x > 0.5, 1.0, 2.0),
        torch.lgamma(v) + functional.gelu(v) + torch.lerp(v, torch.full_like(v, 2.0), 0.25),
    ])  # fmt: skip
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    DOUBLED.factor = 5.0
    habits(x, out)
    torch.testing.assert_close(out[3], expected[3] + 3 * v**2, rtol=1e-6, atol=1e-6)
    DOUBLED.factor = 2.0


def test_in_python_weft_has_them_too():
    assert weft.math.lgamma(5.0) == pytest.approx(math.log(24))
    assert weft.math.gelu(torch.tensor(1.0)).dtype is torch.float32
    both = weft.math.silu(weft.Vector([1.0, 2.0])).to_list()
    assert both == pytest.approx(functional.silu(torch.tensor([1.0, 2.0])).tolist())
    assert weft.math.erfinv(1.5) != weft.math.erfinv(1.5)


def test_vectors_go_element_by_element():
    @weft.kernel
    def each(x: torch.Tensor, out: torch.Tensor):
        for i in range(x.shape[0]):
            v = functional.softplus(torch.lgamma(weft.Vector([x[i], 2 * x[i]])))
            out[i] = v.x + v.y

    x = torch.rand(5, dtype=torch.float64)
    out = torch.zeros_like(x)
    each(x, out)
    expected = functional.softplus(torch.lgamma(torch.stack([x, 2 * x]))).sum(0)
    torch.testing.assert_close(out, expected)


def test_names_of_the_table_are_there():
    for name, paths in function_table.FORMULAS.items():
        assert callable(function_table.formula(name)), name
        for path in paths.split():
            assert function_table.stands_for(function_table.named(path)) is not None, path
    for module, table in ((np, names.NUMPY), (torch, names.TORCH)):
        for path, word in table.items():
            assert names.canonical(operator.attrgetter(path)(module)) == word


def test_the_page_of_functions_is_made_of_the_tables():
    assert functions_page.PAGE.read_text() == functions_page.page(), (
        "write it anew: python -m tests.lang.functions_page"
    )


def test_what_is_not_there_is_refused_by_name():
    @weft.kernel
    def bessel(x: torch.Tensor):
        for i in range(x.shape[0]):
            x[i] = torch.special.bessel_j0(x[i])

    with pytest.raises(KernelTypeError) as caught:
        bessel(torch.ones(1))
    assert "`torch.special.bessel_j0` cannot be called in a device loop" in str(caught.value)
    assert "docs/functions.md" in str(caught.value)


METHODS = (
    "pow(2)",
    "pow(v)",
    "clamp(0.1, 0.5)",
    "clamp(min=0.4)",
    "clip(0.1, 0.5)",
    "maximum(w)",
    "add(w)",
    "sub(1)",
    "mul(w)",
    "div(2)",
    "fmod(0.3)",
    "remainder(0.3)",
    "hypot(w)",
    "copysign(-v)",
    "lgamma()",
    "digamma()",
    "logaddexp(w)",
    "lerp(w, 0.25)",
    "frac()",
    "logit()",
    "sinc()",
    "xlogy(w)",
    "deg2rad()",
    "where(v > w, w)",
    "gt(w)",
    "le(0.5)",
    "clone()",
    "detach() * v",
    "exp()",
)


def test_elements_have_the_methods_of_torch():
    for method in METHODS:
        text = (
            "def kernel(x, y):\n    out = torch.zeros_like(x)\n    for i in range(x.shape[0]):\n"
            f"        v, w = x[i], y[i]\n        out[i] = v.{method}\n    return out\n"
        )
        plain = made_of(text)
        x, y = torch.rand(2, 5, dtype=torch.float64) * 0.8 + 0.1
        leaf = x.clone().requires_grad_()
        made, found = plain(leaf, y), weft.kernel(plain)(leaf, y)
        torch.testing.assert_close(found, made, msg=method)
        if made.requires_grad and "gt" not in method and "le(" not in method:
            wanted, given = (torch.autograd.grad(v.sum(), leaf)[0] for v in (made, found))
            torch.testing.assert_close(given, wanted, msg=method)


def test_a_row_that_is_detached_has_no_derivative():
    @weft.kernel
    def squares(x):
        out = torch.zeros(x.shape[0], dtype=x.dtype)
        for i in range(x.shape[0]):
            out[i] = (x[i] * x[i].detach()).sum() + x[i, 0].detach() * x[i, 1]
        return out

    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(squares(x).sum(), x)
    expected = x.detach().clone()
    expected[:, 1] += x.detach()[:, 0]
    torch.testing.assert_close(found, expected)
