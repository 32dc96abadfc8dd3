"""The host CPU as a target of the rule table: vector mathematics, checks and prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.codegen import float32, libraries
from weft.codegen.arith import Rule, scalar, word
from weft.codegen.emit import Emitter, llvm_type
from weft.codegen.interface import Check
from weft.codegen.machine import features
from weft.codegen.vectormath import scalar_name, sleef_name, variants
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import ScalarType, f32


class Cpu:
    """What the rules ask of the machine: mathematics, checks and prints."""

    rules: Mapping[str, Rule] = {}

    def __init__(self, function: Function) -> None:
        self.checks = _numbered(function, "weft.assert", "weft.bounds")
        self.prints = _numbered(function, "weft.print")
        self.record = ""  # the error record's name in the function that is being written
        self.leave = ""  # the label that ends it

    @property
    def check_table(self) -> tuple[Check, ...]:
        return tuple(_check(op) for op in self.checks)

    @property
    def print_table(self) -> tuple[tuple[tuple[str | None, ...], tuple[str, ...]], ...]:
        return tuple((tuple(op.attrs["parts"]), _kinds(op.operands)) for op in self.prints)

    @property
    def vector_bytes(self) -> int:
        """The length of vector registers; 0 if there are none with masks or at least AVX2."""
        available = features()
        return 64 if "avx512f" in available else 32 if "avx2" in available else 0

    def lanes(self, t: ScalarType) -> tuple[int, ...]:
        """The vector lengths for which SLEEF's functions can be called here."""
        if not libraries.load().sleef:
            return ()
        available = features()
        if "avx512f" in available:
            return (16, 8) if t is f32 else (8, 4)
        if "avx2" in available and "fma" in available:
            return (8,) if t is f32 else (4,)
        return ()

    def math_call(self, e: Emitter, function: str, t: ScalarType, operands: Sequence[str]) -> str:
        ty, scalar_ty = e.type(t), llvm_type(t)
        lanes = self.lanes(t)
        if function in float32.FUNCTIONS and t is f32 and lanes and e.fast:
            return float32.FUNCTIONS[function](e, operands[0])
        if e.lanes > 1:
            name = sleef_name(function, t, e.lanes)
            return e.intrinsic(name, ty, *((ty, operand) for operand in operands))
        name = scalar_name(function, t)
        pure = "nounwind willreturn memory(none)"
        if lanes:
            for n in lanes:
                vector = sleef_name(function, t, n)
                operand_types = ", ".join([f"<{n} x {scalar_ty}>"] * len(operands))
                e.declare(f"declare <{n} x {scalar_ty}> @{vector}({operand_types})")
                e.module.used[vector] = None
            mappings = ",".join(variants(function, t, lanes))
            pure += f' "vector-function-abi-variant"="{mappings}"'
        e.declare(f"declare {ty} @{name}({', '.join([ty] * len(operands))})")
        args = ", ".join(f"{ty} {operand}" for operand in operands)
        return e.inst(f"call {ty} @{name}({args}) {e.module.attribute(pure)}")

    def check(self, e: Emitter, op: Op, ok: str, operands: Sequence[str]) -> None:
        good, bad, write = e.label("good"), e.label("bad"), e.label("record")
        e.branch(ok, good, bad)
        e.start(bad)
        pair = e.inst(f"cmpxchg ptr {self.record}, i64 0, i64 {self.checks[op] + 1}"
                      " monotonic monotonic")  # fmt: skip
        e.branch(e.inst(f"extractvalue {{ i64, i1 }} {pair}, 1"), write, self.leave)
        e.start(write)
        values = op.operands if op.name == "weft.bounds" else op.operands[1:]
        for k, (value, name) in enumerate(zip(values, operands, strict=True)):
            if k >= 15:  # the record holds 16 words
                break
            place = e.inst(f"getelementptr i64, ptr {self.record}, i64 {k + 1}")
            e.line(f"store i64 {word(e, name, scalar(value))}, ptr {place}")
        e.jump(self.leave)
        e.start(good)

    def print(self, e: Emitter, op: Op, operands: Sequence[str]) -> None:
        words = e.fresh("words")
        e.allocas.append(f"{words} = alloca [{max(len(operands), 1)} x i64]")
        for k, (value, name) in enumerate(zip(op.operands, operands, strict=True)):
            place = e.inst(f"getelementptr i64, ptr {words}, i64 {k}")
            e.line(f"store i64 {word(e, name, scalar(value))}, ptr {place}")
        e.declare("declare void @weft_print(i64, ptr)")
        e.line(f"call void @weft_print(i64 {self.prints[op]}, ptr {words})")


def _numbered(function: Function, *names: str) -> dict[Op, int]:
    """The operations of these names, each with its place among them in program order."""
    found = [op for op in walk(function.body) if op.name in names]
    return {op: k for k, op in enumerate(found)}


def _kinds(values: Sequence[Value]) -> tuple[str, ...]:
    kinds = {"float": "float", "bool": "bool", "int": "int", "index": "int"}
    return tuple(kinds[scalar(v).kind] for v in values)


def _check(op: Op) -> Check:
    bounds = op.name == "weft.bounds"
    values = op.operands if bounds else op.operands[1:]
    s = op.span
    span = None
    if s is not None:
        span = (s.file, s.line, s.column, s.end_line, s.end_column, s.text, s.kernel)
    return Check(
        "bounds" if bounds else "assert", str(op.attrs.get("message", "")),
        str(op.attrs.get("tensor", "")), int(op.attrs.get("axis", 0)), _kinds(values), span,
    )  # fmt: skip
