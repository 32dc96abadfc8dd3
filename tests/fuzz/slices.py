"""Random accumulations at places that data choose, in rows that the outermost index may keep apart:
what the undecorated Python gives, on one thread and on several, exactly.

Numbers are small integers, whose sums are the same in any order. The gradient of a loop that reads
such places accumulates there.
"""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.check import function
from weft.errors import CompileError
from weft.runtime.overlap import OverlapWarning

ROWS = ("p", "p", "p", "p + 1", "N - 1 - p", "2 * p", "p // 2", "p % 2", "0", "m[p, q]", "q % 3")
COLUMNS = ("m[p, q]", "m[p, q]", "m[p, q] * 2", "q % 5", "p % 3", "N - 1 - p")
HEADS = (
    ("for p, q in weft.ndrange(N, M):",), ("for p, q in weft.ndrange((1, N), M):",),
    ("for p in range(N):", "for q in range(M):"),
    ("for p in range(N - 1, -1, -1):", "for q in range(M - 1, -1, -2):"),
    ("for p, q, r in weft.ndrange(N, M, 2):",), ("for p, q, r in weft.ndrange(N, M, (1, 3)):",),
)  # fmt: skip
SHAPES = ((0, 3), (3, 0), (1, 40), (2, 17), (3, 11), (5, 8), (7, 7), (16, 3))


def text(random: Random, gradient: bool) -> str:
    """A kernel of ``x``, ``m``, ``h`` and ``s``, which gives a tensor."""
    pick = random.choice
    lines = ["def kernel(x, m, h, s):", "    N, M = m.shape"]
    total = not gradient and random.random() < 0.2
    lines += ["    total = 0.0"] if total else []
    lines += ["    out = torch.zeros(N, M, dtype=x.dtype)"] if gradient else []
    head = pick(HEADS[:3] if gradient else HEADS)  # an element is stored once
    lines += ["    " * (k + 1) + line for k, line in enumerate(head)]
    space = "    " * (len(head) + 1)
    if random.random() < 0.2:
        lines.append(f"{space}if m[p, q] != 1:")
        space += "    "
    rows = [pick(ROWS)] * 2 if random.random() < 0.5 else [pick(ROWS), pick(ROWS)]
    if gradient:
        terms = [f"h[{rows[0]}, {pick(COLUMNS)}] * x[p, q]"]
        terms += [pick((f"h[{rows[1]}, {pick(COLUMNS)}]", f"s[{pick(COLUMNS)}]"))
                  for _ in range(pick((0, 0, 1, 2)))]  # fmt: skip
        return "\n".join([*lines, f"{space}out[p, q] = {' + '.join(terms)}", "    return out", ""])
    lines.append(f"{space}h[{rows[0]}, {pick(COLUMNS)}] += x[p, q]")
    for _ in range(pick((0, 0, 1, 2))):
        at = pick((f"h[{rows[1]}, {pick(COLUMNS)}]", f"s[{pick(COLUMNS)}]"))
        lines.append(f"{space}{at} += {pick(('x[p, q]', '2 * x[p, q]', '1'))}")
    lines += [f"{space}total += x[p, q]", "    return total"] if total else ["    return h"]
    return "\n".join([*lines, ""])


def check(random: Random) -> str:
    """Draws a kernel and runs it both ways; AssertionError where they differ. Gives "compared", or
    "refused" where weft says why it does not run it."""
    gradient = random.random() < 0.5
    drawn = text(random, gradient)
    plain, strict = function(drawn), random.random() < 0.3
    shape = random.choice(SHAPES)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    dtype = random.choice((torch.float32, torch.float64))
    m = torch.randint(0, 5, shape, generator=generator)

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randint(-9, 9, sizes, generator=generator).to(dtype)

    size = max(2 * shape[0] + 2, 9)
    x, h, s = numbers(*shape), numbers(size, size), numbers(size)
    overlap = not gradient and random.random() < 0.15
    g = numbers(*shape)

    def run(call: Any, threads: int) -> list[torch.Tensor]:
        a, b, c = x.clone(), h.clone(), s.clone()
        c = b[1] if overlap else c
        torch.set_num_threads(threads)
        if not gradient:
            found = call(a, m, b, c)
            return [torch.as_tensor(found, dtype=dtype).clone(), b, c]
        leaves = [v.requires_grad_() for v in (a, b, c)]
        out = call(a, m, b, c) + sum(0 * v.sum() for v in leaves)  # there may be no iterations
        found = torch.autograd.grad(out, leaves, g, allow_unused=True)
        return [torch.zeros_like(v) if d is None else d for d, v in zip(found, leaves, strict=True)]

    before = torch.get_num_threads()
    try:
        wanted = run(plain, 1)
        kernel = weft.kernel(strict_math=strict)(plain)
        for threads in (1, 2, 3, 7):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", OverlapWarning)  # it runs in order
                found = run(kernel, threads)
            for a, b in zip(found, wanted, strict=True):
                assert torch.equal(a, b), f"{threads}, {strict}:\n{drawn}\n{shape} {m}\n{b}\n{a}"
    except CompileError:
        return "refused"
    finally:
        torch.set_num_threads(before)
    return "compared"
