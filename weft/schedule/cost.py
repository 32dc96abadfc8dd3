"""What threads load and store in a call, each time, by a schedule.

Work is counted at the mean of each index: that is exact where bounds of inner loops are affine in
outer indices, as those of triangular loops are. Of a branch the dearer arm counts. (What a loop
costs however it is run, ``index.operations`` and ``index.elements`` count.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from weft.ir.core import Block, Op, Value
from weft.ir.types import ScalarType
from weft.ir.views import If, accessed_by, constant_of, loop_of

UNKNOWN_TRIPS = 16.0  # iterations assumed of a loop whose bounds are not known beforehand


class Work:
    """Counts the bytes that a function accesses. ``shapes`` and ``numbers``: of its arguments;
    ``times``: how often each access of an argument is carried out. Loops of which nobody knows how
    many turns they have are thought to have ``unknown``."""

    def __init__(
        self, shapes: Mapping[Value, Sequence[int]], numbers: Mapping[Value, int],
        unknown: float = 1.0,
    ) -> None:  # fmt: skip
        self.shapes, self.unknown = shapes, unknown
        self.means: dict[Value, float | None] = dict(numbers)
        self.times: dict[Op, float] = {}

    def block(self, block: Block, times: float) -> float:
        """Bytes accessed in ``block``, which is carried out so many ``times``."""
        return sum(self.op(op, times) for op in block.ops)

    def op(self, op: Op, times: float) -> float:
        if op.name in ("scf.for", "scf.parallel"):
            loop = loop_of(op)
            for iv, bounds in zip(loop.indices, loop.axes, strict=True):
                times *= self.trips(iv, *bounds)
            return self.block(op.body, times)
        if op.name == "scf.if":
            arms = [self.block(region, times) for region in op.regions]
            if op.attrs.get("whole"):
                return arms[0]
            for k, result in enumerate(op.results):
                self.means[result] = self.mean_of(*If(op).arms(k))
            return max(arms)
        if op.regions:  # a while loop
            return sum(self.block(region, times * self.unknown) for region in op.regions)
        self.note(op)
        memref = accessed_by(op)
        if memref is None or memref not in self.shapes:
            return 0.0
        self.times[op] = self.times.get(op, 0.0) + times
        update = not op.name.endswith(("load", "store"))
        return times * memref.memref.element.bytes * (1 + update)

    def trips(self, iv: Value, lower: Value, upper: Value, step: Value) -> float:
        low, high, by = (self.means.get(v) for v in (lower, upper, step))
        if low is None or high is None or by is None or by <= 0:
            self.means[iv] = None
            return self.unknown
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
