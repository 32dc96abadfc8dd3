"""Forward mode through operators: ``torch.func``, dispatch modes and ``torch.compile``."""

import contextlib
import re

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vjp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import weft
from tests.autodiff import kernels as k
from weft.errors import GradientError

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


def loss(x):
    return k.softmax(x).sin().sum()


def reference(x):
    return torch.softmax(x, 1).sin().sum()


@pytest.fixture
def pair():
    torch.manual_seed(0)
    return torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_jvp(pair):
    x, t = pair
    same(jvp(loss, (x,), (t,)), jvp(reference, (x,), (t,)))
    two = jvp(k.two, (x[0], x[1]), (t[0], t[1]))
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x[n].clone(), t[n].clone()) for n in range(2)]
        out = k.two(*duals)
        same(two[1], [forward_ad.unpack_dual(o).tangent for o in out])


@pytest.mark.slow
def test_derivatives_of_derivatives(pair):
    x, t = pair

    def both(f):
        yield jvp(grad(f), (x,), (t,))[1]  # forward over reverse
        yield grad(lambda x: jvp(f, (x,), (t,))[1])(x)  # reverse over forward
        yield grad(lambda x: (grad(f)(x) * t).sum())(x)
        yield grad(lambda x: grad(lambda x: (grad(f)(x) * t).sum())(x).sin().sum())(x)
        yield vjp(lambda t: jvp(f, (x,), (t,))[1], t)[1](torch.tensor(2.0, dtype=torch.float64))[0]

    same(both(loss), both(reference))


def test_forward_mode_over_the_gradient_of_a_plain_sum():
    @weft.kernel
    def cubes(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] ** 3
        return out

    x, v = torch.randn(2, 5, dtype=torch.float64)
    # the gradient of sum() is one number, expanded
    _, along = jvp(grad(lambda x: cubes(x).sum()), (x,), (v,))
    torch.testing.assert_close(along, 6 * x * v)


@pytest.mark.slow
def test_forward_mode_over_forward_mode(pair):
    x, t = pair

    def along(f):
        return lambda x: jvp(f, (x,), (t.sin() * x,))[1]

    for order in (along, lambda f: along(along(f))):
        same(jvp(order(loss), (x,), (t,)), jvp(order(reference), (x,), (t,)))


def test_a_dispatch_mode_sees_the_operator(pair):
    x, t = pair
    expected = jvp(lambda x: torch.softmax(x, 1), (x,), (t,))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        with FlopCounterMode(display=False):
            same(forward_ad.unpack_dual(k.softmax(dual)), expected)
        with (
            FlopCounterMode(display=False),
            pytest.raises(GradientError, match="`x` has a tangent"),
        ):
            k.accumulate(dual[0], torch.zeros(4, dtype=torch.float64))


def test_a_dispatch_mode_and_transforms(pair):
    x, t = pair
    with FlopCounterMode(display=False):
        found = [*jvp(loss, (x,), (t,)), grad(loss)(x)]
    same(found, [*jvp(reference, (x,), (t,)), grad(reference)(x)])
    text = make_fx(lambda x, t: jvp(loss, (x,), (t,)), tracing_mode="fake")(x, t).code
    assert re.search(r"torch.ops.weft.softmax_[0-9a-f]{8}_jvp.default", text)


def test_a_dispatch_mode_and_reverse_mode(pair):
    x, t = pair[0].requires_grad_(), pair[1]
    with FlopCounterMode(display=False):
        with forward_ad.dual_level():
            dual = k.softmax(forward_ad.make_dual(x, t))
            value, tangent = forward_ad.unpack_dual(dual)
            (back,) = torch.autograd.grad(dual.sin().sum(), x, retain_graph=True)
            over = forward_ad.unpack_dual(back).tangent
            (of_tangent,) = torch.autograd.grad(tangent.sin().sum(), x, retain_graph=True)
        (found,) = torch.autograd.grad(value.sin().sum(), x)
    x = x.detach()

    def tangents(x):
        return jvp(lambda x: torch.softmax(x, 1), (x,), (t,))[1].sin().sum()

    same([found, over, of_tangent],
         [grad(reference)(x), jvp(grad(reference), (x,), (t,))[1], grad(tangents)(x)])  # fmt: skip


@pytest.mark.slow
def test_under_torch_compile(pair):
    x, t = pair
    same(torch.compile(lambda x, t: jvp(loss, (x,), (t,)), fullgraph=True)(x, t),
         jvp(reference, (x,), (t,)))  # fmt: skip
    expected = jvp(lambda x: torch.softmax(x, 1), (x,), (t,))
    with forward_ad.dual_level():
        out = torch.compile(k.softmax, fullgraph=True)(forward_ad.make_dual(x, t))
        same(forward_ad.unpack_dual(out), expected)


@weft.kernel
def first_of(parts):
    out = torch.empty_like(parts[0])
    x = parts[0]
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]
    return out


def test_lists_of_tensors(pair):
    x, t = pair[0][0].clone(), pair[1][0].clone()
    expected = 2 * x * t
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        for mode in (contextlib.nullcontext(), FlopCounterMode(display=False)):
            with mode:
                same([forward_ad.unpack_dual(first_of([dual, x])).tangent], [expected])
    same([jvp(lambda x: first_of([x, x]), (x,), (t,))[1]], [expected])
    leaf = x.clone().requires_grad_()
    out = torch.compile(first_of, fullgraph=True, backend="aot_eager")([leaf, x])
    same(torch.autograd.grad(out, leaf, t), [expected])


class Settings:
    pass


settings = Settings()
settings.gain = torch.ones(3, dtype=torch.float64)
bias = torch.zeros(3, dtype=torch.float64)


@weft.kernel
def with_settings(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = (x[i] + bias[i]) * settings.gain[i]
    return out


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["settings.gain", "bias"])
def test_tensors_from_around_a_kernel_are_no_silent_zero(name):
    tensor = {"settings.gain": settings.gain, "bias": bias}[name]
    x = torch.randn(3, dtype=torch.float64)
    compiled = torch.compile(with_settings, fullgraph=True)
    torch.testing.assert_close(compiled(x), x)
    tensor.requires_grad_()
    try:
        (found,) = torch.autograd.grad(with_settings(x).sum(), tensor)
        torch.testing.assert_close(found, x if "gain" in name else torch.ones_like(x))
        with torch.no_grad():
            torch.testing.assert_close(torch.func.jvp(with_settings, (x,), (x,))[1], x)
        for call in (lambda: torch.func.jvp(with_settings, (x,), (x,)),
                     lambda: torch.compile(with_settings, fullgraph=True)(x * 2)):  # fmt: skip
            torch.compiler.reset()
            with pytest.raises(Exception, match=f"`{name}` needs a derivative, and it is not an"):
                call()
    finally:
        tensor.requires_grad_(False)


@pytest.mark.cpu
def test_assertions_are_checked_along_tangents():
    @weft.kernel
    def squared(x, most: float):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            assert x[i] < most, "too large"
            out[i] = x[i] * x[i]
        return out

    x = torch.arange(4.0)
    same(jvp(lambda x: squared(x, 9.0), (x,), (x + 1,)), (x * x, 2 * x * (x + 1)))
    with pytest.raises(weft.KernelAssertionError, match="in kernel `squared`: too large\n"):
        jvp(lambda x: squared(x, 3.0), (x,), (x,))


@pytest.mark.cpu
def test_subscripts_are_checked_along_tangents():
    @weft.kernel(debug=True)
    def doubled(x, n: int):
        out = torch.zeros(8)
        for i in range(n):
            out[i] += 2 * x[i]
        return out[: x.shape[0]]

    x = torch.arange(4.0)
    same(jvp(lambda x: doubled(x, 4), (x,), (x + 1,)), (2 * x, 2 * x + 2))
    message = "subscript 4 of `x` is out of range: its dimension 0 has 4 elements"
    with pytest.raises(weft.KernelIndexError, match=message):
        jvp(lambda x: doubled(x, 5), (x,), (x,))


@pytest.mark.slow
def test_compiled_outside_of_the_level_and_called_in_it(pair):
    """Also where the host part is in the graph, which has no tangents."""
    x, t = pair
    for kernel, f in ((k.softmax, lambda x: torch.softmax(x, 1)), (doubled, lambda x: 4 * x * x)):
        compiled = torch.compile(kernel, fullgraph=True)
        expected = jvp(f, (x,), (t,))
        same([compiled(x)], expected[:1])
        with forward_ad.dual_level():
            out = compiled(forward_ad.make_dual(x, t))
            same(forward_ad.unpack_dual(out), expected)
        same([compiled(x)], [f(x)])


@weft.kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    y = x + x
    out = torch.empty_like(y)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, j] = y[i, j] * y[i, j]
    return out
