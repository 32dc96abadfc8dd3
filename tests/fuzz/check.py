"""Runs one random kernel compiled and as plain Python, on the same data, and compares."""

from __future__ import annotations

import itertools
import linecache
from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.generate import Kernel, kernel

TORCH = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
}  # fmt: skip
TOLERANCE = 2e-3  # the compiled kernel may contract, and computes f16 and bf16 in f32
_numbers = itertools.count()


def function(text: str) -> Any:
    """The function ``kernel`` that ``text`` defines, with its source where ``inspect`` finds it."""
    name = f"<random kernel {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"weft": weft}
    exec(compile(text, name, "exec"), scope)
    return scope["kernel"]


def shaped(random: Random, values: torch.Tensor) -> torch.Tensor:
    """The same values in memory as they are, behind an offset, with gaps, or transposed."""
    form = random.randrange(4)
    if form == 0 or values.dim() == 0:
        return values.clone()
    if form == 1:
        base = torch.zeros((values.shape[0] + 2, *values.shape[1:]), dtype=values.dtype)
        view = base[1:-1]
    elif form == 2:
        base = torch.zeros((*values.shape[:-1], 2 * values.shape[-1] + 1), dtype=values.dtype)
        view = base[..., 1 : 2 * values.shape[-1] + 1 : 2]
    else:
        view = torch.zeros(values.shape[::-1], dtype=values.dtype).permute(
            *reversed(range(values.dim()))
        )
    view.copy_(values)
    return view


def arguments(random: Random, drawn: Kernel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    sizes = (1, 2, 3, 5, 17)
    shape = [random.choice(sizes) for _ in range(drawn.rank)]
    tensors = {}
    for name, dtype in drawn.dtypes.items():
        if dtype[0] in "fb":
            values = torch.randn(shape, generator=generator).to(TORCH[dtype])
        else:
            low = 0 if dtype == "u8" else -9
            values = torch.randint(low, 20, shape, generator=generator).to(TORCH[dtype])
        tensors[name] = shaped(random, values)
    tensors["h"] = torch.zeros(5, dtype=torch.int64)
    return tensors


def check(random: Random) -> None:
    """Draws a kernel, runs it both ways; AssertionError where they differ."""
    drawn = kernel(random)
    plain = function(drawn.text)
    debug, strict = random.random() < 0.25, random.random() < 0.25
    compiled = weft.kernel(debug=debug, strict_math=strict)(plain)
    tensors = arguments(random, drawn)
    n, a = random.randint(0, 6), random.choice((0.75, -1.5))
    again = {name: t.clone() for name, t in tensors.items()}
    expected = compiled.interpret(*again.values(), n, a)
    found = compiled(*tensors.values(), n, a)
    for name in ("out", "h"):
        same(drawn.text, name, again[name], tensors[name])
    if drawn.reduces:
        same(drawn.text, "the result", torch.as_tensor(expected), found)


def same(text: str, name: str, expected: torch.Tensor, found: torch.Tensor) -> None:
    ok = torch.allclose(found.double(), expected.double(), TOLERANCE, TOLERANCE, equal_nan=True)
    assert ok, f"{name} differs:\n{text}\nexpected {expected}\nfound {found}"
