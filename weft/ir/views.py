"""Views of operations: which operand or region means what is known here, and nowhere else.

A view costs one small object and keeps nothing: make it where it is needed. ``split`` cuts what is
listed as an operation's operands are (names of LLVM IR, values of the interpreter) likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from weft.ir.core import Block, Op, Value
from weft.ir.ops import MEMREF_AT

T = TypeVar("T")
Number = bool | int | float


class View:
    __slots__ = ("op",)

    def __init__(self, op: Op) -> None:
        self.op = op


class _Operand:
    """Which operand of a view's operation an attribute is."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __get__(self, view: View, _: type) -> Value:
        return view.op.operands[self.place]


class _Region:
    """Which region of a view's operation an attribute is."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __get__(self, view: View, _: type) -> Block:
        return view.op.regions[self.place]


class Parallel(View):
    """``scf.parallel``."""

    __slots__ = ()

    @property
    def dims(self) -> int:
        return self.op.attrs["dims"]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The combiner of each reduction."""
        return self.op.attrs["kinds"]

    @property
    def lowers(self) -> list[Value]:
        return self.op.operands[: self.dims]

    @property
    def uppers(self) -> list[Value]:
        return self.op.operands[self.dims : 2 * self.dims]

    @property
    def steps(self) -> list[Value]:
        return self.op.operands[2 * self.dims : 3 * self.dims]

    @property
    def inits(self) -> list[Value]:
        """What each reduction starts from."""
        return self.op.operands[3 * self.dims :]

    @property
    def ranges(self) -> tuple[list[Value], list[Value], list[Value]]:
        """Lower bounds, upper bounds and steps."""
        return self.lowers, self.uppers, self.steps

    @property
    def axes(self) -> list[tuple[Value, Value, Value]]:
        """Lower bound, upper bound and step of each axis."""
        return list(zip(*self.ranges, strict=True))

    @property
    def indices(self) -> list[Value]:
        return self.op.body.args

    @property
    def contributions(self) -> list[Value]:
        """What an iteration hands to each reduction."""
        return self.op.body.terminator.operands

    def split(self, listed: Sequence[T]) -> tuple[Sequence[T], ...]:
        """The lower bounds, upper bounds, steps and initial values among ``listed``."""
        n = self.dims
        return listed[:n], listed[n : 2 * n], listed[2 * n : 3 * n], listed[3 * n :]


class For(View):
    """``scf.for``."""

    __slots__ = ()

    lower, upper, step = _Operand(0), _Operand(1), _Operand(2)

    @property
    def bounds(self) -> tuple[Value, Value, Value]:
        """Lower bound, upper bound, step."""
        lower, upper, step = self.op.operands[:3]
        return lower, upper, step

    @property
    def inits(self) -> list[Value]:
        return self.op.operands[3:]

    @property
    def axes(self) -> list[tuple[Value, Value, Value]]:
        return [self.bounds]

    @property
    def index(self) -> Value:
        return self.op.body.args[0]

    @property
    def indices(self) -> list[Value]:
        return [self.index]

    @property
    def carried(self) -> list[Value]:
        """The carried values at the start of an iteration."""
        return self.op.body.args[1:]

    @property
    def yielded(self) -> list[Value]:
        """The carried values at its end."""
        return self.op.body.terminator.operands

    @property
    def rows(self) -> list[tuple[Value, Value, Value, Value]]:
        """Of each carried value: at the start of an iteration, at first, at an iteration's end, at
        last."""
        return list(zip(self.carried, self.inits, self.yielded, self.op.results, strict=True))


def loop_of(op: Op) -> Parallel | For:
    """The view of a loop over indices."""
    return Parallel(op) if op.name == "scf.parallel" else For(op)


class If(View):
    """``scf.if``."""

    __slots__ = ()

    condition = _Operand(0)
    then, otherwise = _Region(0), _Region(1)

    def arms(self, place: int) -> tuple[Value, Value]:
        """Between what result ``place`` is chosen."""
        return self.then.terminator.operands[place], self.otherwise.terminator.operands[place]


class Select(View):
    """``arith.select``."""

    __slots__ = ()

    condition, yes, no = _Operand(0), _Operand(1), _Operand(2)


def made_by(value: Value, name: str) -> Op | None:
    """The operation that made ``value``, if it is called ``name``."""
    return value.op if value.op is not None and value.op.name == name else None


def condition_of(op: Op | None) -> Value | None:
    """What an ``scf.if`` or ``arith.select`` goes by; None for other operations."""
    if op is None or op.name not in ("scf.if", "arith.select"):
        return None
    return If(op).condition if op.name == "scf.if" else Select(op).condition


class While(View):
    """``scf.while``."""

    __slots__ = ()

    before = _Region(0)  # what computes the condition
    after = _Region(1)  # what follows where it holds

    @property
    def condition(self) -> Value:
        return self.before.terminator.operands[0]

    @property
    def handed(self) -> list[Value]:
        """What ``before`` hands on, to ``after`` or as results."""
        return self.before.terminator.operands[1:]


# -- values


def constant_of(value: Value) -> Number | None:
    """The number that ``value`` is a constant of, or None."""
    owner = value.owner
    if isinstance(owner, Op) and owner.name == "arith.constant":
        return owner.attrs["value"]
    return None


def is_constant(value: Value, number: Number) -> bool:
    """Whether ``value`` is written as ``number``."""
    return constant_of(value) == number


def surely_less(a: Value, b: Value) -> bool:
    """Whether both are written as numbers, and the first one is less."""
    first, last = constant_of(a), constant_of(b)
    return first is not None and last is not None and first < last


# -- memory


def memory(op: Op) -> tuple[Value, list[Value], list[Value]]:
    """Of a load, store or atomic operation: memref, subscripts, and the values that it brings."""
    return split_access(op, op.operands)


def split_access(op: Op, listed: list[T]) -> tuple[T, list[T], list[T]]:
    """The memref, the subscripts and the values among ``listed``."""
    place = MEMREF_AT[op.name]
    return listed[place], listed[place + 1 :], listed[:place]


_WRITTEN_AT = {name: place for name, place in MEMREF_AT.items() if name != "memref.load"}


def accessed_by(op: Op) -> Value | None:
    """The memref that ``op`` itself (not what is inside it) loads from or writes to."""
    place = MEMREF_AT.get(op.name)
    return None if place is None else op.operands[place]


def written_by(op: Op) -> Value | None:
    """The memref that ``op`` itself writes."""
    place = _WRITTEN_AT.get(op.name)
    return None if place is None else op.operands[place]


def redirected(op: Op, memref: Value) -> None:
    """Lets ``op``, which loads or writes, access ``memref``. It is changed in place."""
    op.operands[MEMREF_AT[op.name]] = memref


def subscripted(op: Op, subscripts: Sequence[Value]) -> None:
    """Lets ``op``, which loads or writes, have ``subscripts`` in front of its own. It is changed in
    place."""
    place = MEMREF_AT[op.name] + 1
    op.operands[place:place] = subscripts


class Assert(View):
    """``weft.assert``."""

    __slots__ = ()

    condition = _Operand(0)


class CheckRace(View):
    """``weft.check_race``."""

    __slots__ = ()

    memref = _Operand(0)

    @property
    def rank(self) -> int:
        return self.memref.memref.rank

    def split(self, listed: Sequence[T]) -> tuple[T, Sequence[T], Sequence[T]]:
        """The iteration, the subscripts, and all behind the iteration, among ``listed``."""
        return listed[1], listed[2 : 2 + self.rank], listed[2:]


class Cut(View):
    """``weft.chunks``. ``total``: the iterations that are cut."""

    __slots__ = ()

    total = _Operand(0)


class ToLine(View):
    """``weft.to_line``."""

    __slots__ = ()

    memref = _Operand(0)

    def split(self, listed: Sequence[T]) -> tuple[T, Sequence[T]]:
        """The memref and the subscripts among ``listed``."""
        return listed[0], listed[1:]


class Prefetch(ToLine):
    """``weft.prefetch``."""

    __slots__ = ()


class RowsFollow(View):
    """``weft.rows_follow``."""

    __slots__ = ()

    @property
    def memrefs(self) -> list[Value]:
        return self.op.operands[2:]


class Copies(View):
    """``weft.copies``."""

    __slots__ = ()

    @property
    def rows(self) -> list[tuple[Value, Value]]:
        """Each array, with its copies."""
        return list(zip(self.op.operands[1:], self.op.results[1:], strict=True))


class CopyOf(View):
    """``weft.copy_of``."""

    __slots__ = ()

    array = _Operand(2)


def reported(op: Op) -> list[Value]:
    """The values that ``op``, a check, gives to the error where it fails."""
    return op.operands if op.name == "weft.bounds" else op.operands[1:]
