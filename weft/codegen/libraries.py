"""The shared libraries that compiled code calls: OpenMP's pool, SLEEF, and C's mathematics.

They are torch's own, so that weft's threads are torch's threads. torch is not imported for it:
where it was imported already, loading them again costs nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import importlib.util
import pathlib
from collections.abc import Callable

from weft.values import frozen


@frozen
class Libraries:
    """What was found. Without OpenMP kernels run on the calling thread."""

    openmp: bool
    sleef: bool


@functools.cache
def load() -> Libraries:
    """Loads what is there, once, and makes its symbols visible to compiled code."""
    folder = next((place / "lib" for place in folders("torch")), None)
    openmp = _load_first(
        "GOMP_parallel",
        lambda: [
            path for name in ("libgomp*", "libiomp5*", "libomp*") for path in _in(folder, name)
        ],
        lambda: [ctypes.util.find_library("gomp") or "", ctypes.util.find_library("omp") or ""],
    )
    sleef = _load_first("Sleef_expf8_u10", lambda: _in(folder, "libtorch_cpu.*"))
    _load_first("erfcf", lambda: ["libm.so.6"], lambda: [ctypes.util.find_library("m") or ""])
    return Libraries(openmp, sleef)


def address_of(symbol: str) -> int:
    """The address of a function of this process; 0 where there is none."""
    try:
        return ctypes.cast(_process()[symbol], ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


@functools.cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def folders(package: str) -> list[pathlib.Path]:
    """Where a Python package is, which is not imported for it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [pathlib.Path(p) for p in (spec.submodule_search_locations or [])] if spec else []


def _in(folder: pathlib.Path | None, pattern: str) -> list[str]:
    if folder is None or not folder.is_dir():
        return []
    paths = folder.glob(pattern)
    return sorted(str(p) for p in paths if ".so" in p.name or p.suffix in (".dylib", ".dll"))


def _load_first(symbol: str, *sources: Callable[[], list[str]]) -> bool:
    """Loads candidates until ``symbol`` is known. Sources are asked in order, when needed: looking
    a library up by its short name runs other programs, which takes tens of milliseconds."""
    if address_of(symbol):
        return True
    for source in sources:
        for path in filter(None, source()):
            with contextlib.suppress(OSError):  # not loadable here: the next one may be
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            if address_of(symbol):
                return True
    return False
