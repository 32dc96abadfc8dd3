"""Memory that several subscripts reach: views of one storage, and views that overlap themselves.

Everything here is about one call: extents, strides and addresses are numbers. An access becomes one
to a single dimension, the address, so that the questions asked of subscripts (``disjoint.py``,
``relation.py``) are asked of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd

from weft.index.access import Access, Loop, accesses
from weft.index.budget import Budget
from weft.index.expression import ONE, Dim, Poly, atom, compare, number
from weft.index.races import compatible, proven_apart
from weft.ir.core import Function, Value
from weft.ir.types import index
from weft.values import frozen


@frozen
class View:
    """Where the elements of a tensor lie, all in bytes: ``begin`` is the address of the first,
    ``size`` that of one element. Strides are not negative."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int
    size: int

    @property
    def end(self) -> int:
        """The address behind the last element; ``begin`` of an empty tensor."""
        if 0 in self.shape:
            return self.begin
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.begin + reach + self.size

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(stride, extent) of the dimensions with more than one index, the smallest step first."""
        pairs = zip(self.strides, self.shape, strict=True)
        return sorted((s, n) for s, n in pairs if n > 1)


def overlaps_itself(view: View) -> bool:
    """Whether two subscripts of a view are one place in memory."""
    if 0 in view.shape:
        return False
    reach = view.size
    for stride, extent in view.steps:
        if stride < reach:
            break
        reach += (extent - 1) * stride
    else:
        return False
    # Steps that interleave may still miss each other: a difference of subscripts decides.
    names = [f"d{k}" for k in range(len(view.steps))]
    ranges = [f"-{n} < {d} < {n}" for d, (_, n) in zip(names, view.steps, strict=True)]
    distance = " + ".join(f"{s}*{d}" for d, (s, _) in zip(names, view.steps, strict=True))
    other = " or ".join(f"{d} != 0" for d in names)
    near = f"-{view.size} < {distance} < {view.size}"
    return not _is_empty(names, [*ranges, near, f"({other})"])


def share_memory(a: View, b: View) -> bool:
    """Whether an element of one view and one of the other have a byte in common."""
    if a.begin >= b.end or b.begin >= a.end or 0 in a.shape or 0 in b.shape:
        return False
    names, bounds, ends = [], [], []
    for view, letter in ((a, "i"), (b, "j")):
        own = [f"{letter}{k}" for k in range(len(view.steps))]
        names += own
        bounds += [f"0 <= {i} < {n}" for i, (_, n) in zip(own, view.steps, strict=True)]
        terms = [f"{s}*{i}" for i, (s, _) in zip(own, view.steps, strict=True)]
        ends.append(" + ".join([str(view.begin - a.begin), *terms]))
    bounds += [f"{ends[0]} < {ends[1]} + {b.size}", f"{ends[1]} < {ends[0]} + {a.size}"]
    return not _is_empty(names, bounds)


def _is_empty(names: Sequence[str], constraints: Sequence[str]) -> bool:
    """Proves that no integers are as ``constraints`` say."""
    return Budget().proves_empty(f"{{ [{', '.join(names)}] : {' and '.join(constraints)} }}")


def iterations_meet(function: Function, views: Mapping[Value, View]) -> bool:
    """Whether different iterations of a parallel loop may meet through two different arguments.

    ``views``: of the memref arguments. False is proven; that each argument by itself is free of
    conflicts is not asked here.
    """
    budget = Budget()
    return any(not proven_apart(a, b, budget) for a, b in meeting_accesses(function, views))


def meeting_accesses(
    function: Function, views: Mapping[Value, View]
) -> Iterator[tuple[Access, Access]]:
    """The pairs of accesses, in program order, that reach common memory through two arguments and
    do not go together, as accesses to one array."""
    found = [a for a in accesses(function) if a.parallel and a.memref in views]
    return (_of_one_array(a, b, views) for a, b in _pairs(found, views))


def _pairs(found: Sequence[Access], views: Mapping[Value, View]) -> Iterator[tuple[Access, Access]]:
    shared: dict[tuple[Value, Value], bool] = {}
    for k, a in enumerate(found):
        for b in found[k + 1 :]:
            if a.memref is b.memref or compatible(a, b):
                continue
            key = a.memref, b.memref
            if key not in shared:
                shared[key] = share_memory(views[a.memref], views[b.memref])
            if shared[key]:
                yield a, b


def _of_one_array(a: Access, b: Access, views: Mapping[Value, View]) -> tuple[Access, Access]:
    def extent(leaf: Value | Dim) -> Poly | None:
        known = isinstance(leaf, Dim) and leaf.memref in views
        return number(views[leaf.memref].shape[leaf.axis]) if known else None  # type: ignore[union-attr]

    one, two = views[a.memref], views[b.memref]
    a, b = a.substitute(extent), b.substitute(extent)
    if one == two:  # the same elements under two names
        return a, replace(b, memref=a.memref)
    unit = gcd(one.size, two.size, one.begin - two.begin, *one.strides, *two.strides)
    begin = min(one.begin, two.begin)
    return _address(a, one, begin, unit), _address(b, two, begin, unit)


def _address(access: Access, view: View, begin: int, unit: int) -> Access:
    """The access as one to memory, counted in ``unit`` bytes from ``begin``. Subscripts are in
    range, as a kernel promises; what is not known of one may be any that is in range."""
    loops, guards = list(access.loops), list(access.guards)
    place = number((view.begin - begin) // unit)
    for poly, extent, stride in zip(access.subscripts, view.shape, view.strides, strict=True):
        subscript = poly
        if subscript is None:
            subscript = _any_below(extent, loops)
        else:
            guards.append(compare("sge", subscript, number(0)))
            guards.append(compare("slt", subscript, number(extent)))
        place = place + subscript.scaled(stride // unit)
    if view.size > unit:
        place = place + _any_below(view.size // unit, loops)
    return replace(access, subscripts=(place,), loops=tuple(loops), guards=tuple(guards))


def _any_below(end: int, loops: list[Loop]) -> Poly:
    """A number from 0 to ``end`` - 1 of which nothing else is known, as one more loop's index."""
    iv = Value(index, "any")
    loops.append(Loop(iv, number(0), number(end), ONE, parallel=False))
    return atom(iv)
