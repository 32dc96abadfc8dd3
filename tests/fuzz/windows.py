"""Random kernels over windows, as Python source.

Each element of a plane sums, counts or seeks the extreme of what lies around it: in windows that
end at the edges, in triangles, in strips, in two nested loops whose bounds depend on either index,
with steps, conditions and early ends. Register tiles and vectors run such loops in part.
"""

from __future__ import annotations

from random import Random

from tests.fuzz.generate import FLOAT_DTYPES, INT_DTYPES, Kernel
from tests.fuzz.rows import Rows

# Places along an axis of {n} elements around the place {i}; {r} is a small number.
LOWER = ("max({i} - {r}, 0)", "max({i} - {r}, 0)", "max({i} - n, 0)", "0", "{i}", "{i} % 3",
         "min({i} + 1, {n})", "max({i} - {r}, {i} // 2)", "max(0, {r} - {i})")  # fmt: skip
UPPER = ("min({i} + {r} + 1, {n})", "min({i} + {r} + 1, {n})", "min({i} + n, {n})", "{n}", "{i}",
         "{i} + 1", "min({i} + {r}, {n} - 1)", "max({n} - {i}, 0)", "min({r}, {n})")  # fmt: skip


class Windows(Rows):
    """``i`` and ``j`` are the place; ``p`` and ``q`` those of a window."""

    def range_of(self, own: str, axis: int) -> str:
        """A range of places along an axis."""
        index = self.pick(own, own, own, "j" if own == "i" else "i")
        names = {"i": index, "n": f"x.shape[{axis}]", "r": self.pick("1", "2", "3", "n", "2 * n")}
        if self.random.random() < 0.5:  # what people write
            return f"range({LOWER[0]}, {UPPER[0]})".format(**names | {"i": own})
        low, high = (self.pick(*ends).format(**names) for ends in (LOWER, UPPER))
        high = f"min({high}, x.shape[{axis}])"
        if self.random.random() < 0.1:
            return f"range({high} - 1, {low} - 1, -{self.pick('1', '2')})"
        return f"range({low}, {high}{self.pick('', '', '', ', 2', ', 3')})"

    def value(self, at: str) -> str:
        """Of an element of the window."""
        name = self.pick("x", "x", "y", "m")
        text = f"{name}[{at}]"
        if self.dtypes[name] in ("f16", "bf16"):
            text = f"weft.f32({text})"
        text = f"(int({text}) % 7 * 1.0)" if self.dtypes[name] in INT_DTYPES else text
        weight = self.pick("1.0", "a", "(p - i) * 0.25", "(q + 1)", "y[i, j] * 1.0", "(j - q)")
        return self.pick(text, f"weft.math.tanh({text})", f"weft.math.tanh({text}) * {weight}")

    def innermost(self, indent: int, at: str) -> None:
        form = self.random.randrange(8)
        if form < 3:
            self.emit(indent, f"s += {self.value(at)}")
        elif form == 3:
            self.emit(indent, f"s = max(s, {self.value(at)})")
        elif form == 4:
            self.emit(indent, f"if {self.value(at)} > {self.pick('0.0', 's', 'a')}:")
            self.emit(indent + 1, self.pick("count += 1", f"s += {self.value(at)}", "s = 0.5 * s"))
        elif form == 5:
            self.emit(indent, f"s = 0.5 * s + weft.math.tanh({self.value(at)})")
        elif form == 6:
            self.emit(indent, f"if count > {self.pick('2', 'n')}:")
            self.emit(indent + 1, self.pick("break", "continue"))
            self.emit(indent, "count += 1")
        else:
            self.emit(indent, f"s += {self.value(at)}")
            self.emit(indent, "count += p - q")

    def window(self, indent: int) -> None:
        axes = [("p", "i", 0), ("q", "j", 1)]
        if self.random.random() < 0.3:
            axes.reverse()
        missing = self.pick("p", "q") if self.random.random() < 0.3 else ""
        for name, own, axis in axes:
            if name == missing:
                self.emit(indent, f"{name} = {own}")
                continue
            self.emit(indent, f"for {name} in {self.range_of(own, axis)}:")
            indent += 1
            if self.random.random() < 0.2 and name == axes[0][0]:
                self.emit(indent, f"s += {self.pick('a', '0.5 * s', f'{name} * 0.25')}")
        for _ in range(self.random.randint(1, 2)):
            self.innermost(indent, "p, q")


def kernel(random: Random) -> Kernel:
    """Draws one kernel; it is called ``kernel(x, y, m, out, h, n, a)``."""
    floats = ("f32", "f64") if random.random() < 0.5 else FLOAT_DTYPES  # vectors have many lanes
    dtypes = {name: random.choice(floats if random.random() < 0.85 else INT_DTYPES)
              for name in ("x", "y")}  # fmt: skip
    dtypes |= {"m": random.choice(INT_DTYPES), "out": random.choice(("f32", "f32", "f64"))}
    g = Windows(random, dtypes, along=True)
    g.emit(0, "def kernel(x, y, m, out, h, n, a):")
    g.emit(1, "for i, j in weft.ndrange(x.shape[0], x.shape[1]):")
    g.emit(2, "s = 0.0")
    g.emit(2, "count = 0")
    for _ in range(random.choice((1, 1, 2))):
        g.window(2)
    g.emit(2, f"out[i, j] {g.pick('=', '+=')} s + {g.pick('count', '0.5 * count', 'j * 0.5')}")
    sizes = (9, 17, 18)  # that tiles of a schedule cover, with rows and columns left
    return Kernel("\n".join(g.lines) + "\n", 2, dtypes, False, False, sizes, 18)
