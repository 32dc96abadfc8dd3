"""Common subexpressions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.views import memory
from weft.ir.writes import written
from weft.passes.constants import identity
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
        super().__init__(self._visit, around=self._around)
        self.known: dict[Hashable, Value] = {}
        # The keys that the innermost region added, which its end takes back.
        self.added: list[Hashable] = []
        self.never_written = _never_written(function)

    def is_constant_memory(self, memref: Value) -> bool:
        """True for a (new) argument that is never written."""
        return any(self.lookup(arg) is memref for arg in self.never_written)

    def _visit(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if not OPS[op.name].pure and (
            op.name != "memref.load" or not self.is_constant_memory(memory(op)[0])
        ):
            return None
        number = identity(op, op.operands)
        found = self.known.get(number)
        if found is not None:
            return (found,)
        self.known[number] = op.results[0]
        self.added.append(number)
        return None

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value]:
        copy = self.copy(op)
        outer = self.added
        for old, new in zip(op.regions, copy.regions, strict=True):
            self.added = []
            self.region(old, new)
            for number in self.added:
                del self.known[number]
        self.added = outer
        return self.append(copy).results


def _never_written(function: Function) -> list[Value]:
    """The arguments that nothing in the function writes, under whatever name."""
    targets = written(function)
    noalias = bool(function.attrs.get("noalias"))
    return [
        arg for arg in function.args if not any(may_alias(arg, other, noalias) for other in targets)
    ]
