"""How much is asked about kernels with many accesses, counted: no clock."""

import logging
from collections.abc import Callable

import pytest

from tests.index.make import Int, Make
from weft.autodiff import memory
from weft.autodiff.memory import contents, element_written_once
from weft.index import budget, disjoint, races, relation
from weft.index.access import Extraction, accesses
from weft.index.expression import condition_polys
from weft.index.integers import MOST
from weft.index.operations import operations
from weft.index.races import check_races, find_races
from weft.ir.core import Function, Value
from weft.ir.types import i1
from weft.passes import race_checks
from weft.passes.relax_atomics import relax_atomics


@pytest.fixture
def asked(monkeypatch):
    """The pairs that are put to the proofs, and the sets that isl is given."""
    counts = {"pairs": 0, "isl": 0}

    def counted(name, function):
        def call(*args, **options):
            counts[name] += 1
            return function(*args, **options)

        return call

    monkeypatch.setattr(races, "_judge_pair", counted("pairs", races._judge_pair))
    monkeypatch.setattr(budget, "_answer", counted("isl", budget._answer))
    return counts


def stores(count: int, rank: int) -> Function:
    make = Make(x=rank)
    n = make.dim(make.x, 0)
    with make.parallel(i=n) as i:
        for k in range(count):
            subscripts = [i, make.int(k)] if rank == 2 else [i * count + k]
            make.store(make.x, *subscripts)
    return make.done()


@pytest.mark.parametrize("rank", [2, 1])
def test_stores_to_places_of_their_own_are_asked_about_once_each(asked, rank):
    assert find_races(stores(480, rank)).verdict == "free"
    assert asked == {"pairs": 480, "isl": 0}


def test_equal_stores_are_asked_about_once(asked):
    make = Make(x=1)
    with make.parallel(i=make.dim(make.x, 0)) as i:
        for _ in range(200):
            make.store(make.x, i)
    assert find_races(make.done()).verdict == "free"
    assert asked["pairs"] == 1


def test_the_conflict_among_many_stores_is_found():
    make = Make(x=2)
    with make.parallel(i=make.dim(make.x, 0)) as i:
        for k in range(60):
            make.store(make.x, i + 1 if k == 41 else i, k)
        make.store(make.x, i, 41)
    (array,) = find_races(make.done()).arrays
    assert array.verdict == "conflict"


def permutation(bits: int, **args: int) -> Function:
    """Stores to arrays of rank 1, but ``n``, at the number with the bits of i in reverse."""
    make = Make(**args)
    with make.parallel(i=make.dim(make.args["n"], 0)) as i:
        place = make.int(0)
        for k in range(bits):
            place = place + (i // (1 << k) % 2) * (1 << (bits - 1 - k))
        for name in args:
            if name != "n":
                make.store(make.args[name], place)
    return make.done()


def test_what_isl_cannot_answer_is_not_known(caplog):
    function = permutation(12, n=1, x=1, y=1, z=1, u=1, v=1)
    with caplog.at_level(logging.DEBUG, "weft.races"):
        report = check_races(function)
    assert [array.verdict for array in report.arrays] == ["unknown"] * 5
    assert caplog.messages[0] == (
        "kernel: 3 of 3 questions to isl were more work than a kernel may make: not known"
    )


def test_pairs_of_accesses_have_a_limit(monkeypatch, caplog):
    monkeypatch.setattr(races, "PAIRS", 9)
    monkeypatch.setattr(budget, "PAIRS", 9)
    with caplog.at_level(logging.DEBUG, "weft.races"):
        assert check_races(stores(10, 2)).verdict == "unknown"
    assert caplog.messages[0] == "kernel: more than 9 pairs of accesses: the rest is not known"
    assert check_races(stores(9, 2)).verdict == "free"


def store_at(place: Callable[[Int], Int]) -> Function:
    make = Make(x=1, n="index")
    with make.parallel(i=make.n) as i:
        make.store(make.x, place(i))
    return make.done()


HARD = [
    permutation(6, n=1, x=1),
    permutation(12, n=1, x=1, y=1, z=1),
    store_at(lambda i: (i * 101 % 103) * 107 + i * 109 % 113),
    store_at(lambda i: ((i * 101 % 103) * 107 + i * 109 % 113) * 117 + i * 119 % 117),
    store_at(lambda i: ((i * 101 + 7) % 103 + i // 103 * 3) * 109 % 113 + i // 113 * 3),
]


@pytest.mark.parametrize("function", HARD)
def test_isl_works_so_much_for_a_kernel(monkeypatch, function):
    steps = []

    def counted(question, most, answer=budget._answer):
        found = answer(question, most)
        steps.append(found[1])
        return found

    budget._is_empty.cache_clear()
    monkeypatch.setattr(budget, "_answer", counted)
    assert find_races(function).verdict == "unknown"
    assert sum(steps) <= budget.TOTAL


def test_a_question_is_asked_once(asked):
    for _ in range(2):
        assert find_races(permutation(5, n=1, x=1)).verdict == "unknown"
    first = asked["isl"]
    proven = store_at(lambda i: i // 4 * 4 + (3 - i % 4))
    assert find_races(proven).verdict == find_races(proven).verdict == "free"
    assert asked["isl"] == first + 1


def chain(kind: str, count: int) -> tuple[Function, Value]:
    """``count`` operands of `and` and `or` as the front end writes them, to the right (one
    expression) and to the left (a name that is assigned again and again)."""
    make = Make(x=1, n="index")
    yes, no = (make.build.constant(value, i1) for value in (True, False))
    with make.parallel(i=make.n) as i:
        total = i.compare("eq", 0)
        for k in range(1, count):
            new = i.compare("eq", 3 * k)
            test, other = (new, total) if kind.startswith("right") else (total, new)
            arms = (yes, other) if kind.endswith("or") else (other, no)
            if kind == "left and, same":
                arms = other, test
            total = make.build.op("arith.select", test, *arms)
        with make.when(total):
            make.add(make.x, i)
    return make.done(), total


KINDS = ["right or", "right and", "left or", "left and", "left and, same"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_condition_has_one_comparison_for_each_operand(kind):
    for count in (2, 8, 200):
        function, total = chain(kind, count)
        assert len(list(condition_polys(Extraction(function).condition(total)))) == count


def test_conditions_and_expressions_that_double_are_not_followed_for_ever():
    make = Make(x=1, n="index")
    with make.parallel(i=make.n) as i:
        k, test = i, i.compare("sgt", 0)
        unknown = make.data(make.x, i).compare("sgt", 0)
        data = unknown
        for j in range(40):
            arms = (k - 1).value, k.value
            k = Int(make.build.op("arith.select", k.compare("sgt", j), *arms), make)
            arms = i.compare("slt", 2 * j), i.compare("sgt", 3 * j)
            test = make.build.op("arith.select", test, *arms)
            data = make.build.op("arith.select", data, unknown, unknown)
        with make.when(test), make.when(data):
            make.store(make.x, k)
    found = Extraction(make.done())
    access = found.found[-1]
    assert access.subscripts == (None,)
    assert len(list(condition_polys(access.guards[0]))) <= MOST
    assert access.guards[1] is None
    sizes = [poly.size for poly in found._polys.values() if poly is not None]
    assert 100 < max(sizes) <= MOST


def test_operations_under_a_long_condition_have_two_ends():
    for count, least, most in ((3, 3, 3), (40, 0, 50)):
        function, _ = chain("right or", count)
        found = operations(function, {function.args[1]: 50})
        assert found.most is not None
        adds = [end["add"].number if "add" in end else 0 for end in (found.least, found.most)]
        assert adds == [least, most]


def updates(count: int) -> Function:
    """Loads, stores and accumulations, each at places of its own."""
    make = Make(x=2, y=2, z=2)
    with make.parallel(i=make.dim(make.x, 0)) as i:
        for k in range(count):
            value = make.load(make.x, i, make.int(k))
            make.store(make.x, i, make.int(k), value=value)
            make.store(make.z, i, make.int(k))
            make.add(make.y, i, make.int(k), kind="mulf")
    function = make.done()
    function.attrs["noalias"] = True
    return function


USES: dict[str, tuple[Callable[[Function], object], int]] = {
    "atomics": (relax_atomics, 120),
    "race checks": (race_checks.undecided, 360),
    "contents": (lambda f: contents(f, accesses(f)), 120),
    "written once": (lambda f: element_written_once(f, accesses(f), f.args[2]), 0),
}


@pytest.mark.parametrize("use", USES)
def test_accesses_to_places_of_their_own_are_not_compared_pair_by_pair(use, monkeypatch):
    """Each of 600 lines was compared with each other one: 13 s in debug mode."""
    ask, expected = USES[use]
    compared = 0
    align = disjoint.aligned

    def counted(a, b):
        nonlocal compared
        compared += 1
        return align(a, b)

    for module in (disjoint, memory, relation):
        monkeypatch.setattr(module, "aligned", counted)
    ask(updates(120))
    print(use, compared)
    assert compared == expected
