"""docs/support.md says what happens."""

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.pytorch import support

# Rows of the CPU's column, which is of torch 2.13, that torch 2.10 has not: the page says so below.
NOT_OF_OLD = (
    "the same, writing to an argument, backward", "`torch.export(strict=True)`",
    "`torch.func`, writing to an argument", "`kernel.export`, `weft.export_library`",
    "the same of `torch.func.jacfwd`, of several arguments",
)  # fmt: skip
OLD = TorchVersion(torch.__version__) < "2.11"
DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), "cpu"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row", support.ROWS)
@pytest.mark.sampled(5)
def test_the_page_says_what_happens(row, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    if OLD and row in NOT_OF_OLD:
        pytest.skip("an older torch")
    said = support.table()[row][support.DEVICES.index(device)]
    if said == "not run":
        pytest.skip(f"the page does not say what happens on {device}")
    assert support.outcome(row, device) == said


def test_the_page_has_these_rows():
    assert [*support.table()] == [*support.ROWS]
    assert {*NOT_OF_OLD} <= {*support.ROWS}
