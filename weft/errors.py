"""The errors that weft raises. Each is in the Python family where a person would look for it, and
each that comes from a kernel's source carries a ``span`` and shows the line with carets.

A message reads::

    model.py:12: in kernel `blur`: `w` has 2 dimensions, but 3 subscripts are given
        s += w[c, t, 0]
             ^^^^^^^^^^
    help: write w[i, j]
"""

from __future__ import annotations

import warnings
from typing import Any

from weft.values import frozen


@frozen
class Span:
    """A stretch of source text. Lines count from 1, columns from 0 (as in ``ast``)."""

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    text: str = ""  # the whole first line, as in the file
    kernel: str = ""  # the kernel's name, for messages


class WeftError(Exception):
    """Everything that weft raises on purpose."""


class CompileError(WeftError):
    """A kernel that cannot be compiled. ``span`` is the source text it is about."""

    def __init__(self, message: str, span: Span | None = None, help: str = "") -> None:
        self.message = message
        self.span = span
        self.help = help
        super().__init__(render(message, span, help))

    def __str__(self) -> str:
        return self.args[0]


class KernelSyntaxError(CompileError, SyntaxError):
    """Syntax that a kernel may not use. Filled as Python's own SyntaxError is, for editors."""

    def __init__(self, message: str, span: Span | None = None, help: str = "") -> None:
        CompileError.__init__(self, message, span, help)
        if span is not None:
            self.filename, self.lineno, self.text = span.file, span.line, span.text
            self.offset, self.end_lineno, self.end_offset = (
                span.column + 1, span.end_line, span.end_column + 1,
            )  # fmt: skip


class KernelTypeError(CompileError, TypeError):
    """Types that do not fit each other, wrong argument counts or kinds."""


class KernelNameError(CompileError, NameError):
    """A name that is not known."""


class KernelIndexError(CompileError, IndexError):
    """A subscript that is wrong in number or out of range."""


class KernelValueError(CompileError, ValueError):
    """A value that a kernel cannot be run with: devices, shapes, dtypes that do not agree."""


class KernelAssertionError(CompileError, AssertionError):
    """An ``assert`` in a kernel that did not hold."""


OVERFLOW_HELP = (
    "compute in a wider type, weft.i64(x), or with a mask of the bits that are meant; without "
    "debug, integers wrap"
)


class KernelOverflowError(CompileError, OverflowError):
    """An integer that wrapped, in debug mode."""


class RaceError(CompileError, ValueError):
    """Two iterations of a parallel loop touch one element, at least one writing."""


class ScheduleError(CompileError, ValueError):
    """A text that is no schedule, or a step that a loop does not allow."""


class GradientError(CompileError, RuntimeError):
    """A derivative that is asked for and cannot be given correctly."""


class SourceUnavailableError(CompileError, OSError):
    """A function whose source text cannot be found."""


class InternalError(WeftError, AssertionError):
    """weft broke a promise to itself (a pass made invalid IR). Please report it."""


def render(message: str, span: Span | None, help: str = "") -> str:
    """The whole text of an error: place, message, the source line with carets, what to write."""
    lines = []
    if span is None:
        lines.append(message)
    else:
        where = f"in kernel `{span.kernel}`: " if span.kernel else ""
        lines.append(f"{span.file}:{span.line}: {where}{message}")
        if span.text.strip():
            stripped = span.text.strip()
            shift = len(span.text) - len(span.text.lstrip())
            begin = max(span.column - shift, 0)
            end = span.end_column - shift if span.end_line == span.line else len(stripped)
            end = min(max(end, begin + 1), len(stripped))
            lines.append(f"    {stripped}")
            lines.append("    " + " " * begin + "^" * max(end - begin, 1))
    if help:
        lines.append(f"help: {help}")
    return "\n".join(lines)


def warn(
    category: type[Warning],
    message: str,
    span: Span,
    help: str,
    registry: dict[Any, Any] | None = None,
) -> None:
    """Warns of the kernel's own line, which ``warnings`` shows; ``registry`` remembers what was
    said."""
    kernel = f"kernel `{span.kernel}`: " if span.kernel else ""
    text = f"{kernel}{message}\nhelp: {help}"
    warnings.warn_explicit(text, category, span.file, span.line, registry=registry)


def first_line(error: Exception) -> str:
    """What an error says first; its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)
