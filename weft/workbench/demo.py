"""``weft demo``: a file to begin with, and the commands of the workbench carried out on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.values import frozen
from weft.workbench.bench import bench
from weft.workbench.check import check
from weft.workbench.report import Report, UsageError
from weft.workbench.sources import load

SIZES = [1 << k for k in range(10, 19, 2)]
SECONDS = 30.0  # that checking may take

TEXT = '''"""A moving average along rows, as a loop: change it, and try the commands again."""

import torch

import weft


@weft.kernel
def smoothed(x: torch.Tensor, width: int) -> torch.Tensor:
    """Means over ``width`` elements to each side, of those that there are."""
    rows, n = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(rows, n):
        total, count = 0.0, 0
        for k in range(max(j - width, 0), min(j + width + 1, n)):
            total += x[i, k]
            count += 1
        out[i, j] = total / count
    return out


def smoothed_arguments(rows: int = 4, n: int = 1000, width: int = 3):
    """Arguments of these sizes, for `weft check` and `weft bench`."""
    return torch.rand(rows, n), width


def smoothed_torch(x, width):
    """The same by PyTorch, for `weft bench --beside smoothed_torch`."""
    pool = torch.nn.functional.avg_pool1d
    return pool(x[:, None], 2 * width + 1, 1, width, count_include_pad=False)[:, 0]
'''


@frozen
class Demo:
    """The reports of the commands, and the commands."""

    path: str
    steps: tuple[tuple[str, Report], ...]

    @property
    def ok(self) -> bool:
        return all(report.ok for _, report in self.steps)

    def __str__(self) -> str:
        parts = [f"{self.path} has a kernel, what makes its arguments, the same by PyTorch"]
        parts += [f"$ {command}\n\n{report}" for command, report in self.steps]
        return "\n\n".join([*parts, f"next: weft inspect {self.path}:smoothed"])

    def data(self) -> dict[str, Any]:
        return {"path": self.path, "steps": {name: r.data() for name, r in self.steps}}


def demo(path: str = "weft_demo.py") -> Demo:
    """Writes a file with a kernel, checks that and times it. Raises ``UsageError`` where there is
    another file of this name."""
    file = Path(path)
    if file.suffix != ".py":
        raise UsageError(f"{path} is no Python file\nhelp: weft demo {file.with_suffix('.py')}")
    if file.exists() and file.read_text() != TEXT:
        raise UsageError(f"{path} is there already\nhelp: weft demo another_name.py")
    try:
        file.write_text(TEXT)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    source = load(f"{path}:smoothed")
    swept = ",".join(map(str, SIZES))
    beside = {"smoothed_torch": source.names["smoothed_torch"]}
    steps: list[tuple[str, Callable[[], Report]]] = [
        (
            f"weft check {path}:smoothed",
            lambda: check(source.kernel, names=source.names, seconds=SECONDS),
        ),
        (
            f"weft bench {path}:smoothed --sweep n={swept} --beside smoothed_torch",
            lambda: bench(source.kernel, sweep={"n": SIZES}, beside=beside, names=source.names),
        ),
    ]
    return Demo(path, tuple((command, run()) for command, run in steps))
