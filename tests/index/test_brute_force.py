"""Random loops: verdicts, ranges and injectivity against enumeration at small sizes.

A subscript is a string that Python evaluates twice, on IR values and on plain integers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.index.make import Int, Make
from weft.index.access import accesses
from weft.index.boxes import Box, boxes, disjoint, hull
from weft.index.budget import Budget
from weft.index.races import find_races, proven_apart
from weft.ir.core import Function, walk
from weft.passes.bounds import bounds
from weft.passes.relax_atomics import relax_atomics

SIZES = [*itertools.product(range(5), repeat=2), (2, 7), (7, 2), (9, 9)]


@dataclass(frozen=True)
class Loops:
    """``parallel`` and ``serial`` give (start, end, step) as texts, ``accesses`` what is done."""

    parallel: tuple[tuple[str, str, str], ...]
    serial: tuple[str, str, str] | None
    guard: tuple[str, str] | None
    accesses: tuple[tuple[str, tuple[str, ...]], ...]

    def build(self) -> Function:
        k = Make(out=len(self.accesses[0][1]), n="index", m="index")
        names: dict[str, Any] = {"n": k.n, "m": k.m}
        ends = {v: tuple(k.int(evaluate(t, names)) for t in b)
                for v, b in zip("ij", self.parallel, strict=False)}  # fmt: skip
        with k.parallel(**ends) as found:
            names |= zip(ends, found if isinstance(found, list) else [found], strict=True)
            if self.serial:
                with k.serial(u=tuple(evaluate(t, names) for t in self.serial)) as u:
                    self._guarded(k, {**names, "u": u})
            else:
                self._guarded(k, names)
        return k.done()

    def _guarded(self, k: Make, names: dict[str, Any]) -> None:
        if self.guard is None:
            self._accesses(k, names)
        else:
            predicate, text = self.guard
            with k.when(k.int(evaluate(text, names)).compare(predicate, 0)):
                self._accesses(k, names)

    def _accesses(self, k: Make, names: dict[str, Any]) -> None:
        for kind, subscripts in self.accesses:
            values = [evaluate(t, names) for t in subscripts]
            if kind == "check":
                for axis, value in enumerate(values[:-1]):
                    pair = k.int(value).value, k.int(values[-1]).value
                    k.build.do("weft.bounds", *pair, tensor="out", axis=axis)
                return
            act = {"load": k.load, "store": k.store, "rmw": k.add}[kind]
            act(k.out, *values)

    def touched(self, n: int, m: int) -> Iterator[tuple[tuple[int, ...], int, tuple[int, ...]]]:
        """Iteration, number of the access, element; by enumeration."""
        base = {"n": n, "m": m}
        spaces = [range(*(evaluate(t, base) for t in b)) for b in self.parallel]
        for point in itertools.product(*spaces):
            names = {**base, **dict(zip("ij", point, strict=False))}
            inner = [evaluate(t, names) for t in self.serial] if self.serial else [0, 1, 1]
            for names["u"] in range(*inner):
                if self.guard is not None:
                    predicate, text = self.guard
                    value = evaluate(text, names)
                    if not {"eq": value == 0, "ne": value != 0, "sge": value >= 0}[predicate]:
                        continue
                for k, (_, subscripts) in enumerate(self.accesses):
                    yield point, k, tuple(evaluate(t, names) for t in subscripts)

    def races(self, n: int, m: int) -> bool:
        seen: dict[tuple[int, ...], set[tuple[tuple[int, ...], str]]] = {}
        for point, k, element in self.touched(n, m):
            seen.setdefault(element, set()).add((point, self.accesses[k][0]))
        return any(
            p != q and {a, b} not in ({"load"}, {"rmw"})
            for users in seen.values()
            for (p, a), (q, b) in itertools.combinations(users, 2)
        )

    def meets_itself(self, n: int, m: int) -> bool:
        """Whether the first access meets any access of another iteration."""
        first: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
        every: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
        for point, k, element in self.touched(n, m):
            every.setdefault(element, set()).add(point)
            if k == 0:
                first.setdefault(element, set()).add(point)
        return any(len(every[e] | points) > 1 for e, points in first.items())


def least(a: Any, b: Any) -> Any:
    """``min`` that also takes IR values."""
    if not isinstance(a, Int) and not isinstance(b, Int):
        return min(a, b)
    make = a.make if isinstance(a, Int) else b.make
    return Int(make.build.op("arith.minsi", make.int(a).value, make.int(b).value), make)


def evaluate(text: str, names: dict[str, Any]) -> Any:
    return eval(text, {"least": least}, names)


def expressions(indices: list[str]) -> st.SearchStrategy[str]:
    index = st.sampled_from(indices)
    small = st.integers(1, 4)
    leaf = st.one_of(
        index, index, index,
        st.builds("{}*{}".format, small, index),
        st.builds("({} + {})".format, index, st.integers(-2, 2)),
        st.builds("({} - {})".format, index, index),
        st.builds("(n - 1 - {})".format, index),
        st.builds("{}*m".format, index),
        st.builds("({} + {})*m".format, index, index),
        st.sampled_from(["0", "1", "n", "m"]),
    )  # fmt: skip
    return st.one_of(
        leaf, leaf,
        st.builds("({} + {})".format, leaf, leaf),
        st.builds("({}) // {}".format, leaf, small),
        st.builds("({}) % {}".format, leaf, small),
        st.builds("({} + m) % (n + 1)".format, leaf),
        st.builds("least({}, {})".format, leaf, leaf),
    )  # fmt: skip


@st.composite
def loops(draw: st.DrawFn, first: str | None = None) -> Loops:
    ends = st.sampled_from(["n", "m", "3", "n + 1", "2*n"])
    step = st.sampled_from(["1", "1", "1", "2"])
    bounds = st.tuples(st.sampled_from(["0", "0", "1"]), ends, step)
    parallel = draw(st.lists(bounds, min_size=1, max_size=2))
    indices = ["i", "j"][: len(parallel)]
    serial = None
    if draw(st.booleans()):
        ends = st.sampled_from(["i + 1", "m", "2"])
        serial = (draw(st.sampled_from(["0", "i"])), draw(ends), "1")
        indices.append("u")
    guard = None
    if draw(st.integers(0, 3)) == 0:
        predicate = draw(st.sampled_from(["eq", "ne", "sge"]))
        guard = (predicate, draw(expressions(indices)))
    rank = draw(st.integers(1, 2))
    texts = st.tuples(*[expressions(indices)] * rank)
    kinds = st.sampled_from(["load", "store", "rmw"])
    some = draw(st.lists(st.tuples(kinds, texts), min_size=1, max_size=3))
    if first is not None:
        some[0] = (first, some[0][1])
    return Loops(tuple(parallel), serial, guard, tuple(some))


@pytest.mark.fuzz
@settings(max_examples=150, deadline=None)
@given(loops("store"))
@pytest.mark.slow
def test_verdicts_agree_with_enumeration(case: Loops) -> None:
    found = find_races(case.build())
    (array,) = found.arrays
    racy = [size for size in SIZES if case.races(*size)]
    if array.verdict == "free":
        assert not racy
    elif array.verdict == "conflict":
        assert racy
        assert array.witness is not None
        sizes = dict(array.witness.sizes)
        n, m = (sizes.get(s, 1) for s in ("n", "m"))
        assert case.races(n, m)


@pytest.mark.fuzz
@settings(max_examples=100, deadline=None)
@given(loops("rmw"))
@pytest.mark.slow
def test_demotion_agrees_with_enumeration(case: Loops) -> None:
    function = relax_atomics(case.build())
    access = accesses(function)[0]
    if not access.op.attrs["atomic"]:
        assert not any(case.meets_itself(*size) for size in SIZES)
    if proven_apart(access, access, Budget()):
        alone = Loops(case.parallel, case.serial, case.guard, case.accesses[:1])
        assert not any(alone.meets_itself(*size) for size in SIZES)


@pytest.mark.fuzz
@settings(max_examples=100, deadline=None)
@given(loops())
def test_uses_of_parallel_indices(case: Loops) -> None:
    """The stride of an index is what its successor adds to the last subscript."""
    for (_, subscripts), access in zip(case.accesses, accesses(case.build()), strict=True):
        for iv in access.parallel:
            names = {"i": 5, "j": 4, "u": 3, "n": 6, "m": 7}
            moved = {**names, iv.name: names[iv.name] + 1}
            stride = access.stride(iv)
            if stride is not None:
                assert evaluate(subscripts[-1], moved) - evaluate(subscripts[-1], names) == stride


@pytest.mark.fuzz
@settings(max_examples=100, deadline=None)
@given(loops(), st.integers(1, 12))
@pytest.mark.slow
def test_boxes_hold_what_is_touched(case: Loops, extent: int) -> None:
    """Where every subscript is inside of the array."""
    function = case.build()
    for n, m in SIZES:
        numbers = {function.args[1]: n, function.args[2]: m}
        shape = [extent] * len(case.accesses[0][1])
        for k, access in enumerate(accesses(function)):
            touched = [e for _, which, e in case.touched(n, m) if which == k]
            if any(not 0 <= x < extent for e in touched for x in e):
                continue
            found = boxes([access], numbers, shape)
            assert all(any(_inside(e, box) for box in found) for e in touched)
            assert all(0 <= low <= high < extent for box in found for low, high in box)


def _inside(element: tuple[int, ...], box: Box) -> bool:
    return all(low <= x <= high for x, (low, high) in zip(element, box, strict=True))


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)).map(sorted), min_size=2,
                         max_size=2), min_size=2, max_size=3))  # fmt: skip
def test_boxes_are_disjoint_or_meet(drawn: list[list[list[int]]]) -> None:
    every: list[Box] = [tuple((low, high) for low, high in box) for box in drawn]
    points = list(itertools.product(range(4), repeat=2))
    first, second = every[:2]
    assert disjoint(first, second) == (
        not any(_inside(p, first) and _inside(p, second) for p in points)
    )
    assert all(_inside(p, hull(every)) for box in every for p in points if _inside(p, box))


@pytest.mark.fuzz
@settings(max_examples=150, deadline=None)
@given(loops("check"), st.sampled_from(["n", "m", "2*n", "n + m", "4"]))
@pytest.mark.slow
def test_dropped_checks_hold(case: Loops, extent: str) -> None:
    check = ("check", (*case.accesses[0][1], extent))
    case = Loops(case.parallel, case.serial, case.guard, (check,))
    checks = [op for op in walk(case.build().body) if op.name == "weft.bounds"]
    left = {op.attrs["axis"] for op in walk(bounds(case.build()).body) if op.name == "weft.bounds"}
    for axis in {op.attrs["axis"] for op in checks} - left:
        for size in SIZES:
            assert all(0 <= values[axis] < values[-1] for _, _, values in case.touched(*size))
