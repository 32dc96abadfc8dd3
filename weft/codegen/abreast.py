"""Several neighbouring iterations of a parallel loop in one thread of a GPU, in step."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable

from weft.codegen.device import Cuda
from weft.codegen.emit import Emitter, llvm_type
from weft.codegen.llvm import emit_op
from weft.codegen.neighbours import quotients, whole_vectors
from weft.ir.core import Op, Value
from weft.ir.views import memory
from weft.schedule.grid import WARP
from weft.schedule.language import Vectorize


class Abreast:
    """The neighbours that a thread takes along ``iv``: ``count`` of them, ``side`` and ``side``
    next to each other, the first of these ``apart`` from each other.

    Where subscripts are divisible, operations of the body say by the attribute ``even`` that their
    result is "shared" by the neighbours that are next to each other, or that these access "whole"
    vectors.
    """

    def __init__(
        self, op: Op, axis: int, how: Vectorize, cuda: Cuda, limits: dict[Value, int]
    ) -> None:
        """``op``: the parallel loop. ``limits``: of each memref whose rows are whole vectors, their
        bytes."""
        self.body, self.axis = op.body, axis
        self.iv = self.body.args[axis]
        self.count, self.cuda, self.limits = how.copies, cuda, limits
        self.even = how.divisible
        self.side = how.width
        self.apart = self.side * how.stride
        found = quotients(self.body, self.iv)
        self.quotients = {q for q in found if "divisor" not in q.attrs}

    @property
    def scattered(self) -> bool:
        """Whether a warp's threads lie between the neighbours of a thread."""
        return self.apart >= WARP

    def distance(self, k: int) -> int:
        """How far neighbour ``k`` is from the first."""
        return k // self.side * self.apart + k % self.side

    @property
    def length(self) -> int:
        """From the first of the neighbours to behind the last."""
        return self.distance(self.count - 1) + 1

    def emit(
        self, e: Emitter, first: str, ty: str, bind: Callable[[int, str], None]
    ) -> list[list[str]]:
        """The neighbours' iterations in step, so that their loads and stores lie side by side: LLVM
        makes them one. (Iterations of a parallel loop do not depend on each other.) Gives what each
        of them reduces."""
        names = e.names
        own: list[dict[Value, str]] = [{} for _ in range(self.count)]
        for k, local in enumerate(own):
            e.names = ChainMap(local, names)  # type: ignore[assignment]
            bind(self.axis, e.inst(f"add nsw {ty} {first}, {self.distance(k)}") if k else first)
        aligned = [self._aligned(k) for k in range(self.count)]
        for inner in self.body.ops[:-1]:
            for k, local in enumerate(own):
                e.names = ChainMap(local, names)  # type: ignore[assignment]
                self.cuda.aligned = aligned[k]
                self.cuda.place = k % self.side if inner.attrs.get("even") else 0
                if self.cuda.place and inner.results and inner.attrs["even"] == "shared":
                    local[inner.result] = own[k - self.cuda.place][inner.result]
                elif k and inner in self.quotients:
                    local[inner.result] = self._next_quotient(e, inner, own[0], self.distance(k))
                else:
                    emit_op(e, inner)
        self.cuda.aligned, self.cuda.place = {}, 0
        parts = []
        for local in own:
            e.names = ChainMap(local, names)  # type: ignore[assignment]
            parts.append([e.name(v) for v in self.body.terminator.operands])
        e.names = names
        return parts

    def _aligned(self, k: int) -> dict[Op, int]:
        """Loads and stores of neighbour ``k`` at multiples of more bytes than an element has."""
        if not self.even:
            return whole_vectors(self.body, self.iv, k, self.limits)
        found: dict[Op, int] = {}
        for op in self.body.ops:
            if op.attrs.get("even") == "whole":
                memref, _, _ = memory(op)
                behind = k % self.side * memref.memref.element.bytes
                limit = self.limits[memref]
                found[op] = min(behind & -behind, limit) if behind else limit
        return found

    def _next_quotient(self, e: Emitter, op: Op, first: dict[Value, str], k: int) -> str:
        """(a + k) // b from a // b, for 0 < k < b: one more where the remainder gets to b."""
        ty = llvm_type(op.result.type)
        quotient, divisor = first[op.result], e.name(op.right)
        product = e.inst(f"mul {ty} {quotient}, {divisor}")
        rest = e.inst(f"sub {ty} {first[op.left]}, {product}")
        over = e.inst(f"icmp sge {ty} {e.inst(f'add {ty} {rest}, {k}')}, {divisor}")
        return e.inst(f"add {ty} {quotient}, {e.inst(f'zext i1 {over} to {ty}')}")
