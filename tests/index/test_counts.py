"""Counts of operations and elements: against enumeration, and by formulas known by heart."""

from __future__ import annotations

import contextlib
import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.index.make import Make
from tests.index.test_brute_force import Loops, loops
from weft.index.elements import elements
from weft.index.expression import Dim, Floor, Pick, Poly, atom, evaluate, number, show
from weft.index.operations import FLOPS, ends, kind_of, operations
from weft.index.sums import Count, Sums, UncountableError, faulhaber
from weft.ir.core import Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import f32, i64, index

SIZES = ((0, 3), (1, 1), (3, 2), (2, 7), (6, 5))


def sizes_of(function: Function, n: int, m: int, shape: tuple[int, ...]) -> dict[Value | Dim, int]:
    (out, *numbers) = function.args
    known: dict[Value | Dim, int] = dict(zip(numbers, (n, m), strict=False))
    return known | {Dim(out, k): e for k, e in enumerate(shape)}


@pytest.mark.fuzz
@settings(max_examples=30, deadline=None)
@given(loops())
def test_operations_agree_with_enumeration(case: Loops) -> None:
    function = case.build()
    with contextlib.suppress(UncountableError):
        symbolic = operations(function, steps=5_000)
        assert symbolic.most is symbolic.least
        for n, m in SIZES:
            sizes = sizes_of(function, n, m, ())
            found = symbolic.least.get("add", Count(Poly({})))
            expected = sum(case.accesses[k][0] == "rmw" for _, k, _ in case.touched(n, m))
            assert Fraction(evaluate(found.poly, sizes), found.over) == expected
    for n, m in SIZES:
        found = operations(function, sizes_of(function, n, m, ()))
        assert found.most is found.least
        expected = sum(case.accesses[k][0] == "rmw" for _, k, _ in case.touched(n, m))
        add = found.least.get("add", Count(Poly({})))
        assert (add.poly.constant, add.over) == (expected, 1)


@pytest.mark.fuzz
@settings(max_examples=40, deadline=None)
@given(loops())
def test_elements_agree_with_enumeration(case: Loops) -> None:
    function = case.build()
    shape = (6, 4)[: len(case.accesses[0][1])]
    inside = set(itertools.product(*map(range, shape)))
    for n, m in ((0, 1), (2, 3), (4, 2)):
        found = elements(function, sizes_of(function, n, m, shape), {function.args[0]: shape})
        stored: set[tuple[int, ...]] = set()
        loaded, needed, own = set[tuple[int, ...]](), set[tuple[int, ...]](), set()
        before: object = None
        for turn, k, element in case.touched(n, m):
            if k == 0 or turn != before:
                own = set()
            before = turn
            if case.accesses[k][0] != "store":
                loaded.add(element)
                needed |= {element} - own
            if case.accesses[k][0] != "load":
                stored.add(element)
            if case.accesses[k][0] == "store":
                own.add(element)
        (touched,) = found.values()
        assert touched.stored >= len(stored & inside)
        assert touched.loaded >= len(needed & inside)
        if touched.exact:
            assert touched.stored == len(stored & inside)
            assert touched.loaded <= len(loaded & inside)


terms = st.recursive(
    st.sampled_from("iin35"),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-"), inner, inner),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner),
        st.tuples(st.just("//"), inner, st.integers(2, 4)),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(terms, terms, st.integers(-2, 2), terms)
def test_sums_agree_with_enumeration(first, second, lower, upper):
    i, n = Value(index, "i"), Value(index, "n")

    def poly(term) -> Poly:
        match term:
            case "i" | "n":
                return atom(i if term == "i" else n)
            case str():
                return number(int(term))
            case "+", a, b:
                return poly(a) + poly(b)
            case "-", a, b:
                return poly(a) - poly(b)
            case "//", a, b:
                return atom(Floor(poly(a), number(b)))
            case kind, a, b:
                return atom(Pick(kind, poly(a), poly(b)))

    value = poly(first) * poly(second)
    end = poly(upper).substitute(lambda leaf: atom(n) if leaf is i else None)
    found = Sums(2_000_000).over(Count(value), i, number(lower), end, ())  # whatever it takes
    for size in range(-3, 8):
        expected = sum(evaluate(value, {i: k, n: size})
                       for k in range(lower, evaluate(end, {n: size})))  # fmt: skip
        assert Fraction(evaluate(found.poly, {n: size}), found.over) == expected


@pytest.mark.parametrize("divisor", [2, 7, 40, 1000])
@pytest.mark.parametrize("factor", [1, -1, 3, 38, 39, -41])
@pytest.mark.parametrize(("lower", "upper"), [(0, 40), (-3, 45), (5, 6)])
def test_sums_of_quotients(divisor: int, factor: int, lower: int, upper: int) -> None:
    """Cut where the quotient goes on, or by remainders: whichever are fewer."""
    i, j = Value(index, "i"), Value(index, "j")
    for rest in (number(0), number(38), atom(j).scaled(5)):
        quotient = atom(Floor(atom(i).scaled(factor) + rest, number(divisor)))
        value = quotient * quotient + atom(i)
        ranges = [(j, number(0), number(9))]
        found = Sums().over(Count(value), i, number(lower), number(upper), ranges)
        for at in range(9):
            expected = sum(evaluate(value, {i: k, j: at}) for k in range(lower, upper))
            assert Fraction(evaluate(found.poly, {j: at}), found.over) == expected


def test_sums_of_powers():
    assert faulhaber(1) == ((-1, 1), 2)
    for power in range(9):
        factors, over = faulhaber(power)
        for n in range(6):
            total = sum(f * n ** (k + 1) for k, f in enumerate(factors))
            assert Fraction(total, over) == sum(k**power for k in range(n))


def triangle(make: Make) -> Function:
    with make.parallel(i=make.n) as i, make.serial(u=i + 1) as u:
        make.add(make.out, i, u)
    return make.done()


def test_the_formula_of_a_triangle():
    function = triangle(Make(out=2, n="index"))
    found = operations(function, {function.args[1]: atom(Dim(function.args[1], -1))})
    count = found.least["add"]
    assert (show(count.poly, lambda leaf: leaf.memref.name), count.over) == ("n + n*n", 2)


def test_large_sizes_take_no_longer():
    function = triangle(Make(out=2, n="index"))
    n = 10**9
    assert operations(function, {function.args[1]: n}).least["add"].poly.constant == math.comb(
        n + 1, 2
    )


def test_what_data_decide_has_two_ends():
    make = Make(out=1, x=1, n="index")
    with make.parallel(i=make.n) as i:
        with make.when(make.data(make.x, i).compare("sgt", 0)):
            make.add(make.out, i)
        make.add(make.out, i)
    function = make.done()
    found = operations(function, {function.args[2]: 5})
    assert found.most is not None
    assert [c["add"].poly.constant for c in (found.least, found.most)] == [5, 10]


def test_ends_without_what_conditions_hold_for():
    """Of a window that is cut at the edges of a picture: a closed form takes too many steps."""
    make = Make(out=1, n="index", k="index")
    with make.parallel(i=make.n) as i, make.serial(u=make.k) as u:
        with make.when((i + u).compare("slt", make.n)):
            make.add(make.out, i)
        make.add(make.out, i)
    function = make.done()
    sizes = {function.args[1]: 10, function.args[2]: 3}
    exact, found = operations(function, sizes), ends(function, sizes)
    counted = [c["add"].poly.constant for c in (found.least, exact.least, found.most or {})]
    assert counted == [30, 30 + 10 + 9 + 8, 60]


def test_a_length_that_data_decide_has_no_upper_end():
    make = Make(out=1, x=1, n="index")
    with make.parallel(i=make.n) as i:
        make.add(make.out, i)
        with make.serial(u=make.data(make.x, i)):
            make.add(make.out, i)
    function = make.done()
    found = operations(function, {function.args[2]: 5})
    assert (found.least["add"].poly.constant, found.most) == (5, None)


def test_no_closed_form_and_too_many_iterations():
    make = Make(out=1, n="index")
    with make.parallel(i=make.n) as i, make.serial(u=i * i - 40):
        make.add(make.out, i)
    function = make.done()
    with pytest.raises(UncountableError):
        operations(function)
    assert operations(function, {function.args[1]: 20}).least["add"].poly.constant == sum(
        max(0, k * k - 40) for k in range(20)
    )
    with pytest.raises(UncountableError):
        operations(function, {function.args[1]: 10**9})


def test_each_operation_of_floats_has_a_kind():
    for name, row in OPS.items():
        if not name.startswith(("arith.", "math.")) or not row.operands:
            continue
        word = row.operands.split()[0]
        type = i64 if word == "T:int" else f32
        kind = kind_of(Op(name, [Value(type)] * len(row.operands.split())))
        choice = name.startswith("arith.") and row.results == "?"
        plain = word in ("any", "i1") or choice  # casts and choices
        assert (kind in FLOPS) != plain, name


def touched(make: Make, function: Function, n: int) -> tuple[int, int]:
    sizes = {function.args[-1]: n, **{Dim(function.args[0], k): n for k in range(1)}}
    (found,) = elements(function, sizes, {function.args[0]: (n,)}).values()
    assert found.exact
    return found.loaded, found.stored


def test_what_an_iteration_has_stored_is_not_loaded():
    make = Make(out=1, n="index")
    with make.parallel(i=make.n) as i:
        make.store(make.out, i)
        with make.serial(u=4):
            make.add(make.out, i)
        make.load(make.out, i)
    assert touched(make, make.done(), 7) == (0, 7)


def test_what_is_stored_under_a_condition_is_loaded():
    make = Make(out=1, n="index")
    with make.parallel(i=make.n) as i:
        with make.when((i % 2).compare("eq", 0)):
            make.store(make.out, i)
        make.load(make.out, i)
    assert touched(make, make.done(), 7) == (7, 4)
