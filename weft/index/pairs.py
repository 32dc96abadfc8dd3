"""Which pairs of accesses are worth a question: not those that equal ones or constants answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.index.access import Access
from weft.index.meeting import split

# For each dimension: how its subscript is taken apart, and the parts that are numbers.
_Key = tuple[tuple[object, tuple[int | None, ...]], ...]


def pairs(group: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """The pairs of ``group`` (of one array, in program order; each access with itself too) that may
    touch one element.

    Of accesses that are alike in all that counts, the first stands for all. Left out are pairs with
    different numbers at one place of the subscripts, which `meeting.aligned` finds as well, but one
    pair at a time.
    """
    alike: dict[object, Access] = {}
    for a in group:
        alike.setdefault(
            (a.kind, a.combiner, a.subscripts, a.loops, a.guards, a.exact), a
        )  # fmt: skip
    buckets: dict[_Key, list[tuple[int, Access]]] = {}
    keys: list[_Key] = []
    order = list(alike.values())
    for k, a in enumerate(order):
        keys.append(_key(a))
        buckets.setdefault(keys[-1], []).append((k, a))
    near: dict[_Key, list[_Key]] = {}
    for k, a in enumerate(order):
        key = keys[k]
        if key not in near:
            near[key] = [other for other in buckets if not _differ(key, other)]
        later = [(n, b) for other in near[key] for n, b in buckets[other] if n >= k]
        for _, b in sorted(later, key=lambda found: found[0]):
            yield a, b


def _key(access: Access) -> _Key:
    """Numbers at the places of the subscripts, flattened ones taken apart."""
    found: list[tuple[object, tuple[int | None, ...]]] = []
    for poly in access.subscripts:
        if poly is None:
            found.append((None, ()))
        else:
            by, pieces = split(poly, access)
            found.append((by, tuple(piece.constant for piece in pieces)))
    return tuple(found)


def _differ(left: _Key, right: _Key) -> bool:
    """Whether two subscripts that are taken apart alike have different numbers at one place."""
    for (by, one), (other_by, two) in zip(left, right, strict=True):
        if one != two and by == other_by:
            for x, y in zip(one, two, strict=True):
                if x is not None and y is not None and x != y:
                    return True
    return False
