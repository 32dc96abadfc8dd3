"""``total += x[i]`` where ``total`` is a parameter: a tensor is added to in place, as in Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.errors import KernelTypeError


@weft.kernel
def added(x, total):
    for i in range(x.shape[0]):
        total += x[i]


@weft.kernel
def given_back(x, total):
    for i in range(x.shape[0]):
        total -= x[i]
    return total


@weft.kernel
def by_loops(x, total, count):
    y = x * 2
    for i in range(x.shape[0]):
        total += x[i] * y[i]
        count += 1
    for i in range(x.shape[0]):
        y[i] = total * x[i]
    for _ in weft.serial(range(2)):
        for i in range(x.shape[0]):
            total += x[i]
    return y, count, total


@weft.kernel
def replaced(x, total=None):
    if total is None:
        total = torch.ones((), dtype=x.dtype)
    for i in range(x.shape[0]):
        total += x[i]
    return total


@weft.kernel
def larger(x, total):
    for i in range(x.shape[0]):
        total = max(total, x[i])
    return total


@weft.kernel
def anew(x, total):
    for i in range(x.shape[0]):
        total = total + x[i]
    return total


KERNELS = [(added, 1), (given_back, 1), (by_loops, 2), (replaced, 1), (larger, 1), (anew, 1)]
BACKENDS = ["", "aot_eager", "inductor"]


def run(kernel: Any, backend: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return kernel(*args)

    torch._dynamo.reset()  # one of many kernels
    return torch.compile(call, backend=backend, fullgraph=True) if backend else call


def listed(out: Any) -> list[Any]:
    outs = out if isinstance(out, tuple) else (out,)
    return [v.item() if isinstance(v, torch.Tensor) and v.dim() == 0 else v for v in outs]


@pytest.mark.filterwarnings("ignore:.*`replaced`. it returns memory of an argument")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kernel", "totals"), KERNELS, ids=[k.__name__ for k, _ in KERNELS])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_as_python_does(kernel: Any, totals: int, length: int, backend: str) -> None:
    """The tensor of the caller stayed as it was; a compiled kernel gave back that one."""
    x = torch.linspace(1, 2, length, dtype=torch.float64)
    for given in ([0.5, 7][:totals], [torch.tensor(0.5, dtype=x.dtype), torch.tensor(7)][:totals]):
        copies = [v.clone() if isinstance(v, torch.Tensor) else v for v in given]
        mine, expected = run(kernel, backend)(x, *given), kernel.function(x, *copies)
        for one, other in zip(listed(mine), listed(expected), strict=True):
            torch.testing.assert_close(one, other, check_dtype=False)
        for one, other in zip(given, copies, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_views_and_twice(backend: str) -> None:
    """As an operator of a graph, ``given_back`` gives back the argument."""
    x, totals = torch.arange(1.0, 4.0), torch.zeros(2, 3)
    for _ in range(2):
        run(added, backend)(x, totals[1, 2])
    assert totals.tolist() == [[0, 0, 0], [0, 0, 12]]
    own = torch.tensor(1.0)
    assert run(given_back, backend)(x, own) is own


@weft.kernel
def normalised(x, total):
    y = x * 2
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    for i in range(x.shape[0]):
        y[i] = total * x[i]
    for i in range(x.shape[0]):
        total += y[i]
    return y, total


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("known", [False, True])
def test_gradients(backend: str, known: bool) -> None:
    """The second loop's needs what the third overwrites."""
    x, start = torch.rand(3, dtype=torch.float64) + 0.5, torch.tensor(0.5, dtype=torch.float64)
    found: list[Any] = []

    def plain(x: torch.Tensor, start: torch.Tensor) -> Any:
        y = (start + (x * 2 * x).sum()) * x
        return y, start + (x * 2 * x).sum() + y.sum()

    for function in (run(normalised, backend), plain):
        leaves = x.clone().requires_grad_(), start.clone().requires_grad_(known)
        total = leaves[1] * 1  # no leaf, which torch does not let anybody add to
        y, last = function(leaves[0], total)
        (y.sum() + 3 * last).backward()
        if function is not plain:
            assert torch.equal(last, total)
            assert total.requires_grad
        found.append([t.grad for t in leaves if t.requires_grad])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("number", "tensor"),
    [(torch.float32, torch.int64), (torch.int32, torch.bool), (torch.float16, torch.uint8)],
)
def test_what_torch_does_not_add_in_place(number: torch.dtype, tensor: torch.dtype) -> None:
    x, total = torch.ones(3, dtype=number), torch.ones((), dtype=tensor)
    with pytest.raises(KernelTypeError, match=r"`total` is a tensor .* adds \w+ in place"):
        added(x, total)
    assert total == 1
    assert anew(x, total) == 4
    with pytest.raises(RuntimeError, match="can't be cast"):
        added.function(x, total)


def test_numbers_that_the_tensor_rounds() -> None:
    pairs = ((torch.float64, torch.float32), (torch.int64, torch.uint8),
             (torch.int8, torch.float16), (torch.complex64, torch.complex128))  # fmt: skip
    for number, tensor in pairs:
        x, mine, pythons = torch.ones(3, dtype=number), *torch.full((2,), 250.0).to(tensor)
        added(x, mine)
        added.function(x, pythons)
        assert torch.equal(mine, pythons)


def test_a_tensor_that_has_another_name() -> None:
    """Python would change what has the other name, too: refused."""

    @weft.kernel
    def unpacked(x, y):
        s, n = y, 0
        for i in range(x.shape[0]):
            s += x[i]
        return s, n

    @weft.kernel
    def chosen(x, y):
        s = y if x[0] > 0 else x[1]
        for i in range(x.shape[0]):
            s += x[i]
        return s

    @weft.kernel
    def squeezed(x, y):
        s = y.squeeze()
        for i in range(x.shape[0]):
            s += x[i]
        return s

    @weft.kernel
    def named(x, y):
        if (s := y) is None:
            return x
        for i in range(x.shape[0]):
            s += x[i]
        return s

    @weft.kernel
    def both(x, y):
        s = y.clone()
        t = s
        for i in range(x.shape[0]):
            s += x[i]
        return s, t

    for kernel in (unpacked, chosen, squeezed, named):
        with pytest.raises(KernelTypeError, match="`s` is another name of a tensor"):
            kernel(torch.ones(3), torch.tensor(1.0))
    with pytest.raises(KernelTypeError, match="`t` is another name of `s`"):
        both(torch.ones(3), torch.tensor(1.0))


def test_numbers_of_their_own() -> None:
    """What begins as a number or as an element is one."""

    @weft.kernel
    def kernel(x):
        first, s, least = x[0], 0.0, -math.inf
        for i in range(1, x.shape[0]):
            first += x[i]
            s += x[i]
            least = max(least, x[i])
        before = s
        for i in range(x.shape[0]):
            s += x[i]
        return first, before, s, least

    x = torch.arange(1.0, 4.0)
    assert [v.item() for v in kernel(x)] == [6.0, 5.0, 11.0, 3.0]
    assert x.tolist() == [1, 2, 3]


def test_a_tensor_that_would_be_the_same_or_another() -> None:
    """What is larger decides in Python whether the second loop changes the caller's tensor."""

    @weft.kernel
    def kernel(x, total):
        for i in range(x.shape[0]):
            total = max(total, x[i])
        for i in range(x.shape[0]):
            total += x[i]
        return total

    with pytest.raises(KernelTypeError, match="another loop gives the name another value"):
        kernel(torch.ones(3), torch.tensor(1.0))
    assert kernel(torch.ones(3), 0.5) == 4


@weft.kernel
def of_no_tensor(x, c, n):
    y = torch.empty_like(x)
    for _ in range(x.shape[0]):
        c -= n
    d = 0.0
    for i in range(3):
        d += i * n
    for i in range(x.shape[0]):
        y[i] = x[i] * c + d
    return c, y


@weft.kernel
def scaled(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        y[i] = x[i] * s
    return y


@weft.kernel
def written(x: torch.Tensor, s: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s[()] += x[i]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("given", [2.0, torch.tensor(2.0)], ids=["number", "tensor"])
def test_totals_of_loops_that_read_no_tensor(given: Any, backend: str) -> None:
    """Those are on the CPU, wherever the tensors of the loops behind are."""
    call = run(of_no_tensor, backend)
    for n in (0.5, 0.25, 1.0):
        own = given.clone() if isinstance(given, torch.Tensor) else given
        x = torch.rand(3).requires_grad_()
        c, y = call(x, own, n)
        assert float(c) == 2 - 3 * n
        torch.testing.assert_close(y, x * (2 - 3 * n) + 3 * n)
        torch.testing.assert_close(
            torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 2 - 3 * n)
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_of_the_cpu_is_read_beside_tensors_of_a_device(backend: str) -> None:
    """As by PyTorch's operators. What the loop would write to is refused."""
    call = run(scaled, backend)
    for size in (3, 3, 4):
        x, s = torch.rand(size), torch.tensor(1.5, device="cpu", requires_grad=True)
        y = call(x, s)
        torch.testing.assert_close(y, x * 1.5)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), s)[0], x.sum().cpu())
    grad = torch.func.grad(lambda s: scaled(x, s).sum())(s.detach())
    torch.testing.assert_close(grad, x.sum().cpu())
    meta = torch.empty(3, device="meta")
    assert scaled(meta, s.detach()).is_meta
    for one, number in ((meta, s.detach()), (meta.clone().requires_grad_(), s.detach())):
        with pytest.raises(weft.KernelValueError, match=r"`s` (is )?on cpu"):
            written(one, number)
    with pytest.raises(weft.KernelValueError, match=r"`s` (is )?on cpu"):
        scaled(meta, s)
    if x.is_cuda:
        with pytest.raises(weft.KernelValueError, match=r"`s` (is )?on cpu"):
            written(x, s.detach())
