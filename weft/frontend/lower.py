"""A device loop of a kernel, from Python's syntax tree to IR: statements.

The types of variables are inferred by lowering: the kind of a name is the join of all that is
assigned to it, in any order. When an assignment widens the kind of a name that was already used,
the whole loop is lowered once more with what is now known; kinds only widen, so this ends, and most
loops need one or two rounds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from weft.errors import KernelSyntaxError, KernelTypeError
from weft.frontend import aggregates, casts, expressions, loops, reductions, refused, statements
from weft.frontend.advice import advise
from weft.frontend.config import block_dim
from weft.frontend.desugar import RETURN_VALUE, desugar_body, leaving
from weft.frontend.kinds import (
    STORAGE,
    Box,
    Kind,
    OpaqueKind,
    Operand,
    Scalar,
    ScalarKind,
    Static,
    Tensor,
    Tup,
    TupKind,
    Varying,
    Vec,
    VecKind,
    describe,
    dtype_of,
    join,
    kind_of,
)
from weft.frontend.scalars import Scalars
from weft.frontend.scope import Frame, Guard, TensorReached, assigned
from weft.frontend.specs import CAPTURED_BITS, ConstSpec, ScalarSpec, Spec, TensorSpec, TupleSpec
from weft.frontend.split import Region, RegionArg
from weft.ir import types as ir
from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.lang.elements import Elementwise
from weft.source import FunctionSource, Span

MOST_ROUNDS = 20
MOST_INLINED = 64  # depth of inlined calls: more is taken for recursion
MOST_UNROLLED_STORES = 64


@dataclass(slots=True)
class Lowered:
    """What the frontend makes of one region."""

    function: Function
    results: list[tuple[str, str]]  # (name, tensor dtype) of what the loop reduces into
    guards: list[Guard]
    typed_source: str


def lower(
    region: Region, specs: dict[str, Spec], source: FunctionSource, *, debug: bool = False
) -> Lowered:
    """Lowers ``region`` for arguments as ``specs`` says (by name). Raises ``CompileError``s."""
    kinds: dict[tuple[Any, ...], Kind] = {}
    sources: dict[Any, FunctionSource] = {}  # what rounds note at nodes stays
    for _ in range(MOST_ROUNDS):
        kinds = {key: kind for key, kind in kinds.items() if not isinstance(kind, OpaqueKind)}
        lowering = Lowering(region, specs, source, kinds, debug, sources=sources)
        lowered = lowering.run()
        if not lowering.widened:
            lowering.advise()
            return lowered
    raise AssertionError("types did not settle")


@dataclass(slots=True)
class Lowering:
    """One round of lowering one region."""

    region: Region
    specs: dict[str, Spec]
    source: FunctionSource
    kinds: dict[tuple[Any, ...], Kind]
    debug: bool
    widened: bool = False
    discarded: ast.expr | None = None  # the statement that is lowered, if it is an expression
    guards: list[Guard] = field(default_factory=list)
    notes: dict[int, dict[str, str]] = field(default_factory=dict)
    sources: dict[Any, FunctionSource] = field(default_factory=dict)
    builder: Builder = field(init=False)
    scalars: Scalars = field(init=False)
    frame: Frame = field(init=False)
    operands: dict[str, Operand] = field(init=False)  # the region's arguments

    # --- the region ---------------------------------------------------------------------------
    def run(self) -> Lowered:
        own_float = ir.f64 if any(_has_f64(s) for s in self.specs.values()) else ir.f32
        types, names = [], []
        for name, spec in self.specs.items():
            for t in _ir_types(spec):
                types.append(t)
                names.append(name)
        node, span = self.region.node, self.source.span(self.region.node)
        attrs: dict[str, Any] = {"kernel": self.source.name, "float": own_float.name}
        function = Function(f"{self.source.name}_{self.region.index}", types, names, attrs, span)
        self.builder = Builder(function.body, span)
        self.scalars = Scalars(self.builder, own_float)
        self.frame = Frame(self.source, ())
        values = iter(function.args)
        for k, (name, spec) in enumerate(self.specs.items()):
            operand = self._argument(name, spec, values)
            if isinstance(spec, ScalarSpec) and spec.captured:
                assert isinstance(operand, Scalar)
                place = frozenset([self.region.args[k].place])
                operand = Varying(operand.value, spec.kind, place, CAPTURED_BITS)
            self.frame.arguments[name] = operand
            if isinstance(operand, Static):
                operand.key = self._key(self.region.args[k])
                operand.read = lambda args, k=k: args[k]
        self.operands = dict(self.frame.arguments)
        self._device_attributes()
        results = self._parallel(node, function)
        self.builder.do("func.return")
        guards = list({guard.place: guard for guard in self.guards}.values())
        return Lowered(function, results, guards, self._typed_source())

    def _argument(self, name: str, spec: Spec, values: Iterator[Value]) -> Operand:
        if isinstance(spec, ConstSpec):
            if isinstance(spec.value, (tuple, list)):
                return _static_tuple(spec.value)
            if isinstance(spec.value, Elementwise):
                return expressions.vector(spec.value)
            return Static(spec.value)
        if isinstance(spec, TupleSpec):
            return Tup([self._argument(name, item, values) for item in spec.items])
        value = next(values)
        if isinstance(spec, TensorSpec):
            return Tensor(value, spec.dtype, name, shape=spec.shape, element=spec.element,
                          backing=spec.backing, clamped=spec.clamped)  # fmt: skip
        assert isinstance(spec, ScalarSpec)
        if spec.dtype is not None:
            return Scalar(value, spec.dtype)
        if spec.kind == "float" and not spec.captured:
            return self.scalars.cast(Scalar(value, "f64"), "float", self.builder.span)
        return Scalar(value, spec.kind)

    def _key(self, arg: RegionArg) -> tuple[Any, ...]:
        """Where an argument comes from: see ``Static.key``."""
        if arg.key:
            return arg.key
        root, *attributes = arg.name.split(".")
        if not arg.captured:
            return ("arg", root, *attributes)
        found = Frame(self.source, ()).lookup(root, self.builder.span, [])
        assert isinstance(found, Static)
        key, value = found.key, found.value
        for name in attributes:
            key = (
                ("global", id(vars(value)), name) if isinstance(value, ModuleType) else (*key, name)
            )
            value = getattr(value, name)
        return key

    def reached(self, name: str, found: Static) -> Operand:
        """The argument that is the tensor, or varying number, ``found``. Raises ``TensorReached``
        if there is none."""
        if not found.key:  # guards hold the object that it was found in
            found = Static(found.value, ("object", id(found.value)), lambda _: found.value)
        for arg in self.region.args:
            if self._key(arg) == found.key:
                return self.operands[arg.name]
        raise TensorReached(name, found)

    def _device_attributes(self) -> None:
        """``x.shape``, evaluated by the host, is better known as the dimensions of ``x`` itself."""
        for name in list(self.frame.arguments):
            root, _, attribute = name.rpartition(".")
            tensor = self.frame.arguments.get(root)
            if attribute and isinstance(tensor, Tensor) and tensor.backing:
                del self.frame.arguments[name]  # as it is when it is read
            elif attribute and isinstance(tensor, Tensor):
                self.frame.arguments[name] = expressions.attribute(
                    self, tensor, attribute, self.builder.span
                )

    def _parallel(self, node: ast.For, function: Function) -> list[tuple[str, str]]:
        b, names = self.builder, list(self.region.results)
        for jump in (j for statement in node.body for j in leaving(statement)):
            message, help = refused.STATEMENTS[type(jump)]
            raise KernelSyntaxError(message, self.span(jump), help)
        body = reductions.rewrite(node.body, names)
        combiners = {n: reductions.combiner(body, n, self.source) for n in names}
        body = desugar_body(body)
        self.frame.counts = assigned(
            [*body, ast.copy_location(ast.For(node.target, node.iter, [], []), node)]
        )
        iterable = self.expression(node.iter)
        lowers, uppers, steps, bind = loops.space(self, node, iterable, ordered=False)
        # Lowering the body finds the types of the reduced names; the loop is built around it after.
        inits: list[Value] = []
        kinds: list[str] = []
        dtypes: list[str] = []
        for name in names:
            before = self.frame.lookup(name, self.span(node), self.guards)
            if dtype_of(before) is None and not (isinstance(before, Tensor) and before.rank == 0):
                raise KernelTypeError(
                    f"`{name}` is {describe(before)}, and a parallel loop accumulates into scalars",
                    self.span(node),
                    help="use one scalar for each element, or accumulate into a tensor",
                )
            initial = expressions.read_scalar(self, before, self.span(node))
            dtype = self.widen(name, initial, self.span(node)).dtype  # type: ignore[union-attr]
            dtypes.append(dtype)
            inits.append(self.scalars.cast(initial, dtype, self.span(node)).value)
            kinds.append(reductions.kind(combiners[name], dtype))
        if block := block_dim(self, len(lowers)):
            function.attrs["block_dim"] = tuple(block)
        loop = b.parallel(lowers, uppers, steps, inits, kinds)
        if self.debug and isinstance(iterable, Box) and iterable.grouped:
            loop.attrs["grouped"] = True  # for messages
        block = loop.body
        for value, name in zip(
            block.args, loops.target_names(node.target, len(block.args)), strict=True
        ):
            value.name = name
        with b.at(block):
            for name, kind, dtype in zip(names, kinds, dtypes, strict=True):
                identity = b.constant(
                    reductions.identity(kind, self.scalars.type(dtype)), self.scalars.type(dtype)
                )
                self.frame.env[name] = Scalar(identity, dtype)
            self.bind(node.target, bind([Scalar(v, "int") for v in block.args]), self.span(node))
            self.block(body)
            finals = [self.scalars.cast(self.frame.env[n], d, self.span(node)).value
                      for n, d in zip(names, dtypes, strict=True)]  # fmt: skip
            b.do("scf.reduce", *finals)
        results = []
        for name, dtype, value in zip(names, dtypes, loop.results, strict=True):
            storage = {"int": "i64", "float": b_float(self.scalars)}.get(dtype, dtype)
            out = Value(ir.MemRefType(STORAGE[storage], 0), name, function.body)
            function.body.args.append(out)
            self.store_element(out, storage, [], Scalar(value, dtype), self.span(node))
            results.append((name, storage))
        return results

    # --- names --------------------------------------------------------------------------------
    def span(self, node: ast.AST) -> Span:
        return self.frame.source.span(node)

    def widen(self, name: str, operand: Operand, span: Span) -> Kind:
        """The kind of variable ``name`` after it has also been assigned ``operand``."""
        key = (*self.frame.path, name)
        known = self.kinds.get(key)
        kind = kind_of(operand)
        if isinstance(known, OpaqueKind) and isinstance(kind, OpaqueKind):
            known = None  # one more object; where control flow joins, they are compared
        if known is not None and known != kind:
            kind = self.join(known, kind, name, span)
            self.widened |= kind != known
        self.kinds[key] = kind
        return kind

    def join(self, a: Kind, b: Kind, name: str, span: Span) -> Kind:
        """The kind of variable ``name``, to which one path assigns ``a`` and another ``b``."""
        return join(a, b, f"{self.frame.source.name}()" if name == RETURN_VALUE else name, span)

    def assign(self, name: str, operand: Operand, span: Span) -> None:
        if isinstance(operand, Tensor) and operand.rank == 0 and not operand.local:
            operand = expressions.read_scalar(self, operand, span)
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
            return self.scalars.cast(x, kind.dtype, span)
        if isinstance(kind, VecKind):
            assert isinstance(x, Vec)
            return Vec([self.scalars.cast(item, kind.dtype, span) for item in x.items], x.shape)
        if isinstance(kind, TupKind):
            assert isinstance(x, Tup)
            return Tup([self.coerce(i, k, span) for i, k in zip(x.items, kind.items, strict=True)])
        return x

    def bind(self, target: ast.expr, operand: Operand, span: Span) -> None:
        """Assigns ``operand`` to an assignment's or a loop's target."""
        if isinstance(target, ast.Name):
            self.assign(target.id, operand, span)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._bind_items(target, operand, span)
        elif isinstance(target, ast.Subscript):
            statements.store(self, target, operand, span)
        elif isinstance(target, ast.Attribute):
            aggregates.set_attribute(self, target, operand, span)
        else:
            raise KernelSyntaxError(
                "a kernel cannot assign to this",
                self.span(target),
                help="assign to a name, an element, or a tuple of these",
            )

    def _bind_items(self, target: ast.Tuple | ast.List, operand: Operand, span: Span) -> None:
        """``a, *b = operand``: a name with a star takes as many items as are left, as a tuple."""
        stars = [k for k, e in enumerate(target.elts) if isinstance(e, ast.Starred)]
        if not stars:
            items = self.unpack(operand, len(target.elts), span)
            for element, item in zip(target.elts, items, strict=True):
                self.bind(element, item, span)
            return
        known = casts.static_items(operand)
        after = len(target.elts) - stars[0] - 1
        if known is None or len(known) < len(target.elts) - 1:
            what = describe(operand) if known is None else f"{len(known)} values"
            raise KernelTypeError(
                f"{what} cannot be unpacked into {len(target.elts) - 1} names and a starred one",
                span, help="unpack a tuple or a vector with a value for each name",
            )  # fmt: skip
        middle = known[stars[0] : len(known) - after]
        given = [*known[: stars[0]], Tup(middle), *known[len(known) - after :]]
        for element, item in zip(target.elts, given, strict=True):
            self.bind(element.value if isinstance(element, ast.Starred) else element, item, span)

    def unpack(self, x: Operand, count: int, span: Span) -> list[Operand]:
        if isinstance(x, Static) and isinstance(x.value, (tuple, list)):
            x = _static_tuple(x.value)
        items: list[Operand] | None = None
        if isinstance(x, Tup):
            items = list(x.items)
        elif isinstance(x, Vec):
            items = list(aggregates.rows(x))
        if items is None:
            raise KernelTypeError(f"{describe(x)} cannot be unpacked into {count} names", span,
                                  help="unpack a tuple or a vector of that length")  # fmt: skip
        if len(items) != count:
            raise KernelTypeError(
                f"{len(items)} values cannot be unpacked into {count} names",
                span,
                help="write as many names as there are values",
            )
        return items

    # --- statements ---------------------------------------------------------------------------
    def expression(self, node: ast.expr) -> Operand:
        return expressions.expression(self, node)

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for node in statements:
            self.builder.span = self.span(node)
            handler = STATEMENTS.get(type(node))
            if handler is None:
                message, help = refused.STATEMENTS.get(
                    type(node), (f"`{type(node).__name__}` cannot be compiled", _ALLOWED)
                )
                raise KernelSyntaxError(message, self.span(node), help)
            handler(self, node)

    def store_element(
        self, memref: Value, dtype: str, indices: list[Value], x: Operand, span: Span
    ) -> None:
        """Stores ``x``, converted, into an element. ``span`` is that of the element."""
        b = self.builder
        value = self.scalars.cast(x, dtype, span).value
        if dtype in ("f16", "bf16"):
            value = b.op("arith.truncf", value, type=STORAGE[dtype])
        with b.about(span):
            b.store(value, memref, indices)

    def types(self, kind: Kind) -> list[ir.ScalarType]:
        if isinstance(kind, ScalarKind):
            return [self.scalars.type(kind.dtype)]
        if isinstance(kind, VecKind):
            count = kind.shape[0] * (kind.shape[1] if len(kind.shape) == 2 else 1)
            return [self.scalars.type(kind.dtype)] * count
        if isinstance(kind, TupKind):
            return [t for item in kind.items for t in self.types(item)]
        return []

    def rebuild(self, kind: Kind, values: Iterator[Value]) -> Operand:
        """The operand of ``kind`` that is made of ``values``: the inverse of ``flatten``."""
        if isinstance(kind, ScalarKind):
            return Scalar(next(values), kind.dtype)
        if isinstance(kind, VecKind):
            return Vec([Scalar(next(values), kind.dtype) for _ in self.types(kind)], kind.shape)
        if isinstance(kind, TupKind):
            return Tup([self.rebuild(item, values) for item in kind.items])
        assert isinstance(kind, OpaqueKind)
        return kind.operand

    # --- loops --------------------------------------------------------------------------------

    # --- the rest -----------------------------------------------------------------------------

    def local_array(self, shape: tuple[int, ...], dtype: str, span: Span) -> Tensor:
        """``weft.zeros(shape, dtype)``: a local array, filled with zeros."""
        b = self.builder
        memref = b.alloca(STORAGE[dtype], shape)
        zero = b.constant(0, STORAGE[dtype])
        count = 1
        for n in shape:
            count *= n
        self._fill(memref, shape, zero, [], count <= MOST_UNROLLED_STORES)
        return Tensor(memref, dtype, "a local array", local=True, shape=shape)

    def _fill(
        self,
        memref: Value,
        shape: tuple[int, ...],
        zero: Value,
        indices: list[Value],
        unrolled: bool,
    ) -> None:
        b, k = self.builder, len(indices)
        if k == len(shape):
            b.store(zero, memref, indices)
        elif unrolled:
            for i in range(shape[k]):
                self._fill(memref, shape, zero, [*indices, b.constant(i, ir.index)], unrolled)
        else:
            lower, upper, step = (b.constant(v, ir.index) for v in (0, shape[k], 1))
            op = b.for_(lower, upper, step)
            with b.at(op.body):
                self._fill(memref, shape, zero, [*indices, op.body.args[0]], unrolled)
                b.do("scf.yield")

    def advise(self) -> None:
        """Warns of what probably means something else than was meant."""
        over = self.region.node.iter
        dtypes = {
            key[-1]: kind.dtype
            for key, kind in self.kinds.items()
            if isinstance(kind, ScalarKind) and key[:-1] == ()
        }
        tensor = isinstance(over, ast.Name) and isinstance(self.operands.get(over.id), Tensor)
        advise(self.region.node, self.source, dtypes, over_tensor=tensor)

    def _typed_source(self) -> str:
        """The loop's own text with the inferred types of what each line assigns."""
        node = self.region.node
        lines = []
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            text = self.source.lines.get(number, "")
            note = self.notes.get(number)
            if note:
                shown = ", ".join(f"{n}: {k}" for n, k in note.items() if not n.startswith("."))
                text = f"{text:<60}  # {shown}" if shown else text
            lines.append(text)
        return "\n".join(lines)


def b_float(scalars: Scalars) -> str:
    return scalars.float_type.name


def _has_f64(spec: Spec) -> bool:
    if isinstance(spec, TupleSpec):
        return any(_has_f64(item) for item in spec.items)
    return isinstance(spec, (TensorSpec, ScalarSpec)) and spec.dtype == "f64"


def _ir_types(spec: Spec) -> list[ir.Type]:
    """The IR arguments that an argument of a region becomes."""
    if isinstance(spec, TensorSpec):
        return [ir.MemRefType(STORAGE[spec.dtype], spec.rank, spec.layout)]
    if isinstance(spec, TupleSpec):
        return [t for item in spec.items for t in _ir_types(item)]
    if isinstance(spec, ScalarSpec):
        if spec.dtype is None:
            return [{"int": ir.index, "float": ir.f64, "bool": ir.i1}[spec.kind]]
        storage = STORAGE[spec.dtype]
        return [ir.compute_type(storage)]
    return []


def _static_tuple(values: Sequence[Any]) -> Tup:
    return Tup([_static_tuple(v) if isinstance(v, (tuple, list)) else Static(v) for v in values])


_ALLOWED = (
    "a device loop may hold assignments, if, for, while, break, continue, assert, print and calls"
)


STATEMENTS: dict[type, Callable[[Lowering, Any], None]] = {
    ast.Assign: statements.assignment,
    ast.AnnAssign: statements.annotated,
    ast.AugAssign: statements.augmented,
    ast.Expr: statements.evaluate,
    ast.If: statements.branch,
    ast.For: loops.loop,
    ast.While: loops.while_loop,
    ast.Assert: statements.assertion,
    ast.Pass: statements.nothing,
}
