"""The tests of the language again, on WebGPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from tests.conftest import adapter
from tests.frontend import test_language as language
from tests.frontend.test_language import *  # noqa: F403 - the same tests

pytestmark = [pytest.mark.webgpu, pytest.mark.slow]


def on_webgpu(kernel: weft.Kernel, *args: Any, rtol: float = 1e-5) -> None:
    """As ``test_language.same``, with the loops run as shaders."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    expected = kernel.interpret(*copies)
    found = kernel.on("webgpu")(*args)
    for e, f in zip(language.flat(expected), language.flat(found), strict=True):
        language.close(f, e, rtol)
    for e, f in zip(copies, args, strict=True):
        if isinstance(f, torch.Tensor):
            language.close(f, e, rtol)


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernels of these tests run."""
    adapter()
    monkeypatch.setattr(language, "same", on_webgpu)
