"""Gradients of some of the results of random kernels that have several.

The loop goes over one of them, has stores to each, and what a result is computed of may be shared.
Gradients of some are those of all with zeros for the others, as the slopes are finite; of calls
that are planned, and of the operator in machine code, too.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

import weft
from tests.fuzz.check import function, shaped

EXACT = 1e-9
OPERATIONS = (
    "({} + {})", "({} - {})", "({} * {})", "({} / (1.5 + {} * {}))", "min({}, {})", "max({}, {})",
    "({} % (1.0 + {} * {}))", "weft.math.sin({})", "weft.math.exp(-abs({}))", "abs({})",
    "weft.math.sqrt({} * {} + 0.5)", "({} ** 2)", "weft.math.floor({})", "weft.math.tanh({})",
)  # fmt: skip


class Draw:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.count = random.choice((2, 2, 3, 4))
        self.names = ["x[i]", "y[i]", "w", "0.75"]

    def number(self, depth: int = 2) -> str:
        if not depth or self.random.random() < 0.2:
            return self.random.choice([*self.names, f"x[(i + {self.random.randint(1, 3)}) % n]"])
        between = self.random.choice(OPERATIONS).split("{}")
        inner = [self.number(depth - 1) for _ in between[1:]]
        if between[0] == "weft.math.sqrt(" or len(inner) == 3:  # a square
            inner[-1] = inner[-2]
        return "".join(a + b for a, b in zip(between, [*inner, ""], strict=True))

    def text(self) -> str:
        over = self.random.choice(("range(n)", "o0", "x", f"o{self.count - 1}"))
        made = [self.random.choice(("empty", "zeros")) for _ in range(self.count)]
        names = [f"o{k}" for k in range(self.count)]
        lines = ["def kernel(x: torch.Tensor, y: torch.Tensor):", "    n = x.shape[0]"]
        lines += [
            f"    {name} = torch.{how}_like(x)" for name, how in zip(names, made, strict=True)
        ]
        lines += [f"    for i in {over}:", "        w = y[i] * 1.0", f"        w = {self.number()}"]
        if self.random.random() < 0.4:
            lines += ["        for k in range(3):", f"            w = 0.5 * w + {self.number(1)}"]
        for k in self.random.sample(range(self.count), self.count):
            sign = self.random.choice(("=", "+=")) if made[k] == "zeros" else "="
            lines.append(f"        o{k}[i] {sign} {self.number()}")
            if self.random.random() < 0.4:  # others read it
                self.names.append(f"o{k}[i]")
        first, rest = names[0], ", ".join(names[1:])
        keyed = ", ".join(f"'{name}': {name}" for name in names)
        returned = self.random.choice((
            f"{first}, {rest}", f"{first}, {rest}", f"[{first}, {rest}]", f"{{{keyed}}}",
            f"None, {first}, ({rest},), 'a name'",
        ))  # fmt: skip
        return "\n".join([*lines, f"    return {returned}", ""])


def check_results(random: Random) -> str:
    """Draws a kernel and compares; AssertionError where gradients differ. Gives "compared"."""
    draw = Draw(random)
    text = draw.text()
    kernel = weft.kernel(function(text))
    rows = random.choice((1, 2, 5, 17))
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    x, y = (shaped(random, torch.randn(rows, generator=generator, dtype=torch.float64))
            for _ in range(2))  # fmt: skip
    weights = torch.randn(draw.count, rows, generator=generator, dtype=torch.float64)
    wanted = random.choice(((0, 1), (0,), (1,)))

    def operator(*args: Any) -> Any:
        with forward_ad.dual_level():  # the operator is recorded, not the kernel
            return kernel.op(*args)

    def slopes(call: Any, seen: list[int], *, zeros: bool = False) -> list[torch.Tensor]:
        leaves = [t.detach().requires_grad_(k in wanted) for k, t in enumerate((x, y))]
        outs = [v for v in pytree.tree_leaves(call(*leaves)) if isinstance(v, torch.Tensor)]
        terms = [(outs[k] * weights[k] * (k in seen)).sum() for k in range(draw.count)
                 if zeros or k in seen]  # fmt: skip
        total, asked = torch.stack(terms).sum(), [leaves[k] for k in wanted]
        if not total.requires_grad:
            return [torch.zeros_like(v) for v in asked]
        return list(torch.autograd.grad(total, asked, allow_unused=True, materialize_grads=True))

    for _ in range(2):
        seen = sorted(random.sample(range(draw.count), random.randint(1, draw.count - 1)))
        expected = slopes(kernel, seen, zeros=True)
        for k, call in enumerate([kernel] * 3 + [operator] * 3):
            for e, f in zip(expected, slopes(call, seen), strict=True):
                off = float((e - f).abs().amax())
                assert off <= EXACT * (1.0 + float(e.abs().amax())), (
                    f"call {k} of results {seen}\n{text}\nexpected {e}\nfound {f}\n{x}\n{y}"
                )
    return "compared"
