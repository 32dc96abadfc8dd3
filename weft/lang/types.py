"""``weft.types``: element types, and annotations of kernel parameters."""

from __future__ import annotations

import importlib
from typing import Any

from weft.errors import KernelValueError
from weft.lang.dtypes import (
    DTYPES,
    DType,
    as_dtype,
    bf16,
    bfloat16,
    bool_,
    double,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    from_numpy,
    from_torch,
    half,
    i8,
    i16,
    i32,
    i64,
    int8,
    int16,
    int32,
    int64,
    to_numpy,
    u1,
    u8,
    u16,
    u32,
    u64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from weft.lang.vectors import MatrixType, VectorType
from weft.values import frozen

__all__ = [
    "DTYPES", "DType", "MatrixType", "NDArrayType", "Template", "VectorType", "as_dtype", "bf16",
    "bfloat16", "bool_", "double", "f8e4m3", "f8e5m2", "f16", "f32", "f64", "float8_e4m3fn",
    "float8_e5m2", "float16", "float32",
    "float64",
    "from_numpy", "from_torch", "half", "i8", "i16", "i32", "i64", "int8", "int16", "int32",
    "int64", "is_integral", "is_real", "is_signed", "is_tensor", "matrix", "ndarray", "template",
    "to_numpy", "u1", "u8", "u16",
    "u32", "u64", "uint8", "uint16", "uint32", "uint64", "vector",
]  # fmt: skip


@frozen
class NDArrayType:
    """A tensor parameter. What is None is not checked. ``element_shape`` counts as last dims.
    ``boundary`` is "unsafe" or "clamp"; ``needs_grad`` False cuts gradients off."""

    dtype: DType | None = None
    ndim: int | None = None
    element_shape: tuple[int, ...] = ()
    element_dim: int | None = None
    needs_grad: bool | None = None
    boundary: str = "unsafe"

    @property
    def rank(self) -> int | None:
        """Dimensions of the torch tensor, those of the elements included."""
        inner = len(self.element_shape) or self.element_dim or 0
        return None if self.ndim is None else self.ndim + inner


def ndarray(
    dtype: Any = None,
    ndim: int | None = None,
    *,
    element_dim: int | None = None,
    element_shape: tuple[int, ...] = (),
    needs_grad: bool | None = None,
    boundary: str = "unsafe",
) -> NDArrayType:
    """Annotates a tensor parameter: ``x: weft.types.ndarray(dtype=weft.f32, ndim=2)``.

    ``dtype`` may be a vector or matrix type: its dimensions are the last of the torch tensor.
    ``needs_grad=False``: no gradient goes through the parameter. ``boundary="clamp"``: subscripts
    in device loops are moved into the tensor's range; "unsafe" leaves them as they are.
    """
    if boundary not in ("unsafe", "clamp"):
        raise KernelValueError(
            f"`boundary` is {boundary!r}", help='write "unsafe" or "clamp"; what is out of range '
            "is an error with @weft.kernel(debug=True)",
        )  # fmt: skip
    options: dict[str, Any] = {
        "element_dim": element_dim, "needs_grad": needs_grad, "boundary": boundary,
    }  # fmt: skip
    if isinstance(dtype, VectorType | MatrixType):
        return NDArrayType(dtype.dtype, ndim, dtype.shape, **options)
    kind = None if dtype is None else as_dtype(dtype)
    return NDArrayType(kind, ndim, tuple(element_shape), **options)


def is_integral(dtype: Any) -> bool:
    """Whether ``dtype`` (weft's, torch's, ``int`` or ``float``) is one of integers."""
    return as_dtype(dtype).kind in ("int", "bool")


def is_real(dtype: Any) -> bool:
    """Whether ``dtype`` is one of floats."""
    return as_dtype(dtype).kind == "float"


def is_signed(dtype: Any) -> bool:
    """Whether ``dtype`` is one of integers with a sign."""
    kind = as_dtype(dtype)
    return kind.kind == "int" and kind.signed


def is_tensor(dtype: Any) -> bool:
    """Whether ``dtype`` is a vector or matrix type."""
    return isinstance(dtype, VectorType | MatrixType)


TYPE_QUESTIONS = (is_integral, is_real, is_signed, is_tensor)


def __getattr__(name: str) -> Any:
    """``struct`` and ``argpack``, which are imported when they are asked for."""
    if name in ("struct", "argpack"):
        return getattr(importlib.import_module("weft.lang.structs"), name)
    raise AttributeError(f"module 'weft.types' has no attribute {name!r}")


def vector(n: int, dtype: Any) -> VectorType:
    """The type of vectors of ``n`` elements of ``dtype``."""
    kind = as_dtype(dtype)
    return VectorType(n, kind.kind, kind)


def matrix(n: int, m: int, dtype: Any) -> MatrixType:
    """The type of ``n`` by ``m`` matrices of ``dtype``."""
    kind = as_dtype(dtype)
    return MatrixType(n, m, kind.kind, kind)


@frozen
class Template:
    """What ``template()`` gives."""


def template(*_: Any, **__: Any) -> Template:
    """Annotates a parameter whose value specialises the kernel; ``template`` alone does too."""
    return Template()


def ref(dtype: Any) -> Template:
    """Annotates a parameter of a function that loops call: the caller's variable itself."""
    return Template()


def is_template(annotation: object) -> bool:
    """Whether ``annotation`` is ``template()``, ``template`` or ``Template``."""
    return annotation is template or annotation is Template or isinstance(annotation, Template)
