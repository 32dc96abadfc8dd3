"""Sums over all rows of a state that are stored where they go, in place of being added to zeros.

Of a loop in chunks, each chunk's sums go to elements of their own, once each. What is left of the
turns adds up row by row: those elements are zero before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from weft.autodiff.dense import dense
from weft.index.access import accesses
from weft.index.expression import Dim, Poly, atom
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, defined, walk
from weft.ir.ops import OPS
from weft.ir.views import For, Parallel, memory

Pairs = tuple[tuple[Poly, Poly], ...]


def read_once(function: Function, row: int) -> dict[str, Pairs]:
    """The arguments of which each row, along this parallel index, reads each element once, if the
    expressions of each pair are equal."""
    (parallel,) = (op for op in function.body.ops if op.name == "scf.parallel")
    own, every = Parallel(parallel).indices[row], accesses(function)
    found: dict[str, Pairs] = {}
    for memref in {a.memref: None for a in every}:
        mine = [replace(a, loops=tuple(x for x in a.loops if x.iv is not own)) for a in every
                if a.memref is memref]  # fmt: skip
        whole = dense(mine, function.args) if len(mine) == 1 and not mine[0].writes else None
        if whole is not None:
            found[memref.name] = whole.equal
    return found


def renamed(pairs: Pairs, name: str, gradient: Value) -> Pairs:
    """``pairs``, of an argument that ``gradient`` is the gradient of."""

    def change(leaf: Value | Dim) -> Poly | None:
        if isinstance(leaf, Dim) and leaf.memref.name == name:
            return atom(Dim(gradient, leaf.axis))
        return None

    return tuple((a.substitute(change), b.substitute(change)) for a, b in pairs)


class Sums(Rewriter):
    """The sums of ``function``, in chunks of ``chunk`` turns. ``whole``: of each gradient, the
    additions of a chunk. ``rest``: the loop through rows of the turns that are left, their loop,
    and the addition there."""

    def __init__(self, function: Function, chunk: int) -> None:
        super().__init__()
        self.old, self.stores = function, set[Op]()
        self.before: dict[Op, list[tuple[Op, Op]]] = {}
        (parallel,) = (op for op in function.body.ops if op.name == "scf.parallel")
        every = [memory(op)[0].name for op in walk(parallel.body) if op.name == "memref.atomic_rmw"]
        whole: dict[str, list[Op]] = {}
        self.rest: dict[str, list[tuple[Op, Op, Op]]] = {}
        for top in parallel.body.ops:
            for op in top.body.ops if top.name == "scf.for" else ():
                if "turns" in top.attrs and op.name == "memref.atomic_rmw":
                    whole.setdefault(memory(op)[0].name, []).append(op)
                for o in op.body.ops if op.name == "scf.for" and "rare" in op.attrs else ():
                    if o.name == "memref.atomic_rmw" and _known(o, op, top):
                        self.rest.setdefault(memory(o)[0].name, []).append((top, op, o))
        self.whole = {
            name: ops for name, ops in whole.items() if len(ops) == chunk
            and len(self.rest.get(name, ())) == 1 and every.count(name) == chunk + 1
        }  # fmt: skip

    def stored(self, names: Collection[str]) -> Function:
        """The function that stores those of ``names``."""
        for name in names:
            self.stores |= {*self.whole[name]}
            ((top, loop, op),) = self.rest[name]
            self.before.setdefault(top, []).append((loop, op))
        return self.function(self.old)

    def rewrite(self, op: Op) -> None:
        if op in self.stores:
            memref, subscripts, (value,) = memory(op)
            place = [*map(self.lookup, subscripts)]
            self.store(self.lookup(value), self.lookup(memref), place)
            return
        for loop, addition in self.before.get(op, ()):
            lower, upper, step = map(self.lookup, For(loop).bounds)
            made = self.for_(lower, upper, step, unroll=1, rare=True)
            with self.at(made.body) as block:
                memref, subscripts, (value,) = memory(addition)
                known = {For(loop).index: block.args[0]}
                place = [self.in_front(v, defined([op.body]), known) for v in subscripts]
                self.store(self.constant(0.0, value.scalar), self.lookup(memref), place)
                self.do("scf.yield")
        super().rewrite(op)


def _known(op: Op, loop: Op, around: Op) -> bool:
    """Whether the turn of ``loop`` is all that the place of ``op`` depends on, of what is known
    ``around``."""
    inside = defined([around.body])
    waiting = [*memory(op)[1]]
    if not inside.isdisjoint(For(loop).bounds):
        return False
    while waiting:
        value = waiting.pop()
        if value in inside and value is not For(loop).index:
            if value.op is None or not OPS[value.op.name].pure:
                return False
            waiting += value.op.operands
    return True
