"""What the host part of a kernel takes from around it that a graph is made for: Dynamo, which can
trace how it is read, puts guards on it.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

# pyright: reportPrivateUsage=false
from weft.errors import SourceUnavailableError
from weft.frontend.names import KNOWN_MODULES, MISSING, Scope, dotted, root_name
from weft.lang import names
from weft.lang.dtypes import DType
from weft.pytorch.identity import global_names, is_imported
from weft.source import children, codes, read_function

# Types of values that the host part may take from around it and turn into a size or a dtype.
# Not float: sizes are seldom made of one, and a number that changes at each step often is one.
DECIDING = (bool, int, str, type(None), torch.dtype, torch.device, DType)
_DECISIVE = (*DECIDING, enum.Enum)
_MOST_ITEMS = 256  # of a list: Dynamo has a guard for each


Reading = Callable[[], tuple[Any, ...]]


def deciding(
    function: Callable[..., Any], tree: ast.FunctionDef, loops: frozenset[ast.AST]
) -> Reading:
    """Gives what the host part of ``function``, and the functions that it calls, take from around
    them that may decide on sizes and dtypes. Dynamo, which can trace the call, puts guards on these
    values. It has their ``names``."""
    return _readings(_parts(function, tree, loops, _decides), "__decisive__({})")


def watching(function: Callable[..., Any], tree: ast.FunctionDef) -> Reading:
    """Gives which tensors ``function``, and the functions that it calls, take from around them that
    need a derivative: as they are no arguments, a graph is refused then, and where Dynamo traces
    the call, it has guards for that."""
    if not is_imported(function):
        return lambda: ()
    return _readings(_parts(function, tree, None, _is_tensor), "{}.requires_grad")


_Part = tuple[Callable[..., Any], str, list[str]]


def _readings(parts: Sequence[_Part], each: str) -> Reading:
    """Gives what ``each`` says of all places."""
    readings = [_reading(f, [each.format(text) for text in found]) for f, _, found in parts]

    def made() -> tuple[Any, ...]:
        values: tuple[Any, ...] = ()
        for reading in readings:
            values += reading()
        return values

    named: Any = made
    named.names = tuple(f"{label}{text}" for _, label, found in parts for text in found)
    return named


def _parts(
    function: Callable[..., Any], tree: ast.FunctionDef, loops: frozenset[ast.AST] | None,
    wanted: Callable[[Any], bool],
) -> list[_Part]:  # fmt: skip
    """``function``, and the functions and kernels that it calls, each with the name of what finds
    it and the places of what it reads that is ``wanted``: its host part, around its ``loops``, or
    all of it where these are None."""
    left, found = list[tuple[Any, ...]]([(function, tree, loops or frozenset(), "")]), []
    done = {function}
    for f, own, leave, label in left:
        places = _Places(f, own, leave, loops is None)
        texts = [text for text, value in places.found.items() if wanted(value)]
        for text, called in places.called.items():
            if not _is_reached(called.function, function):
                continue
            if places.found.get(text) is called.function:
                texts += [f"{text}.{name}" for name in ("__defaults__", "__kwdefaults__")
                          if wanted(getattr(called.function, name))]  # fmt: skip
            if called.function not in done:
                done.add(called.function)
                left.append((called.function, called.tree, called.leave, f"{label}{text}: "))
        found.append((f, label, texts))
    return found


def _is_reached(value: Callable[..., Any], kernel: Callable[..., Any]) -> bool:
    """Whether it is a function of a user's whose globals Dynamo finds."""
    own = value.__globals__ is kernel.__globals__ or is_imported(value)
    return own and (value.__module__ or "").partition(".")[0] not in KNOWN_MODULES


class _Called(NamedTuple):
    """A function that is called: its text, but for the nodes ``leave``."""

    function: types.FunctionType
    tree: ast.FunctionDef
    leave: frozenset[ast.AST]


class _Text(NamedTuple):
    """The text of a function, but for the nodes ``leave``, and what its names mean: of some, the
    place around the function that is walked from; of others, what ``scope`` says."""

    tree: ast.AST
    leave: frozenset[ast.AST]
    scope: Scope
    names: Mapping[str, str]


class _Places:
    """What ``function``, and what it gives such things to, reads around it, by its place there:
    dotted names, items whose keys are constants (``sizes["n"]``, ``sizes.get("n")``), lengths of
    dicts and sets, attributes that methods and properties read. ``called``: the functions of users
    that are called, by the place, or by the name that the caller has. ``whole``: with the loops of
    kernels that are called."""

    def __init__(
        self, function: Callable[..., Any], tree: ast.AST, leave: frozenset[ast.AST], whole: bool
    ) -> None:
        self.scope, self.whole = Scope.of(function), whole
        self.found: dict[str, Any] = {}
        self.called: dict[str, _Called] = {}
        names = {*function.__code__.co_freevars, *global_names(function.__code__)}
        self.left = [_Text(tree, leave, self.scope, {name: name for name in names})]
        self.done = set[tuple[Any, ...]]()
        for text in self.left:
            self._read(text)

    def _read(self, text: _Text) -> None:
        nodes = children(text.tree)
        for node in nodes:
            if node not in text.leave:
                nodes += children(node)
        nodes = [node for node in nodes if node not in text.leave]
        names = dict(text.names)
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=value) if name not in names:
                    if place := _place(value, names):
                        names[name] = place
                case _:
                    pass
        text = text._replace(names=names)
        for node in nodes:
            if isinstance(node, ast.For | ast.comprehension):
                self._repeat(node, text)
            if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                continue
            if place := _place(node, names):
                self.found[place] = self._value(place)
            if isinstance(node, ast.Call):
                self._call(node, text)
            elif isinstance(node, ast.Attribute | ast.Subscript) and place:
                self._hidden_call(node, place, text)

    def _repeat(self, node: ast.For | ast.comprehension, text: _Text) -> None:
        """Reads what goes through a short list of objects, or a dict of them, once for each."""
        target, of, end = node.target, node.iter, ""
        match of, target:
            case ast.Call(func=ast.Name("enumerate"), args=[inner]), ast.Tuple(elts=[_, last]):
                of, target = inner, last
            case ast.Call(func=ast.Attribute(value=inner, attr="items")), ast.Tuple(elts=[_, last]):
                of, target, end = inner, last, "items"
            case ast.Call(func=ast.Attribute(value=inner, attr="values")), _:
                of, end = inner, "items"
            case ast.Call(args=[inner]), _:  # weft.serial(...), reversed(...)
                of = inner
            case _:
                pass
        place = _place(of, text.names)
        if place is None or not isinstance(target, ast.Name):
            return
        value: Any = self._value(place)
        if type(value) not in _CONTAINERS or len(value) > _MOST_OBJECTS or _decides(value):
            return
        keys = [*value] if end else [*range(len(value))]
        for key in keys if isinstance(value, dict) == bool(end) else []:
            one = text._replace(names={**text.names, target.id: f"{place}[{key!r}]"})
            known = (one.scope, *sorted(one.names.items()))
            if isinstance(key, int | str) and known not in self.done:
                self.done.add(known)
                self.left.append(one)

    def _value(self, place: str) -> Any:
        if place not in self.found:
            self.found[place] = self._resolved(ast.parse(place, mode="eval").body)
        return self.found[place]

    def _resolved(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(name):
                return self.scope.lookup(name)
            case ast.Attribute(value=of, attr=name):
                return _member(self._resolved(of), name)
            case ast.Subscript(value=of, slice=key):
                base = self._resolved(of)
                try:
                    return base[ast.literal_eval(key)] if type(base) in _CONTAINERS else MISSING
                except LookupError:
                    return MISSING
            case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(key)]):
                base = self._resolved(of)
                return base.get(key) if type(base) is dict else MISSING
            case ast.Call(args=[of]):
                base = self._resolved(of)
                return len(base) if type(base) in (*_CONTAINERS, set, frozenset) else MISSING
            case _:
                return MISSING

    def _hidden_call(self, node: ast.Attribute | ast.Subscript, place: str, text: _Text) -> None:
        """Of a property, or of a method for items."""
        owner = _place(node.value, text.names)
        if owner is None:
            return
        if isinstance(node, ast.Attribute):
            value = self._value(place)
            called = value.fget if isinstance(value, property) else None
        else:
            called = _method(self._value(owner), "__getitem__")
        if isinstance(called, types.FunctionType):
            self._enter(place, called, [owner], {})

    def _call(self, node: ast.Call, text: _Text) -> None:
        given = [_place(argument, text.names) for argument in node.args]
        named = {k.arg: _place(k.value, text.names) for k in node.keywords if k.arg}
        place = _place(node.func, text.names)
        root = root_name(node.func)
        inner = text.scope is not self.scope and root and root not in text.names
        value = self._value(place) if place else text.scope.resolve(node.func) if inner else None
        if value is len and given and given[0]:
            self._enter(f"len({given[0]})", _method(self._value(given[0]), "__len__"), given, {})
            return
        if place is None:  # what else is around that function is read where it is
            self._enter(dotted(node.func) if root else "", value, given, named)
            return
        owner = place.rpartition(".")[0]
        first = self._value(owner) if isinstance(node.func, ast.Attribute) else MISSING
        bound = [] if first is MISSING or isinstance(first, types.ModuleType | type) else [owner]
        match value:
            case types.MethodType():
                self._enter(place, value.__func__, [f"{place}.__self__", *given], named)
            case staticmethod():
                self._enter(place, value.__func__, given, named)
            case classmethod():
                self._enter(place, value.__func__, [owner, *given], named)
            case types.FunctionType():
                self._enter(place, value, [*bound, *given], named)
            case _ if hasattr(type(value), "launchers"):
                self._enter(place, value, [*bound, *given], named)
            case torch.nn.Module():
                self._enter(place, _method(value, "forward"), [place, *given], named)
            case functools.partial():
                first = [f"{place}.args[{k}]" for k in range(len(value.args))]
                others = {name: f"{place}.keywords[{name!r}]" for name in value.keywords}
                self._enter(f"{place}.func", value.func, [*first, *given], others | named)
            case _:
                self._enter(place, _method(value, "__call__"), [place, *given], named)

    def _enter(
        self, place: str, called: Any, given: Sequence[str | None], named: Mapping[str, str | None]
    ) -> None:  # fmt: skip
        """A call of ``called``, if that is a function of a user's or a kernel, with what is at the
        places ``given`` and ``named``, or elsewhere."""
        kernel = called if hasattr(type(called), "launchers") else None
        function = called if kernel is None else kernel.function
        if not isinstance(function, types.FunctionType):
            return
        code = function.__code__
        names = dict(zip(code.co_varnames[: code.co_argcount], given, strict=False)) | dict(named)
        bound = {n: at for n, at in names.items() if at and self._value(at) is not MISSING}
        key = (function, *sorted(bound.items()))
        if (
            key in self.done
            or len(self.left) > _MOST_TEXTS
            or (function.__module__ or "").partition(".")[0] in KNOWN_MODULES
        ):
            return
        self.done.add(key)
        try:
            tree = (read_function(function) if kernel is None else kernel.source).tree
        except (SourceUnavailableError, SyntaxError):
            return  # made by ``exec``: what it reads shows nowhere
        regions = () if kernel is None or self.whole else kernel.parts.regions
        leave = frozenset[ast.AST](r.node for r in regions)
        self.called.setdefault(place, _Called(function, tree, leave))
        self.left.append(_Text(tree, leave, Scope.of(function), bound))


_MOST_TEXTS = 256  # of functions, which may call each other with ever longer places
_MOST_OBJECTS = 64  # of a list, or a dict
_CONTAINERS = (dict, list, tuple)


def _place(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """Where what ``node`` reads stands, where its names stand at ``names``; None for what is no
    such place."""
    match node:
        case ast.Name(name):
            return names.get(name)
        case ast.Attribute(value=of, attr=name):
            text = f".{name}"
        case ast.Subscript(
            value=ast.Call(func=ast.Name("vars"), args=[of]) | ast.Attribute(of, "__dict__"),
            slice=ast.Constant(str(name)),
        ):
            text = f".{name}"
        case ast.Subscript(value=of, slice=ast.Constant() | ast.UnaryOp(operand=ast.Constant())):
            text = f"[{ast.unparse(node.slice)}]"
        case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(key), *_]):
            text = f".get({key!r})"
        case ast.Call(func=ast.Name("getattr"), args=[of, ast.Constant(str(name)), *_]):
            text = f".{name}"
        case ast.Call(func=ast.Name("len"), args=[of]):
            place = _place(of, names)
            return place and f"len({place})"
        case _:
            return None
    place = _place(of, names)
    return place and place + text


def _member(base: Any, name: str) -> Any:
    """The attribute of an object, for which nothing is carried out: a property itself, say."""
    if base is MISSING:
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
    if isinstance(found, types.MemberDescriptorType):  # of ``__slots__``
        return getattr(base, name, MISSING)
    return found


def _method(value: Any, name: str) -> Any:
    """A method of the class of ``value``, if that is an object of a user's class."""
    return None if value is MISSING else inspect.getattr_static(type(value), name, None)


def _decides(value: Any) -> bool:
    """Whether it is such a value, or a short list of them."""
    items = value if isinstance(value, list | tuple) else [value]
    return 0 < len(items) <= _MOST_ITEMS and all(isinstance(v, _DECISIVE) for v in items)


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _reading(function: Callable[..., Any], items: Sequence[str]) -> Any:
    """A function of the same variables around it that gives the values of ``items``; of those that
    are not there any more, which a branch of ``function`` may know, a text."""
    free = function.__code__.co_freevars
    each = "".join(
        f"  try: v{k} = {item}\n"
        f"  except (AttributeError, LookupError, NameError, TypeError): v{k} = 'absent'\n"
        for k, item in enumerate(items)
    )
    outer = (
        f"def outer({', '.join((*free, '__decisive__'))}):\n def reading():\n{each}"
        f"  return ({''.join(f'v{k}, ' for k in range(len(items)))})\n"
    )
    made = compile(outer, "<weft reading>", "exec")
    inner = next(code for code in codes(made) if code.co_name == "reading")
    own = {**Scope.of(function).cells, "__decisive__": types.CellType(decisive)}
    cells = tuple(own[name] for name in inner.co_freevars)
    return types.FunctionType(inner, function.__globals__, closure=cells)


def decisive(value: Any) -> Any:
    """What of ``value`` a graph is made for, as what Dynamo takes for a constant: where it is of
    none of these types any more (a float, an object that was None), its type."""
    if isinstance(value, list | tuple):
        return tuple([decisive(v) for v in value])
    if isinstance(value, dict):
        return tuple([(key, decisive(v)) for key, v in value.items()])
    return plainly(value) if isinstance(value, _DECISIVE) else type(value).__name__


def plainly(value: Any) -> Any:
    """What Dynamo takes for a constant in place of a dtype of weft's."""
    return value.torch if isinstance(value, DType) else value
