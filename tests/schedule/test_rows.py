"""KeepRow, StripMine: which loops go by vectors, what stays in registers, what that computes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from examples import gallery, layer_norm, softmax
from tests.cuda.emulator import EmulatedCall, emulated
from tests.cuda.test_emulated import same
from tests.fuzz.check import function
from tests.ir.blocks import launch
from weft import compiler
from weft.codegen import cuda, ptx
from weft.errors import ScheduleError
from weft.ir.core import walk
from weft.ir.text import parse_function, print_function
from weft.ir.verify import verify
from weft.schedule import grid
from weft.schedule.apply_cuda import apply
from weft.schedule.choose import candidate
from weft.schedule.language import KeepRow, StripMine, only, parse
from weft.tools.cross import lowered_loops

SCALED = """func.func @scaled(%x: memref<?x?xf32>, %out: memref<?x?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = "weft.dim"(%x) {axis = 0} : (memref<?x?xf32>) -> index
  %n = "weft.dim"(%x) {axis = 1} : (memref<?x?xf32>) -> index
  %cst = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%rows) step (%c1) {
    %s = scf.for %j = %c0 to %n step %c1 iter_args(%t = %cst) -> (f32) {
      %v = memref.load %x[%i, %j] : memref<?x?xf32>
      %u = arith.addf %t, %v : f32
      scf.yield %u : f32
    } {ordered = false, team = ["addf"]}
    scf.for %k = %c0 to %n step %c1 {
      %w = memref.load %x[%i, %k] : memref<?x?xf32>
      %q = arith.mulf %w, %s : f32
      memref.store %q, %out[%i, %k] : memref<?x?xf32>
      scf.yield
    } {ordered = false, team = []}
    scf.reduce
  }
  func.return
}
"""

KEPT = """  scf.if %12 {
    %13 = arith.extui %1 : i32 to i64
    %14 = arith.index_cast %13 : i64 to index
    %c2 = arith.constant 2 : index
    %j = arith.muli %14, %c2 {overflow = "nuw nsw"} : index
    %c0_2 = arith.constant 0 : index
    %15 = arith.cmpi slt, %j, %n : index
    %cst_1 = arith.constant 0.0 : f32
    %16, %17 = scf.if %15 -> (f32, f32) {
      %18 = memref.load %x[%i, %j] {align = 8} : memref<?x?xf32>
      %19 = memref.load %x[%i, %j] {align = 4, offset = 1} : memref<?x?xf32>
      scf.yield %18, %19 : f32, f32
    } else {
      scf.yield %cst_1, %cst_1 : f32, f32
    }
    %t = arith.constant -0.0 : f32
    %u = arith.addf %t, %16 : f32
    %c1_1 = arith.constant 1 : index
    %j_1 = arith.addi %j, %c1_1 {overflow = "nsw"} : index
    %u_1 = arith.addf %u, %17 : f32
    %20 = arith.select %15, %u_1, %t : f32
"""


def applied(how: str) -> Any:
    function = parse_function(SCALED)
    (parallel,) = (op for op in function.body.ops if op.name == "scf.parallel")
    schedule = parse(f"cooperate((j, k), 8); {how}; bind(i, x); block(256, 1)")
    made = apply(function, parallel, (0,), schedule).function
    verify(made)
    return made


def test_the_text_before_and_after() -> None:
    text = print_function(applied("keep_row(2, 1); align(x, 8)"))
    assert KEPT in text
    assert text.count("memref.load") == 2, "the row is read once"
    assert text.count("scf.for") == 0


@pytest.mark.parametrize("how", ["keep_row(2, 2)", "keep_row(1, 4)", "strip_mine(2, 2)"])
@pytest.mark.parametrize(("rows", "length"), [(0, 4), (1, 0), (1, 2), (5, 14), (3, 32)])
def test_threads_in_any_order(how: str, rows: int, length: int) -> None:
    x = np.random.default_rng(length).integers(-9, 9, (rows, length)).astype(np.float32)
    out = np.full_like(x, np.nan)
    launch(applied(how), (x, out), (2, 1, 1), (8, 4, 1), races=True, order="random", seed=rows)
    assert np.array_equal(out, x * x.sum(1, keepdims=True))


@pytest.mark.parametrize(("how", "length"), [
    ("keep_row(2, 2, whole=True)", 32), ("keep_row(4, 1, whole=True); align(x, 16)", 32),
    ("keep_row(1, 1, whole=True)", 8),
])  # fmt: skip
def test_nobody_asks_where_a_row_ends_that_is_whole(how: str, length: int) -> None:
    made = applied(how)
    plain = applied(how.replace(", whole=True", ""))
    ifs = [sum(op.name == "scf.if" for op in walk(f.body)) for f in (made, plain)]
    assert ifs[0] == 1 < ifs[1], "whether there is a row"
    x = np.random.default_rng(length).integers(-9, 9, (5, length)).astype(np.float32)
    out = np.full_like(x, np.nan)
    launch(made, (x, out), (2, 1, 1), (8, 4, 1), races=True, order="random", seed=1)
    assert np.array_equal(out, x * x.sum(1, keepdims=True))


# -- kernels


@weft.kernel
def log_sum_exp(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        largest = -math.inf
        for j in range(x.shape[1]):
            largest = max(largest, x[i, j])
        total = 0.0
        for j in range(x.shape[1]):
            total += math.exp(x[i, j] - largest)
        out[i] = largest + math.log(total)
    return out


@weft.kernel
def in_place(x: torch.Tensor, mirrored: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        x[i, 0] += 1.0
        s = 0.0
        for j in range(x.shape[1]):
            x[i, j] = 2 * x[i, j]
            s += abs(x[i, j])
        for j in range(x.shape[1]):
            x[i, j] = x[i, j] / (s + 1)
        for j in range(x.shape[1]):
            mirrored[i, j] = 2 * x[i, j]


@weft.kernel
def read_back(x: torch.Tensor, mirrored: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = 2 * x[i, j]
        for j in range(x.shape[1]):
            mirrored[i, j] = x[i, x.shape[1] - 1 - j]


@weft.kernel
def gathered(x: torch.Tensor, at: torch.Tensor, out: torch.Tensor, h: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] + h[at[i, j]]
            s += out[i, j]
        t = 0.0
        for j in range(x.shape[1]):
            if x[i, j] > 0:
                t += x[at[i, j], j]
            out[i, j] += s
        out[i, 0] = t


@weft.kernel
def behind(x: torch.Tensor, at: torch.Tensor, out: torch.Tensor, h: torch.Tensor) -> None:
    """What stays in registers is stored, and then accessed in other ways."""
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * 0.5
            s += x[i, j]
        for j in range(x.shape[1]):
            out[i, j] += s
        out[i, (at[i, 0] + 3) % x.shape[1]] += out[i, x.shape[1] - 1]
        h[i] = out[i, 2]
        if s > 0:
            out[i, 1] *= 2.0


@weft.kernel
def only_some(x: torch.Tensor, out: torch.Tensor, n: int) -> None:
    for i in range(out.shape[0]):
        s = 0.0
        for j in range(out.shape[1]):
            if j < n:
                s += x[i, j]
        for j in range(out.shape[1]):
            if j != n:
                out[i, j] = s


@weft.kernel
def branches(x: torch.Tensor, out: torch.Tensor, n: int) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        if n > i:
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] * s
        for r in range(n):
            for j in range(x.shape[1]):
                out[i, j] += s * r


@weft.kernel
def picked(x: torch.Tensor, out: torch.Tensor) -> None:
    """What is kept is written in a branch, for what else the turn reads."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] if j != i else -1.5
        for j in range(x.shape[1]):
            out[i, j] += 1.0


@weft.kernel
def mixed(x: torch.Tensor, m: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j] if m[i, j] > 0 else 0.5
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] - s


@weft.kernel
def accumulated(x: torch.Tensor, sums: torch.Tensor, total: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
            sums[j] += x[i, j]
        total[i] = s


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def forms(kernel: weft.Kernel, *args: Any) -> list[str]:
    """The steps by rows of a kernel's candidates: name, width and vectors."""
    (loop,) = weft.compile_for("sm_90", kernel, *args).loops
    found = [parse(text.split("->")[1]) for text in loop.facts.candidates]
    steps = [only(schedule, KeepRow) or only(schedule, StripMine) for schedule in found]
    return list(dict.fromkeys(type(s).__name__ + str(s.width) for s in steps if s is not None))


BOTH = ["KeepRow4", "KeepRow1", "StripMine4", "StripMine1"]


def test_which_kernels_go_by_rows() -> None:
    x, bf = meta(4, 8), torch.bfloat16
    assert forms(softmax.softmax, x) == BOTH
    assert forms(log_sum_exp, x) == BOTH
    assert forms(in_place, x, x) == BOTH
    assert forms(softmax.softmax, meta(4, 8, dtype=torch.float64))[0] == "KeepRow2"
    assert forms(softmax.softmax, meta(4, 8, dtype=bf))[0] == "KeepRow8"
    assert forms(mixed, meta(4, 8, dtype=bf), meta(4, 8, dtype=torch.uint8), x) == BOTH
    assert forms(gathered, x, meta(4, 8, dtype=torch.int64), x, meta(3))[0] == "KeepRow2"
    assert forms(branches, x, x, 3) == BOTH
    assert forms(only_some, x, x, 3) == [], "x[i, j] may not be there, out[i, j] stay as it is"
    assert forms(gallery.matmul, meta(4, 9), meta(9, 5)) == [], "threads are side by side"


def accessed(kernel: weft.Kernel, *args: Any) -> int | None:
    (row,) = kernel.schedules(*args, device="cuda").taken
    assert "keep_row" in row.schedule
    return row.accessed


def test_memory_is_accessed_once() -> None:
    row = 4 * 64 * 512
    assert accessed(softmax.softmax, meta(64, 512)) == 2 * row
    assert accessed(in_place, meta(64, 512), meta(64, 512)) == 3 * row + 2 * 4 * 64
    assert accessed(log_sum_exp, meta(64, 512)) == row + 4 * 64
    assert accessed(read_back, meta(64, 512), meta(64, 512)) == 4 * row, "others read x[i, j]"


def test_threads_and_vectors_follow_from_the_sizes() -> None:
    def held(length: int, rows: int, width: int = 4) -> tuple[int, int]:
        return grid.in_registers(length, rows, width, 16, 96)

    assert held(8192, 8192) == (512, 4)
    assert held(4096, 4096) == (256, 4)
    assert held(1024, 4096) == (32, 8), "a warp waits for no other"
    assert held(512, 1024) == (32, 4)
    assert held(781, 1823, 1) == (32, 32)
    assert grid.in_registers(781, 1823, 1, 16, 28) == (64, 16)
    assert held(128, 65_536) == (8, 4)
    assert held(16, 1) == held(16, 1 << 20) == (8, 1)
    assert held(12, 5) == (0, 0), "short"
    assert held(1024, 16) == (256, 1), "few rows: more threads"
    assert held(32_768, 64) == (1024, 8)
    assert grid.in_registers(8196, 64, 4, 16, 32) == (512, 6), "more registers for fewer threads"
    assert held(65_536, 64) == (0, 0), "too long"
    assert held(1025, 64, 1) == (256, 6), "one of few numbers"
    assert held(1300, 1 << 20) == (128, 3)
    assert held(1026, 64) == (0, 0), "no whole vectors"
    assert grid.in_strips([131_072, 9], 64, 4, 16) == (1024, 4)
    assert grid.in_strips([64], 1 << 20, 4, 16) == (8, 2)
    assert grid.in_strips([131_072], 63, 4, 16) == (0, 0), "several blocks for a row"
    assert grid.in_strips([None], 9, 4, 16) == grid.in_strips([9], 9, 4, 16) == (0, 0)


@pytest.mark.skipif(ptx.ptxas() is None, reason="ptxas is not found")
@pytest.mark.slow
def test_few_registers_are_for_more_blocks() -> None:
    """An assembler that is told of two blocks takes 47 registers where 32 are enough."""
    x = meta(8192, 8192)
    (row,) = log_sum_exp.schedules(x, device="cuda").taken
    assert row.block == (512, 1, 1)
    assert row.registers in range(41)
    (row,) = layer_norm.layer_norm.schedules(x, meta(8192), meta(8192), 1e-5, device="cuda").taken
    assert row.registers == 64, "two blocks: it would take more"


# -- what they compute

CALLS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "softmax": lambda n: (softmax.softmax, torch.randn(5, n)),
    "layer_norm": lambda n: (
        layer_norm.layer_norm, torch.randn(5, n) + 1, torch.randn(n), torch.randn(n), 1e-5
    ),
    "log_sum_exp": lambda n: (log_sum_exp, torch.randn(5, n)),
    "in_place": lambda n: (in_place, torch.randn(5, n), torch.zeros(5, n)),
    "read_back": lambda n: (read_back, torch.randn(5, n), torch.zeros(5, n)),
    "gathered": lambda n: (
        gathered, torch.randn(5, n), torch.randint(0, 2, (5, n)), torch.full((5, n), 9.0),
        torch.randn(3),
    ),
    "behind": lambda n: (
        behind, torch.randn(5, n), torch.randint(0, 2, (5, n)), torch.zeros(5, n), torch.zeros(5)
    ),
    "only_some": lambda n: (only_some, torch.randn(5, n - 2), torch.full((5, n), 9.0), n - 3),
    "branches": lambda n: (branches, torch.randn(5, n), torch.full((5, n), 9.0), 3),
    "picked": lambda n: (picked, torch.randn(5, n), torch.full((5, n), 9.0)),
    "mixed": lambda n: (
        mixed, torch.randn(5, n).bfloat16(), torch.randint(0, 2, (5, n)).byte(), torch.zeros(5, n)
    ),
    "accumulated": lambda n: (
        accumulated, torch.randn(5, n), torch.zeros(n), torch.zeros(5)
    ),
}  # fmt: skip


@pytest.mark.sampled(15)
@pytest.mark.parametrize(
    ("name", "length"),
    [*((name, n) for name in CALLS for n in (17, 100)), ("softmax", 8196)],
)  # fmt: skip
def test_values(name: str, length: int) -> None:
    torch.manual_seed(length)
    kernel, *args = CALLS[name](length)
    EmulatedCall.seen.clear()
    same(kernel, *args)
    (schedule,) = EmulatedCall.seen
    if name != "only_some":
        assert only(schedule, KeepRow)


@pytest.mark.parametrize("kernel", [softmax.softmax, log_sum_exp])
def test_values_of_long_rows(kernel: weft.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "in_registers", lambda *_, **__: (0, 0))
    monkeypatch.setattr(grid, "in_strips", lambda *_: (64, 2))
    for length in (16, 1001, 4100):
        same(kernel, torch.randn(2, length))
    found = [only(schedule, StripMine) for schedule in EmulatedCall.seen[-3:]]
    assert found == [StripMine(4, 2), StripMine(1, 2), StripMine(4, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_bits_do_not_depend_on_alignment(dtype: torch.dtype) -> None:
    base = torch.randn(7, 520).to(dtype)
    memory = torch.zeros(7 * 520 + 1, dtype=dtype)
    shifted = memory[1:].view(7, 520).copy_(base)
    kernel = emulated(softmax.softmax)
    EmulatedCall.seen.clear()
    assert torch.equal(kernel(base), kernel(shifted))
    texts = [only(schedule, KeepRow) for schedule in EmulatedCall.seen]
    assert texts[0] == texts[1]
    assert EmulatedCall.seen[0] != EmulatedCall.seen[1], "vectors of memory are not"


def test_nothing_is_not_a_number() -> None:
    x = torch.randn(4, 64)
    x[0], x[1, 0], x[2, 63], x[3] = math.nan, math.nan, math.inf, -math.inf
    same(log_sum_exp, x)


# -- what is asked for


def test_a_text_for_rows() -> None:
    kernel = weft.kernel(schedule={"cuda": "cooperate((), 64); keep_row(4, 2)"})(
        softmax.softmax.function
    )
    EmulatedCall.seen.clear()
    for length in (512, 516, 510):
        x = torch.randn(3, length)
        torch.testing.assert_close(emulated(kernel)(x), x.softmax(1))
    found = [only(schedule, KeepRow) for schedule in EmulatedCall.seen]
    assert found == [KeepRow(4, 2), KeepRow(4, 1), KeepRow(1, 4)], "longer, or no whole vectors"


def test_whole_rows_are_known_by_their_length() -> None:
    EmulatedCall.seen.clear()
    lengths = (128, 132, 1024, 1000)
    for length in lengths:
        same(softmax.softmax, torch.randn(5, length))
    found = [only(schedule, KeepRow) for schedule in EmulatedCall.seen]
    assert [step is not None and step.whole for step in found] == [True, False, True, False]


def test_a_text_for_whole_rows_is_for_those_alone() -> None:
    kernel = weft.kernel(schedule={"cuda": "cooperate((), 64); keep_row(4, 2, whole=True)"})(
        softmax.softmax.function
    )
    EmulatedCall.seen.clear()
    for length in (512, 508, 1024):
        x = torch.randn(3, length)
        torch.testing.assert_close(emulated(kernel)(x), x.softmax(1))
    wanted = KeepRow(4, 2, whole=True)
    assert [only(s, KeepRow) == wanted for s in EmulatedCall.seen] == [True, False, False]
    assert emulated(kernel)(torch.zeros(3, 0)).shape == (3, 0)


REFUSED = [
    ("keep_row(4, 2)", "no threads share loops", "write cooperate(..., threads) as well"),
    ("cooperate((j, j_, j__), 8); keep_row(3, 2)",
     "a vector has 1, 2, 4, 8 or 16 elements, and a thread 1 to 64 vectors", ""),
    ("cooperate((j, j_, j__), 8); keep_row(4, 2); strip_mine(4, 2)",
     "it does not go with `strip_mine(4, 2)`", "leave one of them out"),
    ("cooperate((j, j_, j__), 8); keep_row(16, 64)", "1024 turns of 20 operations are too many",
     ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "help"), REFUSED)
def test_refusals(text: str, message: str, help: str) -> None:
    kernel = weft.kernel(schedule={"cuda": text})(softmax.softmax.function)
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", kernel, meta(4, 8))
    assert message in caught.value.message
    assert caught.value.help == help


def test_a_row_that_is_stored_by_turns_in_a_branch_and_read_later() -> None:
    """The first loop touches memory that is not kept: its turns are in a branch, which has to hand
    on what it stored."""

    kernel = weft.kernel(strict_math=True)(
        function("""def kernel(x, w, y, z, v):
    m = x.shape[1]
    for i in range(x.shape[0]):
        s = 0.25
        t = -0.5
        for j in range(0, m):
            y[i, j] = weft.math.exp(x[i, j] - t)
            z[i, j] += (weft.math.tanh(w[j]) - (0.5 - x[i, j]))
        y[i, 0] += s
        for j in range(0, m):
            t = max(t, weft.math.exp(w[j]))
        for j in range(0, m):
            y[i, j] += ((z[i, j] - x[i, j]) - weft.math.tanh(w[j]))
""")
    )
    x, y, z = torch.randn(3, 2, 40).unbind()
    (loop,) = lowered_loops(kernel, x, torch.randn(40), y.T.contiguous().T, z, z.clone())
    lowered = compiler.optimize(loop, kernel.options)
    kept = 0
    for text in cuda.analyse(lowered).candidates:
        if "keep_row" in text:
            for stage in cuda.scheduled(lowered, candidate(text).schedule).bound.stages:
                verify(stage)
                kept += 1
    assert kept


def test_loops_without_rows_are_refused() -> None:
    kernel = weft.kernel(schedule={"cuda": "cooperate((j), 8); strip_mine(4, 2)"})(
        only_some.function
    )
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", kernel, meta(4, 8), meta(4, 8), 3)
    assert caught.value.message == (
        "`strip_mine(4, 2)`: no loops that threads share, from 0 to a number of the call, go along "
        "an array of an argument"
    )
    assert caught.value.help == "leave it out"


def test_every_copy_is_known_as_what_it_comes_from() -> None:
    made = applied("keep_row(2, 2)")
    assert sum(op.name == "arith.mulf" for op in walk(made.body)) == 4


@pytest.mark.parametrize("name", ["behind", "read_back", "in_place", "accumulated"])
def test_who_reads_behind_the_loops_waits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take turns in any order, and races between them are reported."""
    monkeypatch.setattr(EmulatedCall, "interpreted", True)
    torch.manual_seed(0)
    kernel, *args = CALLS[name](34)
    same(kernel, *args)
    assert only(EmulatedCall.seen[-1], KeepRow)


@weft.kernel
def enlarged(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape
    out = x.new_empty(2 * height, 2 * width)
    for i in range(2 * height):
        for j in range(2 * width):
            out[i, j] = x[i // 2, j // 2]
    return out


@weft.kernel
def group_norm(x: torch.Tensor, w: torch.Tensor, groups: int) -> torch.Tensor:
    n, channels, length = x.shape
    size = channels // groups
    out = torch.empty_like(x)
    for b in range(n):
        for g in range(groups):
            s = 0.0
            for c in range(size):
                for k in range(length):
                    s += x[b, g * size + c, k] ** 2
            scale = 1.0 / math.sqrt(s / (size * length) + 1e-5)
            for c in range(size):
                for k in range(length):
                    out[b, g * size + c, k] = x[b, g * size + c, k] * scale * w[g * size + c]
    return out


def taken(table: str, loop: str) -> str:
    """The schedule that ``table`` says a call of ``loop`` takes."""
    lines = table[table.index(loop) :].splitlines()
    return next(line for line in lines if line.startswith("> "))


def test_a_thread_alone_has_sums_of_few_elements() -> None:
    """Each element of x came to two by two; groups of threads for two turns took 8 times as long
    (.445 ms of a gradient's 32 x 64 x 56 x 56 on an H200, where .054 are needed)."""
    x = torch.empty(56, 56, device="meta")
    table = str(enlarged.backward.schedules(x, device="cuda"))
    assert "cooperate" not in taken(table, "enlarged_0_adjoint_d_x")


def test_threads_share_the_loop_that_goes_along_memory_most_often() -> None:
    """Along k, not g, which only what is kept of a group goes along: once for all of k."""
    x, w = torch.empty(8, 256, 4096, device="meta"), torch.empty(256, device="meta")
    table = str(group_norm.backward.schedules(x, w, 32, device="cuda"))
    assert re.search(
        r"(cooperate|split_reduction)\(\(k\)", taken(table, "group_norm_0_adjoint_d_w")
    )
