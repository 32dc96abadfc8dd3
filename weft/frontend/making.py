"""Objects of classes that begin their objects themselves, by ``__init__`` or ``__post_init__``.

While that runs, inlined, the object is a ``Making``: its members are put one after another, in the
order of the text. Then it is an object like those of dataclasses.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from abc import ABCMeta
from typing import Any

import torch

from weft.errors import KernelTypeError
from weft.frontend import named, objects, records
from weft.frontend.arguments import keywords, positional
from weft.frontend.context import Lowering
from weft.frontend.kinds import Operand, Static, Tup
from weft.frontend.objects import Making
from weft.frontend.scope import Guard

# What classes have that begin, find or set members in ways of their own.
_OWN_WAYS = ("__setattr__", "__getattr__", "__getattribute__", "__new__")


def begins(kind: Any) -> str:
    """The method by which ``kind``, a class, begins an object; "" where that is not inlined."""
    if not isinstance(kind, type) or type(kind) not in (type, ABCMeta):
        return ""
    if issubclass(kind, torch.nn.Module | BaseException | torch.Tensor | tuple):
        return ""
    if kind.__new__ is not object.__new__ or any(named.written(kind, n) for n in _OWN_WAYS):
        return ""
    if dataclasses.is_dataclass(kind) and named.written(kind, "__post_init__"):
        params = vars(kind).get("__dataclass_params__")
        plain = params is not None and params.init and not params.frozen
        return "__post_init__" if plain and not named.written(kind, "__init__") else ""
    return "__init__" if named.written(kind, "__init__") else ""


def make(cx: Lowering, node: ast.Call, kind: Any, how: str) -> Operand:
    """``kind(...)``, whose method ``how`` is inlined."""
    span, given, by_name = cx.span(node), positional(cx, node), keywords(cx, node)
    members: dict[str, Operand] = {}
    if how == "__post_init__":
        made = records.make(cx, kind, given, by_name, span)
        assert isinstance(made, Tup)
        members = dict(zip(made.names, made.items, strict=True))
        given, by_name = [], {}
    function = inspect.getattr_static(kind, how)
    cx.guards.append(Guard(kind, how, function))
    new = Making(kind, members, cx.builder.block)
    del cx.pending[cx.begin :]  # the method has these now
    named.called(cx, Static(function), [Static(new), *given], by_name, span, node)
    if not members:
        raise KernelTypeError(f"`{kind.__name__}` makes an object without members", span,
                              help="call its functions by the class")  # fmt: skip
    for name, x in members.items():
        if objects.holds(x, new):
            raise KernelTypeError(
                f"the member `{name}` holds the object itself, which is being made", span,
                help="hand the object to functions, or call its methods by their names",
            )  # fmt: skip
    return Tup(list(members.values()), tuple(members), kind, objects.site(cx, span))
