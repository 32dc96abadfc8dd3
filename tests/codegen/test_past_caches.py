"""Stores that stream in loops that LLVM vectorises: the same bits, wherever memory begins."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from benchmarks.brick import wall, wall_rgb
from tests.fuzz import stores
from weft.codegen import caches
from weft.codegen.machine import host_cpu
from weft.options import default_options
from weft.schedule import streaming

NEVER = 1 << 60
pytestmark = pytest.mark.skipif(
    host_cpu().vector_bytes < 32, reason="this machine has no vectors of 8 floats"
)


@weft.kernel
def blend(x: torch.Tensor, y: torch.Tensor, o: torch.Tensor, p: torch.Tensor) -> None:
    for i, j in o:
        t = x[i, j] * 2 + y[j]
        o[i, j] = t
        p[i, j] = t - y[j]


def forms(kernel: Any) -> tuple[Any, Any]:
    """The kernel whose stores never stream, and the one whose stores always do."""
    return tuple(kernel.changed({"streaming_bytes": limit}) for limit in (NEVER, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_what_streams_is_what_is_stored(dtype: torch.dtype) -> None:
    """Of no elements, few and many; in rows that follow each other and in parts of rows, which
    begin anywhere in a line."""
    usual, past = forms(blend)
    for n, m in ((0, 3), (3, 0), (1, 1), (3, 17), (2, 127), (5, 128), (3, 191), (2, 3000)):
        for offset in (0, 1, 5, 16):
            for gap in (0, 3):
                x, y = (torch.randint(-99, 99, s).to(dtype) for s in ((n, m), (m,)))
                results = []
                for kernel in (usual, past):
                    whole = torch.full((2, n * (m + gap) + offset + 1), 77, dtype=dtype)
                    o, p = (a[offset:-1].view(n, m + gap)[:, :m] for a in whole)
                    kernel(x, y, o, p)
                    assert torch.equal(o, x * 2 + y)
                    results.append(whole)
                assert torch.equal(*results)


@weft.kernel
def centred(x: torch.Tensor, y: torch.Tensor, o: torch.Tensor, p: torch.Tensor) -> None:
    for i in range(o.shape[0]):
        s = 0.0
        for j in range(o.shape[1]):
            s += x[i, j]
        p[i, 0] = s
        for j in range(2, o.shape[1]):
            o[i, j] = (x[i, j] - s) * y[j]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_stored_in_turn(dtype: torch.dtype) -> None:
    usual, past = forms(centred)
    for n, m in ((0, 3), (1, 1), (3, 17), (2, 127), (5, 131), (3, 200), (2, 3000)):
        for offset, gap in ((0, 0), (1, 0), (5, 3), (16, 1)):
            x, y = torch.rand(n, m, dtype=dtype), torch.rand(m, dtype=dtype)
            results = []
            for kernel in (usual, past):
                whole = torch.full((2, n * (m + gap) + offset + 1), 77, dtype=dtype)
                o, p = (a[offset:-1].view(n, m + gap)[:, :m] for a in whole)
                kernel(x, y, o, p)
                torch.testing.assert_close(o[:, 2:], ((x - x.sum(1, True)) * y)[:, 2:])
                results.append(whole)
            assert torch.equal(*results)


def test_memory_that_begins_between_elements() -> None:
    usual, past = forms(blend)
    for by in (1, 2, 3):
        results = []
        for kernel in (usual, past):
            raw = torch.zeros(2, 4 * 3000 + 4, dtype=torch.uint8)
            o, p = (_floats(a, by) for a in raw)
            kernel(torch.arange(2996.0).view(2, -1), torch.ones(1498), o, p)
            results.append(raw)
        assert torch.equal(*results)


def _floats(raw: torch.Tensor, by: int) -> torch.Tensor:
    buffer = memoryview(raw.numpy())[by : by + 4 * 2996]
    return torch.frombuffer(buffer, dtype=torch.float32).view(2, 1498)


def test_threads_see_what_streamed() -> None:
    x, y = torch.rand(1000, 3001), torch.rand(3001)
    _, past = forms(blend)
    o, p = torch.zeros(2, 1000, 3001)
    for _ in range(3):
        past(x, y, o.zero_(), p)
        assert torch.equal(o, torch.addcmul(y, x, torch.tensor(2.0)))


@pytest.mark.parametrize("wide", [0, 1, 3])
def test_runs_of_a_tile(wide: int) -> None:
    for th, tw, h, w in ((5, 7, 11, 40), (20, 150, 30, 777), (3, 200, 4, 2100)):
        tile = torch.rand(th, tw, *[wide][:wide])
        results = []
        for kernel in forms(wall_rgb if wide else wall):
            image = torch.full((h, w, *[wide][:wide]), 7.0)
            kernel(tile, image, tw // 2, 3, 5)
            results.append(image)
        assert torch.equal(*results)


def test_only_whole_lines_go_past_the_caches() -> None:
    x, y = torch.ones(2, 64), torch.ones(64)
    for kernel, streams in zip(forms(blend), (False, True), strict=True):
        text = str(kernel.inspect(x, y, x, x)["assembly"])
        assert ("movnt" in text) == streams
        assert ("sfence" in text) == streams
        if host_cpu().vector_bytes == 64:
            assert all("zmm" in line for line in text.splitlines() if "movnt" in line)


def test_source_lines_stay() -> None:
    kernel = blend.changed({"streaming_bytes": 0, "lines": True})
    x, y = torch.ones(2, 640), torch.ones(640)
    kernel(x, y, o := torch.zeros(2, 640), torch.zeros(2, 640))
    assert torch.equal(o, x * 2 + y)


def test_random_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "SHORTEST", 3)
    monkeypatch.setattr(streaming, "MOST", 1000)
    monkeypatch.setenv("WEFT_CACHE", "0")
    default_options.cache_clear()
    drawn = random.Random(0)
    assert sum(stores.check(random.Random(drawn.randrange(1 << 40))) for _ in range(8)) > 3
    monkeypatch.undo()
    default_options.cache_clear()


# -- the choice


def _compiled(kernel: Any) -> Any:
    (special,) = kernel.specializations
    return special.compiled


def test_a_second_loop_is_compiled_for_large_calls_alone() -> None:
    kernel = blend.changed({"streaming_bytes": 4 * (3 * 1000 + 10)})
    for n, streams in ((9, False), (100, False), (101, True), (3, True)):
        x, y = torch.rand(n, 10), torch.rand(10)
        kernel(x, y, o := torch.zeros(n, 10), torch.zeros(n, 10))
        assert torch.equal(o, x * 2 + y)
        assert (_compiled(kernel).streaming is not None) == streams


def test_the_operator_of_a_large_call_takes_it_for_small_ones_too() -> None:
    @weft.kernel
    def made(x: torch.Tensor) -> torch.Tensor:
        o = torch.empty_like(x)
        for i in range(x.shape[0]):
            o[i] = x[i] * 2 + 1
        return o

    kernel = made.changed({"streaming_bytes": 4096})
    for n in (5000, 3, 600, 0, 5000, 4999):
        x = torch.rand(n)
        assert torch.equal(kernel.op(x), x * 2 + 1)


def test_the_machine_says_how_large_its_last_cache_is(tmp_path: Path) -> None:
    for k, text in enumerate(("32K\n", "1024K\n", "31M\n", "")):
        (tmp_path / f"index{k}").mkdir()
        (tmp_path / f"index{k}" / "size").write_text(text)
    assert caches.last_level(tmp_path) == 31 << 20
    (tmp_path / "index2" / "size").write_text("491520K\n")  # as a virtual machine of two says
    caches.last_level.cache_clear()
    assert caches.last_level(tmp_path) == caches.USUAL
    assert caches.last_level(tmp_path / "none") == caches.USUAL
    assert caches.last_level() >= 1 << 16


def test_a_person_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_STREAMING_MB", "5")
    default_options.cache_clear()
    assert default_options().streaming_bytes == 5 << 20
    monkeypatch.setenv("WEFT_STREAMING_MB", "")
    default_options.cache_clear()
    assert default_options().streaming_bytes is None
    monkeypatch.undo()
    default_options.cache_clear()
