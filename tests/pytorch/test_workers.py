"""Kernels in workers of a DataLoader."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import weft


@weft.kernel
def squares(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]
    return out


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, n: int) -> torch.Tensor:
        return squares(torch.full((20_000,), float(n)))  # which threads share


@pytest.mark.parametrize("start", [
    "fork", pytest.param("spawn", marks=pytest.mark.slow),  # which imports torch anew
])  # fmt: skip
def test_workers_call_kernels(start: Any) -> None:
    expected = torch.stack([Rows()[n] for n in range(4)])  # this process has called it before
    loader = DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context=start)
    torch.testing.assert_close(torch.cat([*loader]), expected)
