"""What cannot be given is refused: batching, and order-dependent sums torch forbids."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.errors import GradientError


@weft.kernel
def square(x):
    out = torch.empty_like(x)
    for i in x:
        out[i] = x[i] * x[i]
    return out


@weft.kernel
def pick(x, index):
    out = torch.empty(index.shape[0])
    for i in index:
        out[i] = x[index[i]] * 2.0
    return out


def test_vmap_is_refused() -> None:
    for transformed in (torch.vmap(square), torch.func.jacfwd(square), torch.func.hessian(square)):
        with pytest.raises(GradientError, match="a kernel has no batching rule yet"):
            transformed(torch.ones(2))
