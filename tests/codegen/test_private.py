"""Private copies on a CPU: the same sums, whatever way a call accumulates by, and legality."""

from __future__ import annotations

import copy
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from compiled import Compiled

import weft
from weft.codegen.machine import host_cpu
from weft.ir.builder import Builder
from weft.ir.core import Function
from weft.ir.interp import run
from weft.ir.types import MemRefType, ScalarType, f32, f64, i16, i32, i64, index
from weft.runtime import build, cpu
from weft.runtime.link import jump
from weft.schedule.copies import COST
from weft.schedule.default_cpu import candidates
from weft.schedule.language import Privatize, ScheduleError, Vectorize, show
from weft.schedule.legal_cpu import check

KINDS = {
    "addi": i32, "muli": i64, "maxsi": i16, "minsi": i32, "minui": i32, "ori": i64, "xori": i32,
    "andi": i16, "addf": f64, "mulf": f32, "maximumf": f32, "minimumf": f64,
}  # fmt: skip
NUMPY = {i16: np.int16, i32: np.int32, i64: np.int64, f32: np.float32, f64: np.float64}


def scatter(kind: str, element: ScalarType, rank: int = 1) -> Function:
    """``bins[at[i], ...] = combined with values[i]``, and a second array of counts."""
    types = [MemRefType(element, rank), MemRefType(i32, 1), MemRefType(i64, 1),
             MemRefType(element, 1)]  # fmt: skip
    function = Function("scatter", types, ["bins", "counts", "at", "values"], {"noalias": True})
    b = Builder(function.body)
    bins, counts, at, values = function.args
    zero, one = b.constant(0, index), b.constant(1, index)
    loop = b.parallel([zero], [b.op("memref.dim", at, axis=0)], [one])
    with b.at(loop.body) as block:
        (i,) = block.args
        place = b.op("arith.index_cast", b.load(at, [i]), type=index)
        b.atomic_rmw(kind, b.load(values, [i]), bins, [place] * rank)
        b.atomic_rmw("addi", b.constant(1, i32), counts, [place])
        b.do("scf.reduce")
    b.do("func.return")
    return function


def arguments(element: ScalarType, count: int, bins: int, rank: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(count + bins)
    kind = NUMPY[element]
    values = rng.integers(-3, 3, count).astype(kind)
    start = rng.integers(-9, 9, (bins,) * rank).astype(kind)
    return [start, np.zeros(bins, np.int32), rng.integers(0, bins, count), values]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 400, 60_000])  # one chunk; copies
@pytest.mark.sampled(3)
def test_copies_make_what_atomic_operations_make(kind: str, count: int) -> None:
    """Numbers are small integers, also as floats: no order of sums has another result."""
    element, rank = KINDS[kind], 1 + count % 2
    function = scatter(kind, element, rank)
    (own,) = candidates(function, host_cpu())
    assert show(own) == "privatize(bins); privatize(counts)"
    results = []
    for schedule in (own, ()):
        args = arguments(element, count, 7, rank)
        Compiled(function, schedule=schedule, noalias=True)(*args)
        results.append(args)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    if count <= 400:
        args = arguments(element, count, 7, rank)
        run(copy.deepcopy(function), args)
        np.testing.assert_array_equal(args[0], results[0][0])


@weft.kernel
def totals(x, s):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            s[j] += x[i, j]


@pytest.mark.parametrize("shape", [(5000, 40), (1, 300_000), (300_000, 1), (40, 60_000), (0, 9)])
def test_bits_do_not_depend_on_threads_where_there_are_copies(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (2, 1, 2):
            torch.set_num_threads(threads)
            s = torch.ones(shape[1])
            totals(x, s)
            results.append(s)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(results[0].double(), x.double().sum(0) + 1, rtol=1e-5, atol=1e-3)
    if shape[0] >= 300:  # else the copies are too large for the work: atomic operations
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


def test_what_nobody_adds_to_keeps_its_bits() -> None:
    bins = torch.tensor([-0.0, 1.0, -0.0])
    index = torch.ones(100_000, dtype=torch.int64)

    @weft.kernel
    def count(index, bins):
        for i in range(index.shape[0]):
            bins[index[i]] += 0.5

    count(index, bins)
    assert bins.tolist() == [0.0, 50_001.0, 0.0]
    assert torch.signbit(bins).tolist() == [True, False, True]


def test_a_failed_assertion_leaves_the_array_and_no_copies_are_added() -> None:
    @weft.kernel
    def checked(x, s):
        for i in range(x.shape[0]):
            assert x[i] >= 0, "negative"
            s[i % 3] += 1.0

    x = torch.ones(200_000)
    x[150_000] = -1
    with pytest.raises(AssertionError, match="negative"):
        checked(x, torch.zeros(3))
    s = torch.zeros(3)
    checked(x.abs(), s)
    assert s.sum() == 200_000


def test_who_shares_memory_goes_without_copies() -> None:
    memory = torch.arange(20_000.0)
    expected = memory.clone()
    for i in range(20_000):
        expected[i // 10_000] += expected[i]

    @weft.kernel
    def into_itself(x, s):
        for _ in range(1):
            for i in range(x.shape[0]):
                s[i // 10_000] += x[i]

    into_itself(memory, memory[:2])
    torch.testing.assert_close(memory, expected)


def refusal(function: Function, *steps: Privatize | Vectorize) -> str:
    with pytest.raises(ScheduleError) as error:
        check(function, steps, host_cpu())
    return error.value.message


@pytest.fixture
def rare(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The addresses of loops with atomic operations that kernels have asked for."""
    found: list[int] = []
    find = cpu.Later._found

    def asked(self: cpu.Later) -> int:
        found.append(find(self))
        return found[-1]

    monkeypatch.setattr(cpu.Later, "_found", asked)
    monkeypatch.setenv("WEFT_CACHE", "0")
    return found


def counted(kernel: Any, bins: int, threads: int) -> None:
    at = torch.arange(200_000) % bins
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = kernel(at, torch.zeros(bins))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, torch.bincount(at, minlength=bins).float())


def test_atomic_operations_are_compiled_for_the_first_call_that_takes_them(rare: list[int]) -> None:
    @weft.kernel
    def count(at, bins):
        for i in range(at.shape[0]):
            bins[at[i]] += 1.0
        return bins

    counted(count, 3, 2)  # in copies
    counted(count, 100_000, 1)  # by one thread
    assert not rare
    for _ in range(3):
        counted(count, 100_000, 2)
    assert len(rare) == 1 or (jump(0) is None and len({*rare}) == 1)
    text = count.inspect(torch.arange(4), torch.zeros(4))["llvm"]
    assert "atomicrmw" not in text
    assert "@weft_rare" in text


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_that_they_cannot_be_compiled_is_no_wrong_number(
    error: type[BaseException], rare: list[int], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    @weft.kernel
    def count(at, bins):
        for i in range(at.shape[0]):
            bins[at[i]] += 1.0
        return bins

    counted(count, 100_000, 1)
    whole = build.Compiled.rare_address

    def fails(_: build.Compiled) -> int:
        raise error

    start = threading.Thread.start

    def slowly(thread: threading.Thread) -> None:  # as on a busy machine
        start(thread)
        if thread.daemon:
            time.sleep(0.2)

    monkeypatch.setattr(threading.Thread, "start", slowly)

    def interrupted() -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:  # a shell without job control has tests in the background take no notice of it
            counted(count, 100_000, 2)
            time.sleep(5)  # it comes a moment later
        finally:
            signal.signal(signal.SIGINT, before)

    monkeypatch.setattr(build.Compiled, "rare_address", fails)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    else:
        counted(count, 100_000, 2)
        assert "MemoryError" in caplog.text
    assert not any(rare)
    monkeypatch.setattr(build.Compiled, "rare_address", whole)
    counted(count, 100_000, 2)
    assert any(rare)


def test_legality() -> None:
    function = scatter("addf", f32)
    own = Privatize("bins")
    check(function, (own,), host_cpu())
    strict = scatter("addf", f32)
    strict.attrs["strict_math"] = True
    assert candidates(strict, host_cpu()) == [(Privatize("counts"),)]
    assert refusal(strict, own) == "`privatize(bins)`: strict_math keeps the order of sums"
    assert refusal(function, own, own) == ("`privatize(bins)`: `privatize(bins)` says that already")
    assert refusal(function, Privatize("values")) == (
        "`privatize(values)`: an iteration asks what is in `values`, or stores into it"
    )
    assert refusal(function, Privatize("other")) == (
        "`privatize(other)`: there is no array `other`"
    )
    function.attrs["noalias"] = False
    assert candidates(function, host_cpu()) == [()]
    assert refusal(function, own) == (
        "`privatize(bins)`: the loop's arguments may overlap in memory"
    )


def test_a_number_that_is_accumulated_has_no_copies() -> None:
    @weft.kernel
    def add(x, at, a: float):
        for i in range(at.shape[0]):
            x[at[i]] += a

    x = torch.zeros(4, dtype=torch.float64)  # of the type of `a`, which nothing else uses
    add(x, torch.tensor([1, 1, 3]), 0.5)
    assert x.tolist() == [0.0, 1.0, 0.0, 0.5]


@pytest.mark.parametrize("rows", [True, False])
def test_a_copy_of_rows_has_to_be_worth_more(rows: bool) -> None:
    """Lanes accumulate rows about as fast as they clear copies and add these."""

    @weft.kernel
    def spread(x, at, out):
        for i, j in x:
            if weft.static(rows):
                out[at[i], j] += x[i, j]
            else:
                out[j, at[i]] += x[i, j]

    x, at = torch.randint(0, 9, (3000, 32)), torch.randint(0, 32, (3000,))
    mine, wanted = (torch.zeros(32, 32, dtype=torch.int64) for _ in range(2))
    spread(x, at, mine)
    assert torch.equal(mine if rows else mine.T, wanted.index_add_(0, at, x))
    scheduled = spread.inspect(x, at, mine)["scheduled ir"]
    assert (f"constant {float(COST)} : f64" in scheduled) != rows
