"""What a loop has stored is loaded in its gradient, where that saves a pass over memory."""

import math

import pytest
import torch

import weft
from examples.softmax import softmax
from weft.errors import GradientError


@weft.kernel
def by_reciprocal(x):
    rows, cols = x.shape
    out = torch.empty_like(x)
    for i in range(rows):
        total = 0.0
        for j in range(cols):
            total += math.exp(x[i, j])
        scale = 1.0 / total
        for j in range(cols):
            out[i, j] = math.exp(x[i, j]) * scale
    return out


@weft.kernel
def reciprocals(x, w):
    """Of which one is a result, too, and another divides twice."""
    rows, cols = x.shape
    out, unit = torch.empty_like(x), torch.empty_like(x)
    ones = x.new_empty(rows)
    for i in range(rows):
        total, squares = 0.0, 0.0
        for j in range(cols):
            total += math.exp(x[i, j])
            squares += x[i, j] * x[i, j]
        scale, norm = 1.0 / total, 1.0 / math.sqrt(squares)
        ones[i] = scale
        for j in range(cols):
            out[i, j] = math.exp(x[i, j]) * scale * w[j] * scale
            unit[i, j] = norm * x[i, j]
    return out, unit, ones


@weft.kernel
def two_results(x, w):
    rows, cols = x.shape
    out = torch.empty_like(x)
    most = x.new_empty(rows)
    for i in range(rows):
        total = 0.0
        for j in range(cols):
            total += math.exp(x[i, j] * w[j])
        most[i] = math.log(total)
        for j in range(cols):
            out[i, j] = -math.exp(x[i, j] * w[j]) / total
    return out, most


@weft.kernel
def triangle(x):
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        total = 0.0
        for j in range(i + 1):
            total += math.exp(x[i, j])
        for j in range(i + 1):
            out[i, j] = math.exp(x[i, j]) / total
    return out


@weft.kernel
def some(x):
    rows, cols = x.shape
    out = torch.zeros_like(x)
    for i in range(rows):
        total = 0.0
        for j in range(cols):
            total += math.exp(x[i, j])
        for j in range(cols):
            if x[i, j] > 0.0:
                out[i, j] = math.exp(x[i, j]) / total
    return out


@weft.kernel
def scaled_later(x):
    rows, cols = x.shape
    out = torch.empty_like(x)
    for i in range(rows):
        total = 0.0
        for j in range(cols):
            total += math.exp(x[i, j])
        for j in range(cols):
            out[i, j] = math.exp(x[i, j]) / total
    out *= 2.0
    return out


@weft.kernel
def given(x, out):
    rows, cols = x.shape
    for i in range(rows):
        total = 0.0
        for j in range(cols):
            total += math.exp(x[i, j])
        for j in range(cols):
            out[i, j] = math.exp(x[i, j]) / total


def gradients(kernel, theirs, *inputs):
    found = []
    for function, dtype in ((kernel, None), (theirs, torch.float64)):
        leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in inputs]
        outs = function(*leaves)
        outs = outs if isinstance(outs, tuple) else (outs,)
        generator = torch.Generator().manual_seed(3)
        given = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in outs]
        found.append(torch.autograd.grad(outs, leaves, given))
    for mine, exact in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-6)


def exponentials(kernel, *args):
    return kernel.backward.inspect(*args).count("math.exp")


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (2, 127), (5, 64), (0, 3), (3, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax(shape, dtype):
    x = torch.randn(shape, dtype=dtype)
    gradients(softmax, lambda x: x.softmax(1), x)
    gradients(softmax, lambda x: x.softmax(1), torch.randn(shape[::-1], dtype=dtype).T)


def test_nothing_is_computed_again():
    x = torch.randn(3, 17, requires_grad=True)
    text = weft.kernel(softmax.function).backward.inspect(x)  # of these arguments alone
    loop = text[text.index("func.func") : text.index("func.return")]
    assert "math.exp" not in loop, text
    assert "%x" not in loop, text
    assert loop.count("scf.for") == 2, text


def test_products_with_a_reciprocal_are_quotients():
    x = torch.randn(3, 17, requires_grad=True)
    assert not exponentials(by_reciprocal, x)
    gradients(by_reciprocal, lambda x: x.softmax(1), torch.randn(5, 127))
    x = torch.randn(4, 9, dtype=torch.float64)
    gradients(
        reciprocals,
        lambda x, w: (x.softmax(1) / x.exp().sum(1, keepdim=True) * w,
                      x / x.norm(dim=1, keepdim=True), 1 / x.exp().sum(1)),
        x, torch.randn(9, dtype=torch.float64),
    )  # fmt: skip


@pytest.mark.slow
def test_other_ways_to_say_it():
    x, w = torch.randn(5, 17), torch.randn(17)
    gradients(triangle, lambda x: (x + torch.full_like(x, -math.inf).triu(1)).softmax(1).tril(),
              torch.randn(9, 9))  # fmt: skip
    gradients(some, lambda x: x.softmax(1) * (x > 0), x)
    gradients(two_results, lambda x, w: (-(x * w).softmax(1), (x * w).logsumexp(1)), x, w)


def test_what_changes_later_is_computed_again():
    x = torch.randn(3, 17, requires_grad=True)
    assert exponentials(scaled_later, x)
    gradients(scaled_later, lambda x: 2 * x.softmax(1), x)
    assert exponentials(given, x, torch.empty(3, 17))
    strict = weft.kernel(strict_math=True)(softmax.function)
    assert exponentials(strict, x)
    gradients(strict, lambda x: x.softmax(1), x)


def test_half_precision_is_computed_again():
    # What was stored is rounded.
    assert exponentials(softmax, torch.randn(3, 17, dtype=torch.bfloat16, requires_grad=True))


def test_a_result_that_was_changed_is_refused_by_name():
    for _ in range(4):  # the launch, and what later ones do
        x = torch.randn(3, 17, requires_grad=True)
        out = softmax(x)
        out.mul_(2.0)
        with pytest.raises((GradientError, RuntimeError), match="modified by an inplace operation"):
            out.sum().backward()


@weft.kernel
def in_turn(x):
    """Each turn overwrites what the one before has stored, after a loop has read it."""
    steps, rows, cols = x.shape
    out = x.new_empty(rows, cols)
    seen = torch.empty_like(x)
    for t in weft.serial(range(steps)):
        y = x[t]
        for i in range(rows):
            total = 0.0
            for j in range(cols):
                total += math.exp(y[i, j])
            for j in range(cols):
                out[i, j] = math.exp(y[i, j]) / total
        for i in range(rows):
            for j in range(cols):
                seen[t, i, j] = out[i, j] * 2.0
    return seen


def test_a_buffer_that_turns_share():
    gradients(in_turn, lambda x: 2.0 * x.softmax(2), torch.randn(3, 2, 5))


def test_derivatives_of_the_derivative():
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softmax, (x,))
    assert torch.autograd.gradgradcheck(softmax, (x,))


@pytest.mark.slow
def test_operators():
    x = torch.randn(3, 17, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(softmax.op, (x,))
    g = torch.randn(4, 3, 17, dtype=torch.float64)
    (found,) = torch.autograd.grad(softmax(x), x, g, is_grads_batched=True)
    (exact,) = torch.autograd.grad(x.softmax(1), x, g, is_grads_batched=True)
    torch.testing.assert_close(found, exact)
    function = torch.func.hessian(lambda x: softmax(x).square().sum())
    exact = torch.func.hessian(lambda x: x.softmax(1).square().sum())
    torch.testing.assert_close(function(x.detach()), exact(x.detach()))
