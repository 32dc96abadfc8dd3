"""Vectors where rows are made of quotients and remainders: chosen by a call only where its numbers
make them right, and right then."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from examples import brick_wall
from tests.cuda.emulator import EmulatedCall, emulated
from weft.runtime import gpu
from weft.schedule.choose import Candidate, Choice
from weft.schedule.grid import joined
from weft.schedule.guards import LargerThanCache, judged
from weft.schedule.language import (
    BlockDim,
    Cover,
    Schedule,
    Vectorize,
    brief,
    only,
)
from weft.schedule.machine import GpuMachine
from weft.schedule.nest import Nest
from weft.schedule.sizes import Array, Sizes

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    EmulatedCall.seen.clear()
    yield
    EmulatedCall.allowed = EmulatedCall.change = None


def chosen() -> str:
    """The schedule of the last launch, in short."""
    return brief(EmulatedCall.seen[-1])


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randint(-100, 100, shape, generator=made).to(dtype)


@weft.kernel
def tiled(tile: torch.Tensor, out: torch.Tensor, shift: int, skew: int) -> None:
    h, w = tile.shape
    for i, j in out:
        course = i // h
        x = j - shift - course * skew
        out[i, j] = tile[i - course * h, x - x // w * w]


def tiled_by_torch(tile: torch.Tensor, out: torch.Tensor, shift: int, skew: int) -> torch.Tensor:
    h, w = tile.shape
    i = torch.arange(out.shape[0], device=out.device)[:, None]
    j = torch.arange(out.shape[1], device=out.device)[None]
    return tile[i % h, (j - shift - i // h * skew) % w]


def begins_at(tensor: torch.Tensor, bytes: int) -> bool:
    return tensor.data_ptr() % bytes == 0


def draw(
    random: random.Random, dtype: torch.dtype, side: int, device: str
) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """A call of ``tiled``: each number mostly a multiple of ``side``, and at times not."""

    def around(low: int, high: int) -> int:
        number = side * random.randrange(low, high)
        return number + (random.randrange(side) if random.random() < 0.15 else 0)

    h, w = random.randrange(1, 4), max(around(1, 40), 1)
    rows, cols = random.randrange(0, 6), max(around(0, 700 // side), 0)
    if random.random() < 0.5:
        cols = max(cols, 256)
    tile = numbers((h * w + 16,), dtype, random.randrange(99)).to(device)
    where = random.choice((0, 0, 0, 0, 16 // tile.element_size(), 1))
    tile = tile[where : where + h * w].view(h, w)
    padding = random.choice((0, 0, side, 1))
    out = torch.full((rows * (cols + padding) + 32,), 101, device=device).to(dtype)
    where = random.choice((0, 0, 0, 0, 16 // tile.element_size(), 1))
    out = out[where : where + rows * (cols + padding)].view(rows, cols + padding)[:, :cols]
    return tile, out, around(-30, 30), around(-5, 5)


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=[pytest.mark.cuda, NO_GPU])])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "emulator":
        return "cpu"
    load = gpu.GpuCompiled.module

    def module(self: gpu.GpuCompiled, schedule: Schedule, device: int) -> Any:
        EmulatedCall.seen.append(schedule)
        return load(self, schedule, device)

    monkeypatch.setattr(gpu.GpuCompiled, "module", module)
    return "cuda"


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.int32, torch.float64])
def test_the_even_form_is_chosen_where_it_is_right(dtype: torch.dtype, place: str) -> None:
    side = min(16 // dtype.itemsize, 8)
    bytes = side * dtype.itemsize
    spread = 32 if dtype.itemsize >= 4 else 1  # how far a thread's neighbours are from each other
    random_numbers = random.Random(dtype.itemsize)
    kernel = emulated(tiled) if place == "cpu" else weft.kernel(tiled.function)
    found: set[bool] = set()
    for _ in range(60):
        tile, out, shift, skew = draw(random_numbers, dtype, side, place)
        expected = tiled_by_torch(tile, out, shift, skew)
        EmulatedCall.seen.clear()
        kernel(tile, out, shift, skew)
        assert torch.equal(out, expected)
        if not EmulatedCall.seen and place == "cuda":
            continue  # the same shapes and numbers once more
        if not out.numel():
            assert not EmulatedCall.seen
            continue
        rows = [out.stride(0)] if out.shape[0] > 1 else []
        contiguous = out.is_contiguous()
        even = (
            all(n % side == 0 for n in (shift, skew, tile.shape[1], tile.stride(0)))
            and all(n % side == 0 for n in ([out.shape[1]] if contiguous else rows))
            and begins_at(tile, bytes) and begins_at(out, bytes)
            and out.shape[1] >= (2 * side if spread > 1 else side) * spread
        )  # fmt: skip
        if out.shape[0] > 1:
            assert ("divisible" in chosen()) == even, (
                tile.shape,
                out.shape,
                out.stride(),
                shift,
                skew,
            )
        found.add("divisible" in chosen())
    assert found == {True, False}


def test_every_form_of_the_grid() -> None:
    def uncovered(candidate: Candidate) -> bool:
        return only(candidate.schedule, Cover) is None

    def few(choice: Choice) -> Choice:
        return replace(choice, grid=(1, min(choice.grid[1], 2), 1))

    EmulatedCall.allowed, EmulatedCall.change = uncovered, few
    tile, out = numbers((3, 44), torch.int32, 1), torch.full((5, 700), 9, dtype=torch.int32)
    emulated(tiled)(tile, out, -8, 20)
    assert chosen() == "i32-fast-v8-divisible"
    assert torch.equal(out, tiled_by_torch(tile, out, -8, 20))


@weft.kernel
def divided(x, out, n: int, m: int):
    for i in range(out.shape[0]):
        out[i] = x[(i + m) // n % x.shape[0]] + (i - m) // n


@pytest.mark.parametrize(
    ("n", "m", "even"),
    [(4, 8, True), (12, -40, True), (1024, 4, True), (6, 8, False), (4, 7, False),
     (-4, 8, False), (-12, 0, False)],
)  # fmt: skip
def test_elements_that_neighbours_share(n: int, m: int, even: bool) -> None:
    x, out = numbers((24,), torch.int32, n), torch.zeros(777, dtype=torch.int32)
    emulated(divided)(x, out, n, m)
    i = torch.arange(777)
    quotient = torch.div(i + m, n, rounding_mode="floor")
    expected = x[quotient % 24] + torch.div(i - m, n, rounding_mode="floor")
    assert torch.equal(out, expected.int())
    assert ("divisible" in chosen()) == even


@weft.kernel
def rolled(x, out, n: int):
    for i in range(x.shape[0]):
        out[i] = x[(i + n) % x.shape[0]]


@pytest.mark.parametrize(
    ("size", "n", "even"),
    [(512, 64, True), (512, -64, True), (512, 3, False), (514, 64, False), (512, 1 << 33, False)],
)
def test_a_roll(size: int, n: int, even: bool) -> None:
    x = torch.randn(size)
    out = torch.empty_like(x)
    emulated(rolled)(x, out, n)
    torch.testing.assert_close(out, torch.roll(x, -(n % size)), rtol=0, atol=0)
    assert ("divisible" in chosen()) == even


@weft.kernel
def powers_of_two(x, out, n: int):
    for i in range(out.shape[0]):
        out[i] = x[(i + n) % 64] + x[(i - n) // 32 % 16 + 8 * ((i + n) % 8)]


@pytest.mark.parametrize("n", [0, 4, -20, 3])
def test_divisors_that_are_written_in_the_kernel(n: int) -> None:
    x, out = numbers((80,), torch.int32, n), torch.zeros(600, dtype=torch.int32)
    emulated(powers_of_two)(x, out, n)
    i = torch.arange(600)
    assert torch.equal(out, x[(i + n) % 64] + x[(i - n) // 32 % 16 + 8 * ((i + n) % 8)])


@weft.kernel
def part(x, out, low: int, high: int, behind: int):
    for i in range(low, high):
        out[i] = 2 * x[i + behind]


@pytest.mark.parametrize(
    ("low", "high", "behind", "even"),
    [(0, 300, 0, True), (8, 299, 4, True), (7, 300, 4, False), (8, 300, 3, False),
     (40, 300, -40, True), (100, 100, 4, None)],
)  # fmt: skip
def test_a_range_that_the_call_decides(low: int, high: int, behind: int, even: bool | None) -> None:
    x, out = torch.randn(310), torch.full((310,), -1.0)
    emulated(part)(x, out, low, high, behind)
    expected = torch.full((310,), -1.0)
    expected[low:high] = 2 * x[low + behind : high + behind]
    torch.testing.assert_close(out, expected)
    assert ("divisible" in chosen() if EmulatedCall.seen else None) == even


@weft.kernel
def by_zero(x, out, n: int):
    for i in range(out.shape[0]):
        out[i] = x[i // n] + i % n


def test_a_division_by_zero_is_not_even() -> None:
    x, out = torch.randn(8), torch.zeros(512)
    emulated(by_zero)(x, out, 0)
    assert "divisible" not in chosen()
    expected = out.clone()
    by_zero(x, expected, 0)
    torch.testing.assert_close(out, expected)


def test_the_ptx_of_the_even_form() -> None:
    tile = torch.empty(6, 8, dtype=torch.int32, device="meta")
    (loop,) = weft.compile_for(
        "sm_90", brick_wall.brick_wall, tile, 20, 28, 2, 1, 5, every_schedule=True
    )
    texts = {brief(code.schedule): code.ptx for code in loop.codes}
    even = re.findall(r"(?:ld|st)\.global\S*", texts["i32-fast-v8-divisible-cover"])
    # Two vectors in and out, and what is left at the end of a row element by element.
    assert sorted(even) == sorted(
        2 * ["ld.global.nc.v4.b32", "st.global.v4.b32"] + ["ld.global.nc.b32", "st.global.b32"]
    )
    streaming = re.findall(r"(?:ld|st)\.global\S*", texts["i32-fast-v8-divisible-cover-streaming"])
    assert sorted(streaming) == sorted(word.replace("st.global", "st.global.cs") for word in even)
    assert all(("st.global.cs" in text) == ("streaming" in name) for name, text in texts.items())


# -- what is written makes way


def test_large_outputs_make_way_for_what_is_read() -> None:
    def streams(written: int, read: int, cache: int) -> bool:
        arrays = {"out": Array((written,), (1,), 1, True), "x": Array((read,), (1,), 1, True)}
        call = Sizes(Nest(("x", "out"), (), ()), [], arrays, frozenset())
        return judged(LargerThanCache(("out",)), (), call, GpuMachine(1, cache))[0]

    assert streams(written=100, read=12, cache=99)
    assert not streams(written=100, read=12, cache=100)
    assert not streams(written=100, read=13, cache=99)


def test_stores_that_make_way_are_chosen_by_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "machine_of", lambda device: GpuMachine(cache_bytes=4000))
    kernel = emulated(tiled)
    for rows, h, shift, expected in (
        (3, 1, 4, "i32-fast-v8-divisible-cover-streaming"),
        (3, 1, 5, "i32-fast-v8-cover-streaming"),
        (1, 1, 4, "i32-fast-v8-divisible-cover"), (3, 3, 4, "i32-fast-v8-divisible-cover"),
    ):  # fmt: skip
        tile, out = numbers((h, 240), torch.int32, 5), torch.zeros(rows, 700, dtype=torch.int32)
        kernel(tile, out, shift, 12)
        assert torch.equal(out, tiled_by_torch(tile, out, shift, 12))
        assert chosen() == expected


def test_an_image_that_is_larger_than_the_cache(place: str) -> None:
    if place == "cpu":
        assert gpu.machine_of(0) == GpuMachine()
        return
    rows = gpu.machine_of(0).cache_bytes // (4 * 4096) + 3
    tile = numbers((5, 512), torch.int32, 2).cuda()
    out = torch.empty(rows, 4096, dtype=torch.int32, device="cuda")
    weft.kernel(tiled.function)(tile, out, 96, 256)
    assert chosen() == "i32-fast-v8-divisible-cover-streaming"
    assert torch.equal(out, tiled_by_torch(tile, out, 96, 256))


def test_what_is_read_again_does_not_make_way() -> None:
    @weft.kernel
    def added(x, out):
        for i, j in out:
            out[i, j] += x[0, 0]

    def streamed(kernel: weft.Kernel, *args: Any) -> bool:
        facts = weft.compile_for("sm_90", kernel, *args).loops[0].facts
        return any("streaming_stores((out))" in text for text in facts.candidates)

    x = torch.empty(9, 8, device="meta")
    assert not streamed(added, x, x)
    assert streamed(tiled, x, x, 4, 4)


def test_blocks_are_joined_in_a_row() -> None:
    how: Schedule = (Vectorize("j", 4, 8, 32),)
    assert joined(how, (2, 9, 1), (256, 1, 1)) == ((1, 9, 1), (512, 1, 1))
    assert joined(how, (3, 9, 1), (256, 1, 1)) == ((3, 9, 1), (256, 1, 1))
    assert joined(how, (2, 9, 1), (64, 4, 1)) == ((2, 9, 1), (64, 4, 1))
    asked: Schedule = (*how, BlockDim((256,)))
    assert joined(asked, (2, 9, 1), (256, 1, 1)) == ((2, 9, 1), (256, 1, 1))
