"""Random kernels whose serial loop reads what neighbouring iterations read alike, as Python source.

An iteration has a local array, which every turn of the loop updates from rows that depend on the
turn alone, from elements of its own, and from what it carries: state space models, recurrences of
matrices and vectors.
"""

from __future__ import annotations

from random import Random

from tests.fuzz.generate import FLOAT_DTYPES, INT_DTYPES, Kernel
from tests.fuzz.rows import Rows

SPANS = ("{c}", "{c}", "{c}", "{c}", "1, {c}", "n % 3, {c}", "min(n, {c})", "{c} - 1, -1, -1",
         "int(abs(m[0, 0])) % ({c} + 1)", "i % 2, {c}", "0, {c}, 2")  # fmt: skip


class Staged(Rows):
    """``size``: elements of the local array."""

    def alike(self, j: str) -> str:
        """An element that neighbours read too, in turn t, at place ``j`` of its row."""
        name = self.pick("x", "x", "y", "m")
        at = self.pick(f"({j}) % x.shape[0], t", f"t % x.shape[0], ({j}) % x.shape[1]", "0, t")
        text = f"{name}[{at}]"
        if self.dtypes[name] in ("f16", "bf16"):
            text = f"weft.f32({text})"
        return f"({text} * 1.0)" if self.dtypes[name] in INT_DTYPES else text

    def value(self, j: str, depth: int = 0) -> str:
        if depth > 1 or self.random.random() < 0.3:
            own = self.element("x", "t"), self.element("y", f"({j}) % x.shape[1]")
            return self.pick(*[self.alike(j)] * 4, *own, "a", "0.5", *self.floats[-2:])
        a, b = self.value(j, depth + 1), self.value(j, depth + 1)
        return self.pick(
            f"({a} {self.pick('+', '-', '*')} {b})", f"weft.math.{self.pick('tanh', 'sin')}({a})",
            f"weft.math.exp(-abs({self.alike(j)}))", f"({a} / (1.0 + abs({b})))",
            f"({a} if int(m[0, t]) % 3 > 1 else {b})",
        )  # fmt: skip

    def turn(self, indent: int, size: int) -> None:
        j = self.name("j")
        form = self.random.randrange(8)
        first = self.pick("", "", "1, ")
        if form == 0:
            name = self.name("p")
            self.emit(indent, f"{name} = weft.math.tanh({self.value('1')})")
            self.floats.append(name)
        elif form == 1:
            self.emit(indent, f"if int({self.pick('m[0, t]', 'm[i, t]')}) % 2 == 0:")
            self.emit(indent + 1, f"for {j} in range({first}{size}):")
            self.emit(indent + 2, f"s[{j}] += 0.1 * weft.math.tanh({self.value(j)})")
        elif form == 2:
            k = self.name("k")
            self.emit(indent, f"for {j} in range({first}{size}):")
            self.emit(indent + 1, f"for {k} in range(3):")
            self.emit(indent + 2, f"s[{j}] += 0.1 * weft.math.tanh({self.value(f'{j} + 2 * {k}')})")
        elif form < 6:
            self.emit(indent, f"for {j} in range({first}{size}):")
            self.emit(indent + 1, f"s[{j}] = 0.5 * s[{j}] + weft.math.tanh({self.value(j)})")
        else:
            total = self.name("c")
            self.emit(indent, f"{total} = 0.0")
            self.emit(indent, f"for {j} in range({first}{size}):")
            self.emit(indent + 1, f"{total} += s[{j}] * weft.math.tanh({self.value(j)})")
            self.floats.append(total)


def kernel(random: Random) -> Kernel:
    """Draws one kernel; it is called ``kernel(x, y, m, out, h, n, a)``."""
    dtypes = {name: random.choice(FLOAT_DTYPES if random.random() < 0.85 else INT_DTYPES)
              for name in ("x", "y")}  # fmt: skip
    dtypes |= {"m": random.choice(INT_DTYPES), "out": random.choice(("f32", "f32", "f64"))}
    g, size = Staged(random, dtypes, along=True), random.choice((2, 3, 4, 8))
    g.emit(0, "def kernel(x, y, m, out, h, n, a):")
    g.emit(1, "for i in range(x.shape[0]):")
    g.emit(2, f"s = weft.zeros({size})\nc = a")
    g.emit(2, f"for t in range({g.pick(*SPANS).format(c='x.shape[1]')}):")
    for _ in range(random.randint(1, 4)):
        g.turn(3, size)
    g.emit(3, f"c = 0.5 * c + 0.1 * {(g.floats or ['s[0]'])[-1]}")
    if random.random() < 0.8:
        left = "0.5 * out[i, t] + " if random.random() < 0.15 else ""
        g.emit(3, f"out[i, t] = {left}c + s[{size - 1}]")
    g.emit(2, "out[i, 0] = c + s[0]")
    text = "\n".join(g.lines) + "\n"
    largest = 33 if size < 8 else 17  # the plain Python takes long
    return Kernel(text, 2, dtypes, False, False, sizes=(33,), largest=largest)
