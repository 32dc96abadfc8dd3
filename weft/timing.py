"""How long each stage of a compilation takes.

``with stage("llvm"):`` marks a stage; it costs next to nothing unless a ``with record() as times:``
is open in the same context (thread or task).
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from time import perf_counter


class Recording:
    """Milliseconds per stage, each with the stages inside it, in order of first entry.

    ``stages`` maps a stage's name to its total; ``depth`` says how deep it was nested when first
    entered. A stage that is entered several times (from several threads, too) adds up. ``spans``:
    of each time its name, begin and end (by ``time.perf_counter``), and the thread.
    """

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self.depth: dict[str, int] = {}
        self.spans: list[tuple[str, float, float, int]] = []
        self._lock = threading.Lock()

    def open(self, name: str, depth: int) -> None:
        with self._lock:
            self.stages.setdefault(name, 0.0)
            self.depth.setdefault(name, depth)

    def add(self, name: str, milliseconds: float) -> None:
        with self._lock:
            self.stages[name] = self.stages.get(name, 0.0) + milliseconds

    def report(self) -> str:
        """A table of text, a line for each stage, indented by nesting; "" if there is none."""
        labels = {name: "  " * self.depth.get(name, 0) + name for name in self.stages}
        width = max(map(len, labels.values()), default=0)
        return "\n".join(f"{labels[name]:{width}} {ms:9.3f} ms" for name, ms in self.stages.items())


# (where to put times, how many stages are open); None when nobody records.
_current: ContextVar[tuple[Recording, int] | None] = ContextVar("weft_timing", default=None)
_nothing = nullcontext()


class _Stage:
    __slots__ = ("begin", "depth", "name", "recording", "token")

    def __init__(self, name: str, recording: Recording, depth: int) -> None:
        self.name = name
        self.recording = recording
        self.depth = depth

    def __enter__(self) -> None:
        self.recording.open(self.name, self.depth)
        self.token = _current.set((self.recording, self.depth + 1))
        self.begin = perf_counter()

    def __exit__(self, *_: object) -> None:
        end = perf_counter()
        self.recording.add(self.name, (end - self.begin) * 1e3)
        self.recording.spans.append((self.name, self.begin, end, threading.get_ident()))
        _current.reset(self.token)


def stage(name: str) -> AbstractContextManager[None]:
    """Times what is inside the ``with``, if somebody records; an exception is timed as well."""
    current = _current.get()
    return _nothing if current is None else _Stage(name, *current)


@contextmanager
def record() -> Generator[Recording]:
    """Collects the stages inside the ``with``. They are added to an enclosing ``record()``, too."""
    outer = _current.get()
    recording = Recording()
    token = _current.set((recording, 0))
    try:
        yield recording
    finally:
        _current.reset(token)
        if outer is not None:
            for name, milliseconds in recording.stages.items():
                outer[0].open(name, outer[1] + recording.depth[name])
                outer[0].add(name, milliseconds)
            outer[0].spans += recording.spans
