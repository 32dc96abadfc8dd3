"""Random kernels of small integers: views of every form, control flow with several exits.

Their arguments are transposed, have gaps, steps, windows that overlap or a stride of 0, or no
element; some are bools. What is written is a view that the host part makes. Loops are left in
several places, functions return early and have defaults, names are assigned in conditions.
Integers wrap as torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.check import function

DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
HELPERS = """
def leaves(v, most=5, *, by=3):
    if v < 0:
        return -1
    for q in range(most):
        if (v + q) % by == 0:
            return q
        while v > 40:
            v //= 2
            if v % 7 == 1:
                return v + q
    return most


def halved(v, n, odd=True):
    k = 0
    while True:
        if v <= n:
            break
        if v % 2 == 1 and odd:
            v -= 3
            k += 2
            continue
        v //= 2
        k += 1
        if k > 9:
            return -k
    else:
        k = 100
    return k + v


"""
# Views of a tensor t of two dimensions, none of which is empty where t is not.
VIEWS = ("t", "t.t()", "t[:, ::2]", "t[-1:]", "t[::2].t()", "t[:1].t()", "t[:, -1:]",
         "t[None, :, 0]", "t.flatten()[None]")  # fmt: skip
WINDOWS = ("t[:1].expand(3, -1)", "t[0, :1].expand(2, 4)", "t.flatten().unfold(0, 2, 1)",
           "t.as_strided((2, 3), (0, 0))", "t[:, :1].expand(-1, 3).t()")  # fmt: skip


class Program:
    def __init__(self, random: Random) -> None:
        self.random, self.names = random, ["i", "j", "n", "c", "d"]

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def element(self) -> str:
        row = self.pick("i", "j", "i + 1", "c", "i // 2", "3 - j")
        column = self.pick("j", "i", "2 * j + 1", "d", "-1", "i - j")
        tensor = self.pick("x", "y", "y")
        column = column if column == "-1" else f"({column}) % {tensor}.shape[1]"
        return f"{tensor}[({row}) % {tensor}.shape[0], {column}]"

    def whole(self, depth: int = 2) -> str:
        """A whole number without a dtype, as Python has them."""
        if not depth or self.random.random() < 0.3:
            return self.pick(*self.names, "7", f"int({self.element()})")
        a, b = self.whole(depth - 1), self.whole(depth - 1)
        match self.random.randrange(9):
            case 0 | 1:
                return f"({a} {self.pick('+', '-')} {b}) % 97"
            case 2:
                return f"({a} {self.pick('//', '%')} {self.pick('3', '-4', '5')})"
            case 3:
                return f"(({a}) >> {self.pick('1', '2')}) {self.pick('&', '|', '^')} {b}"
            case 4:
                return f"(({a}) % 8 << {self.pick('1', '3')})"
            case 5:
                return f"leaves({a}{self.pick('', ', 2', ', by=4', ', most=3', ', 1, by=2')})"
            case 6:
                return f"halved(({a}) % 61, {self.pick('1', 'n')}{self.pick('', ', odd=False')})"
            case 7:
                return f"({a} if {self.condition(depth - 1)} else {b})"
            case _:
                return self.pick(f"divmod({a}, 5)[1]", f"max({a}, {b})", f"min({a}, 9, {b})",
                                 f"sum(v * v for v in (({a}) % 97, ({b}) % 61)) % 31")  # fmt: skip

    def typed(self, depth: int = 2) -> str:
        """A number of the dtype of elements, which wraps."""
        if not depth or self.random.random() < 0.25:
            return self.element()
        a, b = self.typed(depth - 1), self.typed(depth - 1)
        match self.random.randrange(6):
            case 0 | 1:
                return f"({a} {self.pick('+', '-', '*')} {self.pick(b, b, '3')})"
            case 2:
                return f"({a} {self.pick('//', '%')} ({b} | 1))"
            case 3:
                return f"({a} {self.pick('&', '|', '^')} {b})"
            case 4:
                return self.pick(f"(~{a})", f"(-{a})", f"({a} << 1)", f"({a} >> 2)")
            case _:
                return f"({a} if {self.condition(1)} else {b})"

    def condition(self, depth: int = 1) -> str:
        if depth and self.random.random() < 0.3:
            word = self.pick("and", "or", "and not")
            return f"({self.condition(0)} {word} {self.condition(0)})"
        compare = self.pick("<", "<=", ">", "!=", "==")
        return self.pick(
            "b[i % b.shape[0]]", f"not b[({self.whole(0)}) % b.shape[0]]",
            f"{self.whole(1)} {compare} {self.whole(1)}",
            f"-2 < {self.whole(1)} <= {self.pick('d', '6')}",
            f"{self.element()} {compare} {self.pick('3', '9')}",
        )  # fmt: skip

    def statements(self, space: str, depth: int, *, leave: bool = False) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.randrange(10 if depth else 5)
            if kind < 3:
                lines.append(f"{space}{self.pick('c', 'd')} = {self.whole()}")
            elif kind == 3:
                lines.append(f"{space}c, d = d, {self.whole(1)}")
            elif kind == 4:
                lines.append(f"{space}out[i, j] {self.pick('=', '+=', '-=')} {self.typed()}")
            elif kind < 7:
                lines.append(f"{space}if {self.condition()}:")
                lines += self.statements(space + "    ", depth - 1, leave=leave)
                if self.random.random() < 0.4:
                    lines.append(f"{space}else:")
                    lines += self.statements(space + "    ", depth - 1, leave=leave)
            elif kind == 7:
                lines.append(f"{space}if (v := {self.whole(1)}) > 3 or v == -1:")
                lines.append(f"{space}    d = v - d")
            else:
                over = self.pick("range(4)", "range(n, -2, -1)", "range(c % 5)", "range(-3, 6, 4)",
                                 "weft.static(range(2, -1, -1))", "reversed(range(3))")  # fmt: skip
                lines.append(f"{space}for q in {over}:")
                lines += self.statements(space + "    ", depth - 1, leave=True)
                if "static" not in over and self.random.random() < 0.4:
                    lines += [f"{space}else:", f"{space}    c = (c + 5) % 97"]
            if leave and self.random.random() < 0.3:
                lines += [f"{space}if {self.condition()}:",
                          f"{space}    {self.pick('break', 'continue')}"]  # fmt: skip
        return lines

    def text(self) -> str:
        less = self.pick("", "", "[1:]", ".t()", "[:, 1:]")
        lines = ["def kernel(x, y, b, t, n: int):", f"    out = {self.pick(*VIEWS[:7])}",
                 f"    y = y{less}", "    s = 0"]  # fmt: skip
        head = self.pick("out", "weft.ndrange(out.shape[0], out.shape[1])",
                         "weft.ndrange((1, out.shape[0]), (0, out.shape[1]))")  # fmt: skip
        lines += [f"    for i, j in {head}:", f"        c, d = {self.pick('i', '0', '-j')}, n"]
        lines += self.statements("        ", 2)
        lines.append(f"        out[i, j] {self.pick('=', '+=')} {self.typed()}")
        lines.append(f"        s += {self.whole(1)} % 1009")
        return HELPERS + "\n".join([*lines, "    return s", ""])


Call = Callable[[Any, list[Any]], Any]


def check(random: Random, call: Call = lambda kernel, given: kernel(*given)) -> None:
    """Draws a kernel and runs it both ways; AssertionError where they differ."""
    drawn = Program(random).text()
    plain = function(drawn)
    dtype, n = random.choice(DTYPES), random.randint(0, 4)
    info = torch.iinfo(dtype)

    def tensor(rows: int, columns: int) -> torch.Tensor:
        few = (0, 1, 2, 5, info.max, info.min, info.max // 2, random.randint(info.min, info.max))
        few = few if dtype is not torch.int64 else (0, 1, 2, 5, -7, 1 << 40, -(1 << 33), 99)
        return torch.tensor([[random.choice(few) for _ in range(columns)] for _ in range(rows)],
                            dtype=dtype).reshape(rows, columns)  # fmt: skip

    def drawn_view() -> torch.Tensor:
        t = tensor(random.choice((2, 3, 5)), random.choice((2, 3, 4)))
        return eval(random.choice((*VIEWS[:5], *WINDOWS)), {"t": t})

    x, y = drawn_view(), drawn_view()
    while min(y.shape) < 2:  # the kernel may leave out a row or a column
        y = drawn_view()
    flags = torch.tensor([random.random() < 0.5 for _ in range(random.choice((1, 3, 8)))])
    t = tensor(random.choice((0, 1, 3, 7)), random.choice((1, 2, 5)))
    mine, theirs = t.clone(), t.clone()
    wanted = weft.kernel(plain).interpret(x, y, flags, theirs, n)
    found = call(weft.kernel(plain), [x, y, flags, mine, n])
    for a, b in zip([theirs, wanted], [mine, found], strict=True):
        same = torch.equal(torch.as_tensor(a).long(), torch.as_tensor(b).cpu().long())
        assert same, f"{drawn}\n{a}\n{b}\n{x}, {y}, {flags}, {t}, {n}, {dtype}"
