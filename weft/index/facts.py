"""What conditions, loops and assertions say of integers where an operation stands.

Integers of 32 bits and more are taken not to wrap, as index sets take them.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.core import Block, Function, Op, Value, parents
from weft.ir.types import ScalarType
from weft.ir.views import Assert, If, Select, While, constant_of, loop_of
from weft.values import frozen

_NEGATED = {"eq": "ne", "ne": "eq", "slt": "sge", "sge": "slt", "sle": "sgt", "sgt": "sle"}
_SWAPPED = {"sgt": "slt", "sge": "sle"}


@frozen
class Fact:
    """``left`` and ``right``, integers, compare so: "eq", "ne", "slt" or "sle"."""

    kind: str
    left: Value
    right: Value


class Points:
    """The points of one function. ``around``: the operation around each operation and block."""

    def __init__(self, function: Function) -> None:
        self._body = function.body
        self.around = parents(function.body)

    def facts(self, op: Op) -> Iterator[Fact]:
        """What loops, conditions and assertions around ``op`` say."""
        inside: Op | Block = op
        while True:
            around = self.around.get(inside)
            block = self._body if around is None else _holding(around, inside)
            for before in block.ops:
                if before is inside:
                    break
                if before.name == "weft.assert":
                    yield from says(Assert(before).condition, True)
            if around is None:
                return
            match around.name:
                case "scf.if":
                    yield from says(If(around).condition, block is If(around).then)
                case "scf.while" if block is While(around).after:
                    yield from says(While(around).condition, True)
                case "scf.for" | "scf.parallel":
                    loop = loop_of(around)
                    for iv, (lower, upper, step) in zip(loop.indices, loop.axes, strict=True):
                        if (constant_of(step) or 0) > 0:
                            yield Fact("slt", iv, _plain_end(lower, upper))
                            yield Fact("sle", lower, iv)
                case _:
                    pass
            inside = around

    def maker(self, value: Value) -> Op | None:
        """The operation whose result ``value`` is, or of whose region an argument."""
        owner = value.owner
        return self.around.get(owner) if isinstance(owner, Block) else owner

    def split(self, value: Value) -> tuple[Value, int]:
        """``value`` as another one and a number added to it. What a `while` loop hands to its body,
        and on, is what its condition was computed with."""
        offset = 0
        while True:
            base, more = _shifted(value)
            handed = self._handed(base)
            offset += more
            if handed is None and base is value:
                return value, offset
            value = base if handed is None else handed

    def _handed(self, value: Value) -> Value | None:
        """What ``value``, in the body of a `while` loop or behind it, is in its condition."""
        loop = self.maker(value)
        if loop is None or loop.name != "scf.while":
            return None
        view = While(loop)
        values = loop.results if value.op is loop else view.after.args
        values = values if value in values else []
        return view.handed[values.index(value)] if values else None


def is_wide(value: Value) -> bool:
    """Integers of fewer bits do wrap in practice."""
    return isinstance(value.type, ScalarType) and value.type.is_integer and value.type.bits >= 32


def _shifted(value: Value) -> tuple[Value, int]:
    """``value`` as another one and a number added to it, where one operation says so."""
    op = value.op
    if op is None or not is_wide(value):
        return value, 0
    if op.name in ("arith.index_cast", "arith.extsi"):
        return op.operand, 0
    number = constant_of(op.right) if op.name in ("arith.addi", "arith.subi") else None
    if number is None:
        return value, 0
    return op.left, int(number) if op.name == "arith.addi" else -int(number)


def _plain_end(lower: Value, upper: Value) -> Value:
    """An end of ``max(n, 0)`` is as good as ``n`` for an index that starts at 0."""
    op, least = upper.op, constant_of(lower)
    if op is None or op.name != "arith.maxsi" or least is None:
        return upper
    for value, other in ((op.left, op.right), (op.right, op.left)):
        number = constant_of(other)
        if number is not None and number <= least:
            return value
    return upper


def _holding(op: Op, inside: Op | Block) -> Block:
    """The region of ``op`` that ``inside`` is in."""
    return next(r for r in op.regions if r is inside or any(o is inside for o in r.ops))


def sides(fact: Fact) -> Iterator[tuple[str, Value, Value]]:
    """How one side of ``fact`` compares to the other: "sgt", "sge", "eq" or "ne"."""
    match fact.kind:
        case "eq" | "ne":
            yield fact.kind, fact.left, fact.right
            yield fact.kind, fact.right, fact.left
        case "slt":
            yield "sgt", fact.right, fact.left
        case _:
            yield "sge", fact.right, fact.left


def says(condition: Value, holds: bool) -> Iterator[Fact]:
    """What is known where ``condition`` holds, or where it does not."""
    op = condition.op
    if op is None:
        return
    match op.name:
        case "arith.cmpi":
            kind = op.attrs["predicate"]
            if kind not in _NEGATED:
                return
            kind = kind if holds else _NEGATED[kind]
            left, right = op.operands
            if kind in _SWAPPED:
                kind, left, right = _SWAPPED[kind], right, left
            yield Fact(kind, left, right)
        case "arith.andi" | "arith.ori" if holds == (op.name == "arith.andi"):
            for part in op.operands:
                yield from says(part, holds)
        case "arith.xori" if constant_of(op.right):
            yield from says(op.left, not holds)
        case "arith.select" | "scf.if":
            test = If(op).condition if op.name == "scf.if" else Select(op).condition
            yes, no = (
                If(op).arms(op.results.index(condition)) if op.name == "scf.if"
                else (Select(op).yes, Select(op).no)
            )  # fmt: skip
            if constant_of(no) is not None and bool(constant_of(no)) != holds:
                yield from says(test, True)
                yield from says(yes, holds)
            elif constant_of(yes) is not None and bool(constant_of(yes)) != holds:
                yield from says(test, False)
                yield from says(no, holds)
        case _:
            return
