"""Jagged tensors (``torch.jagged``): a kernel of rows, carried out over all of a batch at once.

A kernel is given jagged tensors of one shape and has as many subscripts as they have dimensions,
the batch and the ragged dimension first; or one less, where it is written for one component of the
batch. Its loop is launched on the values of all components, as one of them. That is right where
each iteration is of one place of the ragged dimension and of nothing else, which ``check`` finds
from the loop's IR.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

# What is asked of nested tensors has no public name.
# pyright: reportPrivateUsage=false
from weft.errors import KernelIndexError, KernelTypeError, Span
from weft.frontend.returns import put_together, tensors_of
from weft.ir.core import Block, Function, Op, Value
from weft.ir.views import For, Parallel, accessed_by, is_constant, memory
from weft.pytorch.recipe import Computed, Count, Fresh, Place, Recipe, Size, recipe_of, sizes_of
from weft.runtime.fastpath import passed
from weft.runtime.launch import KernelLike, Launcher
from weft.runtime.pairs import apart
from weft.values import frozen

_HELP = (
    "pass {0}.values() and {0}.offsets() to a kernel of all rows, where component i has those of "
    "`for t in range(offsets[i], offsets[i + 1])`; rows that it returns become jagged by "
    "torch.nested.nested_tensor_from_jagged(rows, {0}.offsets())"
)


class _Unfit(Exception):
    """What a loop does with a ragged dimension beside naming elements by it."""


def is_jagged(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_nested and value.layout is torch.jagged


def over_rows(kernel: KernelLike, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with jagged tensors. Gives jagged tensors of the same offsets, with their gradients.
    Raises ``KernelTypeError`` where the loop is not one of independent rows."""
    bound = kernel.bind(args, kwargs)
    names, values = list(bound.arguments), list(bound.arguments.values())
    ragged = [k for k, v in enumerate(values) if is_jagged(v)]
    first, span = values[ragged[0]], kernel.span
    for k in ragged:
        _check_shape(names[k], values[k], names[ragged[0]], first, span)
    name, recipe = names[ragged[0]], recipe_of(kernel, reaching=True)

    def refuse(why: str) -> KernelTypeError:
        return KernelTypeError(
            f"`{name}` is a jagged tensor, and {why}", span, help=_HELP.format(name)
        )

    if recipe is None:
        raise refuse("the kernel is more than one loop over its parameters and new tensors")
    if any(region.results for region in kernel.parts.regions):
        raise refuse("the loop reduces into a scalar, which is one for all of the batch")
    flat = [v.values() if k in ragged else v for k, v in enumerate(values)]
    wanted = torch.is_grad_enabled() and any(
        isinstance(v, torch.Tensor) and v.requires_grad for v in flat
    )
    written = [n for k, n in enumerate(names) if k in ragged and n in kernel.mutated]
    if wanted and written:
        raise refuse(f"a gradient is asked for, and the kernel writes to `{written[0]}`")
    try:
        whole, rows = _fitting(kernel, recipe, flat, ragged)
    except _Unfit as reason:
        raise refuse(str(reason)) from None
    bound.arguments.update(zip(names, whole, strict=True))
    out = kernel(*bound.args, **bound.kwargs)
    if out is None:
        return None
    (returned,) = kernel.parts.returns
    items = tensors_of(out, returned.form)
    assert items is not None  # the host part is one that is read
    offsets, extremes = first.offsets(), (first._min_seqlen, first._max_seqlen)
    made = []
    for own, item in zip(returned.names, items, strict=True):
        if own:
            made.append(values[names.index(own)])
            continue
        of_rows = item.squeeze(0) if rows == 2 else item
        made.append(torch.nested.nested_tensor_from_jagged(
            of_rows, offsets, min_seqlen=extremes[0], max_seqlen=extremes[1]
        ))  # fmt: skip
    return put_together(returned.form, iter(made))


def _check_shape(name: str, value: Any, other: str, first: Any, span: Span) -> None:
    if value._ragged_idx != 1 or value.lengths() is not None:
        raise KernelTypeError(
            f"`{name}` is a jagged tensor whose ragged dimension is not the second one, or which "
            "has holes", span, help=f"pass {name}.contiguous(), transposed back",
        )  # fmt: skip
    if value.shape[1] != first.shape[1]:
        raise KernelTypeError(
            f"`{name}` and `{other}` are jagged tensors of different offsets", span,
            help="make one from the other's: nested_tensor_from_jagged(values, other.offsets())",
        )  # fmt: skip


def _fitting(
    kernel: KernelLike, recipe: Recipe, flat: Sequence[Any], ragged: Sequence[int]
) -> tuple[list[Any], int]:
    """The arguments to launch on, and how many of their dimensions stand for the batch and the
    ragged one. Raises ``_Unfit``."""
    (launcher,), (loop,) = kernel.launchers, kernel.parts.regions
    places = dict(zip((arg.name for arg in loop.args), recipe.places, strict=False))
    refused: Exception | None = None
    for rows in (2, 1):
        whole = [v.unsqueeze(0) if rows == 2 and k in ragged else v for k, v in enumerate(flat)]
        if any(whole[k].dim() != rank for k, rank in recipe.ranks):
            continue
        if any(not -whole[s.parameter].dim() <= s.axis < whole[s.parameter].dim()
               for s in recipe.sizes):  # fmt: skip
            continue
        given, _ = recipe.arguments(whole)
        plan = _Plan(recipe, places, {k: whole[k].dim() for k in ragged}, rows)
        try:
            apart(launcher, given, functools.partial(_check, plan))
        except (KernelIndexError, KernelTypeError) as error:  # another rank
            refused = refused or error
            continue
        return whole, rows
    if refused is None:
        raise _Unfit("the host part takes apart the sizes of a tensor of another rank")
    raise refused


@frozen
class _Plan:
    """Whose first ``rows`` dimensions are ragged: of parameters, ``ranks`` by their position, and
    of what the host part makes like them, or of their sizes there. ``places``: of the loop's
    arguments, by name."""

    recipe: Recipe
    places: Mapping[str, Place]
    ranks: Mapping[int, int]
    rows: int

    def ragged_axis(self, size: Any) -> int | None:
        """Of a size that is one of rows."""
        if not isinstance(size, Size) or size.parameter not in self.ranks:
            return None
        axis = size.axis % self.ranks[size.parameter]
        return axis if axis < self.rows else None

    def is_ragged(self, place: Any) -> bool:
        """Whether a parameter, or a tensor that is made, is. Raises ``_Unfit`` where a tensor has
        such sizes elsewhere."""
        if not isinstance(place, Fresh):
            return isinstance(place, int) and place in self.ranks
        made = self.recipe.made[place.number]
        if made.sizes is None:
            return made.like in self.ranks
        axes = [self.ragged_axis(size) for size in made.sizes[: self.rows]]
        ragged = axes == [*range(self.rows)]
        self.plain(made.sizes[self.rows if ragged else 0 :])
        return ragged

    def plain(self, counts: Sequence[Count]) -> None:
        """Refuses what is computed of a number of rows, or made of so many beside rows."""
        if any(self.ragged_axis(s) is not None for count in counts for s in sizes_of(count)):
            raise _Unfit("the host part computes with the number of rows, or makes a tensor whose "
                         "first sizes are not those of rows")  # fmt: skip


def _check(plan: _Plan, launcher: Launcher, given: tuple[Any, ...]) -> None:
    """Raises ``_Unfit`` where the loop does more with the first dimensions of what is ragged than
    to go through them, or something else is returned."""

    def function(args: tuple[Any, ...]) -> tuple[Function, list[Any]]:
        specs = list(launcher.forms.specs(args).values())
        compiled = launcher.forms.specialize(specs, place="none").compiled
        return compiled.function, [passed([s], [v]) for s, v in zip(specs, args, strict=True)]

    found, slots = launcher.forms.retried(given, function)
    arguments = iter(found.args)
    loop = _Rows(plan.rows)
    for own, arg in zip(slots, launcher.region.args, strict=True):
        place = plan.places.get(arg.name)  # None of a member, and of what functions reach
        ragged, axis = plan.is_ragged(place), plan.ragged_axis(place)
        if isinstance(place, Computed):
            plan.plain([place])
        for _, argument in zip(own, arguments, strict=False):
            if ragged:
                loop.memrefs.add(argument)
            elif axis is not None:
                loop.sizes[argument] = axis
    loop.check(found.body)
    if not all(plan.is_ragged(Fresh(k)) for k in plan.recipe.returned):
        raise _Unfit("the kernel returns a tensor that is like none of those that are ragged")


class _Rows:
    """What is known of a loop while it is checked: memrefs that are ragged, and the sizes and the
    indices of their first ``rows`` dimensions."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.memrefs: set[Value] = set()
        self.sizes: dict[Value, int] = {}
        self.indices: dict[Value, int] = {}
        self.local: set[Value] = set()  # arrays of one place of the ragged dimension

    def check(self, block: Block, around: frozenset[int] = frozenset()) -> None:
        """``around``: the dimensions that the loops around ``block`` go through."""
        for op in block.ops:
            inside = around
            if op.name == "memref.dim" and op.operand in self.memrefs:
                if op.attrs["axis"] < self.rows:
                    self.sizes[op.result] = op.attrs["axis"]
            elif op.name == "scf.parallel":
                for iv, axis in zip(op.body.args, Parallel(op).axes, strict=True):
                    inside = self._loop(iv, axis, inside)
            elif op.name == "scf.for":
                self._plain(For(op).inits)
                inside = self._loop(op.body.args[0], For(op).bounds, inside)
                if inside != around and For(op).inits:
                    raise _Unfit("a value is carried from row to row")
            elif op.name == "memref.alloca":
                if len(around) == self.rows:
                    self.local.add(op.result)
            elif accessed_by(op) is not None:
                self._access(op)
            elif op.name != "weft.bounds" and not self._same_size(op):
                self._plain(op.operands)
            for region in op.regions:
                self.check(region, inside)

    def _same_size(self, op: Op) -> bool:
        """Whether ``op`` compares two sizes of one ragged dimension, which are equal."""
        axes = {self.sizes.get(value) for value in op.operands}
        return op.name == "arith.cmpi" and len(axes) == 1 and None not in axes

    def _loop(
        self, iv: Value, bounds: tuple[Value, Value, Value], around: frozenset[int]
    ) -> frozenset[int]:
        lower, upper, step = bounds
        axis = self.sizes.get(upper)
        if axis is None:
            self._plain(bounds)
            return around
        if not (is_constant(lower, 0) and is_constant(step, 1)):
            raise _Unfit("a loop goes through a part of the ragged dimension")
        if axis in around:
            raise _Unfit("a row is combined with others")
        self.indices[iv] = axis
        return around | {axis}

    def _access(self, op: Op) -> None:
        memref, subscripts, brought = memory(op)
        self._plain(brought)
        if memref in self.memrefs:
            for axis, value in enumerate(subscripts[: self.rows]):
                if self.indices.get(value) != axis:
                    raise _Unfit("an element is read or written at another place than its row's")
            subscripts = subscripts[self.rows :]
        elif isinstance(memref.owner, Op):
            if memref not in self.local:
                raise _Unfit("a local array is kept from row to row")
        elif op.name != "memref.load":
            raise _Unfit("the loop writes to a tensor that is not ragged")
        self._plain(subscripts)

    def _plain(self, values: Sequence[Value]) -> None:
        """Refuses what is computed with numbers of rows."""
        if any(value in self.indices or value in self.sizes for value in values):
            raise _Unfit("the loop computes with the number of a row, or of all rows")
