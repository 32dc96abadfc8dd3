"""A stand-in for torch's MPS device, where there is no Mac.

Tensors are torch's own, of device "mps". Their storages have for an address that of an object (on a
Mac an ``id<MTLBuffer>``), from which nobody may read elements; the memory is elsewhere. Torch's
operations are carried out by the CPU's kernels on it. ``torch.mps.compile_shader`` is torch's, down
to what it calls on a Mac: in place of that, the text is compiled as C++ (``metal.py``), and a call
checks what torch and Metal check. New memory is full of 0xAB.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.shader import metal

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

_METAL, _UINT = 8, 1  # of DLPack
_MPS = 13  # of torch's device types
_POISON = 0xAB
_MOST_BYTES = 4096  # of an argument that is no tensor
THREADS, SHARED, BUFFERS = 1024, 32768, 31  # of Apple's GPUs
# What torch asks of a device: where one is, and whether it is there at all.
ANSWERS = f"""
struct Device {{ signed char type, index; }};
struct Stream {{ Device device; long id; }};
extern "C" {{
bool available = false;
Device device() {{ return Device{{{_MPS}, 0}}; }}
Stream stream() {{ return Stream{{{{{_MPS}, 0}}, 0}}; }}
bool has() {{ return available; }}
signed char none() {{ return 0; }}
}}
"""
_HANDLE = 16  # bytes from one object to the next: ranges of elements would overlap


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int), ("dtype", _Type),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("count", ctypes.c_int64), ("step", ctypes.c_int64),  # shape and strides
    )  # fmt: skip


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_capsule: Any = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                         ctypes.c_void_p]  # fmt: skip


class Memory:
    """What has the elements of storages, by the address that a storage tells."""

    def __init__(self) -> None:
        self.objects = (ctypes.c_char * (_HANDLE << 20))()
        self.free = [ctypes.addressof(self.objects) + _HANDLE * k for k in range(1 << 20)]
        self.held: dict[int, tuple[torch.Tensor, StorageWeakRef]] = {}

    def storage(self, size: int) -> torch.Tensor:
        """A tensor of bytes on "mps" that is the whole of a new storage."""
        if len(self.free) % 64 == 0:
            gone = [at for at, (_, storage) in self.held.items() if storage.expired()]
            for at in gone:
                del self.held[at]
            self.free += gone
        at = self.free.pop()
        # Where torch is done with it, it frees what it was given.
        place = _libc.malloc(ctypes.sizeof(_Tensor))
        made = _Tensor.from_address(place)
        first = place + _Tensor.count.offset
        made.data, made.device, made.ndim = at, _Device(_METAL, 0), 1
        made.dtype, made.shape, made.strides = _Type(_UINT, 8, 1), first, first + 8
        made.offset, made.context, made.count, made.step = 0, None, size, 1
        made.deleter = ctypes.cast(_libc.free, ctypes.c_void_p).value
        found = torch.utils.dlpack.from_dlpack(_capsule(place, b"dltensor", None))
        # A Metal buffer has whole words.
        memory = torch.full((-(-size // 16) * 16,), _POISON, dtype=torch.uint8, device="cpu")
        self.held[at] = memory, StorageWeakRef(found.untyped_storage())
        return found

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The memory of a tensor's storage, as bytes."""
        return self.held[tensor.untyped_storage().data_ptr()][0]

    def on_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the CPU with the memory of one on "mps"."""
        if tensor.numel() == 0:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype,
                                       device="cpu")  # fmt: skip
        made = torch.empty(0, dtype=tensor.dtype, device="cpu")
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        made.set_(self.of(tensor).untyped_storage(), *place)
        made = torch._neg_view(made) if tensor.is_neg() else made
        return made.conj() if tensor.is_conj() else made


MEMORY = Memory()


# -- torch's operations


def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Of device "mps"."""
    if dtype in (torch.float64, torch.complex128):
        raise TypeError(
            f"Cannot convert a MPS Tensor to {str(dtype).removeprefix('torch.')} dtype as the MPS "
            "framework doesn't support it. Please use float32 instead."
        )
    count = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    made = MEMORY.storage(max(count, 1) * dtype.itemsize).view(dtype)
    return made.as_strided(size, stride)


def _whole(dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None else torch.get_default_dtype()


def _empty(size: Sequence[int], *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Any:
    like = torch.empty(size, dtype=dtype, device="meta",
                       memory_format=memory_format or torch.contiguous_format)  # fmt: skip
    return empty(size, like.stride(), _whole(dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
    return empty(size, stride, _whole(dtype))


_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# They look at sizes and strides alone.
_VIEWS = frozenset(("as_strided", "view", "_reshape_alias", "unfold", "view_as_real",
                    "view_as_complex", "set_"))  # fmt: skip


def _there(value: Any) -> Any:
    return empty_like_on_mps(value) if isinstance(value, torch.Tensor) else value


def empty_like_on_mps(value: torch.Tensor) -> torch.Tensor:
    if value.device.type == "mps":
        return value
    made = empty(value.shape, value.stride(), value.dtype)
    MEMORY.on_cpu(made).copy_(value.resolve_conj().resolve_neg())
    return made


def _operation(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any of torch's operations on tensors of "mps"."""
    name = op._schema.name.removeprefix("aten::")
    if name in ("empty", "empty_strided"):
        return (_empty if name == "empty" else _empty_strided)(*args, **kwargs)
    if name in _VIEWS or op.is_view:
        return op.redispatch(_CPU, *args, **kwargs)
    if name == "random_" and len(args) > 2:
        assert args[2] <= 1 << 31, "torch's generator for MPS has integers of 32 bits"
    device = kwargs.get("device")
    given = {**kwargs, **({"device": torch.device("cpu")} if "device" in kwargs else {})}
    back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def here(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "mps":
            found = MEMORY.on_cpu(value)
            back.append((value, found))
            return found
        if isinstance(value, list | tuple):
            return [here(v) for v in value]
        return value

    found = op(*here(args), **{k: here(v) for k, v in given.items()})
    there = device is None or torch.device(device).type == "mps"
    if name in ("_local_scalar_dense", "_copy_from", "equal", "is_set_to"):
        there = False

    def returned(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            for own, memory in back:
                if value is memory:
                    if own.shape != memory.shape:  # as ``out=`` resizes
                        grown = empty_like_on_mps(memory)
                        torch.ops.aten.set_.source_Tensor.redispatch(_CPU, own, grown)
                    return own
            return empty_like_on_mps(value) if there else value
        if isinstance(value, list | tuple):
            return type(value)(map(returned, value))
        return value

    return returned(found)


def on_mps(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in memory as they are: with this offset and these strides."""
    if tensor.numel() == 0:
        return tensor.to("mps")
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    count = tensor.storage_offset() + reach + 1
    whole = torch.as_strided(tensor, (count,), (1,), 0).to("mps")
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


# -- torch.mps.compile_shader


class Library:
    """``torch._C._mps_ShaderLibrary``."""

    def __init__(self, source: str) -> None:
        source.encode("ascii")  # as torch makes a string for Metal
        self.source = source
        DEVICE.sources.append(source)

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(self.source, name)


class Kernel:
    """``torch._C._mps_MetalKernel``: one function of a library. ``parameters``: of its buffers."""

    def __init__(self, source: str, name: str) -> None:
        found = re.search(rf"kernel void {name}\((.*?)\) \{{", source, re.DOTALL)
        if found is None:
            raise RuntimeError(f"Failed to create function state object for: {name}")
        listed = [line.strip() for line in found[1].split(",\n")]
        bound = [re.fullmatch(r"(.+?) ?\* ?(\w+) \[\[buffer\((\d+)\)\]\]", p) for p in listed]
        self.parameters = [p.groups() for p in bound if p is not None]
        numbers = [int(number) for _, _, number in self.parameters]
        assert numbers == list(range(len(numbers))), "buffers do not follow each other"
        if len(numbers) > BUFFERS:
            raise SyntaxError(f"'buffer' attribute parameter is out of bounds: {len(numbers)}")
        self.static_thread_group_memory_length = _shared(source)
        if self.static_thread_group_memory_length > SHARED:
            raise RuntimeError("Failed to created pipeline state object, error: Threadgroup memory "
                               f"size ({self.static_thread_group_memory_length}) exceeds the "
                               f"maximum threadgroup memory allowed ({SHARED})")  # fmt: skip
        self.source, self.name = source, name
        self.max_threads_per_threadgroup = DEVICE.most
        self.thread_execution_width = 32

    @functools.cache  # noqa: B019 - as long as the kernel
    def run(self, threads: tuple[int, int, int]) -> metal.Run:
        return metal.harnessed(self.source, self.name, len(self.parameters), threads)

    def __call__(self, *args: Any, threads: Any = None, group_size: Any = None) -> None:
        assert len(args) == len(self.parameters), "an argument for each buffer"
        assert len(threads) == len(group_size) == 3
        if math.prod(group_size) > self.max_threads_per_threadgroup:
            raise ValueError(f"Threadgroup size exceeds {self.max_threads_per_threadgroup} limit")
        assert min(threads) > 0
        assert all(n < 1 << 32 for n in threads)
        # Threads behind the last whole group would be a smaller one.
        assert all(n % k == 0 for n, k in zip(threads, group_size, strict=True))
        kept, places = [], []
        for value, (type, name, _) in zip(args, self.parameters, strict=True):
            writes = not type.startswith(("constant ", "device const "))
            if isinstance(value, torch.Tensor):
                memory = MEMORY.of(value)
                begin = value.storage_offset() * value.element_size()
                word = _WORDS[type.split()[-1]]
                assert begin % word == 0, f"{name}: an offset of {begin} bytes for {type}"
                assert value.device.type == "mps"
                places.append(memory.data_ptr() + begin)
                kept.append(memory)
            else:
                assert not writes
                assert all(type_of(v) is int for v in value), "one type of numbers"
                block = (ctypes.c_int64 * len(value))(*value)
                assert 0 < ctypes.sizeof(block) <= _MOST_BYTES, "too many bytes for setBytes"
                places.append(ctypes.addressof(block))
                kept.append(block)
        grid = [n // k for n, k in zip(threads, group_size, strict=True)]
        DEVICE.launches += 1
        ended = self.run(tuple(group_size))((ctypes.c_void_p * len(places))(*places), *grid)
        assert ended == 0, "a barrier that some threads of a block do not come to"


type_of = type
_WORDS = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "i32": 4, "u32": 4, "f32": 4, "i64": 8,
          "atomic_int": 4, "atomic_uint": 4}  # fmt: skip


def _shared(source: str) -> int:
    """The bytes of threadgroup memory that a text declares."""
    declared = re.findall(r"threadgroup (\w+) \w+\[(\d+)\];", source)
    sizes = {"bool": 1, **_WORDS}
    return sum(sizes[type] * int(count) for type, count in declared)


class Device:
    """What was compiled, and the threads that a block may have."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.launches, self.most, self.events = 0, THREADS, 0

    def event(self, *_: Any) -> int:
        self.events += 1
        return self.events


DEVICE = Device()


def slots(header: str) -> list[str]:
    """The virtual functions that a class of torch's has, by the order of their addresses."""
    text = Path(torch.__file__).parent.joinpath("include", header).read_text()
    found = re.findall(r"^  virtual [^(;]*?(~?\w+)\(", text, re.MULTILINE)
    if found[-1].startswith("~"):
        found.pop()
    return [name for name in found for _ in range(1 + name.startswith("~"))]


def answering(at: int, order: Sequence[str], answers: dict[str, Any]) -> ctypes.c_void_p:
    """An object as the one at an address, whose functions ``answers`` are others."""
    words = ctypes.c_void_p * (len(order) + 16)
    table = ctypes.c_void_p.from_address(at).value
    assert table is not None
    own = words.from_buffer_copy(words.from_address(table - 16))
    for name, answer in answers.items():
        own[2 + order.index(name)] = ctypes.cast(answer, ctypes.c_void_p).value
    _KEPT.append(own)
    made = ctypes.c_void_p(ctypes.addressof(own) + 16)
    _KEPT.append(made)
    return made


@functools.cache
def registered() -> str:
    """Gives torch the device; why it cannot be, or "" where it can. For the life of the process."""
    if metal.COMPILER is None:
        return "there is no C++ compiler for Metal's language"
    if torch.backends.mps.is_available():
        return "there is a device for MPS"
    folder = Path(torch.__file__).parent
    c10, cpu = (ctypes.CDLL(str(folder / "lib" / f"lib{n}.so")) for n in ("c10", "torch_cpu"))
    answers = metal.library(ANSWERS)
    # What sets and asks for a device is that of CPUs, which does nothing, but tells this device.
    guards = (ctypes.c_void_p * (_MPS + 1)).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    guard = answering(guards[0], slots("c10/core/impl/DeviceGuardImplInterface.h"), {
        "exchangeDevice": answers.device, "getDevice": answers.device,
        "getStream": answers.stream, "getDefaultStream": answers.stream,
        "exchangeStream": answers.stream,
    })  # fmt: skip
    guards[_MPS] = ctypes.addressof(guard)
    hooks = cpu._ZN2at6detail11getMPSHooksEv
    hooks.restype = ctypes.c_void_p
    hooks_at = hooks()
    order = [*slots("ATen/detail/AcceleratorHooksInterface.h"),
             *slots("ATen/detail/MPSHooksInterface.h")]  # fmt: skip
    asked = answering(hooks_at, order, {
        "hasMPS": answers.has, "isBuilt": answers.has, "isAvailable": answers.has,
        "init": answers.none, "getCurrentDevice": answers.none, "hasPrimaryContext": answers.none,
    })  # fmt: skip
    ctypes.c_void_p.from_address(hooks_at).value = asked.value
    _KEPT.append(answers)
    others, named = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    others.fallback(_operation, "MPS")
    # What torch has for all devices, and does otherwise for this one on a Mac.
    for name in ("copy_",):
        op = getattr(torch.ops.aten, name).default
        named.impl(name, functools.partial(_operation, op), "MPS")
    _KEPT.extend((others, named))
    return ""


_KEPT: list[Any] = []


@contextlib.contextmanager
def mps(most: int = THREADS) -> Generator[Device]:
    """The stand-in is torch's MPS device."""
    if why := registered():
        pytest.skip(why)
    with pytest.MonkeyPatch.context() as patch:
        native = torch._C
        patch.setattr(native, "_mps_compileShader", Library, raising=False)
        patch.setattr(native, "_mps_is_available", lambda: True)
        patch.setattr(torch.backends.mps, "is_available", lambda: True)  # torch's remembers
        patch.setattr(native, "_mps_get_name", lambda: "a stand-in", raising=False)
        patch.setattr(native, "_mps_get_default_generator", lambda: torch.default_generator)
        patch.setattr(native, "_mps_acquireEvent", DEVICE.event)
        patch.setattr(native, "_mps_releaseEvent", lambda event: None)
        patch.setattr(native, "_mps_recordEvent", lambda event: None)
        patch.setattr(native, "_mps_queryEvent", lambda event: True)
        patch.setattr(native, "_mps_deviceSynchronize", lambda: None)
        patch.setattr(DEVICE, "most", most)
        available = ctypes.c_bool.in_dll(metal.library(ANSWERS), "available")
        available.value = True
        try:
            # There is no thread for the device.
            with torch.autograd.set_multithreading_enabled(False):
                yield DEVICE
        finally:
            available.value = False
