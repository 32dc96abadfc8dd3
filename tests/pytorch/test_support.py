"""docs/support.md says what happens."""

import pytest
import torch

from tests.pytorch import support

DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), "cpu"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row", support.ROWS)
@pytest.mark.sampled(5)
def test_the_page_says_what_happens(row, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    said = support.table()[row][support.DEVICES.index(device)]
    if said == "not run":
        pytest.skip(f"the page does not say what happens on {device}")
    assert support.outcome(row, device) == said


def test_the_page_has_these_rows():
    assert [*support.table()] == [*support.ROWS]
