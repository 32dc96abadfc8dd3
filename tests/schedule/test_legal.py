"""What a loop does not allow: each refusal names the reason, in the user's own line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from examples import brick_wall, causal_conv, gallery
from weft.codegen import cuda
from weft.errors import ScheduleError
from weft.ir.core import Function


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@weft.kernel
def checked(x: torch.Tensor, out: torch.Tensor) -> None:
    for i, j in out:
        s = 0.0
        for k in range(x.shape[1]):
            s += x[i, k]
        assert s >= 0.0
        out[i, j] = s


@weft.kernel
def even(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(0, x.shape[0], 2):
        out[i] = x[i]


@weft.kernel
def running(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(1, x.shape[1]):
            s = 0.5 * s + x[i, j]
            out[i, j] = s
        for j in range(1, x.shape[1]):
            out[i, j] = out[i, j - 1] * 2.0


@weft.kernel
def scaled(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = 2.0 * x[i, j]


@weft.kernel
def cumulated(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
            out[i, j] = s
        for j in range(x.shape[1]):
            out[i, j] += x[i, j]


@weft.kernel
def counted(x: torch.Tensor, h: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        h[x[i]] += 1


@weft.kernel
def shifted(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(1, x.shape[0]):
        out[i] = x[i - 1]


@weft.kernel
def nested(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            for k in range(x.shape[2]):
                s += x[i, j, k]
        if s > 0.0:
            for m in range(0, x.shape[1], 2):
                out[i, m] = s
            for n in range(x.shape[1]):
                out[i, n] += s


@weft.kernel
def checked_inside(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            assert x[i, j] >= 0.0
            s += x[i, j]
        out[i] = s


@weft.kernel
def both(x: torch.Tensor, h: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    s = 0
    for i in range(x.shape[0]):
        h[x[i]] += 1
        s += x[i]
    for j in range(x.shape[0]):
        weft.atomic_add(h[x[j]], 1)
        weft.atomic_max(h[x[j]], 1)
        g[j] = h.shape[0]
    return s


CONV = (causal_conv.causal_conv, meta(4, 64), meta(2, 4, 64), 0.1)
AXPY = (gallery.axpy, 2.0, meta(9), meta(9))
TOTAL = (gallery.total, meta(9))
MATMUL = (gallery.matmul, meta(9, 9), meta(9, 9))
WALL = (brick_wall.brick_wall, meta(6, 8, dtype=torch.int32), 20, 28, 2, 1, 5)
RUNNING = (running, meta(5, 6), meta(5, 6))
SCALED = (scaled, meta(5, 6), meta(5, 6))
CUMULATED = (cumulated, meta(5, 6), meta(5, 6))
COUNTED = (counted, meta(9, dtype=torch.int64), meta(9, dtype=torch.int32))

CONV_LOOP = "for b, c, t in weft.ndrange(B, C, T):"
AXPY_LOOP = "for i in range(x.shape[0]):"
REFUSED: list[tuple[tuple[Any, ...], str, str, str, str]] = [
    (CONV, "unroll_jam(q, 4)", CONV_LOOP, "there is no parallel index `q`",
     "there are `b`, `c`, `t`"),
    (CONV, "unroll_jam(u, 4)", "for u in range(t + 1):",
     "`u` is the index of a loop inside of an iteration",
     "the parallel indices are `b`, `c`, `t`"),
    (CONV, "unroll_jam(t, 1)", CONV_LOOP,
     "a thread has two iterations or more, a stride of one or more", ""),
    (CONV, "unroll_jam(t, 16); unroll_jam(b, 8)", CONV_LOOP,
     "a thread would have 128 iterations: 64 are the most", ""),
    (CONV, "unroll_jam(t, 4, stride=32, overlap=8)", CONV_LOOP,
     "groups of 1 to 1024 threads overlap, of which a stride is one", ""),
    (RUNNING, "unroll_jam(i, 4, overlap=1)", "for i in range(x.shape[0]):",
     "an iteration that is carried out twice would do twice what is to be done once",
     "write unroll_jam(i, 4)"),
    (CONV, "unroll_jam(t, 4); unroll_jam(t, 2)", CONV_LOOP, "`unroll_jam(t, 4)` says that already",
     "leave one of them out"),
    (TOTAL, "unroll_jam(i, 4)", AXPY_LOOP,
     "the loop reduces into a scalar: each thread's iterations are combined one by one",
     "write vectorize(...), or nothing"),
    ((even, meta(9), meta(9)), "unroll_jam(i, 4)", "for i in range(0, x.shape[0], 2):",
     "iterations along `i` do not go by 1", ""),
    ((checked, meta(3, 4), meta(3, 4)), "unroll_jam(j, 4)", "assert s >= 0.0",
     "iterations along `j` check or print, one after the other",
     "take the assertion or print out of the loop"),
    (CONV, "unroll_jam(t, 4); cooperate((u), 8)", CONV_LOOP,
     "it does not go with `cooperate((u), 8)`", "leave one of them out"),
    (CONV, "vectorize(t, 4)", "for u in range(t + 1):", "an iteration has a loop inside",
     "write unroll_jam(t, 4) instead"),
    (WALL, "vectorize(row, 4)", "image[row, col] = tile[",
     "no access has unit stride along `row`: neighbouring iterations are not neighbours in memory",
     "vectorize another index"),
    (WALL, "vectorize(col, 4); bind(row, x)", "for row, col in weft.ndrange(height, width):",
     "`row` is bound to x, and vectors are along x", "bind(col, x)"),
    (AXPY, "vectorize(i, 3)", AXPY_LOOP,
     "width and copies are powers of two, copies a multiple of width", ""),
    (AXPY, "vectorize(i, 4, 4096)", AXPY_LOOP, "4096 iterations of 6 operations are too many", ""),
    (AXPY, "vectorize(i, 4, 8, stride=16)", AXPY_LOOP,
     "vectors of a thread are side by side, or 32 vectors apart", ""),
    (AXPY, "vectorize(i, 4, 8, stride=32); block_dim(48)", AXPY_LOOP,
     "stride=32 needs blocks of whole warps along x", ""),
    (TOTAL, "vectorize(i, 4, 8, stride=32)", AXPY_LOOP,
     "the loop reduces into a scalar: stride is 1", ""),
    ((shifted, meta(9), meta(9)), "vectorize(i, 4, reverse=True)",
     "for i in range(1, x.shape[0]):", "only a CPU's lanes are reversed",
     "leave reverse=True out"),
    ((shifted, meta(9), meta(9)), "vectorize(i, 4, peel=2)", "for i in range(1, x.shape[0]):",
     "peel is 1 here", "leave it out"),
    (AXPY, "vectorize(i, 4, divisible=True)", AXPY_LOOP,
     "no quotient or remainder in subscripts is shared by 4 neighbours in any call",
     "leave divisible=True out"),
    (AXPY, "align(x, 16)", AXPY_LOOP, "vectors are aligned, and there is no vectorize(...)", ""),
    (AXPY, "align(q, 16)", AXPY_LOOP, "there is no array `q`", "there are `x`, `y`, `out`"),
    (AXPY, "vectorize(i, 2); align(x, 16)", AXPY_LOOP,
     "2 elements of `x` are not 16 bytes side by side", ""),
    (AXPY, "vectorize(i, 8); align(x, 32)", AXPY_LOOP,
     "the longest load and store have 16 bytes", ""),
    (CONV, "bind(b, x); bind(c, x)", CONV_LOOP,
     "two indices are bound to x: only z collapses several",
     "bind one to x, one to y, the others to z"),
    (CONV, "bind(t, x); bind(t, y)", CONV_LOOP, "`bind(t, x)` says that already",
     "leave one of them out"),
    (MATMUL, "bind(i, x); bind(j, z)", "for i, j in weft.ndrange(rows, cols):",
     "no index is bound to y", "bind(..., y)"),
    (CONV, "block(1024, 2)", CONV_LOOP, "a block has 1 to 1024 threads", ""),
    (TOTAL, "block(128, 1)", AXPY_LOOP,
     "a loop that reduces or privatizes has blocks of 256 threads", "write block_dim(...)"),
    (CONV, "block(64, 1); block_dim(64)", CONV_LOOP, "it does not go with `block_dim((64))`",
     "leave one of them out"),
    (CONV, "block_dim((1, 1, 128))", CONV_LOOP,
     "a block has 1 to 1024 threads, at most 64 along z", ""),
    (AXPY, "block_dim((32, 2))", AXPY_LOOP, "there are 1 parallel indices and 2 sides", ""),
    (TOTAL, "block_dim(48)", AXPY_LOOP,
     "a loop that reduces has whole warps: a multiple of 32 threads", ""),
    (CONV, "persist(0)", CONV_LOOP, "there is one block or more for each multiprocessor", ""),
    (TOTAL, "cover()", AXPY_LOOP,
     "the loop reduces into a scalar: a thread has several iterations", ""),
    (WALL, "streaming_stores(tile)", "for row, col in weft.ndrange(height, width):",
     "all stores of a loop stream, or none", "write streaming_stores((image))"),
    (COUNTED, "streaming_stores(h)", AXPY_LOOP, "the loop stores nothing", "leave it out"),
    (COUNTED, "privatize(x)", "h[x[i]] += 1",
     "an iteration asks what is in `x`, or stores into it",
     "it may only accumulate: h[k] += v, weft.atomic_max(h[k], v)"),
    (CONV, "privatize(out)", "out[b, c, t] = s",
     "an iteration asks what is in `out`, or stores into it",
     "it may only accumulate: h[k] += v, weft.atomic_max(h[k], v)"),
    ((counted, meta(9, dtype=torch.int64), meta(9, dtype=torch.float64)), "privatize(h)",
     AXPY_LOOP, "shared memory has no atomic addf of f64", ""),
    (CONV, "cooperate((q), 8)", CONV_LOOP, "there is no loop `q`", "there is `u`"),
    (CONV, "cooperate((u), 24)", CONV_LOOP, "a group has a power of two of threads, 2 to 1024", ""),
    (CONV, "cooperate((u), 32, columns=8)", CONV_LOOP,
     "columns are a power of two, 2 to 32, in blocks of more than 32 threads", ""),
    (CONV, "split_reduction((u), 16)", CONV_LOOP,
     "columns are a power of two up to 32, a block has a warp or more", ""),
    (CONV, "split_reduction((u), 64, parts=2000)", CONV_LOOP,
     "1024 blocks share an iteration, at most", ""),
    (RUNNING, "split_reduction((j), 32)", "for j in range(1, x.shape[1]):",
     "`s` is carried along `j` by no associative combination", "loops: `j`, `j_`"),
    ((nested, meta(3, 4, 5), meta(3, 4)), "split_reduction((n), 64)", "for n in range(x.shape[1]):",
     "blocks share loops that are in no other loop or branch, of iterations that do not read what "
     "they write", "loops: `j`, `k`, `m`, `n`"),
    (SCALED, "split_reduction((j), 32, parts=2)", "for j in range(x.shape[1]):",
     "the loops carry nothing that a further launch would combine", "write cooperate((j), 32)"),
    (CONV, "cooperate((u), 64); split_reduction((u), 32)", CONV_LOOP,
     "it does not go with `split_reduction((u), 32)`", "leave one of them out"),
    (CONV, "split_reduction((), 32); cooperate((u), 64)", CONV_LOOP,
     "it does not go with `cooperate((u), 64)`", "leave one of them out"),
    (CONV, "split_reduction((u), 32); strip_mine(1, 2)", CONV_LOOP,
     "it does not go with `split_reduction((u), 32)`", "leave one of them out"),
    (CUMULATED, "scan((j), 64); cooperate((j), 32)", AXPY_LOOP,
     "it does not go with `cooperate((j), 32)`", "leave one of them out"),
    (CUMULATED, "cooperate((j_), 32); scan((j), 64, parts=2)", AXPY_LOOP,
     "it does not go with `scan((j), 64, parts=2)`", "leave one of them out"),
    (RUNNING, "cooperate((j), 32)", "for j in range(1, x.shape[1]):",
     "`s` is carried along `j` by no associative combination", "loops: `j`, `j_`"),
    (RUNNING, "cooperate((j_), 32)", "for j in range(1, x.shape[1]):",
     "iterations along `j` touch what others of them write", "loops: `j`, `j_`"),
    (CONV, "cooperate((u), 32); block(64, 1)", CONV_LOOP,
     "it does not go with `cooperate((u), 32)`", "leave one of them out"),
    (CONV, "cooperate((u), 32); persist(4)", CONV_LOOP,
     "it does not go with `cooperate((u), 32)`", "leave one of them out"),
    (CONV, "cooperate((u), 32); cover()", CONV_LOOP,
     "it does not go with `cooperate((u), 32)`", "leave one of them out"),
    ((nested, meta(3, 4, 5), meta(3, 4)), "cooperate((j, k), 32)", "for j in range(x.shape[1]):",
     "`k` is in another loop that is shared", "loops: `j`, `k`, `m`, `n`"),
    ((nested, meta(3, 4, 5), meta(3, 4)), "cooperate((m), 32)", "for m in range(0, x.shape[1], 2):",
     "`m` does not go by 1", "loops: `j`, `k`, `m`, `n`"),
    ((nested, meta(3, 4, 5), meta(3, 4)), "cooperate((n), 64, columns=8)",
     "for n in range(x.shape[1]):",
     "groups side by side need shared loops that are in no other loop or branch",
     "loops: `j`, `k`, `m`, `n`"),
    ((checked, meta(3, 4), meta(3, 4)), "cooperate((k), 32)", "for k in range(x.shape[1]):",
     "what stands around the loops must be done by one thread", "loops: `k`"),
    ((checked_inside, meta(3, 4), meta(3)), "cooperate((j), 32)", "for j in range(x.shape[1]):",
     "the loop over `j` has weft.assert inside", "loops: `j`"),
    (RUNNING, "cooperate((), 32)", AXPY_LOOP, "no loop may go in any order", "loops: `j`, `j_`"),
    (CONV, "index_width(64); fast_division()", CONV_LOOP,
     "it does not go with `fast_division()`", "leave one of them out"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text", "line", "message", "help"), REFUSED,
                         ids=[text for _, text, *_ in REFUSED])  # fmt: skip
def test_a_refusal_names_the_reason_and_the_line(
    call: tuple[Any, ...], text: str, line: str, message: str, help: str
) -> None:
    kernel, *args = call
    fresh = weft.kernel(schedule={"cuda": text})(kernel.function)
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", fresh, *args)
    error = caught.value
    assert isinstance(error, ValueError)
    assert isinstance(error, weft.CompileError)
    assert error.message.partition("`: ")[2] == message
    assert error.help == help
    assert error.span is not None
    assert error.span.text.strip() == line
    assert error.span.file == kernel.function.__code__.co_filename
    assert f"in kernel `{kernel.__name__}`: `" in str(error)


def test_the_whole_text_of_a_refusal() -> None:
    kernel: Callable[..., Any] = weft.kernel(schedule={"cuda": "cooperate((j), 32)"})
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", kernel(running.function), meta(5, 6), meta(5, 6))
    span = caught.value.span
    assert span is not None
    assert str(caught.value) == (
        f"{__file__}:{span.line}: in kernel `running`: `cooperate((j), 32)`: `s` is carried along "
        "`j` by no associative combination\n"
        "    for j in range(1, x.shape[1]):\n"
        "    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "help: loops: `j`, `j_`"
    )


def test_sums_keep_their_order_with_strict_math() -> None:
    kernel = weft.kernel(strict_math=True, schedule={"cuda": "cooperate((u), 8)"})(
        causal_conv.causal_conv.function
    )
    with pytest.raises(ScheduleError, match="strict_math keeps the order of the sum `s` along `u`"):
        weft.compile_for("sm_90", kernel, *CONV[1:])


def test_a_loop_that_one_thread_runs_has_no_schedule() -> None:
    with pytest.raises(ScheduleError) as caught:
        cuda.analyse(Function("f", [], []), "cover()")
    assert str(caught.value) == (
        "`cover()`: no parallel loop goes onto the grid, one thread runs all of this\n"
        "help: take the schedule away"
    )


@pytest.mark.parametrize(
    ("loop", "text", "h", "message"),
    [
        (0, "privatize(h)", meta(9, dtype=torch.int32), "the loop reduces into a scalar, too"),
        (0, "cooperate((), 8)", meta(9, dtype=torch.int32),
         "the loop reduces into a scalar, by all threads"),
        (1, "privatize(h)", meta(9, dtype=torch.int32), "iterations combine in several ways"),
    ],
)  # fmt: skip
def test_what_blocks_cannot_accumulate(loop: int, text: str, h: torch.Tensor, message: str) -> None:
    kernel = weft.kernel(schedule={"cuda": {loop: text}})(both.function)
    x = meta(5, dtype=torch.int64)
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", kernel, x, h, x)
    assert caught.value.message == f"`{text}`: {message}"


def test_only_contiguous_arrays_are_copied_to_shared_memory() -> None:
    kernel = weft.kernel(schedule={"cuda": "privatize(h)"})(counted.function)
    with pytest.raises(ScheduleError) as caught:
        weft.compile_for("sm_90", kernel, COUNTED[1], meta(18, dtype=torch.int32)[::2])
    assert caught.value.message == "`privatize(h)`: it is not contiguous"
