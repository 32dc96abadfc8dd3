"""Elements that a choice of two values, both of which Python evaluates, takes on one side only:
``weft.select(i > 0, x[i - 1], 0.0)``, ``torch.where``, ``(i > 0) & (x[i - 1] > 0)``.

Where the other side is taken, `x[i - 1]` may be no element: memory in front of the tensor. What is
not known to be one is loaded where it is taken, with all that is computed of it alone.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

from weft.frontend.context import Lowering
from weft.index.access import Extraction
from weft.index.bounds import always_in_range
from weft.index.facts import Points
from weft.index.least import Least
from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value, below, inputs, walk
from weft.ir.ops import OPS
from weft.ir.types import ScalarType, i1
from weft.ir.views import Select, accessed_by, condition_of, memory
from weft.values import frozen

MOST = 300  # values looked at for what a condition and a subscript have in common


@frozen
class Arm:
    """Operand ``place`` of ``choices``, which counts where ``condition`` is ``holds``: of one, or
    of those of the parts of a vector or of a complex number, one behind the other."""

    choices: tuple[Op, ...]
    place: int
    condition: Value
    holds: bool

    @property
    def values(self) -> list[Value]:
        return [choice.operands[self.place] for choice in self.choices]


def guard(cx: Lowering, function: Function) -> None:
    """Puts loads that one side of a choice needs, and that may be out of range, into a branch.
    ``function`` is changed in place. Not moved: what is stored, drawn, printed or asserted, and
    loads in front of it."""
    blocks = [function.body, *(region for op in walk(function.body) for region in op.regions)]
    arms = [list(_arms(choices)) for block in blocks for choices in _choices(block)]
    if not arms:
        return
    guards = _Guards(function, set(cx.checks))
    for arm in [arm for two in reversed(arms) for arm in two]:  # those around others first
        guards.put(arm)
    for check in [op for op in walk(function.body) if op.name == "weft.bounds"]:
        guards.put_check(check)
    guards.drop_unasked()


def _choices(block: Block) -> Iterator[tuple[Op, ...]]:
    """The choices of ``block``; together those by one condition that follow each other."""
    run: list[Op] = []
    for op in block.ops:
        if run and (op.name == "scf.if" or condition_of(op) is not condition_of(run[0])):
            yield tuple(run)
            run = []
        if op.name == "arith.select":
            run.append(op)
        elif op.name in ("arith.andi", "arith.ori") and op.result.type is i1:
            yield (op,)


def _arms(choices: tuple[Op, ...]) -> Iterator[Arm]:
    first = choices[0]
    if first.name == "arith.select":
        yield Arm(choices, 1, Select(first).condition, True)
        yield Arm(choices, 2, Select(first).condition, False)
    else:
        yield Arm(choices, 1, first.left, first.name == "arith.andi")
        yield Arm(choices, 0, first.right, first.name == "arith.andi")


class _Guards:
    """Of one function. ``checks``: the assertions that debug mode adds."""

    def __init__(self, function: Function, checks: Collection[Op]) -> None:
        self._function = function
        self._points = Points(function)
        self._around = self._points.around
        self._least = Least(function, self._points)
        self._integers, self._unknown = (
            functools.cache(_integers),
            functools.cache(self._unknown_of),
        )
        self._blocks: dict[Op, Block] = {}
        self._users: dict[Value, list[Op]] = {}
        self._branches: dict[Op, Arm] = {}
        self._loading = set[Op]()  # what loads, and what is computed of that
        self._note(function.body)
        self._checking = self._for_checks(function, checks)
        self._accesses = functools.cache(
            lambda: {access.op: access for access in Extraction(function).found}
        )

    def _note(self, block: Block) -> None:
        for op in block.ops:
            self._blocks[op] = block
            for value in op.operands:
                self._users.setdefault(value, []).append(op)
            for region in op.regions:
                self._note(region)
            if any(map(self._is_loaded, op.operands)) or any(
                o.name == "memref.load" or o in self._loading for o in below(op)
            ):
                self._loading.add(op)

    def _is_loaded(self, value: Value) -> bool:
        return value.op in self._loading

    def _for_checks(self, function: Function, checks: Collection[Op]) -> set[Op]:
        """The ``checks``, those of subscripts, and what is computed for them alone."""
        found = {*checks, *(op for op in self._blocks if op.name == "weft.bounds")}
        for op in reversed([*walk(function.body)] if found else []):
            users = [user for v in op.results for user in self._users.get(v, ())]
            if users and OPS[op.name].pure and found.issuperset(users):
                found.add(op)
        return found

    def put(self, arm: Arm) -> None:
        """Lets ``arm`` be computed where it counts, if something may be out of range elsewhere. A
        choice that checks make says nothing of where elements are taken."""
        if arm.choices[0] in self._checking or not any(map(self._is_loaded, arm.values)):
            return
        block = self._blocks[arm.choices[0]]
        own = self._own(arm, block)
        if not any(self._may_miss(load, arm.condition) for op in own for load in _loads(op)):
            return
        place = block.ops.index(arm.choices[0])
        own = self._movable(own, arm, block, place)
        if not any(self._may_miss(load, arm.condition) for op in own for load in _loads(op)):
            return
        own |= self._checks_of(own, block)
        taken = {v: [c for c in arm.choices if c.operands[arm.place] is v]
                 for v in arm.values if v.op in own}  # fmt: skip
        b = Builder(Block(), arm.choices[0].span)
        branch = b.if_(arm.condition, [v.type for v in taken])
        side, other = branch.regions if arm.holds else reversed(branch.regions)
        side.ops = [op for op in block.ops[:place] if op in own]
        with b.at(side):
            end = b.do("scf.yield", *taken)
        with b.at(other):
            b.do("scf.yield", *(b.constant(0, v.scalar) for v in taken))
        block.ops[:place] = [*(op for op in block.ops[:place] if op not in own), branch]
        for (value, choices), result in zip(taken.items(), branch.results, strict=True):
            for choice in choices:
                choice.operands[arm.place] = result
            self._users[result], self._users[value] = [*choices], [end]
        self._branches[branch] = arm
        self._loading.add(branch)
        self._users.setdefault(arm.condition, []).append(branch)
        self._blocks |= dict.fromkeys(side.ops, side) | dict.fromkeys(other.ops, other)
        self._blocks[branch] = block
        self._around |= dict.fromkeys((*side.ops, *other.ops, side, other), branch)
        self._around[branch] = self._around[arm.choices[0]]

    def put_check(self, check: Op) -> None:
        """Puts ``check``, of a row whose elements are taken in a loop, where these are."""
        block = self._blocks[check]
        loads = [op for op in self._users[check.left] if self._is_about(check, op)]
        arms = [arm for op in loads if (arm := self._arm_around(op, block)) is not None]
        if not arms or len(arms) < len(loads) or len({(a.condition, a.holds) for a in arms}) > 1:
            return
        if not self._is_known(arms[0].condition, check):
            return
        b = Builder(Block(), check.span)
        branch = b.if_(arms[0].condition)
        for side, taken in zip(branch.regions, (True, False), strict=True):
            side.ops = [check] if taken is arms[0].holds else []
            with b.at(side):
                b.do("scf.yield")
        block.ops[block.ops.index(check)] = branch

    def drop_unasked(self) -> None:
        """Takes out what is loaded for nobody, and is not known to be there, unless it is checked:
        a member of a record that a choice does not take."""
        if self._checking:
            return
        for op, block in self._blocks.items():
            if op.name == "memref.load" and not self._users.get(op.result) and self._unknown(op):
                block.ops = [other for other in block.ops if other is not op]

    def _is_known(self, value: Value, at: Op) -> bool:
        """Whether ``value`` has been computed when ``at`` is carried out."""
        inside: Op | None = at
        while inside is not None:
            block = self._blocks[inside]
            if value in block.args or value.op in block.ops[: block.ops.index(inside)]:
                return True
            inside = self._around[inside]
        return False

    def _arm_around(self, op: Op, block: Block) -> Arm | None:
        """The arm that ``op``, somewhere below ``block``, was put into."""
        inside: Op | None = op
        while inside is not None and self._blocks[inside] is not block:
            inside = self._around[inside]
            if inside in self._branches:
                return self._branches[inside]
        return None

    # --- what an arm is computed of ---------------------------------------------------------------
    def _own(self, arm: Arm, block: Block) -> set[Op]:
        """The operations of ``block`` that only ``arm`` asks for, apart from checks."""
        own, waiting = set[Op](), [value.op for value in arm.values]
        while waiting:
            op = waiting.pop()
            if (
                op is not None and op not in own and self._blocks[op] is block and self._moves(op)
                and self._is_asked_by(op, own, arm, block)
            ):  # fmt: skip
                own.add(op)
                waiting += [v.op for v in inputs(op)]  # again, where another one asks for it, too
        return own

    def _moves(self, op: Op) -> bool:
        return all(
            o.name in _COMPUTES or OPS[o.name].pure or o in self._checking for o in below(op)
        )

    def _is_asked_by(self, op: Op, own: set[Op], arm: Arm, block: Block) -> bool:
        """Whether only ``own`` and ``arm`` ask for what ``op`` gives, apart from checks."""
        return all(
            user in self._checking or self._directly(user, block) in own
            or (user in arm.choices and _only(user, value) == arm.place)
            for value in op.results
            for user in self._users.get(value, ())
        )  # fmt: skip

    def _movable(self, own: set[Op], arm: Arm, block: Block, place: int) -> set[Op]:
        """Those of ``own`` that may wait for ``arm``: loads not, if something is stored before."""
        own = own & {*block.ops[:place]}
        left, changed = set(own), False
        for op in reversed(block.ops[:place]):
            if not left:
                break
            left.discard(op)
            if changed and any(_loads(op)):
                own = own - {op}
            changed = changed or (op not in own and _changes(op))
        size = -1
        while len(own) != size:
            size = len(own)
            own = {op for op in own if self._is_asked_by(op, own, arm, block)}
        return own

    def _checks_of(self, own: set[Op], block: Block) -> set[Op]:
        """The checks of what ``own`` computes and loads, with what they compute."""
        found, waiting = set[Op](), [user for op in own for v in op.results
                                     for user in self._users.get(v, ())]  # fmt: skip
        waiting += [
            user for op in own for load in _loads(op) for v in memory(load)[1]
            for user in self._users[v]
            if user.name == "weft.bounds" and self._blocks[user] is block
            and self._subscripted(user, block) is load
        ]  # fmt: skip
        while waiting:
            op = waiting.pop()
            if op in self._checking and op not in found and self._blocks[op] is block:
                found.add(op)
                waiting += [user for v in op.results for user in self._users.get(v, ())]
        return found

    def _subscripted(self, check: Op, block: Block) -> Op | None:
        """The access whose subscript ``check`` is about: the next one with it."""
        for op in block.ops[block.ops.index(check) + 1 :]:
            for inner in below(op):
                if self._is_about(check, inner):
                    return inner
        return None

    def _is_about(self, check: Op, op: Op) -> bool:
        """Whether ``op`` accesses what ``check`` names with the subscript that it checks."""
        memref = accessed_by(op)
        return (
            memref is not None and check.left in memory(op)[1]
            and check.attrs["tensor"].startswith(memref.name)
        )  # fmt: skip

    def _directly(self, op: Op, block: Block) -> Op | None:
        """The operation of ``block`` that ``op`` is, or is in."""
        inside: Op | None = op
        while inside is not None and self._blocks[inside] is not block:
            inside = self._around[inside]
        return inside

    # --- what may be out of range -----------------------------------------------------------------
    def _may_miss(self, load: Op, condition: Value) -> bool:
        """Whether ``load`` is not known to be in range: it may be in front of the tensor, or
        ``condition`` is about its subscript."""
        return any(
            in_front or bool(self._integers(condition) & self._integers(subscript))
            for subscript, in_front in self._unknown(load)
        )

    def _unknown_of(self, load: Op) -> list[tuple[Value, bool]]:
        """The subscripts of a tensor that are not proven to be in range, and whether they may be
        negative."""
        memref, at, _ = memory(load)
        if memref not in self._function.args:
            return []
        inside = always_in_range(self._accesses()[load], lambda _: None, isl=False)
        return [
            (subscript, self._least.at(subscript, load) < 0 and not self._from_end(subscript))
            for subscript, known in zip(at, inside, strict=True)
            if not known
        ]

    def _from_end(self, subscript: Value) -> bool:
        """Whether it is a literal, counted from the end."""
        base, offset = self._points.split(subscript)
        return base.op is not None and base.op.name == "memref.dim" and offset < 0


def _loads(op: Op) -> Iterator[Op]:
    return (inner for inner in below(op) if inner.name == "memref.load")


def _changes(op: Op) -> bool:
    return any(o.name not in _STAYS and not OPS[o.name].pure for o in below(op))


def _only(op: Op, value: Value) -> int:
    """The place of ``value`` among the operands of ``op``; -1 where it is there twice."""
    places = [k for k, operand in enumerate(op.operands) if operand is value]
    return places[0] if len(places) == 1 else -1


_COMPUTES = {"memref.load", "scf.if", "scf.for", "scf.while", "scf.yield", "scf.condition"}
_STAYS = _COMPUTES | {"weft.assert", "weft.bounds"}


def _integers(value: Value) -> set[Value]:
    """What ``value`` is computed of, as far as that is no constant, size or float."""
    found, seen, waiting = set[Value](), set[Value](), [value]
    while waiting and len(seen) < MOST:
        one = waiting.pop()
        if one in seen or not isinstance(one.type, ScalarType) or one.type.is_float:
            continue
        seen.add(one)
        if one.op is None or not OPS[one.op.name].pure:
            found.add(one)
        else:
            waiting += one.op.operands
    return found
