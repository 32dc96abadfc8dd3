"""What a call changes: put back after each, and compared between two ways to compute it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

# How far two orders of one sum may be apart, in units of the last place of the largest element: a
# sum of n numbers is wrong by some sqrt(n) of them, and 2^20 numbers are many. Where elements have
# 16 bits, sums are of 32, and rounded at the end.
_ULPS, _ULPS_16 = 1024, 8


def tensors_in(values: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """The tensors in ``values``: in containers, and in what objects have."""
    if isinstance(values, torch.Tensor):
        yield values
    elif depth == 0 or isinstance(values, str | bytes | int | float | type):
        return
    elif isinstance(values, list | tuple | set | frozenset):
        for value in values:  # pyright: ignore[reportUnknownVariableType]
            yield from tensors_in(value, depth - 1)
    elif isinstance(values, dict):
        yield from tensors_in([*values.values()], depth)  # pyright: ignore[reportUnknownArgumentType]
    elif hasattr(values, "__dict__"):
        yield from tensors_in(vars(values), depth - 1)


class Kept:
    """The contents of tensors, and the states of the generators of random numbers, as they are."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        self.tensors = [*{id(t): t for t in tensors}.values()]
        self.counted = tuple(t for t in self.tensors if not t.is_inference())
        self.contents = [t.detach().clone() for t in self.tensors]
        self.device = device if device.type == "cuda" else None
        self.random = torch.get_rng_state()
        self.random_there = torch.cuda.get_rng_state(self.device) if self.device else None

    def restore(self) -> None:
        """Puts all of it back. Autograd does not count that, or what was done in between, if
        ``unseen`` is around both."""
        torch.set_rng_state(self.random)
        if self.random_there is not None:
            torch.cuda.set_rng_state(self.random_there, self.device or "cuda")
        self.restore_contents()

    def restore_contents(self) -> None:
        with torch.no_grad():
            for tensor, content in zip(self.tensors, self.contents, strict=True):
                tensor.detach().copy_(content)

    def unseen(self) -> Any:
        """A context whose writes to these tensors autograd does not count."""
        return torch.autograd._unsafe_preserve_version_counter(self.counted)  # pyright: ignore


def difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], exact: bool) -> str:
    """How the tensors ``found`` differ from those ``expected``; "" where they are the same
    (``exact``), or as near as two orders of the same sums are."""
    if [(t.size(), t.dtype) for t in found] != [(t.size(), t.dtype) for t in expected]:
        return "shapes or dtypes differ"
    for one, other in zip(found, expected, strict=True):
        unlike = (_bytes(one) != _bytes(other)).any(dim=1)
        if not unlike.any():
            continue
        if exact or not one.dtype.is_floating_point:
            return f"{int(unlike.sum())} of {one.numel()} elements differ"
        a, b = one.double(), other.double()
        finite = a.isfinite() & b.isfinite()
        if not torch.equal(a[~finite].nan_to_num(0.5), b[~finite].nan_to_num(0.5)):
            return "infinities or NaNs differ"
        most, scale = float((a - b)[finite].abs().max()), float(b[finite].abs().max())
        ulps = _ULPS_16 if one.element_size() == 2 else _ULPS
        if most > ulps * torch.finfo(one.dtype).eps * scale:
            return f"the largest difference is {most:.3g}, the largest element {scale:.3g}"
    return ""


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of each element, in which a NaN equals itself."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).reshape(flat.numel(), tensor.element_size())
