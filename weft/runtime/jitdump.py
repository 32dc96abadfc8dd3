"""What Linux's perf is told of kernels' code, which is in no file: the jitdump format of its
documentation (tools/perf/Documentation/jitdump-specification.txt), with source lines.

``perf record -k CLOCK_MONOTONIC`` notes the file because it is mapped; ``perf inject --jit`` makes
object files of it for ``perf report`` and ``perf annotate``. Beside it is a file of JSON for
``weft profile --perf``: ranges of addresses, their symbols, and addresses with source lines.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

from weft.runtime.cpu import LOADED
from weft.runtime.link import Linked, functions, section

_MAGIC, _VERSION, _X86_64 = 0x4A695444, 1, 62
_LOAD, _DEBUG, _CLOSE = 0, 2, 3
_HEADER, _RECORD = struct.Struct("<6I2Q"), struct.Struct("<2IQ")
_CODE, _LINES, _LINE = struct.Struct("<2I4Q"), struct.Struct("<2Q"), struct.Struct("<Q2i")


class Jitdump:
    """``with Jitdump(folder):`` writes jit-PID.dump and jit-PID.json there, of each kernel that is
    loaded meanwhile. Those with ``Options.lines`` have source lines."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"jit-{os.getpid()}.dump"
        self.known: list[tuple[int, int, str, list[tuple[int, str]]]] = []
        self._file: BinaryIO
        self._mark: mmap.mmap

    def __enter__(self) -> Self:
        self._file = self.path.open("w+b")
        now = time.monotonic_ns()
        self._file.write(_HEADER.pack(_MAGIC, _VERSION, _HEADER.size, _X86_64, 0, os.getpid(),
                                      now, 0))  # fmt: skip
        self._file.flush()
        # By this perf learns of the file: a mapping that could be run.
        self._mark = mmap.mmap(self._file.fileno(), _HEADER.size, flags=mmap.MAP_PRIVATE,
                               prot=mmap.PROT_READ | mmap.PROT_EXEC)  # fmt: skip
        LOADED.listeners.append(self._loaded)
        return self

    def __exit__(self, *_: object) -> None:
        LOADED.listeners.remove(self._loaded)
        self._put(_CLOSE, b"")
        self._mark.close()
        self._file.close()
        self.path.with_suffix(".json").write_text(json.dumps(self.known))

    def _put(self, kind: int, body: bytes) -> None:
        self._file.write(_RECORD.pack(kind, _RECORD.size + len(body), time.monotonic_ns()) + body)
        self._file.flush()

    def _loaded(self, symbol: str, code: Linked, object: bytes) -> None:
        there = code.extent
        if not there:  # LLVM has linked it
            return
        name = symbol.removeprefix("weft_")
        base = code.addresses[symbol] - functions(object)[symbol]
        lines = [(base + at, file, line) for at, file, line in line_table(object)]
        if lines:
            entries = b"".join(_LINE.pack(at, line, 0) + os.fsencode(file) + b"\0"
                               for at, file, line in lines)  # fmt: skip
            self._put(_DEBUG, _LINES.pack(there.start, len(lines)) + entries)
        memory: Any = code.memory
        self._put(_LOAD, _CODE.pack(os.getpid(), threading.get_native_id(), there.start,
                                    there.start, len(there), len(self.known))
                  + name.encode() + b"\0" + memory[: len(there)])  # fmt: skip
        self.known.append((there.start, there.stop, name,
                           [(at, f"{file}:{line}") for at, file, line in lines]))  # fmt: skip


# --- DWARF ---------------------------------------------------------------------------------------
def line_table(object: bytes) -> list[tuple[int, str, int]]:
    """The rows of an object file's ``.debug_line`` of DWARF 4: place in the code, file and line.
    None where it has none, or is of several sections."""
    data = section(object, ".debug_line")
    return [*_rows(_Reader(data))] if data else []


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, size: int, signed: bool = False) -> int:
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little", signed=signed)

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        found, self.at = os.fsdecode(self.data[self.at : end]), end + 1
        return found

    def leb(self, signed: bool = False) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value - (1 << shift) if signed and byte & 64 else value


def _rows(read: _Reader) -> Iterator[tuple[int, str, int]]:
    length = read.number(4)
    end = read.at + length
    version = read.number(2)
    if version != 4 or end != len(read.data):
        return
    program = read.number(4) + read.at
    step, _, _ = read.number(1), read.number(1), read.number(1)
    base, span, first = read.number(1, signed=True), read.number(1), read.number(1)
    operands = [read.number(1) for _ in range(first - 1)]
    folders = [""]
    while folder := read.text():
        folders.append(folder)
    files = [""]
    while name := read.text():
        files.append(os.path.join(folders[read.leb()], name))
        for _ in ("time", "length"):
            read.leb()
    read.at = program
    place, file, line, sequences = 0, 1, 1, 0
    while read.at < end:
        code = read.number(1)
        if code >= first:
            place += (code - first) // span * step
            line += base + (code - first) % span
            yield place, files[file], line
        elif code == 0:
            size = read.leb()
            after = read.at + size
            match read.number(1):
                case 1:
                    sequences += 1
                    place, file, line = 0, 1, 1
                case 2 if sequences:
                    return
                case _:
                    pass
            read.at = after
        else:
            match code:
                case 1:
                    yield place, files[file], line
                case 2:
                    place += read.leb() * step
                case 3:
                    line += read.leb(signed=True)
                case 4:
                    file = read.leb()
                case 8:
                    place += (255 - first) // span * step
                case 9:
                    place += read.number(2)
                case _:
                    for _ in range(operands[code - 1]):
                        read.leb()
