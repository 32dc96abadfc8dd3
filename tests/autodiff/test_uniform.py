"""Gradients that are one element for all of their places, as that of a sum is: loops read that
element, and nothing is copied."""

import random

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import weft
from weft.pytorch import autograd

KINDS = "sum", "plain", "strided", "row", "mean"


@weft.kernel
def multiply(x, y):
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] * y[i, j]
    return out


@weft.kernel
def softmax(x, y):
    """Loops in rows: the gradient's elements are read twice."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        most = -1e30
        for j in range(x.shape[1]):
            most = max(most, x[i, j])
        total = 0.0
        for j in range(x.shape[1]):
            total += weft.exp(x[i, j] - most)
        for j in range(x.shape[1]):
            out[i, j] = weft.exp(x[i, j] - most) / total * y[i, j]
    return out


@weft.kernel
def guarded(x, y):
    out = torch.zeros_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        if x[i, j] > 0:
            out[i, j] = x[i, j] * y[i, j]
        if j > 3:
            out[i, j] = y[i, j] * y[i, j - 1]
    return out


@weft.kernel
def blurred(x, y):
    """Each element of the gradient is read by three iterations."""
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        n = x.shape[1]
        out[i, j] = x[i, j] * y[i, (j + 1) % n] - x[i, (j + n - 1) % n]
    return out


@weft.kernel
def matmul(x, y):
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        total = 0.0
        for k in range(x.shape[1]):
            total += x[i, k] * y[k % y.shape[0], j]
        out[i, j] = total
    return out


@weft.kernel
def running(x, y):
    """What is written is read."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i, 0] = x[i, 0]
        for j in range(1, x.shape[1]):
            out[i, j] = out[i, j - 1] * y[i, j] + x[i, j]
    return out


@weft.kernel
def both(x, y):
    out, other = torch.empty_like(x), torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] * y[i, j]
        other[i, j] = x[i, j] / (1.0 + y[i, j] * y[i, j])
    return out, other


KERNELS = multiply, softmax, guarded, blurred, matmul, running, both


def given(kind, out):
    match kind:
        case "sum":
            return torch.tensor(0.75, dtype=out.dtype, device=out.device).expand(out.shape)
        case "row":
            row = torch.randn(out.shape[1:], dtype=torch.float64).to(out)
            return row.expand(out.shape)
        case "strided":
            twice = torch.randn(*out.shape[:-1], 2 * out.shape[-1], dtype=torch.float64)
            return twice.to(out)[..., ::2]
        case "mean":  # as autograd makes it
            z = out.detach().requires_grad_()
            return torch.autograd.grad(z.mean(), z)[0]
    return torch.randn(out.shape, dtype=torch.float64).to(out)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_gradients_of_all_kinds_in_any_order_are_those_of_copies(kernel, dtype, device):
    """Beside a kernel of its own, whose gradients are given as arrays."""
    draw = random.Random(kernel.__name__)
    plain = weft.kernel(kernel.function)
    for shape in ((7, 300), (1, 1), (13, 127), (2, 2)):
        x, y = (torch.randn(shape, dtype=torch.float64).to(device, dtype) for _ in range(2))
        x.requires_grad_()
        y.requires_grad_()
        kinds = [draw.choice(KINDS) for _ in range(12)]
        for turn, kind in enumerate(kinds):
            outs, expected = kernel(x, y), plain(x, y)
            if not isinstance(outs, tuple):
                outs, expected = (outs,), (expected,)
            some = outs[: 1 + turn % len(outs)]
            grads = [given(kind if k == turn % 2 else "sum", out) for k, out in enumerate(some)]
            found = torch.autograd.grad(some, (x, y), grads)
            wanted = torch.autograd.grad(
                expected[: len(some)], (x, y), [g.contiguous() for g in grads]
            )
            torch.testing.assert_close(found, wanted, msg=lambda m, k=kind: f"{k}: {m}")


COPIES = ["aten::clone", "aten::contiguous", "aten::copy_"]


def copies(call):
    """What it gives, and the operations of torch's own in it that copy."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        made = call()
    return made, [name for name in COPIES if name in {e.name for e in profiler.events()}]


@weft.kernel
def relu(x, y):
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] if x[i, j] > y[i, j] else 0.1 * x[i, j]
    return out


@pytest.mark.parametrize("kernel", [multiply, softmax, relu, both], ids=lambda k: k.__name__)
def test_what_is_read_once_is_not_copied(kernel, device, monkeypatch):
    x = torch.randn(70, 300, device=device, requires_grad=True)
    y = torch.randn(70, 300, device=device, requires_grad=True)
    usual = []
    backward = autograd.Launch.backward
    counted = staticmethod(lambda *a: usual.append(a) or backward(*a))
    monkeypatch.setattr(autograd.Launch, "backward", counted)
    for n in range(4):
        outs = kernel(x, y)
        outs = outs if isinstance(outs, tuple) else (outs,)
        grads = [torch.tensor(n + 0.5, device=device).expand(out.shape) for out in outs]
        del usual[:]
        _, found = copies(lambda o=outs, g=grads: torch.autograd.grad(o, (x, y), g))
        assert found == []
    assert not usual


def test_a_sum_after_other_gradients_is_learned_once(device, monkeypatch):
    """And others after a sum: then each is known."""
    x = torch.randn(70, 300, device=device, requires_grad=True)
    y = torch.randn(70, 300, device=device, requires_grad=True)
    for first in ("plain", "sum"):
        kernel = weft.kernel(multiply.function)
        kinds = [first, first, *["sum", "plain", "strided"] * 4]
        went = []
        backward = autograd.Launch.backward
        counted = staticmethod(lambda *a, b=backward, w=went: w.append(a) or b(*a))
        monkeypatch.setattr(autograd.Launch, "backward", counted)
        for kind in kinds:
            out = kernel(x, y)
            g = given(kind, out)
            before = len(went)
            found = torch.autograd.grad(out, (x, y), g)
            torch.testing.assert_close(found, ((g * y).detach(), (g * x).detach()))
            went[before:] = [kind] * (len(went) - before)
        monkeypatch.setattr(autograd.Launch, "backward", staticmethod(backward))
        # Once without a plan, then one for each of the two.
        assert len(went) <= 3, went


def test_a_schedule_of_ones_own_is_for_arrays():
    """It may ask for what is done with loads that would not be there."""
    kernel = weft.kernel(multiply.function)
    x, y = (torch.randn(70, 300, requires_grad=True) for _ in range(2))
    kernel(x, y).sum().backward()
    for text, expected in ((None, []), ("unroll_jam(i, 2)", COPIES), (None, [])):
        kernel.backward.schedule("cpu", text)
        for _ in range(3):
            out = kernel(x, y)
            ((dx, dy), found) = copies(
                lambda out=out: torch.autograd.grad(out, (x, y), given("sum", out))
            )
        assert found == expected
        torch.testing.assert_close((dx, dy), (0.75 * y.detach(), 0.75 * x.detach()))


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_saved_is_unpacked_once(reentrant, device):
    """By whichever of the backwards that are known."""
    x = torch.randn(70, 300, device=device, requires_grad=True)
    y = torch.randn(70, 300, device=device, requires_grad=True)
    kernel, draw = weft.kernel(multiply.function), random.Random(1)
    for kind in ["sum", "plain", "sum", "strided", "plain", *draw.choices(KINDS, k=12)]:
        out = checkpoint(lambda x: kernel(x.sin(), y), x, use_reentrant=reentrant)
        g = given(kind, out)
        x.grad = y.grad = None
        out.backward(g)
        torch.testing.assert_close(x.grad, (g * y * x.cos()).detach())
        torch.testing.assert_close(y.grad, (g * x.sin()).detach())


def test_one_element_that_is_expanded(device):
    """It is an array, too: both kinds in turn are planned."""
    x = torch.randn(1, 1, device=device, requires_grad=True)
    y = torch.randn(1, 1, device=device, requires_grad=True)
    for _ in range(6):
        out = multiply(multiply(x, y), y)
        found = torch.autograd.grad(out.sum(), (x, y))
        torch.testing.assert_close(found, ((y * y).detach(), (2 * x * y).detach()))


def test_create_graph_and_empty_tensors(device):
    x = torch.randn(3, 300, dtype=torch.float64, device=device, requires_grad=True)
    y = torch.randn(3, 300, dtype=torch.float64, device=device, requires_grad=True)
    for _ in range(3):
        (dx,) = torch.autograd.grad(multiply(x, y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(dx.sum(), y)
        torch.testing.assert_close(second, torch.ones_like(y))
        empty = x[:0]
        (none,) = torch.autograd.grad(multiply(empty, y[:0]).sum(), x)
        torch.testing.assert_close(none, torch.zeros_like(x))
