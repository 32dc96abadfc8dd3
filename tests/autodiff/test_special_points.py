"""Derivatives where a formula has a case of its own, or would lose its digits: those of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, hessian, jvp, vmap

import weft


@weft.kernel
def of_two(x, y, f: weft.template()):
    out = torch.empty_like(x)
    for i in out:
        out[i] = f(x[i], y[i])
    return out


@weft.kernel
def of_one(x, f: weft.template()):
    out = torch.empty_like(x)
    for i in out:
        out[i] = f(x[i])
    return out


@weft.kernel
def of_rows(x, f: weft.template()):
    out = x.new_empty(x.shape[0])
    for i in out:
        out[i] = f(x[i])
    return out


def rest(x: Any, y: Any) -> Any:
    return x % y


def both(x: Any, y: Any) -> Any:
    return x % y + torch.fmod(x, y)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def derivatives(f: Callable[..., Any], *args: torch.Tensor) -> list[torch.Tensor]:
    """The first ones, and the second ones by each argument."""
    leaves = [t.clone().requires_grad_() for t in args]
    first = torch.autograd.grad(f(*leaves).sum(), leaves, create_graph=True)
    total: Any = sum((k + 2) * g.sum() for k, g in enumerate(first) if g.requires_grad)
    if not isinstance(total, torch.Tensor):
        return [g.detach() for g in first]
    second = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [g.detach() for g in (*first, *second)]


TWO: dict[str, tuple[Callable[..., Any], tuple[float, ...], tuple[float, ...]]] = {
    "a rest of zero": (rest, (1.0, -1.0, 0.0, 3.0, -2.0, 0.7), (0.5, 0.5, 2.0, -1.5, 2.0, 0.2)),
    "both rests": (both, (1.0, -1.0, 2.5), (0.5, 0.5, -0.5)),
    "torch.xlogy": (torch.xlogy, (0.0, 0.0, 2.0, -1.0), (2.0, 0.5, 3.0, 0.25)),
    "xlog1py": (torch.special.xlog1py, (0.0, 0.0, 2.0), (2.0, -0.5, 3.0)),
    "logaddexp": (torch.logaddexp, (0.0, 1.0, -3.0, 2.0), (0.0, 1.0, -3.0, 5.0)),
    "logaddexp2": (torch.logaddexp2, (0.0, 1.0, -3.0, 2.0), (0.0, 1.0, -3.0, 5.0)),
}


@pytest.mark.parametrize("case", TWO)
def test_functions_of_two(case: str) -> None:
    f, x, y = TWO[case]
    args = numbers(*x), numbers(*y)
    expected = derivatives(torch.remainder if f is rest else f, *args)
    for mine, theirs in zip(
        derivatives(lambda x, y: of_two(x, y, f), *args), expected, strict=False
    ):
        torch.testing.assert_close(mine, theirs)


def test_a_rest_of_zero_has_the_sign_of_the_divisor() -> None:
    x, y = numbers(1.0, -1.0, 0.0, -0.0, 1.0, -1.0, 0.0, -0.0), numbers(*[0.5] * 4, *[-0.5] * 4)
    found = of_two(x, y, rest)
    assert (found == 0.0).all()
    assert found.signbit().tolist() == [False] * 4 + [True] * 4


def test_the_second_derivative_of_a_power_of_zero() -> None:
    x, y = numbers(0.0, 0.0, 2.0).requires_grad_(), numbers(2.0, 3.0, 3.0).requires_grad_()
    (slope,) = torch.autograd.grad(of_two(x, y, torch.pow).sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert curvature.tolist() == [2.0, 0.0, 12.0]


def orders(call: Callable[..., Any], x: torch.Tensor, most: int = 3) -> list[list[float]]:
    """The value and its derivatives."""
    leaf = x.clone().requires_grad_()
    found = [call(leaf)]
    while len(found) <= most and found[-1].requires_grad:
        found += torch.autograd.grad(found[-1].sum(), leaf, create_graph=True)
    return [f.tolist() for f in found]


@weft.kernel
def powers(x, n):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] ** n
    return out


@pytest.mark.parametrize("n", [-1, -2, -3, -2.0])
def test_negative_powers_at_zero_and_at_infinity(n: float) -> None:
    """The derivatives of 1 / (x * x) were NaN, as inf * 0."""
    x = numbers(0.0, -0.0, math.inf, -math.inf, 1e-200, 2.0, -0.5)
    expected = orders(lambda x: x**n, x)
    assert orders(lambda x: of_one(x, lambda v: v**n), x) == expected
    assert orders(lambda x: powers(x, n), x) == expected


@pytest.mark.parametrize("n", [0, 1, 2])
def test_further_derivatives_of_powers_end(n: int) -> None:
    x = numbers(0.0, -0.0, 2.0)
    found, expected = orders(lambda x: powers(x, n), x, 4), orders(lambda x: x**n, x, 4)
    assert found[: len(expected)] == expected  # torch knows that there are no more
    assert all(value == 0.0 for more in found[len(expected) :] for value in more)


def test_a_rest_that_there_is_not() -> None:
    x, y = numbers(1.0, -5.0, math.inf, 4.0), numbers(0.0, 0.0, 2.0, math.inf)
    mine = derivatives(lambda x, y: of_two(x, y, torch.fmod), x, y)[:2]
    assert [g.tolist() for g in mine] == [g.tolist() for g in derivatives(torch.fmod, x, y)[:2]]


def test_the_origin_of_an_angle() -> None:
    first = derivatives(lambda y, x: of_two(y, x, torch.atan2), numbers(0.0), numbers(0.0))[:2]
    assert [g.item() for g in first] == [0.0, 0.0]


def test_what_is_small_has_all_its_digits() -> None:
    x = numbers(-20.0, -30.0, -36.0)
    slope, curvature = derivatives(lambda x: of_one(x, torch.nn.functional.elu), x)
    torch.testing.assert_close(slope, x.exp(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(curvature, 2 * x.exp(), rtol=1e-12, atol=0.0)
    x = numbers(0.0, 1e-300, 1e-12, -1e-6, 0.05, 0.0999999)
    slope, curvature = derivatives(lambda x: of_one(x, torch.sinc), x)
    t = math.pi * x
    series = -math.pi * t * (1 / 3 - t**2 / 30 + t**4 / 840 - t**6 / 45360)
    torch.testing.assert_close(slope, series, rtol=1e-9, atol=0.0)
    assert abs(curvature[0] + 2 * math.pi**2 / 3) < 1e-12


def test_ends_of_a_domain() -> None:
    slope = derivatives(lambda x: of_one(x, torch.logit), numbers(0.0, 0.25, 1.0))[0]
    torch.testing.assert_close(slope, numbers(math.inf, 1 / 0.1875, math.inf))
    slope = derivatives(lambda x: of_one(x, torch.lgamma), numbers(-1.0, -30.0, -0.5))[0]
    assert slope.isnan().tolist() == [True, True, False]
    for f, x in (
        (torch.lgamma, numbers(0.0, -0.0)), (torch.digamma, numbers(0.0, -0.0)),
        (torch.erfinv, numbers(1.0, -1.0)), (torch.special.entr, numbers(0.0)),
    ):  # fmt: skip
        slope = derivatives(lambda x, f=f: of_one(x, f), x)[0]
        assert torch.equal(slope, derivatives(f, x)[0])


def test_even_functions_inside_of_odd_ones() -> None:
    """Their derivatives at 0, and digamma's where its tangent has none."""
    for f in (torch.erfinv, torch.digamma):
        x = numbers(*([0.0, 0.25, -0.25] if f is torch.erfinv else [-0.5, -1.5, -0.25, 0.75]))
        mine, theirs = derivatives(lambda x, f=f: of_one(x, f), x), derivatives(f, x)
        torch.testing.assert_close(mine, theirs)


def taken(x: Any, y: Any) -> Any:
    return x if x > y else y


def taken_by_where(x: Any, y: Any) -> Any:
    return torch.where(x >= y, x, y)


def clamped(x: Any, y: Any) -> Any:
    return torch.clamp(x, y, y + 1.0)


def clamped_above(x: Any, y: Any) -> Any:
    return torch.clamp(x, max=y)


@pytest.mark.parametrize(
    "f", [taken_by_where, torch.maximum, torch.minimum, torch.fmax, torch.fmin, clamped,
          clamped_above],
)  # fmt: skip
def test_ties_are_those_of_torch(f: Callable[..., Any]) -> None:
    x, y = numbers(1.0, 0.0, 2.0, -1.0), numbers(1.0, 0.0, 1.0, -1.0)
    mine = derivatives(lambda x, y: of_two(x, y, f), x, y)
    assert [g.tolist() for g in mine[:2]] == [g.tolist() for g in derivatives(f, x, y)[:2]]
    u, v = numbers(3.0, 1.0, 2.0, -1.0), numbers(0.5, 5.0, 1.0, 2.0)
    tangent = jvp(lambda x, y: of_two(x, y, f), (x, y), (u, v))[1]  # torch's own is another
    torch.testing.assert_close(tangent, mine[0] * u + mine[1] * v)


@weft.kernel
def beside_numbers(x, a: float):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = weft.min(x[i] + a, a) + 3.0 * weft.max(x[i], 0.0) + 5.0 * weft.max(2, x[i])
    return out


def test_beside_a_number_at_a_tie_a_tensor_has_all_of_the_derivative() -> None:
    x = numbers(0.0, 1.0, -1.0, 2.0).requires_grad_()
    for call in (beside_numbers, beside_numbers.interpret, beside_numbers.function):
        (found,) = torch.autograd.grad(call(x, 0.75).sum(), x)
        assert found.tolist() == [4.0, 3.0, 1.0, 8.0]


def test_a_choice_has_the_derivative_of_what_it_takes() -> None:
    x, y = numbers(1.0, 0.0, 2.0), numbers(1.0, 0.0, 1.0)
    found = derivatives(lambda x, y: of_two(x, y, taken), x, y)[:2]
    assert [g.tolist() for g in found] == [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]


@weft.kernel
def elements_read_twice(x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = torch.where(x[i] > y[i], x[i], y[i]) + 2 * weft.select(x[i] >= y[i], x[i], y[i])
    return out


def test_a_choice_of_elements_that_are_read_twice_has_the_derivative_of_what_it_takes() -> None:
    x, y = numbers(1.0, 0.0, 2.0), numbers(1.0, 0.0, 1.0)
    found = derivatives(elements_read_twice, x, y)[:2]
    assert [g.tolist() for g in found] == [[2.0, 2.0, 3.0], [1.0, 1.0, 0.0]]


@weft.kernel
def cubes_of_a_branch(x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        larger = x[i] if x[i] > y[i] else y[i]
        again = x[i]
        if larger > again:
            again = larger
        out[i] = larger * again * x[i]
    return out


def test_a_branch_has_the_second_derivative_of_what_it_takes() -> None:
    x, y = numbers(3.0).requires_grad_(), numbers(3.0).requires_grad_()  # y * x * x
    first = torch.autograd.grad(cubes_of_a_branch(x, y).sum(), (x, y), create_graph=True)
    assert [g.tolist() for g in first] == [[18.0], [9.0]]
    seconds = [torch.autograd.grad(g, (x, y), retain_graph=True) for g in first]
    assert [[g.item() for g in row] for row in seconds] == [[6.0, 6.0], [6.0, 0.0]]


@weft.kernel
def two_results(x):
    root, twice = torch.empty_like(x), torch.empty_like(x)
    for i in x:
        root[i] = torch.sqrt(x[i])
        twice[i] = 2 * x[i]
    return root, twice


def test_a_result_at_which_nobody_looks_has_no_derivative() -> None:
    """Zero times an infinite slope was NaN."""
    x = numbers(0.0, 4.0)
    for _ in range(3):  # the first one is planned
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(two_results(leaf)[1].sum(), leaf)
        assert slope.tolist() == [2.0, 2.0]
        (slope,) = torch.autograd.grad(sum(two_results(leaf)).sum(), leaf)
        assert slope.tolist() == [math.inf, 2.25]

    def twice(x: torch.Tensor) -> torch.Tensor:
        return two_results(x)[1].sum()

    assert grad(twice)(x).tolist() == [2.0, 2.0]
    assert vmap(grad(twice))(x[:, None]).tolist() == [[2.0], [2.0]]
    assert hessian(twice)(x).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_result_that_a_graph_drops_has_no_derivative(backend: str) -> None:
    """The backward operator got zeros for it."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: two_results(x)[1], backend=backend, fullgraph=True)
    leaf = numbers(0.0, 4.0).requires_grad_()
    for _ in range(3):  # the last one by machine code
        (slope,) = torch.autograd.grad(compiled(leaf).sum(), leaf)
        assert slope.tolist() == [2.0, 2.0]


def quotient(x: Any, y: Any) -> Any:
    return x / y


@pytest.mark.parametrize("f", [quotient, torch.pow, torch.hypot, torch.logaddexp])
def test_second_derivatives_by_one_operand(f: Callable[..., Any]) -> None:
    """The other one's may be infinite, or NaN."""
    pairs = [(a, b) for a in (1.0, -1.0, 2.0, -0.5, 0.0) for b in (0.0, 1.0, 2.0, -1.0, 0.5)]
    if f is torch.pow:  # 0 where torch has NaN: the exponent's of a zero, and, of a negative base,
        pairs = [(a, b) for a, b in pairs if a and (a > 0 or b)]  # those at the exponent 0
    args = numbers(*(a for a, _ in pairs)), numbers(*(b for _, b in pairs))

    def both(call: Callable[..., Any]) -> list[torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in args]
        first = torch.autograd.grad(call(*leaves).sum(), leaves, create_graph=True)
        found = [torch.autograd.grad(g.sum(), leaves, retain_graph=True, materialize_grads=True,
                                     allow_unused=True) for g in first]  # fmt: skip
        return [g for each in found for g in each]

    for mine, theirs in zip(both(lambda x, y: of_two(x, y, f)), both(f), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def largest(row: Any) -> Any:
    return row.amax()


def spread(row: Any) -> Any:
    return row.std()


def test_rows_of_equal_elements() -> None:
    x = torch.ones(2, 3, dtype=torch.float64)
    x[1, 1] = 0.0
    for f, of_torch in ((largest, lambda x: x.amax(1)), (spread, lambda x: x.std(1))):
        leaf = x.clone().requires_grad_()
        (theirs,) = torch.autograd.grad(of_torch(leaf).sum(), leaf)
        (mine,) = torch.autograd.grad(of_rows(leaf, f).sum(), leaf)
        torch.testing.assert_close(mine, theirs)
        t = torch.randn_like(x)
        tangent = jvp(lambda x, f=f: of_rows(x, f), (x,), (t,))[1]
        torch.testing.assert_close(tangent, (theirs * t).sum(1))


@pytest.mark.parametrize("type", [torch.float32, torch.float64])
def test_squares_beyond_the_range_of_floats(type: torch.dtype) -> None:
    """Of an angle's distance, of the logarithm of a complex number, of an inverse function's x."""
    small = 1e-30 if type == torch.float32 else 1e-200
    great = 1 / small
    y, x = torch.tensor([[small, great, small, 3.0], [small, great, 0.0, -4.0]], dtype=type)
    first = derivatives(lambda y, x: of_two(y, x, torch.atan2), y, x)[:2]
    expected = [[0.5 * great, 0.5 * small, 0.0, -0.16], [-0.5 * great, -0.5 * small, -great, -0.12]]
    torch.testing.assert_close(
        torch.stack(first), torch.tensor(expected, dtype=type), rtol=1e-6, atol=0.0
    )
    leaves = torch.complex(x, y).requires_grad_(), torch.complex(x, y).requires_grad_()
    for z, log in zip(leaves, (lambda z: of_one(z, torch.log), torch.log), strict=True):
        log(z).backward(torch.full_like(z, 1 + 2j))
    mine, torchs = (z.grad for z in leaves)
    torch.testing.assert_close(mine, torchs, rtol=1e-5, atol=0.0)
    x = torch.tensor([great, 2.0], dtype=type)
    for f in (torch.asinh, torch.acosh):
        slope = derivatives(lambda x, f=f: of_one(x, f), x)[0]
        assert abs(slope[0] / small - 1) < 1e-6
