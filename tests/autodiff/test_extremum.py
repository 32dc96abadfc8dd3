"""Maxima that a loop carries: no tape, and ties share as in ``torch.amax``."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft


@weft.kernel
def largest(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        m = -math.inf
        for j in range(x.shape[1]):
            m = max(m, x[i, j])
        out[i] = m * m
    return out


@weft.kernel
def smallest(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        m = math.inf
        for j in range(x.shape[1]):
            m = min(m, x[i, j])
        out[i] = m * m
    return out


@weft.kernel
def first_of_the_largest(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        m = -math.inf
        for j in range(x.shape[1]):
            if x[i, j] > m:
                m = x[i, j]
        out[i] = m
    return out


@weft.kernel
def largest_size(x, low):
    """Of |x|, but at least ``low``; beside a sum, and from every other element."""
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        m = low[i]
        s = 0.0
        for j in range(0, x.shape[1], 2):
            m = max(m, abs(x[i, j]))
            s += x[i, j] * x[i, j]
        out[i] = m * s
    return out


@weft.kernel
def largest_of_blocks(x):
    """A running maximum in a loop that carries another value."""
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        s = 0.5
        for j in range(3):
            m = s
            for k in range(x.shape[1] // 3):
                m = max(m, x[i, 3 * k + j])
            s = s * m + 0.1
        out[i] = s
    return out


@weft.kernel
def largest_with_a_chain(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        m = -math.inf
        p = 1.0
        for j in range(x.shape[1]):
            m = max(m, x[i, j])
            p = p * x[i, j] + 1.0
        out[i] = m * p
    return out


@weft.kernel
def largest_product(x):
    """Elements that are computed: two computations may round differently, so this keeps a tape."""
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        m = -math.inf
        for j in range(x.shape[1]):
            m = max(m, math.exp(x[i, j]) * x[i, j] + 0.1)
        out[i] = m
    return out


def torch_size(x, low):
    part = x[:, ::2]
    return torch.maximum(part.abs().amax(1), low) * (part * part).sum(1)


def torch_blocks(x):
    s = torch.full_like(x[:, 0], 0.5)
    for j in range(3):
        s = s * torch.maximum(x[:, j::3].amax(1), s) + 0.1
    return s


def torch_chain(x):
    p = torch.ones_like(x[:, 0])
    for column in x.unbind(1):
        p = p * column + 1
    return x.amax(1) * p


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


CASES: dict[str, tuple[Any, Any, Any]] = {
    "largest": (largest, lambda x: x.amax(1) ** 2, lambda: (draw(3, 7),)),
    "smallest": (smallest, lambda x: x.amin(1) ** 2, lambda: (draw(3, 7),)),
    "size": (largest_size, torch_size, lambda: (draw(4, 7), draw(4).abs() * 2)),
    "blocks": (largest_of_blocks, torch_blocks, lambda: (draw(3, 12),)),
    "chain": (largest_with_a_chain, torch_chain, lambda: (draw(3, 6),)),
    "product": (
        largest_product, lambda x: (x.exp() * x + 0.1).amax(1), lambda: (draw(3, 6),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_gradients(name: str) -> None:
    kernel, reference, make = CASES[name]
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = [t.requires_grad_() for t in make()]
        out = kernel(*inputs)
        given = torch.randn_like(out)
        mine = torch.autograd.grad(out, inputs, given)
        theirs = torch.autograd.grad(reference(*inputs), inputs, given)
        torch.testing.assert_close(mine, theirs)
    assert gradcheck(lambda *a: kernel(*a), inputs)
    assert gradgradcheck(lambda *a: kernel(*a), inputs)


@pytest.mark.parametrize("kernel", [largest, smallest, largest_size])
def test_there_is_no_tape(kernel: Any) -> None:
    inputs = [torch.randn(3, 7), *([torch.rand(3)] if kernel is largest_size else [])]
    assert "tape" not in kernel.backward.inspect(*inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ties_share_as_in_amax(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 3, 3, 2], [0, 0, 0, 0], [-1, 2, -5, 2], [4, 1, 1, 1]]).to(dtype)
    x.requires_grad_()
    (mine,) = torch.autograd.grad(largest(x).sum(), x)
    (theirs,) = torch.autograd.grad((x.amax(1) ** 2).sum(), x)
    torch.testing.assert_close(mine, theirs)
    (mine,) = torch.autograd.grad(smallest(x).sum(), x)
    (theirs,) = torch.autograd.grad((x.amin(1) ** 2).sum(), x)
    torch.testing.assert_close(mine, theirs)


def test_a_branch_chooses_one() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0]], requires_grad=True)
    first_of_the_largest(x).sum().backward()
    assert x.grad.tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_the_value_from_before_the_loop_takes_part() -> None:
    x = torch.tensor([[1.0, 9.0, 2.0], [3.0, 9.0, 1.0], [1.0, 9.0, 1.0]], requires_grad=True)
    low = torch.tensor([2.0, 1.0, 4.0], requires_grad=True)
    shares = torch.autograd.grad(largest_size(x, low), (x, low), torch.tensor([0.0, 0.0, 1.0]))
    assert shares[1].tolist() == [0.0, 0.0, 2.0]
    (g,) = torch.autograd.grad(largest_size(x, low).sum(), low)
    assert g.tolist() == [2.5, 0.0, 2.0]  # 2.0 is there twice: half of 1 + 4


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_empty_rows(shape: tuple[int, int]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    (g,) = torch.autograd.grad(largest(x).sum(), x)
    assert g.shape == x.shape


def test_not_a_number_has_no_part_in_it() -> None:
    x = torch.tensor([[1.0, math.nan, 2.0]], requires_grad=True)
    (g,) = torch.autograd.grad(largest(x).sum(), x)
    assert g.tolist() == [[0.0, 0.0, 4.0]]
    low = torch.tensor([math.nan], requires_grad=True)
    y = torch.ones(1, 3)
    (g,) = torch.autograd.grad(largest_size(y, low), low)
    assert g.tolist() == [2.0]


@weft.kernel
def larger(x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = max(x[i], 2 * y[i]) + min(x[i], 1.0)
    return out


@pytest.mark.parametrize("both", [True, False])
def test_a_tie_is_shared_whether_or_not_the_other_needs_a_gradient(both):
    x = torch.tensor([0.0, 1.0, 2.0, 1.0], requires_grad=True)
    y = torch.tensor([0.0, 1.0, 0.5, 0.5], requires_grad=both)
    expected = torch.maximum(x, 2 * y) + x.clamp(max=1.0)
    weights = torch.randn(4)
    wanted = [x, y] if both else [x]
    found = torch.autograd.grad(larger(x, y), wanted, weights)
    torch.testing.assert_close(found, torch.autograd.grad(expected, wanted, weights))
    _, tangent = torch.func.jvp(lambda x: larger(x, y.detach()), (x.detach(),), (weights,))
    torch.testing.assert_close(tangent, found[0])
