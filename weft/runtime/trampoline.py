"""One call from Python to a launch: machine code of this processor that fills in what the driver's
``cuLaunchKernelEx`` takes, from a record that is made once for a kernel and a grid."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm

from weft.codegen.machine import host, machine
from weft.runtime import cpu
from weft.runtime.cache import DiskCache
from weft.runtime.cuda import LaunchConfig, driver

UNREADY, UNALIGNED = -1, -2  # results that are no CUresult
_HEAD = struct.Struct("<QQQQQ")  # launch, function, bytes of arguments, bytes behind them, tests
_CONFIG = ctypes.sizeof(LaunchConfig)
_TEST = struct.Struct("<II")
_STREAM = LaunchConfig.stream.offset
_SYMBOL = "weft_launch"

# Arguments: the packed argument block, the stream, a record (see ``record``).
_TEXT = f"""
define i32 @{_SYMBOL}(ptr %slots, ptr %stream, ptr %record) {{
entry:
  %launch = load ptr, ptr %record
  %function.p = getelementptr i8, ptr %record, i64 8
  %function = load ptr, ptr %function.p
  %ready = icmp ne ptr %function, null
  br i1 %ready, label %sizes, label %unready
sizes:
  %size.p = getelementptr i8, ptr %record, i64 16
  %size = load i64, ptr %size.p
  %rest.p = getelementptr i8, ptr %record, i64 24
  %rest = load i64, ptr %rest.p
  %tests.p = getelementptr i8, ptr %record, i64 32
  %tests = load i64, ptr %tests.p
  %template = getelementptr i8, ptr %record, i64 {_HEAD.size}
  %ending = getelementptr i8, ptr %template, i64 {_CONFIG}
  %first = getelementptr i8, ptr %ending, i64 %rest
  br label %test
test:
  %k = phi i64 [ 0, %sizes ], [ %next, %aligned ]
  %left = icmp ult i64 %k, %tests
  br i1 %left, label %look, label %fill
look:
  %pair = getelementptr i64, ptr %first, i64 %k
  %place = load i32, ptr %pair
  %mask.p = getelementptr i8, ptr %pair, i64 4
  %mask = load i32, ptr %mask.p
  %word.p = getelementptr i8, ptr %slots, i32 %place
  %word = load i32, ptr %word.p
  %low = and i32 %word, %mask
  %fits = icmp eq i32 %low, 0
  br i1 %fits, label %aligned, label %unaligned
aligned:
  %next = add i64 %k, 1
  br label %test
fill:
  %config = alloca [{_CONFIG} x i8], align 8
  %extra = alloca [5 x i64], align 8
  %bytes = alloca i64, align 8
  %total = add i64 %size, %rest
  %block = alloca i8, i64 %total, align 16
  call void @llvm.memcpy.p0.p0.i64(ptr %config, ptr %template, i64 {_CONFIG}, i1 false)
  %stream.p = getelementptr i8, ptr %config, i64 {_STREAM}
  store ptr %stream, ptr %stream.p
  call void @llvm.memcpy.p0.p0.i64(ptr %block, ptr %slots, i64 %size, i1 false)
  %behind = getelementptr i8, ptr %block, i64 %size
  call void @llvm.memcpy.p0.p0.i64(ptr %behind, ptr %ending, i64 %rest, i1 false)
  store i64 %total, ptr %bytes
  store i64 1, ptr %extra
  %e1 = getelementptr i64, ptr %extra, i64 1
  store ptr %block, ptr %e1
  %e2 = getelementptr i64, ptr %extra, i64 2
  store i64 2, ptr %e2
  %e3 = getelementptr i64, ptr %extra, i64 3
  store ptr %bytes, ptr %e3
  %e4 = getelementptr i64, ptr %extra, i64 4
  store i64 0, ptr %e4
  %code = call i32 %launch(ptr %config, ptr %function, ptr null, ptr %extra)
  ret i32 %code
unready:
  ret i32 {UNREADY}
unaligned:
  ret i32 {UNALIGNED}
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


def record(
    function: int, config: LaunchConfig, size: int, ending: bytes,
    tests: Sequence[tuple[int, int]], launch: int = 0,
) -> bytes:  # fmt: skip
    """What ``trampoline`` launches: ``function`` (0: not ready) as ``config`` says, with the first
    ``size`` bytes of the argument block and ``ending`` behind them (whole words), where the 32 bits
    at each place of ``tests`` have nothing in common with its mask. ``launch``: the address of
    what is called, if not the driver's."""
    entry: Any = driver().launch if not launch else None
    called = launch or ctypes.cast(entry, ctypes.c_void_p).value or 0
    head = _HEAD.pack(called, function, size, len(ending), len(tests))
    return head + bytes(config) + ending + b"".join(_TEST.pack(*test) for test in tests)


@functools.cache
def trampoline(cache: DiskCache | None) -> Callable[[bytes, int, bytes], int]:
    """``launch(slots, stream, record)``, with the stream's address: a CUresult, ``UNREADY`` or
    ``UNALIGNED``. The machine code is kept in ``cache``."""
    key = hashlib.sha256(f"{host()}\n{_TEXT}".encode()).hexdigest()
    entry = cache.load(key) if cache is not None else None
    if entry is not None:
        code = entry[1]
    else:
        code = machine().emit_object(llvm.parse_assembly(_TEXT))
        if cache is not None:
            cache.store(key, {"symbol": _SYMBOL}, code)
    loaded = cpu.load(code, _SYMBOL)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_char_p)
    function: Any = prototype(loaded.address)
    _keep.append(loaded)
    return function


_keep: list[object] = []  # code that lives as long as the process
