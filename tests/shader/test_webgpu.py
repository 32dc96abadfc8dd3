"""Kernels on WebGPU: what its drivers do otherwise, and what is refused."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.conftest import adapter
from weft import compiler
from weft.codegen.shader import emit
from weft.errors import KernelValueError
from weft.lang.field import Field
from weft.tools.cross import lowered_loops

pytestmark = [pytest.mark.webgpu]


@pytest.fixture(autouse=True)
def found() -> None:
    adapter()


@weft.kernel
def uniform(x, n: int):
    for i in range(x.shape[0]):
        s = 0
        for k in range(n):
            s += k & 3
        x[i] = s


@weft.kernel
def divergent(x, n: int):
    for i in range(x.shape[0]):
        s = 0
        for k in range(64):
            for j in range(n if k % 16 == i % 16 else 1):
                s += j & 3
        x[i] = s


@weft.kernel
def conditional(x, n: int):
    for i in range(x.shape[0]):
        s = 0
        while s * 3 < n * 3:
            s += 1
        x[i] = s


@weft.kernel
def left(x, n: int):
    for i in range(x.shape[0]):
        s = 0
        for k in range(n):
            if k + i % 8 > n - 10:
                break
            s += 1
        x[i] = s


@weft.kernel
def contended(x, n: int):
    for i in range(x.shape[0] - 1):
        s = 0.0
        for k in range(n):
            s += k % 2
            weft.atomic_max(x[0], float(i))
        x[i + 1] = s


@pytest.mark.parametrize("kernel", [uniform, divergent, conditional, left, contended])
def test_loops_that_the_driver_ends_early_are_an_error(kernel: weft.Kernel) -> None:
    """Right, or an error: where turns of neighbouring threads count together, too."""
    from weft.runtime.webgpu import WebGpuError, device

    raised = []
    for n in (100, 9_000, 70_000):
        x = torch.zeros(40, dtype=torch.float32 if kernel is contended else torch.int32)
        expected = x.clone()
        kernel(expected, n)
        try:
            kernel.on("webgpu")(x, n)
        except WebGpuError as error:
            assert "ends them too early: at most 65,535 in all" in str(error)  # noqa: PT017
            raised.append(n)
        else:
            assert torch.equal(x, expected)
    if device().ends_loops:
        assert 100 not in raised
        # Sums that threads share have few turns in each.
        assert (70_000 in raised) == (kernel not in (uniform, divergent))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fmod_is_exact(dtype: torch.dtype) -> None:
    @weft.kernel
    def f(x, y, out):
        for i in range(x.shape[0]):
            out[i] = math.fmod(x[i], y[i])

    bits = torch.int32 if dtype is torch.float32 else torch.int64
    info = torch.iinfo(bits)
    x, y = (torch.randint(info.min, info.max, (4000,), dtype=bits).view(dtype) for _ in "xy")
    y[:1000] = torch.randint(1, 1000, (1000,), dtype=bits).view(dtype)  # subnormal
    x[1000:2000], y[1000:2000] = 20 * torch.randn(1000), torch.randn(1000)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -3.0, 5e-324]
    pairs = torch.cartesian_prod(*2 * [torch.tensor(special, dtype=dtype)])
    x[-len(pairs) :], y[-len(pairs) :] = pairs[:, 0], pairs[:, 1]
    out = torch.full_like(x, 7)
    f.on("webgpu")(x, y, out)
    with np.errstate(invalid="ignore"):
        expected = torch.from_numpy(np.fmod(x.numpy(), y.numpy()))  # torch's is not exact
    same = (out.view(bits) == expected.view(bits)) | (out.isnan() & expected.isnan())
    assert same.all(), (x[~same], y[~same], out[~same], expected[~same])


def test_random_numbers_are_those_of_other_devices() -> None:
    @weft.kernel
    def f(x, y, n: int):
        for i in range(x.shape[0]):
            s = 0
            for _ in range(i % n):
                if weft.random() > 0.5:
                    s += weft.randint(0, 100)
            y[i] = s
            x[i] = weft.random()

    made = []
    for kernel in (f, f.on("webgpu")):
        torch.manual_seed(4)
        x, y = torch.zeros(300), torch.zeros(300, dtype=torch.int64)
        kernel(x, y, 7)
        made.append((x, y))
    torch.testing.assert_close(made[0], made[1], rtol=1e-5, atol=1e-6)


@weft.kernel
def squares(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i] + 1.0
    return out


def launches(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The loops that ran on the device since the last call."""
    found = [r.getMessage().partition(":")[0] for r in caplog.records if r.name == "weft.launch"]
    caplog.clear()
    return found


def test_what_runs_is_what_was_copied(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "weft.launch")
    x = torch.randn(200)
    torch.testing.assert_close(squares.on("webgpu")(x[11:111:3]), x[11:111:3] ** 2 + 1)
    (record,) = (r for r in caplog.records if r.name == "weft.launch")
    # Elements 11 to 110 of x; and the results, of which a loop may leave some as they are.
    assert record.getMessage().endswith(" 536 bytes copied there, 136 back")


def test_python_looks_for_garbage_rarely_while_a_call_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    form = compiler.shader_form

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(gc.get_threshold()[0])
        return form(*args, **kwargs)

    monkeypatch.setattr(compiler, "shader_form", watched)
    kernel = weft.kernel(squares.function).on("webgpu")
    kernel.options = replace(kernel.options, cache=False)
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        kernel(torch.ones(3))
    finally:
        gc.set_threshold(*before)
    assert seen
    assert min(seen) >= 50_000


def test_gradients_run_there(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "weft.launch")
    x = torch.randn(50, requires_grad=True)
    squares.on("webgpu")(x).sum().backward()
    assert launches(caplog) == ["squares_0", "squares_0_adjoint"]
    torch.testing.assert_close(x.grad, 2 * x.detach())


@pytest.mark.slow
def test_compiled_graphs_run_there(caplog: pytest.LogCaptureFixture) -> None:
    """Inductor does not make a loop for the CPU of it."""
    kernel, x = squares.on("webgpu"), torch.randn(50)
    model = torch.compile(lambda x: kernel(x.sin()).cos())
    model(x)
    caplog.set_level("DEBUG", "weft.launch")
    torch.testing.assert_close(model(x), (x.sin() ** 2 + 1).cos())
    assert launches(caplog) == ["squares_0"]


def test_what_runs_elsewhere_is_refused(tmp_path) -> None:
    x = torch.randn(50)
    with pytest.raises(weft.KernelValueError, match="this kernel runs on webgpu"):
        squares.on("webgpu").export(tmp_path / "library.so", (x,))

    @weft.kernel
    def shift(x, y):
        for i in range(x.shape[0]):
            y[i] = x[i]

    # and not that the loop runs in order, which would be a warning
    with pytest.raises(weft.KernelValueError, match=r"pass a copy \(x.clone\(\)\)"):
        shift.on("webgpu")(x[:5], x[2:7])


def test_debug_mode_checks_subscripts() -> None:
    @weft.kernel(debug=True)
    def f(x, n: int):
        for i in range(n):
            x[i] = 1.0

    with pytest.raises(weft.KernelIndexError, match="subscript 4 of `x` is out of range"):
        f.on("webgpu")(torch.zeros(4), 5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.bfloat16, torch.float16])
def test_neighbours_of_a_part_of_a_word_stay(dtype: torch.dtype) -> None:
    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            x[i] = 1

    x = torch.zeros(50, dtype=dtype)
    expected = x.clone()
    expected[11:30:3] = 1
    f.on("webgpu")(x[11:30:3])
    assert torch.equal(x, expected)


def test_prints_are_left_out_with_a_warning() -> None:
    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            print(i)
            x[i] = i

    x = torch.zeros(3)
    with pytest.warns(UserWarning, match="prints, which a shader cannot: nothing is shown"):
        f.on("webgpu")(x)
    assert x.tolist() == [0, 1, 2]


def test_limits_of_the_device_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.runtime.webgpu import WebGpuError, device

    def limited(name: str, most: int, kernel: weft.Kernel, *args: torch.Tensor) -> str:
        with monkeypatch.context() as patch:
            patch.setitem(device().limits, name, most)
            with pytest.raises(WebGpuError) as caught:
                kernel.changed({}).on("webgpu")(*args)
        return str(caught.value)

    @weft.kernel
    def three(x, y, z):
        for i in range(x.shape[0]):
            z[i] = x[i] + y[i]

    @weft.kernel
    def asked(x):
        weft.loop_config(block_dim=256)
        for i in range(x.shape[0]):
            x[i] = 1.0

    @weft.kernel
    def drawn(x):
        for i in range(x.shape[0]):
            x[i] = weft.random()

    few = [torch.zeros(3) for _ in range(3)]
    said = limited("max-buffer-size", 1 << 12, squares, torch.zeros(2000))
    assert "a tensor of 8,000 bytes does not fit into a buffer of " in said
    assert said.endswith("at most 4,096; call the kernel on parts of it")
    said = limited("max-compute-invocations-per-workgroup", 128, asked, torch.zeros(3000))
    assert "runs in blocks of 256 threads, and " in said
    assert said.endswith("has blocks of 128 at most: write a smaller block_dim, or none")
    said = limited("max-storage-buffers-per-shader-stage", 2, three, *few)
    assert "needs" in said
    assert said.endswith("has at most 2 in a shader: use fewer tensors")
    monkeypatch.setattr(device(), "features", frozenset())
    with pytest.raises(WebGpuError) as caught:
        drawn.changed({}).on("webgpu")(torch.zeros(3))
    assert "draws random numbers (`x[i] = weft.random()`), which takes" in str(caught.value)
    assert str(caught.value).endswith("has none: pass a tensor of them (torch.rand)")
    with pytest.raises(WebGpuError, match=r"computes with integers of 64 bits.*weft.i32, weft.f32"):
        squares.changed({}).on("webgpu")(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(WebGpuError, match=r"computes with floats of 64 bits \(`.*`\), which"):
        squares.changed({}).on("webgpu")(torch.zeros(3, dtype=torch.float64))


def test_sums_of_f32_need_no_numbers_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sum begins with is an argument, a float of Python's: blocks do not ask for it."""

    @weft.kernel
    def total(x: torch.Tensor, few: torch.Tensor) -> float:
        s = 0.5
        for i in range(x.shape[0]):
            if few[i] == 1:
                s += x[i]
        return s

    from weft.runtime.webgpu_device import device

    monkeypatch.setattr(device(), "features", frozenset())
    x, few = torch.randn(1000), torch.randint(0, 2, (1000,), dtype=torch.int32)
    assert total.on("webgpu")(x, few) == pytest.approx(0.5 + (x * few).sum().item(), abs=1e-3)


def test_without_an_adapter_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu

    from weft.runtime.webgpu import Device, WebGpuError

    def none(**_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", none)
    with pytest.raises(WebGpuError, match=r"no adapter for WebGPU: install .*mesa-vulkan-drivers"):
        Device()


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mesa wants to have a folder named while adapters are looked for."""
    import os

    import wgpu

    from weft.runtime.webgpu_device import Device

    seen = []

    def asked(**_: object) -> None:
        seen.append(os.environ.get("XDG_RUNTIME_DIR"))
        raise RuntimeError("no adapter")

    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", asked)
    for before in (None, "/run/user/7"):
        if before is None:
            monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        else:
            monkeypatch.setenv("XDG_RUNTIME_DIR", before)
        with pytest.raises(RuntimeError):
            Device()
        assert seen[-1] == (before or "/tmp")
        assert os.environ.get("XDG_RUNTIME_DIR") == before


def test_memory_that_the_device_has_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft import webgpu
    from weft.runtime.webgpu import WebGpuError, device

    def none(**_: object) -> None:
        raise device().wgpu.GPUOutOfMemoryError("Not enough memory left.")

    x = webgpu.buffer(torch.arange(5.0))
    monkeypatch.setattr(device().buffers, "free", {})
    with monkeypatch.context() as patch:
        patch.setattr(device().device, "create_buffer", none)
        with pytest.raises(WebGpuError, match=r"gives no buffer of 256 bytes: Not enough memory"):
            squares.on("webgpu")(x)
    assert x.tolist() == [0, 1, 2, 3, 4]


def test_memory_that_waits_for_later_calls_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft import webgpu
    from weft.runtime.webgpu import device

    made, asked = device().device.create_buffer, []

    def once(**given: object) -> object:
        asked.append(given)
        if len(asked) == 1:
            raise device().wgpu.GPUOutOfMemoryError("Not enough memory left.")
        return made(**given)

    x = webgpu.buffer(torch.arange(5.0))
    y = squares.on("webgpu")(x)  # waits to be run
    small = device().buffer(512)
    device().give_back(small)
    x = webgpu.buffer(torch.arange(5000.0) - 2500)  # whose squares floats hold, rounded or not
    with monkeypatch.context() as patch:
        patch.setattr(device().device, "create_buffer", once)
        device().buffers.free.pop(32768, None)
        z = squares.on("webgpu")(x)
    assert len(asked) > 1
    assert small not in device().buffers.free.get(512, [])
    assert y.tolist() == [1, 2, 5, 10, 17]
    assert z.equal((torch.arange(5000.0) - 2500) ** 2 + 1)


def test_choices_that_are_like_maxima_have_pythons_nan() -> None:
    """Drivers have instructions for maxima and minima, which take a number for NaN."""

    @weft.kernel
    def f(x, y, out):
        for i in range(x.shape[0]):
            a, b = x[i], y[i]
            out[0, i] = max(a, b)
            out[1, i] = min(a, b)
            out[2, i] = a if a > b else b
            out[3, i] = b if a > b else a
            out[4, i] = a if not a >= b else b
            out[5, i] = max(a, 0.0)
            out[6, i] = min(0.0, a)
            out[7, i] = weft.math.exp(a)
            out[8, i] = weft.math.tanh(max(b, 0.0))

    special = [math.nan, 1.0, -2.0, math.inf, -math.inf, 0.0]
    x, y = torch.tensor([(a, b) for a in special for b in special]).T.contiguous()
    found, expected = torch.zeros(9, len(x)), torch.zeros(9, len(x))
    f.on("webgpu")(x, y, found)
    f.interpret(x, y, expected)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_infinity_minus_itself_is_no_number() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            out[i] = 1.0 + abs(x[i] - x[i])

    x = torch.tensor([1.0, -2.0, math.inf, -math.inf, math.nan])
    out = torch.zeros(5)
    f.on("webgpu")(x, out)
    torch.testing.assert_close(out, 1 + (x - x).abs(), equal_nan=True)


def test_kernels_run_there_where_taichi_is_told_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Field, "defaults", Field.defaults)
    weft.init(arch=weft.vulkan)
    x = weft.field(float, shape=16)

    @weft.kernel
    def add(step: float):
        for i in x:
            x[i] += step * i

    caplog.set_level("DEBUG", "weft.launch")
    add(0.5)
    x[3] = 7.0
    add(0.5)
    assert launches(caplog) == ["add_0", "add_0"]
    assert (x[2], x[3]) == (2.0, 8.5)
    add.on("cpu")(0.5)
    assert not any("llvmpipe" in r.getMessage() for r in caplog.records)
    assert x[3] == 10.0


@pytest.mark.parametrize("there", [True, False])
def test_any_gpu_is_one_that_webgpu_finds(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """llvmpipe is none."""
    from weft.runtime.webgpu import device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Field, "defaults", Field.defaults)
    monkeypatch.setattr(device(), "is_gpu", there)
    weft.init(arch=weft.gpu)
    assert Field.defaults.on == ("webgpu" if there else "")


def test_bits_of_a_constant() -> None:
    """What functions that are written out ask of a constant is folded where it is printed."""

    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            out[i] = x[i] ** math.inf

    x = torch.tensor([0.0, 0.5, 1.0, 2.0])
    out = torch.zeros(4)
    f.on("webgpu")(x, out)
    assert out.tolist() == [0.0, 0.0, 1.0, math.inf]


def test_a_check_of_a_loop_without_tensors() -> None:
    @weft.kernel
    def five():
        for i in range(10):
            assert i < 5, "five"

    with pytest.raises(weft.KernelAssertionError, match="five"):
        five.on("webgpu")()


@weft.kernel
def summed_twice(x):
    s = 0.5
    for i in range(x.shape[0]):
        s += x[i, 0] * 2
    for i in range(x.shape[0]):
        s += x[i, 0]
    return s


@weft.kernel
def filled_in_order(x):
    weft.loop_config(serialize=True)
    for i in range(1, x.shape[0]):
        x[i, 0] += x[i - 1, 0] + 1


def test_what_no_loop_shares_one_thread_runs() -> None:
    """All 256 of a workgroup did: accumulations were 32 times what they are."""
    x = torch.randn(4, 2, requires_grad=True)
    (found,) = torch.autograd.grad(summed_twice.on("webgpu")(x), x)
    assert found.tolist() == [[3.0, 0.0]] * 4
    y = torch.zeros(5, 2)
    filled_in_order.on("webgpu")(y)
    assert y[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_results_without_an_order_are_refused_in_deterministic_mode() -> None:
    """They ran, as if one thread of a CPU did."""

    @weft.kernel
    def summed(x, k, out):
        for i in range(x.shape[0]):
            out[k[i]] += x[i]

    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(KernelValueError, match="has no order on a GPU"):
            summed.on("webgpu")(torch.randn(50), torch.randint(0, 3, (50,)), torch.zeros(3))
    finally:
        torch.use_deterministic_algorithms(False)


@weft.kernel(debug=True)
def picked(k, out):
    for i in range(k.shape[0]):
        a = [1.0, 2.0, 3.0]
        a[0] = 4.0
        out[i] = a[k[i]]


def test_checks_report_constants() -> None:
    """naga refuses to convert `i64(3)` to u32."""
    out = torch.zeros(2)
    picked.on("webgpu")(torch.tensor([2, 0]), out)
    assert out.tolist() == [3.0, 4.0]
    with pytest.raises(weft.KernelIndexError, match=r"subscript 3 .* has 3 elements"):
        picked.on("webgpu")(torch.tensor([2, 3]), out)


@weft.kernel
def fixed(x, b, out):
    for i in range(out.shape[0]):
        a = [0.0] * 4
        a[i % 2] = x[1]
        out[i] = a[0] + a[1] + b[2, 1] + b[i, 2]
        weft.atomic_add(x[0], 1.0)


def test_constant_subscripts_of_64_bits_are_read_by_naga() -> None:
    from weft.runtime.webgpu_device import device

    tensors = torch.zeros(3), torch.zeros(3, 3, dtype=torch.float16), torch.zeros(3)
    (loop,) = lowered_loops(fixed, *tensors)
    function = compiler.optimize(loop, fixed.options)
    wide = [f for f in emit.compile_shader(function, "wgsl").forms if f.wide]
    assert wide
    for form in wide:
        device().pipelines._module(form.stages[0].text)


@weft.kernel
def compared(m, b, out, n: int):
    for i in range(out.shape[1]):
        k = weft.i64(i - 2)
        out[0, i] = 1.0 if k < 4 else 2.0
        out[1, i] = 1.0 if abs(k) >= 3 else 2.0
        out[2, i] = min(k, 3)
        out[3, i] = 1.0 if weft.i64(m[i]) < n and weft.i64(b[i]) > 4 else 2.0
        out[4, i] = 1.0 if weft.math.popcnt(weft.i64(m[i])) < 2 else 2.0


def test_integers_that_became_longer_are_compared_with_constants() -> None:
    """Mesa's compiler takes `i64(k) < 4` for false."""
    m, b = torch.arange(12, dtype=torch.int32), torch.arange(12, dtype=torch.int8)
    found, expected = torch.zeros(2, 5, 12)
    compared.on("webgpu")(m, b, found, 9)
    compared.interpret(m, b, expected, 9)
    assert torch.equal(found, expected)


def test_waiting_does_not_begin_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context of CUDA's takes 100 ms, and memory of the GPU."""
    begun: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: begun.append(True))
    weft.sync()
    assert not begun
