"""What code is told of single operations: attributes that the last step of every schedule sets.

``number``: which check or print of the function it is, copies of one alike. ``reassociate``: a sum
may be taken in any order. ``warp_aggregate``: of an atomic addition, lanes of a whole warp that
come to it at once first add up what they have. ``poll``: how often a loop asks whether it has to
end. None of them changes what an operation means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.ir.core import Function, Op, Value, below, walk
from weft.ir.types import f32, f64
from weft.ir.views import memory
from weft.schedule.accumulations import accumulations
from weft.schedule.variation import Variation

Notes = Mapping[Op, Mapping[str, Any]]

CHECKS = ("weft.assert", "weft.bounds", "weft.check_race")


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
