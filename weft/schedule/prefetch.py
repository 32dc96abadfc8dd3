"""Prefetch: the loads of a serial loop's next turns stand before the operations of these.

A turn waits for what it loads, and turns of a serial loop wait for each other: with few iterations
there is nothing else to do meanwhile. Here ``steps`` turns become one, which begins with the loads
of the ``steps`` behind it and carries them over (software pipelining, as a rotated copy: unrolling
alone lets an assembler sink the loads again). What is left of the turns follows one by
one. The order of all that is computed is what it was, and so is every bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, slice_of, walk
from weft.ir.ops import OPS
from weft.ir.types import ScalarType
from weft.ir.views import For, memory, written_by
from weft.schedule.language import Prefetch
from weft.schedule.nest import loops_of
from weft.schedule.spmd import WORKGROUP
from weft.schedule.unroll import written_out
from weft.schedule.variation import Variation

_SUMS = ("arith.addf", "arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf")
_ORDERED = ("weft.assert", "weft.bounds", "weft.check_race", "weft.print", "memref.alloca")


def serial_steps(
    function: Function, parallel: Op, unrolled: Sequence[str], steps: Sequence[Prefetch]
) -> tuple[Function, Op]:
    """``function``, in which the loops ``unrolled`` of ``parallel`` are written out, after
    ``steps``, and its loop that was ``parallel``. All of it is legal."""
    serial = loops_of(parallel)
    place = function.body.ops.index(parallel)
    ahead_of = {serial[step.loop]: step.steps for step in steps}
    work = Serial(function, {serial[name] for name in unrolled}, ahead_of)
    made = work.function(function)
    return made, made.body.ops[place]


def ahead(function: Function, loop: Op) -> list[Op]:
    """The loads of ``loop`` that may stand before the turns behind which they are: of every turn,
    each at another place, which no other turn writes."""
    if any(op.name in _ORDERED for op in walk(loop.body)):
        return []
    along = Variation(loop.body, {For(loop).index: 1})
    writers = [op for op in walk(loop.body) if written_by(op) is not None]
    if writers and not function.attrs.get("noalias", True):
        return []
    found: list[Op] = []
    stored: dict[Value, list[Op]] = {}
    for op in writers:
        stored.setdefault(written_by(op), []).append(op)  # type: ignore[arg-type]
    for op in loop.body.ops:
        if op.name != "memref.load":
            continue
        memref, subscripts, _ = memory(op)
        if memref not in function.args or along.uniform(*subscripts):
            continue
        own = stored.get(memref, [])
        if not all(_same_turn(op, other, loop, along) for other in own):
            continue
        if all(_known(v, loop) for v in subscripts):
            found.append(op)
    return found


def _known(subscript: Value, loop: Op) -> bool:
    """Whether a turn's number is all that a subscript depends on."""
    found = slice_of(subscript, loop.body, lambda op: OPS[op.name].pure)
    used = {subscript, *(v for op in found or () for v in op.operands)}
    return found is not None and used.isdisjoint(For(loop).carried)


def _same_turn(load: Op, other: Op, loop: Op, along: Variation) -> bool:
    """Whether ``other`` writes behind ``load`` in its turn, at the same place, and no turn writes
    where another loads."""
    ops, subscripts = loop.body.ops, memory(load)[1]
    behind = other.name == "memref.store" and other in ops and ops.index(other) > ops.index(load)
    return behind and memory(other)[1] == subscripts and any(map(along.slope, subscripts))


class Serial(Rewriter):
    def __init__(
        self, function: Function, unrolled: Collection[Op], ahead_of: Mapping[Op, int]
    ) -> None:
        super().__init__(None, self.entered)
        self.old, self.unrolled, self.ahead_of = function, unrolled, ahead_of

    def entered(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op in self.unrolled:
            return written_out(op, rewriter)
        return self._pipelined(op, self.ahead_of[op]) if op in self.ahead_of else None

    def nothing(self, types: Sequence[ScalarType]) -> list[Value]:
        return [self.constant(0.0 if t.is_float else 0, t) for t in types]

    def _pipelined(self, op: Op, steps: int) -> list[Value]:
        loop, loads = For(op), ahead(self.old, op)
        lower, upper, step = map(self.lookup, loop.bounds)
        turns = self.trip_count(lower, upper, step)
        many = self.number(steps, lower)
        whole = self.muli(self.op("arith.floordivsi", turns, many), many)
        end = self.addi(lower, whole)
        some = self.op("arith.cmpi", lower, end, predicate="slt")
        types = [load.result.scalar for _ in range(steps) for load in loads]

        first = self.either(
            some, lambda: self._loaded(op, loads, lower, steps), lambda: self.nothing(types), types
        )
        main = self.for_(lower, end, many, [*map(self.lookup, loop.inits), *first], unroll=1)
        position, *values = main.body.args
        position.name = loop.index.name
        carried, buffer = values[: len(loop.inits)], values[len(loop.inits) :]
        with self.at(main.body):
            next_ = self.addi(position, many)
            more = self.op("arith.cmpi", next_, end, predicate="slt")
            if WORKGROUP in self.old.attrs:
                again = self.op("arith.select", more, next_, position)
                later = self._loaded(op, loads, again, steps)
            else:
                later = self.either(
                    more, lambda: self._loaded(op, loads, next_, steps), lambda: buffer, types
                )
            for k in range(steps):
                given = buffer[k * len(loads) : (k + 1) * len(loads)]
                carried = self._turn(op, self._position(position, k), carried, loads, given)
            self.do("scf.yield", *carried, *later)
        left = main.results[: len(loop.inits)]
        if steps == 1:  # all turns are whole
            return list(left)
        rest = self.for_(end, upper, step, left, unroll=1, rare=True)
        self.region(op.body, rest.body)
        return list(rest.results)

    def _position(self, first: Value, k: int) -> Value:
        return self.addi(first, self.number(k, first)) if k else first

    def _loaded(self, op: Op, loads: list[Op], first: Value, steps: int) -> list[Value]:
        """What so many turns from the one at ``first`` load."""
        needed = {o for load in loads for v in memory(load)[1]
                  for o in slice_of(v, op.body, lambda _: True) or ()}  # fmt: skip
        found: list[Value] = []
        for k in range(steps):
            self.replacement[op.body.args[0]] = self._position(first, k)
            for inner in op.body.ops:
                if inner in needed or inner in loads:
                    self.rewrite(inner)
            found += map(self.lookup, (load.result for load in loads))
        return found

    def _turn(
        self, op: Op, position: Value, carried: list[Value], loads: list[Op], given: list[Value]
    ) -> list[Value]:
        """One turn, of which ``given`` are the loads."""
        self.replacement.update(zip(op.body.args, [position, *carried], strict=True))
        self.replacement.update(zip((load.result for load in loads), given, strict=True))
        for inner in op.body.ops[:-1]:
            if inner not in loads:
                self.rewrite(inner)
        return [self.lookup(v) for v in op.body.terminator.operands]


def only_sums(loop: Op) -> bool:
    """Whether a turn does nothing but take one element into a sum or an extremum: nothing keeps
    ``ptxas`` from loading those of eight turns first (columns of 1000 x 65,536 on an H200: .066 ms,
    16 loaded ahead .069, 8 .086; of 300 x 65,536 .0245, .0271, .0304)."""
    body = loop.body.ops[:-1]
    names = [op.name for op in body if len(op.results) != 1 or not _is_integer(op.result)]
    return names.count("memref.load") == 1 and {*names} <= {"memref.load", "arith.extf", *_SUMS}


def _is_integer(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and not value.type.is_float
