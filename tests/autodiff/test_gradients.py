"""First and second derivatives against finite differences in float64."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import weft
from tests.autodiff import kernels as k

INDICES = [0, 2, 1, 2, 2, 0]


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64)


CASES = {
    "axpy": lambda: (k.axpy, draw(), draw(5), draw(5)),
    "conv": lambda: (k.conv, draw(2, 5), draw(2, 2, 5), 0.3),
    "softmax": lambda: (k.softmax, draw(3, 4)),
    "product": lambda: (k.product, draw(3, 4)),
    "newton": lambda: (k.newton, draw(3).abs() + 0.5),
    "total": lambda: (k.total, draw(3, 4)),
    "scan": lambda: (k.scan, draw(2, 5), draw(2)),
    "layernorm": lambda: (k.layernorm, draw(3, 4), draw(4), draw(4)),
    "breaks": lambda: (k.breaks, draw(4, 6)),
    "local": lambda: (k.local, draw(2, 6)),
    "histogram": lambda: (k.histogram, draw(6), torch.tensor(INDICES), 3),
    "pick": lambda: (k.pick, draw(3), torch.tensor(INDICES)),
    "inplace": lambda: (k.inplace, draw(6)),
    "stride2": lambda: (k.stride2, draw(9), draw(3)),
    "maximum": lambda: (k.maximum, draw(3, 4)),
    "product_of_all": lambda: (k.product_of_all, draw(5)),
    "two": lambda: (k.two, draw(4), draw(4)),
    "sumexp": lambda: (k.sumexp, draw(3), draw(4)),
    "blur": lambda: (k.blur, draw(4, 5)),
    "periodic": lambda: (k.periodic, draw(5)),
    "clamped": lambda: (k.clamped, draw(6), -0.5, 0.5),
    "wkv": lambda: (k.wkv, -draw(3).abs(), draw(3), draw(2, 5, 3), draw(2, 5, 3)),
    "vecs": lambda: (k.vecs, draw(4, 3), draw(3, 3)),
    "cumsum": lambda: (k.cumsum, draw(3, 4)),
    "larger": lambda: (k.larger, draw(3), draw(3)),
    "nested": lambda: (k.nested, draw(3, 4), torch.tensor([2, 0, 4])),
    "branches": lambda: (k.branches, draw(6), draw(6)),
    "inner": lambda: (k.inner, draw(3, 3), draw(3)),
    "switch": lambda: (k.switch, draw(4, 5)),
    "upsample": lambda: (k.upsample, draw(3)),
}


def made(name):
    torch.manual_seed(0)
    kernel, *args = CASES[name]()
    return kernel, [
        x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in args
    ]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_the_gradient_is_that_of_finite_differences(name):
    kernel, args = made(name)
    assert gradcheck(lambda *a: kernel(*a), args)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_the_second_derivative_too(name):
    kernel, args = made(name)
    assert gradgradcheck(lambda *a: kernel(*a), args)


@pytest.mark.parametrize("n", [10, 100, 1000, 100_000])
def test_a_product_over_a_run_time_loop(n):
    torch.manual_seed(n)
    x = (1 + torch.randn(2, n, dtype=torch.float64) / n).requires_grad_()
    p = k.product(x)
    p.sum().backward()
    torch.testing.assert_close(x.grad, (p[:, None] / x).detach())


def test_a_product_with_zeros_in_it():
    for values in ([2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]):
        x = (torch.tensor(values) - 1).requires_grad_()
        (mine,) = torch.autograd.grad(k.product_of_all(x), x)
        (theirs,) = torch.autograd.grad((x + 1).prod(), x)
        torch.testing.assert_close(mine, theirs)


def test_ties_share_the_gradient_as_in_torch():
    x = torch.tensor([[1.0, -2.0, 2.0]], requires_grad=True)
    k.maximum(x).backward()
    assert x.grad.tolist() == [[0.0, -2.0, 2.0]]
    x = torch.tensor([-0.5, 0.5, 0.0], requires_grad=True)
    k.clamped(x, -0.5, 0.5).sum().backward()
    y = x.detach().clone().requires_grad_()
    (y.clamp(-0.5, 0.5) + y.abs()).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    a, b = (torch.tensor([1.0, 2.0, 3.0], requires_grad=True) for _ in range(2))
    k.larger(a, b).sum().backward()
    assert a.grad.tolist() == b.grad.tolist() == [0.5] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_floats_have_adjoints_in_float32(dtype):
    torch.manual_seed(0)
    x = torch.randn(5, 40).to(dtype).requires_grad_()
    weights = torch.randn(5, 40)
    (k.softmax(x).float() * weights).sum().backward()
    y = x.detach().float().requires_grad_()
    (torch.softmax(y, 1) * weights).sum().backward()
    assert x.grad.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(x.grad.float(), y.grad, atol=tolerance, rtol=tolerance)


def test_wkv_against_the_recurrence_in_torch():
    torch.manual_seed(0)
    w, u, key, v = (
        t.requires_grad_() for t in (-draw(3).abs(), draw(3), draw(2, 9, 3), draw(2, 9, 3))
    )

    def recurrence(w, u, key, v):
        a, b, out = torch.zeros(2, 3), torch.zeros(2, 3), []
        for t in range(key.shape[1]):
            e = torch.exp(u + key[:, t])
            out.append((a + e * v[:, t]) / (b + e))
            a = torch.exp(w) * a + torch.exp(key[:, t]) * v[:, t]
            b = torch.exp(w) * b + torch.exp(key[:, t])
        return torch.stack(out, 1)

    grad = draw(2, 9, 3)
    mine, theirs = k.wkv(w, u, key, v), recurrence(w, u, key, v)
    torch.testing.assert_close(mine, theirs)
    pairs = zip(
        torch.autograd.grad(mine, (w, u, key, v), grad),
        torch.autograd.grad(theirs, (w, u, key, v), grad),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b)


@weft.kernel
def largest_of_sines(x, n: int):
    m = -math.inf
    for i in range(n):
        m = max(m, math.sin(x[i]))
    return m


def test_a_step_of_a_second_derivative_that_has_nothing_to_do():
    x = draw(5).requires_grad_()
    assert gradgradcheck(lambda x: largest_of_sines(x, 5), [x])
