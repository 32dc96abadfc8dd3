"""Kernels as shared libraries, for programs without Python."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from examples.softmax import softmax
from tests import processes
from weft.errors import KernelTypeError, KernelValueError
from weft.pytorch import shared_library
from weft.runtime import stable

pytestmark = pytest.mark.skipif(bool(stable.missing()), reason=stable.missing())

OFFSET = 3.0
TABLE = torch.ones(3)


def moved(value):
    return value + OFFSET


@weft.kernel
def exported(x: torch.Tensor, w: torch.Tensor, n: int, s: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = x[i, j] * s + w[j] * n + OFFSET
    return out


@weft.kernel
def moving(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = moved(x[i])
    return out


@weft.kernel
def accumulate(acc, x):
    for i in range(x.shape[0]):
        acc[i] += x[i]


@weft.kernel
def several(x: torch.Tensor, at: tuple[int, int], on: bool = True):
    out = torch.empty_like(x)
    filled = torch.zeros_like(x)
    s = 0.0
    for i in range(x.shape[0]):
        out[i] = x[i] * at[1] if on else x[i]
        filled[i] += x[i]
        s += x[i]
    return out, s, filled


@weft.kernel
def total(x):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
    return s


LOAD = """import os, sys, threading, torch
for name in ("exported", "accumulate", "total", "several"):
    torch.ops.load_library(f"{FOLDER}/lib{name}.so")
weft, same = torch.ops.weft, torch.testing.assert_close
for dtype in (torch.float32, torch.float64):
    for r, c in ((300, 500), (17, 127), (1, 1), (2, 1), (0, 5), (5, 0)):
        wide = torch.randn(2 * r + 1, 3 * c + 1, dtype=dtype)
        for x in (wide[:r, :c].clone(), wide[:r, :c], wide[1::2, 1::3], wide[:c, :r].t(),
                  torch.randn(1, c, dtype=dtype).expand(r, c)):
            w = torch.randn(2 * x.shape[1], dtype=dtype)
            for w in (w[: x.shape[1]], w[::2], w[:1].expand(x.shape[1])):
                y = weft.exported(x, w, 3, 1.5)
                same(y, x * 1.5 + w * 3 + 3)
                assert y.stride() == torch.empty_like(x).stride()
for n in (0, 1, 2, 3, 17, 100_003):
    for x in (torch.randn(n), torch.randn(3 * n)[::3]):
        same(weft.total(x), x.sum(), atol=1e-2, rtol=1e-3)
        for acc in (torch.randn(n), torch.randn(2 * n)[::2]):
            before, version = acc.clone(), acc._version
            weft.accumulate(acc, x)
            same(acc, before + x)
            assert acc._version == version + 1
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        out, s, filled = weft.several(x.to(dtype), (3, 4))
        same((out, filled), (x.to(dtype) * 4, x.to(dtype)))
        same(s.double(), x.to(dtype).double().sum(), atol=1 + n / 100, rtol=0.05)
        same(weft.several(x.to(dtype), (3, 4), on=False)[0], x.to(dtype))
def look():
    for _ in range(50):
        x = torch.randn(64, 70)
        same(weft.exported(x, x[0], 1, 1.0), x + x[0] + 3)
threads = [threading.Thread(target=look) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
x, w = torch.ones(3, 4), torch.ones(4)
with torch.inference_mode():
    inference = torch.ones(4)
calls = [
    lambda: weft.exported(x.int(), w, 3, 1.5),
    lambda: weft.exported(x, w.double(), 3, 1.5),
    lambda: weft.exported(x, x, 3, 1.5),
    lambda: weft.exported(x, w.requires_grad_(), 3, 1.5),
    lambda: weft.several(x[0], (1, 2, 3)),
    lambda: weft.accumulate(x[0], x[0, 1:]),
    lambda: weft.accumulate(x[:1, 0].expand(4), x[1]),
    lambda: weft.accumulate(inference, x[1]),
]
for call in calls:
    try:
        print(call())
    except RuntimeError as error:
        print(str(error).splitlines()[0][:70])
with torch.no_grad():
    same(weft.exported(x, w, 3, 1.5), x * 7.5)
if os.fork() == 0:  # a child, which has no threads of the pool
    same(weft.exported(torch.ones(1000, 1000), torch.ones(1000), 3, 1.5).sum(), torch.tensor(7.5e6))
    os._exit(5)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 5
print("weft" in sys.modules, *weft.exported.overloads())
"""
SAID = """exported: `x` is int32, and the library has code for float32, float64
exported: the library has code for each of the arguments' dtypes and d
exported: `w` has 2 dimensions, and the library has code for 1
exported: `w` requires a gradient, and the library has none: call it u
several: `at` has 3 items, and the library has code for 2
accumulate: an argument that is written shares memory with another, ha
accumulate: an argument that is written shares memory with another, ha
accumulate: an argument that is written shares memory with another, ha
False default
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the libraries of the kernels above."""
    place = tmp_path_factory.mktemp("libraries")
    x, w = torch.randn(5, 6), torch.randn(6)
    examples: list[Any] = [(x, w, 2, 0.5), (x.double(), w.double(), 2, 0.5)]
    exported.export(place / "libexported.so", *examples)
    accumulate.export(place / "libaccumulate.so", (w, w))
    total.export(place / "libtotal.so", (w,))
    several.export(place / "libseveral.so", (w, (1, 2)), (w.half(), (1, 2)), (w.bfloat16(), (1, 2)))
    return place


def run(folder: Path, text: str, name: str) -> Any:
    """A program of Python that does not import weft."""
    program = folder / name
    program.write_text(f"FOLDER = {str(folder)!r}\n{text}")
    return processes.run(program, os.environ, folder)


def test_a_library_without_weft(folder: Path) -> None:
    assert {"libexported.h", "libexported.so", "libexported_example.cpp"} <= {*os.listdir(folder)}
    found = run(folder, LOAD, "program.py")
    assert found.stdout == SAID, found.stderr


PROGRAM = r"""#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "libexported.h"
int aoti_torch_empty_strided(int64_t, const int64_t *, const int64_t *, int, int, int, void **);
int aoti_torch_get_data_ptr(void *, void **);
static void *made(int64_t rank, int64_t r, int64_t c, float value) {
  int64_t sizes[] = {r, c}, strides[] = {c, 1};
  void *tensor, *data;
  if (aoti_torch_empty_strided(rank, sizes, rank == 1 ? strides + 1 : strides, 6, 0, 0, &tensor))
    abort();
  aoti_torch_get_data_ptr(tensor, &data);
  for (int k = 0; k < r * c; k++) ((float *)data)[k] = value + k;
  return tensor;
}
int main(void) {
  double s = 0.5;
  uint64_t stack[4] = {(uint64_t)made(2, 3, 4, 1), (uint64_t)made(1, 4, 1, 10), 2};
  memcpy(stack + 3, &s, 8);
  const char *why = weft_exported(stack);
  if (why) { puts(why); return 1; }
  float *data;
  aoti_torch_get_data_ptr((void *)stack[0], (void **)&data);
  for (int k = 0; k < 12; k++) printf("%g ", data[k]);
  uint64_t wrong[4] = {(uint64_t)made(2, 3, 4, 1), (uint64_t)made(2, 1, 4, 1), 2};
  puts(weft_exported(wrong));
}
"""


def test_a_program_of_c(folder: Path) -> None:
    """The entry of C, and the header as C takes it."""
    (folder / "program.c").write_text(PROGRAM)
    place = Path(torch.__file__).parent / "lib"
    command = ["cc", "-o", "program", "program.c", "./libexported.so", f"-L{place}", "-ltorch_cpu",
               "-lc10", f"-Wl,-rpath,{place},-rpath,{folder}"]  # fmt: skip
    subprocess.run(command, check=True, cwd=folder)
    said = subprocess.run("./program", cwd=folder, check=True, capture_output=True, text=True)
    values = [(1 + k) * 0.5 + (10 + k % 4) * 2 + OFFSET for k in range(12)]
    line = "exported: `w` has 2 dimensions, and the library has code for 1"
    assert said.stdout == "".join(f"{v:g} " for v in values) + line + "\n"


BESIDE = """import torch
torch.ops.load_library(f"{FOLDER}/libexported.so")
torch.ops.load_library(f"{FOLDER}/second.so")
print(torch.ops.weft.exported.overloads(), flush=True)
torch.ops.load_library(f"{FOLDER}/third.so")
"""


def test_several_libraries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernel twice is one operator; with other values from around it a process does not
    load it. Beside weft a library leaves the kernel alone."""
    shutil.copy(folder / "libexported.so", folder / "second.so")
    monkeypatch.setitem(globals(), "OFFSET", 5.0)
    x, w = torch.randn(5, 6), torch.randn(6)
    exported.export(folder / "third.so", (x, w, 2, 0.5))
    assert "// `OFFSET`, from around the kernel, is 5.0." in (folder / "third.h").read_text()
    found = run(folder, BESIDE, "beside.py")
    assert found.stdout == "['default']\n"
    assert "with other values from around the kernel" in found.stderr
    torch.ops.load_library(str(folder / "libexported.so"))
    torch.testing.assert_close(exported(x, w, 2, 0.5), x * 0.5 + w * 2 + 5)
    torch.testing.assert_close(exported.op(x, w, 2, 0.5), x * 0.5 + w * 2 + 5)


@weft.kernel
def branching(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 3:
        x = x * 2
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out


@weft.kernel
def captures(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * TABLE[i]
    return out


@weft.kernel
def asserts(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        assert x[i] > 0
        out[i] = x[i]
    return out


@weft.kernel
def biased(x: torch.Tensor, bias: torch.Tensor | None, mode: str = "plain") -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] if bias is None else x[i] + bias[i]
    return out


@weft.kernel
def powered(x: torch.Tensor, exponent: float | None = None) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] if exponent is None else x[i] ** exponent
    return out


def test_arguments_that_a_library_does_not_take_are_named(tmp_path: Path) -> None:
    file, x = tmp_path / "lib.so", torch.ones(3)
    for bias in (None, x):
        with pytest.raises(KernelTypeError, match="cannot be exported: `bias` may be None\n"):
            biased.export(file, (x, bias))
    with pytest.raises(KernelTypeError, match="`exponent` is no tensor and no number\n"):
        powered.export(file, (x,))
    powered.export(file, (x, 2.0))
    assert file.exists()


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    x, w = torch.ones(3, 4), torch.ones(4)
    with pytest.raises(KernelTypeError, match="`branching` cannot be exported"):
        branching.export(file, (torch.ones(3),))
    with pytest.raises(KernelTypeError, match="give examples of its arguments, as tuples"):
        exported.export(file)
    with pytest.raises(KernelTypeError, match="an example for `exported` is a Tensor\n"):
        exported.export(file, torch.ones(2, 3))
    with pytest.raises(KernelValueError, match="`captures` takes the tensor `TABLE` from around"):
        captures.export(file, (torch.ones(3),))
    with pytest.raises(KernelValueError, match="`asserts` takes Python for an example"):
        asserts.export(file, (torch.ones(3),))
    with pytest.raises(KernelTypeError, match="differ in more than kinds of tensors"):
        total.export(file, (w,), (2.0,))
    with pytest.raises(KernelValueError, match="`pdp-11` is no target"):
        exported.export(file, (x, w, 2, 0.5), target="pdp-11")
    with pytest.raises(KernelValueError, match="for `exported` are on meta"):
        exported.export(file, (x.to("meta"), w.to("meta"), 2, 0.5))
    with pytest.raises(KernelValueError, match="for `exported` are on cpu"):
        exported.export(file, (x, w, 2, 0.5), target="sm_90")
    assert not [*tmp_path.iterdir()]


def test_a_value_of_a_function_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moving.export(tmp_path / "lib.so", (torch.ones(3),))
    assert "// `OFFSET`, from around the kernel, is 3.0." in (tmp_path / "lib.h").read_text()
    monkeypatch.setitem(globals(), "OFFSET", 5.0)
    with pytest.raises(KernelValueError, match="`OFFSET`, of a function that `moving` calls, has"):
        moving.export(tmp_path / "lib.so", (torch.ones(3),))


@weft.kernel
def blurred(x: torch.Tensor, w: torch.Tensor, n: int) -> torch.Tensor:
    r = w.shape[0] // 2
    out = torch.empty(x.shape[0], n % 5 + 1, device=x.device)
    for i, k in weft.ndrange(x.shape[0], n % 5 + 1):
        s = 0.0
        for a in range(w.shape[0]):
            if i + a - r >= 0 and i + a - r < x.shape[0]:
                s += w[a] * x[i + a - r]
        out[i, k] = s * k
    return out


@weft.kernel
def bins(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty(n, dtype=torch.int64)
    for b in range(n):
        count = 0
        for i in range(x.shape[0]):
            if x[i] == b:
                count += 1
        out[b] = count
    return out


@weft.kernel
def counting(n: int) -> torch.Tensor:
    out = torch.empty(n, dtype=torch.int64)
    for i in range(n):
        out[i] = i
    return out


COMPUTED = """import sys, torch
for name in ("blurred", "bins"):
    torch.ops.load_library(f"{FOLDER}/lib{name}.so")
weft = torch.ops.weft
torch.set_default_dtype(torch.float64)  # the library has what it was
for rows, taps, n in ((20, 3, 7), (17, 4, -1), (1, 1, 0), (0, 3, 4), (127, 8, 4)):
    for x in (torch.randn(rows, dtype=torch.float32), torch.randn(3 * rows)[::3].float()[::1]):
        w = torch.randn(2 * taps, dtype=torch.float32)[::2]
        padded = torch.nn.functional.pad(x, (taps // 2, taps))[None]
        wanted = torch.nn.functional.conv1d(padded, w[None, None])[0, :rows] if rows else x
        y = weft.blurred(x, w, n)
        assert y.shape == (rows, n % 5 + 1) and y.dtype == torch.float32
        torch.testing.assert_close(y, wanted[:, None] * torch.arange(n % 5 + 1).float())
x = torch.randint(5, (100,))
for n in (5, 9):
    assert torch.equal(weft.bins(x, n), torch.bincount(x, minlength=n))
assert weft.bins(x, 0).shape == (0,)
try:
    weft.bins(x, -1)
except RuntimeError as error:
    print("a size that is computed is below zero" in str(error), "weft" in sys.modules)
"""


@pytest.mark.slow
def test_a_library_whose_host_part_computes_sizes(tmp_path: Path) -> None:
    """Is one file: the host part is in it."""
    x, w = torch.randn(20), torch.randn(3)
    blurred.export(tmp_path / "libblurred.so", (x, w, 3))
    bins.export(tmp_path / "libbins.so", (torch.arange(3), 3))
    assert not [*tmp_path.glob("*.pt2")]
    assert "`torch.get_default_dtype()`, from around the kernel, is torch.float32" in (
        (tmp_path / "libblurred.h").read_text()
    )
    (tmp_path / "program.py").write_text(f"FOLDER = {str(tmp_path)!r}\n{COMPUTED}")
    found = processes.run(tmp_path / "program.py", os.environ, tmp_path)
    assert found.stdout == "True False\n", found.stderr


def test_a_library_for_a_gpu_whose_host_part_computes_sizes(tmp_path: Path) -> None:
    """Tensors on the CPU are no part of it."""
    x, w = torch.empty(1000, device="meta"), torch.empty(3, device="meta")
    blurred.export(tmp_path / "lib.so", (x, w, 3), target="sm_90")
    with pytest.raises(KernelValueError, match=r"makes tensors where its arguments are \(device="):
        bins.export(tmp_path / "lib.so", (x.long(), 3), target="sm_90")
    with pytest.raises(KernelValueError, match="`counting` takes no tensor"):
        counting.export(tmp_path / "lib.so", (3,))


OTHER = """import torch
torch.ops.load_library(f"{FOLDER}/lib.so")
try:
    torch.ops.weft.total(torch.ones(3))
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


def test_a_library_for_another_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and runs nothing of it. (No processor has these instructions any more.)"""
    monkeypatch.setitem(shared_library._SETS, "x86-64-v3", ("avx5124fmaps",))
    total.export(tmp_path / "lib.so", (torch.ones(3),))
    found = run(tmp_path, OTHER, "program.py")
    assert "total: the library was made for x86-64-v3, which this processor is not" in found.stdout


def test_a_library_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    """It is linked, has PTX, and loads where there is no GPU."""
    x, w = (torch.empty(n, device="meta") for n in ((64, 96), (96,)))
    exported.export(tmp_path / "lib.so", (x, w, 2, 0.5), target="sm_90")
    assert b".target sm_90" in (tmp_path / "lib.so").read_bytes()
    text = OTHER.replace("total(torch.ones(3))", "exported(torch.ones(3, 4), torch.ones(4), 1, 1.)")
    found = run(tmp_path, text, "program.py")
    assert "weft::exported" in found.stdout, found.stderr  # torch has no kernel for the CPU
    assert "'CPU'" in found.stdout


ON_A_GPU = """import sys, torch
torch.set_default_device("cuda")
for name in ("exported", "softmax", "total"):
    torch.ops.load_library(f"{FOLDER}/lib{name}.so")
weft, same = torch.ops.weft, torch.testing.assert_close
for r, c in ((64, 96), (300, 500), (17, 127), (1, 1), (0, 5), (5, 0), (70_000, 3), (3, 9999)):
    wide = torch.randn(2 * r + 1, 3 * c + 1)
    for x in (wide[:r, :c].clone(), wide[:r, :c], wide[1::2, 1::3], wide[:c, :r].t(),
              torch.randn(1, c).expand(r, c)):
        w = torch.randn(2 * x.shape[1])[::2]
        y = weft.exported(x, w, 3, 1.5)
        same(y, x * 1.5 + w * 3 + 3)
        assert y.stride() == torch.empty_like(x).stride()
        if x.shape[1]:
            same(weft.softmax(x), x.softmax(1))
for n in (0, 1, 17, 1 << 20, 3_000_001):
    for x in (torch.randn(n), torch.randn(2 * n)[::2]):
        same(weft.total(x), x.double().sum().float(), atol=0.05, rtol=1e-3)
x, stream, graph = torch.randn(64, 96), torch.cuda.Stream(), torch.cuda.CUDAGraph()
same(weft.exported(x.cpu(), x[0].cpu(), 3, 1.5), (x * 1.5 + x[0] * 3 + 3).cpu())
with torch.cuda.stream(stream):
    y = weft.softmax(x)
stream.synchronize()
same(y, x.softmax(1))
with torch.cuda.graph(graph):
    y = weft.softmax(x)
x.normal_()
graph.replay()
same(y, x.softmax(1))
for call in (lambda: weft.softmax(x.cpu()), lambda: weft.exported(x, x[0].cpu(), 3, 1.5)):
    try:
        print(call())
    except RuntimeError as error:
        print(str(error).splitlines()[0][:70])
print("weft" in sys.modules)
"""


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu(tmp_path: Path) -> None:
    x, w = torch.randn(64, 96, device="cuda"), torch.randn(96, device="cuda")
    exported.export(tmp_path / "libexported.so", (x, w, 2, 0.5), (x.cpu(), w.cpu(), 2, 0.5))
    softmax.export(tmp_path / "libsoftmax.so", (x,))
    total.export(tmp_path / "libtotal.so", (torch.randn(1 << 20, device="cuda"),))
    found = run(tmp_path, ON_A_GPU, "program.py")
    first, second, last = found.stdout.splitlines() or [found.stderr] * 3
    assert "weft::softmax" in first
    assert second == "exported: the library has code for each of the arguments' dtypes and d"
    assert last == "False"


@pytest.mark.slow
def test_the_example(tmp_path: Path, folder: Path) -> None:
    """The example is built as it says, and runs."""
    for name in ("libexported.so", "libexported.h", "libexported_example.cpp"):
        shutil.copy(folder / name, tmp_path)
    example = tmp_path / "libexported_example.cpp"
    lines = [
        line.removeprefix("// ").removesuffix("\\") for line in example.read_text().split("\n")
    ]
    command = "".join(lines[1:4]).replace("c++ ", "c++ -o example ")
    place = {**os.environ, "torch": str(Path(torch.__file__).parent)}
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=place)
    said = subprocess.run("./example", cwd=tmp_path, check=True, capture_output=True, text=True)
    assert said.stdout == "165\n"  # 30 elements of 0.5 + 2 + 3


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return exported(x * 2, w, 3, 0.5) + 1


PACKAGE = """import sys, torch, torch._inductor.codecache  # which torch 2.10 forgets
torch.ops.load_library(f"{FOLDER}/libexported.so")
model = torch._inductor.aoti_load_package(f"{FOLDER}/model.pt2")
x, w = torch.randn(100, 6), torch.randn(6)
torch.testing.assert_close(model(x, w), x + w * 3 + 4)
print("weft" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch.export's own
def test_a_package_of_inductor_without_weft(tmp_path: Path, folder: Path) -> None:
    for name in ("libexported.so", "libexported.h", "libexported_example.cpp"):
        shutil.copy(folder / name, tmp_path)
    rows = torch.export.Dim("rows", min=2, max=4000)
    args = torch.randn(5, 6), torch.randn(6)
    program = torch.export.export(Model(), args, dynamic_shapes=({0: rows}, None))
    torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    found = run(tmp_path, PACKAGE, "program.py")
    assert found.stdout == "False\n", found.stderr
