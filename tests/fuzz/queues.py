"""Random kernels whose inner loop loads in a turn what a later one uses, as Python source.

What a turn computes is drawn as for kernels whose rows are staged; elements of the iteration's own
come out of one or two queues, which hand them on for one to four turns.
"""

from __future__ import annotations

from random import Random

from tests.fuzz.generate import Kernel
from tests.fuzz.staged import Staged


def kernel(random: Random) -> Kernel:
    """Draws one kernel; it is called ``kernel(x, y, m, out, h, n, a)``."""
    dtypes = {name: random.choice(("f32", "f32", "f64")) for name in ("x", "y", "out")}
    g, turns = Staged(random, {**dtypes, "m": "i32"}, along=True), 8
    queues = [(name, random.randint(1, 4)) for name in random.choice(("x", "y", "xy"))]
    g.emit(0, "def kernel(x, y, m, out, h, n, a):")
    g.emit(1, "for i in range(x.shape[0]):")
    g.emit(2, "s = a")
    g.emit(2, f"for t in range({g.pick('x.shape[1]', 'min(n, x.shape[1])', '1, x.shape[1]')}):")

    def element(name: str, place: str) -> str:
        return f"{name}[i, ({place} + t) % {name}.shape[1]]"

    for name, far in queues:
        for k in range(far):
            g.emit(3, f"{name}{k} = {element(name, str(k))}")
    g.emit(3, f"for j in range({turns}):")
    for name, far in queues:
        g.emit(4, f"{name}_ = {name}0")
        for k in range(far - 1):
            g.emit(4, f"{name}{k} = {name}{k + 1}")
        g.emit(4, f"{name}{far - 1} = {element(name, f'min(j + {far}, {turns - 1})')}")
        g.floats.append(f"{name}_")
    own = " + ".join(f"{name}_" for name, _ in queues)
    g.emit(4, f"s = 0.5 * s + 0.1 * weft.math.tanh({g.value('j')}) + 0.1 * weft.math.tanh({own})")
    g.emit(3, f"out[i, t] = s + {g.alike('0')}")
    text = "\n".join(g.lines) + "\n"
    return Kernel(text, 2, {**dtypes, "m": "i32"}, False, False, sizes=(33,), largest=33)
