"""run: order, timing, verification, listener."""

from __future__ import annotations

import sys

import pytest

from tests.passes.generate import random_function
from weft import timing
from weft.errors import InternalError
from weft.ir.core import Function
from weft.ir.text import same
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.run import PIPELINE, run


def test_passes_run_in_order_and_are_timed_and_listened_to():
    function = random_function(1)
    heard: list[tuple[str, Function]] = []
    with timing.record() as times:
        last = run(function, [cse, dce, cse], listener=lambda *event: heard.append(event))
    assert [name for name, _ in heard] == ["cse", "dce", "cse"]
    assert heard[-1][1] is last
    assert same(last, cse(dce(cse(function))))
    assert list(times.stages) == ["passes.cse", "passes.dce"]
    assert all(ms > 0 for ms in times.stages.values())


def test_a_pass_that_breaks_the_function_is_found_when_asked():
    def drop_the_end(function: Function) -> Function:
        function.body.ops.pop()
        return function

    run(random_function(1), [drop_the_end])
    with pytest.raises(InternalError, match=r"the region must end with func\.return"):
        run(random_function(1), [drop_the_end], verify=True)


def test_every_pass_states_its_precondition_and_its_non_goals():
    for step in PIPELINE:
        text = f"{sys.modules[step.__module__].__doc__} {step.__doc__}"
        assert "Precondition:" in text, step.__name__
        assert "Non-goals:" in text, step.__name__
