"""Do two iterations of a parallel loop touch one element, at least one of them writing?

For each array the answer is "free" (proven), "conflict" (proven: with two iterations and sizes as a
witness) or "unknown" (subscripts or conditions depend on data, or on sizes that only the caller
knows). A conflict counts as proven when it happens for all sizes and arguments from ``LARGE`` on,
so that a kernel which is right for the sizes it was written for is not refused.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Literal

from weft.errors import RaceError
from weft.index.access import Access, accesses
from weft.index.budget import EMPTY, PAIRS, SUBSET, Budget
from weft.index.disjoint import overlap_in_trial, provably_disjoint, split, varies
from weft.index.expression import Dim, Floor, Poly, evaluate, number
from weft.index.relation import Text, meetings
from weft.ir.core import Function, Value
from weft.values import frozen

if TYPE_CHECKING:
    import islpy

log = logging.getLogger("weft.races")

Verdict = Literal["free", "conflict", "unknown"]

LARGE = 1024
_PRIMES = (1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069)

_WORDS = {
    "addf": "+=", "addi": "+=", "mulf": "*=", "muli": "*=", "maximumf": "max", "maxsi": "max",
    "maxui": "max", "minimumf": "min", "minsi": "min", "minui": "min", "andi": "&=", "ori": "|=",
    "xori": "^=",
}  # fmt: skip


@frozen
class Witness:
    """Two iterations that meet: index names and values of each, the element, the sizes it needs."""

    first: tuple[tuple[str, int], ...]
    second: tuple[tuple[str, int], ...]
    element: tuple[int | None, ...]  # None: a subscript that is not known
    sizes: tuple[tuple[str, int], ...]


@frozen
class ArrayRaces:
    """The verdict for one array, with the pair of accesses that decided it unless it is free."""

    memref: Value
    verdict: Verdict
    pair: tuple[Access, Access] | None = None
    witness: Witness | None = None


@frozen
class RaceReport:
    """The verdicts of all arrays that are written in a parallel loop."""

    arrays: tuple[ArrayRaces, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        return _worst([array.verdict for array in self.arrays])

    def of(self, name: str) -> Verdict:
        """The verdict for the array called ``name``; "free" for one that is only read."""
        return _worst([array.verdict for array in self.arrays if array.memref.name == name])


def _worst(verdicts: list[Verdict]) -> Verdict:
    if "conflict" in verdicts:
        return "conflict"
    return "unknown" if "unknown" in verdicts else "free"


def check_races(function: Function) -> RaceReport:
    """The report on ``function``. Raises ``RaceError`` on the first array that has a conflict."""
    report = find_races(function)
    if log.isEnabledFor(logging.DEBUG):
        for array in report.arrays:
            name = array.memref.name or "?"
            log.debug("%s: `%s`: %s", function.name, name, _in_words(array))
    for array in report.arrays:
        if array.verdict == "conflict":
            raise race_error(array)
    return report


def _in_words(array: ArrayRaces) -> str:
    if array.pair is None:
        return "free of conflicts, proven"
    if array.verdict == "conflict":
        return f"conflict, proven: {race_error(array).message}"
    a, b = array.pair
    return f"not decided, {a.where} may meet " + ("itself" if a is b else b.where)


def find_races(function: Function) -> RaceReport:
    """As ``check_races``, without raising."""
    budget = Budget()
    arrays = [_judge(memref, group, budget) for memref, group in shared_arrays(function)]
    if budget.unanswered:
        log.debug("%s: %d of %d questions to isl were more work than a kernel may make: not known",
                  function.name, budget.unanswered, budget.asked)  # fmt: skip
    if budget.pairs < 0:
        log.debug("%s: more than %d pairs of accesses: the rest is not known", function.name, PAIRS)
    return RaceReport(tuple(arrays))


def shared_arrays(function: Function) -> Iterator[tuple[Value, list[Access]]]:
    """The accesses in each parallel loop to each array that it writes and its iterations share."""
    groups: dict[tuple[Value, Value], list[Access]] = {}
    for a in accesses(function):
        if a.parallel and not a.local:
            groups.setdefault((a.parallel[0], a.memref), []).append(a)
    for (_, memref), group in groups.items():
        if any(a.writes for a in group):
            yield memref, group


def compatible(a: Access, b: Access) -> bool:
    """Whether the pair may meet: two reads, accumulations of one kind, or atomics with a cas."""
    if not a.writes and not b.writes:
        return True
    if "cas" in (a.kind, b.kind):
        return a.kind in ("cas", "rmw") and b.kind in ("cas", "rmw")
    return a.kind == b.kind == "rmw" and a.combiner == b.combiner


def _judge(memref: Value, group: list[Access], budget: Budget) -> ArrayRaces:
    """Goes through the pairs; a conflict decides, else one that is unknown."""
    open_pair: tuple[Access, Access] | None = None
    for a, b in pairs(group):
        if compatible(a, b) or (open_pair and not _decidable(a, b)):
            continue
        budget.pairs -= 1
        if budget.pairs < 0:
            open_pair = open_pair or (a, b)
            break
        verdict, witness = _judge_pair(a, b, budget)
        if verdict == "conflict":
            return ArrayRaces(memref, "conflict", (a, b), witness)
        if verdict == "unknown" and open_pair is None:
            open_pair = a, b
    if open_pair:
        return ArrayRaces(memref, "unknown", open_pair)
    return ArrayRaces(memref, "free")


def proven_apart(a: Access, b: Access, budget: Budget) -> bool:
    """Proves, with isl if need be, that different iterations never meet through ``a`` and ``b``."""
    if a.parallel != b.parallel:
        return False  # nested parallel loops
    if provably_disjoint(a, b):
        return True
    if a is b and _wherever(a):
        return False
    return not overlap_in_trial(a, b) and budget.proves_empty(meetings(a, b, Text()))


def places(access: Access) -> Hashable:
    """What is equal for accesses of the same elements by the same iterations."""
    return access.subscripts, access.loops, access.guards


def meeting(group: Sequence[Access], asked: Set[Hashable], budget: Budget) -> set[Hashable]:
    """Which of the ``places`` that are ``asked`` about are those of accesses that may meet one of
    ``group``, or themselves, in another iteration."""
    found: set[Hashable] = set()
    apart: dict[tuple[Hashable, Hashable], bool] = {}
    for a, b in pairs(group):
        both = places(a), places(b)
        if asked.isdisjoint(both) or asked & {*both} <= found:
            continue
        if both not in apart:
            apart[both] = apart[both[1], both[0]] = proven_apart(a, b, budget)
        if not apart[both]:
            found |= asked & {*both}
    return found


def _wherever(access: Access) -> bool:
    """Whether it is the same for all of several iterations along a parallel index."""
    used = {leaf for poly in access.polys() for leaf in poly.leaves()}
    lengths = [None if loop.lower is None or loop.upper is None else (loop.upper - loop.lower)
               for loop in access.loops if loop.parallel and loop.iv not in used]  # fmt: skip
    return None not in access.subscripts and any(
        length is not None and (length.constant is None or length.constant > 1)
        for length in lengths
    )


def _decidable(a: Access, b: Access) -> bool:
    """Whether a conflict of the two can be proven."""
    return a.exact and b.exact and a.parallel == b.parallel and "cas" not in (a.kind, b.kind)


def _judge_pair(a: Access, b: Access, budget: Budget) -> tuple[Verdict, Witness | None]:
    if proven_apart(a, b, budget):
        return "free", None
    witness = _conflict(a, b, budget) if _decidable(a, b) else None
    return ("unknown", None) if witness is None else ("conflict", witness)


# -------------------------------------------------------------------------- proving that they meet


def _conflict(a: Access, b: Access, budget: Budget) -> Witness | None:
    """A witness, if the accesses meet for all sizes from ``LARGE`` on."""
    fixed = sorted(_nonlinear(a) | _nonlinear(b), key=_size_name)  # the same in each run
    for values in _assignments(fixed):
        if not budget.ask(partial(_always_meet, a, b, values), SUBSET):
            return None
    for size in (2, 3, 5, 8, LARGE):
        witness = budget.ask(partial(_witness, a, b, dict.fromkeys(fixed, size)), EMPTY)
        if witness:
            return witness
    return None


def _nonlinear(access: Access) -> set[Value | Dim]:
    """The symbols to be fixed for the access to become affine: those multiplied or divided by."""
    indices = {loop.iv for loop in access.loops}
    found: set[Value | Dim] = set()

    def visit(poly: Poly) -> None:
        for monomial in poly.terms:
            if len(monomial) > 1:
                found.update(leaf for a in monomial for leaf in Poly({(a,): 1}).leaves())
            for a in monomial:
                if isinstance(a, Floor):
                    found.update(a.divisor.leaves())
                    visit(a.numerator)

    for poly in access.polys():
        visit(poly)
    return {leaf for leaf in found if not varies(leaf, indices)}


def _assignments(leaves: list[Value | Dim]) -> list[dict[Value | Dim, int]]:
    """A few ways to give large values to ``leaves``: a power of two, a prime, rising, falling."""
    if not leaves:
        return [{}]
    rising = [_PRIMES[k % len(_PRIMES)] for k in range(len(leaves))]
    return [
        dict.fromkeys(leaves, LARGE),
        dict.fromkeys(leaves, _PRIMES[0]),
        dict(zip(leaves, rising, strict=True)),
        dict(zip(leaves, reversed(rising), strict=True)),
    ]


def _with(access: Access, values: dict[Value | Dim, int]) -> Access:
    if not values:
        return access
    return access.substitute(lambda leaf: number(values[leaf]) if leaf in values else None)


def _always_meet(
    a: Access, b: Access, values: dict[Value | Dim, int], context: islpy.Context
) -> bool:
    met, text = _met(a, b, values, context)
    if not text.exact or met.intersect_params(_sizes(text, f"= {LARGE}", context)).is_empty():
        return False  # the second is what isl would find as well, with much work
    return _sizes(text, f">= {LARGE}", context).is_subset(met.params())


def _met(
    a: Access, b: Access, values: dict[Value | Dim, int], context: islpy.Context
) -> tuple[islpy.Set, Text]:
    import islpy  # 50 ms: the kernel is about to be refused, or is an unusual one

    text = Text()
    first = _with(a, values)
    second = first if a is b else _with(b, values)
    found = meetings(first, second, text, at_least_zero=True)
    return islpy.Set.read_from_str(context, found), text


def _sizes(text: Text, are: str, context: islpy.Context) -> islpy.Set:
    """The parameters that all ``are`` so."""
    import islpy  # 50 ms, see _met

    all_are = " and ".join(f"{name} {are}" for name in text.parameters) or "true"
    return islpy.Set.read_from_str(context, f"[{', '.join(text.parameters)}] -> {{ : {all_are} }}")


def _witness(
    a: Access, b: Access, values: dict[Value | Dim, int], context: islpy.Context
) -> Witness | Literal[False]:
    """The meeting with the least sizes, then the least indices; False if there is none."""
    import islpy  # 50 ms, see _met

    met, text = _met(a, b, values, context)
    count = len(text.parameters)
    flat = met.intersect_params(_sizes(text, ">= 1", context)).move_dims(
        islpy.dim_type.set, 0, islpy.dim_type.param, 0, count
    )
    if flat.is_empty():
        return False
    point = _coordinates(flat.lexmin().sample_point())
    symbols = dict(values)
    for (_, symbol), value in zip(text.parameters.items(), point[:count], strict=True):
        if symbol is not None:
            symbols[symbol] = value
    rest, n, s = point[count:], len(a.parallel), len(a.serial)
    one = dict(zip((*a.parallel, *a.serial), (*rest[:n], *rest[2 * n : 2 * n + s]), strict=True))
    two = dict(zip(b.parallel, rest[n : 2 * n], strict=True))
    element = tuple(None if p is None else evaluate(p, {**symbols, **one}) for p in a.subscripts)
    return Witness(
        tuple((_index_name(iv, k), one[iv]) for k, iv in enumerate(a.parallel)),
        tuple((_index_name(iv, k), two[iv]) for k, iv in enumerate(b.parallel)),
        element,
        tuple((_size_name(symbol), value) for symbol, value in symbols.items()),
    )


def _coordinates(point: islpy.Point) -> list[int]:
    import islpy  # 50 ms, see _met

    count = point.get_space().dim(islpy.dim_type.set)
    return [point.get_coordinate_val(islpy.dim_type.set, k).to_python() for k in range(count)]


def _index_name(iv: Value, position: int) -> str:
    return iv.name or f"index {position}"


def _size_name(symbol: Value | Dim) -> str:
    return f"{symbol.memref.name}.shape[{symbol.axis}]" if isinstance(symbol, Dim) else symbol.name


# ------------------------------------------------------------------------------- what is said of it


def race_error(array: ArrayRaces) -> RaceError:
    """The error for a proven conflict, at the operation that writes."""
    assert array.pair is not None
    assert array.witness is not None
    a, b = array.pair
    one, two = _iteration(array.witness.first), _iteration(array.witness.second)
    name = array.memref.name or "the array"
    element = f"{name}[{', '.join('?' if e is None else str(e) for e in array.witness.element)}]"
    if not array.witness.element:
        element = name
    if a.kind == b.kind == "store":
        message = f"iterations {one} and {two} both write {element}"
        return RaceError(message, a.op.span, _help_for_stores(name, a, b) + _host_loop(a, b))
    if a.kind == b.kind:
        kinds = f"`{_WORDS[a.combiner or '']}` and `{_WORDS[b.combiner or '']}`"
        message = f"iterations {one} and {two} accumulate into {element} with {kinds}"
        return RaceError(message, b.op.span, "the result would depend on the order of iterations: "
                         "use two loops, or an array for each")  # fmt: skip
    # The one that writes comes first in the sentence; of store and accumulation, the store.
    if a.kind == "load" or b.kind == "store":
        a, b, one, two = b, a, two, one
    does = "writes" if a.kind == "store" else "accumulates into"
    other = f"which iteration {two} reads"
    if b.kind == "rmw":
        other = f"into which iteration {two} accumulates"
    message = f"iteration {one} {does} {element}, {other}"
    advice = (
        f"read from a copy made before the loop (`old = {name}.clone()`), write to another tensor, "
        "or run the loop in order: weft.loop_config(serialize=True) on the line before it"
    ) + _host_loop(a, b)
    if b.kind == "rmw":
        advice = f"initialise `{name}` in a loop of its own, before the one that accumulates"
    return RaceError(message, a.op.span, advice)


def _iteration(indices: tuple[tuple[str, int], ...]) -> str:
    text = ", ".join(f"{name}={value}" for name, value in indices)
    return f"({text})" if len(indices) > 1 else text


def _host_loop(a: Access, b: Access) -> str:
    """What else to write where both are in loops of an iteration: those may be parallel."""
    if not all(len(x.loops) > len(x.parallel) == 1 for x in (a, b)):
        return ""
    loop = f"for {a.parallel[0].name} in weft.serial(range(...))"
    return f", or `{loop}`, with the loops in it parallel"


def _help_for_stores(name: str, a: Access, b: Access) -> str:
    used = {leaf for x in (a, b) for p in x.subscripts if p is not None for leaf in p.leaves()}
    missing = [iv.name for iv in a.parallel if iv not in used and iv.name]
    accumulate = f"accumulate with `{name}[...] += ...`" if a.subscripts else "accumulate with `+=`"
    if not missing:
        return (f"{accumulate}, give each iteration elements of its own, or run the loop in order: "
                "weft.loop_config(serialize=True) on the line before it")  # fmt: skip
    indices = " and ".join(f"`{iv}`" for iv in missing)
    if len(missing) == len(a.parallel):
        serial = "run the loop in order (weft.loop_config(serialize=True) on the line before it)"
    else:
        serial = f"make the loop over {indices} serial (a nested `for ... in range(...)`)"
    index = f", or index `{name}` by {indices} too" if a.subscripts else ""
    comma = "," if index else " or"
    return f"{accumulate}{comma} {serial}{index}"


def as_one(access: Access) -> Hashable:
    """What is equal for accesses that are alike in all that counts."""
    return access.kind, access.combiner, places(access), access.exact


# For each dimension: how its subscript is taken apart, and the parts that are numbers.
_Key = tuple[tuple[object, tuple[int | None, ...]], ...]


def pairs(group: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """The pairs of ``group`` (of one array, in program order; each access with itself too) that may
    touch one element.

    Of accesses that are alike in all that counts, the first stands for all. Left out are pairs with
    different numbers at one place of the subscripts, which `disjoint.aligned` finds as well, but
    one pair at a time.
    """
    alike: dict[Hashable, Access] = {}
    for a in group:
        alike.setdefault(as_one(a), a)
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
