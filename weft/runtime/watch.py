"""Checked interpretation: the Python itself, run with bounds and race checks on.

``run(function, args, kwargs, source)`` runs the undecorated function of a kernel with every tensor
replaced by a ``Watched`` one that shares its memory. Element reads are values, subscripts are
checked, ``for i, j in x`` goes through indices, and two iterations of a parallel loop that touch
one element, at least one writing, raise ``RaceError``. ``x[i] += v`` and the atomics may meet.

Not watched: loops of functions that the kernel calls from its host part. Annotated locals cast in
the kernel and in functions marked by ``weft.func``, in others not. What a read conflicts with is
known at the end of its iteration (it may be half of ``x[i] += v``): a race is reported there.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import torch

from weft.errors import KernelIndexError, KernelTypeError, KernelValueError
from weft.frontend import parameters as declared
from weft.frontend.accumulations import atomics
from weft.frontend.names import Scope
from weft.lang.dtypes import Scalar, computing, quietly, read, stored
from weft.lang.elements import Elementwise, subscripts
from weft.lang.field import Array, Field, indices, is_number
from weft.lang.loops import Grouped, NDRange, Serial, is_func
from weft.lang.numbers import copied
from weft.lang.random import drawing
from weft.runtime import places
from weft.runtime.adopting import Adopting
from weft.runtime.conflict import READ, UPDATES, WRITE, may_meet, race, subject
from weft.runtime.debugger import Debugger, is_asked_for
from weft.runtime.draws import Draws
from weft.runtime.overlap import address_of
from weft.runtime.places import Access, Place, here, literal_axes, outside
from weft.runtime.rewrite import CAST, COPY, INNER, LATE, LOOP, SETTLED, cast, instrument
from weft.runtime.signature import value_spec
from weft.runtime.untaken import Untaken
from weft.runtime.watched_arguments import bound_arguments, exchanged
from weft.runtime.watched_rows import inside, touch
from weft.runtime.wide import reads_f64
from weft.settings import deep
from weft.source import FunctionSource, read_function
from weft.values import mutable


@mutable
class Watch:
    """What is known while a kernel is interpreted: the iteration, and who touched which element.

    Elements are known by their address, so that views and tensors passed twice are one. ``only``:
    the indices of the iteration that is run, of a loop and of those inside it, ``chosen`` so many
    of them so far; ``steps``: the debugger stops at each iteration that runs.
    """

    only: tuple[int, ...] = ()
    steps: bool = False
    asserts: bool = True  # those of functions are checked
    chosen: int = 0
    met: bool = False  # an iteration that ``only`` names
    active: bool = False
    wide: bool = False  # the kernel's own float is f64 in this loop
    updating: bool = False  # an element, with what calls gave, which may have changed it
    iteration: Any = None
    now: dict[tuple[int, str], Access] = field(default_factory=dict)
    before: dict[int, dict[str, Access]] = field(default_factory=dict)
    reads: Counter[int] = field(default_factory=Counter)
    wrapped: dict[int, Watched] = field(default_factory=dict)
    made: list[weakref.ref[Watched]] = field(default_factory=list)  # outside of loops
    collections: set[int] = field(default_factory=set)  # arguments whose items are watched
    callees: dict[types.FunctionType, Callable[..., Any]] = field(default_factory=dict)
    untaken: Untaken = field(default_factory=Untaken)

    def loop(self, iterable: Any, draws: bool = False, reads: Sequence[str] = ()) -> Iterable[Any]:
        """What a loop goes over, which ``draws`` or not, and ``reads`` these names. A parallel one
        is announced, checked."""
        if isinstance(iterable, Serial):
            return iter(iterable)
        parallel = isinstance(iterable, range | NDRange | Grouped | torch.Tensor)
        draw = self.draws.loop(iterable, draws) if parallel and not self.active else None
        if draw is not None:
            self.wide = reads_f64(reads, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if isinstance(iterable, torch.Tensor) and not getattr(iterable, "row", False):
            iterable = indices(iterable)
        if self.chosen < len(self.only) and (self.active or parallel):
            iterable = self._chosen(iterable)
        return iterable if draw is None else self._announced(iterable, draw)

    def ordered(self, iterable: Any, draws: bool) -> Iterator[Any]:
        """What a device loop whose iterations run in order goes through, inside of the parallel
        loop that it is."""
        draw = self.draws.loop(iterable, draws)
        for index in self.loop(iterable):
            draw(index)
            yield index

    def _chosen(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """The iterations that ``only`` names."""
        before = self.chosen
        left = self.only[before:]
        for index in iterable:
            own = tuple(map(operator.index, index if isinstance(index, tuple) else [index]))
            if own[: len(left)] == left[: len(own)]:
                self.chosen = before + len(own)
                self.met = self.met or self.chosen >= len(self.only)
                try:
                    yield index
                finally:
                    self.chosen = before

    def late(self, value: Any) -> Any:
        """What an element is about to be updated with."""
        self.updating = True
        return value

    def settled(self) -> None:
        self.updating = False

    @functools.cached_property
    def draws(self) -> Draws:
        """The random numbers of loops, which are those of their tensors' device."""

        def device() -> torch.device:
            return next((w.plain.device for w in self.wrapped.values()), torch.device("cpu"))

        return Draws(device)

    @functools.cached_property
    def debugger(self) -> Debugger:
        def finish() -> None:
            self.steps = False

        return Debugger(lambda: self.iteration, finish)

    @property
    def hidden(self) -> dict[str, Any]:
        """What takes part in a kernel's function by a name of its own."""
        stop = {"breakpoint": self.debugger.stop} if is_asked_for() else {}
        own = {LOOP: self.loop, INNER: self.ordered, CAST: cast, COPY: self.assigned,
               LATE: self.late, SETTLED: self.settled}  # fmt: skip
        return {**own, **self.untaken.hidden, **stop}

    def _announced(self, iterable: Iterable[Any], draw: Callable[[Any], None]) -> Iterator[Any]:
        try:
            for index in iterable:
                self.active, self.iteration = True, index
                draw(index)
                if self.steps:
                    self.debugger.at_iteration(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
                yield index
                self._finish()
        finally:
            self.active = False
            self.draws.end()
            self.now.clear()
            self.reads.clear()
            self.before.clear()

    def _finish(self) -> None:
        """Compares what the iteration touched with what earlier ones did, then remembers it."""
        for (address, kind), access in self.now.items():
            earlier = self.before.setdefault(address, {})
            for other in earlier.values():
                if not may_meet(kind, other.kind):
                    raise race(other.side(), access.side(), access.position, access.side()[2])
        for (address, kind), access in self.now.items():
            self.before[address].setdefault(kind, access)
        self.now.clear()
        self.reads.clear()

    def touch(self, address: int, kind: str, position: tuple[int, ...], place: Place) -> None:
        if self.active:
            key = (address, kind)
            if key not in self.now:
                self.now[key] = Access(kind, self.iteration, position, place)
            self.reads[address] += kind == READ

    def forget_read(self, address: int) -> Access | None:
        """Takes back the latest read of an element: it was half of an update."""
        access = self.now.get((address, READ))
        self.reads[address] -= 1
        if self.reads[address] <= 0:
            self.now.pop((address, READ), None)
        return access

    def is_wide(self) -> bool:
        return self.active and self.wide

    def adopt(self, tensor: torch.Tensor) -> Any:
        """A new tensor of the kernel: watched if the host made it, an iteration's own else."""
        if not self.active:
            return self.watched(tensor)
        with quietly():
            if tensor.dim() == 0:
                return tensor.as_subclass(Scalar)
            made = tensor.as_subclass(Array)
        made.row = True
        return made

    def watched(self, tensor: torch.Tensor, own: bool = True) -> Watched:
        """``tensor``'s memory as a Watched tensor."""
        with quietly():
            plain = tensor.as_subclass(torch.Tensor)
            result = plain.as_subclass(Watched)
            if not self.active:
                self.made.append(weakref.ref(result))
            result.watch, result.plain, result.original = self, plain, tensor
            result.extents, result.steps = tuple(plain.size()), plain.stride()
            result.start, result.width = address_of(plain), plain.element_size()
            result.element = getattr(tensor, "element", None)
            result.by_value, result.own = isinstance(tensor, Array), own
        return result

    def assigned(self, value: Any) -> Any:
        """What an assignment gives a name: in a loop, of a tensor of no dimensions its number."""
        whole = self.active and isinstance(value, Watched) and not value.extents
        return value.number() if whole else copied(value)

    def wrap(self, value: Any) -> Any:
        """Tensors in ``value`` (also inside tuples, lists and dicts) as watched ones."""
        return exchanged(value, self._wrap_tensor, self.collections)

    def _wrap_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, Watched | Scalar):
            return tensor
        # Of one tensor always the same: `x is y` stays true. `original` keeps the id its own.
        if id(tensor) not in self.wrapped:
            self.wrapped[id(tensor)] = self.watched(tensor, own=False)
        return self.wrapped[id(tensor)]

    def wrap_constant(self, value: Any) -> Any:
        """A captured value. Tensors and marked functions are replaced, containers stay."""
        if isinstance(value, torch.Tensor):
            return self._wrap_tensor(value)
        if isinstance(value, types.FunctionType) and (is_func(value) or declared.converts(value)):
            return self._callee(value)
        return value

    def _callee(self, function: types.FunctionType) -> Callable[..., Any]:
        """A ``weft.func``: its annotated locals cast; its loops are not parallel loops."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if function not in self.callees:
                declared.refuse_references(function, None)
                hidden = {**self.hidden, LOOP: lambda iterable, *_: iterable}
                source = read_function(function)
                source.asserts = self.asserts
                source.tree = atomics(source, Scope.of(function))
                made: Callable[..., Any] = instrument(function, source, hidden, self.wrap_constant)
                self.callees[function] = (
                    declared.converting(made, cast, declared.copies(function))
                    if declared.converts(function)
                    else made
                )
            return self.callees[function](*args, **kwargs)

        return call

    def unwrap(self, value: Any) -> Any:
        """The plain tensors, sharing memory; an argument comes back as itself."""
        return exchanged(value, _unwrap_tensor, set())

    def end(self) -> None:
        """What the kernel has stored somewhere is plain from now on."""
        for made in self.made:
            tensor: Any = made()
            if tensor is not None:
                tensor.__dict__.clear()
                tensor.__class__ = torch.Tensor


def _unwrap_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, Watched):
        return tensor.original
    with quietly():
        plain = isinstance(tensor, Scalar | Array) and not isinstance(tensor, Field)
        return tensor.as_subclass(torch.Tensor) if plain else tensor


class Watched(Field):
    """A tensor whose elements are checked and recorded. Made by ``Watch.watched``."""

    watch: Watch
    plain: torch.Tensor
    original: torch.Tensor
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    start: int
    width: int
    clamped: bool = False  # subscripts are moved into the range
    own: bool = True  # made by the kernel: in a loop, `s += v` gives a number of its own

    shape: Any = property(lambda self: self.original.shape)

    def __getitem__(self, index: Any) -> Any:
        return self.read(index, here(1))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.assign(index, value, here(1))

    def _items(self) -> Iterator[Any]:
        if not self.extents:
            raise TypeError("iteration over a 0-d tensor")
        begin = self.offset[0] if self.offset else 0
        return (self.read(begin + k, outside()) for k in range(self.extents[0]))

    def assign(self, index: Any, value: Any, place: Place) -> None:
        """``self[index] = value``, at ``place``."""
        parts = self._parts(index)
        if self.is_plain():
            if all(map(is_number, parts)):
                self._of_host(parts, place)  # which says what is wrong
            self._set_plain(parts, value)
        elif not all(map(is_number, parts)):
            self._assign_row(parts, value, place)
        elif self._names_vector(parts) and isinstance(value, Elementwise):
            inner = itertools.product(*map(range, self.element.shape))
            for k, item in zip(inner, value.entries(), strict=True):
                self._write((*parts, *k), item, place)
        elif len(parts) == len(self.extents):
            self._write(parts, value, place)
        elif len(parts) > len(self.extents):
            raise places.wrong_number(self.extents, len(parts), place)
        else:
            self._assign_row(self._checked(parts, place), value, place)

    def _write(self, parts: tuple[Any, ...], value: Any, place: Place) -> None:
        position = self._checked(parts, place)
        update = value.updated if isinstance(value, Scalar) else None
        address = self._address(position)
        kind = WRITE
        if update is not None and update[0]._address(update[1]) == address:
            kind = UPDATES.get(update[2], WRITE)
        if kind != WRITE:
            self.watch.forget_read(address)
        self.watch.touch(address, kind, position, place)
        self._set_plain(position, value, place)

    def _assign_row(self, parts: tuple[Any, ...], value: Any, place: Place) -> None:
        """Writes to a part of the tensor; not where it is that part: ``x[i] += v`` has changed it
        by then."""
        if self.watch.active:
            with quietly():
                part = self.watch.watched(self.plain[parts])
            same = isinstance(value, Watched) and value.start == part.start
            if same and (value.extents, value.steps) == (part.extents, part.steps):
                return
            if isinstance(value, Watched):
                touch(value, READ, place)
            touch(part, WRITE, place)
        self._set_plain(parts, value)

    def update(
        self, position: tuple[int, ...], function: Callable[[Any], Any], kind: str
    ) -> Scalar:
        address = self._address(position)
        read = self.watch.forget_read(address)
        place = read.place if read is not None else here(3)
        self.watch.touch(address, UPDATES[kind], position, place)
        return self._update_plain(position, function, place)

    def present(self, position: tuple[int, ...], before: Scalar) -> Scalar:
        return self._element(position) if self.watch.updating else before

    def number(self) -> Scalar:
        """What a tensor of no dimensions is to an iteration."""
        self.watch.touch(self.start, READ, (), here(1, "weft"))
        with quietly():
            return read(self.plain.clone()).as_subclass(Scalar)

    def is_plain(self) -> bool:
        """Whether this is torch's tensor as any, whose elements are views: in the host part."""
        return not self.watch.active and not self.by_value

    def _shown(self) -> torch.Tensor:
        """What is printed: in a loop, of a tensor of no dimensions its number."""
        return self.plain if self.extents or not self.watch.active else self.number()

    def __repr__(self) -> str:  # type: ignore[override]
        with quietly():
            return repr(self._shown())

    def __format__(self, format_spec: str) -> str:
        return format(self._shown(), format_spec)

    def _update_plain(
        self, position: tuple[int, ...], function: Callable[[Any], Any], place: Place | None = None
    ) -> Scalar:
        with quietly():
            before = read(self.plain[position].clone()).as_subclass(Scalar)
        self._set_plain(position, function(before), place)
        return before

    def _set_plain(self, parts: tuple[Any, ...], value: Any, place: Place | None = None) -> None:
        if isinstance(value, Elementwise):
            self._set(parts, value)
            return
        try:
            with quietly():
                self.plain[parts] = stored(value, self.plain.dtype)
        except (RuntimeError, ValueError, OverflowError):
            if place is None or not isinstance(value, int):
                raise
            dtype = str(self.plain.dtype).removeprefix("torch.")
            raise KernelValueError(
                f"{value} does not fit in {dtype}, the dtype of `{subject(place.span())}`",
                place.span(),
                "integers of a compiled kernel have 64 bits and wrap where they are stored: keep "
                "them in range, or store them to a tensor of a wider dtype",
            ) from None

    def _parts(self, index: Any) -> tuple[Any, ...]:
        """The subscripts, from 0 on: those of a field with an offset are checked here."""
        parts = subscripts(index)
        if not self.extents and parts == (None,):
            return parts if self.is_plain() else ()
        if not self.offset or not all(map(is_number, parts)):
            return parts
        if not self.clamped:
            return self.element.taken_off(parts, self.extents)
        begins = (*self.offset, *(0 for _ in self.element.shape))
        return tuple(operator.index(p) - begin for p, begin in zip(parts, begins, strict=False))

    def store(self, position: tuple[int, ...], value: Any) -> None:
        self._write(position, value, outside())

    def _names_vector(self, parts: tuple[Any, ...]) -> bool:
        """Whether ``parts`` name a whole vector or matrix of a field of these."""
        inner = self.element.shape if self.element is not None else ()
        return bool(inner) and len(parts) + len(inner) == self.dim()

    def read(self, index: Any, place: Place) -> Any:
        """``self[index]``, at ``place``."""
        parts = self._parts(index)
        try:
            return self._read(parts, place)
        except KernelIndexError:
            if not self.watch.untaken.active or len(parts) > len(self.extents):
                raise
            return self._of_nothing(len(parts))

    def _of_nothing(self, count: int) -> Any:
        """What stands for an element, or a part with ``count`` subscripts less, that is not there
        and that nobody takes."""
        with quietly():
            zero = self.plain.new_zeros(self.extents[count:])
            return (
                zero.as_subclass(Scalar) if count == len(self.extents) else zero.as_subclass(Array)
            )

    def _read(self, parts: tuple[Any, ...], place: Place) -> Any:
        if self.is_plain():
            return self._of_host(parts, place)
        if not all(map(is_number, parts)):
            with quietly():
                if self.watch.active:
                    parts = inside(parts, self.extents, lambda at: self._checked(at, place))
                return self._part(self.plain[parts])
        if self._names_vector(parts):
            inner = itertools.product(*map(range, self.element.shape))
            return self.element.frozen([self._read((*parts, *k), place) for k in inner])
        if len(parts) == len(self.extents):
            position = self._checked(parts, place)
            self.watch.touch(self._address(position), READ, position, place)
            return self._element(position)
        if len(parts) > len(self.extents) or self.watch.active:
            parts = self._checked(parts, place)
        with quietly():
            part = self._part(self.plain[parts])
        part.clamped = self.clamped
        return part

    def _of_host(self, parts: tuple[Any, ...], place: Place) -> Watched:
        """A part of the tensor, as torch has it: of an element, too, a view."""
        try:
            with quietly():
                part = self._part(self.plain[parts])
        except IndexError:
            if all(map(is_number, parts)):
                self._checked(parts, place)  # says which
            raise
        part.clamped = self.clamped
        return part

    def _element(self, position: tuple[int, ...]) -> Scalar:
        with quietly():
            element = read(self.plain[position].clone()).as_subclass(Scalar)
        element.home = (self, position)
        return element

    def _part(self, plain: torch.Tensor) -> Watched:
        """A part of the tensor: in a loop it iterates over its elements."""
        part = self.watch.watched(plain)
        part.row, part.by_value = self.watch.active, self.by_value
        return part

    def _address(self, position: tuple[int, ...]) -> int:
        return self.start + self.width * sum(map(operator.mul, position, self.steps))

    def _checked(self, parts: tuple[Any, ...], place: Place) -> tuple[int, ...]:
        """``parts`` as ints in range, literals from the end resolved."""
        if len(parts) > len(self.extents):
            raise places.wrong_number(self.extents, len(parts), place)
        try:
            position = tuple(map(operator.index, parts))
        except TypeError:
            what = f"a subscript of `{subject(place.span())}` is not an integer"
            raise KernelTypeError(what, place.span(), "write int(...) around it") from None
        if self.clamped:
            position = tuple(max(min(k, n - 1), 0) for k, n in zip(position, self.extents))  # noqa: B905
        for k, n in zip(position, self.extents, strict=False):
            if not 0 <= k < n:
                break
        else:
            return position
        if any(k < 0 for k in position) and not self.offset:
            literal = literal_axes(place, len(position))
            position = tuple(
                k + n if k < 0 and axis in literal else k
                for axis, (k, n) in enumerate(zip(position, self.extents, strict=False))
            )
        for axis, (k, n) in enumerate(zip(position, self.extents, strict=False)):
            if not 0 <= k < n:
                raise places.out_of_range(self.extents, parts, axis, k, place)
        return position


@contextmanager
def watching() -> Generator[Watch]:
    """A Watch under which torch's factories and views give watched tensors."""
    watch = Watch()
    with Adopting(watch, Watched), drawing(watch.draws.words), computing(watch.is_wide):
        yield watch


def run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    source: FunctionSource,
    only: Sequence[int] | int = (),
    step: bool = False,
) -> Any:
    """Runs the undecorated ``function`` (whose text is ``source``) with all checks on.

    The tensors among the arguments are written in place. Gives what the function returns, as plain
    tensors. Raises KernelIndexError, KernelTypeError and RaceError with the user's line.
    ``breakpoint()`` stops in pdb, where ``iteration`` shows the indices, and ``s`` goes by weft's
    own functions. ``only``: the indices of a parallel loop, and of loops inside it as far as there
    are more, of which that iteration alone is run; raises KernelIndexError where there is none.
    ``step``: pdb stops at each iteration that is run: ``c`` goes on to the next one, ``finish`` to
    the end.
    """
    with watching() as watch:
        watch.only = tuple(map(operator.index, only if isinstance(only, Sequence) else [only]))
        watch.steps, watch.asserts = step, source.asserts
        with deep(source.span(source.tree)):
            made = instrument(function, source, watch.hidden, watch.wrap_constant)
        try:
            bound = bound_arguments(function, watch, args, kwargs)
            result = watch.unwrap(made(*bound.args, **bound.kwargs))
        finally:
            watch.unwrap((args, kwargs))
            watch.end()
    if watch.only and not watch.met:
        raise KernelIndexError(
            f"no loop has the iteration {watch.only}", source.span(source.tree),
            "only= takes the indices of a loop that runs in parallel, then those of loops in it",
        )  # fmt: skip
    return result


def interpreted(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``run`` of a kernel's function: ``only`` and ``step`` are among ``kwargs``, unless parameters
    of the kernel are called so."""
    asked = {n: kwargs.pop(n) for n in ("only", "step")
             if n in kwargs and n not in kernel.signature.parameters}  # fmt: skip
    if kernel.tuning is not None:
        args, kwargs = kernel.tuning.completed(kernel, args, kwargs)
    kernel.bind(args, kwargs)  # raises what a call would
    args, kwargs = kernel.recast(args, kwargs)
    try:
        return run(kernel.function, args, kwargs, kernel.source, **asked)
    except OverflowError:
        for name, value in kernel.bind(args, kwargs).arguments.items():
            if isinstance(value, int):
                value_spec(name, value, kernel.span)  # says which integer is too large
        raise
