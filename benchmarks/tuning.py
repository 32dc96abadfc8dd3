"""What tuning finds: ``python -m benchmarks.tuning``, on a GPU if there is one.

For each kernel, forward and backward: the default schedule of each loop and the fastest, in
milliseconds, and the time of the whole call before and after. ``--only softmax,brick`` tunes these
alone, ``--most 32`` measures more schedules of a loop, ``--tables`` prints all that was measured.
The records go to ``out/tuned.json`` (or the folder named by the variable OUT), for ``weft.tuned``.
Nothing that was tuned before is used: the disk cache is a new one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import weft
from examples import brick_wall, causal_conv, layer_norm, softmax
from weft.tuning.measure import measure
from weft.tuning.tune import Table

ROOT = Path(__file__).parent.parent
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LARGE = DEVICE.type == "cuda"


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


def conv() -> tuple[Any, tuple[Any, ...]]:
    B, C, T = (32, 768, 768) if LARGE else (4, 64, 256)
    return causal_conv.causal_conv, (random(C, T), random(B, C, T), 0.1)


def rows(kernel: Any, *more: int) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    """A kernel of rows, without or with weights and biases of a row's length."""

    def case() -> tuple[Any, tuple[Any, ...]]:
        n, m = (4096, 768 if more else 4096) if LARGE else (256, 256)
        return kernel, (random(n, m), *(random(m) for _ in more), *((1e-5,) if more else ()))

    return case


def brick() -> tuple[Any, tuple[Any, ...]]:
    side = 4096 if LARGE else 512
    tile = torch.randint(0, 255, (152, 144), dtype=torch.int32, device=DEVICE)
    return brick_wall.brick_wall, (tile, side, side, 72, 0, 0)


# What is tuned, and whether it has a gradient.
CASES: dict[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], bool]] = {
    "causal_conv": (conv, True),
    "softmax": (rows(softmax.softmax), True),
    "brick": (brick, False),
    "layer_norm": (rows(layer_norm.layer_norm, 1, 1), True),
}


def timed(kernel: Any, args: tuple[Any, ...], backward: bool) -> float:
    """Milliseconds of a whole call."""
    if not backward:
        with torch.no_grad():
            kernel(*args)
            return measure([lambda: kernel(*args)], DEVICE, lambda: None)[0]
    leaves = [a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
    out = kernel(*leaves)
    wanted = [a for a in leaves if isinstance(a, torch.Tensor)]
    grad = torch.ones_like(out)

    def run() -> Any:
        return torch.autograd.grad(out, wanted, grad, retain_graph=True)

    run()
    try:
        return measure([run], DEVICE, lambda: None)[0]
    finally:
        for tensor in wanted:
            tensor.requires_grad_(False)


def tuned(name: str, most: int, tables: bool) -> list[Table]:
    """Tunes one case, and prints a line for each loop and one for the call."""
    make, differentiable = CASES[name]
    kernel, args = make()
    found: list[Table] = []
    for backward in (False, True) if differentiable else (False,):
        what = f"{name}, {'backward' if backward else 'forward'}"
        before, begin = timed(kernel, args, backward), time.perf_counter()
        table = weft.tune(kernel.backward if backward else kernel, *args, most=most)
        took, after = time.perf_counter() - begin, timed(kernel, args, backward)
        measured, refused = len(table.rows), [row for row in table.rows if row.refused]
        print(f"{what}: call {before:.4g} -> {after:.4g} ms; {measured} measured in {took:.1f} s",
              flush=True)  # fmt: skip
        for record in table.records:
            gain = record.default_milliseconds / record.milliseconds
            times = f"{record.default_milliseconds:.4g} -> {record.milliseconds:.4g} ms"
            print(f"  {record.name}: {times} ({gain:.2f} x)  {record.choice}", flush=True)
        for row in refused:
            print(f"  refused: {row.schedule}: {row.refused}")
        if tables:
            print(table, flush=True)
        found.append(table)
    return found


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.tuning")
    options.add_argument("--only", default="", help=f"of {', '.join(CASES)}, with commas")
    options.add_argument("--most", type=int, default=16)
    options.add_argument("--tables", action="store_true")
    given = options.parse_args()
    os.environ["WEFT_CACHE_DIR"] = tempfile.mkdtemp()  # weft reads it at the first call
    print(torch.cuda.get_device_name() if LARGE else f"CPU, {torch.get_num_threads()} threads")
    found: list[Table] = []
    for name in [n for n in given.only.split(",") if n] or CASES:
        found += tuned(name, given.most, given.tables)
    folder = Path(os.environ.get("OUT", ROOT / "out"))
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "tuned.json"
    path.unlink(missing_ok=True)
    print(f"{len(weft.tuned(path, *found))} records in {path}")


if __name__ == "__main__":
    main()
