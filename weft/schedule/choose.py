"""Which candidate a call takes: a pure function of candidates, sizes and machine."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from weft.schedule.grid import Dims, grid
from weft.schedule.guards import GUARDS, Aligned, Guard, holds
from weft.schedule.language import Privatize, Schedule, only, parse, read, show
from weft.schedule.machine import GpuMachine
from weft.schedule.sizes import Sizes
from weft.values import frozen


@frozen
class Candidate:
    """One form of a kernel, and what a call must satisfy to take it."""

    guards: tuple[Guard, ...]
    schedule: Schedule

    def __str__(self) -> str:
        return f"{show(self.guards)} -> {show(self.schedule)}"


@functools.lru_cache(maxsize=4096)
def candidate(text: str) -> Candidate:
    """``candidate(str(c)) == c``."""
    guards, _, schedule = text.partition("->")
    return Candidate(tuple(read(guards, GUARDS)), parse(schedule))


def alignments(candidates: Sequence[str]) -> list[Aligned]:
    """What any of the candidates asks of addresses, without reading all else."""
    parts = {part.strip() for text in candidates for part in text.split("->")[0].split(";")}
    return [guard for part in sorted(parts) if part.startswith("aligned(")
            for guard in read(part, (Aligned,))]  # fmt: skip


@frozen
class Choice:
    """What a call runs: ``shared`` are bytes of shared memory for each block."""

    schedule: Schedule
    grid: Dims
    block: Dims
    shared: int


def choose(candidates: Sequence[str], sizes: Sizes, machine: GpuMachine, most: int) -> Choice:
    """The first candidate whose guards hold, with its grid, in blocks of at most ``most`` threads.
    The last one has no guards."""
    for text in candidates:
        found = candidate(text)
        schedule = found.schedule
        if all(holds(guard, schedule, sizes, machine, most) for guard in found.guards):
            own = only(schedule, Privatize)
            shared = sizes.count(own.array) * sizes.arrays[own.array].bytes if own else 0
            return Choice(schedule, *grid(schedule, sizes, machine, most), shared)
    raise AssertionError("the last candidate has guards")
