"""Elements that turns of a serial loop read again stay in registers: the same numbers, bit by bit,
whole vectors where addresses allow, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from examples.causal_conv import causal_conv
from tests.cuda.emulator import EmulatedCall, emulated
from tests.fuzz.check import function as function_of
from tests.fuzz.schedules import loops_of
from weft.errors import ScheduleError
from weft.ir import interp
from weft.ir.core import Function, Op, walk
from weft.ir.parse import parse_function
from weft.schedule.language import Align, RegisterWindow, UnrollJam, only, parse, several, show
from weft.schedule.machine import GpuMachine
from weft.schedule.register_window import marked, register_window, windows

SMOOTH = """
func.func @smooth(%x: memref<?x?xf32>, %y: memref<?xf32>, %out: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %m = "weft.dim"(%out) {axis = 0} : (memref<?xf32>) -> index
  scf.parallel (%i) = (%c0) to (%m) step (%c1) {
    %end = scf.for %t = %c2 to %n step %c1 iter_args(%s = %zero) -> (f32) {
      %0 = arith.addi %t, %c1 : index
      %1 = arith.subi %t, %c2 : index
      %2 = arith.subi %n, %t : index
      %3 = memref.load %x[%i, %t] : memref<?x?xf32>
      %4 = memref.load %x[%i, %0] : memref<?x?xf32>
      %5 = memref.load %x[%i, %1] : memref<?x?xf32>
      %6 = memref.load %y[%2] : memref<?xf32>
      %7 = arith.mulf %3, %4 : f32
      %8 = arith.mulf %5, %6 : f32
      %9 = arith.subf %s, %7 : f32
      %10 = arith.mulf %9, %8 : f32
      scf.yield %10 : f32
    }
    memref.store %end, %out[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}
"""


def outer(function: Function) -> Op:
    return next(op for op in function.body.ops if op.name == "scf.parallel")


def serial(function: Function) -> Op:
    return next(op for op in walk(outer(function).body) if op.name == "scf.for")


def windowed(turns: int) -> Function:
    function = parse_function(SMOOTH)
    function.attrs["noalias"] = True
    function = marked(function, {serial(function): RegisterWindow("t", turns)})
    made, parallel = register_window(function, outer(function), {})
    assert parallel is outer(made)
    return made


def test_what_the_next_turns_read_again_is_carried() -> None:
    made = windowed(4)
    main, rest = (op for op in outer(made).body.ops if op.name == "scf.for")
    # The sum, and of x[t - 2] to x[t + 1] the three that another turn reads.
    assert len(main.results) == 1 + 3
    assert sum(op.name == "memref.load" for op in main.body.ops) == 4 + 4
    assert sum(op.name == "memref.load" for op in rest.body.ops) == 4
    assert rest.attrs["rare"]


@pytest.mark.parametrize("turns", [2, 3, 4, 8])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 8, 9, 17, 127])
def test_bits_are_kept(n: int, turns: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((3, n + 1), dtype=np.float32)
    y = rng.standard_normal(n + 1, dtype=np.float32)
    expected, found = (np.full(3, np.nan, np.float32) for _ in range(2))
    interp.run(parse_function(SMOOTH), [x, y, expected, n])
    interp.run(windowed(turns), [x, y, found, n])  # which checks every subscript
    np.testing.assert_array_equal(found, expected)


# What stands in the loop, and how many elements of each row a turn reads.
BODIES: dict[str, tuple[str, list[int]]] = {
    "three neighbours": ("s += x[i, t] * x[i, t + 1] - x[i, t + 2]", [3]),
    "two rows": ("s += x[i, t] * x[i - 1, t]", [1, 1]),
    "backwards": ("s += x[i, n - t] * x[i, n + 1 - t] + x[i, t]", [2, 1]),
    "far apart": ("s += x[i, t] + x[i, t + 9]", [1, 1]),
    "a column": ("s += x[t, i]", []),
    "every second": ("s += x[i, 2 * t]", []),
    "a place that data picks": ("s += x[i, int(m[t])]", [1]),
    "a place that is carried": ("k = int(s) % 3; s += x[i, k] + 1", []),
    "a branch": ("if t % 2 == 0:\n    s += x[i, t]\n", []),
    "what is written": ("s += out[i, t] + x[i, t]; out[i, t] = s", [1]),
}


def made(body: str) -> weft.Kernel:
    """A kernel of whose serial loop ``body`` is the body."""
    lines = "\n".join("            " + line for line in body.replace("; ", "\n").splitlines())
    return weft.kernel(function_of(
        "def kernel(x: torch.Tensor, m: torch.Tensor, out: torch.Tensor, n: int):\n"
        "    for i in range(1, out.shape[0]):\n        s = 0.25\n        for t in range(n):\n"
        f"{lines}\n        out[i, n + 1] = s\n"
    ))  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.sampled(3)
def test_what_stays_in_registers(name: str) -> None:
    body, loads = BODIES[name]
    plain = made(body)
    x, m, out = torch.rand(40, 40), torch.rand(20) * 17, torch.rand(3, 20)
    (function,) = loops_of(plain, [x, m, out], 17)
    function.attrs["noalias"] = True
    found = windows(function, serial(function), {})
    assert sorted(len(row.loads) for row in found) == sorted(loads)
    kernel = weft.kernel(schedule={"cuda": "register_window(t, 4)"})(plain.function)
    if not loads:
        with pytest.raises(ScheduleError, match="`t` loads no row element by element"):
            emulated(kernel)(x, m, out, 17)
        return
    for n in (0, 1, 4, 9, 17):
        expected, got = out.clone(), out.clone()
        plain(x, m, expected, n)
        EmulatedCall.seen.clear()
        emulated(kernel)(x, m, got, n)
        assert [only(s, RegisterWindow) for s in EmulatedCall.seen] == [RegisterWindow("t", 4)]
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


TILE = "unroll_jam(b, 2); unroll_jam(t, 4); register_window(u, 4)"


# The arrays of which whole vectors are accessed where all lengths are multiples: of w, the first
# element of a thread is such a multiple where the thread has neighbours.
TILES = {
    TILE: ["out", "w", "k"],
    f"{TILE}; index_width(64)": ["out", "w", "k"],
    "unroll_jam(t, 8); register_window(u, 8)": ["out", "w", "k"],
    "unroll_jam(t, 3, stride=2); register_window(u, 4)": ["k"],
    "register_window(u, 3)": [],
    # A last tile that overlaps begins anywhere in w.
    "unroll_jam(b, 2, overlap=2); unroll_jam(t, 4, overlap=1); register_window(u, 4)": ["k"],
}


@pytest.mark.sampled(15)
@pytest.mark.parametrize("length", [7, 12, 33, 40])
@pytest.mark.parametrize("text", TILES)
def test_a_tile_of_neighbours_keeps_its_bits(text: str, length: int) -> None:
    w, k = torch.randn(3, length), torch.randn(5, 3, length)
    plain = weft.kernel(schedule={"cuda": "index_width(32)"})(causal_conv.function)
    kernel = weft.kernel(schedule={"cuda": text})(causal_conv.function)
    EmulatedCall.seen.clear()
    found = emulated(kernel)(w, k, 0.1)
    (taken,) = EmulatedCall.seen
    assert torch.equal(found, emulated(plain)(w, k, 0.1))
    arrays = TILES[text] if length % 4 == 0 else []
    assert several(taken, Align) == [Align(name, 16) for name in arrays]


def test_arrays_that_begin_elsewhere_are_not_loaded_in_vectors() -> None:
    w, k = torch.randn(3, 16), torch.randn(2 * 3 * 16 + 1)[1:].view(2, 3, 16)
    kernel = weft.kernel(schedule={"cuda": TILE})(causal_conv.function)
    EmulatedCall.seen.clear()
    found = emulated(kernel)(w, k, 0.1)
    assert several(EmulatedCall.seen[-1], Align) == []
    torch.testing.assert_close(found, causal_conv(w, k, 0.1))


def test_elements_that_lie_apart() -> None:
    w, k = torch.randn(3, 34)[:, ::2], torch.randn(17, 3, 2).permute(2, 1, 0)
    kernel = weft.kernel(schedule={"cuda": TILE})(causal_conv.function)
    torch.testing.assert_close(emulated(kernel)(w, k, 0.1), causal_conv(w, k, 0.1))


REFUSED = {
    "register_window(u, 1)": "2 to 32 turns become one",
    "register_window(v, 4)": "there is no loop `v`",
    "register_window(u, 4); register_window(u, 8)": "`register_window(u, 4)` says that already",
    "register_window(u, 4); cooperate((u), 32)": "it does not go with `cooperate((u), 32)`",
    "register_window(u, 4); prefetch(u, 4)": "`u` is loaded ahead or written out",
    "unroll_jam(b, 8); unroll_jam(t, 8); register_window(u, 32)":
        "32 turns of 64 iterations are too many operations",
    "align(out, 16); register_window(u, 4)":
        "no window loads or stores `out` in whole vectors of 16 bytes",
}  # fmt: skip


def refused(text: str, batch: int, length: int) -> str:
    """Why ``causal_conv`` of such a size, of two channels, is not carried out as ``text`` says."""
    kernel = weft.kernel(schedule={"cuda": text})(causal_conv.function)
    with pytest.raises(ScheduleError) as raised:
        emulated(kernel)(torch.rand(2, length), torch.rand(batch, 2, length), 0.5)
    return str(raised.value)


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_loop_does_not_allow_is_said(text: str) -> None:
    assert REFUSED[text] in refused(text, 1, 9)


def test_its_text_is_read_back() -> None:
    assert show(parse("register_window(t, 8)")) == "register_window(t, 8)"


def test_weft_takes_tiles_of_neighbours_of_which_the_last_may_overlap() -> None:
    def taken(batch: int, length: int) -> RegisterWindow | None:
        w, k = (torch.empty(s, device="meta") for s in ((256, length), (batch, 256, length)))
        machine = GpuMachine(16, 50 << 20)
        (row,) = causal_conv.schedules(w, k, 0.1, device="cuda", machine=machine).taken
        jams = several(parse(row.schedule), UnrollJam)
        assert all(jam.whole or not jam.overlap for jam in jams) == (length % 8 == 0)
        return only(parse(row.schedule), RegisterWindow)

    assert taken(32, 768) == RegisterWindow("u", 8, 256)  # eight by eight, in tiles of 32 by 256
    assert taken(32, 640) == taken(32, 767) == RegisterWindow("u", 4, 64)  # of 32 by 128
    assert taken(36, 768) == taken(9, 1001) == RegisterWindow("u", 16, 256)  # sixteen
    assert taken(32, 24) is None  # few turns
