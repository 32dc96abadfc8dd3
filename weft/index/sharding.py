"""Whether a function may run on parts of its tensors: on each rank on its own rows.

Some tensors are cut along one axis each, all of these axes of one size, and every rank has the same
rows of all of them. A rank runs the function on what it has. Row ``p`` of a rank is row ``p + o``
of the whole, for some ``o``, and the size is ``n`` there and ``n + m`` in the whole. The walk
follows how each value would differ in the whole: not at all, or by a multiple of ``o`` and of
``m``. A loop up to the size is *split*: each rank has its iterations. What is accumulated over one
is a *part* of what the whole has, to be combined by its kind.

Nothing is assumed: what is not followed raises ``NotLocal``. Where a row reads others at constant
offsets, or treats the first or last rows apart, the rank needs these many rows of its neighbours (a
halo), so that rows of its own are neither first nor last unless they are in the whole.

Non-goal: strategies in which ranks run different code, or in which a tensor is cut twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.index.expression import Poly, atom
from weft.index.rows import SAME, Content, Halo, Memory, Moved, NotLocal, Positions, Size
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, i1
from weft.ir.views import For, If, Parallel, Select, While, constant_of, memory
from weft.values import frozen

# How parts are combined, by the combiner of what accumulates them.
COMBINED = {"addf": "sum", "addi": "sum",
            "maximumf": "max", "maxnumf": "max", "maxsi": "max",
            "minimumf": "min", "minnumf": "min", "minsi": "min"}  # fmt: skip
_GREATER = {"ogt": 1, "oge": 1, "sgt": 1, "sge": 1, "olt": -1, "ole": -1, "slt": -1, "sle": -1}
_SCALES = ("arith.mulf", "arith.divf", "arith.negf")  # of a sum, what they scale is one
_SAME_BITS = ("arith.index_cast", "arith.extsi", "arith.trunci")


@frozen
class Part:
    """A value of which each rank has a part, combined by ``kind``: "sum", "max" or "min"."""

    kind: str


@frozen
class _Carried:
    """What a split loop carries: of ``kind`` once something is accumulated into it."""

    loop: Op
    place: int
    kind: str = ""


@frozen
class _Test:
    """Whether a value is greater (1) or less (-1) than what is carried."""

    value: Value
    carried: Value
    sign: int


_State = Moved | Part | _Carried | _Test | None  # None: of no use


def follow(function: Function, given: Mapping[Value, object], halo: Halo) -> None:
    """Follows ``function`` with ``given`` by argument: ``Memory`` (whose content is changed),
    ``Size``, or a number that is the same on all ranks. Raises ``NotLocal``."""
    walk = _Walk(function, given, halo)
    walk.block(function.body)
    for content in walk.loaded:
        if content.partial:
            raise NotLocal(f"`{content.name}` is read before all ranks' parts are combined")
    if walk.partial and (halo.before or halo.after):
        raise NotLocal("a sum over rows treats the first or last ones apart")


class _Values:
    """What is known of values: how they differ in the whole, or that they are parts."""

    def __init__(self, function: Function, given: Mapping[Value, object], halo: Halo) -> None:
        self.given, self.halo = given, halo
        self.at = Positions(function, given, halo, self._state)
        self.memories = self.at.memories
        self.states: dict[Value, _State] = {}
        for value, found in given.items():
            if not isinstance(found, Memory):
                self.states[value] = Moved(0, found.factor) if isinstance(found, Size) else SAME
        self.loaded: set[Content] = set()
        self.partial = False

    def _state(self, value: Value) -> _State:
        return self.states.get(value)

    def _same(self, op: Op, values: Sequence[Value]) -> None:
        for value in values:
            if self._state(value) != SAME:
                raise self._refused(op, self._why(value))

    def _why(self, value: Value) -> str:
        match self._state(value):
            case Moved(by, _):
                while not value.name and value.op is not None and value.op.name in _SAME_BITS:
                    value = value.op.operand
                name = f" `{value.name}`" if value.name else ""
                return f"the {'index' if by else 'size'}{name} is used as a number"
            case Part(kind):
                return f"the {kind} over all rows is used before ranks have combined it"
            case _:
                name = f"`{value.name}`" if value.name else "a value"
                return f"{name} is carried from row to row"

    def _refused(self, op: Op, reason: str) -> NotLocal:
        return NotLocal(reason + (f" (line {op.span.line})" if op.span else ""))

    def _is_zero(self, value: Value) -> bool:
        op = value.op
        if op is not None and op.name in ("arith.truncf", "arith.extf", *_SAME_BITS):
            return self._is_zero(op.operand)
        found = constant_of(value) if op is not None else self.given.get(value)
        return isinstance(found, int | float) and not isinstance(found, bool) and found == 0

    def _accumulated(self, op: Op, kind: str, init: Value) -> Part:
        """What accumulates a part of ``kind`` from ``init`` on."""
        start = self._state(init)
        neutral = self._is_zero(init) if kind == "sum" else start == SAME
        if not neutral and start != Part(kind):
            raise self._refused(op, f"the {kind} over all rows does not start from 0")
        self.partial = True
        return Part(kind)

    def _chosen(self, op: Op, test: _State, yes: Value, no: Value) -> _State:
        """``yes if test else no``."""
        states = self._state(yes), self._state(no)
        if isinstance(test, _Test):
            carried = self._state(test.carried)
            sign = test.sign if (yes, no) == (test.value, test.carried) else -test.sign
            if {yes, no} == {test.value, test.carried} and isinstance(carried, _Carried):
                return self._into(op, carried, "max" if sign > 0 else "min")
        elif isinstance(left := states[0], _Carried) and isinstance(right := states[1], _Carried):
            if (left.loop, left.place) == (right.loop, right.place) and (
                left.kind == right.kind or not (left.kind and right.kind)
            ):
                return left if left.kind else right
        elif states[0] == states[1] and states[0] is not None:
            return states[0]
        bad = next((v for v in (yes, no) if self._state(v) != SAME), yes)
        raise self._refused(op, self._why(bad))

    def _computed(self, op: Op) -> _State:
        states = [self._state(v) for v in op.operands]
        if op.name in ("arith.cmpi", "arith.minsi", "arith.maxsi") and _are_moved(states):
            return self._compared(op, states)
        if op.name == "arith.select":
            select = Select(op)
            test = self._state(select.condition)
            if not isinstance(test, _Test):
                self._same(op, [select.condition])
            return self._chosen(op, test, select.yes, select.no)
        if all(s == SAME for s in states):
            return SAME
        if any(isinstance(s, _Carried) for s in states):
            return self._reduced(op, states)
        if any(isinstance(s, Part) for s in states):
            return self._part(op, states)
        if _are_moved(states):
            found = self._shifted(op, states)
            if found is not None:
                return found
        raise self._refused(op, self._why(next(
            v for v, s in zip(op.operands, states, strict=True) if s != SAME)))  # fmt: skip

    def _shifted(self, op: Op, states: Sequence[_State]) -> Moved | None:
        moved = [s for s in states if isinstance(s, Moved)]
        if op.name in _SAME_BITS:
            return moved[0] if op.result.scalar.bits >= 32 else None
        if op.name in ("arith.addi", "arith.subi"):
            sign = 1 if op.name == "arith.addi" else -1
            left, right = moved
            return Moved(left.by + sign * right.by, left.grown + sign * right.grown)
        if op.name == "arith.muli":
            for value, other in zip((op.left, op.right), reversed(moved), strict=True):
                poly = self.at.poly(value)
                factor = None if poly is None else poly.constant
                if factor is not None:
                    return Moved(other.by * factor, other.grown * factor)
        return None

    def _compared(self, op: Op, states: Sequence[_State]) -> Moved:
        """A comparison, or the lesser or greater, of two integers."""
        left, right = states
        assert isinstance(left, Moved)
        predicate = op.attrs.get("predicate", "")
        if left == right and not predicate.startswith("u"):
            return SAME if predicate else left
        a, b = map(self.at.poly, op.operands)
        refused = self._refused(op, self._why((op.left, op.right)[left == SAME]))
        if a is None or b is None or self.at.split is None or predicate.startswith("u"):
            raise refused
        if predicate:  # `a > b` is `not b - a >= 0`
            difference = self.at.resolved(a) - self.at.resolved(b)
            difference = -difference if predicate in ("sgt", "sle") else difference
            if self.at.surely(difference, zero=predicate in ("eq", "ne")) is None:
                raise refused
            return SAME
        found = self.at.poly(op.result)
        moved = None if found is None else self.at.moved(self.at.resolved(found))
        if moved is None:
            raise refused
        return moved

    def _reduced(self, op: Op, states: Sequence[_State]) -> _State:
        """What has to do with what a split loop carries."""
        name = op.name.partition(".")[2]
        others = [s for s in states if not isinstance(s, _Carried)]
        found = [(k, s) for k, s in enumerate(states) if isinstance(s, _Carried)]
        ((place, carried), *more) = found
        if not more and all(s == SAME for s in others):
            if name in ("cmpf", "cmpi") and op.attrs["predicate"] in _GREATER:
                sign = _GREATER[op.attrs["predicate"]] * (1 if place == 1 else -1)
                return _Test((op.right, op.left)[place], (op.left, op.right)[place], sign)
            if name in COMBINED and op.result.type is not i1:
                return self._into(op, carried, COMBINED[name])
            if (name in ("subf", "subi") and place == 0) or (name == "fma" and place == 2):
                return self._into(op, carried, "sum")
        raise self._refused(op, self._why(op.operands[place]))

    def _into(self, op: Op, carried: _Carried, kind: str) -> _Carried:
        if carried.kind not in ("", kind):
            raise self._refused(op, f"a {carried.kind} over all rows becomes a {kind}")
        return _Carried(carried.loop, carried.place, kind)

    def _part(self, op: Op, states: Sequence[_State]) -> Part:
        """What parts become: sums stay sums when they are added or scaled."""
        kinds = {s.kind for s in states if isinstance(s, Part)}
        (kind, *more) = kinds
        if not more and all(isinstance(s, Part) or s == SAME for s in states):
            if op.name in ("arith.truncf", "arith.extf"):
                return Part(kind)
            added = all(isinstance(s, Part) or self._is_zero(v)
                        for v, s in zip(op.operands, states, strict=True))  # fmt: skip
            whole = [s for s in states if s == SAME]
            if kind == "sum" and (
                (op.name in ("arith.addf", "arith.addi", "arith.subf", "arith.subi") and added)
                or (op.name in _SCALES and len(whole) == len(states) - 1
                    and not (op.name == "arith.divf" and states[0] == SAME))
            ):  # fmt: skip
                return Part(kind)
        bad = next(v for v, s in zip(op.operands, states, strict=True) if isinstance(s, Part))
        raise self._refused(op, self._why(bad))


class _Walk(_Values):
    """Follows operations, and what they do to memory."""

    # --- walking ---------------------------------------------------------------------------------
    def block(self, block: Block) -> None:
        for op in block.ops:
            match op.name:
                case "scf.parallel":
                    self._parallel(op)
                case "scf.for":
                    self._for(op)
                case "scf.if":
                    self._if(op)
                case "scf.while":
                    self._while(op)
                case "memref.load":
                    self._load(op)
                case "memref.store" | "memref.atomic_rmw" | "memref.atomic_cas":
                    self._write(op)
                case "memref.alloca":
                    self._local(op)
                case "memref.dim":
                    size = self._memory(op, op.operand).shape[op.attrs["axis"]]
                    self.states[op.result] = Moved(0, 1) if size is None else SAME
                case "weft.bounds":
                    pass  # of the rows that a rank has
                case "weft.assert":
                    self._same(op, op.operands)
                case name if OPS[name].terminator:
                    pass
                case name if OPS[name].pure and not name.startswith("gpu."):
                    found = self._computed(op)
                    self.states.update(dict.fromkeys(op.results, found))
                case _:
                    raise self._refused(op, f"{op.name} is not followed")

    # --- loops -----------------------------------------------------------------------------------
    def _enter(self, op: Op, iv: Value, lower: Value, upper: Value, step: Value) -> bool:
        """Begins a loop over ``iv``. Whether it is split."""
        self._same(op, [step])
        ends: list[Poly | None] = []
        moved: list[_State] = []
        for value, kinds in ((lower, ("max",)), (upper, ("min",))):
            poly = self.at.poly(value)
            if poly is not None and self.at.split is not None:
                poly = self.at.resolved(poly, kinds)
            ends.append(poly)
            moved.append(self._state(value) if poly is None else self.at.moved(poly))
        first, last = ends
        self.at.ranges.append((iv, first, last))
        match moved:
            case [Moved(0, 0), Moved(0, 0)]:
                self.states[iv] = SAME
                return False
            case [Moved(1, 0), Moved(1, 0)]:
                self.states[iv] = Moved(1, 0)
                return False
            case [Moved(0, 0), Moved(0, 1)]:
                pass
            case _:
                raise self._refused(op, f"how long the loop over `{iv.name}` is depends on the row")
        begin = None if first is None else first.constant
        end = None if last is None else (last - atom(self.at.size)).constant
        if begin is None or end is None or begin < 0 or end > 0 or constant_of(step) != 1:
            raise self._refused(op, f"the loop over `{iv.name}` does not go over all rows")
        if self.at.split is not None:
            raise self._refused(op, f"`{iv.name}` and `{self.at.split.name}` go over the same rows")
        self.halo.need(before=begin, after=-end)
        self.at.split = iv
        self.states[iv] = Moved(1, 0)
        return True

    def _leave(self, split: bool, count: int = 1) -> None:
        del self.at.ranges[len(self.at.ranges) - count :]
        if split:
            self.at.split = None

    def _parallel(self, op: Op) -> None:
        loop = Parallel(op)
        split = [self._enter(op, iv, *axis)
                 for iv, axis in zip(loop.indices, loop.axes, strict=True)]  # fmt: skip
        self.block(op.body)
        rows = zip(op.results, loop.kinds, loop.inits, loop.contributions, strict=True)
        for result, combiner, init, value in rows:
            state = self._state(value)
            if state == SAME and not any(split):
                self._same(op, [init])
                self.states[result] = SAME
                continue
            kind = COMBINED.get(combiner, "")
            if not kind or state not in ((SAME,) if any(split) else (Part(kind),)):
                raise self._refused(op, self._why(value) if state != SAME
                                    else f"ranks do not combine {combiner}")  # fmt: skip
            self.states[result] = self._accumulated(op, kind, init)
        self._leave(any(split), loop.dims)

    def _for(self, op: Op) -> None:
        loop = For(op)
        split = self._enter(op, loop.index, *loop.bounds)
        starts = [self._state(v) for v in loop.inits]
        if split:
            starts = [_Carried(op, k) for k in range(len(starts))]
        for _ in range(2):
            self.states.update(zip(loop.carried, starts, strict=True))
            self.block(op.body)
            ends = [self._state(v) for v in loop.yielded]
            # From 0 on, a sum of parts is one; what was untouched is accumulated into.
            again = [
                e if isinstance(e, Part) and s == SAME and e.kind == "sum" and self._is_zero(i)
                else s for s, e, i in zip(starts, ends, loop.inits, strict=True)
            ]  # fmt: skip
            if again == starts:
                break
            starts = again
        for k, (carried, init, value, result) in enumerate(loop.rows):
            start, end = starts[k], self._state(value)
            if split and isinstance(end, _Carried) and end.loop is op and end.place == k:
                found = self._accumulated(op, end.kind, init) if end.kind else self._state(init)
            elif not split and (end == start or _is_further(start, end)):
                found = end
            else:
                raise self._refused(op, self._why(carried if end == SAME else value))
            self.states[result] = found
        self._leave(split)

    def _while(self, op: Op) -> None:
        loop = While(op)
        self._same(op, op.operands)
        for block, handed in ((loop.before, loop.handed), (loop.after, [])):
            self.states.update(dict.fromkeys(block.args, SAME))
            self.block(block)
            self._same(op, handed)
        self._same(op, [loop.condition, *loop.after.terminator.operands])
        self.states.update(dict.fromkeys(op.results, SAME))

    def _if(self, op: Op) -> None:
        branch = If(op)
        test = self._state(branch.condition)
        if isinstance(test, _Test):
            if any(not OPS[o.name].pure and not OPS[o.name].terminator
                   for region in op.regions for o in region.ops):  # fmt: skip
                raise self._refused(op, self._why(branch.condition))
        else:
            self._same(op, [branch.condition])
        for region in op.regions:
            self.block(region)
        for place, result in enumerate(op.results):
            self.states[result] = self._chosen(op, test, *branch.arms(place))

    # --- memory ----------------------------------------------------------------------------------
    def _memory(self, op: Op, memref: Value) -> Memory:
        if memref not in self.memories:
            raise self._refused(op, f"`{memref.name}` is not followed")
        return self.memories[memref]

    def _local(self, op: Op) -> None:
        self._same(op, op.operands)
        kind = op.result.type
        assert isinstance(kind, MemRefType)
        shape = kind.shape or ()
        content = Content(op.result.name or "array", False, inside=self.at.split is not None)
        self.memories[op.result] = Memory(content, None, shape)

    def _at(self, op: Op, found: Memory, subscripts: Sequence[Value], *, exact: bool) -> None:
        """Checks that it is in the row of the iteration; unless ``exact``, or that a neighbour's
        row is meant that is at a constant distance."""
        others = [v for k, v in enumerate(subscripts) if k != found.axis]
        self._same(op, others)
        if found.axis is None:
            return
        poly = self.at.poly(subscripts[found.axis])
        distance = None if poly is None else self.at.distance(poly)
        if distance is None or (exact and distance != (0, 0)):
            raise self._refused(op, f"`{found.content.name}` is not accessed by row")
        if distance != (0, 0):
            low, high = distance
            self.halo.need(before=-low, after=high)
            found.content.shifted = True

    def _load(self, op: Op) -> None:
        memref, subscripts, _ = memory(op)
        found = self._memory(op, memref)
        self._at(op, found, subscripts, exact=False)
        self.loaded.add(found.content)
        self.states[op.result] = SAME

    def _write(self, op: Op) -> None:
        memref, subscripts, values = memory(op)
        array = self._memory(op, memref)
        self._at(op, array, subscripts, exact=True)
        found, states = array.content, {self._state(v) for v in values}
        combined = COMBINED.get(op.attrs.get("kind", ""), "")
        used: _State = SAME
        if states == {SAME} and (array.axis is not None or self.at.split is None or found.inside):
            if found.partial:
                raise self._refused(op, f"`{found.name}` has parts of other ranks")
            found.whole = True
        elif states == {SAME} and combined and memref.memref.element is not i1:
            self._add_part(op, array, combined)
            used = None
        elif (
            self.at.split is None
            and isinstance(part := next(iter(states)), Part)
            and (op.name == "memref.store" or part.kind == combined == "sum")
        ):
            self._add_part(op, array, part.kind)
            used = None
        else:
            bad = next((v for v in values if self._state(v) != SAME), None)
            raise self._refused(op, f"rows on several ranks write to `{found.name}`" if bad is None
                                else self._why(bad))  # fmt: skip
        self.states.update(dict.fromkeys(op.results, used))

    def _add_part(self, op: Op, array: Memory, kind: str) -> None:
        """Has each rank have a part of ``array``."""
        stored, found = op.name == "memref.store", array.content
        if found.given or found.inside or array.axis is not None:
            raise self._refused(op, f"rows on several ranks write to `{found.name}`")
        if kind == "sum" and found.fill != 0 and not (stored and found.fill is None):
            raise self._refused(op, f"`{found.name}` is not 0 at first")
        if found.partial not in ("", kind) or found.whole:
            raise self._refused(op, f"`{found.name}` has parts of other ranks")
        found.partial = kind
        self.partial = True


def _are_moved(states: Sequence[_State]) -> bool:
    return len(states) > 0 and all(isinstance(s, Moved) for s in states)


def _is_further(start: _State, end: _State) -> bool:
    """Whether an inner loop has accumulated into what the split loop around it carries."""
    return (
        isinstance(start, _Carried) and isinstance(end, _Carried) and not start.kind
        and (start.loop, start.place) == (end.loop, end.place)
    )  # fmt: skip
