"""Race checks at run time, where index sets cannot tell whether iterations meet (debug mode)."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence

from weft.index.access import KINDS, Access, accesses
from weft.index.budget import Budget
from weft.index.races import as_one, compatible, pairs, proven_apart
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.views import Parallel, While, is_constant, memory

log = logging.getLogger("weft.races")

# What an accumulation is called where a person reads of it.
_WORDS = {"add": "+=", "mul": "*=", "and": "&=", "ori": "|=", "xor": "^="}


def race_checks(function: Function) -> Function:
    """Puts a ``weft.check_race`` in front of each access whose iteration may meet another one's on
    the element, as far as index sets know. What they prove apart costs nothing; local arrays belong
    to their iteration.

    Where memory may overlap (no ``noalias``), accesses of different arrays may meet, and each one
    is watched if anything is written.
    Precondition: a verified function with bounds checks, before a pass moves or merges accesses;
    races that can be proven are refused already. Non-goals: functions with several parallel loops,
    which are those of gradients; local arrays outside of the loop, which no frontend makes.
    """
    loops = [op for op in walk(function.body) if op.name == "scf.parallel" and op.attrs["dims"]]
    if len(loops) != 1 or loops[0] not in function.body.ops:
        return function
    open_accesses = undecided(function)
    if log.isEnabledFor(logging.DEBUG):
        for access in open_accesses:
            log.debug("%s: %s is checked at run time", function.name, access.where)
    if not open_accesses:
        return function
    return _Toucher(function, loops[0], open_accesses).function(function)


def undecided(function: Function) -> list[Access]:
    """The accesses that may meet another iteration's, in program order."""
    shared = [a for a in accesses(function) if a.parallel and not a.local]
    shared = [a for a in shared if a.memref in function.args]
    if not function.attrs.get("noalias"):
        return shared if any(a.writes for a in shared) else []
    groups: dict[Value, list[Access]] = {}
    for a in shared:
        groups.setdefault(a.memref, []).append(a)
    found: set[tuple[Value, Hashable]] = set()
    budget = Budget()
    for memref, group in groups.items():
        for a, b in pairs(group):
            both = {(memref, as_one(a)), (memref, as_one(b))}
            if not (both <= found or compatible(a, b) or proven_apart(a, b, budget)):
                found |= both
    return [a for a in shared if (a.memref, as_one(a)) in found]


def kind_of(access: Access, exchanges: set[Op]) -> str:
    """What an access does, as it is called where a person reads of it."""
    if access.kind == "rmw":
        combiner = str(access.combiner)
        name = f"atomic_{combiner[:3]}" if combiner.startswith(("max", "min")) else ""
        return name or _WORDS[combiner[:3]]
    if access.kind == "cas":
        return "atomic_exchange" if access.op in exchanges else "atomic_cas"
    return {"load": "reads", "store": "writes"}[access.kind]


def exchanges(function: Function) -> set[Op]:
    """Compare and swap in loops that expect first what they write: the frontend's
    ``atomic_exchange``."""
    found: set[Op] = set()
    for loop in (op for op in walk(function.body) if op.name == "scf.while"):
        first = dict(zip(While(loop).before.args, loop.operands, strict=True))
        for op in While(loop).before.ops:
            if op.name == "memref.atomic_cas":
                expected, desired = memory(op)[2]
                found |= {op} if first.get(expected) is desired else set()
    return found


class _Toucher(Rewriter):
    """Each kind of access has a place in an element's words: two words, of which the first holds
    the first iteration and the second another one. One word is enough for a plain write, because
    the second iteration is an error."""

    def __init__(self, function: Function, loop: Op, watched: list[Access]) -> None:
        super().__init__(self._visit, around=self._around)
        self.loop, self.exchanges = loop, exchanges(function)
        self.watched = {a.op: a for a in watched}
        # The rewriter hands over copies, but in program order.
        self.order = iter([op for op in walk(function.body) if op.name in KINDS])
        self.places: dict[str, tuple[int, ...]] = {}
        self.samples: dict[str, Access] = {}
        self.words = 0
        for a in watched:
            kind = kind_of(a, self.exchanges)
            if kind not in self.places:
                count = 1 if kind == "writes" else 2
                self.places[kind] = tuple(range(self.words, self.words + count))
                self.samples[kind] = a
                self.words += count
        self.iteration: Value | None = None
        self.space: list[Value] = []

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op is not self.loop:
            return None
        self.span = op.span
        lowers, uppers, steps = (list(map(self.lookup, vs)) for vs in Parallel(op).ranges)
        bounds = zip(lowers, uppers, steps, strict=True)
        counts = [self.trip_count(*triple) for triple in bounds]
        self.space = [v for t in zip(lowers, steps, counts, strict=True) for v in t]
        copy = self.copy(op)
        new = copy.body
        self.stand_for(op.body.args, new.args)
        with self.at(new):
            self.iteration = self._number(new.args, lowers, steps, counts)
            for inside in op.body.ops:
                self.rewrite(inside)
        return self.append(copy).results

    def _number(
        self, ivs: Sequence[Value], lowers: list[Value], steps: list[Value], counts: list[Value]
    ) -> Value:
        """The number of an iteration, counted in row-major order."""
        number: Value | None = None
        for iv, lower, step, count in zip(ivs, lowers, steps, counts, strict=True):
            k = iv if is_constant(lower, 0) else self.op("arith.subi", iv, lower)
            k = k if is_constant(step, 1) else self.op("arith.floordivsi", k, step)
            if number is not None:
                k = self.op("arith.addi", self.op("arith.muli", number, count), k)
            number = k
        assert number is not None
        return number

    def _visit(self, op: Op, rewriter: Rewriter) -> None:
        access = self.watched.get(next(self.order)) if op.name in KINDS else None
        if access is None:
            return
        assert self.iteration is not None
        memref = self.lookup(access.memref)
        _, subscripts, _ = memory(op)
        own = kind_of(access, self.exchanges)
        against = tuple(
            place
            for kind, sample in self.samples.items()
            if kind != own and not compatible(access, sample)
            for place in self.places[kind]
        )
        self.do(
            "weft.check_race", memref, self.iteration, *subscripts, *self.space, kind=own,
            words=self.words, own=self.places[own], against=against,
            grouped=bool(self.loop.attrs.get("grouped")),
        )  # fmt: skip
