"""Random kernels that have derivatives almost everywhere, as Python source.

Their floats depend smoothly on the inputs but for branches, minima and the like; they stay of
moderate size. There are nested loops whose bounds depend on sizes, on outer indices and on data,
``while``, ``break`` and ``continue``, products and recurrences that loops carry, local arrays,
reductions, sums into elements that data choose, and loops that read what others computed. Elements
are read and then overwritten, once or again and again. Values go on under other names. Loops run in
order, by a hint or inside a loop of one iteration, where each iteration reads what the one before
wrote. There are vectors that loops carry, a matrix, and functions with loops and returns. Arguments
are called what derivatives call theirs, or are members of what is called so: `d.x`, `work.out`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.generate import Generator

# What a kernel may call: with a loop, a return before the end, a store into a local array.
HELPERS = """\
def blend(u, v, k):
    if k % 3 == 0:
        return weft.math.sin(u) * v
    s = 0.5 * v
    for q in range(k % 4):
        s = s * 0.7 + u / (1.0 + q + u * u)
    return s


def found(u, v, k):
    for q in weft.static(range(3)):
        if q == k % 4:
            return weft.math.sin(u) * (q + 1.0)
        if v > 0.9 and k % 2 == 0:
            break
        u = 0.5 * u + v * q
    return u * (q + 0.5)


def turned(u, v, k):
    m = weft.Matrix([[weft.math.cos(u), v], [0.5, 1.0 + 0.1 * k]])
    w = m @ weft.Vector([u, 0.25])
    return w.x * 0.5 + w.y + 0.1 * m.determinant()


"""


@dataclass
class SmoothKernel:
    """A kernel's source, called ``kernel(x, y, z, m, n, a)``: floats x of ``rank``, y (x.shape[0],
    K), z (L,), integers m of the shape of x, n and a float a. Returns one or more tensors."""

    text: str
    rank: int
    narrow: bool  # meant for f32: it never branches on a computed float
    half: bool = False  # x is f16 or bf16


@dataclass
class _Smooth(Generator):
    narrow: bool = False
    local: bool = False
    owned: bool = False  # each iteration has three elements of a tensor own
    vector: bool = False  # a vector vec
    helpers: bool = False
    parts: bool = False  # rows of tensors are values
    rows: list[str] = field(default_factory=list)  # indices that are at most i
    columns: list[str] = field(default_factory=list)  # indices below y.shape[1]
    given: list[str] = field(default_factory=list)  # floats that are read, never assigned
    unrolled: int = 0  # static loops around, whose bodies multiply

    # --- expressions ------------------------------------------------------------------------------
    def loaded(self) -> str:
        return f"float(x[{self.place()}])"

    def element(self) -> str:
        """A read of x, y or z, with subscripts of every kind."""
        row = self.random.choice(["i", "i", *self.rows, *(f"(i - {k})" for k in self.rows)])
        kind = self.random.randrange(8)
        if kind <= 2:
            if kind == 2:
                row = self.pick("min(i + 1, x.shape[0] - 1)", "(x.shape[0] - 1 - i)", "(i // 2)")
            return f"x[{row}, j]" if self.rank == 2 else f"x[{row}]"
        if kind <= 4:
            column = self.random.choice([*self.columns, *self.columns, "0", "(c0 % y.shape[1])"])
            return f"y[{row}, {column}]"
        number = self.random.choice(["i", "(2 * i + 1)", "abs(i - c0)", "i // 2",
                                     f"int(m[{self.place()}])", *self.frozen])  # fmt: skip
        if kind == 5:
            return f"z[min({number if number[0] != 'i' else 'i'}, z.shape[0] - 1) % z.shape[0]]"
        return f"z[({number}) % z.shape[0]]"

    def float_expression(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.25:
            leaves = [*self.floats, *self.floats, self.element(), self.element(), "a", *self.given]
            if self.local:
                leaves.append(f"h[{self.place_in_local()}]")
            if self.owned:
                leaves += [self.own_element()] * 2
            if self.vector:
                leaves.append(self.pick("vec.x", "vec[1]", "vec.z", "weft.math.tanh(vec.dot(vec))"))
            return self.random.choice([*leaves, str(self.random.choice([0.5, -1.25, 2.0]))])
        a, b = self.float_expression(depth + 1), self.float_expression(depth + 1)
        kind = self.random.randrange(15)
        if self.helpers and self.random.random() < 0.1:
            name = self.pick("blend", "turned", "found")
            return f"{name}({a}, {b}, abs({self.int_expression(2)}) % 7)"
        if self.parts and self.random.random() < 0.12:
            return self.row_expression(a)
        if kind < 5:
            return f"({a} {self.pick('+', '-', '*')} {b})"
        if kind == 5:
            return f"({a} / ({b} * {b} + 1.0))"
        if kind == 6:
            return f"{self.pick('min', 'max')}({a}, {b})"
        if kind <= 8:
            return f"weft.math.{self.pick('sin', 'tanh', 'cos')}({a})"
        if kind == 9:
            return f"weft.math.sqrt({a} * {a} + 0.5)"
        if kind == 10:
            return f"weft.math.exp(-abs({a}))"
        if kind == 11:
            return f"weft.math.log({a} * {a} + 1.5)"
        if kind == 12:
            return f"({a} if {self.condition(depth + 1)} else {b})"
        if kind == 13 and not self.narrow:  # one of what is compared, which may be equal
            a, b = self.float_expression(3), self.float_expression(3)
            taken = f"{a} {self.pick('<', '>', '<=', '>=')} {b}"
            return self.pick(f"({a} if {taken} else {b})", f"weft.select({taken}, {a}, {b})")
        return f"({a} * ({self.int_expression(2)} % 3))"

    def row(self) -> str:
        """A row that is not empty: of y, or the elements that the iteration owns."""
        row = self.random.choice(["y[i]", "y[i]", *(f"y[{k}]" for k in self.rows)])
        return f"own[{self.place()}]" if self.owned and self.random.random() < 0.4 else row

    def row_expression(self, a: str) -> str:
        """A number of a row."""
        row = self.row()
        return self.pick(
            f"{row}.{self.pick('sum', 'mean', 'max', 'min')}()", f"({row} * {a}).sum()",
            f"torch.logsumexp({row} * 0.5, 0)", f"({row} @ torch.tanh({row}))",
            f"torch.softmax({row}, 0)[abs({self.int_expression(2)}) % len({row})]",
            f"{row}[{self.pick('1:', ':2', '::2')}].sum()", f"torch.dot({row}, {row} + {a})",
            f"torch.where({row} > 0.1, {row}, {a}).mean()", f"(0.25 + {row}.square()).norm()",
        )  # fmt: skip

    def condition(self, depth: int = 0) -> str:
        if not self.narrow and self.random.random() < 0.2:
            return f"({self.random.choice(self.floats)} > {self.random.choice([-0.4, 0.3, 0.9])})"
        return super().condition(depth)

    def place_in_local(self) -> str:
        return f"({self.random.choice([*self.frozen, *self.ints, 'i'])}) % 3"

    def own_element(self) -> str:
        return f"own[{self.place()}, ({self.place_in_local()})]"

    # --- statements -------------------------------------------------------------------------------
    def statement(self, indent: int, depth: int) -> None:
        kind = self.random.randrange(18 if depth < 3 else 10)
        f = self.random.choice(self.floats)
        if self.vector and self.random.random() < 0.12:
            self.emit(indent, self.pick(
                f"vec = 0.6 * vec + weft.Vector([{self.bounded(2)}, 0.25, {f}])",
                f"vec[{self.random.randrange(3)}] {self.pick('=', '+=', '*=')} {self.bounded(2)}",
                f"vec = vec.cross(weft.Vector([0.5, {f}, 1.0])) / (1.0 + vec.dot(vec))",
            ))  # fmt: skip
        elif kind <= 1:
            self.emit(indent, f"{f} {self.pick('=', '+=', '-=')} {self.bounded(1)}")
        elif kind <= 3:
            self.emit(indent, f"{f} *= 1.0 + 0.4 * {self.bounded(1)}")
        elif kind == 4 and self.random.random() < 0.3:
            self.shifted(indent, f)
        elif kind == 4:
            self.emit(indent, f"{f} = 0.7 * {f} {self.pick('+', '-')} {self.bounded(1)}")
        elif kind == 5:
            self.emit(indent, f"{f} /= 1.5 + 0.5 * {self.bounded(1)}")
        elif kind == 6:
            g = self.random.choice(self.floats)
            self.emit(indent, f"{f}, {g} = 0.5 * {g}, {self.bounded(2)}")
        elif kind == 7:
            name = self.random.choice(self.ints)
            self.emit(indent, f"{name} = ({self.int_expression()}) % 101")
        elif kind == 8 and self.local:
            sign = self.pick("=", "+=", "*=")
            self.emit(indent, f"h[{self.place_in_local()}] {sign} {self.bounded(1)}")
        elif kind <= 9:
            self.written(indent)
            if self.owned and self.random.random() < 0.5:
                self.written(indent)
            if self.owned and self.parts and self.random.random() < 0.4:
                self.stored_row(indent)
        elif kind <= 11:
            self.branch(indent, depth)
        elif kind <= 14:
            self.pick(*[self.for_loop] * 3, self.static_loop, self.loop_over_values)(indent, depth)  # type: ignore[operator]
        elif kind == 15:
            self.while_loop(indent, depth)
        elif kind == 16:
            self.kept(indent)
        elif self.breakable:
            self.emit(indent, f"if {self.condition()}:")
            self.emit(indent + 1, self.pick("break", "continue"))
        else:
            self.emit(indent, f"{f} = {self.bounded(0)}")

    def written(self, indent: int) -> None:
        place = f"out[{self.place()}]"
        if self.owned and self.random.random() < 0.6:
            place = self.own_element()
        if self.random.random() < 0.4:  # what is read is overwritten
            self.emit(indent, self.pick(
                f"{place} = {place} * {self.bounded(1)}",
                f"{place} *= 1.0 + 0.4 * {self.bounded(1)}",
                f"{place} = max({place}, {self.bounded(1)})",
                f"{place} /= 1.5 + {self.bounded(1)}",
                f"{self.random.choice(self.floats)} = {place} + {self.bounded(1)}",
                f"{place} = weft.math.sin({place}) - 0.5 * {self.bounded(0)}",
            ))  # fmt: skip
        else:
            self.emit(indent, f"{place} {self.pick('=', '+=')} {self.bounded(1)}")

    def stored_row(self, indent: int) -> None:
        """The iteration's own elements at once."""
        own, v = f"own[{self.place()}]", self.bounded(2)
        self.emit(indent, self.pick(
            f"{own} *= 1.0 + 0.4 * {v}", f"{own} = torch.sin({own}) * {v}",
            f"own[{self.place()}, 1:] += {v}", f"own[{self.place()}, :2] = {v}",
            f"{own} = torch.softmax({own} + {v}, 0)", f"{own} -= {own}.mean()",
        ))  # fmt: skip

    def static_loop(self, indent: int, depth: int) -> None:
        """An unrolled loop, that may be left, and whose index is read behind it."""
        if self.unrolled == 2:  # a body has to have a statement
            self.written(indent)
            return
        self.fresh += 1
        name = f"k{self.fresh}"
        span = self.pick("range(3)", "range(1, 3)", "(2, 0, 1)", "range(2, -1, -1)", "(1,)")
        self.emit(indent, f"for {name} in weft.static({span}):")
        self.inside(indent, depth, self.frozen, name, unrolled=1)
        self.emit(indent, f"c0 = (c0 + {name}) % 101")

    def loop_over_values(self, indent: int, depth: int) -> None:
        """A loop over a row or a tuple, that may be left."""
        self.fresh += 1
        name = f"v{self.fresh}"
        if self.parts and self.random.random() < 0.6:
            row, among = self.row(), "y" if self.random.random() < 0.6 else "own"
            row = row if among == "own" or not row.startswith("own") else "y[i]"
            over = self.pick(row, row, f"reversed({row})", f"{row}[1:]", f"2.0 * {row}")
            if row[0] == "y":
                self.emit(indent, f"for {name} in {over}:")
                self.inside(indent, depth, self.given, name)
                return
            # Python computes the row before the loop: one that stores beyond its turn is refused.
            k, again = f"k{self.fresh}", self.random.random() < 0.5
            self.emit(
                indent,
                f"for {f'{k}, {name}' if again else name} in "
                f"{f'enumerate(1.0 * {row})' if again else f'1.0 * {row}'}:",
            )
            if again:
                self.emit(
                    indent + 1, f"{row[:-1]}, {k}] = weft.math.tanh({name} + {self.bounded(2)})"
                )
            self.owned = False
            self.inside(indent, min(depth + 1, 3), self.given, name)
            self.owned = True
            return
        if self.unrolled == 2:
            self.written(indent)
            return
        self.emit(indent, f"for {name} in ({self.float_expression(2)}, f0, {self.element()}):")
        self.inside(indent, depth, self.given, name, unrolled=1)
        self.emit(indent, f"f1 = 0.5 * f1 + weft.math.sin({name})")

    def inside(
        self, indent: int, depth: int, names: list[str], name: str, unrolled: int = 0
    ) -> None:
        """The body of a loop over ``name``."""
        names.append(name)
        self.breakable += 1
        self.unrolled += unrolled
        self.body(indent + 1, depth + 1)
        self.unrolled -= unrolled
        self.breakable -= 1
        names.pop()

    def kept(self, indent: int) -> None:
        """A value that goes on under another name, while the sum, the ring or the maximum that it
        is of goes on as well: in a loop of its own, or in one that is there."""
        f, g = self.random.sample(self.floats, 2)
        if self.random.random() < 0.7:
            self.fresh += 1
            self.emit(indent, f"for k{self.fresh} in range({self.random.randint(2, 4)}):")
            indent += 1
        kind = self.random.randrange(4)
        if kind == 0:
            self.emit(indent, f"{f}, {g} = {g}, 0.5 * {f} + {g}")
        elif kind == 1:
            self.emit(indent, f"{f}, {g} = {g}, {f} {self.pick('+', '-')} {self.bounded(1)}")
        else:
            self.emit(indent, f"{g} = {f}")
            if kind == 2:
                self.emit(indent, f"{f} {self.pick('+=', '-=')} {self.bounded(1)}")
            else:
                self.emit(indent, f"v = {self.bounded(1)}")
                self.emit(indent, f"{f} = v if v {self.pick('>', '<')} {f} else {f}")

    def for_loop(self, indent: int, depth: int) -> None:
        self.fresh += 1
        name = f"k{self.fresh}"
        form = self.random.randrange(6)
        known: list[str] | None = None
        if form == 0:
            span, known = "i + 1", self.rows
        elif form <= 2:
            span, known = self.pick("y.shape[1]", "min(n, y.shape[1])"), self.columns
        elif form == 3:
            span = f"abs({self.int_expression(2)}) % 4"
        elif form == 4:
            inner = self.random.choice([*self.frozen, "0"])
            span = f"{inner}, abs({inner}) % 50 + {self.random.randint(0, 3)}"
        else:
            span = f"{self.random.randint(2, 5)}, 0, -{self.random.randint(1, 2)}"
        self.emit(indent, f"for {name} in range({span}):")
        self.frozen.append(name)
        if known is not None:
            known.append(name)
        self.breakable += 1
        self.body(indent + 1, depth + 1)
        self.breakable -= 1
        if known is not None:
            known.pop()
        self.frozen.pop()


def smooth_kernel(random: Random) -> SmoothKernel:
    """Draws one kernel."""
    g = _Smooth(random, narrow=random.random() < 0.25, local=random.random() < 0.3)
    g.rank = random.choice((1, 1, 2))
    g.floats, g.ints = ["f0", "f1"], ["c0"]
    g.helpers, g.parts = random.random() < 0.25, random.random() < 0.3
    place = g.place()
    extents = ", ".join(f"x.shape[{k}]" for k in range(g.rank))
    scatters, reduces = random.random() < 0.25, random.random() < 0.3
    g.emit(0, "def kernel(x, y, z, m, n, a):")
    g.emit(1, random.choice(("out = torch.zeros_like(x)", "out = torch.empty_like(x)",
                             "out = x * 0.5", f"out = x.new_zeros({extents})")))  # fmt: skip
    results = ["out"]
    g.owned = random.random() < 0.4
    if g.owned:
        g.emit(1, f"own = torch.zeros({extents}, 3, dtype=x.dtype) + 0.5")
        results.append("own")
    if scatters:
        g.emit(1, "s = torch.zeros_like(z)")
        results.append("s")
    if reduces:
        g.emit(1, random.choice(("total = 0.0", "total = 1.5", "total = a")))
        results.append("total")
    count = random.choice(("0", "False")) if reduces and random.random() < 0.4 else ""
    if count:
        g.emit(1, f"count = {count}")
        results.append("count")
    loop, ordered = len(g.lines), random.random() < 0.25
    g.emit(1, f"for {place} in weft.ndrange({extents}):")
    g.emit(2, f"c0 = {random.choice(['1', 'n', 'i', f'int(m[{place}]) % 5'])}")
    g.emit(2, f"f0 = {random.choice(['0.5', 'a', g.element()])}")
    g.emit(2, f"f1 = {g.element()}")
    if g.local:
        g.emit(2, f"h = weft.zeros((3,), weft.{'f32' if g.narrow else 'f64'})")
        g.emit(2, f"h[{g.place_in_local()}] = {g.bounded(1)}")
    if random.random() < 0.2:
        g.emit(2, f"vec = weft.Vector([f0, {g.bounded(2)}, 0.5])")
        g.vector = True
    if "empty" in g.lines[1]:
        g.emit(2, f"out[{place}] = 0.0")
    if ordered:
        before = f"out[{place.replace('i', 'i - 1', 1)}]"
        g.emit(2, "if i > 0:")
        g.emit(3, random.choice((f"f0 += 0.3 * {before}", f"f1 = weft.math.tanh({before}) * f1",
                                 f"{before} = 0.5 * {before} + 0.2 * f0")))  # fmt: skip
    for _ in range(random.randint(1, 4)):
        g.statement(2, 0)
    g.emit(2, f"out[{place}] {random.choice(('=', '+='))} f0 + f1 * {g.float_expression(2)}")
    if scatters:
        where = random.choice((f"int(m[{place}])", "i", "i // 2", "c0"))
        g.emit(2, f"s[({where}) % z.shape[0]] += {g.bounded(1)}")
    if reduces:
        g.emit(2, random.choice((
            "total += f1", "total = max(total, f0)", "total = min(total, f1)",
            "total -= 0.5 * f0 * f1", "total *= 1.0 + 0.3 * f0 / (1.0 + f0 * f0)",
            f"total *= x[{place}]",
        )))  # fmt: skip
    if count:
        g.emit(2, f"if {g.condition()}:")
        g.emit(3, "count += 1" if count == "0" else "count = True")
    if ordered:
        _in_order(g, loop)
    if random.random() < 0.3:
        _second_loop(g, results)
    g.emit(1, f"return {', '.join(results)}")
    text = HELPERS * g.helpers + renamed(random, "\n".join(g.lines) + "\n")
    return SmoothKernel(text, g.rank, g.narrow, half=g.narrow and random.random() < 0.3)


def _in_order(g: _Smooth, first: int) -> None:
    """Has the loop, the lines from ``first`` on, run in order."""
    if g.random.random() < 0.5:
        g.lines[first:] = ["    for _ in range(1):", *("    " + line for line in g.lines[first:])]
    else:
        g.lines.insert(first, "    weft.loop_config(serialize=True)")


def _second_loop(g: _Smooth, results: list[str]) -> None:
    """A loop that reads what the first computed and PyTorch changed."""
    g.emit(
        1,
        g.pick("t = out * 2.0 - 1.0", "t = torch.flip(out, [0])", "t = torch.sin(out)", "t = out"),
    )
    g.emit(1, "last = torch.empty_like(t)")
    g.emit(1, "for i in range(t.shape[0]):")
    whole = "t[i]" if g.rank == 1 else "t[i, j]"
    indent = 2
    if g.rank == 2:
        g.emit(2, "for j in range(t.shape[1]):")
        indent = 3
    g.emit(indent, f"q = {whole} * z[i % z.shape[0]]")
    g.emit(indent, "for k in range(n):")
    g.emit(
        indent + 1,
        f"q = {g.pick('weft.math.sin(q)', 'q * 0.9', 'q')} + {g.pick(whole, 'a', '0.1')}",
    )
    g.emit(indent, f"last[i{', j' if g.rank == 2 else ''}] = q * q")
    results.append("last")


def renamed(random: Random, text: str) -> str:
    """The kernel ``text``, at times with one of its arguments under another name, or as a member of
    a named tuple of that name."""
    words = ("d", "d2", "t", "work", "before", "tape", "tape1", "trips", "order")
    old, word = random.choice("xyz"), random.choice(words)
    if random.random() < 0.8 or re.search(rf"\b{word}\b", text):
        return text
    if word == "trips" or random.random() < 0.3:
        return re.sub(rf"(?<!\.)\b{old}\b", word, text)
    head, body = text.split("\n", 1)
    member = random.choice(("x", "y", "z", "out", "own", "s", "total"))
    body = re.sub(rf"(?<!\.)\b{old}\b", f"{word}.{member}", body)
    held = f'from collections import namedtuple\n\nHeld = namedtuple("Held", "{member}")'
    return f"{held}\n\n\n{head}\n    {word} = Held({old})\n{body}"
