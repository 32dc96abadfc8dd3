"""Schedules with less that is written out: a driver compiles a shader's text when it is first
called, and takes a tenth of a millisecond for a line.

A function such as ``exp`` is some forty lines, at each call of it. Where a step of a schedule
writes out more than ``_MOST`` operations, it has half as many copies of what it copies, or fewer.
On an H100 causal conv is compiled in 35 ms for 62 and takes .155 ms (CUDA: .157), softmax in 33 for
62 and takes .020 for .018.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.ir.core import Op, walk
from weft.ir.ops import OPS, is_slow
from weft.schedule.choose import Candidate
from weft.schedule.guards import Held, Long
from weft.schedule.language import (
    Block,
    BlockDim,
    Cooperate,
    Prefetch,
    RegisterWindow,
    Schedule,
    UnrollJam,
    only,
    several,
)
from weft.schedule.nest import loops_of

_MOST = 320  # operations that a step writes out
_FUNCTION = 40  # operations of a function such as ``exp``
_AHEAD = 8  # turns that are loaded before their turn, at most
_TALL = 16  # iterations that a thread of a staged tile computes
_LEAST = 4  # copies that make a vector, and turns whose loads are ahead
_TURNS, _STAGED = 8, 128  # of a staged tile that are written out, and in shared memory


def weights_of(parallel: Op) -> dict[str, int]:
    """The operations of a turn of each serial loop."""
    return {name: _weight(loop) for name, loop in loops_of(parallel).items()}


def lighter(candidate: Candidate, weights: dict[str, int]) -> Candidate:
    """``candidate`` for a loop of such ``weights``, with less that is written out."""
    schedule = _tiled(candidate.schedule, weights)
    made = tuple(_ahead(s, weights) if isinstance(s, Prefetch) else s for s in schedule)
    guards, together = candidate.guards, only(schedule, Cooperate)
    if together is not None:
        weight = sum(weights[name] for name in together.loops)
        guards = tuple(_narrower(guard, weight) for guard in guards)
    return replace(candidate, guards=guards, schedule=made)


def _weight(loop: Op) -> int:
    ops = [op for op in walk(loop.body) if op.name != "arith.constant"]
    return sum(_FUNCTION if is_slow(op.name) else not OPS[op.name].terminator for op in ops)


def _ahead(step: Prefetch, weights: dict[str, int]) -> Prefetch:
    """Fewer loads ahead, but ``_LEAST``: wkv takes .141 ms with 8, .232 with 4, .36 with 2 (CUDA:
    .13), and NVIDIA's driver 70, 50 and 35 ms for its text. (Less text and as many loads ahead, by
    loaded numbers that move from register to register: .49 ms, as a move waits for its load.)"""
    steps = min(step.steps, _AHEAD)
    while steps > _LEAST and steps * weights[step.loop] > _MOST:
        steps //= 2
    return replace(step, steps=steps)


def _narrower(guard: Any, weight: int) -> Any:
    """Fewer elements of a row for each thread, and more threads."""
    if not isinstance(guard, Held | Long):
        return guard
    usual = guard.usual
    while usual > max(guard.width, _LEAST) and usual * weight > _MOST:
        usual //= 2
    return replace(guard, usual=usual)


def _tiled(schedule: Schedule, weights: dict[str, int]) -> Schedule:
    """Tiles that a block stages: fewer turns, and fewer iterations for each of more threads."""
    window = only(schedule, RegisterWindow)
    tall = next((s for s in several(schedule, UnrollJam) if s.copies == _TALL), None)
    if window is None or not window.staged or tall is None:
        return schedule
    turns, copies = window.turns, tall.copies
    while turns > _TURNS:
        turns //= 2
    # Those that are left over are a loop, and those that some iterations have another one.
    while copies > _LEAST and (turns + 2) * copies * weights[window.loop] > _MOST:
        copies //= 2
    times = tall.copies // copies

    def smaller(step: Any) -> Any:
        match step:
            case UnrollJam() if step is tall:
                return replace(step, copies=copies, overlap=times * step.overlap)
            case RegisterWindow():
                return replace(step, turns=turns, staged=min(step.staged, _STAGED))
            case Block():
                return replace(step, y=times * step.y)
            case BlockDim():
                return replace(step, sides=(step.sides[0], times * step.sides[1]))
            case _:
                return step

    return tuple(map(smaller, schedule))
