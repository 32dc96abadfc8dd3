"""docs/support.md says what happens."""

import pytest
import torch

from tests.pytorch import support
from weft.pytorch import releases

# Rows of the CPU's column, which is of torch 2.13, that torch 2.10 and 2.11 have not: the page says
# so below.
NOT_OF_OLD = {
    "`torch.export(strict=True)`": releases.STRICT_EXPORT,
    "`kernel.export`, `weft.export_library`": releases.PACKAGES,
    "the same of `torch.func.jacfwd`, of several arguments": releases.COMPILED_JACFWD,
}
DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), "cpu"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row", support.ROWS)
@pytest.mark.sampled(5)
def test_the_page_says_what_happens(row, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    if row in NOT_OF_OLD and NOT_OF_OLD[row].missing:
        pytest.skip(NOT_OF_OLD[row].costs)
    said = support.table()[row][support.DEVICES.index(device)]
    if said == "not run":
        pytest.skip(f"the page does not say what happens on {device}")
    assert support.outcome(row, device) == said


def test_the_page_has_these_rows():
    assert [*support.table()] == [*support.ROWS]
    assert {*NOT_OF_OLD} <= {*support.ROWS}
