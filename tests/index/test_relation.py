"""Relations, ranges, demotion."""

from __future__ import annotations

import islpy
import pytest

from tests.index.make import Int, Make
from weft.index.access import accesses
from weft.index.bounds import always_in_range, needless_checks
from weft.index.relation import relation_text
from weft.ir.core import Function, walk
from weft.passes.bounds import bounds
from weft.passes.relax_atomics import relax_atomics


def causal_conv() -> Make:
    k = Make(w=2, k=3, out=3, B="index", C="index", T="index")
    with k.parallel(b=k.B, c=k.C, t=k.T) as (b, c, t):
        with k.serial(u=t + 1) as u:
            k.load(k.w, c, k.T - 1 - t + u)
            k.load(k.args["k"], b, c, u)
        k.store(k.out, b, c, t)
    k.done()
    return k


def test_relation_of_causal_conv() -> None:
    access = accesses(causal_conv().function)[0]
    expected = islpy.Map(
        "[B, C, T] -> { S[b, c, t, u] -> w[c, T - 1 - t + u] : "
        "0 <= b < B and 0 <= c < C and 0 <= t < T and 0 <= u <= t }"
    )
    assert access.exact
    assert islpy.Map(relation_text(access)).is_equal(expected)


def test_unknown_dimension_is_unconstrained() -> None:
    k = Make(x=1, out=2, n="index")
    with k.parallel(i=k.n) as i:
        k.store(k.out, i, k.data(k.x, i))
    access = accesses(k.done())[1]
    assert access.subscripts[1] is None
    assert not access.exact
    assert str(islpy.Map(relation_text(access))) == "[n] -> { S[i] -> out[i, o1] : 0 <= i < n }"


# ----------------------------------------------------------------------------------------- ranges


def as_it_is(symbol: object) -> None:
    """Replaces no symbol."""


def test_ranges_from_loops() -> None:
    k = Make(x=2, n="index")
    rows, columns = k.dim(k.x, 0), k.dim(k.x, 1)
    with k.parallel(i=rows, j=columns) as (i, j), k.serial(u=j + 1) as u:
        k.load(k.x, i, columns - 1 - j + u)
        k.load(k.x, i + 1, j // 2 + 1)
    first, second = accesses(k.done())
    assert always_in_range(first, as_it_is, isl=False) == (True, True)
    assert always_in_range(second, as_it_is) == (False, False)


def test_ranges_from_conditions() -> None:
    k = Make(x=1)
    with k.parallel(i=k.dim(k.x, 0)) as i, k.when(i.compare("sgt", 0)):
        k.load(k.x, i - 1)
    function = k.done()
    (access,) = accesses(function)
    assert always_in_range(access, as_it_is, isl=False) == (False,)
    assert always_in_range(access, as_it_is) == (True,)


def test_checks_are_dropped() -> None:
    k = Make(x=1)
    extent = k.dim(k.x, 0)
    with k.parallel(i=extent) as i:
        for axis, subscript in enumerate((i, i + 1, (i * 3) % 8)):
            end = k.int(8) if axis == 2 else extent
            k.build.do("weft.bounds", subscript.value, end.value, tensor="x", axis=axis)
    function = k.done()
    assert len(needless_checks(function, isl=False)) == 2
    left = [op for op in walk(bounds(function).body) if op.name == "weft.bounds"]
    assert [op.attrs["axis"] for op in left] == [1]


# --------------------------------------------------------------------------- strides and demotion


def test_strides_along_parallel_indices() -> None:
    found = accesses(causal_conv().function)
    strides = [[access.stride(iv) for iv in access.parallel] for access in found]
    assert strides == [[0, 0, -1], [0, 0, 0], [0, 0, 1]]


def atomics(function: Function) -> list[bool]:
    return [op.attrs["atomic"] for op in walk(function.body) if op.name == "memref.atomic_rmw"]


def demoted(*subscripts: str) -> list[bool]:
    """Whether ``out[subscripts] += 1`` stays atomic in a loop over i < n, j < m, serial u < 4."""
    k = Make(x=1, out=len(subscripts), n="index", m="index")
    with k.parallel(i=k.n, j=k.m) as (i, j), k.serial(u=4) as u:
        names: dict[str, Int] = {"i": i, "j": j, "u": u, "n": k.n, "m": k.m, "d": k.data(k.x, i)}
        k.add(k.out, *(eval(text, {}, names) for text in subscripts))
    function = k.done()
    assert atomics(function) == [True]
    changed = relax_atomics(function)
    assert atomics(function) == [True]  # the old function is untouched
    return atomics(changed)


@pytest.mark.parametrize(
    "subscripts",
    [("i", "j"), ("j", "i"), ("i", "j + i"), ("i*m + j",), ("u", "i", "j"), ("2*i + u%2", "j"),
     ("d", "i", "j"), ("i//4", "i%4", "j"), ("i + j", "i - j")],
)  # fmt: skip
def test_demoted(subscripts: tuple[str, ...]) -> None:
    assert demoted(*subscripts) == [False]


@pytest.mark.parametrize(
    "subscripts",
    [("i", "0"), ("u", "i"), ("d", "i"), ("i + j",), ("i + u", "j"), ("i*n + j",), ("i//2", "j")],
)
def test_stays_atomic(subscripts: tuple[str, ...]) -> None:
    assert demoted(*subscripts) == [True]


def test_another_accumulation_keeps_it_atomic() -> None:
    k = Make(out=1, n="index")
    with k.parallel(i=k.n) as i:
        k.add(k.out, i)
        k.add(k.out, 2 * i)
    assert atomics(relax_atomics(k.done())) == [True, True]


def test_nothing_to_do_gives_the_function_back() -> None:
    function = causal_conv().function
    assert relax_atomics(function) is function
