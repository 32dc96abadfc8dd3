"""On a CUDA device: the checks that ``benchmarks/gpu_check.py`` runs by hand, as tests; memory,
errors that come late, and several devices."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import torch

import weft
from benchmarks import gpu_check
from benchmarks.rows import column_sums, row_sums
from examples import beside, causal_conv, gallery, softmax
from tests.cuda.test_ptx import above_negative_numbers
from tests.examples.test_gradients import CASES

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
SEVERAL = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two devices")


# Inductor imports a module of torch that warns of itself.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "section",
    [
        "about", "gallery_kernels", "mathematics", "launching",
        # 300 of them, in one test for one GPU: 25 s of the processor.
        pytest.param("random_kernels", marks=[pytest.mark.fuzz, pytest.mark.slow]),
    ],
)  # fmt: skip
def test_nothing_is_wrong(section: str) -> None:
    gpu_check.failures.clear()
    gpu_check.SECTIONS[section]()
    assert gpu_check.failures == []


def test_memory_is_torchs() -> None:
    x = torch.randn(1 << 20, device="cuda")
    gallery.axpy(2.0, x, x), gallery.total(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = gallery.axpy(2.0, x, x)
    assert torch.cuda.memory_allocated() - before == y.nbytes
    torch.cuda.reset_peak_memory_stats()
    s = gallery.total(x)  # what its blocks leave is torch's memory, and free again
    assert torch.cuda.memory_allocated() - before - y.nbytes == 512
    assert torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() >= 512
    del y, s
    assert torch.cuda.memory_allocated() == before

    def taken() -> int:
        free = torch.cuda.mem_get_info()[0]
        for _ in range(50):
            gallery.axpy(2.0, x, x), gallery.total(x)
        torch.cuda.synchronize()
        return free - torch.cuda.mem_get_info()[0]

    assert 0 in (taken() for _ in range(20)), "in each, where no other process takes some"


def test_a_graph_holds_the_launches_of_a_derivative() -> None:
    given = torch.randn(257, device="cuda")

    def step() -> torch.Tensor:
        x = given.detach().requires_grad_()  # a leaf of the stream that the graph is captured on
        (found,) = torch.autograd.grad(gallery.axpy(3.0, x, x * x).sum(), x)
        return found

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    given.copy_(torch.randn(257))
    graph.replay()
    torch.testing.assert_close(found, 3 + 2 * given)


def test_launches_that_overlap_wait_for_what_they_read() -> None:
    """Two launches for each sum, of threads that share a stream, in a graph, and one by one."""
    given = [torch.randn(800, 12345, device="cuda") for _ in range(4)]
    expected = [column_sums(x) for x in given]
    for x, sums in zip(given, expected, strict=True):
        torch.testing.assert_close(sums.double(), x.double().sum(0), rtol=1e-4, atol=1e-3)
    wrong: list[int] = []

    def summing(k: int) -> None:
        for _ in range(200):
            if not torch.equal(column_sums(given[k]), expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=summing, args=(k,)) for k in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [column_sums(x) for x in given]
    given[0].neg_()
    for _ in range(50):
        for sums in found:
            sums.fill_(math.nan)
        graph.replay()
        assert torch.equal(found[0], -expected[0])
        assert all(map(torch.equal, found[1:], expected[1:]))


@pytest.mark.parametrize("name", CASES)
def test_examples_have_the_gradients_of_torch(name: str) -> None:
    kernel, reference, arguments = CASES[name]
    there = [a.double() if beside.is_float(a) else a for a in arguments]
    there = [a.cuda() if isinstance(a, torch.Tensor) else a for a in there]
    result = beside.check(beside.Case(name, kernel, reference, tuple(there)))
    assert max(result.error, *result.gradients.values()) < 1e-10


WILD = """
import torch, weft

@weft.kernel
def wild(x, n: int):
    for i in range(x.shape[0]):
        x[i + n] = 1.0

x = torch.zeros(64, device="cuda")
wild(x, 0)
torch.cuda.synchronize()
try:
    wild(x, 1 << 40)
    try:
        torch.cuda.synchronize()
    except Exception:
        print("torch noticed")
    wild(x, 0)
except weft.WeftError as error:
    print("SAID", error)
"""


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_an_error_that_comes_late_names_the_kernel(blocking: str, tmp_path: Path) -> None:
    program = tmp_path / "wild.py"
    program.write_text(WILD)
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"CUDA_LAUNCH_BLOCKING": blocking, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=environment, check=False
    )
    said = done.stdout + done.stderr
    assert "SAID kernel `wild_0` cannot be launched" in said, said
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said
    assert ("torch noticed" in said) is (blocking == "0"), said


@weft.kernel(debug=True)
def shifted(x, n: int):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i + n]
    return out


def test_a_process_survives_many_failed_checks() -> None:
    x = torch.arange(1000.0, device="cuda")
    for _ in range(5):
        with pytest.raises(weft.KernelIndexError, match="its dimension 0 has 1000 elements"):
            shifted(x, 7)
        assert shifted(x, 0).tolist() == x.tolist()


@weft.kernel
def counted(x):
    counts = torch.zeros(10, dtype=torch.int32, device=x.device)
    for i in range(x.shape[0]):
        counts[x[i]] += 1
    return counts


@weft.kernel
def first(x, out, n: int, a: float):
    for i in range(n):
        out[i] = a * x[i]


@weft.kernel
def scaled(x, out, a: float):
    for i in range(x.shape[0]):
        out[i] = a * x[i]


def is_builtin(kernel: weft.Kernel) -> bool:
    return isinstance(kernel._entry, types.BuiltinFunctionType)


def test_later_calls_are_like_the_first() -> None:
    base, out = torch.randn(4097, device="cuda"), torch.zeros(4096, device="cuda")
    for k in range(12):  # some begin where vectors do not
        x = base[k % 3 : 4096 + k % 3] if k % 3 < 2 else torch.randn(4096, device="cuda")
        scaled(x, out, k)
        assert torch.equal(out, x * k)
        scaled(x, out, float(k))
        assert torch.equal(out, x * k)
    assert is_builtin(scaled)
    scaled(out, out, 2.0)
    assert torch.equal(out, x * 22)
    for _ in range(3):
        total = gallery.total(x)
        torch.testing.assert_close(total, x.sum(), rtol=1e-4, atol=1e-3)


def test_later_calls_with_other_numbers() -> None:
    x, out = torch.randn(100_000, device="cuda"), torch.empty(100_000, device="cuda")
    for n in (10, 10, 10, 10, 100_000, 10, 10, 0, 99_999, 99_999, 99_999, 5):
        out.fill_(-1.0)
        first(x, out, n, 2.0)
        assert torch.equal(out[:n], 2 * x[:n])
        assert bool((out[n:] == -1.0).all())
    assert is_builtin(first)


def test_later_calls_on_streams_and_in_graphs() -> None:
    x, out = torch.randn(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda")
    for _ in range(4):
        scaled(x, out, 1.0)
    assert is_builtin(scaled)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        scaled(x, out, 2.0)
        done = torch.cuda.Event()
        done.record()
    assert not done.query(), "the launch went to the stream, and nobody waited"
    stream.synchronize()
    assert bool((out == 6.0).all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scaled(x, out, 5.0)
        scaled(out, x, 2.0)
    assert bool((out == 6.0).all())
    for k in range(3):
        graph.replay()
        assert bool((x == 3.0 * 10 ** (k + 1)).all())


def test_later_calls_from_threads() -> None:
    wrong: list[int] = []
    x = torch.randn(1000, device="cuda")
    for _ in range(4):
        scaled(x, torch.empty_like(x), 1.0)
    assert is_builtin(scaled)

    def run(k: int) -> None:  # a thread that has no context yet
        out = torch.empty_like(x)
        for n in range(200):
            scaled(x, out, float(n))
            if n % 50 == 0 and not torch.equal(out, x * n):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@SEVERAL
@pytest.mark.parametrize("current", [0, 1])
def test_later_calls_run_where_their_tensors_are(current: int) -> None:
    pairs = [(torch.randn(50, device=f"cuda:{k}"), torch.zeros(50, device=f"cuda:{k}"))
             for k in range(2)]  # fmt: skip
    with torch.cuda.device(current):
        for n in range(8):
            for x, out in pairs:
                scaled(x, out, float(n))
                assert torch.equal(out, x * n)
                assert torch.cuda.current_device() == current
    assert is_builtin(scaled)


@SEVERAL
@pytest.mark.parametrize("current", [0, 1])
def test_kernels_run_where_their_tensors_are(current: int) -> None:
    with torch.cuda.device(current):
        for k in range(torch.cuda.device_count()):
            for n in (5, 100_003):
                x = torch.randn(n, device=f"cuda:{k}", requires_grad=True)
                y = gallery.axpy(2.0, x, x * x)
                assert y.device == x.device
                torch.testing.assert_close(y, 2 * x + x * x)
                (found,) = torch.autograd.grad(y.sum(), x)
                torch.testing.assert_close(found, 2 + 2 * x)
                z = x.detach()
                torch.testing.assert_close(gallery.total(z), z.sum(), rtol=1e-3, atol=1e-2)
                bins = torch.randint(0, 10, (n,), device=x.device)
                assert torch.equal(counted(bins), torch.bincount(bins, minlength=10).int())
                assert torch.cuda.current_device() == current
            stream = torch.cuda.Stream(k)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(10_000_000)
                x = torch.randn(1 << 16, device=f"cuda:{k}")
                y = gallery.axpy(1.0, x, x)
            stream.synchronize()
            torch.testing.assert_close(y, 2 * x)
    weft.sync()


@SEVERAL
def test_checks_on_a_device_that_is_not_current() -> None:
    x = torch.arange(9.0, device="cuda:1")
    assert shifted(x, 0).tolist() == x.tolist()
    with pytest.raises(weft.KernelIndexError, match="subscript 9 of `x`"):
        shifted(x, 1)


@SEVERAL
def test_tensors_of_two_devices_are_refused() -> None:
    x, y = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    with pytest.raises(weft.KernelValueError, match="device"):
        gallery.axpy(1.0, x, y)


@pytest.mark.parametrize(
    ("rows", "length"), [(3, 100_003), (4099, 517), (100_000, 33), (70_001, 16), (9, 444)]
)
def test_rows_that_threads_have_together(rows: int, length: int) -> None:
    x = torch.randn(rows, length, device="cuda", dtype=torch.float64)
    for kernel, expected in ((softmax.softmax, x.softmax(1)), (row_sums, x.sum(1))):
        first = kernel(x.float())
        torch.testing.assert_close(first.double(), expected, rtol=1e-4, atol=1e-3)
        assert torch.equal(first, kernel(x.float())), "the same bits each time"


@pytest.mark.parametrize("sizes", [(1021, 517, 1500), (2048, 64, 2048), (515, 3, 4100)])
def test_iterations_in_step(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = torch.randn(m, n, device="cuda"), torch.randn(n, k, device="cuda")
    expected = a.double() @ b.double()
    torch.testing.assert_close(gallery.matmul(a, b).double(), expected, rtol=1e-4, atol=1e-3)


def test_iterations_in_step_whose_loops_end_one_after_another() -> None:
    w, k = torch.randn(65, 1100, device="cuda"), torch.randn(9, 65, 1100, device="cuda")
    padded = torch.nn.functional.pad(k.double(), (1099, 0))
    expected = 0.5 + torch.nn.functional.conv1d(padded, w.double()[:, None], groups=65)
    found = causal_conv.causal_conv(w, k, 0.5)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("rows", "columns"), [(50_000, 7), (4099, 517), (200, 20_000)])
def test_columns_that_threads_have_together(rows: int, columns: int) -> None:
    x = torch.randn(columns, rows, device="cuda", dtype=torch.float64).t().contiguous()
    first = column_sums(x.float())
    torch.testing.assert_close(first.double(), x.sum(0), rtol=1e-4, atol=1e-2)
    assert torch.equal(first, column_sums(x.float())), "the same bits each time"


@weft.kernel
def magnitudes(x, out):
    for i in range(x.shape[0]):
        out[i] = int(abs(x[i])) % 3


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_the_magnitude_of_the_least_integer_is_itself(dtype: torch.dtype) -> None:
    """What `weft.codegen.ptx.wrapping` is for: 16 bits, made wider."""
    least = torch.iinfo(dtype).min
    x = torch.tensor([least, least + 1, -7, -1, 0, 1, 5, -least - 1], dtype=dtype)
    out = torch.full((8,), -99, dtype=torch.int64)
    found = out.cuda()
    magnitudes.function(x, out)
    magnitudes(x.cuda(), found)
    assert torch.equal(found.cpu(), out)


@weft.kernel
def extrema_of_negations(a, b, out, n: int):
    for i in range(out.shape[0]):
        out[i, 0] = min(min(a[i], -b[i]), 0)
        out[i, 1] = max(max(-a[i], -b[i]), n - a[i])
        out[i, 2] = -max(max(a[i], -b[i]), -b[i])
        out[i, 3] = max(min(a[i], -b[i]), -n)
        out[i, 4] = abs(min(a[i] - b[i], -b[i], -a[i]))
        s = 0
        for j in range(max(-a[i], -b[i], n - a[i]), n):
            s += j
        out[i, 5] = s


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_extrema_of_negations(dtype: torch.dtype) -> None:
    """The assembler's fault that `weft.codegen.ptx.complemented` avoids."""
    numbers = torch.arange(-12, 13, dtype=dtype)
    a, b = (t.reshape(-1).contiguous() for t in torch.meshgrid(numbers, numbers, indexing="ij"))
    out = torch.full((a.numel(), 6), -99, dtype=torch.int64)
    found = out.cuda()
    extrema_of_negations(a, b, out, 3)
    extrema_of_negations(a.cuda(), b.cuda(), found, 3)
    assert torch.equal(found.cpu(), out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_above_negative_ones(dtype: torch.dtype) -> None:
    """The assembler's fault that `weft.codegen.ptx.ordered` avoids: NaN was above them, too."""
    x = torch.tensor([math.nan, -math.nan, 0.0, -0.0, 1.5, -1.5, math.inf, -math.inf], dtype=dtype)
    out = torch.zeros(8, 8)
    found = out.cuda()
    above_negative_numbers(x, out)
    assert out[0].tolist() == [2.0] * 8
    above_negative_numbers(x.cuda(), found)
    assert torch.equal(found.cpu(), out)
