"""Random kernels of lists that change places: names that are given each other's lists, copies and
new ones, in loops, branches and functions, of fixed sizes, growing, of tuples and of lists. Their
results against the Python, run on numbers."""

from __future__ import annotations

from random import Random

import torch

from tests.fuzz.points import Text, beside_the_python

FUNCTIONS = """
def shifted(p, v):
    made = [0.0] * 4
    for j in range(4):
        made[j] = p[(j + 1) % 4] * 0.5 + v
    return made


def put(p, k, v):
    p[k % 4] = v
    return p[0]


def turned(p, q, n):
    p, q = p[:], q[:]
    for j in range(n):
        p[j % 4] += q[(j + 1) % 4] * 0.25
        p, q = q, p
    return p, q


def same(p):
    return p

"""
# What an alias of a list that is changed is told, and one that is kept elsewhere.
REFUSED = ("may be one list", "something else would hold the list", "is a row of a list whose name",
           "a loop over `")  # fmt: skip


class Draw(Text):
    """The text of a kernel."""

    def fixed(self) -> str:
        return self.pick("a", "b", "c")

    def growing(self) -> str:
        return self.pick("g", "h")

    def whole(self) -> str:
        return self.pick("i", "k", "1", "2", "len(g)", *[f"j{n}" for n in range(self.loops)])

    def of(self, count: int) -> str:
        return self.at(self.whole(), count)

    def number(self) -> str:
        return self.pick(f"{self.fixed()}[{self.of(4)}]", f"sum({self.fixed()}) * 0.25", "s",
                         f"x[i] * {self.whole()}", f"sum(v * 0.5 for v in {self.growing()})",
                         f"t[{self.of(2)}][{self.of(3)}]", "0.5",
                         f"{self.fixed()}[-1] - {self.fixed()}[0]",
                         "sum(u * 0.125 + w for u, w in q)")  # fmt: skip

    def new(self) -> str:
        """A list of four."""
        one, other = self.fixed(), self.fixed()
        return self.pick(
            f"[{self.number()}] * 4", f"{one}[:]", f"list({one})", f"{one}.copy()", "[0.0] * 4",
            f"[v * 0.5 for v in {one}]", f"[{one}[1], {other}[0], {self.number()}, {one}[2]]",
            f"{one}[1:] + {other}[:1]", f"shifted({one}, {self.number()})", f"{one}[::-1]",
        )  # fmt: skip

    def moved(self) -> str:
        a, b = self.random.sample(("a", "b", "c"), 2)
        return self.pick(
            f"{a}, {b} = {b}, {a}", f"{a}, {b} = {b}, {self.new()}", "a, b, c = c, a, b",
            f"{a} = {b}", f"{a} = {self.new()}", f"{a} = {self.new()}", f"{a} = same({b})",
            f"{a}, {b} = turned({a}, {b}, {self.whole()} % 3)", "g, h = h, g", "g, h = h[:2], g",
            f"g = [{self.number()}]", f"g = [v for v in h if v > {self.number()}] + [s]",
            "h = g[:3]", "g = h", "t, w = w, t", "t = [[w[j][0], s, 0.5] for j in range(2)]",
            "w = t", f"q = [({self.number()}, {self.whole()})]",
            "q, r = r[:3], [(u * 0.5, w + 1) for u, w in q]", "q = r", "r = q[1:] + [(s, 1)]",
        )  # fmt: skip

    def statement(self, depth: int = 2) -> list[str]:
        match self.random.randrange(12 if depth else 9):
            case 0 | 1:
                sign = self.pick("=", "+=", "*=")
                return [f"{self.fixed()}[{self.of(4)}] {sign} {self.number()} * 0.5"]
            case 2:
                one = self.growing()
                return [self.pick(f"if len({one}) < 9: {one}.append({self.number()})",
                                  f"if len({one}) > 1: s += {one}.pop()",
                                  f"t[{self.of(2)}][{self.of(3)}] = {self.number()}",
                                  f"if len(q) < 9: q.append(({self.number()}, {self.whole()}))",
                                  f"{self.pick('t', 'w')}[k % 2][0] += s")]  # fmt: skip
            case 3:
                return [f"s = s * 0.5 + {self.number()}"]
            case 4 if depth == 2 and self.random.random() < 0.5:
                return [f"row = t[{self.of(2)}]"]
            case 4:
                return [f"s = put({self.fixed()}, {self.whole()}, {self.number()} * 0.5)"]
            case 5 | 6 | 7 | 8:
                return [self.moved()]
            case 9:
                return [f"if {self.number()} {self.pick('<', '>')} 0.1:", *self.block(depth - 1)]
            case _:
                name, self.loops = f"j{self.loops}", self.loops + 1
                body = self.block(depth - 1)
                self.loops -= 1
                return [f"for {name} in range({self.pick('i % 3', '2', 'k % 4')}):", *body]

    def block(self, depth: int) -> list[str]:
        lines = [line for _ in range(self.random.randint(1, 4)) for line in self.statement(depth)]
        return [f"    {line}" for line in lines]

    def text(self) -> str:
        head = [
            "s, k = x[i] * 0.5, i + 1", f"a = {self.pick('[0.0] * 4', '[x[i]] * 4', '[0] * 4')}",
            "b = [1.0, x[i], s, 2.0]", "c = [v * 0.5 for v in b]", "g = [x[i], s]", "h = [0.25]",
            "t = [[0.0] * 3 for _ in range(2)]", "w = [[s, 1.0, 2.0], [x[i], 0.5, -1.0]]",
            "q, r = [(s, i)], [(0.5, 2)]",
        ]  # fmt: skip
        loops = [f"for j0 in range({self.pick('3', 'i % 4', 'k')}):"]
        self.loops = 1
        body = [line for _ in range(self.random.randint(1, 3)) for line in self.block(1)]
        self.loops = 0
        body = (
            [line for _ in range(self.random.randint(0, 2)) for line in self.statement()]
            + loops
            + body
        )
        tail = [
            "for j in range(4):", "    out[i, j] = a[j] + 2 * b[j] + 4 * c[j]",
            "out[i, 4] = s + sum(v * 0.5 for v in g) + 2 * len(g)",
            "out[i, 5] = sum(v * 0.5 for v in h) + 2 * len(h)",
            "for j in range(3):", "    out[i, 6 + j] = t[0][j] + 2 * t[1][j] + 3 * w[0][j]",
            "out[i, 9] = sum(u * 0.5 + w for u, w in q) - sum(u + w for u, w in r) * 0.25",
        ]  # fmt: skip
        lines = "\n".join(f"        {line}" for line in [*head, *body, *tail])
        return f"{FUNCTIONS}def kernel(x, out):\n    for i in range(x.shape[0]):\n{lines}\n"


def check(random: Random) -> str:
    """Whether a kernel leaves the numbers that the Python leaves, or is refused."""
    out = torch.zeros(2, 5, 10, dtype=torch.float64)
    return beside_the_python(random, Draw(random).text(), out, REFUSED)
