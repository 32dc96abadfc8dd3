"""How many threads code for a grid is made for, and what registers that leaves each of them."""

from __future__ import annotations

import math

from weft.ir.core import Function, Op, walk
from weft.ir.ops import is_slow
from weft.schedule.grid import MOST_MEMBERS, THREADS, cluster, groups, is_exact, threads_of
from weft.schedule.language import (
    Cooperate,
    KeepRow,
    RegisterWindow,
    Scan,
    Schedule,
    SharedArrays,
    SplitReduction,
    Stage,
    StreamingStores,
    StripMine,
    only,
    several,
    tiled,
)
from weft.schedule.rows import crowded, shared
from weft.values import frozen

_FEW_WORDS = 32  # in a thread's local arrays, beside as many that it computes with


@frozen
class LaunchBounds:
    """``threads`` have an iteration's block together, at most: those of all blocks of a
    ``cluster``. ``resident``: blocks that a multiprocessor has to hold at once, which limits their
    registers; 0 where nothing is asked."""

    threads: int
    cluster: int
    resident: int


def launch_bounds(function: Function, parallel: Op | None, schedule: Schedule) -> LaunchBounds:
    """What ``function`` is compiled for after the steps of ``schedule``."""
    usual = 2 * THREADS if only(schedule, StreamingStores) else THREADS
    together = only(schedule, Cooperate)
    threads = max(usual, threads_of(schedule), together.threads if together else 0)
    if only(schedule, Stage) is not None or tiled(schedule):
        threads = threads_of(schedule)
    if together is not None and is_exact(schedule):
        threads = together.threads * groups(together.threads)
    blocks = cluster(together.threads) if together is not None else 1
    return LaunchBounds(threads, blocks, _resident(function, parallel, schedule, threads))


def _resident(function: Function, parallel: Op | None, schedule: Schedule, threads: int) -> int:
    by_row = only(schedule, KeepRow) or only(schedule, StripMine)
    together = only(schedule, Cooperate)
    if isinstance(together, Scan):
        return 1  # else fewer loads are on their way at a time
    if isinstance(together, SplitReduction) and together.columns and together.threads > THREADS:
        # Likewise; of those that only load and add, more threads do better. (On an H200, in turn:
        # three sums in 4096 columns of 4096 .0626 ms, so .0544; of exponentials .0302 and .0249.)
        return max(2 * THREADS // threads, 1) if parallel is not None and _waits(parallel) else 0
    if threads == MOST_MEMBERS // 2 and parallel is not None and by_row is not None:
        # One loads its row while another one computes; where registers are few, so do more.
        return 2 * crowded(parallel, by_row)
    own = only(schedule, SharedArrays) is not None
    few = len(several(schedule, Stage)) == 1 and _in_arrays(function) <= _FEW_WORDS and not own
    if few or only(schedule, RegisterWindow) is not None:  # in 128 registers of a thread
        return max(2 * THREADS // threads, 1)
    return max(THREADS // threads, 1) if own else 0  # of which shared memory holds few


def _waits(parallel: Op) -> bool:
    """Whether a turn of the loops that threads share loads several elements, or computes functions:
    an assembler that means to have as many threads as possible lets these wait for each other."""
    for loop in shared(parallel):
        inside = list(walk(loop.body))
        loads = sum(op.name == "memref.load" for op in inside)
        if loads > 1 or any(is_slow(op.name) for op in inside):
            return True
    return False


def _in_arrays(function: Function) -> int:
    """Words in the local arrays of a thread."""
    own = (op.result.memref for op in walk(function.body) if op.name == "memref.alloca")
    return sum(math.prod(m.shape or ()) * m.element.bytes // 4 for m in own if not m.space)
