"""What tells a kernel's operator from another: all the text that it is made from, as a hash; also
that of its schema, and of weft itself.

The name of an operator carries it, so that what PyTorch keeps by that name (graphs that were
exported, Inductor's cache on disk) is not taken for what an edited kernel does.
"""

from __future__ import annotations

import ast
import enum
import functools
import hashlib
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._device import _device_constructors

# pyright: reportPrivateUsage=false
from weft.errors import SourceUnavailableError
from weft.frontend.names import KNOWN_MODULES, MISSING, Scope, dotted, root_name
from weft.lang.dtypes import DType
from weft.settings import deep
from weft.source import FunctionSource, children, codes, read_function

# Types of values that the host part may take from around it and turn into a size or a dtype.
# Not float: sizes are seldom made of one, and a number that changes at each step often is one.
DECIDING = (bool, int, str, type(None), torch.dtype, torch.device, DType)
_DECISIVE = (*DECIDING, enum.Enum)
_MOST_ITEMS = 256  # of a list: Dynamo has a guard for each


# Builtins that give plain values, whatever they are given.
_PLAIN = (len, range, int, float, bool, complex, str, abs, min, max, round, divmod, pow, sum, tuple,
          list, dict, set, zip, enumerate, reversed, isinstance, hasattr, type, print)  # fmt: skip
# Functions and methods of torch that draw random numbers, as they are called.
_DRAWS = re.compile(
    r"\b(rand\w*|bernoulli_?|multinomial|poisson|binomial|\w*normal_?|\w*uniform_?|exponential_|"
    r"geometric_|cauchy_|\w*[dD]ropout\w*|rrelu_?|r?sample\w*)\("
)


def text_of(source: FunctionSource, *others: Any) -> str:
    """The kernel's text, that of the functions that it calls, the values in its closure, and
    ``others``, without comments and places in a file."""
    found: dict[int, str] = {}
    with deep(source.span(source.tree)):
        _read(source.function, source.tree, found)
        described = [_described(o, found) for o in others]  # which may add to what is found
    return "\n".join((*found.values(), *described))


def fingerprint(text: str) -> str:
    """Eight hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@functools.cache
def decided_by() -> str:
    """A hash of the text of weft that decides on schemas, on shapes and dtypes of results, and on
    what Inductor makes of a loop: what graphs have in them besides the name. It is the same
    wherever the same weft is installed."""
    package = Path(__file__).parents[1]
    folders = [package / name for name in ("frontend", "ir", "lang", "passes", "pytorch")]
    texts = [file.read_bytes() for folder in folders for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(texts)).hexdigest()


def may_draw(text: str) -> bool:
    """Whether random numbers may be drawn in what ``text_of`` has given."""
    return _DRAWS.search(text) is not None


def chains(tree: ast.AST, leave: frozenset[ast.AST] = frozenset()) -> Iterator[ast.expr]:
    """The names, and the longest dotted names, that ``tree`` reads, in the order of the text; not
    those inside of the nodes ``leave``."""
    left = children(tree)[::-1]  # no recursion: expressions may have thousands of levels
    while left:
        child = left.pop()
        if child in leave:
            continue
        if isinstance(child, ast.Name | ast.Attribute) and root_name(child) is not None:
            if isinstance(child.ctx, ast.Load):
                yield child
        else:
            left += children(child)[::-1]


def deciding(
    function: Callable[..., Any], tree: ast.FunctionDef, loops: frozenset[ast.AST]
) -> Callable[[], tuple[Any, ...]]:
    """Gives what the host part of ``function``, and the functions that it calls, take from around
    them that may decide on sizes and dtypes. Dynamo, which can trace the call, puts guards on these
    values. It has their ``names``."""
    parts = _parts(function, tree, loops)
    readings = [_reading(f, [f"__decisive__({text})" for text in found]) for f, _, found in parts]

    def made() -> tuple[Any, ...]:
        values: tuple[Any, ...] = ()
        for reading in readings:
            values += reading()
        return values

    named: Any = made
    named.names = tuple(f"{label}{text}" for _, label, found in parts for text in found)
    return named


def _parts(
    function: Callable[..., Any], tree: ast.FunctionDef, loops: frozenset[ast.AST]
) -> list[tuple[Callable[..., Any], str, list[str]]]:
    """``function``, and the functions and kernels that it calls, each with the name of what finds
    it and the places that it reads (see ``deciding``)."""
    left, found = [(function, tree, loops, "")], []
    done = {function}
    for f, own, leave, label in left:
        places = _places(f, own, leave)
        texts = [text for text, value in places.items() if _decides(value)]
        for text, value in places.items():
            kernel = value if hasattr(type(value), "launchers") else None
            called = value if kernel is None else kernel.function
            if not isinstance(called, types.FunctionType) or not _is_reached(called, function):
                continue
            if kernel is None:
                texts += [f"{text}.{name}" for name in ("__defaults__", "__kwdefaults__")
                          if _decides(getattr(called, name))]  # fmt: skip
            if called in done:
                continue
            done.add(called)
            try:
                inner = (read_function(called) if kernel is None else kernel.source).tree
            except (SourceUnavailableError, SyntaxError):
                continue  # made by ``exec``: what it reads shows nowhere
            regions = () if kernel is None else kernel.parts.regions
            left.append((called, inner, frozenset(r.node for r in regions), f"{label}{text}: "))
        found.append((f, label, texts))
    return found


def _is_reached(value: types.FunctionType, kernel: Callable[..., Any]) -> bool:
    """Whether it is a function of a user's whose globals Dynamo finds."""
    own = value.__globals__ is kernel.__globals__ or is_imported(value)
    return own and (value.__module__ or "").partition(".")[0] not in KNOWN_MODULES


def _places(
    function: Callable[..., Any], tree: ast.AST, leave: frozenset[ast.AST]
) -> dict[str, Any]:
    """What the text of ``tree`` reads around ``function``, by its place: dotted names, items whose
    keys are constants there (``sizes["n"]``, ``sizes.get("n")``), lengths of dicts and sets."""
    scope, found = Scope.of(function), dict[str, Any]()
    names = {*function.__code__.co_freevars, *_global_names(function.__code__)}
    for chain in _around(function, tree, leave):
        found[dotted(chain)] = scope.resolve(chain)
        while isinstance(chain, ast.Attribute):
            chain = chain.value
            if isinstance(value := scope.resolve(chain), enum.Enum):  # ``mode.value``
                found[dotted(chain)] = value
    left = children(tree)
    for node in left:
        if node in leave:
            continue
        left += children(node)
        match node:
            case ast.Subscript(value=of, slice=ast.Constant(value=key), ctx=ast.Load()):
                text = f"[{key!r}]"
            case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(key), *_]):
                text = f".get({key!r})"
            case ast.Call(func=ast.Name(id="len"), args=[of]):
                text, key = "", None
            case _:
                continue
        base = scope.resolve(of) if root_name(of) in names else MISSING
        if not text and isinstance(base, dict | set | frozenset):
            found[f"len({dotted(of)})"] = len(base)
        elif text and type(base) is dict and (key in base or "get" in text):
            found[dotted(of) + text] = base.get(key)
    return found


def _decides(value: Any) -> bool:
    """Whether it is such a value, or a short list of them."""
    items = value if isinstance(value, list | tuple) else [value]
    return 0 < len(items) <= _MOST_ITEMS and all(isinstance(v, _DECISIVE) for v in items)


def watching(function: Callable[..., Any], tree: ast.FunctionDef) -> Callable[[], tuple[Any, ...]]:
    """Gives which tensors ``function`` takes from around it that need a derivative: as they are no
    arguments, a graph is refused then, and where Dynamo traces the call, it has guards for that."""
    if not is_imported(function):
        return lambda: ()
    scope = Scope.of(function)
    found = dict[str, None]()
    for chain in _around(function, tree):
        while isinstance(chain, ast.Attribute | ast.Name):
            if type(_attribute(scope, chain)) in (torch.Tensor, torch.nn.Parameter):
                found[dotted(chain)] = None
            chain = chain.value if isinstance(chain, ast.Attribute) else None
    return _reading(function, [f"{name}.requires_grad" for name in found])


def makes_tensors(
    function: Callable[..., Any], tree: ast.FunctionDef, loops: frozenset[ast.AST]
) -> bool:
    """Whether the host part of ``function`` may make tensors on the default device: by a function
    that is given no device, or by one that is not known."""
    scope, left = Scope.of(function), [*tree.body]
    while left:
        node = left.pop()
        if isinstance(node, ast.Call) and _may_make(node, scope):
            return True
        left += [child for child in children(node) if child not in loops]
    return False


def _may_make(call: ast.Call, scope: Scope) -> bool:
    for keyword in call.keywords:
        if keyword.arg == "device":
            name = getattr(keyword.value, "attr", "")
            return not (name == "device" or isinstance(getattr(keyword.value, "value", 0), str))
    called = scope.resolve(call.func)
    if called is MISSING and isinstance(call.func, ast.Attribute):  # a method of one of its values
        return not hasattr(torch.Tensor, call.func.attr)
    if any(called is own for own in _PLAIN):
        return False
    torchs = getattr(torch, getattr(called, "__name__", ""), None) is called
    return not torchs or called in _device_constructors()


def is_imported(function: Callable[..., Any]) -> bool:
    """Whether Dynamo, which imports the module of what it traces, finds its globals there."""
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    return module is not None and vars(module) is function.__globals__


def _around(
    function: Callable[..., Any], tree: ast.AST, leave: frozenset[ast.AST] = frozenset()
) -> list[ast.expr]:
    """The chains of ``tree`` that begin around ``function``."""
    code = function.__code__
    names = {*code.co_freevars, *_global_names(code)}
    return [chain for chain in chains(tree, leave) if root_name(chain) in names]


def _attribute(scope: Scope, node: ast.expr) -> Any:
    """The value of a dotted name; modules have their parameters apart."""
    if isinstance(node, ast.Attribute):
        base = _attribute(scope, node.value)
        if isinstance(base, torch.nn.Module):
            tensors = base.named_parameters(recurse=False), base.named_buffers(recurse=False)
            members = itertools.chain(*tensors, base.named_children())
            return next((value for name, value in members if name == node.attr), MISSING)
    return scope.resolve(node)


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


def _global_names(code: types.CodeType) -> set[str]:
    return {name for c in (code, *codes(code)) for name in c.co_names}


def _read(function: Callable[..., Any], tree: ast.FunctionDef, found: dict[int, str]) -> None:
    """Adds the text of ``function``, and of what it reaches, to ``found``."""
    if id(function) in found:
        return
    found[id(function)] = ""
    code, scope = function.__code__, Scope.of(function)
    bare = ast.FunctionDef(tree.name, tree.args, tree.body, [], tree.returns, type_params=[])  # pyright: ignore[reportCallIssue]
    if ast.get_docstring(tree) is not None:
        bare.body = tree.body[1:] or [ast.Pass()]
    lines = [ast.unparse(ast.fix_missing_locations(ast.copy_location(bare, tree)))]
    lines.append(_described((function.__defaults__, function.__kwdefaults__), found))
    around = {*code.co_freevars, *_global_names(code)}
    for name, chain in {dotted(c): c for c in chains(tree)}.items():
        root = root_name(chain)
        value = scope.resolve(chain) if root in around else MISSING
        if value is not MISSING:
            # Of a number that may change from one call to the next, only the type is told.
            varies = type(value) in (int, float, complex) and root not in code.co_freevars
            lines.append(f"{name}: {type(value) if varies else _described(value, found)}")
    found[id(function)] = "\n".join(lines)


def _described(value: Any, found: dict[int, str]) -> str:
    """``value`` as a text that is the same in each process; functions go to ``found``."""
    value = getattr(value, "function", value) if hasattr(value, "launchers") else value
    match value:
        case types.MethodType():
            return _described(value.__func__, found)
        case types.FunctionType():
            if (value.__module__ or "").partition(".")[0] not in KNOWN_MODULES:
                try:
                    _read(value, read_function(value).tree, found)
                except (SourceUnavailableError, SyntaxError):
                    found[id(value)] = value.__code__.co_code.hex()
            return f"{value.__module__}.{value.__qualname__}"
        case functools.partial():
            parts = (value.func, value.args, value.keywords)
            return f"partial{_described(parts, found)}"
        case tuple() | list() | set() | frozenset():
            items = [_described(item, found) for item in value]
            ordered = items if isinstance(value, tuple | list) else sorted(items)
            return f"{type(value).__name__}({', '.join(ordered)})"
        case dict():
            return f"dict{_described(tuple(value.items()), found)}"
        case enum.Enum() | int() | float() | complex() | str() | bytes() | None:
            return f"{type(value).__name__} {value!r}"
        case torch.dtype() | torch.device() | DType():
            return str(value)
        case type() | types.ModuleType() | types.BuiltinFunctionType():
            return f"{getattr(value, '__module__', '')}.{value.__name__}"
        case _:
            return f"{type(value).__module__}.{type(value).__qualname__}"
