"""On a CUDA device: the checks that ``benchmarks/gpu_check.py`` runs by hand, as tests."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu_check

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize(
    "section", ["about", "gallery_kernels", "mathematics", "random_kernels", "launching"]
)
def test_nothing_is_wrong(section: str) -> None:
    gpu_check.failures.clear()
    gpu_check.SECTIONS[section]()
    assert gpu_check.failures == []
