"""Jagged tensors: against the kernel on each component of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

import weft
from weft.errors import KernelTypeError

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def batch(*shape: int, lengths: tuple[int, ...] = (3, 0, 5, 1), dtype: Any = torch.float64) -> Any:
    parts = [torch.randn(n, *shape, dtype=dtype) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def like(x: Any) -> Any:
    values = torch.randn_like(x.values())
    return torch.nested.nested_tensor_from_jagged(values, x.offsets())


@weft.kernel
def rows(x: torch.Tensor, w: torch.Tensor, scale: float) -> torch.Tensor:
    """Of one component."""
    n, d = x.shape
    out = torch.empty_like(x)
    for i in range(n):
        total = 0.0
        for k in range(d):
            total += x[i, k] * w[k]
        for k in range(d):
            out[i, k] = torch.exp(-total) * x[i, k] + scale
    return out


@weft.kernel
def whole(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Of the batch: the ragged dimension is the second one."""
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            part = weft.zeros(2, weft.f64)
            for k in range(x.shape[2]):
                part[k % 2] += x[b, i, k] * w[k]
            for k in range(x.shape[2]):
                out[b, i, k] = part[0] * y[b, i, k] if part[1] > 0 else part[1]
    return out


@weft.kernel
def elements(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.empty_like(x)
    b = torch.empty_like(y)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        a[i, j] = x[i, j] * y[i, j]
        b[i, j] = x[i, j] - y[i, j]
    return a, b


@weft.kernel
def doubled(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        x[i] *= 2


def same(found: Any, wanted: list[torch.Tensor]) -> None:
    parts = found.unbind()
    assert len(parts) == len(wanted)
    for a, b in zip(parts, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_a_kernel_of_a_component_is_carried_out_over_all_rows() -> None:
    x, w = batch(3), torch.randn(3, dtype=torch.float64)
    out = rows(x, w, 0.5)
    same(out, [rows(c, w, 0.5) for c in x.unbind()])
    same(out + x, [rows(c, w, 0.5) + c for c in x.unbind()])  # of the same offsets


def test_a_kernel_of_the_batch_has_the_ragged_dimension_second() -> None:
    x = batch(4)
    y, w = like(x), torch.randn(4, dtype=torch.float64)
    pairs = zip(x.unbind(), y.unbind(), strict=True)
    same(whole(x, y, w), [whole(a[None], b[None], w)[0] for a, b in pairs])
    x, y = batch(dtype=torch.complex64), None
    y = like(x)
    a, b = elements(x, y)
    same(a, [p * q for p, q in zip(x.unbind(), y.unbind(), strict=True)])
    same(b, [p - q for p, q in zip(x.unbind(), y.unbind(), strict=True)])


@weft.kernel
def columns(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n, d = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(n, d):
        out[i, j] = x[i, j] * w[j]
    return out


@weft.kernel
def halved(x: torch.Tensor) -> torch.Tensor:
    n, d = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(n, d):
        out[i, j] = x[i, j] / 2
    return out


def test_the_rank_that_a_host_part_takes_apart_says_what_a_kernel_is_of() -> None:
    """Otherwise x[i, j] may be a row: the host part failed, or columns were taken for rows."""
    x, w = batch(3), torch.randn(3, dtype=torch.float64)
    same(columns(x, w), [columns(c, w) for c in x.unbind()])
    same(halved(x), [c / 2 for c in x.unbind()])
    with pytest.raises(
        weft.KernelTypeError, match="takes apart the sizes of a tensor of another rank"
    ):
        halved(batch(3, 4))


@weft.kernel
def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[0], w.shape[1])
    for i, j in weft.ndrange(x.shape[0], w.shape[1]):
        s = 0.0
        for k in range(x.shape[1]):
            s += x[i, k] * w[k, j]
        out[i, j] = s
    return out


@weft.kernel
def linear_of_batch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros((x.shape[0], x.shape[1], w.shape[1]), dtype=x.dtype, device=x.device)
    for b, i, j in weft.ndrange(x.shape[0], x.shape[1], w.shape[1]):
        for k in range(x.shape[2]):
            out[b, i, j] += x[b, i, k] * w[k, j]
    return out


@weft.kernel
def gated(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-1] // 2
    out = x.new_empty(x.shape[0], n)
    for i, j in weft.ndrange(x.shape[0], n):
        out[i, j] = x[i, j] * x[i, j + n]
    return out


@weft.kernel
def extremes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    most, where = x.new_empty(x.shape[0]), torch.empty(x.shape[0], dtype=torch.int64)
    for i in range(x.shape[0]):
        best, at = x[i, 0], 0
        for k in range(1, x.shape[1]):
            if x[i, k] > best:
                best, at = x[i, k], k
        most[i], where[i] = best, at
    return most, where


@weft.kernel
def norms(x: torch.Tensor) -> torch.Tensor:
    B, n, d = x.shape
    out = x.new_zeros(B, n)
    for b, i in weft.ndrange(B, n):
        for k in range(d):
            out[b, i] += x[b, i, k] * x[b, i, k]
    return out


@weft.kernel
def weighted(ws: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[0], 2)
    for i in range(x.shape[0]):
        s = 0.0
        for k in range(x.shape[1]):
            s += x[i, k] * ws[0][k]
        out[i, 0] = s
        out[i, 1] = ws[1][0] * s
    return out


def test_a_list_stands_before_what_is_ragged() -> None:
    """Its members had been counted for the arguments behind it."""
    x = batch(4)
    ws = [torch.randn(n, dtype=torch.float64) for n in (4, 1)]
    same(weighted(ws, x), [weighted(ws, c) for c in x.unbind()])


scales = torch.arange(1.0, 5.0, dtype=torch.float64)


def scaled(value: Any, k: Any) -> Any:
    return value * scales[k]


@weft.kernel
def by_a_function(x: torch.Tensor) -> torch.Tensor:
    n, d = x.shape
    out = torch.empty_like(x)
    for i, k in weft.ndrange(n, d):
        out[i, k] = scaled(x[i, k], k)
    return out


def test_a_function_reaches_a_tensor() -> None:
    """The second call was refused: the loop took one argument more than the host part passes."""
    x = batch(4)
    for _ in range(3):
        same(by_a_function(x), [c * scales for c in x.unbind()])


def test_what_a_row_becomes_has_sizes_of_its_own() -> None:
    x, w = batch(4), torch.randn(4, 3, dtype=torch.float64)
    for kernel in (linear, linear_of_batch):
        same(kernel(x, w), [c @ w for c in x.unbind()])
    assert (linear(x, w) + linear_of_batch(x, w)).shape == (4, x.shape[1], 3)
    same(gated(x), [c[:, :2] * c[:, 2:] for c in x.unbind()])
    same(norms(x), [c.square().sum(1) for c in x.unbind()])
    most, where = extremes(x)
    same(most, [c.amax(1) for c in x.unbind()])
    same(where, [c.argmax(1) for c in x.unbind()])


@pytest.mark.parametrize("kernel", [linear, linear_of_batch], ids=["component", "batch"])
def test_gradients_of_rows_that_have_sizes_of_their_own(kernel: Callable[..., Any]) -> None:
    x, w = batch(4), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    offsets = x.offsets()

    def of_values(values: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return kernel(torch.nested.nested_tensor_from_jagged(values, offsets), w).values()

    assert gradcheck(of_values, (x.values().clone().requires_grad_(), w), check_forward_ad=False)


def test_what_is_written_is_the_tensors_own_memory() -> None:
    x = batch()
    before = x.values().clone()
    assert doubled(x) is None
    assert torch.equal(x.values(), 2 * before)


@pytest.mark.slow
def test_gradients() -> None:
    x, w = batch(3), torch.randn(3, dtype=torch.float64, requires_grad=True)
    offsets = x.offsets()

    def of_values(values: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return rows(torch.nested.nested_tensor_from_jagged(values, offsets), w, 0.5).values()

    assert gradcheck(of_values, (x.values().clone().requires_grad_(), w), check_forward_ad=False)
    x = x.detach().requires_grad_()
    y = like(x)
    whole(x, y, w).values().square().sum().backward()
    parts = [c.detach().requires_grad_() for c in x.unbind()]
    pairs = zip(parts, y.unbind(), strict=True)
    sum(whole(a[None], b[None], w).square().sum() for a, b in pairs).backward()  # type: ignore[union-attr]
    same(x.grad, [p.grad if p.grad is not None else torch.zeros_like(p) for p in parts])


@weft.kernel
def shifted(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0] - 1):
        out[i] = x[i + 1]
    return out


@weft.kernel
def numbered(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * i
    return out


@weft.kernel
def averaged(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] / x.shape[0]
    return out


@weft.kernel
def all_pairs(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            out[i] += x[j]
    return out


@weft.kernel
def carried(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        total = 0.0
        for i in range(x.shape[1]):
            total += x[b, i]
            out[b, i] = total
    return out


@weft.kernel
def kept(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        total = weft.zeros(1, weft.f64)
        for i in range(x.shape[1]):
            total[0] += x[b, i]
            out[b, i] = total[0]
    return out


@weft.kernel
def summed(x: torch.Tensor):
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i]
    return total


@weft.kernel
def collected(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[0] += x[i]


@weft.kernel
def hosted(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for i in range(x.shape[0]):
        y[i] = y[i] + x[i]
    return y


@weft.kernel
def products(x: torch.Tensor) -> torch.Tensor:
    n, d = x.shape
    out = x.new_empty(n, n)
    for i, j in weft.ndrange(n, n):
        s = 0.0
        for k in range(d):
            s += x[i, k] * x[j, k]
        out[i, j] = s
    return out


@weft.kernel
def halves(x: torch.Tensor) -> torch.Tensor:
    n, d = x.shape
    half = n // 2
    out = x.new_empty(half, d)
    for i, k in weft.ndrange(half, d):
        out[i, k] = x[i, k]
    return out


@weft.kernel
def of_components(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Sums of rows, of a batch: of one component, its rows would be added up across."""
    out = x.new_zeros(x.shape[0], w.shape[0])
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[b] += x[b, i]
    return out


@weft.kernel
def only_returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, other = torch.empty_like(x), x.new_zeros(3)
    for i in range(x.shape[0]):
        out[i] = x[i] + other[0]
    return out, other


@weft.kernel
def third(x: torch.Tensor) -> torch.Tensor:
    d = x.shape[2]
    out = torch.empty_like(x)
    for b, i, k in weft.ndrange(x.shape[0], x.shape[1], d):
        out[b, i, k] = x[b, i, k] / d
    return out


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "a loop goes through a part of the ragged dimension|computes with the number of": (
        shifted, lambda x: (x,)),
    "the loop computes with the number of a row": (numbered, lambda x: (x,)),
    "the loop computes with the number of a row, or of all rows": (averaged, lambda x: (x,)),
    "a row is combined with others": (all_pairs, lambda x: (x,)),
    "a value is carried from row to row": (carried, lambda x: (x,)),
    "a local array is kept from row to row": (kept, lambda x: (x,)),
    "the loop reduces into a scalar": (summed, lambda x: (x,)),
    "writes to a tensor that is not ragged": (collected, lambda x: (x, torch.zeros(1).double())),
    "makes a tensor whose first sizes are not those of rows": (
        products, lambda x: (x.unsqueeze(-1),)),
    "the host part computes with the number of rows": (halves, lambda x: (x.unsqueeze(-1),)),
    "whose first sizes are not those of rows\n": (
        of_components, lambda x: (x.unsqueeze(-1), torch.zeros(1))),
    "the kernel returns a tensor that is like none": (only_returned, lambda x: (x,)),
    "takes apart the sizes of a tensor of another rank": (third, lambda x: (x,)),
    "more than one loop over its parameters": (hosted, lambda x: (x,)),
    "are jagged tensors of different offsets": (elements, lambda x: (x, batch())),
    "a gradient is asked for, and the kernel writes to `x`": (
        doubled, lambda x: (x.requires_grad_(),)),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_of_independent_rows_is_refused(why: str) -> None:
    kernel, args = REFUSED[why]
    with pytest.raises(weft.KernelTypeError, match=why):
        kernel(*args(batch()))


@weft.kernel
def totals(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[0], x.shape[2])
    for i, k in weft.ndrange(x.shape[0], x.shape[2]):
        s = 0.0
        for t in range(x.shape[1]):
            s += x[i, t, k]
        out[i, k] = s
    return out


@weft.kernel
def totals_of_rows(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = values.new_empty(offsets.shape[0] - 1, values.shape[1])
    for i, k in weft.ndrange(offsets.shape[0] - 1, values.shape[1]):
        s = 0.0
        for t in range(offsets[i], offsets[i + 1]):
            s += values[t, k]
        out[i, k] = s
    return out


@weft.kernel
def shifted_rows(values: torch.Tensor, offsets: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(values)
    for i in range(offsets.shape[0] - 1):
        for t in range(offsets[i], offsets[i + 1]):
            for k in range(values.shape[1]):
                out[t, k] = values[t, k] * y[i, k]
    return out


def test_the_way_out_of_what_is_refused_is_right() -> None:
    parts = [torch.randn(n, 3, dtype=torch.float64) for n in (2, 0, 4, 1)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    with pytest.raises(KernelTypeError) as info:
        totals(x)
    assert info.value.help == (
        "pass x.values() and x.offsets() to a kernel of all rows, where component i has those of "
        "`for t in range(offsets[i], offsets[i + 1])`; rows that it returns become jagged by "
        "torch.nested.nested_tensor_from_jagged(rows, x.offsets())"
    )
    counts = x.offsets().diff()
    out, g = totals_of_rows(x.values(), x.offsets()), torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(out, torch.stack([p.sum(0) for p in parts]))
    (grad,) = torch.autograd.grad(out, x, g)
    torch.testing.assert_close(grad.values(), g.repeat_interleave(counts, 0))
    y = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    rows_out = shifted_rows(x.values(), x.offsets(), y)
    wanted = x.values() * y.repeat_interleave(counts, 0)
    torch.testing.assert_close(rows_out, wanted)
    made = torch.nested.nested_tensor_from_jagged(rows_out, x.offsets())
    assert made.shape == x.shape
    h = torch.randn(7, 3, dtype=torch.float64)
    found = torch.autograd.grad(rows_out, (x, y), h)
    for a, b in zip(found, torch.autograd.grad(wanted, (x, y), h), strict=True):
        pair = (t.values() if t.is_nested else t for t in (a, b))
        torch.testing.assert_close(*pair)
