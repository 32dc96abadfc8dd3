"""The checks and prints of a function: numbered in the code, described beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.codegen.arith import word
from weft.codegen.emit import Emitter
from weft.codegen.interface import Check
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import ScalarType
from weft.ir.views import CheckRace, reported
from weft.schedule.marks import CHECKS

MOST_WORDS = 15  # that a check reports: the record holds one more


def described(function: Function) -> tuple[Check, ...]:
    """``CpuCode.checks``."""
    return tuple(_check(op) for op in walk(function.body) if op.name in CHECKS)


def printed(function: Function) -> tuple[tuple[tuple[str | None, ...], tuple[str, ...]], ...]:
    """``CpuCode.prints``."""
    prints = (op for op in walk(function.body) if op.name == "weft.print")
    return tuple((tuple(op.attrs["parts"]), _printed(op)) for op in prints)


def _printed(op: Op) -> tuple[str, ...]:
    """The kinds of the values, each with its format behind a colon if it has one."""
    forms = op.attrs.get("formats") or [""] * len(op.operands)
    pairs = zip(_marked(op, op.operands), forms, strict=True)
    return tuple(f"{kind}:{form}" if form else kind for kind, form in pairs)


def _marked(op: Op, values: Sequence[Value]) -> tuple[str, ...]:
    marked = op.attrs.get("unsigned", ())
    return tuple("unsigned" if k in marked else kind for k, kind in enumerate(_kinds(values)))


class Reports:
    """What a target knows of the checks and prints of the functions that are being written: how
    many different ones they have."""

    def __init__(self, functions: Iterable[Function]) -> None:
        ops = [op for function in functions for op in walk(function.body)]
        self.checks = len({op.attrs["number"] for op in ops if op.name in CHECKS})
        self.prints = len({op.attrs["number"] for op in ops if op.name == "weft.print"})
        self.record = ""  # the error record's name
        self.leave = ""  # the label where a check that fails goes on

    def fail(self, e: Emitter, op: Op, ok: str, words: Sequence[tuple[str, ScalarType]]) -> None:
        """Where ``ok`` is false: writes the record, unless another did, and leaves."""
        good, bad, write = e.label("good"), e.label("bad"), e.label("record")
        e.branch(ok, good, bad)
        e.start(bad)
        pair = e.inst(f"cmpxchg ptr {self.record}, i64 0, i64 {op.attrs['number'] + 1}"
                      f" {e.ordering} monotonic")  # fmt: skip
        e.branch(e.inst(f"extractvalue {{ i64, i1 }} {pair}, 1"), write, self.leave)
        e.start(write)
        for k, (name, type) in enumerate(words):
            place = e.inst(f"getelementptr i64, ptr {self.record}, i64 {k + 1}")
            e.line(f"store i64 {word(e, name, type)}, ptr {place}")
        e.jump(self.leave)
        e.start(good)


def _kinds(values: Sequence[Value]) -> tuple[str, ...]:
    kinds = {"float": "float", "bool": "bool", "int": "int", "index": "int"}
    return tuple(kinds[v.scalar.kind] for v in values)


def _check(op: Op) -> Check:
    if op.name == "weft.check_race":
        return _race_check(op)
    kind = "overflow" if "overflow" in op.attrs else op.name.removeprefix("weft.")
    return Check(
        kind, str(op.attrs.get("message", "")),
        str(op.attrs.get("tensor", "")), int(op.attrs.get("axis", 0)), _marked(op, reported(op)),
        _span(op),
    )  # fmt: skip


def _race_check(op: Op) -> Check:
    form = "grouped" if op.attrs["grouped"] else ""
    values = ("int",) * len(op.operands)  # two words instead of the memref and the iteration
    return Check("race", op.attrs["kind"], form, CheckRace(op).rank, values, _span(op))


def _span(op: Op) -> tuple[str, int, int, int, int, str, str] | None:
    s = op.span
    if s is None:
        return None
    return (s.file, s.line, s.column, s.end_line, s.end_column, s.text, s.kernel)
