"""Which neighbouring loops may be counted as one.

Where rows lie behind each other in memory, and a loop over ``j`` and ``k`` uses its indices only in
subscripts ``[..., j + s, k]``, element (j, k) of every access is n * j + k elements from the first:
the loop may run with j = 0 alone and k up to the product of both lengths. That makes one long loop
of many short ones (the channels of an image). It pays wherever the lengths agree, which is known at
run time only: ``weft.rows_follow`` asks, and gives the loops their bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, below, walk
from weft.ir.views import For, Parallel, is_constant, memory

_ADDITIVE = ("arith.addi", "arith.subi")
_ACCESSES = ("memref.load", "memref.store", "memref.atomic_rmw")


def collapsed(function: Function) -> Function:
    """``function``, in which loops over rows that follow each other run over all of these at once,
    where they do."""
    loops = list(walk(function.body))
    lanes = {inner for op in loops if "vector" in op.attrs for inner in below(op)}
    found = {op for op in loops if op.name == "scf.for" and op not in lanes and _over_runs(op)}
    return _Collapsed(found).function(function) if found else function


class _Collapsed(Rewriter):
    def __init__(self, found: set[Op]) -> None:
        super().__init__(None, self._around)
        self.found = found
        self.longer: dict[Op, Value] = {}  # upper bounds of loops that run on into what follows

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op in self.longer:
            self._rebuilt(op, self.longer[op])
            return ()
        inner = nested(op) if op in self.found else None
        if inner is None:
            return None
        lower, upper, _step = map(self.lookup, For(op).bounds)
        trips = self.lookup(For(inner).upper)
        follow = _follow(self, accessed(op.body, For(inner).index), 0, trips, trips)
        filled = self.op("arith.cmpi", lower, upper, predicate="slt")
        same = self.op("arith.andi", filled, follow)
        rows = self.op("arith.subi", upper, lower, overflow="nsw")
        every = self.op("arith.muli", rows, trips, overflow="nsw")
        self.longer[inner] = self.op("arith.select", same, every, trips)
        first = self.op("arith.addi", lower, self.index(1), overflow="nsw")
        self._rebuilt(op, self.op("arith.select", same, first, upper))
        return ()

    def _rebuilt(self, op: Op, upper: Value) -> None:
        """``op``, which carries nothing, up to ``upper``."""
        lower, _, step = map(self.lookup, For(op).bounds)
        made = self.for_(lower, upper, step, **op.attrs)
        self.region(op.body, made.body)


def counted_as_one(build: Rewriter, parallel: Op, trips: Sequence[Value]) -> list[Value]:
    """``trips`` of the loop ``parallel``, which ``build`` is about to rebuild: neighbouring indices
    whose rows follow each other are counted as one, the inner of them."""
    found, deeper = list(trips), trips[-1]
    allowed: Value | None = None
    for behind in range(_depth(parallel)):
        axis = len(found) - 2 - behind
        memrefs = accessed(parallel.body, parallel.body.args[axis + 1])
        follow = _follow(build, memrefs, behind, trips[axis + 1], deeper)
        allowed = follow if allowed is None else build.op("arith.andi", allowed, follow)
        deeper = build.op("arith.muli", deeper, trips[axis], overflow="nsw")
        found[axis] = build.op("arith.select", allowed, build.index(1), trips[axis])
        found[-1] = build.op("arith.select", allowed, deeper, found[-1])
    return found


def _follow(
    build: Rewriter, memrefs: Sequence[Value], behind: int, trips: Value, deeper: Value
) -> Value:
    """Whether rows of ``memrefs`` follow each other (see ``rows``). ``trips``: iterations of the
    inner loop; ``deeper``: their product with those of the loops behind it."""
    arrays = map(build.lookup, memrefs)
    return build.op("weft.rows_follow", trips, deeper, *arrays, behind=behind)


def _over_runs(op: Op) -> bool:
    inner = nested(op)
    if inner is None or not inner.attrs.get("independent"):
        return False
    first, count, step = For(inner).bounds
    fixed = is_constant(first, 0) and is_constant(step, 1) and is_constant(For(op).step, 1)
    return (
        fixed and count.owner not in op.body.ops
        and bool(rows(op.body, For(op).index, For(inner).index))
    )  # fmt: skip


def _depth(parallel: Op) -> int:
    loop, body = Parallel(parallel), parallel.body
    last = len(loop.indices) - 1
    for depth in range(last):
        axis = last - 1 - depth
        fixed = all(is_constant(step, 1) for step in loop.steps[axis : axis + 2])
        memrefs = rows(body, loop.indices[axis], loop.indices[axis + 1], behind=depth)
        if not fixed or memrefs is None or not is_constant(loop.lowers[axis + 1], 0):
            return depth
    return last


def rows(body: Block, outer: Value, inner: Value, behind: int = 0) -> list[Value] | None:
    """The memrefs whose rows must follow each other for ``outer`` and ``inner`` to become one
    index; None if the two are used for more than subscripts.

    ``behind`` is the number of subscripts that come after ``inner``'s. The rows of a memref of rank
    r follow each other if axis ``r - 1 - behind`` is as long as the loop over ``inner`` (of layout
    "contiguous"), or if the stride of the axis before it is the product of the lengths of the loops
    from ``inner`` on ("unit"). ``inner`` must start at 0, and both must have step 1.
    """
    moved = {outer}  # outer, and outer plus what does not depend on either
    found: dict[Value, None] = {}
    for op in walk(body):
        uses_outer = [k for k, value in enumerate(op.operands) if value in moved]
        uses_inner = [k for k, value in enumerate(op.operands) if value is inner]
        if not uses_outer and not uses_inner:
            continue
        if op.name in _ADDITIVE and uses_outer == [0] and not uses_inner:
            moved.add(op.result)
            continue
        if op.name == "arith.addi" and uses_outer == [1] and not uses_inner:
            moved.add(op.result)
            continue
        place = len(op.operands) - 1 - behind
        if op.name not in _ACCESSES or uses_inner != [place] or uses_outer != [place - 1]:
            return None
        memref, subscripts, _ = memory(op)
        type = memref.memref
        if len(subscripts) < behind + 2 or type.layout == "strided" or type.shape is not None:
            return None
        found[memref] = None
    return list(found) or None


def accessed(body: Block, inner: Value) -> list[Value]:
    """The memrefs of which ``body`` accesses elements by the index ``inner``."""
    ops = (op for op in walk(body) if op.name in _ACCESSES and inner in op.operands)
    return list(dict.fromkeys(memory(op)[0] for op in ops))


def nested(loop: Op) -> Op | None:
    """The loop that holds all accesses of ``loop``, right inside it; None if there is none."""
    inner = [op for op in loop.body.ops if op.name == "scf.for"]
    if len(inner) != 1 or loop.results or inner[0].results:
        return None
    rest = [op for op in loop.body.ops if op is not inner[0]]
    return None if any(op.regions or op.name.startswith("memref.") for op in rest) else inner[0]
