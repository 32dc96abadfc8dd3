"""Random schedules for random kernels: what a loop allows gives the numbers of the undecorated
Python, whatever the schedule; what it does not allow is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import emulated
from tests.fuzz import check as fuzz
from tests.fuzz import generate, nests, rows, scans, schedules, staged, windows
from weft import compiler
from weft.tools.cross import lowered_loops

COUNT = int(os.environ.get("WEFT_FUZZ_SCHEDULES", "6"))
DRAWS = [generate.kernel, rows.kernel, nests.kernel, staged.kernel, scans.kernel, windows.kernel]


@pytest.mark.sampled(30)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("seed", range(COUNT))
def test_in_the_emulator(seed: int, draw: Callable[[Random], Any]) -> None:
    random = Random(7000 + seed)

    def call(
        kernel: weft.Kernel, options: dict[str, bool], tensors: list[torch.Tensor], *rest: Any
    ) -> Any:
        made = weft.kernel(strict_math=options["strict_math"])(kernel.function)
        for k, function in enumerate(schedules.loops_of(made, tensors, *rest)):
            text = schedules.for_cuda(random, function)
            made.schedule("cuda", text, loop=k)
        return emulated(made)(*tensors, *rest)

    fuzz.check(Random(2000 + seed), call, draw)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("seed", range(COUNT))
def test_on_the_cpu(seed: int, draw: Callable[[Random], Any]) -> None:
    random = Random(8000 + seed)

    def call(
        kernel: weft.Kernel, options: dict[str, bool], tensors: list[torch.Tensor], *rest: Any
    ) -> Any:
        made = weft.kernel(strict_math=options["strict_math"])(kernel.function)
        for k, loop in enumerate(lowered_loops(made, *tensors, *rest)):
            function = compiler.optimize_for_cpu(loop, made.options, asked=True)
            made.schedule("cpu", schedules.for_cpu(random, function), loop=k)
        return made(*tensors, *rest)

    fuzz.check(Random(3000 + seed), call, draw)
