"""Random kernels written as nests of ``range``, as Python source.

Loops in any order, perfect and imperfect, rectangular and triangular, reversed and empty; sums in
memory (``out[i, j] += ...``) and in a local name, what depends on the loop before, contributions
from several depths. Which of the loops are further dimensions is for the compiler to find.
"""

from __future__ import annotations

from random import Random

from tests.fuzz.generate import FLOAT_DTYPES, INT_DTYPES, Kernel
from tests.fuzz.rows import Rows

# Ranges within a row of {c} elements: {o} are loop indices outside, which are below {c} themselves
# (the device loop's, {r}, need not be).
SPANS = ("{c}", "{c}", "{c}", "{c}", "1, {c}", "n % 3, {c}", "{c} - 1, -1, -1", "0, {c}, 2", "5, 2",
         "min({r}, {c}), {c}", "min({r} + 1, {c})", "min(3, {c})", "min({c}, n)",
         "{c} - 1, n, -2")  # fmt: skip
INNER = ("{o}, {c}", "{o} + 1, {c}", "{o} + 1", "{o}", "{o}, -1, -1", "n", "3", "2, n")


class Nests(Rows):
    """A row is one iteration of the device loop, and the loops of its nest are along it."""

    def range_of(self, outside: list[str]) -> tuple[str, bool]:
        """A range, and whether its numbers are places of a row."""
        length = "x.shape[1]" if self.along else "x.shape[0]"
        if outside and self.random.random() < 0.4:
            text = self.pick(*INNER)
            inside = "n" not in text.replace("min", "") and text != "3"
            return text.format(c=length, o=self.random.choice(outside)), inside
        return self.pick(*SPANS).format(c=length, r=self.row), True

    def nest(self, indent: int) -> None:
        """Some loops in each other, with what stands between them."""
        places: list[str] = []  # indices that are places of the row
        names = list(self.floats), list(self.ints)
        for depth in range(self.random.randint(1, 3)):
            k = self.name("k")
            text, inside = self.range_of(places)
            if inside or not places:
                text = text if inside else "min(n, 1)"
                places.append(k)
            self.emit(indent, f"for {k} in range({text}):")
            indent += 1
            if self.random.random() < 0.25:
                name = self.name("p")
                self.emit(indent, f"{name} = {self.term(self.random.choice(places), 1)}")
                self.floats.append(name)
            if depth == 0 and self.random.random() < 0.25:
                self.emit(indent, f"out[{self.at(k)}] = {self.pick('0.0', self.small(k))}")
        for _ in range(self.random.randint(1, 2)):
            self.innermost(indent, places)
        self.floats, self.ints = names

    def innermost(self, indent: int, places: list[str]) -> None:
        k, other = self.random.choice(places), self.random.choice(places)
        form = self.random.randrange(12)
        if form < 4:
            self.emit(
                indent, f"out[{self.at(k)}] {self.pick('+=', '-=')} 0.1 * {self.small(other)}"
            )
        elif form == 4:
            self.emit(indent, f"out[{self.at(k)}] = {self.small(k)}")
        elif form == 5:
            self.emit(indent, f"if {self.condition(other)}:")
            self.emit(indent + 1, f"out[{self.at(k)}] += 0.1 * {self.small(other)}")
        elif form == 6:
            self.emit(indent, f"h[({k} + {other} + {self.row}) % 5] += {self.pick('1', 'n')}")
        elif form == 7:  # depends on the iteration before
            self.emit(indent, f"out[{self.at(k)}] = 0.5 * out[{self.at(f'max({k} - 1, 0)')}] + "
                              f"{self.small(other)}")  # fmt: skip
        elif form == 8:
            self.emit(indent, f"out[{self.at(self.pick('0', other))}] += 0.1 * {self.small(k)}")
        elif form == 9:
            self.carry(indent)
            self.emit(indent, f"out[{self.at(k)}] {self.pick('=', '+=')} "
                              f"{(self.floats or ['0.5'])[-1]}")  # fmt: skip
        elif form == 10:
            name = self.name("v")
            self.emit(indent, f"{name} = out[{self.at(k)}] * 0.5")
            self.emit(indent, f"out[{self.at(k)}] = {name} + {self.small(other)}")
        else:
            q = self.name("q")
            self.emit(indent, f"for {q} in range({self.pick('n', '3', k)}):")
            self.emit(indent + 1, f"out[{self.at(k)}] += 0.1 * {self.small(other)}")


def kernel(random: Random) -> Kernel:
    """Draws one kernel; it is called ``kernel(x, y, m, out, h, n, a)``."""
    dtypes = {name: random.choice(FLOAT_DTYPES if random.random() < 0.85 else INT_DTYPES)
              for name in ("x", "y")}  # fmt: skip
    dtypes |= {"m": random.choice(INT_DTYPES), "out": random.choice(("f32", "f32", "f64"))}
    g = Nests(random, dtypes, along=random.random() < 0.6)
    g.emit(0, "def kernel(x, y, m, out, h, n, a):")
    g.emit(1, f"for i in range(x.shape[{0 if g.along else 1}]):")
    if random.random() < 0.3:
        g.emit(2, f"p = {g.term('0', 1)}")
        g.floats.append("p")
    for _ in range(random.choice((1, 1, 1, 2))):
        g.nest(2)
    depth = max(line.index("for ") // 4 for line in g.lines if line.lstrip().startswith("for "))
    text, largest = "\n".join(g.lines) + "\n", 17 if depth < 4 else 5
    return Kernel(text, 2, dtypes, True, False, largest=largest)
