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
_CYCLES = 2e9  # of a GPU in a second, or more: it waits while launches are put behind

T = TypeVar("T")
Run = Callable[[], Any]
# What takes the times: ``measure``, or what a test puts in its place.
Measure = Callable[[Sequence[Run], torch.device, Run], list[float]]


def measure(
    runs: Sequence[Run], device: torch.device, restore: Run = lambda: None, calls: int = 1
) -> list[float]:
    """Median milliseconds of each of ``runs``: see ``samples``."""
    return [statistics.median(taken) for taken in samples(runs, device, restore, calls)]


def samples(
    runs: Sequence[Run], device: torch.device, restore: Run = lambda: None, calls: int = 1,
    seconds: float = SECONDS,
) -> list[list[float]]:  # fmt: skip
    """Samples of the milliseconds that each of ``runs`` takes, which have run before: for some
    ``seconds`` each, at most 50. ``restore`` is called before each sample, which is the mean over
    so many ``calls``; its time does not count. CUDA's events time what is on the current stream:
    the device alone, where the host puts launches there faster than they run."""
    timed = _on_gpu if device.type == "cuda" else _on_cpu
    first = [sample * calls for sample in timed(runs, restore, calls)]
    rounds = int(seconds * 1e3 * len(runs) / max(sum(first), 1e-6))
    taken = [
        timed(runs, restore, calls) for _ in range(min(max(rounds, LEAST_ROUNDS), MOST_ROUNDS))
    ]
    return [list(of_one) for of_one in zip(*taken, strict=True)]


def _on_cpu(runs: Sequence[Run], restore: Run, calls: int) -> list[float]:
    times: list[float] = []
    for run in runs:
        restore()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - begin) * 1e3 / calls)
    return times


def _on_gpu(runs: Sequence[Run], restore: Run, calls: int) -> list[float]:
    pairs: list[tuple[Any, Any]] = []
    for run in runs:
        restore()
        torch.cuda._sleep(int(_CYCLES * 1e-4))  # pyright: ignore[reportPrivateUsage]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / calls for begin, end in pairs]


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
