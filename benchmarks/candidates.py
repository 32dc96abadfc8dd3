"""Every schedule of the examples' loops, one after the other, against the one that a call takes.

    compute-sanitizer --tool racecheck python -m benchmarks.candidates [--part 0/8] [--only softmax]

Nothing is timed: this is what a memory checker is to watch. A kernel runs by each candidate whose
guards its call satisfies, asked for by its text, forward and in its gradient, and must give what
the candidate gives that the call takes by itself. ``--part``: every eighth run, from the first on,
for several processes. Without a GPU, the CPU's schedules.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import weft
from benchmarks import recurrences, rows
from examples import (
    bilateral,
    brick_wall,
    causal_conv,
    gallery,
    grid_sample,
    layer_norm,
    softmax,
    spring,
    wkv,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = 2e-3  # of the largest value: sums have another order

Call = tuple[weft.Kernel, tuple[Any, ...]]


def random(*shape: int, **more: Any) -> torch.Tensor:
    return torch.randn(shape, **more).to(DEVICE)


def whole(high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.randint(0, high, shape).to(DEVICE, dtype)


def calls() -> Iterator[tuple[str, Call]]:
    """Even and odd sizes: guards of different schedules hold."""
    for n, m in ((64, 256), (67, 133), (3, 4099), (300, 40)):
        x = random(n, m)
        yield from {
            "axpy": (gallery.axpy, (2.0, x[0], x[0])),
            "stencil": (gallery.stencil, (x,)),
            "matmul": (gallery.matmul, (x, x.T.contiguous())),
            "histogram": (gallery.histogram, (x.reshape(-1), 16, -2.0, 2.0)),
            "newton_sqrt": (gallery.newton_sqrt, (x[0].abs(), 1e-6)),
            "resize": (gallery.resize, (random(n, 40, 3), 31, 57)),
            "running_sum": (gallery.running_sum, (x,)),
            "transpose": (gallery.transpose, (x,)),
            "total": (gallery.total, (x.reshape(-1),)),
            "largest": (gallery.largest, (x.reshape(-1),)),
            "gray": (gallery.gray, (whole(255, n, m, 3, dtype=torch.uint8),)),
            "brick_wall": (brick_wall.brick_wall, (whole(99, 24, 36), n, m, 6, 1, 5)),
            "softmax": (softmax.softmax, (x,)),
            "layer_norm": (layer_norm.layer_norm, (x, random(m), random(m), 1e-5)),
            "row_sums": (rows.row_sums, (x,)),
            "column_sums": (rows.column_sums, (x,)),
            "rms_norm": (rows.rms_norm, (x, random(m), 1e-5)),
            "log_sum_exp": (rows.log_sum_exp, (x,)),
            "cross_entropy": (rows.cross_entropy, (x, whole(m, n, dtype=torch.int64))),
            "summed": (recurrences.summed, (x,)),
            "decayed": (recurrences.decayed, (x, 0.9)),
        }.items()
    for batch, channels, times in ((32, 3, 128), (5, 4, 67), (8, 2, 64)):
        w, k = random(channels, times), random(batch, channels, times)
        yield "causal_conv", (causal_conv.causal_conv, (w, k, 0.1))
        line = random(channels)
        yield (
            "wkv",
            (wkv.wkv, (line, line, k.transpose(1, 2).contiguous(), random(batch, times, channels))),
        )
    yield "grid_sample", (grid_sample.grid_sample, (random(2, 3, 17, 24), random(2, 15, 16, 2)))
    yield "bilateral", (bilateral.bilateral, (random(19, 24, 3), random().abs(), random().abs(), 2))
    yield "swing", (spring.swing, (random(3, 4), random(5), random(4), 20, 0.1))


def numbers(result: Any) -> list[torch.Tensor]:
    parts = result if isinstance(result, tuple | list) else (result,)
    return [torch.as_tensor(part) for part in parts]


def forward(kernel: weft.Kernel, args: tuple[Any, ...]) -> list[torch.Tensor]:
    with torch.no_grad():
        return numbers(kernel(*args))


def gradient(kernel: weft.Kernel, args: tuple[Any, ...]) -> list[torch.Tensor]:
    leaves = [a.detach().clone().requires_grad_(a.is_floating_point())
              if isinstance(a, torch.Tensor) else a for a in args]  # fmt: skip
    asked = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    outs = [out for out in numbers(kernel(*leaves)) if out.requires_grad]
    given = [torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out) for out in outs]
    found = torch.autograd.grad(outs, asked, given, allow_unused=True) if outs else ()
    return [part for part in found if part is not None]


def runs(name: str, call: Call) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each run's name, and what raises AssertionError where it is wrong."""
    kernel, args = weft.kernel(call[0].function), call[1]
    stages: list[tuple[Any, Callable[[weft.Kernel, tuple[Any, ...]], list[torch.Tensor]]]] = [
        (kernel, forward)
    ]
    if gradient(kernel, args):
        stages.append((kernel.backward, gradient))
    for stage, run in stages:
        expected = run(kernel, args)
        for row in stage.schedules(*args):
            if all(guard.holds for guard in row.guards):
                yield (
                    f"{name}, {row.loop}: {row.schedule}",
                    partial(_as_expected, stage, row, partial(run, kernel, args), expected),
                )


def _as_expected(
    stage: Any, row: Any, run: Callable[[], list[torch.Tensor]], expected: list[torch.Tensor]
) -> None:
    stage.schedule(DEVICE, row.schedule, loop=row.loop)
    try:
        for wanted, found in zip(expected, run(), strict=True):
            scale = 1 + wanted.double().abs().nan_to_num().max().item() if wanted.numel() else 1.0
            torch.testing.assert_close(
                found, wanted, rtol=0, atol=CLOSE * scale, equal_nan=True, check_dtype=True
            )
    finally:
        stage.schedule(DEVICE, None, loop=row.loop)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.candidates")
    options.add_argument("--only", default="", help="kernels, with commas")
    options.add_argument("--part", default="0/1", help="which runs: number / of how many")
    given = options.parse_args()
    part, parts = map(int, given.part.split("/"))
    only = [name for name in given.only.split(",") if name]
    torch.manual_seed(0)
    every = (run for name, call in calls() if not only or name in only for run in runs(name, call))
    count, wrong = 0, 0
    for name, check in itertools.islice(every, part, None, parts):
        count += 1
        if count % 25 == 0:  # a checker may be stopped
            print(f"{count} runs", flush=True)
        try:
            check()
        except Exception as error:
            wrong += 1
            print(f"WRONG {name}\n  {type(error).__name__}: {error}", flush=True)
    print(f"{count - wrong} of {count} runs give what they should")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
