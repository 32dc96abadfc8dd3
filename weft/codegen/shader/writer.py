"""Lines of a shader, and the names of values in them."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field

from weft.codegen.shader.dialects import Dialect, type_of
from weft.codegen.shader.rules import Expressions
from weft.codegen.shading import STOPPED
from weft.ir.core import Op, Value
from weft.ir.types import f64, i64, index
from weft.ir.views import constant_of
from weft.values import mutable


@mutable
class Written:
    """What a function became. ``shared``: declarations of what blocks have, so many ``bytes``."""

    body: list[str]
    shared: list[str]
    used: set[str]  # names of buffers
    first: dict[str, Op] = field(default_factory=dict)  # operations with "i64" and "f64"
    bytes: int = 0


class Writer:
    """``names``: of the function's arguments. ``watch``: it is an error where a driver ends loops
    too early."""

    def __init__(
        self, dialect: Dialect, e: Expressions, names: Mapping[Value, str], watch: bool
    ) -> None:
        self.d, self.e, self.watch = dialect, e, watch
        self.names = dict(names)
        self.lines: list[str] = []
        self.depth = 0
        self.made = Written(self.lines, [], set())
        self.number = 0

    def line(self, text: str) -> None:
        self.depth -= text.startswith("}")
        self.lines.append("  " * self.depth + text)
        self.depth += text.endswith("{")

    def fresh(self, value: Value) -> str:
        self.number += 1
        if not value.name:
            return f"v_{self.number}"
        hint = re.sub(r"\W|__+", "_", value.name, flags=re.ASCII).strip("_")
        name = f"{hint or 'v'}_{self.number}"
        return f"v_{name}" if name[0].isdigit() else name

    def noted(self, op: Op, *values: Value) -> None:
        for value in values:
            if value.type is i64 or value.type is index:
                self.made.first.setdefault("i64", op)
            elif value.type is f64:
                self.made.first.setdefault("f64", op)

    def of(self, value: Value) -> str:
        number = constant_of(value)
        if number is not None:
            return self.e.literal(number, value.scalar)
        return self.names[value]

    def let(self, op: Op, value: Value, text: str) -> None:
        self.noted(op, value)
        name = self.names[value] = self.fresh(value)
        self.line(self.d.let(name, type_of(value.scalar), text))

    def variables(self, op: Op, values: Sequence[Value], inits: Sequence[Value] = ()) -> list[str]:
        """Variables for results, or for what a loop carries."""
        self.noted(op, *values)
        names = [self.fresh(v) for v in values]
        starts = [self.of(v) for v in inits] or [""] * len(names)
        for name, value, start in zip(names, values, starts, strict=True):
            self.line(self.d.variable(name, type_of(value.scalar), start))
        return names

    def assign(self, names: Sequence[str], values: Sequence[Value]) -> None:
        """All at once: a value may be one of the variables."""
        texts = [self.of(v) for v in values]
        pairs = [(n, t) for n, t in zip(names, texts, strict=True) if n != t]
        written = {n for n, _ in pairs}
        if len(pairs) > 1 and any(t in written for _, t in pairs):
            kept = []
            for (name, text), value in zip(pairs, [v for n, v in zip(names, values, strict=True)
                                                   if n != self.of(v)], strict=True):  # fmt: skip
                self.number += 1
                self.line(self.d.let(f"next_{self.number}", type_of(value.scalar), text))
                kept.append((name, f"next_{self.number}"))
            pairs = kept
        for name, text in pairs:
            self.line(f"{name} = {text};")

    # -- loops

    @contextmanager
    def loop(self, condition: str, step: str = "") -> Generator[None]:
        """What is written in here runs while ``condition``, of variables, holds."""
        self.line(f"for (; {condition}; {step}) {{" if step else f"while ({condition}) {{")
        yield
        self.line("}")
        if self.watch:
            self.made.used.add("error")
            self.line(f"if ({condition}) {{")
            self.line(self.d.store_atomic("error[1]", f"{STOPPED}u"))
            self.line(self.d.store_atomic("error[0]", "1u"))
            self.line("}")
