"""Runs one random kernel compiled and as plain Python, on the same data, and compares."""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable
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
NOISE = 1e-6  # relative; what a few roundings in f32 amount to
AMPLIFIED = 50.0  # how much further than noise rounding may drive a result
_numbers = itertools.count()


def function(text: str) -> Any:
    """The function ``kernel`` that ``text`` defines, with its source where ``inspect`` finds it."""
    name = f"<random kernel {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch, "weft": weft, "PI": 3.14159}
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


Call = Callable[..., Any]  # call(kernel, options, tensors, n, a): runs it, returns its result


def on_this_machine(
    kernel: weft.Kernel, options: dict[str, bool], tensors: list[torch.Tensor], n: int, a: float
) -> Any:
    return kernel(*tensors, n, a)


def check(
    random: Random, call: Call = on_this_machine, draw: Callable[[Random], Kernel] = kernel
) -> None:
    """Draws a kernel, runs it both ways; AssertionError where they differ. ``call`` is how the
    compiled kernel is run."""
    drawn = draw(random)
    plain = function(drawn.text)
    options = {"debug": random.random() < 0.25, "strict_math": random.random() < 0.25}
    compiled = weft.kernel(**options)(plain)
    tensors = arguments(random, drawn)
    n, a = random.randint(0, 6), random.choice((0.75, -1.5))

    again = {name: t.clone() for name, t in tensors.items()}
    noisy = {name: t.clone() for name, t in tensors.items()}
    noisy |= {name: with_noise(tensors[name]) for name in ("x", "y", "out")}
    expected = outcome(again, compiled.interpret(*again.values(), n, a))
    found = outcome(tensors, call(compiled, options, list(tensors.values()), n, a))
    if all(close(expected[name], found[name]) for name in expected):
        return
    # A few kernels iterate a map that amplifies every rounding. The Python itself, with inputs and
    # functions that are off by what rounding is off, says by how much.
    rough = re.sub(r"(weft\.math\.\w+)\(", rf"(1 + {NOISE}) * \1(", drawn.text)
    moved = weft.kernel(function(rough)).interpret(*noisy.values(), n, a * (1 + NOISE))
    for name, value in outcome(noisy, moved).items():
        slack = AMPLIFIED * (value - expected[name]).abs()
        text = f"{name} differs:\n{drawn.text}\nexpected {expected[name]}\nfound {found[name]}"
        assert close(expected[name], found[name], slack), text


def outcome(tensors: dict[str, torch.Tensor], result: Any) -> dict[str, torch.Tensor]:
    """All that a call computed, in float64."""
    made = {name: tensors[name].double() for name in ("out", "h")}
    return made if result is None else made | {"the result": torch.as_tensor(result).double().cpu()}


def with_noise(values: torch.Tensor) -> torch.Tensor:
    """The same numbers in float64: relatively off by ``NOISE``, integers just as they are."""
    wide = values.double()
    if not values.is_floating_point():
        return wide
    return wide + NOISE * wide * torch.randn(wide.shape, dtype=wide.dtype)


def close(expected: torch.Tensor, found: torch.Tensor, slack: torch.Tensor | float = 0.0) -> bool:
    """Whether they agree to ``TOLERANCE``, or to ``slack``, element by element."""
    near = torch.isclose(found, expected, TOLERANCE, TOLERANCE, equal_nan=True)
    return bool((near | ((found - expected).abs() <= slack)).all())
