"""Arrays that a loop both reads and writes: which contents does each read see?

The adjoint runs after the loop, so it finds the contents from after it. A read that no later write
of its iteration overwrites may read them again: "after". A read that no earlier write of its
iteration precedes saw what was there before the loop: "before", of which a copy is kept. What a
read saw that is neither is found by carrying the loop out again on such a copy, and kept on a
"tape". Other iterations cannot be in the way: that would be a race.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from weft.index.access import Access, accesses
from weft.index.budget import Budget
from weft.index.disjoint import aligned
from weft.index.expression import Poly
from weft.index.races import as_one, meeting, pairs, places
from weft.index.relation import Text
from weft.ir.core import Function, Op, Value, below, walk

Contents = Literal["after", "before", "tape"]
# Updates that are differentiated by what they found, where no other iteration updates the element.
UPDATES = {
    "mulf": "arith.mulf", "maximumf": "arith.maximumf", "minimumf": "arith.minimumf",
}  # fmt: skip


# Of one array; a question takes about a millisecond. Where there are more, tapes are made instead.
_MOST_PAIRS = 400


def contents(function: Function, every: Sequence[Access]) -> dict[Op, Contents]:
    """What each load from an argument that ``function`` also writes saw, and what each of
    ``UPDATES`` found that no other iteration can be in the way of. ``every``: its accesses."""
    found: dict[Op, Contents] = {}
    whiles = _in_while(function)
    order = {a.op: k for k, a in enumerate(every)}
    once = function.attrs.get("tapes", ())  # written once, by construction

    def met(read: Access, writes: Sequence[Access], budget: Budget | None, later: bool) -> bool:
        return any(_meets(read, w, order, later, read.op in whiles and w.op in whiles, budget)
                   for w in writes)  # fmt: skip

    for memref in function.args:
        group = [a for a in every if a.memref is memref]
        writes = [a for a in group if a.writes]
        updates = {places(a) for a in group if a.combiner in UPDATES}
        shared = meeting(group, updates, Budget()) if updates else set()
        reads = [
            a for a in group
            if a.kind == "load" or (a.combiner in UPDATES and places(a) not in shared)
        ]  # fmt: skip
        budget = Budget() if len(reads) * len(writes) <= _MOST_PAIRS else None
        for read in reads if writes else ():
            final = not read.writes and (
                memref.name in once or not met(read, writes, budget, later=True)
            )
            first = final or not met(read, writes, budget, later=False)
            found[read.op] = "after" if final else "before" if first else "tape"
    return found


def read_after_write(function: Function, pairs: Iterable[tuple[Access, Access]]) -> bool:
    """Whether one access of a pair may read what the other has written before, in one iteration."""
    whiles = _in_while(function)
    order = {a.op: k for k, a in enumerate(accesses(function))}
    budget = Budget()
    return any(
        _meets(read, write, order, False, read.op in whiles and write.op in whiles, budget)
        for pair in pairs
        for read, write in (pair, reversed(pair))
        if read.kind != "store" and write.writes
    )


def _in_while(function: Function) -> set[Op]:
    loops = [op for op in walk(function.body) if op.name == "scf.while"]
    return {inner for op in loops for inner in below(op)}


def _meets(
    load: Access,
    write: Access,
    order: dict[Op, int],
    later: bool,
    loose: bool,
    budget: Budget | None,
) -> bool:
    """Whether ``write`` may touch the element of ``load``, in the same parallel iteration, and
    after it (``later``) or before it. ``loose``: their order is not known. ``budget``: of isl; what
    it might disprove is taken to happen without."""
    common = [iv for iv in load.serial if iv in set(write.serial)]
    behind = (order[write.op] > order[load.op]) == later
    if not common and not loose and not behind:
        return False
    if budget is None or any(s is None for s in (*load.subscripts, *write.subscripts)):
        return True
    return not _apart(load, write, common, later, behind, loose, budget)


def _apart(
    load: Access,
    write: Access,
    common: list[Value],
    later: bool,
    behind: bool,
    loose: bool,
    budget: Budget,
) -> bool:
    """Proves that there is no such pair."""
    equal = aligned(load, write)
    if equal is None:
        return True
    text = Text()
    first = {loop.iv: text.fresh(loop.iv.name or "i") for loop in load.loops}
    second = {
        loop.iv: first[loop.iv] if loop.parallel and loop.iv in first
        else text.fresh((loop.iv.name or "i") + "_")
        for loop in write.loops
    }  # fmt: skip
    constraints = text.domain(load, first) + text.domain(write, second)
    for left, right in equal:
        x, y = text.affine(left, first), text.affine(right, second)
        if x is not None and y is not None:
            constraints.append(f"{x} = {y}")
    if not loose:
        cases, same = [], ""
        for iv in common:
            x, y = first[iv], second[iv]
            cases.append(f"({same}{y} {'>' if later else '<'} {x})")
            same += f"{x} = {y} and "
        if behind:
            cases.append(f"({same}true)")
        constraints.append(f"({' or '.join(cases)})")
    names = [*first.values(), *(n for iv, n in second.items() if n != first.get(iv))]
    return budget.proves_empty(text.finish(f"[{', '.join(names)}]", constraints))


def element_written_once(function: Function, every: Sequence[Access], memref: Value) -> bool:
    """Proves that no iteration writes an element of ``memref`` twice, and that it only stores.
    ``every``: the accesses of ``function``.

    The adjoint of such an array needs no resetting on the way back.
    """
    writes = [a for a in every if a.memref is memref and a.writes]
    whiles = _in_while(function)
    if any(a.kind != "store" or a.op in whiles or not _distinct(a) for a in writes):
        return False
    if len({*map(as_one, writes)}) < len(writes):  # two of them write the same
        return False
    budget = Budget()
    return all(_apart(a, b, [], True, True, True, budget) for a, b in pairs(writes) if a is not b)


def _distinct(access: Access) -> bool:
    """Whether different serial iterations write different elements, seen from the subscripts: each
    serial index is in one of its own."""
    serial = set(access.serial)

    def alone(iv: Value, poly: Poly) -> bool:
        leaves = list(poly.leaves())
        return bool(poly.terms.get((iv,))) and leaves.count(iv) == 1 and serial & {*leaves} == {iv}

    known = [poly for poly in access.subscripts if poly is not None]
    return all(any(alone(iv, poly) for poly in known) for iv in serial)
