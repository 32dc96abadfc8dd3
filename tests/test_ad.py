"""``weft.ad``: gradients that are checked or written by hand; duals and layouts that follow."""

from __future__ import annotations

import pytest
import torch

import weft as ti
from weft.errors import GradientError, KernelTypeError
from weft.lang.field import Field

x = ti.field(ti.f64)
y = ti.field(ti.f64)
total = ti.field(ti.f64)
ti.FieldsBuilder().dense(ti.i, 5).place(x, x.grad, y, y.grad).finalize().destroy()
ti.root.place(total, total.grad)
V = torch.arange(1, 6, dtype=torch.float64)


@ti.kernel
def square():
    for i in x:
        y[i] = x[i] * x[i]


@ti.kernel
def sum_of(factor: ti.f64):
    for i in y:
        total[None] += y[i] * factor


@ti.ad.grad_replaced
def twice(factor: float) -> None:
    sum_of(factor)
    sum_of(factor)


@ti.ad.grad_for(twice)
def twice_back(factor: float) -> None:
    sum_of.grad(factor)  # half of what it should be


@pytest.fixture(autouse=True)
def _fresh() -> None:
    x.from_torch(V)
    y.fill(0)
    total.fill(0)
    ti.ad.clear_all_gradients()


def test_gradients_written_by_hand_stand_among_those_of_loops():
    with ti.ad.Tape(total):
        square()
        twice(4.0)
        square()
    assert torch.equal(x.grad.to_torch(), 8 * V)
    assert total[None] == 8 * (V * V).sum()
    ti.ad.clear_all_gradients()
    total.grad[None] = 1
    twice(4.0)
    twice.grad(4.0)
    assert torch.equal(y.grad.to_torch(), torch.full((5,), 4.0, dtype=torch.float64))


def test_what_reads_a_field_besides_adds_its_part():
    with ti.ad.Tape(total):
        square()
        twice(4.0)
        sum_of(1.0)
    assert torch.equal(x.grad.to_torch(), 10 * V)


def test_methods_and_kernels_that_write_gradients():
    class Model:
        def __init__(self) -> None:
            self.scale = 3.0

        @ti.ad.grad_replaced
        def step(self):
            sum_of(self.scale)

        @ti.ad.grad_for(step)
        def step_back(self):
            for i in range(5):
                y.grad[i] += 100 * self.scale * total.grad[None]

    with ti.ad.Tape(total):
        square()
        Model().step()
    assert torch.equal(x.grad.to_torch(), 600 * V)


def test_a_function_without_a_gradient_lets_those_of_others_pass():
    @ti.ad.no_grad
    def skipped() -> None:
        square()
        sum_of(7.0)

    with ti.ad.Tape(total):
        square()
        skipped()
        sum_of(1.0)
    assert torch.equal(x.grad.to_torch(), 2 * V)
    assert total[None] == 8 * (V * V).sum()


def test_gradients_are_checked_by_finite_differences():
    with ti.ad.Tape(total, grad_check=[x]):
        square()
        sum_of(3.0)
    assert torch.equal(x.grad.to_torch(), 6 * V)
    assert torch.equal(x.to_torch(), V)
    assert total[None] == 3 * (V * V).sum()

    def wrong() -> None:
        with ti.ad.Tape(total, grad_check=[x]):
            square()
            twice(3.0)

    with pytest.raises(AssertionError, match="grad_check: the derivative along a direction of"):
        wrong()
    with ti.ad.Tape(total):  # calls are as they were
        square()
        sum_of(1.0)


def test_what_cannot_be_checked_or_replaced():
    single = ti.field(ti.f32, shape=(), needs_grad=True)
    with pytest.raises(KernelTypeError, match="a loss of float64"):
        ti.ad.Tape(single, grad_check=[x]).__enter__()
    with pytest.raises(KernelTypeError, match="`sum_of` keeps its own gradient"):
        ti.ad.grad_for(sum_of)

    @ti.ad.grad_replaced
    def alone() -> None:
        square()

    alone()

    def taped() -> None:
        with ti.ad.Tape(total):
            alone()

    with pytest.raises(GradientError, match="`alone` has no gradient"):
        taped()


def test_duals_of_all_fields_and_fields_of_structs_are_placed(monkeypatch: pytest.MonkeyPatch):
    for one in Field.alive():  # those of other tests are as they were at the end
        monkeypatch.setattr(one, "needs_dual", one.needs_dual)
    pair = ti.types.struct(a=ti.f64, b=ti.math.vec2)
    pairs = pair.field()
    ti.root.dense(ti.i, 3).place(pairs)
    assert tuple(pairs.shape) == (3,)
    assert tuple(pairs.b.size()) == (3, 2)
    ti.root.lazy_dual()
    with ti.ad.FwdMode(loss=total, param=x, seed=[0.0, 1.0, 0.0, 0.0, 0.0]):
        square()
        sum_of(1.0)
    assert total.dual[None] == 4.0


def test_functions_that_taichi_does_not_inline():
    @ti.real_func
    def shifted(a: ti.i32) -> ti.i32:
        return a + 1

    @ti.kernel
    def call(out: torch.Tensor):
        for i in out:
            out[i] = shifted(2.75 * i)

    out = torch.full((4,), -1.0)
    call(out)
    assert out.tolist() == [1, 3, 6, 9]
    assert ti.experimental.real_func is ti.real_func is ti.func


def test_kernels_are_transposed_on_tensors():
    @ti.kernel
    def scaled(a: ti.types.ndarray(), b: ti.types.ndarray(), c: ti.f64):
        for i in a:
            b[i] += c * a[i] * a[i] * x[i]

    a = torch.randn(5, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    before = a.detach().clone()
    with torch.no_grad():
        scaled(a, b, 3.0)
    left = b.detach().clone()
    b.grad = torch.rand(5, dtype=torch.float64)
    for times in (1, 2):  # gradients are added up
        with torch.no_grad():  # as in a backward
            scaled.grad(a, b, 3.0)
        torch.testing.assert_close(a.grad, times * 6 * before * V * b.grad)
    torch.testing.assert_close(x.grad.to_torch(), 2 * 3 * before**2 * b.grad)
    assert torch.equal(b.detach(), left)
    assert a.is_leaf
    assert b.is_leaf


def test_a_checked_tape_does_not_write_twice() -> None:
    hits = torch.zeros(1, dtype=torch.float64)

    @ti.kernel
    def counted(hits: torch.Tensor):
        for i in y:
            total[None] += y[i]
        hits[0] += 1.0

    told = pytest.raises(KernelTypeError, match="would write to `hits` again")
    with told, ti.ad.Tape(total, grad_check=[y]):
        counted(hits)
    assert hits.item() == 0
