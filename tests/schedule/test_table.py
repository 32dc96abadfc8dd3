"""``kernel.schedules``: predicted costs beside numbers counted by hand, and what a call takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from examples import brick_wall, causal_conv, gallery, softmax
from weft.codegen import cuda
from weft.runtime import tuned
from weft.runtime.candidates import Row
from weft.schedule.machine import GpuMachine


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def taken(kernel: weft.Kernel, *args: Any, **options: Any) -> Row:
    (row,) = kernel.schedules(*args, device="cuda", **options).taken
    return row


# -- costs


B, C, T = 3, 5, 96
HAND: dict[str, tuple[tuple[Any, ...], int, int, int]] = {
    # Two arrays in, one out; a multiplication and an addition for each element.
    "axpy": ((gallery.axpy, 2.0, meta(1000), meta(1000)), 12_000, 2_000, 12_000),
    # Half of T * (T + 1) products for each row of B * C, all of w and k, and the result.
    "causal_conv": (
        (causal_conv.causal_conv, meta(C, T), meta(B, C, T), 0.1),
        4 * (C * T + 2 * B * C * T), 2 * B * C * T * (T + 1) // 2,
        4 * (2 * B * C * T * (T + 1) // 2 + B * C * T),
    ),
    # The greatest; a difference, exp, a sum; a difference, exp, a quotient. Read three times.
    "softmax": (
        (softmax.softmax, meta(64, 300)), 2 * 4 * 64 * 300, 64 * 7 * 300, 4 * 4 * 64 * 300
    ),
    "matmul": (
        (gallery.matmul, meta(40, 30), meta(30, 20)), 4 * (40 * 30 + 30 * 20 + 40 * 20),
        2 * 40 * 30 * 20, 4 * (2 * 40 * 30 * 20 + 40 * 20),
    ),
    # Pixels are written, a tile is read; no arithmetic but of indices.
    "brick_wall": (
        (brick_wall.brick_wall, meta(6, 8, dtype=torch.int32), 100, 200, 3, 1, 5),
        4 * (48 + 100 * 200), 0, 8 * 100 * 200,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND)
def test_costs_are_those_counted_by_hand(name: str) -> None:
    (kernel, *args), least, operations, accessed = HAND[name]
    row = list(kernel.schedules(*args, device="cuda"))[-1]  # a thread for each iteration
    assert row.bytes == least
    assert row.operations == operations
    assert row.accessed == accessed
    assert row.exact
    cost = kernel.cost(*args)
    assert cost.bytes == row.bytes, "one count for both"
    assert sum(n.value for kind, n in cost.operations.items() if kind != "FLOPs") == operations


def test_jammed_iterations_load_less() -> None:
    args = meta(64, 512), meta(32, 64, 512), 0.1
    rows = {row.schedule: row for row in causal_conv.causal_conv.schedules(*args, device="cuda")}
    alone = next(r for s, r in rows.items() if "unroll_jam" not in s)
    both = next(r for s, r in rows.items() if "stride=32" in s and s.count("unroll_jam") == 2)
    sliding = next(r for s, r in rows.items() if "register_window" in s)
    assert both.operations == alone.operations
    assert alone.accessed is not None
    assert both.accessed is not None
    assert sliding.accessed is not None
    assert 3 < alone.accessed / both.accessed <= 4, "of 16 iterations, each load serves 4"
    assert 12 < alone.accessed / sliding.accessed <= 128 / 9, "of 64, nine loads serve all"


def test_loops_that_data_ends_count_once() -> None:
    row = taken(gallery.newton_sqrt, meta(40), 1e-6)
    assert not row.exact
    assert row.bytes == 2 * 4 * 40


def test_accesses_at_places_that_data_picks_are_as_many_as_iterations() -> None:
    @weft.kernel
    def gathered(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        out = torch.empty(at.shape[0], dtype=x.dtype, device=x.device)
        for i in range(at.shape[0]):
            out[i] = x[at[i]]
        return out

    few = taken(gathered, meta(1000), meta(10, dtype=torch.int64))
    assert few.bytes == 10 * (4 + 8 + 4)
    many = taken(gathered, meta(10), meta(1000, dtype=torch.int64))
    assert many.bytes == 10 * 4 + 1000 * (8 + 4)


# -- what a call takes


def test_a_row_says_why_a_call_does_not_take_it() -> None:
    rows = gallery.axpy.schedules(2.0, meta(1001)[1:], meta(1000), device="cuda")
    assert [row.taken for row in rows].index(True) == 3
    assert rows[0].why == (
        "not aligned(x, 16): it begins elsewhere; not larger_than_cache((out)): the cache holds "
        "them, or much else is read"
    )
    assert rows[3].why == "taken: the first whose guards hold"
    assert rows[4].why == "one before it is taken"
    assert rows[3].guards[0].holds
    assert (rows[3].grid, rows[3].block) == ((32, 1, 1), (32, 1, 1))


REASONS: list[tuple[tuple[Any, ...], str]] = [
    ((causal_conv.causal_conv, meta(4, 40), meta(2, 4, 40), 0.1),
     "not few_left(b, 4): there are 2; not few_left(t, 128): there are 40; not busy(1024): 128 "
     "threads on 132 multiprocessors"),
    ((softmax.softmax, meta(4, 9)), "not multiple_of(2, 4): cols, that is 9; not held(2, 4, 16, "
     "96): registers do not hold a row; not aligned(x, 16): its rows have 9 elements"),
    ((softmax.softmax, meta(4, 9).double()), "not grouped(8): a thread does better alone"),
    ((softmax.softmax, meta(4, 65_536)), "not grouped(8): groups would have 1024"),
    ((softmax.softmax, meta(4, 4096)), "not split(0): one block does as well"),
    ((gallery.matmul, meta(9, 1 << 20), meta(1 << 20, 9)), "not split(1): groups would have 16"),
    ((gallery.matmul, meta(9, 9), meta(9, 9)),
     "not columns(8, most=22528): a thread does better alone"),
    ((gallery.histogram, meta(100), 50_000, 0.0, 1.0),
     "not few_elements(counts): it has 200000 bytes"),
    ((gallery.axpy, 2.0, meta(3), meta(3)),
     "not at_least(i, 4): there are 3; not larger_than_cache((out)): the cache holds them, or "
     "much else is read"),
    ((brick_wall.brick_wall, meta(6, 10, dtype=torch.int32), 20, 304, 4, 3, 8),
     "not multiple_of(7, 4): tile_width, that is 10"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "why"), REASONS)
def test_reasons(call: tuple[Any, ...], why: str) -> None:
    kernel, *args = call
    rows = kernel.schedules(*args, device="cuda")
    assert any(why in row.why for row in rows)


def test_sizes_beyond_32_bits() -> None:
    rows = gallery.axpy.schedules(2.0, meta(1 << 32), meta(1 << 32), device="cuda")
    assert rows[0].why.startswith("not fits32(): an index or an offset needs more than 32 bits")


def test_no_candidate_is_compiled_before_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(cuda, "scheduled", compiled)
    row = taken(gallery.axpy, 2.0, meta(1000), meta(1000))
    assert row.grid != (0, 0, 0)
    with pytest.raises(AssertionError, match="compiled"):
        _ = row.accessed


def test_the_machine_decides() -> None:
    args = meta(64, 512), meta(32, 64, 512), 0.1
    small = taken(causal_conv.causal_conv, *args, machine=GpuMachine(16))
    large = taken(causal_conv.causal_conv, *args, machine=GpuMachine(4096))
    assert "unroll_jam" in small.schedule
    assert "unroll_jam" not in large.schedule


def test_what_is_asked_for_is_marked() -> None:
    kernel = weft.kernel(schedule={"cuda": "unroll_jam(t, 8)"})(causal_conv.causal_conv.function)
    rows = kernel.schedules(meta(4, 40), meta(2, 4, 40), 0.1, device="cuda")
    assert [row.asked for row in rows[:5]] == [True] * 4 + [False]
    assert rows[0].taken
    assert "      asked for; taken: the first whose guards hold" in str(rows)


def test_the_table_in_a_terminal_and_in_a_notebook() -> None:
    rows = gallery.axpy.schedules(2.0, meta(1000), meta(1000), device="cuda")
    head, first, *lines = str(rows).splitlines()
    line = gallery.axpy.parts.regions[0].span.line
    assert head == f"axpy_0, line {line}, on cuda: 12 kB, 2 k operations"
    assert first.startswith("  index_width(32); vectorize(i, 4, 4); align(x, 16);")
    assert lines[-1] == f"  {len(rows) - 2} more, which calls of other sizes may take"
    assert lines[2].startswith("> index_width(32); vectorize(i, 4, 4);")
    assert repr(rows) == str(rows)
    page = rows._repr_html_()
    assert page.startswith("<table><tr><th></th><th>schedule</th>")
    assert page.count("<tr>") == len(rows) + 1
    assert "▶" in page


@weft.kernel
def twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 2.0 * x[i]
    total = 0.0
    for j in range(x.shape[0]):
        total += out[j]
    return total


def test_each_loop_of_a_call_has_its_rows() -> None:
    rows = twice.schedules(meta(1000), device="cuda")
    assert [row.loop for row in rows.taken] == ["twice_0", "twice_1"]
    assert "\n\ntwice_1, line " in str(rows)


def test_tensors_of_the_cpu_have_a_table_of_the_cpu() -> None:
    w, k = torch.randn(8, 64), torch.randn(2, 8, 64)
    before = w.clone(), k.clone()
    rows = causal_conv.causal_conv.schedules(w, k, 0.1)
    assert {row.device for row in rows} == {"cpu"}
    assert sum(row.taken for row in rows) == 1
    assert rows[0].bytes == 4 * (8 * 64 + 2 * 2 * 8 * 64)
    assert rows[-1].schedule == ""
    assert "  nothing: LLVM vectorises" in rows[-1].described()[0]
    assert torch.equal(w, before[0])
    kernel = weft.kernel(schedule={"cpu": "unroll_jam(b, 2)"})(causal_conv.causal_conv.function)
    first = kernel.schedules(w, k, 0.1)[0]
    assert (first.schedule, first.asked, first.taken) == ("unroll_jam(b, 2)", True, True)


def test_nothing_is_computed() -> None:
    x = torch.full((50,), 7.0)
    gallery.leaky_relu_.schedules(-x.view(5, 10), 0.1)
    assert torch.equal(x, torch.full((50,), 7.0))
    version = x._version
    rows = gallery.leaky_relu_.schedules(x.view(5, 10), slope=0.1)
    assert x._version == version
    assert len(rows.taken) == 1


def test_what_was_tuned_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w, k = torch.randn(8, 64), torch.randn(2, 8, 64)
    kernel = weft.kernel(name="conv_tuned")(causal_conv.causal_conv.function)
    before = kernel.schedules(w, k, 0.1)
    kernel(w, k, 0.1)
    loop = kernel.specializations[0].compiled.loop
    record = tuned.Record(
        "schedule", loop.summary.name, loop.digest, tuned.machine_of(w.device),
        tuned.class_of([w, k, torch.empty_like(k)]), "unroll_jam(b, 2)", 2.0, 1.0,
    )  # fmt: skip
    monkeypatch.setattr(tuned.records, "_files", {tmp_path: [record]})
    rows = kernel.schedules(w, k, 0.1)
    found = rows[0]
    assert (found.schedule, found.origin, found.asked) == ("unroll_jam(b, 2)", "tuned", False)
    assert found.taken
    assert len(rows) == len(before) + 1
    kernel.schedule("cpu", "unroll_jam(c, 2)")
    assert kernel.schedules(w, k, 0.1)[0].origin == "asked for"


def test_what_is_asked_of_a_cpu_is_of_the_loop_as_it_is_written() -> None:
    kernel = weft.kernel(schedule={"cpu": "unroll_jam(col, 4)"})(brick_wall.brick_wall.function)
    args = torch.arange(48, dtype=torch.int32).view(6, 8), 20, 30, 4, 2, 8
    assert torch.equal(kernel(*args), brick_wall.brick_wall(*args))
    first = kernel.schedules(*args)[0]
    assert (first.schedule, first.asked, first.taken) == ("unroll_jam(col, 4)", True, True)


# -- loops of a gradient


@pytest.mark.slow
def test_loops_of_a_gradient_have_a_table() -> None:
    kernel = weft.kernel(causal_conv.causal_conv.function)
    names = ["causal_conv_0_adjoint_d_w", "causal_conv_0_adjoint_d_k"]
    args = torch.randn(C, T), torch.randn(B, C, T), 0.1
    assert [row.loop for row in kernel.backward.schedules(*args).taken] == names
    there = kernel.backward.schedules(meta(C, T), meta(B, C, T), 0.1, device="cuda")
    assert [row.loop for row in there.taken] == names
    assert all(row.line == kernel.schedules(*args)[0].line for row in there)
    kernel.backward.schedule("cuda", "cover()", names[1])
    asked = kernel.backward.schedules(*args, device="cuda")
    assert {row.loop for row in asked if row.asked} == {names[1]}


@pytest.mark.parametrize(("kernel", "args"), [
    (gallery.total, (meta(5),)),
    pytest.param(softmax.softmax, (meta(5, 131),), marks=pytest.mark.slow),
    pytest.param(gallery.matmul, (meta(37, 38), meta(38, 39)), marks=pytest.mark.slow),
    pytest.param(
        causal_conv.causal_conv, (meta(5, 129), meta(2, 5, 129), 0.1), marks=pytest.mark.slow
    ),
], ids=["total", "softmax", "matmul", "causal_conv"])  # fmt: skip
def test_what_is_printed_may_be_asked_for(kernel: weft.Kernel, args: tuple[Any, ...]) -> None:
    """Each candidate's text, given back: cooperating ones were refused for the block they print."""
    for row in kernel.schedules(*args, device="cuda"):
        asked = weft.kernel(schedule={"cuda": row.schedule})(kernel.function)
        rows = asked.schedules(*args, device="cuda")
        assert row.schedule in [r.schedule for r in rows if r.origin == "asked for"]
