"""What is said to the compiler: ``static``, ``static_assert``, ``static_print``, ``func(f)``,
``loop_unique``, ``stop_grad``, and what only the host part obeys."""

from __future__ import annotations

import ast
import itertools

from weft.errors import KernelAssertionError, KernelTypeError, Span
from weft.frontend import aggregates
from weft.frontend.casts import Handler
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    Box,
    Operand,
    Range,
    Scalar,
    Static,
    Tensor,
    Tup,
    Vec,
    describe,
    dtype_of,
    is_float,
)
from weft.frontend.signatures import argument


def _same(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    return arguments[0]


def _static(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    if len(arguments) != 1:
        return Tup(arguments)
    x = arguments[0]
    if isinstance(x, Range) and all(isinstance(v, Static) for v in (x.lower, x.upper, x.step)):
        return Static(range(x.lower.value, x.upper.value, x.step.value))  # type: ignore[union-attr]
    if isinstance(x, Box) and all(isinstance(v, Static) for pair in x.bounds for v in pair):
        ranges = [range(low.value, high.value) for low, high in x.bounds]  # type: ignore[union-attr]
        return Static(tuple(itertools.product(*ranges) if len(ranges) > 1 else ranges[0]))
    if isinstance(x, (Static, Tup, Vec)):
        return x
    raise KernelTypeError(
        "`static` needs what is known at compile time",
        span,
        help="constants, template() arguments, and shapes of local arrays are known",
    )


def _needs(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """Of a function of weft's own: ``inline`` says where it was called."""
    condition, message = arguments
    if not isinstance(condition, Static) or not isinstance(message, Static):
        raise KernelTypeError("a condition that is only known at run time", cx.span(node),
                              help="write assert")  # fmt: skip
    if not condition.value:
        raise KernelTypeError(str(message.value), cx.span(node))
    return Static(None)


def _nothing(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    return Static(None)


def _static_assert(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span, condition = cx.span(node), arguments[0]
    if not isinstance(condition, Static):
        raise KernelTypeError(
            "`static_assert` of what is known at run time only", cx.span(node.args[0]),
            help="write assert",
        )  # fmt: skip
    if not condition.value:
        message = argument(arguments, 1)
        shown = _shown(message) if message is not None else ast.unparse(node.args[0])
        raise KernelAssertionError(shown, span, help="this is known when the loop is compiled")
    return Static(None)


def _static_print(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    options = {"sep": " ", "end": "\n"}
    for keyword in node.keywords:
        value = cx.expression(keyword.value)
        if isinstance(value, Static) and keyword.arg in options:
            options[keyword.arg] = str(value.value)
    cx.printed.append(options["sep"].join(map(_shown, arguments)) + options["end"])
    return Static(None)


def _shown(x: Operand) -> str:
    """A value that is known, or what another is."""
    if isinstance(x, Static):
        return str(x.value)
    if isinstance(x, Tup):
        return f"({', '.join(map(_shown, x.items))})"
    return describe(x)


def _stop_grad(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span, (x,) = cx.span(node), arguments
    if isinstance(x, Tensor) and x.rank:
        raise KernelTypeError(
            f"`stop_grad` of {describe(x)}", span,
            help=f"write stop_grad({x.name}[...]) where its elements are read, or "
            f"{x.name}.detach() in the host part",
        )  # fmt: skip

    return aggregates.elementwise(lambda item: stop_grad(cx, item, span), [x], span)


def stop_grad(cx: Lowering, x: Operand, span: Span) -> Operand:
    """A number whose derivative is 0."""
    number = cx.read_scalar(x, span)
    if not isinstance(number, Scalar) or not is_float(dtype_of(number) or ""):
        return number
    return Scalar(cx.builder.op("math.detach", number.value), number.dtype)


HANDLERS: dict[str, Handler] = {
    "static": _static, "loop_config": _nothing, "sync": _nothing, "needs": _needs,
    "func": _same, "loop_unique": _same, "stop_grad": _stop_grad,
    "static_assert": _static_assert, "static_print": _static_print,
}  # fmt: skip
