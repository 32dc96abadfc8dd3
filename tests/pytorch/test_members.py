"""Collections and objects as arguments where PyTorch follows a kernel: outside of it is the
oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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


LAYER = Layer()
CASES: dict[str, Callable[..., torch.Tensor]] = {
    "dict": lambda w, b, x: of_dict({"w": w, "b": b}, x),
    "named tuple": lambda w, b, x: of_pair(Pair(w, b), x),
    "dataclass": lambda w, b, x: of_pair(Affine(w, b), x),
    "method": lambda w, b, x: of_method(Affine(w, b, 3.0), x),
    "deep": lambda w, b, x: of_deep(Deep(Affine(w, b), [2, b], {"w": w, "k": 0.5}), x),
    "variadic": lambda w, b, x: of_many(x, w, w, b=b, scale=2.5),
    "module": lambda w, b, x: LAYER(x) * w + b,
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
