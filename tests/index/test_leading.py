"""Which indices of a parallel loop keep apart what its iterations accumulate."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.index.make import Int, Make
from weft.index.access import accesses
from weft.index.leading import leading

# The subscripts of an accumulation: of a function of ``n`` and ``m``, parallel indices i, j and t,
# and what is read from memory.
Place = Callable[[Make, Int, Int, Int, Int], tuple[Int | int, ...]]


def count(*places: Place) -> int:
    k = Make(out=3, x=1, n="index", m="index")
    with k.parallel(i=k.n, j=k.m, t=k.n) as (i, j, t):
        data = k.data(k.x, t)
        for place in places:
            k.add(k.out, *place(k, i, j, t, data))
    function = k.done()
    return leading(accesses(function), [function.args[0]])


@pytest.mark.parametrize(
    ("expected", "places"),
    [
        (1, [lambda k, i, j, t, data: (i, data, 0)]),
        (1, [lambda k, i, j, t, data: (i + 1, data, 0)]),
        (1, [lambda k, i, j, t, data: (k.n - 1 - i, data, 0)]),
        (1, [lambda k, i, j, t, data: (2 * i, data, 0)]),
        (1, [lambda k, i, j, t, data: (data, 0, i)]),
        (2, [lambda k, i, j, t, data: (i, j, data)]),
        (2, [lambda k, i, j, t, data: (j, data, i + 3)]),
        (2, [lambda k, i, j, t, data: (i * k.m + j, data, 0)]),
        (1, [lambda k, i, j, t, data: (i, data, 0), lambda k, i, j, t, data: (i, t, j)]),
        (0, [lambda k, i, j, t, data: (i // 2, data, 0)]),
        (0, [lambda k, i, j, t, data: (i % 2, data, 0)]),
        (0, [lambda k, i, j, t, data: (0, data, 0)]),
        (0, [lambda k, i, j, t, data: (data, i + data, 0)]),
        (0, [lambda k, i, j, t, data: (i + j, data, 0)]),
        (0, [lambda k, i, j, t, data: (i + t, data, 0)]),
        (0, [lambda k, i, j, t, data: (j, data, 0)]),  # it is not the outermost
        (0, [lambda k, i, j, t, data: (i, data, 0), lambda k, i, j, t, data: (i + 1, data, 0)]),
        (0, [lambda k, i, j, t, data: (i, 0, 0), lambda k, i, j, t, data: (k.n - 1 - i, 0, 0)]),
        (0, [lambda k, i, j, t, data: (k.n * i, data, 0)]),  # n may be 0
    ],
)
def test_so_many_indices_keep_elements_apart(expected: int, places: list[Place]) -> None:
    assert count(*places) == expected


def test_all_arrays_have_to_be_kept_apart() -> None:
    k = Make(a=2, b=1, x=1, n="index", m="index")
    with k.parallel(i=k.n, j=k.m) as (i, j):
        data = k.data(k.x, j)
        k.add(k.a, i, data)
        k.add(k.b, data)
    function = k.done()
    a, b, *_ = function.args
    assert leading(accesses(function), [a]) == 1
    assert leading(accesses(function), [a, b]) == 0


def test_one_index_has_no_others_inside() -> None:
    k = Make(a=2, x=1, n="index", m="index")
    with k.parallel(i=k.n) as i, k.serial(j=k.m) as j:
        k.add(k.a, i, k.data(k.x, j))
    function = k.done()
    assert leading(accesses(function), [function.args[0]]) == 0
