"""Statements other than loops: assignment, accumulation, stores, branches, assertions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from weft.errors import KernelTypeError, Span
from weft.frontend import (
    aggregates,
    casts,
    choices,
    effects,
    elements,
    exchanges,
    expressions,
    generators,
    growing,
    list_methods,
    lists,
    moves,
    named,
    objects,
    overflow,
    records,
    reductions,
    row_order,
    rows,
    slices,
    texts,
    tuple_lists,
)
from weft.frontend.context import STATEMENTS, TARGETS, Lowering
from weft.frontend.kinds import (
    EIGHT_BITS,
    OpaqueKind,
    Operand,
    Part,
    Row,
    Static,
    Tensor,
    Tup,
    TupleList,
    Unbound,
    Vec,
    describe,
    dtype_of,
    flatten,
    is_float,
    is_int,
    promote,
    same_operand,
)
from weft.frontend.names import only_targets
from weft.frontend.scope import assigned, assigning
from weft.ir.core import Block, Op, Value, walk
from weft.ir.views import written_by


def assignment(cx: Lowering, node: ast.Assign) -> None:
    span = cx.span(node)
    if (update := _difference(cx, node)) is not None:
        augmented(cx, update)
        return
    if (exchange := exchanges.exchanged(cx, node)) is not None:
        cx.block(exchange)
        return
    generators.refuse_named(cx, node)
    done, begin = cx.builder.block.ops, len(cx.builder.block.ops)
    operand = cx.expression(node.value)
    if isinstance(node.value, ast.BoolOp) and cx.frame.conditions:
        effects.refuse_skipped(cx, node, node.value, done[begin:])
    for target in node.targets:
        if isinstance(operand, Static) and cx.frame.counts.get(getattr(target, "id", ""), 0) > 1:
            operand = records.of_constant(cx, operand, span) or operand  # it changes in the loop
        operand = moves.assigned(cx, target, node.value, operand, span)
        cx.bind(target, operand, span)


def _difference(cx: Lowering, node: ast.Assign) -> ast.AugAssign | None:
    """``s -= v``, where ``s = s - v`` is an update of an unsigned total that a parallel loop takes
    from, and ``s += v`` likewise (see ``overflow.taken_off``)."""
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name) as target],
            value=ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right),
        ) if name in cx.frame.differences:
            if isinstance(op, ast.Add) and getattr(left, "id", None) != name:
                left, right = right, left
            if getattr(left, "id", None) == name:
                return ast.copy_location(ast.AugAssign(target, op, right), node)
        case _:
            pass
    return None


def annotated(cx: Lowering, node: ast.AnnAssign) -> None:
    """``v: weft.i32 = ...`` casts."""
    if node.value is None:
        return
    span = cx.span(node)
    dtype = casts.dtype_from(cx.expression(node.annotation), cx.span(node.annotation))
    operand = cx.expression(node.value)
    cx.bind(node.target, casts.cast(cx, operand, dtype, span), span)


def augmented(cx: Lowering, node: ast.AugAssign) -> None:
    span = cx.span(node)
    symbol = expressions.BINARY.get(type(node.op))
    if symbol is None:
        expressions.no_operator(type(node.op).__name__, span)
    if isinstance(node.target, ast.Attribute | ast.Subscript):
        part = records.updated(cx, node, symbol, span)
        if part is True:
            return
        if isinstance(part, Part):
            at, value = cx.span(node.target), cx.expression(node.value)
            for tensor, indices, item in elements.stored(cx, part, value, at, span):
                _accumulate_one(cx, tensor, indices, item, symbol, at, span)
            return
    if isinstance(node.target, ast.Subscript):
        base = expressions.holder(cx, node.target.value)
        if elements.is_whole(base) and slices.has_slice(node.target.slice):
            at, value = cx.span(node.target), cx.expression(node.value)
            for part, item in _sliced(cx, base, node.target, value, at):
                _accumulate(cx, part, item, symbol, at, span)
            return
        if isinstance(base, Tensor | Part | Row):
            at = cx.span(node.target)
            target = _target(cx, base, node.target.slice, at)
            if isinstance(target, Part) and target.tensor.key:
                _update(cx, target, node.value, symbol, at, span)
            else:
                _accumulate(cx, target, cx.expression(node.value), symbol, at, span)
            return
        node = _subscripted_once(cx, node)
    if isinstance(node.target, ast.Attribute):
        base = expressions.holder(cx, node.target.value)
        places = aggregates.swizzle(base, node.target.attr)
        if isinstance(base, (Tensor, Part)) and places is not None:
            at, value = cx.span(node.target), cx.expression(node.value)
            count = len(places)
            each = dtype_of(value) is not None
            values = [value] * count if each else aggregates.unpack(value, count, span)
            for place, item in zip(places, values, strict=True):
                element = elements.component(cx, base, place)
                _accumulate_one(cx, *element, item, symbol, at, span)
            return
    cx.pending.clear()
    place = ast.copy_location(_as_load(node.target), node.target)
    old = cx.expression(place)
    if growing.is_growing(old) and symbol == "+":
        list_methods.extend(cx, old, cx.expression(node.value), span)
        return
    if list_methods.is_list(old):
        value = list_methods.binary(cx, symbol, old, cx.expression(node.value), span)
        cx.bind(node.target, moves.assigned(cx, node.target, None, value, span), span)
        return
    list_methods.refuse_nested(old, f"`{symbol}=`", span)
    if rows.is_row(old):
        _accumulate_row(cx, node, old, symbol, span)
        return
    operand = cx.expression(node.value)
    cx.pending.clear()  # `old` itself is changed by what follows
    value = named.augmented(cx, symbol, old, operand, span, place)
    if isinstance(node.target, ast.Name) and node.target.id in cx.frame.differences:
        number = cx.read_scalar(operand, span)
        value = overflow.taken_off(cx, node.target.id, symbol, old, number, span)
    value = expressions.binary(cx, symbol, old, operand, span) if value is None else value
    cx.bind(node.target, value, span)


def _subscripted_once(cx: Lowering, node: ast.AugAssign) -> ast.AugAssign:
    """``v[k] op= w`` reads and writes one place: where there are calls or ``:=``, ``k`` is computed
    once, before ``w``, and has a name from then on."""
    target = node.target
    assert isinstance(target, ast.Subscript)
    nodes = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    if not assigning(target.slice) and not assigning(node.value):
        return node
    given = list[ast.expr]()
    for k in nodes:
        if isinstance(k, ast.Slice | ast.Constant):
            given.append(k)  # slices are of constants
            continue
        name = f"subscript {k.lineno}:{k.col_offset}"
        cx.frame.env[name] = cx.expression(k)
        given.append(ast.copy_location(ast.Name(name, ast.Load()), k))
    place = given[0] if len(given) == 1 else ast.Tuple(given, ast.Load())
    once = ast.Subscript(target.value, ast.copy_location(place, target.slice), target.ctx)
    made = ast.AugAssign(ast.copy_location(once, target), node.op, node.value)
    return ast.copy_location(made, node)


def _target(cx: Lowering, base: Tensor | Part | Row, subscript: ast.expr, at: Span) -> Part | Row:
    """What ``base[subscript]`` names: an element, a whole vector of a field, or a row."""
    if slices.has_slice(subscript):
        list_methods.refuse_nested(base, "a slice", at)
    found = _place(cx, base, subscript, at)
    if isinstance(found, Row):
        list_methods.refuse_nested(found, "an assignment", at)
    return found


def _place(cx: Lowering, base: Tensor | Part | Row, subscript: ast.expr, at: Span) -> Part | Row:
    row = rows.of(cx, base) if isinstance(base, Row) or slices.has_slice(subscript) else None
    if row is not None:
        return rows.place(cx, row, subscript, at)
    assert isinstance(base, Tensor | Part)
    part = elements.subscripted(cx, base, subscript, at)
    if len(part.indices) == part.tensor.rank:
        return part
    return rows.of(cx, part) or part


def _accumulate_row(
    cx: Lowering, node: ast.AugAssign, old: Operand, symbol: str, span: Span
) -> None:
    """``row op= v`` changes what ``row`` is a part of, as in Python."""
    row = rows.of(cx, old)
    assert row is not None
    _accumulate(cx, row, cx.expression(node.value), symbol, cx.span(node.target), span)


def _accumulate(
    cx: Lowering, target: Part | Row, operand: Operand, symbol: str, at: Span, span: Span
) -> None:
    """``x[i] op= v``: an accumulation where the operation has a combiner, else load and store."""
    if isinstance(target, Row):
        rows.store(
            cx, target, operand, lambda part, x: _accumulate(cx, part, x, symbol, at, span), span
        )
        return
    part = target
    if part.tensor.pair and symbol not in "+-":  # no part of a product is one of parts
        old = cx.load_element(*elements.whole(part, at), at)
        operand = expressions.binary(cx, symbol, old, operand, span)
        _store(cx, part, operand, at, span)
        return
    for tensor, indices, item in elements.stored(cx, part, operand, at, span):
        _accumulate_one(cx, tensor, indices, item, symbol, at, span)


def _update(cx: Lowering, part: Part, value: ast.expr, symbol: str, at: Span, span: Span) -> None:
    """``a[k] op= value`` of a list: its element is read before what ``value`` calls stores."""
    if not assigning(value):
        _accumulate(cx, part, cx.expression(value), symbol, at, span)
        return
    done, begin = cx.builder.block.ops, len(cx.builder.block.ops)
    old = cx.load_element(*elements.whole(part, at), at)
    read = len(done)
    operand = cx.expression(value)
    memref, later = part.tensor.memref, Block()
    later.ops = done[read:]
    if any(written_by(op) is memref for op in walk(later)):
        _store(cx, part, expressions.binary(cx, symbol, old, operand, span), at, span)
        return
    del done[begin:read]
    _accumulate(cx, part, operand, symbol, at, span)


def _accumulate_one(
    cx: Lowering, tensor: Tensor, indices: list[Value], operand: Operand, symbol: str, at: Span,
    span: Span,
) -> None:  # fmt: skip
    value = cx.read_scalar(operand, span)
    elements.check_fits(tensor, value, span)
    lists.check_stored(cx, tensor, value, span)
    floats = is_float(promote("bool", dtype_of(value) or "bool"))
    if is_int(tensor.dtype) and floats and not tensor.key:  # a list has floats from the start
        raise KernelTypeError(
            f"`{tensor.name}` holds {tensor.dtype} and a float is accumulated into it", span,
            help="convert with int(...), or make the tensor a float one",
        )  # fmt: skip
    combiner = reductions.AUGMENTED.get(symbol)
    if combiner is None or symbol == "/" or tensor.dtype in EIGHT_BITS or (
        tensor.dtype == "bool" and symbol not in "&|^"
    ):  # fmt: skip
        old = cx.load_real(tensor, indices, at)
        result = overflow.arithmetic(cx, symbol, old, value, span)
        cx.store_element(tensor.memref, tensor.dtype, indices, result, at)
        return
    overflow.fits(cx, value, tensor.dtype, span)
    old = effects.combine(cx, combiner, tensor, indices, value, at, span, less=symbol == "-")
    overflow.added(cx, symbol, old, value, span)


def store(cx: Lowering, target: ast.Subscript, operand: Operand, span: Span) -> None:
    if records.store(cx, target, operand, span):
        return
    base = expressions.holder(cx, target.value)
    at = cx.span(target)
    if elements.is_whole(base) and slices.has_slice(target.slice):
        for part, item in _sliced(cx, base, target, operand, at):
            _store(cx, part, item, at, span)
    elif isinstance(target.slice, ast.Slice) and list_methods.is_list(base):
        list_methods.put(cx, base, target.slice, operand, span)
    elif isinstance(base, Tensor | Part | Row):
        _store(cx, _target(cx, base, target.slice, at), operand, at, span)
    elif isinstance(base, TupleList) and not isinstance(target.slice, ast.Slice):
        place = tuple_lists.place(cx, base, cx.expression(target.slice), at)
        tuple_lists.store(cx, base, place, operand, span)
    elif named.special(base, "__setitem__"):
        given, cx.pending = [cx.expression(target.slice), operand], []  # `base` itself is changed
        named.call_special(cx, base, "__setitem__", given, span)
    elif isinstance(base, Vec) and isinstance(target.value, ast.Name):
        elements.refuse_outer(cx, target.value, at)
        new = aggregates.replace(cx, base, target, operand, span)
        cx.assign(target.value.id, new, span)
    else:
        help = "assign to an element of a tensor, a local array or a vector"
        if isinstance(base, Tup):
            growing.begin_again(cx, target, base, operand)
            help = "make a new one, or use a weft.Vector, a local array, or a name for each item"
        if isinstance(base, Vec) and isinstance(target.value, ast.Subscript):
            inner = ast.unparse(target.slice).removeprefix("(").removesuffix(")")
            place = f"{ast.unparse(target.value)[:-1]}, {inner}]"
            help = f"`{ast.unparse(target.value)}` is a copy of the vector: write {place}"
        raise KernelTypeError(
            f"an element of {describe(base)} cannot be assigned here", span, help=help
        )


def _sliced(
    cx: Lowering, base: Operand, target: ast.Subscript, operand: Operand, at: Span
) -> Iterator[tuple[Part, Operand]]:
    """The numbers of a field's vector or matrix that ``x[i][:, 0]`` names, and what each gets."""
    assert isinstance(base, Part)
    nodes = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    shape = base.tensor.element
    for place, item in aggregates.assigned(cx, shape, nodes, target.value, operand, at):
        inner: list[Operand] = [place]
        if len(shape) == 2:
            inner = [cx.scalars.binary(s, place, Static(shape[1]), at) for s in ("//", "%")]
        indices = [cx.scalars.index(k, at) for k in inner]
        yield Part(base.tensor, [*base.indices, *indices]), item


def _store(cx: Lowering, part: Part | Row, operand: Operand, at: Span, span: Span) -> None:
    if isinstance(part, Row):
        row_order.used(cx, operand, "what is stored here", span)
        rows.store(cx, part, operand, lambda one, x: _store(cx, one, x, at, span), span)
        return
    for tensor, indices, item in elements.stored(cx, part, operand, at, span):
        value = cx.read_scalar(item, span)
        elements.check_fits(tensor, value, span)
        lists.check_stored(cx, tensor, value, span)
        overflow.fits(cx, value, tensor.dtype, span)
        cx.store_element(tensor.memref, tensor.dtype, indices, value, at)


def bind_items(cx: Lowering, target: ast.Tuple | ast.List, operand: Operand, span: Span) -> None:
    """``a, *b = operand``: a name with a star takes as many items as are left, as a tuple."""
    stars = [k for k, e in enumerate(target.elts) if isinstance(e, ast.Starred)]
    row = rows.of(cx, operand)
    if row is not None and not stars:
        operand = rows.unpacked(cx, row, len(target.elts), span)
    if not stars:
        items = aggregates.unpack(operand, len(target.elts), span)
        for element, item in zip(target.elts, items, strict=True):
            cx.bind(element, item, span)
        return
    known = casts.known_items(operand)
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
        cx.bind(element.value if isinstance(element, ast.Starred) else element, item, span)


def set_attribute(cx: Lowering, target: ast.Attribute, value: Operand, span: Span) -> None:
    """``v.x = 1.0``, ``v.xy = w``: makes a new vector of ``v``."""
    if records.store(cx, target, value, span):
        return
    base = expressions.holder(cx, target.value)
    places = aggregates.swizzle(base, target.attr)
    if isinstance(base, (Tensor, Part)) and places is not None:
        for place, item in _spread(places, value, span):
            tensor, indices = elements.component(cx, base, place)
            elements.check_fits(tensor, item, span)
            cx.store_element(tensor.memref, tensor.dtype, indices, item, cx.span(target))
        return
    if places is None or not isinstance(target.value, ast.Name):
        raise KernelTypeError(
            f"cannot assign to `.{target.attr}` of {describe(base)}",
            span,
            help="assign to elements of a tensor or of a vector variable",
        )
    assert isinstance(base, Vec)
    elements.refuse_outer(cx, target.value, cx.span(target))
    items = list(base.items)
    for place, item in _spread(places, value, span):
        items[place] = item  # type: ignore[assignment]
    cx.assign(target.value.id, Vec(items, base.shape), span)


def _spread(places: list[int], value: Operand, span: Span) -> Iterable[tuple[int, Operand]]:
    """What goes to each of the places of a vector that are assigned ``value``."""
    values = [value] if len(places) == 1 else aggregates.unpack(value, len(places), span)
    return zip(places, values, strict=True)


def evaluate(cx: Lowering, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, (str, type(...))):
        return
    outer, cx.discarded = cx.discarded, node.value
    cx.expression(node.value)
    cx.discarded = outer


def branch(cx: Lowering, node: ast.If) -> None:
    test = expressions.test(cx, node.test)
    if isinstance(test, Static):
        cx.block(node.body if test.value else node.orelse)
        return
    jumps = getattr(node, "weft_jumps", (False, False))
    names = assigned([*node.body, *node.orelse])
    before = dict(cx.frame.env)
    op = cx.builder.if_(test.value)
    ends: list[dict[str, Operand]] = []
    for region, body in zip(op.regions, (node.body, node.orelse), strict=True):
        cx.frame.env = dict(before)
        with cx.builder.at(region):
            cx.block(body)
        ends.append(cx.frame.env)
    cx.frame.env = before
    # A side whose conditions are constant may be found to jump wherever it leads.
    flags = [end.get(getattr(node, "weft_flag", "")) for end in ends]
    known = [isinstance(flag, Static) and flag.value is True for flag in flags]
    left = [j or k for j, k in zip(jumps, known, strict=True)]
    _merge(cx, op, names, ends, left, cx.span(node), [*node.body, *node.orelse])


def _merge(
    cx: Lowering,
    op: Op,
    names: dict[str, int],
    ends: list[dict[str, Operand]],
    left: list[bool],
    span: Span,
    body: list[ast.stmt],
) -> None:
    """Joins what the two branches of ``op`` left in ``names``; ends both with scf.yield. ``left``:
    which of them always jump, so that nothing behind is read there. ``body``: their statements."""
    yields: list[list[Value]] = [[], []]
    for name in names:
        sides = [end.get(name) for end in ends]
        if all(s is None for s in sides):
            continue
        known = name.startswith(".") and isinstance(sides[0], Static)  # a jump on both sides
        if sides[0] is sides[1] or (known and same_operand(*sides)):
            cx.frame.env[name] = sides[0]  # type: ignore[assignment]
            continue
        missing = [s is None or isinstance(s, Unbound) for s in sides]
        present = next((s for s, m in zip(sides, missing, strict=True) if not m), None)
        if present is None:
            cx.frame.env[name] = Unbound("it is assigned only in some branches")
            continue
        kind = cx.widen(name, present, span)
        opaque = isinstance(kind, OpaqueKind)
        read = any(m and not gone for m, gone in zip(missing, left, strict=True))
        if any(missing) and (opaque or (read and not name.startswith("."))):
            cx.frame.env[name] = Unbound("it is assigned in only one branch of an `if`")
            continue
        if opaque:
            if not same_operand(*sides):
                both = [s for s in sides if s is not None]
                row = choices.either(cx, op, both, yields, name, span) if len(both) == 2 else None
                if row is not None:
                    cx.frame.env[name] = row
                    continue
                if name in only_targets(body):
                    cx.frame.env[name] = Unbound("loops in the branches of an `if` assign it")
                    continue
                cx.join(OpaqueKind(sides[0]), OpaqueKind(sides[1]), name, span)
            cx.frame.env[name] = present
            continue
        if any(missing):
            cx.frame.guarded.add(name)
        for region, side, gone, values in zip(op.regions, sides, missing, yields, strict=True):
            with cx.builder.at(region):
                if gone:
                    values += [cx.builder.constant(0, t) for t in cx.types(kind)]
                else:
                    assert side is not None
                    values += flatten(cx.coerce(side, cx.widen(name, side, span), span))
        first = len(op.results)
        op.results += [Value(t, name, op) for t in cx.types(kind)]
        made = cx.rebuild(kind, iter(op.results[first:]))
        cx.frame.env[name] = objects.of_sides(made, [s for s in sides if s is not None])
    for region, values in zip(op.regions, yields, strict=True):
        with cx.builder.at(region):
            cx.builder.do("scf.yield", *values)


def assertion(cx: Lowering, node: ast.Assert) -> None:
    test = expressions.test(cx, node.test)
    if isinstance(test, Static):
        test = cx.scalars.constant(bool(test.value), "bool")
    span, message = cx.span(node), texts.message(cx, node)
    cx.builder.span = span
    if message is not None:
        cx.builder.do("weft.assert", test.value, message=message)
        return
    assert node.msg is not None
    with cx.builder.when(cx.scalars.negation(test, span).value):  # what fails computes its message
        texts.failed(cx, node.msg, span)


def nothing(cx: Lowering, node: ast.stmt) -> None:
    """``pass``."""


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


STATEMENTS.update(
    {
        ast.Assign: assignment,
        ast.AnnAssign: annotated,
        ast.AugAssign: augmented,
        ast.Expr: evaluate,
        ast.If: branch,
        ast.Assert: assertion,
        ast.Pass: nothing,
    }
)
TARGETS.update(
    {
        ast.Tuple: bind_items,
        ast.List: bind_items,
        ast.Subscript: store,
        ast.Attribute: set_attribute,
    }
)
