"""Kernels in Triton, each with what launches it: what a project may have had before. They know
nothing of weft; `examples.implementations` registers them. Without a GPU, Triton's interpreter runs
them: ``TRITON_INTERPRET=1``, which has to be set before Triton is imported."""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _square(source, target, columns, source_row, target_row, BLOCK: tl.constexpr):
    """One program a row, which lies in one block."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(source + row * source_row + column, mask=inside, other=0.0)
    tl.store(target + row * target_row + column, x * x, mask=inside)


def square_triton(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    warps = 4 if block < 2048 else 8 if block < 4096 else 16
    _square[(rows,)](x, out, columns, x.stride(0), out.stride(0), BLOCK=block, num_warps=warps)
    return out


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    total = tl.load(x + place, mask=inside) + tl.load(y + place, mask=inside)
    tl.store(out + place, total, mask=inside)


def blocks(n: int) -> Any:
    """A grid of as many blocks as ``n`` elements need."""
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def add_triton(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _add[blocks(out.numel())](x, y, out, out.numel(), BLOCK=1024)
    return out


def seconds(call: Callable[[], Any], quantiles: Any = None) -> list[float]:
    """What the autotuner measures by, where there is no GPU whose events it could ask."""
    begin = time.perf_counter()
    call()
    return [time.perf_counter() - begin] * len(quantiles or [0.5])


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CONFIGS = [triton.Config({"BLOCK": 128 << k}, num_warps=4 << (k > 1)) for k in range(4)]
tuned = triton.autotune(CONFIGS, key=["n"], do_bench=seconds if INTERPRETED else None)
_add_tuned = tuned(_add)


def add_tuned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Triton measures its configs when it meets a new ``n``."""
    out = torch.empty_like(x)
    _add_tuned[blocks(out.numel())](x, y, out, out.numel())
    return out


@triton.jit
def _add_even(x, y, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Without masks where the blocks are full."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + place, tl.load(x + place) + tl.load(y + place))
    else:
        inside = place < n
        total = tl.load(x + place, mask=inside) + tl.load(y + place, mask=inside)
        tl.store(out + place, total, mask=inside)


EVEN = triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
EVEN_FOR_ALL = triton.heuristics({"EVEN": lambda args: args["n"] % 1024 == 0})
_below = tuned(EVEN(_add_even))  # asked for each config
_above = EVEN_FOR_ALL(tuned(_add_even))  # asked once: torch.compile takes no such kernel


def add_heuristic(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _below[blocks(out.numel())](x, y, out, out.numel())
    return out


def add_heuristic_above(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _above[blocks(out.numel())](x, y, out, out.numel())
    return out


_guessed = triton.heuristics({"BLOCK": lambda args: min(triton.next_power_of_2(args["n"]), 1024)})(
    EVEN(_add_even)
)


def add_guessed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Heuristics alone: the second asks what the first has chosen."""
    out = torch.empty_like(x)
    _guessed[blocks(out.numel())](x, y, out, out.numel())
    return out


@triton.jit
def _sine(source, target, n, COSINE: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    x = tl.load(source + place, mask=inside)
    tl.store(target + place, tl.cos(x) if COSINE else tl.sin(x), mask=inside)


def sine_triton(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _sine[blocks(out.numel())](x, out, out.numel(), COSINE=False, BLOCK=256)
    return out


def cosine_triton(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _sine[blocks(out.numel())](x, out, out.numel(), COSINE=True, BLOCK=256)
    return out
