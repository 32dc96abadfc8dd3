"""Gradients of f16 and bf16 that are loaded and stored as such, where nothing accumulates them."""

import pytest
import torch
import torch.nn.functional as F

import weft
from benchmarks.rows import rms_norm
from examples.layer_norm import layer_norm
from examples.softmax import softmax
from tests.cuda.emulator import EmulatedCall, gradients
from weft.pytorch.loop import Loop
from weft.schedule.language import KeepRow, only


def launched(kernel):
    """The adjoint that was launched last."""
    (found,) = [s.derived.launched for s in kernel.specializations if s.derived]
    return found


def leaf(*shape, dtype):
    return torch.randn(shape).to(dtype).requires_grad_()


@weft.kernel
def read_twice(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[x.shape[0] - 1 - i]
    return out


@weft.kernel
def picked(x, where):
    out = x.new_empty(where.shape[0])
    for i in range(where.shape[0]):
        out[i] = x[where[i]] * 0.3
    return out


@weft.kernel
def two_loops(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * 3.0
    for i in range(x.shape[0]):
        out[i] *= x[i]
    return out


CASES = {
    "rms_norm": (rms_norm, [(5, 40), (40,)], (1e-5,), {"d.x", "d.weight", "d.out"},
                 lambda x, w, eps: F.rms_norm(x, x.shape[1:], w, eps)),
    "layer_norm": (layer_norm, [(5, 40), (40,), (40,)], (1e-5,),
                   {"d.x", "d.weight", "d.bias", "d.out"},
                   lambda x, w, b, eps: F.layer_norm(x, x.shape[1:], w, b, eps)),
    "softmax": (softmax, [(5, 40)], (), {"d.x", "d.out"}, lambda x: x.softmax(1)),
    "read_twice": (read_twice, [(40,)], (), {"d.x", "d.out"}, lambda x: x * x.flip(0)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(9)
def test_gradients_are_in_the_dtype_of_their_arguments(name, dtype, monkeypatch):
    kernel, shapes, rest, narrow, reference = CASES[name]
    torch.manual_seed(0)
    leaves = [leaf(*shape, dtype=dtype) for shape in shapes]
    own = weft.kernel(kernel.function)
    out = own(*leaves, *rest)
    g = torch.randn(out.shape).to(dtype)
    found = torch.autograd.grad(out, leaves, g)
    assert launched(own).narrow == narrow
    expected = torch.autograd.grad(
        reference(*(wide := [v.detach().double().requires_grad_() for v in leaves]), *rest),
        wide, g.double(),
    )  # fmt: skip
    most = torch.finfo(dtype).eps
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), other, rtol=most, atol=most)
    monkeypatch.setattr(Loop, "halves", False)
    own = weft.kernel(kernel.function)
    for mine, other in zip(found, torch.autograd.grad(own(*leaves, *rest), leaves, g), strict=True):
        # The same sums in float32, whose products may be fused otherwise.
        torch.testing.assert_close(mine, other, rtol=most, atol=most * 0.05)
    assert not launched(own).narrow


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_loads_and_stores_them_by_vectors(name):
    kernel, shapes, rest, _, reference = CASES[name]
    torch.manual_seed(1)
    rows = [(3, 136), *((136,) for _ in shapes[1:])] if name != "read_twice" else shapes
    leaves = [leaf(*shape, dtype=torch.bfloat16) for shape in rows]
    wide = [v.detach().double().requires_grad_() for v in leaves]
    out = reference(*wide, *rest)
    g = torch.randn(out.shape).bfloat16()
    EmulatedCall.seen.clear()
    found = gradients(kernel, *leaves, *rest, grad=g)
    for mine, other in zip(found, torch.autograd.grad(out, wide, g.double()), strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=8e-3, atol=8e-3)
    steps = [only(schedule, KeepRow) for schedule in EmulatedCall.seen]
    if name != "read_twice":
        assert steps[1] is not None
        assert steps[1].width == 8


def test_what_is_accumulated_stays_wide():
    torch.manual_seed(0)
    x = leaf(7, dtype=torch.bfloat16)
    where = torch.randint(0, 7, (4000,))
    out = picked(x, where)
    g = torch.rand(4000).to(torch.bfloat16)
    (found,) = torch.autograd.grad(out, x, g)
    assert launched(picked).narrow == {"d.out"}
    sums = torch.zeros(7).double().index_add_(0, where, g.double() * 0.3)
    torch.testing.assert_close(found.double(), sums, rtol=0.01, atol=0)


def test_what_is_written_and_read_again_stays_wide():
    x = leaf(9, dtype=torch.float16)
    out = two_loops(x)
    g = torch.randn(9).half()
    (found,) = torch.autograd.grad(out, x, g)
    torch.testing.assert_close(found.double(), 6 * x.double() * g.double(), rtol=4e-3, atol=1e-3)


def test_a_given_gradient_is_left_as_it_is():
    x = leaf(3, 5, dtype=torch.bfloat16)
    out = softmax(x)
    g = torch.randn(5, 3).bfloat16().t()  # of other strides
    before = g.clone()
    first = torch.autograd.grad(out, x, g, retain_graph=True)
    assert torch.equal(g, before)
    assert torch.equal(first[0], torch.autograd.grad(out, x, g.contiguous())[0])


def test_second_derivatives_go_by_float32():
    x = leaf(9, dtype=torch.bfloat16)
    (first,) = torch.autograd.grad(read_twice(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first.detach()).sum(), x)
    wide = x.detach().double().requires_grad_()
    (one,) = torch.autograd.grad((wide * wide.flip(0)).sum(), wide, create_graph=True)
    (two,) = torch.autograd.grad((one * one.detach()).sum(), wide)
    torch.testing.assert_close(second.double(), two, rtol=0.02, atol=0.02)
