"""KeepRow, StripMine: threads that share loops along rows go through these by vectors.

A row's elements are dealt out by vectors of neighbours, in rounds: each member of a group has some
vectors. **Strips**: at each turn of a loop, a member loads some vectors, computes, and stores.
**Kept rows**: its vectors of the whole row stay in registers. They are loaded before the first
loop, what loops store is stored by the last of them that does, and in between, nothing of the row
is read or written in memory, and nobody waits for it. The loops may stand in a serial one: then
a row that all of its turns add to stays in registers from the first turn to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, below, defined, walk
from weft.ir.ops import OPS
from weft.ir.uniform import WARP
from weft.ir.views import For, accessed_by, is_constant, memory
from weft.ir.writes import written
from weft.schedule.bind import Bound
from weft.schedule.combiners import is_joint
from weft.schedule.cooperate import Members
from weft.schedule.grid import cluster
from weft.schedule.language import Cooperate, KeepRow, StripMine
from weft.schedule.spmd import Bounds
from weft.values import frozen, mutable

Place = tuple[Value, Value | None]  # an index, and whether it is in the row, if that is asked

VECTOR_BYTES = 16  # the longest load and store
_BYTES = 64  # of each array, that a thread usually loads at once
_WORDS = 96  # 32-bit registers of a thread for what is kept, at most
_OFTEN = (
    3  # combinations in a turn, from which on it is worth registers to load the next one's rows
)
_ROOM = 24  # of 64, above which the rest is tight
_REFUSED = ("scf.for", "scf.while", "memref.alloca", "weft.")
_MOST_OPS = 2048  # operations of all loops in the copies of one thread


@frozen
class Row:
    """The elements of ``memref`` at the subscripts ``outer`` and a loop's index."""

    memref: Value
    outer: tuple[Value, ...]


@mutable
class Rows:
    """``loops``: those that go by vectors, with their loads and stores of rows. ``around``: the
    serial loop that they stand in. ``kept``: rows in registers, with the last loop that stores to
    each. ``loaded``: those of them whose elements are read before they are written, with the loop
    that they are loaded before. Of both, that is ``around`` for a row that stays from turn to
    turn. ``behind``: arrays that are accessed in other ways behind the loops. ``ahead``: rows that
    are loaded a turn ahead: nobody writes them."""

    loops: dict[Op, dict[Op, Row]] = field(default_factory=dict)
    around: Op | None = None
    kept: dict[Row, Op | None] = field(default_factory=dict)
    loaded: dict[Row, Op] = field(default_factory=dict)
    behind: set[Value] = field(default_factory=set)
    ahead: list[Row] = field(default_factory=list)

    @property
    def arrays(self) -> dict[int, Value]:
        """What is accessed by vectors, by its place among the function's arguments."""
        found = {row.memref for rows in self.loops.values() for row in rows.values()}
        args = next(array.owner.args for array in found if isinstance(array.owner, Block))
        return {k: arg for k, arg in enumerate(args) if arg in found}

    @property
    def uppers(self) -> list[Value]:
        """Where the loops end."""
        return list(dict.fromkeys(For(op).upper for op in self.loops))

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return min(VECTOR_BYTES // self._largest, 8)

    @property
    def _largest(self) -> int:
        """Bytes of an element, but of what is loaded once for all turns."""
        lasting = {row.memref for row, loop in self.loaded.items() if loop is self.around}
        each = [array for array in self.arrays.values() if array not in lasting]
        return max(array.memref.element.bytes for array in each or lasting)

    @property
    def words(self) -> int:
        """32-bit registers of a thread for each element that it has at a time."""
        words = sum(map(_words, [*self.loaded, *self.ahead]))
        loops = list(self.loops)
        for row, last in self.kept.items():
            first = next(op for op in loops if row in self.loops[op].values())
            words += _words(row) * (row not in self.loaded and last is not first)
        own = [sum(_words(row) for row in {*rows.values()} - {*self.kept})
               for rows in self.loops.values()]  # fmt: skip
        return max(words + max(own), 1)

    @property
    def most(self) -> tuple[int, int]:
        """Elements of a row that a thread usually has, and at most."""
        words, size = self.words, sum(1 for op in self.loops for _ in walk(op.body))
        usual = (_BYTES if words < 4 else _BYTES // 2) // self._largest
        return usual, min(_WORDS // words, _MOST_OPS // size)

    def spared(self, times: Mapping[Op, float]) -> float:
        """Bytes of accesses, carried out so many ``times``, that kept rows make needless."""
        found = 0.0
        for row, last in self.kept.items():
            each = [times[op] for rows in self.loops.values() for op in rows if rows[op] == row]
            left = len(each) - (self.loaded.get(row, self.around) is not self.around)
            left -= (last or self.around) is not self.around
            found += left * each[0] * row.memref.memref.element.bytes
        return found


def crowded(parallel: Op, how: KeepRow | StripMine) -> bool:
    """Whether what a thread has of rows leaves it so few registers of 64 that an assembler would
    take more, for it does not know how many blocks wait for each other's loads."""
    rows = find(parallel, shared(parallel), keep=isinstance(how, KeepRow))
    if rows is None or rows.ahead:  # whose registers are what matters
        return False
    return rows.words * how.width * how.vectors > _ROOM


def shared(parallel: Op) -> dict[Op, tuple[str, ...]]:
    """The loops that are marked as those that threads share, with the combiners of each."""
    loops = (op for op in walk(parallel.body) if op.name == "scf.for" and "team" in op.attrs)
    return {op: op.attrs["team"] for op in loops}


def _words(row: Row) -> int:
    return max(row.memref.memref.element.bytes // 4, 1)


def find(parallel: Op, loops: Mapping[Op, tuple[str, ...]], *, keep: bool) -> Rows | None:
    """What of the ``loops`` that the threads of a group share goes by vectors, one at least.
    ``keep``: only loops of one block that have the same row, of which some array is kept."""
    if not keep:
        return _found(parallel, loops, [*walk(parallel.body)], one=False)
    serial = [op for op in parallel.body.ops if op.name == "scf.for" and op not in loops]
    each: list[Rows] = []
    for around in (None, *serial):
        block = parallel.body if around is None else around.body
        rows = _found(parallel, loops, block.ops)
        if rows is None:
            continue
        rows.around = around
        lasting = _keep(parallel, rows) and around in rows.kept.values()
        if rows.kept and (around is None or lasting or len(rows.loops) > 1):
            each.append(rows)
    return max(each, key=lambda rows: len(rows.loops), default=None)


def _found(
    parallel: Op, loops: Mapping[Op, tuple[str, ...]], ops: Collection[Op], *, one: bool = True
) -> Rows | None:
    """Those of the ``loops`` among ``ops`` that go by vectors. ``one``: to the same end."""
    inside, rows = defined([parallel.body]), Rows()
    for op in ops:
        loop = For(op)
        if op not in loops or not is_constant(loop.lower, 0) or loop.upper in inside:
            continue
        if one and loop.upper not in (rows.uppers or [loop.upper]):
            continue
        plain = not any(o.name.startswith(_REFUSED) for o in walk(op.body))
        plain = plain and not any(map(is_joint, loops[op]))
        if plain and (found := _accesses(op)):
            rows.loops[op] = found
    return rows if rows.loops else None


def _by_memref(block: Block) -> dict[Value, list[Op]]:
    """What accesses each memref in ``block``."""
    found: dict[Value, list[Op]] = {}
    for op in walk(block):
        if (memref := accessed_by(op)) is not None:
            found.setdefault(memref, []).append(op)
    return found


def _accesses(op: Op) -> dict[Op, Row]:
    """Loads and stores of the element at the loop's index, of arrays of which a turn of the loop
    touches no other that it writes."""
    iv, inside = For(op).index, defined([op.body])
    found: dict[Op, Row] = {}
    for memref, several in _by_memref(op.body).items():
        rows = {o: row for o in several if (row := _row(o, iv, inside)) is not None}
        # One that is carried out in each turn shows that the element is there.
        sure = {row for o, row in rows.items() if o in op.body.ops}
        if any(o.name != "memref.load" for o in several):
            stores = [o for o in several if o.name != "memref.load"]
            if (
                len({*rows.values()}) != 1
                or len(rows) < len(several)
                or not (all(o in op.body.ops for o in stores))
            ):
                continue
        if memref.op is None:
            found |= {o: row for o, row in rows.items() if row in sure}
    return found


def _row(op: Op, iv: Value, inside: set[Value]) -> Row | None:
    if op.name not in ("memref.load", "memref.store"):
        return None
    memref, subscripts, _ = memory(op)
    if not subscripts or not memref.memref.row_major:
        return None
    *outer, last = subscripts
    if last.op is not None and last.op.name == "arith.index_cast":
        last = last.op.operand
    return Row(memref, tuple(outer)) if last is iv and not inside & {*outer} else None


def _keep(parallel: Op, rows: Rows) -> bool:
    """Notes which rows are kept, and says whether any are: of arrays that are not written, or
    accessed as this row only from the first loop on that does so. In turns of a serial loop,
    nothing else accesses what one of them writes; a row is the same in all of them if its
    subscripts come from before."""
    inside, around, body = defined([parallel.body]), rows.around, parallel.body.ops
    outside: list[Op] = []
    known = {*parallel.body.args}
    if around is not None:
        outside, body = body[: body.index(around)], around.body.ops
        known |= {v for op in outside for v in op.results}
    same = {*known}
    first = next(iter(rows.loops))
    known |= {v for op in body[: body.index(first)] for v in op.results}
    known |= {*(around.body.args if around is not None else ())}
    touched = _by_memref(parallel.body)
    uses: dict[Row, list[tuple[Op, Op]]] = {}
    for loop, found in rows.loops.items():
        for op, row in found.items():
            uses.setdefault(row, []).append((loop, op))
    for row, places in uses.items():
        others = {*touched[row.memref]} - {op for _, op in places}
        written = any(op.name != "memref.load" for op in touched[row.memref])
        load_at = places[0][0] if written and others else first
        before = {inner for op in body[: body.index(load_at)] for inner in below(op)}
        if around is not None:
            before = {inner for op in outside for inner in below(op)}
            if not inside & {*row.outer} - same and not (written and others - before):
                rows.kept[row], rows.loaded[row] = around if written else None, around
                continue
            before = set()
        last = body.index(places[-1][0]) + 1
        after = {inner for op in body[last:] for inner in below(op)} if around is None else set()
        if inside & {*row.outer} - known or (written and others - before - after):
            continue
        if written and others & after:
            rows.behind.add(row.memref)
        stores = [loop for loop, op in places if op.name == "memref.store"]
        rows.kept[row] = stores[-1] if stores else None
        if places[0][1].name == "memref.load":
            rows.loaded[row] = load_at
        if (
            around is not None
            and not written
            and inside & {*row.outer} <= same | {For(around).index}
        ):
            rows.ahead.append(row)
    if sum(len(op.results) > 0 for op in rows.loops) < _OFTEN:
        rows.ahead.clear()
    return bool(rows.kept)


def by_row(
    function: Function, parallel: Op, step: Cooperate, how: KeepRow | StripMine,
    limits: Mapping[Value, int],
) -> Bound:  # fmt: skip
    """As ``cooperate``, by vectors. ``limits``: of arrays that are accessed in whole vectors, their
    bytes."""
    members = _ByRow(function, parallel, step, how, limits)
    made = members.start(step.threads)
    members.all(0)
    return Bound((made,))


class _ByRow(Members):
    """``elements``: of each row at hand, the member's own, as they are. ``turn``: which of them an
    operation is about."""

    def __init__(
        self, function: Function, parallel: Op, step: Cooperate, how: KeepRow | StripMine,
        limits: Mapping[Value, int],
    ) -> None:  # fmt: skip
        super().__init__(function, parallel, step)
        self.how = how
        self.limits = limits
        keep = isinstance(how, KeepRow)
        self.rows = find(parallel, shared(parallel), keep=keep) or Rows()
        sharing = [op for op in shared(parallel) if op.results]
        block = parallel.body if self.rows.around is None else self.rows.around.body
        self.once = all(op in block.ops for op in sharing)
        self.once &= self.rows.around is None or len(sharing) > 1
        self.last = len(sharing) if self.rows.around is not None and len(sharing) % 2 else 0
        self.blocks = cluster(self.count)
        most = WARP if self.blocks == 1 else self.count // self.blocks // WARP + self.blocks
        self.most = most * max((len(op.results) for op in sharing), default=0)
        self.turns_taken = 0
        self.elements: dict[Row, list[Value]] = {}
        self.accesses: Mapping[Op, Row] = {}
        self.turn = 0

    def rewrite(self, op: Op) -> None:
        row = self.accesses.get(op)
        if row is None:
            super().rewrite(op)
        elif op.name == "memref.load":
            self.replacement[op.result] = self.elements[row][self.turn]
        else:
            self.elements[row][self.turn] = self.lookup(memory(op)[2][0])

    def body(self, bounds: Sequence[Bounds], parts: dict[int, Value]) -> None:
        if self.blocks > 1 and not self.once:  # until all are there, and have their shared memory
            self.wait()
        super().body(bounds, parts)
        if self.blocks > 1 and self.turns_taken == 1:  # others read what this block has in it
            self.wait()

    def waits(self, op: Op) -> bool:
        """What is kept is not in memory: nobody waits for it, but to access it behind the loops."""
        kept = {row.memref for row in self.rows.kept} - self.rows.behind
        return super().waits(op) and not (op in self.rows.loops and {*written(op)} <= kept)

    def prepared(self, op: Op) -> Callable[[], list[Value]]:
        if op not in self.rows.loops:
            return super().prepared(op)
        return lambda: self.by_vectors(op)

    def by_vectors(self, op: Op) -> list[Value]:
        """The member's part of the loop ``op``."""
        upper = self.lookup(For(op).upper)
        member = self.to(self.member, upper.type, unsigned=True)
        begin = self.mul(member, self.number(self.how.width, upper))
        if isinstance(self.how, KeepRow):
            places = self.places(begin, upper)
            for row, loop in self.rows.loaded.items():
                if op is loop and row not in self.rows.ahead:
                    self.elements[row] = self.loaded(row, places)
            return self.strip(op, places, self.none(op))
        size = self.number(self.round * self.how.vectors, upper)
        return self.loop(
            begin, upper, size, self.none(op),
            lambda first, carried: self.strip(op, self.places(first, upper), carried), unroll=1,
        )  # fmt: skip

    def together(self, kinds: Sequence[str], parts: list[Value]) -> list[Value]:
        """By turns in two places, where each is combined once: nobody waits to write the other. In
        a serial loop, the last one of an odd number has a third: the first comes after it. The
        first time blocks of a group read what the others have, which are there then."""
        if not self.several or not (self.once or self.blocks > 1):
            return super().together(kinds, parts)
        if not self.once:
            parts = self.in_cluster(kinds, parts, self.count, self.blocks, 0, handed=True)
            self.wait()
            return parts
        self.turns_taken += 1
        place = self.most * (2 if self.turns_taken == self.last else self.turns_taken % 2)
        if self.blocks > 1:
            handed = self.turns_taken > 1
            return self.in_cluster(kinds, parts, self.count, self.blocks, place, handed=handed)
        return self.in_block(kinds, parts, warps=self.count // WARP, place=place)

    def entered(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        return self.serial(op) if op is self.rows.around else super().entered(op, _)

    def serial(self, op: Op) -> Sequence[Value]:
        """The loop around those that go by rows, with what stays from turn to turn, and with what
        the next one reads on its way."""
        carried_on = [row for row, loop in self.rows.kept.items() if loop is op]
        lasting = [*carried_on, *self.rows.ahead]
        upper = self.lookup(self.rows.uppers[0])
        member = self.to(self.member, upper.type, unsigned=True)
        places = self.places(self.mul(member, self.number(self.how.width, upper)), upper)
        for row in (row for row, loop in self.rows.loaded.items() if loop is op):
            self.elements[row] = self.loaded(row, places)
        count, each = len(op.results), self.how.width * len(places)
        inits = [self.lookup(v) for v in For(op).inits]

        def split(values: Sequence[Value]) -> list[Value]:
            for k, row in enumerate(lasting):
                self.elements[row] = list(values[count + k * each :][:each])
            return list(values[:count])

        lower, end, step = (self.lookup(v) for v in For(op).bounds)

        def of_turn(iv: Value) -> list[Value]:
            self.replacement[For(op).index] = iv
            there = self.compare("slt", iv, end)
            both = [(place, there if own is None else self.op("arith.andi", there, own))
                    for place, own in places]  # fmt: skip
            return [v for row in self.rows.ahead for v in self.loaded(row, both)]

        def turn(iv: Value, carried: list[Value]) -> list[Value]:
            inits = split(carried)
            ready = of_turn(self.add(iv, step, "nsw")) if self.rows.ahead else []
            found = self.inline(op.body, [iv, *inits])
            return [*found, *(v for row in carried_on for v in self.elements[row]), *ready]

        inits += [v for row in carried_on for v in self.elements[row]]
        inits += of_turn(lower) if self.rows.ahead else []
        found = split(self.loop(lower, end, step, inits, turn, unroll=1))
        for k, (place, there) in enumerate(places):
            part = range(k * self.how.width, (k + 1) * self.how.width)
            self.branch(there, lambda p=part, at=place: self.stored(carried_on, p, at))
        return found

    @property
    def round(self) -> int:
        """Elements of which each member has one vector."""
        return self.count * self.how.width

    def places(self, first: Value, upper: Value) -> list[Place]:
        """Of each vector of the member its first index, and whether it is in the row."""
        found: list[Place] = []
        whole = isinstance(self.how, KeepRow) and self.how.whole
        for k in range(self.how.vectors):
            away = self.number(k * self.round, first)
            place = self.add(first, away, "nsw") if k else first
            found.append((place, None if whole else self.compare("slt", place, upper)))
        return found

    def strip(self, op: Op, places: Sequence[Place], carried: list[Value]) -> list[Value]:
        """The loop ``op`` for the vectors at ``places``: all loads, then one after the other."""
        accesses, kept, width = self.rows.loops[op], self.rows.kept, self.how.width
        for row in dict.fromkeys(accesses.values()):
            if row not in kept and next(o for o in accesses if accesses[o] == row).results:
                self.elements[row] = self.loaded(row, places)
            elif row not in kept or row not in self.elements:
                none = self.constant(0, row.memref.memref.element)
                self.elements[row] = [none] * (width * len(places))
        changed = {row: None for o, row in accesses.items() if not o.results}
        ready = [row for row in changed if kept.get(row, op) is op]
        self.accesses = accesses
        plain = all(o in accesses or o.name in ("scf.if", "scf.yield") or OPS[o.name].pure
                    for o in walk(op.body))  # fmt: skip
        for k, (place, there) in enumerate(places):
            part = range(k * width, (k + 1) * width)
            if plain:
                found = self.vector(op, part, place, carried)
                if there is not None:
                    found = [self.op("arith.select", there, new, old, type=old.type)
                             for new, old in zip(found, carried, strict=True)]  # fmt: skip
                carried = found
                if ready:
                    self.branch(there, lambda p=part, at=place: self.stored(ready, p, at))
            else:
                carried = self.guarded(op, part, (place, there), carried, ready, list(changed))
        self.accesses = {}
        return carried

    def vector(self, op: Op, part: range, place: Value, carried: list[Value]) -> list[Value]:
        """The turns of ``op`` for the elements ``part``, from ``place`` on."""
        for v, self.turn in enumerate(part):
            iv = self.add(place, self.number(v, place), "nsw") if v else place
            carried = self.inline(op.body, [iv, *carried])
        return carried

    def guarded(
        self, op: Op, part: range, place: Place, carried: list[Value], ready: list[Row],
        changed: list[Row],
    ) -> list[Value]:  # fmt: skip
        """``vector`` where turns touch other memory: in a branch."""
        at, there = place
        order = list(self.rows.loops)
        later = order[order.index(op) + 1 :]
        asked = {row for loop in later for row in self.rows.loops[loop].values()}
        rows = [self.elements[row] for row in changed if row not in ready or row in asked]

        def inside() -> list[Value]:
            found = self.vector(op, part, at, carried)
            self.stored(ready, part, at)
            return [*found, *(values[k] for values in rows for k in part)]

        before = [*carried, *(values[k] for values in rows for k in part)]
        found = self.where(there, inside, lambda: before, [v.type for v in before])
        after = iter(found[len(carried) :])
        for values in rows:
            for k in part:
                values[k] = next(after)
        return [*found[: len(carried)]]

    # -- memory

    def loaded(self, row: Row, places: Sequence[Place]) -> list[Value]:
        """The member's elements of a row, 0 beyond its end."""
        element, width = row.memref.memref.element, self.how.width
        found: list[Value] = []
        for place, there in places:

            def vector(place: Value = place) -> list[Value]:
                return [self.access("memref.load", row, place, v).result for v in range(width)]

            none = [self.constant(0, element)] * width if there is not None else []
            found += self.where(there, vector, lambda none=none: none, [element] * width)
        return found

    def stored(self, rows: Sequence[Row], part: range, place: Value) -> None:
        """Stores the elements ``part`` of ``rows``, from ``place`` on."""
        for row in rows:
            for v, k in enumerate(part):
                self.access("memref.store", row, place, v, self.elements[row][k])

    def access(self, name: str, row: Row, place: Value, v: int, *value: Value) -> Op:
        """A load or store ``v`` elements behind ``place``."""
        memref = self.lookup(row.memref)
        element = memref.memref.element
        op = Op(name, [*value, memref, *map(self.lookup, row.outer), place],
                [] if value else [element])  # fmt: skip
        if v:
            op.attrs["offset"] = v
        if (limit := self.limits.get(row.memref)) is not None:
            behind = v * element.bytes
            op.attrs["align"] = min(behind & -behind, limit) if behind else limit
        return self.append(op)
