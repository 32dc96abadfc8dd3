"""What a command prints, and its exit code."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from weft.workbench.report import Report

FOUND, USAGE = 1, 2  # exit codes, beside 0


@contextlib.contextmanager
def answer(json: bool) -> Generator[Callable[[Report], None]]:
    """Gives what prints a report and ends the command with its code. weft's errors are printed
    without a traceback: of usage, or what is wrong with a kernel; errors of the person's code with
    its own frames."""
    from weft.errors import WeftError  # imports torch, and so not before it must
    from weft.frames import of_user
    from weft.workbench.report import UsageError, as_json

    def show(report: Report) -> None:
        if json:
            typer.echo(as_json(report))
        elif sys.stdout.isatty() and hasattr(report, "listings"):
            listed(report)
        else:
            echo(str(report))
        raise typer.Exit(0 if report.ok else FOUND)

    def failed(text: str) -> None:
        if json:
            from json import dumps  # the help goes without

            typer.echo(dumps({"ok": False, "error": text}, indent=1, ensure_ascii=False))
        typer.echo(text, err=True)

    try:
        yield show
    except WeftError as error:
        failed(f"weft: {error}")
        raise typer.Exit(USAGE if isinstance(error, UsageError) else FOUND) from None
    except Exception as error:
        if isinstance(error, typer.Exit) or not of_user(error):
            raise  # weft's own mistake, with all of its frames
        failed("".join(traceback.format_exception(error)).rstrip())
        raise typer.Exit(FOUND) from None


def listed(report: Any) -> None:
    """Prints code with its colours, if rich is installed."""
    try:
        from rich.console import Console  # an extra
        from rich.syntax import Syntax  # likewise
    except ImportError:
        typer.echo(str(report))
        return
    console = Console(soft_wrap=True)
    for item in report.listings:
        console.rule(item.title, align="left")
        if item.language:
            console.print(Syntax(item.text, item.language, theme="ansi_dark"))
        else:
            console.print(item.text, markup=False)
    console.print(report.others, style="dim", markup=False)


def write(path: str, text: str) -> None:
    """Writes a file. Raises ``UsageError`` where that is not possible."""
    from weft.workbench.report import UsageError  # imports torch

    try:
        Path(path).write_text(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def echo(text: str) -> None:
    """Prints ``text``; on a terminal with colours, if rich is installed."""
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):  # an extra: plain text without it
            from rich.console import Console  # only for a terminal
            from rich.highlighter import RegexHighlighter, ReprHighlighter
            from rich.theme import Theme

            class Words(RegexHighlighter):
                highlights = (*ReprHighlighter.highlights, r"(?P<good>\bok\b)",
                              r"(?P<bad>\bWRONG\b)", r"(?P<lacks>\bmissing\b|\bnot tried\b)",
                              r"(?m)(?P<rule>^-+(  -+)*$)")  # fmt: skip

            colours = {"good": "green", "bad": "bold red", "lacks": "yellow", "rule": "dim"}
            console = Console(highlighter=Words(), theme=Theme(colours), soft_wrap=True)
            console.print(text, markup=False)
            return
    typer.echo(text)
