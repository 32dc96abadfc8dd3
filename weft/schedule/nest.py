"""Loop nests as schedules speak of them: names, and the arithmetic of sizes that a call decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.ir.core import Function, Op, walk
from weft.ir.views import For, Parallel
from weft.schedule.intervals import Step


@dataclass(frozen=True, slots=True)
class Nest:
    """``arrays``: names of the arguments (numbers too). ``axes``: names of the parallel indices, in
    the order of the loop; none where one thread runs the function.

    ``program`` computes the index arithmetic from the argument block (see ``intervals.evaluate``);
    other fields are numbers of its steps. ``bounds``: of each axis the lower bound, the upper bound
    and the step. ``lengths``: first index and end of each serial loop that threads may share.
    ``must_fit_32``: what has to fit for 32-bit indices. ``divisions``: for each divisor that a call
    decides, its step and those of what is divided by it. ``kinds``: the combiners that the nest
    reduces by.
    """

    arrays: tuple[str, ...]
    axes: tuple[str, ...]
    program: tuple[Step, ...]
    bounds: tuple[tuple[int, int, int], ...] = ()
    lengths: tuple[tuple[int, int], ...] = ()
    must_fit_32: tuple[int, ...] = ()
    divisions: tuple[tuple[int, tuple[int, ...]], ...] = ()
    kinds: tuple[str, ...] = ()


def names(given: Iterable[str], otherwise: str) -> tuple[str, ...]:
    """Names of their own for what is called so, or nothing."""
    found: list[str] = []
    for k, name in enumerate(given):
        name = name or f"{otherwise}{k}"
        while name in found:
            name += "_"
        found.append(name)
    return tuple(found)


def arrays_of(function: Function) -> tuple[str, ...]:
    """The names of a function's arguments."""
    return names((arg.name for arg in function.args), "arg")


def axes_of(parallel: Op) -> tuple[str, ...]:
    """The names of the indices of a parallel loop."""
    return names((iv.name for iv in Parallel(parallel).indices), "i")


def loops_of(parallel: Op) -> dict[str, Op]:
    """The serial loops in a parallel one, by name: that of their index."""
    loops = [op for op in walk(parallel.body) if op.name == "scf.for"]
    found = names((For(op).index.name for op in loops), "k")
    return dict(zip(found, loops, strict=True))
