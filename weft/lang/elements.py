"""What vectors, matrices and index vectors share: arithmetic element by element."""

from __future__ import annotations

import dis
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, Self

import torch

from weft.errors import KernelTypeError


def binary(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """The method of an operator: ``function`` of the elements on both sides."""
    return lambda self, other: NotImplemented if _is_foreign(other) else self.map(function, other)


def _reflected(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return binary(lambda a, b: function(b, a))


class Elementwise:
    """A fixed number of scalars under arithmetic that works on each of them.

    The other operand is a scalar, which meets every element, or has the same shape. A scalar is a
    Python number or a 0-d tensor; each keeps its own dtype rules (torch's promotion).
    """

    __slots__ = ()
    shape: tuple[int, ...]

    if TYPE_CHECKING:  # each of its classes says what these are

        def entries(self) -> list[Any]:
            """The elements, row by row."""
            ...

        def with_entries(self, entries: list[Any]) -> Any:
            """Something of this shape with other elements."""
            ...

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

    __add__, __radd__ = binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = binary(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = binary(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = binary(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = binary(operator.mod), _reflected(operator.mod)
    __pow__, __rpow__ = binary(operator.pow), _reflected(operator.pow)
    __and__, __or__, __xor__ = binary(operator.and_), binary(operator.or_), binary(operator.xor)
    __rand__, __ror__ = _reflected(operator.and_), _reflected(operator.or_)
    __rxor__ = _reflected(operator.xor)
    __lshift__, __rlshift__ = binary(operator.lshift), _reflected(operator.lshift)
    __rshift__, __rrshift__ = binary(operator.rshift), _reflected(operator.rshift)
    __lt__, __le__ = binary(operator.lt), binary(operator.le)
    __gt__, __ge__ = binary(operator.gt), binary(operator.ge)

    def __neg__(self) -> Self:
        return self.map(operator.neg)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self.map(abs)

    def __invert__(self) -> Self:
        return self.map(operator.invert)


def subscripts(index: Any) -> tuple[Any, ...]:
    """The subscripts of ``x[index]`` as a flat tuple; an index vector stands for its elements."""
    if isinstance(index, Elementwise):
        return tuple(index.entries())
    if not isinstance(index, tuple):
        return (index,)
    flat: list[Any] = []
    for part in index:
        flat.extend(part.entries() if isinstance(part, Elementwise) else (part,))
    return tuple(flat)


def numbered(index: Any) -> tuple[Any, ...]:
    """The subscripts of ``x[index]``, where an element of uint8 is a number; to torch, a mask."""
    return tuple([
        operator.index(part)
        if isinstance(part, torch.Tensor) and part.dtype is torch.uint8 and part.dim() == 0
        else part
        for part in subscripts(index)
    ])  # fmt: skip


def whole(x: Any) -> int:
    """``x``, an integer of any dtype, as one of Python's, as which it does not wrap."""
    return operator.index(x)


def needs(condition: bool, message: str) -> None:
    """Raises ``KernelTypeError`` with ``message`` where ``condition``, which is known when a kernel
    is compiled, does not hold. Of functions that are written in the language."""
    if not condition:
        raise KernelTypeError(message)


def is_named(value: Any) -> bool:
    """Whether a variable of the code that called the language holds ``value``."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_globals.get("__name__", "").startswith("weft.lang."):
        frame = frame.f_back
    return frame is not None and any(v is value for v in frame.f_locals.values())


def from_statement() -> bool:
    """Whether the ``__iter__`` that calls this was called by a ``for`` statement, which goes over a
    tensor's indices in a kernel. All else (``sum(x)``, ``zip``, a comprehension) takes items."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_name == "__iter__" and frame.f_back is not None:
        frame = frame.f_back
    return _begins_loop(frame.f_code, frame.f_lasti)


def _begins_loop(code: CodeType, at: int) -> bool:
    """Whether the instruction at ``at`` makes the iterator of a ``for`` statement."""
    if code.co_name.startswith("<") and code.co_name != "<module>":
        return False  # a comprehension or a generator that has a frame of its own
    steps = list(dis.get_instructions(code))
    inlined = 0  # where a comprehension ends whose text stands in the function's (from 3.12 on)
    for k, (step, following) in enumerate(itertools.pairwise(steps)):
        if step.opname == "LOAD_FAST_AND_CLEAR" and step.offset >= inlined:
            inlined = next((s.argval for s in steps[k:] if s.opname == "FOR_ITER"), 0)
        if step.offset == at:
            loops = step.opname == "GET_ITER" and following.opname == "FOR_ITER"
            return loops and at >= inlined
    return False


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
        rows = [list(row) if isinstance(row, Iterable) else [row] for row in other]
        shape = (len(rows), len(rows[0]) if rows else 0)[: len(this.shape)]
        if shape != this.shape or sum(map(len, rows)) != count:
            raise KernelTypeError(
                f"operands have {_size(this.shape)} and {len(other)} elements",
                help="element-wise operations need equal shapes, or a scalar on one side",
            )
        return [item for row in rows for item in row]
    return [other] * count


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


# What has no tensors inside: asked first, for each operand of whatever is interpreted.
_SINGLE = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))


def mapped(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """``value`` with ``function`` of its tensors, also of those inside tuples, lists and dicts."""
    if type(value) in _SINGLE:
        return value
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and not isinstance(value, Elementwise | torch.Size):
        items = [mapped(item, function) for item in value]
        return rebuilt(value, items)
    if type(value) is list:
        return [mapped(item, function) for item in value]
    if type(value) is dict:
        return {key: mapped(item, function) for key, item in value.items()}
    return value


def rebuilt(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """``value`` with other items, whose names stay: those of a named tuple, or torch's."""
    if hasattr(type(value), "n_sequence_fields"):  # what ``x.sort()`` gives
        return type(value)(items)
    return tuple.__new__(type(value), items) if hasattr(value, "_fields") else tuple(items)


def leaves(values: Iterable[Any]) -> list[Any]:
    """``values``, with what is inside of tuples, lists and dicts in place of these."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, tuple | list):
            found += leaves(value)
        elif isinstance(value, dict):
            found += leaves(value.values())
        else:
            found.append(value)
    return found
