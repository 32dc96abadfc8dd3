"""Times of several ways to do one thing, taken in turn, so that what else the machine does meets
all of them alike."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

LEAST_ROUNDS, MOST_ROUNDS = 5, 50
SECONDS = 0.1  # for each run, once the rounds are enough
_CYCLES = 200_000  # a GPU waits for so many, 0.1 ms, while launches are put behind

T = TypeVar("T")
Run = Callable[[], Any]
# What takes the times: ``measure``, or what a test puts in its place.
Measure = Callable[[Sequence[Run], torch.device, Run], list[float]]


def measure(runs: Sequence[Run], device: torch.device, restore: Run) -> list[float]:
    """Median milliseconds of each of ``runs``, which have run before. ``restore`` is called before
    each; its time does not count. CUDA's events time what is on the current stream."""
    timed = _on_gpu if device.type == "cuda" else _on_cpu
    first = timed(runs, restore)
    rounds = int(SECONDS * 1e3 * len(runs) / max(sum(first), 1e-6))
    times = [timed(runs, restore) for _ in range(min(max(rounds, LEAST_ROUNDS), MOST_ROUNDS))]
    return [statistics.median(of_one) for of_one in zip(*times, strict=True)]


def _on_cpu(runs: Sequence[Run], restore: Run) -> list[float]:
    times: list[float] = []
    for run in runs:
        restore()
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def _on_gpu(runs: Sequence[Run], restore: Run) -> list[float]:
    pairs: list[tuple[Any, Any]] = []
    for run in runs:
        restore()
        torch.cuda._sleep(_CYCLES)  # pyright: ignore[reportPrivateUsage]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def shown(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """``items``, with a bar of progress on stderr if that is a terminal: rich's where it is
    installed."""
    if not sys.stderr.isatty():
        yield from items
        return
    try:
        from rich.console import Console  # optional
        from rich.progress import track  # optional
    except ImportError:
        for k, item in enumerate(items):
            sys.stderr.write(f"\r{what} {k}/{total}")
            sys.stderr.flush()
            yield item
        sys.stderr.write(f"\r{what} {total}/{total}\n")
    else:
        console = Console(stderr=True)
        yield from track(items, what, total=total, console=console, transient=True)
