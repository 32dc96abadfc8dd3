"""What has no derivative is refused, with the line and what to write instead."""

import pytest
import torch

import weft
from weft.errors import GradientError


@weft.kernel
def products(x):
    out = torch.ones(2, dtype=x.dtype)
    for i in range(x.shape[0]):
        out[i % 2] *= x[i]
    return out


@weft.kernel
def largest(x):
    out = torch.zeros(1, dtype=x.dtype)
    for i in range(x.shape[0]):
        weft.atomic_max(out[0], x[i])
    return out


@weft.kernel
def shifted(x):
    y = x.detach()
    m = torch.full((1,), -torch.inf, dtype=x.dtype)
    for i in range(x.shape[0]):
        weft.atomic_max(m[0], y[i])
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = (x[i] - m[0]) ** 2
    return out


def half_of(n):
    k = 0
    while 2 * k + 2 <= n:
        k += 1
    return k


@weft.kernel
def first_half(x):
    out = torch.zeros_like(x)
    for i in range(half_of(x.shape[0])):
        out[i] = x[i] ** 2
    return out


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (
            products,
            "in kernel `products`: a product accumulated into an element of floats has no "
            "derivative\n    out[i % 2] *= x[i]\n    ^^^^^^^^^^\n"
            "help: multiply in a local variable, and store it once",
        ),
        (
            largest,
            "in kernel `largest`: an atomic maximum of floats has no derivative\n"
            "    weft.atomic_max(out[0], x[i])\n                    ^^^^^^\n"
            "help: take the maximum in a local variable; or, if its derivative is not wanted, of "
            "x.detach(), made in the host part",
        ),
        (
            first_half,
            "in kernel `first_half`: a loop or branch that is carried out before the device loop "
            "has no gradient: what a function computes for its bounds\n"
            "    for i in range(half_of(x.shape[0])):\n"
            "    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
            "help: compute the bounds in the host part, and give the device loop numbers",
        ),
    ],
)
def test_the_text_of_refusals(kernel, text):
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(GradientError) as caught:
        kernel(x).sum().backward()
    assert str(caught.value).split(": ", 1)[1] == text


def test_a_maximum_without_a_derivative_is_taken_of_a_detached_tensor():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(shifted(x).sum(), x)
    torch.testing.assert_close(found, 2 * (x - x.max()).detach())
