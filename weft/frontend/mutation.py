"""Which parameters a function writes to: conservatively, through local aliases, from its AST alone.

Not decided here: whether the parameter is a tensor at all (``n += 1`` on an int counts as a write).
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable, Container, Iterable
from typing import Any

from weft.errors import SourceUnavailableError
from weft.frontend.callees import (
    HANDING_ON,
    NONE,
    PLAIN_ATTRIBUTES,
    STORING_METHODS,
    VIEWS,
    Bound,
    Objects,
    State,
    applied,
    attributes,
    bound_arguments,
    called,
    element,
    functions,
    inplace,
    is_in_place,
    is_read,
    items,
    known,
    partial_call,
    remembered,
    schemas,
    stores,
    union,
)
from weft.frontend.names import (
    MISSING,
    Scope,
    arguments,
    bound_names,
    is_known,
    parameter_names,
    root_name,
)
from weft.lang.vectors import Matrix, Vector
from weft.source import children, enclosed_function, read_function, subtree

# Methods of lists, dicts and sets that put what they are given into them.
_HOLDING = ("append", "extend", "insert", "add", "update", "setdefault", "appendleft")
_MAKING = (ast.Dict, ast.List, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_REPEATING = (ast.For, ast.While, ast.Try, ast.TryStar, ast.Match)


class Values:
    """What expressions may be: the parameters that share memory with them, what may be called."""

    def __init__(self, at: State, statements: Mutations) -> None:
        self.at, self.statements = at, statements
        self.made: dict[ast.AST, ast.expr] = {}

    @remembered
    def roots(self, node: ast.expr | None) -> frozenset[str]:
        """The parameters whose memory the value of ``node`` may share."""
        match node:
            case ast.Name(id=name):
                return self.at.now.get(name, NONE)
            case ast.Attribute(attr=attr, value=value):
                return NONE if attr in PLAIN_ATTRIBUTES else self.roots(value)
            case ast.Subscript(value=value) | ast.Starred(value=value):
                return self.roots(value)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.roots(value)
            case ast.IfExp(body=a, orelse=b):
                return self.roots(a) | self.roots(b)
            case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                return NONE.union(*map(self.roots, values))
            case ast.Dict(values=values) | ast.Set(elts=values):
                return NONE.union(*map(self.roots, values))
            case ast.ListComp(elt=value) | ast.SetComp(elt=value) | ast.GeneratorExp(elt=value):
                self.statements.generate(node)
                return self.roots(value)
            case ast.DictComp(value=value):
                self.statements.generate(node)
                return self.roots(value)
            case ast.Lambda():
                return self.apply(node, ast.Call(node, [], []))  # what it gives when it is called
            case ast.Call(func=func):
                called = NONE if isinstance(func, ast.Attribute) else self.roots(func)
                return called | self._call_roots(node, func)
            case _:
                return NONE

    @remembered
    def objects(self, node: ast.expr | None) -> Objects:
        """What the value of ``node`` may be, or hold, that may be called: as far as is known."""
        match node:
            case ast.Name(id=name):
                return self.at.held.get(name, {}) if self.at.is_local(name) else known(
                    self.at.scope.lookup(name)
                )  # fmt: skip
            case ast.Constant(value=value):
                return known(value)
            case ast.Attribute(attr=attr, value=value):
                found = attributes(self.objects(value), attr)
                return found | {node: node} if self.roots(value) else found
            case ast.Subscript(value=value, slice=subscript):
                return items(self.objects(value), subscript)
            case ast.Starred(value=value) | ast.NamedExpr(value=value):
                return self.objects(value)
            case ast.IfExp(body=a, orelse=b):
                return self.objects(a) | self.objects(b)
            case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                return union(map(self.objects, values))
            case ast.Dict(values=values) | ast.Set(elts=values):
                return union(map(self.objects, values))
            case ast.Lambda():
                return {node: node}
            case ast.Call(func=func, args=args):
                callees = self.objects(func).values()
                if any(c is functools.partial for c in callees):
                    return {node: node}
                if any(c is getattr for c in callees) and len(args) > 1:
                    return self._getattr(node)
                given = arguments(node)
                return union(items(self.objects(a)) for a in given) if given else {}
            case _:
                return {}

    def element(self, over: ast.expr) -> ast.expr:
        """What stands for each element of ``over``: the same expression each time."""
        if over not in self.made:
            self.made[over] = element(over, self.objects)
        return self.made[over]

    def _getattr(self, node: ast.Call) -> Objects:
        """``getattr(x, "name")`` as ``x.name``."""
        match node.args[1]:
            case ast.Constant(value=str(name)):
                made = ast.Attribute(node.args[0], name, ast.Load())
                return self.objects(self.made.setdefault(node, made))
            case _:
                return {}

    def _call_roots(self, node: ast.Call, func: ast.expr) -> frozenset[str]:
        all_roots = NONE.union(*map(self.roots, arguments(node)))
        callees = list(self.objects(func).values())
        return NONE.union(*(self._result(node, c, all_roots) for c in callees or [MISSING]))

    def _result(self, node: ast.Call, callee: Any, all_roots: frozenset[str]) -> frozenset[str]:
        """What a call of ``callee`` gives may share memory with. ``all_roots``: its arguments."""
        func, function = node.func, called(callee)
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        match function:
            case ast.Attribute(value=value, attr=attr):
                returns_receiver = attr in VIEWS or is_in_place(attr)
                return self.roots(value) | all_roots if returns_receiver else NONE
            case ast.Lambda() | ast.FunctionDef():
                return self.apply(function, node)
            case ast.Call():
                return self._call_roots(partial_call(function, node), function.args[0])
            case functools.partial():
                inner = applied(node, function.args, function.keywords)
                return self._result(inner, function.func, all_roots)
            case types.MethodType():
                node, function = applied(node, [function.__self__]), function.__func__
            case _:
                pass
        if isinstance(function, type) and issubclass(function, Vector | Matrix):
            return NONE  # their elements are values
        if any(function is builtin for builtin in HANDING_ON):
            return all_roots
        if (function is max or function is min) and len(node.args) == 1:
            return all_roots  # one of a list
        name = getattr(function, "__name__", name)
        if is_known(function) and function is not MISSING and not isinstance(function, type):
            return all_roots if name in VIEWS or name.endswith("_") else NONE
        inner = enclosed_function(function)  # also of another kernel
        if all_roots and isinstance(inner, types.FunctionType) and inner not in self.at.active:
            return self._returned_roots(node, inner, all_roots)
        return all_roots

    def _returned_roots(
        self, node: ast.Call, function: types.FunctionType, all_roots: frozenset[str]
    ) -> frozenset[str]:
        """What a function that is written in Python returns may share memory with."""
        try:
            bound = bound_arguments(node, function)
            names = _returned(function, self.at, self.given(bound))
        except (SourceUnavailableError, TypeError, ValueError, SyntaxError):
            return all_roots
        return NONE.union(
            *(self.roots(item) for name, given in bound for item in given if name in names)
        )

    def apply(self, function: ast.Lambda | ast.FunctionDef, node: ast.Call) -> frozenset[str]:
        """A call of a function of this text; gives what its result may share memory with."""
        if function in self.at.applying:
            return NONE
        bound = self._bound(function, node)
        key = function, *((n, roots, *found) for n, (roots, found) in bound.items())
        memory = self.at.memory
        if key in memory:
            return memory[key][0]
        with self.at.called(function, bound):
            if isinstance(function, ast.Lambda):
                self.statements.walk(function.body)
                roots = self.roots(function.body)
            else:
                self.statements.block(function.body)
                roots = NONE.union(*map(self.roots, _returns(function)))
        if self.at.memory is memory:
            memory[key] = roots, bound  # the key has the ids of what is bound
        return roots

    def _bound(
        self, function: ast.Lambda | ast.FunctionDef, node: ast.Call
    ) -> dict[str, tuple[frozenset[str], Objects]]:
        """What the parameters of a function of this text may alias and be in the call ``node``."""
        a = function.args
        names = parameter_names(a)
        everything = arguments(node)
        by_place = len(node.args) <= len([*a.posonlyargs, *a.args]) and not any(
            isinstance(v, ast.Starred) for v in node.args
        )
        if by_place and all(k.arg in names for k in node.keywords):
            given = dict(zip(names, node.args, strict=False))
            given |= {str(k.arg): k.value for k in node.keywords}
            return {n: (self.roots(given.get(n)), self.objects(given.get(n))) for n in names}
        roots = NONE.union(*map(self.roots, everything))
        return dict.fromkeys(names, (roots, union(map(self.objects, everything))))

    def given(self, bound: Bound) -> dict[str, Objects]:
        """What a function may call of what it is given: not what only this text can tell."""
        return {
            name: {key: v for a in given for key, v in self.objects(a).items()
                   if not isinstance(v, ast.AST)}
            for name, given in bound
        }  # fmt: skip

    def hold(self, place: ast.Name, values: Iterable[ast.expr]) -> None:
        """The list, dict or object ``place`` gets ``values``."""
        for value in values:
            self.at.put(place.id, self.roots(place) | self.roots(value), self.objects(value))


class Calls:
    """What calls write to."""

    def __init__(self, at: State, values: Values) -> None:
        self.at, self.values, self.open = at, values, set[ast.Call]()
        self.roots, self.objects = values.roots, values.objects

    def call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg == "out" or (keyword.arg is None and self._has_out(keyword.value)):
                self.at.written |= self.roots(keyword.value)
        for callee in list(self.objects(node.func).values()) or [MISSING]:
            self._calls(node, callee)

    def _has_out(self, mapping: ast.expr) -> bool:
        """Whether ``**mapping`` may have an item "out"."""
        if not isinstance(mapping, ast.Dict):
            return isinstance(mapping, ast.Call | ast.Name) and self.at.names_out
        return any(isinstance(k, ast.Constant) and k.value == "out" for k in mapping.keys)

    def _calls(self, node: ast.Call, callee: Any) -> None:
        """A call of ``callee``, which is ``MISSING`` where it is not known."""
        func, function = node.func, called(callee)
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        match function:
            case ast.Attribute(value=value, attr=attr):
                self._method(node, value, attr)
            case ast.Lambda() | ast.FunctionDef():
                self.values.apply(function, node)
            case ast.Call():
                if function not in self.open:  # `g = partial(g)` may be made of itself
                    self.open.add(function)
                    self.call(partial_call(function, node))
                    self.open.remove(function)
            case functools.partial():
                self._calls(applied(node, function.args, function.keywords), function.func)
            case types.MethodType():
                self._user_call(applied(node, [function.__self__]), function.__func__)
            case _ if function is MISSING and isinstance(func, ast.Attribute):
                self._method(node, func.value, name)
            case _ if is_read(function):
                self._user_call(node, function)
            case _:
                self._library_call(node, function, name)

    def _method(self, node: ast.Call, receiver: ast.expr, name: str) -> None:
        """A call of a method of a tensor, or of a list, dict or other object."""
        if name in _HOLDING:
            if isinstance(receiver, ast.Name) and receiver.id in self.at.containers:
                self.values.hold(receiver, arguments(node))
            self.at.written |= self.roots(receiver) & self.at.captured
        stores = name in ("fill", "from_numpy", "from_torch", "copy_from")
        if stores or is_in_place(name) or name in STORING_METHODS:
            self.at.written |= self.roots(receiver)

    def _library_call(self, node: ast.Call, function: Any, name: str) -> None:
        """A call of a function that says by its schema or by its name what it writes to."""
        everything = arguments(node)
        for schema in schemas(function):
            for k, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    given = [key.value for key in node.keywords if key.arg == argument.name]
                    for value in [*node.args[k : k + 1], *given]:
                        self.at.written |= self.roots(value)
        flag = inplace(function, node)
        if not schemas(function) and (stores(function, name) or self._is_true(flag)):
            for value in everything[:1]:
                self.at.written |= self.roots(value)
        for argument in everything:  # what `map` and the like are given is called with the rest
            for inner in functions(self.objects(argument)):
                if not isinstance(argument, ast.Constant):
                    rest: list[ast.expr] = [a for a in everything if a is not argument]
                    self._calls(ast.Call(ast.Constant(inner), rest, []), inner)

    def _is_true(self, node: ast.expr | None) -> bool:
        """Whether a flag may be set."""
        match node:
            case None:
                return False
            case ast.Constant(value=value):
                return bool(value)
            case ast.Attribute(value=value, attr=attr):
                owners = self.objects(value).values()
                return not owners or any(getattr(owner, attr, True) for owner in owners)
            case _:
                return True

    def _user_call(self, node: ast.Call, function: Any) -> None:
        """A call of a function that is written in Python, or of another kernel."""
        everything = arguments(node)
        if not any(self.roots(a) for a in everything):
            return
        for argument in everything:  # a function of this text is called with any of the rest
            for inner in self.objects(argument).values():
                if isinstance(inner, ast.AST):
                    rest: list[ast.expr] = [a for a in everything if a is not argument]
                    self._calls(ast.Call(argument, [ast.Starred(ast.Tuple(rest))], []), inner)
        inner = enclosed_function(function)
        try:
            bound = bound_arguments(node, inner)
            names = _written(inner, self.at, self.values.given(bound))
        except (SourceUnavailableError, TypeError, ValueError, SyntaxError):
            self._library_call(node, function, inner.__name__)
            return
        for name, given in bound:
            if name in names:
                self.at.written |= NONE.union(*map(self.roots, given))


class Mutations:
    """Collects, over any number of passes over the same statements, what each local may alias and
    which parameters are written. ``regions`` are device loops."""

    def __init__(self, at: State, regions: Container[ast.AST]) -> None:
        self.at, self.regions = at, regions
        self.values = Values(at, self)
        self.calls = Calls(at, self.values)
        self.roots, self.objects = self.values.roots, self.values.objects

    @property
    def written(self) -> frozenset[str]:
        return frozenset(self.at.written)

    def writes(self, node: ast.AST) -> frozenset[str]:
        """What the statement or expression ``node`` writes to, once ``run`` knows the aliases."""
        before, self.at.written = self.at.written, set()
        self.at.forget()  # what was written where an answer was found
        self.walk(node)
        found, self.at.written = self.written, before
        self.at.forget()
        return found

    def run(self, body: list[ast.stmt]) -> None:
        self.block(body)
        # From here on a statement may be asked about: a name is all that it ever is.
        self.at.now, self.at.repeated = self.at.aliases, True
        self.at.forget()

    def block(self, body: Iterable[ast.AST]) -> None:
        for node in body:
            self.walk(node)

    def walk(self, node: ast.AST) -> None:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                self.walk(test)
                before = self.at.now
                self.at.rebind(dict(before))
                self.block(body)
                then = self.at.now
                self.at.rebind(dict(before))
                self.block(orelse)
                now = self.at.now
                self.at.rebind(now | {n: now.get(n, NONE) | r for n, r in then.items()})
            case ast.Lambda():
                self.values.apply(node, ast.Call(node, [], []))
            case ast.FunctionDef(name=name):
                self.at.put(name, NONE, {node: node})
                self.values.apply(node, ast.Call(ast.Name(name, ast.Load()), [], []))
            case _ if isinstance(node, _REPEATING) and not self.at.repeated:
                self.at.repeated = True
                self.at.forget()
                before: Any = None
                while before != (state := self.at.snapshot()):
                    before = state
                    self._parts(node)
                self.at.repeated = False
                self.at.forget()
            case _:
                self._parts(node)

    def _parts(self, node: ast.AST) -> None:
        """Walks what ``node`` is made of: expressions, what it does with them, statements."""
        outside = self.at.device
        self._enter(outside or node in self.regions)
        later: list[ast.AST] = []
        made = isinstance(node, _MADE_IN)  # after what generates
        for child in children(node):
            if isinstance(child, _BLOCKS) or (made and not isinstance(child, ast.comprehension)):
                later.append(child)
            elif not isinstance(child, _PLAIN):
                self.walk(child)
        self._visit(node)
        self.block(later)
        self._enter(outside)

    def _enter(self, device: bool) -> None:
        """A device loop, or what is around it."""
        if device != self.at.device:
            self.at.device = device
            self.at.forget()

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._assign(target, self.values.element(value))
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._assign(target, value)
            case ast.AugAssign(target=target):
                if not (self.at.device and isinstance(target, ast.Name)):
                    self.at.written |= self.roots(target)
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Subscript):
                        self.at.written |= self.roots(target)
            case ast.Call():
                self.calls.call(node)
            case _:
                pass

    def generate(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        for generator in node.generators:
            self._assign(generator.target, self.values.element(generator.iter))

    def _assign(self, target: ast.expr, value: ast.expr, of: bool = False) -> None:
        """``target = value``; ``of``: ``target`` is one of the items of ``value``."""
        match target:
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                values = value.elts if isinstance(value, ast.Tuple | ast.List) and not of else ()
                starred = any(isinstance(e, ast.Starred) for e in elts)
                one_each = len(values) == len(elts) and not starred
                before, after = self.at.now, dict(self.at.now)
                for k, item in enumerate(elts):  # at once: `a, b = b, a`
                    self.at.rebind(dict(before))
                    self._assign(item, values[k] if one_each else value, of=not one_each)
                    after |= {n: r for n, r in self.at.now.items() if r != before.get(n)}
                self.at.rebind(after)
            case ast.Name(id=name):
                found = self.objects(value)
                self.at.put(name, self.roots(value), items(found) if of else found)
                makes = isinstance(value, ast.Call) and any(
                    isinstance(c, type) and not issubclass(c, Vector | Matrix)
                    for c in self.objects(value.func).values()
                )
                if makes or isinstance(value, _MAKING):
                    self.at.contain(name)
            case ast.Starred(value=inner):
                self._assign(inner, value, of)
            case ast.Subscript(value=place) | ast.Attribute(value=place):
                root = root_name(place)
                if root in self.at.containers and isinstance(place, ast.Name):
                    self.values.hold(place, [value])
                elif not self.at.device or ast.Subscript in (type(target), type(place)):
                    self.at.written |= self.roots(place)  # `x[i] = value`, `x[i].field = value`
                    if root in self.at.captured:  # `module.held = value`
                        self.at.written.add(root)
            case _:
                pass


_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_PLAIN = (
    ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip
_MADE_IN = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def _written(function: Callable[..., Any], at: State, given: dict[str, Objects]) -> frozenset[str]:
    """Names of the parameters of ``function`` that it writes to, where what it may call among them
    is ``given``. Raises SourceUnavailableError."""
    return NONE if function in at.active else _inside(function, at, given)[1].written


def _returned(function: Callable[..., Any], at: State, given: dict[str, Objects]) -> frozenset[str]:
    """Names of the parameters of ``function``, and of the tensors that it captures, whose memory
    its results may share. Raises SourceUnavailableError."""
    tree, found, _ = _inside(function, at, given)
    return NONE.union(*map(found.roots, _returns(tree)))


def _inside(
    function: Callable[..., Any], at: State, given: dict[str, Objects]
) -> tuple[ast.FunctionDef, Mutations, dict[str, Objects]]:
    """The text of ``function``, what it may alias and write to, and ``given``: looked at once for
    all calls from the same functions, or texts whose functions call the next twice would be looked
    at twice as often with every level."""
    objects = tuple((name, key, id(v)) for name in given for key, v in given[name].items())
    key = function, at.device, at.active, objects
    found = at.inside.get(key)
    if found is None:
        tree, scope = read_function(function).tree, Scope.of(function)
        active = at.active | {function}
        inside = _found(tree, scope, (), active, at.device, given=given, inside=at.inside)
        found = at.inside[key] = tree, inside, given
    return found


def _returns(tree: ast.FunctionDef) -> list[ast.expr | None]:
    given = (ast.Return, ast.Yield, ast.YieldFrom)
    return [n.value for s in tree.body for n in subtree(s) if isinstance(n, given)]


def mutated(
    tree: ast.FunctionDef, scope: Scope, regions: Container[ast.AST] = (),
    given: dict[str, Any] | None = None,
) -> tuple[frozenset[str], dict[str, frozenset[str]]]:  # fmt: skip
    """The parameters that ``tree`` writes to, and what each local name may alias.

    A captured tensor is treated as a parameter of its own name. ``regions`` are the statements of
    ``tree`` that are device loops; ``given`` are the values of parameters, where they are known.
    """
    objects = {name: known(value) for name, value in (given or {}).items()}
    found = _found(tree, scope, regions, frozenset(), False, given=objects)
    return found.written, found.at.aliases


def mutations(
    tree: ast.FunctionDef, scope: Scope, regions: Container[ast.AST], local: Iterable[str]
) -> Mutations:
    """What ``tree`` may alias and write to; the names ``local`` count as parameters do, and a name
    means all that it is ever assigned."""
    return _found(tree, scope, regions, frozenset(), False, local)


def _found(
    tree: ast.FunctionDef, scope: Scope, regions: Container[ast.AST], active: frozenset[Any],
    device: bool, more: Iterable[str] | None = None, given: dict[str, Objects] | None = None,
    inside: dict[Any, Any] | None = None,
) -> Mutations:  # fmt: skip
    parameters = parameter_names(tree.args)
    local = set(parameters) | {n for s in tree.body for n in bound_names(s)}
    nodes = [n for s in tree.body for n in subtree(s)]
    free = {n.id for n in nodes if isinstance(n, ast.Name)} - local
    captured = [n for n in sorted(free) if not is_known(v := scope.lookup(n)) and v is not MISSING]
    inner = [n for n in nodes if isinstance(n, ast.Lambda | ast.FunctionDef)]
    closed = {n.id for f in inner for n in subtree(f) if isinstance(n, ast.Name)}
    words = (n.arg if isinstance(n, ast.keyword) else n.value for n in nodes
             if isinstance(n, ast.keyword | ast.Constant))  # fmt: skip
    tensors = [name for name in captured if not callable(scope.lookup(name))]
    now = {name: frozenset({name}) for name in (*parameters, *tensors, *(more or ()))}
    held: dict[str, Objects] = {name: {} for name in local}
    state = State(
        scope, active, device, now, held | (given or {}), frozenset(captured),
        frozenset(closed if more is None else closed | local),
        any(isinstance(word, str) and word == "out" for word in words), dict(now),
        inside={} if inside is None else inside,
    )  # fmt: skip
    found = Mutations(state, regions)
    found.run(tree.body)
    return found
