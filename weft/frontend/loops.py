"""Loops inside a device loop: iteration spaces, carried variables, early exits."""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from weft.errors import KernelSyntaxError, KernelTypeError, Span
from weft.frontend import (
    as_statements,
    casts,
    draws,
    elements,
    expressions,
    growing,
    objects,
    records,
    sequences,
)
from weft.frontend.context import STATEMENTS, TWO_KINDS, Again, Lowering
from weft.frontend.desugar import RETURN_VALUE, unless
from weft.frontend.hints import ITERATION
from weft.frontend.kinds import (
    Box,
    Items,
    Kind,
    OpaqueKind,
    Operand,
    Range,
    Scalar,
    Static,
    Tensor,
    Tup,
    TupKind,
    Unbound,
    Vec,
    constant_value,
    describe,
    flatten,
    holds_objects,
    kind_of,
    same_operand,
)
from weft.frontend.names import bound_names, only_targets
from weft.frontend.scope import assigned
from weft.ir import types as ir
from weft.ir.core import Value
from weft.ir.trips import trip_count
from weft.ir.views import While
from weft.source import subtree

# Steps from here on may take what they are added to past 64 bits.
_LONG = 1 << 31
_NONE = Unbound("it has no value")


def space(
    cx: Lowering, node: ast.For, iterable: Operand, *, ordered: bool = True
) -> tuple[list[Value], list[Value], list[Value], Callable[[list[Scalar]], Operand]]:
    """Bounds of the iteration space of a ``for``, and what its target is bound to. Where it is not
    ``ordered``, a range that goes down is gone through from its end."""
    b, span = cx.builder, cx.span(node.iter)
    zero, one = b.constant(0, ir.index), b.constant(1, ir.index)
    index = cx.scalars.index

    def whole(items: list[Scalar]) -> Operand:
        return items[0] if len(items) == 1 else Tup(list(items))

    if isinstance(iterable, Range):
        lower, upper, step = iterable.lower, iterable.upper, iterable.step
        if isinstance(step, Static) and 0 < step.value < _LONG:
            return [index(lower, span)], [index(upper, span)], [index(step, span)], whole
        count = _trips(cx, iterable, span)
        if not ordered:
            return *_rising(cx, iterable, count, span), whole

        def nth(items: list[Scalar]) -> Operand:
            offset = cx.scalars.binary("*", items[0], step, span)
            return cx.scalars.binary("+", lower, offset, span)

        return [zero], [count], [one], nth
    if isinstance(iterable, Box):
        lowers = [index(lo, span) for lo, _ in iterable.bounds]
        uppers = [index(hi, span) for _, hi in iterable.bounds]
        n = len(lowers)
        vector = (lambda items: Vec(list(items), (n,))) if iterable.grouped else whole
        return lowers, uppers, [one] * n, vector
    iterable = records.over(cx, iterable, span)
    if isinstance(iterable, Tensor) and iterable.lattice:
        bounds = elements.subscripts_of(cx, iterable, span)
        lowers, uppers = ([index(b, span) for b in side] for side in zip(*bounds, strict=True))
        return lowers, uppers, [one] * len(lowers), whole
    if isinstance(iterable, Items):
        return [zero], [index(iterable.count, span)], [one], lambda items: iterable.item(items[0])
    if isinstance(constant_value(iterable), set | frozenset):
        raise KernelTypeError("a loop over a set, whose order is open", span,
                              help="write sorted(...) around it")  # fmt: skip
    raise KernelTypeError(
        f"a kernel cannot loop over {describe(iterable)}", span,
        help="loop over range(...), weft.ndrange(...) or a tensor; write weft.serial(...) around "
        "what Python itself shall loop over",
    )  # fmt: skip


def _rising(
    cx: Lowering, r: Range, count: Value, span: Span
) -> tuple[list[Value], list[Value], list[Value]]:
    """The numbers of a range of ``count`` numbers, the least one first."""
    s, op = cx.scalars, cx.scalars.binary
    trips = Scalar(count, "int")
    way = op("*", op("-", trips, Static(1), span), r.step, span)
    last = op("+", r.lower, way, span)
    if isinstance(r.step, Static):
        lower, step = (last, Static(-r.step.value)) if r.step.value < 0 else (r.lower, r.step)
    else:
        down = s.truth(s.compare("<", r.step, Static(0), span), span)
        lower = s.select(down, last, r.lower, span)
        step = s.extreme(">", s.magnitude(r.step, span), Static(1), span)
    upper = op("+", lower, op("*", trips, step, span), span)
    bounds = s.index(lower, span), s.index(upper, span), s.index(step, span)
    if not _is_short(r.step):
        again = cx.builder.trip_count(*bounds)
        _assert(
            cx,
            s.compare("==", Scalar(again, "int"), trips, span),
            span,
            "the numbers of this range and the one behind them need more than 64 bits",
        )
    return [bounds[0]], [bounds[1]], [bounds[2]]


def _is_short(step: Operand) -> bool:
    return isinstance(step, Static) and abs(step.value) < _LONG


def _assert(cx: Lowering, condition: Operand, span: Span, message: str) -> None:
    ok = cx.scalars.truth(condition, span)
    with cx.builder.about(span):
        cx.builder.do("weft.assert", ok, message=message)


def _trips(cx: Lowering, r: Range, span: Span) -> Value:
    """How many numbers a range has whose step is negative or not known."""
    s, b = cx.scalars, cx.builder
    least, most = r.upper, r.lower
    if isinstance(r.step, Static):
        if r.step.value == 0:
            raise KernelTypeError("the step of a range must not be 0", span, help="use 1 or -1")
        if _is_short(r.step):
            by = Static(-r.step.value)
            return s.index(trip_count(_Operands(cx, span), least, most, by), span)
        if r.step.value > 0:
            least, most = most, least
    else:
        down = s.truth(s.compare("<", r.step, Static(0), span), span)
        least = s.select(down, r.upper, r.lower, span)
        most = s.select(down, r.lower, r.upper, span)
        _assert(cx, s.compare("!=", r.step, Static(0), span), span, "the step of a range is 0")
    step = s.magnitude(r.step, span)
    return b.whole_trip_count(s.index(least, span), s.index(most, span), s.index(step, span))


class _Operands:
    """What a kernel's text computes with, for trip counts."""

    _OPS: ClassVar = {"addi": "+", "subi": "-", "floordivsi": "//"}

    def __init__(self, cx: Lowering, span: Span) -> None:
        self.cx = cx
        self.span = span

    def constant(self, value: Operand) -> int | None:
        return int(value.value) if isinstance(value, Static) else None

    def number(self, value: int) -> Operand:
        return Static(value)

    def op(self, name: str, a: Operand, b: Operand) -> Operand:
        if name == "maxsi":
            return self.cx.scalars.extreme(">", a, b, self.span)
        return self.cx.scalars.binary(self._OPS[name], a, b, self.span)


def _carried(cx: Lowering, node: ast.For | ast.While) -> dict[str, Kind]:
    """The variables that live before a loop and are assigned in it."""
    span = cx.span(node)
    flag = getattr(node, "weft_break", "")
    if flag:
        cx.assign(flag, Static(False), span)
    carried: dict[str, Kind] = {}
    names = assigned([*_test(node), *node.body])
    if isinstance(node, ast.For):
        names |= dict.fromkeys(_names(node.target), 2)  # a name from before keeps the last index
    if flag:
        names.setdefault(flag, 2)
    for name in names:
        operand = cx.frame.env.get(name)
        if operand is None and name == RETURN_VALUE:
            operand = _return_value(cx, span)
        if operand is None:
            operand = cx.frame.arguments.get(name)
            if operand is None or not _changes(operand):
                continue
        if isinstance(operand, Unbound):
            continue
        kind = cx.widen(name, operand, span)
        if isinstance(kind, OpaqueKind):
            if name in only_targets(node.body):  # the last one of an earlier turn, who reads it
                cx.frame.env[name] = Unbound("a loop inside of another one assigns it")
            continue
        cx.frame.env[name] = cx.coerce(operand, kind, span)
        if isinstance(kind, TupKind):
            kind = objects.carried(cx, node, name, kind, operand)
        carried[name] = kind
    return carried


def _test(node: ast.For | ast.While) -> list[ast.stmt]:
    """The condition of a ``while`` loop, as a statement."""
    return [ast.Expr(node.test)] if isinstance(node, ast.While) else []


def _return_value(cx: Lowering, span: Span) -> Operand | None:
    """Zeros for the value of a function that may return from inside a loop."""
    kind = cx.kinds.get((*cx.frame.path, RETURN_VALUE))
    if kind is None:
        cx.widened = True  # known once the loop was lowered: in the next round
        return None
    if isinstance(kind, OpaqueKind):
        raise KernelTypeError(f"{describe(kind.operand)} is returned from inside a loop", span,
                              help="return numbers or vectors")  # fmt: skip
    return zeros(cx, kind)


def zeros(cx: Lowering, kind: Kind) -> Operand:
    """A value of ``kind``, for where none is read."""
    return cx.rebuild(kind, iter([cx.builder.constant(0, t) for t in cx.types(kind)]))


def _enter(cx: Lowering, carried: dict[str, Kind], values: Sequence[Value]) -> None:
    remaining = iter(values)
    for name, kind in carried.items():
        cx.frame.env[name] = cx.rebuild(kind, remaining)
        for value in flatten(cx.frame.env[name]):
            value.name = name


def _leave(cx: Lowering, carried: dict[str, Kind], node: ast.For | ast.While) -> list[Value]:
    span, values, again = cx.span(node), list[Value](), False
    for name, kind in carried.items():
        end = cx.frame.env[name]
        if isinstance(end, Unbound):
            cx.frame.lookup(name, span, cx.guards)
        # If the kind was widened meanwhile this round is thrown away: any cast will do.
        values += flatten(cx.coerce(end, kind, span))
        again |= objects.goes_on(cx, node, name, kind, end)
    if again:
        raise Again(kinds_stay=True)
    return values


def _after(cx: Lowering, node: ast.For | ast.While, before: dict[str, Operand]) -> None:
    """Names that a loop's body made are gone after it (Python would keep the last ones), unless
    somebody reads those that each turn makes: the next round carries them."""
    turns: frozenset[str] = getattr(node, "weft_turns", frozenset())
    for name, operand in cx.frame.env.items():
        if name not in before or (
            isinstance(before[name], Unbound) and operand is not before[name]
        ):
            if name in turns:
                cx.frame.env[name] = Unbound("a loop assigns it", _wanted(cx, node, name))
            elif turns:
                cx.frame.env[name] = Unbound("a loop assigns it, perhaps not in each of its turns")
            else:
                reason = "it is assigned inside a loop, which may run zero times"
                cx.frame.env[name] = Unbound(reason)
        elif (
            operand is not before[name]
            and isinstance(kind_of(operand), OpaqueKind)
            and not isinstance(operand, Unbound)
            and not same_operand(operand, before[name])
        ):
            cx.join(kind_of(before[name]), kind_of(operand), name, cx.span(node))


def _wanted(cx: Lowering, node: ast.For | ast.While, name: str) -> tuple[Any, ...]:
    """How ``Lowering.wanted`` knows a name that is read after a loop which assigns it."""
    return (*cx.frame.path, node.lineno, node.col_offset, name)


@contextmanager
def _certain(cx: Lowering, node: ast.For | ast.While) -> Generator[None]:
    """Gives the names that ``node`` assigns on each way out of it some value before, so that loops
    and branches carry them; what they hold is known in the round after the one that finds out."""
    unknown: list[str] = []
    turns = {n for n in getattr(node, "weft_turns", ()) if _wanted(cx, node, n) in cx.wanted}
    for name in turns:
        cx.frame.counts[name] = cx.frame.counts.get(name, 0) + 1
    for name in sorted(turns | getattr(node, "weft_certain", frozenset())):
        if isinstance(cx.frame.env.get(name, _NONE), Unbound) and name not in cx.frame.arguments:
            kind = cx.kinds.get((*cx.frame.path, name))
            if kind is None:
                unknown.append(name)
            elif not holds_objects(kind):
                cx.frame.env[name] = objects.of_sides(zeros(cx, kind), [])
    yield
    found = [cx.kinds.get((*cx.frame.path, name)) for name in unknown]
    if any(kind is not None and not holds_objects(kind) for kind in found):
        raise Again(kinds_stay=True)


def loop(cx: Lowering, node: ast.For) -> None:
    block = cx.builder.block
    first = len(block.ops)
    own = [name for name in _names(node.target) if name in cx.frame.own]
    cx.frame.own |= dict.fromkeys(own, (node.lineno, node.col_offset))
    with _certain(cx, node):
        _loop(cx, node)
    for name in own:
        cx.frame.env.pop(name, None)
    growing.check_loop(cx, node.iter, block.ops[first:])


def _loop(cx: Lowering, node: ast.For) -> None:
    iterable = records.over(cx, cx.expression(node.iter), cx.span(node.iter))
    iterable = sequences.loopable(cx, iterable, cx.span(node.iter))
    items = casts.static_items(iterable)
    if isinstance(text := constant_value(iterable), str):
        items = list[Operand](map(Static, text))
    if items is not None:
        _unrolled(cx, node, items)
    elif isinstance(iterable, Range | Box | Tensor | Items):
        flag = getattr(node, "weft_break", "")
        if flag and not isinstance(iterable, Range | Items):
            raise KernelSyntaxError("`break` out of a loop over several indices", cx.span(node),
                                    help="write nested `for ... in range(...)` loops")  # fmt: skip
        spaces = space(cx, node, iterable)
        if flag:
            _breakable(cx, node, spaces, flag)
        else:
            _nest(cx, node, *spaces)
    else:
        space(cx, node, iterable)


def _nest(
    cx: Lowering, node: ast.For, lowers: list[Value], uppers: list[Value], steps: list[Value],
    bind: Callable[[list[Scalar]], Operand],
) -> None:  # fmt: skip
    b, span = cx.builder, cx.span(node)
    carried = _carried(cx, node)
    before = dict(cx.frame.env)
    names = target_names(node.target, len(lowers))
    ivs: list[Scalar] = []

    def level(k: int) -> list[Value]:
        """Opens loop k inside the loops before it; gives the values that are carried out."""
        if k == len(lowers):
            indices = bind(ivs)
            if getattr(node, ITERATION, False):
                cx.iteration = [iv.value for iv in ivs]
                draws.begin(cx, flatten(indices), list(zip(lowers, uppers, strict=True)))
            cx.bind(node.target, indices, span)
            cx.block(node.body)
            return _leave(cx, carried, node)
        inits = [v for n in carried for v in flatten(cx.frame.env[n])]
        op = b.for_(lowers[k], uppers[k], steps[k], inits)
        block = op.body
        block.args[0].name = names[k]
        cx.counted(block.args[0], lowers[k])
        with b.at(block):
            _enter(cx, carried, block.args[1:])
            ivs.append(Scalar(block.args[0], "int"))
            b.do("scf.yield", *level(k + 1))
        for value, init in zip(op.results, inits, strict=True):
            value.name = init.name
        return list(op.results)

    outer = cx.iteration
    results = level(0)
    cx.iteration = outer
    _after(cx, node, before)
    _enter(cx, carried, results)


def _breakable(cx: Lowering, node: ast.For, spaces: tuple[Any, ...], flag: str) -> None:
    """A loop that can be left: while index < upper and not flag."""
    (lower,), (upper,), (step,), bind = spaces
    b, span = cx.builder, cx.span(node)

    def goes_on(args: Sequence[Value]) -> Value:
        more = b.op("arith.cmpi", args[0], upper, predicate="slt")
        broken = cx.scalars.truth(cx.frame.env[flag], span)
        going = b.op("arith.xori", broken, b.constant(True, ir.i1))
        return b.op("arith.andi", more, going)

    def body(args: Sequence[Value]) -> list[Value]:
        args[0].name = target_names(node.target, 1)[0]
        index = bind([Scalar(args[0], "int")])
        if getattr(node, ITERATION, False):
            cx.iteration = [args[0]]
            draws.begin(cx, flatten(index), [])
        cx.bind(node.target, index, span)
        cx.block(node.body)
        return [b.op("arith.addi", args[0], step)]

    outer = cx.iteration
    _while(cx, node, [lower], goes_on, body)
    cx.iteration = outer


def _while(
    cx: Lowering, node: ast.For | ast.While, own: list[Value],
    goes_on: Callable[[Sequence[Value]], Value], body: Callable[[Sequence[Value]], list[Value]],
) -> None:  # fmt: skip
    """``scf.while`` that carries the values ``own``, and what ``node`` assigns. ``body`` gives what
    ``own`` are next."""
    b, count = cx.builder, len(own)
    carried = _carried(cx, node)
    before = dict(cx.frame.env)
    inits = [*own, *(v for n in carried for v in flatten(cx.frame.env[n]))]
    op = b.while_(inits, [v.type for v in inits])
    with b.at(While(op).before) as block:
        _enter(cx, carried, block.args[count:])
        going, values = goes_on(block.args), block.args[count:]
        if assigned(_test(node)):  # `while (d := f()) > 1`
            values = _leave(cx, carried, node)
        b.do("scf.condition", going, *block.args[:count], *values)
    with b.at(While(op).after) as block:
        _enter(cx, carried, block.args[count:])
        following = body(block.args)
        b.do("scf.yield", *following, *_leave(cx, carried, node))
    _after(cx, node, before)
    _enter(cx, carried, op.results[count:])


class _Turn(ast.Assign):
    """The assignment of ``operand`` to an unrolled loop's target."""

    operand: Operand


def _begin(cx: Lowering, node: _Turn) -> None:
    cx.bind(node.targets[0], node.operand, cx.span(node))


def _unrolled(cx: Lowering, node: ast.For, items: list[Operand]) -> None:
    flag = getattr(node, "weft_break", "")
    span = cx.span(node)
    if flag:
        cx.assign(flag, Static(False), span)
    outer, before = cx.frame.turns, dict(cx.frame.env)
    cx.frame.guarded, others = set(), cx.frame.guarded
    cx.frame.changed_objects, changed = set(), cx.frame.changed_objects
    for k, item in enumerate(items):
        cx.frame.turns = (*outer, k)
        item = objects.renewed(cx, item)
        # After a `break` the target keeps what it had. What no branch can choose (a function, say)
        # is bound in any case.
        if not flag or isinstance(kind_of(item), OpaqueKind):
            cx.bind(node.target, item, span)
            cx.block([unless(flag, node.body, node)] if flag else node.body)
        else:
            turn = ast.copy_location(_Turn([node.target], node.iter), node)
            turn.operand = item
            cx.block([unless(flag, [turn, *node.body], node)])
    cx.frame.turns = outer
    # What follows a `continue` or `break` in a turn is guarded; what follows the loop is not.
    for name in cx.frame.guarded:
        if isinstance(before.get(name, _NONE), Unbound) and not name.startswith("."):
            cx.frame.env[name] = Unbound("a loop assigns it, perhaps not in each of its turns")
    cx.frame.guarded |= others
    cx.frame.changed_objects |= changed
    known = cx.frame.env.get(flag)
    if flag and not (isinstance(known, Static) and not known.value):
        for name in bound_names(node.target):  # of numbers, branches choose
            if name in cx.frame.env and holds_objects(kind_of(cx.frame.env[name])):
                cx.frame.env[name] = Unbound("the loop that assigns it may have been left before")


def _of_this_turn(cx: Lowering, a: Kind, b: Kind, name: str) -> Kind | None:
    """In each turn of a loop that is written out its target may be a tuple of another form."""
    if not cx.frame.turns or cx.frame.moves is None:
        return None
    tuples = isinstance(a, TupKind) and isinstance(b, TupKind)
    own = name in cx.frame.targets or name in only_targets(cx.frame.moves.body)
    return b if tuples and own else None


def while_loop(cx: Lowering, node: ast.While) -> None:
    """Where a call in the condition changes an object, that is a statement of the loop."""
    in_steps: list[ast.stmt] | None = getattr(node, "weft_in_steps", None)
    if in_steps is None:
        with as_statements.tried(cx):
            try:
                with _certain(cx, node):
                    _while_loop(cx, node)
                return
            except as_statements.ChangedInPartError:
                if not as_statements.calls(node.test):
                    raise
                raise as_statements.Other from None
        in_steps = as_statements.loop_in_steps(node)
        node.weft_in_steps = in_steps  # type: ignore[attr-defined]
    cx.block(in_steps)


def _while_loop(cx: Lowering, node: ast.While) -> None:
    span, flag = cx.span(node), getattr(node, "weft_break", "")

    def goes_on(_: Sequence[Value]) -> Value:
        if not flag:
            return cx.scalars.truth(expressions.test(cx, node.test), span)
        going = cx.scalars.negation(cx.frame.env[flag], span)
        condition = expressions.choose(
            cx, going, lambda: _as_bool(cx, expressions.test(cx, node.test), span),
            lambda: Static(False), span, [node.test],
        )  # fmt: skip
        return cx.scalars.truth(condition, span)

    _while(cx, node, [], goes_on, lambda _: cx.block(node.body) or [])


def _as_bool(cx: Lowering, x: Scalar | Static, span: Span) -> Scalar | Static:
    return x if isinstance(x, Static) else Scalar(cx.scalars.truth(x, span), "bool")


def _changes(operand: Operand) -> bool:
    return isinstance(operand, (Scalar, Vec, Tup)) or not isinstance(kind_of(operand), OpaqueKind)


def target_names(target: ast.expr, count: int) -> list[str]:
    """Names for ``count`` indices, taken from a loop's target."""
    if isinstance(target, ast.Name):
        return [target.id] if count == 1 else [f"{target.id}{k}" for k in range(count)]
    if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == count:
        return [e.id if isinstance(e, ast.Name) else f"i{k}" for k, e in enumerate(target.elts)]
    return [f"i{k}" for k in range(count)]


def _names(target: ast.expr) -> list[str]:
    """The names that a loop's target assigns."""
    return [node.id for node in subtree(target) if isinstance(node, ast.Name)]


TWO_KINDS.append(_of_this_turn)
STATEMENTS.update({ast.For: loop, ast.While: while_loop, _Turn: _begin})
