"""What loops load for later turns, copied into shared memory: the same bits; what is refused."""

from __future__ import annotations

import math
import os
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.cuda.emulator import EmulatedCall, emulated
from tests.fuzz import check as fuzz
from tests.fuzz import queues as drawn
from tests.ir.blocks import launch
from tests.schedule.test_stage import lowered
from weft.errors import ScheduleError
from weft.ir.parse import parse_function
from weft.schedule.copy_ahead import copied, queues
from weft.schedule.language import CopyAhead, only, parse, several, show
from weft.schedule.nest import loops_of as serial_of

COUNT = int(os.environ.get("WEFT_FUZZ_QUEUES", "6"))


@weft.kernel
def queued(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Turn j of the inner loop loads for the one that comes two turns later. ``x`` (T, N, 16),
    ``rows`` (T, 16)."""
    T, N, _ = x.shape
    out = x.new_empty((T, N))
    for i in range(N):
        s = 0.0
        for t in range(T):
            first = x[t, i, 0]
            second = x[t, i, 1]
            for j in range(16):
                now = first
                first = second
                second = x[t, i, min(j + 2, 15)]
                s = 0.5 * s + now * math.exp(rows[t, j])
            out[t, i] = s
    return out


def inputs(time: int, width: int) -> list[torch.Tensor]:
    return [torch.randn(time, width, 16), torch.randn(time, 16)]


def test_a_queue_is_found() -> None:
    function, parallel = lowered(queued, *inputs(3, 5))
    loop = serial_of(parallel)["j"]
    (found,) = queues(function, loop)
    assert len(found.carried) == 2
    assert copied(function, loop) == 4
    assert queues(function, serial_of(parallel)["t"]) == []


@pytest.fixture(params=[False, True], ids=["code", "interpreted"])
def way(request: pytest.FixtureRequest) -> Any:
    EmulatedCall.interpreted = request.param  # where copies come when they are waited for
    yield
    EmulatedCall.interpreted = False


@pytest.mark.parametrize("text", [
    "stage(t, 4, 32); copy_ahead(j, 2)", "index_width(64); stage(t, 2, 64); copy_ahead(j, 4)",
    "stage(t, 2, 32); copy_ahead(j, 16)",
])  # fmt: skip
@pytest.mark.parametrize("time", [0, 1, 5])
@pytest.mark.sampled(9)
def test_bits_are_kept(time: int, text: str, way: None) -> None:
    plain = weft.kernel(schedule={"cuda": "index_width(32)"})(queued.function)
    kernel = weft.kernel(schedule={"cuda": text})(queued.function)
    args = inputs(time, 37)
    EmulatedCall.seen.clear()
    found = emulated(kernel)(*args)
    assert all(only(s, CopyAhead) for s in EmulatedCall.seen)
    assert torch.equal(found, emulated(plain)(*args))


def test_copies_have_instructions_of_their_own() -> None:
    text = "index_width(32); stage(t, 2, 32); copy_ahead(j, 8); cover()"
    kernel = weft.kernel(schedule={"cuda": text})(queued.function)
    args = [a.to("meta") for a in inputs(9, 64)]
    (loop,) = weft.compile_for("sm_90", kernel, *args)
    # Of two staged turns, and of those that are left: six elements of the first eight (the first
    # two staged turns have in registers), and the eight behind them.
    assert loop.ptx.count("cp.async.ca.shared.global") == 2 * (6 + 8) + (2 + 6 + 8)
    assert loop.ptx.count("cp.async.wait_all") == 3
    assert "cp.async" not in weft.compile_for("sm_75", queued, *args, every_schedule=True).ptx


WAITING = """
func.func @f(%x: memref<?xf32>, %out: memref<?xf32>) attributes {group = 0} {
  %c0 = arith.constant 0 : index
  %near = memref.alloca() : memref<1xf32, "shared">
  %0 = memref.load %x[%c0] : memref<?xf32>
  memref.store %0, %near[%c0] {copies = true} : memref<1xf32, "shared">
WAIT
  %1 = memref.load %near[%c0] : memref<1xf32, "shared">
  memref.store %1, %out[%c0] : memref<?xf32>
  func.return
}
"""


@pytest.mark.parametrize("waits", [True, False])
def test_what_is_not_waited_for_is_anything(waits: bool) -> None:
    """The interpreter would tell of a copy that nobody waits for."""
    text = WAITING.replace("WAIT", '  "gpu.copies_wait"() : () -> ()' if waits else "")
    x, out = np.ones((2, 1), np.float32)
    launch(parse_function(text), [x, out], (1, 1, 1), (1, 1, 1))
    assert (out[0] == 1) == waits


REFUSED = {
    "copy_ahead(j, 4)": "a block's threads are not known",
    "stage(t, 4, 32); copy_ahead(j, 3)": "turns are a power of two, 1 to 32",
    "stage(t, 4, 32); copy_ahead(j, 32)": "`j` has no number of turns that 32 divides",
    "stage(t, 4, 32); copy_ahead(j, 1)": "`j` loads for more than 1 turns later",
    "stage(t, 4, 32); copy_ahead(t, 4)": "`t` has no number of turns that 4 divides",
    "stage(t, 4, 32); unroll((j)); copy_ahead(j, 4)": "`j` is written out",
    "stage(t, 4, 512); copy_ahead(j, 16)": "it takes 65536 bytes of shared memory, 48640 are left",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_loop_does_not_allow_is_said(text: str) -> None:
    kernel = weft.kernel(schedule={"cuda": text})(queued.function)
    with pytest.raises(ScheduleError) as raised:
        emulated(kernel)(*inputs(3, 5))
    assert REFUSED[text] in str(raised.value)


# What a turn loads for the next one, and what else it does.
BODIES = {
    "of what is written": "now = later\nlater = out[t, min(j + 1, 7)]\ns += now\nout[t, j] = s",
    "where data says": "now = later\nlater = x[int(abs(s)) % 3, t]\ns += now",
    "and uses at once": "now = later\nlater = x[j, t]\ns += now * later",
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_no_queue(name: str) -> None:
    lines = "\n".join("                " + line for line in BODIES[name].splitlines())
    kernel = weft.kernel(fuzz.function(
        "def kernel(x: torch.Tensor, out: torch.Tensor):\n    for i in range(1):\n"
        "        for t in range(8):\n            s = 0.5\n            later = x[0, t]\n"
        f"            for j in range(8):\n{lines}\n            out[t, 0] = s\n"
    ))  # fmt: skip
    function, parallel = lowered(kernel, torch.rand(9, 9), torch.rand(9, 9))
    assert queues(function, serial_of(parallel)["j"]) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_kernels(seed: int) -> None:
    random = Random(seed)

    def call(
        kernel: weft.Kernel, options: dict[str, bool], tensors: list[torch.Tensor], *rest: Any
    ) -> Any:
        made = weft.kernel(strict_math=options["strict_math"])(kernel.function)
        steps = random.choice((4, 8))
        made.schedule("cuda", f"stage(t, {random.choice((1, 4))}, 32); copy_ahead(j, {steps})")
        EmulatedCall.interpreted = random.random() < 0.5
        EmulatedCall.seen.clear()
        try:
            found = emulated(made)(*tensors, *rest)
        finally:
            EmulatedCall.interpreted = False
        assert [several(s, CopyAhead) for s in EmulatedCall.seen] == [[CopyAhead("j", steps)]]
        return found

    fuzz.check(Random(7000 + seed), call, drawn.kernel)


def test_its_text_is_read_back() -> None:
    assert show(parse("copy_ahead(j, 8)")) == "copy_ahead(j, 8)"
