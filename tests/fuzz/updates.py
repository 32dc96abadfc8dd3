"""Random updates of elements by numbers of other dtypes, ``out[i] op= v``: compiled against
``out[i] = out[i] op v``, which is another way through the compiler and means the same."""

from __future__ import annotations

from random import Random

import torch

import weft
from tests.fuzz.check import function

DTYPES = {"u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
          "i64": torch.int64, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
          "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32,
          "f64": torch.float64}  # fmt: skip


REFUSED = ("a float is accumulated into it", "does not fit in")


def value(random: Random, whole: bool, depth: int = 2) -> str:
    """An expression: of ints, if the element is one (``whole``)."""
    if not depth or random.random() < 0.3:
        numbers = ("n", "3") if whole else ("c", "n", "3", "0.5")
        return random.choice(("x[i]", "x[i]", "y[i]", "x[j]", *numbers))
    one, two = value(random, whole, depth - 1), value(random, whole, depth - 1)
    cast = random.choice([name for name in DTYPES if not (whole and "f" in name)])
    return random.choice((
        f"({one} + {two})", f"({one} - {two})", f"({one} * {two})", f"min({one}, {two})",
        f"max({one}, {two})", f"({one} // 3)", f"abs({one})", f"(-{one})", f"int({one} > {two})",
        f"weft.{cast}({one})", f"({one} if {two} > 1 else {two})",
    ))  # fmt: skip


def text(random: Random, kept: str) -> tuple[str, str]:
    """A kernel, and the same with assignments."""
    lines = ["def kernel(x, y, out, c, n):", "    for i in range(out.shape[0]):", "        j = 0",
             f"        a = weft.zeros(2, weft.{kept})", "        a[1] = out[i]"]  # fmt: skip
    both = [lines, [*lines]]
    for _ in range(random.randint(1, 3)):
        place, symbol = (
            random.choice(("out[i]", "out[i]", "a[1]", "a[i % 2]")),
            random.choice("+-*"),
        )
        own, v, indent = place, value(random, "f" not in kept), " " * 8
        before = random.choice(("", "", f"{indent}for j in range(3):", f"{indent}if x[i] > 1:"))
        indent += "    " * bool(before)
        for each, update in zip(both, (f"{own} {symbol}= {v}", f"{own} = {own} {symbol} ({v})"),
                                strict=True):  # fmt: skip
            each += [*filter(None, [before]), indent + update]
    ends = random.choice(("", "        out[i] = a[1]"))
    made = ["\n".join([*filter(None, [*each, ends]), ""]) for each in both]
    return made[0], made[1]


def drawn(random: Random, dtype: torch.dtype, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    if dtype.is_floating_point:
        found = torch.randn(size, dtype=torch.float64, generator=generator)
        return (found * 10.0 ** random.randint(-3, 4)).to(dtype)
    most = torch.iinfo(dtype)
    low, high = max(most.min, -(1 << 62)), min(most.max, (1 << 62))
    few = torch.randint(max(low, -5), 9, (size,), generator=generator)
    some = torch.randint(low, high, (size,), generator=generator)
    return torch.where(torch.rand(size, generator=generator) < 0.5, few, some).to(dtype)


def check(random: Random) -> str:
    """AssertionError where they differ. Gives "agrees", or "refused"."""
    kept = random.choice([*DTYPES])
    given = random.choice([name for name in DTYPES if "f" in kept or "f" not in name])
    size = random.choice((1, 2, 5, 19))
    x, y = (drawn(random, DTYPES[given], size) for _ in range(2))
    start, c, n = (
        drawn(random, DTYPES[kept], size),
        random.choice((0.25, -3.5)),
        random.randint(-3, 4),
    )
    found: list[torch.Tensor] = []
    texts = text(random, kept)
    for each in texts:
        out = start.clone()
        try:
            weft.kernel(function(each))(x, y, out, c, n)
        except weft.WeftError as error:
            if any(part in str(error) for part in REFUSED):
                return "refused"
            error.add_note(f"{given} -> {kept}\n{each}")
            raise
        found.append(out)
    bits = [f.view(torch.uint8) for f in found]
    same = torch.equal(*bits) or torch.equal(*(f.double().nan_to_num(7.5) for f in found))
    assert same, f"{given} -> {kept}\n{texts[0]}\n{x}\n{y}\n{start}, {c}, {n}\n{found}"
    return "agrees"
