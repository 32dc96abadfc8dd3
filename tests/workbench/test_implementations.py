"""Other code in the place of a kernel's loops: where it runs, what it is compared with, and what
stays the loop's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft.runtime.overlap import OverlapWarning
from weft.tools.foreign import taken

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    ran.clear()


def times_two() -> weft.Kernel:
    """A kernel of its own for each test: what is registered stays."""

    @weft.kernel
    def doubled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        out = torch.empty_like(x)
        for i, j in weft.ndrange(*x.shape):
            out[i, j] = factor * x[i, j]
        return out

    return doubled


def registered(kernel: weft.Kernel, **given: Any) -> weft.Kernel:
    @kernel.implementation("cpu", **given)
    def by_torch(x: torch.Tensor, factor: float) -> torch.Tensor:
        ran.append("by_torch")
        return factor * x

    return kernel


def runs_once(call: Callable[[], Any]) -> Any:
    """What a call gives that the implementation carries out."""
    ran.clear()
    found = call()
    assert ran == ["by_torch"]
    return found


def runs_loop(call: Callable[[], Any]) -> Any:
    ran.clear()
    found = call()
    assert ran == []
    return found


def test_it_runs_where_it_applies_and_the_loop_elsewhere() -> None:
    kernel = registered(times_two(), dtypes=[torch.float32], when=lambda x, factor: x.shape[0] != 4)
    x = torch.randn(3, 5)
    torch.testing.assert_close(kernel(x), 2 * x)
    assert len(ran) > 1, "it is verified on many arguments first"
    torch.testing.assert_close(runs_once(lambda: kernel(x)), 2 * x)
    torch.testing.assert_close(runs_once(lambda: kernel(factor=3.0, x=x)), 3 * x)
    for other in (x.double(), torch.randn(4, 2), torch.randn(0, 5)):
        torch.testing.assert_close(runs_loop(lambda x=other: kernel(x)), 2 * other)
    torch.use_deterministic_algorithms(True)
    try:
        runs_loop(lambda: kernel(x))
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(runs_loop(lambda: kernel.interpret(x)), 2 * x)


def test_the_first_that_applies_runs() -> None:
    kernel = registered(times_two(), when=lambda x, factor: factor == 2.0)

    @kernel.implementation("cpu", dtypes=torch.float32)
    def second(x: torch.Tensor, factor: float) -> torch.Tensor:
        ran.append("second")
        return x.clone().mul_(factor)

    x = torch.randn(3, 5)
    kernel(x), kernel(x, 5.0)
    runs_once(lambda: kernel(x))
    ran.clear()
    kernel(x, 5.0)
    assert ran == ["second"]
    runs_loop(lambda: kernel(x.double(), 5.0))


def test_calls_that_are_alike_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides is remembered, for tensors of any size; conditions are asked at each call."""
    kernel = registered(times_two(), when=lambda x, factor: factor == 2.0 and x.is_contiguous())

    @kernel.implementation("cpu", dtypes=torch.float32)
    def second(x: torch.Tensor, factor: float) -> torch.Tensor:
        ran.append("second")
        return x.clone().mul_(factor)

    slow = type(kernel.implementations)._looked_up
    slowly: list[Any] = []

    def counted(self: Any, *args: Any) -> Any:
        slowly.append(args)
        return slow(self, *args)

    x = torch.randn(3, 5)
    wide = x.double()
    weight = torch.nn.Parameter(x)
    with torch.no_grad():
        kernel(weight), kernel(x.requires_grad_(False))
    for _ in range(2):  # verified, then remembered
        kernel(x), kernel(x, 5.0), kernel(wide), kernel(wide.t())
    monkeypatch.setattr(type(kernel.implementations), "_looked_up", counted)
    for rows in (2, 3, 17):
        x = torch.randn(rows, 5)
        for given, expected in (((x,), "by_torch"), ((x.t(),), "second"), ((x, 5.0), "second"),
                                ((x.double(),), "by_torch"), ((x.double().t(),), "")):  # fmt: skip
            ran.clear()
            factor = given[1] if len(given) > 1 else 2.0
            torch.testing.assert_close(kernel(*given), factor * given[0])
            assert "".join(ran) == expected
    with torch.no_grad():
        runs_once(lambda: kernel(weight))
    assert slowly == []
    runs_loop(lambda: kernel(torch.randn(0, 5)))
    with pytest.raises(weft.KernelValueError, match="`x` is a lazily negated view"):
        kernel(torch._neg_view(x))  # others would read memory as it is
    torch.use_deterministic_algorithms(True)
    try:
        runs_loop(lambda: kernel(x))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(slowly) == 3
    kernel.implementation("cpu", dtypes=torch.float64)(lambda x, factor: x * factor)
    kernel(x.double().t())  # verifies the new one
    assert len(slowly) == 4


def test_conditions_take_keywords_and_kernels_of_any_number_of_arguments_are_refused() -> None:
    @weft.kernel
    def scaled(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = factor * x[i]
        return out

    @scaled.implementation("cpu", when=lambda x, *, factor: factor == 2.0)
    def by_torch(x, *, factor):
        ran.append("by_torch")
        return factor * x

    x = torch.randn(4)
    scaled(x)
    torch.testing.assert_close(runs_once(lambda: scaled(x)), 2 * x)
    torch.testing.assert_close(runs_loop(lambda: scaled(x, factor=3.0)), 3 * x)

    @weft.kernel
    def summed(x: torch.Tensor, *others: torch.Tensor):
        (y,) = others
        for i in range(x.shape[0]):
            y[i] += x[i]

    with pytest.raises(weft.KernelTypeError, match="`summed` takes any number of arguments"):
        summed.implementation("cpu")(lambda x, *others: None)


def test_an_argument_that_is_returned_is_the_callers() -> None:
    @weft.kernel
    def filled(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        for i in range(x.shape[0]):
            out[i] = 2.0 * x[i]
        return out

    @filled.implementation("cpu")
    def by_torch(x, *, out):
        ran.append("by_torch")
        return torch.mul(x, 2.0, out=out)

    x, out = torch.randn(4), torch.nn.Parameter(torch.zeros(4))
    with torch.no_grad():
        filled(x, out=out)
        assert runs_once(lambda: filled(x, out=out)) is out


def test_gradients_graphs_operators_and_counts_are_those_of_the_loop() -> None:
    kernel = registered(times_two())
    x = torch.randn(3, 5, requires_grad=True)
    kernel(x.detach()), kernel(x.detach())
    y = runs_once(lambda: kernel(x, 3.0))
    (grad,) = runs_loop(lambda: torch.autograd.grad(y.sum(), x))
    torch.testing.assert_close(grad, torch.full_like(x, 3.0))
    compiled = torch.compile(kernel, backend="aot_eager", fullgraph=True)
    compiled(x, 3.0)
    y = runs_once(lambda: compiled(x, 3.0))
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 3.0))
    torch.testing.assert_close(runs_once(lambda: torch.ops.weft.doubled(x, 3.0)), 3 * x)
    with FlopCounterMode(display=False) as counter:
        runs_once(lambda: kernel(x.detach()))
    assert counter.get_total_flops() == 15
    assert kernel.cost(x).flops == 15
    assert runs_loop(lambda: kernel(x.to("meta"))).shape == x.shape
    each = runs_loop(lambda: torch.vmap(kernel)(torch.ones(2, 3, 5)))
    torch.testing.assert_close(each, torch.full((2, 3, 5), 2.0))
    torch.library.opcheck(kernel.op, (torch.randn(3, 5), 2.0))


def test_it_may_be_registered_after_calls_and_graphs() -> None:
    kernel = times_two()
    x = torch.randn(3, 5)
    compiled = torch.compile(lambda x: kernel(x), backend="aot_eager", fullgraph=True)
    for _ in range(4):  # builtins stand in front of calls then
        kernel(x), compiled(x)
    registered(kernel)
    kernel(x)
    runs_once(lambda: kernel(x))
    torch.testing.assert_close(runs_once(lambda: compiled(x)), 2 * x)


@pytest.mark.parametrize("wrong", [
    (lambda x, factor: torch.where(torch.arange(x.shape[1]) == 1, 0.0, factor * x),
     r"with x f32\[2, 2\]; factor 2.0: the result: 2 of 4 elements differ; at \[0, 1\] there is "
     r"0 in place of -?\d"),
    (lambda x, factor: (factor if len(x) < 200 else 1.0) * x, "with larger sizes, x f32"),
    (lambda x, factor: factor * x.contiguous(), "returns strides"),
    (lambda x, factor: x.mul_(factor), "writes to `x`, which the loop only reads"),
    (lambda x, factor: x, "returns memory of `x`: return a new tensor"),
    (lambda x, factor: (factor * x, x), "returns 2 values in place of a tensor"),
    (lambda x, factor: factor * x.double(), "torch.float64 in place of torch.float32"),
    (lambda x, factor: torch.empty_like(x), "elements differ"),
    (lambda x, factor: (factor * x)[:-1], r"shape \[1, 2\] in place of \[2, 2\]"),
    (lambda x, factor: None, "returns NoneType in place of a tensor"),
    (lambda x, factor: (factor * x.view(-1)).view(x.shape), "the implementation raises RuntimeEr"),
], ids=range(11))  # fmt: skip
def test_a_wrong_one_is_refused_at_each_call(wrong: tuple[Any, str]) -> None:
    kernel = times_two()
    kernel.implementation("cpu")(wrong[0])
    for _ in range(2):
        with pytest.raises(weft.KernelValueError, match=wrong[1]) as raised:
            kernel(torch.randn(4, 5))
        assert "`<lambda>` does not compute what the loop does" in str(raised.value)
    torch.testing.assert_close(kernel.implementations.loop(torch.ones(1, 1)), torch.tensor([[2.0]]))


@pytest.mark.parametrize(("special", "instead", "where"), [
    (torch.nan, torch.nan, ""), (torch.nan, 0.0, "0 in place of nan"),
    (torch.inf, -torch.inf, "-inf in place of inf"), (torch.inf, torch.nan, "nan in place of inf"),
    (-torch.inf, -3e38, "in place of -inf"),
])  # fmt: skip
def test_infinities_and_nan_are_compared(special: float, instead: float, where: str) -> None:
    """But for an implementation that is for finite numbers."""

    def by_torch(x: torch.Tensor, factor: float) -> torch.Tensor:
        out = factor * x
        place = out.isnan() if special != special else out == special
        return torch.where(place, instead, out)

    kernel = times_two()
    kernel.implementation("cpu")(by_torch)
    x = torch.randn(4, 5)
    if where:
        with pytest.raises(weft.KernelValueError, match=f"there is .*{where}"):
            kernel(x)
    else:
        kernel(x)
    lenient = times_two()
    lenient.implementation("cpu", finite=True)(by_torch)
    torch.testing.assert_close(lenient(x), 2 * x)


@weft.kernel
def gathered(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor):
    for i in range(index.shape[0]):
        out[i] += x[index[i]]


def test_arguments_that_are_written_and_whole_numbers() -> None:
    @gathered.implementation("cpu")
    def by_torch(x, index, out):
        ran.append("by_torch")
        out += x[index]

    x, index, out = torch.randn(7), torch.randint(7, (20,)), torch.zeros(20, requires_grad=True)
    with torch.no_grad():
        gathered(x, index, out)
        before = out._version
        runs_once(lambda: gathered(x, index, out))
    assert out._version > before, "autograd counts what is written by address, too"
    torch.testing.assert_close(out.detach(), 2 * x[index])
    x.requires_grad_()  # the loop, which knows of gradients of what it writes to
    fresh = torch.zeros(20)
    runs_loop(lambda: gathered(x, index, fresh))
    fresh.sum().backward()
    torch.testing.assert_close(x.grad, torch.bincount(index, minlength=7).float())


@pytest.mark.parametrize(("register", "message"), [
    (lambda k: k.implementation("tpu"), "no implementation is for the device 'tpu'"),
    (lambda k: k.implementation("cpu", dtypes=["f32"]), "are no dtypes"),
    (lambda k: k.implementation("cpu")(lambda x: x), "does not take the arguments of `doubled`"),
    (lambda k: k.implementation("cpu", when=lambda x: True), "`when`(x) does not take"),
    (lambda k: k.implementation("cpu")("__global__ void f() {}"), "str is no implementation"),
    (lambda k: k.implementation("cpu")(k), "Kernel is no implementation"),
])  # fmt: skip
def test_what_cannot_be_registered_says_so(register: Any, message: str) -> None:
    kernel = times_two()
    with pytest.raises(weft.CompileError, match=re.escape(message)):
        register(kernel)
    assert kernel.implementations is None, "and leaves the kernel as it was"


def test_bench_has_a_row_for_each() -> None:
    kernel = registered(times_two())

    @kernel.implementation("cpu", when=lambda x, factor: False)
    def never(x, factor):
        return factor * x

    x = torch.randn(64, 64)
    found = weft.bench(kernel, x, 2.0, seconds=0.005)
    rows = {row.provider: row.failure for row in found.rows}
    assert [*rows] == ["never", "weft", "by_torch"]
    assert "it is not for such arguments" in rows["never"]
    assert rows["weft"] == rows["by_torch"] == ""


def test_bench_times_what_writes_to_its_arguments() -> None:
    """Counting calls of one provider wrote to what the next began with."""

    @weft.kernel
    def added(x: torch.Tensor, y: torch.Tensor):
        for i in range(x.shape[0]):
            y[i] += x[i]

    by_torch = {"torch": lambda x, y: y.__iadd__(x)[:0].sum().item() or None}
    assert weft.bench(added, torch.rand(100), torch.rand(100), beside=by_torch, seconds=0.005).ok


def test_c_functions_get_what_they_declare() -> None:
    code = weft.c_source("""
        #include <stdint.h>
        void scaled(float a /* , int n */, const float *x, float* restrict out, int64_t n, int m)
        { for (int64_t i = 0; i < n; i++) out[i] = a * x[i] + m; }  // void scaled(int)
    """)
    x, out = torch.randn(2, 9)
    code.scaled(2, x, out, 9, True)
    torch.testing.assert_close(out, 2 * x + 1)
    for args, error, message in (
        ((2, x.double(), out, 9, 0), weft.KernelTypeError, "pointer to float, and torch.float64"),
        ((2, x, None, 9, 0), weft.KernelTypeError, "NoneType is passed"),
        ((2, x, out.to("meta"), 9, 0), weft.KernelValueError, "is on meta"),
        ((2, x, out, 9), weft.KernelTypeError, r"takes 5 arguments.*\n.*scaled\(a, x, out, n, m\)"),
        ((2, x, out, 9.0, 0), weft.KernelTypeError, "is int64_t, and float is passed"),
        ((2, x, out, 9, 1 << 31), weft.KernelValueError, "is int, which has no 2147483648"),
    ):
        with pytest.raises(error, match=message):
            code.scaled(*args)
    with pytest.raises(weft.KernelTypeError, match="no `void other"):
        _ = code.other
    with pytest.raises(weft.KernelValueError, match="refuses the source"):
        weft.c_source("void f(int n) { return m; }").f(1)
    with pytest.raises(weft.KernelTypeError, match="no parameter that weft knows how to pass"):
        _ = weft.c_source("void f(FILE *x) {}").f
    wide = torch.empty(3, dtype=torch.float64)
    fill = """extern "C" void fill(double *x, long n)
        { for (auto i = 0L; i < n; i++) x[i] = i; }"""
    weft.c_source(fill, "c++").fill(wide, 3)
    assert wide.tolist() == [0.0, 1.0, 2.0]


def test_declarations_of_cuda_functions_are_read() -> None:
    text = """template <int N> __device__ float f(float x) { return x * N; }
    extern "C" __global__ void __launch_bounds__(256, 2) g(const float* __restrict__ x, __half *y,
        unsigned long long n, const int m) { y[0] = f<2>(x[m]); }
    __global__ void h(void) {}"""
    found = [(p.name, p.type, p.points) for p in taken(text, "g", "__global__")]
    assert found == [("x", "float", True), ("y", "__half", True),
                     ("n", "unsigned long long", False), ("m", "int", False)]  # fmt: skip
    assert taken(text, "h", "__global__") == ()
    with pytest.raises(weft.KernelTypeError, match="no `__global__ void f"):
        taken(text, "f", "__global__")


def test_a_kernel_that_draws_cannot_be_compared() -> None:
    @weft.kernel
    def noisy(x: torch.Tensor) -> torch.Tensor:
        out = torch.rand(x.shape[0])
        for i in range(x.shape[0]):
            out[i] += x[i]
        return out

    noisy.implementation("cpu")(lambda x: x + torch.rand(x.shape[0]))
    with pytest.raises(weft.KernelValueError, match="draws random numbers"):
        noisy(torch.ones(3))


W = torch.randn(5, requires_grad=True)


def test_gradients_of_what_is_no_argument_are_not_lost() -> None:
    """The implementation saw numbers only: the loop runs where a gradient may be asked for."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(5))

        @weft.kernel
        def forward(self, x):
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = x[i] * self.w[i]
            return out

    @weft.kernel
    def scaled(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * W[i]
        return out

    def by_torch(self, x):
        ran.append("by_torch")
        return x * self.w

    Scaled.forward.implementation("cpu")(by_torch)
    scaled.implementation("cpu")(lambda x: ran.append("by_torch") or x * W)
    module, x = Scaled(), torch.randn(5)
    for call, weight in ((module, module.w), (scaled, W)):
        call(x).sum().backward()
        torch.testing.assert_close(weight.grad, x)
        with torch.no_grad():
            torch.testing.assert_close(runs_once(lambda call=call: call(x)), x * weight)


def test_arguments_that_share_memory_go_through_the_loop() -> None:
    @weft.kernel
    def shifted(x: torch.Tensor, y: torch.Tensor):
        for i in range(x.shape[0]):
            y[i] += x[i]

    @shifted.implementation("cpu")
    def by_torch(x, y):
        ran.append("by_torch")
        y += x.clone()

    shifted(torch.ones(3), torch.ones(3))
    memory = torch.ones(5)
    with pytest.warns(OverlapWarning):
        runs_loop(lambda: shifted(memory[:4], memory[1:]))
    assert memory.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    shared = np.ones(5, np.float32)  # of which each tensor is a storage of its own
    runs_loop(lambda: shifted(torch.from_numpy(shared[:4]), torch.from_numpy(shared[1:])))
    assert shared.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_written_memory_that_overlaps_itself_is_refused_as_by_the_loop() -> None:
    @weft.kernel
    def grown(y: torch.Tensor):
        for i, j in weft.ndrange(*y.shape):
            y[i, j] += 1.0

    @grown.implementation("cpu")
    def by_torch(y):
        ran.append("by_torch")
        y += 1.0

    grown(torch.ones(2, 2))
    ran.clear()
    with pytest.raises(weft.KernelValueError, match="`y` is written, and its strides"):
        grown(torch.ones(4).as_strided((2, 2), (1, 1)))
    assert ran == []


def test_configs_keywords_and_annotations_are_as_for_the_kernel() -> None:
    @weft.autotune(configs=[weft.Config(B=2), weft.Config(B=4)], key=["x"])
    @weft.kernel
    def tuned(x: weft.types.ndarray(ndim=1), B: weft.template(), *, s: float = 1.0) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = 0.0
            for _ in weft.static(range(B)):
                out[i] += s * x[i] / B
        return out

    @tuned.implementation("cpu")
    def by_torch(x, *, s):
        ran.append("by_torch")
        return x * s

    x = torch.randn(6)
    tuned(x)
    torch.testing.assert_close(runs_once(lambda: tuned(x, s=3.0)), 3 * x)
    torch.testing.assert_close(runs_loop(lambda: tuned(x, B=4)), x)
    with pytest.raises(weft.KernelTypeError, match="is annotated with 1 dimensions"):
        tuned(torch.ones(2, 2))
