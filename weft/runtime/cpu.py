"""Object code in this process: loading it, calling it, and the prints that it makes."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import struct
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm

from weft.codegen import interrupt, libraries
from weft.codegen.machine import machine

Prints = Sequence[tuple[Sequence[str | None], Sequence[str]]]

# Without OpenMP there is one thread. The object code calls these, so they must exist.
_SERIAL = """
define i32 @omp_get_max_threads() { ret i32 1 }
define i32 @omp_in_parallel() { ret i32 0 }
define i32 @omp_get_thread_num() { ret i32 0 }
define void @GOMP_parallel(ptr %body, ptr %frame, i32 %threads, i32 %flags) {
  call void %body(ptr %frame)
  ret void
}
"""


class LoadedFunction:
    """A compiled kernel in memory. ``call`` and ``call_holding_gil`` take the argument block as one
    bytes object or pointer; the latter keeps the interpreter's lock, for work of microseconds.
    ``address`` is the code's own, 0 where Python has to prepare a call (for prints)."""

    __slots__ = ("_keep", "address", "call", "call_holding_gil")

    def __init__(self, address: int, keep: object, prints: Prints = ()) -> None:
        self.address = 0 if prints else address
        self._keep = keep
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        holding = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address)
        call.keep = holding.keep = keep  # type: ignore[attr-defined]
        self.call = _printing(call, prints) if prints else call
        self.call_holding_gil = _printing(holding, prints) if prints else holding


def load(
    object: bytes, symbol: str, prints: Prints = (), symbols: Mapping[str, int] | None = None
) -> LoadedFunction:
    """Links object code into this process. ``prints`` is ``CpuCode.prints``; ``symbols``: addresses
    of functions that it calls.

    Raises ``RuntimeError`` if the code needs a function that is not there.
    """
    library = f"{symbol}.{next(_numbers)}"
    builder = llvm.JITLibraryBuilder().add_object_img(object).add_current_process()
    with _lock:
        for name, address in {**_own_symbols(), **(symbols or {})}.items():
            builder.import_symbol(name, address)
        tracker = builder.export_symbol(symbol).link(_jit(), library)
    return LoadedFunction(tracker[symbol], tracker, prints)


_numbers = itertools.count()
_lock = threading.Lock()


@functools.cache
def _jit() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(machine(), use_jit_link=False, suppress_errors=False)


@functools.cache
def _own_symbols() -> dict[str, int]:
    """The functions for compiled kernels that no shared library has, and their addresses."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_one_thread)
    symbols = {"weft_print": ctypes.cast(_print_callback, ctypes.c_void_p).value or 0}
    for name in interrupt.FUNCTIONS:
        function = getattr(ctypes.pythonapi, name)
        symbols[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
    if not libraries.load().openmp:
        builder = llvm.JITLibraryBuilder().add_ir(_SERIAL)
        for name in _SERIAL_NAMES:
            builder.export_symbol(name)
        tracker = builder.link(_jit(), "weft.serial")
        _keep.append(tracker)
        symbols.update({name: tracker[name] for name in _SERIAL_NAMES})
    return symbols


def _one_thread() -> None:
    """In a forked child the threads of OpenMP's pool are gone: waiting for them has no end.

    torch hangs there too, so that this tells OpenMP itself, for both.
    """
    address = llvm.address_of_symbol("omp_set_num_threads")
    if address:
        ctypes.CFUNCTYPE(None, ctypes.c_int)(address)(1)


@contextmanager
def one_thread() -> Generator[None]:
    """A context in which compiled code that this thread calls uses no other thread."""
    get, set_to = map(llvm.address_of_symbol, ("omp_get_max_threads", "omp_set_num_threads"))
    if not get or not set_to:  # there is no OpenMP, and so no other thread
        yield
        return
    change = ctypes.CFUNCTYPE(None, ctypes.c_int)(set_to)
    before = ctypes.CFUNCTYPE(ctypes.c_int)(get)()
    change(1)
    try:
        yield
    finally:
        change(before)


_SERIAL_NAMES = (
    "omp_get_max_threads", "omp_in_parallel", "omp_get_thread_num", "GOMP_parallel"
)  # fmt: skip
_keep: list[object] = []  # code that lives as long as the process


# -- prints: a kernel that prints runs on the calling thread, so that its table is this thread's

_table = threading.local()


def _printing(function: Callable[[Any], None], prints: Prints) -> Callable[[Any], None]:
    def call(block: Any) -> None:
        saved = getattr(_table, "prints", ())
        _table.prints = prints
        try:
            function(block)
        finally:
            _table.prints = saved

    return call


def _print(number: int, words: int) -> None:
    parts, kinds = _table.prints[number]
    raw = ctypes.string_at(words, 8 * len(kinds))
    values: list[int | float | bool] = []
    for k, kind in enumerate(kinds):
        value = struct.unpack_from("d" if kind == "float" else "q", raw, 8 * k)[0]
        values.append(bool(value) if kind == "bool" else value)
    remaining = iter(values)
    print("".join(str(next(remaining)) if part is None else part for part in parts), end="")


_print_callback = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(_print)
