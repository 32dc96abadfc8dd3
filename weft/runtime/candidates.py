"""The schedules that a call may run by, as a table: what ``kernel.schedules(...)`` gives."""

from __future__ import annotations

import contextlib
import functools
import html
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import torch

from weft import compiler
from weft.codegen import cpu, cuda, ptx
from weft.codegen.launching import Facts
from weft.codegen.machine import host_cpu
from weft.errors import KernelValueError, ScheduleError
from weft.frontend.lower import Lowered, lower
from weft.index.elements import elements, given
from weft.index.operations import operations
from weft.index.sums import UncountableError
from weft.ir.core import Function, Value
from weft.options import Options
from weft.runtime import build
from weft.runtime.arguments import sizes_of
from weft.runtime.fastpath import passed
from weft.runtime.function import CompiledFunction, packed
from weft.runtime.inspection import visited
from weft.runtime.launch import Launcher
from weft.runtime.tuned import records
from weft.schedule import apply_cuda, default_cpu
from weft.schedule.apply_cpu import transformed
from weft.schedule.choose import alignments, candidate, choose, fitted
from weft.schedule.cost import Work
from weft.schedule.grid import THREADS, Dims
from weft.schedule.guards import AtMost, MultipleOf, Positive, judged
from weft.schedule.language import KeepRow, RegisterWindow, Schedule, Vectorize, only, show
from weft.schedule.machine import GpuMachine
from weft.schedule.rows import find, shared
from weft.values import frozen

_NOTHING = "nothing: LLVM vectorises"
H200 = GpuMachine(132, 50 << 20)  # where no GPU is here


@frozen
class GuardOfCall:
    """What a call must satisfy: the guard's text, whether this call does, and why not."""

    text: str
    holds: bool
    why: str = ""

    def __str__(self) -> str:
        return self.text if self.holds else f"not {self.text}: {self.why}"


@frozen
class Row:
    """One candidate. ``origin``: "asked for", "tuned", or "". ``taken``: what this call runs.
    ``bytes``: of distinct elements that the loop touches. ``accessed``: bytes that threads load and
    store by this schedule (None where that is not known), ``operations``: those of the loop;
    ``registers``: of a thread, None where nobody has counted them. ``grid`` and ``block`` are
    (0, 0, 0) on the CPU."""

    loop: str
    line: int
    device: str
    schedule: str
    guards: tuple[GuardOfCall, ...]
    origin: str
    taken: bool
    bytes: int
    operations: int
    exact: bool
    grid: Dims
    block: Dims
    count: Callable[[], int | None] = field(repr=False)
    assemble: Callable[[], int | None] = field(repr=False)

    # Both are as much work as to compile the candidate: for who asks.
    @functools.cached_property
    def accessed(self) -> int | None:
        return self.count()

    @functools.cached_property
    def registers(self) -> int | None:
        return self.assemble()

    @property
    def asked(self) -> bool:
        """Whether it is a person's own."""
        return self.origin == "asked for"

    @property
    def why(self) -> str:
        """Why this call takes it, or not."""
        failed = [str(guard) for guard in self.guards if not guard.holds]
        if self.taken:
            return "taken: the first whose guards hold"
        return "; ".join(failed) or "one before it is taken"

    def described(self) -> list[str]:
        """The candidate in a few lines."""
        parts = [f"grid {_dims(self.grid)}, block {_dims(self.block)}"] if any(self.grid) else []
        parts += [f"{large(self.accessed, 'B')} accessed"] if self.accessed is not None else []
        parts += [f"{self.registers} registers"] if self.registers is not None else []
        return [
            f"{'>' if self.taken else ' '} {self.schedule or _NOTHING}",
            *([f"      {', '.join(parts)}"] if parts else []),
            f"      {self.origin}{'; ' if self.origin else ''}{self.why}",
        ]


class Schedules(tuple[Row, ...]):
    """The candidates of each loop that a call launches, in the order in which they are tried."""

    @property
    def taken(self) -> tuple[Row, ...]:
        """What this call runs, loop by loop."""
        return tuple(row for row in self if row.taken)

    def __str__(self) -> str:
        """Of each loop the candidates up to the one that this call takes."""
        lines: list[str] = []
        later = 0
        before = None
        for k, row in enumerate(self):
            if before is None or row.loop != before.loop:
                later = 0
                least = "" if row.exact else " at least"
                spent = f"{large(row.bytes, 'B')}, {large(row.operations, ' operations')}{least}"
                lines += [
                    *[""] * bool(lines),
                    f"{row.loop}, line {row.line}, on {row.device}: {spent}",
                ]
            before = row
            lines += row.described() if not later else []
            later += row.taken or later > 0
            last = k + 1 == len(self) or self[k + 1].loop != row.loop
            if last and later > 1:
                lines.append(f"  {later - 1} more, which calls of other sizes may take")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        heads = ("", "schedule", "this call", "grid", "block", "bytes", "accessed", "operations",
                 "registers")  # fmt: skip
        parts = ["<table><tr>", *(f"<th>{head}</th>" for head in heads), "</tr>"]
        for row in self:
            cells = (
                "▶" if row.taken else "", row.schedule or _NOTHING, row.why,
                _dims(row.grid), _dims(row.block), large(row.bytes, "B"),
                "-" if row.accessed is None else large(row.accessed, "B"),
                large(row.operations), "-" if row.registers is None else row.registers,
            )  # fmt: skip
            parts += ["<tr>", *(f"<td>{html.escape(str(cell))}</td>" for cell in cells), "</tr>"]
        return "".join([*parts, "</table>"])


def _dims(dims: Dims) -> str:
    return " x ".join(map(str, dims)) if any(dims) else "-"


def large(number: int, of: str = "") -> str:
    """A number to three digits."""
    for sign, unit in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= unit:
            return f"{number / unit:.3g} {sign}{of}"
    return f"{number}{of if of.startswith(' ') or not of else f' {of}'}"


def of_call(
    host: Callable[..., Any], launchers: Sequence[Launcher], runs: Sequence[Callable[..., Any]],
    args: tuple[Any, ...], kwargs: dict[str, Any], device: str | None, machine: GpuMachine | None,
) -> Schedules:  # fmt: skip
    """The candidates of each loop of a call, in which ``runs`` carry out the loops."""
    # Aliases: what is not written is not counted as written.
    given = [v.data if isinstance(v, torch.Tensor) else v for v in args]
    named = {n: v.data if isinstance(v, torch.Tensor) else v for n, v in kwargs.items()}
    rows = visited(
        host, launchers, runs, given, named,
        lambda launcher, values: table(launcher, values, device, machine),
    )  # fmt: skip
    return Schedules([row for loop in rows for row in loop])


def table(
    launcher: Launcher, args: tuple[Any, ...], device: str | None, machine: GpuMachine | None
) -> list[Row]:
    """The candidates of one loop for a call with ``args``."""
    specs = launcher.forms.specs(args)
    lowered = lower(launcher.region, specs, launcher.source, debug=launcher.options.debug)
    values = [*passed(specs.values(), args), *(torch.empty(()) for _ in lowered.results)]
    return rows_of(
        lowered, launcher.options, launcher.region.span.line, values, device, machine
    )  # fmt: skip


def rows_of(
    lowered: Lowered, options: Options, line: int, values: Sequence[Any], device: str | None,
    machine: GpuMachine | None,
) -> list[Row]:  # fmt: skip
    """The candidates of a loop, of which ``values`` are the arguments."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    place = device or (tensors[0].device.type if tensors else "cpu")
    name = lowered.function.name
    if place == "mps":
        raise KernelValueError(
            "schedules are shown for CPUs and CUDA, and these tensors are on mps",
            lowered.function.span,
            help='write device="cpu" or device="cuda"; WEFT_LOGS=schedule tells what a call on mps '
            "takes",
        )
    text = None if options.debug else options.asked(place, name)
    call = _Call(lowered.function, line, options, values, text)
    show_rows = functools.partial(call.on_gpu, machine, tensors) if place == "cuda" else call.on_cpu
    if text is None and not options.debug and tensors and tensors[0].device.type == place:
        digest = build.loop_for(None, None, {}, options, lowered).digest
        call.asked = records.schedule(options, name, digest, tensors)
        call.tuned = call.asked is not None
        with contextlib.suppress(ScheduleError):  # of an older record: calls do without
            return show_rows()
        call.asked, call.tuned = None, False
    return show_rows()


class Listed(CompiledFunction):
    """Notes the candidates of each call in ``rows``, in place of those of an earlier one."""

    def __init__(
        self, function: Function, options: Options, line: int, device: str | None,
        machine: GpuMachine | None, rows: dict[str, list[Row]],
    ) -> None:  # fmt: skip
        super().__init__(function, options)
        self.line, self.device, self.machine, self.rows = line, device, machine, rows

    def __call__(self, values: Sequence[Any]) -> None:
        lowered = Lowered(self.function, [], [], "")
        self.rows[self.function.name] = rows_of(
            lowered, self.options, self.line, values, self.device, self.machine
        )
        super().__call__(values)


class _Call:
    """One loop of a call. ``asked``: a person's text, or a ``tuned`` one."""

    def __init__(
        self, function: Function, line: int, options: Options, values: Sequence[Any],
        asked: str | None,
    ) -> None:  # fmt: skip
        self.name, self.function, self.line = function.name, function, line
        self.options, self.values, self.asked, self.tuned = options, values, asked, False

    def _origin(self, given: bool) -> str:
        return ("tuned" if self.tuned else "asked for") if given else ""

    @functools.cached_property
    def _spent(self) -> tuple[int, int, bool]:
        """Bytes of distinct elements and operations of the loop as it is written, as
        ``kernel.cost`` counts them, and whether these are exact."""
        numbers, shapes = given(self.function, self.values)
        touched = elements(self.function, numbers, shapes)
        size = sum(a.memref.element.bytes * (t.loaded + t.stored) for a, t in touched.items())
        try:
            counted = operations(self.function, numbers)
        except UncountableError:
            return size, 0, False
        exact = counted.most is counted.least and all(t.exact for t in touched.values())
        return size, counted.arithmetic, exact

    def _accessed(self, function: Function, schedule: Schedule) -> int:
        """Bytes that threads load and store, after the steps of a schedule."""
        numbers, shapes = given(function, self.values)
        work = Work(shapes, {a: n for a, n in numbers.items() if isinstance(a, Value)})
        found = work.block(function.body, 1.0)
        parallel = apply_cuda.outermost(function)
        if parallel is not None and only(schedule, KeepRow) is not None:
            rows = find(parallel, shared(parallel), keep=True)
            found -= rows.spared(work.times) if rows is not None else 0.0
        return round(found)

    def on_cpu(self) -> list[Row]:
        function = compiler.optimize_for_cpu(self.function, self.options)
        usual = default_cpu.candidates(function, host_cpu())
        forms = [(function, schedule) for schedule in usual]
        wanted = None if self.asked is None else default_cpu.completed(self.asked)
        if wanted is not None:  # of the loop as it is written
            whole = compiler.optimize_for_cpu(self.function, self.options, asked=True)
            forms.insert(0, (whole, wanted))
        code = cpu.compile_cpu(forms[0][0], wanted)
        first = [schedule for _, schedule in forms].index(code.schedule)

        def counted(function: Function, schedule: Schedule) -> int | None:
            if only(schedule, Vectorize) is not None:
                return None
            made, _ = transformed(function, schedule, host_cpu())
            return self._accessed(made, schedule)

        rows = []
        for k, (function, schedule) in enumerate(forms):
            rows.append(Row(
                self.name, self.line, "cpu", show(schedule), (),
                self._origin(wanted is not None and k == 0), k == first, *self._spent,
                (0, 0, 0), (0, 0, 0),
                functools.partial(counted, function, schedule), lambda: None,
            ))  # fmt: skip
        return rows

    def on_gpu(self, machine: GpuMachine | None, tensors: Sequence[torch.Tensor]) -> list[Row]:
        here = [t for t in tensors if t.is_cuda]
        arch = "sm_90"
        if here:
            from weft.runtime import gpu  # imported by a call already

            arch = gpu.architecture(here[0].get_device())
            machine = machine or gpu.machine_of(here[0].get_device())
        machine = machine or H200
        function = compiler.optimize(self.function, self.options, asked=self.asked)
        facts = cuda.analyse(function, self.asked)
        args = dict(zip(facts.nest.arrays, self.values, strict=True))
        pairs = [(guard.array, guard.bytes) for guard in alignments(facts.candidates)]
        aligned = frozenset(p for p in pairs if _address(args[p[0]]) % p[1] == 0)
        types = [arg.type for arg in function.args]
        sizes = sizes_of(facts, types, packed(facts.slots, self.values)[0], aligned)
        most = 2 * THREADS
        taken = choose(facts.candidates, sizes, machine, most).place

        def counted(schedule: Schedule) -> int:
            # What a block stages its threads load from there as they would from memory.
            plain = tuple(replace(step, staged=0) if isinstance(step, RegisterWindow) else step
                          for step in schedule)  # fmt: skip
            made = cuda.scheduled(function, plain)
            return self._accessed(made.function, schedule)

        def assembled(schedule: Schedule) -> int | None:
            if ptx.ptxas() is None:
                return None
            code = cuda.compile_cuda(function, schedule, arch)
            return ptx.usage(code.ptx, arch)[facts.symbol].registers

        rows: list[Row] = []
        for k, text in enumerate(facts.candidates):
            schedule = fitted(candidate(text), sizes)
            first = k == taken
            told: list[GuardOfCall] = []
            for g in candidate(text).guards:
                meets, why = judged(g, schedule, sizes, machine, most)
                told.append(GuardOfCall(show([g]), meets, "" if meets else _named(g, facts) + why))
            choice = choose([f"-> {show(schedule)}"], sizes, machine, most)
            rows.append(Row(
                self.name, self.line, "cuda", show(schedule), tuple(told),
                self._origin(k < facts.asked), first, *self._spent, choice.grid, choice.block,
                functools.partial(counted, schedule),
                functools.partial(assembled, schedule) if first else lambda: None,
            ))  # fmt: skip
            if k < facts.asked:  # a text that the loop does not allow is said now
                _ = rows[-1].accessed
        return rows


def _named(guard: object, facts: Facts) -> str:
    """What a guard asks about that goes by a number of the nest's program."""
    if not isinstance(guard, AtMost | MultipleOf | Positive):
        return ""
    operation, *rest = facts.nest.program[guard.value]
    if operation != "slot":
        return ""
    slot = facts.slots[int(rest[0])]
    name = facts.nest.arrays[slot.arg]
    return f"{name}.shape[{slot.axis}], " if slot.kind == "size" else f"{name}, "


def _address(tensor: Any) -> int:
    """Where a tensor is, or how far from where one would be that has memory."""
    if tensor.is_meta:
        return tensor.storage_offset() * tensor.element_size()
    return tensor.data_ptr()
