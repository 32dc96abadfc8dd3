"""What a call of a loop costs, predicted: bytes of the elements that it touches, bytes that its
iterations load and store, operations.

``footprint`` bounds the elements of each array by a box, from the intervals of its subscripts, and
by the number of accesses. Work is counted at the mean of each index: that is exact where bounds of
inner loops are affine in outer indices, as those of triangular loops are. Of a branch the dearer
arm counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from weft.ir.core import Block, Function, Op, Value
from weft.ir.types import ScalarType, i1, index
from weft.ir.views import For, If, Parallel, constant_of, memory
from weft.schedule.intervals import Interval
from weft.values import frozen

_FREE = {
    "arith.constant", "arith.select", "arith.index_cast", "arith.extsi", "arith.extui",
    "arith.trunci", "arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.fptosi",
    "arith.fptoui", "arith.bitcast", "arith.cmpi", "arith.cmpf",
}  # fmt: skip


@frozen
class Cost:
    """``loaded`` and ``stored``: bytes of distinct elements, the least that memory has to move.
    ``accessed``: bytes that iterations load and store, each time. ``operations``: of arithmetic on
    numbers that are no indices, a multiplication and addition in one as two. ``exact``: False where
    data decides how often a loop runs, which then counts once."""

    loaded: int
    stored: int
    accessed: int
    operations: int
    exact: bool

    @property
    def bytes(self) -> int:
        return self.loaded + self.stored


Shapes = Mapping[Value, tuple[int, ...]]


def cost(
    function: Function, shapes: Shapes, numbers: Mapping[Value, int],
    interval: Callable[[Value], Interval],
) -> Cost:  # fmt: skip
    """The cost of a call. ``shapes`` and ``numbers``: of the function's arguments; ``interval``:
    what an index can be."""
    work = Work(shapes, numbers)
    accessed, operations = work.block(function.body, 1.0)
    loaded = footprint(work.times, shapes, interval, stores=False)
    stored = footprint(work.times, shapes, interval, stores=True)
    return Cost(loaded, stored, round(accessed), round(operations), work.exact)


def footprint(
    times: Mapping[Op, float], shapes: Shapes, interval: Callable[[Value], Interval], *,
    stores: bool,
) -> int:  # fmt: skip
    """Bytes of the elements that are loaded, or stored, by accesses that are carried out so many
    ``times``."""
    boxes: dict[Value, list[Interval]] = {}
    most: dict[Value, float] = {}
    for op, count in times.items():
        memref, subscripts, _ = memory(op)
        if op.name == ("memref.load" if stores else "memref.store") or not count:
            continue
        ranges = zip(map(interval, subscripts), shapes[memref], strict=True)
        box = [(max(low, 0), min(high, n - 1)) for (low, high), n in ranges]
        most[memref] = most.get(memref, 0.0) + min(_volume(box), count)
        before = boxes.setdefault(memref, box)
        boxes[memref] = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(before, box, strict=True)]
    return sum(
        round(min(_volume(box), most[memref])) * memref.memref.element.bytes
        for memref, box in boxes.items()
    )


def _volume(box: list[Interval]) -> int:
    return math.prod(max(high - low + 1, 0) for low, high in box)


class Work:
    """Counts what a function does. ``times``: how often each access of an argument is carried
    out."""

    def __init__(self, shapes: Shapes, numbers: Mapping[Value, int]) -> None:
        self.shapes = shapes
        self.means: dict[Value, float | None] = dict(numbers)
        self.times: dict[Op, float] = {}
        self.exact = True

    def block(self, block: Block, times: float) -> tuple[float, float]:
        """Bytes accessed and operations of ``block``, which is carried out so many ``times``."""
        accessed = operations = 0.0
        for op in block.ops:
            more = self.op(op, times)
            accessed, operations = accessed + more[0], operations + more[1]
        return accessed, operations

    def op(self, op: Op, times: float) -> tuple[float, float]:
        if op.name in ("scf.for", "scf.parallel"):
            loop = Parallel(op) if op.name == "scf.parallel" else For(op)
            for iv, bounds in zip(loop.indices, loop.axes, strict=True):
                times *= self.trips(iv, *bounds)
            return self.block(op.body, times)
        if op.name == "scf.if":
            arms = [self.block(region, times) for region in op.regions]
            if op.attrs.get("whole"):
                return arms[0]
            for k, result in enumerate(op.results):
                self.means[result] = self.mean_of(*If(op).arms(k))
            return max(arms, key=lambda arm: arm[1] + arm[0])
        if op.regions:  # a while loop
            self.exact = False
            found = [self.block(region, times) for region in op.regions]
            return sum(a for a, _ in found), sum(b for _, b in found)
        self.note(op)
        if op.name in ("memref.load", "memref.store", "memref.atomic_rmw", "memref.atomic_cas"):
            memref, _, _ = memory(op)
            if memref not in self.shapes:
                return 0.0, 0.0
            self.times[op] = self.times.get(op, 0.0) + times
            update = not op.name.endswith(("load", "store"))
            return times * memref.memref.element.bytes * (1 + update), times * update
        return 0.0, times * _operations(op)

    def trips(self, iv: Value, lower: Value, upper: Value, step: Value) -> float:
        low, high, by = (self.means.get(v) for v in (lower, upper, step))
        if low is None or high is None or by is None or by <= 0:
            self.exact, self.means[iv] = False, None
            return 1.0
        count = max((high - low) / by if by == 1 else math.ceil((high - low) / by), 0.0)
        self.means[iv] = low + (count - 1) * by / 2
        return count

    def note(self, op: Op) -> None:
        """Notes the mean of what an operation on indices gives."""
        if len(op.results) != 1 or not isinstance(op.result.type, ScalarType):
            return
        known = [self.means.get(v) for v in op.operands]
        number = constant_of(op.result)
        mean: float | None = None
        if number is not None:
            mean = float(number)
        elif op.name == "memref.dim" and op.operand in self.shapes:
            mean = self.shapes[op.operand][op.attrs["axis"]]
        elif op.name == "arith.select":
            _, yes, no = op.operands
            mean = self.mean_of(yes, no)
        elif op.name in _MEANS and None not in known:
            mean = _MEANS[op.name](*(k for k in known if k is not None))
        self.means[op.result] = mean

    def mean_of(self, a: Value, b: Value) -> float | None:
        one, other = self.means.get(a), self.means.get(b)
        return None if one is None or other is None else (one + other) / 2


def _over(a: float, b: float) -> float | None:
    if not b:
        return None
    return a // b if a == int(a) and b == int(b) else a / b


_MEANS: dict[str, Callable[..., float | None]] = {
    "arith.addi": lambda a, b: a + b, "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b, "arith.minsi": min, "arith.maxsi": max,
    "arith.floordivsi": _over, "arith.index_cast": lambda a: a, "arith.extsi": lambda a: a,
    "arith.trunci": lambda a: a, "arith.remsi": lambda a, b: (b - 1) / 2 if b > 0 else None,
    "arith.shrsi": lambda a, b: a / 2**b, "arith.shli": lambda a, b: a * 2**b,
}  # fmt: skip


def _operations(op: Op) -> int:
    """Operations on numbers that are no indices."""
    if not op.name.startswith(("arith.", "math.")) or op.name in _FREE:
        return 0
    if op.result.type is index or op.result.type is i1:
        return 0
    return 2 if op.name == "math.fma" else 1
