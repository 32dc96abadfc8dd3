"""Random well-typed kernels, as Python source.

The text of a kernel is drawn from a ``random.Random``, so hypothesis can shrink what it draws.
Every kernel is free of races and in range by construction. Branches and trip counts depend on
integers and on elements as they were loaded, never on computed floats: rounding must not decide
which way a kernel goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

# Where a serialised loop may stand, and what says that it is one.
AROUND = ("if n > -99:", "for _ in weft.serial(range(1)):", "with torch.no_grad():", "try:", "")
IN_ORDER = ("True", "not False", "n > -99", "PI > 3")

FLOAT_DTYPES = ("f32", "f64", "f16", "bf16")
INT_DTYPES = ("i32", "i64", "i16", "i8", "u8")


@dataclass
class Kernel:
    """A kernel's source and what to call it with."""

    text: str
    rank: int
    dtypes: dict[str, str]  # of the tensors x, y (read), m (an integer tensor, read) and out
    histogram: bool
    reduces: bool
    sizes: tuple[int, ...] = ()  # that a dimension may have, too
    largest: int = 17  # that it may have: loops in many others take the plain Python long


@dataclass
class Generator:
    random: Random
    rank: int = 1
    dtypes: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    floats: list[str] = field(default_factory=list)
    ints: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)  # loop indices: read, never assigned
    loops: int = 0
    breakable: int = 0
    fresh: int = 0

    # --- expressions ------------------------------------------------------------------------------
    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def place(self) -> str:
        return ", ".join("ij"[: self.rank])

    def int_expression(self, depth: int = 0) -> str:
        """A Python or 32/64-bit integer that stays small."""
        if depth > 2 or self.random.random() < 0.3:
            leaves = [
                *self.ints,
                *self.frozen,
                *"ij"[: self.rank],
                str(self.random.randint(0, 9)),
                "n",
            ]
            return self.random.choice(leaves)
        a, b = self.int_expression(depth + 1), self.int_expression(depth + 1)
        kind = self.random.randrange(11)
        if kind < 3:
            return f"({a} {self.pick('+', '-', '*')} {b}) % {self.random.randint(2, 23)}"
        if kind == 3 and self.random.random() < 0.3:  # as a float, of which runs may be found
            return f"weft.i32(weft.floor(weft.i32({a}) / {self.pick('3', '16', '17')}))"
        if kind == 3 and self.random.random() < 0.3:  # exact, with ties
            return f"{self.pick('round', 'int')}(({a}) / {self.random.choice([-3, 2, 3, 4, 6])})"
        if kind == 3:
            return f"{a} // {self.random.choice([-3, 2, 3, 4, 7])}" if depth else f"({a}) // 3"
        if kind == 4:
            return f"{self.pick('min', 'max')}({a}, {b})"
        if kind == 5:
            return f"abs({a} - {b})"
        if kind == 6:
            return f"({a} if {self.condition(depth + 1)} else {b})"
        if kind == 7:
            read = self.loaded()  # which Python makes an int of only where it is one
            return f"int({read} * 4 if abs({read}) < 99 else 7) % 11"
        if kind == 8:
            return f"(({a}) {self.pick('&', '|', '^')} {self.random.randint(0, 15)}) % 19"
        if kind == 9:
            return f"int(m[{self.place()}]) % {self.random.randint(2, 9)}"
        return f"({a} - {b})"

    def condition(self, depth: int = 0) -> str:
        compare = self.pick("<", "<=", ">", ">=", "==", "!=")
        kind = self.random.randrange(6)
        if kind == 0 and depth < 2:
            left, word = self.condition(depth + 1), self.pick("and", "or")
            return f"({left} {word} {self.condition(depth + 1)})"
        if kind == 1 and depth < 2:
            return f"(not {self.condition(depth + 1)})"
        if kind == 2:
            return f"({self.loaded()} {compare} {self.random.choice([-0.5, 0.25, 1.0])})"
        if kind == 3:
            low, middle = self.int_expression(2), self.int_expression(2)
            return f"({low} < {middle} <= {self.random.randint(3, 12)})"
        return f"({self.int_expression(2)} {compare} {self.int_expression(2)})"

    def loaded(self) -> str:
        """An element of x or y as a float that is the same everywhere."""
        return f"float({self.pick('x', 'y')}[{self.place()}])"

    def float_expression(self, depth: int = 0) -> str:
        if depth > 2 or self.random.random() < 0.25:
            leaves = [*self.floats, f"x[{self.place()}]", f"y[{self.place()}]", "a"]
            leaf = self.random.choice([*leaves, str(self.random.choice([0.5, -1.25, 2.0, 0.1]))])
            if "[" in leaf and self.dtypes[leaf[0]] in ("f16", "bf16"):
                return f"weft.f32({leaf})"
            # No bare integer: Python's max(i8, float) is one of both, a compiled one a float.
            return f"({leaf} * 1.0)" if "[" in leaf and self.dtypes[leaf[0]] in INT_DTYPES else leaf
        a, b = self.float_expression(depth + 1), self.float_expression(depth + 1)
        kind = self.random.randrange(10)
        if kind < 4:
            return f"({a} {self.pick('+', '-', '*')} {b})"
        if kind == 4:
            return f"({a} / (abs({b}) + 1.0))"
        if kind == 5:
            return f"{self.pick('min', 'max')}({a}, {b})"
        if kind == 6:
            return f"weft.math.{self.pick('sin', 'tanh', 'cos')}({a})"
        if kind == 7:
            return f"weft.math.sqrt(abs({a}))"
        if kind == 8:
            return f"({a} if {self.condition(depth + 1)} else {b})"
        return f"({a} * ({self.int_expression(2)}))"

    def bounded(self, depth: int) -> str:
        """A float expression that no loop can make grow until it overflows."""
        return f"weft.math.tanh({self.float_expression(depth)})"

    # --- statements -------------------------------------------------------------------------------
    def emit(self, indent: int, line: str) -> None:
        self.lines.append("    " * indent + line)

    def statement(self, indent: int, depth: int) -> None:
        kind = self.random.randrange(12 if depth < 3 else 6)
        if kind <= 1:
            name = self.random.choice(self.floats)
            if self.random.random() < 0.5:
                self.emit(indent, f"{name} {self.pick('+=', '-=')} {self.bounded(1)}")
            else:
                self.emit(indent, f"{name} = 2.5 * {self.bounded(0)}")
        elif kind <= 3:
            name = self.random.choice(self.ints)
            if self.random.random() < 0.4:
                self.emit(indent, f"{name} {self.pick('+=', '-=')} ({self.int_expression(1)}) % 7")
            else:
                self.emit(indent, f"{name} = ({self.int_expression()}) % 101")
        elif kind == 4 and self.random.random() < 0.3:
            self.shifted(indent, self.random.choice(self.floats))
        elif kind == 4:
            f, k = self.random.choice(self.floats), self.random.choice(self.ints)
            self.emit(indent, f"{f}, {k} = 0.25 * {f}, ({k} + {self.int_expression(2)}) % 13")
        elif kind == 5 and self.random.random() < 0.3:
            self.taken(indent)
        elif kind == 5:
            self.emit(
                indent, f"out[{self.place()}] {self.pick('=', '+=')} {self.float_expression(1)}"
            )
        elif kind <= 7:
            self.branch(indent, depth)
        elif kind <= 9:
            self.for_loop(indent, depth)
        elif kind == 10 and self.random.random() < 0.15:
            self.moved_along(indent)
        elif kind == 10:
            self.while_loop(indent, depth)
        elif self.breakable and self.random.random() < 0.8:
            if self.random.random() < 0.4:
                self.assigned_or_left(indent)
            else:
                self.emit(indent, f"if {self.condition()}:")
                self.emit(indent + 1, self.pick("break", "continue"))
        else:
            self.emit(indent, f"if {self.condition()}:")
            self.emit(indent + 1, f"{self.random.choice(self.floats)} = {self.bounded(1)}")

    def shifted(self, indent: int, f: str) -> None:
        """The exponentials of two numbers less one of them, as a running softmax has them."""
        self.fresh += 1
        b, m = f"b{self.fresh}", f"m{self.fresh}"
        self.emit(indent, f"{b} = {self.bounded(1)}")
        chosen = f"({b} if {self.condition()} else {f})"
        self.emit(indent, f"{m} = {self.pick(f'max({f}, {b})', f'min({b}, {f})', chosen)}")
        parts = [f"weft.math.exp({name} - {m})" for name in (f, b)]
        self.random.shuffle(parts)
        self.emit(indent, f"{f} = weft.math.tanh({parts[0]} - 0.25 * {parts[1]} * {f})")

    def moved_along(self, indent: int) -> None:
        """Numbers that move along names from turn to turn, as in a filter. Each is an integer at
        first, and is found out to be a float once the one before it is."""
        self.fresh += 1
        names = [f"d{self.fresh}_{k}" for k in range(self.random.randint(2, 30))]
        self.emit(indent, f"{' = '.join(names)} = {self.random.randint(0, 3)}")
        self.emit(indent, f"for {names[0]}_t in range(abs({self.int_expression(2)}) % 5):")
        if self.random.random() < 0.5:
            for after, before in reversed([*zip(names[1:], names[:-1], strict=True)]):
                self.emit(indent + 1, f"{after} = {before}")
        else:
            self.emit(indent + 1, f"{', '.join(names[1:])}, = {', '.join(names[:-1])},")
        self.emit(indent + 1, f"{names[0]} = 0.5 * {names[0]} + {self.bounded(1)}")
        f = self.random.choice(self.floats)
        self.emit(indent, f"{f} = 0.5 * {f} + 0.25 * ({names[-1]} - {self.pick(*names)})")

    def body(self, indent: int, depth: int) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(indent, depth)

    def branch(self, indent: int, depth: int) -> None:
        self.emit(indent, f"if {self.condition()}:")
        self.body(indent + 1, depth + 1)
        if self.random.random() < 0.3:
            self.emit(indent, f"elif {self.condition()}:")
            self.body(indent + 1, depth + 1)
        if self.random.random() < 0.5:
            self.emit(indent, "else:")
            self.body(indent + 1, depth + 1)

    def taken(self, indent: int) -> None:
        """An element is read and overwritten, one of the two or both under a condition."""
        name, element = self.random.choice(self.floats), f"out[{self.place()}]"
        load, other = f"{name} = 0.5 * {element}", f"{name} = {self.bounded(1)}"
        store = f"{element} = {self.pick('0.0', '-1.5', self.bounded(1))}"
        form, condition = self.random.randrange(4), self.condition()
        if form == 1:
            self.emit(indent, load)
        self.emit(indent, f"if {condition}:")
        if form != 1:
            self.emit(indent + 1, load)
        if form == 2:
            self.emit(indent, f"if {condition}:")
        if form != 3:
            self.emit(indent + 1, store)
        else:
            self.emit(indent + 1, f"{element} += {name}")
        if form != 2 and self.random.random() < 0.7:
            self.emit(indent, "else:")
            self.emit(indent + 1, other)

    def assigned_or_left(self, indent: int) -> None:
        """Names that all branches assign but those which jump, and that are read after them."""
        self.fresh += 1
        name, other = f"v{self.fresh}", f"u{self.fresh}"
        ways = [("if", self.condition()), ("elif", self.condition()), ("else", "")]
        ways = ways[:1] + ways[1:2] * self.random.randint(1, 2) + ways[2:]
        left = {self.random.randrange(len(ways)) for _ in range(self.random.randint(1, 2))}
        for k, (word, condition) in enumerate(ways):
            self.emit(indent, f"{word} {condition}:" if condition else f"{word}:")
            if k in left:
                self.emit(indent + 1, self.pick("break", "continue"))
                continue
            if self.random.random() < 0.3:
                self.emit(indent + 1, f"if {self.condition()}:")
                self.emit(indent + 2, self.pick("break", "continue"))
            self.emit(indent + 1, f"{name} = ({self.int_expression(1)}) % 5")
            self.emit(indent + 1, f"{other} = {self.bounded(1)}")
        if len(left) < len(ways):
            c, f = self.random.choice(self.ints), self.random.choice(self.floats)
            self.emit(indent, f"{c} = ({c} + {name}) % 11")
            self.emit(indent, f"{f} = 0.5 * {f} + {other}")

    def for_loop(self, indent: int, depth: int) -> None:
        self.fresh += 1
        name = f"k{self.fresh}"
        top = self.int_expression(2)
        form = self.random.randrange(4)
        if form == 0:
            span = f"abs({top}) % 5"
        elif form == 1:
            span = f"{self.random.randint(-1, 2)}, abs({top}) % 6"
        elif form == 2:
            span = f"abs({top}) % 7, -2, -{self.random.randint(1, 3)}"
        else:
            span = f"0, {self.random.randint(0, 8)}, {self.random.randint(1, 3)}"
        self.emit(indent, f"for {name} in range({span}):")
        self.frozen.append(name)
        self.breakable += 1
        self.body(indent + 1, depth + 1)
        self.breakable -= 1
        self.frozen.pop()

    def while_loop(self, indent: int, depth: int) -> None:
        self.fresh += 1
        name = f"w{self.fresh}"
        self.emit(indent, f"{name} = abs({self.int_expression(2)}) % 6")
        self.emit(
            indent,
            f"while {name} > 0{' and ' + self.condition() if self.random.random() < 0.3 else ''}:",
        )
        self.emit(indent + 1, f"{name} -= 1")
        self.frozen.append(name)
        self.breakable += 1
        self.body(indent + 1, depth + 1)
        self.breakable -= 1
        self.frozen.pop()


def serialise(g: Generator, first: int) -> None:
    """Has the kernel's loop, its lines from ``first`` on, run in order, in some place: what it adds
    to the loop is a race otherwise."""
    g.emit(2, f"h[1] = (h[1] * {g.random.randint(2, 31)} + i + 1) % 1009")
    around = g.pick(*AROUND)
    deeper = "    " * bool(around)
    hint = f"    weft.loop_config(serialize={g.pick(*IN_ORDER)})"
    g.lines[first:] = [deeper + line for line in (hint, *g.lines[first:])]
    if around:
        g.lines.insert(first, "    " + around)
    if around == "try:":
        g.lines += ["    finally:", "        pass"]


def box(g: Generator) -> None:
    """A device loop over ranges of several axes that may be empty or reversed, each: ``n`` is from
    0 to 6."""
    axes = "pqrs"[: g.random.randint(2, 4)]
    ends = ("0", "2", "3", "n", "n - 2", "2 * n - 5", "3 - n")
    bounds = ", ".join(f"({g.pick(*ends)}, {g.pick(*ends)})" for _ in axes)
    g.emit(1, f"for {', '.join(axes)} in weft.ndrange({bounds}):")
    g.emit(2, f"h[({' + '.join(axes)}) % 5] += {g.pick('1', 'p + 3', 'n')}")


def sums(g: Generator) -> None:
    """Sums over all axes of a nest but one or two, the elements of which are theirs alone."""
    axes = g.random.sample("pqr", g.random.randint(2, 3))
    ends = {k: g.pick("x.shape[0]", "x.shape[0] - 1", "n", "3", "17, 20") for k in axes}
    ends[axes[0]] = g.pick("5", "n % 5", "1, 4", "4, -1, -1", "0, 5, 2")
    for depth, k in enumerate(g.random.sample(axes, len(axes))):
        g.emit(1 + depth, f"for {k} in range({ends[k]}):")
    at = g.pick(axes[0], axes[0], f"4 - {axes[0]}")
    value = g.pick(f"{axes[1]} + 3", f"{axes[0]} - 2 * {axes[1]}", "n")
    if g.random.random() < 0.4:
        g.emit(1 + len(axes), f"if {g.pick(f'{axes[0]} < 3', f'{axes[1]} % 3 > 0', 'n > 2')}:")
        axes.append("")
    g.emit(1 + len(axes), f"h[{at}] {g.pick('+=', '+=', '-=', '*=')} {value}")


def totals(g: Generator) -> None:
    """Sums and extrema of all iterations of a loop, in elements that no iteration chooses; what
    makes one of them no reduction is drawn, too."""
    updates = ("weft.atomic_max({}, {})",) if g.random.random() < 0.3 else ("{} += {}", "{} -= {}")
    g.emit(1, f"for p in range({g.pick('x.shape[0]', 'n', '17')}):")
    for _ in range(g.random.randint(1, 3)):
        depth = 2
        if g.random.random() < 0.4:
            g.emit(depth, f"for q in range({g.pick('p', '3', 'n')}):")
            depth += 1
        if g.random.random() < 0.5:
            g.emit(depth, f"if {g.pick('p % 3 == 1', 'p > n', 'n > 3')}:")
            depth += 1
        at, value = g.pick("0", "1", "n % 2", "4", "p % 5"), g.pick("p", "1", "3 - p * n")
        g.emit(depth, g.pick(*updates).format(f"h[{at}]", value))


def many(g: Generator) -> None:
    """A device loop with many stores to few elements of one tensor."""
    g.emit(1, "for p in range(1):")
    for _ in range(g.random.randint(10, 60)):
        g.emit(2, f"h[{g.random.randrange(5)}] {g.pick('=', '+=')} {g.pick('p', 'n', '3')}")


def kernel(random: Random) -> Kernel:
    """Draws one kernel; it is called ``kernel(x, y, m, out, h, n, a)``."""
    g = Generator(random)
    g.rank = random.choice((1, 1, 2))
    for name in ("x", "y"):
        g.dtypes[name] = random.choice(FLOAT_DTYPES if random.random() < 0.75 else INT_DTYPES)
    g.dtypes["m"] = random.choice(INT_DTYPES)
    g.dtypes["out"] = random.choice(("f32", "f64"))
    histogram, reduces = random.random() < 0.3, random.random() < 0.3
    g.emit(0, "def kernel(x, y, m, out, h, n, a):")
    if reduces:
        g.emit(1, random.choice(("total = 0", "total = 0.0", "total = 1.5")))
    form = random.randrange(3)
    place = g.place()
    loop = len(g.lines)
    if form == 0:
        g.emit(1, f"for {place} in out:" if g.rank > 1 else "for i in out:")
    else:
        extents = ", ".join(f"out.shape[{k}]" for k in range(g.rank))
        g.emit(1, f"for {place} in weft.ndrange({extents}):")
    g.floats = ["f0", "f1"]
    g.ints = ["c0", "c1"]
    g.emit(2, f"f0 = {random.choice(['0', '0.0', 'a'])}")
    g.emit(
        2,
        f"f1 = weft.f32(x[{place}])"
        if g.dtypes["x"] in ("f16", "bf16")
        else f"f1 = x[{place}] * 1.0",
    )
    g.emit(2, "c0 = 1")
    g.emit(2, f"c1 = {random.choice(['i', 'n', 'i * 2 + 1', '-3'])}")
    if random.random() < 0.2:
        g.emit(2, f"if {g.condition()}:")
        g.emit(3, "continue")
    for _ in range(random.randint(1, 4)):
        g.statement(2, 0)
    g.emit(2, f"out[{place}] {random.choice(('=', '+='))} f0 + f1 * c0 - c1")
    if histogram:
        g.emit(2, f"h[({g.int_expression()}) % 5] += {random.choice(('1', 'c0 % 3', '2'))}")
    if reduces:
        g.emit(2, random.choice(("total += f1", "total = max(total, f0 + f1)", "total -= 0.5 * f0",
                                 "total = total + (f0 if c0 > 2 else f1)")))  # fmt: skip
    if random.random() < 0.25:
        serialise(g, loop)
    if random.random() < 0.2:
        box(g)
    if random.random() < 0.15:
        sums(g)
    if random.random() < 0.15:
        totals(g)
    if random.random() < 0.05:
        many(g)
    if reduces:
        g.emit(1, "return total")
    return Kernel("\n".join(g.lines) + "\n", g.rank, g.dtypes, histogram, reduces)
