"""Random kernels whose captured numbers and functions change between calls: never stale."""

from __future__ import annotations

import os
import types
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.fuzz import deciding, places
from tests.fuzz.check import function

COUNT = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "6"))
PARTS = max(COUNT // 100, 1)  # so that several processes take part
BODIES = ("v * A", "v + 1.0", "min(v, B)", "-v", "v * cfg.c + B", "abs(v) / 3")

HELD = ("L[0]", "L[1]", "D['k']", "cfg.pair[1]")

pytestmark = pytest.mark.fuzz


def expression(random: Random, depth: int) -> str:
    if depth == 0:
        return random.choice(("x[i]", "x[i]", "A", "B", "cfg.c", "0.5", "2", *HELD))
    a, b = expression(random, depth - 1), expression(random, depth - 1)
    kind = random.random()
    if kind < 0.5:
        return f"({a} {random.choice('+-*')} {b})"
    if kind < 0.6:
        return f"({a} if x[i] > {b} else {b})"
    return f"{random.choice(('mod.f', 'helper', 'max', 'float'))}({a})"


def text_of(random: Random) -> str:
    body = expression(random, random.randint(2, 4)).replace("max(", "max(0.25, ")
    return (
        f"def helper(v):\n    return {random.choice(BODIES)}\n\n\n"
        f"def kernel(x, out):\n    for i in range(x.shape[0]):\n        out[i] = {body}\n"
    )


def one(random: Random, scope: dict[str, Any]) -> Any:
    """A function of its own, that sees ``scope``."""
    made = function(f"def kernel(v):\n    return {random.choice(BODIES)}\n")
    return types.FunctionType(made.__code__, scope, "kernel")


def change(random: Random, scope: dict[str, Any]) -> None:
    kind = random.randrange(10)
    number = random.choice((random.uniform(-2.0, 2.0), 3, np.float64(0.25), np.int64(-2), True))
    if kind == 7:
        scope["L"][random.randrange(2)] = number
    elif kind == 8:
        scope["D"]["k"] = number
    elif kind == 9:
        scope["cfg"].pair = random.choice(((0.5, number), [number, 1.5]))
    elif kind < 2:
        scope["A"] = random.choice((random.uniform(-2.0, 2.0), 3, -1.5))
    elif kind == 2:
        scope["B"] = random.choice((random.randint(-9, 9), 1 << 40, 2.5))
    elif kind == 3:
        scope["cfg"].c = random.uniform(-1.0, 1.0)
    elif kind == 4:
        scope["mod"].f = one(random, scope)
    elif kind == 5:
        scope["helper"] = one(random, scope)
    else:
        scope["mod"] = types.SimpleNamespace(f=one(random, scope))


def check_captured(random: Random) -> None:
    text = text_of(random)
    plain = function(text)
    scope = plain.__globals__
    scope.update(A=0.5, B=2, cfg=types.SimpleNamespace(c=0.75, pair=(1, 0.5)), L=[1.0, np.int64(2)],
                 D={"k": np.float64(0.5)}, mod=types.ModuleType("mod"))  # fmt: skip
    scope["mod"].f = one(random, scope)
    kernel = weft.kernel(strict_math=True)(plain)
    x = torch.randn(3, dtype=torch.float64)
    for _ in range(8):
        change(random, scope)
        expected, found = torch.zeros_like(x), torch.zeros_like(x)
        try:
            plain(x, expected)
        # A product of captured ints that torch has no scalar for: ValueError before torch 2.13; or
        # NumPy has none, which warns. And torch takes no bool from a number.
        except (OverflowError, ValueError, RuntimeError, RuntimeWarning) as error:
            said = "overflow" in str(error).lower() or "with a bool tensor" in str(error)
            if not isinstance(error, OverflowError) and not said:
                raise
            continue
        try:
            for _ in range(random.choice((1, 4))):
                kernel(x, found)
        except weft.KernelValueError as error:  # in a branch that the Python did not take
            if "does not fit in 64 bits" not in str(error):
                raise
            continue
        near = torch.allclose(found, expected, 1e-9, 1e-9, equal_nan=True)
        assert near, f"{text}\n{scope['A']} {scope['B']}\n{expected}\n{found}"


@pytest.mark.parametrize("part", range(PARTS))
def test_random_changes_of_what_is_captured(part: int) -> None:
    random = Random()
    for _ in range(-(-COUNT // PARTS)):
        seed = random.randrange(1 << 40)
        try:
            check_captured(Random(seed))
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("part", range(PARTS))
def test_graphs_have_the_sizes_that_random_objects_decide(part: int) -> None:
    for _ in range(max(COUNT // 10 // PARTS, 3)):
        deciding.check(Random())


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks for that of any argument
@pytest.mark.parametrize("part", range(PARTS))
def test_graphs_of_kernels_in_random_places(part: int) -> None:
    for _ in range(max(COUNT // 10 // PARTS, 3)):
        places.check(Random())
