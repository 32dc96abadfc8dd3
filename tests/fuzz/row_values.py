"""Random kernels of rows as values: with names, in tuples, gone over, beside calls that store.

Python computes a row at once; a kernel gives the same numbers, or is refused.
"""

from __future__ import annotations

from random import Random

import numpy as np
import torch

import weft
from tests.fuzz.check import function
from tests.fuzz.points import Text

REFUSED = "which is stored into before it is used"
OVER = (
    "for v in {}", "for j, v in enumerate({})", "for v, w in zip({}, {})", "for v in reversed({})",
    "for j, (v, w) in enumerate(zip({}, {}))", "for v in ({})[1:]",
)  # fmt: skip


class Draw(Text):
    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.lines = ["def put(x, i, v):", "    x[i, 0] = v", "    return 1.5",
                      "def kernel(x, y, out):", "    for i in range(x.shape[0]):"]  # fmt: skip
        self.names: list[str] = []

    def text(self) -> str:
        for _ in range(self.random.randint(2, 6)):
            self.statement(2, 0)
        if self.names:
            self.emit(2, f"out[i] = {self.names[-1]}")
        return "\n".join(self.lines) + "\n"

    def tensor(self) -> str:
        return self.pick("x", "y", "out")

    def row(self, depth: int = 0) -> str:
        kind = self.random.random()
        if depth > 1 or kind < 0.3:
            return f"{self.tensor()}[i]"
        one = self.row(depth + 1)
        if kind < 0.7:
            return f"({one} * {self.pick('0.5', 'x[i, 1]', '1.0')})"
        if kind < 0.9:
            return f"({one} + 0.5 * {self.row(depth + 1)})"
        return f"({one} - {self.row(depth + 1)}.mean())"

    def number(self) -> str:
        of = self.pick(self.row(), *self.names)
        return self.pick("0.5", "y[i, 2]", "out[i, 1]", f"{of}.sum()", f"{of}.max()", f"{of}[1]")

    def element(self) -> str:
        return f"{self.tensor()}[i, {self.random.randrange(3)}]"

    def statement(self, indent: int, depth: int) -> None:
        kind = self.random.randrange(12 if depth < 2 else 8)
        if kind == 0:
            self.emit(indent, f"{self.tensor()}[i] = {self.row()}")
        elif kind == 1:
            self.emit(indent, f"{self.tensor()}[i] -= 0.5 * {self.pick(self.row(), self.number())}")
        elif kind == 2:
            self.emit(indent, f"{self.element()} {self.pick('=', '+=')} {self.number()}")
        elif kind in (3, 4):
            self.names.append(f"r{len(self.names)}")
            self.emit(indent, f"{self.names[-1]} = {self.row()}")
        elif kind == 5:
            two = self.pick("y", "out")
            self.emit(indent, f"x[i], {two}[i] = {self.row()}, {self.row()}")
        elif kind == 6:
            self.emit(indent, f"out[i, 1], y[i] = {self.number()}, {self.row()}")
        elif kind == 7:
            last = self.pick("", f" + put({self.tensor()}, i, 0.25)")
            self.emit(indent, f"{self.tensor()}[i] = {self.pick(self.row(), *self.names)}{last}")
        else:
            self.loop(indent, depth, kind)

    def loop(self, indent: int, depth: int, kind: int) -> None:
        known = len(self.names)
        if kind == 8:
            self.emit(indent, "for q in range(2):")
            self.statement(indent + 1, depth + 1)
        else:
            over = self.pick(*OVER)
            self.emit(indent, over.format(self.row(), self.row()) + ":")
            place = f"{self.tensor()}[i, j]" if " j" in over else "out[i, 2]"
            self.emit(indent + 1, f"{self.pick(place, self.element())} "
                                  f"{self.pick('=', '+=')} v * 0.25")  # fmt: skip
            if self.random.random() < 0.2:
                self.emit(indent + 1, f"if v {self.pick('<', '>')} 0.5:")
                self.emit(indent + 2, self.pick("break", "continue"))
        if self.random.random() < 0.5:
            self.statement(indent + 1, depth + 1)
        del self.names[known:]


def check(random: Random) -> str:
    """Draws a kernel and compares; AssertionError where it differs. Gives "agrees" or "refused"."""
    text = Draw(random).text()
    plain = function(text)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    given = [torch.rand(4, 3, dtype=torch.float64, generator=generator) for _ in range(3)]
    expected = [t.clone() for t in given]
    with np.errstate(all="ignore"):
        plain(*(t.numpy() for t in expected))
    try:
        weft.kernel(debug=random.random() < 0.3)(plain)(*given)
    except weft.CompileError as error:
        if REFUSED not in str(error):
            raise AssertionError(f"{text}\n{error}") from error
        return "refused"
    for one, other in zip(expected, given, strict=True):
        assert torch.allclose(one, other, 1e-9, 1e-9, equal_nan=True), f"{text}\n{one}\n{other}"
    return "agrees"
