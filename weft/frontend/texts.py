"""``print``, and the messages of ``assert``: texts with values in them."""

from __future__ import annotations

import ast
import itertools
import string
from collections.abc import Callable

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import aggregates
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    UNSIGNED,
    Complex,
    Operand,
    Scalar,
    Static,
    Tup,
    Vec,
    describe,
    is_complex,
    is_float,
)
from weft.ir.core import Block, Value
from weft.source import subtree

MOST_VALUES = 15  # of a message: what the record of a check has room for
_ALIGNMENTS = ("<", ">", "^")
_CONVERSIONS: dict[int, Callable[[object], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}
_EXAMPLES = {"float": 1.5, "int": 1, "bool": True}


class Text:
    """A text that is put together when the kernel runs: strings, None for each value, and how each
    value is formatted."""

    def __init__(self, cx: Lowering, span: Span) -> None:
        self.cx, self.span = cx, span
        self.parts: list[str | None] = []
        self.values: list[Value] = []
        self.formats: list[str] = []
        self.unsigned: list[int] = []

    def node(self, node: ast.expr) -> None:
        """What ``str(node)`` is; ``node`` may be an f-string, or ``"...".format(...)``."""
        try:
            node = _as_joined(node)
        except ValueError as error:
            raise KernelSyntaxError(str(error), self.cx.span(node)) from error
        if not isinstance(node, ast.JoinedStr):
            self.operand(self.cx.expression(node))
            return
        for piece in node.values:
            if isinstance(piece, ast.FormattedValue):
                text = _CONVERSIONS.get(piece.conversion)
                self.operand(self.cx.expression(piece.value), self._format(piece), text)
            else:
                assert isinstance(piece, ast.Constant)
                self.parts.append(str(piece.value))

    def _format(self, piece: ast.FormattedValue) -> str:
        """The format of a value: it is known at compile time."""
        texts: list[str] = []
        parts = piece.format_spec.values if isinstance(piece.format_spec, ast.JoinedStr) else []
        for part in parts:
            if isinstance(part, ast.Constant):
                texts.append(str(part.value))
                continue
            assert isinstance(part, ast.FormattedValue)
            found = self.cx.expression(part.value)
            if not isinstance(found, Static) or part.format_spec is not None:
                raise KernelSyntaxError(
                    "a format that is known only at run time", self.cx.span(part.value),
                    help="write the width and the precision as numbers: {x:8.3f}",
                )  # fmt: skip
            texts.append(str(found.value))
        return "".join(texts)

    def operand(
        self, x: Operand, form: str = "", text: Callable[[object], str] | None = None
    ) -> None:
        """``text``: what ``form`` is a format of, ``str(x)`` or ``repr(x)``, and not ``x``."""
        if isinstance(x, Static):
            self.parts.append(self._formatted(text(x.value) if text else x.value, form))
        elif isinstance(x, (Tup, Vec)):
            if form:
                raise KernelTypeError(
                    f"a format of {describe(x)}", self.span,
                    help="formats are for numbers: name the items, {v[0]:.3f}",
                )  # fmt: skip
            self._items(Tup(list(aggregates.rows(x))) if isinstance(x, Vec) else x,
                        "[]" if isinstance(x, Vec) else "()")  # fmt: skip
        elif is_complex(x) and not form:
            z = self.cx.read_number(x, self.span)
            assert isinstance(z, Complex)
            self.parts.append("complex(")
            self.operand(z.real)
            self.parts.append(", ")
            self.operand(z.imag)
            self.parts.append(")")
        else:
            number = self.cx.read_scalar(x, self.span)
            self._number(number, self._of_text(number, form) if text and form else form)

    def _of_text(self, number: Scalar | Static, form: str) -> str:
        """The format of a number that gives what ``form`` gives of its text."""
        self._formatted("", form)
        if "." in form or (isinstance(number, Scalar) and number.dtype == "bool"):
            raise KernelTypeError(
                f"a format of a text that is known only at run time: {form!r}", self.span,
                help="leave out !s, !r or !a: the format is then that of the number",
            )  # fmt: skip
        form = form.removesuffix("s")
        aligned = form[:1] in _ALIGNMENTS or form[1:2] in _ALIGNMENTS
        return form if aligned or not form else "<" + form

    def _items(self, of: Tup, around: str) -> None:
        """As ``repr`` has them: with their names, and strings in quotes."""
        named = bool(of.names)
        if of.struct is dict:
            around = "{}"
        elif named and isinstance(of.struct, type):
            self.parts.append(of.struct.__name__)
        self.parts.append(around[0])
        for k, item in enumerate(of.items):
            if k:
                self.parts.append(", ")
            if named:
                self.parts.append(f"{of.names[k]!r}: " if of.struct is dict else f"{of.names[k]}=")
            self.operand(Static(repr(item.value)) if isinstance(item, Static) else item)
        if len(of.items) == 1 and around == "()" and not named:
            self.parts.append(",")
        self.parts.append(around[1])

    def _number(self, number: Scalar | Static, form: str) -> None:
        if isinstance(number, Static):
            self.parts.append(self._formatted(number.value, form))
            return
        dtype = number.dtype
        kind = "float" if is_float(dtype) else "bool" if dtype == "bool" else "int"
        self._formatted(_EXAMPLES[kind], form)
        self.parts.append(None)
        if dtype == "u64" or (form and dtype in UNSIGNED):
            self.unsigned.append(len(self.values))
        wide = "int" if dtype in UNSIGNED and dtype != "u64" else dtype
        self.values.append(self.cx.scalars.cast(number, wide, self.span).value)
        self.formats.append(form)

    def _formatted(self, value: object, form: str) -> str:
        try:
            return format(value, form)
        except (ValueError, TypeError) as error:
            help = "write a format of Python, as .3f or 5d"
            raise KernelTypeError(f"{error}: {form!r}", self.span, help=help) from None

    @property
    def marks(self) -> dict[str, tuple[object, ...]]:
        """What an operation of the IR says of its values, beside them."""
        marks: dict[str, tuple[object, ...]] = {}
        if self.unsigned:
            marks["unsigned"] = tuple(self.unsigned)
        if any(self.formats):
            marks["formats"] = tuple(self.formats)
        return marks


def printed(cx: Lowering, node: ast.Call) -> Operand:
    """``print(a, "text", f"x = {x:.3f}", sep=..., end=...)``."""
    span = cx.span(node)
    options = {"sep": " ", "end": "\n"}
    for keyword in node.keywords:
        value = cx.expression(keyword.value)
        if (
            keyword.arg not in options
            or not isinstance(value, Static)
            or not isinstance(value.value, str)
        ):
            raise KernelTypeError(
                "print in a kernel takes `sep` and `end`, which are strings",
                span,
                help="leave the other keywords out",
            )
        options[keyword.arg] = value.value
    text = Text(cx, span)
    for k, argument in enumerate(node.args):
        if k:
            text.parts.append(options["sep"])
        text.node(argument)
    text.parts.append(options["end"])
    cx.builder.span = span
    cx.builder.do("weft.print", *text.values, parts=tuple(text.parts), **text.marks)
    return Static(None)


def _as_joined(node: ast.expr) -> ast.expr:
    """``"{} {name:.3f}".format(a, name=b)`` as the f-string that it is. Others stay, and so do
    those that have more than numbers and names in their braces. Raises ``ValueError`` where braces
    do not match."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(template)), attr="format")):
            given: dict[str, ast.expr] = {str(k): arg for k, arg in enumerate(node.args)}
            given |= {k.arg: k.value for k in node.keywords if k.arg is not None}
        case _:
            return node
    fields = [f for f in string.Formatter().parse(template) if f[1] is not None]
    numbers = itertools.count()
    used = [name or str(next(numbers)) for _, name, *_ in fields]
    mixed = not all(f[1] for f in fields) and any((f[1] or "").isdigit() for f in fields)
    calls = any(isinstance(n, ast.Call) for arg in given.values() for n in subtree(arg))
    nested = any("{" in (form or "") for _, _, form, _ in fields)
    if mixed or nested or not given.keys() >= {*used} or (calls and used != [*given]):
        return node  # what is called is called once, in its order
    pieces: list[ast.expr] = []
    names = iter(used)
    for text, name, form, conversion in string.Formatter().parse(template):
        if text:
            pieces.append(ast.Constant(text))
        if name is not None:
            spec = ast.JoinedStr([ast.Constant(form)]) if form else None
            value, how = given[next(names)], ord(conversion) if conversion else -1
            pieces.append(ast.FormattedValue(value, how, spec))
    return ast.copy_location(ast.JoinedStr(pieces), node)


def message(cx: Lowering, node: ast.Assert) -> str | None:
    """The text of an assert's message; None where it has values of run time in it."""
    if node.msg is None:
        return ast.unparse(node.test)
    with cx.builder.at(Block()):
        text = Text(cx, cx.span(node.msg))
        text.node(node.msg)
    return None if text.values else "".join(map(str, text.parts))


def failed(cx: Lowering, node: ast.expr, span: Span) -> None:
    """Emits the end of the kernel by an assertion whose message is ``node``."""
    text = Text(cx, cx.span(node))
    text.node(node)
    if len(text.values) > MOST_VALUES:
        raise KernelTypeError(f"a message of {len(text.values)} values", cx.span(node),
                              help=f"{MOST_VALUES} fit: print(...) the others before")  # fmt: skip
    never = cx.scalars.constant(False, "bool").value
    with cx.builder.about(span):
        fail(cx, never, text)


def fail(cx: Lowering, ok: Value, text: Text) -> None:
    """Emits ``weft.assert`` of ``ok``, whose message is a template for ``str.format`` where it has
    values."""
    if not text.values:
        cx.builder.do("weft.assert", ok, message="".join(map(str, text.parts)))
        return
    forms = iter(text.formats)
    pieces = [
        f"{{:{next(forms)}}}" if p is None else p.replace("{", "{{").replace("}", "}}")
        for p in text.parts
    ]
    marks = {"unsigned": tuple(text.unsigned)} if text.unsigned else {}
    cx.builder.do("weft.assert", ok, *text.values, message="".join(pieces), **marks)
