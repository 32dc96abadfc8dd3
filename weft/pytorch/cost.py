"""What calls cost, counted from the index sets of their loops: ``kernel.cost(...)``, and FLOPs for
``torch.utils.flop_counter.FlopCounterMode``.

A call is carried out on tensors without memory: the host part as it is, and in place of each loop,
and of each that is derived from one, its operations are counted.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

# What is asked of torch's modes has no public name.
# pyright: reportPrivateUsage=false
from weft.index.elements import elements, given
from weft.index.expression import Atom, Dim, Floor, Pick, Poly, atom, show
from weft.index.operations import FLOPS, Counts, Operations, ends, operations
from weft.index.sums import Count, UncountableError
from weft.ir.core import Function, Value
from weft.ir.text import print_function
from weft.ir.types import MemRefType
from weft.pytorch.autograd import with_functions
from weft.pytorch.fake import hollow
from weft.pytorch.loop import Make
from weft.runtime.function import CompiledFunction
from weft.runtime.launch import KernelLike, Launcher
from weft.values import frozen, mutable

T = TypeVar("T")


@frozen
class Bounds:
    """A number of which the least and the most are known; ``most`` is None where there is none."""

    least: int
    most: int | None

    @property
    def exact(self) -> bool:
        if isinstance(self.least, torch.SymInt):  # of which nothing may be asked
            return self.least is self.most
        return self.least == self.most

    @property
    def value(self) -> int:
        """The number; where it is not known, the most, or the least if there is no most."""
        return self.least if self.most is None else self.most

    def __add__(self, other: Bounds) -> Bounds:
        known = self.most is not None and other.most is not None
        most = self.value + other.value if known else None
        return Bounds(self.least + other.least, most)

    @property
    def kind(self) -> str:
        """What ``value`` is, as words in front of it."""
        return "" if self.exact else "at least " if self.most is None else "at most "

    def __str__(self) -> str:
        return f"{self.kind}{self.value:,}"


_NONE = Bounds(0, 0)


@mutable
class LoopCost:
    """What one loop costs in a call. ``operations``: by kind. ``loaded`` and ``stored``: bytes of
    distinct elements, the least that memory has to move."""

    function: Function
    line: int
    operations: dict[str, Bounds]
    loaded: Bounds
    stored: Bounds
    launches: int = 1

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def flops(self) -> Bounds:
        return self.operations.get("FLOPs", _NONE)

    @property
    def bytes(self) -> Bounds:
        return self.loaded + self.stored

    def added(self, other: LoopCost) -> LoopCost:
        every = {**self.operations, **other.operations}
        both = {k: self.operations.get(k, _NONE) + other.operations.get(k, _NONE) for k in every}
        return LoopCost(self.function, self.line, both, self.loaded + other.loaded,
                        self.stored + other.stored, self.launches + other.launches)  # fmt: skip

    @functools.cached_property
    def formula(self) -> str:
        """The FLOPs as a polynomial of arguments and extents, none of which is negative; "" where
        they are not one, or not exact."""
        return _formula(self.function) if self.flops.exact and self.launches == 1 else ""

    def __str__(self) -> str:
        times = f", {self.launches} launches" if self.launches > 1 else ""
        formula = f" = {self.formula}" if self.formula else ""
        rows = [(kind, f"{self.operations[kind]}") for kind in FLOPS if kind in self.operations]
        rows += [("bytes loaded", f"{self.loaded}"), ("bytes stored", f"{self.stored}")]
        if self.flops.exact and self.bytes.exact and self.bytes.value:
            rows.append(("FLOPs per byte", f"{self.flops.value / self.bytes.value:.3g}"))
        wide = max(len(number) for _, number in rows)
        head = f"{self.name}, line {self.line}{times}: {self.flops} FLOPs{formula}"
        return "\n".join([head, *(f"    {kind:<18}{number:>{wide}}" for kind, number in rows)])


class Cost:
    """What the loops of a call cost, in the order in which they are launched. ``host``: FLOPs of
    PyTorch's own operators in the host part, as PyTorch counts them."""

    def __init__(self, loops: Sequence[LoopCost], host: int) -> None:
        self.loops, self.host = tuple(loops), host

    @property
    def operations(self) -> dict[str, Bounds]:
        """By kind, of all loops; "FLOPs" among them."""
        kinds = [
            kind for kind in (*FLOPS, "FLOPs") if any(kind in x.operations for x in self.loops)
        ]
        return {kind: sum((x.operations.get(kind, _NONE) for x in self.loops), _NONE)
                for kind in kinds}  # fmt: skip

    @property
    def total(self) -> Bounds:
        """FLOPs of all loops and of the host part."""
        return self.operations.get("FLOPs", _NONE) + Bounds(self.host, self.host)

    @property
    def moved(self) -> Bounds:
        """Bytes of distinct elements that each loop loads or stores."""
        return sum((x.bytes for x in self.loops), _NONE)

    @property
    def flops(self) -> int:
        """Where ``exact`` is False, the most, or the least if there is no most."""
        return self.total.value

    @property
    def loaded(self) -> int:
        return sum(x.loaded.value for x in self.loops)

    @property
    def stored(self) -> int:
        return sum(x.stored.value for x in self.loops)

    @property
    def bytes(self) -> int:
        """Of distinct elements that each loop loads or stores."""
        return self.loaded + self.stored

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def exact(self) -> bool:
        return all(x.bytes.exact and all(b.exact for b in x.operations.values())
                   for x in self.loops)  # fmt: skip

    def __str__(self) -> str:
        lines = [str(loop) for loop in self.loops]
        if self.host:
            lines.append(f"PyTorch's operators in the host part: {self.host:,} FLOPs")
        if len(lines) > 1:
            lines.append(f"in all: {self.total} FLOPs, {self.moved} bytes")
        return "\n".join(lines)

    __repr__ = __str__


# --- counting ------------------------------------------------------------------------------------
class Counted:
    """What the launches cost that were counted last: a training's steps are the same again and
    again, and loops under conditions take a second to count."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._found: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...], count: Callable[[], T]) -> T:
        """What was counted for the ``key``, a loop's text and what is told of a call, or now."""
        with self._lock:
            found = self._found.pop(key, None)
        if found is None:
            found = count()
        with self._lock:
            self._found[key] = found  # the last one used is the last one
            while len(self._found) > self.most:
                del self._found[next(iter(self._found))]
        return found


COUNTED = Counted(most=256)


class Counter:
    """Counts the loops of a call by name; of tensors that have memory, they are carried out, too.
    ``sized``: the bytes that they touch are counted."""

    def __init__(self, *, sized: bool = False) -> None:
        self.sized = sized
        self.unknown = False  # whether sizes of what is derived depend on data
        self.loops: dict[str, LoopCost] = {}
        self.symbolic: list[tuple[Operations, dict[Value | Dim, Any]]] = []  # whose sizes are
        self.aten = FlopCounterMode(display=False)

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Counts PyTorch's own operators, too, once where this is nested."""
        if self.aten.mode is not None:
            yield
            return
        with self.aten:
            yield

    def launchers(self, kernel: KernelLike) -> list[Callable[..., Any]]:
        return [functools.partial(with_functions, r, self.make(r)) for r in kernel.launchers]

    def make(self, launcher: Launcher) -> Make:
        def make(function: Function) -> Callable[[Sequence[Any]], None]:
            def carry_out(values: Sequence[Any]) -> None:
                found = self._cost(function, launcher.region.span.line, values)
                before = self.loops.get(found.name)
                self.loops[found.name] = before.added(found) if before else found
                hollow = {v.is_meta for v in values if isinstance(v, torch.Tensor)}
                if hollow == {False}:
                    CompiledFunction(function, launcher.options)(values)
                elif False in hollow:  # how often loops go on, which is for data to say
                    self.unknown = True

            return carry_out

        return make

    def _cost(self, function: Function, line: int, values: Sequence[Any]) -> LoopCost:
        sizes, shapes = given(function, values)
        if any(isinstance(n, torch.SymInt) for n in sizes.values()):
            return LoopCost(function, line, *self._counted(function, sizes, shapes, symbolic=True))
        told = *sizes.values(), *shapes.values(), self.sized, self.unknown
        found = COUNTED.get((print_function(function), told),
                            lambda: self._counted(function, sizes, shapes))  # fmt: skip
        return LoopCost(function, line, *found)

    def _counted(
        self, function: Function, sizes: dict[Value | Dim, Any],
        shapes: dict[Value, tuple[Any, ...]], *, symbolic: bool = False,
    ) -> tuple[dict[str, Bounds], Bounds, Bounds]:  # fmt: skip
        """Operations by kind, and the bytes that are loaded and stored."""
        known = None if symbolic else sizes
        try:
            found = operations(function, known)
        except UncountableError:
            try:
                found = ends(function, known)
            except UncountableError:
                found = Operations({}, None)
        if self.unknown:
            found.most = None
        if symbolic:
            self.symbolic.append((found, sizes))
            found = Operations({}, {})
        loaded = stored = _NONE
        if self.sized:
            for array, touched in elements(function, sizes, shapes).items():
                size = array.memref.element.bytes
                loaded += _bytes(touched.loaded * size, touched.exact)
                stored += _bytes(touched.stored * size, touched.exact)
        kinds = {**found.least, **(found.most or {"FLOPs": Count(Poly({}))})}
        bounds = {
            kind: Bounds(_number(found.least, kind, sizes),
                         None if found.most is None else _number(found.most, kind, sizes))
            for kind in kinds
        }  # fmt: skip
        return bounds, loaded, stored

    @property
    def flops(self) -> Bounds:
        """Of all loops, and of PyTorch's operators."""
        host = self.aten.get_total_flops()
        total = sum((x.flops for x in self.loops.values()), Bounds(host, host))
        for found, sizes in self.symbolic:
            least = total.least + _number(found.least, "FLOPs", sizes)
            most: int | None = least
            if found.most is not found.least or total.most is not total.least:
                known = found.most is not None and total.most is not None
                most = total.value + _number(found.most or {}, "FLOPs", sizes) if known else None
            total = Bounds(least, most)
        return total


def _bytes(number: int, exact: bool) -> Bounds:
    return Bounds(number if exact else 0, number)


def _number(counts: Counts, kind: str, sizes: dict[Value | Dim, Any]) -> int:
    found = counts.get(kind)
    return 0 if found is None else _evaluated(found.poly, sizes) // found.over


def _evaluated(poly: Poly, sizes: dict[Value | Dim, Any]) -> Any:
    """The value of ``poly``; sizes may be symbolic."""

    def value(a: Atom) -> Any:
        match a:
            case Floor(numerator, divisor):
                return _evaluated(numerator, sizes) // _evaluated(divisor, sizes)
            case Pick(kind, left, right):
                choose: Any = torch.sym_min if kind == "min" else torch.sym_max
                return choose(_evaluated(left, sizes), _evaluated(right, sizes))
            case Value() | Dim():
                return sizes[a]
            case _:
                raise UncountableError

    total: Any = 0
    for monomial, factor in poly.terms.items():
        for a in monomial:
            factor = factor * value(a)
        total = total + factor
    return total


_LONGEST = 120  # characters of a formula that a person reads
_STEPS = 5_000


def _formula(function: Function) -> str:
    # An extent is no less than 0, and that is all that is meant.
    symbols: dict[Value | Dim, Poly] = {a: atom(Dim(a, -1)) for a in function.args
                                        if not isinstance(a.type, MemRefType)}  # fmt: skip
    try:
        found = operations(function, symbols, _STEPS).least.get("FLOPs")
    except UncountableError:
        return ""
    if found is None:
        return ""

    def name(leaf: Value | Dim) -> str:
        assert isinstance(leaf, Dim)
        return leaf.memref.name + ("" if leaf.axis < 0 else f".shape[{leaf.axis}]")

    text = show(found.poly, name)
    text = text if found.over == 1 else f"({text}) / {found.over}"
    plain = all(isinstance(a, Dim | Floor) for a in found.poly.atoms())
    return text if plain and found.poly.terms and len(text) <= _LONGEST else ""


# --- calls ---------------------------------------------------------------------------------------
# Carries out a call of the kernel with these arguments, or more than that.
Run = Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], None]


def cost(
    kernel: KernelLike, args: Sequence[Any], kwargs: dict[str, Any], run: Run, *,
    derived: bool = False,
) -> Cost:  # fmt: skip
    """What the loops of a call cost, or those that are ``derived`` when ``run`` carries it out."""

    def counted(counter: Counter, change: Callable[[Any], Any]) -> Cost:
        before = 0

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal before
            out = kernel.carry_out(counter.launchers(kernel), args, kwargs)
            before = counter.aten.get_total_flops() if derived else 0
            return out

        with counter.watching():
            run(call, [change(v) for v in args], {n: change(v) for n, v in kwargs.items()})
        rows = [x for x in counter.loops.values() if ("order" in x.function.attrs) == derived]
        return Cost(rows, counter.aten.get_total_flops() - before)

    counter, given = Counter(sized=True), (*args, *kwargs.values())
    real = not any(isinstance(v, torch.Tensor) and v.is_meta for v in given)
    try:
        found = counted(counter, hollow)
        if not (counter.unknown and real):
            return found
    except Exception:
        if not real:
            raise
        # The host part looks at elements, or at tensors that are no arguments: the call itself says
        # what is wrong, if anything is.
    _checked(kernel, args, kwargs)
    return counted(Counter(sized=True), copied)


def _checked(kernel: KernelLike, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Carries the call out on copies as debug mode does: whoever asks what a call costs may not
    have made it yet. Random numbers are the same after it."""
    checked = [Launcher(r.region, r.source, replace(r.options, debug=True))
               for r in kernel.launchers]  # fmt: skip
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.no_grad(), torch.random.fork_rng(devices):
        named = {name: copied(value) for name, value in kwargs.items()}
        kernel.carry_out(checked, tuple(map(copied, args)), named)


def forward(call: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    with torch.no_grad():
        call(*args, **kwargs)


def copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def flops(
    count: Callable[[Counter, Sequence[Any]], object], passed: Sequence[Any], mutable: bool
) -> Bounds | Exception:
    """The FLOPs that ``count`` counts for an operator's arguments, or why they are not."""
    error: Exception | None = None
    counter = Counter()
    with _disable_current_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call itself has said it
        for execute in (False, True)[: 1 if mutable else 2]:  # what it has written is not there
            counter = Counter()
            try:
                count(counter, list(map(copied if execute else hollow, passed)))
            except Exception as found:
                error = error or found
                continue
            error = None
            if not counter.unknown:
                break
    return error or counter.flops  # of symbolic sizes, in the modes of the call
