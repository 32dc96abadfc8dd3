"""Subscripts that are negative in every iteration: Python counts them from the end, a loop does
not. Memory in front of an array would be read or written."""

from __future__ import annotations

from weft.errors import KernelIndexError
from weft.index.access import Access, accesses
from weft.index.expression import extreme
from weft.ir.core import Function


def check_negative(function: Function) -> None:
    """Raises ``KernelIndexError`` for an access that no condition guards and whose subscript is
    below 0 whatever the iteration is."""
    for access in accesses(function):
        for axis in range(len(access.subscripts) if not access.guards else 0):
            if _most(access, axis) < 0:
                name = access.memref.name or "an array"
                raise KernelIndexError(
                    f"subscript {axis} of `{name}` is negative in every iteration: only a literal "
                    "is counted from the end", access.op.span,
                    help=f"write {name}.shape[{axis}] in front of it",
                )  # fmt: skip


def _most(access: Access, axis: int) -> float:
    """A bound of a subscript, infinite where none is known."""
    subscript = access.subscripts[axis]
    if subscript is None:
        return float("inf")
    ranges = [(loop.iv, loop.lower, loop.upper) for loop in reversed(access.loops)]
    most = extreme(subscript, ranges, upwards=True)
    number = None if most is None else most.constant
    return float("inf") if number is None else number
