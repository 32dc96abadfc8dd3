"""What code is told of single operations: attributes that the last step of every schedule sets.

``number``: which check or print of the function it is, copies of one alike. ``reassociate``: a sum
may be taken in any order. ``warp_aggregate``: of an atomic addition, lanes of a whole warp that
come to it at once first add up what they have. ``streaming``: what a store writes makes way first
in the caches. ``poll``: a loop asks in one of so many iterations whether it has to end; ``strips``:
between strips of so many. ``scalar``: LLVM makes no vectors of a loop. None of them changes what an
operation means.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from weft.ir.bounded import LOOPS, serial_loops, unbounded
from weft.ir.core import Function, Op, Value, below, walk
from weft.ir.types import f32, f64
from weft.ir.views import For, Parallel, constant_of, is_constant, memory
from weft.schedule.accumulations import accumulations
from weft.schedule.variation import Variation

Notes = Mapping[Op, Mapping[str, Any]]

EVERY_OUTER = 16  # iterations of a loop of loops between two looks at the clock
EVERY_INNER = 4096  # of a `while` without loops inside
STRIP = 1 << 16  # iterations of a `for` without loops inside, which runs in strips of so many
CHECKS = ("weft.assert", "weft.bounds", "weft.check_race")
BESIDE = 8  # operations beside each narrow element from anywhere that vectors do not pay for


def numbered(function: Function) -> Notes:
    """The places of checks among all, in program order, and of prints."""
    ops = list(walk(function.body))
    kinds = [op for op in ops if op.name in CHECKS], [op for op in ops if op.name == "weft.print"]
    return {op: {"number": k} for found in kinds for k, op in enumerate(found)}


def reassociated(function: Function) -> Notes:
    """The sums that may be taken in any order. None in a loop that threads scan is one: bits would
    depend on how its turns are written."""
    scans = (op for op in walk(function.body) if "scan" in op.attrs)
    ordered = {inner for op in scans for inner in below(op)}
    return {op: {"reassociate": True} for op in accumulations(function) - ordered}


def aggregated(parallel: Op, x: Value) -> Notes:
    """The additions of floats, of which nobody asks what was there, to elements that iterations
    share which differ in ``x`` only."""
    every = list(walk(parallel.body))
    found = [op for op in every if op.name == "memref.atomic_rmw" and op.attrs["kind"] == "addf"
             and memory(op)[0].memref.element in (f32, f64) and op.attrs["atomic"]]  # fmt: skip
    if not found:
        return {}
    along, used = Variation(parallel.body, {x: 1}), {v for op in every for v in op.operands}
    return {
        op: {"warp_aggregate": True} for op in found
        if along.uniform(*memory(op)[1]) and op.result not in used
    }  # fmt: skip


def streamed(function: Function) -> Notes:
    """The stores to arguments."""
    stores = (op for op in walk(function.body) if op.name == "memref.store")
    return {op: {"streaming": True} for op in stores if memory(op)[0] in function.args}


def unvectorised(function: Function) -> Notes:
    """The loops that do little but load elements of one or two bytes from anywhere. No instruction
    gathers these: LLVM would take its vectors of subscripts apart, and put those of elements
    together."""
    loops = [op for op in walk(function.body) if op.name == "scf.for" and not _has_loops(op)]
    return {loop: {"scalar": True} for loop in loops if _takes_apart(loop)}


def _takes_apart(loop: Op) -> bool:
    ops = list(walk(loop.body))
    narrow = [op for op in ops if op.name == "memref.load"
              and memory(op)[0].memref.element.bytes < 4]  # fmt: skip
    if len(ops) > BESIDE * len(narrow):
        return False
    along = Variation(loop.body, {For(loop).index: 1})
    gathers = [op for op in narrow if not all(along.steepness(v) < inf for v in memory(op)[1])]
    return bool(gathers) and len(ops) <= BESIDE * len(gathers)


def polled(parallel: Op) -> Notes:
    """The loops of an iteration that may take long; where an iteration runs alone, loops of loops
    and the outermost, too."""
    found = [*unbounded(parallel.body)]
    bounds = [(constant_of(low), constant_of(high)) for low, high, _ in Parallel(parallel).axes]
    if all(low is not None and high == low + 1 for low, high in bounds):
        found += [op for op in walk(parallel.body) if _has_loops(op)]
        found += serial_loops(parallel.body)
    return {op: _interval(op) for op in found}


def _interval(op: Op) -> Mapping[str, int]:
    if _has_loops(op):
        return {"poll": EVERY_OUTER}
    plain = op.name == "scf.for" and is_constant(For(op).step, 1)
    return {"strips": STRIP} if plain else {"poll": EVERY_INNER}


def _has_loops(op: Op) -> bool:
    return op.name in LOOPS and any(o.name in LOOPS for r in op.regions for o in walk(r))
