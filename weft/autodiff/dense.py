"""Accumulations that are stores: the first to each element, where they go to all of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from weft.autodiff.fibre import same_sizes
from weft.index.access import Access, Loop
from weft.index.expression import ONE, Dim, Poly, atom, number
from weft.ir.core import Op, Value
from weft.values import frozen


@frozen
class Dense:
    """Each element is first accumulated into by one of ``first``, and once, if the expressions of
    each pair of ``equal`` are equal: so that these may store, to memory that is not defined."""

    first: frozenset[Op]
    equal: tuple[tuple[Poly, Poly], ...]


@frozen
class Whole:
    """The loads of the primal that read each element once, if the expressions of each pair of
    ``equal`` are equal, and before whose turn backwards nothing is accumulated into it: so that
    the accumulations that stand for them may store. ``first``: of each the attribute "of" and how
    many accumulations there are. ``again``: turns of a loop read an element again, so that
    this is so where all accumulations are behind such loops."""

    first: Mapping[int, int]
    equal: tuple[tuple[Poly, Poly], ...]
    again: bool

    def of(self, group: Sequence[Access]) -> Dense | None:
        """The same of the accumulations ``group``, if all of them are still there."""
        found = [a.op for a in group if a.op.attrs.get("of") in self.first]
        there = Counter(op.attrs["of"] for op in found)
        if self.again and not (all(map(_of_each_turn, group)) and _once(group)):
            return None
        return Dense(frozenset(found), self.equal) if there == self.first else None


def whole(
    loads: Mapping[Op, int], every: Sequence[Access], memref: Value,
    moved: Callable[[Value | Dim], Poly], known: Collection[Value],
) -> Whole | None:  # fmt: skip
    """What is known of the gradient of ``memref`` from the accesses ``every`` of the primal (also
    of those that all turns of a loop, which certainly has some, do alike), in whatever order the
    adjoint goes through the turns of its loops. ``loads``: those that have accumulations, and how
    many. ``moved``: what stands for an argument or extent of the primal."""
    group = [a for a in reversed(every) if a.memref is memref and a.op in loads]
    once = dense(group, known) if group else None
    found = once or (dense(group, known, again=True) if group else None)
    if found is None:
        return None
    places = {op: k for k, op in enumerate(loads)}
    equal = tuple((a.substitute(moved), b.substitute(moved)) for a, b in found.equal)
    return Whole({places[op]: loads[op] for op in found.first}, equal, once is None)


def _once(group: Sequence[Access]) -> bool:
    """Whether the accumulations that stand for one load are of different elements: the turns of a
    loop that reads an element again may be undone in several parts."""
    pairs = itertools.combinations(group, 2)
    return not any(
        a.op.attrs.get("of") == b.op.attrs.get("of") and a.subscripts == b.subscripts
        for a, b in pairs
    )


def _of_each_turn(access: Access) -> bool:
    """Whether each turn of the loops around an access has another element, and certainly is one."""
    mentioned = [
        any(poly is not None and poly.mentions(loop.iv) for poly in access.subscripts)
        for loop in access.loops
    ]
    return all(mentioned) and not access.guards


def dense(
    group: Sequence[Access], known: Collection[Value], *, again: bool = False
) -> Dense | None:
    """``group``: all accesses to a gradient, in program order, each an accumulation; no two
    iterations of the parallel loop meet. The expressions are in ``known`` and their extents.
    ``again``: turns of a loop may access the same, where it certainly has some. None where it is
    not so, or that cannot be said."""
    constants = [k for k, s in enumerate(group[0].subscripts) if s is not None and _is_number(s)]
    firsts: dict[tuple[int, ...], Access] = {}
    anywhere = False  # something goes to places that are not told apart by constants
    equal: dict[tuple[Poly, Poly], None] = {}
    for access in group:
        place = _place(access, constants)
        if place is None:
            anywhere = True
            if not all(_after(f, access) for f in firsts.values()):
                return None
        elif place in firsts:
            if not _after(firsts[place], access):
                return None
        else:
            extents = None if anywhere else _whole(access, constants, known, again=again)
            if extents is None:
                return None
            firsts[place] = access
            equal |= dict.fromkeys(extents)
    sizes = [max(place[k] for place in firsts) + 1 for k in range(len(constants))]
    if math.prod(sizes) != len(firsts):
        return None
    memref = group[0].memref
    equal |= {(atom(Dim(memref, axis)), number(n)): None
              for axis, n in zip(constants, sizes, strict=True)}  # fmt: skip
    return Dense(frozenset(f.op for f in firsts.values()), tuple(equal))


def _is_number(poly: Poly) -> bool:
    return poly.constant is not None and poly.constant >= 0


def _place(access: Access, axes: Sequence[int]) -> tuple[int, ...] | None:
    """The numbers that are the subscripts ``axes``."""
    found: list[int] = []
    for axis in axes:
        poly = access.subscripts[axis]
        if poly is None or not _is_number(poly):
            return None
        assert poly.constant is not None
        found.append(poly.constant)
    return tuple(found)


def _whole(
    access: Access, constants: Sequence[int], known: Collection[Value], *, again: bool
) -> list[tuple[Poly, Poly]] | None:
    """What must be equal for ``access`` to touch each element once, not counting those that differ
    in the axes ``constants``: each loop counts along one axis, from one end to the other.
    ``again``: or has turns, all of which touch the same."""
    if access.guards:
        return None
    axes = [k for k in range(len(access.subscripts)) if k not in constants]
    loops = [loop for loop in access.loops if not again or not _repeats(access, loop)]
    if len(axes) != len(loops):
        return None
    same = same_sizes(access)
    found: list[tuple[Poly, Poly]] = []
    for loop in loops:
        if loop.lower is None or loop.upper is None or loop.lower.terms or loop.step != ONE:
            return None
        along = [k for k in axes if access.subscripts[k] == atom(loop.iv)]
        upper = loop.upper.substitute(same)
        leaves = (x.memref if isinstance(x, Dim) else x for x in upper.leaves())
        if len(along) != 1 or not all(leaf in known for leaf in leaves):
            return None
        extent = atom(Dim(access.memref, along[0]))
        if upper != extent:
            found.append((extent, upper))
    return found


def _repeats(access: Access, loop: Loop) -> bool:
    """Whether all turns of a loop, which has some, touch the same."""
    ends = loop.lower, loop.upper
    first, last = (poly.constant if poly is not None else None for poly in ends)
    some = first is not None and last is not None and first < last
    return some and not loop.parallel and not any(
        poly is None or poly.mentions(loop.iv) for poly in access.subscripts
    )  # fmt: skip


def _after(first: Access, later: Access) -> bool:
    """Whether ``later``, which comes later in the program, does so at each element: in a loop that
    is around both, at the same iteration."""
    common = {*first.serial} & {*later.serial}
    return all(
        subscript == mine
        for subscript, mine in zip(later.subscripts, first.subscripts, strict=True)
        if mine is not None and any(leaf in common for leaf in mine.leaves())
    )
