"""Constants: canonical values, bit-exact keys, operations carried out at compile time; and the
numbers that equal values share (value numbering)."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence

from weft.ir.core import Op, Value
from weft.ir.interp import evaluate
from weft.ir.ops import DIVISIONS, OPS
from weft.ir.scalar import SCALAR_RULES, literal, to_float
from weft.ir.types import ScalarType
from weft.ir.views import Number

# The operations that trap on some machines for some operands.


def canonical(value: Number, type: ScalarType) -> Number:
    """``value`` as constants of ``type`` are written: floats rounded, iN signed, i1 a bool."""
    return _python(literal(value, type), type)


def key(value: Number, type: ScalarType) -> tuple[str, bytes | int]:
    """Equal for the same bits only: tells -0.0 from 0.0, and finds NaN equal to itself."""
    if type.is_float:
        return type.name, struct.pack("<d", value)
    return type.name, int(value)


def identity(op: Op, operands: list[Value]) -> Hashable:
    """What is equal for two operations, pure or loads, that give the same bits. ``operands``: what
    stands for those of ``op``."""
    if not operands:
        return key(op.attrs["value"], op.results[0].type)  # type: ignore[arg-type]
    if OPS[op.name].commutative and id(operands[0]) > id(operands[1]):
        operands = [operands[1], operands[0], *operands[2:]]
    type = op.results[0].type
    if op.name == "arith.table":
        values = tuple(key(v, type) for v in op.attrs["values"])  # type: ignore[arg-type]
        return op.name, *operands, values
    # A type's name is as good as the type and hashes faster.
    return op.name, type.name, *operands, *op.attrs.values()  # type: ignore[union-attr]


def fold(op: Op, values: Sequence[Number]) -> Number | None:
    """What the pure operation ``op`` gives for constant operands; None where it must stay.

    The interpreter's rules are used, so f32 is folded in f32. A result that is NaN is left to the
    machine, as are divisions by zero, and storage types.
    """
    type = op.results[0].type
    if op.name not in SCALAR_RULES or (op.name in DIVISIONS and values[1] == 0):
        return None
    if not isinstance(type, ScalarType) or type.is_storage:
        return None
    operands = [
        literal(number, value.type) for number, value in zip(values, op.operands, strict=True)
    ]
    result = _python(evaluate(op, operands), type)
    return None if result != result else result


def _python(value: object, type: ScalarType) -> Number:
    """A value of the interpreter as the Python number that constants hold."""
    if type.is_float:
        return float(to_float(value, type))
    return bool(value) if type.bits == 1 else int(value)  # type: ignore[call-overload]
