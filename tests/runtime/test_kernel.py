"""Calling kernels: arguments, specialisations, aliasing, errors, threads."""

import re
import threading
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.errors import (
    KernelAssertionError,
    KernelIndexError,
    KernelTypeError,
    KernelValueError,
)

SCALE = 2.0


@weft.kernel
def add(x, y, out):
    for i in range(out.shape[0]):
        out[i] = x[i] + y[i]


@weft.kernel
def shift(x, out):
    for i in range(out.shape[0] - 1):
        out[i + 1] = x[i]


@weft.kernel
def scaled(x: torch.Tensor, factor: float = 3.0, *, offset: int = 0) -> torch.Tensor:
    "Doc."
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * factor + offset
    return out


@weft.kernel
def times_global(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * SCALE
    return out


@weft.kernel
def total(x) -> float:
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
    return s


def body(error):
    """An error's text without the file and line."""
    return str(error.value).split(": ", 1)[-1] if ".py:" in str(error.value) else str(error.value)


def test_a_kernel_looks_like_its_function():
    assert scaled.__name__ == "scaled"
    assert scaled.__doc__ == "Doc."
    assert scaled.__wrapped__ is scaled.function
    assert str(scaled.signature) == (
        "(x: torch.Tensor, factor: float = 3.0, *, offset: int = 0) -> torch.Tensor"
    )
    assert "scaled(x: torch.Tensor" in repr(scaled)


def test_positional_keyword_and_default_arguments():
    x = torch.randn(10)
    torch.testing.assert_close(scaled(x), x * 3)
    torch.testing.assert_close(scaled(x, 2.0), x * 2)
    torch.testing.assert_close(scaled(factor=0.5, x=x, offset=4), x * 0.5 + 4)
    torch.testing.assert_close(scaled(x, 2), x * 2)  # an int for a float


def test_wrong_arguments():
    x = torch.randn(3)
    with pytest.raises(KernelTypeError) as caught:
        add(x, x)
    assert body(caught) == (
        "in kernel `add`: missing a required argument: 'out'\n"
        "    def add(x, y, out):\n"
        "    ^^^^^^^^^^^^^^^^^^^\n"
        "help: the kernel is add(x, y, out)"
    )
    with pytest.raises(KernelTypeError, match="too many positional arguments"):
        add(x, x, x, x)
    with pytest.raises(KernelTypeError, match="unexpected keyword argument 'wrong'"):
        scaled(x, wrong=1)
    with pytest.raises(KernelTypeError) as caught:
        scaled(x, "two")
    assert body(caught).startswith(
        "in kernel `scaled`: `factor` is annotated float, and a str was passed"
    )
    with pytest.raises(KernelTypeError, match=r"`x` is a NumPy array(.|\n)*from_numpy"):
        add(np.ones(3), x, x)


def test_a_type_error_of_the_host_part_is_left_alone():
    @weft.kernel
    def wrong(x):
        return x + {}

    with pytest.raises(TypeError) as caught:
        wrong(1)
    assert not isinstance(caught.value, KernelTypeError)


def test_specialisations_are_reused_and_listed():
    fresh = weft.kernel(add.function)
    for dtype in (torch.float32, torch.float64, torch.int32):
        for n in (4, 5):
            x = torch.ones(n, dtype=dtype)
            out = torch.empty_like(x)
            fresh(x, x, out)
            assert torch.equal(out, x + x)
    listed = fresh.specializations
    assert [s.signature for s in listed] == [
        f"x: {d}[:], y: {d}[:], out: {d}[:]" for d in ("f32", "f64", "i32")
    ]
    assert [s.plans for s in listed] == [2, 2, 2]
    assert all(s.stages["frontend"] > 0 for s in listed)


@pytest.mark.parametrize(
    "view",
    [lambda x: x[::2], lambda x: x.view(5, 4)[:, 1], lambda x: x[3:], lambda x: x[:1].expand(7)],
)
def test_strided_and_offset_views(view):
    x = view(torch.randn(20))
    out = torch.full((3 * len(x),), torch.nan)[::3]
    add(x, x, out)
    torch.testing.assert_close(out, x + x)


def test_an_argument_passed_twice_and_in_place():
    x = torch.randn(100)
    twice = x + x
    add(x, x, x)
    assert torch.equal(x, twice)


def test_overlapping_memory_is_compiled_without_noalias():
    fresh = weft.kernel(shift.function)
    x, out = torch.arange(10.0), torch.zeros(10)
    fresh(x, out)
    assert torch.equal(out[1:], x[:-1])
    base = torch.rand(8, 2)
    expected = base[:-1, 0].clone()
    fresh(base[:, 0], base[:, 1])  # between each other: no element is shared
    assert torch.equal(base[1:, 1], expected)
    assert [s.aliased for s in fresh.specializations] == [False, False, True]
    fresh(x, out)
    assert len(fresh.specializations) == 3


def test_a_written_expanded_tensor_is_refused():
    x = torch.ones(4)
    with pytest.raises(KernelValueError) as caught:
        add(x, x, torch.zeros(1).expand(4))
    assert "`out` is written, and it is expanded" in str(caught.value)
    assert "help: pass out.clone()" in str(caught.value)


def test_empty_tensors():
    x = torch.empty(0)
    add(x, x, x)
    assert total(x) == 0.0


def test_a_changed_global_recompiles(monkeypatch):
    x = torch.ones(3)
    assert times_global(x).tolist() == [2.0] * 3
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert times_global(x).tolist() == [5.0] * 3
    monkeypatch.setitem(globals(), "SCALE", 5)
    assert times_global(x).tolist() == [5.0] * 3
    monkeypatch.setitem(globals(), "SCALE", -0.0)
    assert str(times_global(x).tolist()) == "[-0.0, -0.0, -0.0]"
    monkeypatch.setitem(globals(), "SCALE", 0.0)
    assert str(times_global(x).tolist()) == "[0.0, 0.0, 0.0]"


def test_a_return_annotation_gives_a_python_number():
    result = total(torch.ones(1000))
    assert type(result) is float
    assert result == 1000.0


def test_methods_and_attributes():
    class Layer:
        def __init__(self, scale):
            self.scale = scale

        @weft.kernel
        def run(self, x):
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = x[i] * self.scale
            return out

    x = torch.randn(5)
    layer = Layer(2.0)
    assert torch.equal(layer.run(x), x * 2)
    layer.scale = 3.0
    assert torch.equal(layer.run(x), x * 3)
    assert torch.equal(Layer.run(Layer(4.0), x), x * 4)


def test_tuples_shapes_and_templates():
    @weft.kernel
    def kernel(x, size, pair, function: weft.template()):
        out = torch.zeros(size)
        for i, j in weft.ndrange(size[0], size[1]):
            out[i, j] = function(x[i]) + pair[0] * pair[1]
        return out

    def double(v):
        return v * 2

    def triple(v):
        return v * 3

    x = torch.randn(4)
    for function, factor in ((double, 2), (triple, 3), (double, 2)):
        for size in ((4, 3), torch.Size([4, 3]), [4, 2]):
            got = kernel(x, size, (2, 0.5), function)
            torch.testing.assert_close(got, (x * factor + 1).unsqueeze(1).expand(*size))


def test_host_loops_and_branches():
    @weft.kernel
    def smooth(x, steps, flag):
        for _ in weft.serial(range(steps)):
            y = torch.empty_like(x)
            for i in range(x.shape[0]):
                y[i] = x[i] * 0.5
            x = y
        if flag:
            for i in range(x.shape[0]):
                x[i] += 1
        return x

    x = torch.randn(6)
    before = x.clone()
    torch.testing.assert_close(smooth(x, 3, True), x / 8 + 1)
    assert torch.equal(x, before)


@pytest.mark.cpu
def test_unsupported_tensors():
    x = torch.ones(2)
    with pytest.raises(KernelTypeError, match=r"is a complex number \(c64\)(.|\n)*z\.real"):
        add(x.to(torch.complex64), x, x)
    with pytest.raises(KernelTypeError, match=r"sparse_coo tensor(.|\n)*to_dense"):
        add(x.to_sparse(), x, x)
    with pytest.raises(KernelTypeError, match="float8_e4m3fnuz"):
        add(x.to(torch.float8_e4m3fnuz), x, x)
    with pytest.raises(KernelValueError, match="`x` is on cpu and `y` on meta"):
        add(x, x.to("meta"), x)
    with pytest.raises(KernelValueError, match="lazily negated"):
        add(torch.ones(2, dtype=torch.complex64).conj().imag, x, x)


def test_a_lazily_negated_tensor_is_refused_after_an_ordinary_one_of_its_kind():
    negated = torch.ones(4, dtype=torch.complex64).conj().imag
    ordinary = torch.ones(4, dtype=torch.complex64).imag
    out = torch.empty(4)
    add(ordinary, ordinary, out)
    with pytest.raises(KernelValueError, match="lazily negated"):
        add(negated, ordinary, out)


def test_integers_that_do_not_fit():
    x = torch.ones(2)
    scaled(x, 1.0, offset=5)
    with pytest.raises(KernelValueError, match=r"`offset` is \d+, which does not fit in 64 bits"):
        scaled(x, 1.0, offset=1 << 63)

    @weft.kernel
    def strong(x, n: weft.i32):
        for i in range(x.shape[0]):
            x[i] = n

    strong(x, 7)
    assert x.tolist() == [7.0, 7.0]
    with pytest.raises(KernelValueError, match="does not fit in i32"):
        strong(x, 1 << 31)


def test_a_gradient_that_is_asked_for_is_given():
    x, out = torch.ones(3, requires_grad=True), torch.zeros(3)
    add(x, x, out)
    assert out.requires_grad
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
    with torch.no_grad():
        out = torch.zeros(3)
        add(x, x, out)
    assert not out.requires_grad


def test_writing_tells_autograd():
    x = torch.ones(3, requires_grad=True)
    y = torch.ones(3)
    z = (x * y).sum()  # y is saved for backward
    add(y, y, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_inference_mode():
    with torch.inference_mode():
        x = torch.ones(3)
        out = torch.zeros(3)
        add(x, x, out)
    assert out.tolist() == [2.0] * 3


def test_debug_mode_names_line_index_and_shape():
    @weft.kernel(debug=True)
    def reach(x, n):
        for i in range(n):
            x[i + 2] = 1.0

    x = torch.zeros(5)
    reach(x, 3)
    assert x.tolist() == [0, 0, 1, 1, 1]
    with pytest.raises(KernelIndexError) as caught:
        reach(x, 4)
    assert body(caught) == (
        "in kernel `reach`: subscript 5 of `x` is out of range: its dimension 0 has 5 elements\n"
        "    x[i + 2] = 1.0\n"
        "      ^^^^^\n"
        "help: narrow the loop, or test the subscript before"
    )


def test_a_failed_assertion_in_a_kernel():
    @weft.kernel
    def check(x):
        for i in range(x.shape[0]):
            assert x[i] > 0, "must be positive"

    check(torch.ones(100))
    x = torch.ones(100)
    x[42] = -1
    with pytest.raises(KernelAssertionError, match="must be positive"):  # at the latest now
        (check(x), weft.sync())


def test_ndarray_annotations():
    @weft.kernel
    def typed(x: weft.types.ndarray(dtype=weft.f32, ndim=2)):
        for i, j in x:
            x[i, j] = 1.0

    typed(torch.zeros(2, 3))
    with pytest.raises(
        KernelTypeError, match="`x` is annotated f32, and a tensor of dtype float64"
    ):
        typed(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(KernelTypeError, match=r"with 2 dimensions, and a tensor of shape \(6,\)"):
        typed(torch.zeros(6))


def test_jaxtyping_annotations():
    jaxtyping = pytest.importorskip("jaxtyping")

    @weft.kernel
    def matmul(
        a: jaxtyping.Float[torch.Tensor, "M K"],  # noqa: F722
        b: jaxtyping.Float[torch.Tensor, "K N"],  # noqa: F722
    ):
        out = torch.empty(a.shape[0], b.shape[1])
        for i, j in weft.ndrange(a.shape[0], b.shape[1]):
            s = 0.0
            for k in range(a.shape[1]):
                s += a[i, k] * b[k, j]
            out[i, j] = s
        return out

    a, b = torch.randn(3, 4), torch.randn(4, 5)
    torch.testing.assert_close(matmul(a, b), a @ b)
    with pytest.raises(KernelValueError) as caught:
        matmul(a, torch.randn(5, 4))
    assert "`K` is 4 in `a` and 5 in `b`" in str(caught.value)
    assert "help: dimensions of one name have one size" in str(caught.value)
    with pytest.raises(KernelTypeError, match=r'"M K", and a tensor of shape \(4,\)'):
        matmul(a[0], b)
    with pytest.raises(KernelTypeError, match="dtype int64 was passed"):
        matmul(a.long(), b)


def test_interpret_runs_the_python():
    x, out = torch.randn(4), torch.empty(4)
    add.interpret(x, x, out)
    assert torch.equal(out, x + x)


def test_inspect_shows_every_stage_and_leaves_the_arguments_alone(device):
    x, out = torch.ones(4), torch.zeros(4)
    shown = add.inspect(x, x, out)
    assert out.tolist() == [0.0] * 4
    assert "scf.parallel" in shown["ir"]
    assert "define" in shown.text("llvm")
    assert list(shown)[:2] == ["source", "ir"]
    assert ("ptx" if device == "cuda" else "assembly") in shown
    assert "wgsl" in shown  # made where it is asked for
    assert dict(shown)["llvm"] == shown["llvm"]
    with pytest.raises(
        KeyError, match=r"`\w+_0` has no stage `spirv`; there are: source, ir, index"
    ):
        shown["spirv"]


def test_many_threads_at_once():
    fresh = weft.kernel(scaled.function)
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for n in range(1, 30):
            dtype = (torch.float32, torch.float64)[n % 2]
            x = torch.randn(n, generator=generator, dtype=dtype)
            if not torch.allclose(fresh(x, float(seed)), x * seed):
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(fresh.specializations) == 2


def test_the_decorator_refuses_what_is_no_function():
    with pytest.raises(KernelTypeError, match="decorates a function, not type"):
        weft.kernel(int)


@weft.kernel
def squares_below(n: int) -> float:
    s = 0.0
    for i in range(n):
        s += weft.math.sqrt(weft.f32(i) * i)
    return s


@pytest.mark.cpu
def test_another_default_device_changes_nothing():
    x, out = torch.arange(5.0, requires_grad=True), torch.empty(5)  # whose sum is exact
    total(x.detach())
    with torch.device("meta"):
        assert squares_below(5) == 10
        assert squares_below.interpret(5) == 10
        torch.testing.assert_close(total(x.detach()), x.sum().item())
        scaled_x = scaled(x, 2.0)
        torch.testing.assert_close(scaled_x, 2 * x)
        (found,) = torch.autograd.grad(scaled_x, x, torch.ones(5, device="cpu"))
        assert found.tolist() == [2.0] * 5
        add(x.detach(), x.detach(), out)
    torch.testing.assert_close(out, 2 * x.detach())


def stored_number(x: torch.Tensor, n: int):
    for i in range(x.shape[0]):
        x[i] = n * 2


def added_number(x: torch.Tensor, n: int):
    for i in range(x.shape[0]):
        x[i] += n


@pytest.mark.parametrize(("function", "n", "message"), [
    (stored_number, 150, "300 does not fit in int8, the dtype of `x`\n    x[i] = n * 2"),
    (stored_number, 1 << 62, "9223372036854775808 does not fit in int8, the dtype of `x`"),
    (added_number, 1 << 70, f"`n` is {1 << 70}, which does not fit in 64 bits"),
], ids=("stored", "more than 64 bits", "argument"))  # fmt: skip
def test_interpret_says_which_integer_does_not_fit(function: Any, n: int, message: str) -> None:
    with pytest.raises(weft.KernelValueError, match=re.escape(message)):
        weft.kernel(function).interpret(torch.ones(2, dtype=torch.int8), n)


@weft.kernel
def counted(x: torch.Tensor):
    total, most = weft.u32(2), weft.f32(0)
    before = total
    for i in range(x.shape[0]):
        total += weft.u32(x[i])
        most = max(most, x[i])
    return total, most, before


def test_scalars_of_the_host_part_are_where_tensors_are(device: str) -> None:
    """They were refused beside CUDA tensors: 0-d tensors on the CPU."""
    x = torch.tensor([1.0, 5.0, 2.0], device=device)
    for _ in range(3):  # by the generated call, too
        total, most, before = counted(x)
        assert [total.item(), most.item(), before.item()] == [10, 5.0, 2]
    assert [r.device.type for r in counted(x.to("meta"))[:2]] == ["meta", "meta"]
