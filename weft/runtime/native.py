"""A launch as a builtin function: machine code of this processor that speaks CPython's C API.

For a plan, ``builtin`` makes a function that does what the plan's calls have in common without any
Python: it looks at the arguments, packs the argument block, and calls the compiled loop or the CUDA
driver. It acts on calls that are as the plan says and have nothing special to them; everything else
goes, untouched, to the function that it was given for that. The code is in ``routine.py``.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import field
from types import ModuleType
from typing import Any, NamedTuple

import torch

from weft.runtime import cpu, record
from weft.runtime.cache import DiskCache
from weft.runtime.record import (
    GRAD,
    GUARDED,
    HISTORY,
    LAUNCH,
    OBJECTS,
    PYTHON,
    SEVERAL,
    TEST,
    TRANSFORMED,
    LaunchConfig,
)
from weft.values import mutable

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

MOST_BYTES = 4096  # of an argument block, which is on the stack


class Direct(NamedTuple):
    """Compiled code that is called without Python: how (``HOLDING``, ``RELEASING``: the code at
    ``address`` with the interpreter's lock or without; ``DRIVER``: a launch on ``device``, whose
    record's address stands at ``address`` once it is known). ``keep`` is what must stay alive."""

    way: int
    address: int
    keep: object
    device: int = 0
    several: bool = False  # there are more devices than this one


class History(NamedTuple):
    """What tells autograd of a launch: ``record``, given the arguments and results; or ``apply``,
    given the ``wanted`` of these and, on the stack, what is made (``outs``), saved, and the numbers
    or None. Positions are those of the arguments and, behind these, results."""

    record: Callable[..., object]
    apply: Callable[..., object]
    wanted: Sequence[int]
    saved: Sequence[int]
    numbers: Sequence[int]
    outs: Sequence[int]

    def moved(self, place: Callable[[int], int]) -> History:
        """The same where values stand in other places."""
        return History(
            self.record, self.apply,
            *([*map(place, k)] for k in (self.wanted, self.saved, self.numbers, self.outs)),
        )  # fmt: skip


class Spread(NamedTuple):
    """A tensor in the place ``slot`` of the block may be one for all of its ``elements``, of so
    many ``bytes``: where ``check`` holds and not that of the plan, the code reads a
    copy that is written out on the stack. ``cell``: of a word that says whether that one is asked
    before the plan's, as it held last time."""

    check: Callable[..., bool]
    slot: int
    elements: int
    bytes: int
    cell: ctypes.c_int64


class Step(NamedTuple):
    """The words of a step; the argument is None where it looks at none."""

    kind: int
    argument: int | None
    slot: int
    type: int
    low: int
    high: int
    keys: int


@mutable
class FastCall:
    """What the calls of one plan are like, and what they do. ``history``: where a gradient is
    asked for, what tells autograd of a launch; without it such calls are left to others.
    ``slots``: where the results are in the block, if not behind the tensors."""

    arguments: int
    check: Callable[..., bool] | None  # of the tensors
    call: Callable[[bytes], object]
    direct: Direct | None  # instead of ``call``, while that is possible
    extents: Sequence[int]
    disjoint: Sequence[tuple[int, int]]
    mutated: Sequence[int]
    makers: Sequence[Callable[[], torch.Tensor]]
    block: bytes
    grad: bool
    guards: tuple[Any, ...]
    holds: Callable[[Any], bool]
    history: History | None = None
    slots: Sequence[int] | None = None
    spread: Spread | None = None
    plan: object = None
    whole: FastCall | None = None  # the same in place of the kernel
    numbers: dict[int, int] = field(default_factory=dict)  # of the tensors to check, by ``id``
    steps: list[Step] = field(default_factory=list)
    items: list[tuple[int, int, int]] = field(default_factory=list)  # of dicts
    objects: list[object] = field(default_factory=list)

    def step(
        self, kind: int, argument: int | None, *, slot: int = 0, type: type | None = None,
        range: tuple[int, int] = (0, 0), objects: Sequence[object] = (), keys: int = 0,
    ) -> None:  # fmt: skip
        """Adds a step (see ``record.py``). ``argument``: what it looks at, None for what looks at
        none; there has to be one, which is read before kinds are told apart."""
        low, high = range
        from weft.runtime.tensors import answers  # where a builtin is made

        if kind == record.ASKED and (address := answers().get(objects[0])):
            kind, objects, low, high = record.ANSWERED, (), address, int(objects[1] is True)
        if objects:
            low = self.keep(*objects)
        self.steps.append(Step(kind, argument, slot, id(type) if type else 0, low, high, keys))

    def tensor(self, argument: int, slot: int, value: torch.Tensor) -> None:
        """Adds a step: a tensor as ``value`` is, which is the same as one before where that is."""
        count = len(self.numbers)
        number = self.numbers.setdefault(id(value), count)
        again = number < count
        kind, keys = type(value), torch._C._dispatch_keys(value).raw_repr()
        self.step(
            record.TENSOR, argument, slot=slot, type=kind, range=(number, again), keys=keys
        )  # fmt: skip

    @property
    def pattern(self) -> tuple[int, ...]:
        """Which arguments are the same tensor: the numbers of theirs among those to check."""
        return tuple(step.low for step in self.steps if step.kind == record.TENSOR)

    def serves(self, other: FastCall) -> bool:
        """Whether this serves calls of the plan of ``other``, with the same tensors twice."""
        return self.plan is other.plan and self.pattern == other.pattern

    @property
    def checked(self) -> int:
        """How many tensors are given to ``check``."""
        return len({*self.pattern})

    def keep(self, *objects: object) -> int:
        """Where the first of these is among all objects."""
        self.objects += objects
        return len(OBJECTS) + len(self.objects) - len(objects)

    def guard(self, owner: object, name: str, value: object, item: bool, absent: bool) -> None:
        """Adds a step: the attribute (the ``item`` of a dict) is still this object, or ``absent``
        still."""
        if type(owner) is ModuleType and not item and not absent and name in vars(owner):
            owner, item = vars(owner), True  # which is looked up in a fifth of the time
        if item or absent:
            self.keep(owner, name, value)
            self.items.append((id(owner), id(name), 0 if absent else id(value)))
        else:
            self.step(record.ATTRIBUTE, None, objects=[owner, name, value])

    def packed(self) -> tuple[object, ...]:
        """The objects of the builtin, without the fallback."""
        from weft.runtime.tensors import answers, layout  # where a builtin is made

        direct = self.direct or Direct(PYTHON, 0, None)
        flags = GRAD * self.grad | GUARDED * bool(self.guards) | SEVERAL * direct.several
        flags |= HISTORY * (self.history is not None)
        # Within a transform the dispatch keys are others, which ``check`` sees.
        flags |= TRANSFORMED * (not self.checked or _transforms())
        tensors, results = len(self.extents), len(self.makers)
        slots = range(tensors, tensors + results) if self.slots is None else self.slots
        told = () if self.history is None else self.history[2:]
        lists = told or ((),) * len(record.TOLD)
        spread = self.spread and (*self.spread[1:-1], ctypes.addressof(self.spread.cell))
        head = (
            self.arguments, len(self.steps), tensors, len(self.disjoint), results,
            len(self.mutated), *map(len, lists), len(self.block), flags, direct.way,
            direct.address, id(True), id(None), id(Exception), export(), self.checked,
            len(OBJECTS) + len(self.objects), len(self.items), len(spread or ()), _pending(),
            id(torch.Tensor), *layout(), answers().get(torch.is_grad_enabled, 0),
        )  # fmt: skip
        words = [*head, *(w or 0 for step in self.steps for w in step), *self.extents]
        words += [*(k for pair in self.disjoint for k in pair), *self.mutated, *slots]
        words += itertools.chain(*lists, *self.items, spread or ())
        packed = b"".join(_word(w & _ALL) for w in words) + self.block
        return (
            packed, None, self.check, torch.Tensor.data_ptr, torch._C._increment_version,
            torch.is_grad_enabled, self.holds, self.guards, self.call, _stream, direct.device,
            _device, sys.intern("is_nested"), self.history and self.history.apply, _transforms,
            self.spread and self.spread.check,
            *self.objects, *itertools.chain(*map(_called, self.makers)), direct.keep,
            self.spread,
        )  # fmt: skip


def _called(maker: Callable[[], torch.Tensor]) -> tuple[Callable[..., torch.Tensor], Any]:
    """What a maker calls, and the tuple of what it passes."""
    if isinstance(maker, functools.partial) and not maker.keywords:
        return maker.func, maker.args
    return maker, ()


_ALL = (1 << 64) - 1
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_device = getattr(torch._C, "_cuda_getDevice", None)
_transforms = torch._C._are_functorch_transforms_active


def launch_record(
    launch: int, function: int, config: LaunchConfig, size: int, ending: bytes,
    tests: Sequence[tuple[int, int, int]],
) -> bytes:  # fmt: skip
    """A call of the driver (``launch``: the address of cuLaunchKernelEx) for ``function`` as
    ``config`` says, with the first ``size`` bytes of the argument block and ``ending`` behind them
    (whole words), where each of ``tests`` holds: a place in the block, a mask, and what the word
    there has to be under the mask."""
    head = LAUNCH.pack(launch, function, size, len(ending), len(tests))
    return head + bytes(config) + ending + b"".join(TEST.pack(*test) for test in tests)


def builtin(
    packed: tuple[object, ...], fallback: Callable[..., Any], cache: DiskCache | None
) -> Callable[..., Any]:
    """The function for ``packed`` (of ``FastCall``), which passes other calls on to ``fallback``.
    The machine code is kept in ``cache``."""
    assert OBJECTS[1] == "fallback"
    return _new()(_definitions(cache)[0], (packed[0], fallback, *packed[2:]), None)


def forward(materialize: bool, cache: DiskCache | None) -> Callable[..., Any]:
    """The ``forward`` of an ``autograd.Function`` whose ``apply`` is that of a ``History``.
    ``materialize``: whether gradients that are None are handed over as zeros."""
    own = *record.FORWARD[:3], None if materialize else False, _word(_pending()), None
    return _new()(_definitions(cache)[1], own, None)


def applied(cache: DiskCache | None) -> Callable[..., Any]:
    """A function of the ``apply`` of a ``History``, of what is made, what is saved, the numbers or
    None, and tensors: ``apply`` of these, whose ``forward`` is given the rest."""
    return _new()(_definitions(cache)[3], _word(_pending()), None)


@functools.cache
def _cell() -> ctypes.c_uint64:
    return ctypes.c_uint64()


def _pending() -> int:
    """The address of the word where what was handed to a ``forward`` begins."""
    return ctypes.addressof(_cell())


def _word(word: int) -> bytes:
    return word.to_bytes(8, "little")


def backward(
    step: Callable[..., Any], sources: Sequence[int], counts: tuple[int, int],
    fallback: Callable[..., Any], cache: DiskCache | None,
) -> Callable[..., Any]:  # fmt: skip
    """The ``apply`` of a node that ``forward`` told of a launch: ``step`` with arguments from
    ``sources``, which number the gradients (as many as the first of ``counts``), the tensors saved
    (the second), and the numbers. Where it gives NotImplemented, or nothing is saved any more,
    ``fallback``, given the node, the gradients and a tuple of what is saved, or None."""
    head = *counts, any(k >= sum(counts) for k in sources), len(sources)
    words = b"".join(map(_word, (*head, *sources)))
    named = *record.BACKWARD[1:3], step, fallback, NotImplemented, RuntimeError, None
    return _bound()(_new()(_definitions(cache)[2], (words, *named), None))


class _Definition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


_FASTCALL, _KEYWORDS = 0x80, 0x02
_lock = threading.Lock()
_kept: list[Any] = []  # the definitions, which live as long as the process


def _definitions(cache: DiskCache | None) -> Sequence[int]:
    """The addresses of the definitions that all builtins share: of launches, and of the functions
    that autograd calls."""
    if not _kept:
        with _lock:
            if not _kept:
                code = cpu.load_shared("launches", _text, cache)
                names = b"launch", b"forward", b"backward", b"apply"
                flags = _FASTCALL | _KEYWORDS
                made = [_Definition(name, code.addresses[symbol], flags, None)
                        for name, symbol in zip(names, record.SYMBOLS, strict=True)]  # fmt: skip
                _kept.append(([*map(ctypes.addressof, made)], made, code))
    return _kept[0][0]


def _text() -> tuple[str, Sequence[str]]:
    from weft.runtime import recorded, routine  # where the cache has no code

    return routine.text(recorded.PARTS), record.SYMBOLS


@functools.cache
def export() -> int:
    """The address of torch's C function that describes a tensor, which takes a tenth of the time
    of asking ``is_nested`` and ``data_ptr``; 0 where there is none, or none that is known."""
    capsule = vars(torch.Tensor).get("__dlpack_c_exchange_api__")
    address: Any = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    if capsule is None:
        return 0
    api = record.Exchange.from_address(address(capsule, b"dlpack_exchange_api"))
    if api.major != 1 or not api.view:
        return 0
    type_ = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(record.View))
    tensor, view = torch.empty(3, device="cpu")[1:], record.View()
    said = type_(api.view)(tensor, view)
    return api.view if said == 0 and view.data == tensor.data_ptr() and not view.offset else 0


@functools.cache
def _new() -> Any:
    make: Any = ctypes.pythonapi["PyCFunction_NewEx"]
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make


@functools.cache
def _bound() -> Any:
    make: Any = ctypes.pythonapi["PyInstanceMethod_New"]  # of a class: it is given the object
    make.restype, make.argtypes = ctypes.py_object, (ctypes.py_object,)
    return make


@functools.cache
def available() -> bool:
    """Whether this interpreter is one whose C API the machine code speaks."""
    return (
        sys.implementation.name == "cpython"
        and "free-threading" not in sys.version
        and (sys.byteorder, ctypes.sizeof(ctypes.c_void_p)) == ("little", 8)
        and all(hasattr(ctypes.pythonapi, name) for name in record.FUNCTIONS)
    )
