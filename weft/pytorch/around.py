"""What a kernel reads around it, at a call and at its derivative.

An operator has its host part, and what its loops look up, carried out again for a derivative. What
is found there then (globals, cells, attributes, members of objects, tensors) has to be what the
call has found. ``Around.seen`` notes it, by the names in the text of the kernel and of the
functions that it reaches; ``Around.check`` refuses a derivative where something has changed.
"""

from __future__ import annotations

import array
import ast
import contextvars
import enum
import functools
import itertools
import os
import random
import sys
import threading
import time
import types
import weakref
from collections import UserDict, UserList, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from weft.errors import GradientError
from weft.frontend.names import KNOWN_MODULES, dotted
from weft.frontend.specs import constant_key
from weft.lang.dtypes import DType
from weft.lang.elements import Elementwise
from weft.pytorch.ambient import SOURCES
from weft.pytorch.reads import Reads, keys_of, reads_of, shaped, text_of
from weft.runtime.launch import KernelLike
from weft.source import subtree
from weft.values import mutable

# pyright: reportPrivateUsage=false

_LEAVES = frozenset({int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device,
                     DType, range, slice, torch.Size})  # fmt: skip
_COLLECTIONS = (list, tuple, set, frozenset, deque)
_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType)
# Modules whose functions give another value at each call.
_ONCE = frozenset({"time", "secrets", "uuid"})
_OTHERS = frozenset({"datetime", "os"})  # some of whose do
_DRAWING = _ONCE | _OTHERS | {"numpy", "random", "numpy.random"}
_CLOCKS = frozenset({"now", "today", "utcnow"})  # methods of classes of ``datetime``
# What differs between an operator and its derivative, as it is called.
_ASKS = frozenset({"is_grad_enabled", "requires_grad", "is_leaf", "grad_fn"})
_ALWAYS = "is_grad_enabled"  # the answer depends on no argument
_ALL = "__dict__"  # all that objects hold is read
_MOST_NOTED = 16
_LARGEST = 1 << 16  # bytes of an array of NumPy that is compared
_NOTHING: dict[str, Any] = {}
_Value = tuple[Any, int | None]  # with how often it was written to, if it is a tensor


@mutable
class Seen:
    """What a call has found: each value by its name. ``sources``: generators of random numbers, by
    what draws from them. ``once``: the name of what gives another value the next time."""

    entries: dict[str, _Value]
    sources: dict[str, Any]
    once: str = ""


class _Trace(NamedTuple):
    """What is left of a value to compare it with others, without keeping it: a hash, the text of a
    plain one, the number of a tensor (or -1)."""

    key: int
    text: str
    tensor: int


class Around:
    """What is around the operator of ``kernel`` in which ``constants`` are fixed, and that was made
    for the values ``decided`` of names."""

    def __init__(
        self, kernel: KernelLike, constants: Mapping[str, Any], decided: Mapping[str, Any]
    ) -> None:
        self.decided = decided
        self.function, self.span, self.constants = kernel.function, kernel.span, constants
        self.name = kernel.__name__
        statements = kernel.source.tree.body
        self.reads = reads_of(self.function.__code__).within(text_of(statements))
        self.keys = keys_of(statements)
        self.shaped = shaped(self.keys)
        calls = (n for s in statements for n in subtree(s) if isinstance(n, ast.Call))
        self.called = frozenset(dotted(n.func) for n in calls)
        self.package = (self.function.__module__ or "").partition(".")[0]
        self.attributes = {*self.reads.attributes, *(_ASKS & {*self.reads.names})}
        self.wanted: list[str] = []  # the same, in order
        self.noted = dict[int, dict[str, _Trace]]()  # what was there lately
        self.lock = threading.Lock()
        self.seen()  # adds the attributes that functions read

    def unsteady(self) -> tuple[str, str]:
        """What is another in a derivative than in the call, and what that does ("draws", "asks");
        "asks_always" where it is another in a graph, too."""
        seen = self.seen()
        if seen.once or seen.sources:
            return seen.once or next(iter(seen.sources)), "draws"
        asked = _ASKS & self.attributes
        always = _ALWAYS in asked and torch.is_grad_enabled()
        return (_ALWAYS, "asks_always") if always else (min(asked, default=""), "asks")

    def seen(self) -> Seen:
        """What is there now."""
        while True:
            known = len(self.attributes)
            if len(self.wanted) != known:
                self.wanted = sorted(self.attributes)
            walk = _Walk(self)
            walk.names("", self.function, self.reads)
            for name, value in self.constants.items():
                walk.visit(name, value)
            if len(self.attributes) == known:
                return walk.seen

    def may_change(self) -> bool:
        """Whether there is something that is no function, and that a graph of the operator does not
        have as a constant."""
        fixed = {*self.decided, *self.constants}
        return any(
            not isinstance(value, types.FunctionType | type)
            and not (name in fixed and (type(value) in _LEAVES or isinstance(value, enum.Enum)))
            for name, (value, _) in self.seen().entries.items()
        )

    def differs(self) -> bool:
        """Whether a call may find another value than the one before, whatever its arguments are."""
        seen = self.seen()
        return bool(seen.once or seen.sources) or self.may_change()

    def note(self) -> int:
        """A number that tells what is there now."""
        return self._noted()[0]

    def _noted(self) -> tuple[int, dict[str, _Trace]]:
        traces = {name: _trace(value) for name, value in self.seen().entries.items()}
        number = hash((*traces.items(),))
        with self.lock:
            self.noted.pop(number, None)
            self.noted[number] = traces
            if len(self.noted) > _MOST_NOTED:
                del self.noted[next(iter(self.noted))]
        return number, traces

    def compare(self, number: int) -> None:
        """Raises ``GradientError`` where what is there now is not what had that number."""
        before, (now, after) = self.noted.get(number), self._noted()
        if now == number:
            return
        for name in [*(before or ()), *after]:
            was, is_ = ((traces or {}).get(name, _NO_TRACE) for traces in (before, after))
            if was != is_ and before is not None:
                raise self._changed(name, was, is_)
        raise GradientError(
            f"what `{self.name}` reads around it is not what it was at the call, and the "
            "derivative would be that of another call", self.span,
            help="pass what changes as an argument",
        )  # fmt: skip

    def check(self, before: Seen) -> None:
        """Raises ``GradientError`` where something is not what it was ``before``."""
        self.refuse(before)
        now = self.seen()
        for name in [*before.entries, *now.entries]:
            was, is_ = (seen.entries.get(name, _ABSENT) for seen in (before, now))
            if not _same(was, is_):
                raise self._changed(name, _trace(was), _trace(is_))

    def _changed(self, name: str, was: _Trace, now: _Trace) -> GradientError:
        return GradientError(
            f"{_difference(name, was, now)}, and the derivative would be that of another call",
            self.span, help=f"pass `{name}` as an argument of `{self.name}`, or leave it as it is "
            "until the derivative is computed",
        )  # fmt: skip

    def refuse(self, seen: Seen | None = None) -> None:
        """Raises ``GradientError`` where the host part is another one when it is carried out
        again."""
        seen = seen or self.seen()
        if seen.once:
            raise GradientError(
                f"`{seen.once}` gives another value each time, and the derivative of the operator "
                "would be that of another call", self.span,
                help="call it before the kernel, and pass what it gives as an argument",
            )  # fmt: skip
        if asked := _ASKS & self.attributes:
            raise asks_error(min(asked), self)
        for name, value in self.decided.items():  # of the graph that has the call
            now = seen.entries.get(name)
            if now is not None and type(now[0]) is type(value) and now[0] != value:
                raise self._changed(name, _trace((value, None)), _trace(now))


def check_asks(family: Any, passed: Sequence[Any]) -> None:
    """Raises ``GradientError`` where a call of an operator of ``family`` under transforms would
    find another answer than that of the caller."""
    if not torch._C._are_functorch_transforms_active() or not torch.is_grad_enabled():
        return
    around: Around = family.around
    asked = _ASKS & around.attributes
    if _ALWAYS in asked or (asked and any(map(_requires_grad, passed))):
        raise asks_error(min(asked), around)


def _requires_grad(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_requires_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


def asks_error(asked: str, around: Around) -> GradientError:
    """Of a host part that asks whether gradients are recorded."""
    return GradientError(
        f"the host part asks for `{asked}`, which an operator and its derivative do not have as "
        "the caller has it", around.span,
        help=f"ask before the call, and pass the answer as an argument of `{around.name}`",
    )  # fmt: skip


class _Walk:
    """Goes through what a kernel reaches, once."""

    def __init__(self, around: Around) -> None:
        self.attributes, self.keys, self.shaped = around.attributes, around.keys, around.shaped
        self.called, self.package = around.called, around.package
        self.wanted = around.wanted
        self.seen = Seen({}, {})
        self.done = set[int]()

    def names(self, label: str, function: Any, reads: Reads) -> None:
        """What ``function`` finds in its cells and globals."""
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if name in reads.cells:
                try:
                    self.visit(f"{label}{name}", cell.cell_contents)
                except ValueError:  # not assigned yet
                    continue
        scope = function.__globals__
        for name in reads.names:
            if name in scope:
                self.visit(f"{label}{name}", scope[name])
        for name in reads.modules:
            if name in sys.modules:
                self.visit(f"{label}{name}", sys.modules[name])

    def visit(self, label: str, value: Any) -> None:
        kind = type(value)
        entries = self.seen.entries
        if kind in _LEAVES or isinstance(value, np.generic | enum.Enum):
            entries[label] = value, None
        elif isinstance(value, torch.Tensor):
            if label in self.shaped:  # whatever its elements are
                entries[label] = (tuple(value.size()), value.dtype), None
            else:
                entries[label] = value, None if value.is_inference() else value._version
        elif isinstance(value, types.ModuleType):
            self._module(label, value)
        elif isinstance(value, types.MethodType):
            self.visit(label, value.__func__)
            self.visit(label if isinstance(value.__self__, type) else f"{label}.__self__",
                       value.__self__)  # fmt: skip
        elif isinstance(value, _BUILTIN):
            self._builtin(label, value)
        elif id(value) in self.done:
            entries[label] = value, None
        else:
            self.done.add(id(value))
            self._deeply(label, value)

    def _deeply(self, label: str, value: Any) -> None:
        """What may hold others."""
        entries = self.seen.entries
        if isinstance(value, random.SystemRandom):
            self._note_once(label)
        elif isinstance(value, SOURCES):
            self.seen.sources[label.removesuffix(".__self__")] = value
        elif isinstance(value, Elementwise):
            entries[label] = constant_key(value), None
        elif isinstance(value, np.ndarray):
            entries[label] = (value.tobytes() if value.nbytes <= _LARGEST else value), None
        elif isinstance(value, dict):
            self._dict(label, value)
        elif isinstance(value, _COLLECTIONS):
            self._items(label, value)
        elif isinstance(value, types.FunctionType):
            self._function(label, value)
        elif hasattr(type(value), "launchers"):  # a kernel
            self._function(label, value.function)
        elif hasattr(type(value), "__next__"):
            self._note_once(label)
        elif isinstance(value, type):
            entries[label] = value, None
            if value.__module__ == "datetime" and (clocks := _CLOCKS & self.attributes):
                self._note_once(f"{label}.{min(clocks)}")
            if not _is_library(value.__module__):
                self._of_class(label, value, value)
        else:
            self._object(label, value)

    def _function(self, label: str, function: Any) -> None:
        self.seen.entries[label] = function, None
        if function.__module__ in _ONCE:
            self._note_once(label)
        if function is os.getenv:
            self.visit("os.environ", os.environ)
        if self._is_foreign(function):
            return
        reads = reads_of(function.__code__)
        self.attributes |= reads.attributes
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if type(value) not in _LEAVES:
                self.visit(f"{label}()", value)
        self.names("" if not label else f"{label}: ", function, reads)
        if (inner := getattr(function, "__wrapped__", None)) is not None:
            self.visit(f"{label}.__wrapped__", inner)

    def _is_foreign(self, function: Any) -> bool:
        """Whether it is of an installed package other than the kernel's own."""
        module = function.__module__ or ""
        return _is_library(module) or (
            "site-packages" in function.__code__.co_filename
            and module.partition(".")[0] != self.package
        )

    def _builtin(self, label: str, value: Any) -> None:
        """A function or method of C: what it is a method of."""
        owner = value.__self__
        if isinstance(owner, types.ModuleType):
            if (owner.__name__ in _ONCE and value is not time.sleep) or value is os.urandom:
                self._note_once(label)
        elif owner is not None and not isinstance(owner, type):
            self.visit(f"{label}.__self__", owner)

    def _note_once(self, label: str) -> None:
        self.seen.once = self.seen.once or label.removesuffix(".__self__")

    def _module(self, label: str, module: types.ModuleType) -> None:
        """Members that the text names: of libraries those alone that draw random numbers."""
        name, members = module.__name__, vars(module)
        if _is_library(name) and name not in _DRAWING:
            return
        if name in _ONCE or name in _OTHERS:
            for n in self.wanted:
                if callable(found := members.get(n)) or isinstance(found, Mapping):
                    self.visit(f"{label}.{n}", found)
        elif name == "numpy":
            if "random" in self.attributes:
                self.visit(f"{label}.random", np.random)
        elif name in ("random", "numpy.random"):
            for n in self.wanted:
                if isinstance(getattr(members.get(n), "__self__", None), SOURCES):
                    self.visit(f"{label}.{n}", members[n])
        else:
            for n in self.wanted:
                if n in members:
                    self.visit(f"{label}.{n}", members[n])

    def _dict(self, label: str, value: Mapping[Any, Any]) -> None:
        keys = self.keys.get(label)
        for key in value if keys is None else [k for k in keys if k in value]:
            self.visit(f"{label}[{key!r}]", value[key])
        if keys is None:
            self.seen.entries[label] = tuple(map(constant_key, value)), None

    def _items(self, label: str, value: Any) -> None:
        entries = self.seen.entries
        if {*map(type, value)} <= _LEAVES:
            # A list is copied, which may change and stay the same object.
            entries[label] = (tuple(value) if isinstance(value, list | deque) else value), None
        else:
            entries[label] = (type(value), len(value)), None
            for k, item in enumerate(value):
                self.visit(f"{label}[{k}]", item)
        if hasattr(value, "_fields"):
            self._of_class(label, type(value), value)

    def _object(self, label: str, value: Any) -> None:
        self.seen.entries[label] = value, None
        own = getattr(value, "__dict__", _NOTHING)
        held: list[Mapping[str, Any]] = [own]
        if isinstance(value, torch.nn.Module):
            held += [own[n] for n in ("_parameters", "_buffers", "_modules") if n in own]
            forward = getattr(type(value), "forward", None)
            if (
                self._is_called(label)
                and hasattr(forward, "__code__")
                and self._is_foreign(forward)
            ):
                for name, parameter in value.named_parameters():
                    self.visit(f"{label}.{name}", parameter)
        for members in held:
            for name in own if _ALL in self.attributes else self.wanted:
                if name in members:
                    self.visit(f"{label}.{name}", members[name])
        if _is_library(type(value).__module__) or isinstance(value, UserDict | UserList):
            self._holder(label, value)
        if not _is_library(type(value).__module__):
            self._of_class(label, type(value), value)

    def _holder(self, label: str, value: Any) -> None:
        """What an object of a library holds, which no text of a user's shows."""
        if isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self.visit(f"{label}.{name}", getattr(value, name))
        elif isinstance(value, contextvars.ContextVar):
            self.visit(f"{label}.get()", value.get(None))
        elif isinstance(value, weakref.ref):
            self.visit(f"{label}()", value())
        elif isinstance(value, UserDict | UserList):
            self.visit(label, value.data)
        elif isinstance(value, Mapping):
            self._dict(label, value)
        elif isinstance(value, array.array):
            self.visit(label, np.asarray(value))
        elif not isinstance(value, torch.nn.Module):
            self._by_methods(label, value)

    def _by_methods(self, label: str, value: Any) -> None:
        """The numbers that the methods of an object of a library may give, and its properties."""
        kind = type(value)
        named = [getattr(kind, n) for n in self.wanted if hasattr(kind, n)]
        if any(isinstance(found, types.FunctionType) for found in named):
            for name, member in getattr(value, "__dict__", _NOTHING).items():
                items = member if isinstance(member, list | tuple) else [member]
                if {*map(type, items)} <= _LEAVES:
                    self.visit(f"{label}.{name}", member)
        if kind.__module__.partition(".")[0] in sys.stdlib_module_names:
            for name in self.wanted:
                if isinstance(getattr(kind, name, None), types.GetSetDescriptorType | property):
                    found = getattr(value, name)
                    if type(found) in _LEAVES:
                        self.visit(f"{label}.{name}", found)

    def _of_class(self, label: str, kind: type, value: Any) -> None:
        """What a class gives those of its names that the text has."""
        own = getattr(value, "__dict__", _NOTHING) if value is not kind else _NOTHING
        for name in (*self.wanted, *(("__call__", "forward") if self._is_called(label) else ())):
            if name in own:
                continue
            for base in kind.__mro__:
                if name in base.__dict__ and not _is_library(base.__module__):
                    found = base.__dict__[name]
                    if not isinstance(found, enum.Enum) or type(found) is not base:  # a constant
                        self._member(f"{label}.{name}", found, value)
                    break

    def _is_called(self, label: str) -> bool:
        """Whether an object may be: of what is held by others the text does not say."""
        return label in self.called or not label.isidentifier()

    def _member(self, label: str, found: Any, value: Any) -> None:
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, staticmethod | classmethod):
            found = found.__func__
        elif isinstance(found, types.MemberDescriptorType):
            if isinstance(value, type) or not hasattr(value, found.__name__):
                return
            found = found.__get__(value)
        elif isinstance(getter := getattr(type(found), "__get__", None), types.FunctionType) and (
            not isinstance(found, types.FunctionType)
        ):
            self.visit(f"{label}.__get__", getter)
        self.visit(label, found)


_ABSENT: _Value = object(), None
_count = itertools.count()
_numbers = WeakIdKeyDictionary()  # of tensors: what is at the address of one may be another later


def number_of(tensor: torch.Tensor) -> int:
    """A number that no other tensor of this process has or had."""
    if tensor not in _numbers:
        _numbers[tensor] = next(_count)
    return _numbers[tensor]


@functools.cache
def _is_library(module: str | None) -> bool:
    """Whether it is a module of Python's, torch's, NumPy's or weft's: no text of a user's."""
    root = (module or "").partition(".")[0]
    return root in KNOWN_MODULES or (root in sys.stdlib_module_names and root != "__main__")


def _same(one: _Value, other: _Value) -> bool:
    (a, version), (b, later) = one, other
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b and version == later
    return a is b or constant_key(a) == constant_key(b)


def _trace(value: _Value) -> _Trace:
    found, version = value
    if isinstance(found, torch.Tensor):
        number = number_of(found)
        return _Trace(hash((number, version)), "", number)
    text = repr(found) if type(found) in _LEAVES else ""
    return _Trace(hash(constant_key(found)), text, -1)


_NO_TRACE = _trace(_ABSENT)


def _difference(name: str, was: _Trace, now: _Trace) -> str:
    """What has become of ``name``, in words."""
    if was.tensor == now.tensor >= 0:
        return f"`{name}` was written to after the call"
    if was.text and now.text and len(was.text) + len(now.text) <= 60:
        return f"`{name}` was {was.text} at the call and is {now.text} now"
    return f"`{name}` is not what it was at the call"
