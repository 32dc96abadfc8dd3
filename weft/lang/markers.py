"""Decorators that mark functions and classes for kernels, and change nothing in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

MARK = "__weft_func__"


def func(function: F) -> F:
    """Marks a function or method as one that kernels call: it is inlined there."""
    setattr(function, MARK, True)
    return function


def is_func(function: object) -> bool:
    """Whether ``function`` was marked with ``weft.func``."""
    return getattr(function, MARK, False) is True


def data_oriented(cls: C) -> C:
    """Taichi's class decorator. weft needs none: it gives the class back."""
    return cls
