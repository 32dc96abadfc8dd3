"""Store-to-load forwarding, and loads of what was loaded before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.builder import replaced
from weft.ir.core import Block, Function, Op, Value
from weft.ir.views import memory, written_by
from weft.passes.memory import may_alias, subscripts_differ, writes


def forward_stores(function: Function) -> Function:
    """Replaces loads of elements whose value is known from a store or load before.

    Precondition: a verified function, best after simplify and cse (subscripts are the same if they
    are the same SSA values).
    Holds for local arrays and arguments. What is known ends with a write that may hit the element:
    a write to the same memref unless a subscript provably differs, or to another argument unless
    the function's ``noalias`` attribute says that arguments do not overlap. What is known before
    a loop holds inside it unless the loop writes it; what is learnt in a region ends with it.
    Non-goals: turning local arrays into carried values (LLVM does); removing stores (dce removes
    arrays that are only stored to).
    Gives ``function`` itself where no value is known.
    """
    return replaced(function, _Memory(function).forwarded())


Elements = dict[tuple[Value, ...], Value]  # subscripts -> the element's value


class _Memory:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.known: dict[Value, Elements] = {}
        self.same: dict[Value, Value] = {}
        self.noalias = bool(function.attrs.get("noalias"))
        self.writes = writes(function)

    def forwarded(self) -> dict[Value, Value]:
        """The results of loads of elements whose value is known, with that value."""
        self._block(self.function.body)
        return self.same

    def forget(self, memrefs: Iterable[Value]) -> None:
        """Anything may have been written to ``memrefs``."""
        for memref in memrefs:
            for other in list(self.known):
                if may_alias(memref, other, self.noalias):
                    del self.known[other]

    def forget_element(self, memref: Value, subscripts: tuple[Value, ...]) -> None:
        """Something may have been written to one element."""
        for other in list(self.known):
            if other is memref:
                self.known[other] = {
                    s: v for s, v in self.known[other].items() if subscripts_differ(s, subscripts)
                }
            elif may_alias(memref, other, self.noalias):
                del self.known[other]

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if op.regions:
                self._regions(op)
            elif op.name == "memref.load" or written_by(op) is not None:
                self._access(op)

    def _now(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(self.same.get(v, v) for v in values)

    def _access(self, op: Op) -> None:
        memref, subscripts, values = memory(op)
        place = self._now(subscripts)
        if op.name == "memref.load":
            elements = self.known.setdefault(memref, {})
            found = elements.get(place)
            if found is not None:
                self.same[op.results[0]] = found
            else:
                elements[place] = op.results[0]
            return
        self.forget_element(memref, place)
        if op.name == "memref.store":
            (value,) = self._now(values)
            self.known.setdefault(memref, {})[place] = value

    def _regions(self, op: Op) -> None:
        changed = self.writes[op]
        if op.name != "scf.if":
            # Earlier iterations have written before a later one reads.
            self.forget(changed)
        before = self.known
        for region in op.regions:
            self.known = {memref: dict(elements) for memref, elements in before.items()}
            self._block(region)
        self.known = before
        self.forget(changed)
