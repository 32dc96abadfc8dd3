"""Runs passes over a function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

from weft import timing
from weft.ir.core import Function, walk
from weft.ir.verify import verify as check
from weft.passes.advance import advance
from weft.passes.bounds import bounds
from weft.passes.collapse import collapse
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.factor import factor
from weft.passes.forward_stores import forward_stores
from weft.passes.fuse import fuse
from weft.passes.hoist import hoist
from weft.passes.if_convert import if_convert
from weft.passes.lower_updates import lower_updates
from weft.passes.merge_updates import merge_updates
from weft.passes.promote import promote
from weft.passes.reassociate_extrema import reassociate_extrema
from weft.passes.reciprocal import reciprocal
from weft.passes.recognise_reductions import recognise_reductions
from weft.passes.relax_atomics import relax_atomics
from weft.passes.reuse_output_as_scratch import reuse_output_as_scratch
from weft.passes.separate_sums import separate_sums
from weft.passes.serialize_reductions import serialize_reductions
from weft.passes.share_exponentials import share_exponentials
from weft.passes.shorten_chains import shorten_chains
from weft.passes.simplify import choices, simplify
from weft.passes.split_quotients import split_quotients
from weft.passes.strength import strength
from weft.passes.tile import tile
from weft.passes.widen import widen

log = logging.getLogger("weft.passes")

Pass = Callable[[Function], Function]

# What every kernel goes through, from top to bottom.
PIPELINE: list[Pass] = [
    simplify,  # constants and algebra
    widen,  # subscripts through narrow integers and floats, which the next ones do not read
    cse,  # equal subscripts become one value, which the next passes compare by identity
    bounds,  # checks of debug mode that index sets prove needless
    relax_atomics,  # an accumulation that no two iterations share becomes an ordinary update
    lower_updates,  # which is a load, an operation and a store
    collapse,  # loops in loops become more dimensions of the parallel loop
    recognise_reductions,  # elements that all iterations accumulate into become totals
    serialize_reductions,  # axes that only accumulations run over become loops inside
    promote,  # elements that loops update become values that they carry
    forward_stores,  # loads of what was just stored or loaded
    split_quotients,  # loops split where an integer division keeps its value
    tile,  # transpositions block by block
    hoist,  # invariants out of loops
    reassociate_extrema,  # running maxima that any order of iterations may compute
    shorten_chains,  # extrema with what the turn before gives last
    cse,  # what met outside of the loops
    factor,  # what a loop does not change, out of a derivative's sums
    merge_updates,  # contributions to one element, from loop after loop, to the last of them
    reuse_output_as_scratch,  # what loops compute alike, in memory that is overwritten later
    merge_updates,  # what is kept there is not expensive any more
    cse,  # what came to the later loops
    separate_sums,  # of terms with factors and conditions that a loop does not change
    reciprocal,  # division by what a loop does not change
    cse,  # reciprocals of one number
    choices,  # of one number twice, which LLVM takes for one choice
    if_convert,  # sums under a condition, which loops then only sum
    share_exponentials,  # of a running softmax: one of two is 1
    strength,  # only now, because index sets read divisions more easily than shifts
    dce,  # all that is left without a use
    fuse,  # loops of the same iterations
    advance,  # loads behind loops that may be on their way meanwhile
]


def run(
    function: Function,
    passes: Sequence[Pass],
    *,
    verify: bool = False,
    listener: Callable[[str, Function], None] | None = None,
) -> Function:
    """``function`` after ``passes``, one after the other. ``function`` itself is not changed.

    Each is timed as stage ``passes.<name>``. With ``verify``, the verifier runs after each and
    raises what it raises. ``listener(name, function)`` is called after each.
    """
    logging_on = log.isEnabledFor(logging.DEBUG)
    for step in passes:
        made = step.func if isinstance(step, partial) else step
        name, before, begin = made.__name__, function, perf_counter()
        with timing.stage(f"passes.{name}"):
            function = step(function)
        if logging_on:
            took = (perf_counter() - begin) * 1e3
            counts = [sum(1 for _ in walk(f.body)) for f in (before, function)]
            log.debug("%s: %-23s %7.3f ms, %d -> %d operations", function.name, name, took, *counts)
        if verify:
            check(function)
        if listener is not None:
            listener(name, function)
    return function
