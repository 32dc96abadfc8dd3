"""Loads of a serial loop before their turns: the same numbers, bit by bit, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from examples import wkv
from tests.cuda.emulator import EmulatedCall, emulated
from tests.fuzz.check import function as function_of
from tests.fuzz.schedules import loops_of
from weft.errors import ScheduleError
from weft.ir import interp
from weft.ir.core import Function, Op, walk
from weft.ir.parse import parse_function
from weft.ir.text import print_function
from weft.ir.verify import verify
from weft.pytorch import workspaces
from weft.schedule.language import Prefetch, only, parse, several, show
from weft.schedule.machine import GpuMachine
from weft.schedule.prefetch import ahead, serial_steps

DECAY = """
func.func @decay(%x: memref<?x?xf32>, %out: memref<?x?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %half = arith.constant 0.5 : f32
  %m = "weft.dim"(%out) {axis = 0} : (memref<?x?xf32>) -> index
  scf.parallel (%i) = (%c0) to (%m) step (%c1) {
    %end = scf.for %t = %c1 to %n step %c1 iter_args(%s = %zero) -> (f32) {
      %0 = memref.load %x[%i, %t] : memref<?x?xf32>
      %1 = arith.mulf %s, %half : f32
      %2 = arith.addf %1, %0 : f32
      %3 = memref.load %out[%i, %t] : memref<?x?xf32>
      %4 = arith.addf %2, %3 : f32
      memref.store %4, %out[%i, %t] : memref<?x?xf32>
      scf.yield %2 : f32
    }
    memref.store %end, %out[%i, %c0] : memref<?x?xf32>
    scf.reduce
  }
  func.return
}
"""


def outer(function: Function) -> Op:
    return next(op for op in function.body.ops if op.name == "scf.parallel")


def pipelined(text: str, steps: int) -> Function:
    function = parse_function(text)
    function.attrs["noalias"] = True
    made, parallel = serial_steps(function, outer(function), (), [Prefetch("t", steps)])
    verify(made)
    assert parallel is outer(made)
    return made


def test_the_loop_carries_what_the_next_turns_load() -> None:
    function = pipelined(DECAY, 4)
    main, rest = (op for op in outer(function).body.ops if op.name == "scf.for")
    assert len(main.results) == 1 + 4 * 2
    assert sum(op.name == "memref.store" for op in main.body.ops) == 4
    assert not any(op.name == "memref.load" for op in main.body.ops)  # they stand in a branch
    assert sum(op.name == "memref.load" for op in walk(main.body)) == 4 * 2
    assert sum(op.name == "memref.load" for op in rest.body.ops) == 2
    assert rest.attrs["rare"]
    assert "(f32, f32, f32, f32, f32, f32, f32, f32, f32)" in print_function(function)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 8, 9, 17, 127])
def test_bits_are_kept(n: int, steps: int) -> None:
    rng = np.random.default_rng(n)
    width = max(n, 1)
    x, out = rng.standard_normal((2, 3, width), dtype=np.float32)
    expected, found = out.copy(), out.copy()
    interp.run(parse_function(DECAY), [x, expected, n])
    interp.run(pipelined(DECAY, steps), [x, found, n])
    np.testing.assert_array_equal(found, expected)


# What stands in the loop, and how many of its loads may be done ahead.
BODIES = {
    "its own element": ("out[i, t] = out[i, t] + s * x[i, t]", 2),
    "an element of the turn before": ("out[i, t + 1] = out[i, t] + x[i, t]", 1),
    "after the store": ("out[i, t] = x[i, t]; s += out[i, t + 1]", 1),
    "the same element in each turn": ("out[i, 0] += x[i, t]", 1),
    "a branch": ("if t % 2 == 0:\n    s += x[i, t]\n", 0),
    "a place that data picks": ("s += x[i, int(m[t])]", 1),
    "a place that is carried": ("k = int(s) % 3; s += x[i, k] + 1", 0),
    "a backward walk": ("out[i, n - 1 - t] = 2 * out[i, n - 1 - t] + s", 1),
}


def made(body: str) -> weft.Kernel:
    """A kernel of whose serial loop ``body`` is the body."""
    lines = "\n".join("            " + line for line in body.replace("; ", "\n").splitlines())
    return weft.kernel(function_of(
        "def kernel(x: torch.Tensor, m: torch.Tensor, out: torch.Tensor, n: int):\n"
        "    for i in range(x.shape[0]):\n        s = 0.25\n        for t in range(n):\n"
        f"{lines}\n        out[i, n + 1] = s\n"
    ))  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.sampled(3)
def test_what_may_be_loaded_ahead(name: str) -> None:
    body, loads = BODIES[name]
    plain = made(body)
    x, m, out = torch.rand(3, 20), torch.rand(20) * 17, torch.rand(3, 20)
    (function,) = loops_of(plain, [x, m, out], 17)
    function.attrs["noalias"] = True
    loop = next(op for op in walk(outer(function).body) if op.name == "scf.for")
    assert len(ahead(function, loop)) == loads
    if not loads:
        return
    kernel = weft.kernel(schedule={"cuda": "prefetch(t, 4)"})(plain.function)
    for n in (0, 1, 9, 17):
        expected, counts = out.clone(), m.clone()
        plain(x, counts, expected, n)
        found, counted = out.clone(), m.clone()
        EmulatedCall.seen.clear()
        emulated(kernel)(x, counted, found, n)
        assert [only(s, Prefetch) for s in EmulatedCall.seen] == [Prefetch("t", 4)]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(counted, counts)


def test_a_gradient_in_chunks_loads_the_next_one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workspaces.CHUNK, "cpu", 4)
    monkeypatch.setattr(workspaces.Workspaces, "tape_bytes", 1 << 60)
    monkeypatch.setattr(workspaces, "_ROOM", 1 << 60)
    args = [a.requires_grad_() for a in wkv.inputs(2, 18, 5)]
    kernel, machine = weft.kernel(wkv.wkv.function), GpuMachine(132, 50 << 20)
    rows = kernel.backward.schedules(*args, device="cuda", machine=machine).taken
    found = [several(parse(row.schedule), Prefetch) for row in rows]
    assert [Prefetch("k0", 4), Prefetch("k3", 2)] in found  # not in the loops of the rest


def test_many_threads_do_something_else_while_one_waits() -> None:
    def taken(batch: int) -> Prefetch | None:
        shape = (batch, 8, 4096)
        args = [torch.empty(s, device="meta") for s in ((4096,), (4096,), shape, shape)]
        (row,) = wkv.wkv.schedules(*args, device="cuda", machine=GpuMachine(132, 50 << 20)).taken
        return only(parse(row.schedule), Prefetch)

    assert taken(32) == Prefetch("t", 16)
    assert taken(1024) is None


REFUSED = {
    "prefetch(t, 0)": "what is loaded ahead is 1 to 64 turns",
    "prefetch(u, 4)": "there is no loop `u`",
    "prefetch(t, 4); prefetch(t, 8)": "`prefetch(t, 4)` says that already",
    "prefetch(t, 4); unroll_jam(b, 2)": "it does not go with `unroll_jam(b, 2)`",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_loop_does_not_allow_is_said(text: str) -> None:
    kernel = weft.kernel(schedule={"cuda": text})(wkv.wkv.function)
    with pytest.raises(ScheduleError) as raised:
        emulated(kernel)(*wkv.inputs(1, 3, 2))
    assert REFUSED[text] in str(raised.value)


def test_a_loop_that_loads_nothing_ahead_is_named() -> None:
    kernel = made(BODIES["a branch"][0])
    kernel.schedule("cuda", "prefetch(t, 4)")
    with pytest.raises(ScheduleError, match="nothing that `t` loads may be loaded before its turn"):
        emulated(kernel)(torch.rand(3, 20), torch.rand(20), torch.rand(3, 20), 5)


def test_its_text_is_read_back() -> None:
    assert show(parse("prefetch(t, 8)")) == "prefetch(t, 8)"
