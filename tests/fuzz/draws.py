"""Random kernels that draw random numbers: compiled code, on one and two threads, in order, in
debug mode and with the grid of a GPU, gives what `interpret` gives for the same seed, and leaves
torch's generator as it does. The gradient is that of the numbers drawn.

How much an iteration draws depends on sizes, integers and on what it has drawn.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch

import weft
from tests.cuda.emulator import emulated
from tests.fuzz.check import function, shaped

HELPERS = """
def jittered(v, by):
    if weft.random() < 0.25:
        return v
    return v + by * (weft.random() - 0.5)


def steps(most):
    k = 0
    while k < most and weft.random(weft.f32) < 0.7:
        k += 1
    return k


"""
EXACT = ("weft.random()", "weft.random(weft.f64)", "weft.f64(weft.random(weft.f32))",
         "weft.f64(weft.random(weft.f16))", "weft.f64(weft.random(weft.bf16))")  # fmt: skip
INTEGERS = ("weft.randint(0, 7)", "weft.randint(-3, n + 1)", "weft.random(weft.i32) % 5",
            "weft.random(int) % 7", "weft.i64(weft.random(weft.u8)) % 4",
            "weft.i64(weft.random(bool))", "weft.randint(m[i], m[i] + 3)", "steps(3)")  # fmt: skip


class Draw:
    """The text of a kernel."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.axes = random.choice(("i", "ij", "ranges", "in order"))
        self.normal = random.random() < 0.3  # whose logarithm and cosine round otherwise on a GPU

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def number(self, depth: int = 2) -> str:
        if not depth or self.random.random() < 0.25:
            normal = ["weft.randn()", "weft.f64(weft.randn(weft.f32))"] * self.normal
            return self.pick("x[i]", "y[i]", "s", "0.5", "c", "z", *EXACT, *normal)
        match self.random.randrange(6):
            case 0:
                left = self.number(depth - 1)
                return f"({left} if {self.condition()} else {self.number(depth - 1)})"
            case 1:
                return f"jittered({self.number(depth - 1)}, {self.number(0)})"
            case 2:
                return f"sum(weft.random() * v for v in ({self.number(0)}, {self.number(0)}))"
            case _:
                left, right = self.number(depth - 1), self.number(depth - 1)
                return f"({left} {self.pick(*'+-*')} {right}) * 0.5"

    def whole(self) -> str:
        return self.pick("i", "n", "k", "m[i]", "2", *INTEGERS)

    def condition(self, depth: int = 1) -> str:
        if depth and self.random.random() < 0.3:
            word = self.pick("and", "or")
            return f"({self.condition(0)} {word} {self.condition(0)})"
        return self.pick(
            f"{self.whole()} {self.pick('<', '>', '==')} {self.whole()}", "weft.random(bool)",
            f"{self.pick(*EXACT)} < {self.pick('0.3', '0.8', 'weft.random()')}", "z < 0.5",
        )  # fmt: skip

    def statements(self, indent: str, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            match self.random.randrange(8 if depth else 4):
                case 0 | 1:
                    lines.append(f"{indent}s = {self.number()}")
                case 2:
                    lines.append(f"{indent}k = ({self.whole()} + {self.whole()}) % 9")
                case 3:
                    lines.append(f"{indent}z = {self.pick(*EXACT)}")
                case 4:
                    over = self.pick("3", "n", "i % 3", "weft.randint(0, 4)", "steps(2)")
                    lines.append(f"{indent}for q in range({over}):")
                    lines += self.statements(indent + "    ", depth - 1)
                    if self.random.random() < 0.4:
                        lines.append(f"{indent}    if {self.condition()}:")
                        lines.append(f"{indent}        {self.pick('break', 'continue')}")
                        lines.append(f"{indent}    s = s * 0.5 + {self.number(0)}")
                case 5:
                    lines.append(f"{indent}while {self.pick(*EXACT)} < 0.4:")
                    lines += self.statements(indent + "    ", depth - 1)
                case _:
                    lines.append(f"{indent}if {self.condition()}:")
                    lines += self.statements(indent + "    ", depth - 1)
                    if self.random.random() < 0.5:
                        lines.append(f"{indent}else:")
                        lines += self.statements(indent + "    ", depth - 1)
        return lines

    def loop(self) -> list[str]:
        match self.axes:
            case "i":
                head = self.pick("range(x.shape[0])", "range(x.shape[0] - 1, -1, -1)", "x")
                lines, at = [f"    for i in {head}:"], "i, 0"
            case "ij":
                lines, at = ["    for i, j in out:"], "i, j"
            case "ranges":
                lines, at = ["    for i in range(x.shape[0]):"], "i, j"
            case _:
                lines = ["    weft.loop_config(serialize=True)", "    for i, j in out:"]
                at = "i, j"
        start = self.pick("weft.random()", "0.25", "weft.random(weft.f32)")
        lines += ["        s, k = 0.0, 0", f"        z = weft.f64({start})"]
        inner = " " * 8
        if self.axes == "ranges":
            lines.append("        for j in range(out.shape[1]):")
            inner = " " * 12
        lines += self.statements(inner, 2)
        lines.append(f"{inner}out[{at}] = s + {self.number()}")
        lines.append(f"{inner}bits[{at}] = k + {self.whole()}")
        if self.random.random() < 0.3:
            lines.append(f"{inner}weft.atomic_add(h[({self.whole()}) % 2], 1)")
        return lines

    def text(self) -> str:
        lines = [
            "def kernel(x, y, m, bits, h, n: int, c: float):",
            "    out = torch.zeros(x.shape[0], 3, dtype=x.dtype)",
        ]
        lines += self.loop()
        if self.random.random() < 0.3:  # a second launch has a second key
            lines += self.loop()
        return HELPERS + "\n".join([*lines, "    return out", ""])


def check(random: Random) -> None:
    """Draws a kernel and runs it in all ways; AssertionError where they differ."""
    draw = Draw(random)
    drawn = draw.text()
    plain = function(drawn)
    kernel = weft.kernel(plain)
    count, n, seed = random.choice((1, 2, 7, 30)), random.randint(1, 3), random.randrange(1 << 40)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    values = [torch.randn(count, dtype=torch.float64, generator=generator) for _ in range(2)]
    m = torch.randint(0, 5, (count,), generator=generator)
    weights = torch.randn(count, 3, dtype=torch.float64, generator=generator)

    def run(call: Any, threads: int = 1) -> list[torch.Tensor]:
        bits, h = torch.zeros(count, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        leaves = [shaped(random, v).requires_grad_() for v in values]
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        out = call(*leaves, m, bits, h, n, 0.75)
        after = torch.rand(2)
        if not out.requires_grad:
            return [out, bits, h, after]
        found = torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True)
        grads = [torch.zeros_like(v) if g is None else g
                 for g, v in zip(found, values, strict=True)]  # fmt: skip
        return [out.detach(), bits, h, after, *grads]

    def compare(
        name: str, found: list[torch.Tensor], wanted: list[torch.Tensor], off: float
    ) -> None:
        for a, b in zip(found, wanted, strict=False):
            same = (a - b).abs() <= off * (1 + b.abs().max())
            assert same.all(), f"{name}:\n{drawn}\n{b}\n{a}\n{seed}, {values}, {m}, {n}"

    off = 1e-5 if draw.normal else 1e-9  # normal numbers of f32 round as the machine's functions do
    before = torch.get_num_threads()
    try:
        wanted, first = run(kernel.interpret), run(kernel)
        compare("compiled", first, wanted, off)
        compare("two threads", run(kernel, 2), first, 0)
        match random.randrange(3):
            case 0:
                compare("strict", run(weft.kernel(strict_math=True)(plain)), wanted, off)
            case 1:
                with torch.no_grad():
                    compare("debug", run(weft.kernel(debug=True)(plain)), wanted, off)
            case _:
                with torch.no_grad():
                    compare("a grid", run(emulated(kernel)), wanted, off)
    finally:
        torch.set_num_threads(before)
