"""Fields of vectors and matrices: the dimensions of an element are the tensor's last ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.errors import KernelTypeError
from weft.frontend import aggregates, expressions
from weft.frontend.kinds import Operand, Part, Vec, describe, dtype_of
from weft.ir import types as ir
from weft.ir.core import Value
from weft.source import Span

if TYPE_CHECKING:
    from weft.frontend.lower import Lowering


def is_whole(x: Operand) -> bool:
    """Whether ``x`` is one whole vector or matrix of a field."""
    return isinstance(x, Part) and bool(x.tensor.element) and len(x.indices) == x.tensor.lattice


def places(cx: Lowering, part: Part) -> Iterator[list[Value]]:
    """The subscripts of each number in the element, row by row."""
    for position in itertools.product(*map(range, part.tensor.element)):
        yield [*part.indices, *(cx.builder.constant(k, ir.index) for k in position)]


def load(cx: Lowering, part: Part, span: Span) -> Vec:
    items = [expressions.load_element(cx, part.tensor, place, span) for place in places(cx, part)]
    return Vec(list(items), part.tensor.element)


def numbers(cx: Lowering, part: Part, x: Operand, span: Span) -> list[Operand]:
    """What is stored in each place of the element: the items of a vector, or one number in all."""
    if dtype_of(x) is not None:
        return [x] * len(list(itertools.product(*map(range, part.tensor.element))))
    made = aggregates.build(x, span)
    if made.shape != part.tensor.element:
        raise KernelTypeError(
            f"an element of `{part.tensor.name}` has {_size(part.tensor.element)} numbers, and "
            f"this is {describe(made)}",
            span,
            help="store a vector of that size, or one number for all",
        )
    return list(made.items)


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
