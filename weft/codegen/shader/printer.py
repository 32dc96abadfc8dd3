"""The structured IR as statements of a shading language."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack

from weft.codegen.shader.arrays import Arrays, whole
from weft.codegen.shader.dialects import Dialect, register, type_of
from weft.codegen.shader.memory import View, vector_of
from weft.codegen.shader.needed import needed
from weft.codegen.shader.rules import Expressions, widened
from weft.codegen.shader.runs import WIDTH, Forms, Place, lanes
from weft.codegen.shader.writer import Written
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.interp import evaluate
from weft.ir.ops import DIVISIONS, OPS, is_slow
from weft.ir.scalar import literal
from weft.ir.types import f32, i1, i32
from weft.ir.views import (
    For,
    If,
    Number,
    Parallel,
    While,
    accessed_by,
    constant_of,
    memory,
    reported,
)
from weft.ir.writes import loaded
from weft.passes.constants import canonical

_FEW = 8  # operations that are carried out, and not branched around


def _is_quick(op: Op) -> bool:
    row = OPS[op.name]
    return row.pure and not (op.regions or is_slow(op.name) or op.name in DIVISIONS)


def _unchanged(op: Op, known: Callable[[Value], Number | None]) -> int | None:
    """Which operand the result is, of integers to which schedules add nothing."""
    if len(op.operands) != 2:
        return None
    left, right = map(known, op.operands)
    match op.name:
        case "arith.addi" | "arith.subi" if right == 0:
            return 0
        case "arith.addi" if left == 0:
            return 1
        case "arith.muli" if op.result.type is not i1 and 1 in (left, right):
            return 0 if right == 1 else 1
        case "arith.maxsi" if (of := op.left.op) is not None and of.name == op.name:
            return 0 if right is not None and right == known(of.right) else None
        case _:
            return None


def folds(function: Function) -> bool:
    """See ``Form``."""
    places = (op for op in walk(function.body) if op.name in ("gpu.block_id", "gpu.grid_dim"))
    return all(op.attrs["dimension"] != "z" for op in places)


class Printer(Arrays):
    """``low``: arguments of 64 bits as an i32 or f32."""

    def __init__(
        self, function: Function, dialect: Dialect, e: Expressions, threads: tuple[int, int, int],
        private: int, views: Mapping[Value, View], names: Mapping[Value, str],
        low: Mapping[Value, str], atomic: Set[Value], joined: Mapping[Op, Place],
        forms: Forms, watch: bool,
    ) -> None:  # fmt: skip
        super().__init__(dialect, e, private, views, names, atomic, joined, watch)
        self.function, self.threads, self.low = function, threads, low
        self.same: dict[Value, str] = {}  # integers of 64 bits as the i32 that they are made of
        # A check that fails ends the thread where nobody waits for it.
        self.may_leave = not any(op.name == "gpu.barrier" for op in walk(function.body))
        self.folds = folds(function)
        self.lanes = lanes(function, joined, forms)
        self.constants: dict[Value, Number] = {}  # results of operations on constants
        self.needed = needed(function, joined)
        self.rows.update((at[0], *at[1][:-1]) for op in self.needed
                         if (place := joined.get(op)) is None or place.run[0] is op
                         if accessed_by(op) is not None and (at := memory(op)))  # fmt: skip

    def run(self) -> Written:
        self.block(self.function.body)
        return self.made

    # -- operations

    def block(self, block: Block) -> None:
        outside, self.known = self.known, self.known.copy()
        for op in block.ops:
            if op in self.needed:
                self.op(op)
        self.known = outside

    def op(self, op: Op) -> None:
        if op.name == "arith.constant" or OPS[op.name].terminator:
            return
        write = _STATEMENTS.get(op.name)
        if write is not None:
            write(self, op)
        elif accessed_by(op) is not None:
            self.access(op)
        else:
            self.scalar(op)

    def scalar(self, op: Op) -> None:
        if self.folded(op):
            return
        if op.name in ("arith.index_cast", "arith.truncf") and (
            op.operand in self.low and op.result.type in (i32, f32)
        ):
            self.names[op.result] = self.low[op.operand]
            return
        if op.name == "arith.index_cast" and op.operand.type is i32 and op.result.scalar.bits == 64:
            value = self.same[op.result] = self.of(op.operand)
            self.names[op.result] = self.d.longer(value, "i64")
            return
        if op.name == "arith.sitofp" and op.operand in self.same:
            value = self.same[op.operand]
            self.let(op, op.result, f"{type_of(op.result.scalar)}({value})")
            return
        self.noted(op, *op.operands)
        texts = [self.of(v) for v in op.operands]
        if (same := _unchanged(op, self.known_number)) is not None:
            self.names[op.result] = texts[same]
            return
        text = self.e.of(op, texts)
        key = f"{type_of(op.result.scalar)} {text}"
        if key in self.known:
            self.names[op.result] = self.known[key]
            return
        self.let(op, op.result, text)
        self.known[key] = self.names[op.result]

    def folded(self, op: Op) -> bool:
        """Whether ``op`` computes with constants alone. A language may refuse what overflows there,
        or to convert between them."""
        known = [self.known_number(v) for v in op.operands]
        pairs = zip(known, op.operands, strict=True)
        values = [literal(number, v.scalar) for number, v in pairs if number is not None]
        if not known or len(values) < len(known):
            return False
        found = canonical(evaluate(op, values), op.result.scalar)
        self.constants[op.result] = found
        self.names[op.result] = self.e.literal(found, op.result.scalar)
        return True

    def known_number(self, value: Value) -> Number | None:
        number = constant_of(value)
        return self.constants.get(value) if number is None else number

    def place(self, op: Op) -> None:
        name = op.name.removeprefix("gpu.")
        where = register(name, op.attrs["dimension"], self.threads, folds=self.folds)
        self.let(op, op.result, where)

    @functools.cached_property
    def hands_over(self) -> bool:
        """Whether threads may load from a buffer what others have stored there."""
        read = set(map(whole, loaded(self.function)))
        return any(self.views[v].buffer.written for v in self.function.args if v in read)

    def barrier(self, op: Op) -> None:
        for text in self.d.barrier(buffers=self.hands_over):
            self.line(text)

    # -- control

    def branch(self, op: Op) -> None:
        branch = If(op)
        if self.d.reads_anywhere and self.is_few_loads(branch):
            self.chosen(op, branch)
            return
        names = self.variables(op, op.results)
        self.line(f"if ({self.of(branch.condition)}) {{")
        self.region(branch.then, names)
        if names or len(branch.otherwise.ops) > 1:
            self.line("} else {")
            self.region(branch.otherwise, names)
        self.line("}")
        self.names.update(zip(op.results, names, strict=True))

    def is_few_loads(self, branch: If) -> bool:
        """Whether the branch does nothing but load something. A driver waits for that where the
        branch ends, and takes longer to compile it than a choice."""
        ops = [op for op in branch.then.ops[:-1]
               if op.name != "arith.constant" and op in self.needed]  # fmt: skip
        loads = [op for op in ops if op.name == "memref.load"]
        return (
            0 < len(loads) <= len(ops) <= _FEW
            and all(op.name == "arith.constant" for op in branch.otherwise.ops[:-1])
            and all(op in loads or _is_quick(op) for op in ops)
            and not any(self.views[memory(op)[0]].buffer.by_atomics for op in loads)
        )

    def chosen(self, op: Op, branch: If) -> None:
        """``branch``, of few loads: of place 0 where it is not taken, which each array has."""
        self.guard, guard = self.of(branch.condition), self.guard
        for inner in branch.then.ops:
            if inner in self.needed:
                self.op(inner)
        arms = [tuple(map(self.of, branch.arms(k))) for k in range(len(op.results))]
        left = list(zip(op.results, arms, strict=True))
        while left:
            (result, (yes, no)), *left = left
            vector = vector_of([yes, *(other for _, (other, _) in left[: WIDTH - 1])])
            if yes == no:
                self.names[result] = yes
            elif vector and {n for _, (_, n) in left[: WIDTH - 1]} == {no}:
                others = [v for v, _ in left[: WIDTH - 1]]
                self.either_four([result, *others], vector, no)
                left = left[WIDTH - 1 :]
            else:
                self.let(op, result, f"select({no}, {yes}, {self.guard})")
        self.guard = guard

    def region(self, block: Block, names: Sequence[str]) -> None:
        self.block(block)
        self.assign(names, block.terminator.operands)

    def over(
        self, iv: Value, bounds: Sequence[Value], *, rolled: bool = False
    ) -> AbstractContextManager[None]:
        """A loop over ``iv``. ``rolled``: it is not worth unrolling."""
        lower, upper, step = map(self.of, bounds)
        if rolled:
            step = self.d.rolled(step, type_of(iv.scalar))
        name = self.names[iv] = self.fresh(iv)
        self.line(self.d.variable(name, type_of(iv.scalar), lower))
        return self.loop(f"{name} < {upper}", f"{name} = {name} + {step}")

    def for_loop(self, op: Op) -> None:
        loop = For(op)
        self.noted(op, loop.index)
        names = self.variables(op, loop.carried, loop.inits)
        self.names.update(zip(loop.carried, names, strict=True))
        with self.over(loop.index, loop.bounds, rolled=op.attrs.get("unroll") == 1):
            self.region(op.body, names)
        self.names.update(zip(op.results, names, strict=True))

    def parallel(self, op: Op) -> None:
        """One inside of an iteration, or of a function that one thread runs: in order."""
        loop = Parallel(op)
        self.noted(op, *loop.indices)
        names = self.variables(op, op.results, loop.inits)
        with ExitStack() as loops:
            for iv, bounds in zip(loop.indices, loop.axes, strict=True):
                loops.enter_context(self.over(iv, bounds))
            self.block(op.body)
            for name, kind, value in zip(names, loop.kinds, loop.contributions, strict=True):
                made = self.e.combined(kind, value.scalar, name, self.of(value))
                self.line(f"{name} = {made};")
        self.names.update(zip(op.results, names, strict=True))

    def while_loop(self, op: Op) -> None:
        loop = While(op)
        carried = self.variables(op, loop.before.args, op.operands)
        results = self.variables(op, op.results)
        self.names.update(zip(loop.before.args, carried, strict=True))
        self.number += 1
        goes_on = f"goes_on_{self.number}"
        self.line(self.d.variable(goes_on, "bool", "true"))
        with self.loop(goes_on):
            self.block(loop.before)
            self.assign(results, loop.handed)
            self.line(f"{goes_on} = {self.of(loop.condition)};")
            self.line(f"if (!{goes_on}) {{ break; }}")
            # What the region takes are its own: the results change at the next turn only.
            self.names.update(zip(loop.after.args, results, strict=True))
            self.block(loop.after)
            self.assign(carried, loop.after.terminator.operands)
        self.names.update(zip(op.results, results, strict=True))

    # -- checks

    def asserted(self, op: Op) -> None:
        ok, *_ = map(self.of, op.operands)
        self.check(op, f"!{ok}")

    def bounds(self, op: Op) -> None:
        subscript, extent = map(self.of, op.operands)
        zero = self.e.literal(0, op.left.scalar)
        self.check(op, f"{subscript} < {zero} || {subscript} >= {extent}")

    def check(self, op: Op, failed: str) -> None:
        self.made.used.add("error")
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
        if (number := self.known_number(value)) is not None and not t.is_float:
            return f"{int(number) & 0xFFFFFFFF}u"
        if t.is_float:
            return f"bitcast<u32>(f32({widened(self.e, text, t)}))"
        return f"select(0u, 1u, {text})" if type_of(t) == "bool" else f"u32({text})"


_STATEMENTS = {
    "memref.alloca": Printer.alloca, "memref.flatten": Printer.flatten, "memref.dim": Printer.dim,
    **{f"gpu.{name}": Printer.place for name in ("thread_id", "block_id", "block_dim", "grid_dim")},
    "gpu.barrier": Printer.barrier, "scf.if": Printer.branch, "scf.for": Printer.for_loop,
    "scf.parallel": Printer.parallel, "scf.while": Printer.while_loop,
    "weft.assert": Printer.asserted, "weft.bounds": Printer.bounds,
    "weft.print": lambda printer, op: None,  # a shader cannot
}  # fmt: skip
