"""``weft profile``: where the time of a program goes, by operator, kernel and source line."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from weft.frames import user_frames
from weft.pytorch.profiled import noting
from weft.runtime.balance import Balance, Shared
from weft.values import frozen
from weft.workbench import events
from weft.workbench.events import Entry, Notes
from weft.workbench.report import Table, UsageError


@frozen
class Profile:
    """Where time went. ``entries``: by operator and shapes, those with the most own time first;
    those of ``device`` "cuda" are kernels of the GPU. ``shared``: how threads of the CPU shared
    loops. ``others``: tables of other profilers, by their names; ``notes``: what was not
    measured."""

    entries: tuple[Entry, ...]
    shared: tuple[Shared, ...] = ()
    others: tuple[tuple[str, Table], ...] = ()
    notes: tuple[str, ...] = ()
    rows: int = 15
    error: str = ""
    loops: tuple[tuple[str, str], ...] = ()  # each of a kernel, with its file and line

    @property
    def ok(self) -> bool:
        """Whether the program ended as it should."""
        return not self.error

    def of(self, name: str) -> list[Entry]:
        """The entries of an operator or kernel; ``weft::`` may be left out."""
        return [e for e in self.entries if name in (e.name, e.name.rpartition("::")[2])]

    def table(self, device: str) -> Table:
        """The ``rows`` entries of a device that took the most own time, and kernels of weft behind
        these."""
        mine = [e for e in self.entries if e.device == device]
        listed = mine[: self.rows]
        listed += [e for e in mine[self.rows :] if e.source][: self.rows]
        every = sum(e.own for e in mine)
        columns = ("kernel" if device == "cuda" else "operator", "where", "shapes", "calls",
                   "own ms", "%", "ms in all", "first call ms", "later ms each", "GB/s",
                   "MB allocated")  # fmt: skip
        rows = tuple(
            (e.name[:60], e.where, e.shapes[:48], e.calls, e.own, 100 * e.own / (every or 1),
             e.total, e.first, e.later, e.bandwidth,
             e.allocated / 1e6 if e.allocated else None)
            for e in listed
        )  # fmt: skip
        kept = [k for k in range(len(columns)) if any(row[k] not in (None, "") for row in rows)]
        return Table(tuple(columns[k] for k in kept),
                     tuple(tuple(row[k] for k in kept) for row in rows))  # fmt: skip

    @property
    def balance(self) -> Table:
        """How threads shared the loops of kernels."""
        columns = ("loop", "launches", "threads", "ms", "balance", "busy ms, least", "most")
        rows = tuple((s.loop, s.launches, s.threads, s.elapsed, f"{s.balance:.0%}", min(s.busy),
                      max(s.busy)) for s in self.shared[: self.rows])  # fmt: skip
        return Table(columns, rows)

    def __str__(self) -> str:
        parts: list[str] = []
        for device, title in (("cuda", "kernels of the GPU"), ("cpu", "operators on the CPU")):
            if any(e.device == device for e in self.entries):
                parts.append(f"{title}: own time, without what they call\n{self.table(device)}")
        if self.shared:
            parts.append("how threads shared the loops of kernels (balance: the part of the "
                         f"team's time that they worked)\n{self.balance}")  # fmt: skip
        parts += [f"{name}\n{self._listed(table)}" for name, table in self.others]
        parts += [f"note: {note}" for note in self.notes]
        parts += [f"WRONG: {self.error}"] if self.error else []
        return "\n\n".join(parts) or "nothing was recorded"

    __repr__ = __str__

    def _listed(self, table: Table) -> Table:
        """The first ``rows`` of another profiler's table of kernels, and those of weft behind
        these."""
        if table.columns[:2] != ("kernel", "where"):
            return table
        behind = [row for row in table.rows[self.rows :] if row[1]]
        return Table(table.columns, (*table.rows[: self.rows], *behind[: self.rows]))

    def data(self) -> dict[str, Any]:
        entries = [{**{n: getattr(e, n) for n in Entry.__match_args__}, "GB/s": e.bandwidth}
                   for e in self.entries]  # fmt: skip
        shared = [{**{n: getattr(s, n) for n in Shared.__match_args__}, "balance": s.balance}
                  for s in self.shared]  # fmt: skip
        return {"entries": entries, "threads": shared, "notes": list(self.notes),
                "error": self.error,
                **{name: table.data() for name, table in self.others}}  # fmt: skip


class Spans:
    """When ranges ``name`` began and ended, by ``time.monotonic_ns()``; not those inside of one of
    them."""

    def __init__(self, name: str) -> None:
        self.name, self.found = name, list[tuple[int, int]]()
        self._depth, self._begin = 0, 0

    def __call__(self, name: str, begins: bool) -> None:
        if name != self.name:
            return
        self._depth += 1 if begins else -1
        if begins and self._depth == 1:
            self._begin = time.monotonic_ns()
        if not begins and self._depth == 0:
            self.found.append((self._begin, time.monotonic_ns()))


class Profiler:
    """``weft.profile(call, *args)`` and ``weft.profile.range(name)``. ``watchers`` are told of the
    begin (True) and the end (False) of each range."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[str, bool], None]] = []

    @user_frames
    def __call__(
        self, call: Callable[..., Any], *args: Any, warmup: int = 3, steps: int = 10,
        trace: str | Path = "", rows: int = 15, **kwargs: Any,
    ) -> Profile:  # fmt: skip
        """Calls ``call(*args, **kwargs)`` ``warmup`` times as it is, then ``steps`` times under
        torch's profiler: what compiles is not in the table. ``trace``: a file for Chrome's
        tracing, or Perfetto."""
        for _ in range(warmup):
            call(*args, **kwargs)

        def repeated() -> None:
            for _ in range(steps):
                call(*args, **kwargs)

        return self.recorded(repeated, trace=trace, rows=rows)

    def recorded(
        self, run: Callable[[], Any], *, trace: str | Path = "", rows: int = 15, name: str = "",
        skip: int = 0,
    ) -> Profile:  # fmt: skip
        """``run()`` under torch's profiler. ``name``: only what is inside of the ranges of that
        name counts, without the first ``skip`` of them. Raises ``UsageError`` for a trace that
        cannot be written."""
        if trace:
            _writable(trace)
        cuda = torch.cuda.is_available()
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        notes, told = Notes({}, {}), list[str]()
        token = noting.set(notes.note)
        balance, error, spans = Balance(), "", Spans(name)
        self.watchers.append(spans)
        try:
            with torch.profiler.profile(activities=kinds, record_shapes=True, profile_memory=True,
                                        acc_events=True) as found, balance:  # fmt: skip
                error = self._run(run)
                if cuda:
                    torch.cuda.synchronize()
        finally:
            noting.reset(token)
            self.watchers.remove(spans)
        results = found.profiler.kineto_results if found.profiler is not None else None
        every = events.events(results) if results is not None else []
        if name:
            inside = events.within(every, name, skip)
            if not inside:
                told.append(
                    f"no range {name!r} was entered more than {skip} times, so that all is listed: "
                    f"write `with weft.profile.range({name!r}):` in the program"
                )
            every = inside or every
        if not every and not error:
            told.append("nothing was seen: PyTorch carried out nothing, or the program uses "
                        "torch.profiler itself, which ends this one: take it out")  # fmt: skip
        told += [balance.why] if balance.why else []
        told += [f"{balance.lost:,} records of threads were too many"] if balance.lost else []
        if trace:
            found.export_chrome_trace(str(trace))
        costs = notes.costs()
        told += [f"bytes of {name}: {why}" for name, why in costs.uncounted.items()]
        listed = sorted(events.entries(every, costs), key=lambda e: -e.own)
        loops = tuple((name, Path(place).name) for name, (_, _, place) in costs.loops.items())
        return Profile(
            tuple(listed), tuple(balance.shared(spans.found[skip:])), (), tuple(told), rows, error,
            loops,
        )  # fmt: skip

    @staticmethod
    def _run(run: Callable[[], Any]) -> str:
        """Runs it; what was wrong, if it ended with an exit code."""
        try:
            run()
        except SystemExit as end:
            if end.code not in (None, 0):
                return f"the program ended with {end.code!r}"
        return ""

    @contextlib.contextmanager
    def range(self, name: str) -> Generator[None]:
        """A part of a program, by name: in torch's profiles and traces, in Nsight's where there is
        a GPU, and for ``weft profile --range NAME``, which looks at nothing else. A decorator, too.
        """
        for watcher in self.watchers:
            watcher(name, True)
        mark = torch.cuda.is_available() and torch.cuda.is_initialized()
        if mark:
            torch.cuda.nvtx.range_push(name)
        try:
            with torch.profiler.record_function(name):
                yield
        finally:
            if mark:
                torch.cuda.nvtx.range_pop()
            for watcher in self.watchers:
                watcher(name, False)


profile = Profiler()


def _writable(path: str | Path) -> None:
    """Raises ``UsageError`` where a trace cannot be written there."""
    target = Path(path)
    if target.suffix not in (".json", ".gz"):
        raise UsageError(f"{path} is no trace\nhelp: a name that ends with .json or .json.gz")
    try:
        target.write_bytes(b"")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
