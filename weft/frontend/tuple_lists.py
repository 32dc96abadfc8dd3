"""Lists of an iteration that grow and hold tuples: a stack of (node, depth), say.

There is an array for each number of a tuple, and one length. Items are what Python cannot change,
tuples, named tuples and frozen dataclasses, of numbers and of each other: what is read is a copy.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NoReturn

from weft.errors import KernelTypeError, Span
from weft.frontend import elements
from weft.frontend.context import Again, Lowering
from weft.frontend.kinds import (
    Items,
    Kind,
    Operand,
    Scalar,
    ScalarKind,
    Static,
    Tensor,
    Tup,
    TupKind,
    TupleList,
    article,
    describe,
    dtype_of,
    is_complex,
    kind_of,
)
from weft.ir import types as ir
from weft.ir.core import Value


def holds_tuples(cx: Lowering, key: tuple[object, ...], items: Sequence[Operand]) -> bool:
    """Whether the list of that ``key`` holds tuples: some of ``items``, or what an earlier round
    has seen."""
    return isinstance(cx.kinds.get(key), TupKind) or any(isinstance(x, Tup) for x in items)


def make(
    cx: Lowering, name: str, key: tuple[object, ...], items: Sequence[Operand], room: int,
    span: Span,
) -> TupleList:  # fmt: skip
    """A list that holds ``items``, with room for so many, of length 0 until it is set."""
    for item in items:
        _note(cx, key, item, span)
    kind = cx.kinds[key]
    assert isinstance(kind, TupKind)
    cell = cx.builder.alloca(ir.i64, (1,))
    columns = [
        Tensor(elements.local_memory(cx, (room,), dtype), dtype, name, local=True, length=cell)
        for dtype in _dtypes(kind)
    ]
    made = TupleList(tuple(columns), kind, key)
    for k, item in enumerate(items):
        store(cx, made, cx.builder.index(k), item, span)
    return made


def begin_again(cx: Lowering, key: tuple[object, ...], item: Tup, span: Span) -> NoReturn:
    """Notes that a list that was empty until here holds tuples: the next round makes it so. Raises
    ``KernelTypeError`` where it holds numbers."""
    _note(cx, key, item, span)
    raise Again(kinds_stay=True)


def load(cx: Lowering, x: TupleList, place: Value, span: Span) -> Operand:
    numbers = iter([cx.load_real(column, [place], span) for column in x.columns])
    return _whole(x.kind, numbers)


def zero(x: TupleList) -> Operand:
    """An item of ``x`` that is zeros, for where none is read."""
    return _whole(x.kind, itertools.repeat(Static(0)))


def store(cx: Lowering, x: TupleList, place: Value, item: Operand, span: Span) -> None:
    _note(cx, x.key, item, span)
    for column, number in zip(x.columns, _numbers(item), strict=True):
        cx.store_element(column.memref, column.dtype, [place], number, span)


def place(cx: Lowering, x: TupleList, k: Operand, span: Span) -> Value:
    """The place that ``x[k]`` names."""
    return elements.subscript_of(cx, x.columns[0], 0, k, span)


def over(cx: Lowering, x: TupleList, span: Span) -> Items:
    """What a loop over ``x`` goes over."""

    def item(k: Scalar | Static) -> Operand:
        return load(cx, x, cx.scalars.index(k, span), span)

    return Items(elements.extent(cx, x.columns[0], 0), item)


def are_alike(items: Sequence[Operand]) -> bool:
    """Whether items are tuples of as many numbers each, or frozen dataclasses of one kind, or are
    of such items."""
    tuples = [x for x in items if isinstance(x, Tup)]
    if len(tuples) < len(items) or len({len(x.items) for x in tuples}) > 1:
        return False
    if not all(x.in_order for x in tuples) and (
        len({x.struct for x in tuples}) > 1 or not is_frozen(tuples[0].struct)
    ):
        return False
    flat = [x for each in tuples for x in each.items]
    numbers = (dtype_of(x) or is_complex(x) for x in flat)
    return bool(flat) and (all(numbers) or are_alike(flat))


def _note(cx: Lowering, key: tuple[object, ...], item: Operand, span: Span) -> None:
    """Notes that the list of that ``key`` holds ``item``, too."""
    _check(item, span)
    if key in cx.empty and isinstance(cx.kinds.get(key), ScalarKind):
        del cx.kinds[key]  # what was read of it, and stored again, was no number
    known = cx.kinds.get(key)
    if known is not None and _form(known) != _form(kind_of(item)):
        holds = article(known) if isinstance(known, TupKind) else "numbers"
        raise KernelTypeError(f"{describe(item)} in a list that holds {holds}", span,
                              help="a list holds items of one form")  # fmt: skip
    cx.widen_at(key, item, span)


def _form(kind: Kind) -> object:
    """What items of one list have in common: all but the types of their numbers."""
    if isinstance(kind, TupKind):
        return (kind.names, kind.struct, *map(_form, kind.items))
    return None


def _check(item: Operand, span: Span) -> None:
    """Refuses what is no tuple of numbers and of such tuples, or may be changed."""
    if dtype_of(item) is not None:
        return
    if not isinstance(item, Tup) or item.struct is dict or not item.items:
        raise KernelTypeError(
            f"a list that grows holds numbers or tuples of numbers, and this is {describe(item)}",
            span, help="keep a list for each member, and append to all of them",
        )  # fmt: skip
    if item.names and not item.in_order and not is_frozen(item.struct):
        raise KernelTypeError(
            f"a list that grows holds what cannot be changed, and `{item.struct.__name__}` can",
            span, help="write @dataclass(frozen=True), or append a tuple",
        )  # fmt: skip
    for each in item.items:
        _check(each, span)


def is_frozen(struct: object) -> bool:
    return dataclasses.is_dataclass(struct) and struct.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _numbers(item: Operand) -> Iterator[Operand]:
    if isinstance(item, Tup):
        for each in item.items:
            yield from _numbers(each)
    else:
        yield item


def _dtypes(kind: Kind) -> Iterator[str]:
    if isinstance(kind, TupKind):
        for each in kind.items:
            yield from _dtypes(each)
    else:
        assert isinstance(kind, ScalarKind)
        yield kind.dtype


def _whole(kind: Kind, numbers: Iterator[Operand]) -> Operand:
    if isinstance(kind, TupKind):
        items = [_whole(each, numbers) for each in kind.items]
        return Tup(items, kind.names, kind.struct, kind.objects)
    return next(numbers)
