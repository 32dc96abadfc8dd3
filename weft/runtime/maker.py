"""What machine code in the cache was made by, and for: this compiler, this processor."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from pathlib import Path

import llvmlite

from weft.options import STARTED
from weft.version import VERSION

# What of Linux's description tells processors apart, on x86-64 and on ARM.
_TELLING = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags",
            "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
            "Features")  # fmt: skip


@functools.cache
def processor() -> str:
    """Its kind and its instruction sets: part of a cache's key. LLVM, which has other words for
    them, takes longer to import than code from the cache to load."""
    lines: list[str] = []
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if not line.strip():  # the other cores are described after this one
                break
            lines.append(line.strip())
    told = [line for line in lines if line.partition(":")[0].strip() in _TELLING]
    if told:
        return "\n".join([platform.machine(), *told])
    from weft.codegen.machine import described  # LLVM: where the system does not say

    return described()


@functools.cache
def compiler() -> str:
    """Versions, and sizes and times of all files of the package: an edited compiler does not take
    what it made before. The time of the last change of a file's state cannot be set back, as the
    time of its contents can (by installers, and copies that keep it). A process that began before
    the last change may have modules from before it and from after: no other takes what it makes."""
    files: list[str] = []
    for folder, folders, names in os.walk(Path(__file__).parents[1]):
        folders[:] = (name for name in folders if name != "__pycache__")
        files += (os.path.join(folder, name) for name in names if name.endswith(".py"))
    states = [os.stat(file) for file in sorted(files)]
    told = " ".join(f"{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}" for s in states)
    mixed = max(s.st_ctime_ns for s in states) >= STARTED
    return f"{VERSION} {llvmlite.__version__} {told} {os.urandom(16).hex() if mixed else ''}"
