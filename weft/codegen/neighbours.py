"""What neighbouring iterations of a parallel loop have in common. It only reads the IR."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.core import Block, Op, Value
from weft.ir.types import MemRefType


def quotients(body: Block, iv: Value) -> set[Op]:
    """Divisions ``a // b`` whose dividend grows by one with ``iv`` and whose divisor is a number
    that is not known before the call."""
    slopes: dict[Value, int | None] = {iv: 1}  # of what depends on iv; None: not a straight line
    found: set[Op] = set()
    for op in body.ops:
        known = [slopes.get(v, 0) for v in op.operands]
        if not any(v in slopes for v in op.operands):
            continue
        slope: int | None = None
        match op.name, known:
            case "arith.addi", [int(a), int(b)]:
                slope = a + b
            case "arith.subi", [int(a), int(b)]:
                slope = a - b
            case "arith.index_cast", [int(a)]:
                slope = a
            case "arith.floordivsi", [1, _] if op.operands[1] not in slopes:
                owner = op.operands[1].owner
                inside = isinstance(owner, Op) and owner in body.ops
                if not inside and not (isinstance(owner, Op) and owner.name == "arith.constant"):
                    found.add(op)
            case _:
                pass
        slopes.update(dict.fromkeys(op.results, slope))
    return found


def _distance(value: Value, iv: Value) -> int | None:
    """``value - iv`` where that is a number that can be read off."""
    if value is iv:
        return 0
    op = value.owner
    if not isinstance(op, Op) or op.name not in ("arith.addi", "arith.subi"):
        return None
    for a, b in ((0, 1), (1, 0)) if op.name == "arith.addi" else ((0, 1),):
        constant = op.operands[b].owner
        if op.operands[a] is iv and isinstance(constant, Op) and constant.name == "arith.constant":
            number = int(constant.attrs["value"])
            return number if op.name == "arith.addi" else -number
    return None


def whole_vectors(body: Block, iv: Value, k: int, limits: Mapping[Value, int]) -> dict[Op, int]:
    """Loads and stores of ``body`` that are at multiples of the bytes in ``limits`` (by memref) at
    iteration ``iv + k``, if rows begin at such multiples and ``iv`` counts whole vectors."""
    found = {}
    for op in body.ops:
        at = {"memref.load": 0, "memref.store": 1}.get(op.name)
        limit = limits.get(op.operands[at]) if at is not None else None
        if at is None or limit is None:
            continue
        type = op.operands[at].type
        assert isinstance(type, MemRefType)
        distance = _distance(op.operands[-1], iv) if type.rank else None
        if distance is not None and (distance + k) * type.element.bytes % limit == 0:
            found[op] = limit
    return found
