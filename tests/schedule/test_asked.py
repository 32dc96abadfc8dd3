"""Schedules that people ask for: what they compute, what becomes of calls that they do not fit, and
how they reach the loops of a kernel."""

from __future__ import annotations

import copy
import logging
import pickle
import re
from typing import Any, cast

import pytest
import torch

import weft
from examples import brick_wall, causal_conv, gallery, softmax
from tests.cuda.emulator import EmulatedCall, emulated
from weft import compiler
from weft.errors import ScheduleError
from weft.runtime import build, gpu
from weft.schedule.language import Schedule, parse, show


def asked(kernel: weft.Kernel, text: str | None, *args: Any) -> tuple[torch.Tensor, Schedule]:
    """What a kernel gives in the emulator by a schedule, and by which one the last loop ran."""
    fresh = weft.kernel(**kernel.given)(kernel.function)
    EmulatedCall.seen.clear()
    found = emulated(fresh.schedule("cuda", text))(*args)
    return found, EmulatedCall.seen[-1]


def calls() -> dict[str, tuple[Any, ...]]:
    torch.manual_seed(4)
    r = torch.randn
    return {
        "conv": (causal_conv.causal_conv, r(3, 77), r(2, 3, 77), 0.1),
        "softmax": (softmax.softmax, r(5, 133)),
        "axpy": (gallery.axpy, 2.0, r(1003), r(1003)),
        "misaligned": (gallery.axpy, 2.0, r(1004)[1:], r(1003)),
        "total": (gallery.total, r(9001)),
        "histogram": (gallery.histogram, torch.rand(1700), 16, 0.0, 1.0),
        "matmul": (gallery.matmul, r(12, 47), r(47, 19)),
        "transpose": (gallery.transpose, r(33, 40)),
        "wall": (brick_wall.brick_wall, torch.arange(48).int().view(6, 8), 20, 304, 4, 2, 8),
        "odd wall": (brick_wall.brick_wall, torch.arange(460).int().view(2, 230), 5, 600, 99, 1, 5),
    }


# What is asked for, and whether it gives the bits of a thread for each iteration.
TEXTS: list[tuple[str, str, bool]] = [
    ("conv", "unroll_jam(t, 8)", True),
    ("conv", "unroll_jam(b, 2); unroll_jam(t, 4, stride=32)", True),
    ("conv", "unroll_jam(c, 3); persist(2)", True),
    ("conv", "cooperate((u), 8)", False),
    ("conv", "cooperate((), 64)", False),
    ("conv", "bind(c, x)", True),
    ("conv", "bind(b, x); bind(t, z)", True),
    ("conv", "block(512, 1)", True),
    ("conv", "block_dim((8, 4, 2)); index_width(64)", True),
    ("conv", "persist(1)", True),
    ("softmax", "unroll_jam(i, 4)", True),
    ("softmax", "cooperate((j), 16)", True),
    ("softmax", "cooperate((j, j__), 256)", True),
    ("softmax", "cooperate((j_), 8)", False),
    ("softmax", "split_reduction((), 64, parts=3)", False),
    ("softmax", "split_reduction((j), 32, columns=4)", True),
    ("axpy", "vectorize(i, 4)", True),
    ("axpy", "vectorize(i, 8); block(1024, 1)", True),
    ("axpy", "vectorize(i, 2, 4)", True),
    ("axpy", "vectorize(i, 4, 8, stride=32)", True),
    ("misaligned", "vectorize(i, 4)", True),
    ("misaligned", "vectorize(i, 1, 4, stride=32)", True),
    ("total", "vectorize(i, 2, 8)", False),
    ("total", "block_dim(64)", False),
    ("histogram", "privatize(counts)", True),
    ("matmul", "cooperate((k), 256, columns=8)", False),
    ("matmul", "cooperate((k), 64, columns=32)", False),
    ("matmul", "split_reduction((k), 64, columns=8)", False),
    ("matmul", "unroll_jam(i, 8); unroll_jam(j, 8); block(32, 8)", True),
    ("transpose", "block(8, 8)", True),
    ("transpose", "block(16, 16); persist(1)", True),
    ("wall", "vectorize(col, 4, 8, stride=32, divisible=True)", True),
    ("wall", "vectorize(col, 8)", True),
    ("wall", "index_width(32); fast_division(); streaming_stores(image)", True),
    ("odd wall", "vectorize(col, 4)", True),
    ("odd wall", "index_width(64); vectorize(col, 4)", True),
]


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("name", "text", "same_bits"), TEXTS)
def test_what_is_asked_for_is_what_runs(name: str, text: str, same_bits: bool) -> None:
    kernel, *args = calls()[name]
    expected, _ = asked(kernel, None if name == "total" else "index_width(32)", *args)
    found, schedule = asked(kernel, text, *args)
    for step in parse(text.replace("index_width(64)", "")):
        assert any(type(step) is type(other) for other in schedule), show(schedule)
    if same_bits:
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_block_has_no_more_threads_than_are_asked_for() -> None:
    """Its code is compiled for as many: a GPU refuses to launch more."""
    kernel = weft.kernel(schedule={"cuda": "cooperate((), 64, columns=8)"})(gallery.matmul.function)
    a, b = torch.empty(2, 4000, device="meta"), torch.empty(4000, 6, device="meta")
    (row,) = kernel.schedules(a, b, device="cuda").taken
    assert row.block == (8, 8, 1)


def test_what_the_text_leaves_open_is_chosen_as_usual() -> None:
    kernel = weft.kernel(schedule={"cuda": "unroll_jam(t, 8)"})(causal_conv.causal_conv.function)
    k = torch.empty(2, 4, 64, device="meta")
    facts = weft.compile_for("sm_90", kernel, k[0], k, 0.1).loops[0].facts
    assert facts.candidates[: facts.asked] == (
        "fits32(); known_trips(); covered() -> index_width(32); unroll_jam(t, 8); cover(); "
        "bind(t, x); bind(c, y); bind(b, z); block(128, 1)",
        "fits32(); known_trips() -> index_width(32); unroll_jam(t, 8); bind(t, x); bind(c, y); "
        "bind(b, z); block(128, 1)",
        "known_trips(); covered() -> unroll_jam(t, 8); cover(); bind(t, x); bind(c, y); "
        "bind(b, z); block(128, 1)",
        "known_trips() -> unroll_jam(t, 8); bind(t, x); bind(c, y); bind(b, z); block(128, 1)",
    )
    kernel.schedule("cuda", "index_width(32); cover(); unroll_jam(t, 8); bind(b, x)")
    facts = weft.compile_for("sm_90", kernel, k[0], k, 0.1).loops[0].facts
    assert facts.candidates[: facts.asked] == (
        "fits32(); known_trips(); covered() -> index_width(32); unroll_jam(t, 8); cover(); "
        "bind(b, x); bind(t, y); bind(c, z); block(128, 1)",
    )


def test_a_call_that_a_schedule_does_not_fit_goes_by_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wall, *args = calls()["odd wall"]
    caplog.set_level(logging.DEBUG, "weft.launch")
    text = "vectorize(col, 4, 8, stride=32, divisible=True)"
    found, schedule = asked(wall, text, *args)
    assert torch.equal(found, wall(*args))
    assert "divisible" not in show(schedule)
    said = [r.getMessage() for r in caplog.records if "do not allow" in r.getMessage()]
    assert said == [f"brick_wall_0: these sizes do not allow `{text}`: by `{show(schedule)}`"]


def test_large_copies_of_a_small_array_do_not_go_into_shared_memory() -> None:
    kernel = gallery.histogram
    found, schedule = asked(kernel, "privatize(counts)", torch.rand(300), 5000, 0.0, 1.0)
    assert "privatize" not in show(schedule)
    assert int(found.sum()) == 300


def test_a_schedule_is_taken_away_again() -> None:
    kernel = weft.kernel(causal_conv.causal_conv.function)
    assert kernel.schedule("cuda", "persist(1)").schedule("cuda", None) is kernel
    assert kernel.options.schedules == ()


def test_kernels_are_copied_and_pickled_with_their_schedule() -> None:
    kernel = gallery.axpy.schedule("cuda", "vectorize(i, 4)")
    try:
        assert copy.deepcopy(kernel) is kernel
        assert pickle.loads(pickle.dumps(kernel)).options is kernel.options
    finally:
        gallery.axpy.schedule("cuda", None)


@weft.kernel
def twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 2.0 * x[i]
    for j in range(x.shape[0]):
        out[j] += 1.0
    return out


def test_a_loop_of_several_goes_by_its_number() -> None:
    kernel = weft.kernel(schedule={"cuda": {1: "vectorize(j, 4)"}})(twice.function)
    x = torch.randn(50)
    EmulatedCall.seen.clear()
    assert torch.equal(emulated(kernel)(x), 2 * x + 1)
    first, second = map(show, EmulatedCall.seen)
    assert "vectorize(i, 4, 4)" in first, "as usual"
    assert "vectorize(j, 4, 4)" in second
    kernel.schedule("cuda", "vectorize(i, 2)", loop=0)
    EmulatedCall.seen.clear()
    assert torch.equal(emulated(kernel)(x), 2 * x + 1)
    assert ["vectorize(i, 2, 2)" in show(s) for s in EmulatedCall.seen] == [True, False]


@pytest.mark.parametrize(
    ("device", "text", "loop", "message", "help"),
    [
        ("cuda", "cover()", None, "`twice` has 2 device loops: say which one",
         "write one of loop=0 (line {0}), loop=1 (line {1})"),
        ("cuda", "cover()", 2, "`twice` has no device loop 2",
         "write one of loop=0 (line {0}), loop=1 (line {1})"),
        ("cuda", "cover()", "other_0", "`twice` has no device loop 'other_0'",
         "write one of loop=0 (line {0}), loop=1 (line {1})"),
        ("gpu", "cover()", 0, "there is no device `gpu`", 'write "cpu" or "cuda"'),
        ("cuda", "jam(i)", 0, "there is no step `jam`: there are index_width, fast_division, "
         "unroll_jam, vectorize, align, bind, block, block_dim, persist, cover, privatize, "
         "streaming_stores, cooperate, split_reduction, scan, prefetch, unroll, stage, keep_row, "
         "strip_mine, register_window, reverse, longest_first, shared_arrays, copy_ahead", ""),
        ("cuda", "bind(i, w)", 0, "`bind(i, w)`: `w` is given for side, which is one of x, y, z",
         "write bind(axis, side)"),
        ("cuda", "unroll_jam(i, j)", 0,
         "`unroll_jam(i, j)`: `j` is given for copies, which is a number",
         "write unroll_jam(axis, copies)"),
        ("cuda", "cooperate((1), 8)", 0,
         "`cooperate((1), 8)`: `(1)` is given for loops, which is names",
         "write cooperate(loops, threads)"),
        ("cuda", "vectorize(i, 4, divisible=1)", 0,
         "`vectorize(i, 4, divisible=1)`: `1` is given for divisible, which is True or False",
         "write vectorize(axis, width)"),
        ("cuda", 3, 0, "the schedule `3` is no text",
         'write schedule={{"cpu": "vectorize(i, 8)"}}, '
         'or {{"cpu": {{0: "vectorize(i, 8)"}}}} of loops'),
    ],
)  # fmt: skip
def test_what_is_asked_for_wrongly(
    device: str, text: Any, loop: Any, message: str, help: str
) -> None:
    lines = [region.span.line for region in twice.parts.regions]
    with pytest.raises(ScheduleError) as caught:
        twice.schedule(device, text, loop)
    assert caught.value.message == message
    assert caught.value.help == help.format(*lines)
    assert caught.value.span is not None
    assert caught.value.span.text.strip() == "def twice(x: torch.Tensor) -> torch.Tensor:"
    assert twice.options.schedules == ()


def test_what_the_decorator_is_given_is_checked_at_the_first_call() -> None:
    kernel = weft.kernel(schedule={"cuda": "cover()"})(twice.function)
    with pytest.raises(ScheduleError, match="`twice` has 2 device loops: say which one"):
        kernel(torch.ones(3))
    for given, message in (
        ("vectorize(i, 8)", "`schedule='vectorize(i, 8)'` says for no device"),
        ({"cpu": ["vectorize(i, 8)"]}, "the schedule `['vectorize(i, 8)']` is no text"),
    ):
        kernel = weft.kernel(schedule=cast(Any, given))(gallery.axpy.function)
        with pytest.raises(ScheduleError) as caught:
            kernel(2.0, torch.ones(3), torch.ones(3))
        assert caught.value.message == message


def test_calls_go_by_a_new_schedule_at_once() -> None:
    kernel = weft.kernel(gallery.axpy.function)
    x = torch.randn(100)
    for _ in range(4):
        kernel(2.0, x, x)
    before = kernel.specializations
    kernel.schedule("cuda", "vectorize(i, 2)")
    assert kernel.specializations == []
    assert torch.equal(kernel(2.0, x, x), 3 * x)
    assert len(kernel.specializations) == len(before) == 1


def test_a_schedule_is_part_of_the_key_of_the_cache() -> None:
    x = torch.randn(8)
    keys = set()
    for text in (None, "", "vectorize(i, 4)", "vectorize(i, 2)"):
        kernel = emulated(weft.kernel(gallery.axpy.function).schedule("cuda", text))
        kernel(1.0, x, x)
        keys |= {special.compiled.job.key for special in kernel.specializations}
    assert len(keys) == 4


def test_debug_mode_and_shared_memory_have_schedules_of_their_own() -> None:
    x = torch.randn(64)
    kernel = weft.kernel(gallery.axpy.function).schedule("cuda", "vectorize(i, 2)")
    for options, aliased in (({"debug": True}, False), ({}, True)):
        made = emulated(kernel, **options)
        launcher = made.launchers[0]
        specs = list(launcher.forms.specs((2.0, x, x, x.clone())).values())
        compiled = launcher.forms.specialize(specs, aliased=aliased).compiled
        assert isinstance(compiled, gpu.GpuCompiled)
        assert compiled.job.asked is None
        assert compiled.facts.asked == 0
    assert isinstance(compiled, build.Made)


def test_loops_of_a_gradient_go_by_name() -> None:
    kernel = weft.kernel(causal_conv.causal_conv.function)
    with pytest.raises(ScheduleError) as caught:
        kernel.backward.schedule("cuda", "cover()")
    assert caught.value.message == (
        "no gradient of `causal_conv` was asked for yet: say which loop is meant"
    )
    assert caught.value.help == "causal_conv.backward.inspect(...)"
    args = torch.randn(3, 9), torch.randn(2, 3, 9), 0.1
    shown = kernel.backward.inspect(*args)
    assert "@causal_conv_0_adjoint_d_w" in shown
    with pytest.raises(ScheduleError) as caught:
        kernel.backward.schedule("cuda", "cover()")
    assert caught.value.message == "the gradient of `causal_conv` has several loops: say which one"
    assert caught.value.help == (
        'write one of loop="causal_conv_0_adjoint_d_w", "causal_conv_0_adjoint_d_k"'
    )
    with pytest.raises(ScheduleError, match="has no loop `causal_conv_0_adjoint`"):
        kernel.backward.schedule("cuda", "cover()", "causal_conv_0_adjoint")
    assert kernel.backward.schedule("cuda", "cover()", "causal_conv_0_adjoint_d_k") is kernel
    found = kernel.options.asked("cuda", "causal_conv_0_adjoint_d_k")
    assert found == "cover()"


def test_each_loop_of_the_table_can_be_asked_for() -> None:
    """That which counts the turns of a `while` for its tape, too."""
    kernel = weft.kernel(gallery.newton_sqrt.function)
    x = torch.rand(9) + 0.5
    rows = kernel.backward.schedules(x, 1e-6)
    assert {row.loop for row in rows} == {"newton_sqrt_0_trips", "newton_sqrt_0_adjoint"}
    for row in rows:
        kernel.backward.schedule("cpu", row.schedule, row.loop)
        assert kernel.options.asked("cpu", row.loop) == row.schedule


def test_the_gradient_is_compiled_by_what_is_asked_for() -> None:
    kernel = weft.kernel(causal_conv.causal_conv.function)
    meta = torch.empty(4, 64, device="meta"), torch.empty(2, 4, 64, device="meta"), 0.1
    kernel.schedule("cuda", "unroll_jam(d1, 2)", "causal_conv_0_adjoint_d_k")
    with pytest.raises(ScheduleError, match="there is no parallel index `d1`"):
        weft.compile_for("sm_90", kernel, *meta, backward=True)


# -- on the CPU


@pytest.mark.parametrize(
    "text",
    ["", "unroll_jam(b, 2)", "unroll_jam(c, 3)", "vectorize(t, 4)", "vectorize(t, 4, 8)",
     "unroll_jam(b, 2); vectorize(t, 4, 8)"],
)  # fmt: skip
def test_a_cpu_runs_what_is_asked_for(text: str) -> None:
    w, k = torch.randn(3, 77), torch.randn(2, 3, 77)
    kernel = weft.kernel(schedule={"cpu": text})(causal_conv.causal_conv.function)
    torch.testing.assert_close(kernel(w, k, 0.1), causal_conv.causal_conv(w, k, 0.1))
    (special,) = kernel.specializations
    assert special.compiled.job.asked == text


@weft.kernel
def transposed(x, y):
    out = torch.empty_like(y)
    for i, j in weft.ndrange(y.shape[0], y.shape[1]):
        out[i, j] = x[j, i] + y[i, j]
    return out


@pytest.mark.parametrize("text", ["", "unroll_jam(i, 4)", "unroll_jam(i, 3); vectorize(j, 4, 8)"])
def test_axes_are_those_of_the_source_where_the_usual_schedule_cuts_a_loop_up(text: str) -> None:
    x, y = torch.randn(70, 50), torch.randn(50, 70)
    kernel = weft.kernel(schedule={"cpu": text})(transposed.function)
    torch.testing.assert_close(kernel(x, y), x.t() + y, rtol=0, atol=0)
    assert "%block" in transposed.inspect(x, y)["ir after tile"]


def test_a_cpu_refuses_what_it_has_no_form_for() -> None:
    w, k = torch.randn(3, 77), torch.randn(2, 3, 77)
    kernel = weft.kernel(schedule={"cpu": "persist(4)"})(causal_conv.causal_conv.function)
    with pytest.raises(ScheduleError) as caught:
        kernel(w, k, 0.1)
    assert caught.value.message == "`persist(4)`: it is no step for a CPU"
    kernel.schedule("cpu", "unroll_jam(q, 4)")
    with pytest.raises(ScheduleError) as caught:
        kernel(w, k, 0.1)
    assert caught.value.message == "`unroll_jam(q, 4)`: there is no parallel index `q`"
    assert caught.value.span is not None
    kernel.schedule("cpu", None)
    torch.testing.assert_close(kernel(w, k, 0.1), causal_conv.causal_conv(w, k, 0.1))


@pytest.mark.slow
def test_inspect_shows_each_schedule_and_the_ir_after_its_steps() -> None:
    kernel = weft.kernel(schedule={"cuda": "unroll_jam(t, 2)"})(causal_conv.causal_conv.function)
    k = torch.empty(2, 3, 77)
    texts = compiler.stages(
        kernel.parts.regions[0],
        kernel.launchers[0].forms.specs((2, 3, 77, 0.1, k[0], k, k)),
        kernel.source, kernel.options, arch="sm_90",
    ).texts  # fmt: skip
    assert texts["schedule"].startswith(
        "index_width(32); unroll_jam(t, 2); cover(); bind(t, x); bind(c, y); bind(b, z); "
        "block(128, 1)\n\nfor sm_90, of these:\n"
    )
    first, *others = [text for name, text in texts.items() if name.startswith("scheduled ir")]
    assert first.startswith("// fits32(); known_trips(); covered() -> index_width(32); unroll_jam(")
    assert first.count("memref.store") == 3, "two at once, and what is left one by one"
    assert others[-1].startswith("//  -> bind(t, x)")
    assert others[-1].count("memref.store") == 1


def test_a_compiled_graph_goes_by_a_new_schedule() -> None:
    kernel = weft.kernel(name="axpy_scheduled")(gallery.axpy.function)
    x = torch.randn(100)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def graph(x: torch.Tensor) -> torch.Tensor:
        return kernel(2.0, x, x) + 1.0

    assert torch.equal(graph(x), 3 * x + 1.0)
    name = str(kernel.op)
    kernel.schedule("cpu", "unroll_jam(i, 2)")
    assert torch.equal(graph(x), 3 * x + 1.0)
    assert [s.compiled.job.asked for s in kernel.specializations] == ["unroll_jam(i, 2)"]
    assert str(kernel.op) == name
    kernel.schedule("cpu", "unroll_jam(q, 2)")
    with pytest.raises(ScheduleError, match="there is no parallel index `q`"):
        graph(x)


def test_a_gradient_on_the_cpu_goes_by_what_is_asked_for() -> None:
    w, k = torch.randn(3, 40, requires_grad=True), torch.randn(4, 3, 40, requires_grad=True)
    causal_conv.causal_conv(w, k, 0.1).square().sum().backward()
    expected = k.grad
    k.grad = None
    name = "causal_conv_0_adjoint_d_k"
    kernel = weft.kernel(schedule={"cpu": {name: "unroll_jam(q, 2)"}})(
        causal_conv.causal_conv.function
    )
    with pytest.raises(ScheduleError) as caught:
        kernel(w, k, 0.1).square().sum().backward()
    axes = re.findall(r"`(\w+)`", caught.value.help)
    kernel.backward.schedule("cpu", f"unroll_jam({axes[0]}, 2)", name)
    kernel(w, k, 0.1).square().sum().backward()
    torch.testing.assert_close(k.grad, expected)
