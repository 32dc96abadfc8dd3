"""Gradients in Taichi's words: tapes, and the gradients that fields have."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import weft as ti
from weft.errors import GradientError, KernelTypeError

x = ti.field(ti.f64, shape=5, needs_grad=True)
y = ti.field(ti.f64, shape=5, needs_grad=True)
constant = ti.field(ti.f64, shape=5)
loss = ti.field(ti.f64, shape=(), needs_grad=True)


start = ti.field(ti.f64, shape=5, needs_grad=True)
start.from_torch(torch.linspace(0.2, 0.6, 5, dtype=torch.float64))


@ti.kernel
def x_start():
    for i in x:
        x[i] = start[i]


@ti.kernel
def begin():
    for i in x:
        x[i] = i + 1


@ti.kernel
def middle():
    for i in x:
        y[i] = x[i] ** 2
        constant[i] = x[i]


@ti.kernel
def end():
    for i in y:
        loss[None] += y[i] * x[i] * constant[i]


@ti.kernel
def halve(t: ti.i32):
    for i in x:
        x[i] = x[i] * 0.5 + y[i] * t


@ti.kernel
def squared():
    for i in x:
        y[i] += x[i] * x[4 - i]


@ti.kernel
def moved():
    for i in range(4):
        x[i] = x[i] * x[i] + y[i]


@ti.kernel
def total():
    for i in x:
        loss[None] += x[i]


@ti.kernel
def descend():
    for i in x:
        x[i] -= 0.25 * x.grad[i]


@ti.kernel
def copied(p: torch.Tensor):
    for i in x:
        x[i] = p[i]


@ti.kernel
def two(p: torch.Tensor):
    for i in x:
        constant[i] = x[i] * p[i]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    begin()
    y.fill(0)
    ti.ad.clear_all_gradients()


V = torch.arange(1, 6, dtype=torch.float64)


def test_gradients_of_fields_with_one_and_no_other() -> None:
    for _ in range(2):
        with ti.ad.Tape(loss=loss):
            middle()
            end()
        assert torch.equal(x.grad.to_torch(), 3 * V**3)  # of x**2 * x * c, where c is a constant
        assert torch.equal(y.grad.to_torch(), V * V)
        assert loss.grad[None] == 1
        assert loss[None] == (V**4).sum()
    assert not constant.requires_grad
    assert x.is_leaf
    assert y.is_leaf


def test_gradients_are_added_where_they_are_not_cleared() -> None:
    for count in range(1, 4):
        with ti.Tape(loss, clear_gradients=False):
            total()
        assert torch.equal(x.grad.to_torch(), torch.full((5,), float(count), dtype=torch.float64))


def test_kernels_outside_of_a_tape_write_to_fields_with_gradients() -> None:
    with ti.ad.Tape(loss):
        middle()
        end()
    descend()
    torch.testing.assert_close(x.to_torch(), V - 0.75 * V**3)
    x[0] = 7
    assert x[0] == 7
    assert x.is_leaf


def test_the_gradient_of_a_field_that_is_overwritten_several_times_is_refused() -> None:
    y.fill(1)
    with ti.ad.Tape(loss):
        for t in range(3):
            halve(t)
        total()
    assert torch.equal(y.grad.to_torch(), torch.full((5,), 2.5, dtype=torch.float64))
    with pytest.raises(GradientError, match="3 loops under the tape wrote to `x`"):
        _ = x.grad
    with ti.ad.Tape(loss):
        total()
    assert torch.equal(x.grad.to_torch(), torch.ones(5, dtype=torch.float64))


def test_what_one_kernel_reads_another_one_overwrites() -> None:
    with ti.ad.Tape(loss):
        x_start()
        for _ in range(3):
            squared()
            moved()
        total()
    p = start.to_torch().requires_grad_()
    a, b = p, torch.zeros(5, dtype=torch.float64)
    for _ in range(3):
        b = b + a * a.flip(0)
        a = torch.cat([a[:4] ** 2 + b[:4], a[4:]])
    a.sum().backward()
    torch.testing.assert_close(loss.to_torch(), a.sum().detach())
    torch.testing.assert_close(start.grad.to_torch(), p.grad)


def test_a_field_has_a_gradient_of_zeros_at_first() -> None:
    made = ti.Vector.field(2, ti.f32, shape=3, needs_grad=True)
    assert made.grad[2].x == 0
    made.grad[2].x = 4
    assert made.grad[2].x == 4
    assert (made.n, made.m) == (2, 1)
    assert made.element_shape == (2,)
    assert x.element_shape == ()
    plain = ti.field(ti.f32, shape=3)
    assert plain.grad is None
    with pytest.raises(AttributeError, match="a field of numbers has no `n`"):
        _ = plain.n


def test_kernels_are_transposed_by_grad() -> None:
    loss.fill(0)
    loss.grad[None] = 1
    middle()
    end()
    end.grad()
    assert torch.equal(y.grad.to_torch(), V * V)
    middle.grad()
    assert torch.equal(x.grad.to_torch(), 3 * V**3)
    assert torch.equal(y.grad.to_torch(), torch.zeros(5, dtype=torch.float64))  # it is overwritten
    assert loss[None] == (V**4).sum()  # values are as they were


def test_an_error_under_a_tape_ends_it() -> None:
    def fails() -> None:
        with ti.ad.Tape(loss):
            total()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert x.is_leaf
    assert x.requires_grad
    with ti.ad.Tape(loss):
        total()


def test_copies_of_fields_are_fields_of_tapes() -> None:
    with ti.ad.Tape(loss):
        middle()
        end()
    other = copy.deepcopy(x)
    assert torch.equal(other.grad.to_torch(), 3 * V**3)

    @ti.kernel
    def doubled():
        for i in other:
            other[i] = 2 * x[i]
        for i in other:
            loss[None] += other[i]

    with ti.ad.Tape(loss):
        doubled()
    assert torch.equal(x.grad.to_torch(), torch.full((5,), 2.0, dtype=torch.float64))
    assert torch.equal(other.grad.to_torch(), torch.ones(5, dtype=torch.float64))


def test_a_gradient_that_is_not_known_is_told_before_anything_changes() -> None:
    with ti.ad.Tape(loss):
        halve(1)
        halve(2)
        total()
    assert copy.deepcopy(x).ungraded == x.ungraded
    with pytest.raises(GradientError, match="2 loops under the tape wrote to `x`"):
        ti.ad.Tape(loss, clear_gradients=False).__enter__()
    assert all(one.is_leaf and one.requires_grad for one in (x, y, loss))


def test_what_is_no_loss_and_what_is_recorded_by_torch() -> None:
    with pytest.raises(KernelTypeError, match="a tape's loss is a field of one floating-point"):
        ti.ad.Tape(x).__enter__()
    with pytest.raises(KernelTypeError, match="the loss of a tape has no gradient"):
        ti.ad.Tape(ti.field(ti.f32, shape=())).__enter__()
    with pytest.raises(KernelTypeError, match="a tape within a tape"), ti.ad.Tape(loss):
        ti.ad.Tape(loss).__enter__()
    p = torch.ones(5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(GradientError, match="writes to a field with a gradient, and reads"):
        copied(p)
    with ti.ad.Tape(loss):
        copied(p)
        total()
    assert torch.equal(p.grad, torch.ones(5, dtype=torch.float64))
    with torch.no_grad():
        copied(p)
    assert x[3] == 1


@ti.kernel
def tripled_field(a: ti.template(), b: ti.template()):
    for i in a:
        a[i] = 3 * b[i]


@ti.kernel
def added(a: ti.template()):
    for i in a:
        loss[None] += a[i]


def _compiled() -> None:
    torch.compile(tripled_field, backend="eager")(constant, x)


def _batched() -> None:
    def sample(one: torch.Tensor) -> torch.Tensor:
        tripled_field(constant, x)
        return one

    torch.vmap(sample)(torch.ones(3))


OTHERS = [
    _compiled,
    _batched,
    lambda: tripled_field.interpret(constant, x),
    lambda: constant.add_(x),
    lambda: added(ti.field(ti.f64, shape=5).add_(x)),  # which nobody else holds
]


# What Dynamo asks of tensors that are not leaves.
asks_for_gradients = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@asks_for_gradients
@pytest.mark.parametrize("write", OTHERS)
def test_a_derivative_through_a_field_without_a_gradient_is_refused(write) -> None:
    def taped() -> None:
        with ti.ad.Tape(loss):
            write()
            added(x)

    with pytest.raises(GradientError, match=r"a field of shape \(5,\) and weft.f64, made without"):
        taped()
    assert constant.is_leaf
    with ti.ad.Tape(loss):
        added(x)
    assert torch.equal(x.grad.to_torch(), torch.ones(5, dtype=torch.float64))


def _stored() -> None:
    y[1] = 3


@asks_for_gradients
@pytest.mark.parametrize(
    "write",
    [
        lambda: torch.compile(tripled_field, backend="eager")(y, x),
        lambda: tripled_field.interpret(y, x),
        lambda: y.mul_(2),
        _stored,
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_the_gradient_of_a_field_that_no_loop_wrote_is_refused(write, before) -> None:
    with ti.ad.Tape(loss):
        write()
        if before:
            tripled_field(y, x)
        added(y)
    with pytest.raises(GradientError, match="by something else than a loop of a kernel"):
        _ = y.grad
    _ = x.grad  # it is known


def test_views_of_fields_are_written_as_the_fields_are() -> None:
    with ti.ad.Tape(loss):
        tripled_field(y[1:3], x[1:3])
        tripled_field(constant[1:3], x[1:3])
        added(y)
        added(constant)
    assert x.grad.tolist() == [0, 3, 3, 0, 0]
    assert y.grad.tolist() == [1, 1, 1, 1, 1]
    assert constant.is_leaf


def test_fields_that_are_made_under_a_tape_are_its_own() -> None:
    with ti.ad.Tape(loss):
        made = ti.field(ti.f64, shape=5, needs_grad=True)
        assert made.grad is None  # until the end
        plain = ti.field(ti.f64, shape=5)
        tripled_field(made, x)
        tripled_field(plain, x)
        added(made)
        added(plain)
    assert x.grad.tolist() == [3] * 5
    assert made.grad.tolist() == [1] * 5
    assert made.is_leaf


def _in_a_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_a_tape_is_of_its_thread() -> None:
    other = ti.field(ti.f64, shape=5, needs_grad=True)
    p = torch.ones(5, dtype=torch.float64, requires_grad=True)
    with ti.ad.Tape(loss):
        tripled_field(y, x)
        _in_a_thread(lambda: tripled_field(other, x))
        _in_a_thread(lambda: tripled_field(constant, x))
        assert constant.is_leaf
        with pytest.raises(GradientError, match="another thread has a tape"):
            _in_a_thread(lambda: two(p))
        for begins in (ti.ad.Tape(loss).__enter__, lambda: middle.grad()):
            with pytest.raises(KernelTypeError, match="another thread has a tape"):
                _in_a_thread(begins)
        added(y)
    assert x.grad.tolist() == [3] * 5
    assert other.tolist() == (3 * V).tolist()
    assert other.grad.tolist() == [0] * 5
    with pytest.raises(KernelTypeError, match="a tape within a tape"), ti.ad.Tape(loss):
        middle.grad()

    def taped() -> list[float]:
        with ti.ad.Tape(loss):
            added(y)
        return y.grad.tolist()

    assert _in_a_thread(taped) == [1] * 5


def test_a_kernels_own_gradient_of_fields_of_matrices() -> None:
    x = ti.Matrix.field(2, 3, ti.f32, shape=4, needs_grad=True)
    y = ti.Matrix.field(2, 3, ti.f32, shape=4, needs_grad=True)

    @ti.kernel
    def squares():
        for i in x:
            for j, k in ti.static(ti.ndrange(2, 3)):
                y[i][j, k] = x[i][j, k] ** 2

    x.fill(3.0)
    squares()
    y.grad.fill(0.5)
    squares.grad()
    assert x.grad.to_torch().unique().tolist() == [3.0]
