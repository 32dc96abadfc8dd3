"""Gradients whose first accumulations are stores, to memory that was not set to zero."""

import math

import pytest
import torch

import weft
from benchmarks.rows import cross_entropy
from weft.pytorch import autograd


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Memory that nobody has set to zero holds NaN."""
    empty = torch.empty

    def nan(*args, **kwargs):
        made = empty(*args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(autograd.torch, "empty", nan)


def stored(kernel):
    """The gradients that were not set to zero, in what was launched last."""
    (loop,) = [s.derived for s in kernel.specializations if s.derived and s.derived.launched]
    return {name for name in loop.launched.dense if name in loop.launched.defined}


def compared(kernel, function, *args):
    """The gradients of ``kernel`` are those of ``function``."""
    leaves = [a.detach().double().requires_grad_() for a in args]
    out = kernel(*leaves)
    g = torch.randn_like(out)
    found = torch.autograd.grad(out, leaves, g)
    leaves = [a.detach().double().requires_grad_() for a in args]
    expected = torch.autograd.grad(function(*leaves), leaves, g)
    torch.testing.assert_close(found, expected)


@weft.kernel
def twice(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * s
    return out


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4), (4, 0)])
def test_each_element_is_stored_and_then_added_to(shape):
    kernel = weft.kernel(twice.function)
    compared(kernel, lambda x: x * x.sum(1, keepdim=True), torch.randn(shape))
    assert stored(kernel) == {"d.x"}


def test_a_slice_that_is_read_leaves_zeros():
    @weft.kernel
    def inside(x):
        out = x.new_empty(x.shape[0] - 1)
        for i in range(x.shape[0] - 1):
            out[i] = x[i] * 2.0
        return out

    compared(inside, lambda x: x[:-1] * 2, torch.randn(7))
    assert stored(inside) == set()


def test_rows_given_by_another_tensor():
    @weft.kernel
    def added(x, y):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] + y[i] * y[i]
        return out

    kernel = weft.kernel(added.function)
    compared(kernel, lambda x, y: x + y * y, torch.randn(5), torch.randn(5))
    assert stored(kernel) == {"d.x", "d.y"}
    compared(kernel, lambda x, y: x + (y * y)[:5], torch.randn(5), torch.randn(8))
    assert stored(kernel) == {"d.x"}


def test_a_condition_leaves_zeros():
    @weft.kernel
    def positive(x):
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            if i % 3 != 0:
                out[i] = x[i] * x[i]
        return out

    def expected(x):
        return torch.where(torch.arange(x.shape[0]) % 3 != 0, x * x, torch.zeros_like(x))

    compared(positive, expected, torch.randn(10))
    assert stored(positive) == set()


def test_components_of_a_vector():
    @weft.kernel
    def length(x):
        out = x.new_empty(x.shape[0])
        for i in range(x.shape[0]):
            out[i] = x[i, 0] * x[i, 0] + x[i, 1] * x[i, 1]
        return out

    kernel = weft.kernel(length.function)
    compared(kernel, lambda x: (x * x).sum(1), torch.randn(6, 2))
    assert stored(kernel) == {"d.x"}
    compared(kernel, lambda x: (x * x)[:, :2].sum(1), torch.randn(6, 3))
    assert stored(kernel) == set()


def test_a_loop_that_meets_an_element_twice_accumulates():
    @weft.kernel
    def neighbours(x):
        out = x.new_empty(x.shape[0])
        for i in range(x.shape[0]):
            s = 0.0
            for j in range(x.shape[1]):
                s += x[i, j] * x[i, (j + 1) % x.shape[1]]
            out[i] = s
        return out

    compared(neighbours, lambda x: (x * x.roll(-1, 1)).sum(1), torch.randn(4, 5))
    assert stored(neighbours) == set()


def test_an_element_that_another_iteration_of_the_loop_adds_to_first():
    @weft.kernel
    def reversed_rows(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] * x[i, x.shape[1] - 1 - j]
        return out

    compared(reversed_rows, lambda x: x * x.flip(1), torch.randn(3, 4))


def test_a_permuted_subscript():
    @weft.kernel
    def transposed(x):
        out = x.new_empty(x.shape[1], x.shape[0])
        for i, j in weft.ndrange(x.shape[1], x.shape[0]):
            out[i, j] = x[j, i] * x[j, i]
        return out

    compared(transposed, lambda x: (x * x).T, torch.randn(3, 4))
    assert stored(transposed) == {"d.x"}


@pytest.mark.parametrize("repeat", [0, 1, 3])
def test_a_loop_around_that_may_not_run(repeat):
    @weft.kernel
    def repeated(x, n: int):
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            s = 0.0
            for _ in range(n):
                s += x[i] * x[i]
            out[i] = s
        return out

    compared(lambda x: repeated(x, repeat), lambda x: x * x * repeat, torch.randn(5))


def test_what_data_picks_is_added_behind_what_is_stored():
    rows = torch.randn(5, 7)
    target = torch.tensor([6, 0, 3, 3, 1])
    compared(lambda x: cross_entropy(x, target),
             lambda x: torch.nn.functional.cross_entropy(x, target, reduction="none"),
             rows)  # fmt: skip
    assert stored(cross_entropy) == {"d.x"}


@weft.kernel
def decayed(x, y):
    """Backwards through its serial loop, and read at two places of a turn."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.3
        for t in range(x.shape[1]):
            s = math.sin(s) * x[i, t] + y[i, t]
            if s > 0:
                s = s * y[i, t]
            out[i, t] = s
    return out


def torch_decayed(x, y):
    s, out = x.new_full(x.shape[:1], 0.3), []
    for t in range(x.shape[1]):
        s = torch.sin(s) * x[:, t] + y[:, t]
        s = torch.where(s > 0, s * y[:, t], s)
        out.append(s)
    return torch.stack(out, 1)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4)])
def test_a_loop_that_goes_backwards_stores(shape):
    kernel = weft.kernel(decayed.function)
    compared(kernel, torch_decayed, torch.randn(shape), torch.randn(shape))
    assert "d.x" in stored(kernel)


def test_turns_that_leave_elements_out_leave_zeros():
    @weft.kernel
    def most(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            s = 0.3
            for t in range(x.shape[1] - 1):
                s = math.sin(s) * x[i, t]
            out[i, 0] = s
            for t in range(1, x.shape[1]):
                out[i, t] = 0.0
        return out

    def torch_most(x):
        s = x.new_full(x.shape[:1], 0.3)
        for t in range(x.shape[1] - 1):
            s = torch.sin(s) * x[:, t]
        return torch.cat([s[:, None], torch.zeros_like(x[:, 1:])], 1)

    compared(most, torch_most, torch.randn(3, 6))
    assert stored(most) == set()


def test_one_of_two_loops_that_read_an_element_stores_it():
    @weft.kernel
    def again(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            s = 0.3
            for t in range(x.shape[1]):
                s = math.sin(s) * x[i, t]
            for t in range(x.shape[1]):
                s = math.cos(s) + x[i, t]
                out[i, t] = s
        return out

    def torch_again(x):
        s, out = x.new_full(x.shape[:1], 0.3), []
        for t in range(x.shape[1]):
            s = torch.sin(s) * x[:, t]
        for t in range(x.shape[1]):
            s = torch.cos(s) + x[:, t]
            out.append(s)
        return torch.stack(out, 1)

    compared(again, torch_again, torch.randn(3, 6))
    assert stored(again) == {"d.x"}


@weft.kernel
def read_again(x, y):
    """All turns of the inner loop read one element of ``x``, of each turn of the outer one."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        for t in range(x.shape[1]):
            s = 0.0
            for j in range(3):
                s += x[i, t] * y[t, j] + math.sin(x[i, t])
            out[i, t] = s * x[i, t]
    return out


@weft.kernel
def read_where(x, y):
    """Not each turn reads it: an accumulation between others, or none."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        for t in range(x.shape[1]):
            s = 0.0
            for j in range(3):
                if y[t, j] > 0.0:
                    s += x[i, t] * x[i, t]
                s += x[i, t] * y[t, j]
                if y[t, j] < -0.5:
                    s += 3.0 * x[i, t]
            out[i, t] = s
    return out


@weft.kernel
def read_elsewhere(x, y):
    """What other turns read, too, at places that come of data."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        for t in range(x.shape[1]):
            s = 0.0
            for j in range(3):
                s += x[i, (t + j) % x.shape[1]] * y[t, j] + x[i, t]
            out[i, t] = s
    return out


def _where(x, y):
    some = [(y > 0.0)[:, j] * x * x + x * y[:, j] + 3.0 * (y < -0.5)[:, j] * x for j in range(3)]
    return sum(some)


def _elsewhere(x, y):
    return sum(x.roll(-j, 1) * y[:, j] + x for j in range(3))


@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize(("kernel", "function"), [
    (read_again, lambda x, y: (x * y.sum(1) + 3.0 * x.sin()) * x),
    (read_where, _where), (read_elsewhere, _elsewhere),
])  # fmt: skip
def test_elements_that_an_inner_loop_reads_again(kernel, function, turns):
    torch.manual_seed(turns)
    compared(kernel, function, torch.randn(5, turns), torch.randn(turns, 3))


def test_the_sum_of_what_an_inner_loop_reads_again_is_a_store():
    kernel = weft.kernel(read_again.function)
    kernel(*(torch.randn(s).requires_grad_() for s in ((5, 4), (4, 3)))).sum().backward()
    assert "d.x" in stored(kernel)
