"""Random kernels: derivatives against each other and against differences of the undecorated
Python. ``make fuzz N=5000`` draws more."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import conditions
from tests.fuzz.gradients import check_gradients, check_recurrences, check_second
from tests.fuzz.graphs import check_graphs
from tests.fuzz.histories import check_history
from tests.fuzz.overlaps import check_derivatives
from tests.fuzz.results import check_results
from tests.fuzz.special import check_special
from tests.fuzz.ties import check_ties
from tests.fuzz.transforms import check_transforms

COUNT = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "16"))
PARTS = max(COUNT // 50, 4)  # so that several processes take part, and none is long
FEWER = max(COUNT // 200, 1)  # of what draws a quarter

pytestmark = pytest.mark.fuzz


def outcomes(check: Callable[[Random], str], count: int) -> Counter[str]:
    """What became of ``count`` random kernels."""
    found: Counter[str] = Counter()

    @settings(
        max_examples=count, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck), database=None,
    )  # fmt: skip
    @given(st.integers(0, 1 << 40))
    def run(seed: int) -> None:
        found[check(Random(seed)).partition(":")[0]] += 1

    run()
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("part", range(PARTS))
def test_derivatives_of_random_kernels_are_differences_of_the_python(part: int) -> None:
    count = -(-COUNT // PARTS)
    found = outcomes(check_gradients, count)
    assert found["compared"] > 0.5 * count, found  # the rest is refused by name, or rough


@pytest.mark.parametrize("part", range(FEWER))
@pytest.mark.slow
def test_gradients_of_loops_that_carry_arrays(part: int) -> None:
    count = max(COUNT // 4 // FEWER, 4)
    assert outcomes(check_recurrences, count)["compared"] > 0.5 * count


@pytest.mark.parametrize("part", range(FEWER))
@pytest.mark.slow
def test_gradients_in_chunks(part: int) -> None:
    count = max(COUNT // 8 // FEWER, 4)
    with conditions.tapes_in_chunks():
        for check in (check_gradients, check_recurrences):  # of fifty, one is rough
            assert outcomes(check, count)["compared"] > 0.5 * count


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))  # some take ten seconds
def test_second_derivatives_of_random_kernels_are_differences_of_gradients(part: int) -> None:
    found = outcomes(check_second, max(COUNT // 5 // PARTS, 1))
    assert found["compared"] + found["refused"] > 0.5 * found.total(), found


@pytest.mark.parametrize("part", range(FEWER))
@pytest.mark.slow
def test_gradients_of_random_host_parts_are_differences_of_the_python(part: int) -> None:
    count = max(COUNT // 4 // FEWER, 4)
    assert outcomes(check_history, count)["compared"] > 0.9 * count


@pytest.mark.parametrize("part", range(FEWER))
@pytest.mark.slow
def test_derivatives_where_two_operands_of_an_extremum_are_equal(part: int) -> None:
    count = max(COUNT // 4 // FEWER, 6)
    assert outcomes(check_ties, count)["compared"] == count


@pytest.mark.parametrize("part", range(FEWER))
@pytest.mark.slow
def test_transforms_of_random_kernels_change_no_number(part: int) -> None:
    count = max(COUNT // 4 // FEWER, 6)
    assert outcomes(check_transforms, count)["compared"] > 0.5 * count


@pytest.mark.parametrize("part", range(FEWER))
@pytest.mark.slow
def test_graphs_of_random_host_parts_change_no_number(part: int) -> None:
    count = max(COUNT // 4 // FEWER, 20)  # six of ten are compared, fewer of a few by chance
    assert outcomes(check_graphs, count)["compared"] > 0.25 * count


@pytest.mark.parametrize("part", range(FEWER))
@pytest.mark.slow
def test_derivatives_at_special_numbers_are_those_of_torch(part: int) -> None:
    count = max(COUNT // 4 // FEWER, 6)
    assert outcomes(check_special, count)["compared"] > 0.5 * count


@pytest.mark.parametrize("part", range(FEWER))
@pytest.mark.slow
def test_gradients_of_some_results_are_those_of_all_with_zeros(part: int) -> None:
    count = max(COUNT // 4 // FEWER, 6)
    assert outcomes(check_results, count)["compared"] == count


@pytest.mark.parametrize("part", range(FEWER))
@pytest.mark.slow
def test_derivatives_of_writes_to_parts_are_differences_of_the_python(part: int) -> None:
    count = max(COUNT // 4 // FEWER, 12)
    assert outcomes(check_derivatives, count)["compared"] > 0.25 * count
