"""What a kernel returns beside tensors and tuples of them, where PyTorch follows it: the kernel
outside of it is the oracle."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from enum import Enum, Flag, IntEnum
from typing import Any, NamedTuple

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import weft
from tests.fuzz.check import function
from tests.pytorch.test_boxed import by_python, learned


class State(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor
    step: str = "a step"


class Named(namedtuple("Named", "u v")):
    __slots__ = ()

    def total(self):
        return self.u + self.v


@dataclasses.dataclass(frozen=True)
class Result:
    loss: torch.Tensor
    more: Any = None


@dataclasses.dataclass
class Counted:
    """Its objects are not what it is called with."""

    loss: torch.Tensor

    def __post_init__(self) -> None:
        self.loss = self.loss + 1


KERNEL = """
def kernel(x):
    a, b = torch.empty_like(x), torch.zeros_like(x)
    for i in range(x.shape[0]):
        a[i] = x[i] * x[i]
        b[i] += 2.0 * x[i]
    {}
"""
RETURNS = (
    "return [a, b]", "return (a,)", "return [a]", "return {'a': a, 'b': b}", "return {1: a}, b",
    "return dict(a=a, b=b)", "return State(a, b)", "return State(b=b, a=a, step='last')",
    "return Named(a, b)", "return Result(a)", "return Result(a, more={'all': [b, x]})",
    "return a, None", "return a, (b, [x, a * 1.5])", "return {}, b", "return None, None",
    "out = {'a': a, 'b': (b, None)}\n    return out", "out = State(a, b)\n    return out",
)  # fmt: skip


def kernel_that(returns: str) -> Any:
    """In a module that Dynamo does not find: the kernel is an operator as a whole."""
    made = function(KERNEL.format(returns))
    made.__globals__.update(State=State, Named=Named, Result=Result, Counted=Counted)
    return weft.kernel(made)


def taken_apart(value: Any) -> tuple[Any, list[torch.Tensor]]:
    """What a result is like, and its tensors."""
    if isinstance(value, torch.Tensor):
        return "tensor", [value]
    if dataclasses.is_dataclass(value):
        names, items = zip(*vars(value).items(), strict=True)
    elif isinstance(value, dict):
        names, items = tuple(value), tuple(value.values())
    elif isinstance(value, tuple | list):
        names, items = (), tuple(value)
    else:
        return value, []
    inner = [taken_apart(item) for item in items]
    form = type(value), names, [form for form, _ in inner]
    return form, [tensor for _, tensors in inner for tensor in tensors]


def gradient_of(tensors: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    total = sum(((k + 1.0) * t.sin()).sum() for k, t in enumerate(tensors))
    return torch.autograd.grad(total, x)[0]


@pytest.mark.parametrize("returns", RETURNS)
def test_a_collection_is_returned_from_a_graph(returns):
    kernel = kernel_that(returns)
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    counter = CompileCounter()
    compiled = torch.compile(kernel, backend=counter, fullgraph=True)
    form, tensors = taken_apart(kernel(x))
    for _ in range(2):
        found, graphs = taken_apart(compiled(x))
        assert found == form
        torch.testing.assert_close(graphs, tensors)
        if tensors:
            _, again = taken_apart(kernel(x))
            torch.testing.assert_close(gradient_of(graphs, x), gradient_of(again, x))
    assert counter.frame_count == 1


@pytest.mark.parametrize("returns", RETURNS)
def test_and_from_transforms(returns):
    kernel = kernel_that(returns)
    x = torch.randn(3, 5, dtype=torch.float64)
    form, tensors = taken_apart(kernel(x[1]))

    def tensors_of(x: torch.Tensor) -> list[torch.Tensor]:
        found, inside = taken_apart(kernel(x))
        assert found == form
        return inside

    if not tensors:
        return
    torch.testing.assert_close([t[1] for t in torch.func.vmap(tensors_of)(x)], tensors)
    own = x[1].clone().requires_grad_()
    expected = gradient_of(tensors_of(own), own)

    def total(x: torch.Tensor) -> torch.Tensor:
        return sum(((k + 1.0) * t.sin()).sum() for k, t in enumerate(tensors_of(x)))

    torch.testing.assert_close(torch.func.grad(total)(x[1]), expected)
    torch.testing.assert_close(torch.func.jvp(total, (x[1],), (x[2],))[1], expected @ x[2])


@pytest.mark.parametrize("returns", [r for r in RETURNS if "Result" not in r])
def test_and_from_an_exported_program(returns):
    kernel = kernel_that(returns)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return kernel(x)

    x = torch.randn(5, dtype=torch.float64)
    found, tensors = taken_apart(torch.export.export(Model(), (x,)).module()(x))
    form, expected = taken_apart(kernel(x))
    assert found == form
    torch.testing.assert_close(tensors, expected)


@pytest.mark.parametrize("returns", [
    "out = [a]\n    out.append(b)\n    return out", "return [t for t in (a, b)]",
    "return {**{'a': a}}", "return [*(a, b)]", "return Counted(a)", "return State",
])  # fmt: skip
def test_what_the_text_does_not_show_is_refused(returns):
    kernel = kernel_that(returns)
    x = torch.randn(3)
    kernel(x)
    with pytest.raises(Exception, match=r"`kernel` returns [a-zA-Z]+") as caught:
        torch.compile(kernel, backend="eager", fullgraph=True)(x)
    assert "`return [a, b]`" in str(caught.value)


def test_numbers_are_tensors_in_a_graph():
    kernel = kernel_that("return {'b': b, 'done': True}, x.shape[0]")
    x = torch.randn(3)
    held, count = torch.compile(kernel, backend="eager", fullgraph=True)(x)
    assert torch.equal(held["b"], 2.0 * x)
    assert torch.equal(held["done"], torch.tensor(True))
    assert torch.equal(count, torch.tensor(3))
    held, count = kernel(x)
    assert held["done"] is True
    assert count == 3


def test_a_name_for_a_collection_may_change_the_kernel():
    """It is read where it is returned and nowhere else: this one holds another tensor then."""
    kernel = kernel_that("out = [a, b]\n    out[0] = b * 3.0\n    return out")
    x = torch.randn(3)
    assert torch.equal(kernel(x)[0], 6.0 * x)
    with pytest.raises(Exception, match="`kernel` returns list"):
        torch.compile(kernel, backend="eager", fullgraph=True)(x)


class Reduction(Enum):
    SUM = "sum"
    MEAN = "mean"


class Order(IntEnum):
    FIRST = 1
    SECOND = 2


class Options(Flag):
    NEGATED = 1
    HALVED = 2


@dataclasses.dataclass
class Config:
    reduction: Reduction = Reduction.SUM
    order: Order = Order.FIRST


@weft.kernel
def loss(
    x: torch.Tensor, reduction: Reduction = Reduction.MEAN, order: Order = Order.FIRST,
    options: Options = Options.HALVED,
) -> torch.Tensor:  # fmt: skip
    out = torch.zeros((), dtype=x.dtype, device=x.device)
    for i in range(x.shape[0]):
        out[()] += x[i] * x[i] if order == Order.SECOND else x[i]
    if reduction is Reduction.MEAN:
        out = out / x.shape[0]
    if Options.NEGATED in options:
        out = -out
    return out


@weft.kernel
def loss_of(x: torch.Tensor, config: Config) -> torch.Tensor:
    out = torch.zeros((), dtype=x.dtype, device=x.device)
    for i in range(x.shape[0]):
        out[()] += x[i] ** int(config.order)
    return out / x.shape[0] if config.reduction is Reduction.MEAN else out


def test_members_of_enumerations_are_fixed_in_a_graph():
    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    counter = CompileCounter()
    compiled = torch.compile(lambda *args: loss(*args), backend=counter, fullgraph=True)
    calls: list[tuple[Any, ...]] = [
        (), (Reduction.SUM,), (Reduction.SUM, Order.SECOND),
        (Reduction.MEAN, Order.SECOND, Options.NEGATED | Options.HALVED),
    ]  # fmt: skip
    for _ in range(2):
        for call in calls:
            torch.testing.assert_close(compiled(x, *call), loss(x, *call))
            torch.testing.assert_close(gradient_of([compiled(x, *call)], x),
                                       gradient_of([loss(x, *call)], x))  # fmt: skip
        assert counter.frame_count == len(calls)


def test_and_as_members_of_other_arguments():
    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(lambda *args: loss_of(*args), backend="aot_eager", fullgraph=True)
    for config in (Config(), Config(Reduction.MEAN), Config(order=Order.SECOND)):
        torch.testing.assert_close(compiled(x, config), loss_of(x, config))
        torch.testing.assert_close(gradient_of([compiled(x, config)], x),
                                   gradient_of([loss_of(x, config)], x))  # fmt: skip


@pytest.mark.parametrize("returns", [
    "return [a, b]", "return (a,)", "return {'a': a, 'b': (b, None)}", "return Result(b, more=a)",
])  # fmt: skip
def test_such_operators_are_in_machine_code(returns):
    kernel = kernel_that(returns)
    compiled = torch.compile(kernel, backend="eager", fullgraph=True)
    x = torch.randn(5)
    for _ in range(3):
        torch.testing.assert_close(taken_apart(compiled(x))[1], taken_apart(kernel(x))[1])
    code = learned(kernel, x)
    assert by_python(code, lambda: compiled(x)) == 0
    assert by_python(code, lambda: kernel.op(x)) == 0


def test_a_tuple_of_one_tensor_is_no_tuple_of_tuples():
    """A gradient is asked for: the operator calls the kernel, which gives the tuple itself."""
    kernel = kernel_that("return (a,)")
    x = torch.randn(5, requires_grad=True)
    (found,) = torch.compile(kernel, backend="eager", fullgraph=True)(x)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], 2 * x)
