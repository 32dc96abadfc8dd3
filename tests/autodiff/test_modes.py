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


def test_deterministic_algorithms() -> None:
    x = torch.randn(5, requires_grad=True)
    index = torch.tensor([0, 3, 3, 1])
    pick(x, index).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 0.0, 4.0, 0.0]
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(GradientError, match="which is not deterministic"):
            pick(x, index).sum().backward()
        square(x).sum().backward()
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="which is not deterministic"):
            pick(x, index).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
