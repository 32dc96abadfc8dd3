"""Whether a loop that is interpreted takes a tensor or a number of float64: its own float, which
numbers have that meet no tensor, is f64 then."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Iterable
from typing import Any

import torch

from weft.frontend.names import is_known
from weft.lang.dtypes import Number, f64
from weft.lang.elements import Elementwise
from weft.lang.structs import StructField

_WIDE = (torch.float64, torch.complex128)


def reads_f64(names: Iterable[str], frame: types.FrameType) -> bool:
    """Whether one of ``names``, which may be dotted, is or holds float64 in ``frame``. Functions
    hold what they reach by themselves."""
    return any(_is_wide(_value(name, frame), set()) for name in names)


def _value(name: str, frame: types.FrameType) -> Any:
    root, *members = name.split(".")
    value = frame.f_locals.get(root, frame.f_globals.get(root))
    for member in members:
        value = getattr(value, member, None)
    return value


def _is_wide(value: Any, seen: set[int]) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype in _WIDE
    if isinstance(value, Number):
        return value.dtype is f64
    if value is None or isinstance(value, str | int | float) or id(value) in seen:
        return False
    seen.add(id(value))
    return any(_is_wide(held, seen) for held in _held(value))


def _held(value: Any) -> Iterable[Any]:
    """What a loop takes along with ``value``."""
    if isinstance(value, Elementwise):
        return value.entries()
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, torch.nn.Module):
        return (*value.parameters(), *value.buffers())
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, types.MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, types.FunctionType):
        return () if is_known(value) else _reached(value)
    if isinstance(value, StructField) or dataclasses.is_dataclass(value):
        return vars(value).values() if hasattr(value, "__dict__") else ()
    return ()


def _reached(function: types.FunctionType) -> list[Any]:
    inner: Any = inspect.unwrap(function)  # also of what ``functools.cache`` is around
    code, around = inner.__code__, inner.__globals__
    cells = dict(zip(code.co_freevars, inner.__closure__ or (), strict=True))
    found = [around.get(name) for name in code.co_names]
    for cell in cells.values():
        if cell != types.CellType():
            found.append(cell.cell_contents)
    return found
