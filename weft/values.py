"""Classes with named fields, as ``dataclass`` makes them, in a twentieth of the time.

It writes the text of each class's methods and compiles that, for half a millisecond: half of the
time that ``import weft`` took. These classes share functions instead. ``dataclasses.fields`` and
``replace`` know them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, ParamSpec, TypeVar, dataclass_transform

T = TypeVar("T")
P = ParamSpec("P")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Instances do not change, and equal those of their class with equal fields."""
    made: Any = mutable(cls)
    names = [f.name for f in fields(made)]
    # attrgetter gives an item for one name, and a tuple for several.
    told: Any = attrgetter(*names) if names else lambda _: ()

    def __eq__(self: Any, other: Any) -> bool:
        return told(self) == told(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(told(self))

    if "__eq__" not in vars(made):
        made.__eq__, made.__hash__ = __eq__, __hash__
    made.__setattr__ = made.__delattr__ = _refused
    return made


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def mutable(cls: type[T]) -> type[T]:
    """Instances may change, and equal themselves alone."""
    made: Any = dataclass(init=False, repr=False, eq=False)(cls)
    names = made.__match_args__ = tuple(f.name for f in fields(made) if f.init)
    values = {f.name: f.default for f in fields(made) if f.default is not MISSING}
    makers = {f.name: f.default_factory for f in fields(made) if f.default_factory is not MISSING}
    count = len(names)
    later: Any = getattr(made, "__post_init__", None)

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        if named or makers or len(args) != count:
            given = dict(zip(names, args, strict=False))
            state = values | {name: make() for name, make in makers.items()} | given | named
            wrong = [*(named.keys() - {*names}), *(given.keys() & named.keys()), *args[count:]]
            if wrong or not state.keys() >= {*names}:
                raise TypeError(f"{cls.__name__} takes {', '.join(names)}")
            self.__dict__.update(state)
        else:
            self.__dict__.update(zip(names, args, strict=True))
        if later is not None:
            later(self)

    if "__init__" not in vars(made):
        made.__init__ = __init__
    if made.__repr__ is object.__repr__:
        made.__repr__ = _shown
    return made


def _shown(self: Any) -> str:
    told = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(told)})"


def _refused(self: Any, name: str, *_: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot change `{name}` of {self!r}")


def remembered(method: Callable[P, T]) -> Callable[P, T]:
    """A method that an instance carries out once for the same arguments, hashable ones by place:
    of values of which many ways lead to one, each is looked at once."""
    name = f"{method.__name__} of"

    @functools.wraps(method)
    def asked(self: Any, *args: Any) -> Any:
        known = vars(self).setdefault(name, {})
        if args not in known:
            known[args] = method(self, *args)  # type: ignore[call-arg]
        return known[args]

    return asked  # type: ignore[return-value]
