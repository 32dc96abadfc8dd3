"""Where a kernel's text is: spans, and the source of a Python function."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft.errors import SourceUnavailableError


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of source text. Lines count from 1, columns from 0 (as in ``ast``)."""

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    text: str = ""  # the whole first line, as in the file
    kernel: str = ""  # the kernel's name, for messages


@dataclass(slots=True)
class FunctionSource:
    """The parsed source of one Python function. ``tree`` has line numbers of the file."""

    function: Callable[..., Any]
    name: str
    file: str
    text: str
    tree: ast.FunctionDef
    indent: int  # columns that were stripped from each line before parsing
    kernel: str = ""
    lines: dict[int, str] = field(default_factory=dict)

    def span(self, node: ast.AST) -> Span:
        line = getattr(node, "lineno", self.tree.lineno)
        end_line = getattr(node, "end_lineno", None) or line
        return Span(
            self.file, line, getattr(node, "col_offset", 0) + self.indent, end_line,
            (getattr(node, "end_col_offset", None) or 0) + self.indent,
            self.lines.get(line, ""), self.kernel or self.name,
        )  # fmt: skip


def read_function(function: Callable[..., Any], kernel: str = "") -> FunctionSource:
    """Finds and parses the source of ``function``.

    Raises ``SourceUnavailableError`` where Python cannot find it (a function made by ``exec``; in a
    REPL older than Python 3.13).
    """
    name = getattr(function, "__name__", repr(function))
    code = getattr(function, "__code__", None)
    try:
        if code is None:
            raise OSError
        linecache.checkcache(code.co_filename)
        raw, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise SourceUnavailableError(
            f"the source of `{name}` is not available",
            help="weft compiles a function's source text: define it in a file, a notebook cell or "
            "(Python 3.13+) the interactive prompt, not through exec or python -c",
        ) from None
    text = "".join(raw)
    dedented = textwrap.dedent(text)
    indent = len(raw[0]) - len(raw[0].lstrip())
    tree = ast.parse(dedented).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise SourceUnavailableError(
            f"`{name}` is not defined by a plain `def` statement",
            help="a kernel is a `def`; a lambda or an async function cannot be compiled",
        )
    ast.increment_lineno(tree, first - 1)
    lines = {first + k: line.rstrip("\n") for k, line in enumerate(raw)}
    return FunctionSource(function, name, code.co_filename, text, tree, indent, kernel, lines)
