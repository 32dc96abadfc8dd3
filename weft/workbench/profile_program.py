"""``weft profile PROGRAM``: a program or a function under torch's profiler, and under others."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from weft.codegen.emit import symbol_of
from weft.workbench.marked import as_main, run
from weft.workbench.profile import Profile, profile
from weft.workbench.profilers import Asked, external
from weft.workbench.report import UsageError
from weft.workbench.sources import function_of


def profile_program(
    program: Sequence[str], *, range: str = "", skip: int = 1, trace: str = "",
    tools: Sequence[str] = (), rows: int = 15, quiet: bool = False, kernels: int = 6,
    seconds: float = 60.0,
) -> Profile:  # fmt: skip
    """Runs ``program``, a file or a module with its arguments, as ``python`` would; or calls the
    function of ``FILE:FUNCTION``, a few times before it counts. ``range``: only what is inside of
    ``weft.profile.range(range)`` counts, without the first ``skip`` times. ``tools``: "ncu", "nsys"
    and "perf", which run the program again, for so many ``seconds`` at most each; ncu looks at the
    ``kernels`` that took most time, and as many of weft's own. ``quiet``: what it prints goes to
    stderr. Raises ``UsageError``."""
    name, colon, function = program[0].rpartition(":")
    if not colon and not Path(program[0]).is_file() and program[0].endswith(".py"):
        raise UsageError(f"there is no file {program[0]}")
    if not colon and not Path(program[0]).is_file() and not _is_module(program[0]):
        raise UsageError(f"there is no file and no module {program[0]}")
    if tools and colon:
        raise UsageError(f"--{', --'.join(tools)}: a program is run, no function\n"
                         "help: name the file")  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr) if quiet else contextlib.nullcontext():
        if colon:
            found = profile(_without_arguments(function_of(name, function), program[0]),
                            trace=trace, rows=rows)  # fmt: skip
        else:
            found = profile.recorded(lambda: _run(program), trace=trace, rows=rows, name=range,
                                     skip=skip)  # fmt: skip
    if not tools or not found.ok:
        return found
    places = {f"{symbol_of(loop)}{end}": at for loop, at in found.loops for end in ("", "_finish")}
    asked = Asked(tuple(program), range, skip, places, _longest(found, kernels), seconds)
    others = [external(tool, asked) for tool in tools]
    tables = tuple(table for o in others for table in o.tables)
    notes = tuple(o.note for o in others if o.note)
    return replace(found, others=tables, notes=(*found.notes, *notes))


def _is_module(name: str) -> bool:
    with as_main([name]):  # the current folder's, too
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):  # of a package around it, or no name
            return False


def _without_arguments(function: Callable[..., Any], name: str) -> Callable[[], Any]:
    needed = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise UsageError(f"{name} takes {', '.join(needed)}, and is called without arguments\n"
                         "help: name a function beside it that calls it")  # fmt: skip
    return function


def _longest(found: Profile, count: int) -> tuple[str, ...]:
    """The names of the GPU's functions that took most time, and of those of weft."""
    every = [e for e in found.entries
             if e.device == "cuda" and not e.name.startswith(("Memcpy", "Memset"))]  # fmt: skip
    mine = [e.name for e in every if e.source]
    return tuple(dict.fromkeys([*(e.name for e in every[:count]), *mine[:count]]))


def _run(program: Sequence[str]) -> None:
    """Runs it. An error of its own is printed and ends it: what was recorded until then counts."""
    try:
        run(program)
    except Exception as error:
        unread = isinstance(error, SyntaxError)  # names its place itself
        traceback.print_exception(type(error), error, None if unread else _own(error.__traceback__))
        raise SystemExit(f"{type(error).__name__}: {error}") from None


def _own(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the program's first frame on; all of it, where none is there."""
    start = trace
    while start is not None and start.tb_frame.f_globals.get("__name__") != "__main__":
        start = start.tb_next
    return start or trace
