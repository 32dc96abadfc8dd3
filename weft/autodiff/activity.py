"""Which values and arrays carry a derivative: those that depend on what is differentiated."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import field

from weft.autodiff.rules import ZERO
from weft.ir.core import Block, Function, Op, Value
from weft.ir.types import MemRefType, ScalarType
from weft.ir.views import For, Parallel, While, memory
from weft.ir.writes import written
from weft.values import mutable


@mutable
class Activity:
    """``values``: float scalars that vary with the wanted arrays. ``arrays``: memrefs of such."""

    values: set[Value] = field(default_factory=set)
    arrays: set[Value] = field(default_factory=set)


def is_float(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and value.type.is_float


def holds_floats(memref: Value) -> bool:
    return isinstance(memref.type, MemRefType) and memref.type.element.is_float


def read_and_written(function: Function) -> tuple[set[int], set[int]]:
    """The arguments of floats that ``function`` only reads, and all that it writes."""
    stored = written(function)
    outputs = {k for k, arg in enumerate(function.args) if arg in stored}
    return {k for k, arg in enumerate(function.args) if holds_floats(arg)} - outputs, outputs


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


def _mark(pairs: Iterable[tuple[Value, Value]], found: Activity) -> None:
    found.values.update(to for source, to in pairs if source in found.values and is_float(to))


def _op(op: Op, found: Activity) -> None:
    values, arrays = found.values, found.arrays
    match op.name:
        case "memref.load":
            if memory(op)[0] in arrays and is_float(op.result):
                values.add(op.result)
        case "memref.store" | "memref.atomic_rmw" | "memref.atomic_cas":
            memref, _, given = memory(op)
            if given[-1] in values:
                arrays.add(memref)
            if op.name == "memref.atomic_rmw" and memref in arrays and is_float(op.result):
                values.add(op.result)
        case "scf.for":
            for carried, init, _, result in For(op).rows:
                _mark([(init, carried), (init, result)], found)
        case "scf.while":
            _mark(zip(op.operands, While(op).before.args, strict=True), found)
        case "scf.parallel":
            _mark(zip(Parallel(op).inits, op.results, strict=True), found)
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
            _mark(zip(given, For(parent).carried, strict=True), found)
            _mark(zip(given, parent.results, strict=True), found)
        case "scf.while" if block is While(parent).before:
            _mark(zip(While(parent).handed, While(parent).after.args, strict=True), found)
            _mark(zip(While(parent).handed, parent.results, strict=True), found)
        case "scf.while":
            _mark(zip(given, While(parent).before.args, strict=True), found)
        case _:
            _mark(zip(given, parent.results, strict=True), found)
