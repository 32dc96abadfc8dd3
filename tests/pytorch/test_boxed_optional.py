"""Operators in machine code whose tensors may be None."""

import ctypes
import functools
import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import weft
from tests.pytorch.test_boxed import by_python
from weft.errors import KernelIndexError
from weft.pytorch.boxed import BoxedKernel
from weft.runtime import stable

pytestmark = pytest.mark.skipif(bool(stable.missing()), reason=stable.missing())
numbers = itertools.count()


def biased(
    x: torch.Tensor, bias: torch.Tensor | None = None, s: float = 1.0,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        value = x[i] * s
        if scale is not None:
            value *= scale[i]
        if bias is not None:
            value += bias[i]
        out[i] = value
    return out


def counted(x: torch.Tensor, n: int, bias: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        if bias is None:
            out[i] = x[i] * n
        else:
            out[i] = x[i] * n + bias[i]
    return out


def added(x: torch.Tensor, out: torch.Tensor | None, total: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        total[i] = x[i] + 1
        if out is not None:
            out[i] = x[i]


def same(x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
    for i in range(x.shape[0]):
        x[i] = x[i] + 1
    return x if other is None else other.view(-1)


def scaled(
    x: torch.Tensor, n: int | None = None, s: float | None = None, up: bool | None = None
) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        value = x[i] + 0
        if n is not None:
            value += n
        if s is not None:
            value *= s
        if up is not None:
            value += 10 if up else -10
        out[i] = value
    return out


def kernel(function: Callable[..., Any]) -> Any:
    """Under a namespace of its own: kernels of one text share an operator in one."""
    return weft.kernel(namespace=f"weft_optional_{next(numbers)}")(function)


def code_of(k: Any) -> BoxedKernel:
    (code,) = [code for code in k.launchers[0].boxed if not code.listed]
    return code


def operands(kinds: str, n: int = 7) -> list[Any]:
    """For ``biased``: "b" a bias, "s" a scale."""
    bias, scale = (torch.randn(n) if kind in kinds else None for kind in "bs")
    return [torch.randn(n), bias, 1.5, scale]


ORDERS = [*itertools.permutations(("", "b", "s"), 3), ("bs", "", "b", "s")]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.sampled(3)
def test_none_and_tensors_in_any_order_run_no_python(order: tuple[str, ...]) -> None:
    k = kernel(biased)
    for kinds in (*order, *order):
        args = operands(kinds)
        torch.testing.assert_close(k.op(*args), biased(*args))
    code = code_of(k)
    assert len(code._known) == len(order)
    for kinds in (*order, *reversed(order)):
        args, found = operands(kinds, 1000), list[Any]()
        assert by_python(code, lambda a=args, f=found: f.append(k.op(*a))) == 0
        torch.testing.assert_close(found[0], biased(*args))


def test_arguments_that_are_left_out() -> None:
    """With a number among them: its calls take another overload."""
    k = kernel(counted)
    x, bias = torch.randn(5), torch.randn(5)
    for _ in range(3):
        k.op(x, 2), k.op(x, 2, bias)
    code, found = code_of(k), list[Any]()

    def calls() -> None:
        found.extend((k.op(x, 3), k.op(x, 3, None), k.op(x, 3, bias), k.op(x, 3, bias=bias)))

    assert by_python(code, calls) == 0
    for out, own in zip(found, (None, None, bias, bias), strict=True):
        torch.testing.assert_close(out, counted(x, 3, own))
    # Symbolic numbers, dtypes that were not met, and none of the first tensor.
    torch.testing.assert_close(k.op(x.double(), 3, bias.double()), counted(x, 3, bias).double())
    with pytest.raises(RuntimeError, match=r"'Optional\[Tensor\]' for argument 'bias'"):
        k.op(x, 3, "bias")
    with pytest.raises(TypeError, match="must be Tensor, not NoneType"):  # as the kernel says
        k.op(None, 3, bias)


def of_numbers(x: torch.Tensor, n: int | None, s: float | None, up: bool | None) -> torch.Tensor:
    """``scaled`` by torch's operators."""
    value = x if n is None else x + n
    value = value if s is None else value * s
    return value if up is None else value + (10 if up else -10)


def test_numbers_that_may_be_none() -> None:
    k, x = kernel(scaled), torch.randn(5)
    assert "(Tensor x, SymInt? n=None, float? s=None, bool? up=None)" in str(k.op._schema)
    rows = [(None, None, None), (3, None, None), (None, 0.5, True), (2, 1.5, False)]
    for row in rows * 3:
        torch.testing.assert_close(k.op(x, *row), of_numbers(x, *row))
    code = code_of(k)
    assert len(code._known) == 4
    for row in (*reversed(rows), (-(1 << 40), None, None), (None, -0.25, False), (7, 2.5, True)):
        found = list[Any]()
        assert by_python(code, lambda row=row, f=found: f.append(k.op(x, *row))) == 0
        torch.testing.assert_close(found[0], of_numbers(x, *row))
    with pytest.raises(RuntimeError, match=r"'Optional\[int\]' for argument 'n"):
        k.op(x, 0.5)
    with pytest.raises(RuntimeError, match=r"'Optional\[float\]' for argument 's'"):
        k.op(x, None, "much")
    with pytest.raises(RuntimeError, match=r"'Optional\[bool\]' for argument 'up'"):
        k.op(x, None, None, "yes")
    torch.testing.assert_close(k.op(x, s=2), x * 2)  # torch makes it a float
    leaf, weight = x.clone().requires_grad_(), torch.randn(5)
    for row in rows * 3:
        (grad,) = torch.autograd.grad((k.op(leaf, *row) * weight).sum(), leaf)
        torch.testing.assert_close(grad, weight * (1 if row[1] is None else row[1]))


def test_symbolic_numbers_that_may_be_none() -> None:
    k, x = kernel(scaled), torch.randn(5)
    for _ in range(3):
        k.op(x, 2), k.op(x)
    graphs = list[Any]()

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def call(x: torch.Tensor, n: int) -> torch.Tensor:
        return k.op(x, n) + k.op(x, None)

    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
    for n in (5, 6, 7):
        torch.testing.assert_close(compiled(x, n), 2 * x + n)
    assert len(graphs) == 1
    assert k.op(x.to("meta"), 2).shape == (5,)


def test_what_is_written_may_be_none() -> None:
    k = kernel(added)
    x, out, total = torch.randn(6), torch.zeros(6), torch.zeros(6)
    for _ in range(2):
        k.op(x, None, total), k.op(x, out, total)
    code = code_of(k)
    for own in (None, out):
        version, all_versions = out._version, total._version
        out.zero_(), total.zero_()
        assert by_python(code, lambda own=own: k.op(x, own, total)) == 0
        assert torch.equal(total, x + 1)
        assert torch.equal(out, torch.zeros(6) if own is None else x)
        assert (out._version - version, total._version - all_versions) == (1 + (own is not None), 2)


@pytest.mark.parametrize("optional", [False, True])
def test_gradients(optional: bool) -> None:
    k = kernel(biased)

    def leaves(args: list[Any]) -> list[Any]:
        return [a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]

    def gradients(call: Callable[..., Any], args: list[Any], weight: torch.Tensor) -> Any:
        args = leaves(args)
        return torch.autograd.grad((call(*args) * weight).sum(),
                                   [a for a in args if isinstance(a, torch.Tensor)])  # fmt: skip

    def recorded(*args: Any) -> Any:
        with forward_ad.dual_level():  # the operator itself is recorded
            return k.op(*args)

    order = ("bs", "", "b") if optional else ("", "bs", "b")
    for kinds in order * 6:
        args, weight = operands(kinds), torch.randn(7)
        torch.testing.assert_close(
            gradients(recorded, args, weight), gradients(torched, args, weight)
        )
        torch.testing.assert_close(gradients(k.op, args, weight), gradients(torched, args, weight))
    (code,) = [code for code in k.launchers[0].boxed if code.listed]
    assert len(code._known) == 3
    for kinds in order:
        args, weight, found = operands(kinds), torch.randn(7), list[Any]()
        call = functools.partial(gradients, recorded, args, weight)
        assert by_python(code, lambda c=call, f=found: f.extend(c())) == 0
        torch.testing.assert_close(tuple(found), gradients(torched, args, weight))


def torched(x: Any, bias: Any, s: float, scale: Any) -> Any:
    """``biased`` by torch's operators."""
    value = x * s if scale is None else x * s * scale
    return value if bias is None else value + bias


def test_meta_and_fake_tensors_and_graphs() -> None:
    k = kernel(biased)
    for kinds in ("b", "") * 3:
        k.op(*operands(kinds))
    code = code_of(k)
    for kinds in ("", "b", "s", "bs"):
        args = operands(kinds)
        meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
        assert k.op(*meta).shape == (7,)
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
            assert k.op(*fake).shape == (7,)
    compiled = torch.compile(k, fullgraph=True, backend="aot_eager")
    for kinds in ("", "b", "b", ""):
        args = operands(kinds)
        torch.testing.assert_close(compiled(*args), biased(*args))
    for kinds in ("", "b"):
        args = operands(kinds)
        assert by_python(code, lambda args=args: compiled(*args)) == 0


class Heap(ctypes.Structure):
    """What GNU's C library says of its heap: ``mallinfo2``."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]  # fmt: skip


def test_nothing_is_kept() -> None:
    k = kernel(biased)
    given, left = operands("bs"), operands("")
    for _ in range(3):
        k.op(*given), k.op(*left)
    tensors = [a for a in (*given, *left) if isinstance(a, torch.Tensor)]

    heap = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if heap is None:
        pytest.skip("the C library does not say how many bytes are in use")
    heap.restype = Heap

    def memory() -> int:
        return heap().uordblks

    def users() -> list[int]:
        gc.collect()
        return [torch._C._storage_Use_Count(v.untyped_storage()._cdata) for v in tensors]

    def calls(n: int) -> None:
        for _ in range(n):
            k.op(*given), k.op(*left)
            if n < 100:
                k.op(torch._neg_view(given[0]), *given[1:])  # goes on to Python
                with pytest.raises(KernelIndexError, match="`bias` has 0 dimensions"):
                    k.op(given[0], given[1][0], *given[2:])

    calls(3)
    before = users()
    assert by_python(code_of(k), lambda: calls(10_000)) == 0
    calls(20)
    held = memory()
    assert by_python(code_of(k), lambda: calls(50_000)) == 0
    assert users() == before
    assert memory() - held < 500_000  # the words around two tensors, 32 bytes each: 3.2 MB


def test_an_argument_that_may_be_none_is_not_returned_as_it_is() -> None:
    k = kernel(same)
    x, other = torch.zeros(4), torch.zeros(2, 2)
    for _ in range(3):
        out = k.op(x, other)
        assert out.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
