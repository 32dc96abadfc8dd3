"""Copy ahead: what a turn of a serial loop loads for a later one is copied into shared memory.

A loop that loads for later turns carries what it has loaded in registers, and GPUs count loads
that are on their way by few counters: the first turn that asks for one waits for all that came
behind it, too. Here the copies of ``steps`` turns are on their way together while the ``steps`` in
front are carried out, and no register holds them: an instruction copies from memory into shared
memory by itself, and a thread waits for all of its copies at once. Each element has a place for
each thread of the block, so that no thread waits for another. The order of all that is computed is
what it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, slice_of, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, ScalarType, i32, i64, index
from weft.ir.views import For, constant_of, memory
from weft.ir.writes import written
from weft.schedule.language import (
    Bind,
    CopyAhead,
    Schedule,
    SharedArrays,
    Stage,
    Step,
    Unroll,
    only,
    several,
)
from weft.schedule.nest import LoopNest, Refusal, loops_of
from weft.schedule.shared_arrays import bytes_in, fitting
from weft.schedule.stage import MOST_BYTES, rows_of
from weft.schedule.stage import bytes_of as bytes_staged
from weft.schedule.unroll import turns
from weft.values import frozen

COPIED = "copied"  # attribute of a loop: what so many of its turns load for later ones is copied
MOST_STEPS = 32
_LEAST = 4  # turns that are copied together
_WORDS = (4, 8, 16)  # bytes that one instruction copies


def _behind(op: Op, index: Value) -> int:
    """How far what ``op`` computes is behind ``index``; 0 where it is something else."""
    number = constant_of(op.right) if op.name == "arith.addi" and op.left is index else None
    return int(number or 0)


def _at_most(op: Op, index: Value, far: int, end: int) -> bool:
    """Whether ``op`` computes what is so far behind ``index``, where that is below ``end``."""
    if op.name != "arith.minsi" or op.left.op is None:
        return False
    most = constant_of(op.right)
    return most is not None and most >= end - 1 and _behind(op.left.op, index) == far


@frozen
class Queue:
    """What ``load`` reads in a turn for the one that comes ``len(carried)`` later: there it is the
    first of ``carried``, which hand it on from turn to turn. ``places``: of these among what the
    loop carries."""

    load: Op
    carried: tuple[Value, ...]
    places: tuple[int, ...]


def queues(function: Function, loop: Op) -> list[Queue]:
    """What ``loop`` loads for later turns, of memory that the function does not write."""
    view, inside, changed = For(loop), {*loop.body.ops}, written(function)
    if changed and not function.attrs.get("noalias", True):
        return []
    used: dict[Value, list[Op]] = {}
    for op in walk(loop.body):
        for value in op.operands:
            used.setdefault(value, []).append(op)
    end, yielded = loop.body.terminator, list(view.yielded)
    results = {v for op in walk(function.body) for v in op.operands} & {*loop.results}
    found: list[Queue] = []
    for last, value in enumerate(yielded):
        load = value.op
        if (
            load not in inside or load.name != "memref.load" or used[value] != [end]
            or memory(load)[0] not in function.args or memory(load)[0] in changed
            or load.result.scalar.bytes not in _WORDS or not _computed(load, loop)
        ):  # fmt: skip
            continue
        places = [last]
        while (before := view.carried[places[0]]) in yielded and used[before] == [end]:
            places.insert(0, yielded.index(before))
        carried = tuple(view.carried[k] for k in places)
        if results.isdisjoint(loop.results[k] for k in places):
            found.append(Queue(load, carried, tuple(places)))
    return found


def _computed(load: Op, loop: Op) -> bool:
    """Whether the number of a turn is all of the loop that subscripts depend on."""
    slices = [slice_of(v, loop.body, lambda op: OPS[op.name].pure) for v in memory(load)[1]]
    used = {v for found in slices for op in found or () for v in op.operands}
    return None not in slices and {*used, *memory(load)[1]}.isdisjoint(For(loop).carried)


def bytes_of(found: Collection[Queue], steps: int, threads: int) -> int:
    """Of shared memory for so many turns, and those in front of them."""
    return 2 * steps * threads * sum(queue.load.result.scalar.bytes for queue in found)


def room(function: Function, parallel: Op, axis: int, schedule: Sequence[Step]) -> int:
    """The bytes of shared memory that ``schedule`` leaves, by what it stages for neighbours along
    ``axis`` and by local arrays."""
    loops, left, threads = loops_of(parallel), MOST_BYTES, 0
    for step in several(schedule, Stage):
        rows = rows_of(function, parallel, axis, loops[step.loop], step.threads)
        left, threads = left - bytes_staged(rows, step.steps), step.threads
    if only(schedule, SharedArrays) is not None:
        unrolled = only(schedule, Unroll)
        fixed = {For(loops[name]).index for name in (unrolled.loops if unrolled else ())}
        left -= bytes_in(fitting(parallel, threads, left, fixed), threads)
    return left


def copies_of(
    function: Function, parallel: Op, axis: int, schedule: Sequence[Step]
) -> tuple[CopyAhead, ...]:
    """The loops that load for later turns beside ``schedule``, as many as shared memory holds."""
    stage, unrolled = only(schedule, Stage), only(schedule, Unroll)
    if stage is None:
        return ()
    found: list[CopyAhead] = []
    left = room(function, parallel, axis, schedule)
    for name, loop in loops_of(parallel).items():
        alone = "rare" not in loop.attrs and not (unrolled and name in unrolled.loops)
        steps = copied(function, loop) if alone else 0
        size = bytes_of(queues(function, loop), steps, stage.threads) if steps else 0
        if 0 < size <= left:
            found.append(CopyAhead(name, steps))
            left -= size
    return tuple(found)


def copied(function: Function, loop: Op) -> int:
    """The turns that are copied together of ``loop``, where it loads for later ones and has no
    other loop inside; else 0."""
    if any(op.name in ("scf.for", "scf.while") for op in walk(loop.body)):
        return 0
    most = max((len(queue.carried) for queue in queues(function, loop)), default=0)
    steps = max(1 << max(most - 1, 0).bit_length(), _LEAST)
    return steps if most and turns(loop) % steps == 0 and turns(loop) > steps else 0


def why_not_copied(nest: LoopNest, step: CopyAhead, schedule: Schedule) -> Refusal | None:
    """Why ``step`` is wrong for a loop; None where it is not."""
    loop, stage, unrolled = nest.serial[step.loop], only(schedule, Stage), only(schedule, Unroll)
    if stage is None:
        return Refusal("a block's threads are not known", None, "write stage(...) as well")
    if unrolled is not None and step.loop in unrolled.loops:
        return Refusal(f"`{step.loop}` is written out", None, "leave one of them out")
    if not 1 <= step.steps <= MOST_STEPS or step.steps & (step.steps - 1):
        return Refusal(f"turns are a power of two, 1 to {MOST_STEPS}")
    if turns(loop) <= 0 or turns(loop) % step.steps:
        return Refusal(f"`{step.loop}` has no number of turns that {step.steps} divides", loop.span)
    found = queues(nest.function, loop)
    if not found:
        return Refusal(
            f"no turn of `{step.loop}` loads what is handed on to a later one", loop.span,
            "of memory that is not written, where the number of the turn alone says",
        )  # fmt: skip
    if any(len(queue.carried) > step.steps for queue in found):
        return Refusal(f"`{step.loop}` loads for more than {step.steps} turns later", loop.span)
    axis = nest.axes.index(several(schedule, Bind)[0].axis)
    left = room(nest.function, nest.parallel, axis, schedule)
    size = sum(
        bytes_of(queues(nest.function, nest.serial[other.loop]), other.steps, stage.threads)
        for other in several(schedule, CopyAhead) if other.loop in nest.serial
    )  # fmt: skip
    if size > left:
        return Refusal(f"it takes {size} bytes of shared memory, {max(left, 0)} are left")
    return None


def copy_ahead(function: Function, parallel: Op, threads: int) -> tuple[Function, Op]:
    """``function``, whose blocks have so many ``threads`` along x, in which the marked loops of
    ``parallel`` copy what they load for later turns, and its loop that was ``parallel``."""
    place = function.body.ops.index(parallel)
    work = _Copying(function, threads)
    made = work.function(function)
    made.body.ops[:0] = work.front.ops
    return made, made.body.ops[place + len(work.front.ops)]


class _Copying(Rewriter):
    """``front``: what stands before the loop over iterations. ``unwritten``: the arguments that
    nothing is stored to."""

    def __init__(self, function: Function, threads: int) -> None:
        super().__init__(None, self._around)
        self.old, self.threads, self.front = function, threads, Block()

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if COPIED not in op.attrs:
            return None
        found = queues(self.old, op)
        steps = op.attrs[COPIED]
        if not found or turns(op) % steps or any(len(q.carried) > steps for q in found):
            made = self.copy(op)
            del made.attrs[COPIED]
            self.region(op.body, made.body)
            return self.append(made).results
        return self._copied(op, found, steps)

    def _ring(self, element: ScalarType, steps: int) -> Value:
        size = 2 * steps * self.threads
        with self.at(self.front):
            type = MemRefType(element, 1, "contiguous", (size,), "shared")
            return self.op("memref.alloca", type=type)

    def _copied(self, op: Op, found: Sequence[Queue], steps: int) -> list[Value]:
        loop = For(op)
        rings = {queue: self._ring(queue.load.result.scalar, steps) for queue in found}
        gone = {k for queue in found for k in queue.places}
        kept = [k for k in range(len(loop.inits)) if k not in gone]
        lower, upper, one = map(self.lookup, loop.bounds)
        self.thread = self._of_type(self.op("gpu.thread_id", type=i32, dimension="x"), lower)
        inits = [self.lookup(v) for v in loop.inits]
        many = self.number(steps, lower)
        begin = self._half(self.number(0, lower), steps)
        for queue, ring in rings.items():
            for k in range(steps):
                if k < len(queue.places):
                    self._kept(inits[queue.places[k]], ring, self._beside(begin, k))
                else:
                    self._copy(op, queue, ring, self._behind(lower, k), self._beside(begin, k))
        carried = [inits[k] for k in kept]
        attrs = {k: v for k, v in op.attrs.items() if k in ("rare",)}
        main = self.for_(lower, upper, many, carried, unroll=1, **attrs)
        first, *values = main.body.args
        with self.at(main.body):
            self.do("gpu.copies_wait")
            later = self.addi(first, many)
            with self.when(self.op("arith.cmpi", later, upper, predicate="slt")):
                next_ = self._half(self.subi(later, lower), steps)
                for queue, ring in rings.items():
                    for k in range(steps):
                        at = self._beside(next_, k)
                        self._copy(op, queue, ring, self._behind(later, k), at)
            here = self._half(self.subi(first, lower), steps)
            inner = self.for_(self.number(0, lower), many, one, values)
            inner.attrs = {k: v for k, v in op.attrs.items() if k != COPIED}
            turn, *mine = inner.body.args
            with self.at(inner.body):
                position = self.addi(first, turn)
                self.replacement[loop.index] = position
                position.name = loop.index.name
                self.replacement.update(zip((loop.carried[k] for k in kept), mine, strict=True))
                for queue, ring in rings.items():
                    far = self.muli(turn, self.number(self.threads, turn))
                    value = self.load(ring, [self.addi(here, far)])
                    self.replacement[queue.carried[0]] = value
                skipped = {queue.load for queue in found}
                for inside in op.body.ops[:-1]:
                    if inside not in skipped:
                        self.rewrite(inside)
                self.do("scf.yield", *(self.lookup(loop.yielded[k]) for k in kept))
            self.do("scf.yield", *inner.results)
        results = dict(zip(kept, main.results, strict=True))
        # Nothing asks for what is handed on behind the last turn.
        return [results.get(k, inits[k]) for k in range(len(inits))]

    def _behind(self, first: Value, k: int) -> Value:
        return self.addi(first, self.number(k, first)) if k else first

    def _of_type(self, thread: Value, like: Value) -> Value:
        if like.scalar is not index:
            return thread
        return self.op("arith.index_cast", self.op("arith.extui", thread, type=i64), type=index)

    def _half(self, turn: Value, steps: int) -> Value:
        """Where the thread's elements begin of the turns from the one with this number on."""
        half = self.op("arith.andi", turn, self.number(2 * steps - 1, turn))
        return self.addi(self.muli(half, self.number(self.threads, turn)), self.thread)

    def _beside(self, place: Value, k: int) -> Value:
        return self._behind(place, k * self.threads)

    def _kept(self, value: Value, ring: Value, at: Value) -> None:
        """Puts what was loaded before the loop where it is read; by a copy, if that may be."""
        made, load = self.store(value, ring, [at]), value.op
        if load is not None and load.name == "memref.load" and memory(load)[0] in self.unwritten:
            made.attrs["copies"] = True

    def _copy(self, op: Op, queue: Queue, ring: Value, turn: Value, at: Value) -> None:
        """Copies what ``queue`` has for the turn at ``turn``."""
        loop, far = For(op), len(queue.carried)
        last = constant_of(loop.upper)
        assert last is not None
        needed = {o for v in memory(queue.load)[1]
                  for o in slice_of(v, op.body, lambda _: True) or ()}  # fmt: skip
        saved = dict(self.replacement)
        self.replacement[loop.index] = self.subi(turn, self.number(far, turn))
        for inside in op.body.ops:
            if inside in needed:
                self.rewrite(inside)
                if _behind(inside, loop.index) == far or _at_most(
                    inside, loop.index, far, int(last)
                ):
                    self.replacement[inside.result] = turn
        value = self.append(self.copy(queue.load)).result
        self.replacement = saved
        self.store(value, ring, [at]).attrs["copies"] = True

    def into(self, function: Function, new: Function) -> Function:
        changed = written(function)
        pairs = zip(function.args, new.args, strict=False)
        self.unwritten = {after for before, after in pairs if before not in changed}
        return super().into(function, new)
