"""What this machine reaches: the rates beside which a kernel's are put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.kernel import kernel
from weft.lang.loops import static
from weft.tuning.measure import samples
from weft.values import frozen
from weft.workbench.rates import Row

_BYTES = {"cpu": 128 << 20, "cuda": 512 << 20}  # of a tensor: several times the caches
_FLOATS = {"cpu": 1 << 18, "cuda": 1 << 26}
_CHAINS, _LENGTH = 8, 16  # of dependent operations: as many as hide the latency of one


@frozen
class Limits:
    """Rates of one device. ``copy`` and ``fill``: gigabytes a second, bytes read and written, of
    torch's ``copy_`` and ``fill_`` on tensors larger than caches. ``arithmetic``: GFLOP/s of
    multiply-adds of float32 in registers, by a loop of weft's. ``launch``: microseconds of a call
    on three small tensors."""

    device: str
    copy: float
    fill: float
    arithmetic: float
    launch: float

    def over_sizes(self, rows: Sequence[Row]) -> tuple[str, str, float]:
        """Which limit rates over sizes are put beside, its unit and its value: multiply-adds where
        they take longer than moving the bytes at the largest size, else copying."""
        largest = max(rows, key=lambda row: row.bytes)
        if largest.flops * self.copy > largest.bytes * self.arithmetic:
            return "multiply-adds", "GFLOP/s", self.arithmetic
        return "copy", "GB/s", self.copy


@kernel
def multiply_adds(out: torch.Tensor, x: torch.Tensor, a: float, b: float) -> None:
    for i in range(x.shape[0]):
        s = x[i]
        t, u, v = s + 1, s + 2, s + 3
        p, q, r, z = s + 4, s + 5, s + 6, s + 7
        for _ in static(range(16)):
            s, t, u, v = s * a + b, t * a + b, u * a + b, v * a + b
            p, q, r, z = p * a + b, q * a + b, r * a + b, z * a + b
        out[i] = s + t + u + v + p + q + r + z


@kernel
def small_sum(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] + y[i]


def limits(device: torch.device | str) -> Limits:
    """Measures a device, for about a second: the best of some 5 to 50 runs of each, as other work
    on it makes all of this smaller."""
    device = torch.device(device)

    def floats(count: int) -> torch.Tensor:
        return torch.rand(count, device=device)

    def seconds(call: Callable[[], Any], clock: torch.device = device) -> float:
        call()  # compiles, and asks the allocator for memory
        return min(samples([call], clock)[0]) / 1e3

    size = _BYTES[device.type]
    large = [floats(size // 4) for _ in range(2)]
    copy = 2 * size / seconds(lambda: large[0].copy_(large[1])) / 1e9
    fill = size / seconds(lambda: large[0].fill_(1.0)) / 1e9
    large.clear()  # gives the memory back
    x = floats(_FLOATS[device.type])
    out = torch.empty_like(x)
    work = 2 * _CHAINS * _LENGTH * x.numel()
    arithmetic = work / seconds(lambda: multiply_adds(out, x, 0.5, 0.1)) / 1e9
    small = [floats(16) for _ in range(3)]

    def launches() -> None:
        for _ in range(1000):
            small_sum(*small)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    # Many in a row take as long as the slower of host and device needs for each.
    launch = 1e3 * seconds(launches, torch.device("cpu"))
    return Limits(str(device), copy, fill, arithmetic, launch)
