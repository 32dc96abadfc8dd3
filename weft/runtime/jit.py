"""LLVM in this process: what compiles the code that all kernels share, and links what ``link.py``
leaves to it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import llvmlite.binding as llvm

from weft.codegen.machine import machine
from weft.runtime.link import Linked

_numbers = itertools.count()


def emit(text: str, effort: int = 1, cpu: str = "") -> bytes:
    """LLVM IR as object code, as it stands, for this machine or ``cpu``."""
    return machine(effort, cpu).emit_object(llvm.parse_assembly(text))


def link(data: bytes, symbols: Sequence[str], needs: Mapping[str, int]) -> Linked:
    """The functions ``symbols`` of an object file. ``needs``: addresses of functions that no shared
    library has. Raises ``RuntimeError`` if a function that it calls is not there."""
    builder = llvm.JITLibraryBuilder().add_object_img(data).add_current_process()
    for name, address in needs.items():
        builder.import_symbol(name, address)
    for name in symbols:
        builder.export_symbol(name)
    tracker = builder.link(_jit(), f"{symbols[0]}.{next(_numbers)}")
    return Linked({name: tracker[name] for name in symbols}, tracker)


@functools.cache
def _jit() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(machine(), use_jit_link=True, suppress_errors=False)
