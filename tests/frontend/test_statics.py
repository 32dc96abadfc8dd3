"""What is said to the compiler, and loops over no index: the rest of Taichi's small words."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.frontend.test_language import same


def plain(v):
    return 2 * v + 1


@weft.kernel
def called(x, out):
    for i in x:
        out[i] = weft.func(plain)(x[i])


@weft.func
def product(dim: weft.template(), n):
    total = 0
    for I in weft.grouped(weft.ndrange(*((0, n),) * dim)):  # noqa: E741
        total += I.sum() + 1 if weft.static(dim > 0) else 1
    return total


@weft.kernel
def of_dimensions(out):
    for _ in weft.ndrange():
        out[0] = product(1, 4)
        out[1] = product(2, 3)
        for _none in weft.ndrange():
            out[2] += 1


@weft.kernel
def chosen(x, out):
    for i in range(x.shape[0]):
        v = weft.math.vec3(x[i], 1.0, 2.0)
        w = 0 if x[i] > 0 else v
        u = v + (v if x[i] > 0.5 else 1)
        out[i] = w.sum() + u[1] + weft.loop_unique(i)


def test_words() -> None:
    x = torch.linspace(-1, 1, 7)
    same(called, x, torch.full((7,), torch.nan))
    same(of_dimensions, torch.zeros(3))


def test_a_number_for_a_vector() -> None:
    x, out = torch.linspace(-1, 1, 7), torch.full((7,), torch.nan)
    chosen(x, out)
    w = torch.where(x > 0, 0, x + 3)
    u = 1 + torch.where(x > 0.5, 1, 1)
    torch.testing.assert_close(out, w + u + torch.arange(7))


@weft.kernel
def constant(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * weft.stop_grad(x[i] * x[i])
    return out


def test_what_is_stopped_has_no_derivative() -> None:
    x = torch.randn(9, dtype=torch.float64, requires_grad=True)
    constant(x).sum().backward()
    torch.testing.assert_close(x.grad, (x * x).detach())
    value, tangent = torch.func.jvp(constant, (x.detach(),), (torch.ones(9).double(),))
    torch.testing.assert_close(value, (x**3).detach())
    torch.testing.assert_close(tangent, (x * x).detach())
    torch.testing.assert_close(torch.compile(constant)(x.detach()), value)
    torch.testing.assert_close(constant.interpret(x.detach()), value)


@weft.kernel
def told(x, n: weft.template()):
    weft.static_assert(n > 0, "no rounds")
    for i in x:
        weft.static_assert(n < 5)
        weft.static_print("rounds", n, x[i], sep=": ")
        y = 0
        y += 0.5  # a second round of inference
        x[i] = n + y


def test_static_words(capsys) -> None:
    x = torch.zeros(2)
    told(x, 3)
    told(x, 3)
    assert capsys.readouterr().out == "rounds: 3: a scalar (f32)\n"
    assert x.tolist() == [3.5, 3.5]
    weft.kernel(told.function)(x, 3)  # as another process does: the disk cache does not hush it
    assert capsys.readouterr().out == "rounds: 3: a scalar (f32)\n"
    with pytest.raises(weft.KernelAssertionError, match="no rounds"):
        told(x, 0)
    with pytest.raises(weft.KernelAssertionError) as info:
        told(x, 7)
    assert info.value.message == "n < 5"


@weft.kernel
def late(x):
    for i in x:
        weft.static_assert(x[i] > 0)


@weft.kernel
def whole(x):
    for i in range(x.shape[0]):
        x[i] = weft.stop_grad(x)[i]


@weft.func
def add_one(v: weft.ref(weft.f32)):
    v += 1


@weft.kernel
def by_reference(x):
    for i in x:
        v = x[i]
        add_one(v)
        x[i] = v


def test_references_and_refusals() -> None:
    x = torch.zeros(2)
    by_reference(x)
    assert x.tolist() == [1.0, 1.0]
    with pytest.raises(weft.KernelTypeError, match="known at run time only"):
        late(x)
    with pytest.raises(weft.KernelTypeError, match=r"write stop_grad\(x\[...\]\)"):
        whole(x)
