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
import re
import sys
import types
from collections.abc import Callable, Iterator
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


def global_names(code: types.CodeType) -> set[str]:
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
    around = {*code.co_freevars, *global_names(code)}
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
    value = getattr(value, "function", value) if hasattr(type(value), "launchers") else value
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
