"""Functions of ``torch.special`` that are formulas: beside torch in float64 over their range."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import special

import weft

INF, NAN = math.inf, math.nan


def applied(function: Callable[..., Any], *rest: int) -> Callable[[torch.Tensor], torch.Tensor]:
    @weft.kernel
    def each(x: torch.Tensor, out: torch.Tensor):
        for i in range(x.shape[0]):
            out[i] = function(x[i], *rest)

    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(x, NAN)
        each(x, out)
        return out

    return call


# Special points; the range; how many units in the last place of float64.
RANGES = {
    special.erfcx: ([0.0, -0.0, 7.0, math.nextafter(7.0, 0.0), -26.63, -27.0, -30.0, 1e3, 1e8,
                     1e300, INF, -INF, NAN], (-5.0, 50.0), 16),
    special.log_ndtr: ([0.0, -1.0, math.nextafter(-1.0, -2.0), -40.0, -1e3, -1e10, 8.0, 40.0, INF,
                        -INF, NAN], (-60.0, 10.0), 8),
    special.spherical_bessel_j0: ([0.0, -0.0, 0.5, math.nextafter(0.5, 0.0), -0.5, 1e-9, 1e6, INF,
                                   -INF, NAN], (-50.0, 50.0), 4),
}  # fmt: skip


@pytest.mark.parametrize("function", RANGES, ids=lambda f: f.__name__)
def test_values(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    points, (low, high), ulps = RANGES[function]
    x = torch.cat([torch.tensor(points, dtype=torch.float64),
                   torch.linspace(low, high, 4001, dtype=torch.float64)])  # fmt: skip
    expected = function(x)
    eps = torch.finfo(torch.float64).eps
    torch.testing.assert_close(
        applied(function)(x), expected, rtol=ulps * eps, atol=1e-17, equal_nan=True
    )
    narrow = x.to(torch.float32)
    wide = function(narrow.double())
    rounded = wide.to(torch.float32)
    torch.testing.assert_close(
        applied(function)(narrow), rounded, rtol=1.2e-7, atol=2e-45, equal_nan=True
    )


def test_erfcx_far_below_0_is_exact_where_torchs_is_not() -> None:
    x = torch.linspace(-26.6, -6.0, 53, dtype=torch.float64)
    with decimal.localcontext(prec=50):
        exact = [float(2 * (decimal.Decimal(float(v)) ** 2).exp()) for v in x]
    expected = torch.tensor(exact, dtype=torch.float64)
    torch.testing.assert_close(applied(special.erfcx)(x), expected, rtol=1e-15, atol=0.0)


@pytest.mark.parametrize("function", RANGES, ids=lambda f: f.__name__)
def test_derivatives(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    ends = [-27.0, -INF, 0.0] if function is special.erfcx else [0.0, -0.5, 8.0]
    x = torch.tensor([*ends, -1.5, -0.3, 0.7, 2.0, 4.5], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(applied(function)(x).sum(), x)
    if function is special.spherical_bessel_j0:  # which has no derivative in torch
        v = x.detach()
        expected = torch.where(v == 0, 0.0, v.cos() / v - v.sin() / (v * v))
    else:
        (expected,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    y = torch.tensor([-1.5, -0.3, 0.7, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(applied(function), y)


POLYNOMIALS = [
    special.chebyshev_polynomial_t, special.chebyshev_polynomial_u, special.chebyshev_polynomial_v,
    special.chebyshev_polynomial_w, special.hermite_polynomial_h, special.hermite_polynomial_he,
    special.laguerre_polynomial_l, special.legendre_polynomial_p,
    special.shifted_chebyshev_polynomial_t, special.shifted_chebyshev_polynomial_u,
    special.shifted_chebyshev_polynomial_v, special.shifted_chebyshev_polynomial_w,
]  # fmt: skip


@pytest.mark.parametrize("function", POLYNOMIALS, ids=lambda f: f.__name__)
def test_polynomials(function: Callable[..., torch.Tensor]) -> None:
    x = torch.tensor([0.0, 1.0, -1.0, 0.5, -0.3, 1.5, -2.0, 3.7], dtype=torch.float64)
    for n in (-1, 0, 1, 2, 9):
        torch.testing.assert_close(applied(function, n)(x), function(x, n), rtol=1e-13, atol=1e-13)
    of_five = applied(function, 5)
    assert torch.autograd.gradcheck(of_five, x.requires_grad_())
    assert of_five(torch.tensor([NAN])).isnan()


def test_multigammaln() -> None:
    x = torch.tensor([2.5, 3.0, 10.0, 1e3, 1e8], dtype=torch.float64)
    for p in (1, 2, 5):
        found = applied(special.multigammaln, p)
        torch.testing.assert_close(found(x), special.multigammaln(x, p), rtol=1e-14, atol=1e-13)
    y = x[:3].clone().requires_grad_()
    (found,) = torch.autograd.grad(applied(special.multigammaln, 3)(y).sum(), y)
    (expected,) = torch.autograd.grad(special.multigammaln(y, 3).sum(), y)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_degree_of_run_time_is_refused() -> None:
    @weft.kernel
    def kernel(x: torch.Tensor, n: int):
        for i in range(x.shape[0]):
            x[i] = special.legendre_polynomial_p(x[i], n)

    with pytest.raises(weft.CompileError, match="help: "):
        kernel(torch.ones(2), 3)
