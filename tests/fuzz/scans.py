"""Random kernels whose rows go by recurrences, as Python source.

Loops that ask at every turn for what they carried so far: sums, products, extrema, affine maps,
resets, values that follow others, pairs and triples that depend on each other, numbers and local
arrays, forward and backward, stored before and after the update. On a GPU a block may scan them.
"""

from __future__ import annotations

from random import Random

from tests.fuzz.generate import FLOAT_DTYPES, INT_DTYPES, Kernel
from tests.fuzz.rows import Rows

SPANS = ("{c}", "{c}", "{c}", "{c}", "1, {c}", "n % 3, {c}", "min({r} + 1, {c})", "{c} - 1",
         "{c} - 1, -1, -1", "{c} - 2, 0, -1", "3, 3", "5, 2", "0, {c}, 2")  # fmt: skip
# How a value begins, and its update: {t} a term, {g} a factor, {c} a condition.
CARRIED = (
    ("0.0", "{s} += {t}"), ("1.5", "{s} -= {t}"), ("0.0", "{s} = {t} + {s}"),
    ("1.0", "{s} *= 1.0 + 0.1 * {t}"), ("-2.0", "{s} = max({s}, {t})"),
    ("3.0", "{s} = min({t}, {s})"), ("-1e9", "if {t} >= {s}:\n    {s} = {t}"),
    ("0.25", "{s} = 0.5 * {s} + {t}"), ("0.0", "{s} = {g} * {s} + {t}"),
    ("1.0", "{s} = ({s} + {t}) * {g}"), ("0.5", "{s} = {t} - {g} * {s}"),
    ("0.0", "{s} = {s} / (2.0 + {g}) + {t}"), ("0.5", "{s} = ({s} + {t}) / 3.0"),
    ("1.0", "{s} = {t} - {s} / (abs(a) + 2.5)"), ("0.75", "{s} = {t}"),
    ("0.0", "{s} = ({t} if {c} else {s} + {t})"), ("0.0", "if {c}:\n    {s} = 0.5\n{s} += {t}"),
    ("0.5", "if {c}:\n    {s} += {t}\nelse:\n    {s} = {s} * {g} - 0.25 * {s}"),
    ("0.5", "{s} = 0.5 * weft.math.tanh({s}) + {t}"),  # has an order
)  # fmt: skip
COUNTED = (
    ("0", "{s} += {t}"), ("7", "{s} ^= {t}"), ("-1", "{s} &= {t} | 3"), ("0", "{s} |= {t}"),
    ("9", "{s} = min({s}, {t})"), ("0", "{s} = max({t}, {s})"), ("1", "{s} = {t} - {s}"),
    ("0", "if {c}:\n    {s} = 0\nelse:\n    {s} += 1"), ("3", "{s} = {t}"),
)  # fmt: skip
# Likewise of values that depend on each other.
JOINT = (
    "{p}, {q} = 0.5 * {p} - 0.4 * {g} * {q} + {t}, {p}",
    "{p}, {q} = 0.6 * {p} - 0.5 * {q}, 0.5 * {p} + 0.6 * {q} + {t}",
    "{p} += 0.5 * {g} * {q} - 0.5 * {p}\n{q} = 0.5 * {q} - 0.25 * {p} + {t}",
    "if {c}:\n    {p}, {q} = {q}, {p}\nelse:\n    {p} = 0.5 * {p} + {q} * {g}\n    {q} = {t}",
    "{p} = ({q} if {c} else 0.25 - {q})\n{q} = {t} - {p} / 2.0",
    "{p}, {q}, {r} = 0.5 * {r} + {t}, {g} * {p}, {q} - 0.25 * {p}",
    "{p}, {q} = 0.5 * {q} * {p}, 0.5 * {p} + {t}",  # has an order
)  # fmt: skip


# Of an array of {n} numbers, through whose elements {p} and {q} go.
ARRAYS = (
    "for {p} in range({n}):\n    {s}[{p}] = 0.5 * {s}[({p} + 1) % {n}] + {t}",
    "for {p} in range({n}):\n    {s}[{p}] = {g} * {s}[{p}] / 2.5 + 0.5 * {t}",
    "{u} = weft.zeros({n})\nfor {p} in range({n}):\n    for {q} in range({n}):\n"
    "        {u}[{p}] += 0.15 * ({p} - {q} + 1) * {s}[{q}]\n"
    "for {p} in range({n}):\n    {s}[{p}] = {u}[{p}] + {t}",
    "for {p} in range({n} - 1, 0, -1):\n    {s}[{p}] = {s}[{p} - 1]\n{s}[0] = {t} - 0.25 * {s}[1]",
    "if {c}:\n    {s}[0] = {t}\nelse:\n    {s}[1] = 0.5 * {s}[0] - {s}[1] / 3.0 + {g}",
    "for {p} in range(1, {n}):\n    if {c}:\n        {s}[{p}] = max({s}[{p}], {t})\n"
    "    {s}[0] += 0.125 * {g}",
    "{s}[0] = 0.5 * {s}[{n} - 1] + {t}",  # the others stay
    "for {p} in range({n}):\n    {s}[{p}] = 0.5 * weft.math.tanh({s}[{p}]) + {t}",  # has an order
)


class Recurrences(Rows):
    def span(self) -> str:
        length = "x.shape[1]" if self.along else "x.shape[0]"
        return self.pick(*SPANS).format(c=length, r=self.row)

    def used(self, names: list[str]) -> str:
        name = self.pick(*names)
        return self.pick("{}", "0.5 * {}", "({} + 0.125)", "weft.math.tanh({} * 1.0)").format(name)

    def carry(self, indent: int) -> None:
        """A loop whose turns ask for some of what it carries."""
        k, lines = self.name("k"), list[str]()
        names: list[str] = []
        drawn = self.random.random()
        if drawn < 0.2:
            array, n = self.name("s"), self.random.randint(2, 5)
            self.emit(indent, f"{array} = weft.zeros({n})")
            if self.random.random() < 0.5:
                self.emit(indent, f"{array}[1] = 0.5")
            for update in self.random.sample(ARRAYS, self.random.choice((1, 1, 2))):
                lines.append(update.format(
                    s=array, n=n, p=self.name("p"), q=self.name("q"), u=self.name("u"),
                    t=self.small(k), g=self.small(k), c=self.condition(k),
                ))  # fmt: skip
            names += [f"{array}[0]", f"{array}[{n - 1}]"]
        elif drawn < 0.45:
            joint = [self.name("s") for _ in range(3)]
            self.emit(indent, f"{', '.join(joint)} = 0.0, 0.5, -0.25")
            update = self.random.choice(JOINT)
            names += joint if "{r}" in update else joint[:2]
            lines.append(update.format(
                **dict(zip("pqr", joint, strict=True)), t=self.small(k), g=self.small(k),
                c=self.condition(k),
            ))  # fmt: skip
        for _ in range(self.random.choice((1, 1, 2, 3)) - bool(names)):
            whole = self.random.random() < 0.25
            name = self.name("c" if whole else "s")
            begin, update = self.random.choice(COUNTED if whole else CARRIED)
            self.emit(indent, f"{name} = {begin}")
            if whole:
                term = f"int(m[{self.at(k)}]) % 16"
            elif names and self.random.random() < 0.3:
                term = f"0.1 * {self.used(names)}"
            else:
                term = self.small(k)
            lines.append(update.format(s=name, t=term, g=self.small(k), c=self.condition(k)))
            names.append(name)
        where = f"out[{self.at(k)}]"
        store = f"{where} {self.pick('=', '=', '+=', '-=')} {self.used(names)} + {self.small(k)}"
        if self.random.random() < 0.3:
            store = f"if {self.condition(k)}:\n    {store}"
        lines.insert(self.random.choice((0, len(lines), len(lines))), store)
        if self.random.random() < 0.2:
            lines.append(f"h[({k} + {self.row}) % 5] += {self.pick('1', k, 'n')}")
        self.emit(indent, f"for {k} in range({self.span()}):")
        for line in lines:
            self.emit(indent + 1, line)
        self.floats += [name for name in names if name[0] == "s"]
        self.ints += [name for name in names if name[0] == "c"]


def kernel(random: Random) -> Kernel:
    """Draws one kernel; it is called ``kernel(x, y, m, out, h, n, a)``."""
    dtypes = {name: random.choice(("f32", "f32", *FLOAT_DTYPES) if random.random() < 0.9
                                  else INT_DTYPES) for name in ("x", "y")}  # fmt: skip
    dtypes |= {"m": random.choice(INT_DTYPES), "out": random.choice(("f32", "f32", "f64"))}
    g = Recurrences(random, dtypes, along=random.random() < 0.7)
    g.emit(0, "def kernel(x, y, m, out, h, n, a):")
    g.emit(1, f"for i in range(x.shape[{0 if g.along else 1}]):")
    for _ in range(random.choice((1, 1, 2))):
        (g.carry if random.random() < 0.85 else g.fill)(2)
    if random.random() < 0.3:
        Rows.carry(g, 2)
    if g.floats and random.random() < 0.4:
        g.emit(2, f"out[{g.at('0')}] += {' + '.join(g.floats[-3:])}")
    return Kernel("\n".join(g.lines) + "\n", 2, dtypes, True, False, (40, 140), 140)
