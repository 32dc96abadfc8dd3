"""What is imported when: the compiler is not there before something is compiled."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import adapter

MOST = 60  # modules of ours that `import weft` loads
COMPILER = (
    "weft.compiler", "weft.frontend.lower", "weft.frontend.expressions", "weft.ir.text",
    "weft.passes", "weft.index", "weft.autodiff", "weft.codegen.llvm", "llvmlite.binding", "islpy",
)  # fmt: skip
LATER = ("weft.pytorch.library", "weft.pytorch.autograd", "weft.runtime.watch", "platformdirs")

KERNEL = """
import torch
import weft

GAIN = 3.0


def bent(x: float) -> float:
    return x * GAIN + 1.0


@weft.kernel
def plain(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = bent(x[i]) + weft.sqrt(max(x[i], 4.0))
    return out


@weft.kernel
def total(x: torch.Tensor) -> torch.Tensor:
    s = 0.0
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        s += x[i, j]
    return s
"""
CALLS = """
import sys
import torch
import kernels

x = torch.arange(4.0)
assert kernels.plain(x).tolist() == [3.0, 6.0, 9.0, 12.0]
assert kernels.total(torch.ones(3, 4)).item() == 12.0
origins = {s.origin for k in (kernels.plain, kernels.total) for s in k.specializations}
print(*origins)
packages = "weft", "llvmlite", "islpy", "fractions"
print(*(m for m in sys.modules if m.partition(".")[0] in packages))
"""
SHADER = """
import sys
import torch
import kernels
from weft import webgpu

assert kernels.plain.on("webgpu")(torch.arange(4.0)).tolist() == [3.0, 6.0, 9.0, 12.0]
assert webgpu.buffer(torch.arange(4.0)).numpy().sum() == 6.0
print(*sys.modules)
"""
OPERATOR = """
import sys
import torch
import kernels

assert kernels.plain.op(torch.arange(4.0)).tolist() == [3.0, 6.0, 9.0, 12.0]
print(*sys.modules)
"""
GRADIENT = """
x.requires_grad_()
kernels.plain(x).sum().backward()
assert torch.allclose(x.grad, torch.full((4,), 3.0)), x.grad
assert "weft.pytorch.autograd" in sys.modules
"""


def run(text: str, *paths: Path) -> list[list[str]]:
    """The words of each line that a new process prints."""
    places = [*map(str, paths), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    environment.pop("WEFT_LOGS", None)
    if paths:
        environment["WEFT_CACHE_DIR"] = str(paths[0] / "cache")
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def loaded(names: list[str], wanted: tuple[str, ...]) -> list[str]:
    return [n for n in names for w in wanted if n == w or n.startswith(f"{w}.")]


def test_importing_weft_is_light():
    (new,) = run("import sys, torch; before = {*sys.modules}; import weft\n"
                 "print(*(m for m, v in sys.modules.items() if m not in before\n"
                 "        and getattr(v, '__name__', m) == m))")  # fmt: skip
    own = [n for n in new if n.partition(".")[0] == "weft"]
    assert len(own) <= MOST, "import it where it is needed, or take another import out"
    assert loaded(new, (*COMPILER, *LATER)) == []


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="LLVM describes the processor elsewhere",
)
def test_a_call_from_the_disk_cache_imports_no_compiler(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNEL)
    origins, names = run(CALLS, tmp_path)
    assert origins == ["compiled"]
    assert loaded(names, COMPILER) != []
    assert loaded(names, ("weft.schedule.choose", "fractions")) == [], (
        "for GPUs, and for rare folds"
    )
    origins, names = run(CALLS + GRADIENT, tmp_path)
    assert origins == ["disk"]
    assert loaded(names, (*COMPILER, *LATER)) == []


@pytest.mark.webgpu
def test_a_shader_needs_no_llvm_and_a_buffer_nothing_of_torchs(tmp_path):
    adapter()
    (tmp_path / "kernels.py").write_text(KERNEL)
    (names,) = run(SHADER, tmp_path)
    assert loaded(names, ("weft.codegen.shader.emit",)) != []
    assert loaded(names, ("llvmlite.binding", "torch.distributed.tensor", "sympy")) == []


def test_an_operator_without_a_gradient_imports_none(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNEL)
    (names,) = run(OPERATOR, tmp_path)
    assert "weft.pytorch.library" in names
    assert loaded(names, ("weft.autodiff", "weft.pytorch.autograd")) == []


@pytest.mark.slow
def test_a_transform_may_be_the_first_to_use_a_kernel(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNEL)
    (tangent,) = run("import torch, kernels\n"
                     "square = torch.func.grad(lambda x: kernels.plain(x).square().sum())\n"
                     "given = torch.ones(2), torch.ones(2)\n"
                     "print(*torch.func.jvp(square, given[:1], given[1:])[1].tolist())",
                     tmp_path)  # fmt: skip
    assert tangent == ["18.0", "18.0"]
