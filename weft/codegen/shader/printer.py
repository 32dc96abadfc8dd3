"""The structured IR as statements of a shading language."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from weft.codegen.shader.dialects import Dialect, UnsupportedInShaderError, register, type_of
from weft.codegen.shader.memory import Accesses, Buffer
from weft.codegen.shader.rules import Expressions, narrowed, widened
from weft.codegen.shading import MOST_TURNS, STOPPED
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.interp import evaluate
from weft.ir.ops import MEMREF_AT, OPS
from weft.ir.types import ScalarType, f32, f64, i32, i64, index
from weft.ir.views import For, If, Parallel, While, constant_of, memory, reported
from weft.values import frozen, mutable

_CHECKS = ("weft.assert", "weft.bounds")


@frozen
class View:
    """A memref: where its elements are, and its sizes and strides, as expressions."""

    buffer: Buffer
    sizes: tuple[str, ...]
    strides: tuple[str, ...]


@mutable
class Written:
    """What a function became. ``shared``: declarations of what blocks have."""

    body: list[str]
    shared: list[str]
    used: set[str]  # names of buffers
    needs_64: Op | None = None  # the first with an integer of 64 bits
    needs_double: Op | None = None


class Printer:
    """``views``, ``names``: of the function's arguments; ``low``: those of 64 bits as an i32 or
    f32. ``watch``: it is an error where loops have too many turns for a driver."""

    def __init__(
        self, function: Function, dialect: Dialect, e: Expressions, threads: tuple[int, int, int],
        views: Mapping[Value, View], names: Mapping[Value, str], low: Mapping[Value, str],
        watch: bool,
    ) -> None:  # fmt: skip
        self.watch = watch
        self.function, self.d, self.e, self.threads = function, dialect, e, threads
        self.views, self.names, self.low = dict(views), dict(names), low
        self.lines: list[str] = []
        self.depth = 0
        self.made = Written(self.lines, [], set())
        self.accesses = Accesses(e, self.line)
        self.number = 0
        # A check that fails ends the thread where nobody waits for it.
        self.may_leave = not any(op.name == "gpu.barrier" for op in walk(function.body))

    def run(self) -> Written:
        if self.watch:
            self.line(self.d.variable("turns", "u32", "0u"))
        self.block(self.function.body)
        return self.made

    # -- names and lines

    def line(self, text: str) -> None:
        self.depth -= text.startswith("}")
        self.lines.append("  " * self.depth + text)
        self.depth += text.endswith("{")

    def fresh(self, value: Value) -> str:
        self.number += 1
        hint = re.sub(r"\W|__+", "_", value.name or "v", flags=re.ASCII).strip("_")
        name = f"{hint or 'v'}_{self.number}"
        return f"v_{name}" if name[0].isdigit() else name

    def noted(self, op: Op, *values: Value) -> None:
        for value in values:
            if isinstance(value.type, ScalarType):
                if value.type in (i64, index) and self.made.needs_64 is None:
                    self.made.needs_64 = op
                if value.type is f64 and self.made.needs_double is None:
                    self.made.needs_double = op

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

    # -- operations

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        if op.name == "arith.constant" or OPS[op.name].terminator:
            return
        write = _STATEMENTS.get(op.name)
        if write is not None:
            write(self, op)
        elif op.name in MEMREF_AT:
            self.access(op)
        else:
            self.scalar(op)

    def scalar(self, op: Op) -> None:
        constants = [constant_of(v) for v in op.operands]
        if op.name in ("arith.index_cast", "arith.truncf") and (
            op.operand in self.low and op.result.type in (i32, f32)
        ):
            self.names[op.result] = self.low[op.operand]
            return
        self.noted(op, *op.operands)
        if constants and None not in constants:  # a language may refuse what overflows there
            self.names[op.result] = self.e.literal(evaluate(op, constants), op.result.scalar)
            return
        self.let(op, op.result, self.e.of(op, [self.of(v) for v in op.operands]))

    def view(self, memref: Value) -> View:
        found = self.views[memref]
        self.made.used.add(found.buffer.name)
        return found

    def access(self, op: Op) -> None:
        memref, subscripts, values = memory(op)
        view = self.view(memref)
        self.noted(op, *subscripts)
        at = self.offset(view, [self.of(v) for v in subscripts])
        if "offset" in op.attrs:
            at = f"{at} + {op.attrs['offset']}"
        element = view.buffer.element
        if op.name == "memref.load":
            self.let(op, op.result, self.accesses.load(view.buffer, at))
        elif op.name == "memref.store":
            self.accesses.store(view.buffer, at, self.of(values[0]))
        elif not view.buffer.atomic:  # no two iterations can meet
            found = self.accesses.load(view.buffer, at)
            self.let(op, op.result, widened(self.e, found, element))
            made = self.e.combined(
                op.attrs["kind"], op.result.scalar, self.of(op.result), self.of(values[0])
            )
            self.accesses.store(view.buffer, at, narrowed(self.e, made, element))
        else:
            self.let(op, op.result, self.accesses.atomic(op, view.buffer, at, list(map(self.of, values))))

    def offset(self, view: View, subscripts: Sequence[str]) -> str:
        terms = [
            s if stride in ("1", "i32(1)") else f"{s} * {stride}"
            for s, stride in zip(subscripts, view.strides, strict=True)
        ]
        return " + ".join(terms) or "0"

    def alloca(self, op: Op) -> None:
        type = op.result.memref
        if type.shape is None:
            raise UnsupportedInShaderError(
                "a local array whose size is known at run time", op.span,
                "give it a constant size",
            )  # fmt: skip
        count, strides = 1, []
        for extent in reversed(type.shape):
            strides.insert(0, str(count))
            count *= extent
        name, shared = self.fresh(op.result), type.space == "shared"
        buffer = Buffer(name, type.element, False, True, False)
        text = self.d.array(name, buffer.type, max(count, 1), shared=shared)
        if shared:
            self.made.shared.append(text)
        else:
            self.line(text)
        self.views[op.result] = View(buffer, tuple(f"i32({n})" for n in type.shape), tuple(strides))

    def flatten(self, op: Op) -> None:
        view = self.view(op.operand)
        count = " * ".join(view.sizes) or "i32(1)"
        self.views[op.result] = View(view.buffer, (f"({count})",), ("1",))

    def dim(self, op: Op) -> None:
        size = self.views[op.operand].sizes[op.attrs["axis"]]
        t = type_of(op.result.scalar)
        self.let(op, op.result, size if size.startswith(t) else f"{t}({size})")

    def place(self, op: Op) -> None:
        name = op.name.removeprefix("gpu.")
        self.let(op, op.result, register(name, op.attrs["dimension"], self.threads))

    def barrier(self, op: Op) -> None:
        for text in self.d.barrier().split("\n"):
            self.line(text)

    # -- control

    def branch(self, op: Op) -> None:
        branch = If(op)
        names = self.variables(op, op.results)
        self.line(f"if ({self.of(branch.condition)}) {{")
        self.region(branch.then, names)
        if names or len(branch.otherwise.ops) > 1:
            self.line("} else {")
            self.region(branch.otherwise, names)
        self.line("}")
        self.names.update(zip(op.results, names, strict=True))

    def region(self, block: Block, names: Sequence[str]) -> None:
        self.block(block)
        self.assign(names, block.terminator.operands)

    def enter(self, iv: Value, bounds: Sequence[Value]) -> None:
        """Begins a loop over ``iv``."""
        lower, upper, step = map(self.of, bounds)
        name = self.names[iv] = self.fresh(iv)
        start = self.d.variable(name, type_of(iv.scalar), lower)
        self.begin(f"for ({start} {name} < {upper}; {name} = {name} + {step}) {{")

    def begin(self, head: str) -> None:
        """Begins a loop, whose turns are counted where a driver ends it after some."""
        if not self.watch:
            self.line(head)
            return
        self.line("turns = turns + 1u;")
        self.line(head)
        self.line("turns = turns + 1u;")
        self.made.used.add("error")
        self.line(f"if (turns > {MOST_TURNS}u) {{")
        for place, value in (("error[1]", f"{STOPPED}u"), ("error[0]", "1u")):
            self.line(self.d.store_atomic(place, value))
        self.line("break;")
        self.line("}")

    def for_loop(self, op: Op) -> None:
        loop = For(op)
        self.noted(op, loop.index)
        names = self.variables(op, loop.carried, loop.inits)
        self.names.update(zip(loop.carried, names, strict=True))
        self.enter(loop.index, loop.bounds)
        self.region(op.body, names)
        self.line("}")
        self.names.update(zip(op.results, names, strict=True))

    def parallel(self, op: Op) -> None:
        """One inside of an iteration, or of a function that one thread runs: in order."""
        loop = Parallel(op)
        self.noted(op, *loop.indices)
        names = self.variables(op, op.results, loop.inits)
        for iv, bounds in zip(loop.indices, loop.axes, strict=True):
            self.enter(iv, bounds)
        self.block(op.body)
        for name, kind, value in zip(names, loop.kinds, loop.contributions, strict=True):
            made = self.e.combined(kind, value.scalar, name, self.of(value))
            self.line(f"{name} = {made};")
        for _ in loop.indices:
            self.line("}")
        self.names.update(zip(op.results, names, strict=True))

    def while_loop(self, op: Op) -> None:
        loop = While(op)
        carried = self.variables(op, loop.before.args, op.operands)
        results = self.variables(op, op.results)
        self.names.update(zip(loop.before.args, carried, strict=True))
        self.begin("while (true) {")
        self.block(loop.before)
        self.assign(results, loop.handed)
        self.line(f"if (!({self.of(loop.condition)})) {{ break; }}")
        # What the region takes are its own: the results change at the next turn only.
        self.names.update(zip(loop.after.args, results, strict=True))
        self.block(loop.after)
        self.assign(carried, loop.after.terminator.operands)
        self.line("}")
        self.names.update(zip(op.results, results, strict=True))

    # -- checks

    def check(self, op: Op) -> None:
        self.made.used.add("error")
        if op.name == "weft.assert":
            failed = f"!{self.of(op.operands[0])}"
        else:
            subscript, extent = map(self.of, op.operands)
            failed = f"{subscript} < {self.e.literal(0, op.operands[0].scalar)} || {subscript} >= {extent}"
        self.line(f"if ({failed}) {{")
        self.line(f"if ({self.d.rmw('add', 'error[0]', 'u32(1u)')} == 0u) {{")
        self.line(self.d.store_atomic("error[1]", f"{op.attrs['number'] + 1}u"))
        for k, value in enumerate(reported(op)):
            self.line(self.d.store_atomic(f"error[{k + 2}]", self.word(value)))
        self.line("}")
        if self.may_leave:
            self.line("return;")
        self.line("}")

    def word(self, value: Value) -> str:
        """A value as 32 bits."""
        t, text = value.scalar, self.of(value)
        if t.is_float:
            return f"bitcast<u32>(f32({widened(self.e, text, t)}))"
        return f"select(0u, 1u, {text})" if type_of(t) == "bool" else f"u32({text})"


_STATEMENTS = {
    "memref.alloca": Printer.alloca, "memref.flatten": Printer.flatten, "memref.dim": Printer.dim,
    **{f"gpu.{name}": Printer.place for name in ("thread_id", "block_id", "block_dim", "grid_dim")},
    "gpu.barrier": Printer.barrier, "scf.if": Printer.branch, "scf.for": Printer.for_loop,
    "scf.parallel": Printer.parallel, "scf.while": Printer.while_loop,
    **dict.fromkeys(_CHECKS, Printer.check),
    "weft.print": lambda printer, op: None,  # a shader cannot
}  # fmt: skip


def atomically_updated(function: Function) -> set[Value]:
    """The memrefs of which an element is updated atomically."""
    found = set()
    for op in walk(function.body):
        if op.name in ("memref.atomic_rmw", "memref.atomic_cas") and op.attrs.get("atomic", True):
            found.add(memory(op)[0])
    return found


