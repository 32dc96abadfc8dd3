"""``itertools`` and ``functools.reduce``.

What has items that are known one by one is written out, as ``zip`` and ``enumerate`` are; of the
rest, an item is computed where the loop asks for it.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable
from typing import Any

from weft.errors import KernelSyntaxError, KernelTypeError
from weft.frontend import casts, comprehensions, expressions, named, sequences, signatures
from weft.frontend.arguments import keywords, positional
from weft.frontend.context import Lowering
from weft.frontend.effects import LAZY
from weft.frontend.kinds import Items, Operand, Range, Static, Tup, constant_value, describe

_WITHOUT_END = Static(1 << 62)  # more items than any loop asks for
_HELP = {
    "combinations": "write loops: for j in range(n): for k in range(j + 1, n)",
    "combinations_with_replacement": "write loops: for j in range(n): for k in range(j, n)",
    "permutations": "write loops, and `continue` where two of their indices are equal",
    "accumulate": "keep a running total: total += v",
    "compress": "write `if` in the loop",
}  # fmt: skip
_REFUSED = {
    "takewhile": "write a loop with `break`", "dropwhile": "write a loop with `continue`",
    "filterfalse": "write `if` in the loop", "groupby": "compare neighbours in the loop",
    "tee": "write two loops", "batched": "go over range(0, n, size)",
}  # fmt: skip


class _Call:
    """A call of a function of ``itertools``."""

    def __init__(self, cx: Lowering, node: ast.Call, name: str) -> None:
        self.cx, self.name, self.span = cx, name, cx.span(node)
        self.named = keywords(cx, node)
        given = positional(cx, node)
        takes, text = _TAKES[name], ast.unparse(node.func)
        self.given = signatures.bind(takes, text, given, self.named, self.span)
        most = takes.index("*") if "*" in takes else len(takes)
        if most and len(self.given) > most:
            raise self.wrong(f"takes {most} arguments by place", "give the others by name")

    def wrong(self, what: str, help: str) -> KernelTypeError:
        return KernelTypeError(f"`itertools.{self.name}` {what}", self.span, help=help)

    def option(self, place: int) -> Operand | None:
        """The argument of that place, None where it is left out, or None."""
        return signatures.argument(self.given, place)

    def by_name(self, name: str) -> Operand | None:
        x = self.named.get(name)
        return None if type(x) is Static and x.value is None else x

    def whole(self, x: Operand | None, what: str, default: int) -> int:
        """A number that has to be known at compile time."""
        if x is None:
            return default
        value = constant_value(x)
        if type(value) is not int or value < 0:
            raise self.wrong(f"of a {what} that is known at run time", "write the loop")
        return value

    def over(self, x: Operand) -> Items:
        """``x`` as items that are computed when they are asked for."""
        known = casts.static_items(x)
        if known is not None:
            return Items(Static(len(known)), lambda k: casts.picked(self.cx, known, k, self.span))
        found = sequences.items(self.cx, sequences.of_elements(self.cx, x), self.span)
        if found is None:
            raise self.wrong(f"of {describe(x)}", "go over a row, a range, a tuple or a list")
        return found

    def known(self, x: Operand) -> list[Operand]:
        """The items of ``x``, of which there is a number that is known at compile time."""
        items = casts.static_items(x)
        if items is not None:
            return items
        found = self.over(x)
        if not isinstance(found.count, Static) or found.count.value > comprehensions.MOST_ITEMS:
            few = isinstance(found.count, Static)
            raise self.wrong(
                f"of {found.count.value} items" if few else  # type: ignore[union-attr]
                "of a number of items that is known at run time", _HELP[self.name],
            )  # fmt: skip
        return [found.item(Static(k)) for k in range(found.count.value)]

    def number(self, symbol: str, a: Operand, b: Operand) -> Any:
        return self.cx.scalars.binary(symbol, a, b, self.span)


def _tuples(items: Any) -> Tup:
    made = [Tup(list(item)) for item in itertools.islice(items, _MOST_WRITTEN + 1)]
    return Tup(made)


_MOST_WRITTEN = 1000


def _written(call: _Call, function: Callable[..., Any]) -> Tup:
    """What ``function`` of ``itertools`` makes of items that are known one by one."""
    items = call.known(call.given[0])
    size = call.whole(call.option(1), "length", len(items))
    made = _tuples(function(items, size))
    if len(made.items) > _MOST_WRITTEN:
        raise call.wrong(f"with more than {_MOST_WRITTEN} items", _HELP[call.name])
    return made


def _product(call: _Call) -> Operand:
    columns = call.given * call.whole(call.by_name("repeat"), "number of times", 1)
    fixed = [casts.static_items(x) for x in columns]
    if all(items is not None for items in fixed):
        made = _tuples(itertools.product(*(items or [] for items in fixed)))
        if len(made.items) <= comprehensions.MOST_ITEMS:
            return made
    parts = [call.over(x) for x in columns]
    count: Any = Static(1)
    for part in parts:
        count = call.number("*", count, part.count)

    def item(k: Any) -> Operand:
        found: list[Operand] = []
        for place, part in enumerate(reversed(parts)):
            at = k if place == len(parts) - 1 else call.number("%", k, part.count)
            found.append(part.item(at))
            k = call.number("//", k, part.count)
        return Tup(found[::-1])

    return Items(count, item)


def _pairwise(call: _Call) -> Operand:
    known = casts.static_items(call.given[0])
    if known is not None:
        return _tuples(itertools.pairwise(known))
    over = call.over(call.given[0])
    less = call.number("-", over.count, Static(1))
    count = call.cx.scalars.extreme(">", less, Static(0), call.span)
    return Items(
        count, lambda k: Tup([over.item(k), over.item(call.number("+", k, Static(1)))])
    )  # fmt: skip


def _chain(call: _Call) -> Operand:
    fixed = [casts.static_items(x) for x in call.given]
    if all(items is not None for items in fixed):
        return Tup([x for items in fixed for x in items or []])
    cx, parts = call.cx, [call.over(x) for x in call.given]
    ends: list[Any] = []
    for part in parts:
        ends.append(call.number("+", ends[-1], part.count) if ends else part.count)

    def item(k: Any, place: int = 0) -> Operand:
        start = ends[place - 1] if place else Static(0)
        own: Callable[[], Operand] = lambda: parts[place].item(call.number("-", k, start))  # noqa: E731
        if place == len(parts) - 1:
            return own()
        before: Any = cx.scalars.compare("<", k, ends[place], call.span)
        return expressions.choose(cx, before, own, lambda: item(k, place + 1), call.span)

    return Items(ends[-1], item)


def _zip_longest(call: _Call) -> Operand:
    fill = call.by_name("fillvalue") or Static(None)
    fixed = [casts.static_items(x) for x in call.given]
    if all(items is not None for items in fixed):
        columns = [items or [] for items in fixed]
        return _tuples(itertools.zip_longest(*columns, fillvalue=fill))
    cx, parts = call.cx, [call.over(x) for x in call.given]
    count: Any = parts[0].count
    for part in parts[1:]:
        count = cx.scalars.extreme(">", count, part.count, call.span)

    def item(k: Any) -> Operand:
        found: list[Operand] = []
        for part in parts:
            there: Any = cx.scalars.compare("<", k, part.count, call.span)
            own: Callable[[], Operand] = lambda part=part: part.item(k)  # noqa: E731
            found.append(expressions.choose(cx, there, own, lambda: fill, call.span))
        return Tup(found)

    return Items(count, item)


def _islice(call: _Call) -> Operand:
    x, bounds = call.given[0], [call.option(k) for k in range(1, 4)]
    first: Any = bounds[0] if len(call.given) > 2 else None
    last = bounds[1] if len(call.given) > 2 else bounds[0]
    by = call.whole(bounds[2], "step", 1)
    if by == 0:
        raise call.wrong("with a step of 0", "use 1")
    known = casts.static_items(x)
    if known is not None and all(v is None or isinstance(v, Static) for v in (first, last)):
        end = call.whole(last, "bound", len(known))
        return Tup(known[call.whole(first, "bound", 0) : end : by])
    cx, over = call.cx, call.over(x)
    for bound in filter(None, (first, last)):
        if isinstance(bound, Static):
            call.whole(bound, "bound", 0)
            continue
        cx.scalars.index(bound, call.span)  # refuses what is no integer
        there = cx.scalars.compare(">=", bound, Static(0), call.span)
        with cx.builder.about(call.span):
            cx.builder.do("weft.assert", cx.scalars.truth(there, call.span),
                          message="a bound of `itertools.islice` is negative")  # fmt: skip
    end = over.count if last is None else cx.scalars.extreme("<", over.count, last, call.span)
    places = sequences.items(cx, Range(first or Static(0), end, Static(by)), call.span)
    assert places is not None
    return Items(places.count, lambda k: over.item(places.item(k)))


def _accumulate(call: _Call) -> Operand:
    function, initial = call.option(1) or Static(operator.add), call.by_name("initial")
    items = call.known(call.given[0])
    items = items if initial is None else [initial, *items]
    made = items[:1]
    for item in items[1:]:
        made.append(named.called(call.cx, function, [made[-1], item], {}, call.span))
    return Tup(made)


def _repeat(call: _Call) -> Operand:
    x, times = call.given[0], call.option(1)
    if times is None:
        return Items(_WITHOUT_END, lambda k: x)
    count = constant_value(times)
    if type(count) is int and count <= comprehensions.MOST_ITEMS:
        return Tup([x] * max(count, 0))
    call.cx.scalars.index(times, call.span)  # refuses what is no integer
    return Items(times, lambda k: x)  # type: ignore[arg-type]


def _count(call: _Call) -> Operand:
    start, step = call.option(0) or Static(0), call.option(1) or Static(1)
    return Items(_WITHOUT_END, lambda k: call.number("+", start, call.number("*", k, step)))


def _cycle(call: _Call) -> Operand:
    over = call.over(call.given[0])
    return Items(_WITHOUT_END, lambda k: over.item(call.number("%", k, over.count)))


def _starmap(call: _Call) -> Operand:
    function, pairs = call.given
    known = casts.static_items(pairs)

    def of(item: Operand) -> Operand:
        values = casts.static_items(item)
        if values is None:
            raise call.wrong(f"of {describe(item)}", "go over tuples")
        return named.called(call.cx, function, values, {}, call.span)

    if known is not None:
        return Tup([of(item) for item in known])
    over = call.over(pairs)
    return Items(over.count, lambda k: of(over.item(k)))


def _compress(call: _Call) -> Operand:
    items, tests = call.known(call.given[0]), call.known(call.given[1])
    if not all(isinstance(test, Static) for test in tests):
        raise call.wrong("by what is known at run time", _HELP["compress"])
    return Tup([x for x, test in zip(items, tests, strict=False) if test.value])  # type: ignore[union-attr]


_FUNCTIONS: dict[str, Callable[[_Call], Operand]] = {
    "product": _product, "pairwise": _pairwise, "chain": _chain, "zip_longest": _zip_longest,
    "islice": _islice, "accumulate": _accumulate, "repeat": _repeat, "count": _count,
    "cycle": _cycle, "starmap": _starmap, "compress": _compress,
    "combinations": lambda call: _written(call, itertools.combinations),
    "permutations": lambda call: _written(call, itertools.permutations),
    "combinations_with_replacement":
        lambda call: _written(call, itertools.combinations_with_replacement),
}  # fmt: skip
_TAKES: dict[str, tuple[str, ...]] = {
    "product": ("*", "repeat ="), "pairwise": ("x -",), "chain": ("*",),
    "zip_longest": ("*", "fillvalue ="), "islice": ("x -", "stop -", "stop - =", "step - ="),
    "accumulate": ("iterable", "func =", "*", "initial ="), "repeat": ("object", "times ="),
    "count": ("start =", "step ="), "cycle": ("x -",), "starmap": ("function -", "x -"),
    "compress": ("data", "selectors"), "combinations": ("iterable", "r"),
    "permutations": ("iterable", "r ="), "combinations_with_replacement": ("iterable", "r"),
}  # fmt: skip


def _of_itertools(name: str) -> Callable[[Lowering, ast.Call], Operand]:
    def handler(cx: Lowering, node: ast.Call) -> Operand:
        if name in _REFUSED:
            raise KernelSyntaxError(f"`itertools.{name}` cannot be called in a device loop",
                                    cx.span(node), help=_REFUSED[name])  # fmt: skip
        return _FUNCTIONS[name](_Call(cx, node, name))

    return handler


# --- functools.reduce ----------------------------------------------------------------------------
def _reduce(cx: Lowering, node: ast.Call) -> Operand:
    """``functools.reduce(function, items, start)``: the loop that it stands for."""
    span = cx.span(node)
    if len(node.args) not in (2, 3) or node.keywords:
        raise KernelTypeError("`functools.reduce` takes a function, items and a start", span,
                              help="write reduce(function, items, start)")  # fmt: skip
    function, over, *start = node.args
    known = comprehensions.known_items(cx, over)
    if known is not None:
        callee, items = cx.expression(function), [*map(cx.expression, start), *known]
        if not items:
            raise KernelTypeError(
                "`functools.reduce` of no items", span,
                help="give it a start: reduce(function, items, start)",
            )  # fmt: skip
        found = items[0]
        for item in items[1:]:
            found = named.called(cx, callee, [found, item], {}, span, node)
        return found
    return comprehensions.folded(cx, node, function, over, start)


def _product_of_items(cx: Lowering, node: ast.Call) -> Operand:
    """``math.prod(items, start=1)``."""
    span = cx.span(node)
    start = [k.value for k in node.keywords if k.arg == "start"]
    if len(node.args) != 1 or len(node.keywords) != len(start):
        raise KernelTypeError("`math.prod` takes items and a start", span,
                              help="write math.prod(items, start=1)")  # fmt: skip
    (over,), begin = node.args, start[0] if start else ast.Constant(1)
    known = comprehensions.known_items(cx, over)
    if known is None:
        return comprehensions.folded(cx, node, ast.Mult(), over, [begin])
    found = cx.expression(begin)
    for item in known:
        found = expressions.binary(cx, "*", found, item, span)
    return found


LAZY.update({f"itertools.{name}": _of_itertools(name) for name in (*_FUNCTIONS, *_REFUSED)})
LAZY.update({"reduce": _reduce, "product": _product_of_items})
