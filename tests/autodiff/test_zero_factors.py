"""Products over all iterations, some of whose factors are zero: derivatives beyond the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, jvp

from tests.autodiff.kernels import product_of_all

WAYS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], Any]] = {
    "reverse": lambda f, x, v: grad(f)(x),
    "forward": lambda f, x, v: jvp(f, (x,), (v,))[1],
    "reverse over reverse": lambda f, x, v: grad(lambda x: (grad(f)(x) * v).sum())(x),
    "reverse over forward": lambda f, x, v: grad(lambda x: jvp(f, (x,), (v,))[1])(x),
    "forward over reverse": lambda f, x, v: jvp(grad(f), (x,), (v,))[1],
    "forward over forward": lambda f, x, v: jvp(
        lambda x: jvp(f, (x,), (v,))[1], (x,), (v.flip(0),)
    )[1],
    "the third": lambda f, x, v: grad(
        lambda x: (grad(lambda x: (grad(f)(x) * v).sum())(x) * v.flip(0)).sum()
    )(x),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("zeros", range(4))
def test_derivatives_are_those_of_torch(way: str, zeros: int) -> None:
    x = torch.randn(5, dtype=torch.float64)
    x[:zeros] = -1.0  # of which the kernel makes a zero
    v = torch.randn(5, dtype=torch.float64)
    expected = WAYS[way](lambda x: (x + 1).prod(), x, v)
    found = WAYS[way](product_of_all, x, v)
    torch.testing.assert_close(found, expected)


def test_a_product_that_overflows_without_its_zero_has_gradients_of_zero() -> None:
    x = torch.full((100,), 9.0)
    x[3] = -1.0
    found = grad(product_of_all)(x)
    assert found.isfinite().sum() == 99
    assert found[4] == 0.0
    tangent = jvp(product_of_all, (x,), (torch.where(x > 0, x, 0.0),))[1]
    assert not tangent.isinf()
