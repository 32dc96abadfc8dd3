"""One specialisation of one device loop: compiled or taken from the disk cache, and loaded."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import llvmlite

from weft import timing
from weft.codegen.interface import Check, Slot
from weft.codegen.machine import host
from weft.frontend.lower import Lowered, lower
from weft.frontend.scope import Guard
from weft.frontend.specs import Spec
from weft.frontend.split import Region
from weft.ir.core import Function, walk
from weft.ir.text import print_function
from weft.options import Options
from weft.runtime.cache import DiskCache
from weft.runtime.cpu import LoadedFunction, load
from weft.source import FunctionSource
from weft.version import VERSION

FORMAT = 1  # of the header; another number is another key
log = logging.getLogger("weft.specialize")
log_ir = logging.getLogger("weft.ir")
log_llvm = logging.getLogger("weft.llvm")
log_asm = logging.getLogger("weft.asm")
log_source = logging.getLogger("weft.source")
log_time = logging.getLogger("weft.time")


@dataclass(slots=True)
class Compiled:
    """A specialisation that can be called: ``load.call(packed slots)``.

    ``results``: (name, dtype) of the scalars it reduces into, whose 0-d tensors are the last memref
    arguments. ``guards``: what was read at compile time and may change. ``origin``: "compiled" or
    "disk".
    """

    function: Function  # as lowered: its arguments are those of the slots
    load: LoadedFunction
    slots: tuple[Slot, ...]
    checks: tuple[Check, ...]
    prints: tuple[Any, ...]
    results: list[tuple[str, str]]
    guards: list[Guard]
    origin: str
    stages: dict[str, float]


def compile_region(
    region: Region | None, source: FunctionSource | None, specs: dict[str, Spec], options: Options,
    *, noalias: bool = True, lowered: Lowered | None = None,
) -> Compiled:  # fmt: skip
    """Compiles ``region`` for arguments as ``specs`` says, or loads it from the disk cache.

    ``noalias``: no memory written through one tensor is accessed through another. ``lowered``: the
    loop's IR, where it does not come from source (``region`` and ``source`` are then not needed).
    """
    cache = disk(options.cache_dir, options.cache_bytes) if options.cache else None
    with timing.record() as recording:
        with timing.stage("frontend"):
            if lowered is None:
                assert region is not None
                assert source is not None
                lowered = lower(region, specs, source, debug=options.debug)
        text = printed(lowered)
        key = _key(text + places(lowered.function, options), options, noalias)
        found = _from_disk(cache, key)
        if found is not None:
            loaded, slots, checks, prints = found
            origin = "disk"
        else:
            # Passes, index sets and code generation are not imported where the cache has the code.
            from weft import compiler

            code = compiler.to_code(
                lowered.function,
                strict_math=options.strict_math,
                noalias=noalias,
                verify=options.verify,
                debug=options.debug and region is not None,
            )
            log_llvm.debug("%s", code.llvm)
            if log_asm.isEnabledFor(logging.DEBUG):
                log_asm.debug("%s", compiler.cpu.assembly(code))
            slots, checks, prints, origin = code.slots, code.checks, code.prints, "compiled"
            if cache is not None:
                cache.store(key, _encode(slots, checks, prints, code.symbol), code.object)
            with timing.stage("load"):
                loaded = load(code.object, code.symbol, prints, cache=cache)
    stages = recording.stages
    log_stages(lowered.function, origin, recording)
    log.debug("%s: %s for (%s)", lowered.function.name, origin,
              ", ".join(f"{n}: {s}" for n, s in specs.items()))  # fmt: skip
    return Compiled(
        lowered.function,
        loaded,
        slots,
        checks,
        prints,
        lowered.results,
        lowered.guards,
        origin,
        dict(stages),
    )


def _from_disk(
    cache: DiskCache | None, key: str
) -> tuple[LoadedFunction, tuple[Slot, ...], tuple[Check, ...], tuple[Any, ...]] | None:
    """The code stored under ``key``, loaded, and its tables; None where it has to be compiled."""
    entry = cache.load(key) if cache is not None else None
    header = _decode(entry[0]) if entry is not None else None
    if entry is None or header is None:
        return None
    slots, checks, prints, symbol = header
    with timing.stage("load"):
        try:
            return load(entry[1], symbol, prints, cache=cache), slots, checks, prints
        except RuntimeError as error:
            log.warning("the cached code of %s is compiled anew: %s", symbol, error)
            return None


def printed(lowered: Lowered) -> str:
    """The IR as text. It is logged, and the loop's source with types if there is one."""
    if lowered.typed_source:
        log_source.debug("%s:\n%s", lowered.function.name, lowered.typed_source)
    text = print_function(lowered.function)
    log_ir.debug("%s", text)
    return text


def log_stages(function: Function, what: str, recording: timing.Recording) -> None:
    """Logs how long the stages of a compilation took."""
    if log_time.isEnabledFor(logging.DEBUG):
        log_time.debug("%s, %s\n%s", function.name, what, recording.report())


@functools.cache
def disk(folder: Path | None, limit: int) -> DiskCache:
    return DiskCache(folder, limit)


@functools.cache
def fingerprint() -> str:
    """Sizes and times of all files of the package: an edited compiler does not take what it made
    before. The time of the last change of a file's state cannot be set back, as the time of its
    contents can (by installers, and copies that keep it)."""
    files: list[str] = []
    for folder, folders, names in os.walk(Path(__file__).parents[1]):
        folders[:] = (name for name in folders if name != "__pycache__")
        files += (os.path.join(folder, name) for name in names if name.endswith(".py"))
    states = (os.stat(file) for file in sorted(files))
    return " ".join(f"{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}" for s in states)


def places(function: Function, options: Options) -> str:
    """Where in the source what may fail stands. Code that checks knows it, so that a kernel with
    other lines above it is another one to the cache."""
    checked = [op for op in walk(function.body) if op.name in _FAILING]
    if not options.debug and all(op.name.startswith("memref.") for op in checked):
        return ""
    return "".join(f"// {op.span}\n" for op in checked)


_FAILING = ("weft.assert", "weft.bounds", "memref.load", "memref.store", "memref.atomic_rmw",
            "memref.atomic_cas")  # fmt: skip


def _key(text: str, options: Options, noalias: bool) -> str:
    parts = (
        str(FORMAT), VERSION, fingerprint(), llvmlite.__version__, host(),
        f"debug={options.debug} strict={options.strict_math} noalias={noalias}", text,
    )  # fmt: skip
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _encode(slots: Any, checks: Any, prints: Any, symbol: str) -> dict[str, Any]:
    return {
        "symbol": symbol,
        "slots": [[s.kind, s.arg, s.axis] for s in slots],
        "checks": [asdict(c) for c in checks],
        "prints": [[list(parts), list(kinds)] for parts, kinds in prints],
    }


def _decode(header: dict[str, Any]) -> tuple[Any, Any, Any, str] | None:
    """The header's tables; None where it is not of this form (it is then compiled anew)."""
    try:
        slots = tuple(Slot(str(k), int(a), int(x)) for k, a, x in header["slots"])
        checks = tuple(
            Check(c["kind"], c["message"], c["tensor"], c["axis"], tuple(c["values"]),
                  tuple(c["span"]) if c["span"] is not None else None)  # type: ignore[arg-type]
            for c in header["checks"]
        )  # fmt: skip
        prints = tuple((tuple(parts), tuple(kinds)) for parts, kinds in header["prints"])
        return slots, checks, prints, str(header["symbol"])
    except (KeyError, TypeError, ValueError):
        return None
