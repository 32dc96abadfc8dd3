"""The complex types: ``weft.c64`` and ``weft.c128``, whose parts are f32 and f64."""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import KernelTypeError
from weft.lang.dtypes import Scalar, quietly
from weft.values import mutable


@mutable
class ComplexType:
    """A type of complex numbers: callable as a cast. It equals torch's dtype of that name."""

    name: str  # "c64"
    torch: torch.dtype
    part: str  # the name of the type of its parts

    def __eq__(self, other: object) -> bool:
        return self is other or other is self.torch

    def __hash__(self) -> int:
        return hash(self.torch)

    def __repr__(self) -> str:
        return f"weft.{self.name}"

    def __call__(self, value: Any = 0) -> Any:
        """Casts a number or a 0-d tensor. Raises ``KernelTypeError`` for anything else."""
        if isinstance(value, torch.Tensor) and value.dim() == 0:
            with quietly():
                plain = value.as_subclass(torch.Tensor)
                return plain.to(self.torch, copy=True).as_subclass(Scalar)
        if isinstance(value, bool | int | float | complex):
            with quietly():
                made = torch.tensor(complex(value), dtype=torch.complex128, device="cpu")
                return made.to(self.torch).as_subclass(Scalar)
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
