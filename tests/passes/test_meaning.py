"""Every pass, and the pipeline, keeps the meaning of random functions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.generate import outcome, random_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.passes.cse import cse
from weft.passes.forward_stores import forward_stores
from weft.passes.if_convert import if_convert
from weft.passes.reassociate_extrema import reassociate_extrema
from weft.passes.reciprocal import reciprocal
from weft.passes.run import PIPELINE, run

SEEDS = st.integers(0, 2**32 - 1)
PASSES = list(dict.fromkeys(PIPELINE))
# Which rebuild nothing where there is nothing to do; others say so in tests of their own.
SPARING = [cse, forward_stores, if_convert, reassociate_extrema, reciprocal]
EXACT = [step for step in PIPELINE if step is not reciprocal]  # which may round differently


@pytest.mark.parametrize(
    "step", [*dict.fromkeys(EXACT), EXACT], ids=lambda p: getattr(p, "__name__", "all")
)
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, alias=st.booleans())
@pytest.mark.sampled(9)
def test_meaning_is_kept(step, seed, alias):
    function = random_function(seed)
    verify(function)
    before = print_function(function)
    better = run(function, step if isinstance(step, list) else [step], verify=True)
    assert outcome(better, seed, alias) == outcome(function, seed, alias)
    assert print_function(function) == before, "the pass changed the function that it was given"


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_meaning_is_kept_without_aliasing(seed):
    function = random_function(seed)
    function.attrs["noalias"] = True
    assert outcome(run(function, EXACT, verify=True), seed) == outcome(function, seed)


@pytest.mark.parametrize("step", PASSES, ids=lambda p: p.__name__)
@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_pass_twice_is_pass_once(step, seed):
    once = step(random_function(seed))
    if step.__name__ in ("simplify", "choices"):  # what one walk uncovers another may simplify
        return
    verify(once)
    assert same(step(once), once)


@pytest.mark.parametrize("step", SPARING, ids=lambda p: p.__name__)
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_a_pass_that_has_nothing_to_do_gives_the_function_itself(step, seed):
    function = random_function(seed)
    once = step(function)
    assert step(once) is once
    assert once is function or not same(once, function)
