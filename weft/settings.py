"""Settings of Python's while weft works: the garbage collector, the limit of recursion."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from weft.errors import KernelSyntaxError
from weft.source import Span

_LIMIT = 10_000  # frames: a sum of 2,000 terms, 800 functions that call each other


@contextmanager
def paused() -> Generator[None]:
    """No collection inside of a ``with``.

    After ``import torch`` Python has hundreds of thousands of objects and has not yet looked for
    cycles among them; the next import that makes some objects of its own would wait for that, 50 ms
    of its 120. Not for long-running work: garbage cycles stay until the end.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Raised:
    """How many threads compile, and the limit that the last of them restores."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads = 0
        self.before = 0

    def enter(self) -> None:
        with self.lock:
            if self.threads == 0:
                self.before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self.before, _LIMIT))
            self.threads += 1

    def leave(self) -> None:
        with self.lock:
            self.threads -= 1
            if self.threads == 0:
                sys.setrecursionlimit(self.before)


_raised = _Raised()


@contextmanager
def deep(span: Span) -> Generator[None]:
    """Deeper recursion inside of a ``with``. Raises ``KernelSyntaxError``, about the code at
    ``span``, where that is not enough."""
    _raised.enter()
    try:
        yield
    except RecursionError:
        raise KernelSyntaxError(
            "this is nested too deeply to be compiled", span,
            help="give parts of a long expression names, and let fewer functions call each other",
        ) from None  # fmt: skip
    finally:
        _raised.leave()
