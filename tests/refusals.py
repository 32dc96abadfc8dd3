"""Programs that are refused, by a message that says what to write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft


def check_refused(plain: Callable[..., None], x: torch.Tensor, message: str, help: str) -> None:
    """Asserts that ``plain`` as a kernel, of ``x``, raises an error with these texts."""
    with pytest.raises(weft.CompileError) as caught:
        weft.kernel(plain)(x)
    assert message in str(caught.value)
    assert f"help: {help}" in str(caught.value)
