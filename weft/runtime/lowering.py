"""The door to the frontend: lowering loops, and what is said of their IR.

Nothing else of the runtime imports the frontend's lowering, the IR's text or its passes; who needs
machine code imports ``weft.compiler``.
"""

from __future__ import annotations

import copy
import hashlib
import logging

from weft.frontend.lower import Lowered, lower
from weft.ir.bounded import has_few
from weft.ir.core import Function, walk
from weft.ir.text import print_function
from weft.ir.types import MemRefType
from weft.ir.writes import written
from weft.options import Options
from weft.runtime.deterministic import is_unordered
from weft.runtime.known import Summary

__all__ = ["lower", "summarize", "writes"]

log_ir = logging.getLogger("weft.ir")
log_source = logging.getLogger("weft.source")

_FAILING = ("weft.assert", "weft.bounds", "memref.load", "memref.store", "memref.atomic_rmw",
            "memref.atomic_cas")  # fmt: skip


def summarize(lowered: Lowered, options: Options) -> tuple[Summary, str]:
    """What launching asks of a loop, and the hash of its IR. The IR is logged, and the loop's
    source with types if there is one."""
    function = lowered.function
    if lowered.typed_source:
        log_source.debug("%s:\n%s", function.name, lowered.typed_source)
    bare = copy.copy(function)  # what is derived says what it is derived of
    bare.attrs = {name: value for name, value in function.attrs.items() if name != "noalias"}
    text = print_function(bare)
    log_ir.debug("%s", text)
    digest = hashlib.sha256((text + _places(function, options)).encode()).hexdigest()
    summary = Summary(
        name=function.name,
        types=tuple(a.type for a in function.args),
        written=writes(function),
        brief=all(has_few(op) for op in function.body.ops if op.regions),
        unordered=is_unordered(function),
        results=tuple((name, dtype) for name, dtype in lowered.results),
    )
    return summary, digest


def writes(function: Function) -> frozenset[int]:
    """Which of the memref arguments (counted among memrefs) are written."""
    memrefs = [a for a in function.args if isinstance(a.type, MemRefType)]
    numbers = {id(a): k for k, a in enumerate(memrefs)}
    return frozenset(numbers[id(v)] for v in written(function) if id(v) in numbers)


def _places(function: Function, options: Options) -> str:
    """Where in the source what may fail stands. Code that checks knows it, so that a kernel with
    other lines above it is another one to the cache."""
    checked = [op for op in walk(function.body) if op.name in _FAILING]
    if not options.debug and all(op.name.startswith("memref.") for op in checked):
        return ""
    return "".join(f"// {op.span}\n" for op in checked)
