"""What the host part of a kernel does that is interpreted: as Python, and as a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.errors import KernelIndexError, RaceError
from weft.runtime import watch
from weft.source import read_function


def run(function: Any, *args: Any) -> Any:
    return watch.run(function, args, {}, read_function(function))


@weft.kernel
def views(x: torch.Tensor, s: torch.Tensor) -> Any:
    a, last, k = x[0], s[None].shape, -1
    a += 5
    b = x[1] + 1
    c = b
    c += 1
    x[k] = 8.0
    rows = list(x)
    rows[1].add_(4)
    for i in range(x.shape[0]):
        x[i] += 10
    return a, x[k], b, last, f"{a:.1f} {x[1]}", weft.Vector([a, b])


@weft.kernel
def numbers(x: torch.Tensor, s: torch.Tensor) -> Any:
    a, most = x[0], x.max()
    total = x.sum().clone()
    for i in range(1, x.shape[0]):
        y, z = a, most
        y += 1
        z += 1
        total += x[i]
        x[i] = y * z
    for _ in range(1):
        a[None] += 3
    return total


@weft.kernel
def in_order(x: torch.Tensor, s: torch.Tensor) -> Any:
    a = x[0]
    for i in weft.serial(range(x.shape[0])):
        a += x[i]
    return a


@pytest.mark.parametrize("kernel", [views, numbers, in_order])
def test_elements_are_views_in_the_host_part_and_numbers_in_loops(kernel: Any) -> None:
    (x, s), (y, t) = ((torch.arange(4.0) + 1, torch.ones(())) for _ in range(2))
    found, expected = kernel.interpret(x, s), kernel(y, t)
    assert str(found) == str(expected)
    assert torch.equal(x, y)
    assert torch.equal(s, t)
    parts = found if isinstance(found, tuple) else [found]
    assert {type(v) for v in parts if isinstance(v, torch.Tensor)} <= {torch.Tensor}


def test_a_loop_that_changes_what_its_iterations_read_by_another_name_is_a_race() -> None:
    def kernel(x: Any) -> None:
        a = x[0]
        for i in range(x.shape[0]):
            x[i] += a

    with pytest.raises(RaceError) as error:
        run(kernel, torch.ones(3))
    assert error.value.message == (
        "iteration 0 updates (by +=) and iteration 1 reads a tensor of no dimensions, in a loop "
        "whose iterations run at once"
    )


def test_what_the_host_part_changes_of_collections_and_objects_stays() -> None:
    class Holder:
        state: Any = None

    def kernel(x: Any, items: Any, named: Any, holder: Any, *more: Any) -> Any:
        items[0] = x * 2
        items.append(x)
        named["new"] = items
        named["old"][1].pop()
        holder.state = [x + 1, x[0]]
        more[0][0] = 3
        for i in range(x.shape[0]):
            items[0][i] += 1
        return items, named["old"]

    x, old = torch.ones(2), torch.zeros(2)
    items, named, holder, more = [old], {"old": (old, [old, 5])}, Holder(), [1]
    first, second = run(kernel, x, items, named, holder, more)
    assert first is items is named["new"]
    assert items[0].tolist() == [3.0, 3.0]
    assert items[1] is x
    assert second[0] is second[1][0] is old
    assert len(second[1]) == 1
    assert more == [3]
    tensors = [*items, *holder.state]
    assert {type(t) for t in tensors} == {torch.Tensor}
    x[0] = 7
    assert holder.state[1] == 7


def test_collections_are_as_before_where_a_kernel_raises() -> None:
    def kernel(items: Any) -> None:
        for i in range(3):
            items[0][i] = 1

    items = [torch.zeros(2)]
    with pytest.raises(KernelIndexError):
        run(kernel, items)
    assert type(items[0]) is torch.Tensor


def test_torchs_named_results_keep_their_names() -> None:
    def kernel(x: Any, first: Any) -> Any:
        order, best = x.sort(), torch.topk(x, 2)
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[order.indices[i]] + best.values[0] * first.values[0]
        return out, order

    x = torch.tensor([2.0, 1.0, 4.0])
    out, order = run(kernel, x, x.sort())
    assert out.tolist() == [5.0, 6.0, 8.0]
    assert type(order) is type(x.sort())
    assert type(order.values) is torch.Tensor


@weft.kernel
def fields(x: torch.Tensor) -> Any:
    pairs = weft.Vector.field(2, weft.f32, shape=3)
    moved = weft.field(weft.f32, shape=4, offset=-2)
    local = weft.zeros(2)
    a, c = moved[-2], local[0]
    c += 1
    for i in pairs:
        pairs[i] = weft.Vector([x[i], 1.0])
    for i in moved:
        moved[i] = x[i + 2]
    return pairs.to_torch(), moved.to_torch(), float(a), local.tolist()


def test_fields_are_made_in_kernels() -> None:
    x = torch.arange(4.0)
    assert str(fields.interpret(x)) == str(fields(x)) == str(fields.function(x))

    def racing() -> None:
        made = weft.Vector.field(2, weft.f32, shape=3)
        for i in range(3):
            made[0] = weft.Vector([i, i])

    with pytest.raises(RaceError):
        run(racing)


@weft.kernel
def counted(x: torch.Tensor, field: torch.Tensor, out: torch.Tensor) -> None:
    for b in range(x.shape[0]):
        counts = weft.zeros((2, 4), weft.i32)
        ones = torch.zeros(4)
        counts[1, x[b]] += 2
        counts[x[b] >> 1][x[b]] += 3
        ones[x[b]] = 1
        field[x[b]] = 7
        for k in range(4):
            out[b, k] = counts[0, k] + 10 * counts[1, k] + 100 * ones[k]


def test_an_element_of_bytes_is_a_subscript_and_no_mask() -> None:
    x = torch.tensor([0, 3, 1], dtype=torch.uint8)
    fields = [weft.field(weft.i32, shape=5) for _ in range(2)]
    results = [torch.empty(3, 4) for _ in fields]
    counted(x, fields[0], results[0])
    counted.interpret(x, fields[1], results[1])
    counted.function(x, plain := weft.field(weft.i32, shape=5), torch.empty(3, 4))
    wanted = [[123, 0, 0, 0], [0, 0, 0, 150], [0, 123, 0, 0]]
    assert results[0].tolist() == results[1].tolist() == wanted
    for field in (*fields, plain):
        assert field.to_numpy().tolist() == [7, 7, 0, 7, 0]
