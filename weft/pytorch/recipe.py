"""Host parts as plain as most are, as values: sizes of parameters, whole numbers computed of them,
new tensors, one loop, and a return. What is as a ``Recipe`` says can be carried out without Python.
"""

from __future__ import annotations

import ast
import inspect
import operator
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch

from weft.frontend.names import Scope, bound_names
from weft.frontend.returns import Reader, Returned
from weft.frontend.scope import Guard
from weft.frontend.split import computed_step
from weft.pytorch.autocast import Policy
from weft.runtime.fastpath import Direct
from weft.runtime.launch import KernelLike
from weft.settings import deep
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
class Computed:
    """A whole number that the host part computes of others, by an operator of Python."""

    operation: str
    left: Count
    right: Count


# A whole number: a parameter by its position, or of these.
Count = int | Size | Number | Computed
OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod,
}  # fmt: skip
_CPU = torch.device("cpu")
_SYMBOLS: Mapping[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip


@frozen
class Made:
    """A tensor that the host part makes: like the parameter ``like``, filled with ``zeros``, or
    ``copied`` from it, or with neither. ``described``: of the sizes, strides, dtype and device that
    ``like`` and the three parameters after it are. With ``sizes`` it is contiguous, like no
    parameter, of the dtype and on the device of the parameters ``dtype`` and ``device``: of that
    dtype, or torch's default one, and on the CPU, where these are none."""

    like: int
    zeros: bool = False
    copied: bool = False
    described: bool = False
    sizes: tuple[Count, ...] | None = None
    dtype: int | torch.dtype | None = None
    device: int | None = None

    def new(self, passed: Sequence[Any], cpu: torch.device) -> torch.Tensor:
        """It, without its contents, where the parameters are ``passed``. ``cpu``: the device that
        stands for the CPU."""
        if self.sizes is not None:
            sizes = [number(size, passed) for size in self.sizes]
            dtype = passed[self.dtype].dtype if isinstance(self.dtype, int) else self.dtype
            device = cpu if self.device is None else passed[self.device].device
            return torch.empty(sizes, dtype=dtype, device=device)
        like = passed[self.like]
        if self.described:
            dtype, device = passed[self.like + 2 : self.like + 4]
            return torch.empty_strided(like, passed[self.like + 1], dtype=dtype, device=device)
        return torch.empty_like(like)


def number(count: Count, passed: Sequence[Any]) -> int:
    """The number, where the parameters are ``passed``."""
    match count:
        case Size(parameter, axis):
            return passed[parameter].size(axis)
        case Number(value):
            return int(value)
        case Computed(operation, left, right):
            return OPERATIONS[operation](number(left, passed), number(right, passed))
        case _:
            return passed[count]


def read_of(count: Count) -> frozenset[int]:
    """The positions of the parameters that are numbers in it."""
    return frozenset(leaf for leaf in _leaves(count) if isinstance(leaf, int))


def sizes_of(count: Count) -> frozenset[Size]:
    """The sizes of parameters that are in it."""
    return frozenset(leaf for leaf in _leaves(count) if isinstance(leaf, Size))


def _leaves(count: Count) -> frozenset[Count]:
    """What it is computed of."""
    if isinstance(count, Computed):
        return _leaves(count.left) | _leaves(count.right)
    return frozenset({count})


# Where an argument of the loop is from: a parameter, what is read around the kernel, or of these.
Place = int | Guard | Size | Fresh | Number | Computed


@frozen
class Recipe:
    """``places``: of the loop's arguments, in turn. ``made``: the tensors that are made, and behind
    them what the loop reduces into; ``returned`` of these are given, in turn. ``guards``: on what
    the host part calls. ``ranks``: of parameters whose sizes it takes apart, by position."""

    places: tuple[Place, ...]
    made: tuple[Made, ...]
    returned: tuple[int, ...]
    guards: tuple[Guard, ...]
    ranks: frozenset[tuple[int, int]] = frozenset()

    @property
    def defaults(self) -> bool:
        """Whether a tensor is of torch's default dtype."""
        return any(m.sizes is not None and m.dtype is None for m in self.made)

    @property
    def counts(self) -> list[Count]:
        """The whole numbers that it computes, and the sizes of its own that it gives tensors."""
        counts: list[Count] = [p for p in self.places if isinstance(p, Computed)]
        return counts + [size for m in self.made for size in m.sizes or ()]

    @property
    def whole(self) -> frozenset[int]:
        """The positions of the parameters that it takes for whole numbers."""
        return frozenset(n for count in self.counts for n in read_of(count))

    @property
    def sizes(self) -> frozenset[Size]:
        """The sizes of parameters that it looks at."""
        own = frozenset(p for p in self.places if isinstance(p, Size))
        return own.union(*map(sizes_of, self.counts))

    def arguments(
        self, passed: Sequence[Any], as_made: Callable[[torch.Tensor], torch.Tensor] = lambda t: t,
        cpu: torch.device = _CPU,
    ) -> tuple[tuple[Any, ...], list[torch.Tensor]]:  # fmt: skip
        """The loop's arguments where the parameters are ``passed``, and all that is made, without
        its contents, as ``as_made`` gives it. ``cpu``: the device that stands for the CPU."""
        made = [as_made(m.new(passed, cpu)) for m in self.made]
        found: list[Any] = []
        for place in self.places:
            match place:
                case Size() | Computed():
                    found.append(number(place, passed))
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
    plain: Set[type], policy: Policy | None,
) -> Direct | None:  # fmt: skip
    """What a builtin may do in place of the kernel and its ``entry``, where arguments are of
    ``plain`` types, and autocast is off where ``policy`` casts some. None where the host part
    does something else, takes arguments that the loop does not, or returns not exactly what is
    made."""
    recipe, parts = recipe_of(kernel), kernel.parts
    if recipe is None or recipe.defaults or any(isinstance(p, Computed) for p in recipe.places):
        return None
    kinds = inspect.Parameter
    positional = kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD
    fresh = [p.number for p in recipe.places if isinstance(p, Fresh)]
    own = [p for p in recipe.places if isinstance(p, int)]
    (loop,) = parts.regions
    count = len(recipe.made) + len(loop.results)
    given = [Returned.tensors(count)] if count else []
    if (
        any(p.position not in positional for p in parts.parameters)
        or sorted(own) != [*range(len(parts.parameters))]
        or sorted(fresh) != [*range(len(recipe.made))]
        or any(isinstance(p, Guard) for p in recipe.places)
        or recipe.returned != (*range(count),)
        or [r for r in parts.returns if r != Returned.tensors(0)] != given
    ):
        return None
    order = [p if isinstance(p, int) else -1 - p.number if isinstance(p, Fresh) else None
             for p in recipe.places]  # fmt: skip
    zeros = [m.zeros for m in recipe.made]
    casts = policy and policy.casts
    sized = any(m.sizes is not None for m in recipe.made)
    whole = sorted(recipe.whole)
    return Direct(entry, install, order, zeros, recipe.guards, plain, casts, sized, whole)


def recipe_of(kernel: KernelLike, reaching: bool = False) -> Recipe | None:
    """What the kernel's host part does; None where it is another one, or where the loop takes what
    functions that it calls reach, unless it may be ``reaching``: no host part passes that."""
    try:
        own = getattr(kernel, "recipe", None)  # of a loop that is a kernel
        if own is not None:
            return own()
        with deep(kernel.source.span(kernel.source.tree)):
            return _recipe_of(kernel, reaching)
    except (_Other, StopIteration):
        return None


def _recipe_of(kernel: KernelLike, reaching: bool) -> Recipe | None:
    body = kernel.source.tree.body
    if ast.get_docstring(kernel.source.tree) is not None:
        body = body[1:]
    if len(kernel.parts.regions) != 1:
        return None
    (loop,) = kernel.parts.regions
    if computed_step(loop.node) is not None or kernel.parts.totals:
        return None  # the host part checks it, or adds to an argument
    reader = _Reader(kernel, loop.results)
    count = next(k for k, statement in enumerate(body) if statement is loop.node)
    for statement in body[:count]:
        reader.read(statement)
    returned = reader.returned(body[count + 1 :])
    places = tuple(reader.place(a) for a in loop.args if not (reaching and a.read is not None))
    guards = tuple(reader.guards)
    return Recipe(places, tuple(reader.made), returned, guards, frozenset(reader.ranks))


class _Other(Exception):
    """It is another host part."""


class _Reader:
    """What is known of the names of a host part."""

    def __init__(self, kernel: KernelLike, results: Sequence[str]) -> None:
        function, self.results = kernel.function, results
        parameters = kernel.parts.parameters
        self.parameters = {p.name: k for k, p in enumerate(parameters)}
        self.strong = any(p.dtype is not None for p in parameters)  # which the host part converts
        self.names: dict[str, Size | Fresh | Number | Computed] = {}
        self.made: list[Made] = []
        self.guards: list[Guard] = []
        self.ranks: set[tuple[int, int]] = set()
        own = frozenset(n for s in kernel.source.tree.body for n in bound_names(s))
        self.collections = Reader(Scope.of(function), str, own | {*self.parameters}, {})
        self.scope = function.__globals__
        self.cells = cells_of(function)

    def read(self, statement: ast.stmt) -> None:
        """A statement before the loop."""
        if self.strong:
            raise _Other
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)],
                            value=ast.Attribute(value=ast.Name() as of, attr="shape")):  # fmt: skip
                self.ranks.add((self._tensor(of), len(names)))
                for axis, name in enumerate(names):
                    self._name(name, Size(self._tensor(of), axis))
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(
                names
            ) == len(values):
                for name, value in zip(names, [*map(self._value, values)], strict=True):
                    self._name(name, value)
            case ast.Assign(targets=[name], value=value):
                self._name(name, self._value(value))
            case _:
                raise _Other

    def _value(self, value: ast.expr) -> Count | Fresh:
        """What is given a name."""
        match value:
            case ast.Constant(value=float() as number):
                return Number(number)
            case ast.Call():
                return self._made(value)
            case _:
                return self._count(value)

    def _made(self, call: ast.Call) -> Count | Fresh:
        """A tensor that is made, by a function of torch or a method of a parameter."""
        words = {word.arg: word.value for word in call.keywords}
        match call.func:
            case ast.Attribute(value=ast.Name(id="torch"), attr="empty_like" | "zeros_like" as how):
                if words or len(call.args) != 1:
                    raise _Other
                made = Made(self._tensor(call.args[0]), how == "zeros_like")
                self._asks(how)
            case ast.Attribute(value=ast.Name(id="torch"), attr="empty" | "zeros" as how):
                made = self._sized(how, call.args, words, None, None)
                self._asks(how)
            case ast.Attribute(value=ast.Name() as of, attr="new_empty" | "new_zeros" as how):
                own = self._tensor(of)
                made = self._sized(how, call.args, words, own, own)
            case _:
                return self._count(call)
        self.made.append(made)
        return Fresh(len(self.made) - 1)

    def _asks(self, name: str) -> None:
        """A function of torch is called."""
        own = {*self.cells, *self.parameters, *self.names}
        if self.scope.get("torch") is not torch or "torch" in own:
            raise _Other
        self.guards.append(Guard(self.scope, "torch", torch, item=True))
        self.guards.append(Guard(torch, name, getattr(torch, name)))

    def _sized(
        self, how: str, args: Sequence[ast.expr], words: Mapping[str | None, ast.expr],
        dtype: int | torch.dtype | None, device: int | None,
    ) -> Made:  # fmt: skip
        """A tensor of sizes of its own."""
        if len(args) == 1 and isinstance(args[0], ast.Tuple | ast.List):
            args = args[0].elts
        if not args or not words.keys() <= {"dtype", "device"}:
            raise _Other
        sizes = tuple(map(self._count, args))
        for word, value in words.items():
            match word, value:
                case "dtype", ast.Attribute(value=ast.Name(id="torch"), attr=name):
                    dtype = getattr(torch, name, None)
                    if not isinstance(dtype, torch.dtype):
                        raise _Other
                    self._asks(name)
                case "dtype", ast.Attribute(value=ast.Name() as of, attr="dtype"):
                    dtype = self._tensor(of)
                case "device", ast.Attribute(value=ast.Name() as of, attr="device"):
                    device = self._tensor(of)
                case _:
                    raise _Other
        return Made(-1, "zeros" in how, sizes=sizes, dtype=dtype, device=device)

    def _count(self, node: ast.expr) -> Count:
        """A whole number."""
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return Number(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Computed("-", Number(0), self._count(operand))
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _SYMBOLS:
                return Computed(_SYMBOLS[type(op)], self._count(left), self._count(right))
            case ast.Subscript(value=ast.Attribute(value=ast.Name() as of, attr="shape"),
                               slice=axis):  # fmt: skip
                return Size(self._tensor(of), _axis(axis))
            case ast.Name(id=name) if name in self.parameters:
                return self.parameters[name]
            case ast.Name(id=name):
                found = self.names.get(name)
                if isinstance(found, Size | Computed) or (
                    isinstance(found, Number) and isinstance(found.value, int)
                ):
                    return found
                raise _Other
            case _:
                raise _Other

    def returned(self, rest: Sequence[ast.stmt]) -> tuple[int, ...]:
        """The tensors among what is made that the statements after the loop return."""
        match rest:
            case [] | [ast.Return(value=None)]:
                return ()
            case [ast.Return(value=value)]:
                self.collections.returned(value)
            case _:
                raise _Other
        found: list[int] = []
        for name in self.collections.tensors:
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

    def _name(self, target: ast.expr, value: Count | Fresh) -> None:
        if not isinstance(target, ast.Name) or target.id in {*self.names, *self.parameters}:
            raise _Other
        if isinstance(value, int):  # a parameter by another name
            raise _Other
        self.names[target.id] = value

    def _tensor(self, node: ast.expr) -> int:
        """The position of a parameter that has a shape."""
        if not isinstance(node, ast.Name) or node.id not in self.parameters:
            raise _Other
        return self.parameters[node.id]


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
