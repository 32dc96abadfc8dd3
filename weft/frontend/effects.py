"""Calls that must see their syntax: atomics on elements, print, assertions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from numbers import Number
from typing import Any

import torch

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import (
    choices,
    elements,
    expressions,
    records,
    reductions,
    rows,
    slices,
    texts,
)
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    EIGHT_BITS,
    Operand,
    Part,
    Row,
    Scalar,
    Static,
    Tensor,
    Tup,
    Varying,
    View,
    constant_value,
    int_range,
    is_float,
)
from weft.ir import types as ir
from weft.ir.core import Op, below
from weft.ir.views import While, made_by, written_by

# The update that each atomic does; a difference is the sum with the negated value.
_RMW = {f"atomic_{name}": name for name in ("add", "mul", "min", "max", "and", "or", "xor")}
_RMW["atomic_sub"] = "add"


def _place(
    cx: Lowering, node: ast.Call, count: int, name: str
) -> tuple[Tensor, list[Any], list[Scalar | Static]]:
    span = cx.span(node)
    base: Operand | None = None
    if len(node.args) == count and isinstance(node.args[0], ast.Subscript):
        base = expressions.holder(cx, node.args[0].value)
    member = records.place(cx, node.args[0]) if len(node.args) == count else None
    if isinstance(member, records.Spot):
        tensor, indices = elements.whole(member.part(cx, span), span)
    elif not isinstance(base, (Tensor, Part)):
        help = f"write weft.{name}(x[i], value)"
        if len(node.args) == count and isinstance(node.args[0], ast.Name):
            help += f"; of a variable, {_accumulation(name, node.args[0].id)}"
        raise KernelTypeError(f"`{name}` works on an element of a tensor", span, help=help)
    else:
        tensor, indices = elements.element(cx, base, node.args[0].slice, span)  # type: ignore[attr-defined]
    if tensor.pair:
        raise KernelTypeError(f"`{name}` of complex numbers", span, help="use atomic_add")
    values = [cx.read_scalar(cx.expression(a), span) for a in node.args[1:]]
    _refuse_eight_bits(name, tensor, span)
    return tensor, indices, values


def _refuse_eight_bits(name: str, tensor: Tensor, span: Span) -> None:
    if tensor.dtype in EIGHT_BITS:
        raise KernelTypeError(f"`{name}` on a tensor of {tensor.dtype}", span,
                              help="update a float32 tensor, and round what is in it "
                              "afterwards")  # fmt: skip


def _of_complex(cx: Lowering, node: ast.Call, name: str) -> bool:
    """Adds a complex number to an element, part by part; False where the element is real."""
    span = cx.span(node)
    place = node.args[0] if len(node.args) == 2 else None
    base = expressions.holder(cx, place.value) if isinstance(place, ast.Subscript) else None
    tensor = base.tensor if isinstance(base, Part) else base
    if not isinstance(place, ast.Subscript) or not isinstance(tensor, Tensor) or not tensor.pair:
        return False
    if _RMW[name] != "add" or cx.discarded is not node:
        what = (
            f"`{name}` of complex numbers"
            if _RMW[name] != "add"
            else (f"what `{name}` gives, of complex numbers: the two parts are added one by one")
        )
        raise KernelTypeError(what, span, help="write atomic_add as a statement of its own")
    assert isinstance(base, Tensor | Part)
    part = elements.subscripted(cx, base, place.slice, span)
    value = cx.read_number(cx.expression(node.args[1]), span)
    for real, indices, item in elements.stored(cx, part, value, cx.span(place), span):
        less = name == "atomic_sub"
        combine(cx, "add", real, indices, item, cx.span(place), span, less=less)
    return True


def _accumulation(name: str, variable: str) -> str:
    """The statement that does to a variable what the atomic ``name`` does to an element."""
    symbols = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
    what = name.removeprefix("atomic_")
    if what in symbols:
        return f"{variable} {symbols[what]}= value"
    return f"{variable} = {what}({variable}, value)" if what in ("min", "max") else "assign to it"


def _of_vector(cx: Lowering, node: ast.Call, name: str) -> bool:
    """Updates an element that is a vector, number by number; False where it is none."""
    place = node.args[0] if len(node.args) == 2 else None
    base = elements.holder(cx, place.value) if isinstance(place, ast.Subscript) else None
    tensor = base.tensor if isinstance(base, Part) else base
    if not isinstance(place, ast.Subscript) or not isinstance(base, Tensor | Part):
        return False
    if not isinstance(tensor, Tensor) or not tensor.element or cx.discarded is not node:
        return False
    span, at = cx.span(node), cx.span(place)
    part = elements.subscripted(cx, base, place.slice, at)
    value = cx.expression(node.args[1])
    for each, indices, item in elements.stored(cx, part, value, at, span):
        _update(cx, name, each, indices, cx.read_scalar(item, span), at, span)
    return True


def _of_choice(cx: Lowering, node: ast.Call, name: str) -> Operand | None:
    """Updates an element of one of several tensors; None where it is none."""
    place = node.args[0] if len(node.args) == 2 else None
    base = expressions.holder(cx, place.value) if isinstance(place, ast.Subscript) else None
    if not isinstance(place, ast.Subscript) or not isinstance(base, Row) or base.choice is None:
        return None
    span, at = cx.span(node), cx.span(place)
    element = rows.place(cx, base, place.slice, at)
    assert isinstance(element, Row)
    if element.extents or element.choice is None or element.choice.views[0].tensor.pair:
        raise KernelTypeError(f"`{name}` works on an element of real numbers", span,
                              help=f"write weft.{name}(xs[k][i], value)")  # fmt: skip
    value = cx.read_scalar(cx.expression(node.args[1]), span)

    def update(view: View) -> Operand:
        indices = slices.subscripts(cx, view, [], at)
        return _update(cx, name, view.tensor, indices, value, at, span)

    return choices.branches(cx, element.choice, update, span)


def _update(
    cx: Lowering, name: str, tensor: Tensor, indices: list[Any], value: Scalar | Static, at: Span,
    span: Span,
) -> Scalar:  # fmt: skip
    """The number in an element before the atomic ``name`` updates it."""
    _refuse_eight_bits(name, tensor, span)
    dtype = tensor.dtype
    if dtype == "bool" and _RMW[name] in ("add", "mul"):
        raise KernelTypeError(f"`{name}` on a tensor of booleans", span,
                              help="use atomic_or or atomic_and")  # fmt: skip
    if is_float(dtype) and _RMW[name] in ("and", "or", "xor"):
        raise KernelTypeError(f"`{name}` on a tensor of floats", span, help="use an integer tensor")
    less = name == "atomic_sub"
    return combine(cx, _RMW[name], tensor, indices, value, at, span, less=less)


def combine(
    cx: Lowering, combiner: str, tensor: Tensor, indices: list[Any], value: Operand, at: Span,
    span: Span, *, less: bool = False,
) -> Scalar:  # fmt: skip
    """Updates an element; the number that was in it. ``less``: takes the value off, which adds its
    negative, in the element's dtype: in its own, that of a byte is a byte. Where a float is wider
    than the element, their sum is rounded (see ``passes.lower_updates``)."""
    s, dtype = cx.scalars, tensor.dtype
    if less and (is_float(s.number(value, span)) or _negative_fits(value, dtype)):
        value, less = s.negate(value, span), False
    stored = s.cast(value, dtype, span)
    rounded = made_by(stored.value, "arith.truncf")
    if rounded is not None and isinstance(value, Scalar) and rounded.operand is value.value:
        rounded.attrs["late"] = True
    if less:
        stored = s.negate(stored, span)
        assert isinstance(stored, Scalar)
    with cx.builder.about(at):
        kind = reductions.kind(combiner, dtype)
        return Scalar(cx.builder.atomic_rmw(kind, stored.value, tensor.memref, indices), dtype)


def _negative_fits(value: Operand, dtype: str) -> bool:
    """Whether the negative of a constant is a number of ``dtype``: that of 5 is none of a byte."""
    if not isinstance(value, Static) or is_float(dtype):
        return isinstance(value, Static)
    low, high = int_range(dtype)
    return bool(low <= -value.value <= high)


def refuse_skipped(cx: Lowering, node: ast.Assign, value: ast.BoolOp, ops: list[Op]) -> None:
    """``found = found or f(i)``, accumulated by a parallel loop: each iteration evaluates ``f(i)``,
    and Python none after the first that is true. Refused where the ``ops`` of that show."""
    names = {t.id for t in node.targets if isinstance(t, ast.Name)} & cx.frame.conditions
    own = next((v.id for v in value.values[:-1] if isinstance(v, ast.Name) and v.id in names), None)
    if own is None:
        return
    every = [inner for op in ops for inner in below(op)]
    made = {v for op in every for v in op.results}
    shown = next((op for op in every if op.name in _SHOWN and op not in cx.checks
                  and written_by(op) not in made), None)  # fmt: skip
    if shown is not None:
        word = "or" if isinstance(value.op, ast.Or) else "and"
        does = {"weft.assert": "asserts", "weft.print": "prints"}.get(shown.name, "stores")
        raise KernelSyntaxError(
            f"each iteration evaluates all of `{own} = {own} {word} ...`, which {does} something: "
            "Python evaluates the right side only until it is known", cx.span(node),
            help=f"call it in a statement before, `one = ...`, then `{own} = {own} {word} one`. "
            + reductions.IN_ORDER,
        )  # fmt: skip


_SHOWN = {"memref.store", "memref.atomic_rmw", "memref.atomic_cas", "weft.assert", "weft.print"}


def _atomic(name: str) -> Callable[[Lowering, ast.Call], Operand]:
    def handler(cx: Lowering, node: ast.Call) -> Operand:
        span = cx.span(node)
        if _of_complex(cx, node, name) or _of_vector(cx, node, name):
            return Static(None)
        found = _of_choice(cx, node, name)
        if found is not None:
            return found
        tensor, indices, (value,) = _place(cx, node, 2, name)
        return _update(cx, name, tensor, indices, value, cx.span(node.args[0]), span)

    return handler


def _atomic_cas(cx: Lowering, node: ast.Call) -> Operand:
    span = cx.span(node)
    tensor, indices, values = _place(cx, node, 3, "atomic_cas")
    expected, desired = (cx.scalars.cast(v, tensor.dtype, span).value for v in values)
    with cx.builder.about(cx.span(node.args[0])):
        before = cx.builder.op(
            "memref.atomic_cas", expected, desired, tensor.memref, *indices, type=expected.type
        )
    return Scalar(before, tensor.dtype)


def _atomic_exchange(cx: Lowering, node: ast.Call) -> Operand:
    """By compare and swap, until nobody came between."""
    b, span = cx.builder, cx.span(node)
    tensor, indices, (value,) = _place(cx, node, 2, "atomic_exchange")
    new = cx.scalars.cast(value, tensor.dtype, span).value
    # Expecting `new` first asks what is there: atomically, as a load would not be.
    op = b.while_([new], [new.type])
    with b.at(While(op).before) as block:
        (expected,) = block.args
        with b.about(cx.span(node.args[0])):
            seen = b.op("memref.atomic_cas", expected, new, tensor.memref, *indices, type=new.type)
        bits = {8: ir.i8, 16: ir.i16, 32: ir.i32, 64: ir.i64}.get(seen.type.bits)  # type: ignore[union-attr]
        left, right = seen, expected
        if seen.type.is_float:  # type: ignore[union-attr]
            left, right = (b.op("arith.bitcast", v, type=bits) for v in (seen, expected))
        again = b.op("arith.cmpi", left, right, predicate="ne")
        b.do("scf.condition", again, seen)
    with b.at(While(op).after) as block:
        b.do("scf.yield", *block.args)
    return Scalar(op.results[0], tensor.dtype)


def _isinstance(cx: Lowering, node: ast.Call) -> Operand:
    """Of what is passed to the loop, and of constants: where their kind tells what Python says."""
    x, kind = map(cx.expression, node.args) if len(node.args) == 2 else (None, None)
    types = [constant_value(k) for k in (kind.items if isinstance(kind, Tup) else [kind])]
    if types and all(isinstance(t, type) for t in types):
        given = any(x is operand for operand in cx.operands.values())
        tensors = [t for t in types if issubclass(t, torch.Tensor)]
        if isinstance(x, Static) and not isinstance(x, Varying):
            return Static(isinstance(x.value, tuple(types)))
        if isinstance(x, Tensor) and given and tensors in ([], [torch.Tensor]):
            return Static(issubclass(torch.Tensor, tuple(types)))
        if isinstance(x, Scalar) and given and not any(issubclass(t, Number) for t in types):
            return Static(object in types)
    raise KernelTypeError(
        "`isinstance` of what a device loop has as a number, or of another class than it tells",
        cx.span(node), help="test in the host part, which may hold a loop for each case",
    )  # fmt: skip


LAZY: dict[str, Callable[[Lowering, ast.Call], Operand]] = {
    **{name: _atomic(name) for name in _RMW},
    "atomic_cas": _atomic_cas, "atomic_exchange": _atomic_exchange, "print": texts.printed,
    "isinstance": _isinstance,
}  # fmt: skip
