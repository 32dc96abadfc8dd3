"""What a kernel's loops go over, and marks that change nothing in plain Python.

In plain Python ``for i, j in x`` over a plain torch tensor goes through its *rows*, as torch has
it. So a kernel that loops over a tensor runs undecorated only with fields (``weft.field``), and
with any tensor through ``kernel.interpret`` (``weft.runtime.watch``), where it means what it does
compiled.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from weft.errors import KernelAssertionError, KernelTypeError
from weft.lang.elements import Elementwise
from weft.lang.field import indices
from weft.lang.vectors import Vector, letters
from weft.source import FILES
from weft.values import frozen

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
T = TypeVar("T")
_MARK = "__weft_func__"


class Index(Elementwise, tuple):  # type: ignore[misc]
    """An index vector: ``x[I]``, ``I[0]``, ``I + offset``. A tuple, so that torch takes it too."""

    __slots__ = ()
    # tuple's own + and * would join and repeat; Elementwise comes first and wins.
    __len__ = tuple.__len__  # pyright: ignore[reportAssignmentType]
    __iter__ = tuple.__iter__  # pyright: ignore[reportAssignmentType]
    __hash__ = tuple.__hash__

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (len(self),)

    @property
    def n(self) -> int:
        return len(self)

    def entries(self) -> list[Any]:
        return list(tuple.__iter__(self))

    def with_entries(self, entries: list[Any]) -> Index:
        return Index(entries)

    def sum(self) -> Any:
        return sum(self.entries())

    def cast(self, dtype: Any) -> Any:
        """The elements cast to ``dtype``, as a vector."""
        return Vector(self.entries(), dtype)

    def max(self) -> Any:
        return max(self.entries())

    def min(self) -> Any:
        return min(self.entries())

    def __getattr__(self, name: str) -> Any:
        places = letters(name, len(self))
        if places is not None:
            return self[places[0]] if len(name) == 1 else Index(self[k] for k in places)
        raise AttributeError(f"an index vector of {len(self)} elements has no {name!r}")

    def __repr__(self) -> str:
        return f"Index({', '.join(map(repr, self))})"


@frozen
class NDRange:
    """A box of integers: one (begin, end) for each dimension. Iterates in row-major order."""

    bounds: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(max(end - begin, 0) for begin, end in self.bounds)

    def __iter__(self) -> Iterator[Any]:
        if len(self.bounds) == 1:
            return iter(range(*self.bounds[0]))
        return itertools.product(*itertools.starmap(range, self.bounds))

    def __len__(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


def ndrange(*bounds: Any) -> NDRange:
    """The integers below each argument: ``for i, j in ndrange(n, (1, m))``.

    An argument is an end, or a pair (begin, end). Gives ints for one dimension, else tuples: for
    none, one empty tuple.
    """
    return NDRange(tuple(map(_bound, bounds)))


def _bound(bound: Any) -> tuple[int, int]:
    pair = tuple(bound) if isinstance(bound, tuple | list) else (0, bound)
    try:
        begin, end = map(operator.index, pair)
    except (TypeError, ValueError):
        raise KernelTypeError(
            f"ndrange() takes ints and (begin, end) pairs, not {bound!r}",
            help="write weft.ndrange(n, (1, m))",
        ) from None
    return begin, end


@frozen
class Grouped:
    """The indices of a tensor or of an ndrange, each as one ``Index``."""

    over: Any

    def __iter__(self) -> Iterator[Index]:
        source = indices(self.over) if isinstance(self.over, torch.Tensor) else iter(self.over)
        return (Index(i) if isinstance(i, tuple) else Index((i,)) for i in source)


def grouped(over: Any) -> Grouped:
    """``for I in grouped(x)``: goes through the indices of a tensor, a field, an ndrange or a
    range, as index vectors (``x[I]``)."""
    if not isinstance(over, torch.Tensor | NDRange | range):
        over = getattr(over, "first", over)  # of a field of structs
    if not isinstance(over, torch.Tensor | NDRange | range):
        raise KernelTypeError(
            f"grouped() takes a tensor or an ndrange, not {type(over).__name__}",
            help="write weft.grouped(x) or weft.grouped(weft.ndrange(n, m))",
        )
    return Grouped(over)


@frozen
class Serial:
    """A loop whose iterations run one after the other."""

    over: Iterable[Any]

    def __iter__(self) -> Iterator[Any]:
        return indices(self.over) if isinstance(self.over, torch.Tensor) else iter(self.over)


def serial(over: Iterable[Any]) -> Serial:
    """``for t in serial(range(T))``: this loop is not parallel; at the top it is a host loop."""
    return Serial(over)


def static(*values: Any) -> Any:
    """Evaluated when the kernel is compiled: unrolls a loop, prunes a branch.

    In plain Python: the value itself; of a range or ndrange, a tuple of what it goes through.
    """
    if len(values) != 1:
        return values
    value = values[0]
    return tuple(value) if isinstance(value, range | NDRange | Grouped) else value


def static_assert(condition: Any, message: object = "") -> None:
    """Raises ``KernelAssertionError`` unless ``condition``, which a loop knows when it is compiled,
    holds."""
    if not condition:
        raise KernelAssertionError(str(message) or "a static assertion failed")


def static_print(*values: Any, sep: str = " ", end: str = "\n") -> None:
    """Prints when the loop is compiled: values that are known then, of others what they are."""
    print(*values, sep=sep, end=end)


def loop_unique(value: T, covers: Any = None) -> T:
    """``value``: Taichi's promise that no other iteration has it, which weft finds out itself."""
    return value


def stop_grad(value: T) -> T:
    """``value``, whose derivative is 0: ``torch.Tensor.detach``."""
    return value.detach() if isinstance(value, torch.Tensor) else value  # type: ignore[return-value]


@frozen
class LoopConfig:
    """Hints for the next loop."""

    block_dim: int | tuple[int, ...] | None = None
    serialize: bool = False
    parallelize: int | None = None


def loop_config(
    *,
    block_dim: int | tuple[int, ...] | None = None,
    serialize: bool = False,
    parallelize: int | None = None,
    **ignored: Any,
) -> LoopConfig:
    """Hints for the next loop of a kernel. They change no result; plain Python ignores them.

    ``block_dim``: threads of a block on a GPU, one number, or one for each index of the loop (up to
    three). It is known when the kernel is compiled: a number, or a name of the module or of the
    function around the kernel. ``serialize``: the iterations run in order, on one thread.
    """
    return LoopConfig(block_dim, serialize, parallelize)


def func(function: F) -> F:
    """Marks a function or method as one that kernels call: it is inlined there."""
    setattr(function, _MARK, True)
    FILES.note(function)
    return function


def is_func(function: object) -> bool:
    """Whether ``function`` was marked with ``weft.func``."""
    return getattr(function, _MARK, False) is True


def data_oriented(cls: C) -> C:
    """Taichi's class decorator: ``instance.kernel.grad()`` works then. Loops need none."""
    cls.weft_data_oriented = True  # type: ignore[attr-defined]
    return cls
