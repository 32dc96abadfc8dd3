"""Which values and arrays carry a derivative: those that depend on what is differentiated."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from weft.autodiff.rules import ZERO
from weft.ir.core import Block, Function, Op, Value
from weft.ir.types import MemRefType, ScalarType


@dataclass(slots=True)
class Activity:
    """``values``: float scalars that vary with the wanted arrays. ``arrays``: memrefs of such."""

    values: set[Value] = field(default_factory=set)
    arrays: set[Value] = field(default_factory=set)


def is_float(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and value.type.is_float


def holds_floats(memref: Value) -> bool:
    return isinstance(memref.type, MemRefType) and memref.type.element.is_float


def activity(function: Function, wanted: Collection[Value]) -> Activity:
    """Follows the derivative forwards from the arrays and scalars ``wanted``, until nothing more
    is found."""
    found = Activity({v for v in wanted if is_float(v)}, {v for v in wanted if holds_floats(v)})
    size = -1
    while size != len(found.values) + len(found.arrays):
        size = len(found.values) + len(found.arrays)
        _block(function.body, None, found)
    return found


def _block(block: Block, parent: Op | None, found: Activity) -> None:
    for op in block.ops:
        for region in op.regions:
            _block(region, op, found)
        _op(op, found)
    if parent is not None:
        _handed_on(block, parent, found)


def _mark(pairs: zip[tuple[Value, Value]], found: Activity) -> None:
    found.values.update(to for source, to in pairs if source in found.values and is_float(to))


def _op(op: Op, found: Activity) -> None:
    values, arrays = found.values, found.arrays
    match op.name:
        case "memref.load":
            if op.operands[0] in arrays and is_float(op.result):
                values.add(op.result)
        case "memref.store" | "memref.atomic_rmw":
            if op.operands[0] in values:
                arrays.add(op.operands[1])
            if op.results and op.operands[1] in arrays and is_float(op.result):
                values.add(op.result)
        case "memref.atomic_cas":
            if op.operands[1] in values:
                arrays.add(op.operands[2])
        case "scf.for":
            carried = op.regions[0].args[1:]
            _mark(zip(op.operands[3:], carried, strict=True), found)
            _mark(zip(op.operands[3:], op.results, strict=True), found)
        case "scf.while":
            _mark(zip(op.operands, op.regions[0].args, strict=True), found)
        case "scf.parallel":
            _mark(zip(op.operands[3 * op.attrs["dims"] :], op.results, strict=True), found)
        case "scf.if":
            pass
        case _ if op.name not in ZERO and any(v in values for v in op.operands):
            values.update(v for v in op.results if is_float(v))
        case _:
            pass


def _handed_on(block: Block, parent: Op, found: Activity) -> None:
    """What the terminator of ``block`` gives to ``parent``."""
    given = block.terminator.operands
    match parent.name:
        case "scf.for":
            _mark(zip(given, block.args[1:], strict=True), found)
            _mark(zip(given, parent.results, strict=True), found)
        case "scf.while" if block is parent.regions[0]:
            _mark(zip(given[1:], parent.regions[1].args, strict=True), found)
            _mark(zip(given[1:], parent.results, strict=True), found)
        case "scf.while":
            _mark(zip(given, parent.regions[0].args, strict=True), found)
        case _:
            _mark(zip(given, parent.results, strict=True), found)
