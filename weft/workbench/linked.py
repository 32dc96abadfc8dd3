"""The stages of a compilation by lines, each with the line of Python that it comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from weft.values import frozen

Place = tuple[str, int]  # a file and a line in it


@frozen
class Line:
    """``place``: where it comes from; None where that is not said."""

    text: str
    place: Place | None = None


def linked(stage: str, text: str) -> list[Line]:
    """The lines of one stage of ``compiled_loops(..., lines=True)``, without what says where they
    come from."""
    if stage.startswith(("ir", "step", "scheduled ir")):
        return [*_ir(text)]
    if stage.startswith("llvm"):
        return [*_llvm(text)]
    if stage in ("assembly", "ptx"):
        return [*_assembly(text)]
    if stage == "sass":
        return [*_sass(text)]
    return [Line(line) for line in text.splitlines()]


_SPAN = re.compile(r"^(.*?)  // (\S.*):(\d+)$")


def _ir(text: str) -> Iterator[Line]:
    for line in text.splitlines():
        found = _SPAN.match(line)
        yield Line(found[1], (found[2], int(found[3]))) if found else Line(line)


_NODE = re.compile(r"^!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)$", re.MULTILINE)
_FIELD = re.compile(r'(\w+): ("(?:[^"\\]|\\.)*"|[^,]+)')
_DEBUG = re.compile(r"(?:,| )? ?!dbg !(\d+)")
_FLAGS = re.compile(r"^!llvm\.(dbg\.cu|module\.flags) = ")


def _llvm(text: str) -> Iterator[Line]:
    nodes = {n: (kind, dict(_FIELD.findall(rest))) for n, kind, rest in _NODE.findall(text)}

    def place_of(node: str) -> Place | None:
        kind, fields = nodes.get(node, ("", {}))
        if kind != "DILocation" or not int(fields.get("line", 0)):
            return None
        scope = nodes[fields["scope"].removeprefix("!")][1]
        file = nodes[scope["file"].removeprefix("!")][1]
        parts = (_plain(file[name].strip('"')) for name in ("directory", "filename"))
        return os.path.join(*parts), int(fields["line"])

    for line in text.splitlines():
        if _NODE.match(line) or _FLAGS.match(line):
            continue
        found = _DEBUG.search(line)
        defines = line.startswith("define ")
        place = place_of(found[1]) if found and not defines else None
        yield Line(_DEBUG.sub("", line), place)


def _plain(text: str) -> str:
    """A string as LLVM writes it, without its escapes."""
    return re.sub(rb"\\([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), text.encode()).decode()


_FILE = re.compile(r'^\s*\.file\s+(\d+) "([^"]*)"(?: "([^"]*)")?', re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(\d+) (\d+)")
_NOISE = re.compile(r"^\s*\.(file|cfi_\w+|addrsig|ident)\b|^\.?L(tmp|func_\w+)\d+:|^\$L__tmp\d+:"
                    r"|^\s*\.p2align|^\s*#\s*(kill|implicit)")  # fmt: skip
_SECTION = re.compile(r"^\s*\.section\s+(\S+)")


def _assembly(text: str) -> Iterator[Line]:
    """An instruction stays of the line before, and is of none behind ``.loc ... 0``."""
    files = {n: os.path.join(a, b) if b else a for n, a, b in _FILE.findall(text)}
    place: Place | None = None
    debug = False
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section or line.strip() == ".text":
            debug = section is not None and section[1].startswith(".debug")
        loc = _LOC.match(line)
        if loc:
            number = int(loc[2])
            place = (files.get(loc[1], loc[1]), number) if number else None
        if debug or loc or _NOISE.match(line):
            continue
        instruction = line[:1].isspace() and not line.strip().startswith((".", "//", "#"))
        yield Line(line, place if instruction else None)
        if (
            not line[:1].isspace()
            and line.rstrip().endswith(":")
            and not line.startswith((".", "$"))
        ):
            place = None  # another function


_SASS_PLACE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')


def _sass(text: str) -> Iterator[Line]:
    place: Place | None = None
    debug = False
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section:
            debug = "debug" in section[1]
        found = _SASS_PLACE.match(line)
        if found:
            place = found[1], int(found[2])
        elif line.lstrip().startswith("//--------------------- "):
            place, debug = None, "debug" in line
        if found or debug:
            continue
        yield Line(line, place if "/*" in line else None)
