"""Taichi's tree of layouts, as far as it is dense: ``weft.root.dense(weft.ij, (n, m)).place(x)``.

A field placed there has the extents of all levels above it, multiplied along each axis. Its
elements lie as those of any tensor do, row by row: levels say nothing of the order in memory. The
sparse ones (``pointer``, ``bitmasked``, ``dynamic``, ``hash``) are refused.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from typing import Any, NoReturn, SupportsIndex

import torch

from weft.errors import KernelTypeError, KernelValueError
from weft.lang.field import Field, Placed, checked_offset
from weft.lang.structs import StructField
from weft.values import frozen

_LETTERS = "ijkl"


@frozen
class Axes:
    """Axes by number: ``weft.ij`` is ``Axes((0, 1))``."""

    numbers: tuple[int, ...]


def axes(*numbers: int) -> Axes:
    """Axes by number, from 0 on: ``weft.axes(0, 1)`` is ``weft.ij``."""
    return Axes(tuple(map(operator.index, numbers)))


def named(name: str) -> Axes | None:
    """``ij``, ``jk``, ... as axes; None for what is no such name."""
    places = [_LETTERS.find(letter) for letter in name]
    return Axes(tuple(places)) if places and min(places) >= 0 else None


@frozen
class Level:
    """A level of the tree: the extent of each axis that was divided so far, in order of the axes'
    numbers."""

    extents: tuple[tuple[int, int], ...] = ()

    def dense(self, axes: Axes, dimensions: int | Sequence[int]) -> Level:
        """A level below: ``dimensions`` are the extents along ``axes``, one for all or one each."""
        one = isinstance(dimensions, SupportsIndex)
        sizes = [dimensions] if one else [*dimensions]  # type: ignore[misc]
        sizes = sizes * len(axes.numbers) if len(sizes) == 1 else sizes
        if len(sizes) != len(axes.numbers):
            raise KernelValueError(
                f"dense() of {len(axes.numbers)} axes and {len(sizes)} extents",
                help="write dense(weft.ij, (n, m)), or one extent for all axes",
            )
        found = dict(self.extents)
        for axis, size in zip(axes.numbers, sizes, strict=True):
            found[axis] = found.get(axis, 1) * operator.index(size)
        return Level(tuple(sorted(found.items())))

    def place(self, *fields: Any, offset: int | Sequence[int] | None = None) -> Level:
        """Gives fields that were made without a shape the extents of this level. Where one of
        ``fields`` is None (``x.grad`` of a field that has none yet), the others get gradients."""
        shape = tuple(size for _, size in self.extents)
        for one in fields:
            if one is not None:
                _place(one, shape, offset, graded=None in fields)
        return self

    def lazy_grad(self) -> None:
        """Gives all fields of floating-point numbers gradients, as ``needs_grad=True`` does."""
        for one in Field.alive():
            if one.is_floating_point() and not one.requires_grad:
                one.grow()

    def lazy_dual(self) -> None:
        """Gives all fields of floating-point numbers duals, as ``needs_dual=True`` does."""
        for one in Field.alive():
            one.needs_dual |= one.is_floating_point()

    def finalize(self, raise_warning: bool = True) -> Level:
        """Nothing: fields have their elements from ``place`` on."""
        return self

    def destroy(self) -> None:
        """Nothing: the elements of a field go with the last reference to it."""

    def _sparse(self, *_: Any, **__: Any) -> NoReturn:
        raise KernelTypeError(
            "weft has no sparse layouts: a field is a dense tensor",
            help="write dense(...), or keep indices in a tensor; docs/port-taichi.md has the rows",
        )

    pointer = bitmasked = dynamic = hash = quant_array = deactivate_all = _sparse

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents along the axes."""
        return tuple(size for _, size in self.extents)


def _place(one: Any, shape: tuple[int, ...], offset: Any, *, graded: bool) -> None:
    if isinstance(one, StructField):
        for member in one.members.values():
            _place(member, shape, offset, graded=graded)
        return
    if not isinstance(one, Field):
        raise KernelTypeError(
            f"a {type(one).__name__} is placed", help="place fields: x = weft.field(weft.f32)"
        )
    inner = one.element.shape if one.element is not None else ()
    if one.size() != inner:
        raise KernelValueError(
            f"a field of shape {tuple(one.size())} is placed", help="make it without a shape"
        )
    with torch.no_grad():
        one.lay_out((*shape, *inner))
    if offset is not None:
        one.element = Placed(one.element, checked_offset(offset, shape))
    if graded:
        one.grow()


root = Level()


class Layout(enum.Enum):
    """How Taichi lays vectors out, for ``layout=``. Here all of a vector lies together."""

    AOS = "array of structures"
    SOA = "structure of arrays"
