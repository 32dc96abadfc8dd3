"""Random kernels whose names, lists, tuples and returned values are ints of Python on one path and
elements of a narrow integer dtype on another. Nothing is computed with them: the Python itself, on
ints without a dtype, is the oracle.
"""

from __future__ import annotations

from random import Random

import numpy as np
import torch

import weft
from tests.fuzz.check import function
from tests.fuzz.points import Text

DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
# What is not always computed at compile time, and beyond all of these dtypes but the last.
FAR = (1000, -1, -1000, 70000, 1 << 40, -(1 << 40), 255, 3)

HELPERS = """
import dataclasses


@dataclasses.dataclass
class Held:
    v: int


def either(v, w, k):
    if v > k:
        return v
    return w


def first(values, k):
    for v in values:
        if v > k:
            return v
    return k


"""


class Draw(Text):
    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.lines = ["def kernel(x, y, n: int, out):", "    for i in range(x.shape[0]):",
                      "        a, b = i, n", "        c = x[i]", "        d = 1",
                      "        p = (n, x[i])", "        q = [n, n, i]", "        g = [x[i]]",
                      "        h = Held(n)"]  # fmt: skip
        self.made = 0

    def text(self) -> str:
        for _ in range(self.random.randint(2, 6)):
            self.statement(2, 0)
        names = ["a", "b", "c", "d", "p[0]", "p[1]", "q[0]", "q[1]", "g[-1]", "h.v", "len(g)"]
        for k, name in enumerate(names):
            self.emit(2, f"out[i, {k}] = {name}")
        return HELPERS + "\n".join(self.lines) + "\n"

    def value(self, depth: int = 0) -> str:
        kind = self.random.random()
        if kind < 0.55 or depth > 1:
            return self.pick("i", "n", "x[i]", "y[i]", "x[j % x.shape[0]]" if self.loops else "7",
                             "a", "b", "c", "d", "p[0]", "p[1]", "q[i % 3]", "g[0]", "h.v", "100",
                             "0", "n + 1", "i - 1", "x.shape[0] * 100")  # fmt: skip
        one, two = self.value(depth + 1), self.value(depth + 1)
        if kind < 0.75:
            return f"({one} if {self.condition()} else {two})"
        return self.pick(f"either({one}, {two}, {self.pick('0', 'n', 'i')})",
                         f"first(({one}, {two}), {self.value(2)})", f"max({one}, {two})",
                         f"min({one}, {two})", f"sorted(({one}, {two}))[{self.pick('0', '-1')}]",
                         f"({one}, {two}, n)[i % 3]",
                         f"next((v for v in ({one}, {two}) if v < 50), n)")  # fmt: skip

    def condition(self) -> str:
        return (f"{self.pick('x[i]', 'y[i]', 'a', 'c', 'h.v')} {self.pick('<', '>', '==', '>=')} "
                f"{self.pick('n', 'i', 'y[i]', '50', 'b', 'd')}")  # fmt: skip

    def statement(self, indent: int, depth: int) -> None:
        kind = self.random.random()
        if depth < 2 and kind < 0.3:
            self.emit(indent, f"if {self.condition()}:")
            self.statement(indent + 1, depth + 1)
            if self.random.random() < 0.4:
                self.emit(indent, "else:")
                self.statement(indent + 1, depth + 1)
        elif depth < 2 and kind < 0.45:
            self.emit(indent, "for j in range(3):")
            self.loops += 1
            self.statement(indent + 1, depth + 1)
            if self.random.random() < 0.4:
                self.emit(indent + 1, f"if {self.condition()}:", "    break")
            self.loops -= 1
        else:
            self.emit(indent, self.pick(
                f"a = {self.value()}", f"b = {self.value()}", f"c = {self.value()}",
                f"d = {self.value()}", f"a, b = {self.value()}, {self.value()}", "a, c = c, a",
                f"p = ({self.value()}, {self.value()})", f"q[{self.pick('0', '1', 'i % 3')}] = "
                f"{self.value()}", f"g.append({self.value()})", f"h.v = {self.value()}",
                f"h = Held({self.value()})", f"g[0] = {self.value()}",
            ))  # fmt: skip


def check(random: Random) -> str:
    """Draws a kernel and compares; AssertionError where it differs. Gives "agrees" or "refused"."""
    text = Draw(random).text()
    plain, dtype, n = function(text), random.choice(DTYPES), random.choice(FAR)
    ends, generator = torch.iinfo(dtype), torch.Generator().manual_seed(random.randrange(1 << 30))
    x, y = (torch.randint(-4, 101, (3,), generator=generator).clamp(min=ends.min).to(dtype)
            for _ in range(2))  # fmt: skip
    expected, out = np.zeros((3, 11), dtype=object), torch.zeros(3, 11, dtype=torch.int64)
    plain(*(np.array(t.tolist(), dtype=object) for t in (x, y)), n, expected)
    try:
        weft.kernel(debug=random.random() < 0.3)(plain)(x, y, n, out)
    except weft.CompileError as error:
        if "does not fit in" in str(error):  # a literal, beside an element
            return "refused"
        raise AssertionError(f"{text}\n{error}") from error
    found = out.tolist()
    assert found == expected.tolist(), f"{text}\n{x}\n{y}\n{n}\n{expected.tolist()}\n{found}"
    return "agrees"
