"""What kernels read around them is at a derivative what it was at the call, or that is said."""

import itertools
import random
import time
import types

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, jvp, vjp, vmap

import weft
from weft.errors import GradientError

GAIN = 1.0
DIALS = {"gain": 1.0, "other": 1.0}
TABLE = [1.0, 1.0]
W = torch.ones(2, dtype=torch.float64)


class Dial:
    gain = 1.0

    def times(self, x):
        return x * self.gain


DIAL = Dial()
HELD = types.SimpleNamespace(dial=DIAL)


def gained(x):
    return x * GAIN


def of_global():
    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * GAIN
        return out

    return kernel, lambda: globals().update(GAIN=3.0), "GAIN"


def of_host():
    @weft.kernel
    def kernel(x):
        y = x * GAIN
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = y[i] * y[i]
        return out

    return kernel, lambda: globals().update(GAIN=3.0), "GAIN"


def of_attribute():
    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * HELD.dial.gain
        return out

    return kernel, lambda: setattr(DIAL, "gain", 3.0), "HELD.dial.gain"


def of_alias():
    @weft.kernel
    def kernel(x):
        held = HELD.dial
        gain = held.gain
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * gain
        return out

    return kernel, lambda: setattr(DIAL, "gain", 3.0), "HELD.dial.gain"


def of_dict():
    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * DIALS["gain"]
        return out

    return kernel, lambda: DIALS.update(gain=3.0), "DIALS['gain']"


def of_list():
    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * TABLE[i % 2]
        return out

    return kernel, lambda: TABLE.reverse() or TABLE.append(2.0), "TABLE"


def of_closure():
    gain = 1.0

    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * gain
        return out

    def change():
        nonlocal gain
        gain = 3.0

    return kernel, change, "gain"


def of_function():
    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = gained(x[i]) * x[i]
        return out

    return kernel, lambda: globals().update(GAIN=3.0), "gained: GAIN"


def of_another_function():
    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = gained(x[i]) * x[i]
        return out

    return kernel, lambda: globals().update(gained=lambda x: x * 3.0), "gained"


def of_method():
    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = DIAL.times(x[i]) * x[i]
        return out

    return kernel, lambda: setattr(Dial, "gain", 3.0), "DIAL.gain"


def of_argument():
    @weft.kernel
    def kernel(x, dial):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * dial.gain
        return out

    dial = Dial()
    return lambda x: kernel(x, dial), lambda: setattr(dial, "gain", 3.0), "dial.gain"


def of_dict_argument():
    @weft.kernel
    def kernel(x, table):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * table["gain"]
        return out

    table = {"gain": 1.0}
    return lambda x: kernel(x, table), lambda: table.update(gain=3.0), ""


def of_tensor():
    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * W[i]
        return out

    return kernel, lambda: globals().update(W=W * 3), "W"


def of_tensor_in_place():
    kernel, _, name = of_tensor()
    return kernel, lambda: W.mul_(3), name


FORMS = [of_global, of_host, of_attribute, of_alias, of_dict, of_list, of_closure, of_function,
         of_another_function, of_method, of_argument, of_dict_argument, of_tensor,
         of_tensor_in_place]  # fmt: skip


def by_vjp(f, x, between):
    _, pull = vjp(f, x)
    between()
    return pull(torch.ones_like(x))[0]


def by_grad(f, x, between):
    def total(x):
        found = f(x).sum()
        between()
        return found

    return grad(total)(x)


def by_hessian(f, x, between):
    def total(x):
        found = f(x).sum()
        between()
        return found

    return hessian(total)(x).sum(0)


def by_vmap(f, x, between):
    x = x.clone().requires_grad_()
    out = vmap(f)(x[None])
    between()
    return torch.autograd.grad(out.sum(), x)[0]


WAYS = [by_vjp, by_grad, by_hessian, by_vmap]


@pytest.fixture
def x(monkeypatch):
    for name in ("GAIN", "gained"):
        monkeypatch.setitem(globals(), name, globals()[name])
    monkeypatch.setitem(globals(), "W", torch.ones(2, dtype=torch.float64))
    monkeypatch.setitem(globals(), "TABLE", [1.0, 1.0])
    monkeypatch.setitem(DIALS, "gain", 1.0)
    monkeypatch.setattr(Dial, "gain", 1.0)
    monkeypatch.setattr(DIAL, "gain", 1.0)
    return torch.ones(2, dtype=torch.float64)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_what_has_changed_is_named(form, way, x):
    if form is of_method:
        del DIAL.gain
    f, change, name = form()
    try:
        torch.testing.assert_close(way(f, x, lambda: None), torch.full_like(x, 2.0))
        if not name:  # the operator has what the call has seen
            torch.testing.assert_close(way(f, x, change), torch.full_like(x, 2.0))
            return
        # Torch itself refuses a write to a captured tensor inside of a transform.
        with pytest.raises((GradientError, RuntimeError)) as raised:
            way(f, x, change)
        if not isinstance(raised.value, GradientError):
            assert "mutate a captured Tensor" in str(raised.value)
            return
    finally:
        if form is of_method:
            DIAL.gain = 1.0
    assert f"`{name}`" in str(raised.value) or f"`{name}[" in str(raised.value)


@pytest.mark.parametrize("way", WAYS)
def test_the_default_dtype_is_that_of_the_call(way, x):
    @weft.kernel
    def kernel(x):
        y = torch.ones(2) / 3
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * y[i]
        return out

    expected = way(kernel, x, lambda: None)
    before = torch.get_default_dtype()
    try:
        found = way(kernel, x, lambda: torch.set_default_dtype(torch.float64))
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_what_the_kernel_does_not_read_may_change(way, x):
    @weft.kernel
    def kernel(x):
        gain = DIALS["gain"] * HELD.dial.gain
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * gain
        return out

    def change():
        DIALS.update(other=3.0)
        DIAL.other = 3.0
        globals().update(GAIN=3.0)

    torch.testing.assert_close(way(kernel, x, change), torch.full_like(x, 2.0))


def test_a_change_is_seen_in_one_call_of_jvp(x):
    class Count:
        n = 0.0

        def next(self):
            self.n += 1.0
            return self.n

    count = Count()

    @weft.kernel
    def kernel(x):
        n = count.next()
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * n
        return out

    with pytest.raises(GradientError, match=r"`count\.n` was 0\.0 at the call and is 1\.0 now"):
        jvp(kernel, (x,), (x,))


def test_a_collection_that_has_changed_is_another_argument(x):
    @weft.kernel
    def kernel(x, table):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * table["gain"][0]
        return out

    table = {"gain": [2.0]}
    assert vmap(lambda x: kernel(x, table))(x[None]).tolist() == [[2.0, 2.0]]
    table["gain"][0] = 3.0
    assert vmap(lambda x: kernel(x, table))(x[None]).tolist() == [[3.0, 3.0]]
    assert vmap(lambda x: kernel(x, {"gain": [2.0]}))(x[None]).tolist() == [[2.0, 2.0]]


COUNT = itertools.count(1)
NUMBERS = np.random.default_rng(0)


def drawing(by):
    if by == "random":

        @weft.kernel
        def kernel(x):
            n = random.random()
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = x[i] * n
            return out

    elif by == "numpy":

        @weft.kernel
        def kernel(x):
            n = np.random.rand()
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = x[i] * n
            return out

    else:

        @weft.kernel
        def kernel(x):
            n = NUMBERS.random()
            out = torch.empty_like(x)
            for i in range(x.shape[0]):
                out[i] = x[i] * n
            return out

    return kernel


@pytest.mark.parametrize("by", ["random", "numpy", "generator"])
def test_derivatives_are_of_the_numbers_that_were_drawn(by, x):
    kernel = drawing(by)
    for _ in range(3):
        out, pull = vjp(kernel, x)
        assert torch.equal(pull(x)[0], out)
        out, tangent = jvp(kernel, (x,), (x,))
        assert torch.equal(tangent, out)
        z = x.clone().requires_grad_()
        out = vmap(kernel)(z[None])
        assert torch.equal(torch.autograd.grad(out.sum(), z)[0], out[0].detach())
    assert not torch.equal(kernel(x), kernel(x))
    operator = kernel.op(x)  # a plain call of it is right
    assert operator.shape == x.shape


@weft.kernel
def counted(x):
    n = next(COUNT)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * n
    return out


@weft.kernel
def timed(x):
    n = time.time()
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * n
    return out


@weft.kernel
def recording(x):
    n = 2.0 if torch.is_grad_enabled() else 5.0
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * n
    return out


@weft.kernel
def tracked(x):
    n = 2.0 if x.requires_grad else 5.0
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * n
    return out


UNSTEADY = {counted: "COUNT", timed: "time.time", recording: "is_grad_enabled",
            tracked: "requires_grad"}  # fmt: skip


@pytest.mark.parametrize("kernel", UNSTEADY, ids=lambda k: k.__name__)
def test_what_is_another_the_second_time_is_refused(kernel, x):
    name = UNSTEADY[kernel]
    z = x.clone().requires_grad_()
    out = kernel(z)  # eager calls are not carried out again
    assert torch.equal(torch.autograd.grad(out.sum(), z)[0], out.detach())
    with torch.no_grad():
        assert vmap(kernel)(x[None]).shape == (1, 2)
    with pytest.raises(GradientError, match=f"`{name}`"):
        jvp(kernel, (x,), (x,))
    with pytest.raises(GradientError, match=f"`{name}`"):
        vjp(kernel, x)[1](x)
    with pytest.raises(GradientError, match=f"`{name}`"):
        vmap(kernel)(z[None]).sum().backward()


@pytest.mark.parametrize("kernel", [*UNSTEADY, drawing("random")], ids=lambda k: k.__name__)
def test_graphs_leave_out_what_is_another_the_second_time(kernel, x):
    torch._dynamo.reset()
    z = x.clone().requires_grad_()
    out = torch.compile(kernel, backend="aot_eager")(z)
    assert torch.equal(torch.autograd.grad(out.sum(), z)[0], out.detach())
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=UNSTEADY.get(kernel, "random")):
        torch.compile(kernel, backend="aot_eager", fullgraph=True)(z)
    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.compile(kernel, backend="aot_eager", fullgraph=True)(x).shape == (2,)


def test_of_a_tensor_whose_size_is_read_the_elements_may_change(x):
    @weft.kernel
    def kernel(x):
        out = torch.empty(W.shape, dtype=W.dtype)
        for i in range(W.shape[0]):
            out[i] = x[i] * x[i]
        return out

    _, pull = vjp(kernel, x)
    W.mul_(2)
    assert pull(x)[0].tolist() == [2.0, 2.0]


class Module(torch.nn.Module):
    step = 0

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(2, 2, dtype=torch.float64)
        self.gain = 1.0

    @weft.kernel
    def kernel(self, x):
        y = self.lin(x)
        out = torch.empty_like(y)
        for i in range(y.shape[0]):
            out[i] = y[i] * y[i] * self.gain
        return out

    @torch.no_grad()
    def forward(self, x):
        found = self.kernel(x)
        self.step += 1
        return found


def test_what_a_module_holds(x):
    module = Module().requires_grad_(False)
    _, pull = vjp(module.kernel, x)
    module.step += 1
    module.other = 3.0
    expected = pull(x)[0]
    assert torch.equal(vjp(module.kernel, x)[1](x)[0], expected)
    module.gain = 2.0
    with pytest.raises(GradientError, match=r"`self\.gain` was 1\.0"):
        pull(x)
    _, pull = vjp(module.kernel, x)
    module.lin.weight.mul_(2)
    with pytest.raises(GradientError, match=r"`self\.lin\.weight` was written to"):
        pull(x)


STEPS = 2


@weft.kernel
def stepped(x):
    y = x * STEPS
    if STEPS > 5:
        y = y * 2
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = y[i] * y[i]
    return out


def test_a_number_that_a_graph_was_made_for(x, monkeypatch):
    """It is a constant of the graph, whose backward looks at it."""
    torch._dynamo.reset()
    z = x.clone().requires_grad_()
    f = torch.compile(stepped, backend="aot_eager", fullgraph=True)
    out = f(z)
    assert torch.autograd.grad(out.sum(), z)[0].tolist() == [8.0, 8.0]
    out = f(z)
    monkeypatch.setitem(globals(), "STEPS", 3)
    with pytest.raises(GradientError, match="`STEPS` was 2 at the call and is 3 now"):
        out.sum().backward()
    assert torch.autograd.grad(f(z).sum(), z)[0].tolist() == [18.0, 18.0]
