"""Random kernels of tensors with floats of eight bits: compiled against the undecorated Python,
which reads elements through casts, as torch computes nothing with them. Equal bit by bit."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch.torch_version import TorchVersion

import weft
from tests.fuzz.check import function, shaped

DTYPES = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
# Those of tensors: the plain Python stores as torch does, and before torch 2.13 what is too large
# for f8e4m3 is NaN there. A cast by ``weft.f8e4m3`` is the same with any torch.
STORED = [k for k in DTYPES if k != "f8e4m3" or TorchVersion(torch.__version__) >= "2.13"]


def expression(random: Random, depth: int = 3) -> str:
    def inner() -> str:
        return expression(random, depth - 1)

    if not depth or random.random() < 0.15:
        return random.choice(["a", "b", "a", "b", "c", "0.3", "3.0", "448.0"])
    match random.randrange(6):
        case 0 | 1:
            return f"({inner()} {random.choice('+-*')} {inner()})"
        case 2:
            return f"weft.{random.choice(list(DTYPES))}({inner()})"
        case 3:
            return f"({inner()} if {inner()} {random.choice('<>')} {inner()} else {inner()})"
        case 4:
            return f"weft.{random.choice(('min', 'max'))}({inner()}, {inner()})"
        case _:
            return f"(-abs({inner()}))"


def text(random: Random) -> str:
    kind = random.choice(STORED)
    lines = ["def kernel(x, y, c, out, n):",
             "    for i in range(x.shape[0]):",
             "        a, b = weft.f32(x[i]), weft.f32(y[i])"]  # fmt: skip
    if random.random() < 0.5:
        lines += [f"        few = weft.zeros(3, dtype=weft.{kind})",
                  "        for k in range(n):",
                  f"            few[k] = {expression(random, 2)}",
                  f"            a = a + weft.f32(few[{random.randrange(3)}])"]  # fmt: skip
    if random.random() < 0.5:
        lines += [f"        v = weft.{kind}({expression(random)})", "        b = v"]
    lines += [f"        out[i] = {expression(random)}",
              f"        y[i] = weft.f32(y[i]) {random.choice('+-*')} {expression(random, 1)}",
              ""]  # fmt: skip
    return "\n".join(lines)


def check(random: Random, call: Any = lambda kernel, given: kernel(*given)) -> None:
    """Draws a kernel and runs it both ways; AssertionError where they differ."""
    drawn = text(random)
    plain = function(drawn)
    count, n = random.choice((0, 1, 2, 3, 17)), random.randint(0, 3)
    c = random.choice((0.0, 1e-3, -2.5, 70000.0))

    def numbers(bits: range = range(256)) -> torch.Tensor:
        drawn_bits = torch.tensor([random.choice(bits) for _ in range(count)], dtype=torch.uint8)
        values = drawn_bits.view(DTYPES[random.choice(STORED)])
        return shaped(random, values)

    given = [numbers(), numbers(), numbers()]
    mine = [v.clone() for v in given]
    plain(*mine[:2], c, mine[2], n)
    call(weft.kernel(plain, strict_math=True), [*given[:2], c, given[2], n])
    for a, b in zip(mine, given, strict=True):
        torch.testing.assert_close(b.cpu().float(), a.cpu().float(), rtol=0, atol=0, equal_nan=True,
                                   msg=lambda m: f"{drawn}\n{given}, {c}, {n}\n{m}")  # fmt: skip
