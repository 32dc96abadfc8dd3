"""Compiled autograd: the backward of kernels in what torch compiles of a whole backward pass."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch._dynamo import compiled_autograd, config, exc, reset
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

import weft
from weft.errors import GradientError

# Torch looks at all gradients where it makes tensors without data.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@weft.kernel
def squared_times(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i] * x[i] * w[i]
    return out


@weft.kernel
def steps(x: torch.Tensor, a: float) -> torch.Tensor:
    y = x.sin()
    for i in range(y.shape[0]):
        y[i] = y[i] * y[i] + a
    out = torch.empty_like(y)
    for i in range(y.shape[0]):
        out[i] = y[i] * x[i] * a
    return out * x


@weft.kernel
def onto(out: torch.Tensor, x: torch.Tensor):
    for i in range(x.shape[0]):
        out[i] = out[i] * out[i] * x[i]


@weft.kernel
def stepped(u: torch.Tensor, t: int):
    for i in range(u.shape[1]):
        u[t + 1, i] = u[t, i] * u[t, i] * 0.5 + u[t, i]


def onto_twice(x: torch.Tensor) -> torch.Tensor:
    out = x * 2
    onto(out, x)
    onto(out, x)
    return out


def sines(x: torch.Tensor, a: float) -> torch.Tensor:
    return (x.sin() ** 2 + a) * x * a * x


def times_of_kernels(x: torch.Tensor) -> torch.Tensor:
    u = torch.cat([x[None] * 1, torch.zeros(3, *x.shape, dtype=x.dtype)])
    for t in range(3):
        stepped(u, t)
    return u


def times(x: torch.Tensor) -> torch.Tensor:
    u = [x]
    for _ in range(3):
        u.append(u[-1] * u[-1] * 0.5 + u[-1])
    return torch.stack(u)


def compiling(**options: Any) -> AbstractContextManager[Any]:
    compiler = torch.compile(backend="eager", **options)
    return compiled_autograd._enable(compiler)


@pytest.fixture(autouse=True)
def fresh():
    reset()
    yield
    reset()


def drawn(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, dtype=torch.float64).add(0.5).requires_grad_()


def shared(out: torch.Tensor) -> torch.Tensor:
    """Its gradient goes to two nodes."""
    return out * 1 + out.sin()


CASES = {
    "one loop": (lambda x: squared_times(x, x.detach() + 1), lambda x: x**3 * (x.detach() + 1)),
    "shared": (lambda x: shared(squared_times(squared_times(x, x), x)), lambda x: shared(x**13)),
    "operator": (lambda x: torch.ops.weft.squared_times(x, x * 2), lambda x: 2 * x**4),
    "loops": (lambda x: steps(x, float(len(x))), lambda x: sines(x, len(x))),
    "writes": (onto_twice, lambda x: 16 * x**7),
    "time": (times_of_kernels, times),
    "checkpoint": (lambda x: checkpoint(squared_times, x, x, use_reentrant=False), lambda x: x**4),
    "vmap": (lambda x: torch.vmap(squared_times)(x[None], x[None] * 2), lambda x: 2 * x**4),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_plain_engine(case: str) -> None:
    own, expected = CASES[case]
    assert squared_times.op is torch.ops.weft.squared_times.default
    for n in (3, 5) if case in ("one loop", "time") else (3,):
        x = drawn(n)
        y = own(x)
        weight = torch.rand_like(y)
        out = (y * weight).sum()
        with compiling():
            out.backward()
            first, x.grad = x.grad, None
            (own(x) * weight).sum().backward()  # once more, carried out within
        (wanted,) = torch.autograd.grad((expected(x).view_as(weight) * weight).sum(), x)
        torch.testing.assert_close(first, wanted)
        torch.testing.assert_close(x.grad, wanted)


def test_a_graph_is_gone_through_twice() -> None:
    x, w = drawn(4), drawn(4)
    out = squared_times(x, w)  # of several nodes that save results, torch's own guards fail
    with compiling():
        out.sum().backward(retain_graph=True)
        out.sum().backward()
    torch.testing.assert_close(x.grad, (2 * 3 * x * x * w).detach())
    torch.testing.assert_close(w.grad, (2 * x**3).detach())


def test_hooks_keep_gradients() -> None:
    x, seen = drawn(4), list[torch.Tensor]()
    x.register_hook(lambda g: seen.append(g) or g * 2)
    u = times_of_kernels(x)
    u.register_hook(lambda g: seen.append(g))
    with compiling():
        (u * u).sum().backward()
    v = times(y := x.detach().requires_grad_())
    (wanted,) = torch.autograd.grad((v * v).sum(), y)
    torch.testing.assert_close(x.grad, 2 * wanted)
    torch.testing.assert_close(seen[0], (2 * v).detach())
    torch.testing.assert_close(seen[1], wanted)


def test_a_gradient_that_others_take_is_not_overwritten() -> None:
    x, other = drawn(4), drawn(4, 4)
    for _ in range(2):
        x.grad = other.grad = None
        u = times_of_kernels(x)
        with compiling():
            (u + other).mul(torch.arange(16.0).view(4, 4)).sum().backward()
        torch.testing.assert_close(other.grad, torch.arange(16.0).view(4, 4).double())
        v = (times(x) * torch.arange(16.0).view(4, 4)).sum()
        torch.testing.assert_close(x.grad, torch.autograd.grad(v, x)[0])


def test_what_was_changed_is_refused_by_name() -> None:
    x, w = drawn(3), drawn(3).detach()
    out = squared_times(x, w)
    w.add_(1)
    with compiling(), pytest.raises((GradientError, RuntimeError), match="modified by an inplace"):
        out.sum().backward()


def test_one_graph_is_refused_with_the_way_out() -> None:
    out, unsupported = squared_times(drawn(3), drawn(3)), exc.Unsupported
    with compiling(fullgraph=True), pytest.raises(unsupported, match=r"outside of torch\.compile"):
        out.sum().backward()


def test_a_gradient_of_a_gradient() -> None:
    x = drawn(4)
    with compiling():
        (first,) = torch.autograd.grad(squared_times(x, x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 12 * x * x)


def test_graphs_of_a_compiled_step_hold_the_operator() -> None:
    graphs: list[Any] = []
    with config.patch(compiled_autograd=True):

        def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            loss = squared_times(x, w).sum()
            loss.backward()
            return loss

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph

        run = torch.compile(step, backend=aot_autograd(fw_compiler=backend))
        for n in (3, 3, 5):
            x, w = drawn(n), drawn(n)
            run(x, w)
            torch.testing.assert_close(x.grad, (3 * x * x * w).detach())
            torch.testing.assert_close(w.grad, (x**3).detach())
    assert any(re.search(r"weft\.squared_times\w*_backward", graph.code) for graph in graphs)
