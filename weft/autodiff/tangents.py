"""The walk of forward mode: each operation is copied, and behind it stands what its tangent is.

A float that depends on what is differentiated has a *twin*, its derivative along the direction; an
array of such floats has a *shadow*, a second array. What has no twin has the tangent zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from weft.autodiff.activity import activity
from weft.autodiff.adjoint import Buffer
from weft.autodiff.adjoints import update_error
from weft.autodiff.clean import without_unused
from weft.autodiff.extremum import Extremum, extremum
from weft.autodiff.jvp import PREFIX, prefix_of
from weft.autodiff.names import unique_names
from weft.autodiff.rules import REFUSED, RULES, Local, adjoint_type
from weft.errors import GradientError
from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType, Type, compute_type
from weft.ir.views import For, If, While, memory
from weft.ir.writes import written
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.relax_atomics import relax_atomics
from weft.passes.simplify import simplify

_CASTS = ("arith.extf", "arith.truncf")


class Walk(ABC):
    """The state of the walk, and a method for each kind of operation."""

    def __init__(self, function: Function, wanted: Collection[int]) -> None:
        # An accumulation in which no two iterations meet is an ordinary update, and has tangents.
        self.primal = relax_atomics(function)
        args = self.primal.args
        self.names = unique_names(self.primal)
        self.prefix = prefix_of(self.names)
        self.activity = activity(self.primal, [args[k] for k in wanted])
        self.used = {v for op in walk(self.primal.body) for v in op.operands}
        self.written = written(self.primal) & set(args)
        self.arrays = self.activity.arrays & set(args)
        self.workspaces: list[Buffer] = []
        self.notes: dict[str, str] = {}
        self.begin(self.primal.name + "_tangent")

    def begin(self, name: str) -> None:
        """A new function, to be filled from its top."""
        args = self.primal.args
        self.new = Function(name, [a.type for a in args], self.names, dict(self.primal.attrs),
                            self.primal.span)  # fmt: skip
        self.b = Builder(self.new.body, self.primal.span)
        self.env: dict[Value, Value] = dict(zip(args, self.new.args, strict=True))
        self.twin: dict[Value, Value] = {}  # values -> tangents; zero where there is none
        self.shadow: dict[Value, Value] = {}  # arrays -> arrays of tangents
        for memref, name_ in zip(args, self.names, strict=True):
            if memref in self.arrays:
                type = MemRefType(memref.memref.element, memref.memref.rank)
                self.shadow[memref] = self.argument(self.prefix + name_, type)
            elif memref in self.activity.values:
                self.twin[memref] = self.argument(self.prefix + name_, adjoint_type(memref.scalar))

    def argument(self, name: str, type: Type) -> Value:
        value = Value(type, name, self.new.body)
        self.new.body.args.append(value)
        return value

    def finish(self) -> Function:
        self.b.do("func.return")
        return without_unused(dce(cse(simplify(self.new))))

    # --- small things -----------------------------------------------------------------------------
    def number(self, value: float, type: Type) -> Value:
        assert isinstance(type, ScalarType)
        return self.b.constant(value, adjoint_type(type))

    def tangent(self, value: Value) -> Value:
        found = self.twin.get(value)
        return self.number(0.0, value.type) if found is None else found

    def active(self, values: Sequence[Value]) -> list[int]:
        return [k for k, v in enumerate(values) if v in self.activity.values]

    def stand(self, old: Sequence[Value], new: Sequence[Value]) -> None:
        for before, after in zip(old, new, strict=True):
            after.name = before.name
            self.env[before] = after

    def twins(self, old: Sequence[Value], new: Sequence[Value]) -> None:
        """The last ones of ``new`` are the tangents of those of ``old`` that have any."""
        which = self.active(old)
        for k, value in zip(which, new[len(new) - len(which) :], strict=True):
            value.name = f"{PREFIX}{old[k].name}" if old[k].name else ""
            self.twin[old[k]] = value

    def with_twins(self, values: Sequence[Value], like: Sequence[Value]) -> list[Value]:
        """What ``values`` are in the new function, then tangents for those whose ``like`` (what
        they are handed on to) has one."""
        handed = [self.tangent(values[k]) for k in self.active(like)]
        return [*(self.env[v] for v in values), *handed]

    def types(self, values: Sequence[Value]) -> list[Type]:
        twins = (values[k].type for k in self.active(values))
        return [*(v.type for v in values),
                *(adjoint_type(t) for t in twins if isinstance(t, ScalarType))]  # fmt: skip

    # --- operations -------------------------------------------------------------------------------
    def ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.b.span = op.span
            match op.name:
                case "scf.for":
                    self._for(op)
                case "scf.while":
                    self._while(op)
                case "scf.if":
                    self._if(op)
                case "scf.parallel":
                    self.parallel(op)
                case name if name in _MEMORY:
                    _MEMORY[name](self, op)
                case "func.return":
                    pass
                case _:
                    self.copy(op)
                    self._scalar(op)

    def block(
        self, old: Block, new: Block, args: Sequence[Value], like: Sequence[Value],
        handed: Callable[[list[Value]], list[Value]] = list,
    ) -> None:  # fmt: skip
        """``old`` into ``new``; the last ``len(args)`` arguments of ``old`` may have tangents.
        ``like``: what its terminator's last operands are handed on to; ``handed`` says what becomes
        of these and their tangents."""
        with self.b.at(new):
            self.stand(old.args, new.args[: len(old.args)])
            self.twins(args, new.args[: len(old.args) + len(self.active(args))])
            self.ops(old.ops[:-1])
            end = old.terminator
            self.b.span = end.span
            ends, ahead = end.operands, len(end.operands) - len(like)
            given = self.with_twins(ends[ahead:], like)
            kept = (self.env[v] for v in ends[:ahead])
            self.b.do(end.name, *kept, *handed(given), **end.attrs)

    def copy(self, op: Op) -> None:
        self.stand(op.results, self.b.copied(op, self.env.__getitem__).results)

    def _scalar(self, op: Op) -> None:
        which = [k for k, v in enumerate(op.operands) if v in self.twin]
        if not which or not any(r in self.activity.values for r in op.results):
            if op.name in REFUSED and which:
                raise GradientError(f"{op.name} has no derivative", op.span)
            return
        if op.name not in RULES:
            raise GradientError(f"{op.name} has no derivative", op.span)
        self.twin[op.result] = self._cast(op) if op.name in _CASTS else self.along(op, which)
        self.twin[op.result].name = f"{PREFIX}{op.result.name}" if op.result.name else ""

    def along(self, op: Op, which: Sequence[int]) -> Value:
        """The sum over the operands ``which`` of derivative times tangent. The rule of an
        operation gives adjoint times derivative for any adjoint: that of the result's tangent."""
        operands = [self.env[v] for v in op.operands]
        varied = [v in self.activity.values for v in op.operands]
        total: Value | None = None
        for k in which:
            g = self.twin[op.operands[k]]
            part = RULES[op.name](Local(self.b, op, operands, self.env[op.result], g, varied))[k]
            if part is not None:
                total = part if total is None else self.b.op("arith.addf", total, part)
        return self.number(0.0, op.result.type) if total is None else total

    def _cast(self, op: Op) -> Value:
        return self.converted(self.twin[op.operand], op.result.type)

    def converted(self, value: Value, type: Type) -> Value:
        """A tangent as one of a value of ``type``."""
        assert isinstance(type, ScalarType)
        return self.as_type(value, adjoint_type(type))

    def as_type(self, value: Value, type: ScalarType) -> Value:
        if value.type is type:
            return value
        wider = type.bits > value.scalar.bits
        return self.b.op("arith.extf" if wider else "arith.truncf", value, type=type)

    # --- control ----------------------------------------------------------------------------------
    def _for(self, op: Op) -> None:
        carried, inits = For(op).carried, For(op).inits
        which = self.active(carried)
        extrema = [f for k in which if (f := extremum(op, k)) is not None]
        starts = self.with_twins(inits, carried)
        varied = [inits[f.place] in self.activity.values for f in extrema]
        starts += [self.number(float(v), f.carried.type)
                   for f, v in zip(extrema, varied, strict=True)]  # fmt: skip
        loop = self.b.for_(*(self.env[v] for v in For(op).bounds), inits=starts, **op.attrs)
        counts = For(loop).carried[len(starts) - len(extrema) :]

        def handed(given: list[Value]) -> list[Value]:
            for found, count in zip(extrema, counts, strict=True):
                at = len(carried) + which.index(found.place)
                given[at], more = self._shared(found, given[found.place], count)
                given.append(more)
            return given

        self.block(op.body, loop.body, carried, carried, handed)
        results = loop.results[: len(starts) - len(extrema)]
        self.stand(op.results, results[: len(op.results)])
        self.twins(op.results, results)
        for found, count in zip(extrema, loop.results[len(results) :], strict=True):
            result = op.results[found.place]
            none = self._same(count, self.number(0.0, result.type))
            mean = self.b.op("arith.divf", self.twin[result], count)
            first = self.tangent(inits[found.place])  # also that of a NaN
            self.twin[result] = self.b.op("arith.select", none, first, mean)

    def _shared(self, found: Extremum, following: Value, count: Value) -> tuple[Value, Value]:
        """After an iteration of a running extremum, whose value is now ``following``: the sum of
        the tangents of all that equal it, and how many these are. Each has the same share of the
        result, as in reverse mode. A bound that does not vary takes no part."""
        zero, one = self.number(0.0, count.type), self.number(1.0, count.type)
        kept = self._same(self.env[found.carried], following)
        wins = self._same(self.env[found.element], following)
        sums = []
        for before, more in (
            (self.tangent(found.carried), self.tangent(found.element)), (count, one),
        ):  # fmt: skip
            parts = [
                self.b.op("arith.select", c, x, zero) for c, x in ((kept, before), (wins, more))
            ]
            sums.append(self.b.op("arith.addf", *parts))
        return sums[0], sums[1]

    def _same(self, x: Value, y: Value) -> Value:
        return self.b.op("arith.cmpf", x, y, predicate="oeq")

    def _while(self, op: Op) -> None:
        before, after = op.regions
        loop = self.b.while_(self.with_twins(op.operands, before.args), self.types(after.args))
        self.block(before, While(loop).before, before.args, after.args)
        self.block(after, While(loop).after, after.args, before.args)
        self.stand(op.results, loop.results[: len(op.results)])
        self.twins(op.results, loop.results)

    def _if(self, op: Op) -> None:
        branch = self.b.if_(self.env[If(op).condition], self.types(op.results))
        for old, new in zip(op.regions, branch.regions, strict=True):
            self.block(old, new, [], op.results)
        self.stand(op.results, branch.results[: len(op.results)])
        self.twins(op.results, branch.results)

    @abstractmethod
    def parallel(self, op: Op) -> None:
        """``scf.parallel``, with what its reductions need."""


# -- memory


def _alloca(w: Walk, op: Op) -> None:
    w.copy(op)
    if op.result in w.activity.arrays:
        type = op.result.memref
        shadow = w.b.alloca(compute_type(type.element), type.shape or ())
        shadow.name = f"{PREFIX}{op.result.name}"
        w.shadow[op.result] = shadow


def _load(w: Walk, op: Op) -> None:
    w.copy(op)
    memref, subscripts, _ = memory(op)
    shadow = w.shadow.get(memref)
    if shadow is not None and op.result in w.activity.values:
        at = [w.env[v] for v in subscripts]
        w.twin[op.result] = w.converted(w.b.load(shadow, at), op.result.type)


def _store(w: Walk, op: Op) -> None:
    w.copy(op)
    memref, subscripts, (value,) = memory(op)
    _put(w, w.tangent(value) if memref in w.shadow else None, memref, subscripts)


def _put(w: Walk, tangent: Value | None, memref: Value, subscripts: Sequence[Value]) -> None:
    shadow = w.shadow.get(memref)
    if shadow is not None and tangent is not None:
        at = [w.env[v] for v in subscripts]
        w.b.store(w.as_type(tangent, shadow.memref.element), shadow, at)


def _update(w: Walk, op: Op) -> None:
    """``memref.atomic_rmw``: sums of tangents where iterations may meet; elsewhere anything."""
    memref, subscripts, (value,) = memory(op)
    shadow, kind = w.shadow.get(memref), op.attrs["kind"]
    if shadow is None:
        w.copy(op)
        return
    found = op.result in w.used
    if op.attrs["atomic"] and kind == "addf" and not found:
        w.copy(op)
        if value in w.twin:
            at = [w.env[v] for v in subscripts]
            w.b.atomic_rmw("addf", w.twin[value], shadow, at)
    elif op.attrs["atomic"]:
        if kind != "addf":
            raise update_error(op)
        raise GradientError(
            "the value from before an atomic += of floats has no derivative", op.span,
            help="read it in a loop of its own, before",
        )  # fmt: skip
    else:
        _plain_update(w, op)


def _plain_update(w: Walk, op: Op) -> None:
    """An update as load, combination and store."""
    memref, subscripts, (value,) = memory(op)
    type = memref.memref
    at = [w.env[v] for v in subscripts]
    kept = w.as_type(w.b.load(w.env[memref], at), compute_type(type.element))
    w.env[op.result] = kept
    w.twin[op.result] = w.converted(w.b.load(w.shadow[memref], at), kept.type)
    combination = Op(f"arith.{op.attrs['kind']}", [op.result, value], [kept.type])
    new = combination.result
    w.env[new] = w.b.op(combination.name, kept, w.env[value])
    w.activity.values.add(new)
    which = [k for k, v in enumerate(combination.operands) if v in w.twin]
    tangent = w.along(combination, which)
    w.b.store(w.as_type(w.env[new], type.element), w.env[memref], at)
    _put(w, tangent, memref, subscripts)


def _exchange(w: Walk, op: Op) -> None:
    if memory(op)[0] in w.shadow:
        raise update_error(op)
    w.copy(op)


_MEMORY = {
    "memref.alloca": _alloca, "memref.load": _load, "memref.store": _store,
    "memref.atomic_rmw": _update, "memref.atomic_cas": _exchange,
}  # fmt: skip
