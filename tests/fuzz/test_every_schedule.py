"""Loops of random programs by every schedule of an H100: ``make fuzz N=5000`` draws more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from random import Random

import pytest

from tests.fuzz import every_schedule

COUNT = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "17"))
EACH = max(COUNT // 40 // len(every_schedule.FORMS), 1)  # some have forty candidates

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=[] if form == "siblings" else [pytest.mark.slow])
        for form in every_schedule.FORMS
    ],
)
def test_every_schedule_of_a_random_program_compiles(form: str) -> None:
    seeds = [Random().randrange(1 << 40) for _ in range(EACH)]
    found, compiled = every_schedule.failures(form, seeds)
    assert compiled or form != "siblings", "each of them has loops for a grid"
    assert not found, "\n".join(f"{form} {seed}: {wrong}" for seed, wrong in found.items())


def test_a_process_that_ends_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where LLVM ends it."""
    from tests.fuzz import test_every_schedule  # the name that the other process knows it by

    monkeypatch.setattr(every_schedule, "_told", test_every_schedule.ends_at_once)
    found, _ = every_schedule.failures("plain", [3, 5])
    assert found == dict.fromkeys((3, 5), "the process ended: exit code -6")


def ends_at_once(form: str, seeds: Sequence[int], parent: Connection) -> None:
    parent.send((seeds[0], None, None))
    os.abort()
