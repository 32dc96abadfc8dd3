"""What a person waits for at a first gradient, with nothing cached: a row for each kernel.

Every repeat is a new process with an empty cache of kernels. In it, in this order:

* torch is imported, and torch's own first ``backward``, that of ``x * y``, is timed: what torch
  loads and starts at it is torch's;
* Python collects garbage once among torch's objects, which a program that has run for a second has
  done, and which would be a share of whatever comes first;
* the kernel is imported and called without a gradient ("first call": its loops are compiled);
* it is called on inputs that need gradients ("recording": the gradient is derived);
* ``backward`` of its sum ("backward": the rest is derived, compiled and run);
* both again, which is what they take when nothing is to be made.

"first gradient" is recording and backward together. "wall" is by the clock, "processor" is the time
of all threads of the process. Medians.

Bytecode is written before, whatever PYTHONDONTWRITEBYTECODE says: without it each process
translates all modules that it imports, 130 ms for those that a gradient needs alone.
"""

import compileall
import functools
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Row, environment, parser, tables

ROOT = Path(__file__).parents[1]
LIMIT = 200.0  # milliseconds of processor that a first backward is to take at most
MOMENTS = (
    "torch's first",
    "first call",
    "recording",
    "backward",
    "first gradient",
    "second gradient",
)


def randoms(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Random tensors of these shapes."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def gated(batch: int, steps: int, heads: int, width: int) -> tuple[Any, ...]:
    """Queries, keys, values, logarithms of the gates, the width of keys."""
    q, k, v, g = randoms(*[(batch, steps, heads, width)] * 4)
    return q, k, v, -g.abs(), width


def scanned(batch: int, length: int, channels: int, states: int) -> tuple[Any, ...]:
    """What ``selective_scan`` takes: decaying states."""
    u, dt, a = randoms((batch, length, channels), (batch, length, channels), (channels, states))
    b, c = randoms(*[(batch, length, states)] * 2)
    return u, dt.abs() * 0.1, -a.abs(), b, c, states


def photographed(rows: int, cols: int, radius: int) -> tuple[Any, ...]:
    """A picture of random colours, the two widths, the radius."""
    return torch.rand(rows, cols, 3), torch.tensor(2.0), torch.tensor(0.5), radius


# By kernel: its module, its name there, and its arguments: a function of this module, or else
# ``inputs`` of the kernel's, on numbers.
KERNELS: dict[str, tuple[str, str, Callable[..., Any] | None, tuple[Any, ...]]] = {
    "multiply": ("benchmarks.gradient_cost", "multiply", randoms, ((1024,), (1024,))),
    "softmax": ("examples.softmax", "softmax", None, (64, 256)),
    "layer norm": ("examples.layer_norm", "layer_norm", None, (64, 256)),
    "causal conv": ("examples.causal_conv", "causal_conv", None, (2, 8, 64)),
    "wkv": ("examples.wkv", "wkv", None, (2, 64, 32)),
    "grid sample": ("examples.grid_sample", "grid_sample", None, (1, 3, 32, 32)),
    "bilateral": ("examples.bilateral", "bilateral", photographed, (24, 24, 2)),
    "spring": ("examples.spring", "swing", None, (4, 50)),
    "gated attention": ("benchmarks.recurrences", "gated_attention", gated, (1, 16, 2, 32)),
    "scan along rows": ("benchmarks.recurrences", "mapped", randoms, ((8, 64), (8, 64))),
    "selective scan": ("benchmarks.selective_scan", "selective_scan", scanned, (2, 32, 16, 16)),
}
MORE: dict[str, tuple[Any, ...]] = {"causal conv": (0.1,)}  # what ``inputs`` leaves out


class Clock:
    """Milliseconds by the clock and of processor since it was made."""

    def __init__(self) -> None:
        self.begin = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        wall, processor = self.begin
        return (time.perf_counter() - wall) * 1e3, (time.process_time() - processor) * 1e3


def leaves(arguments: Sequence[Any]) -> list[Any]:
    """The arguments, with floating-point tensors as leaves that need a gradient."""
    return [
        a.detach().clone().requires_grad_()
        if isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in arguments
    ]


def child(name: str) -> None:
    """In a new process: print the figures of one kernel as JSON."""
    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    taken: dict[str, tuple[float, float]] = {}
    x, y = leaves(randoms((64,), (64,)))
    product = (x * y).sum()
    clock = Clock()
    product.backward()
    taken["torch's first"] = clock.read()
    gc.collect()
    module, own, make, numbers = KERNELS[name]
    found = importlib.import_module(module)
    kernel = getattr(found, own)
    arguments = leaves((*(make or found.inputs)(*numbers), *MORE.get(name, ())))
    assert "weft.compiler" not in sys.modules, "the compiler was there before the first call"
    clock = Clock()
    with torch.no_grad():
        kernel(*arguments)
    taken["first call"] = clock.read()
    for moment in ("first", "second"):
        clock = Clock()
        out = kernel(*arguments)
        recording = clock.read()
        total = out.sum()
        clock = Clock()
        total.backward()
        backward = clock.read()
        if moment == "first":
            taken |= {"recording": recording, "backward": backward}
        wall, processor = zip(recording, backward, strict=True)
        taken[f"{moment} gradient"] = sum(wall), sum(processor)
    json.dump(taken, sys.stdout)


@functools.cache
def translate() -> None:
    """Writes the bytecode of the modules that a child imports."""
    for folder in ("weft", "examples", "benchmarks"):
        compileall.compile_dir(ROOT / folder, quiet=1)


def ask(name: str, threads: int) -> dict[str, tuple[float, float]] | str:
    """`child` in a new process with an empty cache: its figures, or why there are none."""
    translate()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        result = subprocess.run(
            [sys.executable, "-m", "benchmarks.first_backward", "--child", name],
            env={**environment(threads), "WEFT_CACHE_DIR": folder, "OMP_WAIT_POLICY": "passive"},
            capture_output=True,
            cwd=ROOT,
            text=True,
        )
    if result.returncode:
        return (result.stderr.strip().splitlines() or ["no message"])[-1][:100]
    return json.loads(result.stdout)


def of_kernel(name: str, repeats: int, threads: int) -> list[Row]:
    """The figures of one kernel: least values of the repeats."""
    answers = [ask(name, threads) for _ in range(repeats)]
    title = f"first backward, nothing cached, {threads} threads"
    failures = [a for a in answers if isinstance(a, str)]
    if failures:
        return [Row("first_backward", title, MOMENTS[0], name, failure=failures[0])]
    rows = []
    for moment in MOMENTS:
        for k, clock in enumerate(("wall", "processor")):
            values = sorted(a[moment][k] for a in answers if not isinstance(a, str))
            row = Row("first_backward", title, f"{moment}, {clock}", name, compared=False)
            row.value, row.best = statistics.median(values), values[0]
            row.samples = len(values)
            rows.append(row)
    return rows


def run(*, quick: bool, threads: int, only: str = "") -> list[Row]:
    """Measure all kernels, print the table, return its rows."""
    rows: list[Row] = []
    for name in [n for n in KERNELS if only in n] or KERNELS:
        rows += of_kernel(name, 1 if quick else 5, threads)
    print(tables(rows), flush=True)
    for moment in ("backward", "first gradient"):
        late = [r.provider for r in rows if r.case == f"{moment}, processor" and r.value > LIMIT]
        print(f"{moment} over {LIMIT:.0f} ms of processor: {', '.join(late) or 'none'}")
    return rows


def main() -> None:
    """``python -m benchmarks.first_backward``."""
    options = parser("benchmarks.first_backward").parse_args()
    run(quick=options.quick, threads=options.threads, only=options.only)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()
