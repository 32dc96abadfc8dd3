"""Structs: values with named members, fields of them, and argument packs.

A field of structs is one field for each member (a structure of arrays): ``f.m`` is a tensor,
``f[i]`` an element whose members may be set.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from weft.errors import KernelTypeError
from weft.lang.dtypes import DType, as_dtype
from weft.lang.field import Field, field, indices
from weft.lang.numbers import cast, copied
from weft.lang.vectors import MatrixType, VectorType

_PLAIN = (DType, VectorType, MatrixType)


class StructType:
    """A type of structs. ``members`` gives each one's type: a dtype, a vector or matrix type, or
    another struct type, to which values are converted; anything else is taken as it is."""

    weft_struct = True  # what makes structs

    def __init__(
        self, members: Mapping[str, Any], methods: Mapping[str, Any] | None = None,
        name: str = "struct",
    ) -> None:  # fmt: skip
        self.members = {name: _type(kind) for name, kind in members.items()}
        self.methods = dict(methods or {})
        self.__name__ = self.__qualname__ = name
        for taken in self.members.keys() & (
            self.methods.keys() | {*vars(Struct), *vars(StructField)}
        ):
            raise KernelTypeError(f"a struct has a member `{taken}`, which is a method's name",
                                  help="rename the member")  # fmt: skip

    def __repr__(self) -> str:
        return f"{self.__name__}({', '.join(f'{n}: {t!r}' for n, t in self.members.items())})"

    def arguments(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """What is given for each member, in order; those that are left out are missing."""
        if len(args) > len(self.members):
            raise KernelTypeError(
                f"{self.__name__} has {len(self.members)} members, and {len(args)} are given",
                help=f"it is {self!r}",
            )
        given = dict(zip(self.members, args, strict=False))
        wrong = [n for n in named if n in given or n not in self.members]
        if wrong:
            what = "given twice" if wrong[0] in given else "none of its members"
            raise KernelTypeError(
                f"{self.__name__}: `{wrong[0]}` is {what}", help=f"it is {self!r}"
            )
        return {**given, **named}

    def __call__(self, *args: Any, **named: Any) -> Struct:
        """A struct of members in order or by name; of another struct or a dict; 0 elsewhere."""
        if len(args) == 1 and not named and isinstance(args[0], Struct | dict):
            first = next(iter(self.members.values()), None)
            if not (isinstance(first, StructType) and _fits(first, args[0])):
                args, named = (), args[0].to_dict() if isinstance(args[0], Struct) else args[0]
        given = self.arguments(args, named)
        values = {n: convert(t, given.get(n, 0)) for n, t in self.members.items()}
        return Struct._made(values, self)

    def field(
        self, shape: Any = (), *, needs_grad: bool = False, needs_dual: bool = False,
        device: Any = None,
    ) -> StructField:  # fmt: skip
        """A field of such structs: one of zeros for each member."""
        made: dict[str, Any] = {}
        for name, kind in self.members.items():
            options: dict[str, Any] = {"device": device}
            if isinstance(kind, StructType):
                made[name] = kind.field(
                    shape, needs_grad=needs_grad, needs_dual=needs_dual, **options
                )
                continue
            if isinstance(kind, VectorType | MatrixType):
                options["element"] = kind
                kind = kind.dtype or (float if kind.kind == "float" else int)
            if not isinstance(kind, DType) and kind not in (float, int):
                raise KernelTypeError(
                    f"`{name}` of {self.__name__} is no number or vector",
                    help="fields have members of dtypes, vectors and structs",
                )
            whole = isinstance(kind, DType) and kind.kind != "float"
            options |= {"needs_grad": needs_grad and not whole,
                        "needs_dual": needs_dual and not whole}  # fmt: skip
            made[name] = field(kind, shape, **options)
        return StructField(made, self)


def _type(kind: Any) -> Any:
    if isinstance(kind, torch.dtype) or kind in (float, int, bool):
        defaults = Field.defaults
        return as_dtype(kind, default_fp=defaults.fp, default_ip=defaults.ip)
    return StructType(kind) if isinstance(kind, dict) else kind


def _fits(kind: StructType, value: Any) -> bool:
    names = value._values if isinstance(value, Struct) else value
    return {*names} <= {*kind.members}


def convert(kind: Any, value: Any) -> Any:
    """``value`` as a member of type ``kind``."""
    if isinstance(kind, StructType):
        if isinstance(value, Struct):
            return copied(value) if value._type is kind else kind(value)
        return kind() if isinstance(value, int | float) and value == 0 else kind(value)
    if isinstance(kind, _PLAIN):
        return cast(kind, value)
    return copied(value)


class Struct:
    """Named values: ``Struct(a=1, b=2.0)``, ``Struct({"a": 1})``, or what a struct type makes."""

    weft_struct = True
    assigned_as_copy = True  # a value in a kernel: see ``numbers.copied``
    _values: dict[str, Any]
    _type: StructType | None
    _place: tuple[StructField, Any] | None

    def __init__(self, members: Mapping[str, Any] | None = None, **named: Any) -> None:
        given = {**(members or {}), **named}
        values = {n: Struct(v) if isinstance(v, dict) else copied(v) for n, v in given.items()}
        self._fill(values, None)

    @classmethod
    def _made(
        cls, values: dict[str, Any], kind: StructType | None,
        place: tuple[StructField, Any] | None = None,
    ) -> Struct:  # fmt: skip
        made = cls.__new__(cls)
        made._fill(values, kind, place)
        return made

    def _fill(self, values: dict[str, Any], kind: StructType | None, place: Any = None) -> None:
        vars(self).update(_values=values, _type=kind, _place=place)

    def __copy__(self) -> Struct:
        """A struct with copies of its members, no element of a field."""
        return Struct._made({n: copied(v) for n, v in self._values.items()}, self._type)

    @staticmethod
    def field(members: Mapping[str, Any], shape: Any = (), **options: Any) -> StructField:
        """A field of structs with these members."""
        return StructType(members).field(shape, **options)

    @property
    def keys(self) -> list[str]:
        return list(self._values)

    def to_dict(self) -> dict[str, Any]:
        """The members by name; of structs in it, dicts."""
        return {n: v.to_dict() if isinstance(v, Struct) else v for n, v in self._values.items()}

    def __getattr__(self, name: str) -> Any:
        values = vars(self).get("_values", {})
        if name in values:
            return values[name]
        kind = vars(self).get("_type")
        if kind is not None and name in kind.methods:
            method = kind.methods[name]
            return method.__get__(self) if hasattr(method, "__get__") else method
        raise AttributeError(f"this struct has no member {name!r}: it has {', '.join(values)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(f"this struct has no member {name!r}")
        kind = self._type.members[name] if self._type is not None else None
        self._values[name] = convert(kind, value)
        if self._place is not None:
            whole, index = self._place
            whole.members[name][index] = self._values[name]

    __getitem__, __setitem__ = __getattr__, __setattr__

    def fill(self, value: Any) -> None:
        """Sets all members to one number."""
        for name, old in self._values.items():
            if isinstance(old, Struct):
                old.fill(value)
            else:
                setattr(self, name, old.map(lambda _: value) if hasattr(old, "map") else value)

    def map(self, function: Callable[..., Any], *others: Any) -> Struct:
        """``function`` of each member, and of the members of other structs with its name."""
        made: dict[str, Any] = {}
        for name, value in self._values.items():
            rest = [o._values[name] if isinstance(o, Struct) else o for o in others]
            made[name] = (
                value.map(function, *rest) if hasattr(value, "map") else function(value, *rest)
            )
        return Struct._made(made, self._type)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct):
            return NotImplemented
        return self.keys == other.keys and all(
            bool(np.all(np.asarray(_plain(a == b)))) if not isinstance(a, Struct) else a == b
            for a, b in zip(self._values.values(), other._values.values(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        name = self._type.__name__ if self._type is not None else "Struct"
        return f"{name}({', '.join(f'{n}={v!r}' for n, v in self._values.items())})"


def _plain(value: Any) -> Any:
    return value.all() if hasattr(value, "all") else value


def _operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        function = getattr(operator, name)

        def plain(self: Struct, other: Any, function: Any = function) -> Struct:
            return self.map(function, other)

        def reflected(self: Struct, other: Any, function: Any = function) -> Struct:
            return self.map(lambda a, b: function(b, a), other)

        setattr(Struct, f"__{name}__", plain)
        setattr(Struct, f"__r{name}__", reflected)
    Struct.__neg__ = lambda self: self.map(operator.neg)  # type: ignore[attr-defined]


_operators()


def members_of(struct: Struct) -> dict[str, Any]:
    """The values of the members by name."""
    return vars(struct)["_values"]


def type_of(struct: Struct) -> StructType | None:
    """The type that has made it."""
    return vars(struct)["_type"]


def made_of(values: dict[str, Any], kind: StructType | None) -> Struct:
    """A struct of these members, which are not converted."""
    return Struct._made(values, kind)  # pyright: ignore[reportPrivateUsage]


class StructField:
    """A field of structs: ``members`` has a field for each member, which is an attribute, too."""

    def __init__(self, members: Mapping[str, Any], kind: StructType | None = None) -> None:
        self.members = dict(members)
        self.type = kind
        self.keys = list(self.members)

    def __getattr__(self, name: str) -> Any:
        members = vars(self).get("members", {})
        if name in members:
            return members[name]
        raise AttributeError(f"this field has no member {name!r}: it has {', '.join(members)}")

    def get_member_field(self, name: str) -> Any:
        """The field of one member."""
        return self.members[name]

    @property
    def first(self) -> torch.Tensor:
        """The tensor of some member, whose indices are the field's."""
        found = next(iter(self.members.values()))
        return found.first if isinstance(found, StructField) else found

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, without those of vectors."""
        return tuple(self.first.shape)

    def __iter__(self) -> Iterator[Any]:
        return indices(self.first)

    def __getitem__(self, index: Any) -> Struct:
        values = {name: member[index] for name, member in self.members.items()}
        for name, value in values.items():
            if isinstance(value, Struct):
                vars(value)["_place"] = (self.members[name], index)
        return Struct._made(values, self.type, (self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        given = value._values if isinstance(value, Struct) else value
        if isinstance(given, dict) and given.keys() != self.members.keys():
            raise KernelTypeError(f"an element of this field has {', '.join(self.members)}",
                                  help="store a struct with these members")  # fmt: skip
        for name, member in self.members.items():
            member[index] = given[name] if isinstance(given, dict) else value

    def fill(self, value: Any) -> None:
        """Sets every member of every element to ``value``; of a struct, to its members."""
        for name, member in self.members.items():
            member.fill(value._values[name] if isinstance(value, Struct) else value)

    def to_numpy(self) -> dict[str, Any]:
        """NumPy copies, by member."""
        return {name: member.to_numpy() for name, member in self.members.items()}

    def from_numpy(self, arrays: Mapping[str, Any]) -> None:
        """Copies arrays, by member, into the field."""
        for name, array in arrays.items():
            self.members[name].from_numpy(array)

    def to_torch(self, device: Any = None) -> dict[str, Any]:
        """Plain tensors, by member."""
        return {name: member.to_torch(device) for name, member in self.members.items()}

    def from_torch(self, tensors: Mapping[str, Any]) -> None:
        """Copies tensors, by member, into the field."""
        for name, tensor in tensors.items():
            self.members[name].from_torch(tensor)

    def copy_from(self, other: StructField) -> None:
        """Copies another field with these members."""
        for name, member in self.members.items():
            member.copy_from(other.members[name])

    def __repr__(self) -> str:
        return f"<field of {self.type!r}, shape {self.shape}>"


def struct(**members: Any) -> StructType:
    """The type of structs with these members: ``struct(place=weft.math.vec3, mass=weft.f32)``."""
    methods = members.pop("__struct_methods", None)
    return StructType(members, methods)


def argpack(**members: Any) -> StructType:
    """A type of packs of arguments. What a loop reads of a pack is passed at each call."""
    return StructType(members, name="argpack")


def dataclass(cls: type) -> StructType:
    """Makes a class a struct type: its annotations are members, its functions methods."""
    hints = getattr(cls, "__annotations__", {})
    members = {name: _named(kind, cls) for name, kind in hints.items()}
    methods = {
        n: v for n, v in vars(cls).items() if isinstance(v, types.FunctionType | staticmethod)
    }
    made = StructType(members, methods, cls.__name__)
    functools.update_wrapper(made, cls, assigned=("__module__", "__doc__"), updated=())
    return made


def _named(kind: Any, cls: type) -> Any:
    """An annotation that is text, as ``from __future__ import annotations`` makes all."""
    if not isinstance(kind, str):
        return kind
    return eval(kind, vars(sys.modules[cls.__module__]))
