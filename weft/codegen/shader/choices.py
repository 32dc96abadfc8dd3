"""Tables of constants as choices: shading languages let no table in a module be looked up by a
number of run time everywhere."""

from __future__ import annotations

from weft.codegen.shader.dialects import UnsupportedInShaderError
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.views import Number

MOST = 4096  # constants that comparisons choose among


def without_tables(function: Function) -> Function:
    """``function`` with a tree of choices for each table. Raises ``UnsupportedInShaderError``
    where one is large."""
    if not any(op.name == "arith.table" for op in walk(function.body)):
        return function
    return Rewriter(_visit).function(function)


def _visit(op: Op, rewriter: Rewriter) -> list[Value] | None:
    if op.name != "arith.table":
        return None
    values = op.attrs["values"]
    if len(values) > MOST:
        raise UnsupportedInShaderError(
            f"a table of {len(values)} constants: in shaders there are up to {MOST}", op.span,
            "pass it as a tensor",
        )  # fmt: skip
    at = rewriter.lookup(op.operand)
    last = rewriter.constant(len(values) - 1, at.scalar)
    place = rewriter.op("arith.minui", at, last)
    return [_chosen(rewriter, op.result, place, values, 0)]


def _chosen(
    rewriter: Rewriter, like: Value, place: Value, values: tuple[Number, ...], first: int
) -> Value:
    """The one of ``values``, which begin at ``first``, that is at ``place``."""
    if len(values) == 1:
        return rewriter.constant(values[0], like.scalar)
    half = len(values) // 2
    middle = rewriter.constant(first + half, place.scalar)
    before = rewriter.op("arith.cmpi", place, middle, predicate="slt")
    return rewriter.op(
        "arith.select", before,
        _chosen(rewriter, like, place, values[:half], first),
        _chosen(rewriter, like, place, values[half:], first + half),
    )  # fmt: skip
