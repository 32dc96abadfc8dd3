"""Small vectors and matrices of scalars.

Elements are Python numbers or 0-d tensors and keep their own dtypes, unless the type says one:
``weft.Vector([1, 2.5])`` keeps what it is given, ``weft.math.ivec2(a, b)`` casts to i32 (floats
lose their fraction), ``vec2..4`` make floats of integers. ``*`` works element by element, ``@`` is
the matrix product. Assignment ``w = v`` names the same vector, as Python has it; ``Vector(v)``
copies.
"""

from __future__ import annotations

import builtins
import importlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import numpy as np
import torch

from weft.errors import KernelTypeError
from weft.lang.dtypes import DType, as_dtype, i32, to_float, total
from weft.lang.elements import Elementwise, binary, is_named
from weft.lang.field import Field, field
from weft.values import frozen, mutable

SWIZZLES = ("xyzw", "rgba", "stpq")


def _inverses() -> Any:
    return importlib.import_module("weft.lang.inverses")


def square_root(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.sqrt(value)
    return math.sqrt(value) if value >= 0 else math.nan


def _minimum(a: Any, b: Any) -> Any:
    return b if b < a else a


def _maximum(a: Any, b: Any) -> Any:
    return b if b > a else a


def letters(name: str, size: int) -> list[int] | None:
    """The positions that a swizzle such as ``xy`` names, or None if ``name`` is no swizzle."""
    for alphabet in SWIZZLES:
        if name and all(c in alphabet for c in name):
            places = [alphabet.index(c) for c in name]
            return places if max(places) < size else None
    return None


def _through(vector: _Values, items: list[Any], place: int, value: Any) -> None:
    """Sets an element of the field's element that ``vector`` is. In a kernel ``v = x[i]`` is a
    copy, so that where the caller has a name for it, this would mean something else."""
    home = getattr(items[place], "home", None)
    if home is None or is_named(vector):
        raise _refuse_frozen()
    home[0].store(home[1], value)


def _store(vector: _Values, items: list[Any], place: int, value: Any) -> None:
    if vector._frozen:  # pyright: ignore[reportPrivateUsage]
        _through(vector, items, place, value)
    else:
        items[place] = value


def _store_part(vector: _Values, items: list[Any], places: Any, value: Any) -> None:
    """Sets the elements that ``places``, a vector or a matrix, numbers: to ``value``, or to its
    elements."""
    pairs = places.map(lambda place, new: (int(place), new), value)
    for place, new in pairs.entries():
        _store(vector, items, place, new)


def _refuse_frozen() -> KernelTypeError:
    return KernelTypeError(
        "`v = x[i]` of a field of vectors is a copy: to set its elements would not reach the field",
        help="write x[i][k] = value, or x[i] = vector; Vector(x[i]) makes a copy that can be set",
    )


def _augmented(
    in_place: Callable[..., Any], plain: Callable[..., Any]
) -> Callable[[Any, Any], Any]:
    # A field's element: its scalars know where they are from, and `x[i] += v` is an update.
    return lambda self, other: self.map(in_place if self._frozen else plain, other)


class _Values(Elementwise):
    """What Vector and Matrix share beside arithmetic."""

    __slots__ = ("_frozen", "_items")
    _items: list[Any]
    _frozen: bool
    # == compares element by element, so these cannot be keys.
    __hash__ = None  # type: ignore[assignment]

    def entries(self) -> list[Any]:
        return list(self._items)

    def store_entries(self, entries: Iterable[Any]) -> None:
        """Replaces all elements, row by row."""
        if self._frozen:
            raise _refuse_frozen()
        self._items[:] = entries

    def freeze(self) -> None:
        """Makes it an element of a field: setting its elements sets the field's."""
        object.__setattr__(self, "_frozen", True)

    __eq__, __ne__ = binary(operator.eq), binary(operator.ne)

    __iadd__ = _augmented(operator.iadd, operator.add)
    __isub__ = _augmented(operator.isub, operator.sub)
    __imul__ = _augmented(operator.imul, operator.mul)
    __itruediv__ = _augmented(operator.itruediv, operator.truediv)

    def sum(self) -> Any:
        return total(self._items)

    def min(self) -> Any:
        return reduce(_minimum, self._items)

    def max(self) -> Any:
        return reduce(_maximum, self._items)

    def any(self) -> bool:
        return builtins.any(bool(item) for item in self._items)

    def all(self) -> bool:
        return builtins.all(bool(item) for item in self._items)

    def norm_sqr(self) -> Any:
        """The sum of the squares of the elements."""
        return total(item * item for item in self._items)

    def norm(self, eps: float = 0.0) -> Any:
        """The square root of ``norm_sqr() + eps``."""
        square = to_float(self.norm_sqr())
        return square_root(square + eps if eps else square)

    def norm_inv(self, eps: float = 0.0) -> Any:
        """One over ``norm(eps)``; infinite where that is 0."""
        return _inverses().quotient(1.0, self.norm(eps))

    def fill(self, value: Any) -> None:
        """Sets all elements to ``value``."""
        self.store_entries([value] * len(self._items))

    def to_numpy(self, keep_dims: bool = False) -> np.ndarray[Any, Any]:
        """A NumPy array of this shape; with ``keep_dims`` that of a vector is ``(n, 1)``."""
        made = np.array(self.to_list())
        return made[:, None] if keep_dims and made.ndim == 1 else made

    def __format__(self, format_spec: str) -> str:
        """As ``str()``; with a format each element by it, ``[1.00, 2.00]``."""
        if not format_spec:
            return str(self)
        texts = [format(item, format_spec) for item in self._items]
        width = self.shape[-1]
        rows = [f"[{', '.join(texts[k : k + width])}]" for k in range(0, len(texts), width)]
        return rows[0] if len(self.shape) == 1 else f"[{', '.join(rows)}]"

    def cast(self, dtype: Any) -> Any:
        """The elements cast to ``dtype``."""
        return self.map(as_dtype(dtype))

    def to_list(self) -> list[Any]:
        """The elements as Python numbers; of a matrix, a list of rows."""
        flat = [item.item() if isinstance(item, torch.Tensor) else item for item in self._items]
        if len(self.shape) == 1:
            return flat
        width = self.shape[1]
        return [flat[k : k + width] for k in range(0, len(flat), width)]


class Vector(_Values):
    """A vector of a fixed number of scalars: ``Vector([a, b, c])``, or cast to a ``dtype``."""

    __slots__ = ()

    def __init__(self, values: Iterable[Any], dt: Any = None, dtype: Any = None) -> None:
        kind = dtype if dtype is not None else dt
        cast = as_dtype(kind) if kind is not None else None
        items = list(values)
        if not items:
            raise KernelTypeError("a vector needs elements", help="write weft.Vector([a, b])")
        object.__setattr__(self, "_items", [cast(item) for item in items] if cast else items)
        object.__setattr__(self, "_frozen", False)

    @classmethod
    def zero(cls, dtype: Any, n: int) -> Vector:
        """``n`` zeros of ``dtype``."""
        return cls([0] * n, dtype)

    @classmethod
    def one(cls, dtype: Any, n: int) -> Vector:
        """``n`` ones of ``dtype``."""
        return cls([1] * n, dtype)

    @classmethod
    def unit(cls, n: int, axis: int, dtype: Any = i32) -> Vector:
        """A one at ``axis``, zeros elsewhere."""
        return cls([int(k == axis) for k in range(n)], dtype)

    @staticmethod
    def field(n: int, dtype: Any, shape: Any = (), **options: Any) -> Field:
        """A field of vectors: a tensor of shape ``(*shape, n)``."""
        return field(dtype, shape, element=VectorType(n, "any"), **options)

    ndarray = field

    @property
    def n(self) -> int:
        return len(self._items)

    @property
    def m(self) -> int:
        return 1

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (len(self._items),)

    def transpose(self) -> Matrix:
        """The matrix whose only row this is."""
        return Matrix([self._items])

    def with_entries(self, entries: list[Any]) -> Vector:
        return Vector(entries)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Vector(self._items[index])
        return self._items[operator.index(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            _store_part(self, self._items, Vector([*range(self.n)])[index], value)
        else:
            _store(self, self._items, operator.index(index), value)

    def __getattr__(self, name: str) -> Any:
        places = letters(name, len(self._items))
        if places is None:
            raise AttributeError(f"a vector of {len(self._items)} elements has no {name!r}")
        if len(places) == 1:
            return self._items[places[0]]
        return Vector([self._items[k] for k in places])

    def __setattr__(self, name: str, value: Any) -> None:
        places = letters(name, len(self._items))
        if places is None or len(set(places)) != len(places):
            raise AttributeError(f"{name!r} of a vector of {self.n} elements cannot be set")
        for place, item in zip(places, [value] if len(places) == 1 else value, strict=True):
            self[place] = item

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Matrix):
            return other.transpose() @ self
        return self.dot(other) if isinstance(other, Vector) else NotImplemented

    def dot(self, other: Vector) -> Any:
        """The sum of the products of matching elements."""
        return (self * other).sum()

    def cross(self, other: Vector) -> Any:
        """The cross product: a vector for 3 elements, a scalar for 2."""
        a, b = self._items, list(other)
        if len(a) == len(b) == 2:
            return a[0] * b[1] - a[1] * b[0]
        if len(a) == len(b) == 3:
            turns = ((1, 2), (2, 0), (0, 1))
            return Vector([a[j] * b[k] - a[k] * b[j] for j, k in turns])
        raise KernelTypeError(
            f"cross() takes two vectors of 2 or of 3 elements, not of {len(a)} and {len(b)}"
        )

    def normalized(self, eps: float = 0.0) -> Vector:
        """The vector over its norm (plus ``eps``)."""
        return self / (self.norm() + eps)

    def outer_product(self, other: Vector) -> Matrix:
        """The matrix of all products: element [i, j] is ``self[i] * other[j]``."""
        return Matrix([[a * b for b in other] for a in self])

    def __repr__(self) -> str:
        return f"Vector({self.to_list()})"


class Matrix(_Values):
    """A matrix of scalars, given by rows: ``Matrix([[a, b], [c, d]])``; ``A[i, j]``, ``A[i]``,
    ``A[0:2, :]``. Of scalars, ``Matrix([a, b, c])`` is a vector."""

    __slots__ = ("m", "n")
    n: int
    m: int

    def __new__(cls, rows: Iterable[Any], dt: Any = None, dtype: Any = None) -> Any:
        if isinstance(rows, list | tuple) and rows and not isinstance(rows[0], Iterable):
            return Vector(rows, dt, dtype)
        return super().__new__(cls)

    def __init__(self, rows: Iterable[Iterable[Any]], dt: Any = None, dtype: Any = None) -> None:
        kind = dtype if dtype is not None else dt
        cast = as_dtype(kind) if kind is not None else None
        table = [list(row) for row in rows]
        if not table or not table[0] or any(len(row) != len(table[0]) for row in table):
            raise KernelTypeError(
                "the rows of a matrix must have the same number of elements",
                help="write weft.Matrix([[a, b], [c, d]])",
            )
        self.n, self.m = len(table), len(table[0])
        self._items = [cast(item) if cast else item for row in table for item in row]
        self._frozen = False

    @classmethod
    def zero(cls, dtype: Any, n: int, m: int) -> Matrix:
        """``n`` by ``m`` zeros of ``dtype``."""
        return cls([[0] * m] * n, dtype)

    @classmethod
    def one(cls, dtype: Any, n: int, m: int) -> Matrix:
        """``n`` by ``m`` ones of ``dtype``."""
        return cls([[1] * m] * n, dtype)

    @classmethod
    def identity(cls, dtype: Any, n: int) -> Matrix:
        """The ``n`` by ``n`` identity."""
        return cls([[int(i == j) for j in range(n)] for i in range(n)], dtype)

    @classmethod
    def diag(cls, dim: int, val: Any) -> Matrix:
        """``val`` on the diagonal of a ``dim`` by ``dim`` matrix, zeros elsewhere."""
        return cls([[val if i == j else 0 for j in range(dim)] for i in range(dim)])

    @staticmethod
    def rows(rows: Iterable[Vector]) -> Matrix:
        return Matrix(rows)

    @staticmethod
    def cols(columns: Iterable[Vector]) -> Matrix:
        return Matrix(columns).transpose()

    @staticmethod
    def field(n: int, m: int, dtype: Any, shape: Any = (), **options: Any) -> Field:
        """A field of matrices: a tensor of shape ``(*shape, n, m)``."""
        return field(dtype, shape, element=MatrixType(n, m, "any"), **options)

    ndarray = field

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.n, self.m)

    def with_entries(self, entries: list[Any]) -> Matrix:
        return Matrix([entries[k : k + self.m] for k in range(0, len(entries), self.m)])

    def row(self, i: int) -> Vector:
        begin = _within(i, self.n) * self.m
        return Vector(self._items[begin : begin + self.m])

    def column(self, j: int) -> Vector:
        return Vector(self._items[_within(j, self.m) :: self.m])

    def __iter__(self) -> Iterator[Any]:
        return iter([self.row(i) for i in range(self.n)])

    def __getitem__(self, index: Any) -> Any:
        i, j = index if isinstance(index, tuple) else (index, slice(None))
        if isinstance(i, slice) or isinstance(j, slice):
            return self._part(i, j)
        return self._items[_within(i, self.n) * self.m + _within(j, self.m)]

    def _part(self, i: Any, j: Any) -> Vector | Matrix:
        """The rows ``i`` and columns ``j``, one of them a slice."""
        rows = range(self.n)[i] if isinstance(i, slice) else [_within(i, self.n)]
        columns = range(self.m)[j] if isinstance(j, slice) else [_within(j, self.m)]
        items = [[self._items[r * self.m + c] for c in columns] for r in rows]
        if isinstance(i, slice) and isinstance(j, slice):
            return Matrix(items)
        return Vector([item for row in items for item in row])

    def __setitem__(self, index: Any, value: Any) -> None:
        i, j = index if isinstance(index, tuple) else (index, slice(None))
        if isinstance(i, slice) or isinstance(j, slice):
            places = self.with_entries([*range(self.n * self.m)])._part(i, j)
            _store_part(self, self._items, places, value)
        else:
            _store(self, self._items, _within(i, self.n) * self.m + _within(j, self.m), value)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, list | tuple):
            other = Matrix(other)
        if isinstance(other, Vector):
            _agree(self, other.n)
            return Vector([self.row(i).dot(other) for i in range(self.n)])
        if isinstance(other, Matrix):
            _agree(self, other.n)
            columns = [other.column(j) for j in range(other.m)]
            return Matrix([[self.row(i).dot(c) for c in columns] for i in range(self.n)])
        return NotImplemented

    def transpose(self) -> Matrix:
        return Matrix([self.column(j) for j in range(self.m)])

    def trace(self) -> Any:
        _square(self, "trace")
        return total(self[i, i] for i in range(self.n))

    def determinant(self) -> Any:
        """By expansion along the first row; of larger matrices, by elimination."""
        _square(self, "determinant")
        return _inverses().determinant(self)

    def inverse(self) -> Matrix:
        """The adjugate over the determinant; of larger matrices, by elimination. Infinite or NaN
        where the determinant is 0."""
        _square(self, "inverse")
        return _inverses().inverse(self)

    def __repr__(self) -> str:
        return f"Matrix({self.to_list()})"


def _within(index: Any, size: int) -> int:
    place = operator.index(index)
    if not -size <= place < size:
        raise IndexError(f"matrix index {place} is out of range for {size}")
    return place % size


def _agree(left: Matrix, rows: int) -> None:
    if left.m != rows:
        raise KernelTypeError(
            f"@ of a {left.n}x{left.m} matrix and {rows} rows: the inner sizes differ"
        )


def _square(matrix: Matrix, what: str) -> None:
    if matrix.n != matrix.m:
        raise KernelTypeError(f"{what}() needs a square matrix, this is {matrix.n}x{matrix.m}")


@frozen
class Backing:
    """The ``element`` of a tensor that holds a vector of the host part, or a matrix, while a device
    loop stores into it."""

    shape: tuple[int, ...]


def _element_cast(kind: str, dtype: DType | None) -> Callable[[Any], Any]:
    if dtype is not None:
        return dtype
    return to_float if kind == "float" else lambda value: value


@mutable
class VectorType:
    """A vector type: an annotation, and a constructor as ``vec3(1, 2, 3)``, ``vec3(v.xy, z)``,
    ``vec3(0.0)`` (all elements alike). ``dtype`` None with kind "float" is the kernel's own float:
    floats keep their dtype, integers become floats. Kind "any" keeps the elements as they are.
    """

    n: int
    kind: str = "float"
    dtype: DType | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n,)

    def field(self, shape: Any = (), **options: Any) -> Field:
        """A field of these, as ``weft.field(type, shape)``."""
        return field(self, shape, **options)

    ndarray = field

    def of_any(self) -> VectorType:
        """The type of such vectors whose elements are as they are."""
        return VectorType(self.n, "any")

    def __call__(self, *values: Any) -> Vector:
        flat: list[Any] = []
        for value in values:
            many = isinstance(value, Elementwise | list | tuple)
            flat.extend(value if many else (value,))
        if len(values) == 1 and len(flat) == 1:
            flat *= self.n
        if len(flat) != self.n:
            raise KernelTypeError(
                f"a vector of {self.n} elements is made from {len(flat)}",
                help=f"pass {self.n} scalars, vectors that add up to {self.n}, or one scalar",
            )
        return Vector(map(_element_cast(self.kind, self.dtype), flat))

    def frozen(self, items: list[Any]) -> Vector:
        """A read-only vector, as a field's element is."""
        made = Vector(items)
        made.freeze()
        return made


@mutable
class MatrixType:
    """A matrix type: an annotation, and a constructor from rows, from all elements in row order,
    or from one scalar for all. ``kind`` and ``dtype`` as in VectorType."""

    n: int
    m: int
    kind: str = "float"
    dtype: DType | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.m)

    def field(self, shape: Any = (), **options: Any) -> Field:
        """A field of these, as ``weft.field(type, shape)``."""
        return field(self, shape, **options)

    ndarray = field

    def of_any(self) -> MatrixType:
        """The type of such matrices whose elements are as they are."""
        return MatrixType(self.n, self.m, "any")

    def __call__(self, *values: Any) -> Matrix:
        flat: list[Any] = []
        for value in values:
            flat.extend(_flatten(value))
        if len(flat) == 1:
            flat *= self.n * self.m
        if len(flat) != self.n * self.m:
            raise KernelTypeError(
                f"a {self.n}x{self.m} matrix is made from {len(flat)} elements",
                help=f"pass {self.n} rows of {self.m}, or {self.n * self.m} scalars",
            )
        flat = list(map(_element_cast(self.kind, self.dtype), flat))
        return Matrix([flat[k : k + self.m] for k in range(0, len(flat), self.m)])

    def frozen(self, items: list[Any]) -> Matrix:
        """A read-only matrix, as a field's element is."""
        made = self.of_any()(*items)
        made.freeze()
        return made


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, Matrix):
        return value.entries()
    if isinstance(value, Elementwise | list | tuple | np.ndarray):
        return [item for part in value for item in _flatten(part)]
    return [value]
