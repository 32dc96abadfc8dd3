"""Derivatives of complex functions where a part is zero: those of PyTorch.

There, formulas of the parts have cases of their own (infinity times a sine of 0, the absolute value
of a part), whose values were right and whose slopes were not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

WIDE = torch.complex128
SIZES = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
POINTS = [
    *(complex(a, b) for a in (0.0, -0.0) for b in (0.0, -0.0)),
    *(complex(a, b) for a in SIZES for b in (0.0, -0.0)),
    *(complex(a, b) for b in SIZES for a in (0.0, -0.0)),
    *(complex(a, b) for a in (1.0, -1.0) for b in (1.0, -1.0)),
    0.3 + 0.7j, -1.3 + 0.4j, -0.2 - 2.1j, 1.7 - 0.6j,
]  # fmt: skip
EXPONENTS = [0j, 1 + 0j, 2 + 0j, 3 + 0j, 0.5 + 0j, 1.5 + 0j, 1j, -1j, 1 + 1j, 2 - 1j]

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(torch, name) for name in (
        "exp", "log", "sqrt", "sin", "cos", "sinh", "cosh", "sgn", "square", "reciprocal", "conj",
    )},
    "abs": lambda z: torch.abs(z) * (1 + 2j),
    "angle": lambda z: torch.angle(z) * (1 + 2j),
    "polar": lambda z: torch.polar(torch.abs(z), torch.angle(z)),
    "parts": lambda z: torch.complex(z.imag, z.real) * z.imag - z,
    "quotient": lambda z: (z + 1) / (z - 3) + z / 2j,
    "of a conjugate": lambda z: z / z.conj(),
    "2 ** z": lambda z: 2.0**z,
    "1j ** z": lambda z: 1j**z,
    "z ** z": lambda z: z**z,
    "z ** 0.5": lambda z: z**0.5,
    "z ** -0.5": lambda z: z**-0.5,
    "z ** 1.5": lambda z: z**1.5,
    "z ** 3": lambda z: z**3,
    "z ** -2": lambda z: z**-2,
    "z ** 1j": lambda z: z**1j,
    "exp(-1j * z)": lambda z: torch.exp(-1j * z),
    "exp(z / 2) sqrt(z)": lambda z: torch.exp(z * 0.5) * torch.sqrt(z),
    "sqrt(z * z + 1)": lambda z: torch.sqrt(z * z + 1),
    "sqrt(1 - z * z)": lambda z: torch.sqrt(1 - z * z),
    "sqrt(sqrt(z))": lambda z: torch.sqrt(torch.sqrt(z)),
    "log(sqrt(z))": lambda z: torch.log(torch.sqrt(z)),
}  # fmt: skip
SECOND = ("exp", "log", "sqrt", "sinh", "abs", "z ** 1.5")
NARROW = ("exp", "log", "sqrt", "sgn", "2 ** z")


@weft.kernel
def of_one(z, f: weft.template()):
    out = torch.empty_like(z)
    for i in range(z.shape[0]):
        out[i] = f(z[i])
    return out


@weft.kernel
def of_two(z, w, f: weft.template()):
    out = torch.empty_like(z)
    for i in range(z.shape[0]):
        out[i] = f(z[i], w[i])
    return out


def first(f: Callable[..., Any], *args: torch.Tensor) -> list[torch.Tensor]:
    """By each argument: of the real part, of the imaginary part, along 1, along 1j."""
    found: list[torch.Tensor] = []
    for part in (torch.real, torch.imag):
        leaves = [x.clone().requires_grad_() for x in args]
        found += torch.autograd.grad(part(f(*leaves)).sum(), leaves)
    for k, x in enumerate(args):
        for along in (1, 1j):
            tangents = [torch.zeros_like(y) for y in args]
            tangents[k] = torch.full_like(x, along)
            found.append(torch.func.jvp(f, tuple(args), tuple(tangents))[1])
    return [x.resolve_conj() for x in found]


def second(f: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for part in (torch.real, torch.imag):
        for along in (1, 1j):
            leaf = x.clone().requires_grad_()
            (g,) = torch.autograd.grad(part(f(leaf)).sum(), leaf, create_graph=True)
            found += torch.autograd.grad((g * along).real.sum(), leaf)
    return [x.resolve_conj() for x in found]


def same(found: list[torch.Tensor], wanted: list[torch.Tensor], at: torch.Tensor) -> None:
    """Where torch has a derivative; where it has none, there is none."""
    for mine, theirs in zip(found, wanted, strict=True):
        there = torch.isfinite(theirs)
        bound = torch.finfo(theirs.dtype).eps * 256
        close = torch.isclose(mine, theirs, rtol=bound, atol=bound)
        wrong = torch.where(there, ~close, torch.isfinite(mine))
        assert not wrong.any(), (at[wrong], mine[wrong], theirs[wrong])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one(name: str) -> None:
    f = FUNCTIONS[name]
    for dtype in (WIDE, torch.complex64) if name in NARROW else (WIDE,):
        z = torch.tensor(POINTS, dtype=dtype)
        same(first(lambda z: of_one(z, f), z), first(f, z), z)


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str) -> None:
    f = FUNCTIONS[name]
    z = torch.tensor([z for z in POINTS if z], dtype=WIDE)
    same(second(lambda z: of_one(z, f), z), second(f, z), z)


TWO = {"*": operator.mul, "/": operator.truediv, "**": operator.pow}


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two(name: str) -> None:
    f = TWO[name]
    points = [z for z in POINTS if z or name != "**"]
    pairs = torch.cartesian_prod(*(torch.tensor(x, dtype=WIDE) for x in (points, EXPONENTS)))
    z, w = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    same(first(lambda z, w: of_two(z, w, f), z, w), first(f, z, w), pairs)


@weft.kernel
def powers(z, n):
    out = torch.empty_like(z)
    for i in range(z.shape[0]):
        out[i] = z[i] ** n
    return out


def test_powers_of_zero() -> None:
    """The derivative was 0 also where the exponent is 1, and where there is none."""
    z = torch.tensor(POINTS[:4], dtype=WIDE)
    for n in (0.0, 1.0, 2.0, 3.5, 0.5, -0.5, 0.25, 1j, 1 + 1j, 2 - 1j):
        n = complex(n)
        same(first(lambda z, n=n: powers(z, n), z), first(lambda z, n=n: z**n, z), z)


@pytest.mark.parametrize("n", [0, 1, 1.5, 2, 2.5, 3, 4, 2 + 1j, 3 - 1j])
def test_further_derivatives_of_powers_of_zero(n: complex) -> None:
    """The second of a square was 0, and that of others below one, which is not finite."""
    z = torch.zeros(2, dtype=WIDE, requires_grad=True)
    found = [powers(z, complex(n))]
    for _ in range(3):
        found += torch.autograd.grad(found[-1].real.sum(), z, create_graph=True)
    factor = 1.0
    for order, each in enumerate(found):
        if isinstance(n, int) or order < complex(n).real:
            assert each.tolist() == [factor if order == n else 0.0] * 2
        else:
            assert not each.isfinite().any()
        factor *= order + 1


def test_the_derivative_of_powers_of_zero_by_the_exponent() -> None:
    """It was 0 where there is no value."""
    z = torch.zeros(5, dtype=WIDE)
    n = torch.tensor([0.0, 0.5, 2 + 1j, -1.0, 1j], dtype=WIDE, requires_grad=True)
    out = of_two(z, n, lambda z, n: z**n)
    (first,) = torch.autograd.grad(out.real.sum(), n, create_graph=True)
    (second,) = torch.autograd.grad(first.real.sum(), n)
    for found in (first, second):
        assert found[:3].tolist() == [0.0] * 3
        assert not found[3:].isfinite().any()


@pytest.mark.parametrize("n", [0.5, 1, 1.5, 2])
def test_powers_of_large_numbers(n: float) -> None:
    """Whose cubes are infinite."""
    z = torch.tensor([1e120, 1e120j, 1e-120, complex(-1e120, 1e120)], dtype=WIDE)
    found, expected = (first(f, z) for f in (lambda z: powers(z, complex(n)), lambda z: z**n))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine / theirs, torch.ones_like(mine))
