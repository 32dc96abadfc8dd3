"""What is known of a kernel argument when its region is compiled. Free of torch.

The runtime computes specs from values (``runtime/signature.py``); the frontend reads them.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Hashable
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from weft.lang.elements import Elementwise
from weft.values import frozen

# torch dtypes that a kernel can load and store, by weft's names.
TENSOR_DTYPES = (
    "f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32",
    "u64", "bool",
)  # fmt: skip


_DICTS = (dict, OrderedDict, defaultdict, Counter)

CAPTURED_BITS = 31  # captured ints that are passed, and what is computed of them, fit in 64


@frozen
class TensorSpec:
    """A tensor: element type (one of ``TENSOR_DTYPES``), rank, and how much is known of its strides
    (one of ``ir.types.LAYOUTS``). ``shape``: the sizes, where they are compiled in
    (``weft.template()``). ``element``: the shape of a field's vectors or matrices, which are the
    last dimensions. ``backing``: the tensor is a vector of the host part. ``clamped``: subscripts
    are moved into its range. ``pair``: of complex numbers, whose parts are the last dimension.
    ``offset``: a field's first subscripts, where they are not 0. ``of_field``: it is a field with
    an ``element``, whose ``shape`` leaves the element's sizes out."""

    dtype: str
    rank: int
    layout: str = "contiguous"
    shape: tuple[int, ...] | None = None
    element: tuple[int, ...] = ()
    backing: bool = False
    clamped: bool = False
    pair: bool = False
    offset: tuple[int, ...] = ()
    of_field: bool = False

    def __str__(self) -> str:
        dims = ", ".join([":"] * self.rank if self.shape is None else map(str, self.shape))
        what = f"pairs of {self.dtype}" if self.pair else self.dtype
        return f"{what}[{dims}]" + ("" if self.layout == "contiguous" else f" {self.layout}")


@frozen
class ScalarSpec:
    """A Python scalar whose value is known only at run time: ``kind`` is "int", "float" or "bool".

    ``dtype`` is None for a weak scalar, or the dtype that the parameter is annotated with.
    ``captured``: it means what a constant would (an int is then one of 32 bits).
    """

    kind: str
    dtype: str | None = None
    captured: bool = False

    def __str__(self) -> str:
        return self.dtype or self.kind


@frozen
class TupleSpec:
    """A tuple, list or ``torch.Size`` of arguments; it is passed flattened. ``kind``: the
    class of a named tuple."""

    items: tuple[Spec, ...]
    kind: Any = None

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


class ConstSpec:
    """A value that is compiled in. Equal where type and value are equal, floats by their bits."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = constant_key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstSpec) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"ConstSpec({self.value!r})"

    def __str__(self) -> str:
        value = self.value
        if isinstance(value, functools.partial):  # the text of a tensor whose data is freed crashes
            return f"=partial({ConstSpec(value.func)})".replace("(=", "(")
        name = getattr(value, "__qualname__", None) if callable(value) else None
        return f"={name or repr(value)}"


Spec = TensorSpec | ScalarSpec | TupleSpec | ConstSpec


def constant_key(value: Any) -> Hashable:
    """A hashable key that is equal exactly where two constants may share compiled code.

    Plain data (numbers, strings, enums, ranges, slices, and tuples, lists, sets and dicts of them)
    compares by type and value, functions that see nothing but their module by their code, and
    partial functions by what they are made of; classes and any other object by identity.
    """
    kind = type(value)
    if kind in (int, bool, str, bytes, type(None), type(Ellipsis)):
        return (kind, value)
    if kind is FunctionType:
        return _function_key(value)
    if kind is float:
        return (float, struct.pack("d", value))
    if kind is complex:
        return (complex, struct.pack("dd", value.real, value.imag))
    if isinstance(value, enum.Enum):
        return (kind, value.name)
    if isinstance(value, tuple | list):
        types = {*map(type, value)}  # of a table one, which is asked of at each call
        if types == {float}:
            return (kind, float, struct.pack(f"{len(value)}d", *value))
        if types == {int}:
            return (kind, int, tuple(value))
        return (kind, *map(constant_key, value))
    if kind in _DICTS:
        made = Identity(value.default_factory) if kind is defaultdict else None
        return (kind, made, *((constant_key(k), constant_key(v)) for k, v in value.items()))
    if isinstance(value, Elementwise):
        tracked = any(getattr(entry, "requires_grad", False) for entry in value.entries())
        return (kind, value.shape, tracked, *map(constant_key, vector_entries(value)))
    if kind in (set, frozenset):
        return (kind, frozenset(map(constant_key, value)))
    if kind in (range, slice):
        return (kind, *map(constant_key, (value.start, value.stop, value.step)))
    if kind is functools.partial:
        key = (kind, *map(constant_key, (value.func, value.args, value.keywords)))
        return key if _is_by_value(key) else Identity(value)
    return Identity(value)


def kept(value: Any) -> Any:
    """``value`` with collections that nobody else changes: it stays what its key is that of."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(map(kept, value))
    if kind is set:
        return {*value}
    if kind in _DICTS:
        made = value.copy()
        for key, item in value.items():
            made[key] = kept(item)
        return made
    return value


def _function_key(function: FunctionType) -> Hashable:
    """Of functions that are made anew for each call, such as a lambda among its arguments. What
    stands in a closure is read of the one function again and again, as are attributes."""
    if function.__closure__ or vars(function):
        return Identity(function)
    more = (function.__defaults__, function.__kwdefaults__, function.__annotations__)
    key = tuple(map(constant_key, more)) if any(more) else ()
    if not _is_by_value(key):
        return Identity(function)
    return (FunctionType, Identity(function.__code__), Identity(function.__globals__), *key)


def _is_by_value(key: Hashable) -> bool:
    """Whether what has this key holds no tensor or other object that is read at each call."""
    if isinstance(key, Identity):
        return isinstance(key.value, FunctionType | BuiltinFunctionType | CodeType | type | dict)
    return not isinstance(key, tuple | frozenset) or all(map(_is_by_value, key))


def vector_entries(value: Elementwise) -> list[Any]:
    """The numbers of a constant ``weft.Vector`` or ``weft.Matrix``, as Python's."""
    return [entry.item() if hasattr(entry, "item") else entry for entry in value.entries()]


class Identity:
    """Compares by identity, and keeps its object alive, so that an ``id`` is not used twice.

    A bound method is a new object at each access: it is the same where function and object are.
    """

    __slots__ = ("ids", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        function = getattr(value, "__func__", None)
        if function is not None and hasattr(value, "__self__"):
            self.ids = (id(function), id(value.__self__))
        else:
            self.ids = (id(value), 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.ids == other.ids

    def __hash__(self) -> int:
        return hash(self.ids)
