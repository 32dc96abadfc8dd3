"""Random recurrences: local arrays that a serial loop carries from turn to turn."""

from __future__ import annotations

from random import Random

from tests.fuzz.smooth import SmoothKernel, renamed

_UPDATES = (  # of element j of an array, in a loop through its elements
    "h[j] = 0.5 * h[j] + s * x[i]",
    "h[j] = weft.math.tanh(h[j]) * x[i] + 0.3 * g[j]",
    "h[j] += 0.2 * z[t % z.shape[0]] * g[j]",
    "g[j] = h[j] * x[i] - 0.4 * g[j]",
    "g[j] = weft.math.sin(h[j])",
    "s = 0.3 * s + h[j] * g[j]",
    "s += z[t % z.shape[0]] * h[j]",
    "if (t + j) % 3 == 1:\n    h[j] = 0.5 * h[j] * h[j]\n    g[j] = s",
    "for q in range(3):\n    h[j] += 0.1 * g[q] * z[q % z.shape[0]]",
    "h[j] = 0.3 * h[(j + 1) % 3] + x[i] * g[j]",  # of which others read
    "g[t % 3] += 0.1 * h[j]",
)
_TURNS = (  # once in a turn
    "h[t % 3] = weft.math.sin(s)",
    "s = weft.math.tanh(s + h[0] * g[1])",
    "out[i] += 0.1 * s * h[1]",
    "for j in range(2):\n    g[j] = 0.6 * g[j + 1] + h[j] * x[i]",
    "if t % 4 == 2:\n    s = s * z[0]\nelse:\n    h[0] = h[0] * 0.5 + s",
    "r = weft.zeros((3,), weft.f64)\nfor j in range(3):\n    for q in range(3):\n"
    "        r[j] += 0.3 * h[q] * x[i]\nfor j in range(3):\n    h[j] = r[j] + 0.2 * s",
)
_RANGES = ("n", "n + 3", "n - 1, -1, -1", "1, n + 4, 2", "z.shape[0]")


def recurrent_kernel(random: Random) -> SmoothKernel:
    """Draws one kernel."""
    lines: list[str] = []

    def emit(depth: int, text: str) -> None:
        lines.extend("    " * depth + line for line in text.splitlines())

    emit(0, "def kernel(x, y, z, m, n, a):")
    emit(1, "out = torch.zeros_like(x)")
    emit(1, "for i in range(x.shape[0]):")
    emit(2, "h = weft.zeros((3,), weft.f64)\ng = weft.zeros((3,), weft.f64)\ns = a")
    emit(2, "h[1] = x[i]\ng[2] = y[i, 0]")
    for _ in range(random.choice((1, 1, 2))):
        emit(2, f"for t in range({random.choice(_RANGES)}):")
        for _ in range(random.randint(1, 3)):
            if random.random() < 0.3:
                emit(3, random.choice(_TURNS))
                continue
            emit(3, "for j in range(3):")
            for _ in range(random.randint(1, 3)):
                emit(4, random.choice(_UPDATES))
    emit(2, "out[i] += s * h[0] + h[1] * g[2] + h[2]")
    emit(1, "return out")
    return SmoothKernel(renamed(random, "\n".join(lines) + "\n"), 1, narrow=False)
