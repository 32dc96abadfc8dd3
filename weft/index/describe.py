"""The index sets of a function as text, for ``weft inspect``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.index.access import Access, Loop, accesses
from weft.index.bounds import always_in_range
from weft.index.expression import Dim, Poly, atom, number, show, show_condition
from weft.index.races import Witness, find_races
from weft.index.relation import relation_text
from weft.ir.core import Function, Value

_VERBS = {"load": "reads", "store": "writes", "rmw": "accumulates into", "cas": "swaps"}


Equal = Mapping[Value | Dim, Dim]  # numbers, and sizes of arrays, that are sizes of others


def describe(function: Function, equal: Equal | None = None) -> str:
    """One paragraph for each access (its subscripts, the relation in isl's notation, whether it is
    in range), then the verdict on races for each array that is written. ``equal``: what else is
    known of sizes."""
    change = _substitution(equal or {})
    lines = []
    for access in accesses(function):
        lines.append(f"{_VERBS[access.kind]} {_subscripted(access)}")
        lines.append(f"  {relation_text(access)}")
        notes = [] if access.exact else ["approximate"]
        if access.subscripts:
            sure = all(always_in_range(access.substitute(change), change))
            notes.append("in range" if sure else "range not proven")
        if notes:
            lines.append(f"  {', '.join(notes)}")
    for array in find_races(function).arrays:
        lines.append(f"races on {array.memref.name or '?'}: {array.verdict}")
        if array.witness is not None:
            lines.append(f"  {_witness(array.witness)}")
    return "\n".join(lines)


_MEET = {
    "free": "No two iterations of the loop meet on an element of `{0}`",
    "unknown": "Whether two iterations meet on an element of `{0}` depends on what is read, or on "
    "sizes: debug mode checks it",
    "conflict": "Two iterations of the loop meet on an element of `{0}`",
}


def _substitution(equal: Equal) -> Callable[[Value | Dim], Poly | None]:
    return lambda symbol: atom(equal[symbol]) if symbol in equal else None


def in_words(function: Function, equal: Equal | None = None) -> str:
    """The same for people: of each access the iterations that make it, what neighbours touch and
    what iterations share; then the verdicts on races."""
    change = _substitution(equal or {})
    lines: list[str] = []
    for access in accesses(function):
        line = f" at line {access.op.span.line}" if access.op.span is not None else ""
        lines.append(f"{_VERBS[access.kind].capitalize()} {_subscripted(access)}{line}")
        if access.loops:
            lines.append(f"  for {', '.join(map(_range, access.loops))}")
        if access.guards:
            lines.append(f"  where {' and '.join(map(show_condition, access.guards))}")
        if not access.subscripts:
            continue
        if access.loops:
            iv = access.loops[-1].iv
            lines.append(f"  {_stride(access.stride(iv), iv.name or '?')}")
        used = {leaf for p in access.subscripts if p is not None for leaf in p.leaves()}
        shared = [loop.iv.name or "?" for loop in access.loops if loop.iv not in used]
        if shared and None not in access.subscripts:
            lines.append(f"  the same elements whatever {' and '.join(shared)}")
        sure = all(always_in_range(access.substitute(change), change))
        lines.append(f"  {'always inside of' if sure else 'not proven to stay inside of'} "
                     f"`{access.memref.name or '?'}`")  # fmt: skip
    for array in find_races(function).arrays:
        lines.append(_MEET[array.verdict].format(array.memref.name or "?"))
    return "\n".join(lines)


def _range(loop: Loop) -> str:
    name, lower, upper = loop.iv.name or "?", loop.lower, loop.upper
    begin = "?" if lower is None else show(lower)
    last = "?" if upper is None else show(upper - number(1))
    step = "" if loop.step == number(1) else f" by {'?' if loop.step is None else show(loop.step)}"
    return f"{'each ' if loop.parallel else ''}{name} from {begin} to {last}{step}"


def _stride(stride: int | None, name: str) -> str:
    match stride:
        case None:
            return f"along {name}: elements that are anywhere"
        case 0:
            return f"along {name}: the same place of a row"
        case 1 | -1:
            return f"along {name}: neighbours{', backwards' if stride < 0 else ''}"
        case _:
            return f"along {name}: every element {abs(stride)} further{' back' * (stride < 0)}"


def _subscripted(access: Access) -> str:
    inner = ", ".join("?" if p is None else show(p) for p in access.subscripts)
    return f"{access.memref.name or '?'}[{inner}]"


def _witness(witness: Witness) -> str:
    first = ", ".join(f"{name}={value}" for name, value in witness.first)
    second = ", ".join(f"{name}={value}" for name, value in witness.second)
    sizes = ", ".join(f"{name}={value}" for name, value in witness.sizes)
    element = ", ".join("?" if e is None else str(e) for e in witness.element)
    return f"({first}) and ({second}) meet on [{element}]" + (f" when {sizes}" if sizes else "")
