"""Kernels as operators of what their arguments hold: the members of collections (lists of several
things, dicts, named tuples, dataclasses), and the attributes that a kernel reads of other objects
(modules).

PyTorch's graphs hold tensors and numbers. A call with such arguments is taken apart by plain Python
that Dynamo traces; the operator puts them together again, and carries the kernel out.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch

from weft.frontend.members import parts_of
from weft.frontend.names import bound_names, dotted, root_name
from weft.frontend.parameters import Parameter, as_call
from weft.frontend.split import HostPart
from weft.lang.dtypes import DType
from weft.pytorch.changing import without_symbols
from weft.pytorch.identity import chains
from weft.runtime.launch import KernelLike, Launcher
from weft.source import subtree

# schema type of a Python value's type
_SCALARS = {int: "SymInt", float: "float", bool: "bool", complex: "Scalar", torch.SymInt: "SymInt",
            torch.SymFloat: "float", torch.SymBool: "bool"}  # fmt: skip
_NUMBERS = tuple(_SCALARS)
# Types of values, beside collections, that an operator may have fixed in it under torch.compile.
_FIXED = (str, type(None), torch.dtype, torch.device, DType, Enum, type, FunctionType,
          BuiltinFunctionType)  # fmt: skip
_NAMELESS = (list, dict)  # what Dynamo traces; it does not trace `list | dict`
_DEEPEST = 8
# What an argument is like: "tensor", "other" (a number, or what is fixed), or its kind, the names
# of its members (or ()), and what these are like; "whole" or "object" where it stays as it
# is. (Plain values, as Dynamo wants constants.)
Like = str | tuple[type, tuple[Any, ...], tuple[Any, ...]]
# What a kernel reads of an argument: names of attributes, and what is read of these; () of one that
# it names by itself.
Reads = tuple[tuple[str, Any], ...]


def reads_of(tree: ast.FunctionDef, names: Sequence[str]) -> tuple[Reads, ...]:
    """What the text of a kernel reads of each of what it knows by these dotted ``names``, or by a
    local name for a part of it (``c = held.child``)."""
    found: dict[str, dict[str, Any] | None] = {name: {} for name in names}
    called = _local_names(tree, {name.partition(".")[0] for name in names})

    def steps(chain: ast.expr) -> list[str]:
        first, *rest = dotted(chain).split(".")
        return [*steps(called[first]), *rest] if first in called else [first, *rest]

    changed = {
        steps(n)[0] for n in subtree(tree)
        if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load) and root_name(n)
    }  # fmt: skip
    for statement in tree.body:
        for chain in chains(statement, frozenset(called.values())):
            path = steps(chain)
            for k in range(1, len(path) + 1):
                place = ".".join(path[:k])
                if place in found:
                    found[place] = None if path[0] in changed else _add(found[place], path[k:])
    return tuple(_frozen(found[name]) for name in names)


def _local_names(tree: ast.FunctionDef, known: set[str]) -> dict[str, ast.expr]:
    """The names that ``tree`` gives, once each, to what others hold, by what they stand for."""
    bound = [name for statement in tree.body for name in bound_names(statement)]
    found: dict[str, ast.expr] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                root = root_name(value)
                if root in known | {*found} and name not in known and bound.count(name) == 1:
                    found[name] = value
            case _:
                pass
    return found


def _add(at: dict[str, Any] | None, steps: Sequence[str]) -> dict[str, Any] | None:
    """``at`` with one more read; None where it is used as a whole."""
    if at is None or not steps:
        return None
    first, *rest = steps
    return at | {first: _add(at.get(first, {}), rest)}


def _frozen(read: dict[str, Any] | None) -> Reads:
    return tuple((name, _frozen(inner)) for name, inner in (read or {}).items())


def schema_type(parameter: Parameter, value: Any) -> str:
    """The schema type that ``value`` is passed as; "" if it is fixed in the operator."""
    if parameter.kind in ("ScalarType", "Device"):
        return parameter.kind
    if isinstance(value, torch.Tensor):
        return "Tensor?" if parameter.optional and parameter.kind == "tensor" else "Tensor"
    if value is None:
        return "Tensor?" if parameter.optional and parameter.kind == "tensor" else ""
    if parameter.kind == "template":
        return ""
    kind = _SCALARS.get(type(value), "")
    if kind == "SymInt" and parameter.kind == "float":
        return "float"
    if kind:
        return kind
    if isinstance(value, list | tuple) and value and not hasattr(value, "_fields"):
        first = schema_type(parameter, value[0])
        if first and all(schema_type(parameter, item) == first for item in value):
            return f"{first}[]" if "[" not in first else ""
    return ""


def is_fixed(value: Any) -> bool:
    """Whether an operator may have ``value`` fixed in it: Dynamo, which traces this, guards it."""
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return all(is_fixed(item) for item in value)
    return isinstance(value, (*_FIXED, *_NUMBERS, MethodType))


def members_of(
    parameters: Sequence[Parameter], reads: Sequence[Reads], values: Sequence[Any],
    traced: bool = False,
) -> tuple[tuple[Like, ...], tuple[Any, ...]]:  # fmt: skip
    """What each argument is like, and what all of them hold. Those that are passed as they are: as
    "whole", and as "object" where nothing else can be done. (Not ``traced``, objects without
    tensors may be fixed in the operator.) Dynamo traces this."""
    likes: list[Like] = []
    members: list[Any] = []
    for parameter, read, value in zip(parameters, reads, values, strict=True):
        whole: Like = "whole"
        if schema_type(parameter, value) == "" and not is_fixed(value):
            found: list[Any] = []
            like = taken_apart(value, read, found)
            whole = "object"
            if like is not None and (traced or any(isinstance(v, torch.Tensor) for v in found)):
                likes.append(like)
                members += found
                continue
        likes.append(whole)
        members.append(value)
    return tuple(likes), tuple(members)


def key_of(likes: Sequence[Like]) -> str:
    """A text that tells these from others: classes by identity."""

    def keyed(like: Like) -> Any:
        if isinstance(like, str):
            return like
        return like[0].__qualname__, id(like[0]), like[1], [keyed(inner) for inner in like[2]]

    return repr([keyed(like) for like in likes])


def taken_apart(value: Any, reads: Reads, found: list[Any], depth: int = 0) -> Like | None:
    """What ``value`` is like, of which a kernel reads this; adds what it holds to ``found``. None
    where it cannot be taken apart. Dynamo traces this."""
    if isinstance(value, torch.Tensor):
        found.append(value)
        return "tensor"
    if isinstance(value, (*_FIXED, *_NUMBERS)):
        found.append(value)
        return "other"
    if depth == _DEEPEST:
        return None
    parts, inner = _read(value, reads), [read for _, read in reads]
    if parts is None:
        parts = _made_of(value) or parts_of(value)
        if parts is None:
            return None
        inner = [() for _ in parts[2]]
    kind, names, items = parts
    likes: list[Like] = []
    for item, read in zip(items, inner, strict=True):
        like = taken_apart(item, read, found, depth + 1)
        if like is None:
            return None
        likes.append(like)
    return kind, tuple(names), tuple(likes)


def _made_of(value: Any) -> tuple[type, tuple[Any, ...], Sequence[Any]] | None:
    """What a range or a function with arguments of its own was made of; None of another value."""
    if isinstance(value, range):
        return range, (), [value.start, value.stop, value.step]
    if isinstance(value, functools.partial):
        keywords = value.keywords
        items = [value.func, *value.args, *keywords.values()]
        if torch.compiler.is_dynamo_compiling():  # a loop has what it calls compiled in
            items = [without_symbols(item) for item in items]
        return functools.partial, tuple(keywords), items
    return None


def _read(value: Any, reads: Reads) -> tuple[type, tuple[Any, ...], Sequence[Any]] | None:
    """An object as the attributes that are read of it; None where one of them is a method, which
    reads others."""
    if not reads or isinstance(value, _NAMELESS):
        return None
    items: list[Any] = []
    for name, _ in reads:
        if not hasattr(value, name):
            return None
        item = getattr(value, name)
        if isinstance(item, MethodType):
            return None
        items.append(item)
    return SimpleNamespace, tuple([name for name, _ in reads]), items


def put_together(like: Like, given: Iterator[Any]) -> Any:
    """A value that is like that, of the members ``given``."""
    if isinstance(like, str):
        return next(given)
    kind, names, likes = like
    items = [put_together(inner, given) for inner in likes]
    if kind is SimpleNamespace:
        return SimpleNamespace(**dict(zip(names, items, strict=True)))
    if kind is dict:
        return dict(zip(names, items, strict=True))
    if kind in (list, tuple):
        return kind(items)
    if kind is range:
        return range(*items)
    if kind is functools.partial:
        plain = len(items) - len(names)
        return functools.partial(*items[:plain], **dict(zip(names, items[plain:], strict=True)))
    if issubclass(kind, tuple):
        return tuple.__new__(kind, items)
    made = object.__new__(kind)  # its __init__ and __post_init__ have run
    for name, item in zip(names, items, strict=True):
        object.__setattr__(made, name, item)
    return made


def _leaves(name: str, like: Like) -> Iterator[tuple[str, str]]:
    """The members, by names for parameters of their own."""
    if isinstance(like, str):
        yield name, like
        return
    for k, inner in enumerate(like[2]):
        yield from _leaves(f"{name}_{like[1][k] if len(like[1]) == len(like[2]) else k}", inner)


class MemberKernel:
    """``kernel`` as one of what its arguments hold. ``likes``: what each argument is like."""

    def __init__(self, kernel: KernelLike, likes: Sequence[Like]) -> None:
        self.kernel, self.likes = kernel, likes
        self.__name__, self.function, self.span = kernel.__name__, kernel.function, kernel.span
        self.source, self.implementations = kernel.source, kernel.implementations
        self.described = {**kernel.described, "members": likes}
        parts, written = kernel.parts, set[str]()
        self.origins: list[int] = []  # for each of its parameters that of ``kernel``
        taken = {p.name for p in parts.parameters}
        parameters: list[Parameter] = []
        for k, (parameter, like) in enumerate(zip(parts.parameters, likes, strict=True)):
            for name, leaf in _leaves(parameter.name, like):
                own = replace(parameter, position=inspect.Parameter.POSITIONAL_OR_KEYWORD)
                if leaf not in ("whole", "object"):
                    while name in taken:
                        name += "_"
                    taken.add(name)
                    own = Parameter(name)
                parameters.append(own)
                self.origins.append(k)
                if parameter.name in parts.mutated and leaf != "other":
                    written.add(own.name)
        self.mutated = frozenset(written)
        others = parts.mutated - {p.name for p in parts.parameters}
        self.parts = HostPart(
            self._host, parts.regions, self.mutated | others, parts.returns, tuple(parameters)
        )

    def bind(self, args: Sequence[Any], _: dict[str, Any]) -> Any:
        names = [p.name for p in self.parts.parameters]
        return SimpleNamespace(arguments=dict(zip(names, args, strict=True)))

    def _call(self, values: Iterable[Any]) -> tuple[list[Any], dict[str, Any]]:
        given = iter(values)
        whole = [put_together(like, given) for like in self.likes]
        return as_call(self.kernel.parts.parameters, whole)

    def _host(self, launchers: Sequence[Callable[..., Any]], *values: Any) -> Any:
        args, kwargs = self._call(values)
        return self.kernel.parts.host(launchers, *args, **kwargs)

    def unconverted(self, *values: Any) -> Any:
        args, kwargs = self._call(values)
        return self.kernel.unconverted(*args, **kwargs)

    def __call__(self, *values: Any) -> Any:
        """In front of this, Dynamo breaks a graph that cannot have one of the members."""
        return self.unconverted(*values)

    def recipe(self) -> None:
        """Its host part is none that machine code carries out."""

    @property
    def launchers(self) -> list[Launcher]:
        return self.kernel.launchers

    def current_launchers(self) -> Sequence[Callable[..., Any]]:
        return self.kernel.current_launchers()
