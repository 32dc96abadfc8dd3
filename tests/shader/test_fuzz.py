"""Random kernels as shaders: on WebGPU, in Metal's language, and on tensors of "mps"."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

import weft
from tests.conftest import adapter, on_webgpu, refused
from tests.fuzz import (
    check,
    collections,
    complexes,
    generate,
    gradients,
    moves,
    nests,
    objects,
    programs,
    queues,
    rows,
    scans,
    staged,
    structs,
    tables,
    unsigned,
    windows,
)
from tests.fuzz.recurrences import recurrent_kernel
from tests.fuzz.smooth import SmoothKernel, smooth_kernel
from tests.shader import metal, mps
from weft import webgpu
from weft.errors import CompileError

COUNT = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "16"))
PARTS = max(COUNT // 50, 4)
DRAWN = {
    "plain": generate.kernel,
    "rows": rows.kernel,
    "scans": scans.kernel,
    "nests": nests.kernel,
    "windows": windows.kernel,
    "staged": staged.kernel,
    "queues": queues.kernel,
}


def smooth(random: Random) -> SmoothKernel:
    """One for f32, of which shaders have all functions."""
    while not (drawn := smooth_kernel(random)).narrow:
        pass
    return drawn


def recurrent(random: Random) -> SmoothKernel:
    drawn = recurrent_kernel(random)
    return replace(drawn, text=drawn.text.replace("weft.f64", "weft.f32"), narrow=True)


WHOLE: dict[str, Callable[[Random], object]] = {  # of which each draws its arguments, too
    "structs": structs.check,
    "tables": tables.check,
    "objects": objects.check,
    "moves": moves.check,
    "collections": collections.check,
    "unsigned": unsigned.check,
    "complexes": complexes.check,
    "programs": programs.check,
    "gradients": functools.partial(gradients.check_gradients, draw=smooth),
    "recurrences": functools.partial(gradients.check_gradients, draw=recurrent),
}

pytestmark = [pytest.mark.fuzz, pytest.mark.slow, pytest.mark.webgpu]
drawing = settings(
    max_examples=-(-COUNT // (PARTS * len(DRAWN))), deadline=None, phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck), database=None,
)  # fmt: skip


@pytest.fixture(params=["webgpu", "metal", "mps"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[check.Call]:
    """How kernels are called."""
    if request.param == "mps":
        with mps.mps():
            yield functools.partial(called, on="mps")
        return
    if request.param == "metal":
        metal.in_place_of_webgpu(monkeypatch)
    else:
        adapter()
        # WGSL lets drivers compute as if there were no infinities and no NaN.
        monkeypatch.setattr(check, "extremes", lambda dtype, _: [0, 1, -1 if dtype != "u8" else 2])
    yield called


def called(
    kernel: weft.Kernel, options: dict[str, bool], tensors: list[torch.Tensor], n: int, a: float,
    on: str = "webgpu",
) -> Any:  # fmt: skip
    """The counts are of 32 bits, which shaders can add to. Of some kernels all tensors live on the
    device. ``on`` "mps": they are tensors of that."""
    *others, counts = tensors
    few = counts.int()
    given = [*others, few]
    if on == "mps" and any(t.dtype is torch.float64 for t in given):
        reject()
    passed = [webgpu.buffer(t) for t in given] if n % 2 else given
    try:
        if on == "mps":
            passed = [mps.on_mps(t) for t in given]
            result = kernel(*passed, n, a)
        else:
            result = kernel.on("webgpu")(*passed, n, a)
    except CompileError as error:  # the refusals; a wrong one fails in the tests of the language
        if "shaders have no" not in str(error) and "Metal has no" not in str(error):
            raise
        reject()
    for own, there in zip(given, passed, strict=True):
        if own is not there:
            own.copy_(there)
    counts.copy_(few)
    return result


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("draw", DRAWN)
@drawing
@given(seed=st.integers(0, 1 << 40))
def test_random_kernels_as_shaders(draw: str, part: int, place: check.Call, seed: int) -> None:
    check.check(Random(seed), place, DRAWN[draw], torch.int32)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("form", WHOLE)
@settings(drawing, max_examples=-(-COUNT // (PARTS * len(WHOLE))))
@given(seed=st.integers(0, 1 << 40))
def test_random_kernels_of_more_than_tensors_on_webgpu(form: str, part: int, seed: int) -> None:
    """Their numbers are of 64 bits, or complex; functions of float64 are refused."""
    try:
        with on_webgpu():
            WHOLE[form](Random(seed))
    except (weft.WeftError, AssertionError) as error:
        told: BaseException | None = error
        while told is not None and not refused(told) and "in a shader: use fewer" not in str(told):
            told = told.__cause__
        if told is None:
            raise
        reject()
