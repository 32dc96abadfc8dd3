"""pdb inside of a kernel that is interpreted: it stops at the kernel's lines, not at weft's."""

from __future__ import annotations

import pdb
import sys
import types
from collections.abc import Callable
from typing import Any

from weft.options import own_breakpoint
from weft.runtime.rewrite import LOOP


class Debugger(pdb.Pdb):
    """Of one call. ``iteration()`` gives the indices of the iteration that runs, ``finish()`` has
    the others run without a stop."""

    def __init__(self, iteration: Callable[[], Any], finish: Callable[[], None]) -> None:
        super().__init__()
        self._iteration, self._finish = iteration, finish

    def stop_here(self, frame: types.FrameType) -> bool:
        """Not in what weft and torch do for the kernel, and what they call."""
        return super().stop_here(frame) and not _serves(frame)

    def get_stack(
        self, f: types.FrameType | None, t: types.TracebackType | None
    ) -> tuple[list[tuple[types.FrameType, int]], int]:
        """The frames that ``up`` and ``where`` show: weft's and torch's are left out."""
        stack, at = super().get_stack(f, t)
        kept = [k for k, (frame, _) in enumerate(stack) if k == at or not _is_of_weft(frame)]
        return [stack[k] for k in kept], kept.index(at)

    def do_iteration(self, arg: str) -> None:
        """iteration: the indices of the iteration that runs."""
        self.message(str(self._iteration()))

    def do_finish(self, arg: str) -> bool | None:
        """finish: goes on to the end of the kernel."""
        self._finish()
        return self.do_continue(arg)

    def at_iteration(self, frame: types.FrameType) -> None:
        """Stops where ``frame`` goes on, at the first line of an iteration."""
        self.message(f"iteration {self._iteration()}")
        self.set_trace(frame)

    def stop(self, *args: Any, **kwargs: Any) -> None:
        """What ``breakpoint()`` calls in the kernel, but where somebody has asked for another
        debugger: there it calls that one."""
        self.set_trace(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]


def _serves(frame: types.FrameType | None) -> bool:
    """Whether weft or torch is between ``frame`` and the kernel."""
    while frame is not None and LOOP not in frame.f_globals:
        if _is_of_weft(frame):
            return True
        frame = frame.f_back
    return False


def _is_of_weft(frame: types.FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("weft", "torch")


def is_asked_for() -> bool:
    """Whether ``breakpoint()`` is Python's own: no notebook, test runner or variable of the
    environment has put something else in its place."""
    return sys.breakpointhook is sys.__breakpointhook__ and own_breakpoint()
