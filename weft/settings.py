"""Settings of Python's while weft works: when it collects garbage, the limit of recursion."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

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
                self.restore()

    def restore(self) -> None:
        self.write(self.before)


_MOST_PUT_OFF = 20  # times that all objects of the process are not looked through for weft's sake


class _Collection(_Setting[tuple[int, int, int]]):
    """After ``import torch`` Python has hundreds of thousands of objects and has not yet looked for
    cycles among them. An import, or the compiler, would soon wait for that: 50 to 300 ms, several
    times. It looks among new objects only, and rarely: what is compiled for long leaves no garbage
    behind.

    Nor is it to begin right after that for what weft has made: when Python has looked through the
    new objects, what is left is handed to the oldest generation, and its counts begin at zero.
    """

    def __init__(self) -> None:
        super().__init__(
            gc.get_threshold,
            lambda numbers: gc.set_threshold(*numbers),
            self._rarely,
        )
        self.put_off = self.collections = 0

    def _rarely(self, before: tuple[int, int, int]) -> tuple[int, int, int]:
        self.looked = gc.get_count()[1:]
        return (max(before[0], 50_000), 20, 1000) if before[0] else before

    def restore(self) -> None:
        self._put_off()
        super().restore()

    def _put_off(self) -> None:
        """A few times between two collections of all objects; a program that compiles for ever has
        these, too. Not where somebody has frozen objects, who would be given them back, or collects
        garbage when it suits."""
        new, *looked = gc.get_count()
        few = new <= self.before[0] and (*looked,) == self.looked  # since it began
        if few or not gc.isenabled():  # few, as most calls make: they are to cost nothing
            return
        collections = gc.get_stats()[2]["collections"]
        if collections != self.collections:
            self.collections, self.put_off = collections, 0
        if self.put_off < _MOST_PUT_OFF and self.before[0] and not gc.get_freeze_count():
            self.put_off += 1
            gc.collect(0)
            gc.freeze()
            gc.unfreeze()


rarely_collected = _Collection()

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


class _OfSource(Protocol):
    span: Any


P = ParamSpec("P")
S = TypeVar("S", bound=_OfSource)


def deeply(function: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """``function`` with deeper recursion inside: its first argument says where that comes from."""

    @functools.wraps(function)
    def call(of: S, *args: P.args, **kwargs: P.kwargs) -> T:
        with deep(of.span):
            return function(of, *args, **kwargs)

    return call
