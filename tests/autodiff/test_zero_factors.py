"""Products over all iterations, some of whose factors are zero: derivatives beyond the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, jvp

from tests.autodiff.kernels import product_of_all
from weft.errors import GradientError

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


def test_the_fourth_derivative_is_the_last() -> None:
    """A fifth one lacked the terms of more than three zeros, silently."""
    x, v = torch.randn(6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    x[:4] = -1.0

    def along(f: Any, n: int) -> Any:
        return f if n < 0 else lambda x: (grad(along(f, n - 1))(x) * v[n]).sum()

    expected = along(lambda x: (x + 1).prod(), 3)(x)
    torch.testing.assert_close(along(product_of_all, 3)(x), expected)
    with pytest.raises(GradientError, match="has no fifth derivative") as caught:
        along(product_of_all, 4)(x)
    assert "multiply in a loop inside" in str(caught.value)


def test_a_product_that_overflows_without_its_zero_has_gradients_of_zero() -> None:
    x = torch.full((100,), 9.0)
    x[3] = -1.0
    found = grad(product_of_all)(x)
    assert found.isfinite().sum() == 99
    assert found[4] == 0.0
    tangent = jvp(product_of_all, (x,), (torch.where(x > 0, x, 0.0),))[1]
    assert not tangent.isinf()
