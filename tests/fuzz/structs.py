"""Random kernels of structs: values that functions take and give back, members that are set,
structs in structs, fields of them, objects of dataclasses and named tuples, totals. Their results
and their gradients against the Python.

Where a draw gives a struct a second name, the Python is `interpret`'s, in which that copies.
Branches depend on sizes and integers, so that both ways take the same ones.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.check import function, shaped

TYPES = """
import dataclasses
from typing import Any, NamedTuple


@weft.dataclass
class A:
    p: weft.types.vector(2, weft.f64)
    m: weft.f64
    k: weft.i64

    def energy(self):
        return self.m * self.p.norm_sqr() * 0.25

    def moved(self, by, times=1):
        return A(self.p + by, self.m * 0.5, self.k % 5 + times)


B = weft.types.struct(a=A, w=weft.f64, r=weft.f32)


@dataclasses.dataclass
class D:
    q: float
    n: int = 2

    def __add__(self, other):
        return D(self.q + other.q, self.n + other.n)

    def scaled(self, by):
        return self.q * by + self.n


class T(NamedTuple):
    u: Any
    v: float


def mixed(a, b, by):
    if b.a.k > 3:
        return A(a.p - b.a.p, by, b.a.k)
    return A(m=a.m + by, p=a.p * 0.5, k=a.k)


def wrapped(a, w):
    b = B(a, w)
    b.r = 0.25
    b.a.m = b.a.m + 1.0
    return b

"""


class Draw:
    """The text of a kernel."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.second = random.random() < 0.4  # structs have second names
        self.fields = random.random() < 0.4
        self.total = random.choice(("whole", "members", "vector"))

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def number(self, depth: int = 2) -> str:
        if not depth or self.random.random() < 0.3:
            leaves = ["x[i]", "y[i]", "y[j % n]", "s", "c", "0.5", "a.m", "a.p.x", "a.p[1]",
                      "b.a.m", "b.w", "b.a.p.y", "b.r", "d.q", "t.v", "t.u.m", "g['l']",
                      "a.energy()", "b.a.energy()", "d.scaled(0.5)", f"a.p[{self.whole(0)} % 2]",
                      "t[1]", "a.p.dot(b.a.p)"]  # fmt: skip
            leaves += ["f[i].m", "f[i].p.y", "f[i].energy()"] * self.fields
            return self.random.choice(leaves)
        match self.random.randrange(7):
            case 0:
                return f"{self.leaf(depth - 1)}.m"
            case 1:
                return f"({self.number(depth - 1)} if {self.condition()} else {self.number(0)})"
            case 2:
                return f"wrapped({self.leaf(0)}, {self.number(0)}).{self.pick('w', 'r', 'a.m')}"
            case _:
                left, right = self.number(depth - 1), self.number(depth - 1)
                return f"({left} {self.pick(*'+-*')} {right}) * 0.5"

    def whole(self, depth: int = 1) -> str:
        leaf = self.pick("i", "j", "n", "a.k", "b.a.k", "d.n", "t.u.k", "m[i]", "2")
        return f"({leaf} + {self.whole(depth - 1)}) % 7" if depth else leaf

    def condition(self) -> str:
        return f"{self.whole()} {self.pick('<', '>', '==')} {self.whole(0)}"

    def vector(self) -> str:
        return self.pick(
            f"weft.Vector([{self.number(1)}, {self.number(0)}])", "a.p", "b.a.p * 0.5",
            "a.p - b.a.p", f"t.u.p * ({self.number(0)})",
        )  # fmt: skip

    def leaf(self, depth: int = 1) -> str:
        """A struct of type ``A``."""
        match self.random.randrange(9 if depth else 3):
            case 0 | 1 | 2:
                return self.pick("a", "b.a", "t.u", *["f[i]"] * self.fields)
            case 3 | 4:
                return f"A({self.vector()}, {self.number(1)}, {self.whole()})"
            case 5:
                return f"mixed({self.leaf(0)}, b, {self.number(1)})"
            case 6:
                return f"{self.leaf(0)}.moved({self.number(0)}, times={self.whole(0)})"
            case 7:
                return f"A({self.leaf(0)} {self.pick('+', '-')} {self.leaf(0)})"
            case _:
                return f"A(k={self.whole()}, m={self.number(0)})"

    def fresh(self) -> str:
        """As ``leaf``, of no second name unless there may be one."""
        return self.leaf() if self.second else f"A({self.leaf()})"

    def statement(self) -> list[str]:
        # A member may be an element of a tensor, which Python's `+=` would change in its place.
        change = f"{self.pick('=', *['+=', '-='] * self.second)} {self.number()}"
        match self.random.randrange(13):
            case 0 | 1:
                return [f"a = {self.fresh()}"]
            case 2:
                return [f"b = {self.pick('B', 'wrapped')}({self.leaf()}, {self.number()})"]
            case 3 | 4:
                place = self.pick("m", "p.x", "p.y", f"p[{self.whole()} % 2]")
                return [f"{self.pick('a', 'b.a')}.{place} {change}"]
            case 5:
                return [f"b.{self.pick('w', 'r')} {change}"]
            case 6:
                return [f"b.a = {self.leaf()}"]
            case 7:
                sign = self.pick("=", *["+="] * self.second)
                return [f"{self.pick('a', 'b.a')}.p {sign} {self.vector()}"]
            case 8:
                return [f"{self.pick('a', 'b.a')}.k = {self.whole()}"]
            case 9:
                if self.second and self.random.random() < 0.6:
                    return ["e = b", f"e.a.m += {self.number(0)}", "s = s * 0.5 + e.a.m - e.w",
                            "h = a", f"a.m {change}", "s = s - h.m * 0.5"]  # fmt: skip
                return [
                    f"t = T(A({self.leaf()}), {self.number()})"
                ]  # a named tuple holds, not copies
            case 10:
                made = f"D({self.number()}, {self.whole()})"
                return [self.pick(f"d = {made}", f"d = d + {made}", "d.q = s * 0.5")]
            case 11:
                return [
                    f"g = {{'k': {self.number()}, 'l': {self.number()}}}",
                    "s = s + g['k'] * 0.25",
                ]
            case _:
                return [f"s = {self.number()} * 0.5"]

    def of_field(self) -> list[str]:
        return [self.pick(
            f"f[i].m {self.pick('=', '+=')} {self.number()}", f"f[i] = {self.leaf()}",
            f"f[i].p.x = {self.number()}", f"f[i].p = {self.vector()}", f"f[i].k = {self.whole()}",
            f"weft.atomic_add(f[i].m, {self.number()})",
        )]  # fmt: skip

    def statements(self, indent: str, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 4)):
            match self.random.randrange(7 if depth else 5):
                case 0 if self.fields:
                    lines += [indent + line for line in self.of_field()]
                case 5:
                    over = self.pick("range(3)", "range(n % 4)", "range(i % 3 + 1)")
                    lines.append(f"{indent}for j in {over}:")
                    lines += self.statements(indent + "    ", depth - 1)
                    if self.random.random() < 0.2:
                        lines.append(f"{indent}    if {self.condition()}:")
                        lines.append(f"{indent}        {self.pick('break', 'continue')}")
                case 6:
                    lines.append(f"{indent}if {self.condition()}:")
                    lines += self.statements(indent + "    ", depth - 1)
                    if self.random.random() < 0.5:
                        lines.append(f"{indent}else:")
                        lines += self.statements(indent + "    ", depth - 1)
                case _:
                    lines += [indent + line for line in self.statement()]
        return lines

    def text(self) -> str:
        parameters = "x, y, m, n: int, c: float" + ", f" * self.fields
        start = self.pick("B()", "B(A(m=0.5), 1.0)", "B(w=0.25)")
        lines = [
            f"def kernel({parameters}):", "    out = torch.zeros_like(x)", f"    total = {start}",
            "    for i in range(x.shape[0]):", "        s, j = 0.0, 0",
            "        a = A(weft.Vector([x[i], y[i]]), y[i], i)",
            "        b = B(A(m=x[i]), 0.5, 0.5)",
            "        d, t, g = D(y[i]), T(A(k=1), 0.25), {'k': 1.0, 'l': s}",
        ]  # fmt: skip
        lines += self.statements(" " * 8, 2)
        lines.append(f"        out[i] = s + {self.number()}")
        lines.append(f"        out[i] += {self.number()} + a.m + b.a.energy() + d.q")
        updates = {
            "whole": (f"total += B({self.leaf()}, {self.number()}, 0.5)",),
            "members": (f"total.w += {self.number()}", f"total.a.m -= {self.number(0)}"),
            "vector": (f"total.a.p += {self.vector()}", f"total.a.k += {self.whole()}"),
        }
        lines += ["        " + update for update in updates[self.total]]
        lines.append("    return out, total.a.m, total.w, total.a.p[0], total.a.p[1], total.a.k")
        return TYPES + "\n".join([*lines, ""])


def check(random: Random) -> None:
    """Draws a kernel and runs it both ways, with gradients; AssertionError where they differ."""
    draw = Draw(random)
    drawn = draw.text()
    plain = function(drawn)
    kernel = weft.kernel(debug=random.random() < 0.25)(plain)
    n = random.choice((1, 2, 5))
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    values = [torch.randn(n, dtype=torch.float64, generator=generator) for _ in range(5)]
    m = torch.randint(0, 5, (n,), generator=generator)
    found: list[list[Any]] = []
    for call in (kernel.interpret if draw.second else plain, kernel):
        leaves = [shaped(random, v).requires_grad_(not draw.fields) for v in values[:2]]
        more = []
        if draw.fields:
            more.append(plain.__globals__["A"].field(shape=n))
            more[0].from_torch({"p": torch.stack(values[2:4], 1), "m": values[4], "k": m})
        made = [torch.as_tensor(v) for v in call(*leaves, m, n, 0.75, *more)]
        made += [v for field in more for v in field.to_torch().values()]
        total = sum(((k + 1) * o.double()).sum() for k, o in enumerate(made))
        grads = [torch.zeros(n, dtype=torch.float64)] * 2
        if total.requires_grad:
            given = torch.autograd.grad(total, leaves, allow_unused=True)
            grads = [b if a is None else a for a, b in zip(given, grads, strict=True)]
        found.append([*(o.detach().double() for o in made), *grads])
    for wanted, made in zip(*found, strict=True):
        largest = wanted.where(wanted.isfinite(), 0).abs().max()
        close = (wanted - made).abs() <= 1e-5 * (1 + largest)  # b.r has 24 bits
        close |= ~wanted.isfinite()
        assert close.all(), f"{drawn}\n{wanted}\n{made}\n{values}, {m}"
