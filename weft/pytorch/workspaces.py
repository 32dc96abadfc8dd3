"""The workspaces of an adjoint, made for one launch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch

from weft.autodiff.adjoint import RUN, Additions, Adjoint, Buffer, Terms, segment_length
from weft.autodiff.tape import MOST_KEPT
from weft.index.expression import Dim, Poly, evaluate
from weft.ir.core import Op, Value, walk
from weft.ir.views import accessed_by
from weft.lang.dtypes import EIGHT_BITS, Housed
from weft.runtime.signature import TORCH_DTYPES
from weft.schedule.recurrences import Recurrences, recurrences
from weft.values import mutable

# A loop of fewer iterations gains nothing from checkpoints.
_SHORT = 16
CHUNK = {"cuda": 8}  # iterations that a device has in registers, of a loop with checkpoints
LEAST_CHUNK = 2  # and of one that carries local arrays: of one turn, each state is in memory
# Of a state with fewer elements than so many for each of the rows that go together, a thread has a
# row: of columns there are too few.
ROWS_AN_ELEMENT = 2
# A loop with fewer iterations than a device wants is one whose sums are worth splitting, if they
# have some terms.
_ITERATIONS = {"cuda": 1 << 22, "cpu": 256}
_LEAST_TERMS = 16
# On a CPU, fewer terms than so many in all take less than the second launch (15 us) adds.
_LEAST_SPLIT = 1 << 13
VERSIONS = 1 << 30  # bytes that tapes of overwritten elements may take, if WEFT_TAPE_MB is not more
_FEW = 4096  # iterations
_KEPT = 4  # numbers of a turn that threads who share a loop keep: what a scan carries jointly
# Rows of a state whose sums over rows one thread has; and how many times as long as the largest
# tensor their tapes may be: the chunks of a state are its number of elements by ``CHUNK``.
_ROWS_TOGETHER = (64, 32, 16, 8)
_ROOM = 32
_COMPUTE: dict[Any, Any] = dict.fromkeys(
    (torch.float16, torch.bfloat16, *EIGHT_BITS), torch.float32
)
REMEMBERED = 64  # sizes of calls for which it is known what fits them
# Private copies of a gradient are for the CPU. Atomic additions cost some times what it takes to
# fill an element of a copy and to add it up; fewer of them are not worth the second launch.
_LEAST_ADDITIONS = 1 << 14
_FILLED_PER_ATOMIC = 4
_SORTED_PER_ATOMIC = 16  # what it takes to sort a key, on one thread, in atomic additions
# A sum in a loop of its own reads again what the copies have at hand. These pay for long sums, in
# so many chunks of eight rows or more that most numbers of threads have some: the gradient of a
# layer norm of 400 x 4096 takes 1.55 ms so on one thread, and 2.65 by sums of their own, of
# 128 x 4096 .55 and .81.
_LONG_SUM = 128
_CHUNKS = range(16, 257)
# On a GPU, of which blocks have rows in registers: so many elements of all copies, for each of
# which some rows are added up, and so many copies at least, of fewer rows where there are not more,
# or where all copies are small: a block waits for each row's sums. An H100 takes .0202 ms for the
# gradient of a layer norm of 512 x 4096 so (by sums of their own .0381), of 256 x 8192 .0267
# (.0332); an H200 .0136 for 1024 x 1024 in 512 copies (in 128 .0171), .0170 for 2048 x 1024 in 512
# (in 256 .0199, in 1024 .0206), .0116 for 1024 x 256 in 512 (in 128 .0188).
_ELEMENTS, _SMALL = 1 << 20, 1 << 19
_ROWS, _FEWER_ROWS = 8, 2
_BLOCKS = 128


@mutable
class Workspaces:
    """``space``: the extents of the parallel loop. ``trips``: the most iterations of each
    sequential loop that has a tape. ``env``: the arguments of the steps by name."""

    adjoint: Adjoint
    env: Mapping[str, Any]
    space: list[int]
    trips: dict[Op, int]
    copies: Mapping[str, int] = field(default_factory=dict)  # of the gradients that have some
    shapes: Mapping[str, list[int]] = field(default_factory=dict)  # those found out before

    def remembered(self) -> Workspaces:
        """The same for other calls with these sizes: it does not hold their tensors."""
        shapes = {w.name: self.shape(w) for w in self.adjoint.taped}
        return Workspaces(self.adjoint, {}, self.space, self.trips, self.copies, shapes)

    def shape(self, buffer: Buffer) -> list[int]:
        if buffer.name in self.shapes:
            return self.shapes[buffer.name]
        if buffer.partial:
            name = buffer.partial
            if buffer.dims is not None:
                chunks = math.prod(self.space[k] for k in buffer.dims) // RUN
                return [chunks, *(self.env[name].size(axis) for axis in buffer.axes)]
            chunks = self.copies[name] if buffer.private else self.chunks(name)
            return [chunks, *self.env[name].size()]
        time = [x.length(self.trips[x.op]) for x in buffer.extents]
        space = self.space if buffer.parallel else ()
        if buffer.dims is not None:
            space = [space[k] for k in buffer.dims]
        if buffer.vector:
            vectors = buffer.shape[0] // buffer.vector
            return [*time, *space[:-1], vectors, *space[-1:], buffer.vector]
        if buffer.by_element:
            return [*time, *space, *buffer.shape]
        if buffer.interleaved:
            return [*time, *buffer.shape, *space]
        return [*space, *time, *buffer.shape]

    def bytes(self) -> dict[str, int]:
        """How many bytes each workspace takes."""
        return {w.name: self._bytes(w) for w in self.adjoint.taped}

    @property
    def tape_bytes(self) -> int:
        """How many bytes all tapes take."""
        return sum(self._bytes(w) for w in self.adjoint.taped if w.extents)

    @property
    def afforded(self) -> int:
        """How many bytes they may take in any case: on a GPU as many as the largest tensor for each
        number that a turn keeps, up to four, where iterations are few, or loops scan rows. Threads
        share a loop then, and segments are too short for that; they do not shorten tapes of short
        loops."""
        tensors = [v for v in self.env.values() if isinstance(v, torch.Tensor)]
        if not any(t.is_cuda for t in tensors):
            return 0
        if math.prod(self.space) > _FEW and not self.scans_rows:
            return 0
        kept = short = 0
        for tape in (w for w in self.adjoint.taped if w.extents):
            trips = [self.trips[x.op] for x in tape.extents]
            if all(n < _SHORT for n in trips):
                short += self._bytes(tape)
            else:
                kept += math.prod(n for n in trips if n < _SHORT) * math.prod(tape.shape)
        return min(kept, _KEPT) * max(t.nbytes for t in tensors) + short

    @property
    def scans_rows(self) -> bool:
        """Whether the loops that keep something go along rows of tapes, and their turns compose."""
        tapes = {w.name: w for w in self.adjoint.taped if w.extents}
        loops = [
            op for step in self.adjoint.steps for op in walk(step.body) if op.name == "scf.for"
            and any((m := accessed_by(o)) is not None and m.name in tapes for o in walk(op.body))
        ]  # fmt: skip
        return bool(loops) and not any(w.interleaved for w in tapes.values()) and all(
            isinstance(recurrences(op), Recurrences)
            for op in loops
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """How many iterations along the last parallel index go together, where these are rows of a
        state; 0 where they cannot."""
        last = self.space[-1] if self.space else 1
        return next((n for n in _ROWS_TOGETHER if last % n == 0), 0)

    @property
    def too_long(self) -> bool:
        """Whether all tapes are longer than even what makes a gradient much faster may be."""
        tensors = [v for v in self.env.values() if isinstance(v, torch.Tensor)]
        return self.tape_bytes > _ROOM * max((t.nbytes for t in tensors), default=0)

    @property
    def versions(self) -> dict[str, int]:
        """How many bytes the tapes of elements that are overwritten take, by name of the array."""
        found: dict[str, int] = {}
        for w in self.adjoint.taped:
            if w.of:
                found[w.of] = found.get(w.of, 0) + self._bytes(w)
        return found

    def _bytes(self, buffer: Buffer) -> int:
        return math.prod(self.shape(buffer)) * TORCH_DTYPES[buffer.element].itemsize

    @property
    def long(self) -> frozenset[Op]:
        """The sequential loops that are worth checkpoints: what others have is no tape."""
        tapes = (w for w in self.adjoint.taped if w.extents and w.name.startswith("tape"))
        return frozenset(op for w in tapes if self.trips[op := w.extents[-1].op] >= _SHORT)

    @property
    def few(self) -> frozenset[str]:
        """The gradients that have too few elements for one loop over them."""
        return frozenset(name for name in self.adjoint.sums if self.chunks(name) > 1)

    def chunks(self, name: str) -> int:
        """In how many parts the sums of a gradient are computed. This follows from sizes and the
        kind of device alone, so that the bits of a gradient do not depend on anything else."""
        gradient, sums = self.env[name], self.adjoint.sums[name]
        terms = max(self._evaluate(sums.outermost), 0)
        if terms < _LEAST_TERMS:
            return 1
        if gradient.device.type == "cpu" and self._terms(sums, gradient) < _LEAST_SPLIT:
            return 1
        wanted = _ITERATIONS.get(gradient.device.type, 1)
        return max(min(-(-wanted // max(gradient.numel(), 1)), math.isqrt(terms - 1) + 1), 1)

    def _terms(self, sums: Terms, gradient: torch.Tensor) -> float:
        """How many terms the ``sums`` of all elements have; infinite where that is not known."""
        if sums.all is None or not self._is_known(sums.all):
            return math.inf
        return gradient.numel() * self._evaluate(sums.all)

    @property
    def dense(self) -> frozenset[str]:
        """The gradients whose first accumulations go to every element once."""
        return frozenset(
            name for name, pairs in self.adjoint.dense.items()
            if all(map(self._is_known, itertools.chain(*pairs)))
            and all(self._evaluate(a) == self._evaluate(b) for a, b in pairs)
        )  # fmt: skip

    def private(self, most: int, threads: int, *, strict: bool) -> dict[str, int]:
        """The gradients that are to be accumulated in private copies of at most ``most`` bytes
        each in all, and how many copies: for each thread some, in place of atomics; as many as
        follow from sizes alone, in place of sums whose bits do. ``strict``: sums keep their
        order, and threads share none."""
        found: dict[bool, dict[str, int]] = {True: {}, False: {}}
        for name, x in self.adjoint.private.items():
            if not self._is_known(x.count):
                continue
            gradient, count = self.env[name], max(self._evaluate(x.count), 0)
            size = max(gradient.numel(), 1)
            if count < _LEAST_ADDITIONS:
                continue
            if gradient.device.type != "cpu":
                rows = count // size
                small = max((1 << (_SMALL // size).bit_length()) // 2, _BLOCKS)
                several = max(rows // _ROWS, min(rows // _FEWER_ROWS, small))
                least, best = _BLOCKS, min(_ELEMENTS // size, several)
                if strict or not x.rows or size < _BLOCKS:
                    continue
            elif x.atomic:
                if self.in_slices(x, threads):
                    continue
                least = threads
                several = 4 * threads if threads > 1 else 1  # so that none waits long for others
                best = min(max(count // size, least), several)
                if least * size > _FILLED_PER_ATOMIC * count:
                    continue
            else:
                least = _CHUNKS[0]
                best = min(max(count // size // 8, least), _CHUNKS[-1])
                if count // size < _LONG_SUM:
                    continue
            best = min(best, most // (size * gradient.element_size()))
            if best >= least:
                found[x.atomic][name] = best
        names = found[True] or found[False]
        return dict.fromkeys(names, min(names.values(), default=0))

    def in_slices(self, x: Additions, threads: int) -> bool:
        """Whether a CPU has enough runs of iterations, apart from each other, for ``threads``."""
        if x.slices is None or not self._is_known(x.slices):
            return False
        return self._evaluate(x.slices) >= threads

    def segments(self, threads: int, copies: Collection[str]) -> dict[str, int]:
        """The gradients without ``copies`` whose atomic additions may cost more than sorting them
        by rows does, and how many these are: on a CPU. (One thread needs no atomics; on a GPU they
        cost less.)"""
        found: dict[str, int] = {}
        for name, x in self.adjoint.private.items():
            gradient = self.env[name]
            usual = name in copies or gradient.device.type != "cpu" or self.in_slices(x, threads)
            if threads > 1 and x.atomic and not usual:
                count = self._evaluate(x.count) if self._is_known(x.count) else 0
                if count >= max(gradient.numel() // _FILLED_PER_ATOMIC, _LEAST_ADDITIONS):
                    found[name] = count
        return found

    def sorted_in_vain(self, counts: Mapping[str, int], threads: int) -> bool:
        """Whether keys of one of the gradients that have ``counts`` additions cost more to sort
        than these take several threads: rows are short."""
        keys = dict.fromkeys(counts, 0)
        shapes = {w.name: self.shape(w) for w in self.adjoint.taped}
        for x in self.adjoint.sorted:
            keys[x.gradient] += math.prod(shapes[x.keys])
        return any(_SORTED_PER_ATOMIC * threads * keys[name] > counts[name] for name in counts)

    def _is_known(self, poly: Poly) -> bool:
        """Whether the steps take all that ``poly`` is made of."""
        names = (x.memref.name if isinstance(x, Dim) else x.name for x in poly.leaves())
        return all(self.env.get(name) is not None for name in names)

    def _evaluate(self, poly: Poly) -> int:
        """``poly`` in scalar arguments and extents of the steps."""
        return evaluate(poly, {leaf: self._number(leaf) for leaf in poly.leaves()})

    def _number(self, leaf: Value | Dim) -> int:
        if isinstance(leaf, Dim):
            return self.env[leaf.memref.name].size(leaf.axis)
        return self.env[leaf.name]

    def make(self, device: torch.device, *, plain: bool) -> dict[str, Any]:
        """The workspaces by name, their contents undefined, and the lengths of segments.
        ``plain``: nothing is derived from them."""
        make = unfilled if plain else torch.empty
        made: dict[str, Any] = {
            w.name: make(self.shape(w), dtype=TORCH_DTYPES[w.element], device=device)
            for w in self.adjoint.taped
        }
        for x in self.adjoint.listed:
            made[x.places].fill_(-1)
        for name, op in self.adjoint.segments:
            made[name] = segment_length(self.trips[op])
        return made


def turns_in_registers(sizes: Workspaces, most: int) -> int:
    """How many iterations, ``most`` at most, of a loop that carries local arrays a thread has in
    registers; 0 where none does, or threads that have columns of these do better."""
    tapes = (w for w in sizes.adjoint.taped if w.extents and w.name.startswith("tape"))
    elements = sum(math.prod(w.shape) for w in tapes if w.shape)
    if not elements or (sizes.rows and elements * ROWS_AN_ELEMENT > sizes.rows):
        return 0
    while elements * most > MOST_KEPT:
        most //= 2
    return most if most >= LEAST_CHUNK else 0


def computed_in(dtype: torch.dtype, narrow: bool) -> torch.dtype:
    """The dtype of a gradient, for one that is not ``narrow``, while it is accumulated."""
    return dtype if narrow else _COMPUTE.get(dtype, dtype)


def unfilled(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As ``torch.empty``, which under ``torch.use_deterministic_algorithms`` fills what it makes:
    for what is written before anybody reads it."""
    if not torch.are_deterministic_algorithms_enabled():
        return torch.empty(shape, dtype=dtype, device=device)
    storage = torch.UntypedStorage(math.prod(shape) * dtype.itemsize, device=device)
    return torch.empty(0, dtype=dtype, device=device).set_(storage).resize_(shape)


def of_gradient(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, known: Iterable[Any], *,
    plain: bool, fill: bool,
) -> torch.Tensor:  # fmt: skip
    """Memory for a gradient: on a device without tensors of torch's where any tensor of ``known``
    lives there. ``fill``: with zeros; ``plain``: nothing is derived from it."""
    lives = next((v for v in known if isinstance(v, Housed)), None)
    if isinstance(lives, torch.Tensor):
        return (lives.new_zeros if fill else lives.new_empty)(tuple(shape), dtype=dtype)
    make = torch.zeros if fill else unfilled if plain else torch.empty
    return make(tuple(shape), dtype=dtype, device=device)


def workspaces(
    adjoint: Adjoint,
    env: Mapping[str, Any],
    values: Mapping[Value | Dim, int],
    measured: Callable[[int], list[int]],
    known: Mapping[Op, int] | None = None,
) -> Workspaces:
    """How large the workspaces of ``adjoint`` are.

    ``env``: the arguments of its steps by name. ``values``: of the primal's scalar arguments and
    extents. ``measured(n)`` launches ``adjoint.lengths.measure`` with an array of n and gives what
    it counted. ``known``: numbers of iterations that need not be found out again.
    """
    lengths = adjoint.lengths
    if lengths is None:
        return Workspaces(adjoint, env, [], {})
    space = [evaluate(p, values) for p in lengths.space]
    if known is not None and all(op in known for op in lengths.loops):
        return Workspaces(adjoint, env, space, dict(known))
    counted = measured(len(lengths.loops)) if lengths.measure else []

    def length(poly: Poly | None, k: int) -> int:
        return counted[k] if poly is None else evaluate(poly, values)

    pairs = enumerate(zip(lengths.loops, lengths.trips, strict=True))
    return Workspaces(adjoint, env, space, {op: length(poly, k) for k, (op, poly) in pairs})


def numbers(arguments: Sequence[Value], values: Sequence[Any]) -> dict[Value | Dim, int]:
    """What the values of a call, tensors (or their sizes) and numbers, say of ``arguments``:
    results, which come last, say nothing."""
    found: dict[Value | Dim, int] = {}
    for argument, value in zip(arguments, values, strict=False):
        sizes = value.size() if isinstance(value, torch.Tensor) else value
        if isinstance(sizes, torch.Size):
            found.update((Dim(argument, axis), n) for axis, n in enumerate(sizes))
        elif isinstance(value, int):
            found[argument] = value
    return found
