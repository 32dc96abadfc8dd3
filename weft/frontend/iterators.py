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
from weft.frontend import casts, comprehensions, expressions, named, sequences
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
        self.given, self.named = positional(cx, node), keywords(cx, node)

    def wrong(self, what: str, help: str) -> KernelTypeError:
        return KernelTypeError(f"`itertools.{self.name}` {what}", self.span, help=help)

    def option(self, place: int, name: str, default: Any = None) -> Any:
        """The argument of that place or name."""
        if name in self.named:
            return self.named.pop(name)
        return self.given.pop(place) if len(self.given) > place else default

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
    x, size = call.given[0], call.option(1, "r")
    items = call.known(x)
    made = _tuples(function(items, call.whole(size, "length", len(items))))
    if len(made.items) > _MOST_WRITTEN:
        raise call.wrong(f"with more than {_MOST_WRITTEN} items", _HELP[call.name])
    return made


def _product(call: _Call) -> Operand:
    columns = call.given * call.whole(call.named.pop("repeat", None), "number of times", 1)
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
    fill = call.named.pop("fillvalue", Static(None))
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
    x, *bounds = call.given
    start, stop, step = (Static(0), *bounds, Static(1)) if len(bounds) == 1 else (
        *bounds, *[Static(1)] * (3 - len(bounds)))  # fmt: skip
    by = call.whole(None if constant_value(step) is None else step, "step", 1)
    first: Any = Static(0) if isinstance(start, Static) and start.value is None else start
    last = None if isinstance(stop, Static) and stop.value is None else stop
    known = casts.static_items(x)
    if known is not None and all(isinstance(v, Static) for v in (first, last or first)):
        end = call.whole(last, "bound", len(known))
        return Tup(known[call.whole(first, "bound", 0) : end : by])
    cx, over = call.cx, call.over(x)
    for bound in filter(None, (first, last)):
        if isinstance(bound, Static):
            call.whole(bound, "bound", 0)
            continue
        there = cx.scalars.compare(">=", bound, Static(0), call.span)
        with cx.builder.about(call.span):
            cx.builder.do("weft.assert", cx.scalars.truth(there, call.span),
                          message="a bound of `itertools.islice` is negative")  # fmt: skip
    end = over.count if last is None else cx.scalars.extreme("<", over.count, last, call.span)
    places = sequences.items(cx, Range(first, end, Static(by)), call.span)
    assert places is not None
    return Items(places.count, lambda k: over.item(places.item(k)))


def _accumulate(call: _Call) -> Operand:
    function = call.option(1, "func") or Static(operator.add)
    initial = call.named.pop("initial", None)
    items = call.known(call.given[0])
    if initial is not None and not (type(initial) is Static and initial.value is None):
        items = [initial, *items]
    made = items[:1]
    for item in items[1:]:
        made.append(named.called(call.cx, function, [made[-1], item], {}, call.span))
    return Tup(made)


def _repeat(call: _Call) -> Operand:
    x, times = call.given[0], call.option(1, "times")
    count = constant_value(times)
    if type(count) is int and count <= comprehensions.MOST_ITEMS:
        return Tup([x] * max(count, 0))
    return Items(_WITHOUT_END if times is None else times, lambda k: x)


def _count(call: _Call) -> Operand:
    step = call.option(1, "step", Static(1))
    start = call.option(0, "start", Static(0))
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
    items, tests = call.known(call.given[0]), call.known(call.option(1, "selectors"))
    if not all(isinstance(test, Static) for test in tests):
        raise call.wrong("by what is known at run time", _HELP["compress"])
    return Tup([x for x, test in zip(items, tests, strict=False) if test.value])  # type: ignore[union-attr]


_FUNCTIONS: dict[str, tuple[Callable[[_Call], Operand], int]] = {
    "product": (_product, 0), "pairwise": (_pairwise, 1), "chain": (_chain, 1),
    "zip_longest": (_zip_longest, 1), "islice": (_islice, 2), "accumulate": (_accumulate, 1),
    "repeat": (_repeat, 1), "count": (_count, 0), "cycle": (_cycle, 1), "starmap": (_starmap, 2),
    "compress": (_compress, 1),
    "combinations": (lambda c: _written(c, itertools.combinations), 1),
    "permutations": (lambda c: _written(c, itertools.permutations), 1),
    "combinations_with_replacement":
        (lambda c: _written(c, itertools.combinations_with_replacement), 1),
}  # fmt: skip


def _of_itertools(name: str) -> Callable[[Lowering, ast.Call], Operand]:
    def handler(cx: Lowering, node: ast.Call) -> Operand:
        if name in _REFUSED:
            raise KernelSyntaxError(f"`itertools.{name}` cannot be called in a device loop",
                                    cx.span(node), help=_REFUSED[name])  # fmt: skip
        function, takes = _FUNCTIONS[name]
        call = _Call(cx, node, name)
        if len(call.given) < takes:
            raise call.wrong("takes more arguments", "see itertools for what it takes")
        found = function(call)
        if call.named:
            raise call.wrong(f"takes no argument `{next(iter(call.named))}` in a device loop",
                             "leave it out")  # fmt: skip
        return found

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


LAZY.update({f"itertools.{name}": _of_itertools(name) for name in (*_FUNCTIONS, *_REFUSED)})
LAZY["reduce"] = _reduce
