"""Additions of a warp's threads to one element: by shuffles, then by one of them."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.cuda import emulator
from tests.cuda.emulator import emulated
from weft.tools.cross import compile_for


@weft.kernel
def columns(x: torch.Tensor, out: torch.Tensor):
    """Each iteration along the second index adds to an element that all of them share."""
    for b, i in weft.ndrange(x.shape[0], x.shape[1]):
        s = 0.5
        for t in range(x.shape[2]):
            s = s * x[b, i, t]
            out[b, t] += s


@weft.kernel
def own(x: torch.Tensor, out: torch.Tensor):
    for b, i in weft.ndrange(x.shape[0], x.shape[1]):
        out[b % 3, i] += x[b, i]


@weft.kernel
def several(x: torch.Tensor, out: torch.Tensor, last: torch.Tensor):
    """Additions to neighbouring elements of two arrays, of which one is read in between."""
    for b, i in weft.ndrange(x.shape[0], x.shape[1]):
        s = x[b, i, 0]
        out[b, 0] += s
        last[b, 1] += 2.0 * s
        out[b, 4] += s * s
        out[b, 1] += 3.0 * s
        last[b, 0] += 1.0 - s
        out[b, 2] += s + 1.0
        out[b, 0] += 0.5


def shuffles(kernel: weft.Kernel, *args: torch.Tensor) -> int:
    code = compile_for("sm_90", kernel, *args, every_schedule=True)
    return sum(c.llvm.count("activemask") for loop in code for c in loop.codes)


def test_only_elements_that_lanes_share_are_added_up() -> None:
    assert shuffles(columns, torch.empty(3, 64, 5), torch.empty(3, 5))
    assert not shuffles(own, torch.empty(5, 64), torch.empty(3, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("lanes", "n"), [(0, 64), (0, 7), (-1, 64), (-1, 128)])
@pytest.mark.sampled(3)
def test_sums_are_the_same(
    lanes: int, n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "LANES", lanes)
    torch.manual_seed(n)
    x, found = torch.rand(3, n, 5, dtype=dtype), torch.rand(3, 5, dtype=dtype)
    expected = found.clone()
    s = torch.full((3, n), 0.5, dtype=dtype)
    for t in range(5):
        s = s * x[:, :, t]
        expected[:, t] += s.sum(1)
    emulated(columns)(x, found)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("lanes", "n"), [(0, 7), (-1, 96)])
def test_sums_of_several_elements_are_the_same(
    lanes: int, n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "LANES", lanes)
    torch.manual_seed(n)
    x = torch.rand(3, n, 1, dtype=dtype)
    found = torch.rand(3, 5, dtype=dtype), torch.rand(3, 2, dtype=dtype)
    out, last = (t.clone() for t in found)
    s = x[:, :, 0]
    out[:, 0] += (s + 0.5).sum(1)
    out[:, 1] += (3.0 * s).sum(1)
    out[:, 2] += (s + 1.0).sum(1)
    out[:, 4] += (s * s).sum(1)
    last[:, 0] += (1.0 - s).sum(1)
    last[:, 1] += (2.0 * s).sum(1)
    emulated(several)(x, *found)
    torch.testing.assert_close(found, (out, last))


def test_several_elements_are_added_up_together() -> None:
    """Five sums over 32 lanes: 7 shuffles that halve them, two others; two: 1 and 4. Not 35."""
    args = torch.empty(3, 64, 1), torch.empty(3, 5), torch.empty(3, 2)
    (loop,) = compile_for("sm_90", several, *args)
    assert loop.ptx.count("shfl.sync.bfly") == 4 + 2 + 1 + 1 + 1 + 1 + 4
