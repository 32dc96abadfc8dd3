"""Object code in this process: loading it, calling it, and the prints that it makes."""

from __future__ import annotations

import _thread
import ctypes
import functools
import logging
import os
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from weft.codegen import libraries
from weft.codegen.interface import number_of
from weft.runtime.cache import DiskCache, hashed
from weft.runtime.link import Linked, constant, jump, link
from weft.runtime.maker import compiler, processor

Prints = Sequence[tuple[Sequence[str | None], Sequence[str]]]

# The frames of other threads have no public name.
# pyright: reportPrivateUsage=false
log = logging.getLogger("weft.cache")


class LoadedFunction:
    """A compiled kernel in memory. ``call`` and ``call_holding_gil`` take the argument block as one
    bytes object or pointer; the latter keeps the interpreter's lock, for work of microseconds.
    ``address`` is the code's own, 0 where Python has to prepare a call (for prints)."""

    __slots__ = ("__weakref__", "_keep", "address", "call", "call_holding_gil")

    def __init__(self, address: int, keep: object, prints: Prints = ()) -> None:
        self.address = 0 if prints else address
        self._keep = keep
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        holding = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address)
        call.keep = holding.keep = keep  # type: ignore[attr-defined]
        self.call = _printing(call, prints) if prints else call
        self.call_holding_gil = _printing(holding, prints) if prints else holding


_BEHIND = 0.05  # seconds


class Later:
    """A function of a kernel that is compiled when a call of it is about to begin. ``make``:
    compiles it, and gives its address."""

    def __init__(self, make: Callable[[], int]) -> None:
        self._make, self._lock, self._known = make, threading.Lock(), 0
        self._asked = ctypes.CFUNCTYPE(ctypes.c_void_p)(self._ask)
        self._cell = ctypes.c_uint64(_address(self._asked))
        self._jump, self._constant = jump(ctypes.addressof(self._cell)), None
        # What the kernel calls: it gives the address.
        self.address = self._jump.addresses["jump"] if self._jump else _address(self._asked)

    def _ask(self) -> int:
        """Called by a kernel, with or without the interpreter's lock before. 0 where it cannot be
        compiled: the kernel does without, in one thread."""
        try:
            return self._found()
        except KeyboardInterrupt:  # exceptions have no way through a kernel: once more, behind it
            threading.Thread(target=_interrupt_behind, daemon=True).start()
        except Exception as error:
            log.error("a loop by atomic operations is not compiled, one thread adds: %r", error)
        return 0

    def _found(self) -> int:
        with self._lock:
            if not self._known:
                self._known = self._make()
                self._constant = constant(self._known)  # from now on without Python
                if self._constant is not None:
                    self._cell.value = self._constant.addresses["constant"]
        return self._known


def _interrupt_behind() -> None:
    """Interrupts the main thread once no kernel is asking for a function there, however long that
    takes on a busy machine: what is raised on the way out of one would be lost."""
    asking: types.FrameType | None = None
    while True:
        time.sleep(_BEHIND)
        asking = sys._current_frames().get(threading.main_thread().ident or 0)
        while asking is not None and asking.f_code is not Later._ask.__code__:
            asking = asking.f_back
        if asking is None:  # and nothing else runs between this and the next line
            _thread.interrupt_main()
            return
        del asking  # it holds what the frame does


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def load(
    object: bytes, symbol: str, prints: Prints = (), *, cache: DiskCache | None = None,
    later: Later | None = None,
) -> LoadedFunction:  # fmt: skip
    """Links the object code of a kernel into this process. ``prints`` is ``CpuCode.prints``. What
    all kernels share is kept in ``cache``. ``later``: what the code leaves out.

    Raises ``RuntimeError`` if the code needs a function that is not there.
    """
    with _lock:
        if not _shared:
            _shared.update(_pool(cache))
        own = {"weft_rare": later.address} if later is not None else {}
        code = _link(object, [symbol], {**_shared, **own})
    loaded = LoadedFunction(code.addresses[symbol], (code.memory, later), prints)
    LOADED.tell(loaded, symbol, code, object)
    return loaded


class Loaded:
    """The kernels that are in memory: profilers ask whose an address is. ``listeners`` are told of
    each that comes, with its symbol, its code and the object file."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[str, Linked, bytes], None]] = []
        self._known = WeakKeyDictionary[LoadedFunction, tuple[str, range]]()

    def tell(self, loaded: LoadedFunction, symbol: str, code: Linked, object: bytes) -> None:
        self._known[loaded] = symbol, code.extent
        for listener in self.listeners:
            listener(symbol, code, object)

    def at(self, address: int) -> str:
        """The symbol of the kernel whose code is at ``address``; "" where there is none."""
        return next((s for s, there in self._known.values() if address in there), "")


LOADED = Loaded()


class Teams:
    """OpenMP's function that has a team of threads run a loop, behind a jump that may be led to
    another one: one that measures (see ``balance.py``). ``address``: of the jump, 0 where there is
    none, and kernels call OpenMP itself."""

    def __init__(self) -> None:
        self.usual = libraries.address_of("GOMP_parallel")
        self.cell = ctypes.c_uint64(self.usual)
        self._jump = jump(ctypes.addressof(self.cell)) if self.usual else None
        self.address = 0 if self._jump is None else self._jump.addresses["jump"]


@functools.cache
def teams() -> Teams:
    return Teams()


def load_shared(
    name: str, make: Callable[[], tuple[str, Sequence[str]]], cache: DiskCache | None,
    *, effort: int = 1, needs: Mapping[str, int] = MappingProxyType({}),
) -> Linked:  # fmt: skip
    """The code of LLVM IR that is the same in every process, compiled as it stands, or taken from
    ``cache``. ``make`` gives the IR and the symbols of it that can be asked for; ``needs``: see
    ``_link``."""
    key = hashed("shared", name, effort, compiler(), processor(), libraries.load().openmp)
    entry = cache.load(key) if cache is not None else None
    if entry is not None:
        try:
            return _link(entry[1], entry[0]["symbols"], needs)
        except (RuntimeError, KeyError) as error:
            log.warning("the cached code of %s is compiled anew: %s", name, error)
    from weft.runtime import jit  # LLVM: where the cache has no code

    text, symbols = make()
    code = jit.emit(text, effort)
    if cache is not None:
        cache.store(key, {"symbols": [*symbols]}, code)
    return _link(code, symbols, needs)


def _link(object: bytes, symbols: Sequence[str], needs: Mapping[str, int]) -> Linked:
    """``needs``: addresses of functions that no shared library has."""
    linked = link(object, symbols, lambda name: needs.get(name) or libraries.address_of(name))
    if linked is not None:
        return linked
    from weft.runtime import jit  # LLVM, which this processor's code does without

    return jit.link(object, symbols, needs)


_lock = threading.Lock()
_shared: dict[str, int] = {}  # addresses of functions for kernels that no shared library has


def _pool(cache: DiskCache | None) -> dict[str, int]:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_one_thread)
    there = teams().address
    needs = {"GOMP_parallel": there} if there and libraries.load().openmp else {}
    code = load_shared("pool", _pool_text, cache, needs=needs)
    _keep.append(code.memory)
    printing = ctypes.cast(_print_callback, ctypes.c_void_p).value or 0
    return {"weft_print": printing, **code.addresses}


def _pool_text() -> tuple[str, Sequence[str]]:
    from weft.codegen import machine, pool  # where the cache has no code

    return pool.text(machine.host_cpu(), openmp=libraries.load().openmp), pool.EXPORTS


def _one_thread() -> None:
    """In a forked child the threads of OpenMP's pool are gone: waiting for them has no end.

    torch hangs there too, so that this tells OpenMP itself, for both.
    """
    address = libraries.address_of("omp_set_num_threads")
    if address:
        ctypes.CFUNCTYPE(None, ctypes.c_int)(address)(1)


@contextmanager
def one_thread() -> Generator[None]:
    """A context in which compiled code that this thread calls uses no other thread."""
    get, set_to = map(libraries.address_of, ("omp_get_max_threads", "omp_set_num_threads"))
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


def _print(number: int, block: int) -> None:
    parts, kinds = _table.prints[number]
    raw = ctypes.string_at(block, 8 * len(kinds))
    words = struct.unpack(f"{len(kinds)}q", raw)
    pairs = zip(words, (kind.partition(":") for kind in kinds), strict=True)
    texts = (format(number_of(word, kind), form) for word, (kind, _, form) in pairs)
    print("".join(next(texts) if part is None else part for part in parts), end="")


_print_callback = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(_print)
