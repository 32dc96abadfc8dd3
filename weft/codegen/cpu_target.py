"""The host CPU as a target of the rule table: vector mathematics, checks and prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.codegen import float32, interrupt, ranges
from weft.codegen.arith import Rule, intrinsic, word
from weft.codegen.emit import Emitter, llvm_type
from weft.codegen.interface import word_shift
from weft.codegen.lanes import parallel_loop
from weft.codegen.tables import MOST_WORDS, Reports
from weft.codegen.vectormath import scalar_name, sleef_name, variants
from weft.ir.core import Function, Op, Value
from weft.ir.types import ScalarType, f32, i64
from weft.ir.views import CheckRace, reported
from weft.schedule.machine import CpuMachine


class CpuTarget(Reports):
    """What the rules ask of the machine: mathematics, checks and prints."""

    rules: Mapping[str, Rule] = {
        "scf.parallel": parallel_loop,
        # x86 has no instruction that orders zeros: it takes four more, on the way of every maximum.
        "arith.maximumf": intrinsic("maximum", fast=True, zeros=False),
        "arith.minimumf": intrinsic("minimum", fast=True, zeros=False),
    }
    traps = marks_streams = vectorises = True
    saturates = copies_loops = False
    constants = ""

    def __init__(self, function: Function, machine: CpuMachine | None = None) -> None:
        """Without a ``machine``, one that has no vectors."""
        self.machine = machine or CpuMachine()
        super().__init__([function])
        self.shadows: dict[Value, tuple[str, str]] = {}  # likewise: see ``interface.Slot``
        self.polls: tuple[str, str] = "", ""  # see ``interrupt.clock``

    @property
    def scales(self) -> bool:
        return self.machine.scales

    @property
    def gathers(self) -> bool:
        return self.machine.gathers

    def math_call(self, e: Emitter, function: str, t: ScalarType, operands: Sequence[str]) -> str:
        lanes = self.machine.lanes(t)
        if function in float32.FUNCTIONS and t is f32 and lanes and e.fast:
            return float32.FUNCTIONS[function](e, operands[0])
        if function in ranges.LIMITS and lanes:
            return ranges.reduced(
                e, function, t, operands[0], lambda x: self._library(e, function, t, [x])
            )
        return self._library(e, function, t, operands)

    def _library(self, e: Emitter, function: str, t: ScalarType, operands: Sequence[str]) -> str:
        """A call of libm, or of SLEEF where there are lanes."""
        ty, scalar_ty = e.type(t), llvm_type(t)
        lanes = self.machine.lanes(t)
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

    def poll(self, e: Emitter, op: Op) -> None:
        if "poll" in op.attrs:
            interrupt.poll_every(e, op.attrs["poll"], self.polls, self.leave)

    def strip(
        self, e: Emitter, op: Op, upper: str, run: Callable[[str, str, list[str]], Sequence[str]]
    ) -> Callable[[str, list[str]], Sequence[str]] | None:
        if "strips" not in op.attrs:
            return None
        return interrupt.in_strips(e, op.attrs["strips"], upper, self.polls, self.leave, run)

    def check(self, e: Emitter, op: Op, ok: str, operands: Sequence[str]) -> None:
        pairs = zip(reported(op), operands, strict=True)
        self.fail(
            e, op, ok, [(word(e, name, value.scalar), i64) for value, name in pairs][:MOST_WORDS]
        )

    def check_race(self, e: Emitter, op: Op, pointer: str, operands: Sequence[str]) -> None:
        iteration, _, others = CheckRace(op).split(operands)
        shadow, shift = self.shadows[CheckRace(op).memref]
        begin = e.views[CheckRace(op).memref].pointer
        ends = [e.inst(f"ptrtoint ptr {p} to i64") for p in (pointer, begin)]
        cell = e.inst(f"lshr i64 {e.inst(f'sub i64 {ends[0]}, {ends[1]}')}, {shift}")
        cell = e.inst(f"mul i64 {cell}, {op.attrs['words']}")
        e.declare(_MARK.replace("SIZE", str(1 << word_shift(self.checks))))
        raised = e.inst(f"add i64 {iteration}, 1")
        raised = e.inst(f"shl i64 {raised}, {word_shift(self.checks)}")
        own = e.inst(f"or i64 {raised}, {op.attrs['number']}")

        def met(place: int, take: str) -> str:
            at = e.inst(f"add i64 {cell}, {place}")
            at = e.inst(f"getelementptr i64, ptr {shadow}, i64 {at}")
            return e.inst(f"call i64 @weft_met(ptr {at}, i64 {own}, i1 {take})")

        first, *second = op.attrs["own"]
        other = met(first, "true")
        if second:  # the place for another iteration is taken if the first one is another's
            met(second[0], e.inst(f"icmp ne i64 {other}, 0"))
            other = "0"
        for place in op.attrs["against"]:
            found = met(place, "false")
            none = e.inst(f"icmp eq i64 {other}, 0")
            other = e.inst(f"select i1 {none}, i64 {found}, i64 {other}")
        self.fail(
            e, op, e.inst(f"icmp eq i64 {other}, 0"), [(w, i64) for w in (own, other, *others)]
        )

    def print(self, e: Emitter, op: Op, operands: Sequence[str]) -> None:
        words = e.fresh("words")
        e.allocas.append(f"{words} = alloca [{max(len(operands), 1)} x i64]")
        for k, (value, name) in enumerate(zip(op.operands, operands, strict=True)):
            place = e.inst(f"getelementptr i64, ptr {words}, i64 {k}")
            e.line(f"store i64 {word(e, name, value.scalar)}, ptr {place}")
        e.call_void("weft_print", ("i64", str(op.attrs["number"])), ("ptr", words))


# What another iteration left at a place, else 0. An empty place is taken by this iteration's word
# where ``take`` says so. All threads see accesses to these words in one order, and each notes what
# it does before it looks: of two that meet, one at least sees the other.
_MARK = """define internal i64 @weft_met(ptr %place, i64 %word, i1 %take) nounwind {
entry:
  %seen = load atomic i64, ptr %place seq_cst, align 8
  %empty = icmp eq i64 %seen, 0
  %try = and i1 %empty, %take
  br i1 %try, label %exchange, label %have
exchange:
  %pair = cmpxchg ptr %place, i64 0, i64 %word seq_cst seq_cst, align 8
  %found = extractvalue { i64, i1 } %pair, 0
  br label %have
have:
  %there = phi i64 [ %seen, %entry ], [ %found, %exchange ]
  %difference = xor i64 %there, %word
  %own = icmp ult i64 %difference, SIZE
  %other = select i1 %own, i64 0, i64 %there
  ret i64 %other
}"""
