"""Gradients in the dtype of their arguments, where that rounds what would be rounded anyway.

A gradient of f16 or bf16 is in f32 while it is accumulated. Where steps only load it, or only store
to it, it may be in its argument's dtype from the start: nobody has to convert it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType
from weft.ir.views import accessed_by, memory
from weft.passes.cse import cse
from weft.passes.lower_updates import lower_updates
from weft.passes.merge_updates import merge_updates
from weft.passes.relax_atomics import relax_atomics


def narrow(
    steps: Sequence[Function], elements: Mapping[str, ScalarType]
) -> tuple[list[Function], frozenset[str]]:
    """``steps`` with those arguments in the types ``elements`` that allow it, and which these are.
    What several loops of a step add to an element is first brought to the last of them: memory of
    twice the size takes longer than computing it again."""
    steps = [_gathered(step, elements) for step in steps]
    kinds = {name: set[str]().union(*(_kinds(step, name) for step in steps)) for name in elements}
    names = frozenset(n for n in elements if kinds[n] in ({"memref.load"}, {"memref.store"}))
    return [_narrowed(step, {n: elements[n] for n in names}) for step in steps], names


def _gathered(step: Function, names: Collection[str]) -> Function:
    """``step`` with one store in place of several accesses, if some of ``names`` then has that."""
    several = [name for name in names if len(_kinds(step, name)) > 1]
    if not several:
        return step
    made = merge_updates(cse(lower_updates(relax_atomics(step))), expensive=True)
    return made if any(_kinds(made, name) == {"memref.store"} for name in several) else step


def _kinds(step: Function, name: str) -> set[str]:
    """The operations that access the argument ``name``."""
    return {op.name for op in walk(step.body) if (m := accessed_by(op)) and m.name == name}


def _narrowed(step: Function, elements: Mapping[str, ScalarType]) -> Function:
    """``step`` with its arguments of these names in these types."""
    types = [
        MemRefType(elements[a.name], a.memref.rank) if a.name in elements else a.type
        for a in step.args
    ]
    new = Function(step.name, types, [a.name for a in step.args], dict(step.attrs), step.span)

    def visit(op: Op, r: Rewriter) -> list[Value] | None:
        memref = accessed_by(op)
        if memref not in changed:
            return None
        _, subscripts, values = memory(op)
        if values:
            r.store(r.op("arith.truncf", values[0], type=memref.memref.element), memref, subscripts)
            return []
        return [r.op("arith.extf", r.load(memref, subscripts), type=op.result.type)]

    changed = {a for a in new.args if a.name in elements}
    if not changed:
        return step
    return Rewriter(visit).into(step, new)
