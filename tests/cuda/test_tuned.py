"""Schedules that tuning tries for CUDA, carried out by the emulator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from tests.cuda import emulator
from tests.tuning.conftest import Stopwatch, nothing_known
from weft.options import Options
from weft.runtime import function

assert nothing_known  # the fixture


@pytest.fixture
def emulated(monkeypatch):
    """What tuning compiles runs in the emulator; calls last, so that they say how they ran."""

    def bound(self: Any, tensors: Any, error: Any, *, brief: bool) -> Any:
        return emulator.EmulatedCall(self, 0, error), None

    monkeypatch.setattr(emulator.Emulated, "bound", bound)
    monkeypatch.setattr(function.build, "compile_region", emulator.compile_region)


@weft.kernel
def correlate(w, x):
    n, m = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(n, m):
        s = 0.0
        for k in range(j + 1):
            s += w[k] * x[i, j - k]
        out[i, j] = s
    return out


@weft.kernel
def shares(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            total += x[i, j]
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] / total
    return out


@weft.kernel
def mixed(x, y):
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] * 2 + y[i, j]
    return out


CASES = [
    (correlate, (torch.randn(40), torch.randn(5, 40)), "unroll_jam", 8),  # LLVM takes seconds
    (shares, (torch.rand(6, 96) + 1,), "cooperate", 8),
    (mixed, (torch.randn(4, 256), torch.randn(4, 256)), "vectorize", 12),
]


@pytest.mark.parametrize(
    ("kernel", "args", "step", "most"), CASES, ids=lambda v: getattr(v, "__name__", "")
)
@pytest.mark.slow
def test_every_schedule_that_is_tried_computes_the_same(kernel, args, step, most, emulated):
    options = Options(cache=False)
    kernel = weft.kernel(kernel.function)
    kernel.options = options
    table = weft.tune(kernel, *args, most=most, measure=Stopwatch(2.0, 1.0))
    assert [row for row in table.rows if row.refused] == []
    assert len(table.rows) == most + 1
    assert any(step in row.schedule for row in table.rows)
    assert sum(row.best for row in table.rows) == 1
    assert table.records[0].choice == table.rows[1].schedule
