"""Random kernels of unsigned integers: compiled against the undecorated Python.

Elements are read through casts, whose arithmetic plain Python has; torch has none for its tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.check import function, shaped

DTYPES = {"u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64}
WIDE = ("u16", "u32", "u64")  # of u8, torch compares with a negative number otherwise


def constant(random: Random) -> str:
    return str(random.choice([0, 1, 2, 3, 7, 100, (1 << random.randrange(1, 16)) - 1]))


def expression(random: Random, dtype: str, depth: int = 3) -> str:
    """A number of ``dtype``."""

    def inner() -> str:
        return expression(random, dtype, depth - 1)

    if not depth or random.random() < 0.15:
        other = random.choice([*WIDE, "i32", "i64", "f32"])
        return random.choice(["a", "b", "a", "b", f"weft.{dtype}({other[0]}{other[1:]})"])
    match random.randrange(12):
        case 0 | 1 | 2:
            return (
                f"({inner()} {random.choice('+-*')} {random.choice((inner(), constant(random)))})"
            )
        case 3:
            return f"({inner()} {random.choice(('//', '%'))} ({inner()} | 1))"
        case 4:
            return f"({inner()} {random.choice(('//', '%'))} {random.choice((3, 7, 10, 16))})"
        case 5:
            amount = random.choice(("3", "n", f"({inner()} % 70)", "40"))
            return f"({inner()} {random.choice(('<<', '>>'))} {amount})"
        case 6:
            return (
                f"({inner()} {random.choice('&|^')} {random.choice((inner(), constant(random)))})"
            )
        case 7:
            return random.choice(("(~{})", "(-{})", "abs({})")).format(inner())
        case 8:
            name = random.choice(("min", "max", "weft.min", "weft.max"))
            return f"{name}({inner()}, {inner()})"
        case 9:
            return f"({inner()} ** {random.choice((0, 2, 3))})"
        case 10:
            return f"({inner()} if {condition(random, dtype, depth - 1)} else {inner()})"
        case _:
            through = random.choice((*WIDE, "i8", "i32", "i64", "f64"))
            return f"weft.{dtype}(weft.{through}({inner()}))"


def condition(random: Random, dtype: str, depth: int) -> str:
    compare = random.choice(("<", "<=", ">", ">=", "==", "!="))
    other = random.choice((expression(random, dtype, depth), "i32", "i64", "n", "-1", "i"))
    return f"{expression(random, dtype, depth)} {compare} {other}"


def text(random: Random, dtype: str) -> str:
    lines = ["def kernel(x, y, s, out, h, n):", f"    total = weft.{dtype}(0)",
             f"    top = weft.{dtype}({random.choice((0, 3))})",
             "    for i in range(x.shape[0]):",
             f"        a, b = weft.{dtype}(x[i]), weft.{dtype}(y[i])",
             "        i32, i64 = weft.i32(s[i]), weft.i64(s[i])",
             "        f32 = weft.f32(s[i])",
             "        u16, u32, u64 = weft.u16(s[i]), weft.u32(y[i]), weft.u64(y[i])"]  # fmt: skip
    for _ in range(random.randint(1, 3)):
        lines.append(f"        {random.choice('ab')} = {expression(random, dtype)}")
    if random.random() < 0.4:
        lines += [
            "        for k in range(n):",
            f"            a = a * 5 + {expression(random, dtype, 1)}",
        ]
    lines += [f"        out[i] = {expression(random, dtype)}",
              f"        weft.atomic_{random.choice(('add', 'max', 'min', 'xor'))}(h[i % 3], a)",
              "        total += a", "        top = max(top, b)", "    return total, top",
              ""]  # fmt: skip
    return "\n".join(lines)


Call = Callable[[Any, list[Any]], Any]


def check(random: Random, call: Call = lambda kernel, given: kernel(*given)) -> None:
    """Draws a kernel and runs it both ways; AssertionError where they differ."""
    dtype = random.choice(WIDE)
    kind = DTYPES[dtype]
    drawn, high = text(random, dtype), torch.iinfo(kind).max
    plain = function(drawn)
    count, n = random.choice((0, 1, 2, 3, 17)), random.randint(0, 3)

    def numbers(length: int) -> torch.Tensor:
        few = [random.choice((0, 1, high, high // 2 + 1, random.randint(0, high)))
               for _ in range(length)]  # fmt: skip
        return torch.tensor(few, dtype=kind)

    signed = [random.choice((0, -1, 5, -(1 << 31), random.randint(-99, 99))) for _ in range(count)]
    given: list[Any] = [numbers(count), numbers(count), torch.tensor(signed, dtype=torch.int64)]
    given += [numbers(count), numbers(3)]
    tensors = [shaped(random, v) for v in given]
    mine = [v.clone() for v in tensors]
    wanted, found = plain(*mine, n), call(weft.kernel(plain), [*tensors, n])
    for a, b in zip([*mine, *wanted], [*tensors, *found], strict=True):
        same = torch.equal(torch.as_tensor(a).cpu(), torch.as_tensor(b).cpu())
        assert same, f"{drawn}\n{a}\n{b}\n{given}, {n}"
