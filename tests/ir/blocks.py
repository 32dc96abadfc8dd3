"""The interpreter of what a grid runs: ``launch`` runs the threads of a block in turn.

A thread runs up to where it waits for others, then the next one does. What it computes is what
``interp`` says. With ``races``, two threads may not touch one element, one of them at least writing
it non-atomically, unless both waited for each other in between.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from weft.errors import InternalError, RaceError
from weft.ir.core import Block, Function, Op, below, walk
from weft.ir.interp import RULES, Machine, checked, unpacked
from weft.ir.uniform import GROUP, WARP
from weft.ir.views import If, While

Dims = tuple[int, int, int]
Run = Generator[tuple[Op, Sequence[Any]], Any, tuple[Any, ...]]
WAITS = ("gpu.barrier", "gpu.shuffle")


def launch(
    function: Function, args: Sequence[Any], grid: Dims, block: Dims, *,
    races: bool = False, order: str = "forward", seed: int = 0,
) -> None:  # fmt: skip
    """Runs ``function``, which has the attribute ``group``, in each thread of a grid of blocks.

    ``args`` as for ``interp.run``. ``order``: of blocks and of the threads of each. Raises what
    ``run`` raises, and ``InternalError`` where threads wait for others that never come.
    """
    group = function.attrs[GROUP]
    if group and (block[1:] != (1, 1) if group > WARP else block[0] != group):
        raise InternalError(f"{function.name}: blocks of {block} threads, not {group} along x")
    waiting = {op for op in walk(function.body) if any(o.name in WAITS for o in below(op))}
    shuffled = random.Random(seed)
    clocks = _Clocks() if races else None
    given = checked(function, args)
    kept: list[_Thread] = []  # with their arrays: an address is never used for two of them

    def ordered(dims: Dims) -> list[Dims]:
        places = [(x, y, z) for z, y, x in itertools.product(*map(range, reversed(dims)))]
        if order == "reverse":
            places.reverse()
        elif order == "random":
            shuffled.shuffle(places)
        return places

    with np.errstate(all="ignore"):
        for place in ordered(grid):
            shared: dict[Op, Any] = {}
            threads = [
                _Thread(at, block, place, grid, shared, waiting, clocks) for at in ordered(block)
            ]
            kept += threads if races else ()
            _Block(function, threads, given, clocks).run()


class _Thread(Machine):
    """One thread; ``number``: its place in the block."""

    def __init__(
        self, at: Dims, block: Dims, place: Dims, grid: Dims, shared: dict[Op, Any],
        waiting: set[Op], clocks: _Clocks | None,
    ) -> None:  # fmt: skip
        super().__init__(False, "forward", random.Random(0))
        self.number = _linear(at, block)
        self.of_all = _linear(place, grid), self.number
        self.shared = shared
        self.waiting = waiting
        for name, dims, linear in (
            ("gpu.thread_id", at, self.number), ("gpu.block_dim", block, int(np.prod(block))),
            ("gpu.block_id", place, self.of_all[0]), ("gpu.grid_dim", grid, int(np.prod(grid))),
        ):  # fmt: skip
            self.registers |= {(name, side): n for side, n in zip("xyz", dims, strict=True)}
            self.registers[name, "linear"] = linear
        if clocks is not None:
            self.loops = [_Mine(clocks, self.of_all)]

    def steps(self, block: Block, args: Sequence[Any] = ()) -> Run:
        """As ``Machine.block``; yields each operation that waits, and gets its results."""
        self.values.update(zip(block.args, args, strict=True))
        result: Any = ()
        for op in block.ops:
            operands = [self.values[v] for v in op.operands]
            if op not in self.waiting:
                result = RULES[op.name](self, op, *operands)
            elif op.name in WAITS:
                result = yield op, operands
            else:
                result = yield from self.control(op, operands)
            if op.results:
                results = (result,) if len(op.results) == 1 else result
                self.values.update(zip(op.results, results, strict=True))
        return tuple(self.values[v] for v in block.terminator.operands)

    def control(self, op: Op, operands: list[Any]) -> Run:
        """A loop or branch in which threads wait."""
        if op.name == "scf.if":
            taken = If(op).then if operands[0] else If(op).otherwise
            return unpacked(op, (yield from self.steps(taken)))
        if op.name == "scf.for":
            lower, upper, step, *carried = operands
            for i in range(lower, upper, step):
                carried = yield from self.steps(op.body, (i, *carried))
            return unpacked(op, tuple(carried))
        if op.name == "scf.while":
            carried = operands
            while True:
                go_on, *values = yield from self.steps(While(op).before, carried)
                if not go_on:
                    return unpacked(op, tuple(values))
                carried = yield from self.steps(While(op).after, values)
        raise InternalError(f"{op.name}: threads cannot wait for each other in it")


def _linear(at: Dims, dims: Dims) -> int:
    return (at[2] * dims[1] + at[1]) * dims[0] + at[0]


class _Block:
    """The threads of one block, by number, each where it waits."""

    def __init__(
        self, function: Function, threads: list[_Thread], args: list[Any], clocks: _Clocks | None
    ) -> None:
        self.runs = {t.number: t.steps(function.body, args) for t in threads}
        self.all = {t.number: t.of_all for t in threads}
        self.clocks = clocks
        self.at: dict[int, tuple[Op, Sequence[Any]]] = {}

    def run(self) -> None:
        results: dict[int, Any] = dict.fromkeys(self.runs)
        while results:
            for number, result in results.items():
                try:
                    self.at[number] = self.runs[number].send(result)
                except StopIteration:
                    self.at.pop(number, None)
            results = self.released()
            if self.at and not results:
                op, _ = next(iter(self.at.values()))
                where = f" (from {op.span.file}:{op.span.line})" if op.span is not None else ""
                raise InternalError(f"{op.name}: threads wait for others that never come{where}")

    def released(self) -> dict[int, Any]:
        """What those threads get that need not wait any longer."""
        found: dict[int, Any] = {}
        for number in self.runs:
            if number in found or number not in self.at:
                continue
            op, _ = self.at[number]
            width = op.attrs["width"]
            first = number // width * width if width else 0
            group = range(first, first + width) if width else sorted(self.runs)
            if all(n in self.at and self.at[n][0] is op for n in group):
                found |= {n: self.handed(op, n, first) for n in group}
                if self.clocks is not None:
                    self.clocks.meet([self.all[n] for n in group])
        return found

    def handed(self, op: Op, number: int, first: int) -> Any:
        """What a shuffle gives the thread."""
        if op.name == "gpu.barrier":
            return ()
        _, (_, n) = self.at[number]
        width, place = op.attrs["width"], number - first
        mode = op.attrs["mode"]
        other = {"xor": place ^ n, "up": place - n, "down": place + n, "idx": n}[mode]
        if not 0 <= other < width:
            if mode not in ("up", "down"):
                raise InternalError(f"gpu.shuffle: there is no lane {other} of {width}")
            other = place
        return self.at[first + other][1][0]


Place = tuple[int, int]  # of a thread: the numbers of its block and in it


class _Clocks:
    """What each thread knows of the others: up to which of their waits it has waited with them,
    directly or not; and who touched each address when (a vector clock for each thread)."""

    def __init__(self) -> None:
        self.now: dict[Place, int] = {}
        self.known: dict[Place, dict[Place, int]] = {}
        self.touched: dict[int, dict[tuple[Place, bool], int]] = {}

    def touch(self, mine: Place, op: Op, address: int, writes: bool) -> None:
        seen = self.touched.setdefault(address, {})
        for (other, wrote), time in seen.items():
            ordered = self.known.get(mine, {}).get(other, -1) >= time
            if other != mine and (wrote or writes) and not ordered:
                raise RaceError(
                    f"threads {other} and {mine} (block, number) touch the same element, one of "
                    "them writes it, and they did not wait for each other",
                    op.span,
                )
        seen[mine, writes] = self.now.get(mine, 0)

    def meet(self, group: list[Place]) -> None:
        merged: dict[Place, int] = {}
        for thread in group:
            for other, time in self.known.get(thread, {}).items():
                merged[other] = max(time, merged.get(other, -1))
        for thread in group:
            merged[thread] = self.now.get(thread, 0)
            self.now[thread] = merged[thread] + 1
        self.known.update((thread, dict(merged)) for thread in group)


class _Mine:
    """The clocks for one thread, in the place of what notes iterations (see ``interp``)."""

    def __init__(self, clocks: _Clocks, thread: Place) -> None:
        self.clocks = clocks
        self.thread = thread

    def touch(self, op: Op, address: int, writes: bool) -> None:
        self.clocks.touch(self.thread, op, address, writes)
