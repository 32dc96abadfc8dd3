"""Reading the textual form of the IR back: ``parse_function``. See ``text.py`` for the printer."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from weft.errors import KernelSyntaxError
from weft.ir import float8
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import SCALARS, MemRefType, ScalarType, Type, i1, index
from weft.source import Span

# Operations that MLIR does not have, or not in this form, under the name that they are shown by:
# MLIR's tools accept an unknown operation only in a dialect that is not theirs.
TEXT_NAMES = {
    "memref.dim": "weft.dim", "memref.atomic_cas": "weft.atomic_cas",
    "memref.flatten": "weft.flatten",
} | {name: name.replace("gpu.", "weft.") for name in OPS if name.startswith("gpu.")}  # fmt: skip
# memref.atomic_rmw spells these four combiners in its own way.
ATOMIC_NAMES = {"maxsi": "maxs", "minsi": "mins", "maxui": "maxu", "minui": "minu"}
CASTS = tuple(
    f"arith.{n}"
    for n in (
        "extsi", "extui", "trunci", "index_cast", "sitofp", "uitofp", "fptosi", "fptoui",
        "extf", "truncf", "bitcast",
    )
)  # fmt: skip

_FULL_NAMES = {short: name for name, short in TEXT_NAMES.items()}
_FULL_KINDS = {short: kind for kind, short in ATOMIC_NAMES.items()}

_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\r\n]+|//[^\n]*)
  | (?P<value>%[A-Za-z0-9_.$\-]+)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<memref>memref<[^<>]*(?:<[^<>]*>)?>)
  | (?P<number>-?0x[0-9A-Fa-f]+|-?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?)?)
  | (?P<word>[A-Za-z_][A-Za-z0-9_.$]*)
  | (?P<mark>->|\^bb0|[@(){}\[\]=,:])
    """,
    re.VERBOSE,
)


def parse_function(text: str) -> Function:
    """The function that ``text``, one ``func.func``, spells. Operations get no spans.

    Raises ``KernelSyntaxError`` with the line, and carets, where the text is not in the grammar.
    Types and scopes are checked as far as reading needs them; ``verify`` checks the rest.
    """
    return _Parser(text).function()


class _Tokens:
    """A place in a list of (kind, text, position)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        self.at = 0
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                self.tokens.append(("bad", text[position], position))
                self.at = len(self.tokens) - 1
                self.fail("an unknown character")
            if match.lastgroup != "skip":
                self.tokens.append((str(match.lastgroup), match.group(), position))
            position = match.end()
        self.tokens.append(("end", "", len(text)))

    def fail(self, message: str) -> NoReturn:
        _, token, position = self.tokens[self.at]
        line = self.text.count("\n", 0, position) + 1
        begin = self.text.rfind("\n", 0, position) + 1
        column = position - begin
        source = self.text[begin:].partition("\n")[0]
        raise KernelSyntaxError(
            message, Span("<ir>", line, column, line, column + len(token), source)
        )

    def peek(self, text: str) -> bool:
        return self.tokens[self.at][1] == text and self.tokens[self.at][0] != "string"

    def accept(self, text: str) -> bool:
        if self.peek(text):
            self.at += 1
            return True
        return False

    def expect(self, *texts: str) -> None:
        for text in texts:
            if not self.accept(text):
                self.fail(f"expected `{text}`")

    def take(self, kind: str, what: str) -> str:
        if self.tokens[self.at][0] != kind:
            self.fail(f"expected {what}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def list(self, one: Callable[[], Any], close: str) -> list[Any]:
        """``one, one, ...`` up to ``close``, which is read too."""
        items: list[Any] = []
        if self.accept(close):
            return items
        while True:
            items.append(one())
            if self.accept(close):
                return items
            self.expect(",")

    def some(self, one: Callable[[], Any]) -> list[Any]:
        """``one, one, ...``, at least one."""
        items = [one()]
        while self.accept(","):
            items.append(one())
        return items

    def string(self) -> str:
        raw = self.take("string", "a string")[1:-1].encode("utf-8")

        def plain(match: re.Match[bytes]) -> bytes:
            text = match.group(1)
            return _ESCAPES[text] if text in _ESCAPES else bytes([int(text, 16)])

        return _ESCAPE.sub(plain, raw).decode("utf-8", "surrogatepass")


class _Parser(_Tokens):
    """Recursive descent. ``scope`` holds visible values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.scope: dict[str, Value] = {}
        self.kinds: tuple[str, ...] = ()  # combiners of the scf.reduce that was read last

    # --- types, values, attributes ---

    def type(self) -> Type:
        kind, token, _ = self.tokens[self.at]
        if kind == "memref":
            self.at += 1
            return self.memref_type(token)
        if token not in SCALARS:
            self.fail("expected a type")
        self.at += 1
        return SCALARS[token]

    def scalar_type(self) -> ScalarType:
        type = self.type()
        if not isinstance(type, ScalarType):
            self.at -= 1
            self.fail("expected a scalar type")
        return type

    def memref_type(self, token: str) -> MemRefType:
        body, _, rest = token[len("memref<") : -1].partition(",")
        *dims, element = [part.strip() for part in body.split("x")] if "x" in body else [body]
        if element == "" and dims and dims[-1] == "inde":  # "index" was split at its x
            dims, element = dims[:-1], "index"
        known = all(d.isdigit() for d in dims)
        if element not in SCALARS or not (known or all(d == "?" for d in dims)):
            self.at -= 1
            self.fail("not a memref type: sizes are all `?` or all numbers")
        layout = "contiguous"
        if "strided" in rest:
            layout = "unit" if re.search(r"\b1\s*\]", rest) else "strided"
        shape = tuple(map(int, dims)) if dims and known else None
        _, quote, space = rest.rstrip('"').partition('"')
        return MemRefType(SCALARS[element], len(dims), layout, shape, space if quote else "")

    def types(self) -> list[Type]:
        """``type`` or ``(type, ...)``."""
        return self.list(self.type, ")") if self.accept("(") else [self.type()]

    def use(self) -> Value:
        name = self.take("value", "a value, `%name`")
        if name not in self.scope:
            self.at -= 1
            self.fail(f"`{name}` is not defined here")
        return self.scope[name]

    def new_name(self) -> str:
        return self.take("value", "a new name, `%name`")

    def bind(self, name: str, value: Value) -> None:
        if name in self.scope:
            self.at -= 1
            self.fail(f"`{name}` is defined twice")
        value.name = "" if name[1:].isdigit() else name[1:]
        self.scope[name] = value

    def typed_arg(self) -> tuple[str, Type]:
        name = self.new_name()
        self.expect(":")
        return name, self.type()

    def attribute(self) -> Any:
        kind, token, _ = self.tokens[self.at]
        if kind == "string":
            return self.string()
        if self.accept("["):
            return tuple(self.list(self.attribute, "]"))
        if kind == "number":
            self.at += 1
            if token.startswith("0x"):
                self.expect(":")
                return _number(token, self.scalar_type())
            return float(token) if "." in token else int(token)
        if token not in ("true", "false", "unit"):
            self.fail("expected an attribute")
        self.at += 1
        return None if token == "unit" else token == "true"

    def attributes(self) -> dict[str, Any]:
        """``{name = value, ...}``, or nothing."""
        if not self.accept("{"):
            return {}

        def one() -> tuple[str, Any]:
            name = self.take("word", "an attribute's name")
            self.expect("=")
            return name, self.attribute()

        return dict(self.list(one, "}"))

    # --- structure ---

    def function(self) -> Function:
        self.expect("func.func", "@")
        quoted = self.tokens[self.at][0] == "string"
        name = self.string() if quoted else self.take("word", "the function's name")
        self.expect("(")
        args = self.list(self.typed_arg, ")")
        attrs = self.attributes() if self.accept("attributes") else {}
        function = Function(name, [t for _, t in args], attrs=attrs)
        for (hint, _), value in zip(args, function.args, strict=True):
            self.bind(hint, value)
        self.expect("{")
        self.operations(function.body)
        if self.tokens[self.at][0] != "end":
            self.fail("expected the end of the text")
        return function

    def region(self, block: Block, names: list[str]) -> None:
        """The operations up to the closing brace, with the block's arguments under ``names``."""
        outside = dict(self.scope)
        if len(names) != len(block.args):
            self.fail(f"expected {len(block.args)} block arguments")
        for name, value in zip(names, block.args, strict=True):
            self.bind(name, value)
        self.operations(block)
        self.scope = outside

    def operations(self, block: Block) -> None:
        while not self.accept("}"):
            block.ops.append(self.operation())

    def operation(self) -> Op:
        names: list[str] = []
        if self.tokens[self.at][0] == "value":
            names = self.some(self.new_name)
            self.expect("=")
        start = self.at
        kind, token, _ = self.tokens[self.at]
        if kind == "string":
            op = self.generic(self.string())
        elif token not in OPS or _FORMS.get(token) is None:
            self.fail("expected an operation")
        else:
            self.at += 1
            op = _FORMS[token](self, token)
        if len(names) != len(op.results):
            self.at = start
            self.fail(f"{op.name} has {len(op.results)} results, but {len(names)} names are given")
        for name, value in zip(names, op.results, strict=True):
            self.bind(name, value)
        return op

    def generic(self, name: str) -> Op:
        name = _FULL_NAMES.get(name, name)
        if name not in OPS:
            self.at -= 1
            self.fail(f'"{name}" is not an operation')
        self.expect("(")
        operands = self.list(self.use, ")")
        attrs = self.attributes()
        self.expect(":", "(")
        self.of_type(operands, self.list(self.type, ")"))
        self.expect("->")
        return Op(name, operands, self.types(), attrs)

    def of_type(self, values: list[Value], types: list[Type]) -> None:
        # As text: a tensor and a local array of rank 0 are both spelled memref<f32>.
        if [str(v.type) for v in values] != [str(t) for t in types]:
            self.at -= 1
            self.fail("these are not the types of the operands")

    def colon_type_of(self, value: Value) -> Type:
        self.expect(":")
        self.of_type([value], [self.type()])
        return value.type

    def subscripted(self) -> list[Value]:
        """``%m[%i, ...]``: the memref and its subscripts."""
        memref = self.use()
        if not isinstance(memref.type, MemRefType):
            self.at -= 1
            self.fail("this is not a memref")
        self.expect("[")
        return [memref, *self.list(self.use, "]")]


_ESCAPE = re.compile(rb'\\([0-9A-Fa-f]{2}|["\\nt])')
_ESCAPES = {b'"': b'"', b"\\": b"\\", b"n": b"\n", b"t": b"\t"}
_FLOAT_BITS = {"f16": ("<H", "<e"), "f32": ("<I", "<f"), "f64": ("<Q", "<d")}


def _number(token: str, type: ScalarType) -> int | float:
    if not type.is_float:
        return int(token, 0)
    if not token.startswith("0x"):
        return float(token)
    bits = int(token, 16)
    if type.name == "bf16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    if type.bits == 8:
        return float8.decode(bits, type)
    pack, unpack = _FLOAT_BITS[type.name]
    return struct.unpack(unpack, struct.pack(pack, bits))[0]


# --- one rule for each custom form: the tokens after the operation's name -----------------------


def _constant(p: _Parser, name: str) -> Op:
    more = p.attributes()
    if p.peek("true") or p.peek("false"):
        value: bool | int | float = p.peek("true")
        p.at += 1
        return Op(name, [], [i1], {"value": value, **more})
    token = p.take("number", "a number, `true` or `false`")
    p.expect(":")
    type = p.scalar_type()
    if type.is_integer and "." in token:
        p.fail("a fraction of an integer type")
    return Op(name, [], [type], {"value": _number(token, type), **more})


def _plain(p: _Parser, name: str) -> Op:
    operands = p.some(p.use)
    attrs = p.attributes()
    type = p.colon_type_of(operands[-1])
    return Op(name, operands, [i1 if OPS[name].results == "i1" else type], attrs)


def _compare(p: _Parser, name: str) -> Op:
    predicate = p.take("word", "a predicate")
    p.expect(",")
    op = _plain(p, name)
    op.attrs = {"predicate": predicate, **op.attrs}
    return op


def _cast(p: _Parser, name: str) -> Op:
    value = p.use()
    attrs = p.attributes()
    p.colon_type_of(value)
    p.expect("to")
    return Op(name, [value], [p.type()], attrs)


def _load(p: _Parser, name: str) -> Op:
    operands = p.subscripted()
    attrs = p.attributes()
    type = p.colon_type_of(operands[0])
    assert isinstance(type, MemRefType)
    return Op(name, operands, [type.element], attrs)


def _store(p: _Parser, name: str) -> Op:
    value = p.use()
    p.expect(",")
    operands = p.subscripted()
    attrs = p.attributes()
    p.colon_type_of(operands[0])
    return Op(name, [value, *operands], [], attrs)


def _atomic_rmw(p: _Parser, name: str) -> Op:
    kind = p.take("word", "a combiner")
    value = p.use()
    p.expect(",")
    operands = p.subscripted()
    attrs = {"kind": _FULL_KINDS.get(kind, kind), "atomic": True, **p.attributes()}
    p.expect(":", "(")
    p.of_type([value, operands[0]], p.list(p.type, ")"))
    p.expect("->")
    return Op(name, [value, *operands], [p.type()], attrs)


def _alloca(p: _Parser, name: str) -> Op:
    p.expect("(")
    sizes = p.list(p.use, ")")
    attrs = p.attributes()
    p.expect(":")
    type = p.type()
    if isinstance(type, MemRefType) and type.rank == 0:
        type = MemRefType(type.element, 0, type.layout, (), type.space)
    return Op(name, sizes, [type], attrs)


def _terminator(p: _Parser, name: str) -> Op:
    attrs = p.attributes()
    return Op(name, _typed_uses(p), [], attrs)


def _typed_uses(p: _Parser) -> list[Value]:
    """``%a, %b : type, type``, or nothing."""
    # A line of results, `%a = ...`, cannot follow: a terminator is the last of its block.
    if p.tokens[p.at][0] != "value":
        return []
    operands = p.some(p.use)
    p.expect(":")
    p.of_type(operands, p.some(p.type))
    return operands


def _condition(p: _Parser, name: str) -> Op:
    p.expect("(")
    go_on = p.use()
    p.expect(")")
    attrs = p.attributes()
    return Op(name, [go_on, *_typed_uses(p)], [], attrs)


def _reduce(p: _Parser, name: str) -> Op:
    p.kinds = ()
    if not p.accept("("):
        return Op(name, [], [], p.attributes())
    operands = _typed_uses(p)
    p.expect(")")
    kinds: list[str] = []
    for k, value in enumerate(operands):
        if k:
            p.expect(",")
        kinds.append(_combiner(p, value.type))
    p.kinds = tuple(kinds)
    return Op(name, operands, [], p.attributes())


def _combiner(p: _Parser, type: Type) -> str:
    """``{ ^bb0(%a$: T, %b$: T): %c$ = arith.KIND %a$, %b$ : T  scf.reduce.return %c$ : T }``."""
    p.expect("{", "^bb0", "(")
    args = p.list(p.typed_arg, ")")
    p.expect(":")
    result = p.new_name()
    p.expect("=")
    word = p.take("word", "an operation of arith")
    operands = p.some(p.new_name)
    p.expect(":")
    p.type()
    p.expect("scf.reduce.return")
    returned = p.new_name()
    p.expect(":")
    p.type()
    fits = [t for _, t in args] == [type, type] and returned == result
    if not fits or operands != [n for n, _ in args]:
        p.at -= 1
        p.fail("a combiner is one operation on its two arguments, in order")
    p.expect("}")
    return word.removeprefix("arith.")


def _assignments(p: _Parser) -> tuple[list[str], list[Value]]:
    """``(%a = %init, ...)``."""

    def one() -> tuple[str, Value]:
        name = p.new_name()
        p.expect("=")
        return name, p.use()

    p.expect("(")
    pairs = p.list(one, ")")
    return [name for name, _ in pairs], [value for _, value in pairs]


def _for(p: _Parser, name: str) -> Op:
    variable = p.new_name()
    operands: list[Value] = []
    for mark in ("=", "to", "step"):
        p.expect(mark)
        operands.append(p.use())
    names: list[str] = []
    types: list[Type] = []
    if p.accept("iter_args"):
        names, inits = _assignments(p)
        operands += inits
        p.expect("->")
        types = p.types()
    kind = p.type() if p.accept(":") else index
    p.expect("{")
    block = Block([kind, *types])
    p.region(block, [variable, *names])
    return Op(name, operands, types, p.attributes(), [block])


def _if(p: _Parser, name: str) -> Op:
    condition = p.use()
    types = p.types() if p.accept("->") else []
    blocks = [Block(), Block()]
    p.expect("{")
    p.region(blocks[0], [])
    if p.accept("else"):
        p.expect("{")
        p.region(blocks[1], [])
    else:
        blocks[1].ops.append(Op("scf.yield", []))
    return Op(name, [condition], types, p.attributes(), blocks)


def _while(p: _Parser, name: str) -> Op:
    names, operands = _assignments(p) if p.peek("(") else ([], [])
    p.expect(":")
    given = p.types()
    p.of_type(operands, given)
    p.expect("->")
    types = p.types()
    attrs = p.attributes() if p.accept("attributes") else {}
    blocks = [Block(given), Block(types)]
    p.expect("{")
    p.region(blocks[0], names)
    p.expect("do", "{")
    args: list[tuple[str, Type]] = []
    if p.accept("^bb0"):
        p.expect("(")
        args = p.list(p.typed_arg, ")")
        p.expect(":")
    p.region(blocks[1], [n for n, _ in args])
    return Op(name, operands, types, attrs, blocks)


def _parallel(p: _Parser, name: str) -> Op:
    p.expect("(")
    names = p.list(p.new_name, ")")
    operands: list[Value] = []
    for mark in ("=", "to", "step"):
        p.expect(mark, "(")
        operands += p.list(p.use, ")")
    if len(operands) != 3 * len(names):
        p.fail(f"expected {len(names)} lower bounds, upper bounds and steps")
    if p.accept("init"):
        p.expect("(")
        operands += p.list(p.use, ")")
    types = p.types() if p.accept("->") else []
    p.expect("{")
    block = Block([v.type for v in operands[: len(names)]])
    p.kinds = ()
    p.region(block, names)
    kinds, p.kinds = p.kinds, ()
    attrs = {"dims": len(names), "kinds": kinds, **p.attributes()}
    return Op(name, operands, types, attrs, [block])


_FORMS: dict[str, Callable[[_Parser, str], Op]] = {
    **{n: _plain for n in OPS if n.startswith(("arith.", "math."))},
    "arith.constant": _constant,
    "arith.cmpi": _compare,
    "arith.cmpf": _compare,
    **dict.fromkeys(CASTS, _cast),
    "memref.load": _load,
    "memref.store": _store,
    "memref.atomic_rmw": _atomic_rmw,
    "memref.alloca": _alloca,
    "scf.parallel": _parallel,
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "scf.yield": _terminator,
    "scf.condition": _condition,
    "scf.reduce": _reduce,
    "func.return": _terminator,
}
