"""Random host parts: loops of the host around device loops, a tensor that is filled step by step,
work arrays that are used again, copies and statements of torch in between. Their gradients against
differences of the Python."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.check import function
from weft.errors import GradientError

STEP = 1e-4
EXACT = 1e-6  # relative; of differences of the fourth order
N, STEPS = 4, 3

HEAD = """\
def kernel(x, y, T):
    n = x.shape[0]
    p, q, r = x.clone(), y * 1.0, torch.zeros_like(x)
    work = torch.ones_like(x.detach())
    which = torch.zeros(n, dtype=torch.int64)
    path = torch.zeros(T + 1, n, dtype=x.dtype)
    path[0] = x
"""


class History:
    """Draws one kernel: ``text``."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self.sums = 0
        for _ in range(random.randint(0, 2)):
            self.statement(1, "0")
        self.emit(1, "for t in weft.serial(range(T)):")
        for _ in range(random.randint(1, 4)):
            self.statement(2, "t")
        self.step(2)
        for _ in range(random.randint(0, 2)):
            self.statement(1, "0")
        self.text = f"{HEAD}{''.join(self.lines)}    return p, q, r, path\n"

    def emit(self, indent: int, text: str) -> None:
        self.lines.append(f"{'    ' * indent}{text}\n")

    def array(self, *but: str) -> str:
        return self.random.choice([a for a in "pqr" if a not in but])

    def read(self, t: str, *but: str) -> str:
        """An element; of arrays in ``but`` only the iteration's own."""
        place = self.random.choice(["i", "i", "(i + 1) % n", "n - 1 - i", "which[i]"])
        kind = self.random.randrange(5)
        if kind == 0:
            return "work[i]"
        if kind == 1 and "path" not in but:
            return f"path[{t}, {place}]"
        name = self.array()
        return f"{name}[i]" if name in but else f"{name}[{place}]"

    def value(self, t: str, *but: str) -> str:
        a, b, c = (self.read(t, *but) for _ in range(3))
        return self.random.choice([
            f"0.5 * {a} * {b} + 0.1 * {c}", f"torch.sin({a}) * {b}", f"torch.exp(-{a} * {a}) + {b}",
            f"0.5 * {a} + 0.5 * {b}", f"{a} / (1.0 + {b} * {b})",
        ])  # fmt: skip

    def loop(self, indent: int, body: str, over: str = "range(n)") -> None:
        self.emit(indent, f"for i in {over}:")
        self.emit(indent + 1, body)

    def step(self, indent: int) -> None:
        """The next row of ``path``, directly or through views."""
        form = self.random.randrange(4)
        if form == 0:
            self.emit(indent, "old, new = path[t], path[t + 1]")
            self.loop(indent, f"new[i] = old[i] * {self.read('t', 'path')}")
        elif form == 1:
            self.emit(indent, f"path[t + 1] = {self.array()}")
        else:
            self.loop(indent, f"path[t + 1, i] = {self.value('t')}")
            if form == 2:
                self.emit(indent, "path[t + 1, 0] = 0.5")

    def statement(self, indent: int, t: str) -> None:
        kind, a = self.random.randrange(12), self.array()
        b = self.array(a)
        if kind <= 3:
            sign = self.random.choice(["=", "=", "+="])
            part = self.random.choice(["range(n)", "range(n)", "range(1, n)", f"range({t}, n)"])
            self.loop(indent, f"{a}[i] {sign} {self.value(t, a)}", part)
        elif kind == 4:
            self.loop(indent, f"work[i] = 0.5 + 0.1 * {t} + 0.2 * i")
            self.loop(indent, f"which[i] = (i * 3 + {t}) % n")
        elif kind == 5:
            self.emit(indent, f"{a}.copy_({b})")
        elif kind == 6:
            self.emit(indent, f"{a} {self.random.choice(['*= 0.5', f'+= 0.3 * {b}'])}")
        elif kind == 7:
            self.emit(indent, f"{a}, {b} = {b}, {a}")
        elif kind == 8:
            self.emit(indent, f"{a}[1:] = {b}[:-1]")
        elif kind == 9:
            self.emit(indent, f"{a} = 1.0 * torch.tanh({b})")
        elif kind == 10:
            self.emit(indent, f"work.mul_(0.9)\n{'    ' * indent}work[0] = {t} + 0.5")
        else:
            self.emit(indent, "s = 0.0")
            self.loop(indent, f"s += {self.value(t)}")
            self.loop(indent, f"{a}[i] = torch.tanh({b}[i] * s)")


def check_history(random: Random) -> str:
    """Draws a host part and compares results and gradients; AssertionError where they differ. Gives
    "compared", or "refused: <why>"."""
    text = History(random).text
    plain = function(text)
    kernel = weft.kernel(plain)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))

    def numbers() -> torch.Tensor:
        return torch.rand(N, dtype=torch.float64, generator=generator) + 0.5

    x, y, u, v = (numbers() for _ in range(4))
    weights: list[torch.Tensor] = []

    def total(outs: Any) -> Any:
        while len(weights) < len(outs):
            shape = outs[len(weights)].shape
            weights.append(torch.randn(shape, dtype=torch.float64, generator=generator))
        return sum((o * w).sum() for o, w in zip(outs, weights, strict=True))

    with torch.no_grad():
        expected = total(plain(x.clone(), y.clone(), STEPS))
        moved = {k: total(plain(x + k * STEP * u, y + k * STEP * v, STEPS)) for k in (-2, -1, 1, 2)}
    difference = (8 * (moved[1] - moved[-1]) - (moved[2] - moved[-2])) / (12 * STEP)
    leaves = x.requires_grad_(), y.requires_grad_()
    try:
        found = total(kernel(*leaves, STEPS))
        gradients = torch.autograd.grad(found, leaves, allow_unused=True, materialize_grads=True)
    except GradientError as caught:
        return f"refused: {caught}"
    product = sum((g * d).sum() for g, d in zip(gradients, (u, v), strict=True))
    assert torch.isclose(found, expected, 1e-9, 1e-9), f"{text}\n{expected}\n{found}"
    assert torch.isclose(product, difference, EXACT, EXACT), f"{text}\n{difference}\n{product}"
    return "compared"
