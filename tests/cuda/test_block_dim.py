"""``loop_config(block_dim=...)`` decides the number of threads of a block."""

from __future__ import annotations

import torch

import weft
from tests.cuda.emulator import EmulatedCall, emulated
from weft.schedule.grid import threads_of


@weft.kernel
def doubled(x):
    weft.loop_config(block_dim=64)
    for i in range(x.shape[0]):
        x[i] = 2 * x[i]


@weft.kernel
def summed(x):
    s = 0.0
    weft.loop_config(block_dim=100)
    for i in range(x.shape[0]):
        s += x[i]
    return s


def test_block_dim_reaches_the_schedule() -> None:
    schedules = [weft.compile_for("sm_90", k, torch.ones(9)).loops[0].codes[0].schedule
                 for k in (doubled, summed)]  # fmt: skip
    assert [threads_of(schedule) for schedule in schedules] == [64, 128]  # whole warps


def test_blocks_have_the_threads_that_were_asked_for() -> None:
    seen = []

    def look(chosen):
        seen.append(chosen.block)
        return chosen

    EmulatedCall.change = look
    try:
        x = torch.arange(5000.0)
        emulated(doubled)(x)
        assert x[-1] == 2 * 4999
        assert emulated(summed)(torch.ones(20_000)).item() == 20_000
    finally:
        EmulatedCall.change = None
    assert [a * b * c for a, b, c in seen] == [64, 128]
