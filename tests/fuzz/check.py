"""Runs one random kernel compiled and as plain Python, on the same data, and compares.

Infinities, NaN, zeros of both signs and the ends of dtypes are among the data. What rounding may do
to a result is asked of the Python itself, with noise of that size on what it reads: where it gives
NaN or an infinity all the same, compiled code must, too.
"""

from __future__ import annotations

import itertools
import linecache
import math
import operator
import re
from collections.abc import Callable
from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.generate import Kernel, kernel
from weft.workbench import compare

TORCH = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
}  # fmt: skip
TOLERANCE = 2e-3  # the compiled kernel may contract, and computes f16 and bf16 in f32
NOISE = 1e-6  # relative; what a few roundings in f32 amount to
AMPLIFIED = 50.0  # how much further than noise rounding may drive a result
MOST = 17 * 140  # elements of kernels that draw long rows: the plain Python takes long
_numbers = itertools.count()


def function(text: str) -> Any:
    """The function ``kernel`` that ``text`` defines, with its source where ``inspect`` finds it."""
    name = f"<random kernel {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch, "weft": weft, "PI": 3.14159}
    exec(compile(text, name, "exec", dont_inherit=True), scope)
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
    sizes = [n for n in (1, 2, 3, 5, 17, *drawn.sizes) if n <= drawn.largest]
    shape = [random.choice(sizes) for _ in range(drawn.rank)]
    while drawn.sizes and math.prod(shape) > MOST:
        shape[random.randrange(drawn.rank)] = random.choice(sizes)
    tensors = {}
    extreme = random.choice((0.0, 0.1, 0.5))
    for name, dtype in drawn.dtypes.items():
        if dtype[0] in "fb":
            values = torch.randn(shape, generator=generator).to(TORCH[dtype])
        else:
            low = 0 if dtype == "u8" else -9
            values = torch.randint(low, 20, shape, generator=generator).to(TORCH[dtype])
        if extreme and name != "out":
            for place in itertools.product(*map(range, shape)):
                if random.random() < extreme:
                    values[place] = random.choice(extremes(dtype, alike(drawn)))
        tensors[name] = shaped(random, values)
    tensors["h"] = torch.zeros(5, dtype=torch.int64)
    return tensors


def alike(drawn: Kernel) -> bool:
    """Whether all floats of a kernel are of one dtype that Python computes in, too."""
    dtypes = {drawn.dtypes[name] for name in ("x", "y", "out")}
    return len(dtypes) == 1 and dtypes <= {"f32", "f64"}


def extremes(dtype: str, ends: bool) -> list[Any]:
    """What arithmetic may stumble over: with ``ends``, also floats that overflow and underflow."""
    if dtype[0] not in "fb":
        info = torch.iinfo(TORCH[dtype])
        few = [info.min, info.max, info.min + 1, 0, 1, info.max // 2 + 1]
        return [v >> 9 if dtype == "i64" else v for v in few]  # Python's ints do not wrap
    info = torch.finfo(TORCH[dtype])
    few = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0]
    return [*few, info.max, -info.max, info.tiny, -info.tiny / 4, info.max / 3] if ends else few


Call = Callable[..., Any]  # call(kernel, options, tensors, n, a): runs it, returns its result


def on_this_machine(
    kernel: weft.Kernel, options: dict[str, bool], tensors: list[torch.Tensor], n: int, a: float
) -> Any:
    return kernel(*tensors, n, a)


def check(
    random: Random, call: Call = on_this_machine, draw: Callable[[Random], Kernel] = kernel,
    counts: torch.dtype = torch.int64,
) -> None:  # fmt: skip
    """Draws a kernel, runs it both ways; AssertionError where they differ. ``call`` is how the
    compiled kernel is run, with the last tensor as ``counts``: what overflows there wraps."""
    drawn = draw(random)
    plain = function(drawn.text)
    options = {"debug": random.random() < 0.25, "strict_math": random.random() < 0.25}
    compiled = weft.kernel(**options)(plain)
    tensors = arguments(random, drawn)
    n, a = random.randint(0, 6), random.choice((0.75, -1.5))

    again = {name: t.clone() for name, t in tensors.items()}
    wide = not alike(drawn)
    given = {name: t.clone() for name, t in tensors.items()}
    doubles = {name: t.to(torch.float64 if t.is_floating_point() else t.dtype, copy=True)
               for name, t in tensors.items()}  # fmt: skip
    expected = outcome(again, compiled.interpret(*again.values(), n, a))
    *_, last = tensors
    expected[last] = expected[last].to(counts)
    try:
        found = outcome(tensors, call(compiled, options, list(tensors.values()), n, a))
    except weft.KernelOverflowError as error:
        if options["debug"] and overflows(str(error)):
            return
        raise
    if all(close(expected[name], found[name]) for name in expected):
        return
    # A few kernels iterate a map that amplifies every rounding. The Python itself, with inputs,
    # functions, integers made floats (which Python rounds to float32, a kernel with float64 does
    # not) and large constants that are off by what rounding is off, says by how much.
    moved = []
    for noise in (NOISE, -1.7 * NOISE):  # one may be close by chance
        rough = re.sub(r"(weft\.math\.\w+)\(", rf"(1 + {noise}) * \1(", drawn.text)
        rough = rough.replace("* 1.0)", f"* {1 + noise})")
        # Large constants that meet f32 are of f32, where Python has all digits of a sum with them.
        large = r"weft.f32(\g<0>)" if noise < 0 and "f64" not in drawn.dtypes.values() else r"\g<0>"
        rough = re.sub(r"\b\d+(\.\d+)?e\d+", rf"(1 + {noise}) * {large}", rough)
        noisy = {name: t.clone() for name, t in given.items()}
        noisy |= {name: with_noise(given[name], wide) for name in ("x", "y", "out")}
        result = weft.kernel(function(rough)).interpret(*noisy.values(), n, a * (1 + noise))
        moved.append(outcome(noisy, result))
    # A product that overflows in float32 need not where a sum with it is contracted.
    exact = outcome(doubles, weft.kernel(plain).interpret(*doubles.values(), n, a))
    # Nor need a sum of large numbers in another order; the written one has to give the same.
    ordered = expected
    if not options["strict_math"] and alike(drawn) and huge(given):
        asked = {name: t.clone() for name, t in given.items()}
        strict = weft.kernel(strict_math=True)(plain)
        ordered = outcome(asked, call(strict, {"debug": False, "strict_math": True},
                                      list(asked.values()), n, a))  # fmt: skip
    # And in float64, where float32's do not overflow, so has the default compilation.
    roomy = exact
    narrow = "f64" not in drawn.dtypes.values() and "weft.f32" not in drawn.text
    if ordered is not expected and narrow and counts == torch.int64:
        asked = {name: t.to(torch.float64 if t.is_floating_point() else t.dtype, copy=True)
                 for name, t in given.items()}  # fmt: skip
        roomy = outcome(asked, call(compiled, options, list(asked.values()), n, a))
    for name in expected:
        slack = torch.zeros_like(expected[name], dtype=torch.float64)
        for value in (each[name] for each in moved):
            off = AMPLIFIED * (value.double() - expected[name].double()).abs()
            # NaN or an infinity that noise takes away says nothing.
            off = torch.where(
                compare.kind(value) == compare.kind(expected[name]), off.nan_to_num(0.0), math.nan
            )
            slack = torch.maximum(slack, off)
        if not options["strict_math"]:
            slack = torch.where(near(exact[name], found[name]), math.nan, slack)
        if ordered is not expected:
            finite = expected[name].isfinite() & found[name].isfinite()
            over = ~finite & near(expected[name], ordered[name]) & near(exact[name], roomy[name])
            slack = torch.where(over, math.nan, slack)
        text = f"{name} differs:\n{drawn.text}\nexpected {expected[name]}\nfound {found[name]}"
        assert close(expected[name], found[name], slack), f"{text}\n{tensors}, {n}, {a}, {options}"


def overflows(message: str) -> bool:
    """Whether what a message of debug mode says, `3 * 5 overflows i64`, is so."""
    found = re.search(r": (-?\d+) ([-+*]|<<) (-?\d+) overflows i(32|64)", message)
    assert found is not None, message
    left, right = int(found[1]), int(found[3])
    made = {"+": operator.add, "-": operator.sub, "*": operator.mul, "<<": operator.lshift}
    end = 1 << int(found[4]) - 1
    return not -end <= made[found[2]](left, right) < end


def huge(tensors: dict[str, torch.Tensor]) -> bool:
    """Whether products of their numbers overflow."""
    floats = (t for t in tensors.values() if t.dtype in (torch.float32, torch.float64))
    return any(
        bool((t.isfinite() & (t.abs() > torch.finfo(t.dtype).max ** 0.48)).any()) for t in floats
    )


def outcome(tensors: dict[str, torch.Tensor], result: Any) -> dict[str, torch.Tensor]:
    """All that a call computed."""
    made = {name: tensors[name] for name in ("out", "h")}
    return made if result is None else made | {"the result": torch.as_tensor(result).cpu()}


def with_noise(values: torch.Tensor, wide: bool) -> torch.Tensor:
    """The same numbers, relatively off by ``NOISE``, in float64 if ``wide``: integers that it does
    not move by one are just as they are, finite numbers stay finite."""
    made = values.double() if wide else values.clone()
    moved = compare.with_noise(made, NOISE)
    if values.is_floating_point():
        return moved
    return torch.where(made.abs() * NOISE < 1, made, moved.round())  # as sums of them round


def near(expected: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Which elements agree to ``TOLERANCE``."""
    return torch.isclose(found.double(), expected.double(), TOLERANCE, TOLERANCE, equal_nan=True)


def close(expected: torch.Tensor, found: torch.Tensor, slack: torch.Tensor | float = 0.0) -> bool:
    """Whether they agree to ``TOLERANCE``, or to ``slack`` (NaN: whatever it is), element by
    element. Integers agree exactly."""
    if not expected.is_floating_point() and not found.is_floating_point():
        return bool((expected == found).all())
    slack = torch.as_tensor(slack, dtype=torch.float64)
    off = (found.double() - expected.double()).abs()
    return bool((near(expected, found) | slack.isnan() | (off <= slack)).all())
