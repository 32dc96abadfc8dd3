"""What the host part of a kernel takes from around it that a graph is made for: Dynamo, which can
trace how it is read, puts guards on it.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch

# pyright: reportPrivateUsage=false
from weft.errors import SourceUnavailableError
from weft.frontend.names import MISSING, Scope
from weft.lang.dtypes import DType
from weft.pytorch.dynamo import finds_globals
from weft.pytorch.identity import global_names, is_imported
from weft.pytorch.reachable import has_items, is_plain, is_users, member, reachable
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
    return _readings(_parts(function, tree, None, _is_tensor), "{}.requires_grad")


class Guarded:
    """What is read around a kernel, which may stand elsewhere when a graph is made anew: an object
    of another class, one item more. ``decides``: the reading of what is there now."""

    def __init__(
        self, function: Callable[..., Any], tree: ast.FunctionDef, loops: frozenset[ast.AST]
    ) -> None:
        self.host_part = function, tree, loops
        self.decides: Any = deciding(*self.host_part)
        self.readings: dict[str, tuple[Any, Any]] = {}  # of graphs, by what they read

    def around(self, token: str) -> tuple[Any, ...]:
        """What decides now. Dynamo traces this, and guards what is read."""
        key = self.look(token)
        if not key:
            return ()
        decides, watches = self.readings[key]
        watches()
        return decides()

    def look(self, token: str) -> str:
        """The key in ``readings`` of what is there now, "" of nothing. Dynamo, which calls this as
        it is, guards the ``token`` of the kernel."""
        decides: Any = deciding(*self.host_part)
        watches: Any = watching(*self.host_part[:2])
        if not decides.names and not watches.names:
            self.decides = decides
            return ""
        key = f"{token} {decides.key} {watches.key}"
        self.decides, _ = self.readings.setdefault(key, (decides, watches))
        return key


_Part = tuple[Callable[..., Any], str, list[str]]


def _readings(parts: Sequence[_Part], each: str) -> Reading:
    """Gives what ``each`` says of all places."""
    readings = [
        _reading(f, [each.format(text) for text in found]) for f, _, found in parts if found
    ]

    def made() -> tuple[Any, ...]:
        values: tuple[Any, ...] = ()
        for reading in readings:
            values += reading()
        return values

    named: Any = readings[0] if len(readings) == 1 else made  # Dynamo guards each step to it
    named.names = tuple(f"{label}{text}" for _, label, found in parts for text in found)
    named.key = repr([(id(f), finds_globals(f), found) for f, _, found in parts])
    return named


def _parts(
    function: Callable[..., Any], tree: ast.FunctionDef, loops: frozenset[ast.AST] | None,
    wanted: Callable[[Any], bool],
) -> list[_Part]:  # fmt: skip
    """``function``, and the functions and kernels that it calls, each with the name of what finds
    it and the places of what it reads that is ``wanted``: its host part, around its ``loops``, or
    all of it where these are None."""
    attributes, before = set[str](), -1
    found: list[_Part] = []
    while len(attributes) > before:  # until no text has others, which escaped objects are asked for
        before = len(attributes)
        found = _parts_by(function, tree, loops, wanted, attributes)
    return found


def _parts_by(
    function: Callable[..., Any], tree: ast.FunctionDef, loops: frozenset[ast.AST] | None,
    wanted: Callable[[Any], bool], attributes: set[str],
) -> list[_Part]:  # fmt: skip
    """These, with the ``attributes`` that the texts are known to have; adds others to them."""
    left, found = list[tuple[Any, ...]]([(function, tree, loops or frozenset(), "")]), []
    done = {function}
    for f, own, leave, label in left:
        places = _Places(f, own, leave, loops is None, attributes)
        texts = [text for text, value in places.found.items() if wanted(value)]
        for text, called in places.called.items():
            if not _is_reached(called.function, function):
                continue
            if places.found.get(text) is called.function:
                texts += [f"{text}.{place}" for place, value in _defaults(called.function)
                          if wanted(value)]  # fmt: skip
            if called.function not in done:
                done.add(called.function)
                left.append((called.function, called.tree, called.leave, f"{label}{text}: "))
        found.append((f, label, texts))
    return found


def _defaults(function: Any) -> Iterator[tuple[str, Any]]:
    """By their places; what Dynamo reads of a function, it guards the code of."""
    yield "__defaults__", function.__defaults__
    yield "__kwdefaults__", function.__kwdefaults__
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"__kwdefaults__[{name!r}]", value


def _is_reached(value: Callable[..., Any], kernel: Callable[..., Any]) -> bool:
    """Whether it is a function of a user's whose globals Dynamo finds."""
    own = value.__globals__ is kernel.__globals__ or is_imported(value)
    return own and is_users(value.__module__)


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
        self, function: Callable[..., Any], tree: ast.AST, leave: frozenset[ast.AST], whole: bool,
        attributes: set[str],
    ) -> None:  # fmt: skip
        self.scope, self.whole = Scope.of(function), whole
        self.found: dict[str, Any] = {}
        self.called: dict[str, _Called] = {}
        self.escaped: dict[str, Any] = {}
        self.attributes = attributes
        names = {*function.__code__.co_freevars, *global_names(function.__code__)}
        self.left = [_Text(tree, leave, self.scope, {name: name for name in names})]
        self.done = set[tuple[Any, ...]]()
        read = 0
        while read < len(self.left):
            for text in self.left[read:]:
                self._read(text)
                read += 1
            for place, value in [*self.escaped.items()]:
                if len(self.found) > _MOST_PLACES:
                    return
                for inner, met, owner in reachable(place, value, self.attributes):
                    self.found.setdefault(inner, met)
                    self._enter_hidden(inner, met, owner)

    def _read(self, text: _Text) -> None:
        nodes = children(text.tree)
        for node in nodes:
            if node not in text.leave:
                nodes += children(node)
        nodes = [node for node in nodes if node not in text.leave]
        names, passed = dict(text.names), set[ast.AST]()
        bound = Counter(n.id for n in nodes if isinstance(n, ast.Name) and _is_stored(n))
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=value) if name not in names:
                    place = _place(value, names)
                    if place and bound[name] == 1:
                        names[name] = place
                        passed.add(value)
                case ast.Attribute(attr=name) | ast.Constant(str(name)):
                    self.attributes.add(name)
                case ast.MatchClass(kwd_attrs=found):
                    self.attributes |= {*found}
                case ast.Name("super"):
                    for place in [*text.names.values()][:1]:
                        self.escaped[place] = self._value(place)
                case _:
                    pass
        text = text._replace(names=names)
        places = dict[ast.AST, str]()
        for node in nodes:
            if isinstance(node, ast.Call) and self._call(node, text):
                passed |= {*node.args, *[k.value for k in node.keywords]}
            place = None if _is_stored(node) else _place(node, names)
            if place and not isinstance(node, ast.keyword):
                places[node] = place
                self._place(node, place, text)
        for node in places:
            value, of = self._value(places[node]), _base(node)
            if of is not None and value is not MISSING and not _is_library(value):
                passed.add(of)
        for node, place in places.items():
            if node not in passed and (value := self._value(place)) is not MISSING:
                self.escaped[place] = value

    def _place(self, node: ast.AST, place: str, text: _Text) -> None:
        value, of = self._value(place), _base(node)
        owner = of and _place(of, text.names)
        if of is None or owner is None:
            return
        if value is MISSING and place[len(owner) :] == f".{place.rpartition('.')[2]}":
            base, name = self._value(owner), place.rpartition(".")[2]
            if base is not MISSING and not hasattr(type(base), "__getattr__") and is_plain(base):
                self.found[f"hasattr({owner}, {name!r})"] = False
        if isinstance(node, ast.Subscript):
            value = _method(self._value(owner), "__getitem__")
        elif value is MISSING:
            value = _method(self._value(owner), "__getattr__")
        self._enter_hidden(place, value, owner, not isinstance(node, ast.Attribute))

    def _enter_hidden(self, place: str, value: Any, owner: str, always: bool = True) -> None:
        """Of a property, a descriptor, or a method that its object is asked for."""
        of = self._value(owner) if owner else MISSING
        bound = [] if isinstance(of, types.ModuleType | type) else [owner]
        match value:
            case property(fget=called) | functools.cached_property(func=called):
                self._enter(place, called, [owner], {})
            case staticmethod(__func__=called):
                self._enter(place, called, [], {})
            case classmethod(__func__=called):
                self._enter(place, called, [owner], {})
            case types.FunctionType() if always or value.__name__ == "__getattr__":
                self._enter(place, value, bound, {})
            case _ if always and hasattr(type(value), "launchers"):
                self._enter(place, value, bound, {})
            case _ if isinstance(called := _method(value, "__get__"), types.FunctionType):
                self._enter(place, called, [None, owner], {})
            case _:
                pass

    def _value(self, place: str) -> Any:
        if place not in self.found:
            self.found[place] = self._resolved(ast.parse(place, mode="eval").body)
        return self.found[place]

    def _resolved(self, node: ast.expr, scope: Scope | None = None) -> Any:
        match node:
            case ast.Name(name):
                return (scope or self.scope).lookup(name)
            case ast.Attribute(value=of, attr=name):
                return member(self._resolved(of, scope), name)
            case ast.Subscript(value=of, slice=key):
                base = self._resolved(of, scope)
                try:
                    return base[ast.literal_eval(key)] if has_items(base) else MISSING
                except (LookupError, TypeError):
                    return MISSING
            case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(key)]):
                base = self._resolved(of, scope)
                return base.get(key) if type(base) is dict else MISSING
            case ast.Call(args=[of]):
                base = self._resolved(of, scope)
                return (
                    len(base)
                    if has_items(base) or type(base) in (set, frozenset, bytes)
                    else MISSING
                )
            case _:
                return MISSING

    def _call(self, node: ast.Call, text: _Text) -> bool:
        """Whether all that the call gives is known to what is called."""
        given = [_place(argument, text.names) for argument in node.args]
        named = {k.arg: _place(k.value, text.names) for k in node.keywords if k.arg}
        place = _place(node.func, text.names)
        root = _root(node.func)
        inner = text.scope is not self.scope and root and root not in text.names
        value = self._value(place) if place else None
        if inner and not place:
            value = self._resolved(node.func, text.scope)
        if value is len and given and given[0]:
            called = _method(self._value(given[0]), "__len__")
            return self._enter(f"len({given[0]})", called, given, {})
        if place is None:  # what else is around that function is read where it is
            return self._enter(ast.unparse(node.func) if root else "", value, given, named)
        owner, _, name = place.rpartition(".")
        first = self._value(owner) if owner and name.isidentifier() else MISSING
        bound = [] if first is MISSING or isinstance(first, types.ModuleType | type) else [owner]
        match value:
            case types.MethodType():
                return self._enter(place, value.__func__, [f"{place}.__self__", *given], named)
            case staticmethod():
                return self._enter(place, value.__func__, given, named)
            case classmethod():
                return self._enter(place, value.__func__, [owner, *given], named)
            case types.FunctionType():
                return self._enter(place, value, [*bound, *given], named)
            case _ if hasattr(type(value), "launchers"):
                return self._enter(place, value, [*bound, *given], named)
            case torch.nn.Module():
                return self._enter(place, _method(value, "forward"), [place, *given], named)
            case functools.partial():
                first = [f"{place}.args[{k}]" for k in range(len(value.args))]
                others = {name: f"{place}.keywords[{name!r}]" for name in value.keywords}
                return self._enter(f"{place}.func", value.func, [*first, *given], others | named)
            case _:
                return self._enter(place, _method(value, "__call__"), [place, *given], named)

    def _enter(
        self, place: str, called: Any, given: Sequence[str | None], named: Mapping[str, str | None]
    ) -> bool:  # fmt: skip
        """A call of ``called``, if that is a function of a user's or a kernel, with what is at the
        places ``given`` and ``named``, or elsewhere. Whether it has a parameter for each."""
        kernel = called if hasattr(type(called), "launchers") else None
        function = called if kernel is None else kernel.function
        if not isinstance(function, types.FunctionType):
            return False
        code = function.__code__
        names = dict(zip(code.co_varnames[: code.co_argcount], given, strict=False)) | dict(named)
        fits = len(given) <= code.co_argcount and {*named} <= {*code.co_varnames}
        bound = {n: at for n, at in names.items() if at and self._value(at) is not MISSING}
        key = (function, *sorted(bound.items()))
        if key in self.done:
            return fits
        if len(self.left) > _MOST_TEXTS or not is_users(function.__module__):
            return False
        if any(at.count(".") + at.count("[") > _FARTHEST for at in bound.values()):
            return False
        self.done.add(key)
        try:
            tree = (read_function(function) if kernel is None else kernel.source).tree
        except (SourceUnavailableError, SyntaxError):
            return False  # made by ``exec``: what it reads shows nowhere
        regions = () if kernel is None or self.whole else kernel.parts.regions
        leave = frozenset[ast.AST](r.node for r in regions)
        self.called.setdefault(place, _Called(function, tree, leave))
        self.left.append(_Text(tree, leave, Scope.of(function), bound))
        return fits


_MOST_PLACES = 512  # until which others are looked for where what is read does not show
_MOST_TEXTS = 256  # of functions
_FARTHEST = 32  # steps to what a function is given: some call themselves, with ever longer places


def _place(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """Where what ``node`` reads stands, where its names stand at ``names``; None for what is no
    such place."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    of, text = _step(node)
    place = of and _place(of, names)
    return place and text.replace("{}", place, 1)


def _root(node: ast.AST) -> str:
    """The name that a place starts from; "" of what is no place."""
    while (of := _base(node)) is not None:
        node = of
    return node.id if isinstance(node, ast.Name) else ""


def _base(node: ast.AST) -> ast.expr | None:
    """What the last step to the place that ``node`` reads is made from."""
    return _step(node)[0]


def _step(node: ast.AST) -> tuple[ast.expr | None, str]:
    match node:
        case ast.Attribute(value=of, attr=name):
            return of, f"{{}}.{name}"
        case ast.Subscript(
            value=ast.Call(func=ast.Name("vars"), args=[of]) | ast.Attribute(of, "__dict__"),
            slice=ast.Constant(str(name)),
        ):
            return of, f"{{}}.{name}"
        case ast.Subscript(value=of, slice=ast.Constant() | ast.UnaryOp(operand=ast.Constant())):
            return of, f"{{}}[{ast.unparse(node.slice)}]"
        case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(key), *_]):
            return of, f"{{}}.get({key!r})"
        case ast.Call(func=ast.Name("getattr" | "hasattr"), args=[of, ast.Constant(str(name)), *_]):
            return of, f"{{}}.{name}"
        case ast.Call(func=ast.Name("len"), args=[of]):
            return of, "len({})"
        case _:
            return None, ""


def _is_stored(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _is_library(value: Any) -> bool:
    """Whether it is a function that may do anything to its object, and is not read."""
    if isinstance(value, types.FunctionType):
        return not is_users(value.__module__)
    return isinstance(value, _DESCRIBED)


_DESCRIBED = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.BuiltinFunctionType,
)  # fmt: skip


def _method(value: Any, name: str) -> Any:
    """A method of the class of ``value``, if that is an object of a user's class."""
    return None if value is MISSING else inspect.getattr_static(type(value), name, None)


def _decides(value: Any) -> bool:
    """Whether it is such a value, or a short list of them."""
    items = value if isinstance(value, list | tuple) else [value]
    decisive = 0 < len(items) <= _MOST_ITEMS and all(isinstance(v, _DECISIVE) for v in items)
    return decisive or _is_object(value)


def _is_object(value: Any) -> bool:
    """Whether it is an object of a user's class, which decides on what is called."""
    own = type(value)
    return (
        is_users(own.__module__) and not issubclass(own, type) and not hasattr(own, "launchers")
        and is_plain(value)
        and not isinstance(value, torch.Tensor)
    )  # fmt: skip


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _reading(function: Callable[..., Any], items: Sequence[str]) -> Any:
    """A function of the same variables around it that gives the values of ``items``; of those that
    are not there any more, which a branch of ``function`` may know, a text. Where Dynamo finds no
    globals by their names, they are items of a dict."""
    free = (*function.__code__.co_freevars, "__decisive__")
    if not finds_globals(function):
        own = {*function.__globals__} - {*free}
        items = [ast.unparse(_InDict(own).visit(ast.parse(item, mode="eval"))) for item in items]
        free = (*free, "__globals__")
    each = "".join(
        f"  try: v{k} = {item}\n"
        f"  except (AttributeError, LookupError, NameError, TypeError): v{k} = 'absent'\n"
        for k, item in enumerate(items)
    )
    outer = (
        f"def outer({', '.join(free)}):\n def reading():\n{each}"
        f"  return ({''.join(f'v{k}, ' for k in range(len(items)))})\n"
    )
    made = compile(outer, "<weft reading>", "exec")
    inner = next(code for code in codes(made) if code.co_name == "reading")
    cells = {
        **Scope.of(function).cells,
        "__decisive__": types.CellType(decisive),
        "__globals__": types.CellType(function.__globals__),
    }
    closure = tuple(cells[name] for name in inner.co_freevars)
    return types.FunctionType(inner, function.__globals__, closure=closure)


class _InDict(ast.NodeTransformer):
    """Makes items of ``__globals__`` of the ``names`` in an expression."""

    def __init__(self, names: Set[str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names:
            return node
        return ast.Subscript(ast.Name("__globals__"), ast.Constant(node.id))


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
