"""What a block's threads read alike: the same bits, in shared memory; what is refused, and why."""

from __future__ import annotations

import math
import os
import re
from random import Random
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import EmulatedCall, emulated
from tests.fuzz import check as fuzz
from tests.fuzz import staged
from tests.fuzz.check import function as function_of
from tests.fuzz.schedules import loops_of
from weft.codegen import cuda
from weft.errors import ScheduleError
from weft.ir.core import Function, Op
from weft.schedule import apply_cuda
from weft.schedule.language import Align, Stage, only, parse, several, show
from weft.schedule.nest import loops_of as serial_of
from weft.schedule.stage import rows_of

COUNT = int(os.environ.get("WEFT_FUZZ_STAGED", "8"))


@weft.kernel
def state(
    w: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, K: weft.template()  # type: ignore[valid-type]
) -> torch.Tensor:  # fmt: skip
    """A state of K numbers for each (b, i), which decays by what the turn's row says. ``w``, ``k``
    (B, T, K), ``v`` (B, T, N), ``g`` (B, T)."""
    B, T, N = v.shape
    out = torch.empty_like(v)
    for b, i in weft.ndrange(B, N):
        s = weft.zeros(K)
        for t in range(T):
            known = 0.0
            for j in range(K):
                known += s[j] * k[b, t, j]
            for j in range(K):
                s[j] = s[j] * math.exp(-math.exp(w[b, t, j])) + v[b, t, i] * k[b, t, j] * g[b, t]
            out[b, t, i] = known + s[0]
    return out


def inputs(time: int, size: int, width: int) -> list[Any]:
    shapes = (2, time, size), (2, time, size), (2, time, width), (2, time)
    return [*(torch.randn(shape) for shape in shapes), size]


def lowered(kernel: weft.Kernel, *args: Any) -> tuple[Function, Op]:
    (function,) = loops_of(kernel, list(args))
    function.attrs["noalias"] = True
    parallel = apply_cuda.outermost(function)
    assert parallel is not None
    return function, parallel


def test_what_depends_on_the_turn_alone_is_computed_once() -> None:
    function, parallel = lowered(state, *inputs(3, 5, 6))
    found = rows_of(function, parallel, 1, serial_of(parallel)["t"], 32)
    assert sorted((row.root.name, row.width, len(row.stands_for)) for row in found) == [
        ("math.exp", 5, 1),  # not w, which nothing else asks for
        ("memref.load", 1, 1), ("memref.load", 5, 2),  # g; k in both loops
    ]  # fmt: skip
    assert rows_of(function, parallel, 0, serial_of(parallel)["t"], 32) == []  # b tells rows apart


@pytest.fixture
def interpreted() -> Any:
    EmulatedCall.interpreted = True
    yield
    EmulatedCall.interpreted = False


@pytest.mark.parametrize("text", [
    "stage(t, 8, 32)", "unroll((j, j_)); stage(t, 4, 32)", "stage(t, 2, 64); index_width(64)",
    "unroll((j)); stage(t, 16, 32); bind(i, x)", "stage(t, 8, 32); shared_arrays()",
    "stage(t, 1, 64); shared_arrays(); index_width(64)",
])  # fmt: skip
@pytest.mark.sampled(15)
@pytest.mark.parametrize("time", [0, 1, 7, 16, 37])
def test_bits_are_kept(time: int, text: str) -> None:
    plain = weft.kernel(schedule={"cuda": "index_width(32)"})(state.function)
    kernel = weft.kernel(schedule={"cuda": text})(state.function)
    for size, width in ((4, 33), (40, 5)):
        args = inputs(time, size, width)
        EmulatedCall.seen.clear()
        found = emulated(kernel)(*args)
        assert [only(s, Stage) for s in EmulatedCall.seen] == [only(parse(text), Stage)]
        assert torch.equal(found, emulated(plain)(*args))


@weft.kernel
def fading(x: torch.Tensor, rates: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """``x`` (T, N), ``rates`` (N, 4), ``rows`` (T, 4)."""
    T, N = x.shape
    out = torch.empty_like(x)
    for i in range(N):
        s = weft.zeros(4)
        for t in range(T):
            total = 0.0
            for j in range(4):
                s[j] = s[j] * rates[i, j] + x[t, i] * rows[t, j]
                total += s[j]
            out[t, i] = total
    return out


def test_what_no_turn_changes_is_loaded_before_the_loop() -> None:
    """Though threads wait for each other in it."""
    args = [torch.empty(shape, device="meta") for shape in ((9, 64), (64, 4), (9, 4))]
    text = "index_width(32); unroll((j)); stage(t, 2, 32); cover()"
    (loop,) = weft.compile_for(
        "sm_90", weft.kernel(schedule={"cuda": text})(fading.function), *args
    )
    # Of two turns each has a row of four numbers in shared memory; what threads load of the next
    # two: an element each of ``x``, of the rows one together. ``rates`` do not stand there.
    blocks = around_barrier(loop.codes[0].optimized())
    assert sum(block.count(" = load float") for block in blocks) == 2 * 4 + 2 + 1


def around_barrier(text: str) -> list[str]:
    """The basic blocks of the first loop with a barrier in it."""
    body = text[text.index("define ") :]
    blocks = dict(re.findall(r"^([\w.]+):[^\n]*\n(.*?\n)(?=\n|})", body, re.M | re.S))
    follow = {name: re.findall(r"label %([\w.]+)", block) for name, block in blocks.items()}

    def reached(name: str) -> set[str]:
        found, waiting = set[str](), [name]
        while waiting:
            new = set(follow[waiting.pop()]) - found
            found |= new
            waiting += new
        return found

    first = next(n for n, block in blocks.items() if "barrier" in block and n in reached(n))
    return [blocks[n] for n in reached(first) if first in reached(n)]


@pytest.mark.parametrize("text", [
    "stage(t, 2, 32)", "unroll((j, j_)); stage(t, 4, 64)", "stage(t, 2, 32); shared_arrays()",
])  # fmt: skip
@pytest.mark.parametrize("time", [1, 5, 11])
@pytest.mark.sampled(5)
def test_threads_wait_for_each_other(time: int, text: str, interpreted: None) -> None:
    kernel = weft.kernel(schedule={"cuda": text})(state.function)
    args = inputs(time, 3, 5)
    torch.testing.assert_close(emulated(kernel)(*args), state(*args))


def test_it_is_chosen_where_threads_have_arrays_and_rows_are_long() -> None:
    def taken(time: int, size: int, width: int) -> Stage | None:
        args = [arg.to("meta") if isinstance(arg, torch.Tensor) else arg
                for arg in inputs(time, size, width)]  # fmt: skip
        (row,) = state.schedules(*args, device="cuda").taken
        return only(parse(row.schedule), Stage)

    assert taken(9, 16, 64) == Stage("t", 16, 64)
    assert taken(9, 64, 200) == Stage("t", 4, 64)
    assert taken(9, 4, 64) is None  # a turn reads nine numbers
    assert taken(9, 16, 31) is None  # half of the threads would have nothing to do


@weft.kernel
def kept(k: torch.Tensor, v: torch.Tensor, every: torch.Tensor, K: weft.template()) -> None:  # type: ignore[valid-type]
    """A state of K numbers, which a thread stores in every other turn. ``k`` (B, T, K), ``v`` (B,
    T, N), ``every`` (T // 2 + 1, B, N, K)."""
    B, T, N = v.shape
    for b, i in weft.ndrange(B, N):
        s = weft.zeros(K)
        for t in range(T):
            if t % 2 == 0:
                for j in range(K):
                    every[t // 2, b, i, j] = s[j]
            for j in range(K):
                s[j] = 0.5 * s[j] + v[b, t, i] * k[b, t, j]


@pytest.mark.parametrize("rows", [0, 4, 16])
@pytest.mark.sampled(5)
def test_rows_are_stored_in_vectors(rows: int) -> None:
    """Where they begin at whole ones: ``rows`` bytes behind."""
    k, v = torch.randn(2, 5, 32), torch.randn(2, 5, 40)
    expected = torch.zeros(3, 2, 40, 32)
    kept(k, v, expected, 32)
    found = torch.zeros(expected.numel() + 4)[rows // 4 :][: expected.numel()].view(expected.shape)
    EmulatedCall.seen.clear()
    emulated(kept)(k, v, found, 32)
    (taken,) = EmulatedCall.seen
    assert only(taken, Stage) is not None
    aligned = [Align("every", 16)] if rows % 16 == 0 else []
    assert several(taken, Align) == aligned
    assert torch.equal(found, expected)
    again = weft.kernel(schedule={"cuda": show(taken)})(kept.function)
    found.zero_()
    emulated(again)(k, v, found, 32)
    assert torch.equal(found, expected)


@weft.kernel
def gathered(x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Each turn reads 16 numbers that neighbours read as well, and 8 of its own. ``x`` (T, 16),
    ``own`` (8, T, N)."""
    _, T, N = own.shape
    out = own.new_empty((N,))
    for i in range(N):
        s = weft.zeros(16)
        for t in range(T):
            total = 0.0
            for k in weft.static(range(8)):
                total += own[k, t, i] * s[k]
            for j in range(16):
                s[j] = 0.5 * s[j] + x[t, j] * total
        out[i] = s[0]
    return out


def test_registers_hold_what_is_loaded_ahead() -> None:
    args = torch.empty((9, 16), device="meta"), torch.empty((8, 9, 64), device="meta")
    (row,) = gathered.schedules(*args, device="cuda").taken
    assert only(parse(row.schedule), Stage) == Stage("t", 2, 64)  # 3 turns of 8.25 words in 32


# Bodies of a loop `for t in range(T)`, with a local array `s` and the parallel index `i`.
BODIES = {
    # Threads beyond the last iteration may find there what others have not stored yet.
    "where what the loop writes says": "s[0] += x[t, 0]; out[i, t] += s[int(out[i, t]) % 4]",
    "its own row": "for j in range(4):\n    s[j] += x[i, j + t]\nout[i, t] = s[0]",
    "a branch": "if x[i, t] > 0:\n    s[1] += x[t, 0]\nout[i, t] = s[1]",
    "a place that data picks": "s[1] += x[int(s[1]) % 3, 0]; out[i, t] = s[1]",
}
REFUSED = {
    "stage(t, 3, 64)": "turns are a power of two, 1 to 64, threads 32 to 1024",
    "stage(t, 8, 16)": "turns are a power of two, 1 to 64, threads 32 to 1024",
    "stage(j, 8, 64)": "no turn of `j` loads what neighbours along `i` load too",
    "stage(t, 8, 64); bind(b, x)": "no turn of `t` loads what neighbours along `b` load too",
    "stage(t, 8, 64); stage(j, 8, 32)": "blocks have one number of threads",
    "stage(t, 8, 64); unroll_jam(i, 2)": "beside stage(...) a block has whole groups of iterations",
    "stage(t, 8, 64); cooperate((j), 32)": "it does not go with `cooperate((j), 32)`",
    "shared_arrays()": "a block's threads are not known",
    "stage(t, 8, 64); unroll((j, j_)); shared_arrays()": "no local array that is in memory fits",
    "stage(t, 32, 128); shared_arrays()": "fits into the 17408 bytes of shared memory",
    "stage(u, 8, 64)": "there is no loop `u`",
    "stage(t, 64, 64)": "it takes 63488 bytes of shared memory, 49152 are there",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_loop_does_not_allow_is_said(text: str) -> None:
    kernel = weft.kernel(schedule={"cuda": text})(state.function)
    with pytest.raises(ScheduleError) as raised:
        emulated(kernel)(*inputs(3, 60, 5))
    assert REFUSED[text] in str(raised.value)


@pytest.mark.parametrize("name", BODIES)
def test_what_is_not_staged(name: str) -> None:
    lines = "\n".join(
        "            " + line for line in BODIES[name].replace("; ", "\n").splitlines()
    )
    kernel = weft.kernel(function_of(
        "def kernel(x: torch.Tensor, out: torch.Tensor):\n    for i in range(out.shape[0]):\n"
        f"        s = weft.zeros(4)\n        for t in range(out.shape[1]):\n{lines}\n"
    ))  # fmt: skip
    function, parallel = lowered(kernel, torch.rand(9, 9), torch.rand(3, 5))
    assert rows_of(function, parallel, 0, serial_of(parallel)["t"], 32) == []


@weft.kernel
def accumulated(x: torch.Tensor, v: torch.Tensor, out: torch.Tensor, own: torch.Tensor) -> None:
    """``out`` (T,) gets sums over i of what rows ``x`` (T, 16) and ``v`` (T, N) say; ``own`` (T, N)
    is read where it was written."""
    T, N = v.shape
    for i in range(N):
        s = 0.0
        for t in range(T):
            total = 0.0
            for j in range(16):
                total += x[t, j]
            s = 0.5 * s + total * v[t, i] + own[t, i]
            own[t, i] = s
            out[t] += s


@pytest.mark.parametrize("width", [5, 32, 40])
def test_threads_beyond_the_last_iteration_add_nothing(width: int) -> None:
    kernel = weft.kernel(schedule={"cuda": "stage(t, 4, 32)"})(accumulated.function)
    x, v, own = torch.rand(9, 16), torch.rand(9, width), torch.rand(9, width)
    found, expected = ((torch.ones(9), own.clone()) for _ in range(2))
    emulated(kernel)(x, v, *found)
    accumulated(x, v, *expected)
    torch.testing.assert_close(found, expected)


@weft.kernel
def checked(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        s = 0.0
        for t in range(x.shape[0]):
            assert x[t] > 0
            s += x[t] * out.shape[0]
        out[i] = s


def test_checks_are_named() -> None:
    kernel = weft.kernel(schedule={"cuda": "stage(t, 8, 64)"})(checked.function)
    with pytest.raises(ScheduleError) as raised:
        emulated(kernel)(torch.rand(4), torch.rand(3))
    assert "threads beyond the last iteration along `i` would do what is to be done once" in str(
        raised.value
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.slow
def test_random_kernels(seed: int) -> None:
    random = Random(seed)

    def call(
        kernel: weft.Kernel, options: dict[str, bool], tensors: list[torch.Tensor], *rest: Any
    ) -> Any:
        made = weft.kernel(strict_math=options["strict_math"])(kernel.function)
        (function,) = loops_of(made, tensors, *rest)
        parallel = apply_cuda.outermost(function)
        assert parallel is not None
        inner = ", ".join(name for name in serial_of(parallel) if name[0] == "j")
        text = f"stage(t, {random.choice((2, 4, 16))}, {random.choice((32, 64))})"
        text += f"; unroll(({inner}))" if random.random() < 0.5 and inner else ""
        text += "; shared_arrays()" if random.random() < 0.5 else ""
        try:
            cuda.analyse(function, text)
            made.schedule("cuda", text)
        except ScheduleError:
            pass
        EmulatedCall.interpreted = random.random() < 0.25
        try:
            return emulated(made)(*tensors, *rest)
        finally:
            EmulatedCall.interpreted = False

    fuzz.check(Random(9000 + seed), call, staged.kernel)


def test_its_text_is_read_back() -> None:
    assert show(parse("stage(t, 16, 64)")) == "stage(t, 16, 64)"


def test_threads_with_small_arrays_have_128_registers() -> None:
    """ptxas would take fewer, and load what is used again; large arrays need more."""
    for size, blocks in ((16, ".minnctapersm 8"), (64, "")):
        args = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in inputs(512, size, 96)]
        text = weft.compile_for("sm_90", state, *args).ptx
        text = text if isinstance(text, str) else "".join(text)
        assert ".maxntid 64" in text
        assert (".minnctapersm" in text) == bool(blocks)
        assert blocks in text
