"""Stores that stream, past the caches, in loops that LLVM has vectorised.

LLVM vectorises no loop with such stores unless they are known to be aligned. So they are marked
while it does: by an access group, which vectors of them keep. Of the longest vectors that come out
each asks where it is, and streams if a line of memory may begin there. (Part of a line that streams
is worse than all of it in the cache: what is left of a loop's iterations is stored as usual.)
"""

from __future__ import annotations

import re

import llvmlite.binding as llvm

from weft.codegen.emit import STREAMS
from weft.codegen.optimize import inlined

_BYTES = {"float": 4, "double": 8, "i32": 4, "i64": 8}
_NODE = re.compile(r"^(!\d+) = !\{([^}]*)\}$", re.MULTILINE)
_STORE = re.compile(
    r"^  store <(\d+) x (\w+)> (.+), ptr (\S+), align \d+(.*)!llvm\.access\.group (!\d+)(.*)$",
    re.MULTILINE,
)
_PLACE = re.compile(r", !dbg !\d+")  # in the source, where it is said


def streaming(module: llvm.ModuleRef, whole: int) -> llvm.ModuleRef:
    """``module``, which is optimised, with vectors of ``whole`` bytes that stream where their
    stores are marked."""
    text = str(module)
    mark = re.search(rf"^!{re.escape(STREAMS)} = !\{{(!\d+)\}}$", text, re.MULTILINE)
    if mark is None:
        return module
    nodes = {name: parts.split(", ") for name, parts in _NODE.findall(text)}
    marked = {name for name, parts in nodes.items() if mark[1] in parts}
    kinds: dict[tuple[int, str], None] = {}

    def called(store: re.Match[str]) -> str:
        lanes, element, value, place, before, group, after = store.groups()
        if group not in marked or int(lanes) * _BYTES.get(element, 0) != whole:
            return store[0]
        kinds[int(lanes), element] = None
        line, vector = _PLACE.search(f"{before},{after}"), f"<{lanes} x {element}> {value}"
        source = line[0] if line else ""
        return f"  call void @{_name(lanes, element)}({vector}, ptr {place}){source}"

    text = _STORE.sub(called, text)
    return inlined(llvm.parse_assembly(text + "".join(_function(*kind) for kind in kinds)))


def _name(lanes: object, element: str) -> str:
    return f"weft.stream.{lanes}.{element}"


def _function(lanes: int, element: str) -> str:
    """Stores a vector."""
    size, vector = _BYTES[element], f"<{lanes} x {element}>"
    whole = size * lanes
    return f"""
define internal void @{_name(lanes, element)}({vector} %value, ptr %place) alwaysinline nounwind {{
  %number = ptrtoint ptr %place to i64
  %past = and i64 %number, {whole - 1}
  %even = icmp eq i64 %past, 0
  br i1 %even, label %streams, label %usual
streams:
  store {vector} %value, ptr %place, align {whole}, !nontemporal !{{i32 1}}
  ret void
usual:
  store {vector} %value, ptr %place, align {size}
  ret void
}}
"""
