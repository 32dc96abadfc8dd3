"""Collections and objects as arguments where PyTorch follows a kernel: outside of it is the
oracle."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

import weft


class Pair(NamedTuple):
    w: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True)
class Affine:
    w: torch.Tensor
    b: torch.Tensor
    scale: float = 2.0

    def at(self, i, x):
        return self.w[i] * x + self.b[i] * self.scale


@dataclass
class Deep:
    affine: Affine
    items: list[Any]
    named: dict[str, Any]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(5, 5)
        self.more = torch.nn.ParameterList([torch.randn(5), torch.randn(5)])
        self.scale = 1.5

    @weft.kernel
    def forward(self, x):
        out = torch.empty_like(x)
        for i in out:
            v = self.linear.weight[i, 0] * x[i] + self.linear.bias[i] * self.scale
            out[i] = v + self.more[1][i]
        return out


@weft.kernel
def of_dict(d, x):
    out = torch.empty_like(x)
    for i in d["w"]:
        out[i] = d["w"][i] * x[i] + d["b"][i]
    return out


@weft.kernel
def of_pair(p: Pair, x):
    y = torch.empty_like(x)
    for i in y:
        y[i] = p.w[i] * x[i]
    z = torch.tanh(y)
    out = torch.empty_like(x)
    for i in out:
        out[i] = z[i] + p.b[i]
    return out


@weft.kernel
def of_method(p, x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = p.at(i, x[i])
    return out


@weft.kernel
def of_deep(q, x):
    out = torch.empty_like(x)
    for i in out:
        v = q.affine.w[i] + q.items[1][i] * q.named["w"][i]
        out[i] = (v + q.named["k"] * q.items[0] * q.affine.scale) * x[i]
    return out


@weft.kernel
def of_many(x, *ts, scale=1.0, **named):
    out = torch.empty_like(x)
    for i in out:
        s = 0.0
        for t in ts:
            s += t[i]
        out[i] = s * x[i] * scale + named["b"][i]
    return out


class Activated:
    def __init__(self, w, act) -> None:
        self.w, self.act = w, act

    @weft.kernel
    def call(self, b, x):
        out = x * 1.0
        for i in range(x.shape[0]):
            out[i] += self.act(self.w[i] * x[i]) * b[i]
        return out


def softened(a):
    return a / (1.0 + a * a)


LAYER = Layer()
CASES: dict[str, Callable[..., torch.Tensor]] = {
    "dict": lambda w, b, x: of_dict({"w": w, "b": b}, x),
    "named tuple": lambda w, b, x: of_pair(Pair(w, b), x),
    "dataclass": lambda w, b, x: of_pair(Affine(w, b), x),
    "method": lambda w, b, x: of_method(Affine(w, b, 3.0), x),
    "deep": lambda w, b, x: of_deep(Deep(Affine(w, b), [2, b], {"w": w, "k": 0.5}), x),
    "variadic": lambda w, b, x: of_many(x, w, w, b=b, scale=2.5),
    "module": lambda w, b, x: LAYER(x) * w + b,
    "function": lambda w, b, x: Activated(w, softened).call(b, x),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_under_compile(case) -> None:
    given = [torch.randn(5, requires_grad=True) for _ in range(3)]
    call = CASES[case]
    expected = call(*given)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(*given)
    torch.testing.assert_close(compiled, expected)
    weights = torch.randn(5)
    found, wanted = (torch.autograd.grad(y, given, weights) for y in (compiled, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_under_inductor(case) -> None:
    given = [torch.randn(5, requires_grad=True) for _ in range(3)]
    compiled = torch.compile(CASES[case], fullgraph=True)(*given)
    expected = CASES[case](*given)
    torch.testing.assert_close(compiled, expected)
    found, wanted = (torch.autograd.grad(y.sum(), given) for y in (compiled, expected))
    torch.testing.assert_close(found, wanted)


def test_sizes_and_numbers_stay_open() -> None:
    frames = CompileCounter()
    compiled = torch.compile(
        lambda w, b, x, s: of_method(Affine(w, b, s), x), fullgraph=True, dynamic=True,
        backend=frames,
    )  # fmt: skip
    for n, scale in ((3, 1.5), (17, 2.5), (4, 2.5), (30, 3.5)):
        w, b, x = torch.randn(3, n).unbind()
        expected = of_method(Affine(w, b, scale), x)
        torch.testing.assert_close(compiled(w, b, x, scale), expected)
    assert frames.frame_count <= 2  # torch may take the first number for a constant


def test_numbers_that_have_to_be_known() -> None:
    class Power(torch.nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.k, self.w = k, torch.nn.Parameter(torch.randn(5))

        @weft.kernel
        def forward(self, x):
            out = torch.empty_like(x)
            for i in x:
                s = self.w[i]
                for _ in weft.static(range(self.k)):
                    s *= x[i]
                out[i] = s
            return out

    compiled = torch.compile(lambda m, x: m(x), fullgraph=True, dynamic=True, backend="aot_eager")
    for k in (2, 3, 2):
        module, x = Power(k), torch.randn(5)
        found = compiled(module, x)
        torch.testing.assert_close(found, module.w * x**k)
        (slope,) = torch.autograd.grad(found.sum(), module.w)
        torch.testing.assert_close(slope, x**k)
    program = torch.export.export(Power(3), (torch.randn(5),)).module()
    torch.testing.assert_close(program(x), program.w * x**3)


def test_another_object() -> None:
    compiled = torch.compile(lambda p, x: of_method(p, x), fullgraph=True, backend="eager")
    w, b, x = torch.randn(3, 5).unbind()
    for p in (Affine(w, b), Affine(b, w, 5.0), Affine(b, w)):
        torch.testing.assert_close(compiled(p, x), of_method(p, x))


def test_members_that_are_written() -> None:
    @weft.kernel
    def added(p, x):
        for i in x:
            p.w[i] += p.b[i] * x[i]
        return p

    w, b, x = torch.randn(3, 5).unbind()
    expected, p = w + b * x, Affine(w.clone(), b)
    found = torch.compile(lambda p, x: added(p, x), fullgraph=True, backend="aot_eager")(p, x)
    torch.testing.assert_close(p.w, expected)
    assert found.w is p.w
    wanted = b.clone().requires_grad_()
    with pytest.raises(Exception, match="`p_b` requires grad, and there is no gradient of"):
        torch.compile(added, fullgraph=True, backend="eager")(Affine(w.clone(), wanted), x)


def test_transforms() -> None:
    w, b, x = torch.randn(3, 5).unbind()
    grads = torch.func.grad(lambda d: of_dict(d, x).sum())({"w": w, "b": b})
    torch.testing.assert_close(grads, {"w": x, "b": torch.ones(5)})
    samples = torch.vmap(lambda w: of_pair(Affine(w, b), x))(torch.stack([w, b]))
    torch.testing.assert_close(samples, torch.stack([of_pair(Pair(v, b), x) for v in (w, b)]))
    _, tangent = torch.func.jvp(lambda w: of_dict({"w": w, "b": b}, x), (w,), (b,))
    torch.testing.assert_close(tangent, b * x)
    state = {name: p.detach() for name, p in LAYER.named_parameters()}
    call = torch.func.functional_call
    grads = torch.func.grad(lambda s: call(LAYER, s, (x,)).sum())(state)
    torch.testing.assert_close(grads["linear.bias"], torch.full((5,), 1.5))


@pytest.mark.parametrize("strict", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_export(strict) -> None:
    x = torch.randn(5)
    program = torch.export.export(LAYER, (x,), strict=strict).module()
    torch.testing.assert_close(program(x), LAYER(x))


def test_a_method_breaks_the_graph() -> None:
    """Where the graph holds the host part, too: the operator of the loop cannot take the object."""

    class Decay:
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def at(self, k: int) -> float:
            return self.rate / (k + 1)

    @weft.kernel
    def decayed(x, decay):
        out = x.new_zeros(x.shape[0])
        for i in range(x.shape[0]):
            out[i] = x[i] * decay.at(i)
        return out

    x = torch.randn(3, requires_grad=True)
    found = torch.compile(lambda x, d: decayed(x, d), backend="aot_eager")(x, Decay(2.0))
    torch.testing.assert_close(found, 2 * x / torch.arange(1, 4))
    (slope,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(slope, 2 / torch.arange(1, 4))
    with pytest.raises(Exception, match="`decay` is an object of which"):
        torch.compile(decayed, fullgraph=True, backend="eager")(x, Decay(0.5))


def test_constants_that_change_from_call_to_call() -> None:
    """Dynamo makes a symbol of an int with its second value."""

    class Config:
        taps = 1

    @weft.kernel
    def member(x, config):
        out = x.new_zeros(x.shape[0])
        for i in range(x.shape[0]):
            for k in weft.static(range(config.taps)):
                out[i] += (k + 1) * x[i]
        return out

    @weft.kernel
    def template(x, taps: weft.template()):
        out = x.new_zeros(x.shape[0])
        for i in range(x.shape[0]):
            for k in weft.static(range(taps)):
                out[i] += (k + 1) * x[i]
        return out

    x, config = torch.randn(3, requires_grad=True), Config()
    member(x, config)  # a call that makes the member a constant
    both = torch.compile(
        lambda x, config: (member(x, config), template(x, config.taps)), fullgraph=True,
        backend="aot_eager",
    )  # fmt: skip
    for config.taps in (2, 3, 4, 2):
        by_member, by_template = both(x, config)
        wanted = config.taps * (config.taps + 1) / 2
        torch.testing.assert_close(by_member, wanted * x)
        torch.testing.assert_close(by_template, wanted * x)
        (slope,) = torch.autograd.grad((by_member + 2 * by_template).sum(), x)
        torch.testing.assert_close(slope, torch.full((3,), 3 * wanted))


def test_a_tuple_that_is_a_constant_has_a_gradient() -> None:
    @weft.kernel
    def scaled(x, by: weft.template()):
        out, other = x.new_zeros(x.shape[0]), torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] += by[0] * x[i]
            other[i] = by[1] * x[i]
        return out, other

    x = torch.randn(3, requires_grad=True)
    out, other = torch.compile(
        lambda x: scaled(x, (2, 3)), fullgraph=True, backend="aot_eager"
    )(x)  # fmt: skip
    (slope,) = torch.autograd.grad((out + other).sum(), x)
    torch.testing.assert_close(slope, torch.full((3,), 5.0))


@weft.kernel
def summed(x: torch.Tensor, *ws: torch.Tensor, **more: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i]
        for w in ws:
            out[i] += w[i]
        for v in more.values():
            out[i] += v
    return out


@weft.kernel
def polynomial(x: torch.Tensor, *coefficients: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for c in coefficients:
            s = s * x[i] + c
        out[i] = s
    return out


@weft.kernel
def wrapped(x: torch.Tensor, *numbers: weft.i32) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + sum(numbers)
    return out


@pytest.mark.parametrize(
    ("kernel", "given", "named", "wanted"),
    [
        (summed, (), {}, 2.0),  # none at all
        (summed, (torch.ones(3), torch.full((3,), 2.0)), {"a": 1, "b": 0.5}, 6.5),
        (polynomial, (), {}, 0.0),
        (polynomial, (1, 2.5, True), {}, 10.0),
        (wrapped, (3, 4), {}, 9.0),
        (wrapped, (2**31 - 1, 1), {}, -(2.0**31)),  # which x is lost in
    ],
)
def test_annotations_of_further_arguments_are_those_of_each(
    kernel: Any, given: Any, named: Any, wanted: float
) -> None:
    torch._dynamo.reset()
    x = torch.full((3,), 2.0)
    graph = torch.compile(kernel, fullgraph=True, backend="aot_eager")
    for call in (kernel, kernel, kernel.interpret, graph):
        assert call(x, *given, **named).tolist() == [wanted] * 3
    samples = torch.vmap(lambda x: kernel(x, *given, **named))(x.expand(2, 3))
    assert samples.tolist() == [[wanted] * 3] * 2


@pytest.mark.parametrize(
    ("kernel", "given", "named", "message"),
    [
        (summed, (1.0,), {}, "`ws[0]` is annotated torch.Tensor, and a float was passed"),
        (summed, (), {"a": "b"}, "`more['a']` is annotated float, and a str was passed"),
        (polynomial, (1.0, "b"), {}, "`coefficients[1]` is annotated float, and a str was passed"),
        (wrapped, (1, 1.5), {}, "`numbers[1]` is annotated weft.i32, and a float was passed"),
        (wrapped, (2**31,), {}, "`numbers[0]` is 2147483648, which does not fit in i32"),
    ],
)
def test_further_arguments_that_are_not_as_annotated(
    kernel: Any, given: Any, named: Any, message: str
) -> None:
    with pytest.raises(weft.CompileError) as raised:
        kernel(torch.ones(3), *given, **named)
    assert raised.value.message == message


def scaled(v, by, plus=0.0):
    return v * by + plus


@weft.kernel
def mapped(x, f):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = f(x[i])
    return out


@weft.kernel
def times(x, s):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * s
    return out


@weft.kernel
def mapped_whole(x, f):
    y = f(x)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = y[i] * x[i]
    return out


@weft.kernel
def summed(x, steps):
    out = torch.zeros_like(x)
    for t in weft.serial(steps):
        for i in range(x.shape[0]):
            for k in steps:
                out[i] += x[i] * x[i] * k + t
    return out


@pytest.mark.parametrize("call", [
    lambda x, w, n, s: mapped(x, partial(scaled, by=s)),
    lambda x, w, n, s: mapped(x, partial(scaled, by=2.0, plus=w[1])),
    lambda x, w, n, s: mapped(x, partial(scaled, plus=s, by=n)),
    lambda x, w, n, s: mapped_whole(x, partial(torch.mul, w)),
    lambda x, w, n, s: mapped_whole(x, partial(torch.clamp, min=s)),
    lambda x, w, n, s: summed(x, range(n)),
    lambda x, w, n, s: summed(x, range(x.shape[0], 0, -2)),
    lambda x, w, n, s: summed(x, {"a": range(1, n)}["a"]),
])  # fmt: skip
def test_ranges_and_partial_functions(call: Callable[..., Any]) -> None:
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for size, n, s in ((5, 3, 0.5), (5, 3, 0.25), (7, 4, 0.25)):
        given = [torch.randn(size, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        found, expected = compiled(*given, n, s), call(*given, n, s)
        torch.testing.assert_close(found, expected)
        weights = torch.randn_like(found)
        slopes = [torch.autograd.grad(y, given, weights, allow_unused=True, materialize_grads=True)
                  for y in (found, expected)]  # fmt: skip
        torch.testing.assert_close(*slopes)


def test_what_is_of_numpy_breaks_the_graph() -> None:
    x, s = torch.randn(5), np.float32(1.5)
    for call in (lambda x, s: times(x, s), lambda x, s: mapped(x, partial(scaled, by=s))):
        torch.testing.assert_close(torch.compile(call, backend="eager")(x, s), call(x, s))
    with pytest.raises(Exception, match=r"`s` is of NumPy: pass a number as Python's"):
        torch.compile(lambda x, s: times(x, s), fullgraph=True, backend="eager")(x, s)


class Grand:
    def __init__(self) -> None:
        self.act, self.k = softened, 3.0


class Child:
    def __init__(self) -> None:
        self.n, self.act, self.grand, self.pair = 2, softened, Grand(), Pair(softened, 2.0)

    def method(self, v):
        return v * self.n


HELD = """
@weft.kernel
def kernel(self, x):
    {host}
    out = torch.zeros(2, dtype=x.dtype)
    for i in range(out.shape[0]):
        out[i] = x[i] + self.n
    for i in range(out.shape[0]):
        out[i] = out[i] * 0.5 + {value}
    return out
"""


def held_kernel(host, value, monkeypatch):
    """Of a module, where Dynamo finds its globals."""
    module = ModuleType(f"held_{len(linecache.cache)}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(weft=weft, torch=torch)
    file = f"<{module.__name__}>"
    text = HELD.replace("{host}", host).replace("{value}", value)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), vars(module))
    return module.kernel


@pytest.fixture
def held(host, value, monkeypatch):
    kernel = held_kernel(host, value, monkeypatch)
    assert kernel.operators.loops  # Dynamo follows the host part
    return SimpleNamespace(kernel=kernel, n=2, child=Child())


@pytest.mark.parametrize(
    ("host", "value"),
    [
        ("c = x", "self.child.act(x[i])"),
        ("c = x", "self.child.grand.act(x[i]) * self.child.n"),
        ("c = x", "self.child.pair.w(x[i])"),
        ("c = self.child", "c.act(x[i])"),
        ("c = self.child", "c.grand.act(x[i]) * c.n"),
        ("c = self.child.pair", "c.w(x[i])"),
        ("c = self", "c.child.act(x[i])"),
    ],
)
def test_loops_read_objects_that_the_host_part_names(held) -> None:
    """Where they called a function of one, there was no gradient, or an AttributeError of what
    stands for the loop."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    compiled = torch.compile(held.kernel, backend="aot_eager", fullgraph=True)
    found, expected = compiled(held, x), held.kernel(held, x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), x) for v in (found, expected)))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, after a break
@pytest.mark.parametrize(
    ("host", "value", "name"),
    [
        ("c = self.child", "c.method(x[i])", "c"),
        ("c = (self.child, 2)", "c[0].n", "c"),
        ("c = x", "self.child.method(x[i])", "self.child"),
    ],
)
def test_loops_call_methods_of_objects_that_the_host_part_names(held, name) -> None:
    """A graph does not have those: it ended in an AttributeError of what stands for the loop."""
    kernel, x = held.kernel, torch.tensor([1.0, 2.0], requires_grad=True)

    def call(x):
        return kernel(held, x) * 2.0

    found, expected = torch.compile(call, backend="aot_eager")(x), call(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), x) for v in (found, expected)))
    torch._dynamo.reset()
    with pytest.raises(
        Exception, match=f"`{re.escape(name)}` is an object of which `kernel` does not only"
    ):
        torch.compile(call, backend="aot_eager", fullgraph=True)(x)


class Rates:
    def __init__(self, a, b=0.5) -> None:
        self.a, self.b = a, b


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", ["pass", "assert x.shape[0] > 0"])  # no graph holds the latter
@pytest.mark.parametrize(
    ("host", "value", "child"),
    [
        ("c = x", "self.child['a']", lambda k: {"a": k}),
        ("c = x", "self.child['a']['b'][1]", lambda k: {"a": {"b": (0.5, k)}}),
        ("c = x", "self.child[0]", lambda k: (k, 0.5)),
        ("c = x", "self.child.w", lambda k: Pair(k, 0.5)),
        ("c = x", "self.child.scale + self.child.w[i]", lambda k: Affine(torch.ones(2), None, k)),
        ("c = self.child", "c['a']", lambda k: {"a": k}),
        ("c = self.child", "c.a + self.child.b", lambda k: Rates(k)),
        ("c = self", "c.child.a + self.child.b", lambda k: Rates(k)),
    ],
)
def test_numbers_in_collections_change(host, first, value, child, monkeypatch) -> None:
    """What became a symbol was no scalar to a loop; of an object that has a local name, the graph
    had half of what is read."""
    kernel = held_kernel(f"{first}\n    {host}", value, monkeypatch)
    torch._dynamo.reset()
    compiled = torch.compile(kernel, backend="aot_eager", fullgraph=True)
    for k in (1, 3, 4):
        held, x = SimpleNamespace(n=2, child=child(k)), torch.ones(2, requires_grad=True)
        found, expected = compiled(held, x), kernel(held, x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(v.sum(), x) for v in (found, expected)))
