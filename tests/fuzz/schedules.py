"""Random schedules, as a person might write them, for the loops of a kernel."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

import weft
from weft import compiler
from weft.codegen import cuda
from weft.codegen.machine import host_cpu
from weft.errors import ScheduleError
from weft.ir.core import Function
from weft.schedule import apply_cuda, default_cpu, legal_cpu
from weft.schedule.nest import LoopNest
from weft.tools.cross import lowered_loops

TRIES = 40


def text_for(random: Random, nest: LoopNest) -> str:
    """A text of a few steps, which may be wrong."""
    axes, loops, arrays = nest.axes, tuple(nest.serial), nest.tensors
    pick = random.choice
    many = pick((1, 2, 2, 4, 4, 8))
    shared = ", ".join(random.sample(loops, random.randint(0, len(loops))))
    sides = ", ".join(str(pick((1, 2, 8, 16, 32, 48))) for _ in axes[:3])
    large = [
        f"unroll_jam({pick(axes)}, {pick((2, 3, 4, 8))}, stride={pick((1, 1, 2, 32))}, "
        f"overlap={pick((0, 0, 0, 1, 2, 32))})",
        f"vectorize({pick(axes)}, {many}, {many * pick((1, 2, 4))}, stride={pick((1, 1, 32))}, "
        f"divisible={random.random() < 0.2})",
        f"cooperate(({shared}), {pick((2, 8, 32, 64, 256))}, columns={pick((0, 0, 2, 8, 32))})",
        f"scan(({shared}), {pick((32, 64, 128))}, width={pick((1, 1, 2, 4))}, "
        f"turns={pick((1, 2, 4, 8))}, parts={pick((1, 1, 2, 3))})",
        f"split_reduction(({shared}), {pick((32, 64))}, columns={pick((0, 0, 2, 8))}, "
        f"parts={pick((0, 2, 3))})",
        f"privatize({pick(arrays)})",
        *([f"unroll(({shared}))"] if shared else []),
        *(f"prefetch({loop}, {pick((2, 3, 4, 8))})" for loop in random.sample(loops, bool(loops))),
        *(
            f"stage({loop}, {pick((2, 4, 16))}, {pick((32, 64))})"
            + f"; unroll(({shared}))" * (loop not in shared and random.random() < 0.5)
            for loop in loops[:3]
        ),
        *(
            f"{pick(('', f'reverse({loop}); '))}unroll_jam({pick(axes)}, {pick((2, 4))}, "
            f"overlap={pick((0, 0, 1, 2))}); "
            f"register_window({loop}, {pick((2, 3, 4, 8))})"
            for loop in loops
        ),
        *(staged(random, axes, loop) for loop in loops[:3]),
        *(f"reverse({loop})" for loop in random.sample(loops, bool(loops))),
        f"cooperate(({shared}), {pick((2, 8, 32, 64))}); "
        f"{pick(('keep_row', 'strip_mine'))}({pick((1, 2, 4, 8))}, {pick((1, 2, 5))})",
    ]
    small = [
        f"streaming_stores({pick(arrays)})",
        f"bind({pick(axes)}, {pick('xyz')})",
        f"block({pick((1, 8, 32, 96, 256, 512))}, {pick((1, 1, 2, 4))})",
        f"block_dim(({sides}))",
        f"persist({pick((1, 2, 32))})",
        "cover()",
        f"index_width({pick((32, 64))})",
        "fast_division()",
    ]
    chosen = random.sample(large, pick((0, 1, 1, 1, 2))) + random.sample(small, pick((0, 0, 1, 2)))
    return "; ".join(chosen)


def staged(random: Random, axes: tuple[str, ...], loop: str) -> str:
    """A tile of which rows are staged, which may be wrong."""
    pick, tiled = random.choice, random.sample(axes, min(len(axes), 2))
    sides = [pick((1, 2, 4)) for _ in tiled]
    jams = "".join(
        f"unroll_jam({axis}, {pick((1, 2, 4))}, overlap={side}, whole={random.random() < 0.3}); "
        for axis, side in zip(tiled, sides, strict=True)
    )
    turns = pick((2, 3, 4))
    bound = [f"bind({axis}, {side})" for axis, side in zip(tiled, "xy", strict=False)]
    bound += [f"bind({axis}, z)" for axis in axes if axis not in tiled]
    return (
        f"{pick(('', f'reverse({loop}); '))}{jams}register_window({loop}, {turns}, "
        f"staged={turns * pick((1, 2, 5))}); {'; '.join(bound)}; "
        f"block_dim(({', '.join(map(str, sides))}))"
    )


def loops_of(kernel: weft.Kernel, tensors: list[torch.Tensor], *rest: Any) -> list[Function]:
    """The loops of a call, after the passes for a GPU."""
    return [
        compiler.optimize(loop, kernel.options) for loop in lowered_loops(kernel, *tensors, *rest)
    ]


def for_cuda(random: Random, function: Function) -> str | None:
    """A text that the loop allows; None where none was found."""
    parallel = apply_cuda.outermost(function)
    if parallel is None:
        return None
    nest = LoopNest(function, parallel)
    for _ in range(TRIES):
        text = text_for(random, nest)
        try:
            cuda.analyse(function, text)
        except ScheduleError:
            continue
        return text
    return None


def for_cpu(random: Random, function: Function) -> str | None:
    """Likewise, for a CPU. Steps that share a nest are what goes wrong: where a loop allows two or
    three, most texts have as many."""
    parallel = legal_cpu.outermost(function)
    if parallel is None:
        return None
    nest = LoopNest(function, parallel)
    least = random.choice((1, 2, 2, 2))
    for left in range(TRIES, 0, -1):
        steps = random.choice((_tile, _tile, _side_by_side))(random, nest)
        if 2 * left < TRIES:  # seldom more of them
            steps = steps[: random.choice((1, 1, 1, len(steps)))]
        elif len(steps) < least:
            continue
        text = "; ".join(steps)
        if legal_cpu.allows(function, default_cpu.completed(text), host_cpu()):
            return text
    return None


def _tile(random: Random, nest: LoopNest) -> list[str]:
    """The steps of a register tile, which may be wrong."""
    axis, *others = random.sample(nest.axes, len(nest.axes))
    widest = legal_cpu.lanes(nest.parallel.body, host_cpu())
    width = random.choice([w for w in (2, 4, 8, 16) if w <= max(widest, 2)])
    copies, reverse = width * random.choice((1, 1, 1, 2, 7)), random.random() < 0.3
    steps = [f"vectorize({axis}, {width}, {copies}, {reverse=})"]
    if others and random.random() < 0.8:
        steps.insert(0, f"unroll_jam({others[0]}, {random.choice((2, 2, 3, 4, 7))})")
    if nest.stored and random.random() < 0.3:
        steps.append(f"streaming_stores(({', '.join(nest.stored)}))")
    return steps


def _side_by_side(random: Random, nest: LoopNest) -> list[str]:
    """Iterations side by side without vectors, and arrays that threads have copies of."""
    steps = [f"privatize({name})" for name in nest.tensors]
    for axis in random.sample(nest.axes, len(nest.axes)):
        stride = random.choice((1, 1, 2, 3, 5))
        steps.append(f"unroll_jam({axis}, {random.choice((2, 3, 4, 8))}, {stride=})")
    return random.sample(steps, min(random.choice((1, 2, 2, 3)), len(steps)))
