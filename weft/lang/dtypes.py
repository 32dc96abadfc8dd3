"""Element types, and scalars of a definite type.

``weft.f32(x)`` casts: a number or 0-d tensor becomes a ``Scalar``, a vector's elements are cast one
by one. A cast is *strong*: what it gives takes part in torch's type promotion as a tensor does,
while a Python number is *weak* and adopts the other operand's type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import Any, ClassVar

import numpy as np
import torch

from weft.errors import KernelTypeError
from weft.lang.elements import Elementwise
from weft.values import mutable

# Inside weft's own bookkeeping torch functions must not be seen by subclasses or modes.
quietly = torch._C.DisableTorchFunction  # pyright: ignore[reportPrivateUsage]


def tensor_of(value: Any, device: torch.device | None = None) -> torch.Tensor:
    """``value`` as a tensor: a Python float in float64, which it is, whatever torch's default."""
    dtype = torch.float64 if isinstance(value, float) else None
    return torch.as_tensor(value, dtype=dtype, device=device)


# Sizes under torch.compile: no numbers of their own, so that they have no range.
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)

_DISPATCH = "__torch_dispatch__"  # by its name: torch's annotation of it cannot be bound


class Number:
    """What the classes of ``numbers.NUMBERS`` share."""

    __slots__ = ()
    dtype: ClassVar[DType]


def strongly(value: Any) -> Any:
    """``value``; of a Number a Scalar of its dtype, as torch would take it for Python's."""
    return value.dtype(value) if isinstance(value, Number) else value


class Scalar(torch.Tensor):
    """A 0-d tensor that behaves as a value: ``s += 1`` makes a new one and never writes in place.

    ``home`` is (array, position) where the scalar was just read from an array's element: the atomic
    functions write there. ``updated`` is the home of the element that an augmented assignment
    (``x[i] += v``) is about to write back. What is computed from a Scalar has neither.
    """

    home: tuple[Any, tuple[int, ...]] | None = None
    updated: tuple[Any, tuple[int, ...], str] | None = None

    # A number is no collection.
    __iter__ = __len__ = None  # type: ignore[assignment]  # pyright: ignore

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """The number alone, as ``float()`` gives it: NumPy knows of no gradient."""
        with quietly():
            return self.detach().numpy().__array__(*args, **kwargs)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **named: Any) -> Any:
        """Beside arrays of NumPy's, a plain number of Python's, as in Taichi. With a NumPy number
        an operator is torch's, of which NumPy's number is a weak operand; what else NumPy computes
        of single numbers is one of these."""
        if any(map(np.ndim, inputs)) or method != "__call__" or named.get("out") is not None:
            plain = (v.item() if isinstance(v, Scalar) else v for v in inputs)
            return getattr(function, method)(*plain, **named)
        reflected = _REFLECTED.get(function)
        if reflected is not None and not isinstance(inputs[0], Scalar):
            found = getattr(self, reflected)(inputs[0])
            if found is not NotImplemented:
                return found
        plain = (np.asarray(v)[()] if isinstance(v, Scalar) else v for v in inputs)
        with quietly():
            found = function(*plain, **named)
            made = map(torch.as_tensor, found if isinstance(found, tuple) else (found,))
            values = tuple(v.as_subclass(Scalar) for v in made)
        return values if isinstance(found, tuple) else values[0]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for kind in types:
            if kind is not torch.Tensor and not issubclass(kind, Scalar):
                return NotImplemented
        with quietly():
            args = tuple([v if isinstance(v, torch.Tensor) else strongly(v) for v in args])
            if involves_unsigned(args) or _is_beyond(func, args):
                result = _unsigned(func, args)
                if result is not NotImplemented:
                    return _as_values(result)
            return _as_values(func(*args, **(kwargs or {})))

    def __format__(self, format_spec: str) -> str:
        return format(self.item(), format_spec) if format_spec else str(self)

    def conjugate(self) -> Any:
        """As Python's numbers have it."""
        return self.conj()

    def __pow__(self, other: Any) -> Any:
        """As kernels have it: torch takes no integer to a negative power."""
        whole = not (self.dtype.is_floating_point or self.dtype.is_complex)
        if isinstance(other, int) and other < 0 and whole:
            return owned(self) ** other
        return super().__pow__(other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __float__(self) -> float:
        return float(self.item())  # torch's own warns where there is a gradient

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.item(), digits)

    def __floor__(self) -> int:
        return math.floor(self.item())

    def __ceil__(self) -> int:
        return math.ceil(self.item())

    def __trunc__(self) -> int:
        return math.trunc(self.item())

    def __repr__(self) -> str:  # type: ignore[override]
        """The shortest number that is this one in its dtype: debuggers show numbers."""
        value = self.item()
        if not isinstance(value, float) or not math.isfinite(value) or self.dtype == torch.float64:
            return repr(value)
        texts = (f"{value:.{digits}g}" for digits in range(1, 10))
        with quietly():
            texts = (t for t in texts if torch.tensor(float(t), dtype=self.dtype).item() == value)
            return repr(float(next(texts, repr(value))))


# The method of the right operand by NumPy's function, which its numbers call for an operator.
_REFLECTED = {
    np.add: "__radd__", np.subtract: "__rsub__", np.multiply: "__rmul__",
    np.true_divide: "__rtruediv__", np.floor_divide: "__rfloordiv__", np.remainder: "__rmod__",
    np.power: "__rpow__", np.less: "__gt__", np.less_equal: "__ge__", np.greater: "__lt__",
    np.greater_equal: "__le__", np.equal: "__eq__", np.not_equal: "__ne__",
    np.bitwise_and: "__rand__", np.bitwise_or: "__ror__", np.bitwise_xor: "__rxor__",
    np.left_shift: "__rlshift__", np.right_shift: "__rrshift__",
}  # fmt: skip


def _augmented(name: str) -> Callable[[Scalar, Any], Any]:
    operation = getattr(operator, name)

    def update(self: Scalar, other: Any) -> Any:
        if self.home is None:
            return operation(self, other)
        array, position = self.home
        result = operation(array.present(position, self), other)
        if isinstance(result, Scalar):
            result.updated = array, position, name
        return result

    return update


for _name in "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift".split():  # noqa: SIM905
    setattr(Scalar, f"__i{_name.rstrip('_')}__", _augmented(_name))


def _as_values(result: Any) -> Any:
    if type(result) is torch.Tensor and result.dim() == 0:
        return result.as_subclass(Scalar)
    if type(result) in (tuple, list):
        return type(result)(_as_values(item) for item in result)
    return result


def scalar(value: Any) -> Any:
    """``value`` (a 0-d tensor) as a Scalar sharing its memory. What stands for a tensor while
    PyTorch traces (a fake tensor) stays that."""
    with quietly():
        return value if stands_for_another(value) else value.as_subclass(Scalar)


class Housed:
    """Of tensors whose newest elements may be on a device: see ``lang.resident``."""


def stands_for_another(tensor: torch.Tensor) -> bool:
    """Whether PyTorch's dispatcher asks the class of a tensor, which can have no other then."""
    own = getattr(type(tensor), _DISPATCH) is not getattr(torch.Tensor, _DISPATCH)
    return own and not isinstance(tensor, Housed)


# --- arithmetic of single unsigned integers that torch has tensors of, and few operations: it wraps
UNSIGNED: dict[torch.dtype, int] = {torch.uint16: 16, torch.uint32: 32, torch.uint64: 64}

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "lshift": lambda a, n: a << min(n % (1 << 64), 64),
    "rshift": lambda a, n: a >> min(n % (1 << 64), 64),
    "minimum": min, "maximum": max,
    "fmod": lambda a, b: -(-a % abs(b)) if a < 0 else a % abs(b),
}  # fmt: skip
_COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_UNARY: dict[str, Callable[[int], int]] = {
    "neg": operator.neg, "invert": operator.invert, "abs": abs, "positive": operator.pos,
    "sign": lambda a: int(a > 0), "floor": int, "ceil": int, "trunc": int, "round": int,
}  # fmt: skip
_PYTHON: dict[str, Callable[[Any], Any]] = {
    "__int__": int, "__index__": int, "__float__": float, "__bool__": bool,
}  # fmt: skip
_ALIASES = {
    "floor_divide": "floordiv", "remainder": "mod", "bitwise_and": "and", "bitwise_or": "or",
    "bitwise_xor": "xor", "bitwise_left_shift": "lshift", "bitwise_right_shift": "rshift",
    "bitwise_not": "invert", "absolute": "abs", "negative": "neg", "subtract": "sub",
    "multiply": "mul", "fix": "trunc",
}  # fmt: skip
_BY_VALUE = ("minimum", "maximum", "lshift", "rshift")  # also beyond the range


def promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """torch's promotion; where it has none, for an unsigned integer beside another integer, the
    wider of the two, or the unsigned one of equal width, as in C."""
    if not ({a, b} & UNSIGNED.keys()) or a.is_floating_point or b.is_floating_point:
        return torch.promote_types(a, b)
    return max(a, b, key=lambda d: (0 if d is torch.bool else d.itemsize, d in UNSIGNED))


def wrapped(value: int, dtype: torch.dtype) -> torch.Tensor:
    """An integer of any size as a 0-d tensor of ``dtype``, an integer type."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    signed = dtype.is_signed and value >> (bits - 1)
    return torch.tensor(value - (1 << bits) if signed else value, dtype=dtype, device="cpu")


EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)  # torch computes nothing with these


def read(element: torch.Tensor) -> torch.Tensor:
    """A number as kernels read it from memory: floats of eight bits are float32 then."""
    return element.to(torch.float32) if element.dtype in EIGHT_BITS else element


def rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``value`` in a float of eight bits. Up to PyTorch 2.12 what is too large for e4m3 was NaN;
    now it is 448, the largest number, on each device."""
    if dtype is torch.float8_e4m3fn:
        value = value.to(torch.float32).clamp(-448.0, 448.0)
    return value.to(torch.float32).to(dtype)


def _whole(value: float, dtype: torch.dtype) -> int:
    """A float as an integer of ``dtype``: without its fraction, at the ends of the range beyond
    it, and 0 for NaN."""
    range = torch.iinfo(dtype)
    if value != value:
        return 0
    # Compared with powers of two: the largest integer is no float.
    return range.min if value <= range.min else range.max if value > range.max else int(value)


def stored(value: Any, dtype: torch.dtype) -> Any:
    """What is assigned to an element of ``dtype``. Into integers floats stop at the ends of the
    range, and of those that torch has no arithmetic for, a Python int wraps."""
    if type(value) is int and dtype in UNSIGNED:
        return wrapped(value, dtype)
    if dtype in EIGHT_BITS:
        value = value if isinstance(value, torch.Tensor) else torch.tensor(value, device="cpu")
        return rounded(value, dtype)
    single = isinstance(value, torch.Tensor) and not value.dim() and value.is_floating_point()
    if (single or type(value) is float) and not (dtype.is_floating_point or dtype.is_complex):
        if dtype is torch.bool:
            return value
        return wrapped(_whole(float(value), dtype), dtype)
    return value


def involves_unsigned(args: Sequence[Any]) -> bool:
    """Whether one of ``args`` is a 0-d tensor of these dtypes."""
    return any(isinstance(v, torch.Tensor) and v.dtype in UNSIGNED and not v.dim() for v in args)


def _is_beyond(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a number is compared with an int that its dtype has not, which torch would wrap."""
    whole = getattr(function, "__name__", "").strip("_") in _COMPARISONS
    kinds = [v.dtype for v in args if isinstance(v, torch.Tensor)]
    whole = whole and all(map(_is_integer, args))
    return whole and any(type(v) is int and v != _number(wrapped(v, kinds[0])) for v in args)


def _unsigned(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """``function``, one of torch's, of scalars; ``NotImplemented`` where torch's own is right."""
    word = getattr(function, "__name__", "")
    if word in _PYTHON:
        return _PYTHON[word](args[0].item())
    name = word.strip("_")
    name = _ALIASES.get(name, name)
    if name in _UNARY and len(args) == 1:
        return wrapped(_UNARY[name](args[0].item()), args[0].dtype)
    if word.startswith("__r") and name not in ("rshift",):
        name, args = _ALIASES.get(name[1:], name[1:]), args[::-1]
    if len(args) != 2 or not all(map(_is_integer, args)):
        return NotImplemented
    strong = [a.dtype for a in args if isinstance(a, torch.Tensor)]
    dtype = promoted(strong[0], strong[-1])
    a, b = map(_number, args)
    if name in ("truediv", "div"):  # torch promotes some mixtures only
        return torch.tensor(a, dtype=torch.float32) / torch.tensor(b, dtype=torch.float32)
    if name in _COMPARISONS:
        return torch.tensor(_COMPARISONS[name](a, b), device="cpu")
    if name == "pow" and b >= 0:
        return wrapped(pow(a, b, 1 << 64), dtype)
    if name not in _ARITHMETIC:
        return NotImplemented
    if name not in _BY_VALUE:
        a, b = (_number(wrapped(x, dtype)) for x in (a, b))
    return wrapped(_ARITHMETIC[name](a, b), dtype)


def _number(value: Any) -> int:
    return int(value.item() if isinstance(value, torch.Tensor) else value)


def _is_integer(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        kind = value.dtype
        return not (value.dim() or kind.is_floating_point or kind.is_complex)
    return isinstance(value, int)


class _OfTorch:
    """A type that equals torch's dtype of its name."""

    torch: torch.dtype

    def __eq__(self, other: object) -> bool:
        return self is other or other is self.torch

    def __hash__(self) -> int:
        return hash(self.torch)


@mutable
class DType(_OfTorch):
    """An element type: callable as a cast, usable as an annotation. It equals torch's dtype of that
    name, so that ``x.dtype == weft.f32`` holds of a float32 tensor."""

    name: str  # "f16", "i32", "u8", "bool"
    torch: torch.dtype
    ir: str  # the name of the IR's signless type: u8 is "i8", bool is "i1"
    kind: str  # "float", "int" or "bool"
    bits: int
    signed: bool

    def __repr__(self) -> str:
        return f"weft.{self.name if self.kind != 'bool' else 'bool_'}"

    def __call__(self, value: Any = 0) -> Any:
        """Casts ``value``. Floats become integers by dropping the fraction, integers wrap."""
        if isinstance(value, Elementwise):
            return value.map(self)
        if isinstance(value, bool | int | float | np.generic):
            # Through the widest type, so that integers that do not fit wrap instead of failing.
            with quietly():
                if isinstance(value, float | np.floating):
                    wide = torch.tensor(value, dtype=torch.float64, device="cpu")
                else:
                    wide = wrapped(int(value), torch.int64 if self.signed else torch.uint64)
                return scalar(self._converted(wide))
        if isinstance(value, SYMBOLS):
            kind = torch.float64 if isinstance(value, torch.SymFloat) else torch.int64
            number: Any = value
            with quietly():
                return scalar(self._converted(torch.full((), number, dtype=kind, device="cpu")))
        if isinstance(value, torch.Tensor):
            if value.dim() != 0:
                raise KernelTypeError(
                    f"{self!r}(...) casts a scalar, this tensor has shape {tuple(value.shape)}",
                    help=f"write x.to({self.torch}) for a whole tensor",
                )
            with quietly():
                # A copy also where the dtype fits already: a value must not share memory.
                return scalar(self._converted(value))
        raise KernelTypeError(
            f"{self!r}(...) casts a number, not {type(value).__name__}",
            help="pass a number, an element of a tensor, or a vector",
        )

    def _converted(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of a 0-d tensor in this dtype. Floats stop at the ends of an integer's range."""
        if self.bits == 8 and self.kind == "float":
            return read(rounded(value, self.torch))
        if self.kind != "int" or not value.dtype.is_floating_point:
            return value.to(self.torch, copy=True)
        if stands_for_another(value):
            return value.to(self.torch, copy=True)
        whole = _whole(value.item(), self.torch)
        return torch.tensor(whole, dtype=self.torch, device=value.device)


f8e4m3 = DType("f8e4m3", torch.float8_e4m3fn, "f8e4m3", "float", 8, True)
f8e5m2 = DType("f8e5m2", torch.float8_e5m2, "f8e5m2", "float", 8, True)
f16 = DType("f16", torch.float16, "f16", "float", 16, True)
bf16 = DType("bf16", torch.bfloat16, "bf16", "float", 16, True)
f32 = DType("f32", torch.float32, "f32", "float", 32, True)
f64 = DType("f64", torch.float64, "f64", "float", 64, True)
i8 = DType("i8", torch.int8, "i8", "int", 8, True)
i16 = DType("i16", torch.int16, "i16", "int", 16, True)
i32 = DType("i32", torch.int32, "i32", "int", 32, True)
i64 = DType("i64", torch.int64, "i64", "int", 64, True)
u8 = DType("u8", torch.uint8, "i8", "int", 8, False)
u16 = DType("u16", torch.uint16, "i16", "int", 16, False)
u32 = DType("u32", torch.uint32, "i32", "int", 32, False)
u64 = DType("u64", torch.uint64, "i64", "int", 64, False)
bool_ = DType("bool", torch.bool, "i1", "bool", 1, False)

# Other spellings.
float8_e4m3fn, float8_e5m2 = f8e4m3, f8e5m2
half = float16 = f16
bfloat16 = bf16
float32 = f32
float64 = double = f64
int8, int16, int32, int64, u1 = i8, i16, i32, i64, bool_
uint8, uint16, uint32, uint64 = u8, u16, u32, u64

DTYPES: dict[str, DType] = {
    t.name: t
    for t in (f8e4m3, f8e5m2, f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)
}  # fmt: skip
_BY_TORCH = {t.torch: t for t in DTYPES.values()}
_BY_NUMPY = {str(t.torch).removeprefix("torch."): t for t in DTYPES.values()
             if t not in (bf16, f8e4m3, f8e5m2)}  # fmt: skip


def from_torch(dtype: torch.dtype) -> DType:
    """The element type of torch tensors of ``dtype``. Raises KernelTypeError for others."""
    if dtype not in _BY_TORCH:
        raise KernelTypeError(f"weft has no {dtype}", help=f"use one of {', '.join(DTYPES)}")
    return _BY_TORCH[dtype]


def from_numpy(dtype: Any) -> DType:
    """The element type of a numpy dtype. Raises KernelTypeError where weft has none."""
    name = np.dtype(dtype).name
    if name not in _BY_NUMPY:
        raise KernelTypeError(f"weft has no numpy.{name}", help=f"use one of {', '.join(DTYPES)}")
    return _BY_NUMPY[name]


def to_numpy(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype. Raises KernelTypeError for those that numpy does not have: bf16 and floats
    of 8 bits."""
    for name, candidate in _BY_NUMPY.items():
        if candidate is dtype:
            return np.dtype(name)
    name = str(dtype.torch).removeprefix("torch.")
    raise KernelTypeError(f"numpy has no {name}", help="cast to weft.f32 first")


def as_dtype(dtype: Any, *, default_fp: DType = f32, default_ip: DType = i32) -> DType:
    """A DType from a DType, a ``torch.dtype``, or Python's ``float``, ``int`` and ``bool``."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, torch.dtype):
        return from_torch(dtype)
    python = {float: default_fp, int: default_ip, bool: bool_}
    if isinstance(dtype, type) and dtype in python:
        return python[dtype]
    raise KernelTypeError(f"{dtype!r} is not a dtype", help="write weft.f32, or torch.float32")


@mutable
class ComplexType(_OfTorch):
    """A type of complex numbers: callable as a cast. It equals torch's dtype of that name."""

    name: str  # "c64"
    torch: torch.dtype
    part: str  # the name of the type of its parts

    def __repr__(self) -> str:
        return f"weft.{self.name}"

    def __call__(self, value: Any = 0) -> Any:
        """Casts a number or a 0-d tensor. Raises ``KernelTypeError`` for anything else."""
        if isinstance(value, torch.Tensor) and value.dim() == 0:
            with quietly():
                return scalar(value.to(self.torch, copy=True))
        if isinstance(value, bool | int | float | complex):
            with quietly():
                made = torch.tensor(complex(value), dtype=torch.complex128, device="cpu")
                return scalar(made.to(self.torch))
        raise KernelTypeError(
            f"{self!r}(...) casts a number, not {type(value).__name__}",
            help=f"pass a number or an element; of a whole tensor, write z.to({self.torch})",
        )


c64 = complex64 = ComplexType("c64", torch.complex64, "f32")
c128 = complex128 = ComplexType("c128", torch.complex128, "f64")
COMPLEX: dict[torch.dtype, ComplexType] = {t.torch: t for t in (c64, c128)}


def complex_type(dtype: Any) -> ComplexType | None:
    """The complex type that ``dtype``, weft's or torch's, stands for; None if it is a real one."""
    if isinstance(dtype, torch.dtype):
        return COMPLEX.get(dtype)
    return dtype if isinstance(dtype, ComplexType) else None


# --- the kernel's own float, of floats that meet no tensor
_WIDE: ContextVar[Callable[[], bool]] = ContextVar("weft_own_float", default=lambda: False)


class Weak(Scalar):
    """A float64 that takes the dtype of a float that is read from a tensor, as Python's do."""


@contextmanager
def computing(wide: Callable[[], bool]) -> Generator[None]:
    """``wide`` says whether the kernel's own float is f64: else it is f32, which torch gives an
    integer beside one of Python's floats."""
    before = _WIDE.set(wide)
    try:
        yield
    finally:
        _WIDE.reset(before)


def own_float() -> torch.dtype:
    return torch.float64 if _WIDE.get()() else torch.float32


def owned(value: torch.Tensor) -> Scalar:
    """``value`` as the kernel's own float."""
    if not _WIDE.get()():
        return f32(value)
    with quietly():
        return value.to(torch.float64).as_subclass(Weak)


def to_float(value: Any) -> Any:
    """``value`` if it is a float; else as one: Python's of a weak int, the own of a strong one."""
    if isinstance(value, torch.Tensor):
        return value if value.dtype.is_floating_point else owned(value)
    return float(value)


def is_float(value: Any) -> bool:
    """Whether ``value`` is a tensor of floats, or of complex numbers."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.dtype.is_floating_point or value.dtype.is_complex


def is_strong(value: Any) -> bool:
    """Whether ``value`` is a float, or complex, whose dtype is that of a tensor or a cast."""
    return is_float(value) and not isinstance(value, Weak)


def joined(*values: Any) -> torch.dtype:
    """torch's promotion of numbers, with the kernel's own float."""
    if _WIDE.get()() and not any(map(is_strong, values)):
        weak = any(isinstance(v, float | Weak) for v in values)
        return torch.float64 if weak else torch.result_type(*values)
    return torch.result_type(*(v.item() if isinstance(v, Weak) else v for v in values))


def weakly(value: torch.Tensor, *operands: Any) -> torch.Tensor:
    """``value``, one of ``operands`` or computed of them: weak where they all are."""
    weak = _WIDE.get()() and value.dtype is torch.float64 and not any(map(is_strong, operands))
    return value.as_subclass(Weak) if weak else value


def total(items: Iterable[Any]) -> Any:
    return reduce(operator.add, items)
