"""Compiled graphs with kernels in them: CUDA graphs, caches, memory used again, packages."""

import functools
import os
import re
from pathlib import Path

import pytest
import torch

import weft
from tests import processes
from tests.pytorch.test_fusion import calls, compiled, kernels, scaled, softmax
from tests.pytorch.test_hosted import several
from weft.pytorch.releases import NUMBERS

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own
assert compiled  # a fixture
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
softmax_called = weft.kernel(fuse=False)(softmax.function)


@weft.kernel
def add_squares(acc: torch.Tensor, x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        acc[i] += x[i] * x[i]


@pytest.mark.cuda
@NEEDS_GPU
@pytest.mark.parametrize("gradient", [False, True])
def test_cuda_graphs_replay_kernels(gradient):
    from torch._dynamo.utils import counters
    from torch._inductor.cudagraph_trees import get_manager

    def f(x, w):
        y, s = several(softmax_called(x)[0] * 2, w)
        return softmax(x * 2) + y, s

    torch._dynamo.reset()
    counters.clear()
    call = torch.compile(f, fullgraph=True, mode="reduce-overhead")
    for _ in range(5):
        x = torch.randn(4, 8, device="cuda", requires_grad=gradient)
        w = torch.randn(8, device="cuda", requires_grad=gradient)
        found, expected = call(x, w), f(x, w)
        torch.testing.assert_close(found, expected)
        if gradient:
            grads = [torch.autograd.grad(a.pow(2).sum() + b, (x, w)) for a, b in (found, expected)]
            torch.testing.assert_close(*grads)
    assert counters["inductor"]["cudagraph_skips"] == 0
    manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    assert manager is not None
    assert manager.new_graph_id().id > gradient  # and the backward pass one of its own


@pytest.mark.cuda
@NEEDS_GPU
@pytest.mark.parametrize("route", ["kernel", "operator"])
def test_a_cuda_graph_of_a_persons_holds_forward_and_backward(route):
    kernel = weft.kernel(softmax.function)
    call = kernel if route == "kernel" else kernel.op

    def both(f, x):
        out = f(x)
        return out, *torch.autograd.grad(out.pow(2).sum(), x)

    graphs, pool = [], torch.cuda.graph_pool_handle()
    for shape in ((4, 8), (3, 100), (2, 3000)):
        x = torch.randn(shape, device="cuda", requires_grad=True)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                both(call, x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outs = both(call, x)
        graphs.append((graph, x, outs))
    for graph, x, outs in graphs:
        for _ in range(2):
            with torch.no_grad():
                x.copy_(torch.randn_like(x))
            graph.replay()
            torch.testing.assert_close(outs, both(lambda x: x.softmax(-1), x))


# Calls alone, which need no C++ compiler.
CACHED = """
import torch, weft
from torch._dynamo.utils import counters
@weft.kernel(fuse=False)
def cached(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], dtype=torch.float32)
    for i in range(x.shape[0]):
        out[i] = x[i] * 3
    return out
x = torch.arange(4.0, requires_grad=True)
y = torch.compile(lambda x: cached(cached(x)))(x)
y.sum().backward()
found = sorted(k for k in counters["aot_autograd"] if k.startswith("autograd_cache"))
print(y.tolist(), x.grad.tolist(), *found)
"""
EDITED = CACHED.replace("float32", "float64").replace("import torch, weft", "")


@pytest.mark.slow
def test_aot_autograds_cache_is_hit_by_another_process_and_knows_an_edited_kernel(tmp_path: Path):
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def run(*texts):
        program = tmp_path / "cached_program.py"
        program.write_text(texts[0])
        for text in texts[1:]:
            (tmp_path / "edited.py").write_text("import torch, weft\n" + text)
        done = processes.run(program, environment, tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    (first,) = run(CACHED)
    values = "[0.0, 9.0, 18.0, 27.0] [9.0, 9.0, 9.0, 9.0]"
    assert first == f"{values} autograd_cache_miss autograd_cache_saved"
    program = f"{CACHED}\ncounters.clear()\ntorch._dynamo.reset()\nimport edited\n"
    again, other = run(program, EDITED)
    assert again == f"{values} autograd_cache_hit"
    assert other == first


def test_what_a_graph_made_is_written_in_place(compiled):
    def f(x):
        y = x * 2
        add_squares(y, x)
        return y + 1

    x = torch.randn(64)
    out, code = compiled(f, x)
    torch.testing.assert_close(out, x * 2 + x * x + 1)
    assert calls(code) == 1
    assert code.count(" = empty_strided_cpu(") == 2  # of x * 2 and of the result: no copy
    assert not re.search("clone|copy_", code.partition("def call")[2])


def test_an_argument_is_written_in_place(compiled):
    def f(acc, x):
        add_squares(acc, x)

    acc, x = torch.randn(2, 64)
    expected = acc + x * x
    _, code = compiled(f, acc, x)
    torch.testing.assert_close(acc, expected)
    assert (calls(code), kernels(code)) == (1, 0)  # and nothing that copies


def test_recompilations_are_those_of_pytorchs_own_operators():
    from torch._dynamo.testing import CompileCounterWithBackend

    def count(f):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        call = torch.compile(f, fullgraph=True, backend=counter)
        for n in (3, 4, 5, 6, 1, 9):
            x = torch.randn(n, requires_grad=True)
            call(x, 2.0).sum().backward()
        return counter.frame_count

    assert count(scaled) == count(lambda x, f: x * f)


@weft.kernel
def between(x, factor, offset: float):  # whose host part Dynamo traces
    z = x * offset
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = z[i] * factor
    return out


@weft.kernel
def swung(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + factor * x[i] * x[i]
    return out


@weft.kernel
def longer(x, factor):  # of whose number a size depends
    out = torch.empty(x.shape[0] * (2 if factor > 1 else 1), dtype=x.dtype)
    for i in range(out.shape[0]):
        out[i] = x[i % x.shape[0]] * factor
    return out


CHANGING = {  # with what they compute
    "kernel": (swung, lambda x, f: x + f * x * x),
    "host part": (lambda x, f: between(x, f, f + 1), lambda x, f: x * (f + 1) * f),
    "expression": (lambda x, f: swung(swung(x, f * 2), f / 3) * f,
                   lambda x, f: (y := x + f * 2 * x * x, (y + f / 3 * y * y) * f)[1]),
    "grad": (lambda x, f: torch.func.grad(lambda x: swung(x, f).sum())(x),
             lambda x, f: 1 + 2 * f * x),
    "vmap": (lambda x, f: torch.vmap(lambda x: swung(x, f))(x[None]),
             lambda x, f: (x + f * x * x)[None]),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("kind", [float, int])
@pytest.mark.slow
def test_numbers_that_change_compile_as_often_as_with_pytorchs_own_operators(name, kind):
    from torch._dynamo.testing import CompileCounterWithBackend

    def count(f, expected):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        call = torch.compile(f, fullgraph=True, backend=counter)
        for k in range(1, 6):
            x = torch.randn(5, dtype=torch.float64, requires_grad=True)
            number = k if kind is int else 0.3 * k
            found, wanted = call(x, number), expected(x, number)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(
                *(torch.autograd.grad(y.pow(2).sum(), x) for y in (found, wanted))
            )
        return counter.frame_count

    if (name, kind) == ("grad", float) and NUMBERS.missing:
        pytest.skip(NUMBERS.costs)
    f, expected = CHANGING[name]
    if kind is int and name in ("kernel", "host part", "expression"):
        f = functools.partial(_as_float, f)
    found = count(f, expected)
    assert found == count(lambda x, f: x * f, lambda x, f: x * f) == 2


def _as_float(f, x, number):
    return f(x, number * 1.0)


def test_a_number_that_a_size_depends_on_is_a_constant():
    torch._dynamo.reset()
    call = torch.compile(longer, fullgraph=True, backend="aot_eager")
    for number in (0.5, 1.5, 0.25, 2.5):
        x = torch.randn(3)
        torch.testing.assert_close(call(x, number), longer(x, number))


@pytest.mark.slow
def test_a_number_that_changes_is_fused():
    def f(x, factor):
        return torch.relu(swung(x, factor) * 2)

    torch._dynamo.reset()
    call = torch.compile(f, fullgraph=True)
    x = torch.randn(64, requires_grad=True)
    call(x, 0.5)
    from torch._inductor.utils import run_and_get_code

    def both(factor):
        return torch.autograd.grad(call(x, factor).sum(), x)

    found, codes = run_and_get_code(both, 0.75)
    torch.testing.assert_close(found, torch.autograd.grad(f(x, 0.75).sum(), x))
    assert codes
    assert [calls(code) for code in codes] == [0] * len(codes)
    torch.testing.assert_close(both(-1.25), torch.autograd.grad(f(x, -1.25).sum(), x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(8))

    def forward(self, x):
        y, s = several(x[0] * 2, self.w)
        return softmax_called(x) + softmax(x + y) * s


@pytest.mark.slow
def test_a_package_of_aot_inductor_calls_kernels(tmp_path):
    model, dim = Model(), torch.export.Dim("rows", min=2)
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(4, 8),), dynamic_shapes={"x": {0: dim}})
        place = str(tmp_path / "model.pt2")
        quick = {"aot_inductor.compile_wrapper_opt_level": "O0"}
        torch._inductor.aoti_compile_and_package(
            program, package_path=place, inductor_configs=quick
        )
        package = torch._inductor.aoti_load_package(place)
        for n in (4, 7):
            x = torch.randn(n, 8)
            torch.testing.assert_close(package(x), model(x))
