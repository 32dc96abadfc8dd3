"""Random expressions whose calls, `:=` and comparisons change what stands beside them: lists,
vectors, objects and names are read and stored in the order of Python, each as often as there, or
the kernel is refused."""

from __future__ import annotations

from random import Random

import torch

from tests.fuzz.points import Text, beside_the_python

HELPERS = """
class Own:
    def __init__(self, p):
        self.p = p
        self.n = 0.0

    def inc(self, v):
        self.p = self.p * 0.5 + v
        self.n += 1
        return self.p

    def __getitem__(self, k):
        return self.p if k == 0 else self.n

    def __setitem__(self, k, v):
        if k == 0:
            self.p = v
        else:
            self.n = v


def put(a, j, v):
    a[j] = 0.5 * a[j] + v
    return v * 0.5


def twice(v, d=1.0, *, e=0.5):
    return v * d + e


"""
MEANT = ("where only part of a statement may run", "may have no value here",
         "that this statement has read before", "is full: there is room for")  # fmt: skip


class Draw(Text):
    def text(self) -> str:
        self.emit(0, *HELPERS.splitlines(), "def kernel(x, out):")
        self.emit(1, "for i in range(x.shape[0]):")
        self.emit(2, "a, b, k, s = [x[i], 2.0, 3.0], [1.0, 2.0], 0, 0.5",
                  "t = [[1.0, 2.0], [3.0, 4.0]]", "v = weft.Vector([1.0, x[i] * 2, 3.0])",
                  "q = Own(x[i] + 1)")  # fmt: skip
        self.emit(2, "def own(j, w, d=a[0]):")
        self.emit(3, "a[j] = w", "t[j % 2][0] += w", "return d - w")
        self.emit(2, "def more(w):")
        self.emit(3, "b.append(w)", "return w + len(b)")
        for _ in range(self.random.randint(2, 5)):
            self.statement(2)
        self.emit(2, "for j, w in enumerate(a + b):")
        self.emit(3, "s = 0.7 * s + (j + 1) * w")
        self.emit(2, "out[i] = s + k + v[0] + 3 * v[1] + 7 * v[2] + q.p + 5 * q.n")
        self.emit(2, "out[i] += t[0][0] + 3 * t[0][1] + 7 * t[1][0] + 11 * t[1][1]")
        return "\n".join(self.lines) + "\n"

    def place(self, most: int = 3) -> str:
        """A subscript below ``most``, 2 or 3."""
        if most == 2:
            return self.pick("0", "1", "k % 2", "(k := (k + 1) % 3) % 2", "int(own(1, 2.0) > 0)")
        return self.pick("0", "1", "2", "k", "-1", "(k := (k + 1) % 3)", "(k := (k + 2) % 3)",
                         "int(more(1.0)) % 3", "int(put(a, 0, 3.0))")  # fmt: skip

    def element(self) -> str:
        return self.pick(f"a[{self.place()}]", f"v[{self.place()}]", f"q[{self.place(2)}]",
                         f"t[{self.place(2)}][{self.place(2)}]")  # fmt: skip

    def value(self, depth: int = 2) -> str:
        if not depth or self.random.random() < 0.15:
            return self.pick("x[i]", "s", "1.5", "q.p", "k", "len(b)", "b[-1]", self.element())
        e, f = (self.value(depth - 1) for _ in range(2))
        match self.random.randrange(13):
            case 0 | 1:
                return f"({e} {self.pick(*'+-')} {f})"
            case 2:
                return f"own({self.place()}, {e})"
            case 3:
                return f"put({self.pick('a', f't[{self.place(2)}]')}, {self.place(2)}, {e})"
            case 4:
                return self.pick(f"more({e})", f"(s := {e})", f"q.inc({e})")
            case 5:
                return f"({e} if {self.condition(depth - 1)} else {f})"
            case 6:
                return f"twice({e}, e={f})"
            case 7:
                return f"(lambda w, d={e}: w - d)({f})"
            case 8:
                words = self.pick("max({}, {})", "min({}, {})", "sum([{}, {}])")
                return words.format(e, f)
            case 9:
                each = self.pick("w * 0.5", "more(w)", "put(a, 1, w)", "q.inc(w)", "w * q.inc(q.p)",
                                 "sum(q.inc(u) for u in (w, 0.5))")  # fmt: skip
                over = self.pick(f"({_unnamed(e)}, {_unnamed(f)})", "range(2)", "range(len(b))")
                words = self.pick(
                    "sum({})", "max({})", "min({})", "sum([{}])", "sorted([{}])[0]", "[*{}][-1]"
                )
                if words.startswith("[*"):
                    return f"[{each} for w in {over}][-1]"
                if self.random.random() < 0.4:
                    best, test = self.pick("max", "min"), self.pick("", "", " if w < s")
                    key, k = self.pick("-w", "abs(w - 1)", "more(w)"), self.pick("0", "1")
                    some = self.pick("", " if w < 2")
                    return self.pick(
                        f"{best}(({each}, w) for w in {over})[{k}]",
                        f"{best}((w - s, {each}) for w in range(3){some})[{k}]",
                        f"{best}(({each} for w in {over}), key=lambda w: {key})",
                        f"sorted(({each}, w) for w in {over})[0][{k}]",
                        f"{best}(({each} for w in {over}{test}), key=lambda w: {key}, default=s)",
                    )
                return words.format(f"{each} for w in {over}")
            case 10:
                each = self.pick(
                    "(lambda u, w=w: u - w)", "(lambda u, d=0.5 * w, *, w=w: u * d - w)"
                )
                return f"[{each} for w in ({_unnamed(e)}, 2.0)][{self.pick('0', '1')}]({f})"
            case 11:
                key = self.pick("-w", "more(w)", "abs(w - 1)")
                return f"{self.pick('max', 'min')}([{e}, {f}, 1.0], key=lambda w: {key})"
            case _:
                return f"1.0 * ({self.condition(depth - 1)})"

    def condition(self, depth: int) -> str:
        e, f, g = (self.value(depth) for _ in range(3))
        compare = self.pick("<", ">", "<=", "!=")
        match self.random.randrange(5):
            case 0 | 1:
                return f"{e} {compare} {f} {self.pick('<', '>', '==')} {g}"
            case 2:
                return f"{e} {compare} 2.0 {self.pick('and', 'or')} {f} > {g}"
            case 3:
                each = self.pick("more(w)", "q.inc(w)")
                return f"{self.pick('any', 'all')}({each} < {e} for w in ({_unnamed(f)}, 1.0))"
            case _:
                return f"{e} {compare} {f}"

    def statement(self, indent: int, depth: int = 1) -> None:
        kind = self.random.random()
        if kind < 0.45:
            symbol = self.pick("+", "-", "*", "+", "-")
            self.emit(indent, f"{self.pick(self.element(), 'q.p', 's')} {symbol}= {self.value()}")
        elif kind < 0.6:
            self.emit(indent, f"{self.element()} = {self.value()}")
        elif kind < 0.7:
            self.emit(
                indent, f"{self.element()}, {self.element()} = {self.value()}, {self.value(1)}"
            )
        elif kind < 0.75:
            self.emit(indent, f"s = {self.element()} = {self.value()}")
        elif kind < 0.8:
            self.emit(indent, f"b += [{self.value(1)}, {self.value(1)}]")
        elif depth and kind < 0.87:
            self.emit(indent, f"if {self.condition(1)}:")
            self.statement(indent + 1, depth - 1)
        elif depth and kind < 0.92:
            more, each = self.condition(1), self.pick("q.inc(s)", "more(s)", self.value(1))
            self.emit(indent, "turn = 0")
            test = self.pick(f"turn < 3 and ({more})", f"({each}) < 2.0 and turn < 2",
                             f"turn < 2 and (turn == 0 or {more})")  # fmt: skip
            self.emit(indent, f"while {test}:")
            self.emit(indent + 1, "turn += 1")
            if self.random.random() < 0.4:
                self.emit(indent + 1, f"if {self.condition(1)}:")
                self.emit(indent + 2, self.pick("continue", "break"))
            self.statement(indent + 1, depth - 1)
        elif depth:
            over = self.pick(f"({self.value(1)}, {self.value(1)})", "list(b)", "sorted(b)",
                             "range(len(b))", "b + [s, 1.0]", "a", "enumerate(a)")  # fmt: skip
            self.emit(indent, f"for {'_, ' * over.startswith('enum')}w in {over}:")
            self.emit(indent + 1, f"s = 0.5 * s + w * {self.value(1)}")
        else:
            self.emit(indent, f"s = {self.value()}")


def _unnamed(text: str) -> str:
    """What a comprehension goes over may not have `:=` in it."""
    return "1.5" if ":=" in text else text


def check(random: Random) -> str:
    """Draws a kernel and compares; AssertionError where it differs. Gives "agrees" or "refused"."""
    out = torch.full((2, 5), torch.nan, dtype=torch.float64)
    return beside_the_python(random, Draw(random).text(), out, MEANT)
