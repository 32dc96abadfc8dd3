"""SLEEF's hyperbolic functions over all of their range.

Its ``asinh`` and ``acosh`` overflow where the square of the argument does, its ``sinh`` and
``cosh`` where the exponential does, before the result does. There these functions are taken of the
root, or the half, of the argument; what the identities leave out is far below a unit in the last
place.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.codegen.emit import Emitter
from weft.ir.types import ScalarType, f32

# Function -> (where the argument is reduced, for float32 and float64)
LIMITS = {
    "asinh": (2.0**60, 2.0**500), "acosh": (2.0**60, 2.0**500),
    "sinh": (80.0, 700.0), "cosh": (80.0, 700.0),
}  # fmt: skip


def reduced(e: Emitter, function: str, t: ScalarType, x: str, call: Callable[[str], str]) -> str:
    """``function`` of ``x``, by ``call`` on an argument that is in the range of SLEEF's function.

    Source: asinh(x) = 2 asinh(sqrt(x)) - log(2) and sinh(x) = 2 sinh(x / 2)^2 for large x, but for
    terms of 1 / x and exp(-x).
    """
    ty, suffix = e.type(t), e.suffix(t)
    limit = LIMITS[function][0 if t is f32 else 1]
    size = e.intrinsic(f"llvm.fabs.{suffix}", ty, (ty, x))
    large = e.inst(f"fcmp ogt {ty} {size}, {e.literal(limit, t)}")
    condition = "i1" if e.lanes == 1 else f"<{e.lanes} x i1>"

    def select(yes: str, no: str) -> str:
        return e.inst(f"select {condition} {large}, {ty} {yes}, {ty} {no}")

    inverse = function in ("asinh", "acosh")
    if inverse:
        less = e.intrinsic(f"llvm.sqrt.{suffix}", ty, (ty, size))
    else:
        less = e.inst(f"fmul {ty} {size}, {e.literal(0.5, t)}")
    # A negative argument of acosh is no number, however large.
    part = call(select(less, x)) if function != "acosh" else call(_signed(e, t, select(less, x), x))
    twice = e.inst(f"fadd {ty} {part}, {part}")
    if inverse:
        whole = e.inst(f"fsub {ty} {twice}, {e.literal(math.log(2.0), t)}")
    else:
        whole = e.inst(f"fmul {ty} {twice}, {part}")
    odd = function in ("asinh", "sinh")
    return select(_signed(e, t, whole, x) if odd else whole, part)


def _signed(e: Emitter, t: ScalarType, size: str, sign: str) -> str:
    ty = e.type(t)
    return e.intrinsic(f"llvm.copysign.{e.suffix(t)}", ty, (ty, size), (ty, sign))
