"""Host parts as plain as most are, as values: sizes of parameters, numbers, new tensors, one loop,
and a return. What is as a ``Recipe`` says can be carried out without Python."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch

from weft.frontend.scope import Guard
from weft.frontend.split import computed_step
from weft.runtime.fastpath import Direct
from weft.runtime.launch import KernelLike
from weft.values import frozen


@frozen
class Size:
    """The size of a parameter, given by its position, along an axis."""

    parameter: int
    axis: int


@frozen
class Fresh:
    """One of the tensors that the host part makes."""

    number: int


@frozen
class Number:
    """A number that the host part has."""

    value: int | float


@frozen
class Made:
    """A tensor that the host part makes: like the parameter ``like``, filled with ``zeros``, or
    ``copied`` from it, or with neither. ``described``: of the sizes, strides, dtype and device that
    ``like`` and the three parameters after it are."""

    like: int
    zeros: bool = False
    copied: bool = False
    described: bool = False


# Where an argument of the loop is from: a parameter, what is read around the kernel, or of these.
Place = int | Guard | Size | Fresh | Number


@frozen
class Recipe:
    """``places``: of the loop's arguments, in turn. ``made``: the tensors that are made, and behind
    them what the loop reduces into; ``returned`` of these are given, in turn. ``guards``: on what
    the host part calls."""

    places: tuple[Place, ...]
    made: tuple[Made, ...]
    returned: tuple[int, ...]
    guards: tuple[Guard, ...]

    def arguments(
        self, passed: Sequence[Any], as_made: Callable[[torch.Tensor], torch.Tensor] = lambda t: t
    ) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
        """The loop's arguments where the parameters are ``passed``, and all that is made, without
        its contents, ``as_made`` gives it."""
        made: list[torch.Tensor] = []
        for m in self.made:
            like = passed[m.like]
            if m.described:
                dtype, device = passed[m.like + 2 : m.like + 4]
                strides = passed[m.like + 1]
                new = torch.empty_strided(like, strides, dtype=dtype, device=device)
            else:
                new = torch.empty_like(like)
            made.append(as_made(new))
        found: list[Any] = []
        for place in self.places:
            match place:
                case Size():
                    found.append(passed[place.parameter].shape[place.axis])
                case Fresh():
                    found.append(made[place.number])
                case Number():
                    found.append(place.value)
                case Guard():
                    found.append(place.read())
                case _:
                    found.append(passed[place])
        return tuple(found), made


def direct(
    kernel: KernelLike, entry: Callable[..., Any], install: Callable[[Callable[..., Any]], None],
    plain: Set[type],
) -> Direct | None:  # fmt: skip
    """What a builtin may do in place of the kernel and its ``entry``, where arguments are of
    ``plain`` types. None where the host part does
    something else, takes arguments that the loop does not, or returns not exactly what is made."""
    recipe, parts = recipe_of(kernel), kernel.parts
    if recipe is None:
        return None
    kinds = inspect.Parameter
    positional = kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD
    fresh = [p.number for p in recipe.places if isinstance(p, Fresh)]
    own = [p for p in recipe.places if isinstance(p, int)]
    (loop,) = parts.regions
    count = len(recipe.made) + len(loop.results)
    given = {0: (), 1: ("",)}.get(count, (("",) * count,))
    if (
        any(p.position not in positional for p in parts.parameters)
        or sorted(own) != [*range(len(parts.parameters))]
        or sorted(fresh) != [*range(len(recipe.made))]
        or any(isinstance(p, Guard) for p in recipe.places)
        or recipe.returned != (*range(count),)
        or [r for r in parts.returns if r is not None] != [*given]
    ):
        return None
    order = [p if isinstance(p, int) else -1 - p.number if isinstance(p, Fresh) else None
             for p in recipe.places]  # fmt: skip
    zeros = [m.zeros for m in recipe.made]
    return Direct(entry, install, order, zeros, recipe.guards, plain)


_MAKERS = {"empty_like": False, "zeros_like": True}


def recipe_of(kernel: KernelLike) -> Recipe | None:
    """What the kernel's host part does; None where it is another one."""
    try:
        own = getattr(kernel, "recipe", None)  # of a loop that is a kernel
        return _recipe_of(kernel) if own is None else own()
    except (_Other, StopIteration):
        return None


def _recipe_of(kernel: KernelLike) -> Recipe | None:
    body = kernel.source.tree.body
    if ast.get_docstring(kernel.source.tree) is not None:
        body = body[1:]
    if len(kernel.parts.regions) != 1:
        return None
    (loop,) = kernel.parts.regions
    if computed_step(loop.node) is not None:  # which the host part checks
        return None
    reader = _Reader(kernel, loop.results)
    count = next(k for k, statement in enumerate(body) if statement is loop.node)
    for statement in body[:count]:
        reader.read(statement)
    returned = reader.returned(body[count + 1 :])
    places = tuple(map(reader.place, loop.args))
    return Recipe(places, tuple(reader.made), returned, tuple(reader.guards))


class _Other(Exception):
    """It is another host part."""


class _Reader:
    """What is known of the names of a host part."""

    def __init__(self, kernel: KernelLike, results: Sequence[str]) -> None:
        function, self.results = kernel.function, results
        parameters = kernel.parts.parameters
        self.parameters = {p.name: k for k, p in enumerate(parameters)}
        self.strong = any(p.dtype is not None for p in parameters)  # which the host part converts
        self.names: dict[str, Size | Fresh | Number] = {}
        self.made: list[Made] = []
        self.guards: list[Guard] = []
        self.scope = function.__globals__
        self.cells = cells_of(function)

    def read(self, statement: ast.stmt) -> None:
        """A statement before the loop."""
        if self.strong:
            raise _Other
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)],
                            value=ast.Attribute(value=ast.Name(id=of), attr="shape")):  # fmt: skip
                for axis, name in enumerate(names):
                    self._name(name, Size(self._parameter(of), axis))
            case ast.Assign(targets=[name], value=ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=of), attr="shape"), slice=axis,
            )):  # fmt: skip
                self._name(name, Size(self._parameter(of), _axis(axis)))
            case ast.Assign(targets=[name], value=ast.Constant(value=int() | float() as value)):
                if isinstance(value, bool):
                    raise _Other
                self._name(name, Number(value))
            case ast.Assign(targets=[name], value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="torch"), attr=maker),
                    args=[ast.Name(id=like)], keywords=[])) if maker in _MAKERS:  # fmt: skip
                if self.scope.get("torch") is not torch or "torch" in self.cells:
                    raise _Other
                self.guards.append(Guard(self.scope, "torch", torch, item=True))
                self.guards.append(Guard(torch, maker, getattr(torch, maker)))
                self._name(name, Fresh(len(self.made)))
                self.made.append(Made(self._parameter(like), _MAKERS[maker]))
            case _:
                raise _Other

    def returned(self, rest: Sequence[ast.stmt]) -> tuple[int, ...]:
        """The tensors among what is made that the statements after the loop return."""
        match rest:
            case [] | [ast.Return(value=None)]:
                return ()
            case [ast.Return(value=ast.Name() as name)]:
                names: Sequence[ast.expr] = [name]
            case [ast.Return(value=ast.Tuple(elts=names))]:
                pass
            case _:
                raise _Other
        found: list[int] = []
        for name in names:
            match name:
                case ast.Name(id=own) if own in self.results:
                    found.append(len(self.made) + self.results.index(own))
                case ast.Name(id=own) if own in self.parameters:
                    pass  # the caller has it
                case ast.Name(id=own) if isinstance(self.names.get(own), Fresh):
                    found.append(self.names[own].number)  # type: ignore[union-attr]
                case _:
                    raise _Other
        if len({*found}) != len(found):
            raise _Other
        return tuple(found)

    def place(self, arg: Any) -> Place:
        """Where an argument of the loop is from."""
        name = arg.name
        if not isinstance(arg.expr, ast.Name):
            raise _Other
        if arg.parameter is not None:
            return self.parameters[name]
        if name in self.names:
            return self.names[name]
        if arg.captured:
            return captured(name, self.scope, self.cells)
        raise _Other

    def _name(self, target: ast.expr, value: Size | Fresh | Number) -> None:
        if not isinstance(target, ast.Name) or target.id in {*self.names, *self.parameters}:
            raise _Other
        self.names[target.id] = value

    def _parameter(self, name: str) -> int:
        if name not in self.parameters:
            raise _Other
        return self.parameters[name]


def cells_of(function: Any) -> dict[str, Any]:
    """The cells of what a function has from functions around it, by name."""
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, cells, strict=True))


def captured(name: str, scope: dict[str, Any], cells: Mapping[str, Any]) -> Guard:
    """What is read around a kernel. Raises ``_Other`` where nothing is there."""
    if name in cells:
        cell = cells[name]
        return Guard(cell, "cell_contents", Guard(cell, "cell_contents", None).read())
    if name in scope:
        return Guard(scope, sys.intern(name), scope[name], item=True)
    raise _Other


def _axis(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(axis)):
            return axis
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(axis))):
            return -axis
        case _:
            raise _Other
