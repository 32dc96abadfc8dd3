"""Grids, blocks and division by multiplication: arithmetic that needs no GPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import weft
from benchmarks import nests
from examples import brick_wall, causal_conv, gallery, layer_norm
from tests.cuda.emulator import EmulatedCall, emulated
from weft.schedule.grid import covers, roomier, shape
from weft.schedule.language import (
    Block,
    BlockDim,
    FastDivision,
    Persist,
    Step,
    Vectorize,
    only,
)
from weft.schedule.reciprocal import DIVIDEND, reciprocal


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_division_by_a_reciprocal_is_exact() -> None:
    draw = random.Random(0)
    divisors = [*range(1, 300), *(2**k + j for k in range(2, 31) for j in (-1, 0, 1))]
    divisors += [draw.randrange(1, 2**31) for _ in range(300)]
    for d in divisors:
        numbers = reciprocal(d)
        assert numbers is not None, d
        multiplier, shift = numbers
        assert 0 < multiplier < 2**31
        assert 0 <= shift < 32
        near = [draw.randrange(-DIVIDEND // d, DIVIDEND // d + 1) * d for _ in range(20)]
        for n in (0, DIVIDEND, -DIVIDEND, *near):
            for k in (n - 1, n, n + 1):
                if abs(k) <= DIVIDEND:
                    assert (2 * k + 1) * multiplier >> 32 + shift == k // d, (k, d)


def test_no_reciprocal_of_what_is_no_divisor() -> None:
    assert reciprocal(0) is None
    assert reciprocal(-3) is None
    assert reciprocal(2**31) is None


@weft.kernel
def modulo(x, out, n: int, m: int):
    for i in range(out.shape[0]):
        out[i] = x[(i * 3 - m) // n % x.shape[0]] + (i - m) % n


def test_reciprocals_in_a_kernel() -> None:
    for n, m, quick in ((1, 0, True), (2, 5, True), (7, 40, True), (1000, 3, True),
                        (-3, 4, False), (7, 1 << 30, False), (1 << 40, 2, False)):  # fmt: skip
        EmulatedCall.seen.clear()
        x, out = torch.randn(23), torch.full((777,), -1.0)
        expected = out.clone()
        modulo.interpret(x, expected, n, m)
        emulated(modulo)(x, out, n, m)
        torch.testing.assert_close(out, expected)
        assert [bool(only(s, FastDivision)) for s in EmulatedCall.seen] == [quick], (n, m)


def grid(trips: list[int], *steps: Step, processors: int = 100) -> Any:
    schedule = (*steps, Block(256, 1))
    found = shape(schedule, trips, few=False, processors=processors)
    assert covers(schedule, trips, *found) is (only(steps, Persist) is None)
    return found


def test_blocks_have_the_sides_that_were_chosen() -> None:
    assert grid([1 << 20]) == ((4096, 1, 1), (256, 1, 1))
    assert grid([4096, 4096], Block(32, 4)) == ((128, 1024, 1), (32, 4, 1))
    assert grid([5, 1 << 20]) == ((1, 32768, 1), (8, 32, 1))
    assert grid([3, 1 << 16, 40], Block(64, 1)) == ((1, 4096, 40), (4, 16, 1))


def test_blocks_are_smaller_where_there_would_be_few() -> None:
    assert grid([4096]) == ((128, 1, 1), (32, 1, 1))
    assert grid([100_000]) == ((782, 1, 1), (128, 1, 1))
    assert grid([4096], BlockDim((256,))) == ((16, 1, 1), (256, 1, 1))


def test_no_thread_is_without_work_for_the_first_row() -> None:
    peeled = Vectorize("i", 4, 4, peel=1)
    assert grid([4094, 9], peeled, processors=1) == ((4, 9, 1), (256, 1, 1))
    assert grid([4096, 9], Vectorize("i", 4, 4), processors=1) == ((4, 9, 1), (256, 1, 1))


def test_blocks_that_last() -> None:
    (x, y, z), block = grid([4096, 4096], Block(16, 16), Persist(32))
    assert block == (16, 16, 1)
    assert (x, z) == (200, 1)
    assert x * y <= 32 * 100


def test_blocks_are_smaller_for_many_registers() -> None:
    assert roomier(256, 32) == 256
    assert roomier(256, 64) == 256  # 4 blocks of 256, or 8 of 128
    assert roomier(256, 168) == 128  # 1 block of 256, or 3 of 128
    assert roomier(32, 255) == 32


@weft.kernel
def blurred(x, out):
    for i, j in weft.ndrange((1, x.shape[0] - 1), (1, x.shape[1] - 1)):
        out[i, j] = x[i - 1, j] + x[i + 1, j]


@weft.kernel
def triangle(x, out):
    for i, j in out:
        s = 0.0
        for k in range(j + 1):
            s += x[i, j, k]
        out[i, j] = s


@weft.kernel
def scaled_rows(x, scale):
    for i, j in x:
        x[i, j] = x[i, j] * scale[i]


def test_sides_follow_from_what_a_kernel_reads() -> None:
    tile = meta(3, 4, dtype=torch.int32)
    for expected, kernel, *args in (
        ((32, 4), blurred, meta(9, 9), meta(9, 9)),
        ((32, 4), gallery.matmul, meta(9, 8), meta(8, 7)),
        ((16, 16), gallery.transpose, meta(9, 8)),
        ((128, 1), causal_conv.causal_conv, meta(3, 17), meta(2, 3, 17), 0.1),
        ((64, 1), triangle, meta(9, 8, 8), meta(9, 8)),
        ((32, 4), nests.covariance, meta(9, 8), meta(8, 8)),  # stored across, but not in the loop
        ((256, 1), scaled_rows, meta(9, 8), meta(9)),
        ((256, 1), brick_wall.brick_wall, tile, 20, 28, 2, 1, 5),
        ((256, 1), layer_norm.layer_norm, meta(9, 8), meta(8), meta(8), 1e-5),
    ):
        assert step_of(Block, kernel, *args) == Block(*expected), kernel


def step_of(kind: Any, kernel: weft.Kernel, *args: Any) -> Any:
    """The step of this kind in the schedule of large calls."""
    return only(weft.compile_for("sm_90", kernel, *args).loops[0].codes[0].schedule, kind)


SIXTY_FOUR = 64


@weft.kernel
def doubled(x):
    weft.loop_config(block_dim=SIXTY_FOUR)
    for i in range(x.shape[0]):
        x[i] = 2 * x[i]


def blocks_of(kernel: weft.Kernel, *args: Any) -> tuple[int, ...]:
    asked = step_of(BlockDim, kernel, *args)
    assert asked is not None
    return asked.sides


def test_block_dim_may_be_a_name_or_a_tuple() -> None:
    assert blocks_of(doubled, meta(9)) == (64,)
    sides = (8, 4)

    @weft.kernel
    def scaled(x):
        weft.loop_config(block_dim=sides)
        for i, j in x:
            x[i, j] = 2 * x[i, j]

    assert blocks_of(scaled, meta(9, 9)) == (4, 8)  # j runs along neighbouring threads
    seen = []

    def look(chosen):
        seen.append(chosen.block)
        return chosen

    EmulatedCall.change = look
    try:
        x = torch.randn(50, 41)
        y = x.clone()
        emulated(scaled)(y)
    finally:
        EmulatedCall.change = None
    torch.testing.assert_close(y, 2 * x)
    assert seen == [(4, 8, 1)]


def test_a_block_dim_that_cannot_be_is_refused() -> None:
    @weft.kernel
    def late(x, n: int):
        weft.loop_config(block_dim=n)
        for i in range(x.shape[0]):
            x[i] = 1

    with pytest.raises(weft.KernelValueError, match="decided when the kernel is compiled"):
        weft.compile_for("sm_90", late, meta(9), 64)

    @weft.kernel
    def flat(x):
        weft.loop_config(block_dim=(8, 4))
        for i in range(x.shape[0]):
            x[i] = 1

    with pytest.raises(weft.KernelValueError, match="2 numbers, and the loop has 1 index"):
        weft.compile_for("sm_90", flat, meta(9))

    @weft.kernel
    def huge(x):
        weft.loop_config(block_dim=2048)
        for i in range(x.shape[0]):
            x[i] = 1

    with pytest.raises(weft.KernelValueError, match="a block of 2048 threads"):
        weft.compile_for("sm_90", huge, meta(9))


@weft.kernel
def elsewhere(n: int):
    out = torch.empty(n, device="cuda")
    for i in range(n):
        out[i] = i
    return out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_torchs_error() -> None:
    missing = "NVIDIA driver" if torch.backends.cuda.is_built() else "CUDA"
    with pytest.raises((RuntimeError, AssertionError), match=missing) as caught:
        elsewhere(3)
    assert not isinstance(caught.value, weft.WeftError)
