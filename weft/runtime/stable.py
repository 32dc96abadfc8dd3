"""torch's stable C interface, by which machine code becomes the kernel of an operator."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.codegen import boxed, libraries
from weft.codegen.boxed_guards import ATTRIBUTE, ITEM, MISSING
from weft.frontend.scope import ABSENT, Guard
from weft.runtime import cuda, link
from weft.runtime.signature import COMPLEX, DTYPES

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportPrivateImportUsage=false
_DELETE = "torch_delete_stable_ivalue"
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})  # types of tensors that are nothing else
_LIBRARY = ("aoti_torch_library_init_impl", "aoti_torch_library_impl",
            "aoti_torch_delete_library_object")  # fmt: skip
# Keys that stand between autograd and a device: modes and subclasses, functions that are traced,
# the transforms of torch.func.
_BETWEEN = ("Python", "PythonTLSSnapshot", "Functionalize", "FuncTorchDynamicLayerBackMode",
            "FuncTorchGradWrapper")  # fmt: skip


@functools.cache
def missing() -> str:
    """Why no operator of this process can be machine code; "" where they can."""
    if sys.implementation.name != "cpython" or link.trampoline(0) is None:
        return f"no code for {sys.implementation.name} on {platform.machine()}"
    absent = [name for name in (*boxed.FUNCTIONS, *boxed.METHODS, *_LIBRARY)
              if not functions()[name]]  # fmt: skip
    if absent:
        return f"torch {torch.__version__} has no {absent[0]}"
    _, told = _facts()
    return f"torch {torch.__version__} gives another answer of {told}" if told else ""


@functools.cache
def functions() -> Mapping[str, int]:
    """The addresses of what the machine code calls, 0 where there is nothing."""
    libraries.load()
    names = (*boxed.FUNCTIONS, *boxed.METHODS, *_LIBRARY, *boxed.LISTS)
    found = {name: libraries.address_of(name) for name in names}
    # Older ones leave it to who is given the word, which is made by `new`.
    found[_DELETE] = found[_DELETE] or libraries.address_of("_ZdlPv")
    return found


def missing_for_lists() -> str:
    """Why no operator that takes lists can be machine code; "" where they can."""
    absent = [name for name in boxed.LISTS if not functions()[name]]
    return f"torch {torch.__version__} has no {absent[0]}" if absent else ""


@functools.cache
def devices() -> tuple[str, ...]:
    """The devices, by the names of their dispatch keys, for which operators can be machine code."""
    return ("CPU", "CUDA") if torch._C._has_cuda and all(device_functions().values()) else ("CPU",)


@functools.cache
def device_functions() -> Mapping[str, int]:
    """The addresses of what the machine code calls for CUDA devices, 0 where there is nothing."""
    found = dict.fromkeys(boxed.DEVICE, 0)
    with contextlib.suppress(cuda.CudaError, OSError):  # there is no driver, or torch is without
        torch_cuda = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        for name in found:
            place = cuda.library() if name.startswith("cu") else torch_cuda
            with contextlib.suppress(AttributeError):
                found[name] = ctypes.cast(place[name], ctypes.c_void_p).value or 0
    return found


@functools.cache
def keys() -> boxed.Keys:
    """torch's numbers of dispatch keys."""
    between = tuple(getattr(torch._C.DispatchKey, name).value for name in _BETWEEN)
    return boxed.Keys(between, torch._C.DispatchKey.ADInplaceOrView.value)


def number_of(dtype: torch.dtype) -> int:
    """torch's number of a dtype."""
    return _facts()[0][dtype]


@functools.cache
def _facts() -> tuple[dict[torch.dtype, int], str]:
    """torch's numbers of dtypes, and the first of its C++ functions that does not say what is known
    of an example."""
    found: list[Any] = []

    def ask() -> None:
        try:
            with torch.no_grad():
                found.extend([{dtype: _number(dtype) for dtype in (*DTYPES, *COMPLEX)}, _told()])
        except (AttributeError, RuntimeError) as error:  # another torch
            found[:] = [{}, f"{error}"]

    # Modes, which may watch this thread, are those of a thread.
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0], found[1]


def _number(dtype: torch.dtype) -> int:
    number = ctypes.c_int32()
    handle = Handle(torch.empty(0, dtype=dtype, device="cpu"))
    types = ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p
    call = ctypes.CFUNCTYPE(*types)(functions()["aoti_torch_get_dtype"])
    if call(handle.word, ctypes.addressof(number)) != 0:
        raise RuntimeError(f"torch has no number for {dtype}")
    return number.value


def _told() -> str:
    plain, wanted = torch.ones(2, device="cpu"), torch.ones(2, device="cpu", requires_grad=True)
    with torch.inference_mode():
        inference = torch.ones(2, device="cpu")
    examples: dict[str, tuple[Any, Any]] = {
        boxed.INFERENCE: (plain, inference), boxed.SPECIAL[2]: (plain, torch._neg_view(plain)),
        boxed.SPECIAL[3]: (plain, torch._efficientzerotensor(2, device="cpu")),
        boxed.SPECIAL[4]: (plain, torch.ones(2, dtype=torch.complex64).conj()),
        boxed.SPECIAL[1]: (plain, torch._to_functional_tensor(plain)),
    }  # fmt: skip
    for name, pair in examples.items():
        if [_say(name, v) for v in pair] != [False, True]:
            return name
    if [_say(boxed.REQUIRES_GRAD, v, inside=True) for v in (plain, wanted)] != [False, True]:
        return boxed.REQUIRES_GRAD
    before = plain._version
    _say(boxed.VERSION, plain)
    return "" if plain._version == before + 1 else boxed.VERSION


def _say(name: str, tensor: torch.Tensor, *, inside: bool = False) -> bool:
    """What a function says of a tensor. ``inside``: it takes what a handle's first word points to,
    the tensor itself."""
    handle = Handle(tensor)  # there while the function looks at it
    word = ctypes.c_void_p.from_address(handle.word).value if inside else handle.word
    return ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(functions()[name])(word)


class Handle:
    """A handle of a tensor, which this object owns: its address is ``word``."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.word = given(tensor)

    def __del__(self) -> None:
        taken(self.word)


def given(tensor: torch.Tensor) -> int:
    """A handle of a tensor, for who takes it to own."""
    (capsule,) = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([tensor])
    return _pointer()(capsule, None)


def taken(handle: int) -> torch.Tensor:
    """The tensor of a handle, which is no more."""
    # torch's function for one handle keeps it.
    capsule = _capsule()(handle, None, None)
    return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([capsule])[0]


def argument(word: int, kind: str) -> Any:
    """The argument of this schema type that a word of the stack is; what it holds is no more."""
    if kind.endswith("?"):
        if word == 0:
            return None
        inner = ctypes.c_uint64.from_address(word).value
        ctypes.CFUNCTYPE(None, ctypes.c_uint64)(functions()[_DELETE])(word)
        return argument(inner, kind[:-1])
    if kind.endswith("[]"):
        size, item = ctypes.c_uint64(), ctypes.c_uint64()
        _ask("torch_list_size", word, ctypes.addressof(size))
        found: list[Any] = []
        for k in range(size.value):
            _ask("torch_list_get_item", word, k, ctypes.addressof(item))
            found.append(argument(item.value, kind[:-2]))
        _ask("torch_delete_list", word)
        return found
    match kind:
        case "Tensor":
            return taken(word)
        case "ScalarType":
            return _dtypes()[word]
        case "Device":
            index = word & 0xFFFFFFFF
            return torch.device(_DEVICES[word >> 32], *([index] if index < 1 << 31 else []))
        case _:
            return _NUMBERS[kind].from_buffer_copy(word.to_bytes(8, "little")).value


_NUMBERS: Any = {"SymInt": ctypes.c_int64, "int": ctypes.c_int64, "float": ctypes.c_double,
                 "bool": ctypes.c_bool}  # fmt: skip
_DEVICES = {0: "cpu", 1: "cuda", 12: "xpu", 13: "mps", 14: "meta", 20: "privateuseone"}


def word_of(value: torch.dtype | torch.device) -> int:
    """The word of the stack that this argument is."""
    if isinstance(value, torch.dtype):
        return number_of(value)
    number = next(n for n, name in _DEVICES.items() if name == value.type)
    index: Any = value.index
    return number << 32 | (0xFFFFFFFF if index is None else index)


def listed(tensors: Sequence[torch.Tensor]) -> int:
    """A handle of a list of tensors, for who takes it to own."""
    made = ctypes.c_uint64()
    _ask("torch_new_list_reserve_size", len(tensors), ctypes.addressof(made))
    for tensor in tensors:
        _ask("torch_list_push_back", made.value, given(tensor))
    return made.value


def _ask(name: str, *words: int) -> None:
    call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * len(words))(functions()[name])
    if call(*words) != 0:
        raise RuntimeError(f"{name} fails")


@functools.cache
def _dtypes() -> dict[int, torch.dtype]:
    found = {8: torch.complex32}  # torch warns of tensors of such
    for value in vars(torch).values():
        if isinstance(value, torch.dtype) and not re.match(r"torch\.(q|complex32)", str(value)):
            with contextlib.suppress(RuntimeError):  # torch makes no tensors of it
                found[_number(value)] = value
    return found


@functools.cache
def _pointer() -> Any:
    get: Any = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return get


@functools.cache
def _capsule() -> Any:
    make: Any = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make


class Guards:
    """A table of guards, all by identity, for machine code."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = guards
        self.table = (ctypes.c_uint64 * (1 + 4 * len(guards)))(len(guards))
        self._objects: list[Any] = []
        self.refresh()

    @property
    def places(self) -> list[tuple[int, str, bool]]:
        return [guard.place for guard in self.guards]

    def refresh(self) -> None:
        """Expects from now on what is there now, which equals what was there."""
        objects: list[Any] = []
        for k, guard in enumerate(self.guards):
            absent = guard.value is ABSENT
            kind = MISSING if absent else ITEM if guard.item else ATTRIBUTE
            there = object() if absent else guard.read()
            found = [guard.owner, guard.name, there]
            objects += found
            self.table[1 + 4 * k : 5 + 4 * k] = [kind, *map(id, found)]
        self._objects = objects  # they are no others' while their addresses stand in the table


class Registered:
    """The kernel of the operator ``namespace::name`` at a dispatch key, until this object is gone:
    what ``record`` says, an array of words (see ``codegen/boxed.py``).

    torch calls kernels while others are registered, unguarded: this one is registered once, before
    the operator is called, and ``become`` changes what it is.
    """

    def __init__(self, namespace: str, name: str, key: str, record: Any) -> None:
        self._cell = ctypes.c_uint64(ctypes.addressof(record))
        self._kept = [record]  # threads may be in them
        self._code = link.trampoline(ctypes.addressof(self._cell))
        assert self._code is not None  # ``missing`` has told
        self._handle = ctypes.c_void_p()
        place = namespace.encode(), key.encode(), b"weft", 0
        self._call("init_impl", *place, ctypes.byref(self._handle))
        address = ctypes.c_void_p(self._code.addresses["trampoline"])
        self._call("impl", self._handle, name.encode(), address)

    def become(self, record: Any) -> None:
        """Is from now on what ``record`` says."""
        words = bytes(record)
        same = next((old for old in self._kept if bytes(old) == words), None)
        if same is None:
            self._kept.append(record)
        self._cell.value = ctypes.addressof(record if same is None else same)

    def __del__(self) -> None:
        if self._handle and not sys.is_finalizing():
            delete = functions()["aoti_torch_delete_library_object"]
            ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(delete)(self._handle)

    def _call(self, what: str, *operands: Any) -> None:
        address = functions()[f"aoti_torch_library_{what}"]
        types: dict[str, Sequence[Any]] = {
            "init_impl": (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32,
                          ctypes.c_void_p),
            "impl": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        }  # fmt: skip
        if ctypes.CFUNCTYPE(ctypes.c_int32, *types[what])(address)(*operands) != 0:
            raise RuntimeError(f"torch does not take machine code for an operator ({what})")
