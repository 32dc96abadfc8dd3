"""Common subexpressions."""

from __future__ import annotations

from collections.abc import Hashable

from weft.ir.builder import replaced
from weft.ir.core import Block, Function, Op, Value
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
    the branches of an if have in common. Gives ``function`` itself where nothing is equal.
    """
    return replaced(function, _Scopes(function).equal())


class _Scopes:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.known: dict[Hashable, Value] = {}
        self.same: dict[Value, Value] = {}
        self.never_written = {*_never_written(function)}

    def equal(self) -> dict[Value, Value]:
        """The results of operations that an equal one stands for, with its result."""
        self._block(self.function.body)
        return self.same

    def _block(self, block: Block) -> None:
        added: list[Hashable] = []  # which the block's end takes back
        for op in block.ops:
            for region in op.regions:
                self._block(region)
            if op.regions or not (OPS[op.name].pure or self._loads_what_stays(op)):
                continue
            number = identity(op, [self.same.get(v, v) for v in op.operands])
            found = self.known.get(number)
            if found is not None:
                self.same[op.results[0]] = found
            else:
                self.known[number] = op.results[0]
                added.append(number)
        for number in added:
            del self.known[number]

    def _loads_what_stays(self, op: Op) -> bool:
        return op.name == "memref.load" and memory(op)[0] in self.never_written


def _never_written(function: Function) -> list[Value]:
    """The arguments that nothing in the function writes, under whatever name."""
    targets = written(function)
    noalias = bool(function.attrs.get("noalias"))
    return [
        arg for arg in function.args if not any(may_alias(arg, other, noalias) for other in targets)
    ]
