"""Elements of tensors: subscripts and loads, and the whole vectors and matrices of fields, whose
dimensions are the tensor's last ones."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import aggregates, complexes, from_end, uncallable
from weft.frontend.context import Lowering, wrong_subscripts
from weft.frontend.kinds import (
    STORAGE,
    Complex,
    Method,
    Operand,
    Part,
    Row,
    Scalar,
    ScalarKind,
    Static,
    Tensor,
    Tup,
    Vec,
    article,
    describe,
    dtype_of,
    promote,
)
from weft.frontend.names import dotted
from weft.ir import types as ir
from weft.ir.core import Value

MOST_UNROLLED_STORES = 64
_VIEWS = ("T", "mT", "H", "mH", "real", "imag")  # which are subscripted: refused there


def holder(cx: Lowering, node: ast.expr) -> Operand:
    """What elements are stored into or read from: as ``cx.expression(node)``, but of a vector of
    the host part that the loop stores into, the tensor that holds it."""
    name = dotted(node)
    if name and name in cx.frame.arguments and name.partition(".")[0] not in cx.frame.env:
        found = cx.frame.arguments[name]
        if isinstance(found, Tensor) and found.backing:
            return found
    return cx.expression(node)


def vector_of(cx: Lowering, x: Operand, span: Span) -> Operand:
    """``x``; of the tensor that holds a vector of the host part, the vector as it is now."""
    return load(cx, Part(x, []), span) if isinstance(x, Tensor) and x.backing else x


def asked(x: Operand, span: Span) -> Operand:
    """``x``, unless it is what the host alone knows of a tensor, or what numbers and rows lack."""
    if not isinstance(x, Method) or not inspect.isdatadescriptor(
        getattr(torch.Tensor, x.name, None)
    ):
        return x
    text = f"`.{x.name}` of {describe(x.receiver)} is not known here"
    if isinstance(x.receiver, Tensor):
        if x.name in _VIEWS:
            return x
        help = ("ask for it by the name that the host part has for the tensor, and hand on the "
                "answer")  # fmt: skip
        raise KernelTypeError(text, span, help=help)
    if x.missing or not isinstance(x.receiver, Row | Part | Scalar | Complex):
        return x
    help = "ask for it of the tensor, in the host part"
    if x.name == "imag":
        text, help = f"`.imag` of {describe(x.receiver)}", "real numbers have no imaginary part"
    elif x.name in _VIEWS:
        help = "write the subscripts in the order that is meant"
    raise KernelTypeError(text, span, help=help)


def check_fits(tensor: Tensor, x: Operand, span: Span) -> None:
    """Refuses to store into a vector of the host part what would change its numbers' dtype."""
    dtype = dtype_of(x)
    if tensor.backing and dtype is not None and promote(tensor.dtype, dtype) != tensor.dtype:
        raise KernelTypeError(
            f"`{tensor.name}` is a vector of {tensor.dtype}, and {article(ScalarKind(dtype))} is "
            "stored into it", span, help="make it a vector of that dtype in the host part: "
            "weft.Vector([0.0, 0.0]), weft.Vector([0, 0], weft.f64)",
        )  # fmt: skip


def refuse_outer(cx: Lowering, target: ast.expr, span: Span) -> None:
    """Refuses a store into a vector that is a constant of the loop."""
    if isinstance(target, ast.Name) and target.id not in cx.frame.env:
        around = cx.frame.around
        while around is not None and target.id not in around.env:
            around = around.around
        if around is not None:
            raise KernelTypeError(
                f"a function changes `{target.id}`, a vector of the loop that it stands in", span,
                help="vectors are values: return a new one, or use weft.zeros(...)",
            )  # fmt: skip
        raise KernelTypeError(
            f"`{target.id}` is a vector from outside of the loop, and a constant in it", span,
            help="store into a weft.Vector of the kernel's host part, or into a tensor",
        )  # fmt: skip


def element(
    cx: Lowering, base: Tensor | Part, subscript: ast.expr, span: Span
) -> tuple[Tensor, list[Value]]:
    """The tensor and the indices that ``base[subscript]`` names; all dimensions must be given."""
    return whole(subscripted(cx, base, subscript, span), span)


def whole(part: Part, span: Span) -> tuple[Tensor, list[Value]]:
    """The tensor and all its subscripts."""
    if len(part.indices) != part.tensor.rank:
        wrong_subscripts(part.tensor, len(part.indices), span)
    return part.tensor, part.indices


def subscripted(cx: Lowering, base: Tensor | Part, subscript: ast.expr, span: Span) -> Part:
    if isinstance(base, Tensor):
        base = Part(base, [])
    tensor, indices = base.tensor, list(base.indices)
    nodes = subscript.elts if isinstance(subscript, ast.Tuple) else [subscript]
    for node in nodes:
        if isinstance(node, ast.Slice) or (
            isinstance(node, ast.Constant) and node.value is Ellipsis
        ):
            raise KernelSyntaxError(
                "a slice in a device loop: elements are read and written one by one", cx.span(node),
                help="loop over the elements, or take the view in the host part"
                + uncallable.host_loop(cx),
            )  # fmt: skip
        operand = cx.expression(node)
        if isinstance(operand, Static) and operand.value is None and tensor.lattice == 0:
            continue
        many = isinstance(operand, Vec) or (isinstance(operand, Tup) and operand.in_order)
        items = operand.items if many else [operand]  # type: ignore[union-attr]
        for item in items:
            if len(indices) >= tensor.rank:
                wrong_subscripts(tensor, len(indices) + 1, span)
            indices.append(subscript_of(cx, tensor, len(indices), item, cx.span(node)))
    return Part(tensor, indices)


def extent(cx: Lowering, tensor: Tensor, axis: int) -> Scalar | Static:
    """The size of one dimension."""
    if tensor.length is not None:
        found = cx.builder.load(tensor.length, [cx.builder.index(0)])
        return Scalar(cx.builder.op("arith.index_cast", found, type=ir.index), "int")
    if tensor.shape is not None:
        return Static(tensor.shape[axis])
    return Scalar(cx.builder.op("memref.dim", tensor.memref, axis=axis), "int")


def subscripts_of(
    cx: Lowering, tensor: Tensor, span: Span
) -> list[tuple[Scalar | Static, Scalar | Static]]:
    """The first subscript along each dimension that a loop goes through, and the one behind the
    last."""
    bounds: list[tuple[Scalar | Static, Scalar | Static]] = []
    for axis in range(tensor.lattice):
        begin, end = Static(_offset(tensor, axis)), extent(cx, tensor, axis)
        if begin.value:
            end = cx.scalars.binary("+", end, begin, span)
        bounds.append((begin, end))
    return bounds


def _offset(tensor: Tensor, axis: int) -> int:
    return tensor.offset[axis] if axis < len(tensor.offset) else 0


def subscript_of(cx: Lowering, tensor: Tensor, axis: int, item: Operand, span: Span) -> Value:
    """A subscript of one dimension: a negative constant counts from the end."""
    b = cx.builder
    begin = _offset(tensor, axis)
    if begin:
        item = cx.scalars.binary("-", cx.read_scalar(item, span), Static(begin), span)
    inner = axis - tensor.lattice
    if inner >= 0 and not tensor.backing and isinstance(item, Static):
        aggregates.check_position(item, tensor.element[inner], span)
    if tensor.clamped:
        return _clamped(cx, tensor, axis, item, span)
    if isinstance(item, Static) and isinstance(item.value, int) and item.value < 0 and not begin:
        end = cx.scalars.index(extent(cx, tensor, axis), span)
        value = b.op("arith.addi", end, b.constant(item.value, ir.index))
    else:
        value = cx.scalars.index(cx.read_scalar(item, span), span)
        if (tensor.local or tensor.backing or inner >= 0) and isinstance(item, Scalar):
            value = from_end.index(
                cx, value, lambda: cx.scalars.index(extent(cx, tensor, axis), span)
            )
    return _checked(cx, tensor, axis, value, span)


def _clamped(cx: Lowering, tensor: Tensor, axis: int, item: Operand, span: Span) -> Value:
    """A subscript moved into the range of its dimension: 0, or the last one. Literals too, as
    Taichi has it."""
    end = cx.scalars.binary("-", extent(cx, tensor, axis), Static(1), span)
    index = Scalar(cx.scalars.index(cx.read_scalar(item, span), span), "int")
    low = cx.scalars.extreme("<", index, end, span)
    value = cx.scalars.index(cx.scalars.extreme(">", low, Static(0), span), span)
    return _checked(cx, tensor, axis, value, span)  # of no elements, none is in range


def _checked(cx: Lowering, tensor: Tensor, axis: int, value: Value, span: Span) -> Value:
    """A subscript, which debug mode checks."""
    if cx.debug:
        end = cx.scalars.index(extent(cx, tensor, axis), span)
        cx.builder.span = span
        begin = _offset(tensor, axis)
        name = f"{tensor.name}, {begin} taken off" if begin else tensor.name
        cx.builder.do("weft.bounds", value, end, tensor=name, axis=axis)
    return value


def local_array(cx: Lowering, shape: tuple[int, ...], dtype: str, pair: bool = False) -> Tensor:
    """``weft.zeros(shape, dtype)``: a local array, filled with zeros. ``pair``: of complex numbers
    with parts of ``dtype``."""
    own, shape = shape, (*shape, 2) if pair else shape
    b = cx.builder
    memref = local_memory(cx, shape, dtype)
    zero = b.constant(0, memref.memref.element)

    def fill(indices: list[Value]) -> None:
        if len(indices) == len(shape):
            b.store(zero, memref, indices)
            return
        for i in range(shape[len(indices)]):
            fill([*indices, b.index(i)])

    if math.prod(shape) <= MOST_UNROLLED_STORES:
        fill([])
    else:
        b.each_element(memref, lambda at: b.store(zero, memref, at))
    return Tensor(memref, dtype, "a local array", local=True, shape=own, pair=pair)


def local_memory(cx: Lowering, shape: tuple[int, ...], dtype: str) -> Value:
    """Memory of the iteration, of which nothing is known."""
    storage = {"int": ir.i64, "float": cx.scalars.float_type}.get(dtype) or STORAGE[dtype]
    return cx.builder.alloca(storage, shape)


# --- whole vectors and matrices -----------------------------------------------------------------
def is_whole(x: Operand) -> bool:
    """Whether ``x`` is one whole vector or matrix of a field."""
    return isinstance(x, Part) and bool(x.tensor.element) and len(x.indices) == x.tensor.lattice


def places(cx: Lowering, part: Part) -> Iterator[list[Value]]:
    """The subscripts of each number in the element, row by row."""
    for position in itertools.product(*map(range, part.tensor.element)):
        yield [*part.indices, *(cx.builder.constant(k, ir.index) for k in position)]


def load(cx: Lowering, part: Part, span: Span) -> Vec:
    items = [cx.load_real(part.tensor, place, span) for place in places(cx, part)]
    return Vec(list(items), part.tensor.element)


def component(cx: Lowering, x: Tensor | Part, place: int) -> tuple[Tensor, list[Value]]:
    """The tensor and the indices of a number of a field's vector, or of one of the host part."""
    part = x if isinstance(x, Part) else Part(x, [])
    return part.tensor, [*part.indices, cx.builder.constant(place, ir.index)]


def numbers(cx: Lowering, part: Part, x: Operand, span: Span) -> list[Operand]:
    """What is stored in each place of the element: the items of a vector, or one number in all."""
    if dtype_of(x) is not None:
        return [x] * math.prod(part.tensor.element)
    made = aggregates.build(x, span)
    if made.shape != part.tensor.element:
        raise KernelTypeError(
            f"an element of `{part.tensor.name}` has {_size(part.tensor.element)} numbers, and "
            f"this is {describe(made)}",
            span,
            help="store a vector of that size, or one number for all",
        )
    return list(made.items)


def stored(
    cx: Lowering, part: Part, x: Operand, at: Span, span: Span
) -> Iterator[tuple[Tensor, list[Value], Operand]]:
    """Where each number of ``x`` goes when it is written to ``part``: an element, all of one that
    is a vector, or the parts of one that is a complex number."""
    if part.tensor.pair:
        tensor, indices = whole(part, at)
        z = complexes.cast(cx.scalars, cx.read_number(x, span), tensor.dtype, span)
        real = replace(tensor, pair=False)
        for place, value in zip(cx.parts(), (z.real, z.imag), strict=True):
            yield real, [*indices, place], value
    elif is_whole(part):
        values = numbers(cx, part, x, span)
        for place, value in zip(places(cx, part), values, strict=True):
            yield part.tensor, place, value
    else:
        yield *whole(part, at), x


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
