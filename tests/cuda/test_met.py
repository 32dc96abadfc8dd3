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
