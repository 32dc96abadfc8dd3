"""Object code in this process: loading it, calling it, and the prints that it makes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import logging
import os
import struct
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from weft.codegen import interrupt, libraries, pool
from weft.codegen.machine import host, host_cpu, machine
from weft.runtime.cache import DiskCache

Prints = Sequence[tuple[Sequence[str | None], Sequence[str]]]

log = logging.getLogger("weft.cache")


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
    object: bytes, symbol: str, prints: Prints = (), *, cache: DiskCache | None = None
) -> LoadedFunction:
    """Links the object code of a kernel into this process. ``prints`` is ``CpuCode.prints``. What
    all kernels share is kept in ``cache``.

    Raises ``RuntimeError`` if the code needs a function that is not there.
    """
    with _lock:
        if not _shared:
            _shared.update(_pool(cache))
        tracker = _link(object, [symbol], _shared)
    return LoadedFunction(tracker[symbol], tracker, prints)


def load_text(
    text: str, symbols: Sequence[str], needs: Mapping[str, int], cache: DiskCache | None,
    *, effort: int = 1,
) -> llvm.ResourceTracker:  # fmt: skip
    """The code of LLVM IR that is the same in every process, compiled as it stands, or taken from
    ``cache``: ``symbols`` of it can be asked for. ``needs``: addresses of functions that it calls.
    """
    key = hashlib.sha256(f"{llvmlite.__version__}\n{host()}\n{effort}\n{text}".encode()).hexdigest()
    entry = cache.load(key) if cache is not None else None
    if entry is not None:
        try:
            return _link(entry[1], symbols, needs)
        except RuntimeError as error:
            log.warning("the cached code of %s is compiled anew: %s", symbols[0], error)
    code = machine(effort).emit_object(llvm.parse_assembly(text))
    if cache is not None:
        cache.store(key, {"symbol": symbols[0]}, code)
    return _link(code, symbols, needs)


def _link(
    object: bytes, symbols: Sequence[str], needs: Mapping[str, int]
) -> llvm.ResourceTracker:  # fmt: skip
    builder = llvm.JITLibraryBuilder().add_object_img(object).add_current_process()
    for name, address in needs.items():
        builder.import_symbol(name, address)
    for name in symbols:
        builder.export_symbol(name)
    return builder.link(_jit(), f"{symbols[0]}.{next(_numbers)}")


_numbers = itertools.count()
_lock = threading.Lock()
_shared: dict[str, int] = {}  # addresses of functions for kernels that no shared library has


@functools.cache
def _jit() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(machine(), use_jit_link=False, suppress_errors=False)


def _pool(cache: DiskCache | None) -> dict[str, int]:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_one_thread)
    text = pool.text(host_cpu(), openmp=libraries.load().openmp)
    tracker = load_text(text, pool.EXPORTS, python_functions(interrupt.FUNCTIONS), cache)
    _keep.append(tracker)
    printing = ctypes.cast(_print_callback, ctypes.c_void_p).value or 0
    return {"weft_print": printing, **{name: tracker[name] for name in pool.EXPORTS}}


def python_functions(names: Iterable[str]) -> dict[str, int]:
    """The addresses of functions of CPython."""
    return {
        name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        for name in names
    }


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
