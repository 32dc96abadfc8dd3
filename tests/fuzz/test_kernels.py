"""Random kernels: compiled against the undecorated Python. ``make fuzz N=5000`` draws more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import (
    collections,
    complexes,
    conditions,
    draws,
    element_loops,
    float8,
    jagged,
    joins,
    jumps,
    moves,
    nests,
    objects,
    orders,
    overlaps,
    programs,
    row_values,
    rows,
    scans,
    slices,
    structs,
    tables,
    taken,
    totals,
    unsigned,
    updates,
    windows,
)
from tests.fuzz.check import check
from tests.fuzz.generate import Kernel, kernel

COUNT = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "40"))
PARTS = max(COUNT // 200, 10)  # so that several processes take part, and none is long

pytestmark = [
    pytest.mark.fuzz, pytest.mark.sampled(5), pytest.mark.parametrize("part", range(PARTS)),
]  # fmt: skip
drawing = settings(
    max_examples=-(-COUNT // PARTS), deadline=None, phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck), database=None,
)  # fmt: skip


@drawing
@given(seed=st.integers(0, 1 << 40))
def test_random_kernels_mean_what_the_python_means(part: int, seed: int) -> None:
    check(Random(seed))


@drawing
@given(seed=st.integers(0, 1 << 40))
def test_random_kernels_over_rows(part: int, seed: int) -> None:
    check(Random(seed), draw=rows.kernel)


@drawing
@given(seed=st.integers(0, 1 << 40))
def test_random_kernels_that_overwrite_what_they_read(part: int, seed: int) -> None:
    check(Random(seed), draw=taken.kernel)


@pytest.fixture
def in_many_chunks() -> Iterator[None]:
    with conditions.many_chunks():
        yield


@drawing
@given(seed=st.integers(0, 1 << 40), draw=st.sampled_from([kernel, nests.kernel]))
@pytest.mark.sampled(5)
@pytest.mark.usefixtures("in_many_chunks")
def test_random_kernels_in_many_chunks(
    part: int, seed: int, draw: Callable[[Random], Kernel]
) -> None:
    check(Random(seed), draw=draw)


@drawing
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("in_many_chunks")
def test_random_accumulations_in_slices(part: int, seed: int) -> None:
    slices.check(Random(seed))


@pytest.fixture
def past_caches() -> Iterator[None]:
    with conditions.past_caches():
        yield


@drawing
@given(
    seed=st.integers(0, 1 << 40),
    draw=st.sampled_from([kernel, nests.kernel, windows.kernel, rows.kernel]),
)
@pytest.mark.sampled(5)
@pytest.mark.usefixtures("past_caches")
def test_random_kernels_whose_stores_stream(
    part: int, seed: int, draw: Callable[[Random], Kernel]
) -> None:
    check(Random(seed), draw=draw)


@drawing
@given(seed=st.integers(0, 1 << 40))
def test_random_recurrences(part: int, seed: int) -> None:
    check(Random(seed), draw=scans.kernel)


@drawing
@given(seed=st.integers(0, 1 << 40))
def test_random_windows(part: int, seed: int) -> None:
    check(Random(seed), draw=windows.kernel)


@drawing
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(3)
def test_random_nests_of_ranges(part: int, seed: int) -> None:
    check(Random(seed), draw=nests.kernel)


@settings(drawing, max_examples=-(-COUNT // (10 * PARTS)))  # each has a gradient
@given(seed=st.integers(0, 1 << 40))
def test_random_kernels_of_complex_numbers(part: int, seed: int) -> None:
    complexes.check(Random(seed))


@settings(drawing, max_examples=-(-COUNT // (10 * PARTS)))  # each has a gradient
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(5)
def test_random_kernels_of_lists_and_vectors(part: int, seed: int) -> None:
    collections.check(Random(seed))


@drawing
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(5)
def test_random_kernels_of_unsigned_integers(part: int, seed: int) -> None:
    unsigned.check(Random(seed))


@drawing
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(5)
def test_random_kernels_of_floats_of_eight_bits(part: int, seed: int) -> None:
    float8.check(Random(seed))


@settings(drawing, max_examples=-(-COUNT // (10 * PARTS)))  # each has a gradient
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(5)
def test_random_kernels_of_structs(part: int, seed: int) -> None:
    structs.check(Random(seed))


@settings(drawing, max_examples=-(-COUNT // (5 * PARTS)))
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "drawn",
    [tables, objects, moves, jumps, joins, row_values, orders, jagged, updates, totals],
    ids=lambda m: m.__name__.rpartition(".")[2],
)
def test_random_kernels_of_what_iterations_keep(drawn: Any, part: int, seed: int) -> None:
    drawn.check(Random(seed))


@settings(drawing, max_examples=-(-COUNT // (10 * PARTS)))  # each is compiled several times
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(5)
@pytest.mark.usefixtures("in_many_chunks")
def test_random_kernels_that_draw_random_numbers(part: int, seed: int) -> None:
    draws.check(Random(seed))


@drawing
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(5)
def test_random_loops_over_elements(part: int, seed: int) -> None:
    element_loops.check(Random(seed))


@settings(drawing, max_examples=-(-COUNT // (5 * PARTS)))
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(5)
def test_random_kernels_of_views_and_loops_with_several_exits(part: int, seed: int) -> None:
    programs.check(Random(seed))


@drawing
@given(seed=st.integers(0, 1 << 40))
@pytest.mark.sampled(5)
def test_random_kernels_whose_arguments_share_memory(part: int, seed: int) -> None:
    overlaps.check(Random(seed))
