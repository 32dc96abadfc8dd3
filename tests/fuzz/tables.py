"""Random kernels of what an iteration keeps and changes: lists of lists by subscripts of run time
and by the names of their rows, objects and dicts whose members functions and methods set. Their
results against the Python."""

from __future__ import annotations

import re
from random import Random

import torch

import weft
from tests.fuzz.check import function
from tests.fuzz.points import POINT, Text

TYPES = (
    "import copy"
    + POINT
    + """
    def both(self, by):
        self.grow(by)
        self.grow(-by)
        return self.b


def put(p, v):
    p.b = p.b + v
    p.grow(v * 0.25)


def fill(t, k, v):
    t[k % 3][k % 2] -= v


def turned(d):
    d["u"] = d["v"] - d["u"]

"""
)


KEYS = (("'u'", "'v'"), ("0", "1"), ("(0, 1)", "(1, 0)"), ("True", "-3"), ("2.5", "'v'"))


class Draw(Text):
    """The text of a kernel."""

    def whole(self) -> str:
        names = ["i", "k", "m[i]", "1", "2", *[f"j{n}" for n in range(self.loops)]]
        return f"({self.pick(*names)} + {self.pick(*names)} * {self.pick(*names)})"

    def place(self) -> str:
        """An element of a table."""
        if self.random.random() < 0.2:
            return f"c[{self.of(2)}][{self.of(2)}][{self.pick('0', '1', '-1')}]"
        if self.random.random() < 0.2:
            return f"row[{self.of(4)}]"
        row = self.pick(self.of(3), self.of(3), "0", "-1")
        return f"t[{row}][{self.of(4)}]"

    def of(self, count: int) -> str:
        return self.at(self.whole(), count)

    def number(self, depth: int = 2) -> str:
        if not depth or self.random.random() < 0.3:
            return self.pick("x[i]", "0.5", "s", "p.a", "q.b", "d['u']", "d['v']", self.place(),
                             self.place(), f"{self.whole()} % 5", "sum(row)", "max(t[0])",
                             f"W[{self.of(2)}][{self.of(3)}]")  # fmt: skip
        left, right = self.number(depth - 1), self.number(depth - 1)
        return f"({left} {self.pick(*'+-*')} {right}) * 0.5"

    def statement(self, depth: int = 2) -> list[str]:
        match self.random.randrange(11 if depth else 8):
            case 0 | 1:
                return [f"{self.place()} = {self.number()}"]
            case 2:
                return [f"{self.place()} {self.pick('+=', '-=', '*=')} {self.number()}"]
            case 3:
                a, b = self.place(), self.place()
                return [f"{a}, {b} = {b}, {a}"]
            case 4 if self.random.random() < 0.5:
                return [self.pair()]
            case 4:
                call = self.pick("put(p, {})", "p.grow({})", "s = q.both({})", "p.a = {}",
                                 "q.b += {}", "fill(t, i, {})")  # fmt: skip
                return [call.format(self.number(1))]
            case 5:
                return [self.pick(f"d['u'] = {self.number()}", "turned(d)", "d['v'] += s",
                                  f"p = P({self.number(1)}, q.b)", "q = copy.copy(p)",
                                  f"p = dataclasses.replace(q, a={self.number(1)})")]  # fmt: skip
            case 6 if depth == 2:  # what a name stands for must not depend on control flow
                return [f"row = t[{self.of(3)}]"]
            case 6 | 7:
                return [f"s = s * 0.5 + {self.number()}"]
            case 8:
                body = self.block(depth - 1)
                return [f"if {self.whole()} % 3 {self.pick('<', '==')} 1:", *body]
            case 9:
                body = [
                    "        s += sum(each) * 0.1",
                    f"        each[{self.of(4)}] = s",
                ]
                return ["for each in t:", *[line[4:] for line in body]]
            case _:
                name, self.loops = f"j{self.loops}", self.loops + 1
                body = self.block(depth - 1)
                self.loops -= 1
                return [f"for {name} in range({self.whole()} % 3):", *body]

    def pair(self) -> str:
        """What is done with the list of tuples ``g``, which has three at least."""
        a, b = self.number(1), self.whole()
        return self.pick(
            f"g.append(({a}, {b}))",
            f"g.insert({b} % 3, ({a}, {b}))",
            f"g[{self.at(b, 3)}] = ({a}, {b})",
            f"s += g[{self.at(b, 3)}][0] * 0.25",
            "g[0], g[-1] = g[-1], g[0]",
            "g.sort()",
            "g.reverse()",
            "g.sort(key=lambda v: v[1])",
            "s, k = max(g)",
            "s, k = g[-1]",
            "g += g[:1]",
            "s += min(g, key=lambda v: v[0] * v[1])[0] if len(g) > 2 else 0",
            f"s = sum(u * 0.125 for u, v in g if v > {b})",
        )

    def block(self, depth: int) -> list[str]:
        lines = [line for _ in range(self.random.randint(1, 3)) for line in self.statement(depth)]
        return [f"    {line}" for line in lines]

    def text(self) -> str:
        zero = self.pick("0", "0.0", "x[i] * 0.25")
        head = [
            f"t = [[{zero}] * 4 for _ in range(3)]",
            "c = [[[0.0] * 2 for _ in range(2)], [[1.0, x[i] * 2], [i, 2.0]]]",
            "W = [[1.0, -0.5, 0.25], [2.0, 0.0, 0.5]]", "p, q = P(x[i] * 2, 1.0), P(0.5, -1.0)",
            "d = {'u': x[i] * 0.5, 'v': 1.0}", "s, k = 0.25, m[i] % 4",
            "g = [(x[i], 1), (0.5, k), (s, 2)]", "t[0][0] = 0.0",
            "c[0][0][0] = 0.0", f"row = t[{self.of(3)}]", "row[1] = 0.5",
        ]  # fmt: skip
        body = [line for _ in range(self.random.randint(4, 9)) for line in self.statement()]
        tail = [
            "for r in range(3):", "    for w in range(4):", "        out[i, r * 4 + w] = t[r][w]",
            "out[i, 12] = p.a + 2 * p.b", "out[i, 13] = q.a + 2 * q.b",
            "out[i, 14] = d['u'] + 2 * d['v'] + s",
            "if len(g) > 3:", "    g.pop()", "for u, v in g:", "    out[i, 14] += u * 0.5 + v",
            "out[i, 15] = c[0][1][0] + c[1][0][1] + c[1][1][1]",
        ]  # fmt: skip
        lines = "\n".join(f"        {line}" for line in [*head, *body, *tail])
        text = f"{TYPES}def kernel(x, m, out):\n    for i in range(x.shape[0]):\n{lines}\n"
        u, v = self.random.choice(KEYS)  # of the dict
        for own, key in (("u", u), ("v", v)):
            text = re.sub(
                f"\\[[\"']{own}[\"']\\]|(?<=[{{ ])'{own}'(?=:)",
                lambda found, key=key: f"[{key}]" if found[0][0] == "[" else key,
                text,
            )
        return text


def check(random: Random) -> None:
    """A kernel leaves the numbers that the Python leaves, run on numbers."""
    text = Draw(random).text()
    plain = function(text)
    x = torch.rand(5, dtype=torch.float64) * 2 - 1
    m = torch.randint(0, 9, (5,))
    out = torch.zeros(2, 5, 16, dtype=torch.float64)
    weft.kernel(plain).interpret(x, m, out[0])
    try:
        weft.kernel(debug=random.random() < 0.3)(plain)(x, m, out[1])
    except weft.CompileError as error:
        raise AssertionError(f"{text}\n{error}") from error
    assert torch.allclose(out[0], out[1], rtol=1e-4, atol=1e-5, equal_nan=True), (
        f"{text}\n{(out[0] - out[1]).nonzero().tolist()}"
    )
