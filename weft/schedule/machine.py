"""Machines as values: what code generation asks of one. Nothing here looks at this machine."""

from __future__ import annotations

from weft.ir.types import ScalarType
from weft.values import frozen


@frozen
class CpuMachine:
    """A CPU. ``vector_bytes``: the length of its vector registers, 64 (AVX-512), 32 (AVX2) or 0 if
    there are none with masks or at least AVX2. ``sleef``: whether SLEEF's functions can be called
    on vectors of that length. ``clock``: LLVM's intrinsic for a clock that takes nanoseconds to
    read, and some 50 ms of its ticks. ``gathers``: whether one instruction that loads an element
    for each lane beats as many loads."""

    vector_bytes: int = 0
    sleef: bool = False
    clock: tuple[str, int] = ("readcyclecounter", 100_000_000)
    gathers: bool = True

    def lanes(self, t: ScalarType) -> tuple[int, ...]:
        """The vector lengths for which SLEEF's functions can be called."""
        if not self.sleef:
            return ()
        longest = self.vector_bytes // t.bytes
        return (longest, longest // 2) if self.vector_bytes == 64 else (longest,)

    @property
    def scales(self) -> bool:
        """Whether one instruction multiplies floats by powers of two."""
        return self.vector_bytes == 64


@frozen
class GpuMachine:
    """A GPU: its multiprocessors, the bytes of its second-level cache, and whether blocks of a
    cluster reach each other's shared memory. (An H100's, where no GPU is here to be asked.)
    ``copies``: whether it copies from memory into shared memory while threads go on.
    ``lanes``: whether neighbouring threads hand each other values; else those that share an
    iteration are a block, and do so in its memory. ``blocks``: of a grid, at most."""

    processors: int = 128
    cache_bytes: int = 50 << 20
    clusters: bool = True
    copies: bool = True
    lanes: bool = True
    blocks: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
