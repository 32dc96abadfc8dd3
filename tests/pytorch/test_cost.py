"""What calls cost: ``kernel.cost`` and ``FlopCounterMode``, against operations that are counted one
by one."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import weft
from weft.index.operations import FLOPS, kind_of
from weft.pytorch import cost as costs
from weft.pytorch.flops import CountWarning


@weft.kernel
def around(x):
    n, m = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(n, m):
        beside = x[(i + 1) % n, j] + x[(i - 1) % n, j] + x[i, (j + 1) % m] + x[i, (j - 1) % m]
        out[i, j] = beside - 4.0 * x[i, j]
    return out


@weft.kernel
def conv(w: torch.Tensor, k: torch.Tensor, eps: float) -> torch.Tensor:
    B, C, T = k.shape
    out = torch.empty_like(k)
    for b, c, t in weft.ndrange(B, C, T):
        s = eps
        for u in range(t + 1):
            s += w[c, T - 1 - t + u] * k[b, c, u]
        out[b, c, t] = s
    return out


@weft.kernel
def softmax(x: torch.Tensor) -> torch.Tensor:
    n, m = x.shape
    out = torch.empty_like(x)
    for i in range(n):
        top = x[i, 0]
        for j in range(1, m):
            top = max(top, x[i, j])
        total = 0.0
        for j in range(m):
            total += weft.exp(x[i, j] - top)
        for j in range(m):
            out[i, j] = weft.exp(x[i, j] - top) / total
    return out


@weft.kernel
def banded(out: torch.Tensor, x: torch.Tensor):
    n = x.shape[0]
    for i in range(n):
        for j in range(max(0, i - 2), min(n, i + 3)):
            if (i + j) % 2 == 0:
                out[i] += x[j] * x[j] - 1.0
            else:
                out[i] -= x[j] / 3.0
        for j in range(i, n, 3):
            out[i] = -out[i] * x[j]


@weft.kernel
def positive(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        if x[i] > 0:
            out[i] = x[i] * x[i] + 1.0
        else:
            out[i] = x[i]
    return out


@weft.kernel
def rows(starts: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(starts.shape[0] - 1)
    for i in range(out.shape[0]):
        s = 0.0
        for j in range(starts[i], starts[i + 1]):
            s += x[j]
        out[i] = s * 2.0
    return out


@weft.kernel
def total(x: torch.Tensor):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i] * x[i]
    return s


@weft.kernel
def hosted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    out = torch.empty_like(y)
    for i, j in weft.ndrange(*y.shape):
        out[i, j] = y[i, j] * y[i, j]
    return out


@weft.kernel
def twice(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
    z = torch.empty_like(x)
    for i in range(x.shape[0]):
        z[i] = y[i] * y[i] + x[i]
    return z


def draw(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64)


def carried_out(run: Callable[..., Any]) -> Counter[str]:
    """The operations that the IR's interpreter carries out."""
    found: Counter[str] = Counter()

    def watch(op: Any, *_: Any) -> None:
        kind = kind_of(op)
        if kind:
            found[kind] += 1
            found["FLOPs"] += FLOPS[kind]

    run(watch)
    return found


def line(kernel: Any, loop: int = 0) -> int:
    return kernel.parts.regions[loop].span.line


def counts(cost: Any) -> dict[str, int]:
    assert all(bounds.exact for bounds in cost.operations.values())
    return {kind: bounds.value for kind, bounds in cost.operations.items() if bounds.value}


class Number(float):
    """A float that counts what is done with it."""

    done: ClassVar[Counter[str]] = Counter()

    def _as(kind: str, name: str) -> Any:
        def method(self: float, *other: float) -> Number:
            Number.done[kind] += 1
            return Number(getattr(float, name)(self, *other))

        return method

    __add__, __radd__ = _as("add", "__add__"), _as("add", "__radd__")
    __sub__, __rsub__ = _as("add", "__sub__"), _as("add", "__rsub__")
    __mul__, __rmul__ = _as("multiply", "__mul__"), _as("multiply", "__rmul__")
    __truediv__ = _as("divide", "__truediv__")
    __neg__ = _as("sign and rounding", "__neg__")


class Row(list[float]):
    """What stands for a tensor in the undecorated Python."""

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def __getitem__(self, k: Any) -> Any:
        return Number(super().__getitem__(k))


@pytest.mark.parametrize("n", [0, 1, 2, 7, 12])
def test_counts_are_those_of_the_python(n):
    Number.done.clear()
    banded.function(Row([0.5] * n), Row([0.25] * n))
    cost = banded.cost(torch.zeros(n), torch.ones(n))
    found = counts(cost)
    # `out[i] -= x` adds the negative of x.
    kinds = ("add", "multiply", "divide")
    assert [found.get(k, 0) for k in kinds] == [Number.done[k] for k in kinds]
    assert found.get("FLOPs", 0) == sum(Number.done[k] for k in kinds)


@pytest.mark.parametrize(
    ("kernel", "args"),
    [(conv, (draw(3, 5), draw(2, 3, 5), 0.5)), (twice, (draw(5),)), (banded, (draw(9), draw(9))),
     (softmax, (draw(4, 6),)), (positive, (draw(4) - 0.5,))],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_counts_are_those_of_what_is_carried_out(kernel, args):
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    forward = carried_out(lambda watch: kernel.backward.interpreted((*copies,), {}, watch))
    every = carried_out(lambda watch: kernel.backward.interpret(*args, watch=watch))
    for cost, expected in ((kernel.cost(*args), forward),
                           (kernel.backward.cost(*args), every - forward)):  # fmt: skip
        for kind, bounds in cost.operations.items():
            assert bounds.most is not None
            assert bounds.least <= expected[kind] <= bounds.most
            assert bounds.exact or kernel in (softmax, positive)
        assert expected.keys() <= cost.operations.keys()


def both(kernel: Any, *args: Any) -> tuple[int, int]:
    """FLOPs of forward and backward, as FlopCounterMode counts them."""
    given = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point()
             else a for a in args]  # fmt: skip
    with FlopCounterMode(display=False) as mode:
        out = kernel(*given)
        forward = mode.get_total_flops()
        out.sum().backward()
    return forward, mode.get_total_flops() - forward


def test_flop_counter_mode():
    T = 9
    pairs = 2 * 3 * T * (T + 1) // 2
    assert both(conv, draw(3, T), draw(2, 3, T), 0.5) == (2 * pairs, 4 * pairs)
    n, m = 4, 6  # x @ w: 2 * n * m * m, its gradient twice that
    product = 2 * n * m * m
    assert both(hosted, draw(n, m), draw(m, m))[0] == product + n * m


@pytest.mark.parametrize("calls", [1, 5])
def test_a_gradient_of_a_call_that_was_not_counted_says_so(calls):
    x = draw(4, 6).requires_grad_()
    for _ in range(calls):
        out = hosted(x, draw(6, 6))
        out.sum().backward(retain_graph=True)
    with FlopCounterMode(display=False) as mode, pytest.warns(CountWarning) as warned:
        out.sum().backward()
    assert mode.get_total_flops() == 2 * 4 * 6 * 6  # the host part's x @ w
    assert "the FLOPs of this loop's gradient are not counted" in str(warned[0].message)


def test_a_gradient_counts_what_the_host_part_does():
    n, m = 4, 6
    x, w = draw(n, m), draw(m, m)
    own = hosted.backward.cost(x, w)
    assert own.host == 2 * (2 * n * m * m)
    assert own.flops == own.host + own.operations["FLOPs"].value
    _, backward = both(hosted, x, w)
    # The operator's gradient carries the host part out again.
    assert backward == own.flops + hosted.cost(x, w).host


def test_loops_in_traced_graphs_are_counted():
    x, w = draw(4, 6), draw(6, 6)
    graph = make_fx(lambda x, w: hosted(x, w), tracing_mode="symbolic")(x, w)
    assert "_loop0_" in graph.code
    with FlopCounterMode(display=False) as mode:
        graph(x, w)
    by_name = {str(k): v for k, v in mode.get_flop_counts()["Global"].items()}
    assert by_name.pop("aten.mm") == 2 * 4 * 6 * 6
    assert list(by_name.values()) == [4 * 6]


def test_gradients_in_traced_graphs_are_counted():
    w, k = draw(3, 8), draw(2, 3, 8)

    def grads(w, k):
        w, k = w.detach().requires_grad_(), k.detach().requires_grad_()
        return torch.autograd.grad(conv(w, k, 0.5).sum(), (w, k))

    graph = make_fx(grads)(w, k)
    assert "_backward" in graph.code
    with FlopCounterMode(display=False) as mode:
        graph(w, k)
    assert mode.get_total_flops() == 6 * (2 * 3 * 8 * 9 // 2)


def test_symbolic_sizes():
    found = []

    def f(w, k):
        with FlopCounterMode(display=False) as mode:
            out = conv(w, k, 0.5)
        found.append(mode.get_total_flops())
        return out

    graph = make_fx(f, tracing_mode="symbolic")(draw(3, 8), draw(2, 3, 8))
    assert graph is not None
    (count,) = found
    assert isinstance(count, torch.SymInt)
    assert count.node.shape_env.guards == []
    assert count.node.hint == 2 * (2 * 3 * 8 * 9 // 2)


def test_a_gradient_of_what_wraps_around_is_counted() -> None:
    """It took minutes: a step for each remainder of the size, or the whole budget of steps for
    each row."""
    for rows, columns in ((3, 4), (1, 5), (1200, 900)):
        found = around.backward.cost(torch.empty(rows, columns, device="meta"))
        assert found.exact
        each = {"add": 5, "multiply": 1, "sign and rounding": 1, "FLOPs": 6}
        assert {k: n.value for k, n in found.operations.items()} == {
            kind: n * rows * columns for kind, n in each.items()
        }


def test_data_that_decide_are_said():
    x = draw(5)
    with FlopCounterMode(display=False) as mode, pytest.warns(CountWarning) as warned:
        positive(x)
    assert mode.get_total_flops() == 10
    name = positive.op._schema.name
    assert str(warned[0].message) == (
        f"kernel `positive`: data or conditions decide how many FLOPs `{name}` has: at most 10 are "
        "counted\n"
        "help: kernel.cost(...) says of which loops"
    )
    starts = torch.tensor([0, 2, 5])
    with FlopCounterMode(display=False) as mode, pytest.warns(CountWarning, match="at least 2 are"):
        rows(starts, draw(5).float())
    assert mode.get_total_flops() == 2


@weft.kernel
def windowed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n, m = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(n, m):
        s = 0.0
        for u in range(w.shape[0]):
            for v in range(w.shape[1]):
                y, z = i + u - 2, j + v - 2
                if y >= 0 and y < n and z >= 0 and z < m:
                    s += x[y, z] * w[u, v]
        out[i, j] = s
    return out


def test_a_window_that_is_cut_at_the_edges_is_counted_at_most():
    """Its sum has no closed form in so many steps: it cost 0 FLOPs."""
    found = windowed.cost(draw(50, 50), draw(5, 5))
    assert found.flops == 2 * 50 * 50 * 25
    assert not found.exact
    assert f"{found.total}" == "at most 125,000"
    assert f"{found.moved}" == f"{8 * (2 * 50 * 50 + 25):,}"


def test_a_host_part_that_looks_at_data_is_counted_on_copies():
    @weft.kernel
    def first(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        out, m = torch.zeros_like(x), int(n)
        for i in range(m):
            out[i] = x[i] * 2.0
        return out

    x, n = draw(9), torch.tensor(4)
    assert first.cost(x, n).flops == 4
    with FlopCounterMode(display=False) as mode:
        first(x, n)
    assert mode.get_total_flops() == 4


def test_copies_are_checked_before_they_are_counted():
    @weft.kernel
    def picked(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        m = int(k.sum())
        out = torch.zeros(m)
        for i in range(m):
            out[i] = x[k[i]] * 2.0
        return out

    x = draw(4)
    assert picked.cost(x, torch.tensor([0, 3, 0])).flops == 3
    with pytest.raises(IndexError, match="subscript 1000000000 of `x` is out of range"):
        picked.cost(x, torch.tensor([3, 10**9, -(10**9)]))


def test_a_call_that_cannot_be_counted_says_so():
    @weft.kernel
    def fill(x: torch.Tensor, n: torch.Tensor):
        m = int(n)
        for i in range(m):
            x[i] = x[i] * 2.0

    with FlopCounterMode(display=False) as mode, pytest.warns(CountWarning) as warned:
        fill(draw(9), torch.tensor(4))
    assert mode.get_total_flops() == 0
    assert "are not counted: Tensor.item() cannot be called on meta tensors" in str(
        warned[0].message
    )


def test_reductions_into_a_number():
    @weft.kernel
    def least(x: torch.Tensor):
        m = 9.0
        for i in range(x.shape[0]):
            m = min(m, x[i] * x[i])
        return m

    assert counts(least.cost(draw(7))) == {"compare": 7, "multiply": 7, "FLOPs": 7}
    x = draw(7)
    assert counts(total.cost(x)) == {"add": 7, "multiply": 7, "FLOPs": 14}


def test_the_table():
    cost = conv.cost(torch.empty(4, 64, device="meta"), torch.empty(2, 4, 64, device="meta"), 0.1)
    assert (
        str(cost)
        == f"""\
conv_0, line {line(conv)}: 33,280 FLOPs = B*C*T + B*C*T*T
    add               16,640
    multiply          16,640
    bytes loaded       3,072
    bytes stored       2,048
    FLOPs per byte       6.5"""
    )
    assert (cost.flops, cost.bytes, cost.intensity, cost.exact) == (33280, 5120, 6.5, True)


def test_the_table_of_several_loops():
    assert (
        str(twice.cost(draw(10)))
        == f"""\
twice_0, line {line(twice)}: 10 FLOPs = x.shape[0]
    multiply              10
    bytes loaded          80
    bytes stored          80
    FLOPs per byte    0.0625
twice_1, line {line(twice, 1)}: 20 FLOPs = 2*x.shape[0]
    add                   10
    multiply              10
    bytes loaded         160
    bytes stored          80
    FLOPs per byte    0.0833
in all: 30 FLOPs, 400 bytes"""
    )


def test_the_table_where_data_decide():
    assert (
        str(rows.cost(torch.tensor([0, 2, 5]), draw(5).float()))
        == f"""\
rows_0, line {line(rows)}: at least 2 FLOPs
    multiply          at least 2
    bytes loaded      at most 44
    bytes stored               8"""
    )
    assert (
        str(hosted.cost(draw(2, 3), draw(3, 3)))
        == f"""\
hosted_0, line {line(hosted)}: 6 FLOPs = y.shape[0]*y.shape[1]
    multiply               6
    bytes loaded          48
    bytes stored          48
    FLOPs per byte    0.0625
PyTorch's operators in the host part: 36 FLOPs
in all: 42 FLOPs, 96 bytes"""
    )


def test_the_gradient_s_table():
    cost = twice.backward.cost(draw(10))
    assert [loop.name for loop in cost.loops] == ["twice_1_adjoint", "twice_0_adjoint"]
    assert cost.exact


def test_a_call_that_launches_a_loop_often():
    @weft.kernel
    def steps(x: torch.Tensor, n: int):
        k = 0
        while k < n:
            for i in range(x.shape[0]):
                x[i] = x[i] * 0.5
            k += 1

    line = steps.parts.regions[0].span.line
    assert (
        str(steps.cost(draw(4), 5))
        == f"""\
steps_0, line {line}, 5 launches: 20 FLOPs
    multiply              20
    bytes loaded         160
    bytes stored         160
    FLOPs per byte    0.0625"""
    )


def test_operators_are_forgotten():
    @weft.kernel
    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * 2.5
        return out

    gc.collect()  # what other tests have left
    before = len(flop_registry)
    with FlopCounterMode(display=False):
        f(draw(3))
    assert len(flop_registry) > before
    del f
    gc.collect()
    assert len(flop_registry) >= before


def test_nothing_is_written():
    x = draw(4)
    kept = x.clone()
    banded.cost(x, x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        banded.backward.cost(x, x * 2)
    assert torch.equal(x, kept)


@pytest.mark.cpu
def test_a_call_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    @weft.kernel
    def running(x: torch.Tensor, r: int) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            s = 0.0
            for a in range(i + r):
                s += x[a % x.shape[0]]
            out[i] = s
        return out

    counted: list[Any] = []
    walk = costs.operations

    def operations(*given: Any) -> Any:
        counted.append(given)
        return walk(*given)

    monkeypatch.setattr(costs, "operations", operations)
    for n, r in ((31, 2), (31, 2), (40, 2), (31, 2), (31, 3), (40, 2)):
        found = running.cost(torch.ones(n), r)
        assert found.flops == n * (n - 1) // 2 + n * r
        assert found.loops[0].loaded.value == 4 * n
        with FlopCounterMode(display=False) as counter:
            running(torch.ones(n), r)
        assert counter.get_total_flops() == found.flops
    assert len(counted) == 2 * 3  # with bytes, and without
    assert len({tuple(sizes.values()) for _, sizes in counted}) == 3
