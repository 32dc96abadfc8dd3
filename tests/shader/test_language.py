"""The tests of the language again, as shaders: on WebGPU, and in Metal's language."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from tests.conftest import adapter
from tests.frontend import test_language as language
from tests.frontend.test_language import *  # noqa: F403 - the same tests
from tests.shader import metal

pytestmark = [pytest.mark.webgpu, pytest.mark.slow]


def as_shader(kernel: weft.Kernel, *args: Any, rtol: float = 1e-5) -> None:
    """As ``test_language.same``, with the loops run as shaders."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    expected = kernel.interpret(*copies)
    found = kernel.on("webgpu")(*args)
    for e, f in zip(language.flat(expected), language.flat(found), strict=True):
        language.close(f, e, rtol)
    for e, f in zip(copies, args, strict=True):
        if isinstance(f, torch.Tensor):
            language.close(f, e, rtol)


def on_metal(kernel: weft.Kernel, *args: Any, rtol: float = 1e-5) -> None:
    try:
        as_shader(kernel, *args, rtol=rtol)
    except TypeError as error:
        if "Metal has no float64" not in str(error):
            raise
        pytest.skip(f"{error}")


@pytest.fixture(autouse=True, params=["webgpu", "metal"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernels of these tests run."""
    if request.param == "metal":
        metal.in_place_of_webgpu(monkeypatch)
    else:
        adapter()
    monkeypatch.setattr(language, "same", on_metal if request.param == "metal" else as_shader)
