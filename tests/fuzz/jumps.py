"""Random control flow: jumps in branches, loops and a function, conditions that are constant, and
names that only some of the ways assign. What is taken has to be what Python gives; where Python
finds a name without a value, the kernel is refused."""

from __future__ import annotations

from random import Random

import torch

import weft
from tests.fuzz.check import function
from tests.fuzz.points import Text

NAMES = ("u", "v", "w")
CONDITIONS = (
    "x[i] > 0.3", "x[i] < -0.4", "c % 2 == 0", "c > 3", "i % 3 == 1", "TRUE", "FALSE", "3 < 2",
    "not FALSE", "TRUE and x[i] > 0", "FALSE or c > 2",
)  # fmt: skip
MEANT = ("may have no value here", "is not known")


class Draw(Text):
    def text(self) -> str:
        self.emit(0, "TRUE, FALSE = True, False")
        if self.random.random() < 0.5:  # which the function's own names hide
            self.emit(0, f"{' = '.join(NAMES)} = 100.0")
        self.emit(0, "def g(x, i, c):")
        self.emit(1, "s = 0.0", *self.some())
        self.block(1, 1, function=True)
        self.emit(1, "return s + c")
        self.emit(0, "def kernel(x, out):")
        self.emit(1, "for i in range(x.shape[0]):")
        self.emit(2, "s, c = 0.0, 0", *self.some())
        self.block(2, 1)
        self.emit(2, "for q in range(4):")
        self.block(3, 2, loop=True)
        self.emit(3, "s += c")
        self.emit(2, "out[i] = s + 3 * c + g(x, i, c)")
        return "\n".join(self.lines) + "\n"

    def some(self) -> list[str]:
        return [f"{name} = 1.5" for name in NAMES if self.random.random() < 0.6]

    def block(self, indent: int, depth: int, *, loop: bool = False, function: bool = False) -> None:
        """One to three statements; behind a jump there is none."""
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.random()
            if kind < 0.35:
                value = self.pick("i", "c", "x[i] * 2", "1", "2.5")
                self.emit(indent, f"{self.pick(*NAMES)} = {value}")
            elif kind < 0.5:
                self.emit(indent, f"s += {self.pick('i', 'c', 'x[i]', '1', '2.5', *NAMES, *NAMES)}")
            elif kind < 0.85 and depth < 4:
                self.branches(indent, depth, loop, function)
            elif kind < 0.92 and loop:
                self.emit(indent, f"{self.pick(*NAMES)} = 4", self.pick("continue", "break"))
                return
            elif kind < 0.95 and function:
                self.emit(indent, f"return {self.pick('c', '1', 'i')} * 1.0")
                return
            elif kind > 0.95 and depth < 3:
                turns = self.pick("range(3)", "range(2, 0, -1)", "range(c)", "range(1, 1)",
                                  "weft.static(range(2))")  # fmt: skip
                self.emit(indent, f"for _ in {turns}:")
                self.block(indent + 1, depth + 1, loop=True, function=function)
            else:
                self.emit(indent, "c += 1")

    def branches(self, indent: int, depth: int, loop: bool, function: bool) -> None:
        words = ["if"]
        while self.random.random() < 0.4:
            words.append("elif")
        for word in words:
            self.emit(indent, f"{word} {self.pick(*CONDITIONS)}:")
            self.block(indent + 1, depth + 1, loop=loop, function=function)
        if self.random.random() < 0.6:
            self.emit(indent, "else:")
            self.block(indent + 1, depth + 1, loop=loop, function=function)
        if self.random.random() < 0.5:
            self.emit(indent, f"s += {self.pick(*NAMES)}")


def check(random: Random) -> str:
    """Draws a kernel and compares; AssertionError where it differs. Gives "agrees" or "refused"."""
    text = Draw(random).text()
    plain = function(text)
    x = torch.rand(6, dtype=torch.float64) * 2 - 1
    out = torch.zeros(2, 6, dtype=torch.float64)
    try:
        plain(x.numpy(), out[0].numpy())
        known = True
    except NameError:
        known = False
    try:
        weft.kernel(debug=random.random() < 0.3)(plain)(x, out[1])
    except weft.CompileError as error:
        if not any(each in str(error) for each in MEANT):
            raise AssertionError(f"{text}\n{error}") from error
        return "refused"
    assert known, f"{text}\nPython finds a name without a value"
    assert torch.allclose(out[0], out[1]), f"{text}\n{x}\n{out}"
    return "agrees"
