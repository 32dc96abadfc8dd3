"""What an expression of a kernel can be while it is lowered, and how kinds join.

Scalars have a *dtype*: a torch-like name (``f32``, ``u8``, ``bool``, ...), which is strong, or
``int`` / ``float``, which is weak, as Python's numbers are in torch: a weak scalar takes the dtype
of the tensor element that it meets. A weak ``int`` is an ``index`` in the IR; a weak ``float`` is
the kernel's own float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.errors import KernelTypeError
from weft.ir import types as ir
from weft.ir.core import Value
from weft.lang.numbers import Number
from weft.source import Span
from weft.values import frozen, mutable

FLOATS = ("f16", "bf16", "f32", "f64")
EIGHT_BITS = ("f8e4m3", "f8e5m2")  # of elements only: their values are f32
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTS = (*SIGNED, *UNSIGNED)
STORAGE = {
    "f8e4m3": ir.f8e4m3, "f8e5m2": ir.f8e5m2,
    "f16": ir.f16, "bf16": ir.bf16, "f32": ir.f32, "f64": ir.f64, "i8": ir.i8, "i16": ir.i16,
    "i32": ir.i32, "i64": ir.i64, "u8": ir.i8, "u16": ir.i16, "u32": ir.i32, "u64": ir.i64,
    "bool": ir.i1,
}  # fmt: skip
BITS = {name: STORAGE[name].bits for name in (*FLOATS, *INTS)}
COMPLEX = {"f32": "c64", "f64": "c128", "float": "complex"}  # by the dtype of their parts
PARTS = {name: part for part, name in COMPLEX.items()}


def is_float(dtype: str) -> bool:
    return dtype == "float" or dtype in FLOATS or dtype in EIGHT_BITS


def of_values(dtype: str) -> str:
    """The dtype of what is loaded from elements of ``dtype``."""
    return "f32" if dtype in EIGHT_BITS else dtype


def is_int(dtype: str) -> bool:
    return dtype == "int" or dtype in INTS


def is_weak(dtype: str) -> bool:
    return dtype in ("int", "float")


def int_range(dtype: str) -> tuple[int, int]:
    bits = BITS.get(dtype, 64)
    if dtype in UNSIGNED:
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def passed_range(dtype: str) -> tuple[int, int]:
    """Which integers of ``dtype`` a kernel is passed as numbers: PyTorch's have 64 bits."""
    return int_range(dtype)[0], min(int_range(dtype)[1], (1 << 63) - 1)


def promote(a: str, b: str) -> str:
    """The dtype that torch's promotion gives for 0-d tensors (strong) and Python numbers (weak)."""
    if a == b:
        return a
    if is_float(a) or is_float(b):
        floats = [d for d in (a, b) if is_float(d)]
        if len(floats) == 1:
            return floats[0]
        strong = [d for d in floats if not is_weak(d)]
        if len(strong) < 2:
            return strong[0]
        if set(strong) == {"f16", "bf16"}:
            return "f32"
        return max(strong, key=lambda d: BITS[d])
    for least in ("bool", "int"):
        if least in (a, b):
            return b if a == least else a
    if {a, b} == {"u8", "i8"}:
        return "i16"
    # torch refuses the wider unsigned ones beside others; Taichi: the wider, or the unsigned one.
    return max(a, b, key=lambda d: (BITS[d], d in UNSIGNED))


@mutable
class Scalar:
    """A run-time number: an SSA value of the dtype's compute type."""

    value: Value
    dtype: str


@mutable
class Static:
    """Something known at compile time: a Python number, a function, a dtype, a module, ...

    ``key`` says where it was found; ``read`` reads it there again, given a region's arguments.
    """

    value: Any
    key: tuple[Any, ...] = ()
    read: Callable[[Sequence[Any]], Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, np.generic):  # a number of NumPy's is one of Python's
            self.value = self.value.item()


class RegionChanged(Exception):
    """What a region is lowered for has to change: who called ``lower`` sees to it (see
    ``Forms.change``) and tries again."""


class NumberPinned(RegionChanged):
    """Captured numbers that were passed at run time have to be known at compile time."""

    def __init__(self, places: frozenset[Any]) -> None:
        super().__init__(places)
        self.places = places


class Varying(Static):
    """A captured number that changes from call to call, and what is computed of such numbers and
    constants alone. It is passed (``scalar``: of type f64 or index), and means what the constant
    would: Python's own arithmetic, rounded where it meets run-time values. ``places``: where it was
    captured (``RegionArg.place``). Whoever needs to know it asks for ``value``, and it is a
    constant from then on. ``bits``: an int is less than 2 to the power of that. ``either``: Python
    may have an int where this is a float, as in ``min(rate, 1)``."""

    __slots__ = ("bits", "dtype", "either", "places", "scalar")

    def __init__(
        self, scalar: Value, dtype: str, places: frozenset[Any], bits: int = 0, either: bool = False
    ) -> None:
        self.scalar, self.dtype, self.places, self.bits = scalar, dtype, places, bits
        self.either = either
        self.key, self.read = (), None

    @property
    def value(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise NumberPinned(self.places)

    def __repr__(self) -> str:
        return f"Varying({self.scalar!r}, {self.dtype!r})"


def constant_value(x: object) -> Any:
    """The value of what is known at compile time, but of no captured number; else None."""
    return x.value if isinstance(x, Static) and not isinstance(x, Varying) else None


@mutable
class Tensor:
    """A tensor argument (rank >= 0) or a local array."""

    memref: Value
    dtype: str
    name: str
    local: bool = False
    shape: tuple[int, ...] | None = None  # the sizes, where they are known at compile time
    element: tuple[int, ...] = ()  # of a field of vectors or matrices: their shape
    clamped: bool = False  # subscripts are moved into its range
    backing: bool = False  # it is a vector of the host part, into which the loop stores
    pair: bool = False  # of complex numbers: their parts are one more dimension of the memref
    offset: tuple[int, ...] = ()  # of a field: its first subscripts, where they are not 0
    of_field: bool = False  # its `shape` is without the element's
    listed: bool = False  # a loop over it goes over its elements
    key: tuple[Any, ...] = ()  # of a list: where the kind of its elements is known
    length: Value | None = None  # of a list that grows: the memory that has its length

    @property
    def rank(self) -> int:
        return self.memref.type.rank - self.pair  # type: ignore[union-attr]

    @property
    def lattice(self) -> int:
        """How many dimensions a loop over it goes through."""
        return self.rank - len(self.element)


@mutable
class Part:
    """A tensor with fewer subscripts than dimensions: ``x[i]`` in ``x[i][j]``."""

    tensor: Tensor
    indices: list[Value]


@frozen
class Along:
    """A dimension of a tensor that a view goes along: its subscripts are start + step * k."""

    start: Scalar | Static
    step: int


@frozen
class View:
    """The elements of a tensor where each dimension has one subscript, or goes along some."""

    tensor: Tensor
    axes: tuple[Value | Along, ...]


@frozen
class Choice:
    """One of several parts of tensors that are alike, by a number of run time. ``name``: what holds
    them."""

    views: tuple[View, ...]
    index: Scalar
    name: str


@mutable
class Row:
    """Elements along one or more dimensions, whose sizes are known at run time: a part of a tensor
    (then ``view`` says which), or what is computed of such, element by element.

    A function from indices to an element, not memory: ``at`` makes the code that reads or computes
    one. ``leaves``: the views that it reads, each with whether element k reads theirs at k.
    ``heavy``: an element takes a loop. ``since``: the operation behind which it was computed, and
    its block; of a view None. ``choice``: it is a part of one of several tensors.
    """

    extents: list[Scalar | Static]
    at: Callable[[list[Any]], Any]
    view: View | None = None
    leaves: tuple[tuple[View, bool], ...] = ()
    heavy: bool = False
    since: tuple[Any, Any] | None = None
    choice: Choice | None = None


@mutable
class Items:
    """What a loop goes over one by one: ``count`` of them, of which ``item`` makes the code."""

    count: Scalar | Static
    item: Callable[[Any], Any]


@mutable
class Vec:
    """A small vector (``shape`` is ``(n,)``) or matrix (``(n, m)``, row by row) in registers."""

    items: list[Scalar | Static]
    shape: tuple[int, ...]


@mutable
class Complex:
    """A complex number: two run-time numbers of one dtype of floats."""

    real: Scalar
    imag: Scalar

    @property
    def dtype(self) -> str:
        """That of the parts."""
        return self.real.dtype


@mutable
class Tup:
    """A Python tuple of anything. ``names``: of a struct's or a named tuple's items, the
    keys of a dict; ``struct``: the type of it, whose methods it has. ``objects``: which objects of
    a dataclass it may be, by where they are made."""

    items: list[Any]
    names: tuple[Any, ...] = ()
    struct: Any = None
    objects: frozenset[Any] = frozenset()

    @property
    def in_order(self) -> bool:
        """Whether it is a tuple or a list for Python: no struct, dataclass or dict."""
        return not self.names or (isinstance(self.struct, type) and issubclass(self.struct, tuple))

    def iterated(self) -> list[Any] | None:
        """What a loop over it goes over, the keys of a dict; None where Python has nothing."""
        if self.struct is dict:
            return list(map(Static, self.names))
        return list(self.items) if self.in_order else None


@frozen
class TupleList:
    """A list that grows, of tuples of ``kind``: an array for each number in one. ``key``: where
    the kind is known."""

    columns: tuple[Tensor, ...]
    kind: TupKind
    key: tuple[Any, ...]


@mutable
class Range:
    """``range(lower, upper, step)`` of run-time integers."""

    lower: Scalar | Static
    upper: Scalar | Static
    step: Scalar | Static


@mutable
class Box:
    """``ndrange(...)``: one (lower, upper) pair per dimension; ``grouped`` gives one vector."""

    bounds: list[tuple[Any, Any]]
    grouped: bool = False


@mutable
class Method:
    """``receiver.name``, about to be called."""

    receiver: Any
    name: str

    @property
    def missing(self) -> str:
        """What is written in place of an attribute that it would have to be, and is not."""
        if isinstance(self.receiver, Vec) and len(self.name) == 1:
            return "name an element that it has, as v.x or v[0]"
        if not isinstance(self.receiver, Vec) and self.name in ("shape", "ndim"):
            return f"an element is a number: write `{self.name}` of the tensor"
        return ""


@mutable
class Unbound:
    """A name that is not, or perhaps not, assigned at this point."""

    reason: str
    wanted: tuple[Any, ...] = ()  # what the loop that assigns it is asked for, once it is read


Operand = (
    Scalar | Static | Complex | Tensor | Part | Row | Items | Vec | Tup | TupleList | Range | Box
    | Method | Unbound
)  # fmt: skip


class Keywords(dict[str, Operand]):
    """What a function's ``**kwargs`` holds. It is the value of a ``Static``."""


# --- what a variable can hold -------------------------------------------------------------------
@frozen
class ScalarKind:
    dtype: str

    def __str__(self) -> str:
        return self.dtype


@frozen
class ComplexKind:
    dtype: str  # of the parts

    def __str__(self) -> str:
        return COMPLEX[self.dtype]


@frozen
class VecKind:
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} x {self.dtype}"


@frozen
class TupKind:
    items: tuple[Any, ...]
    names: tuple[Any, ...] = ()
    struct: Any = None
    objects: frozenset[Any] = frozenset()

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


@mutable
class OpaqueKind:
    """A tensor, an array or a compile-time object: a variable may only ever hold this one."""

    operand: Any

    def __str__(self) -> str:
        return describe(self.operand)


Kind = ScalarKind | ComplexKind | VecKind | TupKind | OpaqueKind


def number_dtype(value: Any) -> str | None:
    """The dtype of a compile-time Python number, None for anything else."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Number):
        return value.dtype.name
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    return None


def dtype_of(x: Operand) -> str | None:
    """The dtype of a scalar or of a compile-time number, None for anything else."""
    if isinstance(x, Scalar | Varying):
        return x.dtype
    if isinstance(x, Static):
        return number_dtype(x.value)
    return None


def is_complex(x: Operand) -> bool:
    """Whether ``x`` is a complex number, or a tensor of one."""
    if isinstance(x, Static) and not isinstance(x, Varying):
        return isinstance(x.value, complex)
    return isinstance(x, Complex) or (isinstance(x, Tensor) and x.pair and x.rank == 0)


def kind_of(x: Operand) -> Kind:
    dtype = dtype_of(x)
    if dtype is not None:
        return ScalarKind(dtype)
    if isinstance(x, Complex):
        return ComplexKind(x.dtype)
    if is_complex(x) and isinstance(x, Static):
        return ComplexKind("float")
    if isinstance(x, Vec):
        dtype = "bool"
        for k, item in enumerate(x.items):
            d = dtype_of(item)
            assert d is not None
            dtype = d if k == 0 else promote(dtype, d)
        return VecKind(x.shape, dtype)
    if isinstance(x, Tup):
        return TupKind(tuple(kind_of(item) for item in x.items), x.names, x.struct, x.objects)
    return OpaqueKind(x)


def renewed(known: Kind, kind: Kind) -> Kind:
    """``known`` with the objects that ``kind`` has in the same places."""
    if isinstance(known, OpaqueKind) and isinstance(kind, OpaqueKind):
        return kind
    if isinstance(known, TupKind) and isinstance(kind, TupKind) and (
        len(known.items) == len(kind.items)
    ):  # fmt: skip
        items = tuple(map(renewed, known.items, kind.items))
        return TupKind(items, known.names, known.struct, known.objects)
    return known


def holds_objects(kind: Kind) -> bool:
    """Whether it is of no numbers alone."""
    if isinstance(kind, TupKind):
        return any(map(holds_objects, kind.items))
    return isinstance(kind, OpaqueKind)


def of_lists(x: Operand) -> bool:
    """Whether ``x`` is a list of lists that a loop stores into, or one of the lists in it: for
    Python no tensor, though its elements lie as those of one."""
    views = (
        []
        if not isinstance(x, Row)
        else [x.view]
        if x.view
        else list(x.choice.views if x.choice else ())
    )
    held = (
        [x]
        if isinstance(x, Tensor)
        else [v.tensor for v in (x, *views) if isinstance(v, Part | View)]
    )
    return any(tensor.key and tensor.rank > 1 for tensor in held)


def flatten(x: Operand) -> list[Value]:
    """The SSA values that an operand is made of."""
    if isinstance(x, Scalar):
        return [x.value]
    if isinstance(x, Complex):
        return [x.real.value, x.imag.value]
    if isinstance(x, (Vec, Tup)):
        return [v for item in x.items for v in flatten(item)]
    return []


def same_operand(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.memref is b.memref
    if isinstance(a, Static) and isinstance(b, Static):
        return a.value is b.value or (type(a.value) is type(b.value) and bool(a.value == b.value))
    return a is b


def join(a: Kind, b: Kind, name: str, span: Span) -> Kind:
    """The kind of a variable that is assigned both; ``KernelTypeError`` if there is none.

    ``name``: "" is no variable, "f()" is what the function ``f`` returns.
    """
    if isinstance(a, ScalarKind) and isinstance(b, ScalarKind):
        return ScalarKind(promote(a.dtype, b.dtype))
    numbers = (ScalarKind, ComplexKind)
    if isinstance(a, numbers) and isinstance(b, numbers):
        dtype = promote(promote(a.dtype, b.dtype), "float")
        return ComplexKind(dtype if dtype in COMPLEX else "f32")
    if isinstance(a, VecKind) and isinstance(b, VecKind) and a.shape == b.shape:
        return VecKind(a.shape, promote(a.dtype, b.dtype))
    if isinstance(a, TupKind) and isinstance(b, TupKind) and (
        (len(a.items), a.names, a.struct) == (len(b.items), b.names, b.struct)
    ):  # fmt: skip
        items = tuple(join(x, y, name, span) for x, y in zip(a.items, b.items, strict=True))
        return TupKind(items, a.names, a.struct, a.objects | b.objects)
    if (
        isinstance(a, OpaqueKind)
        and isinstance(b, OpaqueKind)
        and same_operand(a.operand, b.operand)
    ):
        return a
    if article(a) == article(b):
        raise KernelTypeError(
            f"{f'`{name}`' if name else 'this'} may be {article(a)}, or another one", span,
            help="loop over one, and choose the number: `k = n if up else m - 1 - n`"
            if article(a) == "a range" else "what a name stands for is known when the kernel is "
            "compiled: write both cases out, or use one with one more subscript that says which",
        )  # fmt: skip
    if name.endswith("()"):
        raise KernelTypeError(
            f"`{name[:-2]}` returns {article(a)} here and {article(b)} elsewhere", span,
            help="let every path return one type; where a function ends without `return`, add a "
            "final one",
        )  # fmt: skip
    raise KernelTypeError(
        f"`{name}` is {article(a)} here and {article(b)} elsewhere" if name else
        f"one side is {article(a)} and the other {article(b)}", span,
        help=f"a variable of a kernel has one type: use another name than `{name}`" if name else
        "make both sides of one type",
    )  # fmt: skip


def article(kind: Kind) -> str:
    if isinstance(kind, ScalarKind):
        return f"a scalar ({kind})"
    if isinstance(kind, ComplexKind):
        return "a complex number" + f" ({kind})" * (kind.dtype != "float")
    if isinstance(kind, VecKind):
        return f"a {'matrix' if len(kind.shape) == 2 else 'vector'} ({kind})"
    if isinstance(kind, TupKind):
        if kind.names:
            what = getattr(kind.struct, "__name__", "struct")
            return f"a struct, {what}({', '.join(map(str, kind.names))})"
        return f"a tuple of {len(kind.items)}"
    return str(kind)


_WORDS = {TupleList: "a list of tuples", Items: "what a loop goes over", Range: "a range",
          Box: "an ndrange", Unbound: "an unbound name"}  # fmt: skip


def describe(x: Any) -> str:
    """What an operand is, in words, for messages."""
    if type(x) in _WORDS:
        return _WORDS[type(x)]
    if isinstance(x, Tensor):
        rank = f"{x.rank} dimension{'' if x.rank == 1 else 's'}"
        if x.pair and not x.rank:
            return "a complex number"
        return f"a local array of {rank}" if x.local else f"a tensor of {rank}"
    if isinstance(x, Part):
        return f"a part of the tensor `{x.tensor.name}`"
    if isinstance(x, Row):
        one = "a row of a tensor" if x.view else "a computed row"
        return one if len(x.extents) == 1 else f"rows in {len(x.extents)} dimensions"
    if isinstance(x, Static):
        if x.value is None or isinstance(x.value, str):
            return "None" if x.value is None else "a string"
        if number_dtype(x.value) or isinstance(x.value, complex):
            return f"the number {x.value!r}"
        name = getattr(x.value, "__name__", None)
        return f"`{name}`" if name else f"a {type(x.value).__name__}"
    if isinstance(x, Method):
        of = "vector" if isinstance(x.receiver, Vec) else "element"
        return f"`{x.name}`, which no such {of} has" if x.missing else f"the method `{x.name}`"
    return article(kind_of(x))
