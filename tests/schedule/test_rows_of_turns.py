"""KeepRow of loops in a serial one: rows that stay in registers from its first turn to its last."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import EmulatedCall
from tests.cuda.test_emulated import same
from weft import compiler
from weft.options import Options
from weft.schedule import cooperative_loops
from weft.schedule.rows import find
from weft.tools.cross import lowered_loops


@weft.kernel
def sums_of_chunks(
    x: torch.Tensor, ends: torch.Tensor, out: torch.Tensor, sums: torch.Tensor
) -> None:
    for c in range(sums.shape[0]):
        for i in range(ends[c], ends[c + 1]):
            s = 0.0
            for j in range(x.shape[1]):
                s += x[i, j]
            for j in range(x.shape[1]):
                sums[c, j] += x[i, j] * s
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] - s


@weft.kernel
def three_sums(x: torch.Tensor, ends: torch.Tensor, out: torch.Tensor, sums: torch.Tensor) -> None:
    """Three combinations in a turn; what one carries to the next; a weight that all turns read."""
    for c in range(sums.shape[0]):
        before = 0.0
        for i in range(ends[c], ends[c + 1]):
            s = 0.0
            for j in range(x.shape[1]):
                s += x[i, j] * sums[c, j]
            q = 0.0
            for j in range(x.shape[1]):
                q += (x[i, j] - s) * 0.125
            largest = -math.inf
            for j in range(x.shape[1]):
                largest = max(largest, x[i, j] + q)
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] * largest + before
            before += largest


@weft.kernel
def read_at_the_end(
    x: torch.Tensor, ends: torch.Tensor, out: torch.Tensor, sums: torch.Tensor
) -> None:
    for c in range(sums.shape[0]):
        for i in range(ends[c], ends[c + 1]):
            s = 0.0
            for j in range(x.shape[1]):
                s += x[i, j]
            for j in range(x.shape[1]):
                sums[c, j] += x[i, j] * s
        out[c, 0] = sums[c, x.shape[1] - 1]


@weft.kernel
def reads_the_turn_before(
    x: torch.Tensor, ends: torch.Tensor, out: torch.Tensor, sums: torch.Tensor
) -> None:
    for c in range(sums.shape[0]):
        for i in range(ends[c] + 1, ends[c + 1]):
            s = 0.0
            for j in range(x.shape[1]):
                s += x[i, j] + out[i - 1, j]
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] + s % 8
            for j in range(x.shape[1]):
                sums[c, j] = out[i, j] * 0.5


@weft.kernel
def in_a_branch(x: torch.Tensor, ends: torch.Tensor, out: torch.Tensor, sums: torch.Tensor) -> None:
    for c in range(sums.shape[0]):
        for i in range(ends[c], ends[c + 1]):
            s = 0.0
            for j in range(x.shape[1]):
                s += x[i, j]
            if s > 0:
                for j in range(x.shape[1]):
                    sums[c, j] += x[i, j]
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] - s if x[i, j] > 0 else 1.0


@weft.kernel
def some_of_them(
    x: torch.Tensor, ends: torch.Tensor, out: torch.Tensor, sums: torch.Tensor
) -> None:
    for c in range(sums.shape[0]):
        for i in range(ends[c], ends[c + 1]):
            s = 0.0
            for j in range(x.shape[1]):
                s += x[i, j]
            for j in range(x.shape[1]):
                if x[i, j] > s:
                    sums[c, j] += out[(j * 7) % out.shape[0], 0]


@weft.kernel
def two_serial_loops(
    x: torch.Tensor, ends: torch.Tensor, out: torch.Tensor, sums: torch.Tensor
) -> None:
    for c in range(sums.shape[0]):
        for i in range(ends[c], ends[c + 1]):
            s = 0.0
            for j in range(x.shape[1]):
                s += x[i, j]
            for j in range(x.shape[1]):
                sums[c, j] += x[i, j] * s
        for i in range(ends[c], ends[c + 1]):
            s = 0.0
            for j in range(x.shape[1]):
                s += sums[c, j]
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] * s


KERNELS = [sums_of_chunks, three_sums, read_at_the_end, reads_the_turn_before, in_a_branch,
           some_of_them, two_serial_loops]  # fmt: skip


def inputs(rows: int, length: int, chunks: int, dtype: torch.dtype = torch.float32) -> list[Any]:
    """Chunks of different lengths, some of them empty."""
    torch.manual_seed(rows * length)
    ends = torch.randint(0, rows + 1, (chunks + 1,)).sort().values
    ends[-1] = rows
    return [torch.randint(-3, 4, (rows, length)).to(dtype), ends, torch.zeros(rows, length),
            torch.randint(-2, 3, (chunks, length)).to(dtype)]  # fmt: skip


def kept(kernel: weft.Kernel) -> tuple[set[str], set[str]]:
    """The arrays of which rows are in registers for a turn, and for all turns."""
    (loop,) = lowered_loops(kernel, *inputs(6, 64, 2))
    loop = compiler.optimize(loop, Options(verify=True))
    (parallel,) = (op for op in loop.body.ops if op.name == "scf.parallel")
    team = cooperative_loops.find(loop, parallel, 0)
    assert team is not None
    rows = find(parallel, team.loops, keep=True)
    assert rows is not None
    stay = {row.memref.name for row in rows.kept if rows.loaded.get(row) is rows.around}
    assert {row.memref.name for row in rows.ahead} <= {"x"}
    return {row.memref.name for row in rows.kept} - stay, stay


def test_what_stays_in_registers() -> None:
    assert kept(sums_of_chunks) == ({"x", "out"}, {"sums"})
    assert kept(three_sums) == ({"x", "out"}, {"sums"}), "a weight: it is only read"
    assert kept(read_at_the_end) == ({"x"}, set()), "sums is read by another thread"
    assert kept(reads_the_turn_before) == ({"x"}, {"sums"}), "out is read elsewhere"
    assert kept(in_a_branch) == ({"x", "out"}, set())
    assert kept(some_of_them) == ({"x"}, set()), "a turn may not touch the element at all"


@pytest.mark.sampled(15)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("rows", "length", "chunks"), [(9, 64, 3), (5, 17, 4), (3, 520, 2), (20, 100, 7)]
)
def test_values(kernel: weft.Kernel, rows: int, length: int, chunks: int) -> None:
    same(kernel, *inputs(rows, length, chunks))


@pytest.mark.parametrize("kernel", KERNELS)
def test_threads_in_any_order(kernel: weft.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedCall, "interpreted", True)
    same(kernel, *inputs(5, 34, 2))


def test_rounding_is_that_of_each_turn() -> None:
    x, ends, out, sums = inputs(40, 64, 2)
    same(sums_of_chunks, x.bfloat16() * 1.37, ends, out, sums.bfloat16())
