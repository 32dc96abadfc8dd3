"""What a ``return`` of the host part gives, as its text shows it: tensors, and collections of them.

An operator of PyTorch returns tensors. Which, and how they are put together (in tuples, lists,
dicts, named tuples, dataclasses), is read from the text once, before there are values.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from weft.frontend.names import MISSING, Scope, root_name
from weft.values import frozen

_DISPLAYS = {ast.Tuple: tuple, ast.List: list}


@frozen
class Plain:
    """A constant of the text, such as the None of ``return out, None``."""

    value: Any


@frozen
class Collected:
    """A collection. ``kind``: tuple, list, dict, or the class of a named tuple or dataclass, which
    is called with its items; ``names``: the keys or fields, if it has some."""

    kind: Any
    names: tuple[Any, ...]
    items: tuple[Item, ...]


# What is returned: "tensor" (or a number, that a kernel's operator makes one of), or these.
Item = str | Plain | Collected
TENSOR = "tensor"


@frozen
class Returned:
    """``names``: of each tensor the parameter that it is, as it was passed, or "" of one that the
    kernel made. ``form``: how they are put together."""

    names: tuple[str, ...]
    form: Item

    @classmethod
    def tensors(cls, count: int) -> Returned:
        """Of a kernel that makes so many: of one not in a tuple."""
        if count == 1:
            return cls(("",), TENSOR)
        return cls(("",) * count, Collected(tuple, (), (TENSOR,) * count) if count else Plain(None))

    def without(self, numbers: Collection[str]) -> tuple[str, ...]:
        """``names`` where these parameters are numbers, which loops give other values."""
        return tuple("" if n in numbers else n for n in self.names)

    @property
    def made(self) -> int:
        """How many tensors the kernel makes."""
        return self.names.count("")


class Reader:
    """Reads ``return`` statements. ``named(id)``: the parameter that a name stands for, or "";
    ``locals``: the names of the kernel itself; ``given``: what stands for those that are
    collections, from the one place where they are assigned."""

    def __init__(
        self, scope: Scope, named: Callable[[str], str], locals: frozenset[str],
        given: Mapping[str, ast.expr],
    ) -> None:  # fmt: skip
        self.scope, self.named, self.locals, self.given = scope, named, locals, given
        self.tensors: list[ast.expr] = []  # of the last that was read

    def returned(self, value: ast.expr | None) -> Returned:
        self.tensors = []
        form = Plain(None) if value is None else self._item(value)
        names = [self.named(v.id) if isinstance(v, ast.Name) else "" for v in self.tensors]
        return Returned(tuple(names), form)

    def _item(self, value: ast.expr) -> Item:
        match value:
            case ast.Constant(value=None | str()):
                return Plain(value.value)
            case ast.Name() if value.id in self.given:
                return self._item(self.given[value.id])
            case ast.Tuple() | ast.List() if not _has_stars(value.elts):
                return Collected(_DISPLAYS[type(value)], (), tuple(map(self._item, value.elts)))
            case ast.Dict():
                names = [k.value for k in value.keys if isinstance(k, ast.Constant)]
                if len({*names}) == len(value.keys) and all(type(n) in (str, int) for n in names):
                    return Collected(dict, tuple(names), tuple(map(self._item, value.values)))
            case ast.Call() if (found := self._called(value)) is not None:
                return found
            case _:
                pass
        self.tensors.append(value)
        return TENSOR

    def _called(self, call: ast.Call) -> Collected | None:
        """A call that makes a dict, a named tuple or a dataclass."""
        words = {word.arg: word.value for word in call.keywords if word.arg is not None}
        starred = len(words) < len(call.keywords) or _has_stars(call.args)
        if root_name(call.func) in self.locals or starred:
            return None
        kind = self.scope.resolve(call.func)
        if kind is dict and words and not call.args:
            return Collected(dict, tuple(words), tuple(map(self._item, words.values())))
        if kind is MISSING or not is_plain(kind):
            return None
        try:
            bound = inspect.signature(kind).bind(*call.args, **words).arguments
        except TypeError:  # which the call raises, too
            return None
        return Collected(kind, tuple(bound), tuple(map(self._item, bound.values())))


def _has_stars(items: Sequence[ast.expr]) -> bool:
    return any(isinstance(item, ast.Starred) for item in items)


def is_plain(kind: Any) -> bool:
    """Whether it is a class whose objects are what they are called with: a named tuple's, or a
    dataclass's."""
    if not isinstance(kind, type):
        return False
    if issubclass(kind, tuple):
        own = [c for c in kind.__mro__ if c not in tuple.__mro__]
        *derived, generated = own or [kind]
        return hasattr(generated, "_fields") and not any(
            {"__new__", "__init__"} & vars(c).keys() for c in derived
        )
    return (
        dataclasses.is_dataclass(kind) and "__dataclass_fields__" in vars(kind)
        and kind.__dataclass_params__.init and not hasattr(kind, "__post_init__")  # type: ignore[attr-defined]
        and kind.__new__ is object.__new__ and all(f.init for f in dataclasses.fields(kind))
    )  # fmt: skip


def given_once(statements: Sequence[ast.stmt], nodes: Sequence[ast.AST]) -> dict[str, ast.expr]:
    """What names are that the host part assigns once, as a collection, and that are returned and
    used nowhere else. ``nodes``: all of the function."""
    uses: dict[str, list[ast.Name]] = {}
    for node in nodes:
        if isinstance(node, ast.Name):
            uses.setdefault(node.id, []).append(node)
    ended = {n.value for n in nodes if isinstance(n, ast.Return)}
    found = dict[str, ast.expr]()
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name) as own], value=value) if isinstance(
                value, ast.Tuple | ast.List | ast.Dict | ast.Call
            ):
                if all(use is own or use in ended for use in uses[name]):
                    found[name] = value
            case _:
                pass
    return found


def tensors_of(value: Any, form: Item) -> list[Any] | None:
    """What a value of this form holds where it has tensors; None where it is of another form."""
    if isinstance(form, Plain):
        return [] if value == form.value else None
    if isinstance(form, str):
        return [value]
    if type(value) is not form.kind or (form.kind is dict and tuple(value) != form.names):
        return None
    if form.kind in (tuple, list):
        items = list(value)
    elif form.kind is dict:
        items = list(value.values())
    else:
        items = [getattr(value, name) for name in form.names]
    if len(items) != len(form.items):
        return None
    found: list[Any] = []
    for item, inner in zip(items, form.items, strict=True):
        inside = tensors_of(item, inner)
        if inside is None:
            return None
        found += inside
    return found


def put_together(form: Item, given: Iterator[Any]) -> Any:
    """A value of this form that holds what is ``given``. Dynamo traces this."""
    if isinstance(form, Plain):
        return form.value
    if isinstance(form, str):
        return next(given)
    items = [put_together(inner, given) for inner in form.items]
    if form.kind is tuple:
        return tuple(items)
    if form.kind is list:
        return items
    named = dict(zip(form.names, items, strict=True))
    return named if form.kind is dict else form.kind(**named)
