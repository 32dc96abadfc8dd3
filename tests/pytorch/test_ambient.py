"""What is around a call: autocast, the default device, and random numbers in the host part."""

import pytest
import torch
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.errors import GradientError

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


@weft.kernel
def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    out = torch.empty_like(y)
    for i, j in weft.ndrange(y.shape[0], y.shape[1]):
        out[i, j] = y[i, j] * 2.0
    return out


@weft.kernel
def drop(x: torch.Tensor, p: float) -> torch.Tensor:
    mask = torch.rand_like(x)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] / (1 - p) if mask[i] > p else 0.0
    return out


def cast(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return product(x, w)


@pytest.fixture
def pair():
    torch._dynamo.reset()
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)


def with_gradients(f, pair):
    out = f(*pair)
    return out, *torch.autograd.grad(out, pair, torch.ones_like(out))


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.slow
def test_compiled_under_autocast(pair):
    compiled = torch.compile(cast, backend="aot_eager", fullgraph=True)
    same(with_gradients(compiled, pair), with_gradients(cast, pair))
    same(with_gradients(torch.compile(product, backend="aot_eager"), pair),
         with_gradients(product, pair))  # fmt: skip
    around = torch.compile(product, backend="aot_eager", fullgraph=True)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert around(*pair).dtype == product(*pair).dtype == dtype
    assert around(*pair).dtype == torch.float32


def test_operators_under_autocast(pair):
    def through(call):
        def run(x, w):
            with torch.autocast("cpu", torch.bfloat16):
                return call(x, w)

        return run

    expected = with_gradients(cast, pair)
    same(with_gradients(through(lambda x, w: product.operators((x, w), {})), pair), expected)
    same(with_gradients(through(product.op), pair), expected)
    out, pull = torch.func.vjp(cast, *pair)
    same((out, *pull(torch.ones_like(out))), expected)
    assert product.op(*pair).dtype == torch.float32


def kept(y):
    return y.detach() != 0


def test_random_numbers_of_derivatives_under_torch_func():
    x = torch.ones(200)
    y, pull = torch.func.vjp(lambda x: drop(x, 0.5), x)
    before = torch.get_rng_state()
    (g,) = pull(torch.ones(200))
    assert torch.equal(torch.get_rng_state(), before)  # as if it had not been carried out again
    assert torch.equal(kept(g), kept(y))
    y, t = torch.func.jvp(lambda x: drop(x, 0.5), (x,), (torch.ones(200),))
    assert torch.equal(kept(t), kept(y))
    g, y = torch.func.grad_and_value(lambda x: (drop(x, 0.5) * drop(x, 0.5)).sum())(x)
    assert g.sum() == 2 * y  # the two masks differ, and each product has both


def test_random_numbers_in_plain_eager_mode():
    x = torch.ones(200, requires_grad=True)
    y = drop(x, 0.5)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(kept(g), kept(y))
    assert not torch.equal(kept(drop(x, 0.5)), kept(y))


class Mode(TorchDispatchMode):
    """Sees operators, and calls them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_the_derivative_of_an_operator_is_that_of_its_random_numbers():
    x = torch.ones(200, requires_grad=True)
    y = drop.op(x, 0.5)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(kept(g), kept(y))


def test_the_derivative_of_other_random_numbers_is_refused():
    x = torch.ones(200, requires_grad=True)
    torch.manual_seed(0)
    with Mode():
        y = drop.op(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(kept(y), kept(drop(x.detach(), 0.5)))
    with pytest.raises(GradientError) as info:
        y.sum().backward()
    assert info.value.message == (
        "the kernel draws random numbers, and the derivative of the operator would be that of "
        "other numbers"
    )
    assert info.value.help == (
        "draw them outside of the kernel and pass the tensor as an argument, or call the kernel in "
        "plain eager mode, not under torch.compile and dispatch modes"
    )


# --- the default device -------------------------------------------------------------------------
@weft.kernel
def squares(x: torch.Tensor) -> torch.Tensor:
    """Its host part only makes tensors."""
    out = torch.empty(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]
    return out


def weights(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float64)


@weft.kernel
def weighted(x: torch.Tensor) -> torch.Tensor:
    """Graphs hold an operator of the whole kernel."""
    w = weights(x.shape[0])
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i] * w[i]
    return out


class Scaled:
    def __init__(self, by: torch.Tensor) -> None:
        self.by = by

    @weft.kernel
    def squares(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], dtype=x.dtype)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * self.by[0]
        return out


def compiled(f, backend):
    return torch.compile(f, backend=backend, fullgraph=True)


def gradient(f):
    def found(x):
        x = x.detach().requires_grad_()
        out = f(x)
        with torch.device("cpu"):  # as threads of autograd have it
            return out, *torch.autograd.grad(out.sum(), x)

    return found


ON_DEFAULT_DEVICES = {
    "call": lambda f, _: f,
    "gradient": lambda f, _: gradient(f),
    "operator": lambda f, _: lambda x: f.op(x),
    "graph": compiled,
    "gradient of a graph": lambda f, backend: gradient(compiled(f, backend)),
    "graph of vmap": lambda f, backend: lambda x: compiled(vmap(f), backend)(x[None])[0],
    "graph of grad": lambda f, backend: compiled(grad(lambda x: f(x).sum()), backend),
    "make_fx": lambda f, _: lambda x: make_fx(lambda y: f(y))(x)(x),
    "make_fx, symbolic": lambda f, _: (
        lambda x: make_fx(lambda y: f(y), tracing_mode="symbolic")(x)(x)
    ),
    "export": lambda f, _: lambda x: torch.export.export(Around(f), (x,)).module()(x),
}


class Around(torch.nn.Module):
    def __init__(self, kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        return self.kernel(x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sets", [False, True])
@pytest.mark.parametrize("way", ON_DEFAULT_DEVICES)
@pytest.mark.parametrize("kernel", [squares, weighted, "method"])
@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_tensors_that_the_host_part_makes_on_the_default_device(device, kernel, way, sets):
    """Compiled graphs, and what traces, made them on the CPU, and refused the loop."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    torch._dynamo.reset()
    x = torch.randn(5, dtype=torch.float64, device=device)
    if kernel == "method":
        if way in ("make_fx, symbolic", "operator"):
            pytest.skip("torch takes no tensors, or no object, that are around the function there")
        kernel = Scaled(torch.ones(1, dtype=torch.float64, device=device)).squares
    f = ON_DEFAULT_DEVICES[way](kernel, "aot_eager" if device == "meta" else "inductor")
    if sets:
        torch.set_default_device(device)
        try:
            found = f(x)
        finally:
            torch.set_default_device(None)
    else:
        with torch.device(device):
            found = f(x)
    w = 1.0 if kernel is not weighted else weights(5).to(device)
    expected = 2 * w * x if way == "graph of grad" else w * x * x
    found = list(found) if isinstance(found, tuple) else [found]
    torch.testing.assert_close(found, [expected, 2 * w * x][: len(found)])


def test_graphs_notice_another_default_device():
    torch._dynamo.reset()
    f = compiled(squares, "aot_eager")
    x = torch.randn(5, dtype=torch.float64)
    for _ in range(2):
        torch.testing.assert_close(f(x), x * x)
        with torch.device("meta"):
            assert f(x.to("meta")).is_meta
            with pytest.raises(Exception, match="`x` is on cpu and `out` on meta"):
                f(x)
        with torch.device("cpu"):
            torch.testing.assert_close(f(x), x * x)


def test_operators_of_kernels_that_name_devices_have_no_default_one():
    @weft.kernel
    def kernel(x: torch.Tensor, n: int) -> torch.Tensor:
        out = torch.empty((n, len(x.shape)), device=x.device)
        w = x.new_empty(n)
        for i in range(n):
            out[i, 0] = x[i] * w[i]
        return out

    assert not kernel.operators.makes
    for kernel in (squares, weighted):
        assert kernel.operators.makes


@weft.kernel
def unannotated(x, n):
    out = torch.empty(n, dtype=x.dtype)
    for i in range(n):
        out[i] = x[i] * x[i]
    return out


def test_operators_that_calls_on_a_default_device_have_made() -> None:
    """There was said to be none."""
    x = torch.ones(3, device="meta")
    with torch.device("meta"):
        torch.compile(unannotated, backend="aot_eager")(x, 2)
        op = unannotated.op
        assert op(x, 2).is_meta
    assert unannotated.op is op
    cpu = torch.compile(unannotated, backend="aot_eager")(torch.full((3,), 2.0), 2)
    assert unannotated.op(torch.full((3,), 2.0), 2).tolist() == cpu.tolist() == [4.0, 4.0]
    with torch.device("meta"):
        assert unannotated.op is op
