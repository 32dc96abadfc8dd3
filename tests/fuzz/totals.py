"""Random totals that are parameters, for which numbers and tensors are passed: what is returned and
what becomes of the tensors is compared with the Python."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.check import function

NAMES = ("a", "b", "c")
REFUSED = (
    "to which the loop adds", "gives the name another value", "in two ways",
    "comes from before the parallel loop", "is another name of a tensor",
)  # fmt: skip


class Elements(list[Any]):
    """A tensor whose elements are numbers: those of torch are views."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.tolist())
        self.shape = tensor.shape


def update(random: Random, name: str) -> str:
    value = random.choice(("x[i]", "x[i] * 2", "-x[i]", "x[i] * x[j]", "n", "i"))
    symbol = random.choice(("+", "+", "+", "-"))
    return random.choice((
        f"{name} {symbol}= {value}", f"{name} {symbol}= {value}", f"{name} = {name} + {value}",
        f"{name} = max({name}, {value})",
    ))  # fmt: skip


def text(random: Random) -> str:
    lines = ["def kernel(x, y, a, b, c, n):"]
    if random.random() < 0.2:
        name = random.choice(NAMES)
        lines += [random.choice((f"    {name} = {name} * 2", f"    {name} = {name} + y[0]"))]
    for _ in range(random.randint(1, 3)):
        deep = random.random() < 0.3
        lines += ["    for t in weft.serial(range(2)):"] * deep
        indent = "    " * (1 + deep)
        lines += [f"{indent}for i in range(x.shape[0]):", f"{indent}    j = x.shape[0] - 1 - i"]
        used = random.sample(NAMES, random.randint(1, 2))
        for name in used:
            one = update(random, name)
            where = random.choice(("", "", "", "if i % 2 == 0:"))
            lines += [f"{indent}    {where} {one}".replace("     " + one, "    " + one)]
        if random.random() < 0.4:
            other = [*({*NAMES} - {*used})]
            lines += [f"{indent}for i in range(x.shape[0]):",
                      f"{indent}    y[i] = x[i] + {random.choice((*other, *used))}"]  # fmt: skip
    returned = random.sample(NAMES, random.randint(1, 3))
    lines += [f"    return {', '.join(returned)}, y"]
    return "\n".join([*lines, ""])


def check(random: Random) -> str:
    """AssertionError where they differ. Gives "agrees", or "refused"."""
    source = text(random)
    dtype = random.choice((torch.float64, torch.int64))
    size = random.choice((0, 1, 2, 7))
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    x = torch.randint(-4, 5, (size,), generator=generator).to(dtype)
    numbers = [random.randint(-3, 4) for _ in NAMES]
    as_tensors = [random.random() < 0.6 for _ in NAMES]
    found: list[list[Any]] = []
    kernel = weft.kernel(function(source))
    for call in (kernel, kernel.function):
        own = [torch.tensor(v, dtype=dtype) if is_one else v
               for v, is_one in zip(numbers, as_tensors, strict=True)]  # fmt: skip
        y = torch.ones(max(size, 1), dtype=dtype)
        try:
            *outs, made = call(x if call is kernel else Elements(x), y, *own, 2)
        except weft.WeftError as error:
            if any(part in str(error) for part in REFUSED):
                return "refused"
            error.add_note(source)
            raise
        found.append([*(float(v) for v in (*outs, *own)), made.tolist()])
    assert found[0] == found[1], f"{dtype} {numbers} {as_tensors}\n{source}\n{x}\n{found}"
    return "agrees"
