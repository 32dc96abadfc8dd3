"""The types of the IR: scalars, and memrefs (typed views of tensors or of local arrays).

Scalars are signless, as in MLIR: whether an ``i8`` is a torch ``int8`` or ``uint8`` is said by the
operations (``arith.extsi`` or ``arith.extui``), which the frontend chooses. ``index`` is the
kernel's own integer (Python's ``int`` in a kernel): 64-bit two's complement.
Floats of 16 and 8 bits are storage types: they are loaded, stored, extended and truncated, and
nothing else; arithmetic on them is carried out in ``f32`` (``compute_type``).
"""

from __future__ import annotations

from weft.values import frozen


@frozen
class ScalarType:
    name: str
    kind: str  # "float", "int", "index" or "bool"
    bits: int

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_storage(self) -> bool:
        """Whether numbers of this type are computed with in another one."""
        return self.kind == "float" and self.bits < 32

    @property
    def is_integer(self) -> bool:
        """True for iN, index and i1: everything that integer arithmetic accepts."""
        return self.kind != "float"

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory (``i1`` takes one byte, as torch's bool does)."""
        return max(1, self.bits // 8)


i1 = ScalarType("i1", "bool", 1)
i8 = ScalarType("i8", "int", 8)
i16 = ScalarType("i16", "int", 16)
i32 = ScalarType("i32", "int", 32)
i64 = ScalarType("i64", "int", 64)
index = ScalarType("index", "index", 64)
f8e4m3 = ScalarType("f8e4m3", "float", 8)
f8e5m2 = ScalarType("f8e5m2", "float", 8)
f16 = ScalarType("f16", "float", 16)
bf16 = ScalarType("bf16", "float", 16)
f32 = ScalarType("f32", "float", 32)
f64 = ScalarType("f64", "float", 64)

SCALARS = {t.name: t for t in (i1, i8, i16, i32, i64, index, f8e4m3, f8e5m2,
                                   f16, bf16, f32, f64)}  # fmt: skip

# How much is known of a tensor's strides. "contiguous": row-major without gaps, strides follow from
# the shape. "unit": the last stride is 1, the others are run-time values. "strided": all are.
LAYOUTS = ("contiguous", "unit", "strided")
SPACES = ("", "shared", "cluster")


def compute_type(t: ScalarType) -> ScalarType:
    """The type that arithmetic on elements of type ``t`` is carried out in."""
    return f32 if t.is_storage else t


@frozen
class MemRefType:
    """A view of memory: a tensor argument (``shape`` is None: sizes are run-time values), or an
    array that ``memref.alloca`` makes (layout "contiguous"): a thread's own (``shape`` is a tuple
    of ints), in the ``space`` "shared" one for all threads of a block, or in "cluster" one for all
    of several blocks that are as one, each of which has the row of its number."""

    element: ScalarType
    rank: int
    layout: str = "contiguous"
    shape: tuple[int, ...] | None = None
    space: str = ""

    @property
    def row_major(self) -> bool:
        """Whether neighbours along the last index are neighbours in memory."""
        return self.rank > 0 and self.layout != "strided"

    def __str__(self) -> str:
        dims = self.shape if self.shape is not None else ("?",) * self.rank
        body = "x".join([*map(str, dims), self.element.name])
        if self.layout != "contiguous":
            strides = ["?"] * self.rank
            if self.layout == "unit":
                strides[-1] = "1"
            body += f", strided<[{', '.join(strides)}]>"
        return f'memref<{body}, "{self.space}">' if self.space else f"memref<{body}>"


Type = ScalarType | MemRefType
