"""Where a kernel's text is: spans, and the source of a Python function."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
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
    kernel: str = ""
    lines: dict[int, str] = field(default_factory=dict)

    def span(self, node: ast.AST) -> Span:
        line = getattr(node, "lineno", self.tree.lineno)
        end_line = getattr(node, "end_lineno", None) or line
        return Span(
            self.file, line, self._column(line, getattr(node, "col_offset", 0)), end_line,
            self._column(end_line, getattr(node, "end_col_offset", None) or 0),
            self.lines.get(line, ""), self.kernel or self.name,
        )  # fmt: skip

    def _column(self, line: int, offset: int) -> int:
        """A column in characters: ``ast`` counts bytes of UTF-8."""
        text = self.lines.get(line, "")
        return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


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
        raw, first = _typed(code), 1
    if code is None or not raw:
        raise SourceUnavailableError(
            f"the source of `{name}` is not available",
            help="weft compiles a function's source text: define it in a file, a notebook cell or "
            "the interactive prompt, not through exec or python -c",
        )
    text = "".join(raw)
    if getattr(function, "__name__", "") == "<lambda>":
        return _read_lambda(function, kernel)
    indented = raw[0][:1].isspace()
    # Not textwrap.dedent: a docstring or a comment may have lines that are less indented.
    body = ast.parse(f"if 1:\n{text}").body[0].body if indented else ast.parse(text).body  # type: ignore[attr-defined]
    tree = body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise SourceUnavailableError(
            f"`{name}` is not defined by a plain `def` statement",
            help="a kernel is a `def`; an async function cannot be compiled",
        )
    ast.increment_lineno(tree, first - 1 - indented)
    lines = {first + k: line.rstrip("\n") for k, line in enumerate(raw)}
    return FunctionSource(function, name, code.co_filename, text, tree, kernel, lines)


def _typed(code: CodeType | None) -> list[str]:
    """The lines of a function that was typed at the prompt, from the line editor's history.

    Python 3.13 keeps them itself. What is found is only taken if it compiles to the same code.
    """
    readline = sys.modules.get("readline")
    if code is None or code.co_filename != "<stdin>" or readline is None:
        return []
    length = readline.get_current_history_length()
    history = [readline.get_history_item(k) or "" for k in range(1, length + 1)]
    for start in reversed(range(len(history))):
        if not history[start].startswith(f"def {code.co_name}"):
            continue
        end = start + 1
        while end < len(history) and history[end][:1] in (" ", "\t"):
            end += 1
        while start and history[start - 1].startswith("@"):
            start -= 1
        lines = [line + "\n" for line in history[start:end]]
        try:
            compiled = compile("".join(lines), code.co_filename, "exec", dont_inherit=True)
        except SyntaxError:
            continue
        what = (code.co_name, code.co_code, code.co_names, code.co_consts)
        made = [c for c in compiled.co_consts if isinstance(c, CodeType)]
        if any((c.co_name, c.co_code, c.co_names, c.co_consts) == what for c in made):
            return lines
    return []


def _read_lambda(function: Callable[..., Any], kernel: str) -> FunctionSource:
    """A lambda as a function that returns its expression. It is found by place and parameters."""
    code = function.__code__  # type: ignore[attr-defined]
    lines = linecache.getlines(code.co_filename, function.__globals__)  # type: ignore[attr-defined]
    parameters = code.co_varnames[: code.co_argcount]
    try:
        nodes = list(ast.walk(ast.parse("".join(lines))))
    except SyntaxError:  # an IPython cell with magic commands
        nodes = []
    found = [
        n for n in nodes if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno
        and tuple(a.arg for a in [*n.args.posonlyargs, *n.args.args]) == parameters
    ]  # fmt: skip
    if len(found) != 1:
        raise SourceUnavailableError(
            f"the source of a lambda at line {code.co_firstlineno} of {code.co_filename} is not "
            "available" if not found else f"line {code.co_firstlineno} of {code.co_filename} has "
            "more than one such lambda", help="write it as a `def`",
        )  # fmt: skip
    node = found[0]
    tree = ast.FunctionDef("lambda", node.args, [ast.Return(node.body)], [], type_params=[])  # pyright: ignore[reportCallIssue]
    for new in (tree, tree.body[0]):
        ast.copy_location(new, node.body if new is not tree else node)
    numbered = {k + 1: line.rstrip("\n") for k, line in enumerate(lines)}
    text = "".join(lines)
    return FunctionSource(function, "<lambda>", code.co_filename, text, tree, kernel, numbered)
