"""Is an access always in range? Proven from loop bounds, or with isl from conditions as well. Is
a subscript negative in every iteration? Python counts it from the end, a loop does not: memory in
front of an array would be read or written."""

from __future__ import annotations

from collections.abc import Callable

from weft.errors import KernelIndexError
from weft.index.access import Access, Extraction, accesses
from weft.index.budget import Budget
from weft.index.disjoint import inside
from weft.index.expression import Dim, Poly, atom, extreme, number
from weft.index.relation import Text
from weft.ir.core import Function, Op, Value


def in_range(access: Access, subscript: Poly | None, extent: Poly | None, *, isl: bool) -> bool:
    """Proves ``0 <= subscript < extent`` wherever ``access`` is carried out.

    ``isl=False`` looks at the ranges of loop indices only, and costs microseconds.
    """
    if subscript is None or extent is None:
        return False
    if inside(subscript, extent, access.ranges()):
        return True
    return isl and _isl_in_range(access, subscript, extent)


def _isl_in_range(access: Access, subscript: Poly, extent: Poly) -> bool:
    text = Text()
    indices = {loop.iv: text.fresh(loop.iv.name or "i") for loop in access.loops}
    constraints = text.domain(access, indices)
    value, end = text.affine(subscript, indices), text.affine(extent, indices)
    if value is None or end is None:
        return False
    constraints.append(f"({value} < 0 or {value} >= {end})")
    return Budget().proves_empty(text.finish(f"[{', '.join(indices.values())}]", constraints))


def always_in_range(
    access: Access, change: Callable[[Value | Dim], Poly | None], *, isl: bool = True
) -> tuple[bool, ...]:  # fmt: skip
    """For each dimension of ``access``: is the subscript proven to be within the array's extent?
    ``change``: what symbols in ``access`` were replaced by."""
    return tuple(
        in_range(access, poly, _extent(access, axis).substitute(change), isl=isl)
        for axis, poly in enumerate(access.subscripts)
    )


def _extent(access: Access, axis: int) -> Poly:
    shape = access.memref.memref.shape
    return atom(Dim(access.memref, axis)) if shape is None else number(shape[axis])


def needless_checks(function: Function, *, isl: bool = True) -> set[Op]:
    """The ``weft.bounds`` operations that are proven to hold."""
    return {
        op
        for op, access in Extraction(function).bounds
        if in_range(access, access.subscripts[0], access.subscripts[1], isl=isl)
    }


def check_negative(function: Function) -> None:
    """Raises ``KernelIndexError`` for an access that no condition guards, in no loop without
    iterations, and whose subscript is below 0 in all iterations, or in one that there is."""
    for access in accesses(function):
        for axis in range(len(access.subscripts) if not access.guards else 0):
            if _most(access, access.subscripts[axis]) < 0 and not _never(access):
                name = access.memref.name or "an array"
                raise KernelIndexError(
                    f"subscript {axis} of `{name}` is negative in every iteration: only a literal "
                    "is counted from the end", access.op.span,
                    help=f"write {name}.shape[{axis}] in front of it",
                )  # fmt: skip
            if (least := _least(access, access.subscripts[axis])) < 0 and not _never(access):
                name = access.memref.name or "an array"
                raise KernelIndexError(
                    f"subscript {axis} of `{name}` is {least} in one iteration: only a literal is "
                    "counted from the end", access.op.span,
                    help=f"count from the end by `% {name}.shape[{axis}]`, or have it read where "
                    "it is in range alone: begin the loop later, or write `if`, or `a if c else b`",
                )  # fmt: skip


def _least(access: Access, expression: Poly | None) -> int:
    """What ``expression`` is at least, in an iteration that there is; 0 where that is not known.
    Loops whose bounds are of no other index go over a box: if they run, they meet its corner."""
    indices = {loop.iv for loop in access.loops}
    ends = [bound for loop in access.loops for bound in (loop.lower, loop.upper)]
    if any(end is None or indices & {*end.leaves()} for end in ends):
        return 0
    for loop in access.loops:
        factor = expression.slope(loop.iv) if expression is not None else None
        if factor is None or expression is None:
            return 0
        at = loop.lower
        if factor < 0:
            one = loop.step is not None and loop.step.constant == 1
            at = loop.upper - number(1) if one and loop.upper is not None else None
        if factor and (at is None or at.constant is None):
            return 0
        if factor and at is not None:
            expression += (at - atom(loop.iv)).scaled(factor)
    return (expression.constant if expression is not None else None) or 0


def _never(access: Access) -> bool:
    """Whether a loop around it has no iterations, for all that is known of its bounds."""
    return any(
        loop.lower is not None and loop.upper is not None
        and _most(access, loop.upper - loop.lower) <= 0
        for loop in access.loops
    )  # fmt: skip


def _most(access: Access, expression: Poly | None) -> float:
    """A bound of an expression, infinite where none is known."""
    if expression is None:
        return float("inf")
    ranges = [(loop.iv, loop.lower, loop.upper) for loop in reversed(access.loops)]
    most = extreme(expression, ranges, upwards=True)
    number = None if most is None else most.constant
    return float("inf") if number is None else number
