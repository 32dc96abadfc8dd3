"""Derivatives of random kernels where two operands of a minimum or maximum are equal.

The documented rule gives half to each, which is what central differences give: those of
``max(a, b)`` along (u, v) are (max(u, v) - max(-u, -v)) / 2 = (u + v) / 2.
"""

from __future__ import annotations

from random import Random

import torch

import weft
from tests.fuzz.check import function
from tests.fuzz.gradients import EXACT, finite_differences, forward_mode, reverse_mode

_SMOOTH = ("{}", "weft.math.sin({})", "{0} * {0} + a", "weft.math.exp({}) - 0.5", "{} / (n + 1)")
_EXTREMES = (
    "{kind}({p}, {q})", "{kind}({q}, {p})", "weft.{kind}({p}, {q})",
    "({p} + {q} + (1 if '{kind}' == 'max' else -1) * abs({p} - {q})) * 0.5",
)  # fmt: skip
_LOOPS = {
    "local": """\
        best = y[i, 0] * 0.0 {below}
        for k in range(y.shape[1]):
            best = {kind}(best, {inner})
        out[i] = best * f + z[i % z.shape[0]]
""",
    "own": """\
        out[i] = f * z[i % z.shape[0]]
        for k in range(y.shape[1]):
            weft.atomic_{kind}(s[i], {inner})
""",
    "none": """\
        out[i] = f * z[i % z.shape[0]] + y[i, 0]
""",
}


def tied_kernel(random: Random) -> str:
    """The text of a kernel of x, y, z, m, n and a, where y[i, 0] is x[i]."""
    kind, smooth = random.choice(("min", "max")), random.choice(_SMOOTH)
    p, q = smooth.format("x[i]"), smooth.format("y[i, 0]")
    below = "- 50.0" if kind == "max" else "+ 50.0"
    inner = random.choice(_SMOOTH).format("y[i, k]")
    loop = random.choice(list(_LOOPS))
    start = f"torch.zeros_like(x) {below}"
    lines = [
        "def kernel(x, y, z, m, n, a):",
        "    out = torch.empty_like(x)",
        *([f"    s = {start}"] if loop == "own" else []),
        f"    total = {below.replace(' ', '')}",
        "    for i in out:",
        f"        f = {random.choice(_EXTREMES).format(kind=kind, p=p, q=q)}",
        _LOOPS[loop].format(kind=kind, below=below, inner=inner),
        f"        total = {kind}(total, {random.choice(_SMOOTH).format('z[i % z.shape[0]]')})",
        f"    return out, total{', s' if loop == 'into' else ''}",
    ]
    return "\n".join(lines).replace("'max' == 'max'", "True").replace("'min' == 'max'", "False")


def check_ties(random: Random) -> str:
    """Draws a kernel and numbers with ties of two, and compares its derivatives with differences of
    the Python; AssertionError where they differ."""
    text = tied_kernel(random)
    kernel = weft.kernel(function(text))
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    rows, columns, extent = random.choice((1, 2, 4)), random.choice((2, 3)), random.choice((1, 2))
    x = torch.randn(rows, generator=generator, dtype=torch.float64)
    y = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    z = torch.randn(extent, generator=generator, dtype=torch.float64)
    y[:, 0] = x
    y[:, -1] = y[:, random.choice((0, -2))]  # of several tied elements, at most two
    if columns == 2 or (y[:, 0] == y[:, -1]).all():
        y[:, 1:-1] -= 3.0
    m, n, a = torch.zeros(rows), random.randint(0, 2), 0.75
    directions = tuple(
        torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in (x, y, z)
    )
    differences, error, _ = finite_differences(kernel, (x, y, z), directions, m, n, a)
    tangents = forward_mode(kernel, (x, y, z), directions, m, n, a)
    weights = tuple(torch.randn(d.shape, generator=generator, dtype=torch.float64)
                    for d in differences)  # fmt: skip
    pulled = reverse_mode(kernel, (x, y, z), weights, m, n, a)
    for tangent, difference, e in zip(tangents, differences, error, strict=True):
        assert ((tangent - difference).abs() <= EXACT * (1 + difference.abs()) + 4 * e).all(), (
            f"{text}\n{x}\n{y}\n{z}\n{n=}\ntangents {tangent}, differences {difference}"
        )
    along = sum((w * d).sum() for w, d in zip(weights, tangents, strict=True))
    back = sum((g * u).sum() for g, u in zip(pulled, directions, strict=True))
    assert abs(along - back) <= EXACT * (1 + abs(along)), f"{text}\n{x}\n{y}\n{z}\n{along} {back}"
    return "compared"
