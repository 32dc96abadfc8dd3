"""Accumulations whose first subscripts keep the outermost indices apart: whole slices to a thread,
in the order of the iterations, whatever the number of threads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import weft
from weft.runtime.overlap import OverlapWarning

THREADS = (1, 2, 3, 7)
SHAPES = ((0, 5), (5, 0), (1, 9000), (2, 9001), (3, 4001), (7, 2000), (64, 301), (301, 99))


@weft.kernel
def following(x, at, h):
    for n, i in weft.ndrange(x.shape[0], x.shape[1]):
        h[n + 1, at[n, i]] += x[n, i]


@weft.kernel
def mirrored(x, at, h):
    for n, i in weft.ndrange(x.shape[0], x.shape[1]):
        h[x.shape[0] - 1 - n, at[n, i]] += x[n, i]


@weft.kernel
def backwards(x, at, h):
    for n in range(x.shape[0] - 1, -1, -1):
        for i in range(x.shape[1] - 1, -1, -1):
            h[n, at[n, i]] += x[n, i]


@weft.kernel(strict_math=True)
def strictly(x, at, h):
    for n, i in weft.ndrange(x.shape[0], x.shape[1]):
        h[n, at[n, i]] += x[n, i]


@weft.kernel
def halved(x, at, h):
    for n, i in weft.ndrange(x.shape[0], x.shape[1]):
        h[n // 2, at[n, i]] += x[n, i]


@weft.kernel
def overlapping(x, at, h):
    for n, i in weft.ndrange(x.shape[0], x.shape[1]):
        h[n, at[n, i]] += x[n, i]
        h[n + 1, at[n, i]] += x[n, i]


@weft.kernel
def reducing(x, at, h):
    total = 0.0
    for n, i in weft.ndrange(x.shape[0], x.shape[1]):
        h[n, at[n, i]] += x[n, i]
        total += x[n, i]
    return total


ROWS = {
    following: lambda n, count: [n + 1], mirrored: lambda n, count: [count - 1 - n],
    backwards: lambda n, count: [n], strictly: lambda n, count: [n],
    halved: lambda n, count: [n // 2], overlapping: lambda n, count: [n, n + 1],
    reducing: lambda n, count: [n],
}  # fmt: skip
IN_SLICES = {following, mirrored, backwards, strictly}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("kernel", ROWS, ids=lambda kernel: kernel.__name__)
def test_every_number_of_threads(kernel: weft.Kernel, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        generator = torch.Generator().manual_seed(sum(shape))
        x = (torch.randn(shape, generator=generator) * 9).to(dtype)
        at = torch.randint(0, 50, shape, generator=generator)
        n = torch.arange(shape[0])[:, None].expand(shape)
        exact = torch.zeros(shape[0] + 1, 50, dtype=torch.float64)
        for rows in ROWS[kernel](n, shape[0]):
            exact.index_put_((rows, at), x.double(), accumulate=True)
        bits, totals = [], []
        for count in THREADS:
            torch.set_num_threads(count)
            h = torch.zeros(exact.shape, dtype=dtype)
            totals.append(kernel(x, at, h))
            torch.testing.assert_close(h.double(), exact, atol=0.1, rtol=1e-4)
            if kernel in IN_SLICES and count <= shape[0]:
                bits.append(h)
        assert all(torch.equal(h, bits[0]) for h in bits), shape
        if kernel is reducing:  # its bits do not depend on threads
            assert all(torch.equal(total, totals[0]) for total in totals), shape
            torch.testing.assert_close(totals[0].double(), x.double().sum(), atol=1.0, rtol=1e-4)


def test_an_array_that_shares_memory_with_another_is_accumulated_as_before() -> None:
    @weft.kernel
    def both(x, at, h, s):
        for n, i in weft.ndrange(x.shape[0], x.shape[1]):
            h[n, at[n, i]] += x[n, i]
            s[n, at[n, i]] += 2 * x[n, i]

    x, at = torch.randint(-9, 9, (7, 4000)).float(), torch.randint(0, 5, (7, 4000))
    rows = torch.arange(7)[:, None]
    for count in THREADS:
        torch.set_num_threads(count)
        base, wanted = torch.zeros(8, 5), torch.zeros(8, 5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OverlapWarning)  # it may run in order
            both(x, at, base[:7], base[1:])
        wanted[:7].index_put_((rows, at), x, accumulate=True)
        wanted[1:].index_put_((rows, at), 2 * x, accumulate=True)
        assert torch.equal(base, wanted)
