"""What accumulates into a variable though it is not written so: atomics and flags.

``weft.atomic_add(s, v)`` is the statement ``s += v``: a variable belongs to one iteration, or is
what a parallel loop reduces into. ``old = weft.atomic_add(s, v)`` keeps the value from before, as
``x[i] = weft.atomic_add(s, v)`` does. What stands in any other place keeps its call, and is refused
there.

``total.m += v`` of a struct ``total``, and ``total.inner.m += v``, accumulate into a variable that
is that member before the loop and stored there after it.

Accumulations in one statement, ``low, high = min(low, v), max(high, v)``, are statements of their
own where none reads another's variable.

A flag that loops only ever set, ``found = False`` before and ``if ...: found = True`` in it, is
``found = found or True``.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator

from weft.frontend.arg_extremes import arg_extremes
from weft.frontend.asserts import left_out
from weft.frontend.containers import without_containers
from weft.frontend.desugar import placed
from weft.frontend.hints import rewritten
from weft.frontend.names import Scope, bound_names, statement_lists
from weft.lang import names
from weft.source import FunctionSource, copied_tree, subtree

ATOMIC = "weft_atomic"  # the attribute of a statement that was an atomic: its name
_OPERATORS: dict[str, ast.operator] = {
    "atomic_add": ast.Add(), "atomic_sub": ast.Sub(), "atomic_mul": ast.Mult(),
    "atomic_and": ast.BitAnd(), "atomic_or": ast.BitOr(), "atomic_xor": ast.BitXor(),
}  # fmt: skip
_EXTREMES = ("atomic_max", "atomic_min")
Place = tuple[str, ...]  # a struct's name, and those of a member in it


def atomics(source: FunctionSource, scope: Scope) -> ast.FunctionDef:
    """The function with the atomics on its variables as assignments, and without its asserts where
    ``source`` says so."""
    tree = source.tree if source.asserts else left_out(source)
    new = copy.copy(without_containers(tree, scope))
    inner = (n for n in subtree(new) if isinstance(n, _LATER) and n is not new)
    later = {name.id for n in inner for name in subtree(n) if isinstance(name, ast.Name)}
    new.body = _block(new.body, scope, later)
    return new


# What reads names when it is called, or in the middle of a statement.
_LATER = (ast.FunctionDef, ast.Lambda, ast.GeneratorExp, ast.NamedExpr)


def _apart(node: ast.stmt, later: set[str]) -> list[ast.stmt] | None:
    """The assignments of one statement, where each is of a name that no other of them reads, and
    one reads its own; None for others. ``later``: names that are read at other times."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            names = [t.id for t in targets if isinstance(t, ast.Name)]
        case _:
            return None
    read = [{n.id for n in subtree(v) if isinstance(n, ast.Name)} & {*names} for v in values]
    if len({*names}) != len(targets) or len(values) != len(targets) or not any(read):
        return None
    if not later.isdisjoint(names):
        return None
    if not all(own <= {name} for own, name in zip(read, names, strict=True)):
        return None
    pairs = zip(targets, values, strict=True)
    return [placed(ast.Assign([target], value), node) for target, value in pairs]


def accumulating(source: FunctionSource, scope: Scope) -> ast.FunctionDef:
    """The kernel with these as accumulations."""
    return arg_extremes(flags(members(atomics(source, scope), scope), scope), scope)


def members(tree: ast.FunctionDef, scope: Scope) -> ast.FunctionDef:
    """The kernel whose loops accumulate into members of structs by variables of their own."""
    whole = _whole(tree)

    def step(node: ast.stmt, made: list[ast.stmt], structs: set[str]) -> set[str]:
        found = [*_members(node, structs)] if isinstance(node, ast.For) and structs else []
        if not found:
            made.append(node)
            if isinstance(node, ast.For | ast.AugAssign):  # which leave a struct one
                return structs
            return (structs - set(bound_names(node))) | _struct(node, scope, whole)
        node = copied_tree(node)
        own: dict[Place, tuple[str, ast.Attribute]] = {}
        for update in subtree(node):
            if isinstance(update, ast.AugAssign) and (at := _member(update, structs)) in found:
                assert isinstance(update.target, ast.Attribute)
                assert at is not None
                name, _ = own.setdefault(at, (f"weft_{len(own)}_{'_'.join(at)}", update.target))
                update.target = ast.copy_location(ast.Name(name, ast.Store()), update.target)
        hints = len(made)
        while hints and _is_hint(made[hints - 1], scope):
            hints -= 1
        for name, place in own.values():
            load = ast.Attribute(place.value, place.attr, ast.Load())
            made.insert(hints, placed(ast.Assign([ast.Name(name, ast.Store())], load), node))
        made.append(node)
        for name, place in own.values():
            made.append(placed(ast.Assign([place], ast.Name(name, ast.Load())), node))
        return structs

    new = copy.copy(tree)
    new.body = rewritten(tree.body, scope, set(), step, lambda node: set(bound_names(node)))
    return new


def _is_hint(node: ast.stmt, scope: Scope) -> bool:
    """Whether it is a call of ``loop_config``, which stays in front of its loop."""
    match node:
        case ast.Expr(value=ast.Call(func=func)):
            return scope.called(func) == "loop_config"
        case _:
            return False


def _whole(tree: ast.FunctionDef) -> set[str]:
    """The names that are read otherwise than for one of their members."""
    nodes = [*subtree(tree)]
    parts = Counter(n.value.id for n in nodes
                    if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name))  # fmt: skip
    read = Counter(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return {name for name, count in read.items() if count > parts[name]}


def _struct(node: ast.stmt, scope: Scope, whole: set[str]) -> set[str]:
    """The name that a statement makes a struct, if it does. A dataclass may have two names where it
    is read as a whole, one of which loops would see change: not these."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func)):
            kind = scope.resolve(func)
            parameters = getattr(kind, "__dataclass_params__", None)
            is_own = parameters is not None and not parameters.frozen and name not in whole
            return {name} if getattr(kind, "weft_struct", is_own) is True else set()
        case _:
            return set()


def _member(node: ast.AugAssign, structs: set[str]) -> Place | None:
    """The member of one of ``structs`` that a statement updates."""
    place, target = list[str](), node.target
    while isinstance(target, ast.Attribute):
        place.insert(0, target.attr)
        target = target.value
    if place and isinstance(target, ast.Name) and target.id in structs:
        return target.id, *place
    return None


def _members(loop: ast.For, structs: set[str]) -> Iterator[Place]:
    """The structs, and their members, that ``loop`` accumulates into and does not read. None of the
    members is in another."""
    nodes = [*subtree(loop)]
    places = [p for n in nodes if isinstance(n, ast.AugAssign) and (p := _member(n, structs))]
    met = Counter(n.id for n in nodes if isinstance(n, ast.Name))
    updated = Counter(place[0] for place in places)
    inside = {place[:k] for place in places for k in range(2, len(place))} & {*places}
    split = {place[0] for place in inside}
    yield from (p for p in places if met[p[0]] == updated[p[0]] and p[0] not in split)


def flags(tree: ast.FunctionDef, scope: Scope) -> ast.FunctionDef:
    """The kernel with the flags that its loops only set, each to one value, as accumulations."""

    def step(node: ast.stmt, made: list[ast.stmt], known: set[str]) -> set[str]:
        made.append(_setting(node, known) if isinstance(node, ast.For) and known else node)
        return (known - _other(node)) | set(_flags_before(node))

    new = copy.copy(tree)
    new.body = rewritten(tree.body, scope, set(), step, _other)
    return new


def _other(node: ast.stmt) -> set[str]:
    """The names that a statement may give something else than a literal bool."""
    flags = Counter(name for one in ast.walk(node) if isinstance(one, ast.stmt)
                    for name in _flags_before(one))  # fmt: skip
    return {name for name, count in Counter(bound_names(node)).items() if count > flags[name]}


def _flags_before(node: ast.stmt) -> list[str]:
    """The variables that a statement of the host part sets to literal bools."""
    pairs: list[tuple[ast.expr, ast.expr]]
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs = [(target, value) for target in targets]
        case ast.AnnAssign(target=target, value=ast.Constant() as value):
            pairs = [(target, value)]
        case _:
            return []
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs += zip(target.elts, value.elts, strict=False)
    return [target.id for target, value in pairs if isinstance(target, ast.Name)
            and isinstance(value, ast.Constant) and isinstance(value.value, bool)]  # fmt: skip


def _set(node: ast.AST) -> list[tuple[str, bool]]:
    """The variable that a statement sets to a literal bool, if it does, and which one."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=bool() as value)):
            return [(name, value)]
        case _:
            return []


def _setting(loop: ast.For, known: set[str]) -> ast.For:
    nodes = list(subtree(loop))
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    every = [each for node in nodes for each in _set(node)]
    bound = Counter(bound_names(loop))
    wanted = {
        name
        for name in known - read
        if len({v for n, v in every if n == name}) == 1
        and bound[name] == sum(n == name for n, _ in every)
    }
    if not wanted:
        return loop
    loop = copied_tree(loop)
    for node in subtree(loop):
        for name, value in _set(node):
            if name in wanted:
                assert isinstance(node, ast.Assign)
                both = [ast.Name(name, ast.Load()), node.value]
                node.value = ast.BoolOp(ast.Or() if value else ast.And(), both)
                placed(node, node)
    return loop


def _block(
    body: list[ast.stmt], scope: Scope, later: set[str], in_loop: bool = False
) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for node in body:
        made = _assignments(node, scope) or (_apart(node, later) if in_loop else None)
        if made is None and statement_lists(node):
            node = copy.copy(node)
            inside = in_loop or isinstance(node, ast.For)
            for name in ("body", "orelse"):
                if isinstance(getattr(node, name, None), list):
                    setattr(node, name, _block(getattr(node, name), scope, later, inside))
        found += [node] if made is None else made
    return found


def _assignments(node: ast.stmt, scope: Scope) -> list[ast.stmt] | None:
    """What an atomic on a variable does; None for any other statement."""
    kept = ""
    match node:
        case ast.Expr(value=ast.Call() as call):
            before: list[ast.stmt] = []
        case ast.Assign(targets=[ast.Name(id=kept)], value=ast.Call() as call):
            before = [ast.Assign(node.targets, call.args[0])] if call.args else []
        case ast.Assign(targets=[ast.Subscript()], value=ast.Call(args=[ast.Name(id=name), _])):
            old = f"weft_old_{name}"
            first = ast.Assign([ast.Name(old, ast.Store())], node.value)
            taken = _assignments(placed(first, node), scope)
            last = ast.Assign(node.targets, ast.Name(old, ast.Load()))
            return None if taken is None else [*taken, placed(last, node)]
        case _:
            return None
    match call:
        case ast.Call(func=func, args=[ast.Name(id=name), value], keywords=[]):
            own = names.canonical(scope.resolve(func)) or ""
        case _:
            return None
    if kept == name:
        return None
    target = ast.Name(name, ast.Store())
    if own in _OPERATORS:
        made: ast.stmt = ast.AugAssign(target, _OPERATORS[own], value)
    elif own in _EXTREMES:
        extreme = ast.Attribute(
            func, own.removeprefix("atomic_"), ast.Load()
        )  # NaN where either is
        made = ast.Assign([target], ast.Call(extreme, [call.args[0], value], []))
    else:
        return None
    for statement in (*before, made):
        setattr(statement, ATOMIC, own)
    return [placed(statement, node) for statement in (*before, made)]
