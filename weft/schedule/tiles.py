"""Forms in which a thread has neighbours whose rows slide, for a GPU.

A warp has several threads along the first two indices, so that these have nearly the same turns,
and few rows. Where a block has a whole tile, its threads read these from shared memory, and those
along the second index are neighbours, which read in other banks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from weft.ir.core import Value
from weft.ir.views import For
from weft.schedule.guards import Aligned, Busy, Covered, Guard, Overlapped, Turns, Whole
from weft.schedule.language import (
    Bind,
    Block,
    BlockDim,
    Cover,
    LongestFirst,
    RegisterWindow,
    Reverse,
    Schedule,
    Step,
    UnrollJam,
)
from weft.schedule.nest import LoopNest
from weft.schedule.register_window import whole_vectors
from weft.schedule.shared_loads import MOST_TILE, WindowTile
from weft.schedule.stage_rows import why_not_staged
from weft.schedule.unroll_jam import repeatable

_LEAST_CHUNKS = 8  # of turns that become one, in the longest loop
# Iterations of a thread along the index of the neighbours and along another one, turns that become
# one, turns that are staged, and threads of a block along these two indices. (Of loops that go
# backwards eight threads along the first index are a little faster than sixteen.)
_STAGED = ((8, 8), 4, 64, (16, 4)), ((16, 1), 16, 256, (8, 4))
_FEWER = 8
# The same for loops that go forwards, over sizes that tiles divide: more is staged at a time, by
# larger blocks (a causal convolution of 32 x 768 x 768 on an H200, in turn: 64 turns .371 ms, 256
# .362, with 8 of them as one .360).
_LONG = (8, 8), 8, 256, (32, 4)

Form = tuple[tuple[Guard, ...], Schedule]


def placed(axes: Sequence[str], block: tuple[int, int]) -> list[Step]:
    """``axes`` on the grid, that along x first."""
    steps: list[Step] = [Bind(axes[0], "x")]
    steps += [Bind(name, "y") for name in axes[1:2]]
    return [*steps, *(Bind(name, "z") for name in axes[2:]), Block(*block)]


def in_tiles(
    loop: LoopNest, tiles: Sequence[WindowTile], step_of: Callable[[Value], int], busy: Busy
) -> Iterator[Form]:
    """The forms: those of whole blocks first, then those for sizes that tiles divide. (Where blocks
    stage rows, those whose last tile overlaps load them one by one at all addresses: others were
    3 % faster, and take as long to compile.)"""
    kinds = (False, True) if repeatable(loop.parallel) else (False,)
    staged = [form for tile in tiles for again in kinds
              for form in _staged(loop, tile, step_of, busy, again=again)]  # fmt: skip
    yield from staged
    for again in kinds:
        for tile in tiles:
            names = [loop.axes[k] for k in tile.order]
            steps = tuple(
                replace(step, overlap=1) if again and isinstance(step, UnrollJam) else step
                for step in tile.steps
            )
            sizes = dict(zip(names, tile.copies, strict=False))
            rest = (Cover(), *placed(names, tile.block))
            forms = [*_forms(loop, tile, step_of, busy, steps, sizes, rest, again=again)]
            yield from forms[-1:] if staged else forms


def _staged(
    loop: LoopNest, tile: WindowTile, step_of: Callable[[Value], int], busy: Busy, *, again: bool
) -> Iterator[Form]:
    window = next(step for step in tile.steps if isinstance(step, RegisterWindow))
    backwards = tuple(step for step in tile.steps if isinstance(step, Reverse))
    along = loop.along(loop.index(loop.axes[tile.order[0]]))
    uneven = () if along.uniform(*For(tile.loop).bounds) else (LongestFirst(),)
    first, *others = (loop.axes[k] for k in tile.order)
    long = () if backwards or again else (_LONG,)
    for copies, turns, staged, (across, beside) in (*long, *_STAGED):
        several = len(tile.copies) > 1
        fits = tile.copies[1:] == copies[1:] if several else copies[1] == 1
        if not fits or tile.words * math.prod(copies) > MOST_TILE:
            continue
        across = min(across, _FEWER) if backwards else across
        kept = RegisterWindow(window.loop, turns, staged)
        for second in others[:1] if several else others:
            jams = (UnrollJam(second, copies[1], overlap=beside, whole=not again),
                    UnrollJam(first, copies[0], overlap=across, whole=not again))  # fmt: skip
            steps = (*backwards, *jams, kept, *uneven)
            names = [second, first, *(name for name in others if name != second)]
            sides = beside, across
            rest = (Cover(), *placed(names, sides), BlockDim(sides))
            if why_not_staged(loop, kept, (*steps, *rest)) is None:
                sizes = {jam.axis: jam.copies * jam.overlap for jam in jams}
                forms = [*_forms(loop, tile, step_of, busy, steps, sizes, rest, again=again)]
                yield forms[-1]


def _forms(
    loop: LoopNest, tile: WindowTile, step_of: Callable[[Value], int], busy: Busy, steps: Schedule,
    sizes: dict[str, int], rest: Schedule, *, again: bool,
) -> Iterator[Form]:  # fmt: skip
    """Those of whole vectors, and where tiles overlap those without. ``sizes``: of the tiles."""
    lower, upper, _ = For(tile.loop).bounds
    turns = max(step.turns for step in steps if isinstance(step, RegisterWindow))
    kind = Overlapped if again else Whole
    guards = (
        *(kind(name, n) for name, n in sizes.items()), busy,
        Turns(step_of(lower), step_of(upper), _LEAST_CHUNKS * turns), Covered(),
    )  # fmt: skip
    aligns, multiples = whole_vectors(loop, steps, step_of)
    whole = (*(Aligned(align.array, align.bytes) for align in aligns), *multiples)
    yield (*whole, *guards), (*steps, *aligns, *rest)
    if again and aligns:
        yield guards, (*steps, *rest)
