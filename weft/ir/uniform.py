"""Which threads of a block may differ in a value: whether they may wait for each other somewhere.

Threads are told apart by the bits of their number in the block: five for the lane in a warp, and
one for all beyond. A value's mask has the bits that it may depend on. A shuffle that exchanges
along one bit, combined with what was handed over, no longer depends on it: so a sum over a warp is
known to be the same in all its lanes. What is loaded from a place that is the same for some threads
is the same for them, but from a thread's own arrays: what others write meanwhile is a race, which
``blocks`` finds.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.ir.core import Block, Function, Op, Value, parents
from weft.ir.core import walk as every
from weft.ir.ops import OPS
from weft.ir.views import For, If, Parallel, While, accessed_by, constant_of, memory, written_by

# The attribute of a function that a grid of threads runs: so many neighbours along x have rows of
# their own (beyond a warp: all threads of a block are along x); 0 where nothing is known.
GROUP = "group"
WARP = 32
ALL = 2 * WARP - 1
_WAITS = "gpu.barrier", "gpu.shuffle"


def divergent_wait(function: Function) -> Op | None:
    """The first barrier or shuffle that some of the threads that wait there may not come to."""
    waits = [op for op in every(function.body) if op.name in _WAITS]
    if not waits:
        return None
    deciding = _Deciding(function)
    deciding.come_to(waits)
    walk = _Walk(function.attrs[GROUP], deciding.ops)
    while True:
        before = dict(walk.masks)
        walk.problem = None
        walk.block(function.body, 0)
        if walk.masks == before:
            return walk.problem


class _Deciding:
    """What decides whether threads come somewhere. ``ops``: what makes the values that do, what
    stands around it, and the places themselves: a small part of a loop that computes much."""

    def __init__(self, function: Function) -> None:
        self.ops: set[Op] = set()
        self.around = parents(function.body)
        self.inside = {region: op for op in every(function.body) for region in op.regions}
        self.stores: dict[Value, list[Op]] = {}  # to a thread's own arrays
        for op in every(function.body):
            memref = written_by(op)
            if memref is not None and _own(memref):
                self.stores.setdefault(memref, []).append(op)
        self.seen: set[Value] = set()
        self.waiting: list[Value] = []

    def come_to(self, places: Iterable[Op]) -> None:
        for op in places:
            self.add(op)
        while self.waiting:
            self.value(self.waiting.pop())

    def add(self, op: Op) -> None:
        """``op``, and what decides whether it runs."""
        at: Op | None = op
        while at is not None and at not in self.ops:
            self.ops.add(at)
            self.need(self.control(at))
            at = self.around[at]

    def need(self, values: Iterable[Value]) -> None:
        self.waiting += [v for v in values if v not in self.seen]
        self.seen.update(values)

    def control(self, op: Op) -> list[Value]:
        """What decides which of the regions of ``op`` run, and how often."""
        match op.name:
            case "scf.if":
                return [If(op).condition]
            case "scf.for":
                return list(For(op).bounds)
            case "scf.while":
                return [While(op).condition]
            case "scf.parallel":
                return op.operands
            case _:
                return []

    def value(self, value: Value) -> None:
        op = value.op
        if op is None:
            assert isinstance(value.owner, Block)
            op = self.inside.get(value.owner)
        if op is None:
            return  # an argument of the function
        self.add(op)
        match op.name:
            case "scf.if":
                self.need(If(op).arms(op.results.index(value)))
            case "scf.for":
                for arg, init, end, last in For(op).rows:
                    if value is arg or value is last:
                        self.need((init, end))
            case "scf.while":
                loop = While(op)
                self.need((*op.operands, *loop.handed, *loop.after.terminator.operands))
            case "scf.parallel":
                self.need(Parallel(op).contributions)
            case _:
                memref = accessed_by(op)
                self.need([v for v in op.operands if v is not memref])
                if memref is not None and _own(memref):
                    for store in self.stores.pop(memref, ()):
                        self.add(store)
                        self.need([v for v in store.operands if v is not memref])


class _Walk:
    """Masks only grow, from one walk to the next, until nothing changes."""

    def __init__(self, group: int, among: set[Op]) -> None:
        """``among``: the operations that it looks at."""
        self.group, self.among = group, among
        self.masks: dict[Value, int] = {}  # of a memref: what is in a thread's own array
        self.problem: Op | None = None

    def of(self, *values: Value) -> int:
        mask = 0
        for value in values:
            mask |= self.masks.get(value, 0)
        return mask

    def grow(self, value: Value, mask: int) -> None:
        self.masks[value] = self.of(value) | mask

    def block(self, block: Block, control: int) -> None:
        """``control``: on what it depends whether a thread comes here."""
        for op in block.ops:
            if op in self.among:
                self.operation(op, control)

    def operation(self, op: Op, control: int) -> None:
        if op.regions:
            self.regions(op, control)
            return
        width = op.attrs.get("width") if op.name in _WAITS else None
        if width is not None and control & (width - 1 if width else ALL):
            self.problem = self.problem or op
        accessed = accessed_by(op)
        mask = self.of(*(v for v in op.operands if v is not accessed))
        memref = written_by(op)
        if memref is not None and _own(memref):
            self.grow(memref, mask | control)
        for value in op.results:
            self.grow(value, self.result(op, mask))

    def result(self, op: Op, mask: int) -> int:
        match op.name:
            case "gpu.thread_id":
                return self.place(op.attrs["dimension"])
            case "memref.load":
                memref, _, _ = memory(op)
                return mask | (self.of(memref) if _own(memref) else 0)
            case "memref.atomic_rmw" | "memref.atomic_cas":
                return ALL
            case "gpu.shuffle" if op.attrs["mode"] == "idx":
                return mask & ~(op.attrs["width"] - 1)
            case "gpu.shuffle" if op.attrs["mode"] in ("up", "down"):
                return mask | (op.attrs["width"] - 1)
            case "arith.andi" | "arith.shrui" if _is_number(op.left):
                bits = constant_of(op.right)
                if bits is None:
                    return mask
                low = int(bits) if op.name == "arith.andi" else ALL << int(bits)
                return low & (WARP - 1) | (WARP if low >= WARP else 0)
            case name if OPS[name].commutative:
                a, b = op.left, op.right
                return mask & ~(_exchanged(a, b) | _exchanged(b, a))
            case _:
                return mask

    def place(self, dimension: str) -> int:
        """What a thread's place along a side of its block depends on."""
        if dimension == "linear" or not self.group:
            return ALL
        inside = self.group - 1 if self.group <= WARP else ALL
        return inside if dimension == "x" else ALL & ~inside

    def regions(self, op: Op, control: int) -> None:
        """What decides how often a loop turns decides all that is in it."""
        match op.name:
            case "scf.if":
                mask = self.of(If(op).condition)
                for region in op.regions:
                    self.block(region, control | mask)
                for k, value in enumerate(op.results):
                    self.grow(value, mask | self.of(*If(op).arms(k)))
            case "scf.for":
                mask = self.of(*For(op).bounds)
                self.grow(For(op).index, mask)
                self.carry(mask, [(arg, init) for arg, init, _, _ in For(op).rows])
                self.block(op.body, control | mask)
                self.carry(
                    mask, [(v, end) for arg, _, end, last in For(op).rows for v in (arg, last)]
                )
            case "scf.while":
                loop = While(op)
                mask = self.of(loop.condition)
                self.carry(mask, zip(loop.before.args, op.operands, strict=True))
                self.block(loop.before, control | mask)
                self.carry(mask, zip(loop.after.args, loop.handed, strict=True))
                self.carry(mask, zip(op.results, loop.handed, strict=True))
                self.block(loop.after, control | mask)
                self.carry(mask, zip(loop.before.args, loop.after.terminator.operands, strict=True))
            case "scf.parallel":
                mask = self.of(*op.operands)
                for index in Parallel(op).indices:
                    self.grow(index, mask)
                self.block(op.body, control | mask)
                self.carry(mask, zip(op.results, Parallel(op).contributions, strict=True))
            case _:
                pass

    def carry(self, mask: int, pairs: Iterable[tuple[Value, Value]]) -> None:
        """Lets each first value depend on the second, and on ``mask``."""
        for value, source in pairs:
            self.grow(value, mask | self.of(source))


def _own(memref: Value) -> bool:
    op = memref.op
    return op is not None and op.name == "memref.alloca" and not memref.memref.space


def _is_number(value: Value) -> bool:
    op = value.op
    return op is not None and op.name == "gpu.thread_id" and op.attrs["dimension"] == "linear"


def _exchanged(value: Value, other: Value) -> int:
    """The bit along which ``other`` is the ``value`` of another lane; 0 if it is not."""
    op = other.op
    if op is None or op.name != "gpu.shuffle" or op.attrs["mode"] != "xor" or op.left is not value:
        return 0
    bit = constant_of(op.right)
    return int(bit) if bit is not None and int(bit) in (1, 2, 4, 8, 16) else 0
