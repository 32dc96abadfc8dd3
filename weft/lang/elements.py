"""What vectors, matrices and index vectors share: arithmetic element by element."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Self

from weft.errors import KernelTypeError


class Elementwise:
    """A fixed number of scalars under arithmetic that works on each of them.

    The other operand is a scalar, which meets every element, or has the same shape. A scalar is a
    Python number or a 0-d tensor; each keeps its own dtype rules (torch's promotion).
    """

    __slots__ = ()
    shape: tuple[int, ...]

    def entries(self) -> list[Any]:
        """The elements, row by row."""
        raise NotImplementedError

    def with_entries(self, entries: list[Any]) -> Any:
        """Something of this shape with other elements."""
        raise NotImplementedError

    def map(self, function: Callable[..., Any], *others: Any) -> Any:
        """``function`` of each element and of the matching elements of ``others``."""
        columns = [_matching(self, other) for other in others]
        rows = zip(self.entries(), *columns, strict=True)
        return self.with_entries([function(*row) for row in rows])

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise KernelTypeError(
            f"a {'matrix' if len(self.shape) == 2 else 'vector'} is neither true nor false",
            help="write .any() or .all() on it",
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.entries())

    def _binary(self, function: Callable[..., Any], other: Any) -> Any:
        return NotImplemented if _is_foreign(other) else self.map(function, other)

    def _reflected(self, function: Callable[..., Any], other: Any) -> Any:
        return self._binary(lambda a, b: function(b, a), other)

    def __add__(self, other: Any) -> Any:
        return self._binary(operator.add, other)

    def __radd__(self, other: Any) -> Any:
        return self._reflected(operator.add, other)

    def __sub__(self, other: Any) -> Any:
        return self._binary(operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._reflected(operator.sub, other)

    def __mul__(self, other: Any) -> Any:
        return self._binary(operator.mul, other)

    def __rmul__(self, other: Any) -> Any:
        return self._reflected(operator.mul, other)

    def __truediv__(self, other: Any) -> Any:
        return self._binary(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._reflected(operator.truediv, other)

    def __floordiv__(self, other: Any) -> Any:
        return self._binary(operator.floordiv, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._reflected(operator.floordiv, other)

    def __mod__(self, other: Any) -> Any:
        return self._binary(operator.mod, other)

    def __rmod__(self, other: Any) -> Any:
        return self._reflected(operator.mod, other)

    def __pow__(self, other: Any) -> Any:
        return self._binary(operator.pow, other)

    def __rpow__(self, other: Any) -> Any:
        return self._reflected(operator.pow, other)

    def __and__(self, other: Any) -> Any:
        return self._binary(operator.and_, other)

    def __or__(self, other: Any) -> Any:
        return self._binary(operator.or_, other)

    def __xor__(self, other: Any) -> Any:
        return self._binary(operator.xor, other)

    def __lshift__(self, other: Any) -> Any:
        return self._binary(operator.lshift, other)

    def __rshift__(self, other: Any) -> Any:
        return self._binary(operator.rshift, other)

    def __lt__(self, other: Any) -> Any:
        return self._binary(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._binary(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._binary(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._binary(operator.ge, other)

    def __neg__(self) -> Self:
        return self.map(operator.neg)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self.map(abs)

    def __invert__(self) -> Self:
        return self.map(operator.invert)


def _is_foreign(other: Any) -> bool:
    """Whether ``other`` is neither a scalar nor something with elements."""
    return isinstance(other, str | dict | set) or other is None


def _matching(this: Elementwise, other: Any) -> list[Any]:
    """One partner for each element of ``this``."""
    count = len(this.entries())
    if isinstance(other, Elementwise):
        if other.shape != this.shape:
            raise KernelTypeError(
                f"operands have {_size(this.shape)} and {_size(other.shape)} elements",
                help="element-wise operations need equal shapes, or a scalar on one side",
            )
        return other.entries()
    if isinstance(other, tuple | list):
        if len(this.shape) != 1 or len(other) != count:
            raise KernelTypeError(
                f"operands have {_size(this.shape)} and {len(other)} elements",
                help="element-wise operations need equal shapes, or a scalar on one side",
            )
        return list(other)
    return [other] * count


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
