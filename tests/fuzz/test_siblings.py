"""Random loops side by side, over one row: what they share may go from one to the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random

import pytest
import torch

import weft
from tests.fuzz.check import function

COUNT = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "24"))
PARTS = max(COUNT // 100, 1)  # so that several processes take part

pytestmark = pytest.mark.fuzz


def expression(random: Random, depth: int, reads: Sequence[str]) -> str:
    if depth == 0:
        return random.choice((*reads, "x[i, j]", "x[i, j]", "w[j]", "s", "t", "0.5"))
    a = expression(random, depth - 1, reads)
    if random.random() < 0.5:
        # Few different ones, so that they are met again.
        name = random.choice(("exp", "tanh"))
        return f"weft.math.{name}({random.choice(('x[i, j] - t', 'w[j]', 'w[j]', a))})"
    b = expression(random, depth - 1, reads)
    return random.choice((f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"{a} / (2.0 + t * t)",
                          f"min({a}, {b})"))  # fmt: skip


def loop(random: Random) -> list[str]:
    ends = "0, m" if random.random() < 0.9 else random.choice(("1, m", "0, m - 1"))
    lines = [f"        for j in range({ends}):"]
    for _ in range(random.choice((1, 1, 2, 3))):
        array = random.choice("yyzv")
        reads = random.choice(
            [(), (), (), (), ("y[i, j]",), ("z[i, j]",), (f"{array}[i, m - 1 - j]",)]
        )
        value = expression(random, random.randint(1, 2), reads)
        kind = random.random()
        if kind < 0.3:
            lines.append(f"            s += {value}")
        elif kind < 0.6:
            lines.append(f"            {array}[i, j] = {value}")
        elif kind < 0.9:
            lines.append(f"            {array}[i, j] += {value}")
        elif kind < 0.95:
            lines.append(f"            t = max(t, {value})")
        else:
            lines.append(f"            if x[i, j] > 0.0:\n                {array}[i, j] = {value}")
    if random.random() < 0.1:
        lines.append(f"        {random.choice('yz')}[i, 0] += s")
    return lines


def drawn(random: Random) -> str:
    lines = ["def kernel(x, w, y, z, v):", "    m = x.shape[1]", "    for i in range(x.shape[0]):",
             "        s = 0.25", "        t = -0.5"]  # fmt: skip
    for _ in range(random.randint(2, 5)):
        lines += loop(random)
        if random.random() < 0.2:
            lines.append("        s = s / (1.0 + s * s)")
    return "\n".join(lines) + "\n"


def check_siblings(random: Random) -> None:
    """A kernel leaves the numbers that the undecorated Python leaves."""
    text = drawn(random)
    kernel = weft.kernel(strict_math=random.random() < 0.2)(function(text))
    shape = random.choice(((2, 5), (1, 1), (3, 17), (2, 40)))
    dtype = random.choice((torch.float64, torch.float64, torch.float32))
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, generator=generator)

    x, w = normal(*shape), normal(shape[1])
    y, z, v = (normal(*shape) for _ in range(3))
    if random.random() < 0.2:
        y = y.T.contiguous().T
    wide = [a.double().clone() for a in (x, w, y, z, v)]
    kernel.interpret(*wide)
    narrow = [a.clone() for a in (x, w, y, z, v)]  # where a float32 overflows, say in exp of a sum
    kernel.interpret(*narrow)
    found = [a.clone() for a in (x, w, y, z, v)]
    kernel(*found)
    exact = 1e-9 if dtype is torch.float64 else 1e-2
    for name, a, b, c in zip("xwyzv", found, wide, narrow, strict=True):
        if not (b.abs() < 1e4).all():
            return  # a map that amplifies every rounding
        slack = exact * (1 + b.abs().max())
        if not ((c.double() - b).abs() <= slack)[c.isfinite()].all():
            return  # a difference of large numbers
        agree = (a.double() - b).abs() <= slack
        assert torch.where(c.isfinite(), agree, ~a.isfinite()).all(), f"{name} of\n{text}\n{b}\n{a}"


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.slow
def test_random_loops_side_by_side(part: int) -> None:
    random = Random()
    for _ in range(-(-COUNT // PARTS)):
        seed = random.randrange(1 << 40)
        try:
            check_siblings(Random(seed))
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
