"""Adjoints: of the values of a scope, and of the elements of arrays, in memory beside these."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

from weft.autodiff.activity import is_float
from weft.autodiff.memory import UPDATES
from weft.autodiff.recompute import Recomputation
from weft.autodiff.rules import RULES, Local, adjoint_type
from weft.errors import GradientError
from weft.ir.core import Op, Value
from weft.ir.types import MemRefType, compute_type
from weft.ir.views import memory

_ATOMIC = {"maximumf": "maximum", "minimumf": "minimum"}


def update_error(op: Op) -> GradientError:
    """The refusal of an update of an element of floats that is no sum."""
    kind = op.attrs.get("kind", "")
    if kind == "mulf":
        what, way = (
            "a product accumulated into an element",
            "multiply in a local variable, and store it once",
        )
    elif kind in _ATOMIC:
        what = f"an atomic {_ATOMIC[kind]}"
        way = (
            f"take the {_ATOMIC[kind]} in a local variable; or, if its derivative is not wanted, "
            "of x.detach(), made in the host part"
        )
    else:
        what, way = "an atomic compare-and-swap", "accumulate with +="
    return GradientError(f"{what} of floats has no derivative", op.span, help=way)


class Adjoints:
    """The adjoints of what ``new`` recomputes.

    ``of``: those of values, as far as the sweep backwards got; zero where there is none.
    ``frozen``: values whose adjoints are known, and not added to. ``shadow``: the array of the
    adjoints of an array's elements. ``loads``: of loads from arguments, how many accumulations were
    made; these have the load's place here as their attribute "of".
    """

    def __init__(self, new: Recomputation) -> None:
        self.new, self.b, self.env = new, new.b, new.env
        self.primal = new.primal
        self.of: dict[Value, Value] = {}
        self.frozen: set[Value] = set()
        self.shadow: dict[Value, Value] = {}
        self.loads: dict[Op, int] = {}
        for memref, name in zip(self.primal.function.args, self.primal.names, strict=True):
            if memref in self.primal.activity.arrays:
                type = MemRefType(compute_type(memref.memref.element), memref.memref.rank)
                self.shadow[memref] = new.argument(self.primal.prefix + name, type)

    def __getitem__(self, value: Value) -> Value:
        return self.of.get(value) or self.zero(value)

    def zero(self, value: Value) -> Value:
        return self.b.constant(0.0, adjoint_type(value.scalar))

    def add(self, value: Value, g: Value | None) -> None:
        if g is not None and self.primal.varies(value) and value not in self.frozen:
            known = self.of.get(value)
            self.of[value] = g if known is None else self.b.op("arith.addf", known, g)

    @contextmanager
    def scope(
        self, adjoints: dict[Value, Value], frozen: Collection[Value] = ()
    ) -> Generator[None]:
        """A scope that begins with ``adjoints``, and adds to these only."""
        saved = self.of, self.frozen
        self.of, self.frozen = adjoints, {*self.frozen, *frozen}
        try:
            yield
        finally:
            self.of, self.frozen = saved

    # --- arrays -----------------------------------------------------------------------------------
    def alloca(self, op: Op) -> None:
        """Makes the adjoint of a local array, where it has one: zeros."""
        if op.result in self.primal.activity.arrays:
            type = op.result.memref
            shadow = self.b.alloca(compute_type(type.element), type.shape or ())
            shadow.name = f"d.{op.result.name}"
            zero = self.b.constant(0.0, shadow.memref.element)
            self.b.each_element(shadow, lambda at: self.b.store(zero, shadow, at))
            self.shadow[op.result] = shadow

    def load(self, op: Op) -> None:
        g = self.of.get(op.result)
        memref, subscripts, _ = memory(op)
        shadow = self.shadow.get(memref)
        if g is None or shadow is None:
            return
        at = self.new.values(subscripts)
        if memref in self.primal.function.args:
            self.b.atomic_rmw("addf", g, shadow, at)
            self.loads[op] = self.loads.get(op, 0) + 1
            self.b.block.ops[-1].attrs["of"] = [*self.loads].index(op)
        else:
            self.b.store(self.b.op("arith.addf", self.b.load(shadow, at), g), shadow, at)

    def store(self, op: Op) -> None:
        memref, subscripts, (value,) = memory(op)
        shadow = self.shadow.get(memref)
        if shadow is None or not is_float(value):
            return
        at = self.new.values(subscripts)
        g = self.b.load(shadow, at)
        if memref not in self.primal.once:
            self.b.store(self.b.constant(0.0, shadow.memref.element), shadow, at)
        self.add(value, g)

    def atomic(self, op: Op) -> None:
        memref, subscripts, (*_, value) = memory(op)
        shadow, kind = self.shadow.get(memref), op.attrs.get("kind")
        if shadow is None:
            return
        local = memref not in self.primal.function.args
        if op in self.primal.contents or (local and kind in UPDATES):
            found = self.env[op.result] if local else self.new.seen(op)
            self._update(op, found, shadow)
        elif kind != "addf":
            raise update_error(op)
        elif op.result in self.of:
            raise GradientError(
                "the value from before an atomic += has no gradient", op.span,
                help="read it in a loop of its own, before",
            )  # fmt: skip
        else:
            self.add(value, self.b.load(shadow, self.new.values(subscripts)))

    def _update(self, op: Op, found: Value, shadow: Value) -> None:
        """A product or an extreme value, taken in an element that no other iteration updates, with
        what it ``found`` there."""
        _, subscripts, (value,) = memory(op)
        at = self.new.values(subscripts)
        if found.type is not value.type:  # f16 and bf16 are updated in f32
            found = self.b.op("arith.extf", found, type=value.type)
        name = UPDATES[op.attrs["kind"]]
        operands = [found, self.env[value]]
        update = self.b.append(Op(name, operands, [value.type]))
        g = self.b.load(shadow, at)
        varied = [True, self.primal.varies(value)]
        mine, share = RULES[name](Local(self.b, update, operands, update.result, g, varied))
        assert mine is not None
        if op.result in self.of:  # an update gives what it found
            mine = self.b.op("arith.addf", mine, self.of[op.result])
        self.b.store(mine, shadow, at)
        self.add(value, share)
