"""Rows ahead: iterations that go along rows several times ask for those of the next one.

A CPU fetches ahead of what is read along memory. Where an iteration reads a row, reads it again,
and then one of another array, each of these starts anew, and its first lines are waited for. So
where the arrays are larger than the second cache an iteration begins by asking for the rows that
the next one loads, before it may have stored them. (Not where stores stream: what is asked for at
once is bounded.) Beyond the last row it asks in vain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ir.bounded import LOOPS
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, defined, slice_of, walk
from weft.ir.ops import DIVISIONS, OPS, is_slow
from weft.ir.views import For, is_constant, memory
from weft.schedule.variation import Variation

FAR = 8 << 20  # bytes of all these arrays, below which they are near
LINE = 64  # bytes that are asked for at once
LEAST, MOST = 2048, 8192  # bytes of a row: short ones are few lines, long ones fill the first cache
PASSES = 2  # loops along rows of their own, from which on an iteration asks

_SLOW = ("arith.divf", "arith.remf", *DIVISIONS)  # then memory is not what is waited for

Rows = dict[Op, list[Op]]  # by the loop along them, the loads by which they are met


def rows_ahead(function: Function) -> Function:
    """``function``, whose threads share chunks, with such loops over iterations."""
    found: dict[Op, dict[Op, Rows]] = {}
    for shared in (op for op in function.body.ops if "chunks" in op.attrs):
        inside = list(walk(shared.body))
        if not any(op.attrs.keys() & {"vector", "streaming"} for op in inside):
            loops = {op: rows for op in inside if op.name == "scf.for" and (rows := _rows(op))}
            found |= {shared: loops} if loops else {}
    return _Ahead(found).function(function) if found else function


def _rows(loop: Op) -> Rows:
    """The rows that an iteration of ``loop`` goes along, if it does so several times."""
    passes = [op for op in loop.body.ops if op.name == "scf.for" and _is_pass(op, loop.body)]
    slow = (is_slow(op.name) or op.name in _SLOW for inner in passes for op in walk(inner.body))
    if len(passes) < PASSES or not is_constant(For(loop).step, 1) or any(slow):
        return {}
    onwards = Variation(loop.body, {For(loop).index: 1})
    found, arrays, several = Rows(), set[Value](), 0
    for inner in passes:
        rows = [op for op in _along(inner, loop.body) if not onwards.uniform(*memory(op)[1])]
        several += bool(rows)
        first = [op for op in rows if memory(op)[0] not in arrays]
        arrays.update(memory(op)[0] for op in first)
        loads = [op for op in first if op.name == "memref.load"]
        found |= {inner: loads} if loads else {}
    return found if several >= PASSES else {}


def _is_pass(inner: Op, iteration: Block) -> bool:
    """Whether ``inner`` has no loops inside, and bounds that all iterations have."""
    made = defined([iteration])
    single = is_constant(For(inner).step, 1) and made.isdisjoint(For(inner).bounds)
    return single and not any(op.name in LOOPS for op in walk(inner.body))


def _along(inner: Op, iteration: Block) -> Iterator[Op]:
    """The accesses of ``inner`` along rows of arguments, of each array the first."""
    turns, seen = Variation(inner.body, {For(inner).index: 1}), set[Value]()
    for op in walk(inner.body):
        if op.name not in ("memref.load", "memref.store") or memory(op)[0] in seen:
            continue
        array, subscripts, _ = memory(op)
        if array.op is not None or turns.stride(op) != 1:
            continue
        slices = (slice_of(v, block, _is_arithmetic)
                  for v in subscripts for block in (inner.body, iteration))  # fmt: skip
        if all(one is not None for one in slices):
            seen.add(array)
            yield op


def _is_arithmetic(op: Op) -> bool:
    return OPS[op.name].pure and not op.regions


class _Ahead(Rewriter):
    def __init__(self, found: dict[Op, dict[Op, Rows]]) -> None:
        super().__init__(None, self._around)
        self.found = found
        self.far: dict[Op, Value] = {}  # of loops over iterations, whether their arrays are

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op in self.found:
            for loop, rows in self.found[op].items():
                self.far[loop] = self._bytes(rows)
        elif op not in self.far:
            return None
        made = self.copy(op)
        self.stand_for(op.body.args, made.body.args)
        with self.at(made.body):
            if op in self.far:
                self._ask(op, next(rows[op] for rows in self.found.values() if op in rows))
            for inner in op.body.ops:
                self.rewrite(inner)
        return self.append(made).results

    def _bytes(self, rows: Rows) -> Value:
        """Whether the arrays are larger than a cache."""
        total = self.index(0)
        for array in {memory(op)[0]: None for each in rows.values() for op in each}:
            type, bytes = array.memref, self.index(array.memref.element.bytes)
            for axis in range(type.rank):
                bytes = self.muli(bytes, self.op("memref.dim", self.lookup(array), axis=axis))
            total = self.addi(total, bytes)
        return self.op("arith.cmpi", total, self.index(FAR), predicate="sgt")

    def _ask(self, loop: Op, rows: Rows) -> None:
        """Asks for the rows of the next iteration."""
        index, inside = For(loop).index, defined([loop.body])
        following = self.addi(self.lookup(index), self.index(1))
        for inner, accesses in rows.items():
            bytes = max(memory(op)[0].memref.element.bytes for op in accesses)
            lower, upper, _ = map(self.lookup, For(inner).bounds)
            asks, length = self.far[loop], self.op("arith.subi", upper, lower, overflow="nsw")
            for bound, predicate in ((LEAST, "sge"), (MOST, "sle")):
                size = self.index(bound // bytes)
                fits = self.op("arith.cmpi", length, size, predicate=predicate)
                asks = self.op("arith.andi", asks, fits)
            end = self.op("arith.select", asks, upper, lower)
            made = self.for_(lower, end, self.index(LINE // bytes), scalar=True, unroll=1)
            with self.at(made.body):
                known = {index: following, For(inner).index: made.body.args[0]}
                for op in accesses:
                    array, subscripts, _ = memory(op)
                    place = [self.in_front(v, inside, known) for v in subscripts]
                    self.do("weft.prefetch", self.lookup(array), *place)
                self.do("scf.yield")
