"""What is called on rows: reductions, softmax and products, as methods and as torch's functions.

Results have torch's dtypes: sums of integers are i64, a mean is one of floats. A maximum is NaN
where an element is, and one of no elements is refused when it runs.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import torch

from weft.errors import KernelTypeError, Span
from weft.frontend import complex_calls, complexes, rows, sequences, signatures, uncallable
from weft.frontend.casts import CASTING, cast, dtype_from
from weft.frontend.context import Lowering
from weft.frontend.functions import FUNCTIONS
from weft.frontend.kinds import (
    Complex,
    Method,
    Operand,
    Row,
    Scalar,
    Static,
    Tensor,
    Tup,
    describe,
    int_range,
    is_complex,
    is_float,
)
from weft.frontend.statics import stop_grad
from weft.ir import types as ir
from weft.lang import names
from weft.lang.dtypes import DTYPES

Reduction = Callable[[Lowering, Row, Span], Operand]


def _dtype(cx: Lowering, row: Row, what: str, span: Span) -> str:
    """The dtype of a row of numbers that are not complex."""
    if isinstance(rows.probe(cx, row), Complex):
        raise KernelTypeError(f"`{what}` of complex numbers", span,
                              help="take it of row.abs(), row.real or row.imag")  # fmt: skip
    return rows.dtype(cx, row)


def _floats(cx: Lowering, row: Row, what: str, span: Span) -> str:
    dtype = _dtype(cx, row, what, span)
    if not is_float(dtype):
        raise KernelTypeError(f"`{what}` of a row of {dtype}", span,
                              help="convert the elements first: row * 1.0")  # fmt: skip
    return dtype


def _sum(cx: Lowering, row: Row, span: Span) -> Operand:
    dtype = rows.dtype(cx, row)
    return rows.total(cx, row, span, dtype if is_float(dtype) else "i64")


def _count(cx: Lowering, row: Row, span: Span) -> Operand:
    count: Operand = Static(1)
    for size in row.extents:
        count = cx.scalars.binary("*", count, size, span)
    return count


def _mean(cx: Lowering, row: Row, span: Span) -> Operand:
    if not isinstance(rows.probe(cx, row), Complex):
        _floats(cx, row, "mean", span)
    return complexes.arithmetic(cx.scalars, "/", _sum(cx, row, span), _count(cx, row, span), span)


def _prod(cx: Lowering, row: Row, span: Span) -> Operand:
    s, dtype = cx.scalars, rows.dtype(cx, row)
    if isinstance(rows.probe(cx, row), Complex):

        def both(place: list[Any], parts: list[Any]) -> list[Any]:
            z = complexes.arithmetic(s, "*", Complex(*parts), row.at(place), span)
            z = complexes.cast(s, z, dtype, span)
            return [z.real, z.imag]

        first = [s.constant(1.0, dtype), s.constant(0.0, dtype)]
        return Complex(*rows.each(cx, row.extents, first, both, span))
    wide = dtype if is_float(dtype) else "i64"
    one = s.constant(1.0 if is_float(wide) else 1, wide)

    def times(place: list[Any], values: list[Any]) -> list[Any]:
        item = s.cast(row.at(place), wide, span)
        return [s.cast(s.binary("*", values[0], item, span), wide, span)]

    return rows.each(cx, row.extents, [one], times, span)[0]


def _extreme(name: str) -> Reduction:
    """torch's ``max`` and ``min``: NaN where an element is."""

    def reduction(cx: Lowering, row: Row, span: Span) -> Operand:
        dtype = _dtype(cx, row, name, span)
        _require_some(cx, row, f"`{name}` of no elements", span)
        largest = name == "max"
        if dtype == "bool":
            return _truth("any" if largest else "all")(cx, row, span)
        start: float = (-math.inf if largest else math.inf) if is_float(dtype) else (
            int_range(dtype)[0 if largest else 1])  # fmt: skip
        first = cx.scalars.constant(start, dtype)

        def better(place: list[Any], values: list[Any]) -> list[Any]:
            item = cx.scalars.cast(row.at(place), dtype, span)
            if is_float(dtype):
                op = "arith.maximumf" if largest else "arith.minimumf"
                return [Scalar(cx.builder.op(op, values[0].value, item.value), dtype)]
            found = cx.scalars.extreme(">" if largest else "<", values[0], item, span)
            return [cx.scalars.cast(found, dtype, span)]

        return rows.each(cx, row.extents, [first], better, span)[0]

    return reduction


def _require_some(cx: Lowering, row: Row, what: str, span: Span) -> None:
    for size in row.extents:
        rows.require_some(cx, size, what, span)


def _place_of_extreme(name: str) -> Reduction:
    """``argmax`` and ``argmin``: the first place of the extreme element; of NaN, if there is."""

    def reduction(cx: Lowering, row: Row, span: Span) -> Operand:
        s, largest = cx.scalars, name == "argmax"
        dtype = _dtype(cx, row, name, span)
        _require_some(cx, row, f"`{name}` of no elements", span)
        zeros: list[Any] = [Static(0)] * len(row.extents)
        first = [s.cast(row.at(zeros), dtype, span), s.constant(0, "int")]

        def better(place: list[Any], values: list[Any]) -> list[Any]:
            best, at = values
            item = s.cast(row.at(place), dtype, span)
            wins = s.truth(s.compare(">" if largest else "<", item, best, span), span)
            if is_float(dtype):
                here, there = (s.truth(s.function("isnan", [x], span), span) for x in (item, best))
                new = cx.builder.op("arith.andi", here, _not(cx, there))
                old = cx.builder.op("arith.andi", wins, _not(cx, there))
                wins = cx.builder.op("arith.ori", new, old)
            number: Operand = Static(0)
            for k, size in zip(place, row.extents, strict=True):
                number = s.binary("+", s.binary("*", number, size, span), k, span)
            chosen = s.select(wins, item, best, span), s.select(wins, number, at, span)
            return [s.cast(x, y.dtype, span) for x, y in zip(chosen, values, strict=True)]

        found = rows.each(cx, row.extents, first, better, span)[1]
        return s.cast(found, "i64", span)

    return reduction


def _not(cx: Lowering, condition: Any) -> Any:
    return cx.builder.op("arith.xori", condition, cx.builder.constant(True, ir.i1))


def _truth(name: str) -> Reduction:
    def reduction(cx: Lowering, row: Row, span: Span) -> Operand:
        _dtype(cx, row, name, span)
        op = "arith.ori" if name == "any" else "arith.andi"
        start = cx.scalars.constant(name == "all", "bool")

        def joined(place: list[Any], values: list[Any]) -> list[Any]:
            item = cx.scalars.truth(cx.scalars.cast(row.at(place), "bool", span), span)
            return [Scalar(cx.builder.op(op, values[0].value, item), "bool")]

        return rows.each(cx, row.extents, [start], joined, span)[0]

    return reduction


def _norm(cx: Lowering, row: Row, span: Span, p: Operand | None = None) -> Operand:
    """The Euclidean norm, or that of ``p`` 1 or infinity. Its derivative at 0 is 0, as torch's."""
    s = cx.scalars
    order = 2 if p is None else p.value if isinstance(p, Static) else None
    if order not in (1, 2, math.inf):
        raise KernelTypeError("a norm other than of p = 1, 2 or infinity", span,
                              help="write (row.abs() ** p).sum() ** (1 / p)")  # fmt: skip
    sizes = Row(row.extents, lambda place: _magnitude(cx, row.at(place), span), leaves=row.leaves)
    _floats(cx, sizes, "norm", span)
    if order != 2:
        return (_sum if order == 1 else _extreme("max"))(cx, sizes, span)

    def square(place: list[Any]) -> Operand:
        x = row.at(place)
        if isinstance(x, Complex):
            a, b = (s.binary("*", v, v, span) for v in (x.real, x.imag))
            return s.binary("+", a, b, span)
        return s.binary("*", x, x, span)

    total = rows.total(cx, Row(row.extents, square), span)
    none = s.truth(s.compare("==", total, Static(0.0), span), span)
    root = s.function("sqrt", [s.select(none, Static(1.0), total, span)], span)
    return s.select(none, Static(0.0), root, span)


def _magnitude(cx: Lowering, x: Operand, span: Span) -> Operand:
    if isinstance(x, Complex):
        return complexes.function(cx.scalars, "abs", [x], span)
    return cx.scalars.magnitude(x, span)


def _variance(cx: Lowering, row: Row, span: Span, correction: int = 1) -> Operand:
    s, dtype = cx.scalars, _floats(cx, row, "var", span)
    mean = _mean(cx, row, span)

    def square(place: list[Any]) -> Operand:
        away = s.binary("-", row.at(place), mean, span)
        return s.binary("*", away, away, span)

    total = rows.total(cx, Row(row.extents, square), span, dtype)
    free = s.binary("-", _count(cx, row, span), Static(correction), span)
    return s.binary("/", total, s.extreme(">", free, Static(0), span), span)


def _deviation(cx: Lowering, row: Row, span: Span, correction: int = 1) -> Operand:
    s, variance = cx.scalars, _variance(cx, row, span, correction)
    none = s.truth(s.compare("==", variance, Static(0.0), span), span)  # no derivative of its root
    root = s.function("sqrt", [s.select(none, Static(1.0), variance, span)], span)
    return s.select(none, Static(0.0), root, span)


def _finite_max(cx: Lowering, row: Row, span: Span) -> Operand:
    """The maximum, or 0 where it is infinite: what exponentials are taken against."""
    s = cx.scalars
    best = _extreme("max")(cx, row, span)
    infinite = s.truth(s.function("isinf", [best], span), span)
    return s.select(infinite, Static(0.0), best, span)


def _logsumexp(cx: Lowering, row: Row, span: Span) -> Operand:
    s, dtype = cx.scalars, _floats(cx, row, "logsumexp", span)
    most = _finite_max(cx, row, span)
    powers = Row(row.extents, lambda place: _power(cx, row.at(place), most, span))
    total = rows.total(cx, powers, span, dtype)
    return s.binary("+", s.function("log", [total], span), most, span)


def _power(cx: Lowering, x: Operand, most: Operand, span: Span) -> Operand:
    return cx.scalars.function("exp", [cx.scalars.binary("-", x, most, span)], span)


def _softmax(cx: Lowering, row: Row, span: Span) -> Row:
    s, dtype = cx.scalars, _floats(cx, row, "softmax", span)
    most = _extreme("max")(cx, row, span)
    powers = Row(row.extents, lambda place: _power(cx, row.at(place), most, span))
    total = rows.total(cx, powers, span, dtype)

    def at(place: list[Any]) -> Operand:
        return s.binary("/", _power(cx, row.at(place), most, span), total, span)

    return rows.computed(cx, row.extents, at, [(row, True)])


def _log_softmax(cx: Lowering, row: Row, span: Span) -> Row:
    total = _logsumexp(cx, row, span)

    def at(place: list[Any]) -> Operand:
        return cx.scalars.binary("-", row.at(place), total, span)

    return rows.computed(cx, row.extents, at, [(row, True)])


# --- over which dimensions ----------------------------------------------------------------------
def _dims(row: Row, given: Operand | None, span: Span) -> list[int]:
    """The dimensions that are named; all, where none is."""
    rank = len(row.extents)
    if given is None:
        return list(range(rank))
    listed = given.items if isinstance(given, Tup) else [given]
    found: list[int] = []
    for item in listed:
        k = item.value if isinstance(item, Static) else None
        if type(k) is not int or not -rank <= k < rank:
            raise KernelTypeError(
                f"no dimension of {describe(row)}", span,
                help=f"write a constant, -{rank} to {rank - 1}",
            )  # fmt: skip
        found.append(k % rank)
    return sorted(set(found))


def _inside(cx: Lowering, row: Row, dims: list[int], place: list[Any]) -> Row:
    """The part of ``row`` along ``dims``, at ``place`` along the others."""

    def at(inner: list[Any]) -> Operand:
        own, others = iter(inner), iter(place)
        return row.at([next(own if k in dims else others) for k in range(len(row.extents))])

    return Row([row.extents[k] for k in dims], at, leaves=row.leaves, heavy=row.heavy)


def _reduced(
    cx: Lowering, row: Row, dim: Operand | None, keep: Operand | None, f: Reduction, span: Span
) -> Operand:  # fmt: skip
    """``f`` over the dimensions ``dim``."""
    dims, rank = _dims(row, dim, span), len(row.extents)
    kept = isinstance(keep, Static) and bool(keep.value)
    rest = [k for k in range(rank) if k not in dims]
    if not rest:
        found = f(cx, row, span)
        if not kept:
            return found
        return rows.computed(cx, [Static(1)] * rank, lambda place: found, [])
    if row.heavy:
        raise rows.too_heavy(span)
    sizes = [row.extents[k] for k in rest]
    if kept:
        sizes = [Static(1) if k in dims else row.extents[k] for k in range(rank)]

    def at(place: list[Any]) -> Operand:
        others = [place[k] for k in rest] if kept else place
        return f(cx, _inside(cx, row, dims, others), span)

    return rows.computed(cx, sizes, at, [(row, False)], heavy=True)


def _normalised(
    cx: Lowering, row: Row, dim: Operand | None, f: Callable[[Lowering, Row, Span], Row], span: Span
) -> Operand:  # fmt: skip
    """``f``, which makes a row of a row, along one dimension."""
    dims = _dims(row, dim, span)
    if len(row.extents) > 1:
        raise KernelTypeError(
            "a softmax of several rows", span, help="write it row by row: x[i, j]"
        )
    return f(cx, row, span) if dims else row


# --- calls --------------------------------------------------------------------------------------
_REDUCTIONS: dict[str, Reduction] = {
    "sum": _sum, "mean": _mean, "prod": _prod, "max": _extreme("max"), "min": _extreme("min"),
    "amax": _extreme("max"), "amin": _extreme("min"), "any": _truth("any"), "all": _truth("all"),
    "argmax": _place_of_extreme("argmax"), "argmin": _place_of_extreme("argmin"),
    "logsumexp": _logsumexp,
}  # fmt: skip
_NORMALISED = {"softmax": _softmax, "log_softmax": _log_softmax}
_X = "x input"
_OVER = (_X, "dim =", "keepdim =")
# What rows have as methods and torch as functions, with what they take, the row first.
TAKES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_REDUCTIONS, _OVER), "max": (_X,), "min": (_X,),
    **dict.fromkeys(_NORMALISED, (_X, "dim =")),
    "norm": (_X, "p =", "dim =", "keepdim ="), "vector_norm": (_X, "ord =", "dim =", "keepdim ="),
    "var": (_X, "dim =", "unbiased =", "keepdim =", "correction ="),
    "std": (_X, "dim =", "unbiased =", "keepdim =", "correction ="),
    "dot": (_X, "other tensor"), "mv": (_X, "other vec"), "matmul": (_X, "other"),
    "numel": (_X,), "dim": (_X,), "ndimension": (_X,), "size": (_X, "dim ="),
}  # fmt: skip


def call(cx: Lowering, name: str, given: list[Operand], span: Span) -> Operand:
    """The method, or torch's function, ``name`` of a row, the first one of ``given``."""
    row = rows.of(cx, given[0])
    if row is None:
        raise KernelTypeError(
            f"`{name}` of {describe(given[0])}, which is no row of a tensor", span,
            help="pass a row, x[i], or write the loop",
        )  # fmt: skip

    def argument(k: int) -> Operand | None:
        return signatures.argument(given, k)

    if name in _REDUCTIONS:
        return _reduced(cx, row, argument(1), argument(2), _REDUCTIONS[name], span)
    if name in _NORMALISED:
        return _normalised(cx, row, argument(1), _NORMALISED[name], span)
    if name in ("norm", "vector_norm"):
        order = argument(1)
        return _reduced(
            cx, row, argument(2), argument(3), lambda cx, r, s: _norm(cx, r, s, order), span
        )
    if name in ("var", "std"):
        f = _variance if name == "var" else _deviation
        correction = _correction(argument(2), argument(4), span)
        return _reduced(
            cx, row, argument(1), argument(3), lambda cx, r, s: f(cx, r, s, correction), span
        )
    if name == "size":
        return Tup(list(row.extents)) if argument(1) is None else _size(row, argument(1), span)
    if name == "numel":
        return _count(cx, row, span)
    if name in ("dim", "ndimension"):
        return Static(len(row.extents))
    other = rows.of(cx, given[1])
    if other is None:
        raise KernelTypeError(f"`{name}` of a row and {describe(given[1])}", span,
                              help="pass two rows")  # fmt: skip
    if name == "dot" and not len(row.extents) == len(other.extents) == 1:
        raise KernelTypeError("`dot` of more than one dimension", span, help="write a @ b")
    return rows.product(cx, row, other, span)


def _size(row: Row, dim: Operand | None, span: Span) -> Operand:
    return row.extents[_dims(row, dim, span)[0]]


def _correction(unbiased: Operand | None, correction: Operand | None, span: Span) -> int:
    given = correction if correction is not None else unbiased
    value = 1 if given is None else given.value if isinstance(given, Static) else None
    if type(value) not in (int, bool):
        raise KernelTypeError("the correction of a variance that is no constant", span,
                              help="write correction=0 or correction=1")  # fmt: skip
    return int(value)  # type: ignore[arg-type]


# --- from where it is written -------------------------------------------------------------------
Bound = Callable[[tuple[str, ...] | None, str], list[Operand]]


def elementwise(cx: Lowering, node: ast.Call, name: str, given: list[Operand]) -> Operand:
    """A function of the elements of rows. ``min`` and ``max`` are Python's, of one row."""
    span = cx.span(node)
    if name not in ("min", "max"):
        text = ast.unparse(node.func)

        def one(items: list[Operand]) -> Operand:
            if name in FUNCTIONS and any(map(is_complex, items)):
                return complex_calls.of_complex(cx, name, text, items, span)
            return (FUNCTIONS.get(name) or complex_calls.FUNCTIONS[name])(cx, node, items)

        return rows.elementwise(cx, one, given, span)
    row = rows.of(cx, given[0])
    if row is None or len(given) > 1:
        raise KernelTypeError(
            f"`{name}` of rows: whether one is {'less' if name == 'min' else 'greater'} has no one "
            "answer", span, help=f"write torch.{name}imum(a, b), element by element",
        )  # fmt: skip
    return sequences.extreme(cx, row, "<" if name == "min" else ">", span)


def function(cx: Lowering, node: ast.Call, name: str, bound: Bound) -> Operand:
    """A function of torch that takes whole tensors: of rows."""
    text, span = ast.unparse(node.func), cx.span(node)
    if name not in ("max", "min"):
        return call(cx, name, bound(TAKES[name], text), span)
    given = bound((_X, "other ="), text)
    second = signatures.argument(given, 1)
    if second is None:
        return call(cx, name, given, span)
    if isinstance(second, Static) and type(second.value) is int:
        raise KernelTypeError(
            f"`{text}` along a dimension, which gives two tensors", span,
            help=f"write x.a{name}({second.value}) and x.arg{name}({second.value})",
        )  # fmt: skip
    word = f"{name}imum"
    whole = any(map(rows.is_row, given))
    return (elementwise if whole else _scalars)(cx, node, word, given)


def _scalars(cx: Lowering, node: ast.Call, name: str, given: list[Operand]) -> Operand:
    return FUNCTIONS[name](cx, node, given)


def has(method: Method) -> bool:
    """Whether ``method`` is one of a row; a whole tensor has what asks for sizes itself."""
    x = method.receiver
    return rows.is_row(x) and (not isinstance(x, Tensor) or method.name in names.ROWS)


def method(cx: Lowering, node: ast.Call, method: Method, bound: Bound) -> Operand:
    """A method of a row: a reduction, or what works on each element."""
    row, name, span = method.receiver, method.name, cx.span(node)
    if name in TAKES:
        return call(cx, name, [row, *bound(TAKES[name][1:], f".{name}")], span)
    if name in ("clone", "contiguous") and not (node.args or node.keywords):
        return rows.elementwise(cx, lambda items: items[0], [row], span)
    if name == "detach" and not (node.args or node.keywords):
        return rows.elementwise(cx, lambda items: stop_grad(cx, items[0], span), [row], span)
    if name in ("to", "type") or name in CASTING:
        given = bound(("dtype",) if name in ("to", "type") else (), f".{name}")
        dtype = dtype_from(given[0], span) if given else DTYPES[CASTING[name]]
        return rows.elementwise(cx, lambda items: cast(cx, items[0], dtype, span), [row], span)
    word = names.canonical(getattr(torch, name, None))
    known = word in FUNCTIONS or word in complex_calls.FUNCTIONS
    if word is not None and known and word in signatures.FUNCTIONS:
        given = [row, *bound(signatures.FUNCTIONS[word][1:], f".{name}")]
        if word == "select":  # x.where(condition, other)
            given = [given[1], row, given[2]]
        return elementwise(cx, node, word, given)
    raise KernelTypeError(
        f"{describe(row)} has no method `{name}` in a device loop", span,
        help="write the loop over its elements" + uncallable.host_loop(cx),
    )  # fmt: skip
