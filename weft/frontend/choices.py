"""One of several tensors, by a number that is known at run time: ``xs[k]``.

It is a row (``kinds.Row``) of which an element is read, or stored into, in the branch of its
tensor: a chain of branches, one for each tensor that it may be. For all that looks at the IR it is
any of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from weft.errors import KernelTypeError, Span
from weft.frontend import aggregates, elements, slices
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    Along,
    Choice,
    Kind,
    OpaqueKind,
    Operand,
    Part,
    Row,
    Scalar,
    Static,
    Tensor,
    Tup,
    Unbound,
    View,
    describe,
    flatten,
    kind_of,
    same_operand,
)
from weft.ir.core import Op, Value
from weft.ir.views import If
from weft.values import frozen

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
            objects = frozenset().union(*(i.objects for i in items))  # type: ignore[union-attr]
            return Tup(made, first.names, first.struct, objects)
    held = [cx.reached("item", x) if isinstance(x, Static) else x for x in items]
    parts = [_part(cx, x) for x in held]
    known = [part for part in parts if part is not None]
    for item, part in zip(held, parts, strict=True):
        if part is None or not _alike(part, known[0]):
            raise KernelTypeError(
                f"`{name}` is subscripted by a number that is known at run time, and holds "
                f"{_what(held[0])} and {_what(item)}", span,
                help="tensors that one is chosen of have one rank and dtype; by a constant, or in "
                f"a loop over `{name}`, each may have its own",
            )  # fmt: skip
    if len(known) > MOST:
        raise KernelTypeError(
            f"one of {len(known)} tensors by a number that is known at run time", span,
            help=f"choose of at most {MOST}, or put them into one tensor: torch.stack({name})",
        )  # fmt: skip
    columns = zip(*(sizes for _, sizes in known), strict=True)
    sizes = [aggregates.select(cx, [*column], position, span) for column in columns]
    row = row_of(cx, Choice(tuple(view for view, _ in known), position, name), sizes)  # type: ignore[arg-type]
    return row if sizes else row.at([])


def holds(x: Operand) -> bool:
    """Whether ``x`` is a tensor, a part of one, or a tuple of such, of which one is chosen."""
    if isinstance(x, Static):
        return isinstance(x.value, torch.Tensor)
    if isinstance(x, Tup):
        return bool(x.items) and all(map(holds, x.items))
    if isinstance(x, Tensor):
        return x.length is None
    return isinstance(x, Part) or (
        isinstance(x, Row) and (x.view is not None or x.choice is not None)
    )


def either(
    cx: Lowering, op: Op, sides: Sequence[Operand], yields: Sequence[list[Value]], name: str,
    span: Span,
) -> Operand | None:  # fmt: skip
    """The part of a tensor that each branch of ``op``, a condition, gives: one of the two. Adds the
    subscripts to what the branches yield. None of others. Raises ``KernelTypeError``."""
    a, b = sides
    if isinstance(a, Tup) and isinstance(b, Tup):
        if len(a.items) != len(b.items) or (a.names, a.struct) != (b.names, b.struct):
            return None
        if not (holds(a) and holds(b)):
            return None
        columns = zip(a.items, b.items, strict=True)
        made = [either(cx, op, column, yields, name, span) for column in columns]
        known = [x for x in made if x is not None]
        objects = a.objects | b.objects
        return Tup(known, a.names, a.struct, objects) if len(known) == len(made) else None
    if isinstance(a, Part) and isinstance(b, Part) and a.tensor.memref is b.tensor.memref and (
        len(a.indices) == len(b.indices)
    ):  # fmt: skip
        first = len(op.results)
        for values, part in zip(yields, (a, b), strict=True):
            values += part.indices
        op.results += [Value(v.type, "", op) for v in a.indices]
        return Part(a.tensor, op.results[first:])
    found: list[_Several] = []
    for region, side in zip(op.regions, sides, strict=True):
        with cx.builder.at(region):
            several = _several(cx, side)
        if several is None or any(v.tensor.local or v.tensor.length for v in several.views):
            return None
        found.append(several)
    sizes = [several.sizes for several in found]
    first, second = (several.views[0] for several in found)
    if not _alike((first, sizes[0]), (second, sizes[1])):
        return None
    out = [several.moved(_moving(cx, op, k, yields)) for k, several in enumerate(found)]
    holding, (one, other) = If(op).condition, out
    count = Static(len(one.views))
    after = cx.scalars.binary("+", count, other.index, span)
    index = cx.scalars.select(holding, one.index, after, span)
    pairs = zip(one.sizes, other.sizes, strict=True)
    extents = [cx.scalars.select(holding, x, y, span) for x, y in pairs]
    row = row_of(cx, Choice((*one.views, *other.views), index, name), extents)  # type: ignore[arg-type]
    return row if extents else row.at([])


@contextmanager
def restored(
    cx: Lowering, names: Sequence[str], ends: list[dict[str, Operand]]
) -> Generator[None]:  # fmt: skip
    """Appends what ``names`` hold at the end to ``ends``, and gives them what they held before."""
    before = {name: cx.frame.env[name] for name in names if name in cx.frame.env}
    yield
    env = cx.frame.env  # branches inside make a new one
    ends.append({name: env.pop(name) for name in dict.fromkeys(names) if name in env})
    env.update(before)


def assigned(
    cx: Lowering, op: Op, ends: Sequence[dict[str, Operand]], names: Iterable[str],
    yields: Sequence[list[Value]], span: Span,
) -> None:  # fmt: skip
    """Joins what the two sides of ``op``, parts of an expression, assign to ``names`` by ``:=``,
    and adds it to what they yield. What only one assigns is 0 on the other."""
    for name in names:
        sides = [end.get(name) for end in ends]
        present = [x for x in sides if x is not None and not isinstance(x, Unbound)]
        if sides[0] is sides[1] or not present:
            continue
        kinds = [cx.widen(name, x, span) for x in present]
        if isinstance(kinds[-1], OpaqueKind):
            if len(present) == 2 and not same_operand(*present):
                cx.join(kind_of(present[0]), kind_of(present[1]), name, span)
            cx.frame.env[name] = present[0]
            continue
        types, first = cx.types(kinds[-1]), len(op.results)
        for region, x, values in zip(op.regions, sides, yields, strict=True):
            with cx.builder.at(region):
                if x is None or isinstance(x, Unbound):
                    cx.frame.skipped.add(name)
                    values += [cx.builder.constant(0, t) for t in types]
                else:
                    values += flatten(cx.coerce(x, kinds[-1], span))
        op.results += [Value(t, name, op) for t in types]
        cx.frame.env[name] = cx.rebuild(kinds[-1], iter(op.results[first:]))


@frozen
class _Several:
    """One of ``views``, by a number, which have such sizes."""

    views: tuple[View, ...]
    index: Index
    sizes: list[Index]

    def moved(self, move: Callable[[Value], Value]) -> _Several:
        """The same of other values."""

        def number(x: Index) -> Index:
            return Scalar(move(x.value), x.dtype) if isinstance(x, Scalar) else x

        def axis(x: Value | Along) -> Value | Along:
            return move(x) if isinstance(x, Value) else replace(x, start=number(x.start))

        views = tuple(View(v.tensor, tuple(map(axis, v.axes))) for v in self.views)
        return _Several(views, number(self.index), [number(x) for x in self.sizes])


def _several(cx: Lowering, x: Operand) -> _Several | None:
    if isinstance(x, Row) and x.choice is not None:
        return _Several(x.choice.views, x.choice.index, list(x.extents))
    part = _part(cx, x)
    return None if part is None else _Several((part[0],), Static(0), part[1])


def _moving(
    cx: Lowering, op: Op, branch: int, yields: Sequence[list[Value]]
) -> Callable[[Value], Value]:  # fmt: skip
    """What gives a value of a branch of ``op`` behind it: the other branch yields 0."""

    def move(value: Value) -> Value:
        with cx.builder.at(If(op).then if branch else If(op).otherwise):
            zero = cx.builder.constant(0, value.scalar)
        for k, values in enumerate(yields):
            values.append(value if k == branch else zero)
        op.results.append(Value(value.type, "", op))
        return op.results[-1]

    return move


def _part(cx: Lowering, x: Operand) -> tuple[View, list[Index]] | None:
    """The view that a tensor or a part of one is, and its sizes; None of others."""
    if isinstance(x, Row):
        return None if x.view is None else (x.view, list(x.extents))
    if isinstance(x, Tensor):
        x = Part(x, [])
    if not isinstance(x, Part):
        return None
    tensor, given = x.tensor, len(x.indices)
    if tensor.element or tensor.clamped or any(tensor.offset) or tensor.backing:
        return None
    sizes = [elements.extent(cx, tensor, k) for k in range(given, tensor.rank)]
    return View(tensor, (*x.indices, *(Along(Static(0), 1) for _ in sizes))), sizes


def _alike(x: tuple[View, list[Index]], first: tuple[View, list[Index]]) -> bool:
    """Whether two parts have elements of one type, by as many subscripts."""
    (a, sizes), (b, others) = x, first
    same = (a.tensor.dtype, a.tensor.pair) == (b.tensor.dtype, b.tensor.pair)
    return same and len(sizes) == len(others)


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
