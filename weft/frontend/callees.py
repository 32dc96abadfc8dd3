"""What a call may call, where it is not named by where it is defined: objects from around a
function by the local names, tuples, dicts and attributes that may hold them. What is known of
local names at a statement, and what shares memory."""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import field
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

from weft.frontend.names import MISSING, Scope, arguments, is_known
from weft.lang import names
from weft.lang.loops import serial, static
from weft.source import subtree
from weft.values import mutable

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false
# Objects by what tells them apart. Expressions and nested functions of the text stand for what
# they make: lambdas, methods of tensors, calls of functools.partial.
Objects = dict[Any, Any]
NONE: frozenset[str] = frozenset()
Bound = list[tuple[str, list[ast.expr]]]  # arguments of a call by parameter

_CONTAINERS = (tuple, list, set, frozenset, dict)
_MOST_ITEMS = 1000
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, ast.AST)
# Functions of the module ``operator`` that store into their first argument.
_STORING_NAMES = (
    "setitem", "delitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow",
    "imatmul", "iand", "ior", "ixor", "ilshift", "irshift",
)  # fmt: skip
# What gives the elements of its argument.
ITERATING = (serial, static, list, tuple, iter, reversed, sorted, copy.copy)
_STORING = tuple(getattr(operator, name) for name in _STORING_NAMES)
# Functions of Python, written in Python, that write to none of their arguments.
COPYING = (copy.copy, copy.deepcopy, dataclasses.asdict, dataclasses.astuple, dataclasses.replace)
STORING_METHODS = frozenset(f"__{name}__" for name in _STORING_NAMES)


def known(value: Any) -> Objects:
    """``value`` as the only object, if it may be called or lead to what is."""
    if value is MISSING or isinstance(value, torch.Tensor | int | float | complex | str | None):
        return {}
    if isinstance(value, types.MethodType):  # a new object at each access
        return {(id(value.__self__), id(value.__func__)): value}
    return {id(value): value}


def element(over: ast.expr, callees: Callable[[ast.expr], Objects]) -> ast.expr:
    """An expression that stands for each element that a loop takes of ``over``: of ``zip(a, b)`` a
    pair of what it takes of ``a`` and of ``b``. ``callees``: what an expression may call."""

    def inner(over: ast.expr) -> ast.expr:
        match over:
            case ast.Call(func=func, args=args) if not any(
                isinstance(a, ast.Starred) for a in args
            ):
                found = list(callees(func).values())
                callee = found[0] if len(found) == 1 else None
                if len(args) == 1 and any(callee is each for each in ITERATING):
                    return inner(args[0])
                if callee is zip:
                    return ast.Tuple([*map(inner, args)], ast.Load())
                if callee is enumerate and args:
                    return ast.Tuple([ast.Constant(0), inner(args[0])], ast.Load())
            case ast.BinOp(left=left, op=ast.Add() | ast.Mult(), right=right):  # maybe of lists
                return ast.BoolOp(ast.Or(), [inner(left), inner(right)])
            case _:
                pass
        return ast.Subscript(over, ast.Name("_", ast.Load()), ast.Load())

    return inner(over)


def union(found: Iterable[Objects]) -> Objects:
    return {key: value for objects in found for key, value in objects.items()}


def items(objects: Objects, subscript: ast.expr | None = None) -> Objects:
    """What a loop, or this subscript, may take out of ``objects``."""
    found: Objects = {}
    one = isinstance(subscript, ast.Constant)
    for key, value in objects.items():
        if one and isinstance(value, dict) and subscript.value in value:  # type: ignore[union-attr]
            found |= known(value[subscript.value])  # type: ignore[union-attr]
        elif isinstance(value, _CONTAINERS):
            held = value.values() if isinstance(value, dict) else value
            found |= union(known(v) for v in held) if len(value) <= _MOST_ITEMS else {}
        else:
            found[key] = value
    return found


def attributes(objects: Objects, name: str) -> Objects:
    """What ``.name`` of ``objects`` may be. No property is evaluated."""
    return union(known(_attribute(value, name)) for value in objects.values())


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, ast.AST):
        return MISSING
    if isinstance(value, types.ModuleType):
        return names.member(value, name, MISSING)
    if isinstance(value, OpOverloadPacket):
        return getattr(value, name, MISSING)
    found = inspect.getattr_static(value, name, MISSING)
    own = name in getattr(value, "__dict__", ()) or isinstance(value, type)
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, classmethod):
        return types.MethodType(found.__func__, value if isinstance(value, type) else type(value))
    if isinstance(found, types.FunctionType) and not own:
        return types.MethodType(found, value)
    return MISSING if isinstance(found, property | functools.cached_property) else found


def functions(objects: Objects) -> Iterator[Any]:
    """Those of ``objects`` that may write to what they are called with."""
    for value in objects.values():
        if isinstance(value, _FUNCTIONS) or getattr(value, "__name__", "").endswith("_"):
            yield value


def called(value: Any) -> Any:
    """The function that a call of ``value`` runs."""
    if is_known(value) or isinstance(value, _FUNCTIONS) or hasattr(value, "__wrapped__"):
        return value
    if schemas(value):
        return value
    found = inspect.getattr_static(type(value), "__call__", None)
    if isinstance(value, torch.nn.Module):
        found = type(value).forward
    return types.MethodType(found, value) if isinstance(found, types.FunctionType) else value


def mentions(tree: ast.AST, scope: Scope, wanted: frozenset[str]) -> bool:
    """Whether ``tree`` calls, by names of ``scope``, one of the language's functions with these
    canonical names, or a function of the user whose code has one in it."""
    calls = (scope.resolve(n.func) for n in subtree(tree) if isinstance(n, ast.Call))
    return _any_mentions(calls, wanted, set())


def _any_mentions(
    values: Iterable[Any], wanted: frozenset[str], seen: set[types.CodeType]
) -> bool:  # fmt: skip
    return any(
        names.canonical(v) in wanted
        or (isinstance(v, types.FunctionType) and not is_known(v) and _code(v, wanted, seen))
        for v in values
    )


def _code(
    function: types.FunctionType, wanted: frozenset[str], seen: set[types.CodeType]
) -> bool:  # fmt: skip
    code, scope = function.__code__, Scope.of(function)
    if code in seen:
        return False
    seen.add(code)
    around = [scope.lookup(name) for name in (*code.co_names, *code.co_freevars)]
    modules = [v for v in around if isinstance(v, types.ModuleType)]
    members = (names.member(m, name, None) for m in modules for name in wanted & {*code.co_names})
    return _any_mentions((*around, *members), wanted, seen)


def applied(node: ast.Call, before: Iterable[Any], named: Iterable[str] = ()) -> ast.Call:
    """The call ``node`` with the objects ``before`` as its first arguments, and others by name."""
    first: list[ast.expr] = [ast.Constant(value) for value in before]
    more = [ast.keyword(name, ast.Constant(None)) for name in named]
    return ast.Call(node.func, [*first, *node.args], [*node.keywords, *more])


def schemas(function: Any) -> list[Any]:
    """The schemas of an operator of PyTorch."""
    function = getattr(function, "_opoverload", function)  # what torch.library.custom_op makes
    if isinstance(function, OpOverloadPacket):
        return [getattr(function, name)._schema for name in function.overloads()]
    return [function._schema] if isinstance(function, OpOverload) else []


def is_read(function: Any) -> bool:
    """Whether the text of ``function`` says what it writes to: Python, or a kernel."""
    if any(function is copying for copying in COPYING):
        return False
    is_python = isinstance(function, types.FunctionType) and not is_known(function)
    return is_python or hasattr(function, "__wrapped__")


def stores(function: Any, name: str) -> bool:
    """Whether a function that is not written by the user, and is called by ``name``, writes to its
    first argument: it is called as torch's are that do, or an assignment as a function."""
    name = getattr(function, "__name__", name)
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.startswith("atomic_") or any(function is f for f in _STORING)


def inplace(function: Any, node: ast.Call) -> ast.expr | None:
    """The argument ``inplace`` of functions such as ``torch.nn.functional.relu``."""
    for keyword in node.keywords:
        if keyword.arg == "inplace":
            return keyword.value
    code = getattr(function, "__code__", None)
    taken = code.co_varnames[: code.co_argcount] if code is not None else ()
    place = taken.index("inplace") if "inplace" in taken else len(node.args)
    return node.args[place] if place < len(node.args) else None


def partial_call(made: ast.Call, node: ast.Call) -> ast.Call:
    """The call ``node`` of ``made``, which is ``functools.partial(function, ...)``."""
    return ast.Call(made.args[0], [*made.args[1:], *node.args], [*made.keywords, *node.keywords])


def bound_arguments(node: ast.Call, function: Callable[..., Any]) -> Bound:
    """The arguments of a call by the names of the function's parameters; where some are unpacked,
    each parameter may be any argument."""
    signature = inspect.signature(function, follow_wrapped=False)
    if any(isinstance(a, ast.Starred) for a in node.args) or any(not k.arg for k in node.keywords):
        return [(name, arguments(node)) for name in signature.parameters]
    bound = signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords}).arguments
    found: Bound = []
    for name, value in bound.items():
        if isinstance(value, tuple):
            found.append((name, [*value]))
        else:
            found.append((name, [*value.values()] if isinstance(value, dict) else [value]))
    for parameter in signature.parameters.values():
        if parameter.name not in bound and parameter.default is not parameter.empty:
            found.append((parameter.name, [ast.Constant(parameter.default)]))
    return found


# -- what gives what shares memory with what it is given

# Attributes of a tensor that share no memory with it.
PLAIN_ATTRIBUTES = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "itemsize", "nbytes",
     "requires_grad", "type"}
)  # fmt: skip
# Methods of a tensor whose result may share its memory. Every other one allocates.
VIEWS = frozenset(
    {"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze",
     "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "expand",
     "expand_as", "narrow", "select", "diagonal", "unfold", "as_strided", "detach", "contiguous",
     "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "char",
     "byte", "bool", "cpu", "cuda", "split", "chunk", "unbind", "tensor_split", "hsplit", "vsplit",
     "ravel", "real", "imag", "conj", "numpy", "data", "requires_grad_", "broadcast_to",
     "atleast_1d", "atleast_2d", "atleast_3d", "as_subclass", "alias", "view_as_real",
     "view_as_complex", "broadcast_tensors", "asarray", "as_tensor", "from_numpy", "adjoint",
     "positive", "resolve_conj", "resolve_neg", "to_torch", "get", "pop", "values", "items", "copy",
     "popitem", "popleft", "setdefault", "__getitem__"}
)  # fmt: skip

# Functions whose result may be, or hold, an object that they were given.
HANDING_ON = (vars, getattr, next, functools.reduce, operator.getitem, *ITERATING)


def is_in_place(name: str) -> bool:
    """Whether a method of a tensor is called as those are that write to it, and give it."""
    return name.endswith("_") and not name.endswith("__")


# -- what is known at a statement, and what was found there: an expression that the one around it
# asks about twice would be looked at twice as often with every level

T = TypeVar("T")


@mutable
class State:
    """What is known at the statement that is looked at. What is assigned from outside, and not by
    a method, is followed by ``forget``."""

    scope: Scope
    active: frozenset[Any]
    device: bool  # in a device loop: `s += x` on a name makes a new value
    now: dict[str, frozenset[str]]  # what each name may alias here, and, below, anywhere
    held: dict[str, Objects]  # what may be called, or hold it
    captured: frozenset[str]  # names from around the function, with aliases
    closed: frozenset[str]  # names that inner functions read
    names_out: bool  # the text has the word "out", as an argument or a key
    aliases: dict[str, frozenset[str]]
    containers: set[str] = field(default_factory=set)  # names of lists, dicts and the like
    written: set[str] = field(default_factory=set)
    repeated: bool = False  # in statements that may run more than once, or in part
    applying: list[ast.AST] = field(default_factory=list)
    inside: dict[Any, Any] = field(default_factory=dict)  # of functions: see ``mutation._inside``
    memory: dict[Any, Any] = field(default_factory=dict)  # answers that hold as things stand
    lasting: int = 0  # counts the changes that outlast the call of a function of the text

    def is_local(self, name: str) -> bool:
        return name in self.held or (name in self.now and name not in self.captured)

    def forget(self) -> None:
        self.memory = {}

    def put(self, name: str, roots: frozenset[str], found: Objects) -> None:
        if self.repeated or name in self.closed:
            roots |= self.now.get(name, NONE)
        aliases, held = self.aliases.get(name, NONE), self.held.get(name)
        if self.now.get(name) != roots or held is None or not found.keys() <= held.keys():
            self.forget()
        self.lasting += not roots <= aliases
        self.now[name] = roots
        self.aliases[name] = aliases | roots
        self.held[name] = (held or {}) | found

    def contain(self, name: str) -> None:
        """``name`` is that of a list, dict or the like."""
        if name not in self.containers:
            self.containers.add(name)
            self.lasting += 1
            self.forget()

    def rebind(self, now: dict[str, frozenset[str]]) -> None:
        """From here on the names alias what ``now`` says."""
        if now != self.now:
            self.forget()
        self.now = now

    @contextlib.contextmanager
    def called(
        self, function: ast.AST, bound: dict[str, tuple[frozenset[str], Objects]]
    ) -> Generator[None]:
        """In the body of ``function``, a part of the text, with its parameters ``bound``."""
        before = self.now, self.held, self.repeated
        memory, lasting = self.memory, self.lasting
        self.now = self.now | {name: roots for name, (roots, _) in bound.items()}
        self.held = self.held | {name: found for name, (_, found) in bound.items()}
        self.repeated = True
        self.applying.append(function)
        self.forget()
        yield
        self.applying.pop()
        self.now, self.held, self.repeated = before
        self.memory = memory if self.lasting == lasting else {}

    def snapshot(self) -> Any:
        return dict(self.now), set(self.written), {n: set(held) for n, held in self.held.items()}


def remembered(
    method: Callable[[Any, ast.expr | None], T],
) -> Callable[[Any, ast.expr | None], T]:
    """A method of an object with a ``State`` as ``at`` that looks at an expression once, as long as
    nothing changes. What it finds while something changes is not kept."""

    @functools.wraps(method)
    def once(self: Any, node: ast.expr | None) -> T:
        memory, key = self.at.memory, (method, node)
        if key in memory:
            return memory[key]
        found = method(self, node)
        if self.at.memory is memory:
            memory[key] = found
        return found

    return once
