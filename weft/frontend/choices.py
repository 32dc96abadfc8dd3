"""One of several tensors, by a number that is known at run time: ``xs[k]``.

It is a row (``kinds.Row``) of which an element is read, or stored into, in the branch of its
tensor: a chain of branches, one for each tensor that it may be. For all that looks at the IR it is
any of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.errors import KernelTypeError, Span
from weft.frontend import aggregates, elements, slices
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    Along,
    Choice,
    Kind,
    Operand,
    Part,
    Row,
    Scalar,
    Static,
    Tensor,
    Tup,
    View,
    describe,
    flatten,
    kind_of,
)
from weft.ir.core import Value

MOST = 64  # tensors that one is chosen of: each makes a branch
Index = Scalar | Static


def chosen(
    cx: Lowering, items: Sequence[Operand], position: Scalar, name: str, span: Span
) -> Operand:
    """``items[position]``, of tensors (or tuples of tensors) that are alike; ``name`` is what the
    items are. Raises ``KernelTypeError``."""
    if all(isinstance(item, Tup) for item in items):
        first: Tup = items[0]  # type: ignore[assignment]
        if all((len(i.items), i.names) == (len(first.items), first.names) for i in items):  # type: ignore[union-attr]
            columns = zip(*(i.items for i in items), strict=True)  # type: ignore[union-attr]
            made = [chosen(cx, column, position, name, span) for column in columns]
            return Tup(made, first.names, first.struct)
    held = [cx.reached("item", x) if isinstance(x, Static) else x for x in items]
    tensors = [x for x in held if isinstance(x, Tensor)]
    for item in held:
        if not isinstance(item, Tensor) or not _alike(item, tensors[0]):
            raise KernelTypeError(
                f"`{name}` is subscripted by a number that is known at run time, and holds "
                f"{_what(tensors[0]) if tensors else describe(item)} and {_what(item)}", span,
                help="tensors that one is chosen of have one rank and dtype; by a constant, or in "
                f"a loop over `{name}`, each may have its own",
            )  # fmt: skip
    if len(tensors) > MOST:
        raise KernelTypeError(
            f"one of {len(tensors)} tensors by a number that is known at run time", span,
            help=f"choose of at most {MOST}, or put them into one tensor: torch.stack({name})",
        )  # fmt: skip
    sizes: list[Index] = []
    for axis in range(tensors[0].rank):
        extents: list[Operand] = [elements.extent(cx, t, axis) for t in tensors]
        sizes.append(aggregates.select(cx, extents, position, span))  # type: ignore[arg-type]
    views = tuple(View(t, tuple(Along(Static(0), 1) for _ in sizes)) for t in tensors)
    row = row_of(cx, Choice(views, position, name), sizes)
    return row if sizes else row.at([])


def _alike(x: Tensor, first: Tensor) -> bool:
    """Whether two tensors have elements of one type, by as many subscripts."""
    plain = not (x.element or x.clamped or any(x.offset) or x.backing)
    return plain and (x.rank, x.dtype, x.pair) == (first.rank, first.dtype, first.pair)


def _what(x: Operand) -> str:
    if not isinstance(x, Tensor):
        return describe(x)
    if x.element or x.clamped or any(x.offset) or x.backing:
        return "a tensor of vectors, with an offset or a boundary"
    return f"{describe(x)} of {x.dtype}"


def row_of(cx: Lowering, choice: Choice, sizes: list[Index]) -> Row:
    """The row that is one of several views, which have such ``sizes``."""
    span = cx.builder.span

    def at(place: list[Index]) -> Operand:
        def load(view: View) -> Operand:
            return cx.load_element(view.tensor, slices.subscripts(cx, view, place, span), span)

        return branches(cx, choice, load, span)

    return Row(sizes, at, leaves=tuple((view, True) for view in choice.views), choice=choice)


def branches(
    cx: Lowering, choice: Choice, make: Callable[[View], Operand], span: Span
) -> Operand:  # fmt: skip
    """What ``make`` makes of the view that is chosen: numbers of one type."""
    kinds: list[Kind] = []

    def side(k: int) -> list[Value]:
        made = make(choice.views[k])
        kinds.append(kind_of(made))
        return flatten(made)

    def chain(k: int) -> list[Value]:
        if k == len(choice.views) - 1:
            return side(k)
        here = cx.scalars.compare("==", choice.index, Static(k), span)
        op = cx.builder.if_(cx.scalars.truth(here, span))
        for region, part in zip(op.regions, (side, lambda _: chain(k + 1)), strict=True):
            cx.builder.fill(region, functools.partial(part, k))
        op.results += [Value(t, "", op) for t in cx.types(kinds[0])]
        return list(op.results)

    values = chain(0)
    return cx.rebuild(kinds[0], iter(values))


def narrowed(
    cx: Lowering, row: Row, narrow: Callable[[View], View], sizes: list[Index]
) -> Row:  # fmt: skip
    """A part of ``row``, which is chosen: that part of whichever it is."""
    assert row.choice is not None
    views = tuple(map(narrow, row.choice.views))
    return row_of(cx, replace(row.choice, views=views), sizes)


def stored(
    cx: Lowering, choice: Choice, place: list[Index], put: Callable[[Part], None], span: Span
) -> None:
    """``put`` of the element at ``place`` of the view that is chosen."""

    def make(view: View) -> Operand:
        put(Part(view.tensor, slices.subscripts(cx, view, place, span)))
        return Tup([])

    branches(cx, choice, make, span)
