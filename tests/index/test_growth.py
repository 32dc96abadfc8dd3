"""How much is asked about kernels with many accesses, counted: no clock."""

import logging

import pytest

from tests.index.make import Make
from weft.index import races
from weft.index.races import check_races, find_races
from weft.ir.core import Function


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
    monkeypatch.setattr(races, "meeting_set", counted("isl", races.meeting_set))
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


def test_what_isl_cannot_answer_is_not_known(asked, caplog):
    function = permutation(12, n=1, x=1, y=1, z=1, u=1, v=1)
    with caplog.at_level(logging.DEBUG, "weft.races"):
        report = check_races(function)
    assert [array.verdict for array in report.arrays] == ["unknown"] * 5
    assert asked["isl"] <= 6
    assert caplog.messages[0].startswith("kernel: isl was given up after 3 questions, 3 of them")
