"""Schedules as values: their text, what calls choose of them, and what the cache keeps."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
import torch

import weft
from examples import brick_wall, causal_conv, gallery, softmax
from tests.cuda.sizes import call_of
from tests.golden import cases
from weft.codegen.launching import Facts
from weft.runtime.cache import from_json, to_json
from weft.schedule import guards, language
from weft.schedule.choose import Candidate, alignments, candidate, choose, fitted
from weft.schedule.language import (
    Align,
    Bind,
    BlockDim,
    Cooperate,
    Cover,
    IndexWidth,
    Schedule,
    ScheduleError,
    SplitReduction,
    UnrollJam,
    Vectorize,
    parse,
    show,
)
from weft.schedule.machine import GpuMachine
from weft.tools.cross import gradient_loops, lowered_loops


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# -- text


def test_the_text_of_a_schedule_is_read_back() -> None:
    schedule: Schedule = (
        IndexWidth(32), UnrollJam("t", 4, 32), UnrollJam("b", 4),
        Vectorize("j", 4, 8, stride=32, divisible=True), Align("d_w", 16), Bind("t", "x"),
        BlockDim((8, 4)), Cooperate((), 8), Cooperate(("j", "k_"), 1024, columns=8), Cover(),
        SplitReduction(("j",), 512, parts=7),
    )  # fmt: skip
    text = show(schedule)
    assert text == (
        "index_width(32); unroll_jam(t, 4, stride=32); unroll_jam(b, 4); "
        "vectorize(j, 4, 8, stride=32, divisible=True); align(d_w, 16); bind(t, x); "
        "block_dim((8, 4)); cooperate((), 8); cooperate((j, k_), 1024, columns=8); cover(); "
        "split_reduction((j), 512, parts=7)"
    )
    assert parse(text) == schedule
    assert parse(text.replace("; ", " ;\n")) == schedule


def drawn(draw: random.Random, kinds: tuple[Any, ...]) -> Any:
    """A step or guard with any values of its fields' types."""
    kind = draw.choice(kinds)
    values: dict[str, Any] = {}
    for name, hint in ((f.name, f.type) for f in dataclasses.fields(kind)):
        word = "".join(draw.choices("abxyz_.0", k=3))
        values[name] = {
            "int": draw.randrange(-3, 2000), "bool": draw.random() < 0.5, "str": f"v{word}",
            "tuple[int, ...]": tuple(draw.choices(range(-9, 99), k=draw.randrange(4))),
            "tuple[str, ...]": tuple(f"n{k}" for k in range(draw.randrange(4))),
        }.get(hint, 32 if "32" in hint else "x")  # fmt: skip
    return kind(**values)


def test_any_candidate_is_read_back() -> None:
    draw = random.Random(4)
    for _ in range(500):
        steps = tuple(drawn(draw, language.STEPS) for _ in range(draw.randrange(6)))
        asked = tuple(drawn(draw, guards.GUARDS) for _ in range(draw.randrange(6)))
        assert parse(show(steps)) == steps
        assert candidate(str(Candidate(asked, steps))) == Candidate(asked, steps)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unroll_jam t", "`unroll_jam t` is no step: write it like `unroll_jam(t, 4)`"),
        ("cover(1)", "`cover(1)`: cover takes 0 values: "),
        ("bind(t)", "`bind(t)`: bind needs side"),
        ("bind(t, x, axis=u)", "`bind(t, x, axis=u)`: bind takes axis, side, each once"),
        ("persist(32, depth=3)", "`persist(32, depth=3)`: persist takes blocks, each once"),
    ],
)
def test_what_is_no_schedule(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_a_step_that_there_is_not() -> None:
    with pytest.raises(ScheduleError, match="there is no step `jam`: there are index_width, fast"):
        parse("jam(t, 4)")


# -- choice


def facts_of(name: str) -> list[Facts]:
    """What is known of the loops of a kernel of the replay."""
    (kernel, *args), _ = cases.KERNELS[name]
    return [loop.facts for loop in weft.compile_for("sm_90", kernel, *args)]


NAMES = ("brick_wall", "causal_conv", "histogram", "matmul", "softmax", "total", "transpose")


@pytest.mark.parametrize("name", NAMES)
def test_a_call_chooses_a_candidate_and_a_grid_for_all_iterations(name: str) -> None:
    draw = random.Random(name)
    (facts,) = facts_of(name)
    nest = facts.nest
    chosen = set()
    for _ in range(200):
        trips = {axis: draw.choice((0, 1, 3, 31, 100, 4096, 1 << 20)) for axis in nest.axes}
        lengths = draw.choice((3, 40, 5000))
        call = call_of(nest, trips, **{a: (draw.choice((5, 64, 4096)),) for a in nest.arrays})
        for low, high in nest.lengths:
            call.values[low], call.values[high] = (0, 0), (lengths, lengths)  # type: ignore[index]
        if 0 in call.trips and not nest.kinds:
            continue  # nothing is launched
        machine = GpuMachine(draw.choice((1, 20, 132)), draw.choice((1 << 10, 50 << 20)))
        found = choose(facts.candidates, call, machine, draw.choice((64, 256, 512)))
        assert found.schedule == fitted(candidate(facts.candidates[found.place]), call)
        assert all(n >= 1 for n in (*found.grid, *found.block))
        x, y, z = found.block
        assert x * y * z <= 1024
        if Cover() in found.schedule and not any(
            isinstance(step, Vectorize | UnrollJam) for step in found.schedule
        ):
            threads = [g * b for g, b in zip(found.grid, found.block, strict=True)]
            order = [step.axis for step in found.schedule if isinstance(step, Bind)]
            left = dict(zip(nest.axes, call.trips, strict=True))  # steps may be of two axes
            assert all(left[axis] <= n for axis, n in zip(order[:2], threads, strict=False))
        chosen.add(found.schedule)
    assert len(chosen) > 1, "sizes decide"


def test_the_last_candidate_asks_for_nothing() -> None:
    for name in NAMES:
        for facts in facts_of(name):
            assert candidate(facts.candidates[-1]).guards == ()
            assert len(set(facts.candidates)) == len(facts.candidates)


def test_addresses_are_asked_about_for_all_candidates() -> None:
    for name in NAMES:
        for facts in facts_of(name):
            guards_of = [candidate(text).guards for text in facts.candidates]
            asked = {g for found in guards_of for g in found if isinstance(g, guards.Aligned)}
            assert {*alignments(facts.candidates)} == asked


def test_no_candidate_is_there_twice() -> None:
    """A schedule has the guards of one candidate, so that its code and what it needs belong
    together."""
    for name in NAMES:
        for facts in facts_of(name):
            schedules = [candidate(text).schedule for text in facts.candidates]
            assert len(set(schedules)) == len(schedules)


def test_what_is_known_of_a_kernel_survives_the_cache() -> None:
    tile = meta(6, 8, dtype=torch.int32)
    for kernel, *args in (
        (brick_wall.brick_wall, tile, 20, 28, 2, 1, 5),
        (gallery.total, meta(9)),
        (gallery.matmul, meta(9, 9), meta(9, 9)),
        (softmax.softmax, meta(9, 9)),
        (weft.kernel(debug=True)(causal_conv.causal_conv.function), meta(3, 9), meta(2, 3, 9), 0.1),
    ):
        facts = weft.compile_for("sm_90", kernel, *args).loops[0].facts
        header = json.loads(json.dumps(to_json(facts)))
        assert from_json(Facts, header) == facts
        for name in header:
            with pytest.raises(ValueError, match="Facts"):
                from_json(Facts, {key: value for key, value in header.items() if key != name})


def test_loops_of_derived_functions_have_names_of_their_own() -> None:
    for loop in lowered_loops(causal_conv.causal_conv, meta(3, 9), meta(2, 3, 9), 0.1):
        for step in gradient_loops(loop):
            assert len({arg.name for arg in step.args}) == len(step.args)
