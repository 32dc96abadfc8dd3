"""The steps that put a function on a grid: what each of its threads runs, as IR."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.core import Function, Op
from weft.ir.types import i32, index
from weft.schedule.bind import Bound, bind, limits_of
from weft.schedule.cooperate import cooperate
from weft.schedule.language import (
    Cooperate,
    IndexWidth,
    KeepRow,
    Privatize,
    Scan,
    Schedule,
    SplitReduction,
    StripMine,
    only,
)
from weft.schedule.nest import arrays_of
from weft.schedule.privatize import privatize
from weft.schedule.rows import by_row
from weft.schedule.scan import scan
from weft.schedule.split_reduction import split_reduction
from weft.schedule.split_scan import split_scan


def apply(
    function: Function, parallel: Op | None, order: Sequence[int], schedule: Schedule
) -> Bound:
    """``function`` as each thread runs it. ``order``: the dimensions of ``parallel``, that along x
    first; without ``parallel``, one thread runs all."""
    together, own = only(schedule, Cooperate), only(schedule, Privatize)
    if parallel is None:
        return Bound((function,))
    if isinstance(together, SplitReduction):
        return split_reduction(function, parallel, order[0], together)
    if together is not None:
        how = only(schedule, KeepRow) or only(schedule, StripMine)
        if how is None and not isinstance(together, Scan):
            return cooperate(function, parallel, order[0], together)
        limits = limits_of(function, schedule)
        if how is not None:
            return by_row(function, parallel, together, how, limits)
        assert isinstance(together, Scan)
        rewrite = scan if together.parts == 1 else split_scan
        return rewrite(function, parallel, together, limits)
    bound = bind(function, parallel, order, schedule)
    if own is not None:
        width = index if only(schedule, IndexWidth) is None else i32
        bound = privatize(bound, arrays_of(function).index(own.array), width)
    return bound
