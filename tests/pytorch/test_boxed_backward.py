"""Backwards of operators that are machine code."""

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import weft
from tests.pytorch.test_boxed import by_python, needs_gpu
from weft.pytorch.boxed import BoxedKernel
from weft.pytorch.changing import CHANGING
from weft.runtime import stable

pytestmark = [
    pytest.mark.skipif(bool(stable.missing()), reason=stable.missing()),
    pytest.mark.skipif(bool(stable.missing_for_lists()), reason="an older torch"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, needs_gpu])]
numbers = itertools.count()


def kernel(function: Any) -> Any:
    return weft.kernel(namespace=f"weft_backward_{next(numbers)}")(function)


def product(x: torch.Tensor, y: torch.Tensor, s: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * y[i] * s
    return out


def exponentials(x: torch.Tensor, y: torch.Tensor, s: float) -> Any:
    """Its gradient reads what it has returned, and one result is not wanted."""
    n = x.shape[0]
    out = torch.empty_like(x)
    other = torch.zeros_like(y)
    for i in range(n):
        out[i] = math.exp(x[i] * s)
        other[i] += y[i] * y[i]
    return other, out


def scan(x: torch.Tensor, y: torch.Tensor, s: float) -> torch.Tensor:
    """Its gradient has a tape."""
    rows, cols = x.shape
    out = torch.empty_like(x)
    for i in range(rows):
        h = s
        for j in range(cols):
            h = h * math.tanh(x[i, j]) + y[i, j]
            out[i, j] = h
    return out


def convolution(w: torch.Tensor, k: torch.Tensor, s: float) -> torch.Tensor:
    B, C, T = k.shape
    out = torch.empty_like(k)
    for b, c, t in weft.ndrange(B, C, T):
        total = s
        for u in range(t + 1):
            total += w[c, T - 1 - t + u] * k[b, c, u]
        out[b, c, t] = total
    return out


def total(x: torch.Tensor, y: torch.Tensor, s: float) -> torch.Tensor:
    found = 0.5
    for i in range(x.shape[0]):
        found += x[i] * y[i] * s
    return found


SHAPES = {product: ((16,), (16,)), exponentials: ((9,), (9,)), scan: ((3, 20), (3, 20)),
          convolution: ((4, 6), (2, 4, 6)), total: ((20,), (20,))}  # fmt: skip


def gradients(call: Any, args: Any, weights: Any, which: Any) -> Any:
    leaves = [a.clone().requires_grad_(k in which) for k, a in enumerate(args)]
    outs = call(*leaves, 0.7)
    outs = outs if isinstance(outs, tuple) else (outs,)
    loss = sum((o * w).sum() for o, w in zip(outs, weights, strict=False))
    return torch.autograd.grad(loss, [leaves[k] for k in which])


def by_operators(k: Any) -> Any:
    """Calls that record the operator itself, as what is compiled does."""

    def call(*args: Any) -> Any:
        with forward_ad.dual_level():
            return k.op(*args)

    return call


def codes(k: Any) -> list[BoxedKernel]:
    return [code for code in k.launchers[0].boxed if code.listed]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", SHAPES)
@pytest.mark.sampled(3)
def test_backwards_run_no_python(function: Any, device: str) -> None:
    k = kernel(function)
    args = [torch.randn(shape, device=device) for shape in SHAPES[function]]
    weights = [
        torch.randn_like(o) for o in (lambda o: o if isinstance(o, tuple) else (o,))(k(*args, 0.7))
    ]
    for which in ((0, 1), (1,)):
        for _ in range(8):
            gradients(by_operators(k), args, weights, which)
    (code,) = codes(k)
    assert len(code._known) == 2
    for which in ((0, 1), (1,)):
        args = [torch.randn_like(a) for a in args]
        found: list[Any] = []
        call = functools.partial(gradients, by_operators(k), args, weights, which)
        assert by_python(code, lambda call=call, found=found: found.extend(call())) == 0
        torch.testing.assert_close(found, [*gradients(k, args, weights, which)])


def rotated(x: torch.Tensor, r: torch.Tensor, s: float) -> Any:
    """Of complex numbers and floats; its gradient reads what it has returned."""
    out = torch.zeros_like(x)
    size = torch.empty_like(r)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] += torch.exp(x[i, j].conjugate() * r[i, j] * s) * x[i, j]
        size[i, j] = r[i, j] * abs(x[i, j])
    return out, size


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_backwards_of_complex_tensors_run_no_python(dtype: torch.dtype, device: str) -> None:
    k = kernel(rotated)
    real = torch.zeros((), dtype=dtype).real.dtype

    def expected(x: torch.Tensor, r: torch.Tensor, s: float) -> Any:
        return torch.exp(x.conj() * r * s) * x, r * x.abs()

    def check(which: Any, n: int, lazily: bool = False) -> None:
        args = [torch.randn(n, 5, dtype=d, device=device) for d in (dtype, real)]
        weights = [torch.randn_like(a) for a in args]
        weights[0] = weights[0].conj() if lazily else weights[0]

        def of(call: Any) -> Any:
            leaves = [a.clone().requires_grad_(k in which) for k, a in enumerate(args)]
            return torch.autograd.grad(call(*leaves, 0.7), [leaves[k] for k in which], weights)

        torch.testing.assert_close(of(by_operators(k)), of(expected))

    for which in ((0, 1), (0,), (1,)):
        for n in (3, 1):
            for _ in range(3):
                check(which, n)
    (code,) = codes(k)
    assert len(code._known) == 6
    for which in ((0, 1), (0,), (1,)):
        assert by_python(code, functools.partial(check, which, 3)) == 0
    check((0, 1), 3, lazily=True)
    check((0, 1), 0)


@pytest.mark.parametrize("device", DEVICES)
def test_backwards_of_floats_that_change_run_no_python(device: str) -> None:
    k = weft.kernel(namespace=f"weft_backward_{next(numbers)}", fuse=False)(steep)
    call = torch.compile(k, fullgraph=True, dynamic=True, backend="aot_eager")

    def check(s: float, n: int = 9) -> None:
        x, g = torch.randn(n, device=device, requires_grad=True), torch.randn(n, device=device)
        (found,) = torch.autograd.grad(call(x, s), x, g)
        (wanted,) = torch.autograd.grad(torch.tanh(x * s) * s, x, g)
        torch.testing.assert_close(found, wanted)

    for s in (0.5, 0.25, 1.5, 2.5, 3.5):
        check(s)
    (code,) = (code for code in codes(k) if CHANGING in code.types)
    for s in (-1.25, 0.0, 11.0):
        assert by_python(code, functools.partial(check, s)) == 0
    check(2.0, 4)


def steep(x: torch.Tensor, s: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = math.tanh(x[i] * s) * s
    return out


def root(x: torch.Tensor, y: torch.Tensor, s: float) -> Any:
    """The slope of its first result is infinite at 0."""
    out, both, rest = torch.empty_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = math.sqrt(x[i])
        rest[i] = x[i] * s
        both[i] = x[i] * y[i] + out[i]
    return out, both, rest


@pytest.mark.parametrize("device", DEVICES)
def test_results_at_which_nobody_looks(device: str) -> None:
    """Of these the backward has no gradients: zeros gave NaN."""
    k = kernel(root)
    x, y = torch.zeros(2, 9, device=device)
    x[4:] = 4.0
    results = [(0, 0.25), (1, y + 0.25), (2, torch.full_like(x, 0.7))]

    def slope(n: int) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(by_operators(k)(leaf, y, 0.7)[n].sum(), leaf)[0]

    for n, expected in results:
        wanted = torch.full_like(x, math.inf).masked_fill(x > 0, 0) + expected
        wanted = torch.full_like(x, 0.7) if n == 2 else wanted
        for _ in range(3):
            torch.testing.assert_close(slope(n), wanted)
        (code,) = codes(k)
        assert by_python(code, functools.partial(slope, n)) == 0
    leaf = x.clone().requires_grad_()
    last = by_operators(k)(leaf, y, 0.7)[2].sum()
    (found,) = torch.autograd.grad(last, leaf, create_graph=True)
    assert not torch.autograd.grad(found.sum(), leaf)[0].any()
    twice = torch.func.hessian(lambda x: k.op(x, y, 0.7)[2].sum())
    assert not twice(x).any()
    each = torch.vmap(torch.func.grad(lambda x, y: k.op(x, y, 0.7)[2].sum()))
    torch.testing.assert_close(each(x.expand(2, 9), y.expand(2, 9)), torch.full((2, 9), 0.7,
                               device=device))  # fmt: skip


def test_what_is_not_as_it_was_goes_by_python() -> None:
    k = kernel(product)
    x, y = torch.randn(2, 16)
    for _ in range(2):
        gradients(by_operators(k), (x, y), [torch.randn(16)], (0, 1))
    (code,) = codes(k)
    assert len(code._known) == 1
    wide = torch.randn(32)[::2]
    for args, weights in (
        ((x[:9], y[:9]), torch.randn(9)), ((wide, y), torch.randn(16)),
        ((x.double(), y.double()), torch.randn(16).double()), ((x, y), torch.randn(32)[::2]),
    ):  # fmt: skip
        found = gradients(by_operators(k), args, [weights], (0, 1))
        torch.testing.assert_close(found, gradients(k, args, [weights], (0, 1)))
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(
        by_operators(k)(leaf, y, 0.7).pow(3).sum(), leaf, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), leaf)
    torch.testing.assert_close(second, 6 * leaf * (y * 0.7) ** 3)


def test_a_compiled_graph_runs_it() -> None:
    k = kernel(convolution)
    args = [torch.randn(shape) for shape in SHAPES[convolution]]
    weights = [torch.randn(2, 4, 6)]
    compiled = torch.compile(k, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        found = gradients(compiled, args, weights, (0, 1))
    torch.testing.assert_close(found, gradients(k, args, weights, (0, 1)))
    (code,) = codes(k)
    assert len(code._known) == 1
    call = functools.partial(gradients, compiled, args, weights, (0, 1))
    assert by_python(code, call) == 0


def test_handles_are_given_back() -> None:
    k = kernel(product)
    x, y, g = torch.randn(3, 16)
    for _ in range(2):
        gradients(by_operators(k), (x, y), [g], (0, 1))
    backward = getattr(torch.ops, k._namespace)
    backward = getattr(backward, f"{k.op._schema.name.partition('::')[2]}_backward").default
    args = (x, y, 0.7, [g], [0, 1], [])
    (code,) = codes(k)

    def users() -> list[int]:
        return [torch._C._storage_Use_Count(v.untyped_storage()._cdata) for v in (x, y, g)]

    for _ in range(9):
        backward(*args)
    before = users()
    found: list[Any] = []
    assert by_python(code, lambda: found.extend(backward(*args))) == 0
    assert [torch._C._storage_Use_Count(v.untyped_storage()._cdata) for v in found] == [2, 2]
    torch.testing.assert_close(found, [g * y * 0.7, g * x * 0.7])
    for _ in range(3):
        backward(*args)
        backward(*(x[:4], y[:4], 0.7, [g[:4]], [0], []))
    assert users() == before


def test_sizes_that_are_met_once_are_not_learned() -> None:
    k = kernel(product)
    for n in range(3, 40):
        x, y, g = torch.randn(3, n)
        gradients(by_operators(k), (x, y), [g], (0, 1))
    (code,) = codes(k)
    assert not code._known
    gradients(by_operators(k), (x, y), [g], (0, 1))
    assert len(code._known) == 1


def test_one_code_for_all_sizes() -> None:
    """A size that is learned is an entry of a table: nothing is compiled for it."""
    k = kernel(product)

    def check(n: int) -> None:
        args, weights = [torch.randn(n), torch.randn(n)], [torch.randn(n)]
        found = gradients(by_operators(k), args, weights, (0, 1))
        expected = gradients(lambda x, y, s: x * y * s, args, weights, (0, 1))
        torch.testing.assert_close(found, expected)

    check(16)
    (code,) = codes(k)
    for n in (16, 17, 1, 33):
        for _ in range(4):
            code._calls = 0  # calls by Python are looked at less and less often
            check(n)
    assert len(code._known) == 4
    assert len({known.written for known in code._known.values()}) == 1
    for n in (1, 33, 16, 17):  # the entries are told apart
        assert by_python(code, functools.partial(check, n)) == 0
    assert by_python(code, functools.partial(check, 5))


def test_a_gradient_of_an_operator_is_recorded_as_that_of_the_kernel() -> None:
    k = kernel(exponentials)
    args = [torch.randn(9), torch.randn(9)]
    weights = [torch.randn(9), torch.randn(9)]
    plain = gradients(k, args, weights, (0, 1))
    for call in (k.op, k.op.overloadpacket):
        torch.testing.assert_close(gradients(call, args, weights, (0, 1)), plain)
        leaf = args[0].clone().requires_grad_()
        names = [o.grad_fn.name() for o in (*call(leaf, args[1], 0.7), *k(leaf, args[1], 0.7))]
        assert names[:2] == names[2:]
        assert names[0].startswith("exponentials_0")
        with torch.no_grad():
            assert not any(o.requires_grad for o in call(leaf, args[1], 0.7))
    leaf = args[0].clone().requires_grad_()
    second = torch.func.grad(lambda x: k.op(x, args[1], 0.7)[1].sum())(leaf.detach())
    torch.testing.assert_close(second, 0.7 * torch.exp(0.7 * leaf.detach()))
    assert len(codes(k)) == 0 or not codes(k)[0]._known  # the backward's operator was not called


def test_an_operator_with_a_gradient_returns_no_memory_of_its_arguments() -> None:
    def through(x: torch.Tensor) -> torch.Tensor:
        for i in range(x.shape[0]):
            _ = x[i]
        return x.view(-1)

    k = kernel(through)
    x = torch.randn(4, requires_grad=True)
    y = k.op(x)
    assert y.data_ptr() != x.data_ptr()
    torch.testing.assert_close(torch.autograd.grad((y * y).sum(), x)[0], 2 * x.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_result_that_no_loop_reads_or_writes(dtype: torch.dtype) -> None:
    """A bare StopIteration."""

    @kernel
    def summed(x: torch.Tensor) -> Any:
        other = torch.zeros(x.shape[0], dtype=dtype)
        total = 0.0
        for i in range(x.shape[0]):
            total += x[i] * x[i]
        return other, total

    for size in (3, 5, 3):
        x = torch.randn(size, requires_grad=True)
        other, total = summed.op(x)
        assert torch.equal(other, torch.zeros(size, dtype=dtype))
        (found,) = torch.autograd.grad(total + other.abs().sum(), x)
        torch.testing.assert_close(found, 2 * x.detach())
