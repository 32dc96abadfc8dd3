"""Computed rows that are needed behind where Python would compute them.

A row is computed as its elements are needed. That is the same unless something is stored between
into what it reads: that is looked for in the loop's IR when it is complete, and refused.
"""

from __future__ import annotations

from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import rows
from weft.frontend.context import Lowering, RowUse
from weft.frontend.kinds import Items, Operand, Row, Scalar, Static, Tup
from weft.ir.core import Block, Function, Op, Value
from weft.ir.views import For, Number, While, accessed_by, constant_of, memory, written_by
from weft.values import frozen


def used(cx: Lowering, x: Operand, name: str, span: Span) -> None:
    """Notes that computed rows in ``x`` are needed here. ``name``: what a message calls ``x``."""
    if isinstance(x, Tup):
        for item in x.items:
            used(cx, item, name, span)
    elif isinstance(x, Row) and x.since is not None and x.leaves:
        cx.row_uses.append(RowUse(x.since, cx.builder.here(), _memrefs(x), name, span))


def items(cx: Lowering, row: Row, span: Span) -> Items:
    """The items of ``row``, for a loop that goes over them. Each is computed in a turn of it."""
    one = len(row.extents) == 1

    def item(k: Scalar | Static) -> Operand:
        block = cx.builder.block
        first = len(block.ops)
        found = row.at([k]) if one else rows.item(cx, row, k)
        if row.since is not None and row.leaves:
            loads = [op for op in block.ops[first:] if op.name == "memref.load"]
            use = RowUse(row.since, cx.builder.here(), _memrefs(row), written(span), span, loads)
            cx.row_uses.append(use)
        return found

    return Items(row.extents[0], item)


def written(span: Span) -> str:
    """What a message calls a row that is written at ``span``."""
    same = span.line == span.end_line
    return f"`{span.text[span.column : span.end_column]}`" if same else "this row"


def _memrefs(row: Row) -> set[Value]:
    return {leaf.tensor.memref for leaf, _ in row.leaves}


def check(cx: Lowering, function: Function) -> None:
    """Refuses a loop that stores into what a computed row reads between where Python computes the
    row and where it is needed."""
    order = _Order(function)
    for use in cx.row_uses:
        begin, end = order.place(*use.since), order.place(*use.here)
        if begin is None or end is None:  # lowered for its kind alone
            continue
        for store, place in order.stores:
            between = begin.number < place.number < end.number
            turns = [loop for loop in place.loops if loop in end.loops and loop not in begin.loops]
            if not between and not turns:
                continue
            memref = written_by(store)
            assert memref is not None
            if memref not in use.memrefs:
                if not isinstance(memref.owner, Op):  # a tensor, which may be the same memory
                    rows.note_shared(cx, False)
                continue
            if not between and len(turns) == 1 and _passed(store, memref, use, turns[0]):
                continue
            raise KernelTypeError(
                f"{use.name} is computed of `{memref.name or 'an array'}`, which is stored into "
                "before it is used", use.span,
                help="a row is computed where it is used: use it before, or store it in a tensor "
                "of the host part first",
            )  # fmt: skip
    if cx.shared_rows:
        function.attrs["rows"] = cx.shared_rows


def _passed(store: Op, memref: Value, use: RowUse, loop: Op) -> bool:
    """Whether no turn of ``loop`` reads what ``store`` has written in a turn before: it is to where
    the row was read already."""
    loads = [op for op in use.loads if accessed_by(op) is memref]
    counter = _counter(loop)
    if counter is None or not loads:
        return False
    index, first = counter
    where = [rows.offset(b) for b in memory(store)[1]]

    def behind(load: Op) -> bool:
        for a, (base, more) in zip(memory(load)[1], where, strict=True):
            read, ahead = rows.offset(a)
            if read is index and base is index and more <= ahead:
                return True
            if read is index and base is None and first is not None and more <= first + ahead:
                return True
            if read is None and base is None and more != ahead:
                return True
        return False

    return all(map(behind, loads))


def _counter(loop: Op) -> tuple[Value, Number | None] | None:
    """What counts the turns of ``loop`` up by one, and the constant that it starts at, if it does;
    None where nothing does. A loop that may be left is one over what it carries."""
    if loop.name == "scf.for":
        lower, _, step = For(loop).bounds
        return (For(loop).index, constant_of(lower)) if constant_of(step) == 1 else None
    before, after = While(loop).before, While(loop).after
    for start, checked, given, value, more in zip(
        loop.operands, before.args, While(loop).handed, after.args, after.terminator.operands,
        strict=True,
    ):  # fmt: skip
        if given is checked and rows.offset(more) == (value, 1):
            return value, constant_of(start)
    return None


@frozen
class _Place:
    """A point of a function: how many operations begin before it, and the loops around it."""

    number: int
    loops: tuple[Op, ...]


class _Order:
    """Where each operation of a function stands."""

    def __init__(self, function: Function) -> None:
        self.after: dict[Any, _Place] = {}  # behind an operation, or at the start of a block
        self.stores: list[tuple[Op, _Place]] = []
        self.count = 0
        self._block(function.body, ())

    def _block(self, block: Block, loops: tuple[Op, ...]) -> None:
        self.after[block] = _Place(self.count, loops)
        for op in block.ops:
            self.count += 1
            if written_by(op) is not None:
                self.stores.append((op, _Place(self.count, loops)))
            inside = (*loops, op) if op.name in ("scf.for", "scf.while") else loops
            for region in op.regions:
                self._block(region, inside)
            self.count += 1
            self.after[op] = _Place(self.count, loops)

    def place(self, block: Block, op: Op | None) -> _Place | None:
        return self.after.get(block if op is None else op)
