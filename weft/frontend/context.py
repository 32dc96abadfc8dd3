"""What modules share that lower a device loop: one round's state, and who lowers what.

Each module that lowers nodes of the syntax tree says in ``EXPRESSIONS``, ``STATEMENTS`` and
``TARGETS`` which; they reach each other through these tables, and import what lies below them only.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from types import ModuleType
from typing import Any, NoReturn

from weft.errors import CompileError, KernelIndexError, KernelSyntaxError, KernelTypeError, Span
from weft.frontend import complexes, refused
from weft.frontend.desugar import RETURN_VALUE
from weft.frontend.kinds import (
    STORAGE,
    Complex,
    ComplexKind,
    Kind,
    Method,
    OpaqueKind,
    Operand,
    Part,
    Scalar,
    ScalarKind,
    Static,
    Tensor,
    Tup,
    TupKind,
    Unbound,
    Varying,
    Vec,
    VecKind,
    article,
    dtype_of,
    is_complex,
    join,
    kind_of,
    of_values,
    renewed,
)
from weft.frontend.room import Key, Rooms
from weft.frontend.scalars import Scalars
from weft.frontend.scope import Frame, Guard, TensorReached
from weft.frontend.specs import Spec
from weft.frontend.split import Region, RegionArg
from weft.ir import types as ir
from weft.ir.builder import Builder
from weft.ir.core import Block, Op, Value
from weft.ir.views import constant_of
from weft.lang import lists
from weft.source import FunctionSource
from weft.values import frozen, mutable

_ALLOWED = (
    "a device loop may hold assignments, if, for, while, break, continue, assert, print and calls"
)


class Again(Exception):
    """A round of lowering has found out what the next one needs from its start. ``kinds_stay``:
    beside the kinds of variables."""

    def __init__(self, kinds_stay: bool = False) -> None:
        super().__init__()
        self.kinds_stay = kinds_stay


@frozen
class Form:
    """What the home of a list is like (see ``moves.py``): of a fixed ``shape``, or with ``room``
    for so many items. ``dtype``: that of torch's arrays; "" of a list, whose items are joined."""

    shape: tuple[int, ...]
    room: int = 0
    dtype: str = ""
    pair: bool = False
    listed: bool = True


@frozen
class RowUse:
    """A computed row that is needed at ``here``; Python computes it at ``since``. ``loads``: what
    an element of it reads, where the loop around ``here`` goes over the elements."""

    since: tuple[Block, Op | None]
    here: tuple[Block, Op | None]
    memrefs: set[Value]
    name: str
    span: Span
    loads: list[Op] = field(default_factory=list)


@mutable
class Lowering:
    """One round of lowering one region."""

    region: Region
    specs: dict[str, Spec]
    source: FunctionSource
    kinds: dict[tuple[Any, ...], Kind]
    debug: bool
    widened: bool = False
    wanted: set[tuple[Any, ...]] = field(default_factory=set)  # read after loops: see loops.py
    discarded: ast.expr | None = None  # the statement that is lowered, if it is an expression
    inlined: int = 0  # calls so far
    where: Block | None = None  # the block that the statement which is lowered begins in
    statement: ast.stmt | None = None  # that statement
    pending: list[Operand] = field(default_factory=list)  # read by it, and not yet made use of
    begin: int = 0  # how many of these there were before the expression that is lowered
    printed: list[str] = field(default_factory=list)  # by ``static_print``
    stream: Any = None  # of random numbers (see ``draws.Stream``); None outside of iterations
    draws: dict[Op, tuple[Value, int]] = field(default_factory=dict)  # see ``draws.number``
    iteration: list[Value] = field(default_factory=list)  # the device loop's indices, in it
    guards: list[Guard] = field(default_factory=list)
    notes: dict[int, dict[str, str]] = field(default_factory=dict)
    sources: dict[Any, FunctionSource] = field(default_factory=dict)
    from_end: list[Any] = field(default_factory=list)  # see from_end.py
    checks: list[Op] = field(default_factory=list)  # the assertions that debug mode adds
    naturals: set[Value] = field(default_factory=set)  # loop indices that are 0 or more
    shared_rows: str = ""  # see rows.note_shared
    row_uses: list[RowUse] = field(default_factory=list)  # see row_order.py
    empty: set[tuple[Any, ...]] = field(default_factory=set)  # lists of which no item is known yet
    failed: CompileError | None = None  # a round that does not know them
    homes: dict[tuple[Any, ...], Form] = field(default_factory=dict)  # see moves.py; all rounds
    rooms: Rooms = field(default_factory=Rooms)  # of all rounds
    builder: Builder = field(init=False)
    scalars: Scalars = field(init=False)
    frame: Frame = field(init=False)
    operands: dict[str, Operand] = field(init=False)  # the region's arguments

    def reached(self, name: str, found: Static) -> Operand:
        """The argument that is ``found``, a tensor or a varying number; or ``TensorReached``."""
        if not found.key:  # guards hold the object that it was found in
            found = Static(found.value, ("object", id(found.value)), lambda _: found.value)
        for arg in self.region.args:
            if key_of(self, arg) == found.key and not _is_none(self.operands[arg.name]):
                return self.operands[arg.name]
        raise TensorReached(name, found)

    def counted(self, index: Value, lower: Value) -> None:
        """Notes where the index of a loop that counts up starts."""
        number = constant_of(lower)
        if lower in self.naturals if number is None else number >= 0:
            self.naturals.add(index)

    # --- names --------------------------------------------------------------------------------
    def span(self, node: ast.AST) -> Span:
        """Where ``node`` is; in a function of weft's own, the user's call of that."""
        return self.frame.called_at or self.frame.source.span(node)

    def widen(self, name: str, operand: Operand, span: Span, wraps: bool = False) -> Kind:
        """The kind of variable ``name`` after it has also been assigned ``operand``, with room for
        that, but where it ``wraps``."""
        key = (*self.frame.path, *self.frame.own.get(name, ()), name)
        return self.widen_at(key, operand, span, wraps)

    def widen_at(self, key: Key, operand: Operand, span: Span, wraps: bool = False) -> Kind:
        """The same of the variable of that path and name, perhaps of another function."""
        known, kind = self.kinds.get(key), self.rooms.given(key, kind_of(operand))
        if known is not None:  # one more object; where control flow joins, they are compared
            known = renewed(known, kind)
        if known is not None and known != kind:
            joined = self.rooms.given(key, self.join(known, kind, key[-1], span))
            self.widened |= joined != known and joined is not kind  # which holds from here on
            kind = joined
        if not wraps:
            self.rooms.note(key, kind, operand)
        self.kinds[key] = kind
        return kind

    def join(self, a: Kind, b: Kind, name: str, span: Span) -> Kind:
        """The kind of variable ``name``, to which one path assigns ``a`` and another ``b``."""
        own = name.partition(" ")[0]  # without what makes it a comprehension's
        whose = f"{self.frame.source.name}()" if name == RETURN_VALUE else own
        try:
            return join(a, b, whose, span)
        except KernelTypeError:
            for settle in TWO_KINDS:
                if (kind := settle(self, a, b, name)) is not None:
                    return kind
            _check_values(a, b, whose, span)
            raise

    def assign(self, name: str, operand: Operand, span: Span) -> None:
        if isinstance(operand, Tensor) and operand.rank == 0 and not operand.local:
            operand = self.read_number(operand, span)
        if self.frame.moves is not None and self.frame.moves.homes:
            self.frame.moves.check(name, operand, span)
        flag = name.startswith(".") and name != RETURN_VALUE  # known where no path is in doubt
        if (flag or self.frame.counts.get(name, 0) <= 1) and isinstance(operand, Static):
            self.frame.env[name] = operand
            return
        kind = self.widen(name, operand, span)
        operand = self.coerce(operand, kind, span)
        if isinstance(operand, Scalar) and not operand.value.name:
            operand.value.name = name
        self.frame.env[name] = operand
        self.notes.setdefault(span.line, {})[name] = str(kind)

    def coerce(self, x: Operand, kind: Kind, span: Span) -> Operand:
        """``x`` with its scalars converted to the dtypes that ``kind`` says."""
        if isinstance(kind, ScalarKind):
            if is_complex(x) and self.widened:  # this round is thrown away
                return self.scalars.constant(0, kind.dtype)
            return self.scalars.cast(x, kind.dtype, span)
        if isinstance(kind, ComplexKind):
            return complexes.cast(self.scalars, x, kind.dtype, span)
        if isinstance(kind, VecKind):
            assert isinstance(x, Vec)
            return Vec([self.scalars.cast(item, kind.dtype, span) for item in x.items], x.shape)
        if isinstance(kind, TupKind):
            assert isinstance(x, Tup)
            items = [self.coerce(i, k, span) for i, k in zip(x.items, kind.items, strict=True)]
            return Tup(items, kind.names, kind.struct, x.objects)
        return x

    # --- the syntax tree ------------------------------------------------------------------------
    def expression(self, node: ast.expr) -> Operand:
        handler = EXPRESSIONS.get(type(node))
        if handler is None:
            message, help = refused.EXPRESSIONS.get(
                type(node),
                (f"`{type(node).__name__}` cannot be compiled", "do it in the host part"),
            )
            raise KernelSyntaxError(message, self.span(node), help)
        saved = self.builder.span, self.begin
        self.builder.span, self.begin = self.span(node), (begin := len(self.pending))
        result = handler(self, node)
        self.builder.span, self.begin = saved
        del self.pending[begin:]
        if isinstance(result, Tup | Method):
            self.pending.append(result)
        return result

    def block(self, statements: Sequence[ast.stmt]) -> None:
        outer = self.where, self.statement, self.pending, self.begin
        for node in statements:
            self.where, self.statement = self.builder.block, node
            self.pending, self.begin = [], 0
            self.builder.span = self.span(node)
            handler = STATEMENTS.get(type(node))
            if handler is None:
                unknown = f"`{type(node).__name__}` cannot be compiled", _ALLOWED
                message, help = refused.STATEMENTS.get(type(node), unknown)
                raise KernelSyntaxError(message, self.span(node), help)
            try:
                handler(self, node)
            except CompileError as error:
                if not self.empty or self.frame.source.name in vars(lists):
                    raise
                self.failed = self.failed or error  # what follows may say what the lists hold
                if isinstance(node, ast.If | ast.While | ast.For):
                    self.block([*node.body, *node.orelse])
        self.where, self.statement, self.pending, self.begin = outer

    def bind(self, target: ast.expr, operand: Operand, span: Span) -> None:
        """Assigns ``operand`` to an assignment's or a loop's target."""
        handler = TARGETS.get(type(target))
        if isinstance(target, ast.Name):
            self.assign(target.id, operand, span)
        elif handler is not None:
            handler(self, target, operand, span)
        else:
            raise KernelSyntaxError(
                "a kernel cannot assign to this",
                self.span(target),
                help="assign to a name, an element, or a tuple of these",
            )

    # --- elements and operands ------------------------------------------------------------------
    def read_scalar(self, x: Operand, span: Span) -> Scalar | Static:
        """``x`` as a number: a 0-d tensor is read."""
        if isinstance(x, (Scalar, Static)) and dtype_of(x) is not None:
            return x
        if isinstance(x, Tensor) and x.rank == 0 and not x.pair:
            return self.load_real(x, [], span)
        if isinstance(x, Part):
            wrong_subscripts(x.tensor, len(x.indices), span)
        self.scalars.number(x, span)
        raise AssertionError("unreachable")

    def read_number(self, x: Operand, span: Span) -> Scalar | Static | Complex:
        """As ``read_scalar``, or a complex number."""
        if not is_complex(x):
            return self.read_scalar(x, span)
        return self.load_element(x, [], span) if isinstance(x, Tensor) else x  # type: ignore[return-value]

    def load_element(self, tensor: Tensor, indices: list[Value], span: Span) -> Scalar | Complex:
        if tensor.pair:
            parts = [self.load_real(tensor, [*indices, part], span) for part in self.parts()]
            return Complex(*parts)
        return self.load_real(tensor, indices, span)

    def parts(self) -> list[Value]:
        """The subscripts of a complex number's parts."""
        return [self.builder.constant(k, ir.index) for k in range(2)]

    def load_real(self, tensor: Tensor, indices: list[Value], span: Span) -> Scalar:
        with self.builder.about(span):
            value = self.builder.load(tensor.memref, indices)
        if value.scalar.is_storage:
            value = self.builder.op("arith.extf", value, type=ir.f32)
        elif tensor.dtype == "int":  # of a list
            value = self.builder.op("arith.index_cast", value, type=ir.index)
        return Scalar(value, of_values(tensor.dtype))

    def store_element(
        self, memref: Value, dtype: str, indices: list[Value], x: Operand, span: Span
    ) -> None:
        """Stores ``x``, converted, into an element. ``span`` is that of the element."""
        b = self.builder
        value = self.scalars.cast(x, dtype, span).value
        if dtype in STORAGE and STORAGE[dtype].is_storage:
            value = b.op("arith.truncf", value, type=STORAGE[dtype])
        elif dtype == "int":
            value = b.op("arith.index_cast", value, type=ir.i64)
        with b.about(span):
            b.store(value, memref, indices)

    def types(self, kind: Kind) -> list[ir.ScalarType]:
        if isinstance(kind, ScalarKind):
            return [self.scalars.type(kind.dtype)]
        if isinstance(kind, ComplexKind):
            return [self.scalars.type(kind.dtype)] * 2
        if isinstance(kind, VecKind):
            return [self.scalars.type(kind.dtype)] * math.prod(kind.shape)
        if isinstance(kind, TupKind):
            return [t for item in kind.items for t in self.types(item)]
        return []

    def rebuild(self, kind: Kind, values: Iterator[Value]) -> Operand:
        """The operand of ``kind`` that is made of ``values``: the inverse of ``flatten``."""
        if isinstance(kind, ScalarKind):
            return Scalar(next(values), kind.dtype)
        if isinstance(kind, ComplexKind):
            return Complex(Scalar(next(values), kind.dtype), Scalar(next(values), kind.dtype))
        if isinstance(kind, VecKind):
            return Vec([Scalar(next(values), kind.dtype) for _ in self.types(kind)], kind.shape)
        if isinstance(kind, TupKind):
            items = [self.rebuild(item, values) for item in kind.items]
            return Tup(items, kind.names, kind.struct, kind.objects)
        assert isinstance(kind, OpaqueKind)
        return kind.operand


def _is_none(x: object) -> bool:
    """Whether ``x`` is known to be None."""
    return isinstance(x, Static) and not isinstance(x, Varying) and x.value is None


def want(cx: Lowering, name: str) -> None:
    """Has the next round carry ``name``, which is read after a loop that is known to run."""
    held = cx.frame.env.get(name)
    if isinstance(held, Unbound) and held.wanted and held.wanted not in cx.wanted:
        cx.wanted.add(held.wanted)
        raise Again(kinds_stay=True)


def key_of(cx: Lowering, arg: RegionArg) -> tuple[Any, ...]:
    """Where an argument comes from: see ``Static.key``."""
    if arg.key:
        return arg.key
    root, *attributes = arg.name.split(".")
    if not arg.captured:
        return ("arg", root, *attributes)
    found = Frame(cx.source, ()).lookup(root, cx.builder.span, [])
    assert isinstance(found, Static)
    key, value = found.key, found.value
    for name in attributes:
        key = ("global", id(vars(value)), name) if isinstance(value, ModuleType) else (*key, name)
        value = getattr(value, name)
    return key


EXPRESSIONS: dict[type, Callable[[Lowering, Any], Operand]] = {}
STATEMENTS: dict[type, Callable[[Lowering, Any], None]] = {}
# What may be assigned to, names excepted: (cx, target, what is assigned, span).
TARGETS: dict[type, Callable[[Lowering, Any, Operand, Span], None]] = {}
# What may begin another round where a variable has two kinds, or knows its kind from here on:
# (cx, one, the other, its name).
TWO_KINDS: list[Callable[[Lowering, Kind, Kind, str], Kind | None]] = []


def _check_values(a: Kind, b: Kind, name: str, span: Span) -> None:
    """Says what to write for None that becomes a number, and for strings of run time."""
    held = [k.operand if isinstance(k, OpaqueKind) else k for k in (a, b)]
    values = [x.value if isinstance(x, Static) else x for x in held]
    if values.count(None) == 1 and name and not name.endswith("()"):
        other = article(b if values[0] is None else a)
        raise KernelTypeError(
            f"`{name}` is None here and {other} elsewhere", span,
            help="begin with a number that stands for none (-1, math.inf), and test for that",
        )  # fmt: skip
    if all(isinstance(value, str) for value in values):
        raise KernelTypeError(
            f"{f'`{name}`' if name else 'this'} may be one string or another", span,
            help="strings are known when the kernel is compiled: use a number for each",
        )  # fmt: skip


def wrong_subscripts(tensor: Tensor, given: int, span: Span) -> NoReturn:
    what, rank = f"`{tensor.name}`" if not tensor.local else tensor.name, tensor.rank
    names = ", ".join("ijklmnopqr"[:rank]) if rank else "None"
    raise KernelIndexError(
        f"{what} has {rank} dimension{'' if rank == 1 else 's'}, but {given} "
        f"subscript{' is' if given == 1 else 's are'} given", span,
        help=f"write {tensor.name if not tensor.local else 'a'}[{names}]",
    )  # fmt: skip
