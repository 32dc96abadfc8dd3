"""Random loops that store along rows: their stores may stream, which changes no bit."""

from __future__ import annotations

import math
from random import Random

import torch

import weft
from tests.fuzz.check import function

NEVER = 1 << 60
DTYPES = [torch.float32, torch.float32, torch.float64, torch.int32, torch.int64, torch.int16]
SIZES = [0, 1, 2, 3, 15, 16, 17, 64, 100, 127, 128, 129, 300]


def text(random: Random, rank: int) -> str:
    """A kernel of inputs ``x`` and ``y``, of a row ``z``, of outputs ``o`` and ``p``."""
    names = "ijk"[:rank]
    shifts = [random.randrange(3) for _ in names]
    axes = ", ".join(f"({s}, o.shape[{k}])" for k, s in enumerate(shifts))
    at = ", ".join(names)
    back = ", ".join(f"{n} - {random.randint(0, s)}" for n, s in zip(names, shifts, strict=True))
    row = f"z[{names[-1]} // d]" if random.random() < 0.4 else f"z[{names[-1]}]"
    values = [f"x[{at}]", f"y[{back}]", row, "2", f"x[{back}]", f"({names[-1]} + n)"]

    def value(depth: int) -> str:
        if depth == 0 or random.random() < 0.2:
            return random.choice(values)
        a, b = value(depth - 1), value(depth - 1)
        form = random.choice(("{} + {}", "{} - {}", "{} * {}", "min({}, {})"))
        return f"({form.format(a, b)})"

    loop = f"for {at} in weft.ndrange({axes}):" if rank > 1 else f"for {at} in range{axes}:"
    lines = [f"o[{random.choice((at, back))}] = {value(2)}"]
    if random.random() < 0.5:
        lines.append(f"p[{random.choice((at, at, back))}] = {value(1)}")
    if random.random() < 0.4:
        choice = [f"if {value(0)} > {value(0)}:", f"    a, b = {value(1)}, {value(1)}",
                  "else:", f"    a, b = {value(1)}, {value(0)}"]  # fmt: skip
        lines = [*choice, f"{lines[0]} + a", *(f"{line} * b" for line in lines[1:])]
    body = "\n".join(f"        {line}" for line in lines)
    if rank == 2 and random.random() < 0.5:  # rows, each in turn
        j = f"for j in range({shifts[1]}, o.shape[1]):"
        body = body.replace("        ", "            ")
        loop = f"for i in range({shifts[0]}, o.shape[0]):\n        s = 0"
        body = f"        {j}\n            s += x[i, j]\n        {j}\n{body} + s"
    return f"def kernel(x, y, z, o, p, d: int, n: int):\n    {loop}\n{body}\n"


def placed(random: Random, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same behind an offset, with gaps between rows; and all of the memory."""
    gap, offset = random.choice((0, 0, 1, 5)), random.choice((0, 0, 1, 7, 16))
    *outer, row = values.shape
    whole = torch.full((math.prod(outer) * (row + gap) + offset,), 77, dtype=values.dtype)
    view = whole[offset:].view(*outer, row + gap)[..., :row]
    view.copy_(values)
    return view, whole


def check(random: Random) -> bool:
    """Draws a loop, and runs it with stores that stream and without. Whether any does."""
    rank = random.randint(1, 3)
    shape = [random.choice(SIZES[:7]) for _ in range(rank - 1)] + [random.choice(SIZES)]
    plain = function(drawn := text(random, rank))
    dtypes = [random.choice(DTYPES) for _ in range(5)]
    seed, d, n = random.randrange(1 << 30), random.choice((1, 3, 16, 40)), random.randrange(9)
    memory, streams = [], False
    strict = random.random() < 0.3
    for limit in (NEVER, 0):
        generator, again = torch.Generator().manual_seed(seed), Random(seed)
        tensors, wholes = [], []
        for k, dtype in enumerate(dtypes):
            own = shape[-1:] if k == 2 else shape
            values = torch.randint(-99, 99, own, generator=generator).to(dtype)
            view, whole = placed(again, values)
            tensors.append(view)
            wholes.append(whole)
        compiled = weft.kernel(strict_math=strict)(plain).changed({"streaming_bytes": limit})
        compiled(*tensors, d, n)
        memory.append(wholes)
        streams = any(s.compiled.streaming for s in compiled.specializations)
    for usual, past in zip(*memory, strict=True):
        assert torch.equal(usual, past), f"{drawn}\n{shape}, {dtypes}, {d}, {n}, {seed}"
    return streams
