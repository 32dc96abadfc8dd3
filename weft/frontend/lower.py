"""A device loop of a kernel, from Python's syntax tree to IR: statements.

The types of variables are inferred by lowering: the kind of a name is the join of all that is
assigned to it, in any order. When an assignment widens the kind of a name that was already used,
the whole loop is lowered once more with what is now known; kinds only widen, so this ends, and most
loops need one or two rounds.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import (
    aggregates,
    calls,
    comparisons,
    complexes,
    draws,
    expressions,
    from_end,
    generators,
    growing,
    guarded_loads,
    iterators,
    loops,
    members,
    moves,
    overflow,
    reductions,
    refused,
    row_order,
    statements,
    uncallable,
)
from weft.frontend.accumulations import ATOMIC
from weft.frontend.advice import advise
from weft.frontend.config import block_dim
from weft.frontend.context import Again, Form, Lowering, key_of
from weft.frontend.desugar import desugar_body, desugar_function, leaving
from weft.frontend.hints import is_once, noting
from weft.frontend.host import BOTH, IN_PLACE
from weft.frontend.kinds import (
    EIGHT_BITS,
    STORAGE,
    UNSIGNED,
    Box,
    ComplexKind,
    Kind,
    Method,
    OpaqueKind,
    Operand,
    RegionChanged,
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
    flatten,
    is_complex,
    is_float,
)
from weft.frontend.names import bound_names, stored_lists
from weft.frontend.room import Rooms
from weft.frontend.scalars import Scalars
from weft.frontend.scope import Frame, Guard, cells_of, note_counts
from weft.frontend.specs import CAPTURED_BITS, ConstSpec, ScalarSpec, Spec, TensorSpec, TupleSpec
from weft.frontend.split import Region
from weft.ir import types as ir
from weft.ir.builder import Builder, identity
from weft.ir.core import Function, Op, Value
from weft.lang.elements import Elementwise
from weft.settings import deeply
from weft.source import FunctionSource, subtree
from weft.values import mutable

TotalKind = ScalarKind | ComplexKind | VecKind | TupKind  # of what a loop reduces into

# All that say in the tables of context.py what they lower.
LEAVES = (calls, comparisons, expressions, generators, iterators, loops, statements)
MOST_ROUNDS = 20


@mutable
class Lowered:
    """What the frontend makes of one region."""

    function: Function
    results: list[tuple[str, str]]  # (name, tensor dtype) of what the loop reduces into
    guards: list[Guard]
    typed_source: str


@deeply
def lower(
    region: Region, specs: dict[str, Spec], source: FunctionSource, *, debug: bool = False
) -> Lowered:
    """Lowers ``region`` for arguments as ``specs`` says (by name). Raises ``CompileError``s."""
    kinds: dict[tuple[Any, ...], Kind] = {}
    sources: dict[Any, FunctionSource] = {}  # what rounds note at nodes stays
    homes: dict[tuple[Any, ...], Form] = {}
    wanted: set[tuple[Any, ...]] = set()
    rooms = Rooms()
    rounds, known = 0, 0
    while rounds < MOST_ROUNDS + 3 * len(kinds):  # one may widen one variable: int, float, f64
        rounds += 1
        kinds = {key: kind for key, kind in kinds.items() if not isinstance(kind, OpaqueKind)}
        before = {**kinds}
        rooms.begin()
        lowering = Lowering(
            region, specs, source, kinds, debug, sources=sources, homes=homes, rooms=rooms,
            wanted=wanted,
        )  # fmt: skip
        try:
            lowered = _run(lowering)
        except Again as again:
            learned = _learned(lowering)
            kinds = {} if not again.kinds_stay else before | learned if learned else kinds
            if len(homes) + len(wanted) > known:  # a list that is found to change places, or a
                rounds, known = 0, len(homes) + len(wanted)  # name to be carried, begins it anew
            continue
        except RegionChanged:
            raise
        except Exception as error:
            lowered = _once_more(lowering, error)
        if lowering.failed is not None:
            lowered = _once_more(lowering, lowering.failed)
        if learned := _learned(lowering):
            kinds = before | learned
            continue
        if lowered is None:
            continue
        if not lowering.widened and rooms.are_made():
            continue
        if not lowering.widened:
            _advise(lowering)
            print(*lowering.printed, sep="", end="")
            source.printed |= bool(lowering.printed)
            return lowered
    raise AssertionError("types did not settle")


def _learned(cx: Lowering) -> dict[tuple[Any, ...], Kind]:
    """What lists hold that were empty when they were made, as far as this round has found out. What
    it read of them had another kind, and so has all that came of that."""
    return {key: cx.kinds[key] for key in cx.empty if key in cx.kinds}


def _once_more(cx: Lowering, error: Exception) -> None:
    """Raises what a round has found wrong, if it knew what all lists hold when it began, or has not
    found out."""
    if cx.failed is None or not cx.empty & cx.kinds.keys():
        raise cx.failed or error


def _run(cx: Lowering) -> Lowered:
    # Where Python might have run the loop, its numbers are Python's.
    wide = cx.region.either is not None or any(_has_f64(s) for s in cx.specs.values())
    own_float = ir.f64 if wide else ir.f32
    types, names = [], []
    for name, spec in cx.specs.items():
        for t in _ir_types(spec):
            types.append(t)
            names.append(name)
    node, span = cx.region.node, cx.source.span(cx.region.node)
    attrs: dict[str, Any] = {"kernel": cx.source.name, "float": own_float.name}
    function = Function(f"{cx.source.name}_{cx.region.index}", types, names, attrs, span)
    cx.builder = Builder(function.body, span)
    cx.scalars = Scalars(cx.builder, own_float)
    cx.scalars.conversions.of_whole = functools.partial(uncallable.host_loop, cx)
    cx.frame = Frame(cx.source, ())
    cx.frame.cells |= cells_of(cx.source.function)
    values = iter(function.args)
    for k, (name, spec) in enumerate(cx.specs.items()):
        operand = argument(cx, name, spec, values)
        if cx.region.args[k].pair and isinstance(operand, Tup):
            operand = complexes.of_parts(cx.scalars, operand.items, span)
        if isinstance(spec, ScalarSpec) and spec.captured:
            assert isinstance(operand, Scalar)
            place = frozenset([cx.region.args[k].place])
            operand = Varying(operand.value, spec.kind, place, CAPTURED_BITS)
        cx.frame.arguments[name] = operand
        if isinstance(operand, Static):
            operand.key = key_of(cx, cx.region.args[k])
            operand.read = lambda args, k=k: args[k]
    for name, form, names in cx.region.collections:
        given = iter([cx.frame.arguments[member] for member in names])
        found = members.whole(form, given)
        if isinstance(found, Vec):  # its numbers may be 0-d tensors
            found = Vec([cx.read_scalar(x, span) for x in found.items], found.shape)
        cx.frame.arguments[name] = found
    cx.operands = dict(cx.frame.arguments)
    _device_attributes(cx)
    results = _parallel(cx, node, function)
    cx.builder.do("func.return")
    from_end.settle(cx, function)
    draws.number(function, cx.draws)
    if not cx.widened:
        row_order.check(cx, function)
        guarded_loads.guard(cx, function)
    guards = list({guard.place: guard for guard in cx.guards}.values())
    return Lowered(function, results, guards, _typed_source(cx))


def argument(cx: Lowering, name: str, spec: Spec, values: Iterator[Value]) -> Operand:
    if isinstance(spec, ConstSpec):
        if isinstance(spec.value, (tuple, list)):
            return aggregates.static_tuple(spec.value)
        if isinstance(spec.value, Elementwise):
            return expressions.vector(spec.value)
        return Static(spec.value)
    if isinstance(spec, TupleSpec):
        items = [argument(cx, name, item, values) for item in spec.items]
        return Tup(items, getattr(spec.kind, "_fields", ()), spec.kind)
    value = next(values)
    if isinstance(spec, TensorSpec):
        return Tensor(value, spec.dtype, name, shape=spec.shape, element=spec.element,
                      backing=spec.backing, clamped=spec.clamped, pair=spec.pair,
                      offset=spec.offset, of_field=spec.of_field)  # fmt: skip
    assert isinstance(spec, ScalarSpec)
    if spec.dtype in EIGHT_BITS:
        return cx.scalars.cast_exactly(Scalar(value, "f32"), spec.dtype, cx.builder.span)
    if spec.dtype is not None:
        return Scalar(value, spec.dtype)
    if spec.kind == "float" and not spec.captured:
        return cx.scalars.cast(Scalar(value, "f64"), "float", cx.builder.span)
    return Scalar(value, spec.kind)


def _device_attributes(cx: Lowering) -> None:
    """``x.shape``, evaluated by the host, is better known as the dimensions of ``x`` itself."""
    for name in list(cx.frame.arguments):
        root, _, attribute = name.rpartition(".")
        tensor = cx.frame.arguments.get(root)
        if attribute and isinstance(tensor, Tensor) and tensor.backing:
            del cx.frame.arguments[name]  # as it is when it is read
        elif (
            isinstance(tensor, Tensor)
            and attribute not in ("real", "imag")
            and not isinstance(cx.frame.arguments[name], Tensor)  # x.grad, x.T
        ):
            known = expressions.attribute(cx, tensor, attribute, cx.builder.span)
            given = getattr(cx.frame.arguments[name], "value", None)
            if not isinstance(known, Method) or callable(given):  # else it is x.is_cuda, x.itemsize
                cx.frame.arguments[name] = known


def _parallel(cx: Lowering, node: ast.For, function: Function) -> list[tuple[str, str]]:
    b, names = cx.builder, list(cx.region.results)
    ordered = is_once(node)
    body, combiners = _body(cx, node, names)
    cx.frame.conditions = {name for name, how in combiners.items() if how in ("and", "or")}
    cx.frame.stored, cx.frame.grown = stored_lists(node), growing.grown(node)
    note_counts(cx.frame, [*body, ast.copy_location(ast.For(node.target, node.iter, [], []), node)])
    iterable = cx.expression(node.iter)
    lowers, uppers, steps, bind = loops.space(cx, node, iterable, ordered=False)
    # Lowering the body finds the types of the reduced names; the loop is built around it after.
    inits: list[Value] = []
    kinds: list[str] = []
    totals: list[TotalKind] = []
    starts: list[Operand] = []
    checked: list[overflow.Sum] = []  # in debug mode
    for name in names:
        initial, kind = _before(cx, node, name)
        _check_total(cx, name, kind, combiners[name], cx.span(node))
        totals.append(kind)
        starts.append(cx.coerce(initial, kind, cx.span(node)))
        dtypes = dtypes_of(kind)
        combiners[name] = combiners[name] or ("or" if dtypes[0] == "bool" else "add")
        combined = [reductions.kind(combiners[name], dtype) for dtype in dtypes]
        # In order, the start is carried into the iteration, whose end is all.
        inits += _identities(cx, kind, combined) if ordered else flatten(starts[-1])
        kinds += combined
        if cx.debug and {*combined} == {"addi"} and len({*dtypes}) == 1 and not ordered:
            signs = reductions.signs(body, name) if dtypes[0] in UNSIGNED else {""}
            if "-" in signs:
                cx.frame.differences[name] = len(signs) == 1
            if len(signs) == 1:  # else the bits of an iteration's part do not say its sign
                start = flatten(starts[-1])
                checked.append(overflow.Sum(cx, name, dtypes[0], start, less=signs == {"-"}))
    inits += [half for total in checked for half in total.inits]
    kinds += ["addi"] * (len(inits) - len(kinds))
    if block := block_dim(cx, len(lowers)):
        function.attrs["block_dim"] = tuple(block)
    loop = b.parallel(lowers, uppers, steps, inits, kinds)
    if cx.debug and isinstance(iterable, Box) and iterable.grouped:
        loop.attrs["grouped"] = True  # for messages
    block = loop.body
    for value, name in zip(
        block.args, loops.target_names(node.target, len(block.args)), strict=True
    ):
        value.name = name
    for value, lower in zip(block.args, lowers, strict=True):
        cx.counted(value, lower)
    cx.iteration = list(block.args)
    with b.at(block):
        for name, kind, start in zip(names, totals, starts, strict=True):
            combined = [reductions.kind(combiners[name], dtype) for dtype in dtypes_of(kind)]
            zeros = _identities(cx, kind, combined)
            cx.frame.env[name] = start if ordered else cx.rebuild(kind, iter(zeros))
        indices = bind([Scalar(v, "int") for v in block.args])
        draws.begin(cx, flatten(indices), list(zip(lowers, uppers, strict=True)))
        cx.bind(node.target, indices, cx.span(node))
        moves.begin(cx, body, {}, cx.span(node))
        cx.block(body)
        moves.check(cx)
        places = {name: flatten(cx.coerce(cx.frame.env[name], kind, cx.span(node)))
                  for name, kind in zip(names, totals, strict=True)}  # fmt: skip
        finals = [v for name in names for v in places[name]]
        finals += [half for total in checked for half in total.parts(places[total.name])]
        b.do("scf.reduce", *finals)
    cx.iteration = []
    count = sum(len(cx.types(kind)) for kind in totals)
    overflow.check_sums(checked, loop.results[count:], cx.span(node))
    return _handed_on(cx, function, totals, loop, cx.span(node))


def _identities(cx: Lowering, kind: TotalKind, combined: Sequence[str]) -> list[Value]:
    pairs = zip(combined, cx.types(kind), strict=True)
    return [cx.builder.constant(identity(how, t), t) for how, t in pairs]


def dtypes_of(kind: Kind) -> list[str]:
    """The dtype of each number that a total is made of."""
    if isinstance(kind, TupKind):
        return [dtype for item in kind.items for dtype in dtypes_of(item)]
    count = (
        math.prod(kind.shape) if isinstance(kind, VecKind) else 1 + isinstance(kind, ComplexKind)
    )
    return [kind.dtype] * count if not isinstance(kind, OpaqueKind) else []


def _before(cx: Lowering, node: ast.For, name: str) -> tuple[Operand, TotalKind]:
    """What ``name``, which the loop accumulates into, is before it, and the kind of its total."""
    before = cx.frame.lookup(name, cx.span(node), cx.guards)
    is_scalar = dtype_of(before) is not None or is_complex(before)
    atomic = next((n for s in node.body for n in subtree(s) if _is_atomic(n, name)), None)
    # A number that the host part has read from a field is a tensor, too: `s = x[0]`.
    given = any(a.name == name and a.parameter is not None for a in cx.region.args)
    if atomic is not None and isinstance(before, Tensor) and (given or before.rank):
        raise KernelTypeError(
            f"an atomic on `{name}`, which is {describe(before)}", cx.span(atomic),
            help=f"write {name}[None], its element",
        )  # fmt: skip
    if isinstance(before, Tensor) and not given:
        reductions.check_names(cx.source.tree, cx.region.node, name, cx.span(atomic or node))
    total = isinstance(before, Vec | Tup) and name in cx.region.vector_results
    if not (is_scalar or total or (isinstance(before, Tensor) and before.rank == 0)):
        raise KernelTypeError(
            f"`{name}` is {describe(before)}, and a parallel loop accumulates into numbers, "
            "and vectors and structs of them",
            cx.span(node),
            help="use one variable for each member, a weft.Struct, or accumulate into a tensor",
        )
    initial = _numbers(cx, before, cx.span(node))
    # A sum of elements wraps as they do, with what it begins with.
    kind = cx.widen(name, initial, cx.span(node), wraps=not is_once(node))
    assert isinstance(kind, ScalarKind | ComplexKind | VecKind | TupKind)
    _check_in_place(cx, node, name, before, kind)
    return initial, kind


def _check_in_place(
    cx: Lowering, node: ast.For, name: str, before: Operand, kind: TotalKind
) -> None:  # fmt: skip
    """Refuses a total that torch would not add to the tensor ``name`` in place, and one that would
    be this tensor or another in the next loop, as its elements are."""
    if not isinstance(before, Tensor):
        return
    if name in getattr(cx.region.node, BOTH, ()):
        raise KernelTypeError(
            f"a loop adds to `{name}`, which changes the tensor that is passed, and another loop "
            "gives the name another value", cx.span(node),
            help=f"use two names, or begin with a copy: {name} = {name}.clone()",
        )  # fmt: skip
    if name not in getattr(cx.region.node, IN_PLACE, ()):
        return
    if not all(_fits(before.dtype, dtype) for dtype in dtypes_of(kind)):
        raise KernelTypeError(
            f"`{name}` is {describe(before)} of {before.dtype}, to which the loop adds {kind} in "
            "place", cx.span(node),
            help=f"write `{name} = {name} + ...`, which leaves the tensor as it is, or pass one of "
            f"{kind}",
        )  # fmt: skip


def _fits(storage: str, dtype: str) -> bool:
    """Whether torch adds numbers of ``dtype`` to a tensor of ``storage`` in place."""
    tensor, number = (2 if is_float(d) else d != "bool" for d in (storage, dtype))
    return number <= tensor


def _numbers(cx: Lowering, x: Operand, span: Span) -> Operand:
    """``x`` with the numbers of the 0-d tensors in it."""
    if isinstance(x, Tup):
        return Tup([_numbers(cx, item, span) for item in x.items], x.names, x.struct, x.objects)
    if isinstance(x, Vec):
        return Vec([cx.read_scalar(item, span) for item in x.items], x.shape)
    return cx.read_number(x, span)


def _body(
    cx: Lowering, node: ast.For, names: list[str]
) -> tuple[list[ast.stmt], dict[str, str]]:  # fmt: skip
    """The statements of an iteration, and how each of ``names`` is accumulated into: "" of a loop
    in order, whose only iteration hands on what it has in the end."""
    ordered = is_once(node)
    for jump in (j for statement in node.body for j in leaving(statement) if not ordered):
        message, help = refused.STATEMENTS[type(jump)]
        raise KernelSyntaxError(message, cx.span(jump), help)
    for name in names:
        if isinstance(tensor := cx.operands.get(name), Tensor) and tensor.rank:
            assigns = (s for s in subtree(node) if isinstance(s, ast.Assign | ast.AugAssign))
            found = next((s for s in assigns if name in bound_names(s)), node)
            raise KernelSyntaxError(
                f"`{name}` is {describe(tensor)}: a device loop assigns its elements",
                cx.span(found), help=f"write {name}[...] = ..." + uncallable.host_loop(cx),
            )  # fmt: skip
    if ordered:
        body = desugar_function(noting(node.body), valued=False, read_after=names)
        return body, dict.fromkeys(names, "")
    for name in {*names} & {*bound_names(node.target)}:
        raise KernelSyntaxError(
            f"`{name}` comes from before the parallel loop and is its index",
            cx.span(node.target), help="give the index a name of its own",
        )  # fmt: skip
    body = reductions.rewrite(node.body, names)
    combiners = {n: reductions.combiner(body, n, cx.source) for n in names}
    return desugar_body(body), combiners


def _handed_on(
    cx: Lowering,
    function: Function,
    totals: Sequence[TotalKind],
    loop: Op,
    span: Span,
) -> list[tuple[str, str]]:
    """Stores the results of the loop into tensors that are arguments; their names and dtypes."""
    results = []
    dtypes = [dtype for kind in totals for dtype in dtypes_of(kind)]
    own = loop.results[: len(dtypes)]  # there are others behind them in debug mode
    for name, dtype, value in zip(cx.region.totals, dtypes, own, strict=True):
        storage = {"int": "i64", "float": cx.scalars.float_type.name}.get(dtype, dtype)
        out = Value(ir.MemRefType(STORAGE[storage], 0), name, function.body)
        function.body.args.append(out)
        cx.store_element(out, storage, [], Scalar(value, dtype), span)
        results.append((name, storage))
    return results


def _is_atomic(node: ast.AST, name: str) -> bool:
    """Whether it was written as an atomic on ``name``."""
    return hasattr(node, ATOMIC) and name in bound_names(node)


def _check_total(cx: Lowering, name: str, kind: TotalKind, combiner: str, span: Span) -> None:
    """Refuses complex numbers that a parallel loop accumulates otherwise than by adding them to
    one."""
    if not isinstance(kind, ComplexKind):
        return
    if name not in cx.region.complex_results:
        raise KernelTypeError(
            f"complex numbers are added to `{name}`, which is real before the loop", span,
            help=f"begin with a complex number: {name} = 0j",
        )  # fmt: skip
    if combiner not in ("add", ""):
        raise KernelTypeError(
            f"`{name}` accumulates complex numbers by {combiner}, and only sums of them are there",
            span, help="let the loop run in order: weft.loop_config(serialize=True) before it, "
            "with the number in a tensor",
        )  # fmt: skip


def _advise(cx: Lowering) -> None:
    """Warns of what probably means something else than was meant."""
    dtypes = {
        key[-1]: kind.dtype
        for key, kind in cx.kinds.items()
        if isinstance(kind, ScalarKind | VecKind) and key[:-1] == ()
    }
    tensors = {name for name, operand in cx.operands.items() if isinstance(operand, Tensor)}
    advise(cx.region.node, cx.source, dtypes, tensors)


def _typed_source(cx: Lowering) -> str:
    """The loop's own text with the inferred types of what each line assigns."""
    node = cx.region.node
    lines = []
    for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
        text = cx.source.lines.get(number, "")
        note = cx.notes.get(number)
        if note:
            shown = ", ".join(f"{n}: {k}" for n, k in note.items() if not n.startswith("."))
            text = f"{text:<60}  # {shown}" if shown else text
        lines.append(text)
    return "\n".join(lines)


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
