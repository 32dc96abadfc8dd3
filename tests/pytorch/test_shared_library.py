"""Kernels as shared libraries, for programs without Python."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests import processes
from weft.errors import KernelTypeError, KernelValueError
from weft.runtime import stable

pytestmark = pytest.mark.skipif(bool(stable.missing()), reason=stable.missing())


@weft.kernel
def exported(x: torch.Tensor, w: torch.Tensor, n: int, s: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] * s + w[j] * n
    return out


LOAD = """import sys, torch
torch.ops.load_library("libexported.so")
exported = torch.ops.weft.exported
for x, w in ((torch.randn(300, 500), torch.randn(500)), (torch.randn(3, 4), torch.randn(4))):
    for kind in (torch.float32, torch.float64):
        x, w = x.to(kind), w.to(kind)
        torch.testing.assert_close(exported(x, w, 3, 1.5), x * 1.5 + w * 3)
for x in (torch.ones(3, 4, dtype=torch.int32), torch.randn(3, 4, requires_grad=True)):
    try:
        exported(x, torch.ones(4), 3, 1.5)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
print("weft" in sys.modules, *torch.ops.weft.exported.overloads())
"""


def make(folder: Path) -> None:
    x, w = torch.randn(5, 6), torch.randn(6)
    examples: list[Any] = [(x, w, 2, 0.5), (x.double(), w.double(), 2, 0.5)]
    exported.export(folder / "libexported.so", *examples)


def test_a_library_without_weft(tmp_path: Path) -> None:
    make(tmp_path)
    names = ["libexported.h", "libexported.so", "libexported_example.cpp"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    program = tmp_path / "program.py"
    program.write_text(LOAD.replace('"libexported.so"', repr(str(tmp_path / "libexported.so"))))
    found = processes.run(program, os.environ, tmp_path)
    said = "exported: the library has no code for such arguments, nor gradients"
    assert found.stdout.splitlines() == [said, said, "False default"], found.stderr


@weft.kernel
def branching(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 3:
        x = x * 2
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(KernelTypeError, match="`branching` cannot be exported"):
        branching.export(tmp_path / "lib.so", (torch.ones(3),))
    with pytest.raises(KernelTypeError, match="give examples of its arguments, as tuples"):
        exported.export(tmp_path / "lib.so")
    turned = torch.ones(3, 4).t()
    with pytest.raises(KernelValueError, match="`exported` takes Python for an example"):
        exported.export(tmp_path / "lib.so", (turned, torch.ones(3), 2, 0.5))
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_program_of_c(tmp_path: Path) -> None:
    """The example is built as it says, and runs."""
    make(tmp_path)
    example = tmp_path / "libexported_example.cpp"
    lines = [
        line.removeprefix("// ").removesuffix("\\") for line in example.read_text().split("\n")
    ]
    command = lines[1].replace("c++ ", "c++ -o example ")
    place = {**os.environ, "torch": str(Path(torch.__file__).parent)}
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=place)
    said = subprocess.run("./example", cwd=tmp_path, check=True, capture_output=True, text=True)
    assert said.stdout == "75\n"  # 30 elements of 0.5 + 2


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return exported(x * 2, w, 3, 0.5) + 1


PACKAGE = """import sys, torch
torch.ops.load_library(FOLDER + "/libexported.so")
model = torch._inductor.aoti_load_package(FOLDER + "/model.pt2")
x, w = torch.randn(100, 6), torch.randn(6)
torch.testing.assert_close(model(x, w), x + w * 3 + 1)
print("weft" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch.export's own
def test_a_package_of_inductor_without_weft(tmp_path: Path) -> None:
    make(tmp_path)
    rows = torch.export.Dim("rows", min=2, max=4000)
    args = torch.randn(5, 6), torch.randn(6)
    program = torch.export.export(Model(), args, dynamic_shapes=({0: rows}, None))
    torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    text = PACKAGE.replace("FOLDER", repr(str(tmp_path)))
    (tmp_path / "program.py").write_text(text)
    found = processes.run(tmp_path / "program.py", os.environ, tmp_path)
    assert found.stdout == "False\n", found.stderr
