"""Derivatives carried out by the interpreter, beside the compiled ones."""

import pytest
import torch
from torch.autograd import forward_ad

from tests.autodiff import kernels as k
from tests.autodiff.test_gradients import CASES, draw
from weft.errors import KernelTypeError


def leaves(args):
    return [a.clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point()
            else a for a in args]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("newton", "conv")])
@pytest.mark.sampled(3)
def test_interpreted_gradients_are_the_compiled_ones(name):
    torch.manual_seed(1)
    kernel, *args = CASES[name]()
    given = leaves(args)
    out = kernel(*given)
    outs = out if isinstance(out, tuple) else (out,)
    grads = [torch.randn_like(o) for o in outs]
    wanted = [g for g in given if isinstance(g, torch.Tensor) and g.requires_grad]
    expected = iter(torch.autograd.grad(outs, wanted, grads))
    for found, a in zip(kernel.backward.interpret(*args, grad=grads), given, strict=True):
        if isinstance(a, torch.Tensor) and a.requires_grad:
            torch.testing.assert_close(found, next(expected))
        else:
            assert found is None


@pytest.mark.parametrize("name", ["softmax", "maximum", "two", "nested", "histogram"])
def test_interpreted_tangents_are_the_compiled_ones(name):
    torch.manual_seed(1)
    kernel, *args = CASES[name]()
    floats = [isinstance(a, torch.Tensor) and a.is_floating_point() for a in args]
    tangents = [torch.randn_like(a) if f else None for a, f in zip(args, floats, strict=True)]
    with forward_ad.dual_level():
        out = kernel(*(a if t is None else forward_ad.make_dual(a, t)
                       for a, t in zip(args, tangents, strict=True)))  # fmt: skip
        outs = out if isinstance(out, tuple) else (out,)
        expected = [forward_ad.unpack_dual(o).tangent.clone() for o in outs]
    found = kernel.jvp.interpret(*args, tangents=tangents)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_floats(dtype):
    x = torch.randn(3, 6).to(dtype)[:, ::2]
    (leaf,) = leaves([x])
    weights = torch.randn(3, 3).to(dtype)
    k.softmax(leaf).backward(weights)
    (found,) = k.softmax.backward.interpret(x, grad=weights)
    assert found.dtype == dtype
    torch.testing.assert_close(found, leaf.grad)


def test_every_operation_can_be_watched():
    x = draw(2, 3)
    seen = []

    def watch(op, operands, results):
        seen.append((op.name, op.span.line if op.span else 0, len(operands), len(results)))

    (found,) = k.product.backward.interpret(x, watch=watch)
    torch.testing.assert_close(found, x.prod(1, keepdim=True) / x)
    lines = k.product.source.lines
    products = [
        line for name, line, n, made in seen if name == "arith.mulf" and (n, made) == (2, 1)
    ]
    assert products
    assert "p *= x[i, j]" in lines[products[0]]
    assert ("scf.parallel", products[0] - 3, 3, 0) in seen

    class Stop(Exception):
        pass

    def stop(op, operands, results):
        if op.name == "memref.store":
            raise Stop

    with pytest.raises(Stop):
        k.product.backward.interpret(x, watch=stop)
    with pytest.raises(Stop):
        k.product.jvp.interpret(x, watch=stop)


def test_a_kernel_that_writes_to_its_argument():
    x, y = draw(4), draw(4)
    before = y.clone()
    found = k.accumulate.backward.interpret(x, y)
    torch.testing.assert_close(found, (2 * x, torch.ones_like(x)))
    (tangent,) = k.accumulate.jvp.interpret(x, y, tangents=(x, None))
    torch.testing.assert_close(tangent, 2 * x * x)
    assert torch.equal(y, before)


def test_gradients_of_other_shapes_are_refused():
    x = draw(2, 3)
    with pytest.raises(
        KernelTypeError, match=r"`grad` has shapes \[\(2, 3\)\], and `product` gives"
    ):
        k.product.backward.interpret(x, grad=x)
    with pytest.raises(
        KernelTypeError, match="is called with 1 arguments, and there are 2 tangents"
    ):
        k.product.jvp.interpret(x, tangents=(x, x))


def test_the_tangents_can_be_looked_at():
    text = k.product.jvp.inspect(draw(2, 3))
    assert "=== tangents of the loop at line" in text
    assert "tangents: t.x, t.out" in text
    assert "memref.load %t.x" in text
