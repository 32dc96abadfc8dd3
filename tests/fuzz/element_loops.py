"""Random ``weft.serial`` loops over elements: compiled or not, they mean what the Python means.

Subscripts may be out of range or negative, names have several types, divisors may be 0, tensors
share memory: then Python has to run the loop, and its errors are Python's.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.check import function

HEAD = """
def kernel(x, y, n: int, w):
    s, a, b = 0.0, 1.0, 0
    c, k, j, v, done, at = 0, 1, 0, 0.5, False, -1
"""
INDICES = ("t", "t", "t", "t - 1", "t + 1", "n - 1 - t", "(t + c) % n", "c", "k", "0", "-1", "j",
           "t // 2", "(t * 3) % n", "abs(t - 2)", "min(t, 3)", "max(c, 0)", "at")  # fmt: skip
RANGES = ("n", "1, n", "n - 1, -1, -1", "0, n, 2", "n - 1", "2, n - 1", "n + 1", "n - 2, 0, -2")
INNER = ("t", "t + 1", "n", "2", "c", "1, n", "n - 1, -1, -1", "t, n")


class Program:
    def __init__(self, random: Random) -> None:
        self.random, self.pick = random, random.choice

    def number(self, depth: int = 0) -> str:
        kind = self.random.random()
        if depth > 2 or kind < 0.2:
            return self.pick(("s", "a", "b", "0.5", "2", "-1.5", "w", "PI", "t", "c", "v"))
        if kind < 0.45:
            return f"{self.pick('xy')}[{self.pick(INDICES)}]"
        one, other = self.number(depth + 1), self.number(depth + 1)
        if kind < 0.8:
            return f"({one} {self.pick('+-**+/%')} {other})"
        if kind < 0.86:
            return f"torch.{self.pick(('tanh', 'sigmoid', 'sin', 'abs'))}({one})"
        if kind < 0.9:
            return f"({one} if {self.condition()} else {other})"
        if kind < 0.95:
            return f"{self.pick(('max', 'min'))}({one}, {other})"
        return f"torch.where({self.condition()}, {one}, {other})"

    def integer(self, depth: int = 0) -> str:
        if depth > 1 or self.random.random() < 0.4:
            return self.pick(("t", "c", "k", "1", "2", "n", "3", "len(x)", "y.shape[0]"))
        op = self.pick(("+", "-", "*", "//", "%", "**", "&", "|"))
        left, right = self.integer(depth + 1), self.integer(depth + 1)
        return f"({left}) % 9 ** (({right}) % 4)" if op == "**" else f"{left} {op} {right}"

    def condition(self, depth: int = 0) -> str:
        kind, op = self.random.random(), self.pick(("<", ">", "<=", ">=", "==", "!="))
        if kind < 0.4:
            return f"{self.number(2)} {op} {self.number(2)}"
        if kind < 0.75 or depth:
            return self.pick((f"{self.integer(1)} {op} {self.integer(1)}", "done", "0 <= c < n"))
        word = self.pick(("and", "or", "and not"))
        return f"({self.condition(1)}) {word} ({self.condition(1)})"

    def statement(self, indent: int) -> list[str]:
        space, kind, pick = "    " * indent, self.random.random(), self.pick
        if kind < 0.25:
            place = f"{pick('xy')}[{pick(INDICES)}]"
            return [f"{space}{place} {pick(('=', '=', '+=', '-=', '*='))} {self.number()}"]
        if kind < 0.5:
            return [f"{space}{pick('sab')} {pick(('=', '=', '+=', '*='))} {self.number()}"]
        if kind < 0.58:
            value = self.integer()  # numbers that are squared again and again keep Python for hours
            value = f"({value}) % 1000003" if "*" in value else value
            return [f"{space}{pick('ck')} {pick(('=', '+=', '-='))} {value}"]
        if kind < 0.65:
            return [f"{space}{pick(('v = ', 'a, b = s, '))}{self.number()}"]
        if kind < 0.69:
            return [f"{space}{pick(('done = True', f'done = {self.condition()}', 'at = t'))}"]
        if kind < 0.85 and indent < 5:
            otherwise = [f"{space}else:", *self.body(indent + 1)]
            made = [f"{space}if {self.condition()}:", *self.body(indent + 1)]
            return made + otherwise * (self.random.random() < 0.4)
        if kind < 0.92 and indent < 4:
            head = f"{space}for {pick('ju')} in weft.serial(range({pick(INNER)})):"
            return [head, *self.body(indent + 1)]
        if kind < 0.97:
            return [f"{space}{pick(('break', 'continue'))}"]
        return [f"{space}return {pick(('s', 't', 'a, b', 'c, s', 'done', 'n', 's * 2', 'x'))}"]

    def body(self, indent: int) -> list[str]:
        return [
            s for _ in range(self.random.randint(1, 3)) for s in self.statement(indent)
        ]  # fmt: skip

    def text(self) -> str:
        start = "    s = x[0] * 1\n" * (self.random.random() < 0.3)
        loop = f"    for t in weft.serial(range({self.pick(RANGES)})):"
        names = ("s", "a", "b", "c", "k", "done", "at", "j", "v")
        kept = self.random.sample(names, self.random.randint(1, 4))
        return "\n".join([HEAD + start + loop, *self.body(2), f"    return {', '.join(kept)}", ""])


def check(random: Random, device: str = "cpu") -> None:
    """``device``: where the undecorated Python runs. (On GPUs torch has no error for an integer
    modulo 0, and gives another one for a number that is none.)"""
    text = Program(random).text()
    python = function(text)
    kernel = weft.kernel(strict_math=True)(python)
    for dtype in (torch.float32, torch.float64, torch.int64):
        for n in (1, 2, 5):
            x, y = ((torch.randn(size) * 2).to(dtype) for size in (n + 1, n))
            shared, w = random.random() < 0.2, random.choice([2, 0.5, 0, torch.tensor(0.5)])
            found = _outcome(kernel, x, y, n, w, shared)
            there = w.to(device) if isinstance(w, torch.Tensor) else w
            expected = _outcome(python, x.to(device), y.to(device), n, there, shared)
            try:
                _same(found, expected)
            except AssertionError as error:
                error.add_note(f"{text}\n{dtype}, {n=}, {w=}, {shared=}: {found}, not {expected}")
                raise


def _outcome(f: Any, x: Any, y: Any, n: int, w: Any, shared: bool) -> tuple[Any, ...]:
    """What a call gives, or the class of what it raises, and the tensors after it."""
    x, y, w = copy.deepcopy((x, y, w))
    y = x[1:] if shared else y
    try:
        return f(x, y, n, w), x, y, w
    except Exception as error:
        return type(error), x, y, w


def _same(found: Any, expected: Any) -> None:
    """A name that elements are added to is a tensor, also where no turn has added any."""
    if isinstance(expected, tuple):
        for a, b in zip(found, expected, strict=True):
            _same(a, b)
    elif isinstance(expected, torch.Tensor) or isinstance(found, torch.Tensor):
        assert not isinstance(found, type)
        ours, theirs = torch.as_tensor(found), torch.as_tensor(expected)
        assert not isinstance(expected, torch.Tensor) or ours.dtype == theirs.dtype
        torch.testing.assert_close(
            ours.double(), theirs.double().cpu(), rtol=1e-4, atol=1e-5, equal_nan=True
        )
    else:
        assert type(found) is type(expected)
        assert found == expected or found != found
