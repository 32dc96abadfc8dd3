"""Random kernels of objects that have several names, in lists, dicts and other objects, and are
changed by statements, methods, functions and functions defined in the loop; and of names that the
ways out of a loop assign. Their results against the Python, run on numbers."""

from __future__ import annotations

from random import Random

import torch

from tests.fuzz.points import POINT, Text, beside_the_python

TYPES = (
    POINT
    + """
@dataclasses.dataclass
class Pair:
    p: P
    q: P

    def turn(self):
        self.p, self.q = self.q, self.p

    def grow(self, by):
        self.p.grow(by)
        self.q.a = self.q.a * 0.5 + self.p.b


def put(p, v):
    r = p
    p = P(v, 1.0)
    r.b = r.b + v
    p.a = r.b
    return p


def late(p, v):
    if v > 0.3:
        p = P(v, p.b)
    p.a += v
    return p


def taken(o, v):
    r = o.p
    o.p = P(v, r.a)
    r.b += v
    return r


def either(p, q, v):
    p, q = q, p
    return p if v > 0 else q


def moved(each, other, v):
    for z in each:
        z.a += v
    other.b = other.b * 0.5 + each[0].a
    return other.a


def first(x, v):
    for j in range(x.shape[0]):
        if x[j] > v:
            found = x[j] + j
            break
    else:
        return -1.0
    return found

"""
)
LOCAL = """
def f(v):
    p.a = p.a * 0.5 + v
    if v > 0:
        q.b = p.a
    return p.b


def g(z, v):
    z.b -= v
    return f(v * 0.5) + z.a


h = lambda z: z.grow(0.25)
"""
REFUSED = "an object that is one of several"


class Draw(Text):
    """The text of a kernel."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.names = 0

    def object(self) -> str:
        return self.pick("p", "q", "r", "o.p", "o.q", f"ps[{self.random.randrange(3)}]", "d['u']")

    def number(self) -> str:
        member = f"{self.object()}.{self.pick('a', 'b')}"
        return self.pick(member, "s", "x[i]", f"0.5 * {member}", f"(x[i] - {member}) * 0.25", "0.5")

    def called(self) -> tuple[str, ...]:
        """Assignments of what functions give that assign to their parameters."""
        return (f"r = {self.pick('late', 'put')}({self.object()}, {self.number()})",
                f"q = taken(o, {self.number()})",
                f"r = either({self.object()}, {self.object()}, {self.number()})")  # fmt: skip

    def statement(self, depth: int = 2) -> list[str]:
        match self.random.randrange(14 if depth else 8):
            case 0 | 1 | 2:
                sign = self.pick("=", "+=", "-=")
                return [f"{self.object()}.{self.pick('a', 'b')} {sign} {self.number()} * 0.5"]
            case 3:
                return [f"{self.object()}.grow({self.number()})"]
            case 4:
                return [self.pick("o.turn()", f"o.grow({self.number()})", "h(r)", "h(p)")]
            case 5:
                return [f"s += f({self.number()}) * 0.25", f"s -= g({self.object()}, 0.5)"]
            case 6:
                return [
                    f"s = moved({self.pick('ps', '[p, q]', '[r, o.q]')}, {self.object()}, 0.25)"
                ]
            case 7:
                return [f"s = s * 0.5 + {self.number()}"]
            case 8 if depth == 2:  # which object a name is must not depend on control flow
                return [self.pick(f"r = {self.object()}", f"o.p = {self.object()}", "p, q = q, p",
                                  f"q = put({self.object()}, {self.number()})", "ps = [r, q, p]",
                                  f"d = {{'u': {self.object()}}}", *self.called())]  # fmt: skip
            case 8 if self.random.random() < 0.2:  # a name may have one of several objects then
                return [self.pick("p, q = q, p", f"o.p = {self.object()}", *self.called())]
            case 8 | 9:
                return [f"if {self.number()} {self.pick('<', '>')} 0.1:", *self.block(depth - 1)]
            case 10:
                return [f"for z in {self.pick('ps', '(p, r)')}:",
                        f"    z.b = z.b * 0.5 + {self.number()}"]  # fmt: skip
            case 11 | 12:
                return self.search(depth)
            case _:
                name, self.loops = f"j{self.loops}", self.loops + 1
                body = self.block(depth - 1)
                self.loops -= 1
                return [f"for {name} in range(i % 3):", *body]

    def search(self, depth: int) -> list[str]:
        """A loop that assigns a name on each way out."""
        name, self.names = f"n{self.names}", self.names + 1
        inside = [f"    {line}" for line in self.block(depth - 1)]
        if self.random.random() < 0.4:
            return [f"{name}k = 0", "while True:", f"    {name} = x[{name}k] + {self.number()}",
                    f"    {name}k += 1", f"    if {name} > 0.2 or {name}k > 3:", *inside,
                    "        break", f"s += {name} * 0.25 + {name}k"]  # fmt: skip
        last = [f"    {name} = {self.number()}"]
        return [f"for {name}k in range(4):", f"    if x[{name}k] > {self.number()}:", *inside,
                f"        {name} = x[{name}k] + 1", "        break", "else:", *last,
                f"s += {name} * 0.5"]  # fmt: skip

    def block(self, depth: int) -> list[str]:
        lines = [line for _ in range(self.random.randint(1, 3)) for line in self.statement(depth)]
        return [f"    {line}" for line in lines]

    def text(self) -> str:
        head = [
            "p, q, s = P(x[i] * 2, 1.0), P(0.5, -1.0), 0.25", "r = p", "o = Pair(q, P(1.0, x[i]))",
            "ps = [q, P(0.25, 0.5), o.q]", "d = {'u': p}", *LOCAL.strip().splitlines(),
        ]  # fmt: skip
        body = [line for _ in range(self.random.randint(4, 9)) for line in self.statement()]
        tail = [
            "out[i, 0] = p.a + 2 * p.b", "out[i, 1] = q.a + 2 * q.b", "out[i, 2] = r.a + 2 * r.b",
            "out[i, 3] = o.p.a + 2 * o.p.b + 4 * o.q.a", "out[i, 4] = ps[0].a + ps[1].b + ps[2].a",
            "out[i, 5] = d['u'].b + s + first(x, s)",
        ]  # fmt: skip
        lines = "\n".join(f"        {line}" for line in [*head, *body, *tail])
        return f"{TYPES}def kernel(x, out):\n    for i in range(x.shape[0]):\n{lines}\n"


def check(random: Random) -> str:
    """Whether a kernel leaves the numbers that the Python leaves, or is refused."""
    out = torch.zeros(2, 5, 6, dtype=torch.float64)
    return beside_the_python(random, Draw(random).text(), out, (REFUSED,))
