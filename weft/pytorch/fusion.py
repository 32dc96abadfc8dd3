"""Device loops as Inductor's loop IR: which can be, and by which nodes.

A loop qualifies whose stores each fill a new tensor, one element in each iteration, with what is
computed of elements of other tensors and of reductions over loops inside. It becomes one
``Pointwise`` for each tensor and one ``Reduction`` for each value that a loop carries, which
Inductor fuses with their neighbours. A ``Fusion`` is made twice: on a ``Probe``, which finds out
whether it can be (``Opaque`` says why not), and then of Inductor's operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.scalar import to_float
from weft.ir.types import MemRefType, compute_type
from weft.ir.views import (
    For,
    If,
    Parallel,
    Select,
    condition_of,
    constant_of,
    loop_of,
    made_by,
    memory,
)
from weft.ir.writes import loaded, written
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.forward_stores import forward_stores
from weft.passes.lower_updates import lower_updates
from weft.passes.promote import promote
from weft.passes.reassociate_extrema import reassociate_extrema
from weft.passes.relax_atomics import relax_atomics
from weft.passes.run import run
from weft.passes.simplify import simplify
from weft.passes.widen import widen
from weft.pytorch.fusion_rules import OPAQUE, REDUCTIONS, RULES, is_lossy_on_cpu, torch_type
from weft.values import frozen

PASSES = (simplify, widen, cse, relax_atomics, lower_updates, promote, forward_stores,
          reassociate_extrema, simplify, cse, dce)  # fmt: skip
MOST_OPERATIONS = 400  # of a body, which is compiled again in each kernel that it is fused into
_NARROW = 2**31 - 1  # on GPUs Inductor's indices have 32 bits where sizes fit
_HALVES = (torch.float16, torch.bfloat16)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_LOOPS = ("scf.parallel", "scf.for")
# Of comparisons of integers: whether the first is to be more, and by how much at least.
_ORDERS = {"sge": (True, 0), "sgt": (True, 1), "sle": (False, 0), "slt": (False, 1)}


class Opaque(Exception):
    """Why a loop is not fused."""


@frozen
class Tensor:
    """A tensor argument: its sizes, and what loads an element of it by subscripts."""

    sizes: Sequence[Any]
    dtype: torch.dtype
    load: Callable[[Sequence[Any]], Any]


@frozen
class Facts:
    """What is known of sizes, and what is asked for."""

    known: Callable[[Any], bool]  # whether a relation of sizes always holds
    anyway: bool  # also where weft's own code is expected to be faster
    on_gpu: bool
    lacking: frozenset[str]  # operations that this Inductor computes otherwise
    rounds: bool  # whether it rounds to half precision where it is asked to


@frozen
class Axis:
    """An index of a loop: ``lower + number * step`` for each number below ``extent``."""

    index: Value
    lower: Any
    step: Any
    extent: Any


@frozen
class Choice:
    """What the branches of an ``scf.if`` or ``arith.select`` store or contribute to a reduction
    (None: nothing)."""

    op: Op
    yes: Value | Choice | None
    no: Value | Choice | None


@frozen
class Stored:
    """A tensor that is filled: by ``value`` at ``axes``, in the order of its dimensions (None:
    which has one element along it)."""

    memref: Value
    axes: Sequence[Axis | None]
    value: Value | Choice


def prepared(function: Function) -> Function:
    """The loop in the form that ``Fusion`` reads."""
    return run(function, PASSES)


class Probe:
    """Stands for Inductor's operations: nothing is computed."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Any:
        return body()

    def indirect_indexing(self, *args: Any, **kwargs: Any) -> Any:
        return sympy.Symbol("loaded", integer=True)


class Fusion:
    """One device loop. ``values``: by argument of the function a ``Tensor`` or a number, of sympy
    where it is an integer. ``ops``: Inductor's operations. ``reduce(kind, dtype, inner, ranges,
    reduced)`` makes a reduction, and gives what loads its results. ``probed``: the same on a
    ``Probe``."""

    def __init__(
        self, function: Function, values: dict[Value, Any], facts: Facts, ops: Any,
        reduce: Callable[..., Callable[[Sequence[Any]], Any]], probed: Fusion | None = None,
    ) -> None:  # fmt: skip
        self.values, self.facts, self.ops, self.reduce = values, facts, ops, reduce
        self.probing = probed is None
        self.in_range: dict[tuple[Op, int], bool] = probed.in_range if probed else {}
        # What conditions on indices are wherever they are asked; None where that varies.
        self.settled: dict[Op, bool | None] = probed.settled if probed else {}
        self.indices: set[Value] = set()
        self.reductions: dict[Value, tuple[list[Value], Callable[..., Any]]] = {}
        self.reduced: list[tuple[list[Any], list[Any]]] = []  # ranges, and those that go
        self.loads: list[list[Any]] = []  # the subscripts of what was loaded while probing
        self.stores: list[Stored] = []
        if sum(1 for _ in walk(function.body)) > MOST_OPERATIONS:
            raise Opaque("its body is long")
        for memref in written(function) & loaded(function):
            raise Opaque(f"it reads `{memref.name}`, which it writes to")
        self._walk(function.body, ())
        filled = {s.memref for s in self.stores}
        if len(self.stores) > len(filled) or filled != {*written(function)}:
            raise Opaque("it stores to a tensor in several places")

    # --- what the function does ------------------------------------------------------------------
    def _walk(self, block: Block, axes: tuple[Axis, ...]) -> None:
        for op in block.ops:
            if op.name == "memref.store":
                self._store(op, axes, *memory(op)[2])
            elif op.name in _LOOPS:
                self._loop(op, axes)
            elif op.name == "scf.if":
                self._condition(op, axes)
            elif op.name in OPAQUE and not OPS[op.name].pure:
                raise Opaque(OPAQUE[op.name])

    def _loop(self, op: Op, axes: tuple[Axis, ...]) -> None:
        view = loop_of(op)
        inner = tuple(map(self._axis, view.indices, view.axes))
        self._walk(op.body, (*axes, *inner))
        if isinstance(view, Parallel):
            rows = zip(view.kinds, view.inits, view.contributions, op.results, strict=True)
        else:
            rows = [_carried(view, k) for k in range(len(op.results))]
        for kind, init, value, result in rows:
            self._reduction(kind, init, value, result, axes, inner)

    def _axis(self, index: Value, bounds: Sequence[Value]) -> Axis:
        self.indices.add(index)
        lower, upper, step = map(Body(self, {}, {}).value, bounds)
        if not all(isinstance(b, sympy.Expr) for b in (lower, upper, step)):
            raise Opaque("the bounds of a loop depend on what was loaded")
        if not step.is_Integer:
            raise Opaque("the step of a loop is known only at run time")
        extent: Any = upper - lower if step == 1 else FloorDiv(upper - lower + step - 1, step)
        if not self.facts.known(extent >= 0):
            raise Opaque("a loop may have no iterations")
        return Axis(index, lower, step, extent)

    def _condition(self, op: Op, axes: tuple[Axis, ...]) -> None:
        """An ``scf.if``: it gives values, or both branches store to the same elements."""
        if self.probing:
            self.settled[op] = self._settled(op, axes)
        settled = self.settled[op]
        if settled is not None:
            self._walk(op.regions[not settled], axes)
            return
        for inner in (o for region in op.regions for o in walk(region)):
            if inner.name in (*_LOOPS, "scf.while"):
                raise Opaque("a loop runs under a condition")
            if inner.name in OPAQUE and not OPS[inner.name].pure:
                raise Opaque(OPAQUE[inner.name])
        for store, value in _stores(op):
            self._store(store, axes, value)

    def _settled(self, op: Op, axes: tuple[Axis, ...]) -> bool | None:
        """What its condition is in every iteration, where that follows from sizes."""
        condition = condition_of(op)
        compared = None if condition is None else made_by(condition, "arith.cmpi")
        if compared is None or compared.attrs["predicate"] not in _ORDERS:
            return None
        body = self._numbered(axes)
        a, b = map(body.value, compared.operands)
        if not isinstance(a, sympy.Expr) or not isinstance(b, sympy.Expr):
            return None
        more, strict = _ORDERS[compared.attrs["predicate"]]
        ahead = (a - b if more else b - a) - strict
        if body.never_negative(ahead):
            return True
        return False if body.never_negative(-ahead - 1) else None

    def _store(self, op: Op, axes: tuple[Axis, ...], value: Value | Choice) -> None:
        memref, subscripts, _ = memory(op)
        known, sizes = self.facts.known, self.values[memref].sizes
        left = {a.index: a for a in axes}
        found = [left.pop(s, None) for s in subscripts]
        for subscript, axis, size in zip(subscripts, found, sizes, strict=True):
            if axis is None:
                if constant_of(subscript) != 0 or not known(sympy.Eq(size, 1)):
                    raise Opaque(f"`{memref.name}` is not filled index by index")
            elif axis.lower != 0 or axis.step != 1 or not known(sympy.Eq(axis.extent, size)):
                raise Opaque(f"not every element of `{memref.name}` is written")
        if left:
            raise Opaque(f"iterations write to one element of `{memref.name}`")
        stored = Stored(memref, found, value)
        if self.probing:
            self._probe(axes, lambda body: self._element(stored, body))
        self.stores.append(stored)

    def _reduction(
        self, kind: str, init: Value, value: Value | Choice | None, result: Value,
        axes: tuple[Axis, ...], inner: tuple[Axis, ...],
    ) -> None:  # fmt: skip
        if kind not in REDUCTIONS:
            raise Opaque("it reduces integers")
        name, start = REDUCTIONS[kind]
        dtype, ops, everywhere = torch_type(result.type), self.ops, (*axes, *inner)
        if any(a.lower != 0 or a.step != 1 for a in axes):
            raise Opaque("a loop around a reduction does not count from 0")
        if name in ("max", "min") and not all(self.facts.known(a.extent >= 1) for a in inner):
            raise Opaque("a loop may have no iterations")

        def contribution(body: Body) -> Any:
            found = body.chosen(value, lambda: ops.constant(start, dtype))
            if "num" not in kind:
                return found
            return ops.where(ops.isnan(found), ops.constant(start, dtype), found)

        def made(index: Sequence[Any], reduced: Sequence[Any]) -> Any:
            return contribution(self.body(everywhere, (*index, *reduced)))

        if self.probing:
            body = self._probe(everywhere, contribution)
            numbered = [body.env[a.index] for a in everywhere]
            if not self.facts.anyway and not any(
                all(n in subscripts for n in numbered) for subscripts in self.loads
            ):
                raise Opaque("iterations share the elements that they reduce, which weft's own "
                             "loops keep in registers")  # fmt: skip
        ranges, reduced = [a.extent for a in axes], [a.extent for a in inner]
        load = self.reduce(name, dtype, made, ranges, reduced)
        self.reduced.append((ranges, reduced))

        def complete(body: Body, index: Sequence[Any]) -> Any:
            combine = Op(f"arith.{kind}", [init, result], [result.type])
            return RULES[combine.name](ops, combine, body.lifted(init), load(index))

        self.reductions[result] = [a.index for a in axes], complete

    # --- evaluation ------------------------------------------------------------------------------
    def body(self, axes: Sequence[Axis], numbers: Sequence[Any]) -> Body:
        """The iteration of these numbers."""
        pairs = zip(axes, numbers, strict=True)
        return Body(self, {a.index: a.lower + n * a.step for a, n in pairs}, {})

    def _numbered(self, axes: Sequence[Axis]) -> Body:
        """Any iteration, while probing."""
        numbers = [sympy.Symbol(f"n{k}", integer=True, nonnegative=True) for k in range(len(axes))]
        body = self.body(axes, numbers)
        body.axes.update(zip(numbers, axes, strict=True))
        return body

    def _probe(self, axes: Sequence[Axis], compute: Callable[[Body], Any]) -> Body:
        body, self.loads = self._numbered(axes), []
        compute(body)
        return body

    def element(self, stored: Stored, index: Sequence[Any]) -> Any:
        """What is stored at ``index``, in the tensor's dtype."""
        axes = [(a, n) for a, n in zip(stored.axes, index, strict=True) if a is not None]
        return self._element(stored, self.body([a for a, _ in axes], [n for _, n in axes]))

    def _element(self, stored: Stored, body: Body) -> Any:
        dtype, value = self.values[stored.memref].dtype, body.chosen(stored.value)
        if dtype in _UNSIGNED:
            raise Opaque("it has unsigned integers, which Inductor computes otherwise")
        if dtype not in _HALVES:
            return value
        if not self.facts.rounds:
            raise Opaque("on a CPU this Inductor does not round to half precision what is fused")
        # Rounded here: what is fused with it may read it from a register. (Conversions that are
        # given a type to start from are taken for none by Inductor's C++.)
        half = self.ops.to_dtype(value, dtype, use_compute_types=False)
        return self.ops.to_dtype(half, torch.float32)


def _carried(view: For, k: int) -> tuple[str, Value, Value | Choice | None, Value]:
    """The combiner, initial value, contribution and result of a value that a loop carries."""
    carried, init, step, result = view.rows[k]
    kind, value = _contributed(step, carried)
    return kind, init, value, result


def _contributed(step: Value, carried: Value) -> tuple[str, Value | Choice | None]:
    """The combiner of an iteration, and what it contributes: None for nothing."""
    op = step.op
    if step is carried:
        return "", None
    if op is not None and op.name in ("scf.if", "arith.select"):
        arms = (Select(op).yes, Select(op).no) if op.name == "arith.select" else (
            If(op).arms(op.results.index(step)))  # fmt: skip
        (kind, yes), (other, no) = (_contributed(arm, carried) for arm in arms)
        if not kind or not other or kind == other:
            return kind or other, Choice(op, yes, no)
    elif op is not None and op.name.partition(".")[2] in REDUCTIONS and carried in op.operands:
        return op.name.partition(".")[2], op.right if op.left is carried else op.left
    raise Opaque("an iteration of a loop needs what another one has computed")


def _stores(op: Op) -> list[tuple[Op, Choice]]:
    """What both branches of an ``scf.if`` store to: an operation that does, and the choice."""
    arms: list[dict[Value, tuple[Op, Value | Choice]]] = []
    for region in op.regions:
        found: dict[Value, tuple[Op, Value | Choice]] = {}
        for inner in region.ops:
            pairs = [(inner, *memory(inner)[2])] if inner.name == "memref.store" else (
                _stores(inner) if inner.name == "scf.if" else [])  # fmt: skip
            for store, value in pairs:
                memref = memory(store)[0]
                if memref in found:
                    raise Opaque("it stores to a tensor in several places")
                found[memref] = store, value
        arms.append(found)
    then, otherwise = arms
    if then.keys() != otherwise.keys() or any(
        memory(store)[1] != memory(otherwise[m][0])[1] for m, (store, _) in then.items()
    ):
        raise Opaque("it stores under a condition")
    return [(store, Choice(op, yes, otherwise[m][1])) for m, (store, yes) in then.items()]


class Body:
    """The values of one iteration, each computed where somebody asks for it. An integer that is
    computed of indices and sizes is an expression of sympy, other constants are Python's; all else
    is a value of Inductor's."""

    def __init__(self, of: Fusion, indices: dict[Value, Any], axes: dict[Any, Axis]) -> None:
        self.of, self.indices, self.env = of, indices, {**indices}
        self.axes = axes  # while probing, by their numbers

    def value(self, value: Value) -> Any:
        open_ = [value]  # no recursion: chains of operations are long
        while open_:
            last = open_[-1]
            op = last.op
            needed = [] if op is None or op.name in _LOOPS or last in self.env else [
                v for v in op.operands if not isinstance(v.type, MemRefType) and v not in self.env
            ]  # fmt: skip
            if needed:
                open_ += needed
                continue
            if last not in self.env:
                self.env[last] = self._computed(last)
            open_.pop()
        return self.env[value]

    def lifted(self, value: Value) -> Any:
        """The same as a value of Inductor's."""
        found, ops, dtype = self.value(value), self.of.ops, torch_type(value.type)
        if isinstance(found, bool | float):
            if dtype in _HALVES:  # which Inductor computes with as floats of 32 bits
                found = float(to_float(found, value.scalar))
            return ops.constant(found, dtype)
        if not isinstance(found, sympy.Expr):
            return found
        if found.is_Integer:
            return ops.constant(int(found), dtype)
        self._check_narrow(found)
        wide = ops.index_expr(found, torch.int64)
        return wide if dtype is torch.int64 else ops.to_dtype(wide, dtype)

    def chosen(
        self, value: Value | Choice | None, nothing: Callable[[], Any] = lambda: None
    ) -> Any:
        """What is stored or contributed, ``nothing()`` for None; halves as floats of 32 bits."""
        if isinstance(value, Choice):
            yes, no = value.yes, value.no
            return self._where(value.op, lambda b: b.chosen(yes, nothing),
                               lambda b: b.chosen(no, nothing))  # fmt: skip
        if value is None:
            return nothing()
        narrowed = made_by(value, "arith.truncf")
        if compute_type(value.scalar) is value.scalar:
            return self.lifted(value)
        if narrowed is not None and narrowed.operand.scalar.name == "f32":
            return self.lifted(narrowed.operand)
        return self.of.ops.to_dtype(self.lifted(value), torch.float32)

    def _where(self, op: Op, yes: Callable[[Body], Any], no: Callable[[Body], Any]) -> Any:
        """What an ``scf.if`` chooses: what its branches load is loaded where they are taken."""
        found = condition_of(op)
        assert found is not None
        condition, ops = self.value(found), self.of.ops
        if isinstance(condition, bool):
            return yes(self) if condition else no(self)

        def branch(region: Block | None, mask: Any, compute: Callable[[Body], Any]) -> Any:
            if region is None or not any(o.name == "memref.load" for o in walk(region)):
                return compute(self)
            # Inductor wants a mask's body to use nothing from outside of it.
            return ops.masked(mask, lambda: compute(Body(self.of, self.indices, self.axes)), 0)

        regions = (If(op).then, If(op).otherwise) if op.name == "scf.if" else (None, None)
        then = branch(regions[0], condition, yes)
        return ops.where(condition, then, branch(regions[1], ops.logical_not(condition), no))

    def _computed(self, value: Value) -> Any:
        op, of = value.op, self.of
        if op is None:
            return self._argument(value)
        match op.name:
            case "arith.constant":
                found = op.attrs["value"]
                return sympy.Integer(found) if type(found) is int else found
            case "memref.dim":
                return sympy.sympify(of.values[op.operand].sizes[op.attrs["axis"]])
            case "memref.load":
                return self._loaded(op)
            case "scf.if":
                yes, no = If(op).arms(op.results.index(value))
                settled = of.settled.get(op)
                if settled is not None:
                    return self.value(yes if settled else no)
                return self._where(op, lambda b: b.lifted(yes), lambda b: b.lifted(no))
            case "scf.for" | "scf.parallel":
                indices, complete = of.reductions[value]
                return complete(self, [self.value(i) for i in indices])
            case _:
                return self._scalar(op)

    def _argument(self, value: Value) -> Any:
        if value in self.of.indices:
            raise Opaque("the bounds of a loop depend on another one's index")
        if value not in self.of.values:
            raise Opaque("an iteration of a loop needs what another one has computed")
        found = self.of.values[value]
        if isinstance(found, Tensor):  # of one number
            return self.of.ops.to_dtype(found.load([]), torch_type(value.type))
        return found

    def _scalar(self, op: Op) -> Any:
        found = [self.value(v) for v in op.operands]
        if op.name == "arith.select" and isinstance(found[0], bool):
            return found[1] if found[0] else found[2]
        if all(isinstance(v, sympy.Expr) for v in found):
            exact = self._exact(op, *found)
            if exact is not None:
                return exact
        if op.name == "arith.truncf" and isinstance(found[0], float) and (
            op.result.scalar.name == "f32"
        ):  # fmt: skip
            return float(np.float32(found[0]))
        if op.name in OPAQUE:
            raise Opaque(OPAQUE[op.name])
        if is_lossy_on_cpu(op) and not self.of.facts.on_gpu:
            raise Opaque(f"on a CPU Inductor's {op.name.partition('.')[2]} is less accurate")
        if op.name in self.of.facts.lacking:
            raise Opaque(f"this Inductor's {op.name} is less accurate")
        types = [v.scalar for v in (*op.operands, op.result)]
        if any(t.is_float and t.bits == 8 for t in types):
            raise Opaque("it has floats of eight bits, which Inductor rounds otherwise")
        if op.name != "arith.extf" and any(compute_type(t) is not t for t in types):
            raise Opaque("it rounds to half precision before it stores")
        if op.name == "arith.cmpi" and op.attrs["predicate"][0] == "u":
            raise Opaque("it compares integers as unsigned ones")
        if op.name in ("arith.extui", "arith.uitofp", "arith.extsi", "arith.sitofp") and (
            self._is_unsigned(op.operand) != (op.name[6] == "u" or op.name[9:] == "ui")
        ):  # fmt: skip
            raise Opaque("it takes integers for unsigned ones")
        return RULES[op.name](self.of.ops, op, *map(self.lifted, op.operands))

    def _is_unsigned(self, value: Value) -> bool:
        load = made_by(value, "memref.load")
        bytes_ = load is not None and self.of.values[memory(load)[0]].dtype is torch.uint8
        return bytes_ or value.scalar.name == "i1"

    def _exact(self, op: Op, a: Any, b: Any = None) -> Any:
        """What is computed of indices alone, as an expression of indices; None where it is none."""
        known, bits = self.of.facts.known, next(iter(op.operands)).scalar.bits
        match op.name:
            case "arith.addi":
                found = a + b
            case "arith.subi":
                found = a - b
            case "arith.muli":
                found = a * b
            case "arith.floordivsi" if known(b > 0):
                self._check_narrow(a)
                return FloorDiv(a, b)
            case "arith.index_cast" | "arith.extsi" | "arith.trunci" if bits > 1:
                found = a
            case "arith.sitofp" if a.is_Integer:
                return float(np.dtype(op.result.scalar.name.replace("f", "float")).type(int(a)))
            case _:
                return None
        if op.result.scalar.bits < 64:
            self._check_narrow(found, anywhere=True)
        return found

    def _check_narrow(self, found: Any, anywhere: bool = False) -> None:
        """Raises ``Opaque`` where a number that is computed of indices may not fit 32 bits."""
        if not self.of.probing or found.is_Symbol or not (anywhere or self.of.facts.on_gpu):
            return
        ends = found + _NARROW, _NARROW - found
        if not all(map(self.never_negative, ends)) and not self._is_bounded(found):
            raise Opaque("numbers that it computes of indices may need more than 32 bits")

    def _is_bounded(self, found: Any) -> bool:
        """Whether it fits 32 bits where all sizes are known, also if it is not affine."""
        extents = {number: axis.extent for number, axis in self.axes.items()}
        if not all(e.is_Integer and e > 0 for e in extents.values()):
            return False
        ranges = {n: ValueRanges(sympy.Integer(0), e - 1) for n, e in extents.items()}
        if not found.free_symbols <= ranges.keys():
            return False
        # Each part, too: what is divided is computed on the way.
        parts: Any = sympy.preorder_traversal(found)
        bounds: list[Any] = [bound_sympy(part, ranges) for part in parts]
        return all(b.lower >= -_NARROW and b.upper <= _NARROW for b in bounds)

    def never_negative(self, found: Any) -> bool:
        """Of an expression of indices, while probing."""
        for number, axis in self.axes.items():
            found = sympy.expand(found)
            slope = found.coeff(number, 1)
            if (found - slope * number).has(number) or slope.has(*self.axes):
                return False  # it is not affine
            known = self.of.facts.known
            if not known(slope >= 0) and not known(slope <= 0):
                return False
            found = found.subs(number, 0 if known(slope >= 0) else axis.extent - 1)
        return self.of.facts.known(sympy.expand(found) >= 0)

    def _loaded(self, op: Op) -> Any:
        memref, subscripts, _ = memory(op)
        tensor, of = self.of.values.get(memref), self.of
        if not isinstance(tensor, Tensor):
            raise Opaque("it has an array of its own")
        index = [self.value(s) for s in subscripts]
        if tensor.dtype in _UNSIGNED:
            raise Opaque("it has unsigned integers, which Inductor computes otherwise")
        of.loads.append(list(index))
        for k, (found, size) in enumerate(zip(index, tensor.sizes, strict=True)):
            if of.probing:
                of.in_range[op, k] = (
                    isinstance(found, sympy.Expr) and self.never_negative(found)
                    and self.never_negative(size - 1 - found)
                )  # fmt: skip
            if not of.in_range[op, k]:  # Inductor's code checks it
                index[k] = of.ops.indirect_indexing(
                    self.lifted(subscripts[k]), size, check=True, wrap_neg=False
                )
        return tensor.load(index)
