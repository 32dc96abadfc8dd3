"""Random kernels whose iterations go along rows or columns, as Python source.

An iteration of the device loop has serial loops of its own, which carry sums, products, extrema and
bits, use what an earlier loop carried, write the row and read it again: softmax, norms, triangular
products. On a GPU several threads may share such loops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.fuzz.generate import FLOAT_DTYPES, INT_DTYPES, Kernel

# Ends of a row's loop; the device loop's index may be beyond a row's length.
SPANS = ("{c}", "{c}", "{c}", "1, {c}", "n % 3, {c}", "min({r}, {c})", "min({r} + 1, {c}), {c}",
         "{c} - 1", "0, {c}, 2", "{c} - 1, -1, -1", "int(abs(m[{m}])) % ({c} + 1)")  # fmt: skip
# Carried through a loop: how it begins, and how it is updated with a term.
CARRIED = (
    ("0.0", "{s} += {t}"), ("1.5", "{s} -= {t}"), ("0.0", "{s} = {t} + {s}"),
    ("1.0", "{s} *= 1.0 + 0.1 * {t}"), ("-2.0", "{s} = max({s}, {t})"),
    ("3.0", "{s} = min({t}, {s})"), ("0.0", "{s} = {s} + ({t} if {c} else 0.0)"),
    ("-1e9", "if {t} > {s}:\n    {s} = {t}"),
    ("0.0", "if {c}:\n    {s} += {t}\nelse:\n    {s} -= 0.5 * {t}"),
    ("0.25", "{s} = 0.5 * {s} + {t}"),  # has an order
)  # fmt: skip
COUNTED = (
    ("0", "{s} += {t}"), ("7", "{s} ^= {t}"), ("-1", "{s} &= {t}"), ("0", "{s} |= {t}"),
    ("9", "{s} = min({s}, {t})"), ("0", "{s} = max({t}, {s})"),
    ("1", "{s} = ({s} * 3 + {t}) % 101"),
)  # fmt: skip


@dataclass
class Rows:
    random: Random
    dtypes: dict[str, str]
    along: bool  # iterations go along rows; else along columns
    apart: bool = False  # loops stand by themselves, and nothing is written twice or read again
    row: str = "i"
    lines: list[str] = field(default_factory=list)
    floats: list[str] = field(default_factory=list)
    ints: list[str] = field(default_factory=list)
    written: bool = False  # whether this iteration has written all of its row of out
    fresh: int = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def name(self, letter: str) -> str:
        self.fresh += 1
        return f"{letter}{self.fresh}"

    def emit(self, indent: int, text: str) -> None:
        self.lines += ["    " * indent + line for line in text.split("\n")]

    def at(self, k: str) -> str:
        return f"{self.row}, {k}" if self.along else f"{k}, {self.row}"

    def element(self, tensor: str, k: str) -> str:
        text = f"{tensor}[{self.at(k)}]"
        if self.dtypes[tensor] in ("f16", "bf16"):
            return f"weft.f32({text})"
        return f"({text} * 1.0)" if self.dtypes[tensor] in INT_DTYPES else text

    def term(self, k: str, depth: int = 0) -> str:
        """A float expression about place ``k`` of the row."""
        if depth > 1 or self.random.random() < 0.3:
            choices = [self.element("x", k), self.element("y", k), "a", "0.5"]
            choices += self.floats[-3:] + [f"0.1 * {name}" for name in self.ints[-2:]]
            if self.written:
                choices += [f"out[{self.at(k)}]"]
            return self.random.choice(choices)
        a, b = self.term(k, depth + 1), self.term(k, depth + 1)
        form = self.random.randrange(6)
        if form < 2:
            return f"({a} {self.pick('+', '-', '*')} {b})"
        if form == 2:
            return f"weft.math.{self.pick('tanh', 'sin')}({a})"
        if form == 3:
            return f"{self.pick('min', 'max')}({a}, {b})"
        if form == 4:
            return f"({a} / (1.0 + abs({b})))"
        return f"({a} if {self.condition(k)} else {b})"

    def small(self, k: str) -> str:
        return f"weft.math.tanh({self.term(k)})"

    def condition(self, k: str) -> str:
        """Of integers, and of elements as they were given: rounding must not decide."""
        return self.pick(
            f"int(m[{self.at(k)}]) % 3 {self.pick('==', '>', '<=')} 1",
            f"{k} {self.pick('>', '<', '!=')} {self.row}",
            f"float(x[{self.at(k)}]) > {self.pick('0.25', '-0.5')}",
            f"({k} + n) % 2 == 0",
        )

    def span(self) -> str:
        length = "x.shape[1]" if self.along else "x.shape[0]"
        first = self.at("0")
        spans = [span for span in SPANS if not (self.apart and span.endswith(("2", "-1")))]
        return self.pick(*spans).format(c=length, r=self.row, m=first)

    # --- statements -------------------------------------------------------------------------------
    def carry(self, indent: int) -> None:
        """A loop that carries one to three values."""
        carried = []
        for _ in range(self.random.randint(1, 3)):
            whole = self.random.random() < 0.3
            name = self.name("c" if whole else "s")
            forms = COUNTED if whole else CARRIED
            begin, update = self.random.choice(forms[:-1] if self.apart else forms)
            self.emit(indent, f"{name} = {begin}")
            carried.append((name, update, whole))
        k = self.name("k")
        joint = self.joint(indent, k) if self.random.random() < 0.3 else []
        if self.apart and self.random.random() < 0.3:
            condition = self.pick("n > 2", f"{self.row} % 2 == 0", f"{self.row} + n < 5")
            self.emit(indent, f"if {condition}:")
            indent += 1
        self.emit(indent, f"for {k} in range({self.span()}):")
        for name, update, whole in carried:
            term = f"int(m[{self.at(k)}]) % 16" if whole else self.small(k)
            self.emit(indent + 1, update.format(s=name, t=term, c=self.condition(k)))
        for line in joint:
            self.emit(indent + 1, line)
        if self.random.random() < 0.2:
            self.emit(indent + 1, f"h[({k} + {self.row}) % 5] += {self.pick('1', k, 'n')}")
        if self.random.random() < 0.15 and not self.apart:
            self.emit(indent + 1, f"out[{self.at(k)}] = {self.small(k)}")
        for name, _, whole in carried:
            (self.ints if whole else self.floats).append(name)

    def joint(self, indent: int, k: str) -> list[str]:
        """Values that belong together: the place of an extremum, a running mean and variance."""
        if self.random.random() < 0.5:
            best, place, new = self.name("c"), self.name("c"), self.name("v")
            self.emit(indent, f"{best} = {self.pick('-1', '7', '99')}")
            self.emit(indent, f"{place} = -1")
            self.ints += [best, place]
            compare = self.pick("{0} > {1}", "{0} >= {1}", "{0} < {1}", "{1} >= {0}").format(
                new, best
            )
            also = [f"    {place} = {k}"] if self.random.random() < 0.8 else []
            return [f"{new} = int(m[{self.at(k)}]) % 16", f"if {compare}:", f"    {best} = {new}",
                    *also]  # fmt: skip
        mean, squares, count, apart, value = (self.name(letter) for letter in "sscdv")
        self.emit(indent, f"{mean} = 0.0\n{squares} = 0.0\n{count} = 0")
        self.floats += [mean, squares]
        return [f"{value} = {self.small(k)}", f"{count} += 1", f"{apart} = {value} - {mean}",
                f"{mean} += {apart} / {count}",
                f"{squares} += {apart} * ({value} - {mean})"]  # fmt: skip

    def nested(self, indent: int) -> None:
        """A loop in a loop, of which either may be shared."""
        name, k, q = self.name("s"), self.name("k"), self.name("q")
        self.emit(indent, f"{name} = 0.0")
        self.emit(indent, f"for {k} in range({self.span()}):")
        inside = self.random.random() < 0.5
        if inside:
            self.emit(indent + 1, f"t{name} = 0.0")
        span = self.pick("2", "n", k, self.span())
        self.emit(indent + 1, f"for {q} in range({span}):")
        target = f"t{name}" if inside else name
        place = k if span in ("2", "n") else self.pick(k, q)
        self.emit(indent + 2, f"{target} += 0.1 * {self.small(place)}")
        if inside:
            self.emit(indent + 1, f"{name} += t{name} * {self.term(k, 1)}")
        self.floats.append(name)

    def fill(self, indent: int) -> None:
        """A loop that writes the whole row."""
        k = self.name("k")
        length = "x.shape[1]" if self.along else "x.shape[0]"
        self.emit(indent, f"for {k} in range({length}):")
        how = (
            "="
            if self.apart
            else self.pick("=", "=", "+=")
            if not self.written
            else self.pick("=", "+=", "-=")
        )
        self.emit(indent + 1, f"out[{self.at(k)}] {how} {self.small(k)}")
        self.written = True

    def one(self, indent: int) -> None:
        """A store outside of the loops."""
        self.emit(indent, f"out[{self.at('0')}] {self.pick('=', '+=')} {self.small('0')}")

    def statement(self, indent: int) -> None:
        form = self.random.randrange(10)
        if form < 4:
            self.carry(indent)
        elif form < 6:
            self.nested(indent)
        elif form < 8:
            self.fill(indent)
        elif form == 8:
            self.one(indent)
        else:
            known = (list(self.floats), list(self.ints), self.written)
            first = f"float(x[{self.at('0')}]) > 0"
            self.emit(indent, f"if {self.pick('n > 2', f'{self.row} % 2 == 0', first)}:")
            self.carry(indent + 1)
            self.fill(indent + 1)
            self.floats, self.ints, self.written = known


def kernel(random: Random) -> Kernel:
    """Draws one kernel; it is called ``kernel(x, y, m, out, h, n, a)``."""
    dtypes = {name: random.choice(FLOAT_DTYPES if random.random() < 0.85 else INT_DTYPES)
              for name in ("x", "y")}  # fmt: skip
    dtypes |= {"m": random.choice(INT_DTYPES), "out": random.choice(("f32", "f32", "f64"))}
    g = Rows(random, dtypes, along=random.random() < 0.7, apart=random.random() < 0.4)
    reduces = random.random() < 0.15
    g.emit(0, "def kernel(x, y, m, out, h, n, a):")
    if reduces:
        g.emit(1, "total = 0.0")
    g.emit(1, f"for i in range(x.shape[{0 if g.along else 1}]):")
    for _ in range(random.randint(1, 4)):
        if not g.apart:
            g.statement(2)
        elif random.random() < 0.3:
            g.nested(2)
        else:
            g.carry(2)
    if g.apart and random.random() < 0.5:
        g.fill(2)
    if g.floats and (not g.written if g.apart else random.random() < 0.7):
        g.emit(2, f"out[{g.at('0')}] {g.pick('=', '+=')} {' + '.join(g.floats[-3:])}")
    if g.ints and random.random() < 0.5:
        g.emit(2, f"h[i % 5] += {g.ints[-1]}")
    if reduces:
        g.emit(2, f"total += {g.small('0')}")
        g.emit(1, "return total")
    return Kernel("\n".join(g.lines) + "\n", 2, dtypes, True, reduces, (8, 12))
