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

from tests.fuzz.gradients import check_gradients, check_second
from tests.fuzz.histories import check_history
from tests.fuzz.ties import check_ties

COUNT = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "24"))

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


@pytest.mark.parametrize("part", range(4))  # so that none is long
def test_derivatives_of_random_kernels_are_differences_of_the_python(part: int) -> None:
    count = -(-COUNT // 4)
    found = outcomes(check_gradients, count)
    assert found["compared"] > 0.5 * count, found  # the rest is refused by name, or rough


@pytest.mark.parametrize("part", range(4))  # some take ten seconds
def test_second_derivatives_of_random_kernels_are_differences_of_gradients(part: int) -> None:
    found = outcomes(check_second, max(COUNT // 20, 1))
    assert found["compared"] + found["refused"] > 0.5 * found.total(), found


def test_gradients_of_random_host_parts_are_differences_of_the_python() -> None:
    count = max(COUNT // 4, 4)
    assert outcomes(check_history, count)["compared"] > 0.9 * count


def test_derivatives_where_two_operands_of_an_extremum_are_equal() -> None:
    count = max(COUNT // 4, 6)
    assert outcomes(check_ties, count)["compared"] == count
