"""Which kernel an operator, a compiled graph and what PyTorch keeps of them mean."""

import linecache
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import weft
from weft.pytorch import library
from weft.pytorch.identity import fingerprint, may_draw, text_of
from weft.source import read_function

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


@weft.kernel
def twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 2 * x[i]
    return out


@weft.kernel
def thrice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 3 * x[i]
    return out


class Applied(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        return self.kernel(x)


def defined(text, module=None):
    """The names of a module, or of a notebook, after a cell with ``text`` was run."""
    module = ModuleType("cells") if module is None else module
    file = f"<cell {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), vars(module))
    return module


CELL = """
import torch, weft
DTYPE = torch.float32
def inner(v):
    return v * 2
@weft.kernel
def changing(x: torch.Tensor) -> torch.Tensor:
    # a comment
    out = torch.empty(x.shape[0], dtype=DTYPE)
    for i in range(x.shape[0]):
        out[i] = inner(x[i]) + 1
    return out
def caller(x):
    return changing(x) * 10
"""


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def test_compiled_kernels_are_told_apart():
    x = torch.ones(2)
    for kernel, value in ((twice, 2.0), (thrice, 3.0), (twice, 2.0)):
        assert torch.compile(kernel, backend="aot_eager")(x).tolist() == [value] * 2


def test_each_kernel_has_recompilations_of_its_own():
    def made(factor):
        @weft.kernel
        def scaled(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = factor * x[i]
            return out

        return scaled

    for factor in range(10):  # torch stops at the eighth of one code object
        compiled = torch.compile(made(factor), backend="eager", fullgraph=True)
        assert compiled(torch.ones(2)).tolist() == [factor] * 2


def test_a_method_is_compiled_with_its_object_and_without():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        @weft.kernel
        def call(self, x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = self.factor * x[i]
            return out

    x, one = torch.ones(2), Scaled(3)
    assert torch.compile(Scaled.call, backend="eager", fullgraph=True)(one, x).tolist() == [3, 3]
    assert torch.compile(one.call, backend="eager", fullgraph=True)(x).tolist() == [3, 3]
    assert torch.compile(Scaled.call, backend="eager", fullgraph=True)(one, x).tolist() == [3, 3]


def test_a_kernel_that_is_an_argument_is_guarded():
    called = torch.compile(lambda kernel, x: kernel(x), backend="aot_eager", fullgraph=True)
    x = torch.ones(2)
    results = [called(kernel, x)[0].item() for kernel in (twice, thrice, twice)]
    assert results == [2.0, 3.0, 2.0]


def test_a_kernel_that_is_an_attribute_of_a_module_is_guarded():
    first, second = Applied(twice), Applied(thrice)
    x = torch.ones(2)
    found = [torch.compile(m, backend="aot_eager")(x)[0].item() for m in (first, second, first)]
    assert found == [2.0, 3.0, 2.0]
    compiled = torch.compile(first, backend="aot_eager")
    first.kernel = thrice
    assert compiled(x)[0].item() == 3.0


def test_kernels_in_a_list_are_guarded():
    kernels = [twice, thrice]

    def program(x):
        for kernel in kernels:
            x = kernel(x)
        return x

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 6.0
    kernels[0] = thrice
    assert compiled(torch.ones(1)).item() == 9.0


def test_kernels_of_one_text_and_other_closures_are_told_apart():
    def scaled(factor):
        @weft.kernel
        def scale(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = factor * x[i]
            return out

        return scale

    called = torch.compile(lambda kernel, x: kernel(x), backend="aot_eager", fullgraph=True)
    kernels = [scaled(2.0), scaled(3.0), scaled(2.0)]
    assert [called(k, torch.ones(1)).item() for k in kernels] == [2.0, 3.0, 2.0]
    a, b, c = (k.op._schema.name for k in kernels)
    assert a != b
    assert c == f"{a}_2"  # of the same text and values, and another closure


def test_a_redefined_kernel_is_compiled_anew():
    cells = defined(CELL)
    compiled = torch.compile(cells.caller, backend="aot_eager")
    assert compiled(torch.ones(2)).tolist() == [30.0] * 2
    defined(CELL.partition("def caller")[0].replace("+ 1", "+ 2"), cells)
    assert compiled(torch.ones(2)).tolist() == [40.0] * 2
    assert torch.ops.weft.changing(torch.ones(2)).tolist() == [4.0] * 2
    assert torch.ops.weft.changing.default is cells.changing.op


def test_a_cell_that_is_run_again_has_the_same_operator():
    cells = defined(CELL)
    before, op = cells.changing, cells.changing.op
    defined(CELL, cells)
    assert cells.changing is not before
    assert cells.changing.op is op
    assert defined(CELL).changing.op is not op  # other globals


def name_of(text):
    return fingerprint(text_of(read_function(defined(text).changing.function)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+ 1", "+ 2"),
        ("v * 2", "v * 3"),
        ("float32", "float64"),
        ("x: torch.Tensor)", "x: torch.Tensor, n: int = 2)"),
    ],
    ids=["kernel", "called function", "captured dtype", "default"],
)
def test_an_edit_changes_the_name(old, new):
    assert name_of(CELL) == name_of(CELL.replace("# a comment", "# another\n    "))
    assert name_of(CELL) != name_of(CELL.replace(old, new))


SHAPE = math.prod([2, 2])
KIND = torch.float32


@weft.kernel
def repeated(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0] * SHAPE, dtype=KIND)
    for i in range(out.shape[0]):
        out[i] = x[i % x.shape[0]]
    return out


def test_what_the_host_part_takes_from_around_it_is_guarded(monkeypatch):
    counter = CompileCounter()
    compiled = torch.compile(lambda x: repeated(x) + 1, backend=counter, fullgraph=True)
    x = torch.ones(2)
    for size in (4, 3, 5, 2, 4):
        monkeypatch.setitem(globals(), "SHAPE", size)
        assert compiled(x).shape == (2 * size,)
    monkeypatch.setitem(globals(), "KIND", torch.float64)
    assert compiled(x).dtype == torch.float64
    assert counter.frame_count == 5


@weft.kernel
def fitted(x: torch.Tensor) -> torch.Tensor:
    assert x.shape[0] > 0
    count = 1
    if LIMITS is not None:
        count = LIMITS.count
    out = x.new_zeros(count)
    for i in range(count):
        out[i] = x[0] * x[0]
    return out


LIMITS = SimpleNamespace(count=2)


def test_what_decides_may_vanish(monkeypatch):
    """A branch of the host part knows, and nothing reads it then."""
    compiled = torch.compile(lambda x: fitted(x) * 2, backend="eager", fullgraph=True)
    calls = (compiled, torch.func.grad(lambda x: compiled(x).sum()),
             torch.func.grad(lambda x: 2 * fitted(x).sum()))  # fmt: skip
    for limits, size in ((LIMITS, 2), (None, 1), (SimpleNamespace(count=3), 3)):
        monkeypatch.setitem(globals(), "LIMITS", limits)
        given = [call(torch.ones(1)) for call in calls]
        assert given[0].tolist() == [2.0] * size
        assert given[1].item() == given[2].item() == 4.0 * size


@weft.kernel
def rated(x: torch.Tensor) -> torch.Tensor:
    rate = 2 if RATE is None else 3
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = rate * x[i]
    return out


RATE: object = None


@pytest.mark.parametrize(
    "value", [0.5, 1j, [1, 2], object(), SimpleNamespace(a=1), torch.ones(2), torch.nn.ReLU()],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_was_a_constant_may_become_anything(value, monkeypatch):
    compiled = torch.compile(rated, backend="eager", fullgraph=True)
    for new, rate in ((None, 2.0), (value, 3.0), (1, 3.0), (value, 3.0), (None, 2.0)):
        monkeypatch.setitem(globals(), "RATE", new)
        assert compiled(torch.ones(1)).item() == rate


def test_a_constant_may_become_a_float_that_changes(monkeypatch):
    compiled = torch.compile(rated, backend="eager", fullgraph=True)
    for new, rate in ((None, 2.0), (0.5, 3.0), (1.5, 3.0), (2.5, 3.0), (None, 2.0)):
        monkeypatch.setitem(globals(), "RATE", new)
        assert compiled(torch.ones(1)).item() == rate


def test_a_changed_float_does_not_compile_anew(monkeypatch):
    module = defined(CELL.replace("inner(x[i]) + 1", "x[i] * STEP").replace("DTYPE =", "STEP ="))
    module.DTYPE, module.STEP = torch.float32, 1.0
    counter = CompileCounter()
    compiled = torch.compile(module.caller, backend=counter, fullgraph=True)
    for step in range(3):
        module.STEP = step + 0.5
        assert compiled(torch.ones(1)).item() == 10 * (step + 0.5)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("call", "draws"),
    [
        ("torch.rand_like(x)", True),
        ("x.clone().bernoulli_(0.5)", True),
        ("torch.nn.functional.dropout(x)", True),
        ("torch.empty(3).normal_()", True),
        ("torch.empty_like(x)", False),
        ("torch.zeros(x.shape)", False),
    ],
)
def test_an_operator_that_draws_random_numbers_has_the_tag(call, draws):
    for text in (CELL.replace("    # a comment", f"    m = {call}"),
                 CELL.replace("    # a comment", "    m = noise(x)")
                 + f"def noise(x):\n    return {call}\n"):  # fmt: skip
        kernel = defined(text).changing
        assert may_draw(text_of(kernel.source)) == draws
    assert (torch.Tag.nondeterministic_seeded in kernel.op.tags) == draws


def test_the_schema_and_weft_itself_are_in_the_name(monkeypatch):
    text = CELL.replace("out[i] = inner(x[i])", "out[i] = inner(x[i])\n        x[i] = 0.0").replace(
        "inner(x[i]) + 1", "inner(x[i])"
    )
    before = defined(text).changing.op._schema.name
    assert defined(text).changing.op._schema.name.startswith(before)
    with monkeypatch.context() as patch:  # as a weft that did not see the store
        patch.setattr(library, "_written", lambda *_: frozenset())
        assert not defined(text).changing.op._schema.name.startswith(before)
    monkeypatch.setattr(library, "decided_by", lambda: "another weft")
    assert not defined(text).changing.op._schema.name.startswith(before)


STORING = """import torch, weft
def store(x, i):
    x[i] = 7.0
@weft.kernel
def storing(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        store(x, i)
        out[i] = x[i]
    return out
def program(x):
    z = x * 1
    storing(z)
    return z + 1
"""
COMPILED = """import torch, storing
from torch._inductor import config
config.cpp_cache_precompile_headers = False  # longer than all else
print(torch.compile(storing.program)(torch.ones(2)).tolist())
"""
OLDER = """from weft.pytorch import library
from weft.pytorch.operator import OperatorForm
library._written = lambda *_: frozenset()
OperatorForm._check_written = lambda *_: None
"""


@pytest.mark.slow
def test_inductors_cache_on_disk_is_not_that_of_an_older_schema(tmp_path):
    (tmp_path / "storing.py").write_text(STORING)
    path = os.pathsep.join([str(Path(weft.__file__).parents[1]), str(tmp_path)])
    around = {"PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def run(code):
        return subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | around,
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    assert run(OLDER + COMPILED) == "[2.0, 2.0]\n"  # the store was lost
    assert run(COMPILED) == "[8.0, 8.0]\n"
