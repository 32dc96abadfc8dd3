"""What kernels compute in the Metal Shading Language, compiled as C++."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import weft
from tests.shader import metal


@pytest.fixture(autouse=True)
def on_metal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``kernel.on("webgpu")`` runs Metal's language, and the C++ of every text compiles."""
    metal.in_place_of_webgpu(monkeypatch)
    before = metal.DEVICE.texts
    yield
    assert metal.DEVICE.texts > before


def test_reductions_take_two_stages() -> None:
    @weft.kernel
    def f(x):
        s, low = 0.0, 9.0
        for i in range(x.shape[0]):
            s += x[i]
            low = min(low, x[i])
        return s, low

    x = torch.randn(5000)
    s, low = f.on("webgpu")(x)
    torch.testing.assert_close(s, x.sum(), rtol=1e-4, atol=1e-4)
    assert low == x.min()
    s, low = f.on("webgpu")(x[:0])
    assert (s, low) == (0, 9)
