"""``weft.tune``: which schedule runs each loop of a kernel the fastest; ``weft.tuned``: what was
found, as a file."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch

from weft.errors import KernelTypeError, KernelValueError, WeftError, first_line
from weft.frames import user_frames
from weft.frontend.names import Scope
from weft.ir.core import Function, walk
from weft.ir.writes import written
from weft.kernel import Kernel, kernel_inside
from weft.options import Options
from weft.pytorch.autograd import with_functions
from weft.pytorch.inspect_derivatives import Backward
from weft.runtime.build import Made
from weft.runtime.fastpath import disjoint_pairs
from weft.runtime.function import CompiledFunction
from weft.runtime.launch import Launcher
from weft.runtime.overlap import any_shared, extent
from weft.runtime.tuned import DEFAULT, Record, class_of, machine_of, records, write
from weft.schedule.language import Cooperate, Privatize, Schedule, Vectorize, only, parse
from weft.tuning.measure import Measure, measure, shown
from weft.tuning.neighbours import proposals
from weft.tuning.state import Kept, difference, tensors_in
from weft.values import frozen

log = logging.getLogger("weft.tune")
_GAIN = 0.98  # of the default's time: what is not faster than that is noise, and not kept
_ALIGNED = 64  # bytes: whole vectors and lines of a cache begin at multiples of them
_CALLABLE = "a kernel, a method that is one, or kernel.backward"


@frozen
class Row:
    """One schedule of one loop at some sizes; "default" is what runs without tuning.
    ``milliseconds``: NaN where it was not measured, because of ``refused``. ``best``: it is kept.
    """

    loop: str
    sizes: str
    schedule: str
    milliseconds: float
    best: bool = False
    refused: str = ""


@frozen
class Table:
    """What ``weft.tune`` has measured, and the records that it keeps."""

    rows: tuple[Row, ...]
    records: tuple[Record, ...]

    def __str__(self) -> str:
        """For each loop the default and the schedules that were measured, the fastest first."""
        lines: list[str] = []
        for loop, sizes in dict.fromkeys((row.loop, row.sizes) for row in self.rows):
            own = [row for row in self.rows if (row.loop, row.sizes) == (loop, sizes)]
            taken = sorted((row for row in own if not row.refused), key=lambda r: r.milliseconds)
            default = next(row.milliseconds for row in own if row.schedule == DEFAULT)
            lines.append(f"{loop}: {sizes}")
            for row in taken:
                mark = "*" if row.best else " "
                gain = default / row.milliseconds if row.milliseconds else 1.0
                name = row.schedule or "no steps"
                lines.append(f"{mark} {row.milliseconds:10.4g} ms {gain:6.2f} x  {name}")
            lines += [f"  refused  {r.schedule}: {r.refused}" for r in own if r.refused]
        return "\n".join(lines) or "no loop was launched"


@user_frames
def tune(
    kernel: Any, *args: Any, backward: bool = False, most: int = 16, measure: Measure = measure,
    **kwargs: Any,
) -> Table:  # fmt: skip
    """Measures schedules of each loop that ``kernel(*args, **kwargs)`` runs, and keeps the fastest.

    What is kept is used from now on, by this process and others with this disk cache, for loops of
    the same text, on the same machine, where the sizes of tensors are of the same classes (between
    the same powers of two). ``backward``: the loops of the gradient, too; ``weft.tune(
    kernel.backward, *args)`` tunes these alone. ``most``: schedules of a loop that are measured,
    beside the default; ``measure(runs, device, restore)`` gives milliseconds. Each schedule has to
    compute what the default does: to the bit where its steps promise that. The kernel is called on
    copies: arguments stay as they are. Raises ``KernelTypeError`` for what is no kernel.
    """
    forward = not isinstance(kernel, Backward)
    if isinstance(kernel, Backward):
        kernel, backward = kernel.kernel, True
    bound = getattr(kernel, "__self__", None)
    inner = kernel_inside(getattr(kernel, "__func__", kernel))
    if inner is None:
        raise KernelTypeError(
            f"weft.tune takes {_CALLABLE}, not {type(kernel).__name__}",
            help="tune each kernel that it calls: weft.tune(kernel, *args)",
        )
    given = Given(inner, args if bound is None else (bound, *args), kwargs)
    session = Session(inner.options, most, measure)
    if forward:
        with torch.no_grad(), given.left_as_is():
            given.carried_out(session)
    if backward:
        session.active = False
        with torch.enable_grad(), given.left_as_is():
            outs, leaves = given.carried_out(session, given.leaves())
            session.active = True
            if outs:
                # Ones would cancel in many gradients, of which nothing is left to compare.
                random = torch.Generator(outs[0].device).manual_seed(0)
                grads = [torch.empty_like(o).normal_(generator=random) for o in outs]
                torch.autograd.grad(outs, leaves, grads, allow_unused=True)
    records.keep(inner.options, session.records)
    records.tell()
    return Table(tuple(session.rows), tuple(session.records))


def tuned(path: str | PathLike[str], *tables: Table) -> list[Record]:
    """Uses the records of a file from now on, before those of the disk cache, and gives them.

    With ``tables``, which ``tune`` has given, their records are first written to the file, in place
    of those for the same text, machine and sizes; other records of the file stay. The file is JSON.
    Raises ``TunedFileError`` for a file of another kind, and ``OSError``.
    """
    path = Path(path).expanduser().absolute()
    if tables:
        write(path, [record for table in tables for record in table.records])
    return records.read(path)


# -- one call of a kernel


class Given:
    """A kernel and the arguments of a call."""

    def __init__(self, kernel: Kernel, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.kernel = kernel
        self.bound = kernel.bind(tuple(args), kwargs)
        values = self.bound.arguments
        scope = Scope.of(kernel.function)
        mutated = [values.get(n, scope.lookup(n)) for n in sorted(kernel.parts.mutated)]
        written = list(tensors_in(mutated))
        device = next((t.device for t in tensors_in([*values.values()])), torch.device("cpu"))
        if device.type == "mps":
            raise KernelValueError(
                "schedules are tuned for CPUs and CUDA, and these tensors are on mps", kernel.span,
                help="call the kernel as it is: a schedule is chosen for the sizes of each call",
            )  # fmt: skip
        self.kept = Kept(written, device)

    @contextlib.contextmanager
    def left_as_is(self) -> Generator[None]:
        """What is written inside is put back."""
        with self.kept.unseen():
            try:
                yield
            finally:
                self.kept.restore()

    def leaves(self) -> dict[str, torch.Tensor]:
        """Copies of the float tensors among the arguments, of which a gradient is asked."""
        values = self.bound.arguments
        floats = {n: v for n, v in values.items()
                  if isinstance(v, torch.Tensor) and v.is_floating_point()}  # fmt: skip
        return {n: alike(v).requires_grad_() for n, v in floats.items()}

    def carried_out(
        self, session: Session, leaves: Mapping[str, torch.Tensor] = MappingProxyType({})
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Calls the kernel. The results that have a gradient, and what it may be asked for: the
        ``leaves`` that stand for arguments, and what the objects among the arguments hold."""
        launchers = [partial(_launched, session, own) for own in self.kernel.launchers]
        mutated = self.kernel.mutated
        passed = {n: leaf * 1 if n in mutated else leaf for n, leaf in leaves.items()}
        call = inspect.BoundArguments(
            self.bound.signature, cast(Any, {**self.bound.arguments, **passed})
        )
        out = self.kernel.carry_out(launchers, call.args, call.kwargs)
        others = [v for n, v in self.bound.arguments.items() if n not in leaves]
        inside = [t for t in tensors_in(others) if t.requires_grad]
        written = [t for n, t in passed.items() if n in mutated]
        outs = [t for t in tensors_in([out, written]) if t.requires_grad]
        return [*{id(t): t for t in outs}.values()], [*leaves.values(), *inside]


def _launched(session: Session, launcher: Launcher, *args: Any) -> Any:
    """Launches a loop whose schedules are measured before, unless its arguments share memory: then
    it goes by one of weft's own."""
    given = launcher.forms.extended(args)
    memory = [k for k, v in enumerate(given) if isinstance(v, torch.Tensor)]
    writes = [k for k in memory if k in launcher.region.stored]
    if not torch.is_grad_enabled() and any_shared(given, disjoint_pairs(writes, memory)):
        return launcher(*args)
    return with_functions(launcher, partial(_Loop, session), *args)


class _Loop:
    """Runs a function as usual; in an active session its schedules are measured before."""

    def __init__(self, session: Session, function: Function) -> None:
        self.session = session
        self.function = function
        self.usual = CompiledFunction(function, session.options)

    def __call__(self, values: Sequence[Any]) -> None:
        if self.session.active and not any(isinstance(v, torch.Tensor) and v.is_meta
                                           for v in values):  # fmt: skip
            self.session.tune(self.function, values)
        self.usual(values)


class Session:
    """What one ``tune`` measures."""

    def __init__(self, options: Options, most: int, measure: Measure) -> None:
        self.options = replace(options, tuned=False)
        self.most = most
        self.measure = measure
        self.active = True
        self.rows: list[Row] = []
        self.records: list[Record] = []

    def tune(self, function: Function, values: Sequence[Any]) -> None:
        """Measures the schedules of a function on values like these, once for a size class."""
        scratch = Scratch(function, values)
        if not scratch.tensors or any(t.numel() == 0 for t in scratch.tensors):
            return
        device = scratch.tensors[0].device
        made, run, ran, block = self._run(function, scratch.values)
        record = Record(
            "schedule", function.name, made.loop.digest, machine_of(device),
            class_of(scratch.tensors), DEFAULT, 0.0, 0.0,
        )  # fmt: skip
        if any(record.key == other.key for other in self.records):
            return
        expected, runs, seen = scratch.results(), {DEFAULT: run}, {ran}
        texts = proposals(made, block)
        for text in shown(texts, len(texts), f"tuning {function.name}"):
            if len(runs) > self.most:
                break
            scratch.restore()
            try:
                asked = (made.job.backend.name, function.name, text)
                _, run, ran, _ = self._run(function, scratch.values, asked)
            except (WeftError, RuntimeError) as error:  # illegal, or too large for the machine
                log.debug("%s: not by `%s`: %s", function.name, text, first_line(error))
                continue
            if ran in seen:  # these sizes do not allow it, or it is as one that was there
                continue
            seen.add(ran)
            exact = self.options.strict_math and not _reorders(function, parse(text))
            why = difference(scratch.results(), expected, exact)
            if why:
                row = Row(function.name, record.sizes, text, float("nan"), refused=why)
                self.rows.append(row)
            else:
                runs[text] = run
        self._measured(record, runs, device, scratch.restore)

    def _run(
        self, function: Function, values: Sequence[Any], *asked: tuple[str, str, str]
    ) -> tuple[Made, Callable[[], Any], str, bytes]:
        """Runs a function on ``values``, by the schedule that is ``asked`` for: the compiled form,
        what runs it again, how it ran, and the argument block. Raises ``ScheduleError``."""
        own = CompiledFunction(function, replace(self.options, schedules=asked))
        made, call, block = own.bound(values)
        call(block)
        return made, partial(call, block), made.ran(call)[0], block

    def _measured(
        self, record: Record, found: dict[str, Callable[[], Any]], device: torch.device,
        restore: Callable[[], None],
    ) -> None:  # fmt: skip
        times = dict(zip(found, self.measure([*found.values()], device, restore), strict=True))
        best = min(times, key=lambda text: times[text])
        if times[best] > _GAIN * times[DEFAULT]:
            best = DEFAULT
        for text, ms in times.items():
            self.rows.append(Row(record.name, record.sizes, text, ms, best=text == best))
        log.debug("%s, %s: `%s`, %.4g ms; the default %.4g ms", record.name, record.sizes, best,
                  times[best], times[DEFAULT])  # fmt: skip
        self.records.append(
            replace(record, choice=best, default_milliseconds=times[DEFAULT],
                    milliseconds=times[best])
        )  # fmt: skip


class Scratch:
    """``values`` for a function, with memory of its own for what it writes."""

    def __init__(self, function: Function, values: Sequence[Any]) -> None:
        stored = written(function)
        self.places = [k for k, arg in enumerate(function.args) if arg in stored]
        self.before = [values[k] for k in self.places]
        self.values = list(values)
        for k in self.places:
            self.values[k] = alike(values[k])
        self.tensors = [v for v in values if isinstance(v, torch.Tensor)]

    def restore(self) -> None:
        for k, tensor in zip(self.places, self.before, strict=True):
            self.values[k].copy_(tensor)

    def results(self) -> list[torch.Tensor]:
        """Copies of what was written."""
        return [self.values[k].clone() for k in self.places]


def alike(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, and as far from a line of the cache."""
    size = tensor.element_size()
    lead = tensor.data_ptr() % _ALIGNED // size
    room = torch.empty(lead + extent(tensor) // size, dtype=tensor.dtype, device=tensor.device)
    with torch.no_grad():
        return room.as_strided(tensor.size(), tensor.stride(), lead).copy_(tensor.detach())


def _reorders(function: Function, schedule: Schedule) -> bool:
    """Whether another order of sums may come of the steps, or of the loop itself."""
    if only(schedule, Cooperate) or only(schedule, Privatize) or only(schedule, Vectorize):
        return True
    ops = list(walk(function.body))
    return any(op.name.startswith("memref.atomic") or op.attrs.get("kinds") for op in ops)
