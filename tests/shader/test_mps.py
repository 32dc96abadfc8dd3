"""Kernels on tensors of "mps": with a stand-in for torch's device, where the text is C++."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import weft
from examples.causal_conv import causal_conv
from tests.fuzz.check import function
from tests.shader import mps
from tests.shader.mps import on_mps
from weft import compiler
from weft.errors import KernelAssertionError, KernelIndexError, KernelValueError
from weft.runtime.launch import Launcher
from weft.runtime.mps import MpsError
from weft.runtime.overlap import OverlapWarning

pytestmark = pytest.mark.mps
ALONE = pytest.mark.skipif(torch.cuda.is_available(), reason="torch has CUDA or MPS, not both")
# Autograd's engine and Dynamo ask how torch was built.
BUILT_ALONE = pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="torch is built for CUDA or MPS, not both"
)


@pytest.fixture(autouse=True)
def there() -> Iterator[mps.Device]:
    with mps.mps() as found:
        yield found


@weft.kernel
def smooth(x, out):
    for i in range(1, x.shape[0] - 1):
        out[i] = 0.25 * x[i - 1] + 0.5 * x[i] + 0.25 * x[i + 1]


@weft.kernel
def increased(x, out):
    for i in range(x.shape[0]):
        out[i] = x[i] + 1


@weft.kernel
def counted(x, counts):
    for i in range(x.shape[0]):
        counts[x[i]] += 1


@weft.kernel
def folded(x):
    total, low = 0.0, 9.0
    for i in range(x.shape[0]):
        total += x[i]
        low = min(low, x[i])
    return total, low


@weft.kernel
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = torch.softmax(x[i], 0)
    return out


@weft.kernel
def product(a, b):
    out = a.new_empty(a.shape[0], b.shape[1])
    for i, j in weft.ndrange(a.shape[0], b.shape[1]):
        total = 0.0
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        out[i, j] = total
    return out


# -- what is computed


@pytest.mark.parametrize("n", [0, 1, 3, 257, 5000])
def test_in_place_where_the_tensors_are(n: int, there: mps.Device) -> None:
    x = torch.randn(n)
    expected, found = torch.zeros(n), torch.zeros(n, device="mps")
    smooth(x, expected)
    for _ in range(3):
        smooth(x.to("mps"), found)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.bool,
                                   torch.float16, torch.bfloat16, torch.int32, torch.int64],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("lead", [0, 1, 2, 3])
@pytest.mark.sampled(8)
def test_elements_of_any_size_from_any_offset_on(dtype: torch.dtype, lead: int) -> None:
    """Nothing beside them is written."""
    x = torch.randint(0, 2 if dtype is torch.bool else 100, (3, 77)).to(dtype)
    given = on_mps(x)[1:, lead : 70 + lead : 2]
    out = torch.ones(3, 90, device="mps").to(dtype)
    view = out[:2, 5 + lead : 40 + lead]

    @weft.kernel
    def turned(x, out):
        for i, j in weft.ndrange(x.shape[0], x.shape[1]):
            out[i, j] = x[i, x.shape[1] - 1 - j]

    turned(given, view)
    expected = torch.ones(3, 90).to(dtype)
    expected[:2, 5 + lead : 40 + lead] = x[1:, lead : 70 + lead : 2].flip(1)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.float16, torch.bfloat16,
                                   torch.int32, torch.float32], ids=str)  # fmt: skip
@pytest.mark.parametrize("lead", [0, 1, 3])
@pytest.mark.sampled(6)
def test_updates_of_parts_of_words_are_atomic(dtype: torch.dtype, lead: int) -> None:
    x = torch.randint(0, 5, (100,))
    counts = torch.zeros(12, dtype=dtype, device="mps")
    counted(x.to("mps"), counts[lead : lead + 5])
    expected = torch.zeros(12, dtype=dtype)
    expected[lead : lead + 5] = x.bincount(minlength=5).to(dtype)
    assert torch.equal(counts.cpu(), expected)


@pytest.mark.parametrize("n", [0, 1, 300, 100_000])
def test_reductions(n: int) -> None:
    x = torch.randn(n)
    total, low = folded(x.to("mps"))
    assert total.device.type == low.device.type == "mps"
    torch.testing.assert_close(total.cpu(), x.sum(), rtol=1e-4, atol=1e-3)
    assert low.item() == min(9.0, x.min().item() if n else 9.0)


def test_rows_matrices_and_what_blocks_share() -> None:
    x, a, b = torch.randn(7, 300), torch.randn(33, 70), torch.randn(70, 45)
    torch.testing.assert_close(softmax(x.to("mps")).cpu(), x.softmax(1))
    torch.testing.assert_close(product(a.to("mps"), b.to("mps")).cpu(), a @ b, rtol=1e-4, atol=1e-4)


@BUILT_ALONE
def test_gradients_are_loops_there() -> None:
    w, k = torch.randn(8, 40), torch.randn(2, 8, 40)
    given = [t.to("mps").requires_grad_() for t in (w, k)]
    leaves = [t.requires_grad_() for t in (w, k)]
    found, expected = causal_conv(*given, 0.1), causal_conv(*leaves, 0.1)
    torch.testing.assert_close(found.cpu(), expected)
    weight = torch.randn_like(expected)
    found.backward(weight.to("mps"))
    expected.backward(weight)
    for one, two in zip(given, leaves, strict=True):
        assert one.grad is not None
        assert one.grad.device.type == "mps"
        torch.testing.assert_close(one.grad.cpu(), two.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_tangents_and_samples() -> None:
    x, v = torch.randn(4, 50), torch.randn(4, 50)
    _, tangent = torch.func.jvp(softmax, (x.to("mps"),), (v.to("mps"),))
    _, expected = torch.func.jvp(lambda x: x.softmax(1), (x,), (v,))
    torch.testing.assert_close(tangent.cpu(), expected, rtol=1e-4, atol=1e-6)
    each = torch.vmap(lambda row: folded(row)[0])(x.to("mps"))
    torch.testing.assert_close(each.cpu(), x.sum(1), rtol=1e-4, atol=1e-4)


@BUILT_ALONE
def test_operators_and_compiled_graphs() -> None:
    x = torch.randn(3, 20)
    torch.testing.assert_close(softmax.op(x.to("mps")).cpu(), x.softmax(1))

    def graph(x: torch.Tensor) -> torch.Tensor:
        return softmax(x * 2) + 1

    found = torch.compile(graph, backend="aot_eager", fullgraph=True)(x.to("mps"))
    assert found.device.type == "mps"
    torch.testing.assert_close(found.cpu(), (2 * x).softmax(1) + 1)


def test_complex_numbers_and_random_ones() -> None:
    @weft.kernel
    def square(z):
        out = torch.empty_like(z)
        for i in range(z.shape[0]):
            out[i] = z[i] * z[i]
        return out

    @weft.kernel
    def noise(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = weft.random()
        return out

    z = torch.randn(9, dtype=torch.complex64)
    torch.testing.assert_close(square(z.to("mps")).cpu(), z * z)
    x = torch.empty(1000, device="mps")
    torch.manual_seed(1)
    first, second = noise(x), noise(x)
    torch.manual_seed(1)
    assert torch.equal(noise(x), first)
    assert not torch.equal(first, second)
    assert 0.4 < first.mean().item() < 0.6


@ALONE
def test_fields_live_there() -> None:
    before = weft.lang.field.Field.defaults
    try:
        weft.init(arch=weft.metal)
        x = weft.field(weft.f32, shape=20)
        assert x.device.type == "mps"
        x[3] = 2.0

        @weft.kernel
        def doubled():
            for i in x:
                x[i] = 2 * x[i]

        doubled()
        assert x[3] == 4
        assert x.to_numpy().sum() == 4
        weft.init(arch=weft.gpu)
        assert weft.field(weft.i32, shape=2).device.type == "mps"
    finally:
        weft.lang.field.Field.defaults = before


# -- memory


def test_tensors_whose_addresses_are_near_do_not_share_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that torch tells are of Metal's objects."""
    x, out = torch.randn(1000).to("mps"), torch.zeros(1000, device="mps")
    assert abs(x.data_ptr() - out.data_ptr()) < x.nbytes
    smooth(x, out)

    def slow(launcher: Launcher, args: object) -> None:
        raise AssertionError("there is no plan")

    monkeypatch.setattr(Launcher, "slow", slow)
    for _ in range(20):
        smooth(x, out)
    assert torch.equal(out.cpu()[1:-1], in_torch(x.cpu()))


def in_torch(x: torch.Tensor) -> torch.Tensor:
    return 0.25 * x[:-2] + 0.5 * x[1:-1] + 0.25 * x[2:]


def test_iterations_that_meet_run_in_order() -> None:
    x = torch.randint(0, 9, (50,))
    given = x.to("mps")
    expected = x.clone().numpy()
    for i in range(49):
        expected[i + 1] = expected[i] + 1
    with pytest.warns(OverlapWarning):
        increased(given[:-1], given[1:])
    assert np.array_equal(given.cpu().numpy(), expected)
    given.copy_(x)
    increased(given[:-1], given[1:])
    assert np.array_equal(given.cpu().numpy(), expected)


def test_parts_of_one_tensor_that_are_apart() -> None:
    x = torch.randn(40)
    given = x.to("mps")
    increased(given[:20], given[20:])
    assert torch.equal(given.cpu(), torch.cat([x[:20], x[:20] + 1]))


# -- what is refused


def test_the_device_has_no_float64() -> None:
    @weft.kernel
    def wide(x):
        for i in range(x.shape[0]):
            x[i] = weft.sqrt(weft.f64(x[i]))

    with pytest.raises(TypeError, match="Metal has no float64"):
        wide(torch.ones(3, device="mps"))


def test_atomic_operations_of_64_bits() -> None:
    with pytest.raises(TypeError, match="no atomic operations of 64 bits"):
        counted(torch.zeros(3).long().to("mps"), torch.zeros(3).long().to("mps"))


def test_more_tensors_than_metal_has_buffers() -> None:
    names = [f"x{k}" for k in range(31)]
    text = f"def kernel({', '.join(names)}):\n    for i in range(x0.shape[0]):\n"
    text += f"        x0[i] = {' + '.join(f'{name}[i]' for name in names[1:])}\n"
    many = weft.kernel(function(text))
    with pytest.raises(MpsError, match="needs 31 buffers, and mps has at most 30"):
        many(*[torch.zeros(3, device="mps") for _ in names])


def test_devices_are_not_mixed() -> None:
    x = torch.zeros(5)
    with pytest.raises(KernelValueError, match="`x` is on mps:0 and `out` on cpu"):
        smooth(x.to("mps"), x)
    with pytest.raises(KernelValueError, match="these are on mps"):
        smooth.on("webgpu")(x.to("mps"), x.to("mps"))
    with pytest.raises(ValueError, match='on "cuda" or "mps" run there by themselves'):
        smooth.on("mps")


def test_schedules_are_chosen() -> None:
    x = torch.zeros(5, device="mps")
    with pytest.raises(KernelValueError, match="shown for CPUs and CUDA"):
        smooth.schedules(x, x.clone())
    with pytest.raises(KernelValueError, match="tuned for CPUs and CUDA"):
        weft.tune(smooth, x, x.clone())
    assert smooth.schedules(x, x.clone(), device="cuda")


@pytest.mark.parametrize("most", [32, 48, 100])
@pytest.mark.sampled(3)
def test_blocks_are_as_large_as_metal_has_registers_for(most: int) -> None:
    @weft.kernel
    def scaled(x, out, total):
        for i, j in weft.ndrange(x.shape[0], x.shape[1]):
            out[i, j] = 3 * x[i, j]
            total[0] += x[i, j]

    x = torch.randint(0, 9, (70, 90))
    with mps.mps(most):
        given, out = x.int().to("mps"), torch.empty(70, 90, dtype=torch.int32, device="mps")
        total = torch.zeros(1, dtype=torch.int32, device="mps")
        scaled(given, out, total)
        assert torch.equal(out.cpu(), 3 * x.int())
        assert total.item() == x.sum()
        rows = torch.randn(5, 900)
        torch.testing.assert_close(softmax.on("cpu")(rows), rows.softmax(1))

        @weft.kernel
        def again(x):
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = torch.softmax(x[i], 0)
            return out

        torch.testing.assert_close(again(rows.to("mps")).cpu(), rows.softmax(1))


def test_blocks_that_a_person_asks_for_may_be_too_large() -> None:
    @weft.kernel
    def blocked(x):
        weft.loop_config(block_dim=512)
        for i in range(x.shape[0]):
            x[i] += 1

    with mps.mps(256), pytest.raises(MpsError, match="blocks of 512 threads, and Metal has room"):
        blocked(torch.zeros(2000, device="mps"))


def test_what_metal_says_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(source: str) -> None:
        raise SyntaxError("program_source:3:1: error: unknown type name")

    @weft.kernel
    def own(x):
        for i in range(x.shape[0]):
            x[i] = 5 * x[i]

    monkeypatch.setattr(torch._C, "_mps_compileShader", refusing)
    with pytest.raises(MpsError, match="Metal refuses the loop of `own_0`: program_source:3:1"):
        own(torch.zeros(3, device="mps"))


# -- checks


def test_checks_of_debug_mode_say_where() -> None:
    @weft.kernel(debug=True)
    def beyond(x, k):
        for i in range(x.shape[0]):
            x[i + k] = 1.0

    x = torch.zeros(5, device="mps")
    beyond(x, 0)
    with pytest.raises(KernelIndexError, match="subscript 5 of `x` is out of range"):
        beyond(x, 1)
    beyond(x, 0)


def test_a_check_is_raised_by_who_waits() -> None:
    @weft.kernel
    def positive(x):
        for i in range(x.shape[0]):
            assert x[i] > 0, f"element {i}"
            x[i] = weft.sqrt(x[i])

    x = torch.ones(5)
    x[3] = -1
    given = x.to("mps")
    with pytest.raises(KernelAssertionError, match="element 3"):  # the stand-in's are done at once
        positive(given)
    weft.sync()


def test_prints_are_left_out_with_a_warning() -> None:
    @weft.kernel
    def told(x):
        for i in range(x.shape[0]):
            print(x[i])
            x[i] = 2.0

    x = torch.zeros(3, device="mps")
    with pytest.warns(UserWarning, match="prints, which a shader cannot"):
        told(x)
    assert x.tolist() == [2, 2, 2]


def test_results_without_an_order_are_refused_in_deterministic_mode() -> None:
    @weft.kernel
    def summed(x, k, out):
        for i in range(x.shape[0]):
            out[k[i]] += x[i]

    x, k = torch.randn(50).to("mps"), torch.randint(0, 3, (50,)).to("mps")
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(KernelValueError, match="has no order on a GPU"):
            summed(x, k, torch.zeros(3, device="mps"))
    finally:
        torch.use_deterministic_algorithms(False)


# -- the text


def test_the_disk_cache_has_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> weft.Kernel:
        @weft.kernel
        def tripled(x):
            for i in range(x.shape[0]):
                x[i] = 3 * x[i]

        return tripled

    x = torch.ones(3, device="mps")
    made()(x)
    monkeypatch.setattr(compiler, "shader_form", None)
    made()(x)
    assert x.tolist() == [9, 9, 9]


def test_numbers_come_with_each_call(there: mps.Device) -> None:
    @weft.kernel
    def shifted(x, a: float, n: int):
        for i in range(x.shape[0]):
            x[i] = x[i] * a + n

    x = torch.ones(3, device="mps")
    shifted(x, 2.0, 1)
    texts = len(there.sources)
    for k in range(5):
        shifted(x, 1.0, k)
    assert len(there.sources) == texts
    assert x.tolist() == [13, 13, 13]


def test_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "weft.launch")

    @weft.kernel
    def halved(x):
        for i in range(x.shape[0]):
            x[i] = x[i] / 2

    halved(torch.ones(3, device="mps"))
    assert "halved_0: on mps, grid (1, 1, 1)" in caplog.text


def test_the_doctor_names_it() -> None:
    from weft.workbench.doctor import doctor

    assert "a stand-in: kernels of tensors on mps run there" in str(doctor(measure=False))
