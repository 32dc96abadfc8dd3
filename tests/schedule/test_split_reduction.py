"""Loops that several blocks share: what stages and threads do, and when it pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from examples import causal_conv, gallery, layer_norm, softmax
from tests.cuda.emulator import EmulatedCall, emulated
from tests.ir.blocks import launch
from tests.schedule.test_apply import SUMS, applied
from weft.codegen import launching
from weft.ir.core import Function, walk
from weft.ir.text import print_function
from weft.ir.verify import verify
from weft.schedule.language import SplitReduction, only, parse

TEXT = "split_reduction((j), 32{}); bind(i, x); block(256, 1)"


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize("columns", [0, 4])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("length", [0, 1, 40, 700])
@pytest.mark.sampled(3)
def test_rows_summed_by_several_blocks(rows: int, length: int, columns: int) -> None:
    bound = applied(SUMS, TEXT.format(f", columns={columns}" if columns else ""))
    x = np.random.default_rng(length).integers(-9, 9, (rows, length)).astype(np.float32)
    out = np.full(rows, np.nan, np.float32)
    wide, parts = max(columns, 1), 3
    grid, block = (-(-rows // wide), parts, 1), (wide, 32 // wide, 1)
    words = np.full(parts * rows, -1, np.int64)
    for stage in bound.stages:
        verify(stage)
        last = stage is bound.stages[-1]
        launch(stage, (x, out, words, parts), (grid[0], 1, 1) if last else grid, block,
               races=True, order="random", seed=rows)  # fmt: skip
    assert out.tolist() == x.sum(1).tolist()


def loads_of(stage: Function, name: str) -> int:
    memref = next(arg for arg in stage.args if arg.name == name)
    return sum(op.name == "memref.load" and op.operands[0] is memref for op in walk(stage.body))


def test_a_stage_has_what_it_needs_and_no_more() -> None:
    first, last = applied(SUMS, TEXT.format("")).stages
    assert (loads_of(first, "x"), loads_of(last, "x")) == (9, 0), "eight at a time, and the rest"
    beside, _ = applied(SUMS, TEXT.format(", columns=4")).stages
    assert loads_of(beside, "x") == 8 + 4 + 2 + 1, "of what is left at most three times one"
    assert "memref.store %s, %out" not in print_function(first)
    assert print_function(last).count("memref.store %s, %out") == 1


@weft.kernel
def three(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, count: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        m = -1e30
        n = 0
        for j in range(x.shape[1]):
            m = max(m, x[i, j])
        for j in range(y.shape[1]):
            n += int(y[i, j] > 0.0)
        total = 1.0 + 0.5 * m
        for j in range(x.shape[1]):
            total += weft.math.exp(x[i, j] - m)
        if n > 3:
            count[i] = n
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] / total


@weft.kernel
def stored_on_the_way(x: torch.Tensor, out: torch.Tensor, sums: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 2.5
        for j in range(x.shape[1]):
            out[i, j] = 2.0 * x[i, j]
            s += x[i, j]
        for j in range(x.shape[1]):
            s += x[i, j] * x[i, j]
        sums[i] = s


@weft.kernel
def locals_between(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        held = weft.zeros(3, weft.f32)
        held[i % 2] = 1.0
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        t = held[0]
        held[i % 3] = s
        for j in range(x.shape[1]):
            t += x[i, j] * held[i % 2]
        out[i] = t + held[1]


@weft.kernel
def in_branches(x: torch.Tensor, out: torch.Tensor) -> None:
    for j in range(out.shape[0]):
        s = 1.5
        if j < x.shape[1]:
            for i in range(x.shape[0]):
                s += x[i, j]
        t = 0.5
        if j + 1 >= x.shape[1]:
            t = 2.0 * s
        else:
            for i in range(j, x.shape[0]):
                t = max(t, x[i, j] + s)
        out[j] = t


@weft.kernel
def batches(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, more: torch.Tensor) -> None:
    for j in range(out.shape[0]):
        s = 1.5
        n = 2
        if j < x.shape[2]:
            for b in range(1, x.shape[0]):
                scale = y[b, 0]
                for t in range(x.shape[1]):
                    s += x[b, t, j] * scale
                    n += 1
        most = s
        for b in range(x.shape[0]):
            for t in range(b, x.shape[1]):
                for u in range(2):
                    most += y[b, t] * s + u
        out[j] = most
        more[j] = n


def run(kernel: weft.Kernel, text: str, *args: Any) -> list[torch.Tensor]:
    """What ``kernel`` leaves in its arguments by a schedule."""
    copies = [a.clone() for a in args]
    emulated(weft.kernel(schedule={"cuda": text})(kernel.function))(*copies)
    assert only(EmulatedCall.seen[-1], SplitReduction) is not None
    return copies


@pytest.mark.parametrize(
    "text",
    [
        "split_reduction((), 32, columns=2, parts=2)",
        pytest.param("split_reduction((), 32, parts=3)", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("interpreted", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_loops_that_ask_for_others(text: str, interpreted: bool) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(2, 70 if interpreted else 400), torch.randn(2, 40)
    calls = {
        three: (x[:, 20:], y, torch.full_like(x[:, 20:], -5.0), torch.full((2,), -1)),
        stored_on_the_way: (x, torch.full_like(x, -1.0), torch.full((2,), -1.0)),
        locals_between: (x, torch.full((2,), -1.0)),
        in_branches: (x.t(), torch.full((6,), -1.0)),
        batches: (x.view(2, 5, -1)[..., :7].contiguous(), y, *torch.full((2, 9), -1.0)),
    }
    EmulatedCall.interpreted = interpreted
    try:
        for kernel, args in calls.items():
            expected = [a.clone() for a in args]
            kernel(*expected)
            first, again = (run(kernel, text, *args) for _ in range(2))
            for e, f, g in zip(expected, first, again, strict=True):
                torch.testing.assert_close(f, e, rtol=1e-5, atol=1e-5)
                assert torch.equal(f, g)
    finally:
        EmulatedCall.interpreted = False


@pytest.mark.parametrize(("kernel", "stages"), [(three, 3), (stored_on_the_way, 2)])
def test_stages_are_as_many_as_results_wait_for_each_other(
    kernel: weft.Kernel, stages: int
) -> None:
    asked = weft.kernel(schedule={"cuda": "split_reduction((), 64)"})(kernel.function)
    args = (meta(3, 9), meta(3, 9), meta(3, 9), meta(3)) if kernel is three else (
        meta(3, 9), meta(3, 9), meta(3))  # fmt: skip
    (loop,) = weft.compile_for("sm_90", asked, *args).loops
    names = launching.entries(loop.ptx)
    assert names == [loop.facts.symbol, *([f"{loop.facts.symbol}_1"] * (stages > 2)),
                     f"{loop.facts.symbol}_finish"]  # fmt: skip


@weft.kernel
def column_sums(x: torch.Tensor, out: torch.Tensor) -> None:
    for j in range(x.shape[1]):
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i, j]
        out[j] = s


@weft.kernel
def row_sums(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        out[i] = s


# A call, and what it takes: columns of a block, blocks that share an iteration, blocks in all.
TAKEN: list[tuple[Any, tuple[int, ...], tuple[int, int, int] | None]] = [
    (column_sums, (1 << 24, 1), (1, 1024, 1024)),
    (column_sums, (1_000_000, 8), (8, 512, 512)),
    (column_sums, (1_000_000, 3), (4, 512, 512)),
    (column_sums, (500_000, 33), (8, 102, 510)),
    (column_sums, (20_000, 768), (32, 21, 504)),
    (column_sums, (4096, 4096), (32, 4, 512)),
    (column_sums, (1 << 20, 1 << 20), None),
    (column_sums, (2000, 8), None),
    (row_sums, (1, 1 << 24), (0, 1024, 1024)),
    (row_sums, (8, 1 << 21), (0, 128, 1024)),
    (row_sums, (8, 4096), None),
    (row_sums, (4096, 4096), None),
    (softmax.softmax, (2, 1 << 20), (0, 512, 1024)),
    (softmax.softmax, (4096, 4096), None),
]


@pytest.mark.parametrize(("kernel", "shape", "taken"), TAKEN)
def test_few_iterations_of_long_loops(
    kernel: weft.Kernel, shape: tuple[int, ...], taken: tuple[int, int, int] | None
) -> None:
    out = () if kernel is softmax.softmax else (meta(shape[kernel is column_sums]),)
    (row,) = kernel.schedules(meta(*shape), *out, device="cuda").taken
    step = only(parse(row.schedule), SplitReduction)
    if taken is None:
        assert step is None
    else:
        assert step is not None
        assert (step.columns, row.grid[1], row.grid[0] * row.grid[1]) == taken
        assert row.block[0] * row.block[1] == step.threads


def test_parts_of_columns_run_at_once() -> None:
    """Blocks of columns by parts of them: as many as run at once, where there are more of fewer
    threads each; more only of long loops."""

    def grid_of(rows: int, columns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        (row,) = column_sums.schedules(meta(rows, columns), meta(columns), device="cuda").taken
        return row.grid, row.block

    assert grid_of(500, 10_000) == ((313, 3, 1), (32, 8, 1))
    assert grid_of(3000, 3000) == ((94, 8, 1), (32, 8, 1))
    assert grid_of(1000, 20_001) == ((626, 3, 1), (32, 4, 1))
    assert grid_of(2000, 30_001) == ((938, 2, 1), (32, 4, 1))
    assert grid_of(6000, 24_000) == ((750, 5, 1), (32, 4, 1)), "in two waves, nearly whole"
    assert grid_of(2000, 24_000) == ((750, 2, 1), (32, 4, 1)), "parts would be short"
    assert grid_of(1000, 40_000) == ((625, 1, 1), (64, 1, 1)), "a thread each"


def test_nests_of_sums_are_split() -> None:
    @weft.kernel
    def sums(x: torch.Tensor, out: torch.Tensor) -> None:
        for j in range(x.shape[2]):
            s = 0.0
            for b in range(x.shape[0]):
                for t in range(x.shape[1]):
                    s += x[b, t, j]
            out[j] = s

    (row,) = sums.schedules(meta(32, 1024, 768), meta(768), device="cuda").taken
    assert "split_reduction((t), 512, columns=32)" in row.schedule
    assert row.grid == (24, 21, 1)


def test_a_nest_that_does_more_is_none() -> None:
    @weft.kernel
    def halves(x: torch.Tensor, out: torch.Tensor) -> None:
        for j in range(x.shape[2]):
            s = 0.0
            for b in range(x.shape[0]):
                s += 1.0
                for t in range(x.shape[1]):
                    s += x[b, t, j]
            out[j] = s

    @weft.kernel
    def uses(x: torch.Tensor, out: torch.Tensor) -> None:
        for j in range(x.shape[2]):
            s = 0.0
            for b in range(x.shape[0]):
                first = s
                for t in range(x.shape[1]):
                    s += x[b, t, j] * first
            out[j] = s

    for kernel in (halves, uses):
        (loop,) = weft.compile_for("sm_90", kernel, meta(3, 4, 5), meta(5)).loops
        assert not any("split_reduction((t)" in text for text in loop.facts.candidates)


def test_strict_math_keeps_the_order() -> None:
    strict = weft.kernel(strict_math=True)(column_sums.function)
    assert "split_reduction" not in str(strict.schedules(meta(1 << 24, 1), meta(1), device="cuda"))
    (loop,) = weft.compile_for("sm_90", strict, meta(9, 9), meta(9)).loops
    assert not any("split_reduction" in text for text in loop.facts.candidates)


def test_what_is_read_again_is_not_split() -> None:
    @weft.kernel
    def read_again(x: torch.Tensor, out: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                x[i, j] = 2.0 * x[i, j]
            s = 0.0
            for j in range(x.shape[1]):
                s += x[i, j]
            out[i] = s

    (loop,) = weft.compile_for("sm_90", read_again, meta(9, 9), meta(9)).loops
    assert not any("split_reduction" in text for text in loop.facts.candidates)


def test_gradients_of_weights_are_split() -> None:
    x, w = meta(1 << 16, 768), meta(768)
    code = weft.compile_for("sm_90", layer_norm.layer_norm, x, w, w, 1e-5, backward=True)
    taken = {loop.name: " ".join(loop.facts.candidates) for loop in code.loops}
    assert ["split_reduction" in taken[f"layer_norm_0_adjoint{name}"] for name in (
        "", "_d_weight", "_d_bias")] == [False, True, True]  # fmt: skip


def test_a_convolution_has_many_iterations() -> None:
    w, k = meta(768, 768), meta(32, 768, 768)
    (row,) = causal_conv.causal_conv.schedules(w, k, 0.1, device="cuda").taken
    assert "split_reduction" not in row.schedule
    (row,) = gallery.matmul.schedules(meta(64, 1 << 20), meta(1 << 20, 64), device="cuda").taken
    assert "split_reduction" in row.schedule
