"""Traps: each loop against the same in PyTorch, and against finite differences, in float64.

Other systems crash on these, refuse them, or give wrong numbers without a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from tests.autodiff.kernels import product


@weft.kernel
def quotient(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        p = 1.0
        for j in range(x.shape[1]):
            p /= x[i, j]
        out[i] = p
    return out


@weft.kernel
def before_and_after(x, n: int):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        early = x[i] * x[i]
        s = 0.0
        for k in range(n):
            s = s * x[i] + early + k
            early = early + 0.5 * s
        out[i] = early * s
    return out


def torch_before_and_after(x, n):
    early = x * x
    s = torch.zeros_like(x)
    for k in range(n):
        s = s * x + early + k
        early = early + 0.5 * s
    return early * s


@weft.kernel
def continues(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        s = 1.0
        for j in range(x.shape[1]):
            if x[i, j] < 0:
                continue
            s = s * x[i, j] + math.sin(x[i, j])
        out[i] = s
    return out


def torch_continues(x):
    s = torch.ones_like(x[:, 0])
    for column in x.unbind(1):
        s = torch.where(column < 0, s, s * column + column.sin())
    return s


@weft.kernel
def breaks(x, limit: float):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s = s + x[i, j] * x[i, j] * (1 + s)
            if s > limit:
                break
            s = s * x[i, j]
        out[i] = s
    return out


def torch_breaks(x, limit):
    rows = []
    for row in x:
        s = row.new_zeros(())
        for value in row:
            s = s + value * value * (1 + s)
            if s > limit:
                break
            s = s * value
        rows.append(s)
    return torch.stack(rows)


@weft.kernel
def triangles(x, lengths):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(i, lengths[i]):
            s = 1.0
            for k in range(j, lengths[i]):
                s = s * x[i, k] + x[j, k]
            out[i, j] = s * s
    return out


def torch_triangles(x, lengths):
    rows = []
    for i, n in enumerate(lengths.tolist()):
        row = [x.new_zeros(())] * x.shape[1]
        for j in range(i, n):
            s = x.new_ones(())
            for k in range(j, n):
                s = s * x[i, k] + x[j, k]
            row[j] = s * s
        rows.append(torch.stack(row))
    return torch.stack(rows)


@weft.kernel
def overwritten_by_another_loop(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]
    for i in range(x.shape[0]):
        out[i] = math.sin(out[i]) * x[i]
    for i in range(0, x.shape[0], 2):
        out[i] = 3.0 * x[i]
    return out


def torch_overwritten(x):
    even = torch.arange(len(x)) % 2 == 0
    return torch.where(even, 3 * x, (x * x).sin() * x)


@weft.kernel
def overwritten_by_itself(x):
    out = x.clone()
    for i in range(x.shape[0]):
        out[i] = out[i] * out[i] + x[i]
    return out


@weft.kernel
def sum_then_sine(x):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i] * x[i]
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = math.sin(s) * x[i]
    return out


@weft.kernel
def norm_of_rows(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j] * x[i, j]
        out[i] = math.sqrt(s) * math.exp(-s)
    return out


@weft.kernel
def neighbours(x):
    out = torch.empty_like(x)
    n = x.shape[0]
    for i in range(n):
        out[i] = x[i] * x[max(i - 1, 0)] * x[min(i + 1, n - 1)] + x[i] * x[0]
    return out


def torch_neighbours(x):
    return x * torch.cat([x[:1], x[:-1]]) * torch.cat([x[1:], x[-1:]]) + x * x[0]


@weft.kernel
def collatz_like(x):
    """A ``while`` whose number of steps depends on the data."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        v = x[i]
        while abs(v) < 10.0:
            v = v * v + 1.5 if v > 0 else 0.7 - 1.3 * v
        out[i] = v
    return out


def torch_collatz_like(x):
    rows = []
    for value in x:
        v = value
        while abs(v) < 10.0:
            v = v * v + 1.5 if v > 0 else 0.7 - 1.3 * v
        rows.append(v)
    return torch.stack(rows)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


Case = tuple[Callable[..., Any], Callable[..., Any], Callable[[], tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "a product": (product, lambda x: x.prod(1), lambda: (draw(3, 5),)),
    "a quotient": (quotient, lambda x: (1 / x).prod(1), lambda: (draw(3, 4).abs() + 0.5,)),
    "values from before a loop": (
        before_and_after, torch_before_and_after, lambda: (draw(4), 4),
    ),
    "values from before a loop that does not run": (
        before_and_after, torch_before_and_after, lambda: (draw(4), 0),
    ),
    "continue": (continues, torch_continues, lambda: (draw(4, 7),)),
    "break": (breaks, torch_breaks, lambda: (draw(5, 6), 1.5)),
    "bounds of outer indices and data": (
        triangles, torch_triangles, lambda: (draw(5, 5), torch.tensor([4, 2, 0, 5, 3])),
    ),
    "overwritten by other loops": (
        overwritten_by_another_loop, torch_overwritten, lambda: (draw(7),),
    ),
    "overwritten by its own iteration": (
        overwritten_by_itself, lambda x: x * x + x, lambda: (draw(7),),
    ),
    "a nonlinearity after a reduction": (
        sum_then_sine, lambda x: (x * x).sum().sin() * x, lambda: (draw(7),),
    ),
    "a nonlinearity after a loop": (
        norm_of_rows, lambda x: x.norm(dim=1) * (-(x * x).sum(1)).exp(), lambda: (draw(3, 5),),
    ),
    "reads that meet": (neighbours, torch_neighbours, lambda: (draw(6),)),
    "reads that meet in one element": (neighbours, torch_neighbours, lambda: (draw(1),)),
    "while": (collatz_like, torch_collatz_like, lambda: (draw(6),)),
}  # fmt: skip


def leaves(arguments: tuple[Any, ...]) -> list[Any]:
    return [
        a.detach().clone().requires_grad_()
        if isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in arguments
    ]


def pulled(function: Callable[..., Any], arguments: list[Any], seed: int) -> list[torch.Tensor]:
    """Value, gradients, and gradients of a function of the gradients."""
    torch.manual_seed(seed)
    wanted = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    out = function(*arguments)
    first = torch.autograd.grad(out, wanted, torch.randn_like(out), create_graph=True)
    energy = sum((g * torch.randn_like(g)).sum() for g in first)
    second = torch.autograd.grad(energy, wanted, materialize_grads=True)
    return [out, *first, *second]


@pytest.mark.sampled(19)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_values_first_and_second_derivatives(name: str, seed: int) -> None:
    kernel, reference, make = CASES[name]
    torch.manual_seed(seed)
    arguments = make()
    mine = pulled(kernel, leaves(arguments), seed)
    theirs = pulled(reference, leaves(arguments), seed)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_finite_differences(name: str) -> None:
    kernel, _, make = CASES[name]
    torch.manual_seed(0)
    arguments = leaves(make())
    assert gradcheck(lambda *a: kernel(*a), arguments)
    assert gradgradcheck(lambda *a: kernel(*a), arguments)


@weft.kernel
def stored_twice(x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * y[i]
        if x[i] > 0:
            out[i] = y[i] * y[i]
    return out


def test_the_last_of_two_stores_has_the_gradient() -> None:
    torch.manual_seed(0)
    x, y, given = draw(9).requires_grad_(), draw(9).requires_grad_(), draw(9)
    mine = torch.autograd.grad(stored_twice(x, y), (x, y), given)
    theirs = torch.autograd.grad(torch.where(x > 0, y * y, x * y), (x, y), given)
    torch.testing.assert_close(mine, theirs)
    assert gradgradcheck(stored_twice, (x, y))


@pytest.mark.parametrize("n", [10, 100, 1000, 100_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_long_product(n: int, dtype: torch.dtype) -> None:
    """Against torch, and against a difference in one direction."""
    torch.manual_seed(n)
    x = (1 + draw(2, n) / n**0.5).to(dtype).requires_grad_()
    (mine,) = torch.autograd.grad(product(x).sum(), x)
    exact = x.detach().double().requires_grad_()
    (theirs,) = torch.autograd.grad(exact.prod(1).sum(), exact)
    tolerance = 1e-11 if dtype == torch.float64 else 1e-6 * n**0.5
    torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=0)
    direction = draw(2, n)
    step = 1e-7
    ends = [product(exact.detach() + s * step * direction).sum() for s in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * step)
    torch.testing.assert_close((mine.double() * direction).sum(), slope, rtol=1e-3, atol=1e-4)


@weft.kernel
def ties(x, y):
    out = x.new_empty(6, x.shape[0])
    for i in range(x.shape[0]):
        out[0, i] = max(x[i], y[i])
        out[1, i] = min(x[i], y[i])
        out[2, i] = weft.max(x[i], y[i])
        out[3, i] = abs(x[i])
        out[4, i] = weft.math.clamp(x[i], -1.0, 1.0)
        out[5, i] = weft.math.sign(x[i]) * max(x[i], 0.0)
    return out


def torch_ties(x, y):
    rows = [torch.maximum(x, y), torch.minimum(x, y), torch.maximum(x, y), x.abs()]
    return torch.stack([*rows, x.clamp(-1, 1), x.sign() * torch.maximum(x, torch.zeros_like(x))])


@pytest.mark.parametrize("row", range(6))
def test_ties(row: int) -> None:
    points = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    x, y = (t.flatten().requires_grad_() for t in torch.meshgrid(points, points, indexing="ij"))
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    mine = torch.autograd.grad(ties(x, y)[row].sum(), (x, y), materialize_grads=True)
    theirs = torch.autograd.grad(torch_ties(x, y)[row].sum(), (x, y), materialize_grads=True)
    torch.testing.assert_close(mine, theirs)


@weft.kernel
def saturating(x):
    out = x.new_empty(4, x.shape[0])
    for i in range(x.shape[0]):
        out[0, i] = torch.sigmoid(x[i])
        out[1, i] = torch.relu(x[i])
        out[2, i] = torch.hypot(x[i], 0.25 * x[i])
        out[3, i] = torch.tanh(x[i])
    return out


def torch_saturating(x):
    rows = [torch.sigmoid(x), torch.relu(x), torch.hypot(x, 0.25 * x), torch.tanh(x)]
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_far_from_zero(dtype: torch.dtype) -> None:
    far = 3e38 if dtype is torch.float32 else 1e307
    points = [0.5, 20.0, 89.0, 104.0, 800.0, 1e20, far, math.nan]
    x = torch.tensor([*points, *(-p for p in points), 0.0], dtype=dtype)

    def derivatives(f: Callable[[torch.Tensor], torch.Tensor], row: int) -> list[torch.Tensor]:
        leaf = x.clone()
        leaf = (leaf[:-1] if row == 2 else leaf).requires_grad_()  # hypot has none at 0
        value = f(leaf)[row]
        (first,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
        return [value.detach(), first.detach()]

    for row in range(4):
        mine, theirs = derivatives(saturating, row), derivatives(torch_saturating, row)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8, equal_nan=True)
