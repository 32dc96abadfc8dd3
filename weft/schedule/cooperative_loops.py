"""Loops inside of an iteration that several threads of a GPU share.

Where iterations of the parallel loop go along rows (a softmax, a norm, a product with a vector),
one thread for each would read a column at a time, and there may be few rows. A **team** of threads
has the iteration instead. Its members do the same, except in the serial loops that may go in any
order: of these each member has every n-th iteration, and what they carry is combined at the end.
Stores outside of such loops are done by one member. ``find`` decides, ``marked`` notes it in the
IR, for ``schedule.cooperate``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import field

from weft.index.access import Access, accesses
from weft.index.expression import Pick, Poly, atom
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.views import For, If, is_constant, memory, written_by
from weft.ir.writes import loaded, written
from weft.values import mutable

# How what a loop carries is combined, by the operation that updates it. That of a difference is a
# sum, of what is taken off.
_KINDS = {
    "arith.addf": "addf", "arith.mulf": "mulf", "arith.maximumf": "maximumf",
    "arith.minimumf": "minimumf", "arith.maxnumf": "maxnumf", "arith.minnumf": "minnumf",
    "arith.addi": "addi", "arith.muli": "muli", "arith.maxsi": "maxsi", "arith.minsi": "minsi",
    "arith.maxui": "maxui", "arith.minui": "minui", "arith.andi": "andi", "arith.ori": "ori",
    "arith.xori": "xori",
}  # fmt: skip
_DIFFERENCES = {"arith.subf": "addf", "arith.subi": "addi"}
_INEXACT = ("addf", "mulf")
_REFUSED = {"memref.atomic_cas", "weft.assert", "weft.bounds", "weft.touch", "weft.print"}


@mutable
class Team:
    """``loops``: those that members share, with the combiners of what they carry. ``single``:
    stores of one member. ``ordered``: of both those that write what others of the team read.
    ``columns``: neighbouring threads are not of one team, but have neighbouring iterations.
    ``pays``: whether one block does better than threads of their own."""

    loops: dict[Op, tuple[str, ...]] = field(default_factory=dict)
    single: set[Op] = field(default_factory=set)
    ordered: set[Op] = field(default_factory=set)
    columns: bool = False
    pays: bool = True

    def split(self, body: Block) -> bool:
        """Whether several blocks may share the loops: what an iteration of that ``body`` writes is
        not asked for in it, nor written twice."""
        return bool(self.loops) and not self.ordered and {*self.loops} <= {*body.ops}

    @property
    def lengths(self) -> list[tuple[Value, Value]]:
        """First index and end of each shared loop."""
        return [(For(op).lower, For(op).upper) for op in self.loops]


def asked(
    function: Function, parallel: Op, loops: Collection[Op], *, strict: bool, columns: bool,
    split: bool = False,
) -> Team | str:  # fmt: skip
    """The team that shares ``loops`` (those that it may, if there are none), or why there is none,
    whether it pays or not. ``columns``: teams stand side by side. ``split``: they have several
    blocks."""
    search = _Search({access.op: access for access in accesses(function)}, strict)
    for loop in loops:
        if (reason := search.refusal(loop)) is not None:
            return reason
    search.wanted = loops or None
    search.forced = True
    if not search.uniform(parallel.body):
        return "what stands around the loops must be done by one thread"
    team = search.team
    if not team.loops:
        return "no loop may go in any order"
    if missing := [op for op in loops if op not in team.loops]:
        return f"`{For(missing[0]).index.name}` is in another loop that is shared"
    search.order(parallel.body)
    team.columns = columns
    waiting = {*team.loops, *(team.ordered & team.single)}
    if split and not team.split(parallel.body):
        return (
            "blocks share loops that are in no other loop or branch, of iterations that do not "
            "read what they write"
        )
    if columns and not waiting <= {*parallel.body.ops}:
        return "groups side by side need shared loops that are in no other loop or branch"
    return team


def find(function: Function, parallel: Op, fastest: int, *, strict: bool) -> Team | None:
    """The team for iterations of ``parallel``. Its members are neighbours if they then read
    neighbouring elements where threads of their own (neighbours along ``fastest``) would not. If
    those would, teams may stand side by side, where there are few iterations. ``strict``: sums keep
    their order."""
    if parallel.attrs["kinds"] or not function.attrs.get("noalias", True):
        return None
    body = parallel.body
    if not any(op.name == "scf.for" for op in walk(body)):
        return None
    search = _Search({access.op: access for access in accesses(function)}, strict)
    if not search.uniform(body) or not search.team.loops:
        return None
    search.order(body)
    team, gain = search.team, search.gain(body.args[fastest])
    if gain <= 0:
        # The whole block waits where members do: all its threads have to come by.
        waiting = {*team.loops, *(team.ordered & team.single)}
        team.columns, team.pays = True, gain < 0 and waiting <= {*body.ops}
    return team if team.pays or team.split(body) else None


def marked(function: Function, team: Team) -> Function:
    """A copy of ``function``, in which operations of the team have these attributes: "team", the
    combiners of a loop, () for a store; "ordered" where others of the team wait for it."""
    return _Marking(team).function(function)


class _Marking(Rewriter):
    def __init__(self, team: Team) -> None:
        super().__init__(lambda op, rewriter: None)
        self.team = team

    def copy(self, op: Op) -> Op:
        new = super().copy(op)
        if op in self.team.loops or op in self.team.single:
            new.attrs["team"] = self.team.loops.get(op, ())
            new.attrs["ordered"] = op in self.team.ordered
        return new


class _Search:
    def __init__(self, found: dict[Op, Access], strict: bool) -> None:
        self.found = found
        self.strict = strict
        self.team = Team()
        self.local: set[Value] = set()
        self.wanted: Collection[Op] | None = None  # the loops to be shared, where that is asked for
        self.forced = False  # whether it may be work done many times over

    def uniform(self, block: Block) -> bool:
        """Takes in what all members do. False where that would be work done many times over, or
        something that must be done once."""
        for op in block.ops:
            if op.name in _REFUSED or op.name == "scf.while":
                return False
            if op.name == "scf.for":
                kinds = self.shared(op) if self.wanted is None or op in self.wanted else None
                inner = any(o.name == "scf.for" for o in walk(op.body))
                if kinds is not None and (not inner or self.wanted or self.along(op)):
                    self.team.loops[op] = kinds
                elif not (inner or self.forced) or not self.uniform(op.body):
                    return False
            elif op.name == "scf.if":
                if not all(self.uniform(region) for region in op.regions):
                    return False
            elif op.name == "memref.alloca":
                self.local.add(op.result)
            elif op.name in ("memref.store", "memref.atomic_rmw"):
                if op.results and _used(op.result, block):
                    return False
                if memory(op)[0] not in self.local:
                    self.team.single.add(op)
        return True

    # -- which loops may go in any order

    def shared(self, loop: Op) -> tuple[str, ...] | None:
        """The combiners of what ``loop`` carries; None if its iterations have an order."""
        body = loop.body
        if not is_constant(For(loop).step, 1) or any(op.name in _REFUSED for op in walk(body)):
            return None
        kinds = [_kind(body, arg, end) for arg, _, end, _ in For(loop).rows]
        if any(kind is None or (self.strict and kind in _INEXACT) for kind in kinds):
            return None
        return tuple(k for k in kinds if k is not None) if self.apart(loop) else None

    def refusal(self, loop: Op) -> str | None:
        """Why iterations of ``loop`` have an order."""
        name, body = For(loop).index.name, loop.body
        if not is_constant(For(loop).step, 1):
            return f"`{name}` does not go by 1"
        if refused := next((op for op in walk(body) if op.name in _REFUSED), None):
            return f"the loop over `{name}` has {refused.name} inside"
        for arg, _, end, result in For(loop).rows:
            kind = _kind(body, arg, end)
            value = result.name or arg.name
            if kind is None:
                return f"`{value}` is carried along `{name}` by no associative combination"
            if self.strict and kind in _INEXACT:
                return f"strict_math keeps the order of the sum `{value}` along `{name}`"
        if not self.apart(loop):
            return f"iterations along `{name}` touch what others of them write"
        return None

    def apart(self, loop: Op) -> bool:
        """Whether no iteration of ``loop`` touches what another one writes."""
        body = loop.body
        inside = {op.result for op in walk(body) if op.name == "memref.alloca"}
        touched: dict[Value, list[Access]] = {}
        for op in walk(body):
            if (access := self.found.get(op)) is not None and access.memref not in inside:
                touched.setdefault(access.memref, []).append(access)
        for memref, several in touched.items():
            free = [_free(access.op, body) for access in several]
            if all(access.kind == "load" for access in several) or all(free):
                continue
            if memref in self.local or any(free) or not self.one_each(loop, several):
                return False
        return True

    def one_each(self, loop: Op, several: list[Access]) -> bool:
        """Whether all of these accesses are to one element, another one in each iteration."""
        subscripts = several[0].subscripts
        if any(access.subscripts != subscripts for access in several):
            return False
        iv = For(loop).index
        inner = {For(op).index for op in walk(loop.body) if op.name == "scf.for"}
        steps = [poly is not None and poly.slope(iv) for poly in subscripts]
        leaves = {v for poly in subscripts if poly is not None for v in poly.leaves()}
        return None not in subscripts and any(steps) and not leaves & inner

    # -- whether it pays

    def along(self, loop: Op) -> bool:
        """Whether members would access neighbours somewhere in ``loop``."""
        iv = For(loop).index
        near = (self.found[op] for op in walk(loop.body) if op in self.found)
        return any(_neighbours(access, iv) for access in near)

    def gain(self, fastest: Value) -> int:
        """Accesses that members do as neighbours and threads of their own do not, less those where
        it is the other way round; 0 too where neither does."""
        total = 0
        for loop in self.team.loops:
            iv = For(loop).index
            for op in walk(loop.body):
                access = self.found.get(op)
                if access is None or None in access.subscripts or access.local:
                    continue
                alone = _apart(access, iv, fastest)
                team = _neighbours(access, iv) or not any(iv in leaves for leaves in _all(access))
                total += (not alone and _neighbours(access, iv)) - (alone and not team)
        return total

    # -- who waits for whom

    def order(self, body: Block) -> None:
        """Notes which loops and stores write memory that the iteration reads somewhere, or that
        members store to in another place, too: the later store is to stay."""
        read = loaded(body) | {
            memory(op)[0] for op in walk(body)
            if op.name == "memref.atomic_rmw" and not op.attrs["atomic"]
        }  # fmt: skip
        places = [*self.team.loops, *self.team.single]
        writers: dict[Value, list[Op]] = {}
        for op in places:
            for memref in written(op):
                writers.setdefault(memref, []).append(op)
        again = {
            memref for memref, ops in writers.items()
            if len(ops) > 1 and any(op in self.team.loops for op in ops)
            and not all(_only_adds(op, memref) for op in ops)
        }  # fmt: skip
        both = (read | again) - self.local
        for op in places:
            if written(op) & both:
                self.team.ordered.add(op)


def _all(access: Access) -> Iterator[set[object]]:
    return (set(poly.leaves()) for poly in access.subscripts if poly is not None)


def _neighbours(access: Access, iv: Value) -> bool:
    """Whether neighbours along ``iv`` access neighbours in a row."""
    if None in access.subscripts or not access.memref.memref.row_major:
        return False
    in_row = not any(p is not None and p.mentions(iv) for p in access.subscripts[:-1])
    return access.stride(iv) in (1, -1) and in_row


def _apart(access: Access, iv: Value, fastest: Value) -> bool:
    """Whether threads that are neighbours along ``fastest`` access one element, or neighbours, at
    the same turn of the loop over ``iv``."""
    (loop,) = (loop for loop in access.loops if loop.iv is iv)
    mentioned = any(iv in leaves for leaves in _all(access))
    if mentioned and loop.lower is None:
        return False
    *outer, last = access.subscripts
    begin = {iv: _arm(loop.lower, fastest)} if mentioned and loop.lower is not None else {}
    at = [p.substitute(lambda v: begin.get(v)) for p in (*outer, last) if p is not None]  # type: ignore[arg-type]
    if any(p.mentions(fastest) for p in at[:-1]):
        return False
    step = at[-1].slope(fastest)
    return step == 0 or (access.memref.memref.row_major and step in (1, -1))


def _arm(poly: Poly, iv: Value) -> Poly:
    """``poly`` where what depends on ``iv`` is picked: the greater one of it and a bound, say."""
    for pick in list(poly.atoms()):
        factor = poly.coefficient(pick).constant
        if isinstance(pick, Pick) and factor:
            arm = pick.left if iv in set(pick.left.leaves()) else pick.right
            poly = poly + (arm - atom(pick)).scaled(factor)
    return poly


def _free(op: Op, body: Block) -> bool:
    """Whether ``op`` adds to memory, in whatever order."""
    return op.name == "memref.atomic_rmw" and op.attrs["atomic"] and not _used(op.result, body)


def _only_adds(op: Op, memref: Value) -> bool:
    """Whether ``op`` and what is inside write ``memref`` by atomic operations only."""
    inside = (op, *(inner for region in op.regions for inner in walk(region)))
    return all(inner.attrs.get("atomic") for inner in inside if written_by(inner) is memref)


def _used(value: Value, block: Block) -> bool:
    return any(value in op.operands for op in walk(block))


def _kind(body: Block, arg: Value, end: Value) -> str | None:
    """The combiner that ``end`` is made from ``arg`` with, if nothing else uses what lies between;
    None where it is something else."""
    chain = _Chain()
    kind = chain.follow(arg, end)
    if not kind:
        return None
    chain.ops.add(body.terminator)
    for op in walk(body):
        through = [k for k, v in enumerate(op.operands) if v in chain.values]
        if op in chain.ops and op.name == "arith.select":
            if 0 in through:
                return None
        elif len(through) > (op in chain.ops):  # it is used elsewhere, or goes on twice
            return None
    return kind


class _Chain:
    """The operations from a carried value to the next one: ``values`` it goes through, and the
    ``ops`` that may use these."""

    def __init__(self) -> None:
        self.values: set[Value] = set()
        self.ops: set[Op] = set()

    def follow(self, arg: Value, value: Value) -> str | None:
        """The combiner between ``arg`` and ``value``: "" if they are the same, None if there is
        none."""
        if value is arg:
            self.values.add(value)
            return ""
        op = value.op
        if op is None:
            return None
        kind: str | None = None
        if op.name in _KINDS and op.left is not op.right:
            kind = self.update(arg, _KINDS[op.name], op.operands)
        elif op.name in _DIFFERENCES and op.left is not op.right:
            kind = self.update(arg, _DIFFERENCES[op.name], [op.left])
        elif op.name == "math.fma":
            factor, _, added = op.operands
            kind = None if factor is added else self.update(arg, "addf", [added])
        elif op.name == "arith.select":
            condition, yes, no = op.operands
            kind = self.merge([self.follow(arg, v) for v in (yes, no)])
            kind = None if condition in self.values else kind
        elif op.name == "scf.if":
            k = op.results.index(value)
            kind = self.merge([self.follow(arg, v) for v in If(op).arms(k)])
            self.ops.update(region.terminator for region in op.regions)
        elif op.name == "scf.for":
            start, init, end, _ = For(op).rows[op.results.index(value)]
            before = self.follow(arg, init)
            if before is not None:
                kind = self.merge([before, self.follow(start, end)])
                self.ops.add(op.body.terminator)
        if kind is not None:
            self.values.add(value)
            self.ops.add(op)
        return kind

    def update(self, arg: Value, kind: str, operands: list[Value]) -> str | None:
        found = [(v, self.follow(arg, v)) for v in operands]
        through = [before for _, before in found if before is not None]
        return kind if len(through) == 1 and through[0] in ("", kind) else None

    def merge(self, kinds: list[str | None]) -> str | None:
        known = {kind for kind in kinds if kind}
        return None if None in kinds or len(known) > 1 else next(iter(known), "")


assert all(name in OPS for name in (*_KINDS, *_DIFFERENCES))
