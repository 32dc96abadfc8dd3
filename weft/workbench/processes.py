"""Other programs: where they are, and one that is run until its time is over."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

from weft.codegen.libdevice import toolkits
from weft.values import frozen

_GRACE = 20.0  # seconds that a program has for writing what it found, once its time is over
# Where NVIDIA's profilers are without being on the PATH: inside of a toolkit, and by themselves.
_INSIDE = ("bin/{}", "nsight-compute-*/{}", "nsight-systems-*/bin/{}")
_ALONE = ("nsight-compute/*/{}", "nsight-systems/*/bin/{}")


def place_of(tool: str) -> str:
    """The path of an installed program; "" where there is none."""
    found = shutil.which(tool)
    if found:
        return found
    places = [(root, inside) for root in toolkits() for inside in _INSIDE]
    places += [(Path("/opt/nvidia"), inside) for inside in _ALONE]
    for root, inside in places:
        files = sorted(f for f in root.glob(inside.format(tool)) if os.access(f, os.X_OK))
        if files:
            return str(files[-1])  # the newest
    return ""


@frozen
class Ended:
    """How a program ended: its exit code, what it printed (stderr among it), the seconds that it
    took, and whether it was ended because its time was over."""

    code: int
    text: str
    seconds: float
    stopped: bool = False


def run_until(
    command: Sequence[str], seconds: float, environment: Mapping[str, str],
    told: Callable[[str], str] | None = None,
) -> Ended:  # fmt: skip
    """Runs ``command`` for ``seconds``, and a while longer if it is about to end. What it started
    ends with it. ``told``: of a line that it prints, what a terminal shows of it."""
    begin = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        env=dict(environment), start_new_session=True,
    ) as program, _status(Path(command[0]).name, seconds) as show:  # fmt: skip
        try:
            text, over = _read(program, begin + seconds + _GRACE, told, show)
        finally:
            stopped = program.poll() is None and _end(program)
    return Ended(program.returncode, text, time.monotonic() - begin, stopped or over)


def _read(
    program: subprocess.Popen[bytes], end: float, told: Callable[[str], str] | None,
    show: Callable[[str], None],
) -> tuple[str, bool]:  # fmt: skip
    """What it prints until it ends or it is time to; whether that is so."""
    assert program.stdout is not None
    file, parts, said = program.stdout.fileno(), list[bytes](), ""
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if selector.select(min(left, 0.5)):
                part = os.read(file, 1 << 16)
                if not part:  # all that may print has ended
                    program.wait()
                    return b"".join(parts).decode(errors="replace"), False
                parts.append(part)
                for line in part.decode(errors="replace").splitlines() if told else ():
                    said = told(line) or said if told else said
            show(said)
    return b"".join(parts).decode(errors="replace"), True


def _end(program: subprocess.Popen[bytes]) -> bool:
    """Ends a program with all that it started."""
    for kind, wait in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(wait)
            break
    return True


@contextlib.contextmanager
def _status(name: str, seconds: float) -> Generator[Callable[[str], None]]:
    """Gives what shows how far a program is, in one line of a terminal that goes again."""
    if not sys.stderr.isatty():
        yield lambda said: None
        return
    begin = time.monotonic()

    def show(said: str) -> None:
        words = f"{name}: {time.monotonic() - begin:.0f} of {seconds:.0f} s  {said}"
        room = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{words[:room]:<{room}}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
