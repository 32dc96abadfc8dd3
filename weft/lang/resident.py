"""Tensors whose elements stay in the memory of a device without torch tensors (WebGPU) between
kernels, and have a copy on the host for everything else.

``Resident`` is an ordinary CPU tensor to torch. torch's operations on it come through its
dispatcher to ``__torch_dispatch__``, which brings the copy on the host up to date first, and knows
by the operation's schema what is written. Kernels on the device do without both: they ask the
``Home`` of an address where its newest elements are.

What shares the host's memory (views, NumPy arrays, what autograd has saved) holds torch's storage.
While there is any of that, kernels copy in and out as they do for other tensors; and what was
handed out counts as written. Addresses alone are not counted: after ``data_ptr()`` kernels copy
from then on.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch.utils import _pytree as pytree

from weft.errors import KernelTypeError
from weft.frames import eager
from weft.lang.dtypes import Housed
from weft.lang.field import Field

# How many share a storage has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
HOST, BOTH, DEVICE = "host", "both", "device"
_aten = torch.ops.aten
users: Callable[[int], int] = torch._C._storage_Use_Count

# Makers of tensors that are like another: those live where that lives.
_LIKE = {
    _aten.empty_like.default, _aten.zeros_like.default, _aten.ones_like.default,
    _aten.full_like.default, _aten.rand_like.default, _aten.randn_like.default,
    _aten.new_empty.default, _aten.new_empty_strided.default, _aten.new_zeros.default,
    _aten.new_ones.default, _aten.new_full.default, _aten.clone.default,
}  # fmt: skip
_EMPTY = {_aten.empty_like.default, _aten.new_empty.default, _aten.new_empty_strided.default}
_ZEROS = {_aten.zeros_like.default, _aten.new_zeros.default}
_UNREAD = _LIKE - {_aten.clone.default}
_MOST_SPARE = 256 << 20  # bytes of results that are gone
_MOST_LAYOUTS = 256
_MOVING = {_aten.set_.source_Storage, _aten.set_.source_Tensor,
           _aten.set_.source_Storage_storage_offset, _aten.set_.default,
           _aten.resize_.default, _aten.resize_as_.default,
           _aten.as_strided_.default}  # fmt: skip


class Memory(Protocol):
    """The memory of a device."""

    def read_into(self, buffer: Any, address: int, size: int) -> None:
        """Copies the first ``size`` bytes of ``buffer`` to the host, when what writes them ran."""
        ...

    def release(self, buffer: Any) -> None:
        """Takes ``buffer`` back; may be called at any time."""
        ...


class Home:
    """Where the elements of a resident tensor are: ``newest`` on the host, on the device, or on
    both. ``buffer``: on the device ``on``, once a kernel was there."""

    lock: ClassVar[Any] = threading.RLock()  # of all homes, and of devices
    by_address: ClassVar[weakref.WeakValueDictionary[int, Home]] = weakref.WeakValueDictionary()

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.address, self.bytes = memory.data_ptr(), memory.untyped_storage().nbytes()
        self.newest = HOST
        self.buffer: Any = None
        self.on: Memory | None = None
        self.pinned = False  # its address is known elsewhere
        self.storage = memory.untyped_storage()._cdata
        if self.bytes:
            Home.by_address[self.address] = self

    @property
    def alone(self) -> bool:
        """Whether nothing else reads or writes the memory on the host."""
        return users(self.storage) <= own_users() and not self.pinned

    def placed(self, on: Memory, buffer: Any) -> None:
        self.on, self.buffer = on, buffer
        weakref.finalize(self, on.release, buffer).atexit = False

    def to_host(self) -> None:
        """Brings the copy on the host up to date."""
        with Home.lock:
            if self.newest is DEVICE:
                assert self.on is not None
                self.on.read_into(self.buffer, self.address, self.bytes)
                self.newest = BOTH

    def exposed(self) -> None:
        """The host's memory is handed out, or may be written: it is the newest."""
        with Home.lock:
            self.to_host()
            self.newest = HOST


@functools.cache
def own_users() -> int:
    """How many users a storage has that only a resident tensor and its home have."""
    memory = torch.zeros(1)
    storage = memory.untyped_storage()._cdata
    other = torch.Tensor._make_subclass(Resident, memory)
    assert other is not memory
    return users(storage)


Layout = tuple[Any, ...]  # shape, strides, dtype, and whether it is of inference mode


class Spare:
    """Homes of results that are gone, for those of the same layout that come: ``bytes`` of them.
    Which layout was asked for last is the last one."""

    def __init__(self) -> None:
        self.bytes = 0
        self._back: deque[tuple[Layout, Home]] = deque()
        self._homes: dict[Layout, list[Home]] = {}

    def returned(self, layout: Layout, home: Home) -> None:
        """Of a tensor that is gone, at any time and in any thread: it locks nothing."""
        if not home.pinned and self.bytes + home.bytes <= _MOST_SPARE:
            self.bytes += home.bytes
            home.pinned, home.newest = True, HOST  # what still has its memory is no result
            self._back.append((layout, home))

    def taken(self, layout: Layout) -> Home | None:
        """A home of ``layout``, if there is one. Where there is none, and many of others are, those
        that were not asked for of late go."""
        while self._back:
            key, home = self._back.popleft()
            self._homes.setdefault(key, []).append(home)
        homes = self._homes.pop(layout, [])
        self._homes[layout] = homes
        if homes:
            home = homes.pop()
            self.bytes -= home.bytes
            return home
        for key in [*self._homes]:
            if self.bytes <= _MOST_SPARE // 2:
                break
            self.bytes -= sum(home.bytes for home in self._homes.pop(key))
        if len(self._homes) > _MOST_LAYOUTS:
            self._homes = {key: homes for key, homes in self._homes.items() if homes}
        return None

    def clear(self) -> None:
        """Nothing is left."""
        self.bytes = 0
        self._back.clear()
        self._homes.clear()


SPARE = Spare()  # of this process, as addresses are


class Lease:
    """What gives a home back when its tensor is gone."""

    __slots__ = ("home", "layout")

    def __init__(self, home: Home, layout: Layout) -> None:
        self.home, self.layout = home, layout

    def __del__(self) -> None:
        SPARE.returned(self.layout, self.home)


class Resident(Housed, torch.Tensor):
    """A tensor that kernels on the device find there (``weft.webgpu.buffer``)."""

    home: Home
    lease: Lease  # of a kernel's results
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore
    __dlpack_c_exchange_api__ = None  # which reads memory, unasked

    @classmethod
    def of(cls, memory: torch.Tensor, *, empty: bool = False) -> Self:
        """The dense CPU tensor ``memory``, which nobody else has, as one. ``empty``: nobody wants
        what is in it."""
        made = torch.Tensor._make_subclass(cls, memory)
        made.home = Home(memory.detach())
        if empty:
            made.home.newest = BOTH
        return made

    @classmethod
    def fresh(
        cls, parts: Sequence[Any], make: Callable[[], torch.Tensor], *, zeros: bool
    ) -> Resident:
        """A new tensor of ``parts`` (shape, strides, dtype), as ``make`` makes its memory: in that
        of one that is gone where there is one, with its buffer. Of ``zeros``, or without
        contents."""
        layout = (*parts, torch.is_inference_mode_enabled())
        with Home.lock:
            while (home := SPARE.taken(layout)) is not None:
                made = torch.Tensor._make_subclass(cls, home.memory)
                if users(home.storage) > own_users():
                    continue  # something that was computed of the old tensor has its memory
                home.pinned = False
                if zeros:
                    home.memory.zero_()
                else:
                    home.newest = BOTH
                made.home = home
                break
            else:
                made = cls.of(make(), empty=not zeros)
            made.lease = Lease(made.home, layout)
            return made

    @classmethod
    @eager
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with Home.lock:  # no kernel of another thread comes between the copy and the operation
            return _dispatched(func, args, kwargs or {})

    # What torch does not ask its dispatcher for.

    def data_ptr(self) -> int:
        """The address on the host: from now on kernels copy this tensor in and out."""
        self.home.exposed()
        self.home.pinned = True
        return torch.Tensor.data_ptr(self)

    def untyped_storage(self) -> Any:
        self.home.exposed()
        return torch.Tensor.untyped_storage(self)

    def apply_(self, callable: Callable[..., Any]) -> torch.Tensor:
        self.home.exposed()
        return torch.Tensor.apply_(self, callable)

    def storage(self) -> Any:
        return self.plain().storage()

    def plain(self) -> torch.Tensor:
        """The tensor's memory on the host, up to date, as a plain tensor."""
        self.home.exposed()
        return self._laid_out()

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        if self.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad: x.detach()")
        return self.plain().numpy(force=force)

    def __array__(self, dtype: Any = None) -> np.ndarray[Any, Any]:
        found = self.numpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def tolist(self) -> Any:
        return self._copied().tolist()

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return repr(self._copied())

    def __format__(self, how: str) -> str:
        return format(self._copied(), how)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.plain().__dlpack__(**kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Is kept as a plain tensor: another process may have no such device."""
        return self._copied().requires_grad_(self.requires_grad).__reduce_ex__(protocol)

    def __copy__(self) -> torch.Tensor:
        """Shares the memory, as copies of other tensors do."""
        return self.plain().requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            if not self.is_leaf:
                raise RuntimeError("only a tensor that was not computed can be copied deeply")
            made = type(self).of(self._copied())
            if isinstance(self, torch.nn.Parameter):
                made._is_param = True  # type: ignore[attr-defined]
            memo[id(self)] = made.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def _shared(self) -> Resident:
        """Another tensor of the same memory that lives there, too, once it is the only one."""
        self.home.exposed()
        made = torch.Tensor._make_subclass(Resident, self._laid_out())
        made.home = self.home
        if (lease := getattr(self, "lease", None)) is not None:
            made.lease = lease
        return made

    def _copied(self) -> torch.Tensor:
        with Home.lock:
            self.home.to_host()
            return self._laid_out().clone()

    def _laid_out(self) -> torch.Tensor:
        """The memory on the host as this tensor has it now: ``t_`` and ``unsqueeze_`` change that.
        (torch's first operation by a dispatcher in Python imports torch.distributed.)"""
        return self.home.memory.as_strided(self.size(), self.stride())

    def _moved(self, *_: Any) -> Any:
        raise KernelTypeError(
            "a tensor that lives on a device keeps its memory", help="write x.copy_(y)"
        )

    data: Any = property(plain, _moved)  # type: ignore[assignment]
    share_memory_ = _moved  # type: ignore[assignment]


class ResidentField(Resident, Field):
    """A field that kernels on the device find there."""

    def __getitem__(self, index: Any) -> Any:
        return Field.__getitem__(self, index)

    def __iter__(self) -> Any:
        return Field.__iter__(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made = super().__deepcopy__(memo)
            home = made.home
            vars(made).update(vars(self))
            made.home = home
            made.tangent = copy.deepcopy(self.tangent, memo)
            made.announce()
        return memo[id(self)]

    def lay_out(self, shape: tuple[int, ...]) -> None:
        memory = torch.zeros(shape, dtype=self.dtype)
        torch.Tensor.data.__set__(self, memory)  # type: ignore[attr-defined]
        self.home = Home(memory.detach())

    def _plain_field(self) -> Field:
        """The memory on the host, which the caller brings up to date, and keeps to itself."""
        made = self._laid_out().as_subclass(Field)
        made.element = self.element
        return made

    def _get(self, parts: tuple[Any, ...]) -> Any:
        with Home.lock:
            self.home.to_host()
            if self.requires_grad:
                found = Field._get(self, parts)
            else:
                found = self._plain_field()._get(parts)
                if getattr(found, "home", None) is not None:  # an element: its home is this field
                    found.home = (self, found.home[1])
            if not self.home.alone:
                self.home.newest = HOST
            return found

    def _set(self, parts: tuple[Any, ...], value: Any) -> None:
        with Home.lock:
            self.home.exposed()
            if self.requires_grad:
                Field._set(self, parts, value)
            else:
                self._plain_field()._set(parts, value)

    def fill(self, value: Any) -> None:
        with Home.lock:
            self._plain_field().fill(value)
            self.home.newest = HOST  # whatever there was on the device

    def from_torch(self, tensor: torch.Tensor) -> None:
        with Home.lock:
            self._plain_field().from_torch(tensor)
            self.home.newest = HOST

    def to_torch(self, device: torch.device | str | None = None) -> torch.Tensor:
        return self._copied().to(device or "cpu")

    def to_numpy(self, keep_dims: bool = False, dtype: Any = None) -> np.ndarray[Any, Any]:
        with Home.lock:
            self.home.to_host()
            return self._plain_field().to_numpy(keep_dims, dtype)


def on_host(value: Any) -> Any:
    """A tensor for loops on the CPU: that of a resident one's memory there."""
    if not isinstance(value, Resident):
        return value
    plain = value.as_subclass(torch.Tensor)
    if not isinstance(value, Field):
        return plain
    made = plain.as_subclass(Field)
    made.element = value.element
    return made


@functools.cache
def _writes(func: Any) -> tuple[frozenset[int], frozenset[str]]:
    """The positions and the names of arguments that an operation writes to."""
    arguments = func._schema.arguments
    found = [(k, a.name) for k, a in enumerate(arguments)
             if a.alias_info is not None and a.alias_info.is_write]  # fmt: skip
    return frozenset(k for k, _ in found), frozenset(n for _, n in found)


def _residents(value: Any) -> Sequence[Resident]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, Resident)]


def _dispatched(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation of torch's on the host's copies."""
    if func in _MOVING:
        _residents((args, kwargs))[0]._moved()
    if torch.Tag.inplace_view in func.tags:  # the tensor's own shape, and no element
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)
    if func is _aten.detach.default:  # which parameters of modules are made by
        return args[0]._shared()
    if func in _UNREAD:
        with torch._C._DisableTorchDispatch():
            return _kept(func(*args, **kwargs), func)
    positions, names = _writes(func)
    written = [v for k, a in enumerate(args) if k in positions for v in _residents(a)]
    written += [v for n, a in kwargs.items() if n in names for v in _residents(a)]
    all_of_them = _residents((args, kwargs))
    for one in all_of_them:
        one.home.to_host()
    for one in written:  # before the operation: it may be a kernel's, which tells homes itself
        one.home.newest = HOST
    with torch._C._DisableTorchDispatch():
        plain = {id(one): one.as_subclass(torch.Tensor) for one in all_of_them}
    back = {id(plain[id(one)]): one for one in all_of_them}
    args, kwargs = pytree.tree_map(lambda v: plain.get(id(v), v), (args, kwargs))
    result = func(*args, **kwargs)
    if func in _LIKE:
        return _kept(result, func)
    result = pytree.tree_map(lambda v: back.get(id(v), v), result)
    plain.clear()
    args, kwargs = (), {}
    for one in all_of_them:
        if not one.home.alone:
            one.home.newest = HOST
    return result


def _kept(made: torch.Tensor, func: Any) -> torch.Tensor:
    """A new tensor like a resident one, which ``func`` made, as one, where it is a dense one of the
    host; in memory of one that is gone if nothing has to be copied there."""
    if made.device.type != "cpu" or made.layout is not torch.strided or not made.numel():
        return made
    if func not in _EMPTY and func not in _ZEROS:
        return Resident.of(made)
    parts = tuple(made.size()), made.stride(), made.dtype
    return Resident.fresh(parts, lambda: made, zeros=func in _ZEROS)
