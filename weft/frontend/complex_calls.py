"""Calls that take or give complex numbers: ``FUNCTIONS[canonical name]`` lowers one."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from weft.errors import KernelTypeError, Span
from weft.frontend import complexes, expressions, signatures
from weft.frontend.casts import Handler, of_constants
from weft.frontend.context import Lowering
from weft.frontend.functions import sign
from weft.frontend.kinds import Operand, Static, Varying, is_complex
from weft.lang import names


def of_complex(cx: Lowering, name: str, text: str, given: list[Operand], span: Span) -> Operand:
    """A scalar function of complex numbers."""
    if name not in complexes.NAMES:
        raise KernelTypeError(
            f"`{text}` of complex numbers is not there", span,
            help="write it of z.real and z.imag; docs/language.md says what there is",
        )  # fmt: skip
    given = [x for x in given if not (isinstance(x, Static) and x.value is None)]
    return complexes.function(cx.scalars, name, [cx.read_number(x, span) for x in given], span)


def _complex(name: str) -> Handler:
    """A function that gives, or takes, complex numbers also where it is given real ones."""

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        given = [cx.read_number(x, span) for x in arguments]
        return complexes.function(cx.scalars, name, given, span)

    return handler


def _of_real(name: str, real: Callable[[Lowering, Operand, Span], Operand]) -> Handler:
    """A function of torch that gives a real number where it is given one."""
    of_complex = _complex(name)

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        if any(map(is_complex, arguments)):
            return of_complex(cx, node, arguments)
        span = cx.span(node)
        return real(cx, cx.read_scalar(arguments[0], span), span)

    return handler


def _angle(cx: Lowering, x: Operand, span: Span) -> Operand:
    """pi of a negative number, else 0; of NaN, NaN."""
    s = cx.scalars
    below, nan = s.compare("<", x, Static(0), span), s.compare("!=", x, x, span)
    found = s.select(s.truth(below, span), Static(math.pi), Static(0.0), span)
    return s.select(s.truth(nan, span), x, found, span)


def _of_parts(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """``complex(a, b)``, ``torch.complex(a, b)``."""
    span = cx.span(node)
    given = [cx.read_number(x, span) for x in arguments if signatures.argument([x], 0)]
    if all(isinstance(x, Static) and not isinstance(x, Varying) for x in given):
        return of_constants(complex, [x.value for x in given], node, span)  # type: ignore[union-attr]
    if len(given) == 1 and is_complex(given[0]):
        return given[0]
    return complexes.of_parts(cx.scalars, (*given, Static(0.0))[:2], span)


def _polar(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    size, angle = (cx.read_scalar(x, span) for x in arguments)
    return complexes.polar(cx.scalars, size, angle, span)


def _part(name: str) -> Handler:
    """``torch.real(z)``, ``torch.imag(z)``."""

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        return expressions.attribute(cx, cx.read_number(arguments[0], span), name, span)

    return handler


FUNCTIONS: dict[str, Handler] = {
    "conj": _of_real("conj", lambda cx, x, span: x),
    "sgn": _of_real("sgn", lambda cx, x, span: sign(cx, [x], span)),
    "angle": _of_real("angle", _angle), "phase": _complex("angle"),
    **{f"c_{name}": _complex(name) for name in names.CMATH},
    "complex": _of_parts, "polar": _polar, "real": _part("real"), "imag": _part("imag"),
}  # fmt: skip
