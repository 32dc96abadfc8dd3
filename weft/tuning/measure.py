"""Times of several ways to do one thing, taken in turn, so that what else the machine does meets
all of them alike.

It imports nothing of weft: processes of ``benchmarks/`` that measure others load it by its path.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

LEAST_ROUNDS, MOST_ROUNDS = 5, 50
SECONDS = 0.1  # for each run, once the rounds are enough
_SAMPLE_MS = 0.2  # that a sample on the CPU takes at least, of as many calls as that needs
_CYCLES = 2e9  # of a GPU in a second, or more
_LONGEST_WAIT = 0.02  # of a run that waits for the GPU itself
_WAIT = 1e-4  # seconds that a GPU waits at least while launches are put behind that

T = TypeVar("T")
Run = Callable[[], Any]
# What takes the times: ``measure``, or what a test puts in its place.
Measure = Callable[[Sequence[Run], torch.device, Run], list[float]]


def measure(
    runs: Sequence[Run], device: torch.device, restore: Run = lambda: None,
    seconds: float = SECONDS,
) -> list[float]:  # fmt: skip
    """Median milliseconds of each of ``runs``: see ``samples``."""
    return [statistics.median(taken) for taken in samples(runs, device, restore, seconds)]


def samples(
    runs: Sequence[Run], device: torch.device, restore: Run = lambda: None,
    seconds: float = SECONDS, least: int = LEAST_ROUNDS,
) -> list[list[float]]:  # fmt: skip
    """Samples of the milliseconds that each of ``runs`` takes, which have run before: for some
    ``seconds`` each, ``least`` to 50. ``restore`` is called before each sample; its time does not
    count. CUDA's events time what is on the current stream: the device alone."""
    waits = [_WAIT] * len(runs)
    timed = partial(_on_gpu, waits) if device.type == "cuda" else _on_cpu
    first = timed(runs, restore)
    rounds = int(seconds * 1e3 * len(runs) / max(sum(first), 1e-6))
    times = [timed(runs, restore) for _ in range(min(max(rounds, least), MOST_ROUNDS))]
    return [list(of_one) for of_one in zip(*times, strict=True)]


def _on_cpu(runs: Sequence[Run], restore: Run) -> list[float]:
    times: list[float] = []
    for run in runs:
        restore()
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def _on_gpu(waits: list[float], runs: Sequence[Run], restore: Run) -> list[float]:
    """``waits``: seconds for which the GPU waits before each run, so that all of its launches are
    there when the first begins. What is shorter than the host took is made longer, once."""
    pairs: list[tuple[Any, Any]] = []
    for k, run in enumerate(runs):
        restore()
        torch.cuda._sleep(int(_CYCLES * waits[k]))  # pyright: ignore[reportPrivateUsage]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = time.perf_counter()
        begin.record()
        run()
        end.record()
        if waits[k] == _WAIT:
            waits[k] = min(max(2 * (time.perf_counter() - began), 1.01 * _WAIT), _LONGEST_WAIT)
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def repeats(call: Run, least: float = _SAMPLE_MS) -> int:
    """How many calls a sample on the CPU has, to take ``least`` milliseconds."""
    (times,) = samples([call], torch.device("cpu"), seconds=0.01, least=1)
    return max(1, round(least / max(min(times), 1e-5)))


def repeated(call: Run, count: int) -> Run:
    """``count`` calls in one."""

    def run() -> Any:
        for _ in range(count):
            call()

    run.__dict__["count"] = count
    return run


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
