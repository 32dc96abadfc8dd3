"""Points of a program that is interpreted: where an element was touched, and by which iteration."""

from __future__ import annotations

import ast
import itertools
import linecache
import operator
import sys
import types
from collections.abc import Sequence
from typing import Any

from weft.errors import KernelIndexError
from weft.runtime.conflict import subject, subscript
from weft.source import Span
from weft.values import frozen


@frozen
class Place:
    """A point of a program: enough to find the line and columns later."""

    code: types.CodeType
    instruction: int

    def span(self) -> Span:
        at = next(itertools.islice(self.code.co_positions(), self.instruction // 2, None))
        line, end_line, column, end_column = at
        line = line or self.code.co_firstlineno
        text = linecache.getline(self.code.co_filename, line).rstrip("\n")
        return Span(
            self.code.co_filename, line, column or 0, end_line or line, end_column or 0, text,
            self.code.co_name,
        )  # fmt: skip


def _module(frame: types.FrameType) -> str:
    """The name of a frame's module; text that ``exec`` runs need have none."""
    return frame.f_globals.get("__name__") or ""


def here(depth: int, package: str = "") -> Place:
    """Where the caller so many calls up stands, or the next one that is not of a package."""
    frame = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    while package and frame.f_back and _module(frame).partition(".")[0] == package:
        frame = frame.f_back
    return Place(frame.f_code, frame.f_lasti)


def outside() -> Place:
    """The point of the program that called the language, which called this."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while _module(frame).startswith("weft.lang.") and frame.f_back is not None:
        frame = frame.f_back
    return Place(frame.f_code, frame.f_lasti)


@frozen
class Access:
    """One element touched by one iteration. ``kind`` is READ, WRITE or one of UPDATES' values."""

    kind: str
    iteration: Any
    position: tuple[int, ...]
    place: Place

    def side(self) -> tuple[str, Any, Span]:
        return self.kind, self.iteration, self.place.span()


def literal_axes(place: Place, count: int) -> set[int]:
    """The axes whose subscript is a negative literal in the source."""
    node = subscript(place.span())
    if node is None:
        return set()
    many = isinstance(node.slice, ast.Tuple)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if many and len(parts) != count:
        return set()  # an index vector among them: the places do not match
    return {
        axis
        for axis, part in enumerate(parts)
        if isinstance(part, ast.UnaryOp)
        and isinstance(part.op, ast.USub)
        and isinstance(part.operand, ast.Constant)
    }


def wrong_number(extents: Sequence[int], count: int, place: Place) -> KernelIndexError:
    """The error of ``count`` subscripts of a tensor of these ``extents``."""
    name, rank = subject(place.span()), len(extents)
    given = "1 subscript is given" if count == 1 else f"{count} subscripts are given"
    return KernelIndexError(
        f"`{name}` has {rank} dimension{'s' * (rank != 1)}, but {given}",
        place.span(),
        f"write {name}[{', '.join('ijklmnopq'[:rank]) or 'None'}]",
    )


def out_of_range(
    extents: tuple[int, ...], parts: Sequence[Any], axis: int, k: int, place: Place
) -> KernelIndexError:
    """The error of the subscript ``k`` of ``axis``, one of ``parts``."""
    name = subject(place.span())
    shown = ", ".join(str(operator.index(part)) for part in parts)
    help = "a negative index counts from the end only where it is written as a literal"
    return KernelIndexError(
        f"index ({shown}) is out of range: dimension {axis} of `{name}` has "
        f"{extents[axis]} elements (its shape is {extents})",
        place.span(),
        f"{help}; else write {name}.shape[{axis}] - {-k}" if k < 0 else "",
    )
