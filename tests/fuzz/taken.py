"""Random loops whose iterations read elements and overwrite them, under conditions: what compilers
load and store by masks. Half of ``out`` is overwritten, the other half has what was read."""

from __future__ import annotations

from random import Random

from tests.fuzz.generate import Generator, Kernel

SIZES = (67, 130) * 4  # mostly more than all lanes have


def kernel(random: Random) -> Kernel:
    """Draws one kernel; it is called ``kernel(x, y, m, out, h, n, a)``."""
    g = Generator(random)
    g.dtypes = {"x": g.pick("f32", "f64", "f16"), "y": g.pick("f32", "f64"), "m": "i32",
                "out": g.pick("f32", "f64")}  # fmt: skip
    g.emit(0, "def kernel(x, y, m, out, h, n, a):")
    g.emit(1, "half = out.shape[0] // 2")
    g.emit(1, "for i in range(half):")
    g.emit(2, f"f0, f1, c0 = {g.pick('0.5', 'x[i] * 1.0')}, y[i] * 1.0, i % 5")
    if random.random() < 0.3:
        line(g, 2)
    block(g, 2, 0)
    g.emit(2, f"out[half + i] = {g.pick('f0', 'f0', 'f0 + f1', 'f0 - c0')}")
    return Kernel("\n".join(g.lines) + "\n", 1, g.dtypes, False, False, SIZES, SIZES[-1])


def condition(g: Generator) -> str:
    return g.pick("x[i] > 0", "y[i] < 0.25", "i % 3 == 1", "i % 4 > 1", "m[i] > 0", "x[i] > y[i]")


def block(g: Generator, indent: int, depth: int) -> None:
    """A choice between branches; each of their lines reads, overwrites or computes."""
    ways = ["if", *["elif"] * g.random.choice((0, 0, 1)), *["else"] * (g.random.random() < 0.7)]
    for k, way in enumerate(ways):
        g.emit(indent, f"{way}:" if way == "else" else f"{way} {condition(g)}:")
        if k == 0 and g.random.random() < 0.5:
            g.emit(indent + 1, f"f0, out[i] = out[i] * 1.0, {g.pick('0.0', 'f1')}")
            continue
        for _ in range(g.random.randint(1, 2)):
            if depth < 1 and g.random.random() < 0.2:
                block(g, indent + 1, depth + 1)
            else:
                line(g, indent + 1)
    if g.random.random() < 0.3:
        line(g, indent)


def line(g: Generator, indent: int) -> None:
    name = g.pick("f0", "f0", "f1")
    value = g.pick("f0 * 0.5", "f1 - f0", "f1", "-1.5", "0.0")
    forms = (
        f"{name} = out[i] * 1.0", f"out[i] = {value}", f"{name}, out[i] = out[i] * 1.0, {value}",
        f"{name}, out[i] = out[i] * 1.0, {value}", f"out[i] {g.pick('+=', '-=')} {value}",
        f"{name} = {value}", "c0 = (c0 + 1) % 5",
    )  # fmt: skip
    g.emit(indent, g.pick(*forms))
