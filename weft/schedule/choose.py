"""Which candidate a call takes: a pure function of candidates, sizes and machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.schedule.grid import Dims, grid
from weft.schedule.guards import (
    GUARDS,
    Aligned,
    Guard,
    Held,
    Long,
    Scanned,
    judged,
    scanning,
    sharing,
)
from weft.schedule.language import (
    Cooperate,
    KeepRow,
    Prefetch,
    Privatize,
    Scan,
    Schedule,
    Step,
    StreamingStores,
    StripMine,
    UnrollJam,
    only,
    parse,
    read,
    show,
)
from weft.schedule.machine import GpuMachine
from weft.schedule.sizes import Sizes
from weft.values import frozen


@frozen
class Candidate:
    """One form of a kernel, and what a call must satisfy to take it."""

    guards: tuple[Guard, ...]
    schedule: Schedule

    def __str__(self) -> str:
        text = f"{show(self.guards)} -> {show(self.schedule)}"
        _kept(text, self)
        return text


_read: dict[str, Candidate] = {}  # by their texts: what was just written need not be read


def _kept(text: str, found: Candidate) -> Candidate:
    if len(_read) >= 4096:
        _read.clear()
    return _read.setdefault(text, found)


def candidate(text: str) -> Candidate:
    """``candidate(str(c)) == c``."""
    if (found := _read.get(text)) is not None:
        return found
    guards, _, schedule = text.partition("->")
    return _kept(text, Candidate(tuple(read(guards, GUARDS)), parse(schedule)))


def alignments(candidates: Sequence[str]) -> list[Aligned]:
    """What any of the candidates asks of addresses, without reading all else."""
    parts = {part.strip() for text in candidates for part in text.split("->")[0].split(";")}
    return [guard for part in sorted(parts) if part.startswith("aligned(")
            for guard in read(part, (Aligned,))]  # fmt: skip


@frozen
class Choice:
    """What a call runs: ``shared`` are bytes of shared memory for each block. ``place``: that of
    its candidate."""

    schedule: Schedule
    grid: Dims
    block: Dims
    shared: int
    place: int = 0


def choose(candidates: Sequence[str], sizes: Sizes, machine: GpuMachine, most: int) -> Choice:
    """The first candidate whose guards hold, with its grid, in blocks of at most ``most`` threads.
    The last one has no guards."""
    for place, text in enumerate(candidates):
        found = candidate(text)
        if all(judged(guard, found.schedule, sizes, machine, most)[0] for guard in found.guards):
            schedule = fitted(found, sizes)
            own = only(schedule, Privatize)
            shared = sizes.count(own.array) * sizes.arrays[own.array].bytes if own else 0
            return Choice(schedule, *grid(schedule, sizes, machine, most), shared, place)
    raise AssertionError("the last candidate has guards")


def for_large_calls(candidates: Sequence[str], asked: int) -> Schedule:
    """The schedule by which a kernel is shown where no call is given: the first, where ``asked`` of
    the candidates were asked for; else that of large calls, with each iteration a thread's own."""
    found = [candidate(text).schedule for text in candidates]
    if asked:
        return found[0]
    special = (Cooperate, Prefetch, Privatize, UnrollJam, StreamingStores)
    return next(s for s in found if not any(isinstance(step, special) for step in s))


def fitted(found: Candidate, sizes: Sizes) -> Schedule:
    """The candidate's schedule, with as many threads and vectors for a row as a call asks for."""
    kept = only(found.guards, Held)
    guard = kept or only(found.guards, Long)
    threads, vectors = (0, 0) if guard is None else sharing(guard, sizes)
    if (scans := only(found.guards, Scanned)) is not None:
        threads = scanning(scans, sizes)

    def fit(step: Step) -> Step:
        match step:
            case Scan():
                return replace(step, threads=min(threads, step.threads))
            case Cooperate():
                return replace(step, threads=threads)
            case KeepRow(width=width):
                length = sizes.values[kept.value][0] if kept is not None else 0
                return replace(step, vectors=vectors, whole=length == threads * width * vectors)
            case StripMine():
                return replace(step, vectors=vectors)
            case _:
                return step

    return tuple(map(fit, found.schedule)) if threads else found.schedule
