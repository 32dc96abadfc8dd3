"""Where iterations are among the rows of tensors that are cut, each rank having its own (see
``sharding.py``): what differs on a rank by where its rows are, and which other rows are meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.index.access import Extraction
from weft.index.expression import Dim, Floor, Pick, Poly, atom, extreme, number, pick
from weft.index.integers import Integers
from weft.ir.core import Function, Value
from weft.values import frozen, mutable


class NotLocal(Exception):
    """A rank cannot run it on its own rows, for the reason that is said."""


@frozen
class Moved:
    """A value to which ``by`` times ``o`` and ``grown`` times ``m`` are added in the whole."""

    by: int = 0
    grown: int = 0


SAME = Moved()


@mutable
class Content:
    """What became of a piece of memory. ``given``: an argument's; otherwise it is ``fill``, or
    nothing, at first."""

    name: str
    given: bool = True
    fill: float | None = None
    partial: str = ""  # how parts of ranks are combined, if these have some
    whole: bool = False  # written: the same on all ranks, or each rank its rows
    shifted: bool = False  # read in rows of neighbours
    inside: bool = False  # made by an iteration of the split loop


@frozen
class Memory:
    """A tensor. ``axis``: along which it is cut, if it is; its size there is None in ``shape``."""

    content: Content
    axis: int | None
    shape: Sequence[int | None]


@frozen
class Size:
    """An integer argument: ``factor`` times the size, and ``more``."""

    factor: int
    more: int


@mutable
class Halo:
    """How many rows of its neighbours a rank needs."""

    before: int = 0
    after: int = 0

    def need(self, before: int = 0, after: int = 0) -> None:
        self.before, self.after = max(self.before, before), max(self.after, after)


class Positions:
    """What integers are, by what ``given`` says of the arguments, and by how much they would differ
    in the whole. ``split``: the index of the loop of which each rank has its iterations; ``state``
    gives what else is known of a value; ``halo`` grows with what is asked."""

    def __init__(
        self, function: Function, given: Mapping[Value, object], halo: Halo,
        state: Callable[[Value], object],
    ) -> None:  # fmt: skip
        self.integers, self.given = Integers(function), given
        self.halo, self.state = halo, state
        self.size = Dim(function.args[0], -1)
        self.memories = {v: m for v, m in given.items() if isinstance(m, Memory)}
        self.split: Value | None = None
        # Each index around with its range, innermost last.
        self.ranges: list[tuple[Value, Poly | None, Poly | None]] = []

    def poly(self, value: Value) -> Poly | None:
        found = self.integers.poly(value)
        return None if found is None else found.substitute(self._known)

    def _known(self, leaf: Value | Dim) -> Poly | None:
        if isinstance(leaf, Dim):
            array = self.memories.get(leaf.memref)
            if array is None or leaf.axis < 0:
                return None
            size = array.shape[leaf.axis]
            return atom(self.size) if size is None else number(size)
        found = self.given.get(leaf)
        if isinstance(found, Size):
            return atom(self.size).scaled(found.factor) + number(found.more)
        return number(found) if type(found) is int else None

    def moved(self, poly: Poly) -> Moved | None:
        """How ``poly`` differs in the whole; None where that is no multiple."""
        by = grown = 0
        for monomial, factor in poly.terms.items():
            found = [self._leaf(a) for a in monomial]
            if all(m == SAME for m in found):
                continue
            if len(found) > 1 or found[0] is None:
                return None
            by, grown = by + factor * found[0].by, grown + factor * found[0].grown
        return Moved(by, grown)

    def _leaf(self, a: object) -> Moved | None:
        match a:
            case Dim():
                return Moved(0, 1) if a == self.size else SAME
            case Value():
                state = self.state(a)
                return state if isinstance(state, Moved) else None
            case Pick(_, left, right):
                both = self.moved(left), self.moved(right)
                return both[0] if both[0] == both[1] else None
            case Floor(numerator, divisor):
                same = self.moved(numerator) == SAME and self.moved(divisor) == SAME
                return SAME if same else None
            case _:
                return None

    def surely(self, poly: Poly | None, *, zero: bool = False) -> bool | None:
        """Whether ``poly >= 0``, or with ``zero`` whether it is 0, in all rows but as many first
        and last ones as are added to the halo. None where that may differ between other rows.

        In the rows that are left out, a rank has what the whole has: they are its first ones, too,
        and ``poly`` does not have the size in it; or its last ones, and it has their distance.
        """
        if poly is None or self.split is None:
            return None
        ends = [self._end(poly, upwards) for upwards in (False, True)]
        if None in ends:
            return None
        (low, by, grown), (high, by_, grown_) = (e for e in ends if e is not None)
        if (by, grown) != (by_, grown_):
            return None
        match by, grown:
            case 1, 0:
                self.halo.need(before=-low + zero)
                return not zero
            case -1, 0:
                self.halo.need(before=high + 1)
                return False
            case -1, 1:  # the distance to the end is 1 at least
                self.halo.need(after=-low - 1 + zero)
                return not zero
            case 1, -1:
                self.halo.need(after=high)
                return False
            case _:
                return None

    def _end(self, poly: Poly, upwards: bool) -> tuple[int, int, int] | None:
        """An end of ``poly`` over the indices but the split one: a number, and how many times that
        and the size are added to it."""
        split = self.split
        assert split is not None
        around = [r for r in reversed(self.ranges) if r[0] is not split]
        found = extreme(poly, around, upwards)
        if found is None:
            return None
        by, grown = found.slope(split), found.coefficient(self.size).constant
        if by is None or grown is None:
            return None
        rest = (found - atom(split).scaled(by) - atom(self.size).scaled(grown)).constant
        return None if rest is None else (rest, by, grown)

    def resolved(
        self, poly: Poly, kinds: Sequence[str] = ("min", "max"), *, subscript: bool = False
    ) -> Poly:  # fmt: skip
        """``poly`` as it is in all rows but the first and last: a ``min`` or ``max`` that is there
        for these (of ``kinds``) is what it is elsewhere. Raises ``NotLocal``.

        ``subscript``: a rank has the rows, too, that the first and last rows mean by it.
        """
        for a in list(poly.atoms()):
            if not isinstance(a, Pick) or self._leaf(a) is not None or (a,) not in poly.terms:
                continue
            left, right = (self.resolved(p, kinds, subscript=subscript)
                           for p in (a.left, a.right))  # fmt: skip
            if self.moved(left) == self.moved(right):
                chosen = pick(a.kind, left, right)
            else:
                first = self._is_greater(left, right)
                if first is None or a.kind not in kinds:
                    raise NotLocal("a bound or a subscript depends on where a row is")
                chosen, other = (left, right) if first == (a.kind == "max") else (right, left)
                if subscript:
                    self._in_range(other)
            poly = poly + (chosen - atom(a)).scaled(poly.terms[a,])
        return poly

    def _is_greater(self, left: Poly, right: Poly) -> bool | None:
        """Whether ``left`` is no less than ``right``, or no greater, likewise."""
        before, after = self.halo.before, self.halo.after
        if self.surely(left - right):
            return True
        self.halo.before, self.halo.after = before, after
        return False if self.surely(right - left) else None

    def _in_range(self, other: Poly) -> None:
        """Has a rank with the first or last rows have the row ``other``, too."""
        if other.constant is not None:
            self.halo.need(before=other.constant + 1)
        elif (last := (other - atom(self.size)).constant) is not None:
            self.halo.need(after=-last)
        elif self.moved(other) != SAME:
            raise NotLocal("a bound or a subscript depends on where a row is")

    def distance(self, poly: Poly) -> tuple[int, int] | None:
        """Between which numbers it is by how much ``poly`` is more than the split index; None where
        that is not known. Raises ``NotLocal``."""
        split = self.split
        if split is None:
            return None
        found = poly - atom(split)
        if not found.terms:
            return 0, 0
        found = self.resolved(poly, subscript=True) - atom(split)
        around = [r for r in reversed(self.ranges) if r[0] is not split]
        ends = [extreme(found, around, upwards) for upwards in (False, True)]
        low, high = (None if e is None else e.constant for e in ends)
        return None if low is None or high is None else (low, high)


# --- what might be cut ---------------------------------------------------------------------------
@frozen
class Rows:
    """The tensors and axes that have a loop index as a subscript, with a number added maybe, and
    those where it is a part of one."""

    index: str
    alone: frozenset[tuple[Value, int]]
    mixed: frozenset[tuple[Value, int]]


def along(function: Function) -> list[Rows]:
    """What may be cut together, by loop index."""
    alone: dict[Value, set[tuple[Value, int]]] = {}
    mixed: dict[Value, set[tuple[Value, int]]] = {}
    for access in Extraction(function).found:
        for axis, poly in enumerate(access.subscripts):
            for loop in access.loops:
                if poly is None or access.local or not poly.mentions(loop.iv):
                    continue
                which = alone if (poly - atom(loop.iv)).constant is not None else mixed
                which.setdefault(loop.iv, set()).add((access.memref, axis))
    return [Rows(iv.name, frozenset(alone.get(iv, ())), frozenset(mixed.get(iv, ())))
            for iv in {**alone, **mixed}]  # fmt: skip
