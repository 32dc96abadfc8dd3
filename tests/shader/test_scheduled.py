"""Shaders by the schedules of GPUs: the candidates that sizes choose, against the CPU."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest
import torch

import weft
from benchmarks.matmul import matmul
from examples.causal_conv import causal_conv
from examples.softmax import softmax
from tests.conftest import adapter
from weft import compiler, webgpu
from weft.codegen.shader import emit
from weft.runtime import shaders
from weft.schedule.choose import candidate
from weft.schedule.language import UnrollJam, only
from weft.tools import cross

pytestmark = [pytest.mark.webgpu]


@pytest.fixture(autouse=True)
def found() -> None:
    adapter()


@weft.kernel
def histogram(x: torch.Tensor, counts: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        weft.atomic_add(counts[x[i]], 1)


@weft.kernel
def weighted(x: torch.Tensor, w: torch.Tensor, sums: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        weft.atomic_add(sums[x[i] // 3, x[i] % 3], w[i])


@weft.kernel
def columns(x: torch.Tensor, out: torch.Tensor) -> None:
    for j in range(x.shape[1]):
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i, j]
        out[j] = s


@weft.kernel
def smooth(x: torch.Tensor, out: torch.Tensor) -> None:
    for i, j in weft.ndrange((1, x.shape[0] - 1), (1, x.shape[1] - 1)):
        out[i, j] = x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]


def schedules(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What loops ran by since the last call."""
    pattern = r"by `(.*)`, grid \((\d+), .*"
    found = [m.group(1) for r in caplog.records if (m := re.search(pattern, r.getMessage()))]
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="weft.schedule")


@pytest.mark.parametrize("n", [17, 128, 129, 1024, 5000])
def test_rows_are_shared_by_the_threads_of_a_workgroup(
    n: int, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(9, n)
    result = softmax.on("webgpu")(x)
    (by,) = schedules(caplog)
    assert n < 128 or "cooperate" in by
    torch.testing.assert_close(result, torch.softmax(x, 1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("rows", "shared"), [(4, True), (20, True), (25, True), (26, False)])
def test_rows_that_do_not_fit_along_a_side_of_the_grid_fold(
    rows: int, shared: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = 5  # in place of 65,535
    narrow = replace(shaders._NARROW, blocks=(side, side, side))
    monkeypatch.setattr(shaders, "_MOST_SIDE", side)
    monkeypatch.setattr(shaders, "_NARROW", narrow)
    monkeypatch.setattr(shaders, "_MACHINE", replace(narrow, blocks=(1 << 31, side, side)))
    x = torch.randn(rows, 300)
    torch.testing.assert_close(softmax.on("webgpu")(x), x.softmax(1))
    (by,) = schedules(caplog)
    assert ("cooperate" in by) is shared


def test_grids_of_whole_tiles_do_not_fold() -> None:
    """A block more than there are tiles would write to the next row."""
    tensors = [torch.empty(4, 4, device="meta") for _ in range(3)]
    (loop,) = cross.lowered_loops(matmul, *tensors)
    function = compiler.optimize(loop, matmul.options)
    by = [candidate(text).schedule for text in emit.analyse(function, "wgsl").candidates]
    folds: dict[bool, set[bool]] = {True: set(), False: set()}
    for s in by:
        form = emit.form(function, s, (32, 4, 1), 0, "wgsl", watch=False)
        folds[only(s, UnrollJam) is not None].add(form.folds)
    assert folds == {True: {False}, False: {True}}


@pytest.mark.parametrize("size", [1, 3, 64, 100])
def test_blocks_have_histograms_of_their_own(size: int, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randint(0, size, (40_003,), dtype=torch.int32)
    counts = torch.arange(size, dtype=torch.int32)
    histogram.on("webgpu")(x, counts)
    assert "privatize(counts)" in schedules(caplog)[0]
    assert torch.equal(counts, torch.arange(size) + torch.bincount(x, minlength=size))


def test_private_copies_of_floats_have_ranks(caplog: pytest.LogCaptureFixture) -> None:
    x, w = torch.randint(0, 12, (20_000,), dtype=torch.int32), torch.rand(20_000)
    sums = torch.full((4, 3), 2.0)
    weighted.on("webgpu")(x, w, sums)
    assert "privatize(sums)" in schedules(caplog)[0]
    expected = torch.full((12,), 2.0).index_add(0, x, w).view(4, 3)
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("rows", "count"), [(70_000, 1), (9_000, 7), (40_001, 40)])
def test_sums_are_split_among_blocks(
    rows: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    x, out = torch.randn(rows, count), torch.empty(count)
    columns.on("webgpu")(x, out)
    (by,) = schedules(caplog)
    assert "split_reduction" in by or "cooperate" in by
    torch.testing.assert_close(out.double(), x.double().sum(0), rtol=1e-4, atol=1e-2)
    again = torch.empty(count)
    columns.on("webgpu")(x, again)
    assert torch.equal(out, again)


@pytest.mark.parametrize(("rows", "count"), [(5, 8), (33, 64), (20, 127), (9, 128)])
def test_neighbours_are_one_vector(rows: int, count: int) -> None:
    x, out, expected = torch.randn(rows, count), *torch.full((2, rows, count), 7.0)
    smooth.on("webgpu")(x, out)
    smooth(x, expected)
    torch.testing.assert_close(out, expected)


def test_vectors_are_written_where_addresses_are_multiples() -> None:
    text = str(weft.compile_for("wgsl", smooth, *[torch.empty(64, 64, device="meta")] * 2))
    assert "vec4<f32>(" in text
    assert "a1: array<vec4<f32>>" in text
    assert "vec4<f32>" not in str(
        weft.compile_for("msl", smooth, *[torch.empty(64, 64, device="meta")] * 2)
    )


@pytest.mark.slow
def test_tiles_stage_rows_in_the_memory_of_a_workgroup(caplog: pytest.LogCaptureFixture) -> None:
    w, k = torch.randn(520, 512), torch.randn(8, 520, 512)
    result = causal_conv.on("webgpu")(webgpu.buffer(w), webgpu.buffer(k), 0.1)
    (by,) = schedules(caplog)
    assert "register_window" in by
    assert "staged=" in by
    expected = causal_conv(w, k, 0.1)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("batch", "channels", "time", "vectors"),
    [(4, 20, 256, True), (5, 18, 388, False), (7, 19, 389, False)],
)
def test_tiles_of_gradients_stage_rows(
    batch: int, channels: int, time: int, vectors: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Rows of whole vectors, and those that are copied element by element; tiles that overlap."""
    for name in ("_MACHINE", "_NARROW"):  # one that few iterations keep busy
        monkeypatch.setattr(shaders, name, replace(getattr(shaders, name), processors=1))
    kernel = weft.kernel(causal_conv.function).on("webgpu")
    w, k = torch.randn(channels, time), torch.randn(batch, channels, time)
    upstream = torch.randn(k.shape)
    there = [webgpu.buffer(v).requires_grad_() for v in (w, k)]
    result = kernel(*there, 0.1)
    caplog.clear()
    found = torch.autograd.grad(result, there, upstream)
    taken = schedules(caplog)
    assert [("staged=" in by, "align" in by) for by in taken] == [(True, vectors)] * 2
    here = [v.double().requires_grad_() for v in (w, k)]
    expected = torch.autograd.grad(causal_conv(*here, 0.1), here, upstream.double())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-3)


@weft.kernel
def stepped(x: torch.Tensor, a: float, n: int) -> None:
    for i in range(x.shape[0]):
        x[i] = x[i] + a * n


def test_numbers_that_change_bind_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """More calls than a batch has, each with a number of its own."""
    from weft.runtime.webgpu_device import device

    count, group, x = 0, device().group, webgpu.buffer(torch.zeros(5))

    def counted(*args: object) -> object:
        nonlocal count
        count += 1
        return group(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(device(), "group", counted)
    kernel = stepped.on("webgpu")
    for k in range(100):
        kernel(x, 0.5 * k, 2 + k // 90)
    assert count == 2  # an integer may decide on a schedule
    assert x.tolist() == 5 * [sum(0.5 * k * (2 + k // 90) for k in range(100))]


def test_numbers_of_many_kernels_share_a_batch() -> None:
    x = [webgpu.buffer(torch.zeros(3)) for _ in range(4)]
    kernel, other = stepped.on("webgpu"), histogram.on("webgpu")
    few, counts = webgpu.buffer(torch.zeros(9).int()), webgpu.buffer(torch.zeros(1).int())
    for k in range(40):
        kernel(x[k % 4], 1.0 + k, 1)
        other(few, counts)
    for k in range(4):
        assert x[k].tolist() == 3 * [sum(1.0 + j for j in range(k, 40, 4))]


@weft.kernel
def decayed(x: torch.Tensor, out: torch.Tensor) -> None:
    for b, c in weft.ndrange(x.shape[0], x.shape[2]):
        s = 0.0
        for t in range(x.shape[1]):
            s = weft.exp(-s * s) + x[b, t, c] * weft.exp(-abs(s))
            out[b, t, c] = s


@pytest.mark.parametrize("turns", [0, 1, 5, 8, 9, 30])
def test_few_long_turns_are_loaded_ahead(turns: int, caplog: pytest.LogCaptureFixture) -> None:
    x, out, expected = torch.randn(2, turns, 5), *torch.full((2, 2, turns, 5), 7.0)
    decayed.on("webgpu")(x, out)
    decayed(x, expected)
    assert "prefetch(t, 4)" in schedules(caplog)[0] or not turns
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@weft.kernel
def weighed(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    for c in range(x.shape[1]):
        for b in range(at[0]):
            s = 0.0
            for t in range(x.shape[0]):
                s = s * 0.5 + x[t, c] * w[b] * w[at[1]]
                out[b, t, c] = s


@pytest.mark.parametrize(("turns", "weights"), [(0, 0), (0, 3), (1, 3), (9, 1), (9, 3)])
def test_what_each_turn_loads_is_loaded_before_the_loop(turns: int, weights: int) -> None:
    """A loop that has no turn loads nothing that is not there."""
    x, w, at = torch.randn(turns, 5), torch.randn(weights), torch.tensor([weights, weights - 1])
    out, expected = torch.full((2, weights, turns, 5), 7.0)
    weighed.on("webgpu")(x, w, at.int(), out)
    weighed(x, w, at.int(), expected)
    torch.testing.assert_close(out, expected)


@weft.kernel
def picked(x: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        s = 0.25
        if i < at.shape[0]:
            s = x[at[i]] + 1.0
        out[i] = s


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("count", [0, 1, 70])
def test_branches_of_few_loads_are_choices(count: int, dtype: torch.dtype) -> None:
    x, at = (9 * torch.randn(9)).to(dtype), torch.randint(0, 9, (count,))
    out, expected = torch.full((2, 70), 7.0)
    for kind in (torch.int32, torch.int16, torch.int64):
        picked.on("webgpu")(x, at.to(kind), out)
        picked(x, at.to(kind), expected)
        assert torch.equal(out, expected)


def test_little_is_written_out() -> None:
    """A driver compiles a text when it is first called."""
    tensors = [torch.empty(8, 768, 768, device="meta") for _ in range(2)]
    weights, kernels = tensors[0][0], tensors[1]
    lines = {
        "conv": str(weft.compile_for("wgsl", causal_conv, weights, kernels, 0.1)).count("\n"),
        "decayed": str(weft.compile_for("wgsl", decayed, *tensors)).count("\n"),
    }
    assert lines["conv"] < 700, "forms with indices of 32 and of 64 bits"
    assert lines["decayed"] < 500
