"""The steps of a schedule for CPUs, one after the other."""

from __future__ import annotations

from weft.ir.builder import annotated
from weft.ir.core import Function
from weft.schedule.collapse import collapsed
from weft.schedule.language import Schedule, UnrollJam, Vectorize, only, show
from weft.schedule.legal_cpu import outermost
from weft.schedule.listener import Listener, ignored
from weft.schedule.machine import CpuMachine
from weft.schedule.marks import numbered, polled, reassociated
from weft.schedule.nest import axes_of
from weft.schedule.own import OwnStep
from weft.schedule.register_tile import register_tile
from weft.schedule.unroll_jam import unroll_jam
from weft.schedule.work import with_work


def apply_cpu(
    function: Function, schedule: Schedule, machine: CpuMachine, listener: Listener = ignored
) -> Function:
    """``function`` after the steps of ``schedule``, which it allows. ``listener`` is told of each
    step that rewrites it, and what came of it."""
    parallel = outermost(function)
    axes = axes_of(parallel) if parallel is not None else ()
    tile = only(schedule, Vectorize)
    for step in schedule if parallel is not None else ():
        assert parallel is not None
        if step is tile:
            function, parallel = register_tile(function, parallel, schedule, machine)
        elif isinstance(step, UnrollJam) and tile is None:
            axis = axes.index(step.axis)
            function, parallel = unroll_jam(function, parallel, axis, step.copies, step.stride)
        elif isinstance(step, OwnStep):
            function, parallel = step.apply(function, parallel)
        else:
            continue
        listener(show([step]), function)
    if parallel is not None:
        function = with_work(function, parallel)
    parallel = outermost(function)
    polls = polled(parallel) if parallel is not None else {}
    rows = collapsed(function, parallel)
    return annotated(function, numbered(function), reassociated(function), polls, rows)
