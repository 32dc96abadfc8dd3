"""Points and pixels: rows whose elements a loop names by numbers, ``p[i, 0]`` to ``p[i, 2]``.

How long such a row is only a call says. LLVM bets on one, and what it vectorises for that never
runs. So a loop along rows is there twice: once for rows of as many elements as the numbers reach,
which is known there, so that lanes load neighbouring rows and part their elements; and once for all
others, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType
from weft.ir.views import For, constant_of, memory
from weft.schedule.variation import Variation

LONGEST = 8  # elements of a row that LLVM parts in registers
MOST = 200  # operations of a loop, beyond which it is not compiled twice

Rows = dict[Value, tuple[int, ...]]  # of arrays, the sizes of their last axes


def known_rows(function: Function) -> Function:
    """``function``, whose threads share chunks, with such loops twice."""
    chunks = [op for op in function.body.ops if "chunks" in op.attrs]
    loops = [loop for shared in chunks for loop in _outermost(shared.body)]
    chosen = {loop: rows for loop in loops if (rows := _rows(loop))}
    return _Twice(chosen).function(function) if chosen else function


def _outermost(block: Block) -> list[Op]:
    found: list[Op] = []
    for op in block.ops:
        inside = [loop for region in op.regions for loop in _outermost(region)]
        found += [op] if op.name == "scf.for" else inside
    return found


def _rows(loop: Op) -> Rows:
    """The arrays whose rows ``loop`` goes along."""
    ops = list(walk(loop.body))
    if len(ops) > MOST:
        return {}
    found = named_rows(ops)
    loops = [op for op in (loop, *ops) if op.name == "scf.for"] if found else []
    moving = {memory(op)[0] for inner in loops for op in _moving(inner)}
    return {array: sizes for array, sizes in found.items() if array in moving}


def named_rows(ops: Sequence[Op], longest: int = LONGEST) -> Rows:
    """The arguments with rows, of ``longest`` elements at most, that ``ops`` name by numbers."""
    found: Rows = {}
    for array in dict.fromkeys(memory(op)[0] for op in ops if _is_plain(op)):
        uses = [op for op in ops if array in op.operands]
        if array.op is None and array.memref.layout == "contiguous":
            sizes = _sizes(uses) if all(map(_is_plain, uses)) else ()
            found |= {array: sizes} if 1 < prod(sizes) <= longest else {}
    return found


def _moving(loop: Op) -> list[Op]:
    """The accesses that differ from turn to turn of an innermost loop."""
    if any(op.name in ("scf.for", "scf.parallel", "scf.while") for op in walk(loop.body)):
        return []
    along = Variation(loop.body, {For(loop).index: 1})
    return [op for op in walk(loop.body) if _is_plain(op) and not along.uniform(*memory(op)[1])]


def _is_plain(op: Op) -> bool:
    return op.name in ("memref.load", "memref.store")


def _sizes(accesses: Sequence[Op]) -> tuple[int, ...]:
    """As many elements along the last axes, but for the first, as constants in subscripts reach."""
    sizes: list[int] = []
    for column in reversed([*zip(*(memory(op)[1] for op in accesses), strict=True)][1:]):
        numbers = [constant_of(v) for v in column]
        if any(number is None or number < 0 for number in numbers):
            break
        sizes.insert(0, 1 + max(int(number) for number in numbers if number is not None))
    return tuple(sizes)


class _Twice(Rewriter):
    def __init__(self, chosen: dict[Op, Rows]) -> None:
        super().__init__(self._visit, self._around)
        self.chosen = chosen
        self.rows: dict[Value, tuple[Value, list[Value]]] = {}  # arrays as one row, and sizes
        self.scalar: set[Op] = set()  # loops that LLVM leaves as they are

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op not in self.chosen:
            return None
        rows = {self.lookup(array): sizes for array, sizes in self.chosen[op].items()}
        asked = [self.op("arith.cmpi", self._dim(array, axis), self.index(size), predicate="eq")
                 for array, sizes in rows.items()
                 for axis, size in enumerate(sizes, array.memref.rank - len(sizes))]  # fmt: skip
        known = reduce(lambda a, b: self.op("arith.andi", a, b), asked)
        types = [v.type for v in op.results]
        return self.either(known, lambda: self._known(op, rows), lambda: self._other(op), types)

    def _known(self, op: Op, rows: Rows) -> list[Value]:
        for array, sizes in rows.items():
            first = range(array.memref.rank - len(sizes))
            flat = MemRefType(array.memref.element, 1)
            extents = [self._dim(array, axis) for axis in first] + [*map(self.index, sizes)]
            self.rows[array] = self.op("memref.flatten", array, type=flat), extents
        made = self._loop(op)
        self.rows = {}
        return made

    def _other(self, op: Op) -> list[Value]:
        arrays = self.chosen[op].keys()
        loops = [loop for loop in (op, *walk(op.body)) if loop.name == "scf.for"]
        self.scalar = {
            loop for loop in loops if any(memory(moving)[0] in arrays for moving in _moving(loop))
        }
        made = self._loop(op)
        self.scalar = set()
        return made

    def copy(self, op: Op) -> Op:
        new = super().copy(op)
        new.attrs |= {"scalar": True} if op in self.scalar else {}
        return new

    def _loop(self, op: Op) -> list[Value]:
        made = self.copy(op)
        self.region(op.body, made.body)
        return self.append(made).results

    def _dim(self, array: Value, axis: int) -> Value:
        return self.op("memref.dim", array, axis=axis)

    def _visit(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if not _is_plain(op) or memory(op)[0] not in self.rows:
            return None
        array, subscripts, values = memory(op)
        flat, extents = self.rows[array]
        place = subscripts[0]
        for extent, subscript in zip(extents[1:], subscripts[1:], strict=True):
            scaled = self.op("arith.muli", place, extent, overflow="nsw")
            place = self.op("arith.addi", scaled, subscript, overflow="nsw")
        copy = Op(op.name, [*values, flat, place], [v.type for v in op.results], op.attrs,
                  span=op.span)  # fmt: skip
        return self.append(copy).results
