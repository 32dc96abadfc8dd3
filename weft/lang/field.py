"""Tensors whose elements are values: local arrays and Taichi-style fields; ``weft.init``.

``s = x[i]`` on a plain torch tensor is a *view*: ``s += 1`` then writes into ``x``. In a kernel
it is a value, and so it is on the arrays of this module.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, SupportsIndex, cast

import numpy as np
import torch
from torch.autograd import forward_ad

from weft.errors import GradientError, KernelIndexError, KernelTypeError, KernelValueError
from weft.lang.dtypes import (
    DType,
    Scalar,
    as_dtype,
    complex_type,
    f32,
    from_torch,
    i32,
    quietly,
    read,
    stored,
    tensor_of,
    to_numpy,
)
from weft.lang.elements import Elementwise, from_statement, numbered
from weft.values import frozen


def is_number(part: Any) -> bool:
    """Whether ``part`` selects one element along an axis (not a slice, mask or list)."""
    if type(part) is int:
        return True
    if isinstance(part, torch.Tensor):
        return part.dim() == 0
    return isinstance(part, int | float | np.generic) and not isinstance(part, bool)


def indices(array: torch.Tensor) -> Iterator[Any]:
    """What ``for i, j in array`` goes through in a kernel: ints if 1-d, else tuples of ints.

    The vectors of a field of vectors are its elements, not dimensions.
    """
    element = getattr(array, "element", None)
    extents = array.size()[: array.dim() - (len(element.shape) if element is not None else 0)]
    begins = getattr(element, "offset", ()) or (0,) * len(extents)
    ranges = [range(begin, begin + n) for begin, n in zip(begins, extents, strict=True)]
    return iter(ranges[0]) if len(ranges) == 1 else itertools.product(*ranges)


def _tensor_of(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A vector, a matrix, a list of these or of numbers, or a NumPy array as a plain tensor."""
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value, dtype=dtype)
    if isinstance(value, Elementwise):
        return torch.tensor(value.entries(), dtype=dtype).reshape(value.shape)
    parts = [_tensor_of(v, dtype) if isinstance(v, Elementwise | list | tuple) else v
             for v in value]  # fmt: skip
    if parts and all(isinstance(part, torch.Tensor) for part in parts):
        return torch.stack(parts)
    return torch.tensor(parts, dtype=dtype)


def _size(shape: Sequence[int]) -> str:
    return f"{' x '.join(map(str, shape))} numbers" if shape else "1 number"


class Array(torch.Tensor):
    """A tensor whose elements are values, and over whose indices a ``for`` statement goes, as in a
    kernel."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore
    element: Any = None  # the VectorType or MatrixType of a field of these, or a Placed
    row: bool = False  # a part of a tensor, or computed in a loop: iterates over its elements
    followed: bool = True  # by autograd, as any tensor is, from the first store on
    by_value: bool = True  # not so only where a torch tensor is interpreted

    def __getitem__(self, index: Any) -> Any:
        return self._get(self._parts(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._set(self._parts(index), value)

    def _get(self, parts: tuple[Any, ...]) -> Any:
        with quietly():
            plain = self.as_subclass(torch.Tensor)
            if len(parts) == self.dim() and all(map(is_number, parts)):
                position = tuple(map(operator.index, parts))
                element = read(plain[position].clone()).as_subclass(Scalar)
                element.home = (self, position)
                return element
            part = plain[parts].as_subclass(type(self))
            part.row = True
            return part

    def _set(self, parts: tuple[Any, ...], value: Any) -> None:
        if isinstance(value, Elementwise | list | tuple | np.ndarray):
            value = self._numbers(value, parts)
        follow = not self.is_leaf or (self.followed and not self.requires_grad)
        with quietly(), torch.set_grad_enabled(torch.is_grad_enabled() and follow):
            self.as_subclass(torch.Tensor)[parts] = stored(value, self.dtype)

    def _parts(self, index: Any) -> tuple[Any, ...]:
        """The subscripts: none of an array of no dimensions, which is read as ``x[None]``."""
        parts = numbered(index)
        return () if self.dim() == 0 and parts == (None,) else parts

    def _numbers(self, value: Any, parts: tuple[Any, ...]) -> torch.Tensor:
        """A vector, a list or a NumPy array as a tensor of this dtype, for ``self[parts]``."""
        made = _tensor_of(value, self.dtype)
        if all(map(is_number, parts)) and made.shape != self.size()[len(parts) :]:
            room, given = (_size(shape) for shape in (self.size()[len(parts) :], made.shape))
            raise KernelTypeError(
                f"an element of this {type(self).__name__.lower()} has {room}, and {given} "
                "are stored", help="store a vector of that size, or one number",
            )  # fmt: skip
        return made

    def present(self, position: tuple[int, ...], before: Scalar) -> Scalar:
        return before  # what ``x[i] += v`` adds to, when ``v`` is known

    def store(self, position: tuple[int, ...], value: Any) -> None:
        """Sets the element that a scalar's ``home`` names."""
        self._set(position, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            if not self.is_leaf:
                raise RuntimeError("only a field that was not computed can be copied deeply")
            with quietly(), torch.no_grad():
                plain = self.as_subclass(torch.Tensor).clone()
                new = torch.Tensor._make_subclass(type(self), plain)
            vars(new).update(vars(self))
            new.requires_grad_(self.requires_grad)
            gradient = torch.Tensor.grad.__get__(self)  # type: ignore[attr-defined]
            if gradient is not None:
                new.grad = gradient.clone()
            memo[id(self)] = new
        return memo[id(self)]

    def update(
        self, position: tuple[int, ...], function: Callable[[Any], Any], kind: str
    ) -> Scalar:
        """Replaces one element by ``function`` of it, as one step. Gives the element before."""
        before = self._get(position)
        self._set(position, function(before))
        before.home = None
        return before

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # pyright: ignore
        return self._items() if self.row or not from_statement() else indices(self)

    def _items(self) -> Iterator[Any]:
        """The elements, or rows, as ``sum(x)`` and comprehensions take them."""
        if self.dim() == 0:
            raise TypeError("iteration over a 0-d tensor")
        begin = next(iter(getattr(self.element, "offset", ())), 0)
        return (self[begin + k] for k in range(len(self)))

    def __repr__(self) -> str:  # type: ignore[override]  # pyright: ignore
        with quietly():
            return repr(self.as_subclass(torch.Tensor))


@frozen
class Placed:
    """The ``element`` of a field whose subscripts begin elsewhere than at 0: ``of`` is the type of
    its vectors or matrices, None where elements are numbers."""

    of: Any
    offset: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of.shape if self.of is not None else ()

    def frozen(self, items: list[Any]) -> Any:
        return self.of.frozen(items)

    def taken_off(self, parts: tuple[Any, ...], shape: Sequence[int]) -> tuple[Any, ...]:
        """Subscripts counted from 0. Raises ``KernelTypeError`` for slices, and ``IndexError``."""
        if not all(map(is_number, parts)):
            raise KernelTypeError("a slice of a field with an offset",
                                  help="slice x.to_torch(), from 0 on")  # fmt: skip
        begins = [*self.offset, *(0 for _ in parts[len(self.offset) :])]
        found = tuple(operator.index(p) - begin for p, begin in zip(parts, begins, strict=False))
        for k, (place, n) in enumerate(zip(found, shape, strict=False)):
            if not 0 <= place < n and k < len(self.offset):
                raise KernelIndexError(
                    f"subscript {place + begins[k]} of a field whose dimension {k} has those from "
                    f"{begins[k]} to {begins[k] + n - 1}"
                )
        return found


@frozen
class Defaults:
    """Where fields are made, and what ``float`` and ``int`` are there. ``on``: where kernels run
    that are not asked to run elsewhere (``Options.on``). ``debug``: whether they are checked; with
    False, other than None, not even their asserts."""

    device: str = "cpu"
    fp: DType = f32
    ip: DType = i32
    on: str = ""
    debug: bool | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What it says of options of kernels."""
        asked = {True: {"debug": True}, False: {"asserts": False}, None: {}}
        return {"on": self.on, **asked[self.debug]}


class Field(Array):
    """A tensor with Taichi's methods. It is an ordinary tensor to everything else.

    A field of vectors or matrices has the element's dimensions last; ``x[i]`` then gives a
    copy of the vector. ``x[i] = v``, ``x[i, 0] = a``, ``x[i][0] = a`` and ``x[i].xy = w`` write.
    Subscripts of a field with an offset begin there; a slice of it would have none, and is refused.
    """

    defaults: ClassVar[Defaults] = Defaults()  # as ``weft.init`` says
    followed = False  # a launch is, which stores into it; a number is set
    needs_grad = False  # whether it was made with a gradient, which is 0 at first
    ungraded: tuple[str, str] | None = None  # why its gradient is not known, and a way out
    needs_dual = False  # whether it was made with a tangent, which is 0 at first
    tangent: Field | None = None  # outside of forward mode
    made: ClassVar[weakref.WeakValueDictionary[int, Field]] = weakref.WeakValueDictionary()
    # Of layers above: a field that lives on a device, and whether WebGPU finds a GPU.
    resident: ClassVar[Any]
    drawn: ClassVar[Any]
    met: ClassVar[Callable[[Field], None] | None] = None  # who is told of new fields: a tape

    @classmethod
    def alive(cls) -> list[Field]:
        """The fields that there are, in the order in which they were made."""
        return [*cls.made.values()]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new = super().__deepcopy__(memo)
        new.tangent = copy.deepcopy(self.tangent, memo)
        new.announce()
        return new

    def lay_out(self, shape: tuple[int, ...]) -> None:
        """Has zeros of another shape from now on."""
        self.data = torch.zeros(shape, dtype=self.dtype, device=self.device)

    def announce(self) -> None:
        """Makes a new field known."""
        Field.made[id(self)] = self
        if Field.met is not None:
            Field.met(self)

    def grow(self) -> None:
        """Gives the field a gradient: what ``needs_grad=True`` says."""
        self.requires_grad_()
        self.needs_grad = True

    def __getitem__(self, index: Any) -> Any:
        parts = self._parts(index)
        inner: tuple[int, ...] = self.element.shape if self.element is not None else ()
        if (
            self.element is None
            or not inner
            or len(parts) != self.dim() - len(inner)
            or not all(map(is_number, parts))
        ):
            return self._get(parts)
        # Exactly the lattice's subscripts: a whole vector, element by element.
        places = itertools.product(*map(range, inner))
        return self.element.frozen([self._get((*parts, *k)) for k in places])

    def _parts(self, index: Any) -> tuple[Any, ...]:
        parts = numbered(index)
        inner = len(self.element.shape) if self.element is not None else 0
        if self.dim() == inner and parts == (None,):
            return ()
        element = self.element
        return element.taken_off(parts, self.size()) if isinstance(element, Placed) else parts

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]  # pyright: ignore
        """The extents that a loop over it goes through. The sizes of its vectors or matrices, which
        are the tensor's last, are in ``element_shape``; ``size()`` has all of them."""
        sizes = self.size()
        return sizes[: len(sizes) - len(self.element.shape)] if self.element is not None else sizes

    @property
    def n(self) -> int:
        """Of a field of vectors or matrices: the rows of one. AttributeError otherwise."""
        return self._inner("n")[0]

    @property
    def m(self) -> int:
        """Of a field of vectors or matrices: the columns of one. AttributeError otherwise."""
        return (*self._inner("m"), 1)[1]

    def _inner(self, name: str) -> tuple[int, ...]:
        if self.element is None or not self.element.shape:
            raise AttributeError(f"a field of numbers has no `{name}`")
        return self.element.shape

    @property
    def element_shape(self) -> tuple[int, ...]:
        """The sizes of an element: () of a number, (3,) of a vector of three."""
        return () if self.element is None else tuple(self.element.shape)

    @property
    def offset(self) -> tuple[int, ...]:
        """The first subscript along each dimension, () where all are 0."""
        return getattr(self.element, "offset", ())

    def _gradient(self) -> Any:
        """The gradient, with this field's subscripts. Zeros before there is one, where the field
        was made with ``needs_grad=True``."""
        if self.ungraded is not None:
            raise GradientError(self.ungraded[0], help=self.ungraded[1])
        if self.needs_grad and not self.is_leaf and not self.retains_grad:
            return None  # the end of the tape makes it; torch would warn
        found = torch.Tensor.grad.__get__(self)  # type: ignore[attr-defined]
        if found is None and self.needs_grad and self.is_leaf:
            with quietly(), torch.no_grad():
                found = torch.zeros_like(self.as_subclass(torch.Tensor))
            torch.Tensor.grad.__set__(self, found)  # type: ignore[attr-defined]
        return found if found is None or isinstance(found, Field) else self._like(found)

    def _set_gradient(self, value: torch.Tensor | None) -> None:
        torch.Tensor.grad.__set__(self, value)  # type: ignore[attr-defined]

    grad: Any = property(_gradient, _set_gradient)

    @property
    def dual(self) -> Any:
        """The derivative that ``weft.ad.FwdMode`` computes, with this field's subscripts; zeros
        before. None where the field was made without ``needs_dual=True``."""
        if not self.needs_dual:
            return None
        if forward_ad._current_level >= 0:  # pyright: ignore[reportPrivateUsage]
            with quietly():
                now = forward_ad.unpack_dual(self.as_subclass(torch.Tensor)).tangent
            if now is not None:
                return self._like(now)
        if self.tangent is None or self.tangent.size() != self.size():  # it has been placed since
            with quietly(), torch.no_grad():
                self.tangent = self._like(torch.zeros_like(self.as_subclass(torch.Tensor)))
        return self.tangent

    def without_history(self) -> Field:
        """The same memory, of which torch knows neither a gradient nor a tangent."""
        made = torch.Tensor._make_subclass(Field, self.data)  # no view
        made.element = self.element
        return made

    def _like(self, values: torch.Tensor) -> Field:
        with quietly():
            made = values.as_subclass(Field)
        made.element = self.element
        return made

    def fill(self, value: Any) -> None:
        """Sets every element to ``value``: a number, or a vector where elements are vectors."""
        if isinstance(value, Elementwise | list | tuple | np.ndarray):
            value = _tensor_of(value, self.dtype)
            shape = () if self.element is None else self.element.shape
            if value.shape != shape:
                raise KernelTypeError(
                    f"an element of this field has {_size(shape)}, and it is filled with "
                    f"{_size(value.shape)}", help="fill it with a vector of that size, or a number",
                )  # fmt: skip
        with torch.no_grad():
            self.copy_(tensor_of(value, self.device).expand(self.size()))

    def to_numpy(self, keep_dims: bool = False, dtype: Any = None) -> np.ndarray[Any, Any]:
        """A NumPy copy. With ``keep_dims`` the elements of a field of vectors are (n, 1)."""
        if not self.dtype.is_complex:
            to_numpy(from_torch(self.dtype))  # which NumPy may not have
        made = self.as_subclass(torch.Tensor).detach().cpu().numpy().copy()
        vectors = self.element is not None and len(self.element.shape) == 1
        made = made[..., None] if keep_dims and vectors else made
        return made if dtype is None else made.astype(dtype)

    def from_numpy(self, array: np.ndarray[Any, Any]) -> None:
        """Copies ``array`` (of this shape, or as ``to_numpy(keep_dims=True)`` has it) into the
        field."""
        # ascontiguousarray makes one dimension of none.
        shape = np.shape(array)
        vectors = self.element is not None and len(self.element.shape) == 1
        shape = shape[:-1] if vectors and shape == (*self.size(), 1) else shape
        whole = np.ascontiguousarray(array).reshape(shape)
        self.from_torch(torch.from_numpy(whole))

    def to_torch(self, device: torch.device | str | None = None) -> torch.Tensor:
        """A copy as a plain tensor, on ``device`` if given."""
        return self.as_subclass(torch.Tensor).detach().clone().to(device or self.device)

    def from_torch(self, tensor: torch.Tensor) -> None:
        """Copies ``tensor`` (of this shape) into the field."""
        if tensor.size() != self.size():
            raise KernelValueError(
                f"this field has shape {tuple(self.size())}, the values have {tuple(tensor.size())}"
            )
        with torch.no_grad():
            self.copy_(tensor)

    def copy_from(self, other: torch.Tensor) -> None:
        """Copies another field or tensor of this shape into the field."""
        self.from_torch(other)


@frozen
class Arch:
    """A name for ``weft.init(arch=...)``."""

    name: str
    device: str  # the torch device that new fields are made on


cpu = x64 = arm64 = Arch("cpu", "cpu")
gpu = Arch("gpu", "cuda")
cuda = Arch("cuda", "cuda")
vulkan = Arch("vulkan", "cuda")
metal = Arch("metal", "cuda")
opengl = Arch("opengl", "cuda")


def init(
    arch: Arch = cpu, *, default_fp: Any = f32, default_ip: Any = i32,
    random_seed: int | None = None, debug: bool | None = None, **ignored: Any,
) -> None:  # fmt: skip
    """Accepts Taichi's ``init``. It sets defaults for new fields, and ``torch.manual_seed`` where a
    ``random_seed`` is given. ``debug``: kernels that are first called after this are those of
    ``@weft.kernel(debug=True)``, where their decorators do not say otherwise; with False, which is
    Taichi's default, their asserts are not checked.

    weft needs no initialisation: a kernel runs where its tensors live. Fields of ``gpu`` and of
    kinds of them are made on "cuda" where there is a CUDA device; else, of ``gpu`` and ``metal``,
    on "mps" where torch has that. Else ``vulkan``, ``metal`` and ``opengl`` let kernels that are
    first called after this run on WebGPU where its package is installed, and new fields live there
    (docs/webgpu.md); so does ``gpu`` where WebGPU finds one. Else fields are made on the CPU, with
    a warning where a kind of GPU was named. Other options are accepted, unused.
    """
    device, on = arch.device, ""
    if device == "cuda" and not torch.cuda.is_available():
        device = "cpu"
        apple = arch in (gpu, metal) and torch.backends.mps.is_available()
        installed = importlib.util.find_spec("wgpu") is not None
        if apple:
            device = "mps"
        elif installed and (arch in (vulkan, metal, opengl) or (arch is gpu and Field.drawn())):
            on = "webgpu"
        elif arch is not gpu:
            warnings.warn(f"no CUDA device for {arch.name}: fields are on the CPU", stacklevel=2)
    debug = debug if debug is None else bool(debug)
    Field.defaults = Defaults(device, as_dtype(default_fp), as_dtype(default_ip), on, debug)
    if random_seed is not None:
        torch.manual_seed(random_seed)


def _extents(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        if isinstance(shape, SupportsIndex):  # NumPy's ints and tensors, too
            extents = (operator.index(shape),)
        else:
            extents = tuple(map(operator.index, shape))
    except TypeError:
        extents = (-1,)
    if any(extent < 0 for extent in extents):
        raise KernelValueError(
            f"a shape has numbers of elements, integers from 0 on, and this is {shape!r}",
            help="write shape=128, or shape=(4, 128)",
        )
    return extents


def field(
    dtype: Any = None,
    shape: int | Sequence[int] | None = None,
    *,
    offset: int | Sequence[int] | None = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    device: Any = None,
    dt: Any = None,
    element: Any = None,
    name: str = "",
    order: str | None = None,
    layout: Any = None,
) -> Field:
    """A tensor of zeros with the methods of ``Field``.

    ``dtype`` (or ``dt``) is a weft or torch dtype, or ``float``/``int`` for ``weft.init``'s
    defaults, or a vector or matrix type. ``offset``: the first subscript along each dimension.
    ``element`` is a vector or matrix type, whose dimensions come last. ``needs_grad`` is
    ``requires_grad_()``, with a gradient of zeros at first; ``needs_dual`` gives it a ``dual``, for
    ``weft.ad.FwdMode``. The device is that of ``weft.init``, or
    ``device``. ``name``, and Taichi's ``order`` and ``layout`` of elements in memory, are unused. A
    field of no dimensions may be given some by ``weft.root.dense(...).place(field)``.
    """
    chosen = dtype if dtype is not None else dt
    if element is None and hasattr(chosen, "frozen"):  # a vector or matrix type
        element, chosen = chosen.of_any(), chosen.dtype or (int if chosen.kind == "int" else float)
    if isinstance(chosen, list | tuple):
        if any(each != chosen[0] for each in chosen):
            raise KernelTypeError(
                "a field of vectors is one tensor: its components have one dtype",
                help="make a field for each dtype",
            )
        chosen = chosen[0]
    if chosen is None:
        raise KernelTypeError("field() needs a dtype", help="write weft.field(weft.f32, shape=128)")
    kind = as_dtype(chosen, default_fp=Field.defaults.fp, default_ip=Field.defaults.ip)
    lattice = _extents(() if shape is None else shape)
    if offset is not None:
        element = Placed(element, checked_offset(offset, lattice))
    extents = lattice + (element.shape if element is not None else ())
    made = torch.zeros(extents, dtype=kind.torch, device=device or Field.defaults.device)
    watched: Any = made if isinstance(made, Field) else None  # by who interprets a kernel
    made = made if watched is None else watched.plain
    if type(made) is not torch.Tensor:  # where PyTorch follows shapes alone
        if element is None and not needs_grad and not needs_dual:
            return cast(Field, made)
        raise KernelTypeError(
            "a field of vectors, with an offset or a gradient is made under torch.compile",
            help="make it outside of the kernel, and pass it",
        )
    # No view, so that autograd follows what is written to it.
    stays = Field.defaults.on and made.device.type == "cpu" and device is None
    result: Field = Field.resident(made) if stays else torch.Tensor._make_subclass(Field, made)
    result.element = element
    if needs_grad:
        result.grow()
    if needs_dual and not made.is_floating_point():
        raise KernelTypeError(f"a field of {kind!r} has no dual", help="make one of weft.f32")
    result.needs_dual = needs_dual
    result.announce()
    return result if watched is None else watched.watch.wrap(result)


def checked_offset(offset: int | Sequence[int], extents: tuple[int, ...]) -> tuple[int, ...]:
    one = isinstance(offset, SupportsIndex)
    first = tuple(map(operator.index, (offset,) if one else offset))  # type: ignore[arg-type]
    if len(first) != len(extents):
        raise KernelValueError(
            f"an offset of {len(first)} numbers for a field of {len(extents)} dimensions",
            help="write one number for each dimension of `shape`",
        )
    return first


def ndarray(
    dtype: Any, shape: int | Sequence[int] = (), needs_grad: bool = False, *, element: Any = None
) -> Field:
    """``field`` by another of Taichi's names; ``dtype`` may be a vector or matrix type."""
    return field(dtype, shape, needs_grad=needs_grad, element=element)


def var(dt: Any, shape: int | Sequence[int] = (), *, needs_grad: bool = False) -> Field:
    """``field`` by its name in early Taichi."""
    return field(dt, shape, needs_grad=needs_grad)


def zeros(shape: int | Sequence[int], dtype: Any = f32, most: int | None = None) -> Any:
    """A local array of zeros: each iteration of a kernel has its own, of a fixed shape. With
    ``most``, a list of at most so many numbers, of any size, which may grow and shrink. Raises
    ``KernelAssertionError`` for a larger one."""
    extents, kind = _extents(shape), complex_type(dtype) or as_dtype(dtype)
    if most is not None:
        if len(extents) != 1:
            raise KernelTypeError("an array with `most` has one dimension",
                                  help="write weft.zeros(n, weft.f32, most=64)")  # fmt: skip
        from weft.lang.growing import Bounded  # few programs have some

        return Bounded([kind(0)] * extents[0], kind, most)
    made = torch.zeros(extents, dtype=kind.torch, device="cpu")  # which vmap has to see
    if isinstance(made, Array):  # by who interprets a kernel
        made.by_value = True
    if type(made) is not torch.Tensor:  # where PyTorch follows shapes alone
        return made
    with quietly():
        return made.as_subclass(Array)
