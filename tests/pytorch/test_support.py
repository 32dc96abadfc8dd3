"""docs/support.md says what happens."""

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.pytorch import support

# Rows of the CPU's column, which is of torch 2.13, that torch 2.10 has not (torch 2.11 has not
# the last three): the page says so below.
NOT_OF_OLD = (
    "the same, writing to an argument, backward", "`torch.func`, writing to an argument",
    "`torch.export(strict=True)`", "`kernel.export`, `weft.export_library`",
    "the same of `torch.func.jacfwd`, of several arguments",
)  # fmt: skip
VERSION = TorchVersion(torch.__version__)
ABSENT = NOT_OF_OLD if VERSION < "2.11" else NOT_OF_OLD[-3:] if VERSION < "2.13" else ()
DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), "cpu"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row", support.ROWS)
@pytest.mark.sampled(5)
def test_the_page_says_what_happens(row, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    if row in ABSENT:
        pytest.skip("an older torch")
    said = support.table()[row][support.DEVICES.index(device)]
    if said == "not run":
        pytest.skip(f"the page does not say what happens on {device}")
    assert support.outcome(row, device) == said


def test_the_page_has_these_rows():
    assert [*support.table()] == [*support.ROWS]
    assert {*NOT_OF_OLD} <= {*support.ROWS}
