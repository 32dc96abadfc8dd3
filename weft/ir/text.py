"""The textual form of the IR: ``print_function``, ``parse_function`` and ``same``.

The spelling is MLIR's own wherever MLIR has the operation, its generic quoted form otherwise, so
MLIR's tools read a dump. README.md in this folder has the grammar. ``parse(print(f))`` is always
the ``same`` function as ``f``. The parser itself is in ``parse.py``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from weft.errors import InternalError
from weft.ir import float8
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.parse import ATOMIC_NAMES, CASTS, TEXT_NAMES, parse_function
from weft.ir.types import SCALARS, ScalarType, Type, i1, index

__all__ = ["parse_function", "print_function", "same"]

_BAD = re.compile(r"[^A-Za-z0-9_.\-]")
_PLAIN_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]*")
_ESCAPED = re.compile(rb"[^ !#-\[\]-~]")  # all but printable ASCII, less the quote and backslash
_FLOAT_BITS = {"f16": ("<e", "<H", 4), "f32": ("<f", "<I", 8), "f64": ("<d", "<Q", 16)}


def print_function(function: Function, *, spans: bool = False) -> str:
    """The text of ``function``; with ``spans`` each line ends with ``// file:line``.

    Without ``spans`` the text depends on nothing but the function: it is part of the cache key.
    """
    printer = _Printer(spans)
    args = ", ".join([f"{printer.define(a)}: {printer.type(a.type)}" for a in function.args])
    name = function.name
    if not _PLAIN_SYMBOL.fullmatch(name):
        name = _string(name)
    attrs = f" attributes {_attributes(function.attrs)}" if function.attrs else ""
    printer.line(f"func.func @{name}({args}){attrs} {{", function.span)
    printer.block(function.body, "  ", ())
    printer.lines.append("}\n")
    return "\n".join(printer.lines)


class _Names(dict[Value, str]):
    """Printed names. A value that nothing defines (invalid IR) is shown, not a crash."""

    def __missing__(self, value: Value) -> str:
        return f"%undefined.{_identifier(value.name)}"


class _Printer:
    """Collects lines. ``names`` holds the printed name of each value that is defined so far."""

    __slots__ = ("counts", "lines", "names", "next_number", "spans", "types")

    def __init__(self, spans: bool) -> None:
        self.lines: list[str] = []
        self.names: dict[Value, str] = _Names()
        self.counts: dict[str, int] = {}  # names taken: how often the hint was met
        self.next_number = 0
        self.spans = spans
        self.types: dict[int, str] = {}  # by id: a type's text costs more than its printing

    def line(self, text: str, span: Any) -> None:
        if self.spans and span is not None:
            text = f"{text}  // {span.file}:{span.line}"
        self.lines.append(text)

    def define(self, value: Value, hint: str = "") -> str:
        """Gives ``value`` its printed name: the hint if it is free, else hint_1, hint_2..."""
        hint = value.name or hint
        if not hint:
            name = f"%{self.next_number}"
            self.next_number += 1
        else:
            hint = _identifier(hint)
            counts = self.counts
            count = counts.get(hint)
            if count is None:
                counts[hint] = 0
            else:
                base = hint
                while hint in counts:
                    count += 1
                    hint = f"{base}_{count}"
                counts[base] = count
                counts[hint] = 0
            name = f"%{hint}"
        self.names[value] = name
        return name

    def type(self, type: Type) -> str:
        if isinstance(type, ScalarType):
            return type.name
        text = self.types.get(id(type))
        if text is None:
            text = self.types[id(type)] = str(type)
        return text

    def operands(self, values: Sequence[Value]) -> str:
        names = self.names
        return ", ".join([names[v] for v in values])

    def value_types(self, values: Sequence[Value]) -> str:
        return ", ".join([self.type(v.type) for v in values])

    def block(self, block: Block, indent: str, kinds: Sequence[str]) -> None:
        """Appends the operations of ``block``; ``kinds`` are the combiners its scf.reduce shows."""
        names, lines, forms, spans = self.names, self.lines, _FORMS, self.spans
        for op in block.ops:
            name = op.name
            results = op.results
            if name in _REGIONS:
                left = ", ".join([self.define(r) for r in results])
                left = f"{indent}{left} = " if results else indent
                _REGIONS[name](self, op, left, indent)
                continue
            if name == "scf.reduce":
                text = _reduce(self, op, indent, kinds)
            else:
                form = forms.get(name)
                text = form(self, op, names) if form else _generic(self, op, names)
            if not results:
                text = indent + text
            elif len(results) == 1:
                hint = "" if name != "arith.constant" or results[0].name else _constant_hint(op)
                text = f"{indent}{self.define(results[0], hint)} = {text}"
            else:
                text = f"{indent}{', '.join([self.define(r) for r in results])} = {text}"
            if spans:
                self.line(text, op.span)
            else:
                lines.append(text)


@lru_cache(4096)
def _identifier(hint: str) -> str:
    """``hint`` with what MLIR does not allow in a name replaced; ``$`` is kept for the printer."""
    hint = _BAD.sub("_", hint)
    return hint if hint[:1].isalpha() or hint[:1] == "_" else f"_{hint}"


def _constant_hint(op: Op) -> str:
    type, value = op.result.type, op.attrs["value"]
    if type is index:
        return f"c{value}"
    if type is i1:
        return "true" if value else "false"
    if isinstance(type, ScalarType) and type.is_integer:
        return f"c{value}_{type.name}"
    return "cst"


# --- literals and attributes -------------------------------------------------------------------


def _float(value: float, type: str) -> str:
    """A decimal that reads back as the same double; not-finite values as the type's bits in hex."""
    text = repr(float(value))
    if text[-1] in "fn":  # inf, nan
        if type == "bf16":
            return f"0x{struct.unpack('<I', struct.pack('<f', value))[0] >> 16:04X}"
        if SCALARS[type].bits == 8:
            return f"0x{float8.encode(value, SCALARS[type]):02X}"
        pack, unpack, digits = _FLOAT_BITS[type]
        return f"0x{struct.unpack(unpack, struct.pack(pack, value))[0]:0{digits}X}"
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")  # MLIR's lexer wants the point
    return text


def _string(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    escaped = _ESCAPED.sub(lambda m: b"\\%02X" % m.group()[0], raw)
    return f'"{escaped.decode("ascii")}"'


def _attribute(value: Any) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    if value is None:
        return "unit"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        text = _float(value, "f64")
        return f"{text} : f64" if text.startswith("0x") else text
    if isinstance(value, tuple):
        return f"[{', '.join([_attribute(v) for v in value])}]"
    raise InternalError(f"an attribute of type {type(value).__name__} has no textual form")


def _attributes(attrs: dict[str, Any]) -> str:
    return "{" + ", ".join([f"{k} = {_attribute(attrs[k])}" for k in sorted(attrs)]) + "}"


def _more(op: Op, *shown: str) -> str:
    """The attributes that the custom form does not show, with a space before."""
    if len(op.attrs) == len(shown):
        return ""
    return " " + _attributes({k: v for k, v in op.attrs.items() if k not in shown})


# --- forms of operations without regions ---------------------------------------------------------


def _plain(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    operands = op.operands
    type = p.type(operands[-1].type)
    attrs = f" {_attributes(op.attrs)}" if op.attrs else ""
    return f"{op.name} {', '.join([names[v] for v in operands])}{attrs} : {type}"


def _constant(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    type, value = op.result.type, op.attrs["value"]
    assert isinstance(type, ScalarType)
    more = _more(op, "value")
    if type is i1:
        return f"arith.constant{more} {'true' if value else 'false'}"
    text = _float(value, type.name) if type.is_float else str(int(value))
    return f"arith.constant{more} {text} : {type.name}"


def _compare(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    a, b = op.operands
    compared = f"{op.attrs['predicate']}, {names[a]}, {names[b]}"
    return f"{op.name} {compared}{_more(op, 'predicate')} : {p.type(b.type)}"


def _cast(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    (a,) = op.operands
    return f"{op.name} {names[a]}{_more(op)} : {p.type(a.type)} to {p.type(op.result.type)}"


def _load(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    memref, *indices = op.operands
    place = f"{names[memref]}[{', '.join([names[v] for v in indices])}]"
    return f"memref.load {place}{_more(op)} : {p.type(memref.type)}"


def _store(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    value, memref, *indices = op.operands
    place = f"{names[memref]}[{', '.join([names[v] for v in indices])}]"
    return f"memref.store {names[value]}, {place}{_more(op)} : {p.type(memref.type)}"


def _atomic_rmw(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    value, memref, *indices = op.operands
    place = f"{names[memref]}[{', '.join([names[v] for v in indices])}]"
    kind = op.attrs["kind"]
    types = f"({p.type(value.type)}, {p.type(memref.type)}) -> {p.type(op.result.type)}"
    shown = ("kind", "atomic") if op.attrs.get("atomic") is True else ("kind",)
    kind = ATOMIC_NAMES.get(kind, kind)
    return f"memref.atomic_rmw {kind} {names[value]}, {place}{_more(op, *shown)} : {types}"


def _alloca(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    return f"memref.alloca({p.operands(op.operands)}){_more(op)} : {p.type(op.result.type)}"


def _terminator(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    if not op.operands:
        return f"{op.name}{_more(op)}"
    return f"{op.name}{_more(op)} {p.operands(op.operands)} : {p.value_types(op.operands)}"


def _condition(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    go_on, *rest = op.operands
    text = f"scf.condition({names[go_on]}){_more(op)}"
    return f"{text} {p.operands(rest)} : {p.value_types(rest)}" if rest else text


def _generic(p: _Printer, op: Op, names: dict[Value, str]) -> str:
    attrs = f" {_attributes(op.attrs)}" if op.attrs else ""
    results = p.value_types(op.results)
    if len(op.results) != 1:
        results = f"({results})"
    name = TEXT_NAMES.get(op.name, op.name)
    types = f"({p.value_types(op.operands)}) -> {results}"
    return f'"{name}"({p.operands(op.operands)}){attrs} : {types}'


def _reduce(p: _Printer, op: Op, indent: str, kinds: Sequence[str]) -> str:
    """MLIR keeps the combiner of each reduction in a region of scf.reduce: so it is shown there."""
    if not op.operands:
        return f"scf.reduce{_more(op)}"
    regions: list[str] = []
    for value, kind in zip(op.operands, kinds, strict=True):
        t = p.type(value.type)
        regions.append(
            f"{{\n{indent}^bb0(%a$: {t}, %b$: {t}):\n"
            f"{indent}  %c$ = arith.{kind} %a$, %b$ : {t}\n"
            f"{indent}  scf.reduce.return %c$ : {t}\n{indent}}}"
        )
    types = p.value_types(op.operands)
    return f"scf.reduce({p.operands(op.operands)} : {types}) {', '.join(regions)}{_more(op)}"


# --- forms of operations with regions ------------------------------------------------------------


def _assignments(p: _Printer, args: Sequence[Value], inits: Sequence[Value]) -> str:
    # The initial values are looked up before the arguments get names: they are outside.
    names = [p.names[v] for v in inits]
    return ", ".join([f"{p.define(a)} = {n}" for a, n in zip(args, names, strict=True)])


def _for(p: _Printer, op: Op, left: str, indent: str) -> None:
    (body,) = op.regions
    lower, upper, step = [p.names[v] for v in op.operands[:3]]
    head = f"{left}scf.for {p.define(body.args[0])} = {lower} to {upper} step {step}"
    if op.results:
        carried = _assignments(p, body.args[1:], op.operands[3:])
        head += f" iter_args({carried}) -> ({p.value_types(op.results)})"
    if body.args[0].type is not index:
        head += f" : {p.type(body.args[0].type)}"
    p.line(head + " {", op.span)
    p.block(body, indent + "  ", ())
    p.lines.append(f"{indent}}}{_more(op)}")


def _if(p: _Printer, op: Op, left: str, indent: str) -> None:
    then, otherwise = op.regions
    types = f" -> ({p.value_types(op.results)})" if op.results else ""
    p.line(f"{left}scf.if {p.names[op.operands[0]]}{types} {{", op.span)
    p.block(then, indent + "  ", ())
    last = otherwise.ops[0] if len(otherwise.ops) == 1 else None
    if last is None or last.name != "scf.yield" or last.operands or last.attrs:
        p.lines.append(f"{indent}}} else {{")
        p.block(otherwise, indent + "  ", ())
    p.lines.append(f"{indent}}}{_more(op)}")


def _while(p: _Printer, op: Op, left: str, indent: str) -> None:
    before, after = op.regions
    carried = f" ({_assignments(p, before.args, op.operands)})" if op.operands else ""
    types = f"({p.value_types(op.operands)}) -> ({p.value_types(op.results)})"
    attrs = f" attributes {_attributes(op.attrs)}" if op.attrs else ""
    p.line(f"{left}scf.while{carried} : {types}{attrs} {{", op.span)
    p.block(before, indent + "  ", ())
    p.lines.append(f"{indent}}} do {{")
    if after.args:
        args = ", ".join([f"{p.define(a)}: {p.type(a.type)}" for a in after.args])
        p.lines.append(f"{indent}^bb0({args}):")
    p.block(after, indent + "  ", ())
    p.lines.append(f"{indent}}}")


def _parallel(p: _Printer, op: Op, left: str, indent: str) -> None:
    (body,) = op.regions
    dims = op.attrs["dims"]
    bounds = [p.operands(op.operands[k * dims : (k + 1) * dims]) for k in range(3)]
    inits = op.operands[3 * dims :]
    tail = f" init ({p.operands(inits)})" if inits else ""
    if op.results:
        types = p.value_types(op.results)
        tail += f" -> {types}" if len(op.results) == 1 else f" -> ({types})"
    args = ", ".join([p.define(a) for a in body.args])
    p.line(
        f"{left}scf.parallel ({args}) = ({bounds[0]}) to ({bounds[1]}) step ({bounds[2]}){tail} {{",
        op.span,
    )
    p.block(body, indent + "  ", op.attrs["kinds"])
    p.lines.append(f"{indent}}}{_more(op, 'dims', 'kinds')}")


_REGIONS: dict[str, Callable[[_Printer, Op, str, str], None]] = {
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "scf.parallel": _parallel,
}

_FORMS: dict[str, Callable[[_Printer, Op, dict[Value, str]], str]] = {
    **{n: _plain for n in OPS if n.startswith(("arith.", "math."))},
    "arith.constant": _constant,
    "arith.cmpi": _compare,
    "arith.cmpf": _compare,
    **dict.fromkeys(CASTS, _cast),
    "memref.load": _load,
    "memref.store": _store,
    "memref.atomic_rmw": _atomic_rmw,
    "memref.alloca": _alloca,
    "scf.yield": _terminator,
    "func.return": _terminator,
    "scf.condition": _condition,
}


# --- equality ------------------------------------------------------------------------------------


def same(f: Function, g: Function) -> bool:
    """True where ``f`` and ``g`` are the same function: operations, types, attributes, uses.

    Spans and the names of values do not count. Attributes are compared exactly (True is not 1,
    -0.0 is not 0.0), but any NaN is the same as any other.
    """
    return f.name == g.name and alike(f, g)


def alike(f: Function, g: Function) -> bool:
    """True where ``f`` and ``g`` are the same function but for their names."""
    return _exact(f.attrs) == _exact(g.attrs) and _same_block(f.body, g.body, {})


def _same_block(a: Block, b: Block, twin: dict[Value, Value]) -> bool:
    return (
        len(a.ops) == len(b.ops)
        and _same_values(a.args, b.args, twin)
        and all(_same_op(x, y, twin) for x, y in zip(a.ops, b.ops, strict=True))
    )


def _same_values(a: Sequence[Value], b: Sequence[Value], twin: dict[Value, Value]) -> bool:
    if [v.type for v in a] != [v.type for v in b]:
        return False
    twin.update(zip(a, b, strict=True))
    return True


def _same_op(a: Op, b: Op, twin: dict[Value, Value]) -> bool:
    return (
        a.name == b.name
        and len(a.regions) == len(b.regions)
        and [twin.get(v) for v in a.operands] == b.operands
        and _exact(a.attrs) == _exact(b.attrs)
        and all(_same_block(x, y, twin) for x, y in zip(a.regions, b.regions, strict=True))
        and _same_values(a.results, b.results, twin)
    )


def _exact(value: Any) -> Any:
    """A stand-in for ``value`` that is equal where the values are, type and bits included."""
    if isinstance(value, dict):
        return {k: _exact(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return ("tuple", *map(_exact, value))
    if isinstance(value, float):
        return ("float", "nan" if value != value else struct.pack("<d", value))
    return (type(value).__name__, value)
