"""The index sets of a function as text, for ``weft inspect``."""

from __future__ import annotations

from weft.index.access import Access, accesses
from weft.index.bounds import always_in_range
from weft.index.expression import show
from weft.index.races import Witness, find_races
from weft.index.relation import relation_text
from weft.ir.core import Function

_VERBS = {"load": "reads", "store": "writes", "rmw": "accumulates into", "cas": "swaps"}


def describe(function: Function) -> str:
    """One paragraph for each access (its subscripts, the relation in isl's notation, whether it is
    in range), then the verdict on races for each array that is written."""
    lines = []
    for access in accesses(function):
        lines.append(f"{_VERBS[access.kind]} {_subscripted(access)}")
        lines.append(f"  {relation_text(access)}")
        notes = [] if access.exact else ["approximate"]
        if access.subscripts:
            notes.append("in range" if all(always_in_range(access)) else "range not proven")
        if notes:
            lines.append(f"  {', '.join(notes)}")
    for array in find_races(function).arrays:
        lines.append(f"races on {array.memref.name or '?'}: {array.verdict}")
        if array.witness is not None:
            lines.append(f"  {_witness(array.witness)}")
    return "\n".join(lines)


def _subscripted(access: Access) -> str:
    inner = ", ".join("?" if p is None else show(p) for p in access.subscripts)
    return f"{access.memref.name or '?'}[{inner}]"


def _witness(witness: Witness) -> str:
    first = ", ".join(f"{name}={value}" for name, value in witness.first)
    second = ", ".join(f"{name}={value}" for name, value in witness.second)
    sizes = ", ".join(f"{name}={value}" for name, value in witness.sizes)
    element = ", ".join("?" if e is None else str(e) for e in witness.element)
    return f"({first}) and ({second}) meet on [{element}]" + (f" when {sizes}" if sizes else "")
