"""Running maxima and minima, freed from the order of their iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.views import For

# The operation that a carried value is updated with where `x predicate carried` chooses x.
_COMBINERS = {
    "ogt": "arith.maxnumf",
    "oge": "arith.maxnumf",
    "olt": "arith.minnumf",
    "ole": "arith.minnumf",
}
_MIRRORED = {"ogt": "olt", "oge": "ole", "olt": "ogt", "ole": "oge"}


def reassociate_extrema(function: Function) -> Function:
    """``m = x if x > m else m``, carried through a ``scf.for``, becomes a ``maxnumf`` reduction
    that starts at minus infinity; the value from before the loop is compared with its result.

    The comparison keeps ``m`` where x is NaN, and so does ``maxnumf``; unlike the comparison it may
    be applied in any order, which lets the loop be vectorised. A value from before the loop that is
    NaN stays, as it did. Which of 0.0 and -0.0 is kept may differ: not used with ``strict_math``.

    Precondition: a verified function. Non-goals: values that the loop uses in any other way.
    """
    if not any(_extrema(op) for op in walk(function.body)):
        return function
    return Rewriter(around=_around).function(function)


def _extrema(op: Op) -> dict[int, tuple[str, str, Value, Op]]:
    """The running extrema that the loop ``op`` carries, by number: see ``running_extremum``."""
    if op.name != "scf.for":
        return {}
    return {
        k: match for k in range(len(op.results))
        if (match := running_extremum(op, k)) and not decides_more(op.body, match[3])
    }  # fmt: skip


def _around(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    found = _extrema(op)
    if not found:
        return None
    rewriter.span = op.span
    inits = list(map(rewriter.lookup, For(op).inits))
    starts = list(inits)
    for k, (name, _, _, _) in found.items():
        type = op.results[k].type
        starts[k] = rewriter.constant(-math.inf if name == "arith.maxnumf" else math.inf, type)  # type: ignore[arg-type]
    new = rewriter.for_(*map(rewriter.lookup, For(op).bounds), inits=starts, **op.attrs)
    old, block = op.body, new.body
    rewriter.stand_for(old.args, block.args)
    selects = {select: (name, x, For(op).carried[k]) for k, (name, _, x, select) in found.items()}
    with rewriter.at(block):
        for inner in old.ops:
            if inner in selects:
                name, x, carried = selects[inner]
                value = rewriter.op(name, rewriter.lookup(carried), rewriter.lookup(x))
                rewriter.replacement[inner.result] = value
            else:
                rewriter.rewrite(inner)
    results = list(new.results)
    for k, (_, predicate, _, _) in found.items():
        better = rewriter.op("arith.cmpf", results[k], inits[k], predicate=predicate)
        results[k] = rewriter.op("arith.select", better, results[k], inits[k])
    return results


def running_extremum(loop: Op, k: int) -> tuple[str, str, Value, Op] | None:
    """(combiner, predicate, new element, the select) if carried value k is a running extremum that
    is used for nothing else. The comparison may be: see ``decides_more``."""
    body = loop.body
    carried, following = For(loop).carried[k], For(loop).yielded[k]
    select = following.op
    if select is None or select.name != "arith.select" or select not in body.ops:
        return None
    condition, x, kept = select.operands
    compare = condition.op
    if kept is not carried or compare is None or compare.name != "arith.cmpf":
        return None
    predicate = compare.attrs["predicate"]
    if compare.operands == [carried, x]:
        predicate = _MIRRORED.get(predicate, "")
    elif compare.operands != [x, carried]:
        return None
    own = (carried, following)
    users = [o for o in walk(body) if carried in o.operands or following in o.operands]
    if predicate not in _COMBINERS or users != [compare, select, body.terminator]:
        return None
    if sum(v in own for v in body.terminator.operands) != 1:  # kept under another name, too
        return None
    return _COMBINERS[predicate], predicate, x, select


def decides_more(body: Block, select: Op) -> bool:
    """Whether the comparison of a running extremum decides something else, such as where it is."""
    condition, _, _ = select.operands
    return any(condition in op.operands for op in walk(body) if op is not select)
