"""Which thread of a GPU runs which iterations: the one place that decides it.

``plan`` looks at a function's accesses once, when it is compiled: which parallel index runs along
neighbouring threads, how many neighbours a thread takes, and what may be kept in shared memory.
``launching.shape`` turns the trip counts of a call into a grid. Code generation (``grid.py``) and
the runtime follow both; a schedule would replace them.
"""

from __future__ import annotations

from weft.codegen.launching import THREADS, WARP, InStep, Mapping
from weft.codegen.sharing import steps
from weft.index.access import Access, accesses, parallel_dims_of
from weft.index.expression import number
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, bf16, f16, f32, i1, i8, i16
from weft.ir.views import Parallel, constant_of, is_constant
from weft.ir.views import memory as access_of

VECTOR_BYTES = 16  # the longest load and store
MOST_COPIES = 512  # operations in the unrolled neighbours of one thread


def plan(function: Function, parallel: Op) -> Mapping:
    """The mapping of the iterations of ``parallel``, the function's outermost loop."""
    ivs = Parallel(parallel).indices
    found = [
        a for a in accesses(function) if any(loop.iv in ivs for loop in a.loops) and not a.local
    ]
    scores = [_score(found, iv) for iv in ivs]
    # Ties go to the last index, as loops over row-major arrays are written.
    fastest = max(range(len(ivs)), key=lambda k: (scores[k], k))
    order = (fastest, *(k for k in reversed(range(len(ivs))) if k != fastest))
    vector, aligned, apart, side = _vector(function, parallel, found, ivs[fastest])
    sides = _sides(found, [ivs[k] for k in order])
    private = _private(function, parallel)
    wish = tuple(function.attrs.get("block_dim", ()))
    alone = vector > 1 or private >= 0 or sides == _SQUARE or bool(wish)
    found_steps = InStep() if alone else steps(function, parallel, fastest)
    if found_steps.jams and sides[1] == 1:
        sides = _STEADY
    return Mapping(
        order,
        vector,
        aligned,
        private,
        sides,
        apart,
        _shift(parallel, fastest, vector) if apart == 1 else 0,
        _LASTING if sides == _SQUARE else 0,
        _asked(wish, order),
        found_steps,
        side,
        _streamed(function, found) if vector > 1 and not parallel.attrs["kinds"] else (),
    )


def _streamed(function: Function, found: list[Access]) -> tuple[int, ...]:
    written = {a.memref for a in found if a.writes}
    if any(a.memref in written for a in found if a.kind != "store"):
        return ()
    return tuple(k for k, arg in enumerate(function.args) if arg in written)


def _asked(wish: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """What a kernel's writer asks for. One number: so many threads, as whole warps, a power of
    two. Several: threads along each index, in the order of the loop."""
    if len(wish) == 1:
        return (min(max(1 << (wish[0] - 1).bit_length(), WARP), 1024),)
    return tuple(wish[k] for k in order) if wish else ()


def _shift(parallel: Op, axis: int, vector: int) -> int:
    """How far the first iteration is behind a multiple of ``vector``, where loops begin at a number
    and go by one: vectors are then whole in memory, not in the loop."""
    lower, _, step = Parallel(parallel).axes[axis]
    first = constant_of(lower)
    return int(first) % vector if first is not None and is_constant(step, 1) else 0


# -- the sides of a block

_SQUARE = 16, 16
_LASTING = 32
_STEADY = 4 * WARP, 1  # where threads do several iterations in step


def _sides(found: list[Access], ivs: list[Value]) -> tuple[int, int]:
    """Threads along x and y. ``ivs``: the parallel indices, that along x first.

    A line, so that a block is in one row; shorter if threads take different times, so that warps
    that are done make room. Where several rows read the same, that is once for a block of some
    rows. Where rows of one array are columns of another, a square block has both as whole sectors;
    such blocks last, so that those which run at the same time are side by side in both arrays.
    """
    x, *outer = ivs
    if outer and any(_across(access, x, outer[0]) for access in found):
        return _SQUARE
    if outer and (_meet(found, outer[0]) or any(_again(a, outer[0]) for a in found)):
        return 32, 4
    uneven = any(
        poly is None or any(iv in poly.leaves() for iv in ivs)
        for access in found
        for loop in access.loops
        if not loop.parallel
        for poly in (loop.lower, loop.upper)
    )
    return (2 * WARP if uneven else THREADS), 1


def _across(access: Access, x: Value, y: Value) -> bool:
    """Whether neighbours in memory are neighbours along y, and rows are along x."""
    strides = {use.iv: use.stride for use in parallel_dims_of(access)}
    rows = any(poly is None or x in poly.leaves() for poly in access.subscripts)
    across = strides.get(y) in (1, -1) and strides.get(x) not in (1, -1)
    return rows and across and _row_major(access)


def _again(access: Access, y: Value) -> bool:
    """Whether a serial loop reads, at other indices ``y``, the same elements again."""
    serial = set(access.serial)
    if access.writes or not serial or None in access.subscripts:
        return False
    leaves = [set(poly.leaves()) for poly in access.subscripts if poly is not None]
    return all(y not in found for found in leaves) or any(y in f and f & serial for f in leaves)


def _meet(found: list[Access], y: Value) -> bool:
    """Whether two loads are apart by a number of rows."""
    rows: dict[object, list[int]] = {}
    for access in found:
        polys = [poly for poly in access.subscripts if poly is not None]
        if access.writes or len(polys) < len(access.subscripts):
            continue
        place = (access.memref, *(poly - number(poly.offset) for poly in polys))
        there = [poly.offset for poly in polys if y in poly.leaves()]
        if rows.setdefault(place, there) != there:
            return True
    return False


def _score(found: list[Access], iv: Value) -> float:
    """How much is gained by ``iv`` on neighbouring threads: unit strides, in inner loops more."""
    score = 0.0
    for access in found:
        weight = 4.0 ** len(access.serial) * (1.5 if access.writes else 1.0)
        for use in parallel_dims_of(access):
            if use.iv is iv:
                stride = use.stride
                gain = 1.0 if stride in (1, -1) else 0.25 if stride == 0 else -0.5
                score += weight * (gain if _row_major(access) else 0.0)
    return score


def _row_major(access: Access) -> bool:
    type = access.memref.type
    return isinstance(type, MemRefType) and type.layout != "strided"


# -- several neighbours in one thread

_STRAIGHT = ("memref.load", "memref.store", "memref.dim")


def _vector(
    function: Function, parallel: Op, found: list[Access], iv: Value
) -> tuple[int, tuple[tuple[int, int], ...], int, int]:
    """``vector``, ``aligned``, ``apart`` and ``side`` of the mapping."""
    body = parallel.body
    memory = [op for op in body.ops if op.name in ("memref.load", "memref.store")]
    if any(op.regions or op.name.startswith(("weft.", "memref.atomic", "memref.alloca"))
           for op in body.ops):  # fmt: skip
        return 1, (), 1, 1
    along = [(a, use) for a in found for use in parallel_dims_of(a) if use.iv is iv]
    unit = [
        a for a, use in along if use.stride == 1 and _row_major(a) and a.memref in function.args
    ]
    stores = [a for a in found if a.writes]
    if not unit or any(a not in unit for a in stores):
        return 1, (), 1, 1
    most = max(_bytes(a.memref) for a in unit)
    copies = min(VECTOR_BYTES // most, 8)
    while copies > 1 and copies * len(body.ops) > MOST_COPIES:
        copies //= 2
    if copies < 2 or len(memory) * copies > 128:
        return 1, (), 1, 1
    args = function.args
    aligned = {args.index(a.memref): copies * _bytes(a.memref) for a in unit}
    side = copies
    divides = any(op.name == "arith.floordivsi" for op in body.ops)
    if parallel.attrs["kinds"]:
        copies *= 2  # two vectors on their way at a time
    elif (
        (divides or any(a.kind == "load" and None in a.subscripts for a in found))
        and most >= 4
        and 2 * copies * len(body.ops) <= MOST_COPIES
    ):
        # Twice as many quotients for one division. What is read at places that come of divisions,
        # or of data, is not read in vectors: a warp's threads then access what lies side by side.
        return 2 * copies, (), WARP, side
    return copies, tuple(sorted(aligned.items())), 1, side


def _bytes(memref: Value) -> int:
    return memref.memref.element.bytes


# -- accumulation into few elements

_SHARED = ("addi", "addf", "maxsi", "minsi", "maxui", "minui", "andi", "ori", "xori")


def _private(function: Function, parallel: Op) -> int:
    """The argument that is only accumulated into, by one combiner and without asking what was
    there."""
    updates: dict[Value, set[str]] = {}
    barred: set[Value] = set()
    used = {v for op in walk(function.body) for v in op.operands}
    for op in walk(function.body):
        if op.name == "memref.atomic_rmw" and op.attrs["atomic"] and op.result not in used:
            updates.setdefault(access_of(op)[0], set()).add(op.attrs["kind"])
        elif op.name != "memref.dim":
            barred.update(v for v in op.operands if isinstance(v.type, MemRefType))
    if parallel.attrs["kinds"] or not function.attrs.get("noalias", True):
        return -1
    for position, arg in enumerate(function.args):
        kinds = updates.get(arg, set())
        if arg in barred or len(kinds) != 1 or not isinstance(arg.type, MemRefType):
            continue
        element, (kind,) = arg.type.element, kinds
        native = kind in _SHARED and element not in (f16, bf16, i1, i8, i16)
        if native and arg.type.layout == "contiguous" and (kind != "addf" or element is f32):
            return position
    return -1
