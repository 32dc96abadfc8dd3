"""The steps of a schedule for CPUs, one after the other."""

from __future__ import annotations

from weft.ir.builder import annotated
from weft.ir.core import Function, Op
from weft.schedule.chunks import chunks
from weft.schedule.collapse import collapsed
from weft.schedule.copies import by_slices, copies
from weft.schedule.known_rows import known_rows
from weft.schedule.language import (
    Privatize,
    Schedule,
    StreamingStores,
    UnrollJam,
    Vectorize,
    only,
    several,
    show,
)
from weft.schedule.legal import accumulated
from weft.schedule.legal_cpu import outermost
from weft.schedule.listener import Listener, ignored
from weft.schedule.machine import CpuMachine
from weft.schedule.marks import numbered, polled, reassociated, streamed, unvectorised
from weft.schedule.nest import LoopNest, axes_of
from weft.schedule.own import OwnStep
from weft.schedule.parts import Parts, has_parts, in_parts
from weft.schedule.register_tile import register_tile
from weft.schedule.rows_ahead import rows_ahead
from weft.schedule.stages import in_stages
from weft.schedule.streaming import streaming
from weft.schedule.tails import tails
from weft.schedule.unroll_jam import unroll_jam


def apply_cpu(
    function: Function, schedule: Schedule, machine: CpuMachine, listener: Listener = ignored,
    *, streaming_beyond: int | None = None,
) -> Function:  # fmt: skip
    """``function`` after the steps of ``schedule``, which it allows, shared by threads.
    ``listener`` is told of each step that rewrites it, and what came of it. ``streaming_beyond``:
    where its arrays have more bytes, stores go past the caches."""
    function, parallel = transformed(function, schedule, machine, listener)
    if parallel is not None:
        function = _shared(function, parallel, schedule)
        listener(show(several(schedule, Privatize)) or "chunks", function)
    function = collapsed(function)
    if (staged := in_stages(function, machine)) is not function:
        function = staged
        listener("stages", function)
    if streaming_beyond is not None:
        function = streaming(function, streaming_beyond)
        listener("streaming", function)
    if (ahead := rows_ahead(function)) is not function:
        function = ahead
        listener("rows ahead", function)
    if (known := known_rows(function)) is not function:
        function = known
        listener("known rows", function)
    if (cut := tails(function, machine)) is not function:
        function = cut
        listener("tails", function)
    return annotated(function, numbered(function), unvectorised(function))


def transformed(
    function: Function, schedule: Schedule, machine: CpuMachine, listener: Listener = ignored
) -> tuple[Function, Op | None]:
    """``function`` after the steps of ``schedule`` that change its loops, and the outermost one,
    which threads are to share."""
    parallel = outermost(function)
    axes = axes_of(parallel) if parallel is not None else ()
    tile = only(schedule, Vectorize)
    if parallel is not None and not several(schedule, Privatize):
        function, parallel = in_parts(function, parallel)
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
    last = [reassociated(function), polled(parallel) if parallel is not None else {}]
    if only(schedule, StreamingStores) is not None:
        last.append(streamed(function))
    function = annotated(function, *last)
    return function, outermost(function)


def _shared(function: Function, parallel: Op, schedule: Schedule) -> Function:
    """``function``, in which threads share ``parallel``."""
    nest, steps = LoopNest(function, parallel), several(schedule, Privatize)
    if has_parts(function):
        return Parts(function, parallel).function(function)
    places = {nest.arrays.index(step.array): str(accumulated(nest, step)) for step in steps}
    slices = by_slices(function, parallel, places)
    if not places and not slices:
        return chunks(function, parallel)
    return copies(function, parallel, places, slices)
