"""``python -m weft.workbench.marked PROGRAM ...``: runs a program for a profiler that stands around
it: with NVTX's ranges around every operator and kernel, and Nsight's capture around the part that
is asked for."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.workbench.profile import profile


@contextlib.contextmanager
def as_main(arguments: Sequence[str]) -> Generator[None]:
    """``sys.argv`` and ``sys.path`` are those of a program of its own."""
    before = sys.argv, [*sys.path]
    sys.argv = [*arguments]
    folder = os.path.dirname(os.path.abspath(arguments[0])) if _is_file(arguments[0]) else ""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before[0], before[1]


def _is_file(program: str) -> bool:
    return program.endswith(".py") or Path(program).is_file()


def run(arguments: Sequence[str]) -> None:
    """Runs a file, or a module by its name, as ``python`` would."""
    with as_main(arguments):
        if _is_file(arguments[0]):
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


class Enough(SystemExit):
    """The program has run for as long as its profiler looks at it."""


class Capture:
    """cudaProfilerStart at the begin of the ranges ``name`` behind the first ``skip``, and
    cudaProfilerStop at their end; without a name, around all. Behind ``most`` of these ranges, if
    it is not 0, the program ends."""

    def __init__(self, name: str, skip: int, most: int = 0) -> None:
        self.name, self.left, self.depth = name, skip, 0
        self.last = -most if most else None

    def __call__(self, name: str, begins: bool) -> None:
        if name != self.name:
            return
        self.depth += 1 if begins else -1
        if begins and self.depth == 1:
            self.left -= 1
        if self.left < 0 and self.depth == (1 if begins else 0):
            self.tell(begins)
            if not begins and self.left == self.last:
                raise Enough(0)

    @staticmethod
    def tell(begins: bool) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            runtime: Any = torch.cuda.cudart()
            (runtime.cudaProfilerStart if begins else runtime.cudaProfilerStop)()


def _end_at(time_of_day: float) -> None:
    """Has the program end then, as if it had asked for that itself: a profiler around it writes
    what it has."""

    def enough(number: int, frame: object) -> None:
        raise Enough(0)

    signal.signal(signal.SIGALRM, enough)
    signal.setitimer(signal.ITIMER_REAL, max(time_of_day - time.time(), 0.001))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m weft.workbench.marked")
    parser.add_argument("--range", default="")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--most", type=int, default=0, help="ranges, behind which it ends")
    parser.add_argument("--until", type=float, default=0.0, help="when it ends, as time.time()")
    parser.add_argument("--jitdump", default="", help="a folder for perf's file")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    capture = Capture(asked.range, asked.skip, asked.most)
    profile.watchers.append(capture)
    with contextlib.ExitStack() as open:
        open.enter_context(contextlib.suppress(Enough))
        if asked.until:
            _end_at(asked.until)
            open.callback(signal.setitimer, signal.ITIMER_REAL, 0.0)
        if asked.jitdump:
            from weft.runtime.jitdump import Jitdump  # for perf alone

            open.enter_context(Jitdump(Path(asked.jitdump)))
        if torch.cuda.is_available():
            open.enter_context(torch.autograd.profiler.emit_nvtx(record_shapes=True))
            if not asked.range:
                capture.tell(True)
                open.callback(capture.tell, False)
        run(asked.program)


if __name__ == "__main__":
    main()
