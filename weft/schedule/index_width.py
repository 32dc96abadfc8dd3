"""Index arithmetic in 32 bits where it fits.

``index`` is 64-bit, and GPUs compute in 32. A kernel therefore has two forms, and each call takes
the narrow one if every index of it fits, which intervals say: they are computed from the sizes,
strides and integers of the call. What is not known beforehand (numbers that a loop carries, that
come from 64-bit tensors) stays 64-bit in both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import ScalarType, Type, i1, i32, index
from weft.ir.views import If, accessed_by, constant_of, loop_of, memory
from weft.schedule.intervals import Step, evaluate, fits
from weft.values import remembered

NOMINAL = 1024  # of every size and number, when it is decided which indices may be 32-bit at all


class Program:
    """The index arithmetic of a function as numbered steps, which ``evaluate`` runs on intervals.

    A step is ``[operation, operands...]``, numbers of earlier steps; it is data, and cached as
    JSON.
    """

    def __init__(self, function: Function, slot_of: Callable[[Value, int], int | None]) -> None:
        """``slot_of(argument, axis)`` is the word of the argument block that holds a number or a
        size (strides are not asked for); None where there is none."""
        self.steps: list[Step] = []
        self.number: dict[Value, int] = {}
        self.ends: list[tuple[Value, int]] = []  # indices of loops, and the value they stop at
        self._slot_of = slot_of
        self._known: dict[tuple[int | str, ...], int] = {}
        self._unknown = self._step("any")
        for arg in function.args:
            if isinstance(arg.type, ScalarType) and arg.type.is_integer:
                slot = slot_of(arg, 0)
                self.number[arg] = self._unknown if slot is None else self._step("slot", slot)
        self._block(function.body)

    def _step(self, *words: int | str) -> int:
        found = self._known.get(words)
        if found is None:
            found = self._known[words] = len(self.steps)
            self.steps.append(words)
        return found

    def of(self, value: Value) -> int:
        return self.number.get(value, self._unknown)

    @remembered
    def given(self, value: Value) -> bool:
        """Whether a call's sizes and numbers alone decide a value of 64 bits."""
        op = value.op
        if op is None:
            return self.steps[self.of(value)][0] == "slot"
        if op.name in ("arith.constant", "memref.dim"):
            return self.of(value) != self._unknown
        return op.name in _RULES and _bits(op.result) == 64 and all(map(self.given, op.operands))

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if op.name in ("scf.for", "scf.parallel"):
                loop = loop_of(op)
                for iv, bounds in zip(loop.indices, loop.axes, strict=True):
                    low, high, step = map(self.of, bounds)
                    self.number[iv] = self._step("iv", low, high)
                    self.ends.append((iv, self._step("add", self._step("join", low, high), step)))
            for region in op.regions:
                self._block(region)
            if op.name == "scf.if":
                for k, result in enumerate(op.results):
                    self.number[result] = self._step("join", *map(self.of, If(op).arms(k)))
            elif len(op.results) == 1 and _integer(op.result.type):
                self.number[op.result] = self._from(op)

    def _wrapped(self, step: int, value: Value) -> int:
        """What a number becomes in the type of ``value``."""
        return step if _bits(value) == 64 else self._step("wrap", step, _bits(value))

    def _from(self, op: Op) -> int:
        match op.name:
            case "arith.constant":
                return self._step("const", int(op.attrs["value"]))
            case "memref.dim":
                memref, axis = op.operand, op.attrs["axis"]
                if (shape := memref.memref.shape) is not None:
                    return self._step("const", shape[axis])
                slot = self._slot_of(memref, axis)
                return self._unknown if slot is None else self._step("slot", slot)
            case "arith.select":
                _, yes, no = op.operands
                return self._step("join", self.of(yes), self.of(no))
            case "arith.index_cast" | "arith.extsi":
                if self.of(op.operand) != self._unknown:
                    return self._wrapped(self.of(op.operand), op.result)
                return self._step("bits", min(_bits(op.operand), _bits(op.result)))
            case "arith.extui":
                return self._step("ubits", _bits(op.operand))
            case name if name in _RULES and _bits(op.result) >= 32:
                found = self._step(_RULES[name], *map(self.of, op.operands))
                return self._wrapped(found, op.result)
            case _:
                return (
                    self._step("bits", _bits(op.result)) if _bits(op.result) < 64 else self._unknown
                )


_RULES = {
    "arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul", "arith.floordivsi": "div",
    "arith.minsi": "min", "arith.maxsi": "max", "arith.shrsi": "shr", "arith.shli": "shl",
    "arith.andi": "and", "arith.remsi": "rem", "math.absi": "abs",
}  # fmt: skip


def candidates(program: Program) -> tuple[frozenset[Value], list[int]]:
    """The indices that are 32-bit in the narrow form, and the steps that must fit for it."""
    found = evaluate(program.steps, lambda _: (-NOMINAL, NOMINAL))
    ends = dict(program.ends)
    chosen = frozenset(
        v for v, k in program.number.items()
        if v.type is index and fits(found[k]) and (v not in ends or fits(found[ends[v]]))
    )  # fmt: skip
    needed = {program.number[v] for v in chosen} | {ends[v] for v in chosen if v in ends}
    needed |= {k for k, step in enumerate(program.steps) if step[0] == "slot"}
    return chosen, sorted(needed)


# -- the narrow form

# Operations whose low 32 bits depend on the low 32 bits of the operands only.
_RING = ("arith.addi", "arith.subi", "arith.muli", "arith.andi", "arith.ori", "arith.xori")
# Those that give another number in 64 bits, where an operand is negative.
_WIDE = ("math.ctpop", "arith.divui", "arith.remui")


def divisions(program: Program, function: Function, chosen: frozenset[Value]) -> dict[Op, int]:
    """The divisions ``a // b`` of 32 bits whose divisor is not written in the kernel, with the step
    of their divisor."""
    return {
        op: program.of(op.right)
        for op in walk(function.body)
        if op.name == "arith.floordivsi"
        and op.result in chosen
        and all(v in chosen for v in op.operands)
        and program.steps[program.of(op.right)][0] not in ("const", "any", "bits", "iv")
    }


def narrow(
    function: Function, chosen: frozenset[Value], notes: Mapping[Op, dict[str, Any]] | None = None
) -> Function:
    """``function`` with the values of ``chosen`` as i32, and 32-bit subscripts everywhere.
    Operations in ``notes`` get the attributes there.

    The result is for code generation alone: subscripts and bounds of loops are not ``index``.
    """
    return _Narrowing(chosen, notes or {}).function(function)


class _Narrowing(Rewriter):
    def __init__(self, chosen: frozenset[Value], notes: Mapping[Op, dict[str, Any]]) -> None:
        super().__init__()
        self.chosen = chosen
        self.notes = notes

    def function(self, function: Function) -> Function:
        new = function.without_body()
        with self.at(new.body):
            self.stand_for(function.args, new.args)
            for arg in function.args:
                if arg in self.chosen:
                    self.replacement[arg] = self.cast(self.lookup(arg), i32)
            for op in function.body.ops:
                self.rewrite(op)
        return new

    def type(self, value: Value) -> Type:
        return i32 if value in self.chosen else value.type

    def get(self, value: Value, wanted: Type) -> Value:
        """The new ``value``, as an index of the wanted width if it is an index."""
        if value.type is not index:
            return self.lookup(value)
        number = constant_of(value)
        if number is not None:
            return self.op("arith.constant", type=wanted, value=_wrapped(int(number), wanted))
        new = self.lookup(value)
        return new if new.type is wanted else self.cast(new, wanted)

    def cast(self, value: Value, wanted: Type) -> Value:
        return self.op("arith.index_cast", value, type=wanted)

    def rewrite(self, op: Op) -> None:
        if op.name == "arith.constant" and op.result.type is index:
            return  # made where it is used
        wide = [v for v in op.operands if v.type is index]
        small = all(v in self.chosen for v in wide)
        results = [self.type(v) for v in op.results]
        wanted: list[Type] = [self.type(v) for v in op.operands]
        match op.name:
            case _ if accessed_by(op) is not None:
                memref, subscripts, values = memory(op)
                wanted = [*(v.type for v in (*values, memref)), *[i32] * len(subscripts)]
            case name if name in _RING or _constant_shift(op, left=True):
                wanted = [results[0]] * 2
            case "arith.select":
                wanted = [i1, results[0], results[0]]
            case "scf.for" | "scf.parallel":
                loop = loop_of(op)
                wanted = [self.type(v) for v in loop.indices] * 3 + [v.type for v in loop.inits]
            case "scf.while" | "scf.yield" | "scf.condition" | "scf.reduce":
                wanted = [v.type for v in op.operands]
            case (
                "arith.index_cast"
                | "arith.table"
                | "memref.dim"
                | "scf.if"
                | "weft.assert"
                | "weft.print"
            ):
                pass
            case _ if wide:
                narrow_op = small and op.name not in _WIDE
                narrow_op &= not op.name.startswith("arith.sh") or _constant_shift(op)
                width: Type = i32 if narrow_op else index
                wanted = [width if v.type is index else v.type for v in op.operands]
                results = [width if v.type is index else v.type for v in op.results]
            case _:
                pass
        operands = [self.get(v, t) for v, t in zip(op.operands, wanted, strict=True)]
        attrs = op.attrs | self.notes.get(op, {})
        new = Op(op.name, operands, results, attrs, span=op.span)
        self.append(new)
        for region in op.regions:
            new.regions.append(self.narrowed(op, region))
        for old, made in zip(op.results, new.results, strict=True):
            self.replacement[old] = made
            if old in self.chosen and made.type is not i32:
                self.replacement[old] = self.cast(made, i32)
            elif old.type is index and old not in self.chosen and made.type is i32:
                self.replacement[old] = self.cast(made, index)

    def narrowed(self, op: Op, region: Block) -> Block:
        new = Block([self.type(v) for v in region.args])
        self.stand_for(region.args, new.args)
        with self.at(new):
            *inside, end = region.ops
            for inner in inside:
                self.rewrite(inner)
            if op.name == "scf.if":
                pairs = zip(end.operands, op.results, strict=True)
                operands = [self.get(v, self.type(r)) for v, r in pairs]
                self.append(Op(end.name, operands, (), dict(end.attrs), span=end.span))
            else:
                self.rewrite(end)
        return new


def _wrapped(value: int, wanted: Type) -> int:
    if wanted is not i32:
        return value
    value &= (1 << 32) - 1
    return value - (1 << 32) if value >> 31 else value


def _constant_shift(op: Op, left: bool = False) -> bool:
    """A shift by a constant below 32 (to the left, if ``left``)."""
    if op.name not in (("arith.shli",) if left else ("arith.shli", "arith.shrsi")):
        return False
    amount = constant_of(op.right)
    return amount is not None and 0 <= int(amount) < 32


def _integer(type: Type) -> bool:
    return isinstance(type, ScalarType) and type.kind in ("int", "index")


def _bits(value: Value) -> int:
    return value.scalar.bits
