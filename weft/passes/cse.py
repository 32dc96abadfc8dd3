"""Common subexpressions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.writes import written
from weft.passes.constants import key
from weft.passes.memory import may_alias


def cse(function: Function) -> Function:
    """Computes each pure expression once, where an equal one is in scope.

    Precondition: a verified function.
    An operation without effects is replaced by an earlier one with the same operands (in any order
    where the operation is commutative), attributes and type, in the same block or one around it. So
    are loads of arguments that nothing in the function can write.
    Non-goals: loads of what is written elsewhere (forward); moving operations (hoist); merging what
    the branches of an if have in common.
    """
    return _Scopes(function).function(function)


class _Scopes(Rewriter):
    def __init__(self, function: Function) -> None:
        super().__init__(_visit, around=_around)
        self.known: dict[Hashable, Value] = {}
        # The keys that the innermost region added, which its end takes back.
        self.added: list[Hashable] = []
        self.never_written = _never_written(function)

    def is_constant_memory(self, memref: Value) -> bool:
        """True for a (new) argument that is never written."""
        return any(self.lookup(arg) is memref for arg in self.never_written)


def _never_written(function: Function) -> list[Value]:
    """The arguments that nothing in the function writes, under whatever name."""
    targets = written(function)
    noalias = bool(function.attrs.get("noalias"))
    return [
        arg for arg in function.args if not any(may_alias(arg, other, noalias) for other in targets)
    ]


def _visit(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    assert isinstance(rewriter, _Scopes)
    row = OPS[op.name]
    if not row.pure and (
        op.name != "memref.load" or not rewriter.is_constant_memory(op.operands[0])
    ):
        return None
    operands = op.operands
    result = op.results[0]
    if not operands:
        identity: Hashable = key(op.attrs["value"], result.type)  # type: ignore[arg-type]
    else:
        if row.commutative and id(operands[0]) > id(operands[1]):
            operands = [operands[1], operands[0], *operands[2:]]
        # A type's name is as good as the type and hashes faster.
        attrs = tuple(op.attrs.values()) if op.attrs else ()
        identity = (op.name, result.type.name, *operands, *attrs)  # type: ignore[union-attr]
    found = rewriter.known.get(identity)
    if found is not None:
        return (found,)
    rewriter.known[identity] = result
    rewriter.added.append(identity)
    return None


def _around(op: Op, rewriter: Rewriter) -> Sequence[Value]:
    assert isinstance(rewriter, _Scopes)
    copy = rewriter.copy(op)
    outer = rewriter.added
    for old, new in zip(op.regions, copy.regions, strict=True):
        rewriter.added = []
        rewriter.region(old, new)
        for identity in rewriter.added:
            del rewriter.known[identity]
    rewriter.added = outer
    return rewriter.append(copy).results
