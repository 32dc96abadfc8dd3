"""Rows that several threads have together: which loops they share, and what they compute."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from benchmarks.rows import column_sums
from examples import causal_conv, gallery, layer_norm, softmax
from tests.cuda.emulator import EmulatedCall
from tests.cuda.test_emulated import same
from weft import compiler
from weft.schedule import grid
from weft.schedule.apply_cuda import outermost
from weft.schedule.cooperative_loops import Team, find
from weft.schedule.default_cuda import picks
from weft.schedule.language import Cooperate, only
from weft.tools.cross import lowered_loops


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def team_of(kernel: weft.Kernel, *args: Any, strict: bool = False) -> Team | None:
    """The team of a kernel's only loop."""
    (loop,) = lowered_loops(kernel, *args)
    optimized = compiler.optimize(loop, replace(kernel.options, strict_math=strict))
    parallel = outermost(optimized)
    assert parallel is not None
    return find(optimized, parallel, picks(optimized, parallel).order[0])


def kinds(kernel: weft.Kernel, *args: Any, strict: bool = False) -> list[tuple[str, ...]] | None:
    team = team_of(kernel, *args, strict=strict)
    return list(team.loops.values()) if team is not None and team.pays else None


# -- kernels


@weft.kernel
def row_sums(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        out[i] = s


@weft.kernel
def col_sums(x, out):
    for j in range(x.shape[1]):
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i, j]
        out[j] = s


@weft.kernel
def statistics(x, low, high, positive, product):
    for i in range(x.shape[0]):
        least = math.inf
        most = -math.inf
        count = 0
        p = 1.0
        for j in range(x.shape[1]):
            least = min(least, x[i, j])
            most = max(most, x[i, j])
            if x[i, j] > 0:
                count += 1
                p *= 1 + x[i, j] / 100
        low[i] = least
        high[i] = most
        positive[i] = count
        product[i] = p


@weft.kernel
def in_place(x, mirrored):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            x[i, j] = 2 * x[i, j]
            s += abs(x[i, j])
        for j in range(x.shape[1]):
            x[i, j] = x[i, j] / (s + 1)
        for j in range(x.shape[1]):
            mirrored[i, j] = x[i, x.shape[1] - 1 - j]


@weft.kernel
def normalised(x, out, norms):
    for b, i in weft.ndrange((1, x.shape[0]), x.shape[1]):
        norms[b, i] = 0.0
        for j in range(x.shape[2]):
            norms[b, i] += x[b, i, j] ** 2
        norms[b, i] = math.sqrt(norms[b, i])
        for j in range(x.shape[2]):
            out[b, i, j] = x[b, i, j] / norms[b, i]


@weft.kernel
def distances(x, centres, nearest):
    for i in range(x.shape[0]):
        best = 1e30
        which = 0
        for c in range(centres.shape[0]):
            s = 0.0
            for d in range(x.shape[1]):
                s += (x[i, d] - centres[c, d]) ** 2
            if s < best:
                best = s
                which = c
        nearest[i] = which


@weft.kernel
def product(starts, columns, values, x, out):
    for i in range(out.shape[0]):
        s = 0.0
        for p in range(starts[i], starts[i + 1]):
            s += values[p] * x[columns[p]]
        out[i] = s


@weft.kernel
def counted(x, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, x[i, j]] += 1


@weft.kernel
def columns(x, out, few):
    for i in range(x.shape[0]):
        few[i % 3] += 1
        for j in range(x.shape[1]):
            out[j] += x[i, j]


@weft.kernel
def shifted(x):
    for i in range(x.shape[0]):
        for j in range(1, x.shape[1]):
            x[i, j] = x[i, j] + x[i, j - 1]


@weft.kernel
def largest_place(x, out):
    for i in range(x.shape[0]):
        best = -math.inf
        place = 0
        for j in range(x.shape[1]):
            if x[i, j] > best:
                best = x[i, j]
                place = j
        out[i] = place


@weft.kernel
def decayed(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s = 0.5 * s + x[i, j]
        out[i] = s


@weft.kernel
def until(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
            if s > 3:
                break
        out[i] = s


@weft.kernel
def integers(x, total, every, some):
    for i in range(x.shape[0]):
        s = 0
        a = -1
        o = 0
        for j in range(x.shape[1]):
            s += x[i, j]
            a &= x[i, j]
            o |= x[i, j]
        total[i] = s
        every[i] = a
        some[i] = o


@weft.kernel
def binned(x, out):
    for i in range(x.shape[0]):
        sums = weft.zeros(3)
        for j in range(x.shape[1]):
            sums[j % 3] += x[i, j]
        for k in range(3):
            out[i, k] = sums[k]


# -- which


def test_loops_that_go_along_rows_are_shared() -> None:
    assert kinds(row_sums, meta(4, 9), meta(4)) == [("addf",)]
    assert kinds(softmax.softmax, meta(4, 9)) == [("maxnumf",), ("addf",), ()]
    norm = kinds(layer_norm.layer_norm, meta(4, 9), meta(9), meta(9), 1e-5)
    assert norm == [("addf",), ("addf",), ()]
    integer = meta(4, dtype=torch.int32)
    assert kinds(integers, meta(4, 9, dtype=torch.int32), integer, integer, integer) == [
        ("addi", "andi", "ori")
    ]  # fmt: skip
    starts, columns = meta(5, dtype=torch.int64), meta(9, dtype=torch.int64)
    assert kinds(product, starts, columns, meta(9), meta(9), meta(4)) == [("addf",)]
    assert kinds(distances, meta(4, 9), meta(3, 9), meta(4, dtype=torch.int64)) == [("addf",)]
    place = kinds(largest_place, meta(4, 9), meta(4, dtype=torch.int64))
    assert place == [("first.ogt", "with:0", "at.first:0")]


def test_sums_keep_their_order_where_that_is_asked_for() -> None:
    assert kinds(row_sums, meta(4, 9), meta(4), strict=True) is None
    integer = meta(4, dtype=torch.int32)
    whole = meta(4, 9, dtype=torch.int32)
    assert kinds(integers, whole, integer, integer, integer, strict=True) is not None


@pytest.mark.parametrize("kernel", [shifted, until, binned, counted])
def test_loops_with_an_order_are_not(kernel: weft.Kernel) -> None:
    others = {
        shifted: (),
        binned: (meta(4, 3),),
        counted: (meta(4, 5),),
    }
    x = meta(4, 9, dtype=torch.int32 if kernel is counted else torch.float32)
    assert kinds(kernel, x, *others.get(kernel, (meta(4),))) is None


@weft.kernel
def sums_before_positives(x, out):
    for i in range(x.shape[0]):
        q, total = 0.0, 0.0
        for j in range(x.shape[1]):
            t = 0.0
            if x[i, j] > 0.0:
                t = q
                q += x[i, j]
            total += t
        out[i] = total + q


@weft.kernel
def sum_less_itself(x, out):
    for i in range(x.shape[0]):
        q = 0.0
        for j in range(x.shape[1]):
            q = (q + x[i, j]) - q
        out[i] = q


@pytest.mark.parametrize("kernel", [sums_before_positives, sum_less_itself])
def test_sums_that_go_on_under_another_name_have_an_order(kernel: weft.Kernel) -> None:
    """No sum of parts, but one of all turns before."""
    (found,) = kinds(kernel, meta(4, 9), meta(4)) or [()]
    assert {*found} == {"scan"}
    assert kinds(kernel, meta(4, 9), meta(4), strict=True) is None


def test_a_value_that_decays_is_a_scan() -> None:
    assert kinds(decayed, meta(4, 9), meta(4)) == [("scan",)]
    assert kinds(decayed, meta(4, 9), meta(4), strict=True) is None


@weft.kernel
def segments(x, order, starts, out):
    for r, j in weft.ndrange(out.shape[0], out.shape[1]):
        s = 0.0
        for k in range(int(starts[r]), int(starts[r + 1])):
            s += x[int(order[k]), j]
        out[r, j] = s


@weft.kernel
def sparse_product(x, column, starts, out):
    for r in range(out.shape[0]):
        s = 0.0
        for k in range(int(starts[r]), int(starts[r + 1])):
            s += x[int(column[k])]
        out[r] = s


def test_neighbours_that_begin_at_one_index_of_data_stay_alone() -> None:
    """They read the same table at every turn, and rows side by side; rows that begin at indices of
    their own do not."""
    tables = meta(64, dtype=torch.int64), meta(5, dtype=torch.int64)
    assert kinds(segments, meta(64, 9), *tables, meta(4, 9)) is None
    assert kinds(sparse_product, meta(64), *tables, meta(4)) == [("addf",)]


def test_threads_that_read_neighbours_anyway_stay_alone() -> None:
    for kernel, *args in (
        (col_sums, meta(4, 9), meta(9)),
        (gallery.matmul, meta(4, 9), meta(9, 5)),
    ):
        team = team_of(kernel, *args)
        assert team is not None
        assert team.columns, "or stand side by side"
    assert kinds(causal_conv.causal_conv, meta(3, 9), meta(2, 3, 9), 0.1) is None
    assert kinds(row_sums, meta(9, 4).t(), meta(4)) is None, "strides are not known to be one"


def test_the_gradient_of_a_convolution_goes_along_neighbours() -> None:
    code = weft.compile_for(
        "sm_90", causal_conv.causal_conv, meta(3, 9), meta(2, 3, 9), 0.1, backward=True
    )
    for loop in code.loops:
        texts = " ".join(loop.facts.candidates)
        assert "cooperate" not in texts, "loops that begin at max(j, 0) begin side by side"
        assert "unroll_jam" in texts


def test_debug_mode_has_no_teams() -> None:
    checked = weft.kernel(debug=True)(row_sums.function)
    assert kinds(checked, meta(4, 9), meta(4)) is None


def test_who_waits() -> None:
    team = team_of(in_place, meta(4, 9), meta(4, 9))
    assert team is not None
    assert team.ordered == {[*team.loops][1]}, "one writes what the rest reads"
    team = team_of(softmax.softmax, meta(4, 9))
    assert team is not None
    assert not team.ordered, "the results are not read"


def test_the_size_of_a_team() -> None:
    team = grid.group
    assert team([4096], 4096) == (256, 1)
    assert team([768], 4096) == (128, 1)
    assert team([100_000, 3], 128) == (1024, 1), "few rows: large teams"
    assert team([1024], 1 << 20) == (16, 8), "many rows: small teams"
    assert team([33], 200_000) == (8, 16)
    assert team([16], 3) == (8, 16)
    assert team([15], 3) == (0, 0)
    assert team([None, 5], 1 << 20) == (8, 16), "lengths that the GPU reads"
    assert team([None], 100) == (32, 4)
    assert team([100], 1 << 40) == (0, 0), "more blocks than a grid has"


def test_teams_side_by_side() -> None:
    columns = grid.columns
    assert columns([65_536], [128]) == (8, 128)
    assert columns([4096], [4096]) == (16, 64)
    assert columns([4096], [1 << 14]) == (32, 32)
    assert columns([100, 3], [64, 256]) == (32, 16), "two indices"
    assert columns([4096], [1 << 16]) == (0, 0), "columns nearly enough"
    assert columns([63], [64]) == (0, 0), "short loops"
    assert columns([4096], [1 << 18]) == (0, 0), "columns enough"
    assert columns([None], [64]) == (0, 0)


# -- what they compute


def threads() -> int:
    """Of the last launch, those that have an iteration together."""
    step = only(EmulatedCall.seen[-1], Cooperate)
    return step.threads if step is not None else 0


LENGTHS = (0, 1, 15, 16, 33, 127, 300, 700)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("length", LENGTHS)
def test_values(length: int) -> None:
    torch.manual_seed(length)
    x = torch.randn(5, length)
    same(row_sums, x, torch.full((5,), 9.0))
    same(softmax.softmax, x)
    same(layer_norm.layer_norm, x + 1, torch.randn(length), torch.randn(length), 1e-5)
    same(in_place, x.clone(), torch.zeros_like(x))
    same(statistics, x, *(torch.full((5,), 7.0) for _ in range(4)))
    some = {16: 8, 33: 8, 127: 32, 300: 128, 700: 256}
    assert threads() == some.get(length, 0)


def test_nothing_is_not_a_number_in_a_running_maximum() -> None:
    @weft.kernel
    def largest(x, out):
        for i in range(x.shape[0]):
            m = x[i, 0]
            for j in range(1, x.shape[1]):
                m = max(m, x[i, j])
            out[i] = m

    x = torch.randn(4, 40)
    x[0] = math.nan
    x[1, 0] = math.nan
    x[2, 7] = math.nan
    x[3] = -math.inf
    same(largest, x, torch.zeros(4))


@pytest.mark.parametrize("length", [20, 90, 400])
def test_two_parallel_dimensions_and_memory_between_loops(length: int) -> None:
    x = torch.randn(3, 5, length)
    same(normalised, x, torch.zeros_like(x), torch.full((3, 5), 4.0))


@pytest.mark.parametrize("length", [17, 200])
def test_a_shared_loop_in_one_that_is_not(length: int) -> None:
    same(distances, torch.randn(7, length), torch.randn(6, length), torch.zeros(7).long())


def test_lengths_that_are_read() -> None:
    starts = torch.tensor([0, 3, 3, 40, 47])
    columns = torch.randint(0, 6, (47,))
    same(product, starts, columns, torch.randn(47), torch.randn(6), torch.zeros(4))
    assert threads() == 32


def test_accumulations_in_any_order() -> None:
    same(columns, torch.randn(6, 100), torch.zeros(100), torch.zeros(3))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8]
)
@pytest.mark.parametrize("length", [20, 260])
@pytest.mark.filterwarnings("ignore::weft.frontend.advice.LoopWarning")  # sums of u8 wrap
def test_types(dtype: torch.dtype, length: int) -> None:
    @weft.kernel
    def both(x, total, most):
        for i in range(x.shape[0]):
            s = 0
            m = x[i, 0]
            for j in range(x.shape[1]):
                s += x[i, j]
                m = max(m, x[i, j])
            total[i] = s
            most[i] = m

    x = torch.randint(0, 3, (3, length)).to(dtype)
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    same(both, x, torch.zeros(3, dtype=wide), torch.zeros(3, dtype=dtype))
    assert threads()


def test_rows_in_columns_of_memory() -> None:
    x = torch.randn(50, 6)
    same(row_sums, x.t(), torch.zeros(6))
    same(row_sums, torch.randn(6, 100)[:, ::2], torch.zeros(6))
    same(row_sums, torch.randn(12, 50)[::2], torch.zeros(6))


@weft.kernel
def column_statistics(x, mean, spread, low):
    for j, k in weft.ndrange(x.shape[1], (1, x.shape[2])):
        s = 0.0
        least = math.inf
        for i in range(x.shape[0]):
            s += x[i, j, k]
            least = min(least, x[i, j, k])
        low[j, k] = least
        mean[j, k] = s / x.shape[0]
        q = 0.0
        for i in range(x.shape[0]):
            q += (x[i, j, k] - mean[j, k]) ** 2
        if q > 1:
            spread[j, k] = math.sqrt(q)
        for i in range(x.shape[0]):
            x[i, j, k] -= s / x.shape[0]


@pytest.mark.parametrize("sizes", [(64, 1, 2), (101, 2, 9), (700, 3, 18), (64, 5, 1), (64, 0, 3)])
def test_columns(sizes: tuple[int, int, int]) -> None:
    x = torch.randn(sizes)
    outs = [torch.full(sizes[1:], 9.0) for _ in range(3)]
    EmulatedCall.seen.clear()
    same(column_statistics, x, *outs)
    found = [only(schedule, Cooperate) for schedule in EmulatedCall.seen]
    assert all(step and step.columns == 8 for step in found)
    assert found or 0 in sizes or sizes[2] == 1


def test_columns_whose_loops_are_of_different_lengths() -> None:
    @weft.kernel
    def above(x, out):
        for j in range(x.shape[1]):
            s = 0.0
            for i in range(j + 60):
                s += x[i, j]
            out[j] = s

    same(above, torch.randn(100, 40), torch.zeros(40))
    step = only(EmulatedCall.seen[-1], Cooperate)
    assert step is not None
    assert step.columns == 8


@pytest.mark.parametrize(("size", "taken"), [
    ((129, 32_600), ""), ((256, 10_000), ""), ((320, 8192), "cooperate"),
    ((200, 4000), "cooperate"), ((2000, 10_000), "split_reduction"), ((300, 65_536), ""),
    ((1000, 65_536), ""),
])  # fmt: skip
def test_sums_of_few_turns_in_many_columns_have_a_thread_each(
    size: tuple[int, int], taken: str
) -> None:
    found = column_sums.schedules(torch.empty(size, device="meta"), device="cuda").taken[0].schedule
    steps = {word.split("(")[0] for word in found.split("; ")}
    shared = steps & {"cooperate", "split_reduction", "prefetch"}
    assert shared == ({taken} if taken else set()), found
