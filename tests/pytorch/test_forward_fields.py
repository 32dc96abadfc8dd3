"""Forward mode in Taichi's words: ``ti.ad.FwdMode`` and the duals of fields."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import weft as ti
from weft.errors import KernelTypeError, KernelValueError

N, M = 5, 3
x = ti.field(ti.f64, shape=N, needs_dual=True, needs_grad=True)
y = ti.field(ti.f64, shape=M, needs_dual=True, needs_grad=True)
constant = ti.field(ti.f64, shape=N)
point = ti.Vector.field(2, ti.f64, shape=(), needs_dual=True)
total = ti.field(ti.f64, shape=(), needs_dual=True)


@ti.kernel
def outputs():
    for j in y:
        for i in range(N):
            y[j] += ti.sin(x[i] * (j + 1)) + constant[i] * x[i]


@ti.kernel
def keep():
    for i in x:
        constant[i] = x[i] * x[i]


@ti.kernel
def halve():
    for i in x:
        x[i] *= 0.5


@ti.kernel
def lengths():
    for i in x:
        total[None] += point[None].norm() * x[i]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    x.from_torch(torch.rand(N, dtype=torch.float64))
    y.fill(0)
    constant.from_torch(torch.rand(N, dtype=torch.float64))
    ti.ad.clear_all_gradients()


def along(seed: Any) -> torch.Tensor:
    with ti.ad.FwdMode(loss=y, param=x, seed=seed):
        outputs()
    return y.dual.to_torch()


def jacobian() -> torch.Tensor:
    factor = torch.arange(1, M + 1)[:, None]
    return (torch.cos(x.to_torch() * factor) * factor) + constant.to_torch()


def test_the_jacobian_by_columns_and_by_rows() -> None:
    for _ in range(4):  # as plans, and what stands in front of them, know the launch
        outputs()
    columns = [along([float(k == i) for i in range(N)]) for k in range(N)]
    rows: list[torch.Tensor] = []
    for j in range(M):
        y.grad[j] = 1.0
        outputs.grad()
        rows.append(x.grad.to_torch())
        x.grad.fill(0)
        y.grad[j] = 0.0
    assert torch.allclose(torch.stack(columns, 1), jacobian())
    assert torch.allclose(torch.stack(rows), jacobian())


def test_a_seed_is_numbers_of_any_kind_and_the_derivative_is_there_within() -> None:
    seed = torch.rand(N, dtype=torch.float64)
    expected = jacobian() @ seed
    for given in (seed, seed.numpy(), seed.tolist()):
        assert torch.allclose(along(given), expected)
    assert not x.dual.any()
    with ti.ad.FwdMode(loss=[y, total], param=x, seed=seed):
        assert torch.equal(x.dual.to_torch(), seed)
        outputs()
        assert torch.allclose(y.dual.to_torch(), expected)
        halve()
        y.fill(0)
        assert not y.dual.any()
        outputs()
    assert torch.allclose(y.dual.to_torch(), jacobian() @ (0.5 * seed))


def test_what_is_stored_into_a_field_without_a_dual_is_a_constant() -> None:
    seed = torch.rand(N, dtype=torch.float64)
    with ti.ad.FwdMode(loss=y, param=x, seed=seed):
        keep()
        outputs()
    assert torch.equal(constant.to_torch(), x.to_torch() ** 2)
    assert torch.allclose(y.dual.to_torch(), jacobian() @ seed)
    assert constant.dual is None


def test_fields_of_vectors_and_duals_that_are_not_cleared() -> None:
    point.from_torch(torch.tensor([3.0, 4.0], dtype=torch.float64))
    with ti.ad.FwdMode(loss=total, param=point, seed=[1.0, 0.5]):
        lengths()
    length = x.to_torch().sum()
    assert torch.allclose(total.dual.to_torch(), (3 * 1.0 + 4 * 0.5) / 5 * length)
    total.fill(0)
    x.dual.from_torch(torch.ones(N, dtype=torch.float64))
    with ti.ad.FwdMode(loss=total, param=point, seed=[1.0, 0.5], clear_gradients=False):
        total[None] = 0.0
        lengths()
    expected = (3 * 1.0 + 4 * 0.5) / 5 * length + 5.0 * N
    assert torch.allclose(total.dual.to_torch(), expected)


def test_fields_are_as_they_were_after_it_and_after_errors() -> None:
    other = copy.deepcopy(x)

    def fails() -> None:
        with ti.ad.FwdMode(loss=y, param=x, seed=[1.0] * N):
            outputs()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert torch.allclose(along([1.0] * N), jacobian().sum(1))
    assert x.requires_grad
    assert x.is_leaf
    assert not point.requires_grad
    assert other.dual is not None
    assert other.dual is not x.dual
    with ti.ad.FwdMode(loss=y, param=x, seed=[1.0] * N):
        made = ti.field(ti.f64, shape=M, needs_dual=True)
        outputs()

        @ti.kernel
        def copied():
            for j in made:
                made[j] = 2.0 * y[j]

        copied()
    assert torch.equal(made.dual.to_torch(), 2.0 * y.dual.to_torch())


def test_what_is_no_forward_mode() -> None:
    for loss, param, role in ((constant, x, "loss"), (y, constant, "param"), (y, 1.0, "param")):
        with pytest.raises(KernelTypeError, match=f"`{role}` of a forward mode is a field with a"):
            ti.ad.FwdMode(loss, param, [1.0] * N).__enter__()
    with pytest.raises(KernelValueError, match="no direction is given for a field of 5 numbers"):
        ti.ad.FwdMode(y, x).__enter__()
    with pytest.raises(KernelValueError, match="a seed of 2 numbers for a field of 5"):
        ti.ad.FwdMode(y, x, [1.0, 2.0]).__enter__()
    with pytest.raises(KernelTypeError, match=r"a field of weft\.i32 has no dual"):
        ti.field(ti.i32, shape=3, needs_dual=True)
    loss = ti.field(ti.f64, shape=(), needs_grad=True)
    mode = ti.ad.FwdMode(y, x, [1.0] * N)
    with pytest.raises(KernelTypeError, match="a forward mode within a tape"), ti.ad.Tape(loss):
        mode.__enter__()
    with mode:
        with pytest.raises(KernelTypeError, match="a forward mode within another"):
            ti.ad.FwdMode(y, x, [1.0] * N).__enter__()
        with pytest.raises(KernelTypeError, match="a gradient of fields within forward mode"):
            ti.ad.Tape(loss).__enter__()
        with pytest.raises(KernelTypeError, match="a gradient of fields within forward mode"):
            outputs.grad()
