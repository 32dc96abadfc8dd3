"""Store-to-load forwarding, and loads of what was loaded before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value
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
    """
    return _Memory(function).function(function)


Elements = dict[tuple[Value, ...], Value]  # subscripts -> the element's value


class _Memory(Rewriter):
    def __init__(self, function: Function) -> None:
        super().__init__(self._visit, around=self._around)
        self.known: dict[Value, Elements] = {}
        self.noalias = bool(function.attrs.get("noalias"))
        self.writes = writes(function)

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

    def _visit(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op.name == "memref.load":
            memref, subscripts, _ = memory(op)
            elements = self.known.setdefault(memref, {})
            found = elements.get(tuple(subscripts))
            if found is not None:
                return (found,)
            elements[tuple(subscripts)] = op.results[0]
        elif written_by(op) is not None:
            memref, subscripts, values = memory(op)
            self.forget_element(memref, tuple(subscripts))
            if op.name == "memref.store":
                self.known.setdefault(memref, {})[tuple(subscripts)] = values[0]
        return None

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value]:
        copy = self.copy(op)
        changed = [self.lookup(memref) for memref in self.writes[op]]
        if op.name != "scf.if":
            # Earlier iterations have written before a later one reads.
            self.forget(changed)
        before = self.known
        for old, new in zip(op.regions, copy.regions, strict=True):
            self.known = {memref: dict(elements) for memref, elements in before.items()}
            self.region(old, new)
        self.known = before
        self.forget(changed)
        return self.append(copy).results
