"""Programs of ``torch.export`` with kernels, and kernels with a host part, without Python."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

import weft
from examples.softmax import softmax
from tests import processes
from weft.errors import KernelTypeError, KernelValueError
from weft.pytorch import exported_program, package_texts
from weft.pytorch.hosted import traced_loops
from weft.pytorch.package_texts import Package
from weft.pytorch.releases import PACKAGES, Ability
from weft.runtime import stable

pytestmark = [
    pytest.mark.skipif(bool(stable.missing()), reason=stable.missing()),
    pytest.mark.skipif(PACKAGES.missing, reason=PACKAGES.costs),
    pytest.mark.filterwarnings("ignore"),  # torch.export's own
]


@weft.kernel(fuse=False)
def normalized(x: torch.Tensor, scale: torch.Tensor, eps: float, k: int = 2) -> torch.Tensor:
    y = (x - x.mean(-1, keepdim=True)).contiguous()
    s = torch.empty(x.shape[0], device=x.device)
    for i in range(x.shape[0]):
        t = 0.0
        for j in range(x.shape[1]):
            t += y[i, j] * y[i, j]
        s[i] = weft.rsqrt(t / x.shape[1] + eps)
    out = torch.empty_like(y)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = y[i, j] * s[i] * scale[j] * k
    return out


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.arange(6.0) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return softmax(normalized(x * 2, self.scale, 1e-5, 3)) + 1


def exported_model() -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=4000)
    with torch.no_grad():
        return torch.export.export(Model(), (torch.randn(5, 6),), dynamic_shapes=({0: rows},))


LOAD = """import sys, torch
torch.ops.load_library("libmodel.so")
model = torch.export.load("model.pt2").module()
for rows in (2, 17, 300):
    x = torch.randn(2 * rows, 6)[::2]
    y = 2 * (x - x.mean(-1, keepdim=True))
    y = y * (y.square().mean(1, keepdim=True) + 1e-5).rsqrt() * (torch.arange(6.0) + 1) * 3
    with torch.no_grad():
        torch.testing.assert_close(model(x), y.softmax(1) + 1)
print("weft" in sys.modules)
"""


@pytest.mark.slow
def test_a_program_of_two_kernels(tmp_path: Path) -> None:
    """The library has the operators of one kernel, and of the loops of the other one."""
    program = exported_model()
    weft.export_library(tmp_path / "libmodel.so", program, program)
    torch.export.save(program, tmp_path / "model.pt2")
    (tmp_path / "program.py").write_text(LOAD)
    found = processes.run(tmp_path / "program.py", os.environ, tmp_path)
    assert found.stdout == "False\n", found.stderr


@weft.kernel
def branching(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 3:
        x = x * 2
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out


@weft.kernel
def widened(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x, dtype=torch.float64)
    for i in range(x.shape[0]):
        out[i] = 2 * x[i]
    return out


def test_a_host_part_that_is_no_recipe_and_only_allocates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs have such a kernel as one operator; its program has the host part."""
    loops = traced_loops(widened.operators, exported=True)
    program = exported_program._traced(widened, loops, {"x": torch.randn(4)}, None)
    named = [n.target for n in program.graph.nodes if "widened_loop0" in str(n.target)]
    assert len(named) == 1
    x = torch.randn(9)
    assert torch.equal(program.module()(x), 2 * x.double())
    monkeypatch.setattr(exported_program, "PACKAGES", Ability("packages", "99", ""))
    with pytest.raises(KernelTypeError, match="a package of AOTInductor, and that PyTorch 99"):
        widened.export(tmp_path / "lib.so", (x,))
    with pytest.raises(KernelTypeError, match="takes a dtype, which AOTInductor gives it from"):
        weft.export_library(tmp_path / "lib.so", program)


class Call(torch.nn.Module):
    def __init__(self, kernel: object) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x)  # type: ignore[operator]


def test_what_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    x, scale = torch.randn(5, 6), torch.randn(6)
    with torch.no_grad():
        plain = torch.export.export(Call(torch.relu), (x,))
        opaque = torch.export.export(Call(branching), (scale,))
    with pytest.raises(KernelValueError, match="the programs hold no operators of kernels"):
        weft.export_library(file, plain)
    with pytest.raises(KernelTypeError, match=r"`weft\.branching_\w+\.default` takes Python"):
        weft.export_library(file, opaque)
    with pytest.raises(KernelValueError, match="`z` is no tensor of `normalized`"):
        normalized.export(file, (x, scale, 1e-5), dynamic={"z": None})
    with pytest.raises(KernelValueError, match="`x` is not contiguous in an example"):
        normalized.export(file, (torch.randn(6, 5).t(), scale, 1e-5))
    with pytest.raises(KernelValueError, match="`eps` is int64_t in one example for `normalized`"):
        normalized.export(file, (x, scale, 1e-5), (x, scale, 1))
    rows = torch.export.Dim("rows")
    with pytest.raises(torch._dynamo.exc.UserError, match="= 6 is not equal to"):
        normalized.export(file, (x, scale, 1e-5), dynamic={"x": {0: rows, 1: rows}})
    assert not [*tmp_path.iterdir()]


PROGRAM = r"""#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/types.h>
#include <functional>
#include <iostream>
#include "libnormalized.h"
int main() {
  torch::inductor::AOTIModelPackageLoader model("model.pt2");
  for (int rows : {5, 77}) {
    auto y = model.run({at::arange(rows * 6).reshape({rows, 6}).to(at::kFloat)})[0];
    std::cout << y.sizes() << " " << ((y - 1).sum(1) - 1).abs().max().item<double>() << "\n";
  }
  auto w = at::rand({6});
  for (int rows : {1, 2, 300}) {
    auto x = at::randn({rows, 12}).slice(1, 0, 12, 2), c = x - x.mean(-1, true);
    auto wanted = c * (c.square().mean(1, true) + 1e-5).rsqrt() * w * 2;
    try {
      std::cout << at::allclose(weft::normalized(x, w, 1e-5, 2), wanted, 1e-4, 1e-5) << "\n";
    } catch (const std::invalid_argument& e) { std::cout << e.what() << "\n"; }
  }
  auto x = at::randn({5, 6});
  std::vector<std::function<at::Tensor()>> calls = {
    [&] { return weft::normalized(x, w, 1e-5, 7); }, [&] { return weft::normalized(x, w, 2.5, 2); },
    [&] { return weft::normalized(x.to(at::kDouble), w, 1e-5, 2); },
    [&] { return weft::normalized(x, x, 1e-5, 2); },
    [&] { return weft::normalized(x, at::ones({7}), 1e-5, 2); },
    [&] { return weft::normalized(x, w.set_requires_grad(true), 1e-5, 2); }};
  for (auto& call : calls)
    try { std::cout << call().sizes() << "\n"; }
    catch (const std::invalid_argument& e) { std::cout << e.what() << "\n"; }
}
"""
SAID = """normalized: `x` has size 1 along axis 0, and the package is for 2 to 4000
1
1
normalized: `k` is 7, and the package has 2
normalized: `eps` is 2.5, and the package has 1e-05
normalized: `x` is Double, and the package is for Float
normalized: `scale` has 2 dimensions, and the package is for 1
normalized: `scale` has size 7 along axis 0, and the package is for 6
normalized: `scale` requires a gradient, and the package has none: call it under at::NoGradGuard
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with a package of AOTInductor that has two kernels, and a kernel with a host part.
    To make them takes as long as to use them in C++."""
    program = exported_model()
    weft.export_library(tmp_path / "libmodel.so", program)
    torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    rows = torch.export.Dim("rows", min=2, max=4000)
    example = torch.randn(5, 6), torch.randn(6), 1e-5
    normalized.export(tmp_path / "libnormalized.so", example, dynamic={"x": {0: rows}})
    return tmp_path


def test_packages_of_an_earlier_library_are_removed(tmp_path: Path) -> None:
    """And those of others stay."""
    files = ("libsquare.pt2", "libsquare_1.pt2")
    for name in (*files, "libsquare_big.pt2", "model.pt2"):
        (tmp_path / name).touch()
    x = torch.rand(3, 4)
    packages = [Package(name, (("x", x),), {}, 1, frozenset()) for name in files]
    package_texts.write(tmp_path / "libsquare.so", "square", "weft", packages, {})
    softmax.export(tmp_path / "libsquare.so", (x,))
    assert {p.name for p in tmp_path.glob("*.pt2")} == {"libsquare_big.pt2", "model.pt2"}
    assert (tmp_path / "libsquare.so").exists()


@pytest.mark.slow
def test_a_program_of_cpp(packages: Path) -> None:
    """A package of AOTInductor with two kernels, and a kernel with a host part, by its header."""
    tmp_path = packages
    names = ("libnormalized.so", "libnormalized.pt2", "libnormalized.h")
    assert {*names, "libnormalized_example.cpp"} <= {*os.listdir(tmp_path)}
    lines = (tmp_path / "libnormalized_example.cpp").read_text().split("\n")
    command = "".join(line.removeprefix("// ").removesuffix("\\") for line in lines[1:4])
    (tmp_path / "program.cpp").write_text(PROGRAM)
    command = command.replace("libnormalized_example.cpp", "-o program program.cpp ./libmodel.so")
    place = {**os.environ, "torch": str(Path(torch.__file__).parent)}
    # The option that keeps libraries which nothing refers to stands in front of them.
    command = command.replace("c++ ", "c++ -Wl,--no-as-needed ")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=place)
    said = subprocess.run("./program", cwd=tmp_path, check=True, capture_output=True, text=True)
    first, second, rest = said.stdout.split("\n", 2)
    assert rest == SAID
    for line, shape in ((first, "[5, 6]"), (second, "[77, 6]")):
        assert line.startswith(shape)
        assert float(line.removeprefix(shape)) < 1e-5
