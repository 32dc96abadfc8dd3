"""Tensors among the inputs of an operator, and in the lists among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.values import frozen


@frozen
class Structure:
    """Where tensors are among an operator's inputs: for each input 1, the length of a list of
    tensors as a tuple of one, or None; and the inputs that are no tensors."""

    places: tuple[int | tuple[int] | None, ...]
    others: tuple[Any, ...]

    @staticmethod
    def of(inputs: Sequence[Any]) -> tuple[list[torch.Tensor], Structure]:
        """The tensors in ``inputs``, and where they were."""
        tensors: list[torch.Tensor] = []
        places: list[int | tuple[int] | None] = []
        others: list[Any] = []
        for value in inputs:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                places.append(1)
            elif isinstance(value, list | tuple) and all(
                isinstance(v, torch.Tensor) for v in value
            ):
                tensors += value
                places.append((len(value),))
            else:
                others.append(value)
                places.append(None)
        return tensors, Structure(tuple(places), tuple(others))

    def inputs(self, tensors: Sequence[Any], *, others: bool = True) -> list[Any]:
        """The inputs again, with ``tensors`` in their places; without ``others``, None for them."""
        given, rest = iter(tensors), iter(self.others)

        def value(place: int | tuple[int] | None) -> Any:
            if place is None:
                return next(rest) if others else None
            if isinstance(place, int):
                return next(given)
            return [next(given) for _ in range(place[0])]

        return [value(place) for place in self.places]


def items(out: Any) -> Sequence[Any]:
    """What a function gives, one by one."""
    return out if isinstance(out, tuple | list) else (out,)
