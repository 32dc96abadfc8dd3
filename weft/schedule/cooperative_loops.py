"""Loops inside of an iteration that several threads of a GPU share.

Where iterations of the parallel loop go along rows (a softmax, a norm, a product with a vector),
one thread for each would read a column at a time, and there may be few rows. A **team** of threads
has the iteration instead. Its members do the same, except in the serial loops that may go in any
order: of these each member has every n-th iteration, and what they carry is combined at the end.
Stores outside of such loops are done by one member. ``find`` decides, ``marked`` notes it in the
IR, for ``schedule.cooperate``.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import field

from weft.index.access import Access, accesses
from weft.index.expression import Pick, Poly, atom
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import index
from weft.ir.views import For, is_constant, memory, written_by
from weft.ir.writes import loaded, written
from weft.schedule.combiners import INEXACT, combiners, is_joint
from weft.schedule.expose import exposed
from weft.schedule.recurrences import Recurrences, recurrences
from weft.schedule.variation import Variation
from weft.values import mutable

SHORT = 8  # turns, fewer than the threads of the smallest group
_REFUSED = {"memref.atomic_cas", "weft.assert", "weft.bounds", "weft.check_race", "weft.print"}


@mutable
class Team:
    """``loops``: those that members share, with the combiners of what they carry. ``single``:
    stores of one member. ``ordered``: of both those that write what others of the team read.
    ``columns``: neighbouring threads are not of one team, but have neighbouring iterations.
    ``pays``: whether one block does better than threads of their own. ``nests``: of loops that
    stand in others which only carry on what they carry, the loops from the outermost on; these are
    combined once, behind it. ``scans``: those of them in which each turn asks for what was carried
    so far."""

    loops: dict[Op, tuple[str, ...]] = field(default_factory=dict)
    single: set[Op] = field(default_factory=set)
    ordered: set[Op] = field(default_factory=set)
    columns: bool = False
    pays: bool = True
    nests: dict[Op, tuple[Op, ...]] = field(default_factory=dict)
    scans: dict[Op, Recurrences] = field(default_factory=dict)

    def nest(self, op: Op) -> tuple[Op, ...]:
        """The loops from the one behind which a shared one is combined to that."""
        return self.nests.get(op, (op,))

    def split(self, body: Block) -> bool:
        """Whether several blocks may share the loops: what an iteration of that ``body`` writes is
        not asked for in it, nor written twice."""
        apart = not self.ordered and not self.scans
        return bool(self.loops) and apart and self.met(body)

    def parted(self, body: Block) -> bool:
        """Whether several blocks may scan the loops, one loop after the other: an iteration with
        that ``body`` has nothing else that is not done anew, but stores behind all of them."""
        around = [op for op in body.ops[:-1] if op not in self.loops]
        touched = {v for op in (*self.loops, *self.single) for v in written(op)}
        return (
            bool(self.scans) and self.loops.keys() == self.scans.keys() <= {*body.ops}
            and not self.ordered & self.single
            and all(each.last == 0 and len(each.levels) == len(each.kinds)
                    for each in self.scans.values())
            and all(op in self.single or (OPS[op.name].pure and not op.regions)
                    or (op.name == "memref.load" and memory(op)[0] not in touched)
                    for op in around)
        )  # fmt: skip

    def met(self, body: Block) -> bool:
        """Whether all threads of a block come by where they wait for each other."""
        loops = {self.nest(op)[0] for op in self.loops}
        return loops | (self.ordered & self.single) <= exposed(body, loops)

    @property
    def lengths(self) -> list[tuple[Value, Value]]:
        """First index and end of each shared loop."""
        return [(For(op).lower, For(op).upper) for op in self.loops]


def asked(
    function: Function, parallel: Op, loops: Collection[Op], *, columns: bool,
    split: bool = False, scan: bool = False,
) -> Team | str:  # fmt: skip
    """The team that shares ``loops`` (those that it may, if there are none), or why there is none,
    whether it pays or not. ``columns``: teams stand side by side. ``split``: they have several
    blocks."""
    search = _Search(function, scan)
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
    if scan and not team.scans:
        return "no loop asks at every turn for what was carried so far: cooperate(...) shares them"
    if missing := [op for op in loops if op not in team.loops]:
        return f"`{For(missing[0]).index.name}` is in another loop that is shared"
    search.order(parallel.body)
    team.columns = columns
    if columns or split:
        search.climb(parallel.body)
    if split and not team.split(parallel.body):
        return (
            "blocks share loops that are in no other loop or branch, of iterations that do not "
            "read what they write"
        )
    if columns and not team.met(parallel.body):
        return "groups side by side need shared loops that are in no other loop or branch"
    return team


def find(function: Function, parallel: Op, fastest: int) -> Team | None:
    """The team for iterations of ``parallel``. Its members are neighbours if they then read
    neighbouring elements where threads of their own (neighbours along ``fastest``) would not. If
    those would, teams may stand side by side, where there are few iterations."""
    if parallel.attrs["kinds"] or not function.attrs.get("noalias", True):
        return None
    body = parallel.body
    if not any(op.name == "scf.for" for op in walk(body)):
        return None
    search = _Search(function, True)
    if not search.uniform(body) or not search.team.loops:
        return None
    if all(map(search.is_short, search.team.loops)):
        return None
    search.order(body)
    search.climb(body)
    team, gain = search.team, search.gain(body.args[fastest])
    if team.scans:
        team.pays = gain > 0
        return team
    if gain <= 0:
        team.columns, team.pays = True, gain < 0 and team.met(body)
    return team if team.pays or team.split(body) else None


def ordered(function: Function, loop: Op) -> str | None:
    """Why turns of ``loop`` have an order; None where they may go in any."""
    search = _Search(function)
    if any(kind is not None and is_joint(kind) for kind in combiners(loop).kinds):
        return f"what `{For(loop).index.name}` carries goes by the numbers of its turns"
    return search.refusal(loop)


def marked(function: Function, team: Team) -> Function:
    """A copy of ``function``, in which operations of the team have these attributes: "team", the
    combiners of a loop, () for a store; "ordered" where others of the team wait for it; "turns" for
    a shared loop in one that has its combiners."""
    return _Marking(team).function(function)


class _Marking(Rewriter):
    def __init__(self, team: Team) -> None:
        super().__init__(None, self.carrying)
        self.team = team

    def carrying(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        """A loop that has to carry more values than are asked for."""
        more = combiners(op).more if op in self.team.loops.keys() - self.team.scans.keys() else []
        if not more:
            return None
        loop = self.copy(op)
        kinds = self.team.loops[op][-len(more) :]
        for kind in kinds:  # what the loop begins with comes before all iterations
            first = -(1 << 63) if kind.startswith("at.") else 0
            loop.operands.append(self.constant(first, index))
            loop.results.append(Value(index, "", loop))
        loop.regions = [Block([a.type for a in op.body.args] + [index] * len(more))]
        hidden = loop.body.args[len(op.body.args) :]
        counts = {v.op: h for v, h, k in zip(more, hidden, kinds, strict=True) if k[0] == "c"}
        with self.at(loop.body):
            iv = loop.body.args[0]
            for old, new in zip(op.body.args, loop.body.args, strict=False):
                new.name = old.name
                self.replacement[old] = new
            for inner in op.body.ops[:-1]:
                self.replacement[op.body.args[0]] = counts.get(inner, iv)
                self.rewrite(inner)
            self.replacement[op.body.args[0]] = iv
            ends = [self.lookup(v) for v in op.body.terminator.operands]
            for value, before, kind in zip(more, hidden, kinds, strict=True):
                end = self.lookup(value)
                if kind.startswith("at."):
                    end = self.op("arith.select", end, iv, before, type=index)
                ends.append(end)
            self.do("scf.yield", *ends)
        return self.append(loop).results[: len(op.results)]

    def copy(self, op: Op) -> Op:
        new, team = super().copy(op), self.team
        shared = next((loop for loop, nest in team.nests.items() if nest[0] is op), op)
        if op in team.nests:
            new.attrs["turns"] = team.loops[op]
        elif shared in team.loops or op in team.single:
            new.attrs["team"] = team.loops.get(shared, ())
            if op in team.scans:
                new.attrs["scan"] = team.scans[op].noted
            new.attrs["ordered"] = op in team.ordered
        return new


class _Search:
    def __init__(self, function: Function, scan: bool = False) -> None:
        self.function = function
        self.strict = function.strict
        self.scan = scan  # whether loops may be shared in which turns ask for what was carried
        self.team = Team()
        self.local: set[Value] = set()
        self.wanted: Collection[Op] | None = None  # the loops to be shared, where that is asked for
        self.forced = False  # whether it may be work done many times over

    @functools.cached_property
    def found(self) -> dict[Op, Access]:
        """What is accessed, of which most loops are not asked."""
        return {access.op: access for access in accesses(self.function)}

    def uniform(self, block: Block) -> bool:
        """Takes in what all members do. False where that would be work done many times over, or
        something that must be done once."""
        for op in block.ops:
            if op.name in _REFUSED or op.name == "scf.while":
                return False
            if op.name == "scf.for":
                wanted = self.wanted is None or op in self.wanted
                kinds = self.shared(op) if wanted else None
                inner = any(o.name == "scf.for" for o in walk(op.body))
                if kinds is not None and (not inner or self.wanted or self.along(op)):
                    self.team.loops[op] = kinds
                elif wanted and (carried := self.scanned(op)) is not None:
                    self.team.loops[op] = ("scan",) * len(op.results)
                    self.team.scans[op] = carried
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
        kinds = combiners(loop).kinds
        if any(kind is None or (self.strict and kind in INEXACT) for kind in kinds):
            return None
        return tuple(k for k in kinds if k is not None) if self.apart(loop) else None

    def scanned(self, loop: Op) -> Recurrences | None:
        """What ``loop`` carries, where its turns may ask for that and it may be shared so."""
        if not self.scan or None not in combiners(loop).kinds or self.refusal(loop) is not None:
            return None
        found = recurrences(loop, strict=self.strict)
        return None if isinstance(found, str) else found

    def refusal(self, loop: Op) -> str | None:
        """Why iterations of ``loop`` have an order."""
        name, body = For(loop).index.name, loop.body
        if not is_constant(For(loop).step, 1):
            return f"`{name}` does not go by 1"
        if refused := next((op for op in walk(body) if op.name in _REFUSED), None):
            return f"the loop over `{name}` has {refused.name} inside"
        kinds = combiners(loop).kinds
        if self.scan and None in kinds:
            carried = recurrences(loop, strict=self.strict)
            if isinstance(carried, str):
                return carried
            kinds = []
        for kind, (arg, _, _, result) in zip(kinds, For(loop).rows, strict=False):
            value = result.name or arg.name
            if kind is None:
                return f"`{value}` is carried along `{name}` by no associative combination"
            if self.strict and kind in INEXACT:
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
        """Whether these accesses have one subscript alike, which is another one in each iteration
        of ``loop``, and none that loops inside of it move."""
        iv = For(loop).index
        inner = {For(op).index for op in walk(loop.body) if op.name == "scf.for"}
        polys = [poly for access in several for poly in access.subscripts]
        if any(poly is None or not inner.isdisjoint(poly.leaves()) for poly in polys):
            return False
        return any(
            first is not None and first.slope(iv) and all(poly == first for poly in others)
            for first, *others in zip(*(access.subscripts for access in several), strict=True)
        )

    # -- whether it pays

    def along(self, loop: Op) -> bool:
        """Whether members would access neighbours somewhere in ``loop``, at each turn of all that
        is inside it: what an inner loop asks for again and again counts less than what it goes
        along."""
        iv = For(loop).index
        near = (self.found[op] for op in walk(loop.body) if op in self.found)
        return any(_neighbours(access, iv) and not _repeated(access, iv) for access in near)

    def is_short(self, loop: Op) -> bool:
        """Whether ``loop`` is known to have so few turns that a thread alone does them as well: the
        elements of a gradient that one element came to."""
        iv = For(loop).index
        loops = (each for op in walk(loop.body) if op in self.found
                 for each in self.found[op].loops if each.iv is iv)  # fmt: skip
        bounds = next(loops, None)
        if bounds is None or bounds.lower is None or bounds.upper is None:
            return False
        turns = (high - low for low in _arms(bounds.lower, "max")
                 for high in _arms(bounds.upper, "min"))  # fmt: skip
        return any((most := each.constant) is not None and most < SHORT for each in turns)

    def gain(self, fastest: Value) -> int:
        """Accesses that members do as neighbours and threads of their own do not, less those where
        it is the other way round; 0 too where neither does."""
        total, block = 0, fastest.owner
        assert isinstance(block, Block)
        along = Variation(block, {fastest: 1})
        for loop in self.team.loops:
            iv, same = For(loop).index, along.uniform(For(loop).lower)
            for op in walk(loop.body):
                access = self.found.get(op)
                if access is None or None in access.subscripts or access.local:
                    continue
                alone = _apart(access, iv, fastest, same)
                team = _neighbours(access, iv) or not any(iv in leaves for leaves in _all(access))
                total += (not alone and _neighbours(access, iv)) - (alone and not team)
        return total

    # -- loops that only carry on

    def climb(self, body: Block) -> None:
        """Takes in the nests of shared loops."""
        for op in walk(body):
            nest = [op]
            while (inner := _carried_on(nest[-1])) is not None:
                nest.append(inner)
                kinds = self.team.loops.get(inner)
                if kinds is not None and not any(map(is_joint, kinds)):
                    self.team.nests.setdefault(inner, tuple(nest))
                if kinds is not None:
                    break

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


def _repeated(access: Access, iv: Value) -> bool:
    """Whether a loop inside that over ``iv`` accesses one element at all of its turns."""
    serial = list(access.serial)
    return any(not any(inner in leaves for leaves in _all(access))
               for inner in serial[serial.index(iv) + 1 :])  # fmt: skip


def _arms(poly: Poly, kind: str) -> Iterator[Poly]:
    """``poly``, and what it is not beyond: where it adds the least or greatest (``kind``) of two
    expressions, with either of them."""
    yield poly
    for pick in poly.atoms():
        if isinstance(pick, Pick) and pick.kind == kind and poly.coefficient(pick).constant == 1:
            for arm in (pick.left, pick.right):
                yield from _arms(poly + (arm - atom(pick)), kind)


def _apart(access: Access, iv: Value, fastest: Value, same: bool) -> bool:
    """Whether threads that are neighbours along ``fastest`` access one element, or neighbours, at
    the same turn of the loop over ``iv``. ``same``: that loop begins at one index for them."""
    if not access.subscripts:  # of a tensor without dimensions: one element
        return True
    (loop,) = (loop for loop in access.loops if loop.iv is iv)
    mentioned = any(iv in leaves for leaves in _all(access))
    if mentioned and loop.lower is None and not same:
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


def _carried_on(op: Op) -> Op | None:
    """The only loop in ``op``, where that carries on what the loop carries, and writes nothing."""
    if op.name != "scf.for" or not op.results or not is_constant(For(op).step, 1):
        return None
    inner = [o for o in op.body.ops if o.regions]
    if len(inner) != 1 or inner[0].name != "scf.for" or written(op):
        return None
    (loop,) = inner
    used = [v for o in walk(op.body) for v in o.operands]
    carried = op.body.args[1:]
    through = For(loop).inits == carried and all(used.count(v) == 1 for v in carried)
    others = [o for o in op.body.ops[:-1] if o is not loop]
    plain = all(OPS[o.name].pure or o.name == "memref.load" for o in others)
    return loop if through and plain and op.body.terminator.operands == loop.results else None


def _free(op: Op, body: Block) -> bool:
    """Whether ``op`` adds to memory, in whatever order."""
    return op.name == "memref.atomic_rmw" and op.attrs["atomic"] and not _used(op.result, body)


def _only_adds(op: Op, memref: Value) -> bool:
    """Whether ``op`` and what is inside write ``memref`` by atomic operations only."""
    inside = (op, *(inner for region in op.regions for inner in walk(region)))
    return all(inner.attrs.get("atomic") for inner in inside if written_by(inner) is memref)


def _used(value: Value, block: Block) -> bool:
    return any(value in op.operands for op in walk(block))
