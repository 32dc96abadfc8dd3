"""Links object code into this process without LLVM, which takes longer to import than to link.

What LLVM writes for weft's loops is simple: code and constants, in ELF for x86-64, that refer to
each other and to functions of the process by distances. ``link`` gives None for everything else
(another processor or format, data that is written, another kind of reference), which LLVM links.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

_PREFIX = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMBOLS, _RELOCATIONS, _UNWIND = 1, 2, 4, 0x70000001
_WRITTEN, _LOADED = 1, 2  # flags of a section
_RELATIVE, _CALL = 2, 4  # R_X86_64_PC32 and R_X86_64_PLT32: both are distances in 32 bits
_JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp *[the next eight bytes]
_FOURTH = b"\x48\xb9%b\x48\x8b\x09\xff\x21"  # mov rcx, eight bytes; mov rcx, [rcx]; jmp [rcx]
_THERE = b"\x48\xb8%b\xff\x20"  # mov rax, eight bytes; jmp [rax]
_GIVEN = b"\x48\xb8%b\xc3"  # mov rax, eight bytes; ret
_STUB = 16
_SPECIAL = 0xFF00  # numbers of sections from here on are none

_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")


class Linked(NamedTuple):
    """Functions in memory, which are there as long as ``memory`` is."""

    addresses: dict[str, int]
    memory: object

    @property
    def extent(self) -> range:
        """The addresses of the code; none where LLVM has linked it."""
        if not isinstance(self.memory, mmap.mmap):
            return range(0)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        return range(first, first + len(self.memory))


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class _Unknown(Exception):
    """Something that is LLVM's to link."""


def link(data: bytes, symbols: Sequence[str], address_of: Callable[[str], int]) -> Linked | None:
    """The functions ``symbols`` of an object file. ``address_of``: where a function of the process
    is, 0 where there is none. Raises ``RuntimeError`` if a function is not there."""
    try:
        image, addresses, entries = _laid_out(data, symbols)
    except (_Unknown, struct.error, LookupError, ValueError):
        return None
    for place, name in addresses:
        address = address_of(name)
        if not address:
            raise RuntimeError(f"the code calls `{name}`, which is not in this process")
        struct.pack_into("<Q", image, place, address)
    return _executable(image, entries)


def trampoline(cell: int) -> Linked | None:
    """A function "trampoline" of up to three arguments that is the one whose address stands where
    the word at ``cell`` points to, and that is given this place as its fourth argument; None where
    the processor is another one."""
    return _stub("trampoline", _FOURTH, cell)


def jump(cell: int) -> Linked | None:
    """A function "jump" that is the one whose address stands at ``cell``; None where the processor
    is another one."""
    return _stub("jump", _THERE, cell)


def constant(value: int) -> Linked | None:
    """A function "constant" that gives an address; None where the processor is another one."""
    return _stub("constant", _GIVEN, value)


def _stub(name: str, code: bytes, cell: int) -> Linked | None:
    if platform.machine() != "x86_64":
        return None
    return _executable(bytearray(code % cell.to_bytes(8, "little")), {name: 0})


def _sections(data: bytes) -> list[_Section]:
    header = _FILE_HEADER.unpack_from(data)
    offset, count = header[6], header[12]
    return [_Section(*_SECTION.unpack_from(data, offset + k * _SECTION.size)) for k in range(count)]


def _symbols(data: bytes, sections: Sequence[_Section]) -> list[tuple[str, int, int]]:
    """Name, section and place in it of each symbol."""
    table = next((s for s in sections if s.kind == _SYMBOLS), None)
    if table is None:
        raise _Unknown
    names = sections[table.link].offset
    found: list[tuple[str, int, int]] = []
    for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
        name, _, _, home, value, _ = _SYMBOL.unpack_from(data, at)
        start = names + name
        found.append((data[start : data.index(b"\0", start)].decode(), home, value))
    return found


def section(data: bytes, wanted: str) -> bytes:
    """The contents of a section of an object file, as they stand there; empty if it has none."""
    sections = _sections(data)
    names = sections[_FILE_HEADER.unpack_from(data)[13]].offset
    for each in sections:
        start = names + each.name
        if data[start : data.index(b"\0", start)].decode() == wanted:
            return data[each.offset : each.offset + each.size]
    return b""


def functions(data: bytes) -> dict[str, int]:
    """Where the functions of an object file begin in their section."""
    return {name: value for name, home, value in _symbols(data, _sections(data)) if name and home}


def _laid_out(
    data: bytes, wanted: Sequence[str]
) -> tuple[bytearray, list[tuple[int, str]], dict[str, int]]:
    """The sections one after the other, and behind them a jump to each function that is called;
    where these take their addresses from, and where the ``wanted`` symbols begin."""
    header = _FILE_HEADER.unpack_from(data)
    if data[:6] != _PREFIX or header[1:3] != (_RELOCATABLE, _X86_64):
        raise _Unknown
    sections = _sections(data)
    image, places = bytearray(), dict[int, int]()
    for k, section in enumerate(sections):
        if section.flags & _LOADED and section.kind != _UNWIND:  # nothing unwinds through it
            if section.kind != _PROGBITS or section.flags & _WRITTEN:
                raise _Unknown
            image += bytes(-len(image) % max(section.alignment, 1))
            places[k] = len(image)
            contents = data[section.offset : section.offset + section.size]
            if len(contents) != section.size:
                raise _Unknown
            image += contents
    image += bytes(-len(image) % _STUB)
    symbols = _symbols(data, sections)
    stubs = dict[int, int]()
    for section in sections:
        if section.kind != _RELOCATIONS or section.info not in places:
            continue
        for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
            where, what, addend = _RELOCATION.unpack_from(data, at)
            kind, number = what & 0xFFFFFFFF, what >> 32
            _, home, value = symbols[number]
            if kind not in (_RELATIVE, _CALL) or home >= _SPECIAL:
                raise _Unknown
            if home:
                target = places[home] + value
            elif kind == _CALL:
                target = stubs.setdefault(number, len(image))
                if target == len(image):
                    image += _JUMP + bytes(_STUB - len(_JUMP))
            else:
                raise _Unknown
            place = places[section.info] + where
            struct.pack_into("<i", image, place, target + addend - place)

    entries = {name: places[home] + value for name, home, value in symbols if home in places}
    return (
        image,
        [(at + len(_JUMP), symbols[number][0]) for number, at in stubs.items()],
        {symbol: entries[symbol] for symbol in wanted},
    )


def _executable(image: bytearray, entries: dict[str, int]) -> Linked | None:
    """The image in memory of its own, which can be run and not written."""
    memory = mmap.mmap(-1, len(image), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = image
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(address, len(image), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        return None
    return Linked({symbol: address + place for symbol, place in entries.items()}, memory)
