"""Complex tensors and PyTorch: gradients in its convention, transforms, graphs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import weft
from weft.pytorch import autograd
from weft.runtime.overlap import OverlapWarning

pytestmark = pytest.mark.filterwarnings("ignore:.*does not support code generation for complex")
WIDE = torch.complex128


@weft.kernel
def mixed(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = w[0] * r[i]
        for k in range(w.shape[0]):
            s = s * x[i].conj() + w[k] / (x[i] + 4.0)
        out[i] = torch.exp(s) if abs(s) < 1.0 else torch.sqrt(s) * torch.log(s)
    return out


@weft.kernel
def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    product = torch.empty_like(x)
    size = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    total = 0j
    for i in range(x.shape[0]):
        product[i] = x[i] * y[i]
        size[i] = abs(x[i]) + torch.angle(y[i])
        total += x[i] * y[i].conj()
    return product, size, total


@weft.kernel
def accumulated(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i % 2] += x[i] * x[i]
        out[2] -= torch.sin(x[i]) * torch.cos(x[i]) + torch.sinh(x[i]) * torch.cosh(x[i])


def reference_of_several(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x * y, x.abs() + y.angle(), (x * y.conj()).sum()


def drawn(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=WIDE).requires_grad_(grad)


def inplace(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(3, dtype=x.dtype)
    accumulated(x, out)
    return out


@pytest.mark.slow
def test_gradients_are_torchs_to_second_order_and_in_forward_mode() -> None:
    x, w = drawn(4, grad=True), drawn(2, grad=True)
    r = torch.randn(4, dtype=torch.float64, requires_grad=True)
    for f, args in ((mixed, (x, w, r)), (several, (x, drawn(4, grad=True))), (inplace, (x,))):
        assert gradcheck(f, args, check_forward_ad=True)
        assert gradgradcheck(f, args, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_gradient_is_that_of_the_same_in_torch(dtype: torch.dtype) -> None:
    grads: list[Any] = []
    x, y = (torch.randn(17, dtype=dtype) for _ in range(2))
    for f in (several, reference_of_several):
        leaves = [v.clone().requires_grad_() for v in (x, y)]
        a, b, c = f(leaves[0], leaves[1].conj())  # a view with torch's bit for conjugates
        (a.abs().sum() + b.sum() + (c * (2 - 1j)).real).backward()
        grads.append([v.grad for v in leaves])
    torch.testing.assert_close(grads[0], grads[1])


def test_the_absolute_value_has_torchs_gradient_at_zero() -> None:
    x = torch.zeros(2, dtype=WIDE, requires_grad=True)
    _, size, _ = several(x, drawn(2))
    size.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0j, 0j]


def loss(x: torch.Tensor, y: torch.Tensor, f: Any = several) -> torch.Tensor:
    a, b, c = f(x, y)
    return (a.abs() ** 2).sum() + (b * b).sum() + c.abs()


def wanted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return loss(x, y, reference_of_several)


def test_transforms_of_torch_func() -> None:
    x, y = drawn(3, 5), drawn(5)
    same = torch.testing.assert_close
    same(torch.func.grad(loss)(x[0], y), torch.func.grad(wanted)(x[0], y))
    along = (drawn(5), drawn(5))
    same(torch.func.jvp(loss, (x[0], y), along), torch.func.jvp(wanted, (x[0], y), along))
    both = torch.vmap(several, (0, None))(x, y), torch.vmap(reference_of_several, (0, None))(x, y)
    same(*both)
    each = [torch.vmap(torch.func.grad(f), (0, None))(x, y) for f in (loss, wanted)]
    same(*each)


@pytest.mark.slow
def test_operators_check() -> None:
    x, y = drawn(5, grad=True), drawn(5, grad=True)
    torch.vmap(several)(drawn(2, 5), drawn(2, 5))  # makes no operator
    opcheck(several.op, (x, y))
    opcheck(mixed.op, (x, drawn(2, grad=True), torch.randn(5, dtype=torch.float64)))


@pytest.mark.slow
def test_operators_compile() -> None:
    x, y = drawn(5, grad=True), drawn(5, grad=True)

    def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(3, dtype=x.dtype)
        accumulated(x * 2, out)
        a, _, c = several(x, y)
        return (out.sum() * a.sum()).abs() + c.real

    compiled = torch.compile(whole, fullgraph=True)
    found = torch.autograd.grad(compiled(x, y), (x, y))
    torch.testing.assert_close(found, torch.autograd.grad(whole(x, y), (x, y)))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, y), whole(x, y))


@weft.kernel
def scaled(x: torch.Tensor, c: complex, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] * c + 1j


def test_numbers_are_passed_and_never_compiled_in() -> None:
    x = drawn(6)
    for c in (1j, 2 - 3j, 0.5 + 0j):
        out = torch.full_like(x, math.nan)
        scaled(x, c, out)
        torch.testing.assert_close(out, x * c + 1j)
    scaled(x.real.clone(), 1j, out)
    torch.testing.assert_close(out, x.real * 1j + 1j)
    assert len(scaled.specializations) == 2


def test_a_complex_number_is_passed_by_what_is_compiled() -> None:
    x = drawn(6)
    made = torch.compile(lambda x: (scaled(x, 3j, o := torch.empty_like(x)), o)[1], fullgraph=True)
    torch.testing.assert_close(made(x), x * 3j + 1j)


@weft.kernel
def onto(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, s: float) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] * torch.conj(w[x.shape[0] - 1 - i]) * s


def test_later_calls_are_planned() -> None:
    launcher = onto.launchers[0]
    slow = launcher.slow
    seen: list[Any] = []

    def counted(args: tuple[Any, ...]) -> Any:
        seen.append(args)
        return slow(args)

    launcher.slow = counted  # type: ignore[method-assign]

    def check(x: torch.Tensor, w: torch.Tensor, *, calls: int) -> None:
        del seen[:]
        out, s = torch.full(x.shape, complex("nan"), dtype=x.dtype), float(torch.rand(()))
        version = 0 if out.is_inference() else out._version
        onto(out, x, w, s)
        torch.testing.assert_close(out, x * w.flip(0).conj() * s)
        assert out.is_inference() or out._version > version
        assert len(seen) == calls

    for dtype in (torch.complex64, WIDE):
        for n in (5, 1):
            for k in range(5):
                check(*torch.randn(2, n, dtype=dtype), calls=int(k < 2))
        for k in range(3):
            check(torch.randn(10, dtype=dtype)[::2], torch.randn(5, dtype=dtype), calls=int(k < 2))
    x, w = drawn(5), drawn(5)
    check(x.conj(), w, calls=1)  # whose memory has other numbers
    check(x, w.conj(), calls=1)
    check(torch._neg_view(x), w, calls=1)
    check(x, w.real.clone(), calls=1)
    own = x.clone()
    with pytest.warns(OverlapWarning):  # its memory is shared: in order
        onto(own, x, own, 2.0)
    wanted = x.clone()
    for i in range(5):
        wanted[i] = x[i] * wanted[4 - i].conj() * 2.0
    torch.testing.assert_close(own, wanted)
    with torch.no_grad():
        check(x.clone().requires_grad_(), w, calls=1)
    leaf = x.clone().requires_grad_()
    for _ in range(4):
        out = torch.empty_like(x)
        onto(out, leaf, w, 0.5)
        (grad,) = torch.autograd.grad(out.abs().sum(), leaf)
    (wanted,) = torch.autograd.grad((leaf * w.flip(0).conj() * 0.5).abs().sum(), leaf)
    torch.testing.assert_close(grad, wanted)
    with torch.inference_mode():
        check(drawn(5), drawn(5), calls=1)


@weft.kernel
def turned(x: torch.Tensor, c: complex, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(n):
        out[i] = x[i] * x[i] * c
    return out


def test_later_calls_with_complex_numbers_are_planned_and_their_gradients(monkeypatch: Any) -> None:
    """A number is a complex one, or NumPy's; others, and its type, are told apart."""
    launcher = turned.launchers[0]
    slow, backward, seen, usual = launcher.slow, autograd.Launch.backward, [], []
    monkeypatch.setattr(launcher, "slow", lambda args: (seen.append(args), slow(args))[1])
    usually = staticmethod(lambda ctx, *g: (usual.append(ctx), backward(ctx, *g))[1])
    monkeypatch.setattr(autograd.Launch, "backward", usually)
    for kind in (complex, np.complex128):
        for k in range(6):
            x, c = drawn(5), kind(complex(*torch.randn(2).tolist()))
            del seen[:]
            torch.testing.assert_close(turned(x, c, 5), x * x * complex(c))
            assert len(seen) == (k < 2)
    for n in (5, 20_000):  # of many elements autograd knows the parts as a view
        for k in range(6):
            x, g, c = drawn(n, grad=True), drawn(n), complex(*torch.randn(2).tolist())
            del usual[:]
            (found,) = torch.autograd.grad(turned(x, c, n), x, g)
            torch.testing.assert_close(found, g * (2 * x.detach() * c).conj())
            assert n > 5 or len(usual) == (k < 2)
    torch.testing.assert_close(
        turned(drawn(3) * 0 + 1, 2.5, 3), torch.full((3,), 2.5 + 0j, dtype=WIDE)
    )


@pytest.mark.parametrize("n", [3, 20_000])
def test_gradients_of_a_kernel_that_writes_into_complex_memory(n: int) -> None:
    """Of few elements, whose parts are copied, and of many: views, and versions, are torch's."""
    x, base = drawn(n, grad=True), drawn(n + 2)
    whole = base.clone()
    part = whole[1:-1]
    version = whole._version
    scaled(x, 2j, part)
    assert whole._version > version
    torch.testing.assert_close(whole[1:-1], x * 2j + 1j)
    assert torch.equal(whole[:1], base[:1])
    g = drawn(n + 2)
    torch.testing.assert_close(torch.autograd.grad(whole, x, g)[0], g[1:-1] * -2j)


def test_fake_and_meta_tensors() -> None:
    x = torch.empty(5, dtype=torch.complex64, device="meta")
    product, size, total = several(x, x)
    assert (product.shape, product.dtype) == (x.shape, x.dtype)
    assert (size.dtype, total.dtype, total.shape) == (torch.float64, torch.complex64, ())


def test_what_a_kernel_says_of_itself() -> None:
    x, y = drawn(5), drawn(5)
    several(x, y)
    assert any("pairs of f64" in str(s) for s in several.specializations)
    assert "its numbers are complex" in several.inspect(x, y).text("inductor")
    assert several.cost(x, y).bytes == 5 * (16 * 3 + 8) + 16
