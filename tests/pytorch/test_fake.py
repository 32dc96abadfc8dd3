"""The host part on fake tensors."""

import linecache
import types
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import weft
from weft.errors import KernelValueError
from weft.pytorch.releases import CONSTANTS

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


@weft.kernel
def counts(x: torch.Tensor) -> torch.Tensor:
    n = int(x.max()) + 1
    out = torch.zeros(n)
    for i in range(x.shape[0]):
        out[x[i]] += 1.0
    return out


@weft.kernel
def signed(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    if x.sum() > 0:
        for i in range(x.shape[0]):
            out[i] = x[i]
    else:
        for i in range(x.shape[0]):
            out[i] = -x[i]
    return out


@pytest.mark.parametrize(
    ("kernel", "line"), [(counts, "n = int(x.max()) + 1"), (signed, "if x.sum() > 0:")]
)
@pytest.mark.parametrize("shapes", [None, ShapeEnv], ids=["static", "symbolic"])
def test_data_that_is_not_there(kernel, line, shapes):
    with FakeTensorMode(shape_env=shapes and shapes()) as mode:
        x = mode.from_tensor(torch.tensor([1, 2, 2]))
        with pytest.raises(KernelValueError) as info:
            kernel(x)
    assert info.value.message == (
        "the host part makes a number of what is in a tensor, and there is no data yet"
    )
    assert info.value.help == (
        "under torch.compile sizes and branches may depend on shapes and numbers only: compute the "
        "number outside of the kernel and pass it as an argument"
    )
    assert info.value.span.text.strip() == line


@pytest.mark.slow  # eight seconds of torch.compile
@pytest.mark.parametrize("kernel", [counts, signed])
def test_numbers_made_of_data_break_the_graph(kernel):
    torch._dynamo.reset()
    x = torch.tensor([1, 2, 2])
    compiled = torch.compile(lambda x: kernel(x + 1) + 1, backend="aot_eager")
    for y in (x, x - 7 * (kernel is signed)):
        torch.testing.assert_close(compiled(y), kernel(y + 1) + 1)
    with pytest.raises(Exception, match="the host part makes a number of what is in a tensor"):
        torch.compile(kernel, backend="aot_eager", fullgraph=True)(x)


W = torch.tensor([2.0, 3.0, 4.0])


@weft.kernel
def by_total(x: torch.Tensor) -> torch.Tensor:
    total, rest = W.sum(), torch.cat([W[1:], x])
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i] * total * rest[i]
    return out


@weft.kernel
def by_item(x: torch.Tensor) -> torch.Tensor:
    by, other = W[0].item(), x.detach().sum().item()
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * by + other
    return out


def total_of(x):
    return by_total(x).sum()


class ByTotal(torch.nn.Module):
    def forward(self, x):
        return by_total(x)


GRAPHS = {
    "compile": lambda x: torch.compile(by_total, backend="aot_eager", fullgraph=True)(x),
    "vmap": lambda x: torch.compile(vmap(by_total), backend="aot_eager", fullgraph=True)(x[None])[
        0
    ],
    "export": lambda x: torch.export.export(ByTotal(), (x,)).module()(x),
    "fake": lambda x: make_fx(by_total, tracing_mode="fake")(x)(x),
    "symbolic": lambda x: make_fx(by_total, tracing_mode="symbolic")(x)(x),
}


@pytest.mark.parametrize("way", GRAPHS)
def test_tensors_around_a_kernel_in_its_host_part(way):
    """They were refused by torch: "Please convert all Tensors to FakeTensors first"."""
    torch._dynamo.reset()
    x = torch.tensor([0.5, -2.0])
    torch.testing.assert_close(GRAPHS[way](x), by_total(x))


def test_derivatives_beside_tensors_around_a_kernel():
    torch._dynamo.reset()
    x = torch.tensor([0.5, -2.0], requires_grad=True)
    compiled = torch.compile(total_of, backend="aot_eager", fullgraph=True)
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, torch.autograd.grad(total_of(x), x)[0])
    x = x.detach()
    compiled = torch.compile(grad(total_of), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), found)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_items_that_only_loops_read_are_in_a_graph(backend, dynamic):
    """They were symbols that nothing gave: "Pending unbacked symbols"."""
    torch._dynamo.reset()
    compiled = torch.compile(by_item, backend=backend, fullgraph=True, dynamic=dynamic)
    for x in (torch.tensor([0.5, -2.0]), torch.tensor([1.5, 2.0, 4.0])):
        torch.testing.assert_close(compiled(x), by_item(x))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("needs", [False, True])
def test_items_that_the_caller_asks_for_too(dynamic, needs):
    """Symbols of what is recorded for Inductor were left to its next operator."""

    @weft.kernel
    def by_first(x: torch.Tensor) -> torch.Tensor:
        first = x[0].item()
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * first
        return out

    def f(x):
        first = x[0].item()
        return by_first(x) * first

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(f, fullgraph=True, dynamic=dynamic)
        for x in (torch.tensor([0.5, -2.0]), torch.tensor([1.5, 2.0, 4.0])):
            x.requires_grad_(needs)
            found, expected = compiled(x), f(x)
            torch.testing.assert_close(found, expected)
            if needs:
                torch.testing.assert_close(*(torch.autograd.grad(o.sum(), x)
                                             for o in (found, expected)))  # fmt: skip


NUMBERS = [lambda: float(W[0]), lambda: W.tolist()[0], lambda: float(W.numpy()[0])]


@pytest.mark.parametrize("read", NUMBERS)
def test_numbers_made_of_tensors_around_a_kernel(read):
    @weft.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        by = read()
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * by
        return out

    torch._dynamo.reset()
    x = torch.tensor([0.5, -2.0])
    torch.testing.assert_close(torch.compile(kernel, backend="aot_eager")(x), x * 2)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="the host part makes a number of what is in a tensor"):
        torch.compile(kernel, backend="aot_eager", fullgraph=True)(x)


AWAY = """
def kernel(x):
    out = torch.zeros(x.shape[0] + MORE)
    for i in range(x.shape[0]):
        out[i] = x[i] * W[i]
    return out
"""


def test_globals_of_a_module_that_is_not_imported():
    """Dynamo looks for the module ("No module named"), and has the dict instead."""
    module = types.ModuleType("nowhere")
    module.__file__ = "<nowhere>"
    linecache.cache["<nowhere>"] = (len(AWAY), None, AWAY.splitlines(True), "<nowhere>")
    vars(module).update(torch=torch, MORE=2, W=W)
    exec(compile(AWAY, "<nowhere>", "exec"), vars(module))
    kernel, x = weft.kernel(module.kernel), torch.ones(3)
    torch._dynamo.reset()
    compiled = torch.compile(kernel, backend="aot_eager", fullgraph=True)
    for module.MORE in (2, 4):
        assert torch.equal(compiled(x), kernel(x))
        assert kernel(x).shape == (3 + module.MORE,)


@weft.kernel
def wide_total(x):
    total = weft.i64(0)
    for i in range(x.shape[0]):
        total += weft.i64(x[i])
    return total


@weft.kernel
def scaled(x, by: float):
    n = weft.f32(x.shape[0])
    scale = weft.math.sqrt(n) + weft.max(weft.i8(by), n)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * scale
    return out


@weft.kernel
def in_steps(x):
    count, step = weft.u8(0), weft.cast(0.5, weft.f64)
    out = x.clone()
    while count < 3:
        for i in range(x.shape[0]):
            out[i] += step
        count += 1
    return out, weft.c64(count)


@weft.kernel
def rounded(x, dtype: weft.template()):
    out, last = torch.empty_like(x), dtype(0)
    for i in range(x.shape[0]):
        out[i] = dtype(x[i])
        last = weft.max(last, dtype(x[i]))
    return out, last


@pytest.mark.parametrize(
    ("kernel", "others"),
    [(wide_total, ()), (scaled, (2.7,)), (in_steps, ()), (rounded, (weft.i16,)),
     (rounded, (weft.f16,))],
)  # fmt: skip
@pytest.mark.parametrize("dynamic", [False, True])
def test_dtypes_of_weft_in_a_host_part(kernel, others, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: kernel(x, *others), backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    if kernel is in_steps and CONSTANTS.missing:
        with pytest.raises(Exception, match="the host part makes a number of what is in a tensor"):
            compiled(torch.randn(5))
        return
    for n in (5, 9):
        x = torch.randn(n) * 100
        torch.testing.assert_close(compiled(x), kernel(x, *others))


@weft.kernel
def in_box(x):
    low, high = weft.math.vec2(1e9, 1e9), weft.math.vec2(-1e9, -1e9)
    for i in range(x.shape[0]):
        p = weft.math.vec2(x[i, 0], x[i, 1])
        low = weft.min(low, p)
        high = weft.max(high, p)
    out = torch.empty_like(x)
    scale = weft.Matrix([[high.x - low.x, 0.0], [0.0, high.y - low.y]])
    for i in range(x.shape[0]):
        q = scale.inverse() @ (weft.math.vec2(x[i, 0], x[i, 1]) - low)
        for k in weft.static(range(2)):
            out[i, k] = q[k]
    return out


def in_box_by_torch(x):
    return (x - x.amin(0)) / (x.amax(0) - x.amin(0))


def test_a_vector_that_a_loop_has_reduced_into_is_no_constant_of_the_next_loop() -> None:
    for _ in range(4):
        x = torch.randn(5, 2, dtype=torch.float64)
        torch.testing.assert_close(in_box(x), in_box_by_torch(x))
    assert len(in_box.specializations) == 2  # each call had one more


def test_a_graph_holds_a_vector_between_loops() -> None:
    @weft.kernel
    def scaled(x, a: float):
        v = weft.Vector([a, 2 * a])
        out = torch.empty_like(x)
        for i, j in x:
            out[i, j] = x[i, j] * v[0] + v[1]
        return out

    torch._dynamo.reset()
    call = torch.compile(
        lambda x, a: (in_box(x), scaled(x, a)), backend="aot_eager", dynamic=True, fullgraph=True
    )
    for n in (4, 7):
        x = torch.randn(n, 2, dtype=torch.float64)
        torch.testing.assert_close(call(x, 0.5 * n), (in_box_by_torch(x), x * 0.5 * n + n))


def made_by_zeros(v: torch.Tensor) -> torch.Tensor:
    f = weft.zeros(8, weft.f64)
    for i in range(v.shape[0]):
        f[i] = v[i] * v[i]
    out = torch.empty_like(v)
    for i in range(v.shape[0]):
        out[i] = 3 * f[i]
    return out


def made_by_field(v: torch.Tensor) -> torch.Tensor:
    f = weft.field(weft.f64, shape=8)
    for i in range(v.shape[0]):
        f[i] = v[i] * v[i]
    out = torch.empty_like(v)
    for i in range(v.shape[0]):
        out[i] = 3 * f[i]
    return out


@pytest.mark.parametrize("function", [made_by_zeros, made_by_field])
def test_arrays_and_fields_that_the_host_part_makes(function: Any) -> None:
    """A fake tensor is no field: torch refused to make one of it."""
    torch._dynamo.reset()
    kernel = weft.kernel(function)
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    graph = torch.compile(kernel, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(graph(x), 3 * x * x)
    (slope,) = torch.autograd.grad(graph(x).sum(), x)
    torch.testing.assert_close(slope, 6 * x)

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return kernel(x)

    x = x.detach()
    torch.testing.assert_close(torch.export.export(Module(), (x,)).module()(x), 3 * x * x)


def test_a_field_of_vectors_that_the_host_part_makes_is_refused_there() -> None:
    @weft.kernel
    def kernel(v: torch.Tensor) -> torch.Tensor:
        f = weft.field(weft.math.vec2, shape=8)
        out = torch.empty_like(v)
        for i in range(v.shape[0]):
            f[i] = weft.math.vec2(v[i], v[i])
            out[i] = f[i].x
        return out

    x = torch.rand(3)
    torch.testing.assert_close(kernel(x), x)
    with FakeTensorMode() as mode, pytest.raises(weft.KernelTypeError) as raised:
        kernel(mode.from_tensor(x))
    assert raised.value.message == (
        "a field of vectors, with an offset or a gradient is made under torch.compile"
    )


GPU = torch.device("cuda:0")


@weft.kernel
def on_the_gpu(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], dtype=x.dtype, device=GPU)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]
    return out


def test_fake_tensors_of_the_cpu_stand_for_those_of_a_gpu():
    """DTensor asks for shapes with such, where the host part names the device: it was refused."""
    with FakeTensorMode():
        assert on_the_gpu.op(torch.empty(5)).shape == (5,)
    with pytest.raises(Exception, match="`x` is on cpu and `out` on meta"):  # a call is no question
        torch.compile(on_the_meta_device, backend="aot_eager", fullgraph=True)(torch.ones(5))


@weft.kernel
def on_the_meta_device(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], device="meta")
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]
    return out
