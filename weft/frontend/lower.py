"""A device loop of a kernel, from Python's syntax tree to IR: statements.

The types of variables are inferred by lowering: the kind of a name is the join of all that is
assigned to it, in any order. When an assignment widens the kind of a name that was already used, the
whole loop is lowered once more with what is now known; kinds only widen, so this ends, and most
loops need one or two rounds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from weft.errors import KernelIndexError, KernelSyntaxError, KernelTypeError, RaceError
from weft.frontend import aggregates, calls, expressions, fields, reductions
from weft.frontend.desugar import RETURN_VALUE, desugar_body, desugar_function, leaving
from weft.frontend.kinds import (
    STORAGE,
    Box,
    Kind,
    OpaqueKind,
    Operand,
    Part,
    Range,
    Scalar,
    ScalarKind,
    Static,
    Tensor,
    Tup,
    TupKind,
    Unbound,
    Vec,
    VecKind,
    describe,
    dtype_of,
    flatten,
    is_float,
    is_int,
    join,
    kind_of,
    number_dtype,
    promote,
    same_operand,
)
from weft.frontend.scalars import Scalars
from weft.frontend.scope import Frame, Guard, TensorReached, assigned
from weft.frontend.specs import ConstSpec, ScalarSpec, Spec, TensorSpec, TupleSpec
from weft.frontend.split import Region, RegionArg
from weft.ir import types as ir
from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value
from weft.lang.elements import Elementwise
from weft.source import FunctionSource, Span, read_function

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
    for _ in range(MOST_ROUNDS):
        kinds = {key: kind for key, kind in kinds.items() if not isinstance(kind, OpaqueKind)}
        lowering = Lowering(region, specs, source, kinds, debug)
        lowered = lowering.run()
        if not lowering.widened:
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
        function = Function(f"{self.source.name}_{self.region.index}", types, names,
                            {"kernel": self.source.name, "float": own_float.name}, span)  # fmt: skip
        self.builder = Builder(function.body, span)
        self.scalars = Scalars(self.builder, own_float)
        self.frame = Frame(self.source, ())
        values = iter(function.args)
        for k, (name, spec) in enumerate(self.specs.items()):
            operand = self.frame.arguments[name] = self._argument(name, spec, values)
            if isinstance(operand, Static):
                operand.key = self._key(self.region.args[k])
                operand.read = lambda args, k=k: args[k]
        self.operands = dict(self.frame.arguments)
        self._device_attributes()
        results = self._parallel(node, function)
        self.builder.do("func.return")
        return Lowered(function, results, self.guards, self._typed_source())

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
            return Tensor(value, spec.dtype, name, shape=spec.shape, element=spec.element)
        assert isinstance(spec, ScalarSpec)
        if spec.dtype is not None:
            return Scalar(value, spec.dtype)
        if spec.kind == "float":
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
            key = ("global", id(vars(value)), name) if isinstance(value, ModuleType) else (*key, name)
            value = getattr(value, name)
        return key

    def reached(self, name: str, found: Static) -> Operand:
        """The argument that is the tensor ``found``. Raises ``TensorReached`` where there is none."""
        for arg in self.region.args:
            if self._key(arg) == found.key:
                return self.operands[arg.name]
        raise TensorReached(name, found)

    def _device_attributes(self) -> None:
        """``x.shape``, evaluated by the host, is better known as the dimensions of ``x`` itself."""
        for name in list(self.frame.arguments):
            root, _, attribute = name.rpartition(".")
            tensor = self.frame.arguments.get(root)
            if attribute and isinstance(tensor, Tensor):
                self.frame.arguments[name] = expressions.attribute(self, tensor, attribute, self.builder.span)

    def _parallel(self, node: ast.For, function: Function) -> list[tuple[str, str]]:
        b, names = self.builder, list(self.region.results)
        for jump in (j for statement in node.body for j in leaving(statement)):
            message, help = _REFUSED[type(jump)]
            raise KernelSyntaxError(message, self.span(jump), help)
        body = reductions.rewrite(node.body, names)
        combiners = {n: reductions.combiner(body, n, self.source) for n in names}
        body = desugar_body(body)
        self.frame.counts = assigned([*body, ast.copy_location(ast.For(node.target, node.iter, [], []), node)])
        iterable = self.expression(node.iter)
        lowers, uppers, steps, bind = self._space(node, iterable)
        # Lowering the body finds the types of the reduced names; the loop is built around it after.
        inits: list[Value] = []
        kinds: list[str] = []
        dtypes: list[str] = []
        for name in names:
            before = self.frame.lookup(name, self.span(node), self.guards)
            if dtype_of(before) is None and not (isinstance(before, Tensor) and before.rank == 0):
                raise KernelTypeError(
                    f"`{name}` is {describe(before)}, and a parallel loop accumulates into scalars",
                    self.span(node), help="use one scalar for each element, or accumulate into a tensor",
                )  # fmt: skip
            initial = expressions.read_scalar(self, before, self.span(node))
            dtype = self.widen(name, initial, self.span(node)).dtype  # type: ignore[union-attr]
            dtypes.append(dtype)
            inits.append(self.scalars.cast(initial, dtype, self.span(node)).value)
            kinds.append(reductions.kind(combiners[name], dtype))
        loop = b.parallel(lowers, uppers, steps, inits, kinds)
        block = loop.regions[0]
        for value, name in zip(block.args, _target_names(node.target, len(block.args)), strict=True):
            value.name = name
        with b.at(block):
            for name, kind, dtype in zip(names, kinds, dtypes, strict=True):
                identity = b.constant(reductions.identity(kind, self.scalars.type(dtype)), self.scalars.type(dtype))
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

    def _space(
        self, node: ast.For, iterable: Operand
    ) -> tuple[list[Value], list[Value], list[Value], Callable[[list[Scalar]], Operand]]:
        """Bounds of the iteration space of a ``for``, and what its target is bound to."""
        b, span = self.builder, self.span(node.iter)
        zero, one = b.constant(0, ir.index), b.constant(1, ir.index)
        index = self.scalars.index

        def whole(items: list[Scalar]) -> Operand:
            return items[0] if len(items) == 1 else Tup(list(items))

        if isinstance(iterable, Range):
            lower, upper, step = iterable.lower, iterable.upper, iterable.step
            if isinstance(step, Static) and step.value > 0:
                return [index(lower, span)], [index(upper, span)], [index(step, span)], whole
            count = self._trips(iterable, span)

            def nth(items: list[Scalar]) -> Operand:
                offset = self.scalars.binary("*", items[0], step, span)
                return self.scalars.binary("+", lower, offset, span)

            return [zero], [count], [one], nth
        if isinstance(iterable, Box):
            lowers = [index(lo, span) for lo, _ in iterable.bounds]
            uppers = [index(hi, span) for _, hi in iterable.bounds]
            n = len(lowers)
            vector = (lambda items: Vec(list(items), (n,))) if iterable.grouped else whole
            return lowers, uppers, [one] * n, vector
        if isinstance(iterable, Tensor) and iterable.lattice:
            rank = iterable.lattice
            dims = [index(expressions.extent(self, iterable, k), span) for k in range(rank)]
            return [zero] * rank, dims, [one] * rank, whole
        raise KernelTypeError(
            f"a kernel cannot loop over {describe(iterable)}", span,
            help="loop over range(...), weft.ndrange(...) or a tensor; write weft.serial(...) around "
            "what Python itself shall loop over",
        )  # fmt: skip

    def _trips(self, r: Range, span: Span) -> Value:
        """How many numbers a range has whose step is negative or not known."""
        s, op = self.scalars, self.scalars.binary
        if isinstance(r.step, Static):
            if r.step.value == 0:
                raise KernelTypeError("the step of a range must not be 0", span, help="use 1 or -1")
            distance = op("-", r.lower, r.upper, span)
            step: Operand = Static(-r.step.value)
        else:
            down = s.compare("<", r.step, Static(0), span)
            distance = s.select(s.truth(down, span), op("-", r.lower, r.upper, span),
                                op("-", r.upper, r.lower, span), span)  # fmt: skip
            step = s.magnitude(r.step, span)
        rounded = op("//", op("+", distance, op("-", step, Static(1), span), span), step, span)
        return s.index(s.extreme(">", rounded, Static(0), span), span)

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
            kind = join(known, kind, name.lstrip("."), span)
            self.widened |= kind != known
        self.kinds[key] = kind
        return kind

    def assign(self, name: str, operand: Operand, span: Span) -> None:
        if isinstance(operand, Tensor) and operand.rank == 0 and not operand.local:
            operand = expressions.read_scalar(self, operand, span)
        if self.frame.counts.get(name, 0) <= 1 and isinstance(operand, Static):
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
            items = self.unpack(operand, len(target.elts), span)
            for element, item in zip(target.elts, items, strict=True):
                self.bind(element, item, span)
        elif isinstance(target, ast.Subscript):
            self._store(target, operand, span)
        elif isinstance(target, ast.Attribute):
            aggregates.set_attribute(self, target, operand, span)
        else:
            raise KernelSyntaxError("a kernel cannot assign to this", self.span(target),
                                    help="assign to a name, an element, or a tuple of these")  # fmt: skip

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
            raise KernelTypeError(f"{len(items)} values cannot be unpacked into {count} names", span,
                                  help="write as many names as there are values")  # fmt: skip
        return items

    # --- statements ---------------------------------------------------------------------------
    def expression(self, node: ast.expr) -> Operand:
        return expressions.expression(self, node)

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for node in statements:
            self.builder.span = self.span(node)
            handler = STATEMENTS.get(type(node))
            if handler is None:
                message, help = _REFUSED.get(type(node), (f"`{type(node).__name__}` cannot be compiled", _ALLOWED))
                raise KernelSyntaxError(message, self.span(node), help)
            handler(self, node)

    def assignment(self, node: ast.Assign) -> None:
        span = self.span(node)
        operand = self.expression(node.value)
        for target in node.targets:
            self.bind(target, operand, span)

    def annotated(self, node: ast.AnnAssign) -> None:
        """``v: weft.i32 = ...`` casts."""
        if node.value is None:
            return
        span = self.span(node)
        dtype = calls.dtype_from(self.expression(node.annotation), self.span(node.annotation))
        operand = self.expression(node.value)
        self.bind(node.target, calls.cast(self, operand, dtype, span), span)

    def augmented(self, node: ast.AugAssign) -> None:
        span = self.span(node)
        symbol = expressions.BINARY.get(type(node.op))
        if symbol is None:
            expressions.no_operator(type(node.op).__name__, span)
        if isinstance(node.target, ast.Subscript):
            base = self.expression(node.target.value)
            if isinstance(base, (Tensor, Part)):
                self._accumulate(node, base, symbol, span)
                return
        old = self.expression(_as_load(node.target))
        value = expressions.binary(self, symbol, old, self.expression(node.value), span)
        self.bind(node.target, value, span)

    def _accumulate(self, node: ast.AugAssign, base: Tensor | Part, symbol: str, span: Span) -> None:
        """``x[i] op= v``: an accumulation where the operation has a combiner, else load and store."""
        assert isinstance(node.target, ast.Subscript)
        part = expressions.subscripted(self, base, node.target.slice, self.span(node.target))
        operand = self.expression(node.value)
        if fields.is_whole(part):
            values = fields.numbers(self, part, operand, span)
            for place, value in zip(fields.places(self, part), values, strict=True):
                self._accumulate_one(part.tensor, place, value, symbol, span)
            return
        tensor, indices = expressions.whole(part, self.span(node.target))
        self._accumulate_one(tensor, indices, operand, symbol, span)

    def _accumulate_one(
        self, tensor: Tensor, indices: list[Value], operand: Operand, symbol: str, span: Span
    ) -> None:
        value = expressions.read_scalar(self, operand, span)
        if is_int(tensor.dtype) and is_float(promote("bool", dtype_of(value) or "bool")):
            raise KernelTypeError(
                f"`{tensor.name}` holds {tensor.dtype} and a float is accumulated into it", span,
                help="convert with int(...), or make the tensor a float one",
            )  # fmt: skip
        combiner = reductions.AUGMENTED.get(symbol)
        if combiner is None or symbol == "/" or (tensor.dtype == "bool" and symbol not in "&|^"):
            old = expressions.load_element(self, tensor, indices, span)
            result = self.scalars.binary(symbol, old, value, span)
            self.store_element(tensor.memref, tensor.dtype, indices, result, span)
            return
        if symbol == "-":
            value = self.scalars.negate(value, span)
        stored = self.scalars.cast(value, tensor.dtype, span)
        kind = reductions.kind(combiner, tensor.dtype)
        self.builder.atomic_rmw(kind, stored.value, tensor.memref, indices)

    def _store(self, target: ast.Subscript, operand: Operand, span: Span) -> None:
        base = self.expression(target.value)
        if isinstance(base, (Tensor, Part)):
            part = expressions.subscripted(self, base, target.slice, self.span(target))
            if fields.is_whole(part):
                values = fields.numbers(self, part, operand, span)
                for place, value in zip(fields.places(self, part), values, strict=True):
                    self.store_element(part.tensor.memref, part.tensor.dtype, place, value, span)
                return
            tensor, indices = expressions.whole(part, self.span(target))
            value = expressions.read_scalar(self, operand, span)
            self.store_element(tensor.memref, tensor.dtype, indices, value, span)
        elif isinstance(base, Vec) and isinstance(target.value, ast.Name):
            new = aggregates.replace(self, base, target.slice, operand, span)
            self.assign(target.value.id, new, span)
        else:
            help = "assign to an element of a tensor, a local array or a vector"
            if isinstance(base, Vec) and isinstance(target.value, ast.Subscript):
                place = f"{ast.unparse(target.value)[:-1]}, {ast.unparse(target.slice)}]"
                help = f"`{ast.unparse(target.value)}` is a copy of the vector: write {place}"
            raise KernelTypeError(
                f"{describe(base)} has no elements that can be assigned", span, help=help
            )

    def store_element(
        self, memref: Value, dtype: str, indices: list[Value], x: Operand, span: Span
    ) -> None:
        b = self.builder
        value = self.scalars.cast(x, dtype, span).value
        if dtype in ("f16", "bf16"):
            value = b.op("arith.truncf", value, type=STORAGE[dtype])
        b.store(value, memref, indices)

    def evaluate(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, (str, type(...))):
            return
        self.expression(node.value)

    def branch(self, node: ast.If) -> None:
        test = expressions.test(self, node.test)
        if isinstance(test, Static):
            self.block(node.body if test.value else node.orelse)
            return
        guard = getattr(node, "weft_guard", False)
        names = assigned([*node.body, *node.orelse])
        before = dict(self.frame.env)
        op = self.builder.if_(test.value)
        ends: list[dict[str, Operand]] = []
        for region, body in zip(op.regions, (node.body, node.orelse), strict=True):
            self.frame.env = dict(before)
            with self.builder.at(region):
                self.block(body)
            ends.append(self.frame.env)
        self.frame.env = before
        self._merge(op, names, ends, guard, self.span(node))

    def _merge(
        self, op: Op, names: dict[str, int], ends: list[dict[str, Operand]], guard: bool, span: Span
    ) -> None:
        """Joins what the two branches of ``op`` left in ``names``; ends both with scf.yield."""
        yields: list[list[Value]] = [[], []]
        for name in names:
            sides = [end.get(name) for end in ends]
            if all(s is None for s in sides):
                continue
            if sides[0] is sides[1]:
                self.frame.env[name] = sides[0]  # type: ignore[assignment]
                continue
            missing = [s is None or isinstance(s, Unbound) for s in sides]
            present = next((s for s, m in zip(sides, missing, strict=True) if not m), None)
            if present is None:
                self.frame.env[name] = Unbound("it is assigned only in some branches")
                continue
            kind = self.widen(name, present, span)
            opaque = isinstance(kind, OpaqueKind)
            if any(missing) and (opaque or not (guard or name.startswith("."))):
                self.frame.env[name] = Unbound("it is assigned in only one branch of an `if`")
                continue
            if opaque:
                if not same_operand(*sides):
                    join(OpaqueKind(sides[0]), OpaqueKind(sides[1]), name, span)
                self.frame.env[name] = present
                continue
            for region, side, gone, values in zip(op.regions, sides, missing, yields, strict=True):
                with self.builder.at(region):
                    if gone:
                        values += [self.builder.constant(0, t) for t in self.types(kind)]
                    else:
                        assert side is not None
                        values += flatten(self.coerce(side, self.widen(name, side, span), span))
            first = len(op.results)
            op.results += [Value(t, name, op) for t in self.types(kind)]
            self.frame.env[name] = self.rebuild(kind, iter(op.results[first:]))
        for region, values in zip(op.regions, yields, strict=True):
            with self.builder.at(region):
                self.builder.do("scf.yield", *values)

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
    def _carried(self, node: ast.For | ast.While) -> dict[str, Kind]:
        """The variables that live before a loop and are assigned in it."""
        span = self.span(node)
        flag = getattr(node, "weft_break", "")
        if flag:
            self.assign(flag, Static(False), span)
        carried: dict[str, Kind] = {}
        names = assigned(node.body)
        if isinstance(node, ast.For):
            names |= dict.fromkeys(_names(node.target), 2)  # a name from before keeps the last index
        if flag:
            names.setdefault(flag, 2)
        for name in names:
            operand = self.frame.env.get(name)
            if operand is None and name == RETURN_VALUE:
                operand = self._return_value(span)
            if operand is None:
                operand = self.frame.arguments.get(name)
                if operand is None or not _changes(operand):
                    continue
            if isinstance(operand, Unbound):
                continue
            kind = self.widen(name, operand, span)
            if isinstance(kind, OpaqueKind):
                continue
            self.frame.env[name] = self.coerce(operand, kind, span)
            carried[name] = kind
        return carried

    def _return_value(self, span: Span) -> Operand | None:
        """Zeros for the value of a function that may return from inside a loop."""
        kind = self.kinds.get((*self.frame.path, RETURN_VALUE))
        if kind is None:
            self.widened = True  # known once the loop was lowered: in the next round
            return None
        if isinstance(kind, OpaqueKind):
            raise KernelTypeError(f"{describe(kind.operand)} is returned from inside a loop", span,
                                  help="return numbers or vectors")  # fmt: skip
        return self.rebuild(kind, iter([self.builder.constant(0, t) for t in self.types(kind)]))

    def _enter(self, carried: dict[str, Kind], values: Sequence[Value]) -> None:
        remaining = iter(values)
        for name, kind in carried.items():
            self.frame.env[name] = self.rebuild(kind, remaining)
            for value in flatten(self.frame.env[name]):
                value.name = name

    def _leave(self, carried: dict[str, Kind], span: Span) -> list[Value]:
        values: list[Value] = []
        for name, kind in carried.items():
            end = self.frame.env[name]
            if isinstance(end, Unbound):
                self.frame.lookup(name, span, self.guards)
            # If the kind was widened meanwhile this round is thrown away: any cast will do.
            values += flatten(self.coerce(end, kind, span))
        return values

    def _after(self, node: ast.For | ast.While, before: dict[str, Operand]) -> None:
        """Names that a loop's body made are gone after it (Python would keep the last ones)."""
        for name, operand in self.frame.env.items():
            if name not in before or (isinstance(before[name], Unbound) and operand is not before[name]):
                self.frame.env[name] = Unbound("it is assigned inside a loop, which may run zero times")
            elif operand is not before[name] and isinstance(kind_of(operand), OpaqueKind) \
                    and not isinstance(operand, Unbound):  # fmt: skip
                if not same_operand(operand, before[name]):
                    join(kind_of(before[name]), kind_of(operand), name, self.span(node))

    @contextmanager
    def _inside(self) -> Iterator[dict[str, Operand]]:
        before = dict(self.frame.env)
        yield before

    def loop(self, node: ast.For) -> None:
        if node.orelse:
            raise KernelSyntaxError("a loop's `else` is not compiled", self.span(node.orelse[0]),
                                    help="set a flag before `break` and test it after the loop")  # fmt: skip
        iterable = self.expression(node.iter)
        items = calls.static_items(iterable)
        if items is not None:
            self._unrolled(node, items)
        elif isinstance(iterable, (Range, Box, Tensor)):
            flag = getattr(node, "weft_break", "")
            if flag and not isinstance(iterable, Range):
                raise KernelSyntaxError("`break` out of a loop over several indices", self.span(node),
                                        help="write nested `for ... in range(...)` loops")  # fmt: skip
            spaces = self._space(node, iterable)
            if flag:
                self._breakable(node, spaces, flag)
            else:
                self._nest(node, *spaces)
        else:
            self._space(node, iterable)

    def _nest(
        self, node: ast.For, lowers: list[Value], uppers: list[Value], steps: list[Value],
        bind: Callable[[list[Scalar]], Operand],
    ) -> None:  # fmt: skip
        b, span = self.builder, self.span(node)
        carried = self._carried(node)
        before = dict(self.frame.env)
        names = _target_names(node.target, len(lowers))
        ivs: list[Scalar] = []

        def level(k: int) -> list[Value]:
            """Opens loop k inside the loops before it; gives the values that are carried out."""
            if k == len(lowers):
                self.bind(node.target, bind(ivs), span)
                self.block(node.body)
                return self._leave(carried, span)
            inits = [v for n in carried for v in flatten(self.frame.env[n])]
            op = b.for_(lowers[k], uppers[k], steps[k], inits)
            block = op.regions[0]
            block.args[0].name = names[k]
            with b.at(block):
                self._enter(carried, block.args[1:])
                ivs.append(Scalar(block.args[0], "int"))
                b.do("scf.yield", *level(k + 1))
            for value, init in zip(op.results, inits, strict=True):
                value.name = init.name
            return list(op.results)

        results = level(0)
        self._after(node, before)
        self._enter(carried, results)

    def _breakable(self, node: ast.For, spaces: tuple[Any, ...], flag: str) -> None:
        """A loop that can be left: while index < upper and not flag."""
        (lower,), (upper,), (step,), bind = spaces
        b, span = self.builder, self.span(node)
        carried = self._carried(node)
        before = dict(self.frame.env)
        inits = [lower, *(v for n in carried for v in flatten(self.frame.env[n]))]
        op = b.while_(inits, [v.type for v in inits])
        with b.at(op.regions[0]):
            args = op.regions[0].args
            self._enter(carried, args[1:])
            more = b.op("arith.cmpi", args[0], upper, predicate="slt")
            broken = self.scalars.truth(self.frame.env[flag], span)
            going = b.op("arith.xori", broken, b.constant(True, ir.i1))
            b.do("scf.condition", b.op("arith.andi", more, going), *args)
        with b.at(op.regions[1]):
            args = op.regions[1].args
            args[0].name = _target_names(node.target, 1)[0]
            self._enter(carried, args[1:])
            self.bind(node.target, bind([Scalar(args[0], "int")]), span)
            self.block(node.body)
            following = b.op("arith.addi", args[0], step)
            b.do("scf.yield", following, *self._leave(carried, span))
        self._after(node, before)
        self._enter(carried, op.results[1:])

    def _unrolled(self, node: ast.For, items: list[Operand]) -> None:
        flag = getattr(node, "weft_break", "")
        span = self.span(node)
        if flag:
            self.assign(flag, Static(False), span)
        for item in items:
            if not flag:
                self.bind(node.target, item, span)
                self.block(node.body)
                continue
            keep = ast.copy_location(ast.Name(flag, ast.Load()), node)
            test = ast.copy_location(ast.UnaryOp(ast.Not(), keep), node)
            guarded = ast.copy_location(ast.If(test, node.body, []), node)
            guarded.weft_guard = True  # type: ignore[attr-defined]
            self.bind(node.target, item, span)
            self.branch(guarded)

    def while_loop(self, node: ast.While) -> None:
        if node.orelse:
            raise KernelSyntaxError("a loop's `else` is not compiled", self.span(node.orelse[0]),
                                    help="set a flag before `break` and test it after the loop")  # fmt: skip
        b, span = self.builder, self.span(node)
        flag = getattr(node, "weft_break", "")
        carried = self._carried(node)
        before = dict(self.frame.env)
        inits = [v for n in carried for v in flatten(self.frame.env[n])]
        op = b.while_(inits, [v.type for v in inits])
        with b.at(op.regions[0]):
            args = op.regions[0].args
            self._enter(carried, args)
            if flag:
                going = self.scalars.negation(self.frame.env[flag], span)
                condition = expressions.choose(
                    self, going, lambda: _as_bool(self, expressions.test(self, node.test), span),
                    lambda: Static(False), span,
                )  # fmt: skip
            else:
                condition = expressions.test(self, node.test)
            b.do("scf.condition", self.scalars.truth(condition, span), *args)
        with b.at(op.regions[1]):
            args = op.regions[1].args
            self._enter(carried, args)
            self.block(node.body)
            b.do("scf.yield", *self._leave(carried, span))
        self._after(node, before)
        self._enter(carried, op.results)

    # --- the rest -----------------------------------------------------------------------------
    def assertion(self, node: ast.Assert) -> None:
        test = expressions.test(self, node.test)
        message = calls.assert_message(self, node)
        if isinstance(test, Static):
            test = self.scalars.constant(bool(test.value), "bool")
        self.builder.span = self.span(node)
        self.builder.do("weft.assert", test.value, message=message)

    def nothing(self, node: ast.stmt) -> None:
        """``pass``."""

    def inline(self, function: Any, arguments: dict[str, Operand], node: ast.AST) -> Operand:
        """The value of a call of a plain Python function, its body lowered here."""
        span = self.span(node)
        source = self.sources.get(function)
        if source is None:
            source = self.sources[function] = read_function(function, self.source.name)
        outer = self.frame
        site = (function.__code__, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        if any(part[0] is function.__code__ for part in outer.path):
            raise KernelSyntaxError(
                f"`{source.name}` calls itself: recursion cannot be compiled", span,
                help="write a loop, or a stack in a local array",
            )  # fmt: skip
        body = desugar_function(source.tree.body)
        self.frame = Frame(source, (*outer.path, site))
        self.frame.counts = assigned(body)
        try:
            for name, operand in arguments.items():
                self.frame.counts[name] = self.frame.counts.get(name, 0) + 1
                if isinstance(operand, (Scalar, Vec, Tup, Static)):
                    self.assign(name, operand, span)
                else:
                    self.frame.env[name] = operand
            self.block(body)
            return self.frame.env.get(RETURN_VALUE, Static(None))
        finally:
            self.frame = outer

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
        self, memref: Value, shape: tuple[int, ...], zero: Value, indices: list[Value], unrolled: bool
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
            with b.at(op.regions[0]):
                self._fill(memref, shape, zero, [*indices, op.regions[0].args[0]], unrolled)
                b.do("scf.yield")

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


def _as_bool(cx: Lowering, x: Scalar | Static, span: Span) -> Scalar | Static:
    return x if isinstance(x, Static) else Scalar(cx.scalars.truth(x, span), "bool")


def _changes(operand: Operand) -> bool:
    return isinstance(operand, (Scalar, Vec, Tup)) or dtype_of(operand) is not None


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


def _names(target: ast.expr) -> list[str]:
    """The names that a loop's target assigns."""
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _target_names(target: ast.expr, count: int) -> list[str]:
    """Names for ``count`` indices, taken from a loop's target."""
    if isinstance(target, ast.Name):
        return [target.id] if count == 1 else [f"{target.id}{k}" for k in range(count)]
    if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == count:
        return [e.id if isinstance(e, ast.Name) else f"i{k}" for k, e in enumerate(target.elts)]
    return [f"i{k}" for k in range(count)]


def _as_load(target: ast.expr) -> ast.expr:
    """The same place, read."""
    if isinstance(target, ast.Name):
        new: ast.expr = ast.Name(target.id, ast.Load())
    elif isinstance(target, ast.Subscript):
        new = ast.Subscript(target.value, target.slice, ast.Load())
    else:
        assert isinstance(target, ast.Attribute)
        new = ast.Attribute(target.value, target.attr, ast.Load())
    return ast.copy_location(new, target)


_ALLOWED = "a device loop may hold assignments, if, for, while, break, continue, assert, print and calls"
_REFUSED: dict[type, tuple[str, str]] = {
    ast.Try: ("`try` cannot be compiled", "test for what could go wrong with `if`, or do it in the host part"),
    ast.With: ("`with` cannot be compiled", "put it around the loop, in the host part"),
    ast.Raise: ("`raise` cannot be compiled", "use `assert condition, message`"),
    ast.Global: ("`global` cannot be compiled", "return the value, or write it into a tensor"),
    ast.Nonlocal: ("`nonlocal` cannot be compiled", "return the value, or write it into a tensor"),
    ast.FunctionDef: ("a function defined inside a kernel cannot be compiled", "define it outside of the kernel: it will be inlined"),
    ast.ClassDef: ("a class defined inside a kernel cannot be compiled", "define it outside of the kernel"),
    ast.Return: ("`return` inside a device loop", "store the result in a tensor and return that after the loop"),
    ast.Break: ("`break` out of a parallel loop", "its iterations run at once: use `continue`, or weft.serial(...)"),
    ast.Delete: ("`del` cannot be compiled", "leave it out"),
    ast.Import: ("`import` cannot be compiled", "import at the top of the module"),
    ast.ImportFrom: ("`import` cannot be compiled", "import at the top of the module"),
    ast.Match: ("`match` cannot be compiled", "write if / elif / else"),
}  # fmt: skip


STATEMENTS: dict[type, Callable[[Lowering, Any], None]] = {
    ast.Assign: Lowering.assignment,
    ast.AnnAssign: Lowering.annotated,
    ast.AugAssign: Lowering.augmented,
    ast.Expr: Lowering.evaluate,
    ast.If: Lowering.branch,
    ast.For: Lowering.loop,
    ast.While: Lowering.while_loop,
    ast.Assert: Lowering.assertion,
    ast.Pass: Lowering.nothing,
}
