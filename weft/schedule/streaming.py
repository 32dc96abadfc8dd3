"""Stores past the caches, where the arrays of a loop are larger than these.

A store to memory that is not in a cache has its line loaded first. One that streams does not, and
leaves the caches to what is loaded; but what is stored is then read from memory again. So there are
two loops over chunks, and the arrays' bytes decide. In the second one, each loop of iterations goes
up to where a line begins in memory as usual, and its stores stream from there. Both store the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, defined, slice_of, walk
from weft.ir.ops import OPS
from weft.ir.types import index
from weft.ir.views import Cut, For, Parallel, is_constant, memory
from weft.schedule.variation import Variation

SHORTEST = 128  # iterations of a loop, below which it stays as it is
MOST = 16  # operations of an iteration, beyond which a loop is not bound by memory
_DEAR, _DEAREST = 8, 32  # operations that a function or a gather is, and a division of integers
_PLAIN = {"scf.for", "scf.if", "memref.load", "memref.store", "weft.prefetch"}


def accessed(function: Function) -> list[Value]:
    """The arguments whose bytes decide, where it may pay that stores of ``function``, whose
    iterations threads share, stream; else none."""
    shared = _shared(function)
    return _arrays(shared) if shared is not None and _chosen(function, shared) else []


def streaming(function: Function, limit: int) -> Function:
    """``function``, whose stores stream where they may and the arrays have more bytes than
    ``limit``."""
    shared = _shared(function)
    chosen = {} if shared is None else _chosen(function, shared)
    if shared is None or not chosen:
        return function
    return _Streaming(shared, chosen, limit).function(function)


def _shared(function: Function) -> Op | None:
    """The loop over chunks, if there is one."""
    found = [op for op in function.body.ops if "chunks" in op.attrs]
    cut = Parallel(found[0]).uppers[0].op if len(found) == 1 else None
    return found[0] if cut is not None and cut.name == "weft.chunks" else None


def _arrays(shared: Op) -> list[Value]:
    """What the loop reads and writes of memory that is not its own."""
    accesses = (memory(op)[0] for op in walk(shared.body)
                if op.name in ("memref.load", "memref.store"))  # fmt: skip
    return [array for array in dict.fromkeys(accesses) if array.op is None]


def _chosen(function: Function, shared: Op) -> dict[Op, list[Op]]:
    """The innermost loops that may go on in streams, each with the stores that may."""
    ops = list(walk(shared.body))
    if not function.attrs.get("noalias") or any("vector" in op.attrs for op in ops):
        return {}
    if not all(OPS[op.name].pure or OPS[op.name].terminator or op.name in _PLAIN for op in ops):
        return {}  # atomic operations, checks, prints
    loaded = {memory(op)[0] for op in ops if op.name == "memref.load"}
    found: dict[Op, list[Op]] = {}
    innermost = [op for op in ops if op.name == "scf.for"
                 and all(inner.name != "scf.for" for inner in walk(op.body))]  # fmt: skip
    for loop in innermost:
        alone = "independent" in loop.attrs  # others go along the row of an iteration, in turn
        stores = _stores(loop, [loop] if alone else innermost)
        if stores and loaded.isdisjoint(memory(op)[0] for op in stores):
            found[loop] = stores
    return found


def _stores(loop: Op, loops: Sequence[Op]) -> list[Op]:
    """The stores of an innermost loop, if all go along rows of arguments, and ``loops`` together
    are bound by memory."""
    view, along = For(loop), Variation(loop.body, {For(loop).index: 1})
    inner = list(walk(loop.body))
    if view.inits or not is_constant(view.step, 1):
        return []
    stores = [op for op in inner if op.name == "memref.store"]
    for op in stores:
        array, subscripts, _ = memory(op)
        whole = array.op is None and array.memref.element.bytes in (4, 8)
        if op not in loop.body.ops or not whole or along.stride(op) != 1:
            return []
        if any(slice_of(v, loop.body, _is_arithmetic) is None for v in subscripts):
            return []
    loads = [along.stride(op) for op in inner if op.name == "memref.load"]
    gathers = sum(stride not in (0, 1, -1) for stride in loads)
    if gathers and "counts" not in loop.attrs:  # a block of rows and columns: it is short
        return []
    cost = sum(_cost(op) for each in loops for op in walk(each.body)) + gathers * _DEAR
    return stores if cost <= MOST else []


def _is_arithmetic(op: Op) -> bool:
    return OPS[op.name].pure and not op.regions and op.name != "memref.load"


def _cost(op: Op) -> int:
    if op.name in ("arith.constant", "memref.dim") or OPS[op.name].terminator or op.regions:
        return 0  # (what is inside of regions is counted by itself)
    if op.name == "arith.divf" or op.name.startswith("math."):
        return _DEAR
    if op.results and op.results[0].type is index:  # where something is, alike for all or hoisted
        return _DEAREST if "div" in op.name or "rem" in op.name else 0
    return _DEAREST if "div" in op.name or "rem" in op.name else 1


class _Streaming(Rewriter):
    def __init__(self, shared: Op, chosen: dict[Op, list[Op]], limit: int) -> None:
        super().__init__(None, self._around)
        self.shared, self.chosen, self.limit = shared, chosen, limit
        self.past = False  # the loop over chunks whose stores stream is written
        self.marked: set[Op] = set()

    def copy(self, op: Op) -> Op:
        new = super().copy(op)
        if op in self.marked:
            new.attrs["streaming"] = True
        return new

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op is self.shared:
            self.either(self._large(), lambda: self._chunks(past=True), self._chunks)
            return ()
        if self.past and op in self.chosen:
            self._split(op, self.chosen[op])
            return ()
        return None

    def _large(self) -> Value:
        """Whether the arrays are: as much of each as there are iterations, where each is one
        element of all."""
        total = None
        if all("counts" in loop.attrs for loop in self.chosen):
            cut = Parallel(self.shared).uppers[0].op
            assert cut is not None
            total = self.lookup(Cut(cut).total)
        bytes = self.index(0)
        for array in map(self.lookup, _arrays(self.shared)):
            type, count = array.memref, self.index(1)
            for axis in range(type.rank):
                count = self.muli(count, self.op("memref.dim", array, axis=axis))
            if total is not None:
                count = self.op("arith.minsi", count, total)
            bytes = self.addi(bytes, self.muli(count, self.index(type.element.bytes)))
        return self.op("arith.cmpi", bytes, self.index(self.limit), predicate="sgt")

    def _chunks(self, *, past: bool = False) -> None:
        self.past = past
        made = self.copy(self.shared)
        self.region(self.shared.body, made.body)
        self.append(made)

    def _split(self, loop: Op, stores: Sequence[Op]) -> None:
        """``loop`` up to where a line begins, and from there; up to its end where it is short."""
        lower, upper, step = map(self.lookup, For(loop).bounds)
        array, subscripts, _ = memory(stores[0])
        inside, known = defined([loop.body]), {For(loop).index: lower}
        place = [self.in_front(v, inside, known) for v in subscripts]
        ahead = self.op("weft.to_line", self.lookup(array), *place)
        begin = self.op("arith.minsi", upper, self.addi(lower, ahead))
        count = self.op("arith.subi", upper, lower, overflow="nsw")
        short = self.op("arith.cmpi", count, self.index(SHORTEST), predicate="slt")
        begin = self.op("arith.select", short, upper, begin)
        for ends, marked in (((lower, begin), ()), ((begin, upper), stores)):
            self.marked = {*marked}
            part = self.for_(*ends, step, **loop.attrs)
            part.span = loop.span
            self.region(loop.body, part.body)
        self.marked = set()
