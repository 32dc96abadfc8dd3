"""Kernels for CUDA as the IR that their schedules made, run by the interpreter: all threads, with
their races. Where the schedule keeps bits, they are those of the IR before it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ir.blocks import launch
from weft.codegen.grid import stage_names
from weft.codegen.interface import Slot
from weft.codegen.threads import argument_slots
from weft.ir.core import Function, walk
from weft.ir.interp import run
from weft.ir.text import parse_function, print_function, same
from weft.ir.types import MemRefType
from weft.ir.uniform import GROUP
from weft.ir.verify import verify
from weft.schedule.bind import Bound
from weft.schedule.grid import cluster
from weft.schedule.language import Cooperate, Reverse, Schedule, only

WORDS: dict[int, int] = {}  # of the memory, by its address, that blocks leave words in
_BYTES = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def functions(
    name: str, bound: Bound, original: Function, schedule: Schedule, kinds: Sequence[str]
) -> dict[str, Interpreted]:
    """What a kernel's module has by name. ``kinds``: the combiners of its reductions."""
    slots = argument_slots(original)
    sums = kinds or only(schedule, Cooperate) or only(schedule, Reverse)  # have another order
    kept = None if sums or _ordered(original) else original
    names = stage_names(name, len(bound.stages))
    return {
        name: Interpreted(function, slots, kept)
        for name, function in zip(names, bound.stages, strict=True)
    }  # fmt: skip


def _ordered(function: Function) -> bool:
    """Whether what an atomic operation does depends on the order of threads."""
    used = {v for op in walk(function.body) for v in op.operands}
    return any(
        op.name == "memref.atomic_cas"
        or (op.name == "memref.atomic_rmw" and op.attrs["atomic"]
            and (op.attrs["kind"] in ("addf", "mulf") or op.result in used))
        for op in walk(function.body)
    )  # fmt: skip


def joined(
    grid: tuple[int, ...], block: tuple[int, ...], blocks: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A grid of clusters of so many ``blocks`` as one of blocks that are as large."""
    return (grid[0] // blocks, *grid[1:]), (block[0] * blocks, *block[1:])


@dataclass
class Interpreted:
    """One function of a kernel. ``original``: the IR that it was made of, where bits are kept."""

    function: Function
    slots: Sequence[Slot]
    original: Function | None

    def __post_init__(self) -> None:
        verify(self.function)
        text = print_function(self.function)
        assert same(parse_function(text), self.function)

    def run(self, grid: tuple[int, ...], block: tuple[int, ...], data: bytes) -> None:
        """All threads of a grid, in a random order."""
        args = self.arguments(data)
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        grid, block = joined(grid, block, cluster(self.function.attrs[GROUP]))
        seed = sum(data)
        launch(self.function, args, grid, block, races=True, order="random", seed=seed)  # type: ignore[arg-type]
        if self.original is None:
            return
        run(self.original, copies)
        for expected, found in zip(copies, args, strict=True):
            if isinstance(found, np.ndarray):
                np.testing.assert_array_equal(found, expected)

    def arguments(self, data: bytes) -> list[Any]:
        """What an argument block says, as the interpreter has it."""
        words = struct.unpack(f"<{len(data) // 8}q", data)
        types = [a.type for a in self.function.args]
        values: dict[int, Any] = {}
        sizes: dict[int, list[int]] = {k: [] for k in range(len(types))}
        strides: dict[int, list[int]] = {k: [] for k in range(len(types))}
        for slot, word in zip(self.slots, words, strict=False):
            if slot.kind in ("size", "stride"):
                (sizes if slot.kind == "size" else strides)[slot.arg].append(word)
            elif slot.kind == "float":
                (values[slot.arg],) = struct.unpack("<d", struct.pack("<q", word))
            elif slot.kind in ("int", "pointer"):
                values[slot.arg] = word
        if types[-1:] and not any(s.arg == len(types) - 1 for s in self.slots):
            address, blocks = words[len(self.slots) : len(self.slots) + 2]
            k = len(types) - 2
            values |= {k: address, k + 1: blocks}
            sizes[k] = [WORDS.get(address, 0)]
        return [
            _array(t, values[k], sizes[k], strides[k]) if isinstance(t, MemRefType) else values[k]
            for k, t in enumerate(types)
        ]


def _array(type: MemRefType, address: int, sizes: list[int], strides: list[int]) -> Any:
    if type.layout == "contiguous":
        strides = [int(np.prod(sizes[k + 1 :])) for k in range(len(sizes))]
    elif type.layout == "unit":
        strides = [*strides, 1]
    kinds = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i1": np.bool_,
             "bf16": np.uint16}  # fmt: skip
    size = type.element.bytes
    dtype = np.dtype(kinds.get(type.element.name) or _BYTES[size])
    if 0 in sizes or not address:
        return np.zeros(sizes, dtype)
    reach = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    memory = (ctypes.c_char * (reach * size)).from_address(address)
    flat = np.frombuffer(memory, dtype)
    return np.lib.stride_tricks.as_strided(flat, sizes, [s * size for s in strides])
