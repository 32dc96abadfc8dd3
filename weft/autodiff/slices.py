"""What computes a value at one iteration: copied, or found in a workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from weft.autodiff.extremum import is_exact
from weft.autodiff.write import Writer
from weft.errors import WeftError
from weft.index.access import Access
from weft.index.expression import Condition, Dim
from weft.ir.builder import Builder, Rewriter
from weft.ir.core import Block, Function, Op, Value, inputs, parents
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, ScalarType, i64, index
from weft.ir.views import For, If, loop_of, memory
from weft.ir.writes import written


class Unavailable(WeftError):
    """A value that another loop cannot have; the message says why."""


class Slicer:
    """Copies what computes values of ``function`` into other loops.

    Arithmetic and reads of arrays that ``function`` does not write are repeated there. Results of
    loops and of what is written are ``spilled``: ``function`` stores them to a workspace, one
    number for each iteration of its parallel loop. So are comparisons of rounded values: another
    loop may round them in another way, and of two that are equal each loop would see another win.
    """

    def __init__(self, function: Function, wide: bool = False) -> None:
        """``wide``: workspaces may also have one number for each iteration of sequential loops."""
        self.function = function
        self.wide = wide
        self.parallel = next(op for op in function.body.ops if op.name == "scf.parallel")
        self.dims: int = self.parallel.attrs["dims"]
        self.spilled: list[Value] = []
        self.written = written(function)
        self.parents = parents(function.body)

    def _around_value(self, value: Value) -> Op | None:
        """The operation with regions that ``value`` is made in."""
        assert value.owner is not None
        return self.parents[value.owner]

    # --- workspaces -------------------------------------------------------------------------------
    def name(self, k: int) -> str:
        return f"keep{k}.{self.spilled[k].name or 'v'}.{self.function.name}"

    def element(self, value: Value) -> ScalarType:
        return i64 if value.type is index else value.scalar

    def type(self, value: Value) -> MemRefType:
        return MemRefType(self.element(value), self.dims + len(self.loops(value)))

    def loops(self, value: Value) -> list[Op]:
        """The sequential loops around ``value``, which has a workspace."""
        found = self.undoing(self._around_value(value))
        assert found is not None
        return found

    def undoing(self, op: Op | None) -> list[Op] | None:
        """``op`` and the sequential loops around it, outermost first. None where there are others
        than those that undo a loop of the primal, whose iterations can be counted."""
        found: list[Op] = []
        while op is not None and op is not self.parallel:
            if op.name == "scf.while" or (op.name == "scf.for" and "undoes" not in op.attrs):
                return None
            if op.name == "scf.for":
                found.insert(0, op)
            op = self.parents[op]
        return found

    def indices(
        self, b: Builder, loops: Sequence[Op], lookup: Callable[[Value], Value]
    ) -> list[Value]:
        """The subscripts, in workspaces, of an iteration of the parallel loop and of ``loops``.
        ``lookup`` gives what stands for a value of ``function``."""
        views = [loop_of(op) for op in (self.parallel, *loops)]
        return [b.steps(lookup(iv), lookup(low), lookup(step)) for view in views
                for iv, (low, _, step) in zip(view.indices, view.axes, strict=True)]  # fmt: skip

    # --- may it be copied? ------------------------------------------------------------------------
    def is_fixed(self, value: Value) -> bool:
        """Whether ``value`` is made outside of the parallel loop."""
        return self._around_value(value) is None

    def check(self, access: Access) -> None:
        """Raises ``Unavailable`` where what ``access`` accumulates cannot be had elsewhere."""
        self._check(accumulated(access))
        for op, _ in self.around(access.op):
            if op.name == "scf.if":
                self._check(If(op).condition)
            elif op.name == "scf.while":
                raise Unavailable("it is read in a while loop")

    def enclosing(self, op: Op) -> list[Op]:
        """The operations with regions around ``op``, innermost first."""
        return [parent for parent, _ in self.around(op)]

    def check_symbols(self, symbols: Iterable[Value | Dim]) -> None:
        """Raises ``Unavailable`` where a symbol of a fibre cannot be had elsewhere."""
        known = {*self.function.args, *(v for op in self.outside() for v in op.results)}
        for symbol in symbols:
            if isinstance(symbol, Value) and symbol not in known:
                what = f"`{symbol.name}`" if symbol.name else "a bound"
                raise Unavailable(f"{what} is computed by a loop")

    def around(self, op: Op) -> list[tuple[Op, Op]]:
        """The operations with regions around ``op``, innermost first, with what is in them."""
        found = []
        inner, parent = op, self.parents[op]
        while parent is not None:
            found.append((parent, inner))
            inner, parent = parent, self.parents[parent]
        return found

    def _check(self, value: Value) -> None:
        for v in self._needed(value):
            loops = self.undoing(self._around_value(v)) if self.spills(v) else []
            if loops is None or (loops and not self.wide):
                what = f"`{v.name}`" if v.name else "a value"
                raise Unavailable(f"{what} is carried by a sequential loop")

    def _needed(self, value: Value) -> list[Value]:
        """All that is needed to compute ``value``, itself included, not looking behind spills."""
        seen: dict[Value, None] = {}
        todo = [value]
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen[v] = None
            if v.op is not None and not self.spills(v):
                todo += inputs(v.op)
        return list(seen)

    def spills(self, value: Value) -> bool:
        if self.is_fixed(value):
            return False
        owner = value.owner
        if isinstance(owner, Block):
            parent = self._around_value(value)
            assert parent is not None
            return not (parent.name == "scf.parallel"
                        or (parent.name == "scf.for" and value is For(parent).index))  # fmt: skip
        assert owner is not None
        return not self._repeatable(owner)

    def _repeatable(self, op: Op) -> bool:
        if op.name == "memref.load":
            memref, _, _ = memory(op)
            return memref not in self.written and memref.op is None
        if op.name == "scf.if":
            return all(
                self._repeatable(o) or OPS[o.name].terminator for r in op.regions for o in r.ops
            )
        return OPS[op.name].pure and not self._is_close(op)

    def _is_close(self, op: Op) -> bool:
        """Whether ``op`` compares two floats of this iteration of which one is rounded."""
        if op.name != "arith.cmpf" or any(self.is_fixed(v) for v in op.operands):
            return False
        return any(not is_exact(o) for v in op.operands for o in self._made_by(v))

    def _made_by(self, value: Value) -> Iterator[Op]:
        """The operations of an iteration that ``value`` is computed by, not behind loads."""
        todo, seen = [value], set[Value]()
        while todo:
            v = todo.pop()
            if v in seen or v.op is None or self.is_fixed(v):
                continue
            seen.add(v)
            yield v.op
            if v.op.name != "memref.load":
                todo += inputs(v.op)

    # --- copying ----------------------------------------------------------------------------------
    def outside(self) -> list[Op]:
        """What is computed in front of the parallel loop and can be computed elsewhere as well."""
        found: list[Op] = []
        known = set(self.function.args)
        for op in self.function.body.ops[: self.function.body.ops.index(self.parallel)]:
            if self._repeatable(op) and known.issuperset(inputs(op)):
                known.update(op.results)
                found.append(op)
        return found

    def copy_outside(self, b: Builder, values: dict[Value, Value]) -> None:
        """Appends a copy of ``outside``. ``values``, what stands for the arguments, then also has
        what stands for its results."""
        rewriter = Rewriter()
        rewriter.replacement.update(values)
        rewriter.block = b.block
        for op in self.outside():
            rewriter.rewrite(op)
            values.update((v, rewriter.lookup(v)) for v in op.results)

    def repeated(self, values: Iterable[Value]) -> set[Value] | None:
        """All that is needed to compute ``values``; None where that is in a workspace."""
        found = {v for value in values for v in self._needed(value)}
        return None if any(map(self.spills, found)) else found

    def under(
        self, access: Access, w: Writer, make: Callable[[], Value], otherwise: Value,
        holds: Callable[[Condition | None], bool], copied: Callable[[Value], Value],
    ) -> Value:  # fmt: skip
        """What ``make`` makes where ``access`` is carried out, ``otherwise`` where a condition
        around it does not hold: one that does not always hold, as ``holds`` says, is ``copied``."""
        around = [pair for pair in reversed(self.around(access.op)) if pair[0].name == "scf.if"]
        conditions = [pair for pair, guard in zip(around, access.guards, strict=False)
                      if not holds(guard)]  # fmt: skip

        def inside(k: int) -> Value:
            if k == len(conditions):
                return make()
            op, inner = conditions[k]
            branch = If(w.b.if_(copied(If(op).condition), [otherwise.type]))
            mine, other = branch.then, branch.otherwise
            if inner not in If(op).then.ops:
                mine, other = other, mine
            saved = dict(w.values)
            with w.b.at(mine):
                w.b.do("scf.yield", inside(k + 1))
            w.values.clear()
            w.values.update(saved)
            with w.b.at(other):
                w.b.do("scf.yield", otherwise)
            return branch.op.result

        return inside(0)

    def copied(self, value: Value, w: Writer, kept: Sequence[Value]) -> Value:
        """``value``, where ``w`` knows what it is computed from; ``kept``: the workspaces."""
        known = w.values.get(value)
        if known is not None:
            return known
        owner = value.op
        if self.spills(value):
            if value not in self.spilled:
                raise AssertionError("spilled values are collected first")
            at = self.indices(w.b, self.loops(value), lambda v: self.copied(v, w, kept))
            result = w.b.load(kept[self.spilled.index(value)], at)
            if result.type is not value.type:
                result = w.b.op("arith.index_cast", result, type=value.type)
            w.values[value] = result
            return result
        assert owner is not None
        if owner.regions:
            rewriter = Rewriter()
            rewriter.replacement = {v: self.copied(v, w, kept) for v in inputs(owner)}
            rewriter.block = w.b.block
            rewriter.rewrite(owner)
            w.values.update((r, rewriter.lookup(r)) for r in owner.results)
            return w.values[value]
        copy = w.b.copied(owner, lambda v: self.copied(v, w, kept))
        w.values.update(zip(owner.results, copy.results, strict=True))
        return w.values[value]

    def spill(self, access: Access) -> None:
        """Notes what ``copy`` will need from workspaces."""
        self.spilled += [v for v in self.kept_for(access) if v not in self.spilled]

    def kept_for(self, access: Access) -> list[Value]:
        """What ``copy`` of this access needs from workspaces."""
        roots = [
            accumulated(access),
            *(If(op).condition for op, _ in self.around(access.op) if op.name == "scf.if"),
        ]
        return [v for root in roots for v in self._needed(root) if self.spills(v)]


def accumulated(access: Access) -> Value:
    """What an accumulation adds."""
    _, _, (value,) = memory(access.op)
    return value
