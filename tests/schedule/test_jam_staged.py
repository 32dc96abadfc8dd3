"""Several iterations of a thread beside staged rows: the same bits; what is refused, and chosen."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

import weft
from benchmarks import recurrences
from tests.cuda.emulator import EmulatedCall, emulated
from tests.fuzz import check as fuzz
from tests.fuzz import staged
from tests.fuzz.schedules import loops_of
from tests.schedule.test_stage import inputs, kept, state
from weft.codegen import cuda
from weft.errors import ScheduleError
from weft.ir.core import walk
from weft.ir.parse import parse_function
from weft.schedule.apply_cuda import outermost
from weft.schedule.jam_staged import by_lane
from weft.schedule.language import Stage, UnrollJam, only, parse, show
from weft.schedule.machine import GpuMachine
from weft.schedule.nest import loops_of as serial_of

COUNT = int(os.environ.get("WEFT_FUZZ_JAM_STAGED", "6"))
SIDE_BY_SIDE = "unroll_jam(i, 2, stride=32, overlap=32, whole=True)"
NEIGHBOURS = "unroll_jam(i, 2, overlap=32, whole=True)"


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("text", [
    f"unroll((j, j_)); {SIDE_BY_SIDE}; stage(t, 4, 32)", f"{NEIGHBOURS}; stage(t, 2, 32)",
    f"unroll((j)); {NEIGHBOURS}; stage(t, 8, 32); index_width(64)",
])  # fmt: skip
@pytest.mark.parametrize("time", [0, 1, 7, 18])
@pytest.mark.sampled(8)
def test_bits_are_kept(time: int, text: str, interpreted: bool) -> None:
    plain = weft.kernel(schedule={"cuda": "index_width(32)"})(state.function)
    kernel = weft.kernel(schedule={"cuda": text})(state.function)
    args = inputs(time, 6, 64 if interpreted else 128)
    EmulatedCall.interpreted = interpreted
    EmulatedCall.seen.clear()
    try:
        found = emulated(kernel)(*args)
    finally:
        EmulatedCall.interpreted = False
    assert [only(s, UnrollJam) for s in EmulatedCall.seen] == [only(parse(text), UnrollJam)]
    torch.testing.assert_close(found, emulated(plain)(*args), rtol=1e-5, atol=1e-5)


def test_calls_whose_iterations_groups_do_not_divide_take_another_form() -> None:
    kernel = weft.kernel(schedule={"cuda": f"{SIDE_BY_SIDE}; stage(t, 4, 32)"})(state.function)
    EmulatedCall.seen.clear()
    args = inputs(5, 6, 70)
    torch.testing.assert_close(emulated(kernel)(*args), state(*args))
    assert [only(s, UnrollJam) for s in EmulatedCall.seen] == [None]


def test_rows_are_stored_in_vectors() -> None:
    """Those of one iteration after the other, where stores of both would alternate."""
    text = f"index_width(32); unroll((j, j_)); {SIDE_BY_SIDE}; stage(t, 2, 32); align(every, 16)"
    kernel = weft.kernel(schedule={"cuda": text})(kept.function)
    k, v = torch.randn(2, 5, 16), torch.randn(2, 5, 64)
    found, expected = torch.zeros(2, 3, 2, 64, 16)
    emulated(kernel)(k, v, found, 16)
    kept(k, v, expected, 16)
    torch.testing.assert_close(found, expected)
    given = [a.to("meta") for a in (k, v, found)]
    ptx = weft.compile_for("sm_90", kernel, *given, 16).ptx
    assert "st.global.v4" in ptx
    assert "st.global.b32" not in ptx


STORES = """
func.func @f(%x: memref<?xf32>, %y: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %0 = memref.load %x[%c0] : memref<?xf32>
    memref.store %0, %y[%i] {lane = 0} : memref<?xf32>
    %1 = memref.load %x[%c1] : memref<?xf32>
    memref.store %0, %y[%n] {lane = 1} : memref<?xf32>
    memref.store %1, %y[%c0] {lane = 0} : memref<?xf32>
    %2 = memref.load %y[%c1] : memref<?xf32>
    memref.store %2, %y[%c1] {lane = 1} : memref<?xf32>
    scf.reduce
  }
  func.return
}
"""


def test_stores_pass_what_does_not_read_them() -> None:
    parallel = outermost(function := parse_function(STORES))
    parallel = parallel or next(op for op in function.body.ops if op.name == "scf.parallel")
    by_lane(parallel)
    places = [op.operands[2].name for op in parallel.body.ops if op.name == "memref.store"]
    assert places == ["i", "c0", "n", "c1"]
    names = [op.name for op in parallel.body.ops]
    assert names == ["memref.load"] * 2 + ["memref.store"] * 3 + [
        "memref.load", "memref.store", "scf.reduce"
    ]  # fmt: skip
    assert not any("lane" in op.attrs for op in walk(parallel.body))


HOW = "unroll_jam(i, 2, stride=32, overlap=32, whole=True)"
REFUSED = {
    "unroll_jam(i, 2); stage(t, 4, 32)": HOW,
    "unroll_jam(i, 2, overlap=64, whole=True); stage(t, 4, 32)": HOW,
    "unroll_jam(b, 2, overlap=32, whole=True); stage(t, 4, 32)": HOW,
    f"{HOW}; stage(t, 4, 32); shared_arrays()": "it does not go with `shared_arrays()`",
    f"unroll((j)); {HOW}": "it does not go with `unroll_jam",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_loop_does_not_allow_is_said(text: str) -> None:
    kernel = weft.kernel(schedule={"cuda": text})(state.function)
    with pytest.raises(ScheduleError) as raised:
        emulated(kernel)(*inputs(3, 6, 64))
    assert REFUSED[text] in str(raised.value) + str(raised.value.__dict__)


@weft.kernel
def uneven(x: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        s = 0.0
        for t in range(x.shape[0]):
            for j in range(i):
                s += x[t, j]
        out[i] = s


def test_loops_of_other_lengths_are_refused() -> None:
    kernel = weft.kernel(schedule={"cuda": f"{HOW}; stage(t, 4, 32)"})(uneven.function)
    with pytest.raises(ScheduleError) as raised:
        emulated(kernel)(torch.rand(3, 64), torch.rand(64))
    assert "iterations have other turns than their neighbours" in str(raised.value)


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def taken(kernel: weft.Kernel, *args: Any) -> tuple[UnrollJam | None, Stage | None]:
    machine = GpuMachine(132, 50 << 20)
    (row,) = kernel.schedules(*args, device="cuda", machine=machine).taken
    return only(parse(row.schedule), UnrollJam), only(parse(row.schedule), Stage)


def test_it_is_chosen_where_blocks_keep_processors_busy() -> None:
    jam = only(parse(SIDE_BY_SIDE), UnrollJam)
    many, few = ([empty(b, 9, 64, 64)] * 6 for b in (8, 1))
    assert taken(recurrences.rwkv7, *many, 64) == (jam, Stage("t", 2, 32))
    assert taken(recurrences.rwkv7, *few, 64) == (None, Stage("t", 4, 64))
    args = empty(400, 9, 64), empty(400, 9, 64), empty(400, 9, 96), empty(400, 9)
    assert taken(state, *args, 64)[0] is None  # groups of 64 do not divide 96


@weft.kernel
def replaced(x: torch.Tensor, v: torch.Tensor, K: weft.template()) -> torch.Tensor:  # type: ignore[valid-type]
    """As an adjoint does: adds up what it replaces then. ``x`` (T, K), ``v`` (T, N)."""
    T, N = v.shape
    out = v.new_empty((400, T, N))
    for b, i in weft.ndrange(400, N):
        s = weft.zeros(K)
        for t in range(T):
            total = 0.0
            for j in range(K):
                s[j] += v[t, i] * x[t, j]
                total += s[j] * x[t, j]
                s[j] *= 0.5
            out[b, t, i] = total
    return out


def test_sums_of_what_a_turn_replaces_are_not_jammed() -> None:
    """Registers do not hold what these are made of."""
    assert taken(replaced, empty(9, 64), empty(9, 64), 64) == (None, Stage("t", 8, 64))


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_kernels(seed: int) -> None:
    random = Random(seed)

    def call(
        kernel: weft.Kernel, options: dict[str, bool], tensors: list[torch.Tensor], *rest: Any
    ) -> Any:
        made = weft.kernel(strict_math=options["strict_math"])(kernel.function)
        (function,) = loops_of(made, tensors, *rest)
        parallel = outermost(function)
        assert parallel is not None
        inner = ", ".join(name for name in serial_of(parallel) if name[0] == "j")
        far = random.choice(("", "stride=32, "))
        text = (
            f"unroll_jam(i, 2, {far}overlap=32, whole=True); stage(t, {random.choice((2, 4))}, 32)"
        )
        text += f"; unroll(({inner}))" if random.random() < 0.5 and inner else ""
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

    def draw(random: Random) -> Any:
        return replace(staged.kernel(random), sizes=(64, 64, 64), largest=64)

    fuzz.check(Random(9500 + seed), call, draw)


def test_its_text_is_read_back() -> None:
    assert show(parse(SIDE_BY_SIDE)) == SIDE_BY_SIDE
