"""Random kernels whose arguments share memory: what the undecorated Python gives, or an error.

Views of one tensor, shifted, with steps, reversed in the order of dimensions; each may be written
and read, at neighbours, too. Where iterations meet, the loop runs in order or is refused: it is
never silently another number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from random import Random

import torch
from torch.func import grad, jvp, vmap

import weft
from tests.fuzz.check import function
from tests.fuzz.graphs import function_of_module
from weft.errors import CompileError, RaceError, WeftError
from weft.runtime.overlap import OverlapWarning

PLACES = ("i", "i", "i", "i + 1", "i - 1", "n - 1 - i", "i // 2", "2 * i", "0")
ROWS = ("{0}", "{0}[1:]", "{0}[:-1]", "{0}[::2]", "{0}[2:]", "{0}[1::2]", "{0}[3:4]", "{0}.clone()")
MATRICES = ("{0}", "{0}.t()", "{0}[1:]", "{0}[:, 1:]", "{0}[:-1, ::2]", "{0}[::2].t()",
            "{0}[:1].expand(3, -1)", "{0}[1:2]", "{0}.clone()")  # fmt: skip


def text(random: Random, rank: int) -> str:
    """A kernel of ``a``, ``b`` and ``c``."""

    def place(name: str) -> str:
        places = [f"({random.choice(PLACES)}) % {name}.shape[0]"]
        if rank == 2:
            places.append(f"({random.choice(('j', 'j', 'j + 1', 'i', '0'))}) % {name}.shape[1]")
        return f"{name}[{', '.join(places)}]"

    def value(depth: int) -> str:
        if not depth or random.random() < 0.3:
            return random.choice([place(random.choice("abc")), "1.0", "i"])
        return f"({value(depth - 1)} {random.choice('+-*')} 0.5 * {value(depth - 1)})"

    lines = ["def kernel(a, b, c):", "    n = a.shape[0]"]
    if random.random() < 0.2:
        lines.append("    b = a[:]")  # by the host part
    if random.random() < 0.15:
        lines.append("    weft.loop_config(serialize=True)")
    head = "for i, j in weft.ndrange(n, a.shape[1]):" if rank == 2 else "for i in range(n):"
    lines.append(f"    {head}")
    space = " " * 8
    if random.random() < 0.3:
        lines.append(f"{space}for k in range(2):")
        space += "    "
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.25:
            lines.append(f"{space}if {value(1)} > 0.0:")
            lines.append("    " + space + f"{place(random.choice('ab'))} = {value(1)}")
        else:
            sign = random.choice(("=", "=", "+=", "*="))
            own = random.random() < 0.6
            at = f"a[i{', j' * (rank == 2)}]" if own else place(random.choice("ab"))
            lines.append(f"{space}{at} {sign} {value(2)}")
    return "\n".join([*lines, ""])


def check(random: Random) -> str:
    """Draws a kernel and runs it both ways; AssertionError where they differ. Gives "compared",
    "refused" where weft says why it does not run it, or "a race" where iterations meet in memory of
    one argument."""
    rank = random.choice((1, 1, 2))
    drawn = text(random, rank)
    plain = function(drawn)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    shape = (random.choice((5, 9, 40)),) if rank == 1 else (random.choice((4, 6)),) * 2
    dtype = random.choice((torch.float64, torch.int64, torch.float32))
    base = (torch.randn(shape, generator=generator) * 3).to(dtype)
    views = random.choices(ROWS if rank == 1 else MATRICES, k=3)

    def arguments(t: torch.Tensor) -> list[torch.Tensor]:
        return [eval(view.format("t"), {"t": t}) for view in views]

    mine, theirs = base.clone(), base.clone()
    given, expected = arguments(mine), arguments(theirs)
    try:
        plain(*expected)
    except (RuntimeError, ZeroDivisionError):  # torch writes to no view that overlaps itself
        return "no oracle"
    if dtype is torch.int64 and not (theirs.double().abs() < 1e15).all():
        return "no oracle"  # a float that no integer of 64 bits is
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OverlapWarning)  # it runs in order
            weft.kernel(plain)(*given)
    except CompileError:
        return "refused"
    try:
        weft.kernel(plain).interpret(*[t.clone() for t in arguments(base)])
    except RaceError:
        return "a race"
    for a, b in zip([theirs, *expected], [mine, *given], strict=True):
        torch.testing.assert_close(
            b, a, rtol=1e-5, atol=1e-5, equal_nan=True, msg=f"{drawn}\n{views}\n{base}\n{a}\n{b}"
        )
    return "compared"


STEP = 1e-6
PARTS = (
    ("{0}[:3]", "{0}[3:6]", "{0}[6:]"), ("{0}[::3]", "{0}[1::3]", "{0}[2::3]"),
    ("{0}.view(3, 3)[1]", "{0}[6:]", "{0}.clone()"), ("{0}", "{0}[2:5]", "{0}.view(3, 3).t()[2]"),
)  # fmt: skip


def text_of_parts(random: Random) -> str:
    """A kernel of ``a``, ``b`` and ``c``, whose iterations write to what they have for themselves,
    for three elements of each."""

    def value(depth: int) -> str:
        if not depth or random.random() < 0.3:
            place = random.choice(("i", "i", "2 - i", "1"))
            return random.choice(["a[i]", f"b[{place}]", f"c[{place}]"])
        return f"({value(depth - 1)} {random.choice('+-*')} 0.5 * {value(depth - 1)})"

    writes = [f"        a[i] {random.choice(('=', '+=', '*='))} {value(2)}"
              for _ in range(random.randint(1, 2))]  # fmt: skip
    if random.random() < 0.2:
        writes.append(f"        b[i] += {value(1)}")
    return "\n".join(["def kernel(a, b, c):", "    for i in range(3):", *writes, ""])


def check_derivatives(random: Random) -> str:
    """Derivatives of what a kernel does to parts of one tensor, under PyTorch's transforms, are
    differences of the undecorated Python. Gives what ``check`` gives."""
    drawn = text_of_parts(random)
    plain = function_of_module(drawn, torch.ones(1))
    kernel = weft.kernel(plain)
    views = random.sample(random.choice(PARTS), k=3)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    base, along = torch.randn((2, 2, 9), generator=generator, dtype=torch.float64)

    def of(run: Callable[..., object], x: torch.Tensor) -> torch.Tensor:
        y = x * 1.0
        run(*(eval(view.format("t"), {"t": y}) for view in views))
        return torch.sin(y)

    def one(x: torch.Tensor) -> torch.Tensor:
        return of(kernel, x)

    def tangent(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return jvp(one, (x,), (d,))[1]

    def total(x: torch.Tensor) -> torch.Tensor:
        return one(x).sum()

    def gradient(x: torch.Tensor) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(total(leaf), leaf)[0]

    low, high = (torch.stack([of(plain, x + h * d) for x, d in zip(base, along, strict=True)])
                 for h in (-STEP, STEP))  # fmt: skip
    wanted = (high - low) / (2 * STEP)
    pairs = [*zip(base, along, strict=True)]
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "jvp": lambda: torch.stack([tangent(x, d) for x, d in pairs]),
        "vmap of jvp": lambda: vmap(tangent)(base, along),
        "jvp of vmap": lambda: jvp(vmap(one), (base,), (along,))[1],
        "autograd": lambda: torch.stack([(gradient(x) * d).sum() for x, d in pairs]),
        "grad": lambda: torch.stack([(grad(total)(x) * d).sum() for x, d in pairs]),
        "vmap of grad": lambda: (vmap(grad(total))(base) * along).sum(1),
        "grad of vmap": lambda: (grad(lambda x: vmap(total)(x).sum())(base) * along).sum(1),
    }
    way = random.choice([*ways])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OverlapWarning)
            found = ways[way]()
    except WeftError:
        return "refused"
    wanted = wanted if found.dim() == 2 else wanted.sum(1)
    message = f"{way}\n{drawn}\n{views}\n{base}\n{wanted}\n{found}"
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, msg=message)
    return "compared"
