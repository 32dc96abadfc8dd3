"""Where the largest or smallest element is, as a reduction of a parallel loop."""

from __future__ import annotations

import math

import pytest
import torch

import weft


@weft.kernel
def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    best = -math.inf
    at = -1
    for i in range(x.shape[0]):
        if x[i] > best:
            best = x[i]
            at = i
    return best, at


@weft.kernel
def nearest_to_zero(x: torch.Tensor, column: int) -> tuple[torch.Tensor, torch.Tensor]:
    best, at = 1e30, 0
    for i in range(1, x.shape[0], 2):
        v = x[i, column]
        if best > abs(v):
            at = i
            best = abs(v)
    return best, at


@weft.kernel
def in_one_statement(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    best, at = -math.inf, -1
    for i in x:
        v = x[i]
        if v > best:
            best, at = v, i
    least, where = math.inf, -1
    for i in range(x.shape[0]):
        if x[i] < least:
            where, least = i, x[i]
    return best, at, least, where


@pytest.mark.parametrize("n", [0, 1, 17, 5000])
def test_both_in_one_statement(n: int) -> None:
    x = torch.randint(-5, 6, (n,)).float()
    found = [float(v) for v in in_one_statement(x)]
    values = x.tolist()
    top, low = max(values, default=-math.inf), min(values, default=math.inf)
    place = [values.index(v) if values else -1 for v in (top, low)]
    assert found == [top, place[0], low, place[1]]


@pytest.mark.parametrize("n", [0, 1, 2, 17, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
def test_the_first_of_the_largest(n: int, dtype: torch.dtype) -> None:
    x = torch.randint(-5, 6, (n,)).to(dtype)
    best, at = largest(x)
    wanted, place = largest.function(x.cpu())
    assert (float(best), int(at)) == (float(wanted), int(place))


def test_nan_and_what_is_not_beyond_the_start_are_passed_over() -> None:
    x = torch.tensor([math.nan, 1.0, math.nan, 3.0, 3.0, -math.inf])
    assert [float(v) for v in largest(x)] == [3.0, 3.0]
    assert [float(v) for v in largest(x[[0, 5]])] == [-math.inf, -1.0]
    zeros = torch.tensor([-1.0, -0.0, 0.0])
    assert int(largest(zeros)[1]) == 1


def test_elements_by_a_name_behind_abs_and_in_any_order() -> None:
    x = torch.randint(-9, 9, (400, 3)).float()
    best, at = nearest_to_zero(x, 1)
    wanted, place = nearest_to_zero.function(x.cpu(), 1)
    assert (float(best), int(at)) == (float(wanted), int(place))


@weft.kernel
def farthest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    best, at = -1e9, -1
    for i in range(x.shape[0]):
        if x[i] > best:
            best = x[i]
            at = i
    for i in range(x.shape[0]):
        if -x[i] > best:
            best = -x[i]
            at = i
    return best, at


def test_a_second_loop_goes_on_from_the_first() -> None:
    for x in (torch.rand(50), -torch.rand(50), torch.randn(50)):
        best, at = farthest(x)
        assert float(best) == float(x.abs().max())
        assert int(at) == int(x.abs().argmax())


def test_the_gradient_is_that_of_the_element() -> None:
    x = torch.randn(333, requires_grad=True)
    best, at = largest(x)
    best.backward()
    assert x.grad is not None
    assert int(at) == int(x.argmax())
    assert x.grad.nonzero().flatten().tolist() == [int(at)]
    batched, places = torch.func.vmap(largest)(x.detach().reshape(3, 111))
    assert torch.equal(batched, x.detach().reshape(3, 111).amax(1))
    assert torch.equal(places, x.detach().reshape(3, 111).argmax(1))


@weft.kernel
def computed(x: torch.Tensor) -> torch.Tensor:
    best = -math.inf
    at = -1
    for i in range(x.shape[0]):
        if x[i] * 0.1 > best:
            best = x[i] * 0.1
            at = i
    return at


@weft.kernel
def downwards(x: torch.Tensor) -> torch.Tensor:
    best = -math.inf
    at = -1
    for i in range(x.shape[0] - 1, -1, -1):
        if x[i] > best:
            best = x[i]
            at = i
    return at


@weft.kernel
def counted(x: torch.Tensor) -> torch.Tensor:
    best = -math.inf
    at = -1
    count = 0
    for i in range(x.shape[0]):
        count += i
        if x[i] > best:
            best = x[i]
            at = i
    return at


@weft.kernel
def in_order(x: torch.Tensor) -> torch.Tensor:
    best = -math.inf
    at = -1
    weft.loop_config(serialize=True)
    for i in range(x.shape[0] - 1, -1, -1):
        if x[i] * 0.1 > best:
            best = x[i] * 0.1
            at = i
    return at


def test_what_might_differ_in_a_second_loop_is_refused() -> None:
    x = torch.tensor([1.0, 4.0, 4.0, 2.0])
    for kernel in (computed, downwards, counted):
        with pytest.raises(weft.CompileError, match=r"is read after the device loop that assigns"):
            kernel(x)
    assert int(in_order(x)) == 2
