"""What may be read of an object that is given away, or picked among others: all that the attributes
which a text has lead to."""

from __future__ import annotations

import collections
import functools
import inspect
import sys
import types
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

import torch

# pyright: reportPrivateUsage=false
from weft.frontend.names import KNOWN_MODULES, MISSING
from weft.lang import names

_MOST = 256  # things met from one place: Dynamo has a guard for each
_FARTHEST = 8  # steps
CONTAINERS = (dict, list, tuple, collections.deque, types.MappingProxyType)
_FIXED = (str, bytes, int, float, complex, torch.Tensor, type(None))


def reachable(
    place: str, value: Any, attributes: Set[str]
) -> Iterator[tuple[str, Any, str]]:  # fmt: skip
    """What is met at and behind ``value``, which is at ``place``, by items and by ``attributes``,
    each with its place and its owner's; functions of its class, too, those which others override
    behind them. Nothing of it is carried out."""
    left, seen = [(place, value, "")], set[int]()
    for at, met, owner in left:
        yield at, met, owner
        far = at.count(".") + at.count("[") > place.count(".") + place.count("[") + _FARTHEST
        if isinstance(met, _FIXED) or id(met) in seen or len(left) > _MOST or far:
            continue
        seen.add(id(met))
        left += [(text.replace("{}", at, 1), inner, at) for text, inner in _items(met)]
        left += [(f"{at}.{name}", inner, at) for name, inner in _members(met, attributes)]


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, range):
        for name in ("start", "stop", "step"):
            yield "{}." + name, getattr(value, name)
    elif isinstance(value, torch.nn.Module):
        yield "len({}._modules)", len(value._modules)
        for name, child in value._modules.items():
            yield "{}" + f"._modules[{name!r}]", child
    elif isinstance(value, set | frozenset):
        if len({type(item) for item in value}) == 1 and isinstance(next(iter(value)), int | str):
            yield "sorted({})", sorted(value)
        yield "len({})", len(value)
    elif has_items(value) and len(value) <= _MOST:
        keyed = isinstance(value, dict | types.MappingProxyType)
        if keyed and not all(isinstance(key, int | str) for key in value):
            return
        yield ("tuple({})", (*value,)) if keyed else ("len({})", len(value))
        for key in value if keyed else range(len(value)):
            yield "{}" + f"[{key!r}]", value[key]


def has_items(value: Any) -> bool:
    """Whether it has items that no function of a user's gives."""
    asked = [getattr(type(value), f"__{name}__", None) for name in ("getitem", "len", "iter")]
    return isinstance(value, CONTAINERS) and types.FunctionType not in map(type, asked)


def _members(value: Any, attributes: Set[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | torch.optim.Optimizer):
        return
    if isinstance(value, types.ModuleType) and not is_users(value.__name__):
        return
    own = value if isinstance(value, type) else type(value)
    for name in sorted(attributes):
        found = member(value, name)
        if found is not MISSING:
            yield name, found
        if is_users(own.__module__):
            for base in own.__mro__[1:]:
                inherited = vars(base).get(name)
                if isinstance(inherited, types.FunctionType | property) and inherited is not found:
                    yield name, inherited


def member(base: Any, name: str) -> Any:
    """The attribute of an object, for which nothing is carried out: a property itself, say."""
    if base is MISSING or not is_plain(base):
        return MISSING
    if isinstance(base, types.ModuleType):
        return names.member(base, name, MISSING)
    if isinstance(base, torch.nn.Module):  # which has these apart
        for own in (base._parameters, base._buffers, base._modules):
            if name in own:
                return own[name]
    if isinstance(base, types.MethodType | functools.partial):
        return getattr(base, name, MISSING)
    found = inspect.getattr_static(base, name, MISSING)
    if isinstance(found, types.MemberDescriptorType | _FieldOfTuple):  # of ``__slots__``
        return MISSING if isinstance(base, type) else getattr(base, name, MISSING)
    return found


class _Named(NamedTuple):
    field: int


_FieldOfTuple: Any = type(vars(_Named)["field"])


def is_plain(value: Any) -> bool:
    """Whether no function of a user's gives each attribute of it."""
    return not isinstance(type(value).__getattribute__, types.FunctionType)


def is_users(module: str | None) -> bool:
    """Whether a module of that name is none of Python's, nor one that the compiler knows."""
    root = (module or "").partition(".")[0]
    return root not in KNOWN_MODULES and root not in sys.stdlib_module_names
