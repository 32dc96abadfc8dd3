"""Settings of Python's while weft works: when it collects garbage, the limit of recursion."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Generic, TypeVar

from weft.errors import KernelSyntaxError, Span

T = TypeVar("T")


class _Setting(Generic[T]):
    """What holds of the whole process while threads want it otherwise: the last restores it."""

    def __init__(
        self, read: Callable[[], T], write: Callable[[T], None], wanted: Callable[[T], T]
    ) -> None:
        self.read, self.write, self.wanted = read, write, wanted
        self.lock = threading.Lock()
        self.threads = 0

    def __enter__(self) -> None:
        with self.lock:
            if self.threads == 0:
                self.before = self.read()
                self.write(self.wanted(self.before))
            self.threads += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.threads -= 1
            if self.threads == 0:
                self.write(self.before)


# After `import torch` Python has hundreds of thousands of objects and has not yet looked for cycles
# among them. An import, or the compiler, would soon wait for that: 50 to 300 ms, several times. It
# looks among new objects only, and rarely: what is compiled for long leaves no garbage behind.
rarely_collected = _Setting(
    gc.get_threshold,
    lambda numbers: gc.set_threshold(*numbers),
    lambda before: (max(before[0], 50_000), 20, 1000) if before[0] else before,
)

# Frames: for a sum of 2,000 terms, 800 functions that call each other.
_recursion = _Setting(
    sys.getrecursionlimit, sys.setrecursionlimit, lambda before: max(before, 10_000)
)


@contextmanager
def deep(span: Span) -> Generator[None]:
    """Deeper recursion inside of a ``with``. Raises ``KernelSyntaxError``, about the code at
    ``span``, where that is not enough."""
    with _recursion:
        try:
            yield
        except RecursionError:
            raise KernelSyntaxError(
                "this is nested too deeply to be compiled", span,
                help="give parts of a long expression names, and let fewer functions call each "
                "other",
            ) from None  # fmt: skip
