"""Loop nests as schedules speak of them: names, and the arithmetic of sizes that a call decides."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from weft.errors import Span
from weft.index.integers import Integers
from weft.ir.core import Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType
from weft.ir.views import For, Parallel, is_constant, memory
from weft.ir.writes import written
from weft.schedule.intervals import Step
from weft.schedule.variation import Variation
from weft.values import frozen

T = TypeVar("T")


@frozen
class Nest:
    """``arrays``: names of the arguments (numbers too). ``axes``: names of the parallel indices, in
    the order of the loop; none where one thread runs the function.

    ``program`` computes the index arithmetic from the argument block (see ``intervals.evaluate``);
    other fields are numbers of its steps. ``bounds``: of each axis the lower bound, the upper bound
    and the step. ``lengths``: first index and end of each serial loop that threads may share.
    ``must_fit_32``: what has to fit for 32-bit indices. ``divisions``: for each divisor that a call
    decides, its step and those of what is divided by it. ``kinds``: the combiners that the nest
    reduces by. ``shared_ends``: ends of further loops that threads share where a person asks for
    it. ``splits``: of each loop that blocks may share the name, how many values it carries, first
    index and end, behind those of the loops around it that carry these on.
    """

    arrays: tuple[str, ...]
    axes: tuple[str, ...]
    program: tuple[Step, ...]
    bounds: tuple[tuple[int, int, int], ...] = ()
    lengths: tuple[tuple[int, int], ...] = ()
    must_fit_32: tuple[int, ...] = ()
    divisions: tuple[tuple[int, tuple[int, ...]], ...] = ()
    kinds: tuple[str, ...] = ()
    shared_ends: tuple[int, ...] = ()
    splits: tuple[tuple[str, int, tuple[tuple[int, int], ...]], ...] = ()


@frozen
class Refusal:
    """Why a step is not legal. ``span``: the source text it is about, the loop if it is None."""

    message: str
    span: Span | None = None
    help: str = ""


@frozen
class LoopNest:
    """A loop as the rules of steps look at it."""

    function: Function
    parallel: Op

    @functools.cached_property
    def axes(self) -> tuple[str, ...]:
        """The names of the parallel indices."""
        return axes_of(self.parallel)

    @functools.cached_property
    def arrays(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return arrays_of(self.function)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Those of them that are tensors."""
        pairs = zip(self.arrays, self.function.args, strict=True)
        return tuple(name for name, arg in pairs if isinstance(arg.type, MemRefType))

    @property
    def stored(self) -> tuple[str, ...]:
        """Those that iterations store into."""
        ops = walk(self.parallel.body)
        into = {memory(op)[0] for op in ops if op.name == "memref.store"}
        pairs = zip(self.arrays, self.function.args, strict=True)
        return tuple(name for name, arg in pairs if arg in into)

    @functools.cached_property
    def serial(self) -> dict[str, Op]:
        """The loops inside of an iteration, by the names of their indices."""
        return loops_of(self.parallel)

    @functools.cached_property
    def integers(self) -> Integers:
        """The function's integers, in indices and symbols."""
        return Integers(self.function)

    @functools.cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def once(self, rule: Callable[..., T], *about: Hashable) -> T:
        """``rule(self, *about)``, which many candidates ask for, found out once."""
        key = rule, *about
        if key not in self._known:
            self._known[key] = rule(self, *about)
        return self._known[key]

    def along(self, index: Value) -> Variation:
        """How values vary between iterations along a parallel index."""
        return self.once(_along, index)

    def array(self, name: str) -> Value:
        return self.function.args[self.arrays.index(name)]

    def index(self, axis: str) -> Value:
        return Parallel(self.parallel).indices[self.axes.index(axis)]


def _along(loop: LoopNest, index: Value) -> Variation:
    return Variation(loop.parallel.body, {index: 1}, changing=written(loop.function))


def combined_by(function: Function, memref: Value) -> set[str] | Op:
    """The combiners by which iterations accumulate into ``memref``; or what does something else
    with it than to accumulate without asking what was there."""
    used = {v for op in walk(function.body) for v in op.operands}
    kinds: set[str] = set()
    for op in walk(function.body):
        if memref in op.operands and op.name != "memref.dim":
            if op.name != "memref.atomic_rmw" or not op.attrs["atomic"] or op.result in used:
                return op
            kinds.add(op.attrs["kind"])
    return kinds


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


_PLAIN = {"memref.load", "memref.store", "scf.if", "scf.yield", "scf.reduce"}


def is_plain(op: Op) -> bool:
    """Whether ``op`` is a load, a store, a branch, a serial loop that goes by one, or pure."""
    if op.name == "scf.for":
        return is_constant(For(op).step, 1)
    return op.name in _PLAIN or OPS[op.name].pure
