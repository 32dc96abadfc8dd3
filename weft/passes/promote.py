"""Scalar promotion: an element that a serial loop updates becomes a value that it carries."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, below, defined, walk
from weft.ir.ops import OPS
from weft.ir.views import For, accessed_by, memory, surely_less
from weft.passes.carry import Carrying, Element
from weft.passes.memory import is_local, may_alias, subscripts_differ

MOST = 32  # elements that one loop may carry

_HARMLESS = {"memref.load", "memref.store", "memref.atomic_rmw", "memref.alloca", "scf.for",
             "scf.if", "scf.while"}  # fmt: skip


def promote(function: Function, *, local: int = 0) -> Function:
    """``for k: c[i, j] += v`` loads ``c[i, j]`` in front of the outermost loop that leaves the
    subscripts as they are, carries it, and stores it behind that loop.

    Nothing is loaded or stored where the loop would not have stored: unless it is known to run, or
    there is a store to the element in front of it, both depend on its bounds. Nor is what every
    turn stores before it asks for it. ``local``: also elements of local arrays that have up to so
    many.

    Precondition: a verified function after ``lower_updates``, best after ``cse`` (subscripts are
    the same if they are the same SSA values) and ``collapse``.
    Non-goals: larger local arrays (LLVM keeps them in registers); elements of f16 and bf16, which
    are rounded in memory; elements that only some iterations store to; loops that may stop the
    kernel.
    """
    noalias = bool(function.attrs.get("noalias"))
    loops = (op for op in walk(function.body) if op.name == "scf.for")
    if not any(_promotable(op, noalias, local) for op in loops):
        return function
    return _Promoter(noalias, local).function(function)


def _promotable(loop: Op, noalias: bool, local: int) -> dict[Element, list[Op]]:
    """The elements that ``loop`` may carry, each with the loops that have to run for it to be
    stored to."""
    inside = defined(loop.regions)
    accesses: dict[Element, set[str]] = {}
    for op in walk(loop.body):
        if op.name not in _HARMLESS and not OPS[op.name].pure and not OPS[op.name].terminator:
            return {}
        if accessed_by(op) is not None:
            accesses.setdefault(_element(op), set()).add(op.name)
    found: dict[Element, list[Op]] = {}
    for element, kinds in accesses.items():
        memref, *subscripts = element
        if (
            kinds == {"memref.load", "memref.store"}
            and inside.isdisjoint(element)
            and not memref.memref.element.is_storage
            and not (is_local(memref) and math.prod(memref.memref.shape or (local + 1,)) > local)
            and not any(
                may_alias(memref, other[0], noalias)
                and not (memref is other[0] and subscripts_differ(subscripts, other[1:]))
                for other in accesses
                if other != element
            )
        ):
            loops = _storing(loop, element, inside, local=is_local(memref))
            if loops and len(found) < MOST:
                found[element] = loops
    return found


def _element(op: Op) -> Element:
    memref, subscripts, _ = memory(op)
    return memref, *subscripts


def _storing(loop: Op, element: Element, inside: Collection[Value], *, local: bool) -> list[Op]:
    """The loops, ``loop`` and some in it, that surely store to the element if all of them run; none
    where that is not known. A ``while`` or two arms may access it, but have to be left alone. A
    ``local`` element may be stored in any case."""
    if any(
        accessed_by(inner) is not None and _element(inner) == element
        for op in walk(loop.body) if op.name == "scf.while" for inner in below(op)
    ):  # fmt: skip
        return []
    return [loop] if local else _path(loop, element, inside)


def _path(loop: Op, element: Element, inside: Collection[Value]) -> list[Op]:
    for op in loop.body.ops:
        if op.name == "memref.store" and _element(op) == element:
            return [loop]
    # Where the store is in a loop that may not run, nothing outside of it may need the element.
    users = [op for op in loop.body.ops if any(
        accessed_by(inner) is not None and _element(inner) == element for inner in below(op)
    )]  # fmt: skip
    if len(users) == 1 and users[0].name == "scf.for":
        (op,) = users
        if all(v not in inside for v in For(op).bounds[:2]):
            deeper = _path(op, element, inside)
            return [loop, *deeper] if deeper else []
    return []


def _overwritten(loops: Sequence[Op], element: Element) -> bool:
    """Whether a turn of the first of ``loops``, which surely store to the element, stores before it
    asks for it: what is there before that does not matter."""
    first = next(op for op in loops[0].body.ops if any(
        accessed_by(inner) is not None and _element(inner) == element for inner in below(op)
    ))  # fmt: skip
    if len(loops) > 1 and first is loops[1]:
        return _overwritten(loops[1:], element)
    return first.name == "memref.store"


class _Promoter(Carrying):
    def __init__(self, noalias: bool, local: int) -> None:
        super().__init__(self._visit, around=self._around)
        self.noalias, self.local = noalias, local
        self.current = {}
        self.stored: set[Element] = set()  # those that are surely stored to in front

    def _visit(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op.name == "memref.load":
            found = self.current.get(_element(op))
            return None if found is None else [found]
        if op.name == "memref.store":
            element = _element(op)
            self.stored.add(element)
            if element in self.current:
                self.current[element] = memory(op)[2][0]
                return []
        return None

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value]:
        self.span = op.span
        guards: dict[Element, Value | None] = {}
        if op.name == "scf.for":
            for old, loops in _promotable(op, self.noalias, self.local).items():
                element = tuple(map(self.lookup, old))
                if element not in self.current:
                    anew = element not in self.stored and _overwritten(loops, old)
                    known = element in self.stored or (is_local(old[0]) and not anew)
                    guards[element] = None if known else self._all_run(loops)
                    self.current[element] = (
                        self.constant(0, old[0].memref.element) if anew
                        else self._loaded(element, guards[element])
                    )  # fmt: skip
        written = (o for o in below(op) if o.name == "memref.store")
        changed = dict.fromkeys(tuple(map(self.lookup, _element(o))) for o in written)
        results = self.carry(op, [element for element in changed if element in self.current])
        self.span = op.span
        for element, guard in guards.items():
            memref, *subscripts = element
            value = self.current.pop(element)
            if guard is None:
                self.store(value, memref, subscripts)
                self.stored.add(element)
            else:
                with self.when(guard):
                    self.store(value, memref, subscripts)
        return results

    def _all_run(self, loops: Iterable[Op]) -> Value | None:
        """Whether all of ``loops`` have iterations; None if they surely do."""
        found: Value | None = None
        for lower, upper in (For(loop).bounds[:2] for loop in loops):
            if not surely_less(lower, upper):
                pair = self.lookup(lower), self.lookup(upper)
                runs = self.op("arith.cmpi", *pair, predicate="slt")
                found = runs if found is None else self.op("arith.andi", found, runs)
        return found

    def _loaded(self, element: Element, guard: Value | None) -> Value:
        memref, *subscripts = element
        if guard is None:
            return self.load(memref, subscripts)
        type = memref.memref.element
        loaded, none = lambda: [self.load(memref, subscripts)], lambda: [self.constant(0, type)]
        return self.either(guard, loaded, none, [type])[0]

    def fill_from(self, old: Block) -> None:
        stored = set(self.stored)
        super().fill_from(old)
        self.stored = stored
