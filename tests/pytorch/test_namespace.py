"""``torch.ops.weft`` and other namespaces of kernels."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

import weft
from tests import processes
from weft.errors import KernelNameError, KernelTypeError

KERNEL = """import torch, weft
@weft.kernel
def exported_double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in x:
        out[i] = x[i] * 2
    return out
class Model(torch.nn.Module):
    def forward(self, x):
        return exported_double(x)
"""
SAVE = """import torch, exported_kernel as k
torch.export.save(torch.export.export(k.Model(), (torch.ones(3),)), 'model.pt2')
"""
LOAD = """import torch, exported_kernel
print(torch.export.load('model.pt2').module()(torch.ones(3)).tolist())
"""


def test_an_exported_program_in_a_new_process(tmp_path: Path) -> None:
    def run(code: str) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(code)
        return processes.run(program, os.environ, tmp_path)

    file = tmp_path / "exported_kernel.py"
    file.write_text(KERNEL)
    assert run(SAVE).returncode == 0
    file.write_text(KERNEL.replace("    out =", "    # a comment\n    out ="))
    assert run(LOAD).stdout == "[2.0, 2.0, 2.0]\n"
    file.write_text(KERNEL.replace("* 2", "* 3"))
    assert "no kernel `exported_double` of this process has the operator" in run(LOAD).stderr


def test_operators_are_made_when_they_are_asked_for() -> None:
    @weft.kernel
    def never_called(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] + 1
        return out

    assert "parts" not in vars(never_called)  # nothing is parsed by the decorator
    packet = torch.ops.weft.never_called
    assert packet.default is never_called.op
    assert packet(torch.ones(2)).tolist() == [2.0] * 2

    @weft.kernel(namespace="weft_tests", name="mine")
    def another(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] - 1
        return out

    assert torch.ops.weft_tests.mine(torch.ones(2)).tolist() == [0.0] * 2
    name = another.op._schema.name
    assert name.startswith("weft_tests::mine_")
    assert not hasattr(torch.ops.weft, "mine")
    assert hasattr(torch.ops.weft_tests, name.partition("::")[2] + "_backward")


def test_what_an_operator_is_not_made_of() -> None:
    @weft.kernel
    def unannotated(x):
        for i in range(x.shape[0]):
            x[i] += 1

    with pytest.raises(KernelTypeError, match="nothing says what `x` is"):
        _ = torch.ops.weft.unannotated
    assert not hasattr(torch.ops.weft, "no_kernel_is_called_this")

    @weft.kernel
    def edited(x: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            x[i] += 1

    with pytest.raises(KernelNameError) as info:
        _ = torch.ops.weft.edited_01234567
    assert info.value.message == (
        "no kernel `edited` of this process has the operator `weft::edited_01234567`"
    )
    assert info.value.help == (
        "the hash in the name is that of the kernel's text, of what it calls, of the kinds of its "
        "arguments and of weft. If one has changed, export the graph again; otherwise call the "
        "kernel once as the graph does, under torch.compile, say"
    )
    del edited, info
