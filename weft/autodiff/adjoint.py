"""What ``reverse`` makes: functions to be launched one after the other, and their workspaces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from weft.index.expression import Poly
from weft.ir.core import Function, Op
from weft.ir.text import print_function
from weft.values import frozen, mutable

Part = Literal["all", "starts", "segment"]
RUN = 128  # sorted iterations that are summed apart where all are of one row


@mutable
class Extent:
    """How many numbers a tape has in its time dimension, for the loop ``op`` of the primal: one for
    each of ``all`` its iterations; or one for each iteration of a ``segment`` of about the square
    root of them, and one for the ``starts`` of segments. ``chunk``: how many iterations each
    segment has instead, if not 0; what is left of them is one more."""

    op: Op
    part: Part = "all"
    chunk: int = 0

    def length(self, trips: int) -> int:
        """``trips``: the most iterations of the loop, and for a ``scf.while`` one more."""
        if self.part == "all":
            return trips
        if self.chunk:
            return trips // self.chunk + 1
        if self.part == "segment":
            return segment_length(trips)
        last = self.op.name == "scf.while"  # a place for the last evaluation of the condition
        return -(-trips // segment_length(trips)) + last


def segment_length(trips: int) -> int:
    """How many iterations are between two checkpoints, of a loop of ``trips``."""
    return math.isqrt(max(trips, 1) - 1) + 1


@mutable
class Buffer:
    """A workspace: as large as the parallel loop ``parallel`` (a single element if that is None),
    then ``extents``, then ``shape``. Its contents need not be defined. ``element`` is the name of
    the scalar type. ``interleaved``: ``extents`` and ``shape`` come first, so that neighbouring
    iterations are neighbours in it; ``by_element``: ``extents`` alone do, so that the elements of
    an iteration are; ``vector``: so many of the elements of an iteration are, and then those of its
    neighbour along the last index. ``partial``: instead, for each chunk of a sum that is split, or
    of the loop, as large as the gradient of that name. ``private``: it is a private copy. ``of``:
    the argument whose elements, which are overwritten later, it keeps. ``dims``: it has these of
    the parallel loop's indices only, by place; if it is ``partial``, a chunk is ``RUN`` iterations
    along these, and it is as large as the gradient along ``axes``."""

    name: str
    element: str
    parallel: Op | None
    extents: tuple[Extent, ...] = ()
    shape: tuple[int, ...] = ()
    interleaved: bool = False
    by_element: bool = False
    vector: int = 0
    partial: str = ""
    private: bool = False
    of: str = ""
    dims: tuple[int, ...] | None = None
    axes: tuple[int, ...] = ()

    def describe(self) -> str:
        """How large it is, in words."""
        words = {"all": "", "starts": "the segments of ", "segment": "a segment of "}
        if self.partial and self.dims is not None:
            text = f"rows of {self.partial} for each {RUN} sorted iterations"
        elif self.partial:
            text = f"{self.partial} for each chunk of {'the loop' if self.private else 'its sums'}"
        elif self.parallel is None:
            text = "one number"
        else:
            text = "for each iteration of the parallel loop"
            for extent in self.extents:
                line = getattr(extent.op.span, "line", None)
                loop = "a sequential loop" if line is None else f"the loop at line {line}"
                text += f" and of {words[extent.part]}{loop}"
            if any(extent.part == "all" for extent in self.extents):
                text += " (the whole iteration space)"
        shape = "".join(f" × {n}" for n in self.shape)
        return f"{self.element}{shape}, {text}"


@frozen
class Listed:
    """To be added to ``gradient``: for each entry of the workspaces, the number in ``values`` to
    the element in ``places`` (row-major; -1, with which it is filled before: to none)."""

    gradient: str
    places: str
    values: str


@frozen
class Sorted:
    """The iterations of a loop, to be sorted by their ``keys`` before a step that takes their
    ``order``: a key is the number of a row along ``axes`` of ``gradient`` (-1: of none), in that
    order they are from ``starts`` of it to ``starts`` of the next one (both i64). ``parts``: the
    sums of each ``RUN`` of them in a row that has all of these."""

    gradient: str
    name: str
    axes: tuple[int, ...]

    @property
    def keys(self) -> str:
        return f"keys.{self.name}"

    @property
    def order(self) -> str:
        return f"order.{self.name}"

    @property
    def starts(self) -> str:
        return f"starts.{self.name}"

    @property
    def parts(self) -> str:
        return f"parts.{self.name}"


@frozen
class Additions:
    """A gradient that could be accumulated in private copies, as the loop meets it. ``count``: how
    many additions that are (at least, where a loop's length is not known). ``atomic``: the other
    way is atomic; else it is a sum for each element, in a loop of its own. ``rows``: threads of a
    GPU can have an iteration together, whose loops go along this gradient. ``slices``: in so many
    runs of iterations, none of which meets another's elements, a CPU carries the loop out without
    atomics (``index.leading``); None where it has no such runs."""

    count: Poly
    atomic: bool
    rows: bool = False
    slices: Poly | None = None


@frozen
class Terms:
    """How long the sum of an element of a gradient is at most, in scalar arguments and extents of
    the steps: iterations of its ``outermost`` loop, and terms in ``all`` (None: not known)."""

    outermost: Poly
    all: Poly | None


@frozen
class Lengths:
    """``space``: the extents of the parallel loop; ``trips``: of each of ``loops``, None
    where ``measure`` computes it: a function of the primal's arguments, of ``before`` them and of
    copies of these to ``work`` on, that raises element k of its last one, ``TRIPS`` (i64, starting
    from 0), to the most trips of loop k. All expressions are in
    the primal's scalar arguments and extents."""

    space: tuple[Poly, ...]
    loops: tuple[Op, ...]
    trips: tuple[Poly | None, ...]
    measure: Function | None


@mutable
class Adjoint:
    """The adjoint of ``primal``. Each of ``steps`` is a function whose arguments' names say which
    buffer or scalar is passed: an argument of the primal by its name in ``names``, ``x.before``,
    ``d.x``, or a workspace of ``workspaces``, or, of ``segments``, the number of iterations of a
    loop between two checkpoints (an i64). ``notes`` say of each gradient how it is accumulated.
    ``sums``: of those in gather form, how long each element's sum is. ``listed``: what is to be
    added to gradients after the steps, ``sorted`` what is to be sorted between them.
    ``defined``: the gradients all of whose elements the steps write; the others are zero before.
    ``dense``: those that would be among them, by stores in place of
    accumulations, where the expressions of all pairs are equal. ``private``: those that may be
    accumulated in private copies. Their expressions are like those of ``sums``. ``copies``: the
    arguments that are to be fresh copies at each launch, with what they are copies of.
    ``narrow``: the gradients that are in the dtype of what they are gradients of, of those that
    are in the compute type usually."""

    primal: Function
    names: tuple[str, ...]
    steps: tuple[Function, ...]
    workspaces: tuple[Buffer, ...]
    segments: tuple[tuple[str, Op], ...]
    lengths: Lengths | None
    notes: dict[str, str] = field(default_factory=dict)
    sums: dict[str, Terms] = field(default_factory=dict)
    listed: tuple[Listed, ...] = ()
    sorted: tuple[Sorted, ...] = ()
    defined: frozenset[str] = frozenset()
    dense: dict[str, tuple[tuple[Poly, Poly], ...]] = field(default_factory=dict)
    private: dict[str, Additions] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    narrow: frozenset[str] = frozenset()

    @property
    def used(self) -> set[str]:
        """The names of all that some step takes."""
        return {a.name for step in self.steps for a in step.args}

    @property
    def taped(self) -> list[Buffer]:
        """The workspaces that are left."""
        used = self.used
        return [w for w in self.workspaces if w.name in used]

    def describe(self, bytes: Mapping[str, int] | None = None) -> str:
        """For each gradient how it is accumulated, then the workspaces, with their sizes in a call
        where these are given."""
        lines = [f"{name}: {note}" for name, note in self.notes.items()]
        for w in self.taped:
            size = f": {bytes[w.name]:,} bytes" if bytes and w.name in bytes else ""
            lines.append(f"workspace {w.name}: {w.describe()}{size}")
        if bytes and len(self.taped) > 1:
            lines.append(f"all workspaces: {sum(bytes.values()):,} bytes")
        return "\n".join(lines)

    def text(self, bytes: Mapping[str, int] | None = None) -> str:
        return "\n".join([self.describe(bytes), *map(print_function, self.steps)])

    __str__ = text
