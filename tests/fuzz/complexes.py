"""Random kernels of complex numbers: their results and their gradients against the plain Python.

Values stay of moderate size and, with gradients, away from where a function has none: each variable
is divided by one and its absolute value. Branches depend on real inputs, loops on sizes.
"""

from __future__ import annotations

from random import Random

import torch

import weft
from tests.fuzz.check import function, shaped

FUNCTIONS = ("torch.exp", "torch.sin", "torch.cos", "torch.conj", "torch.square")
PARTS = ("abs({})", "{}.real", "{}.imag", "torch.angle({} + 3.0)")
CLOSE = {torch.complex64: 1e-4, torch.complex128: 1e-10}


def expression(random: Random, names: list[str], depth: int = 3) -> str:
    """A complex number; ``names`` are such."""

    def inner() -> str:
        return expression(random, names, depth - 1)

    if not depth or random.random() < 0.2:
        leaves = [*names, "x[i]", "y[i]", "r[i]", "1j", "(0.5 - 2j)", "c", "1.5", "x[0].conj()"]
        return random.choice(leaves)
    match random.randrange(8):
        case 0 | 1:
            return f"({inner()} {random.choice('+-')} {inner()})"
        case 2:
            return f"({inner()} * {inner()})"
        case 3:
            return f"({inner()} / ({expression(random, names, 0)} + 4.0 + 1j))"
        case 4:
            return f"({inner()} + 0j) ** {random.choice((2, 3))}"
        case 5:
            return f"{random.choice(FUNCTIONS)}({inner()} + x[i] * 0)"
        case 6:
            return f"torch.complex({part(random, names)} + r[i], r[i])"
        case _:
            return f"({inner()} if r[i] > 0 else {inner()})"


def part(random: Random, names: list[str]) -> str:
    """A real number."""
    return random.choice(PARTS).format(random.choice([*names, "x[i]", "y[i]"]))


def statements(random: Random, names: list[str], indent: str, depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(random.randint(1, 3)):
        name = random.choice(["u", "v", "w"])
        value = expression(random, names)
        match random.randrange(5 if depth else 3):
            case 0 | 1 | 2:
                lines.append(f"{indent}{name} = {value} + x[i] * 0")
            case 3:
                lines.append(f"{indent}for k in range({random.choice(('2', 'm'))}):")
                lines += statements(random, names, indent + "    ", depth - 1)
                continue
            case _:
                lines.append(f"{indent}if r[i] > {random.choice(('0', '-0.5', '0.3'))}:")
                lines += statements(random, names, indent + "    ", depth - 1)
                continue
        lines.append(f"{indent}{name} = {name} / (1.0 + abs({name}))")
    return lines


def text(random: Random) -> str:
    lines = ["def kernel(x, y, r, c: complex, m: int):", "    out = torch.zeros_like(x)",
             "    total = 0j", "    for i in range(x.shape[0]):",
             "        u = x[i]", "        v = y[i] * 1j", "        w = x[i] * 0"]  # fmt: skip
    names = ["u", "v", "w"]
    lines += statements(random, names, " " * 8, 2)
    lines.append(f"        out[i] = {expression(random, names)}")
    lines.append(f"        out[i] {random.choice(('+=', '-=', '*='))} {random.choice(names)}")
    lines.append(f"        total += {expression(random, names, 1)} * {part(random, names)}")
    return "\n".join([*lines, "    return out, total", ""])


def check(random: Random) -> None:
    """Draws a kernel and runs it both ways, with gradients; AssertionError where they differ."""
    drawn, dtype = text(random), random.choice([*CLOSE])
    plain = function(drawn)
    n, m, c = random.choice((1, 2, 5)), random.randint(0, 3), complex(random.random(), -1)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    values = [torch.randn(n, dtype=dtype, generator=generator) for _ in range(2)]
    values.append(torch.randn(n, dtype=values[0].real.dtype, generator=generator))
    gradient = [torch.randn(k, dtype=dtype, generator=generator) for k in (n, 1)]
    found = []
    for call in (plain, weft.kernel(plain)):
        leaves = [shaped(random, v).requires_grad_() for v in values]
        out, total = call(*leaves, c, m)
        total = torch.as_tensor(total, dtype=dtype)
        given = [g for g, o in zip(gradient, (out, total[None]), strict=True) if o.requires_grad]
        outs = [o for o in (out, total[None]) if o.requires_grad]
        grads = torch.autograd.grad(outs, leaves, given, allow_unused=True) if outs else [None] * 3
        filled = [torch.zeros_like(v) if g is None else g
                  for g, v in zip(grads, values, strict=True)]  # fmt: skip
        found.append([out.detach(), total.detach(), *filled])
    for wanted, made in zip(*found, strict=True):
        finite = wanted.isfinite()  # torch's gradients are NaN where a branch not taken has one
        scale = 1 + torch.where(finite, wanted.abs(), 0.0).max()
        close = (wanted - made).abs() <= CLOSE[dtype] * scale * (n + 10)
        assert (close | ~finite).all(), f"{drawn}\n{wanted}\n{made}\n{values}, {c}, {m}"
