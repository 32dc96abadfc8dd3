"""The source of a Python function."""

from __future__ import annotations
import __future__

import ast
import bisect
import copy
import dis
import inspect
import linecache
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from weft.errors import SourceUnavailableError, Span
from weft.settings import deep
from weft.values import mutable

T = TypeVar("T")

# The compiler's flags of ``from __future__ import ...``.
FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_IMPORTED = time.time()


class _Files:
    """The lines of files that kernels are in, as they were when Python imported them: what code
    objects do not tell, annotations of locals and assertions under ``python -O``, is compared."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        # Functions of other files that kernels name: a module is reloaded without its kernels.
        self._helpers: WeakKeyDictionary[Callable[..., Any], list[str]] = WeakKeyDictionary()

    def note(self, function: Callable[..., Any]) -> None:
        """``function``, a kernel or what is marked as part of some, has just been defined. One
        inside of a function may have been imported long before: the lines that are known stay."""
        code = getattr(function, "__code__", None)
        if code is None:
            return
        if not ("<locals>" in function.__qualname__ and code.co_filename in self._lines):
            self._lines[code.co_filename] = _lines_now(function)
        found = _named(function)
        while found:
            helper = found.pop()
            if helper not in self._helpers and helper.__code__.co_filename not in self._lines:
                self._helpers[helper] = _lines_now(helper)
                found += _named(helper)

    def said_otherwise(self, tree: ast.FunctionDef, function: Callable[..., Any]) -> bool:
        """Whether ``tree`` is not what stood in the file of ``function``."""
        code: CodeType = function.__code__  # type: ignore[attr-defined]
        lines = self._helpers.get(function, self._lines.get(code.co_filename))
        if lines is None or lines == linecache.getlines(code.co_filename):
            return False
        try:
            first, _ = _parsed(inspect.getblock(lines[code.co_firstlineno - 1 :]))
        except (SyntaxError, IndexError):  # something else stood there
            return True
        return _said(first) != _said(tree)


FILES = _Files()


_LIBRARIES = {*sys.stdlib_module_names, "numpy", "torch", "weft"}


def _lines_now(function: Callable[..., Any]) -> list[str]:
    file = function.__code__.co_filename  # type: ignore[attr-defined]
    linecache.checkcache(file)
    return linecache.getlines(file, function.__globals__)  # type: ignore[attr-defined]


def _named(function: Callable[..., Any]) -> list[FunctionType]:
    """The functions that ``function`` names, itself or through a module, but for libraries'."""
    known: dict[str, Any] = function.__globals__  # type: ignore[attr-defined]
    names: tuple[str, ...] = function.__code__.co_names  # type: ignore[attr-defined]
    values = [known[name] for name in names if name in known]
    modules = [vars(value) for value in values if isinstance(value, ModuleType)]
    values += [inside[name] for inside in modules for name in names if name in inside]
    return [
        value for value in values
        if isinstance(value, FunctionType)
        and str(value.__module__).partition(".")[0] not in _LIBRARIES
    ]  # fmt: skip


def _said(tree: ast.stmt) -> list[object]:
    """What parameters and body of a function say, for comparisons."""
    parts = [tree.args, *tree.body] if isinstance(tree, ast.FunctionDef) else [tree]
    return [
        (type(n), [v for _, v in ast.iter_fields(n) if not isinstance(v, ast.AST | list)])
        for part in parts
        for n in subtree(part)
    ]


def _parsed(lines: list[str]) -> tuple[ast.stmt, bool]:
    """The statement of ``lines``, and whether they were indented: then it begins at line 2."""
    text, indented = "".join(lines), lines[0][:1].isspace()
    # Not textwrap.dedent: a docstring or a comment may have lines that are less indented.
    tree = ast.parse(f"if 1:\n{text}" if indented else text).body[0]
    return (tree.body[0] if indented else tree), indented  # type: ignore[attr-defined]


@mutable
class FunctionSource:
    """The parsed source of one Python function. ``tree`` has line numbers of the file."""

    function: Callable[..., Any]
    name: str
    file: str
    text: str
    tree: ast.FunctionDef
    kernel: str = ""
    lines: dict[int, str] = field(default_factory=dict)
    warned: dict[Any, Any] = field(default_factory=dict)  # what was said of it, for ``warnings``
    printed: bool = False  # by ``static_print``, when it was lowered
    asserts: bool = True  # whether they are checked, there and in functions that are called
    spans: dict[tuple[int, ...], Span] = field(default_factory=dict)  # by place

    def span(self, node: ast.AST) -> Span:
        line, column = getattr(node, "lineno", self.tree.lineno), getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", None) or line
        end = getattr(node, "end_col_offset", None) or 0
        place = line, column, end_line, end
        found = self.spans.get(place)  # most places are asked for again and again
        if found is None:
            self.spans[place] = found = Span(
                self.file, line, self._column(line, column), end_line, self._column(end_line, end),
                self.lines.get(line, ""), self.kernel or self.name,
            )  # fmt: skip
        return found

    @property
    def heading(self) -> Span:
        """The ``def`` line."""
        line, text = self.tree.lineno, self.lines.get(self.tree.lineno, "")
        name = self.kernel or self.name
        return Span(self.file, line, self.tree.col_offset, line, len(text), text, name)

    def _column(self, line: int, offset: int) -> int:
        """A column in characters: ``ast`` counts bytes of UTF-8."""
        text = self.lines.get(line, "")
        return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below ``node``, as ``ast.iter_child_nodes`` has them but for contexts
    (``ast.Load``), which are no code, in a quarter of the time."""
    fields = _FIELDS.get(node.__class__)
    if fields is None:
        fields = tuple(name for name in node._fields if name not in _NO_NODES)
        _FIELDS[node.__class__] = fields = () if isinstance(node, ast.Constant) else fields
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


# What is no node in any class that has a field of this name.
_NO_NODES = {"ctx", "id", "attr", "kind", "type_comment", "lineno"}
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}  # that may hold nodes


def subtree(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and all below it, level by level: ``ast.walk`` of ``children``."""
    found = [node]
    for each in found:
        found += children(each)
        yield each


def copied_tree(node: T, memo: dict[int, Any] | None = None) -> T:
    """A copy of the tree ``node``, as ``copy.deepcopy`` makes it, in a fifth of the time."""
    memo = {} if memo is None else memo
    made = memo.get(id(node))
    if made is not None:
        return made
    made = memo[id(node)] = node.__class__.__new__(node.__class__)
    state = made.__dict__
    for name, value in node.__dict__.items():
        if value.__class__ in _SAME:
            state[name] = value
        elif isinstance(value, ast.AST):
            state[name] = copied_tree(value, memo)
        elif value.__class__ is list:
            state[name] = memo.setdefault(id(value), [])
            if not state[name]:  # else it is another node's, too
                state[name] += [
                    copied_tree(v, memo) if isinstance(v, ast.AST) else copy.deepcopy(v, memo)
                    for v in value
                ]
        else:
            state[name] = copy.deepcopy(value, memo)
    return made


class Known:
    """What was found of ``node``, as an attribute of it: a copy of the node, which may be changed,
    has it to be found anew."""

    def __init__(self, node: ast.AST | None, found: object, since: int = 0) -> None:
        self.node, self.found, self.since = node, found, since

    def __deepcopy__(self, _: dict[int, Any]) -> Known:
        return Known(None, None)


def known_of(node: ast.AST, name: str, since: int = 0) -> Any:
    """What was found of ``node`` as ``name``, if nothing has changed ``since``; None otherwise."""
    known: Known | None = getattr(node, name, None)
    if known is None or known.node is not node or known.since != since:
        return None
    return known.found


_SAME = {str, int, float, bool, type(None), ast.Load, ast.Store, ast.Del}  # need no copy


def read_function(function: Callable[..., Any], kernel: str = "") -> FunctionSource:
    """Finds and parses the source of ``function``.

    Raises ``SourceUnavailableError`` where Python cannot find it (a function made by ``exec``; in a
    REPL older than Python 3.13).
    """
    name = getattr(function, "__name__", repr(function))
    code = getattr(function, "__code__", None)
    try:
        if code is None:
            raise OSError
        linecache.checkcache(code.co_filename)
        # Of a decorator's function, its own lines and not those of what it encloses.
        wraps = hasattr(function, "__wrapped__")
        raw, first = inspect.getsourcelines(code if wraps else function)
    except (OSError, TypeError):
        raw, first = _typed(code), 1
    if code is None or not raw:
        raise SourceUnavailableError(
            f"the source of `{name}` is not available",
            help="weft compiles a function's source text: define it in a file, a notebook cell or "
            "the interactive prompt, not through exec or python -c",
        )
    text = "".join(raw)
    if code.co_name == "<lambda>":
        return _read_lambda(function, kernel)
    try:
        tree, indented = _parsed(raw)
    except SyntaxError:  # the lines of something else: CPython compiled the function's own
        raise _changed(name, code) from None
    if not isinstance(tree, ast.FunctionDef):
        raise SourceUnavailableError(
            f"`{name}` is not defined by a plain `def` statement",
            help="a kernel is a `def`; an async function cannot be compiled",
        )
    ast.increment_lineno(tree, first - 1 - indented)
    if not _is_source_of(tree, function) or FILES.said_otherwise(tree, function):
        raise _changed(name, code)
    _mangle(tree, code)
    lines = {first + k: line.rstrip("\n") for k, line in enumerate(raw)}
    return FunctionSource(function, name, code.co_filename, text, tree, kernel, lines)


# Their decorators check types or set modes: what a function computes stays the same.
_TRANSPARENT = ("weft", "torch", "contextlib", "jaxtyping", "beartype", "typeguard")


def adds_nothing(function: Any) -> bool:
    """Whether a decorator made ``function``, and it computes what ``__wrapped__`` does."""
    if not hasattr(function, "__wrapped__"):
        return False
    if not isinstance(function, FunctionType):  # what functools.cache makes, another kernel
        return type(function).__module__.partition(".")[0] in ("functools", *_TRANSPARENT)
    return str(function.__globals__.get("__name__")).partition(".")[0] in _TRANSPARENT


def enclosed_function(function: Any) -> Any:
    """The function whose text says what ``function`` computes."""
    while adds_nothing(function):
        function = function.__wrapped__
    return function


def _changed(name: str, code: CodeType) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"the source of `{name}` at line {code.co_firstlineno} of {code.co_filename} is not the "
        "one that Python runs: the file has changed since it was imported",
        help="restart, or reload the module: weft compiles a function's source text when it is "
        "first called",
    )


def enclosed(tree: ast.stmt, function: Callable[..., Any]) -> ast.Module:
    """``tree``, which defines ``function`` or what stands for it, within a function whose locals
    are its closure variables (so that they are free in it), and in a class where it was in one (so
    that ``__private`` names are mangled)."""
    code: CodeType = function.__code__  # type: ignore[attr-defined]
    owner = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
    inner = tree
    if owner.isidentifier():
        inner = ast.ClassDef(owner, [], [], [tree], [], type_params=[])  # pyright: ignore[reportCallIssue]
    free = [ast.arg(name) for name in code.co_freevars if name != "__class__" or inner is tree]
    body = [inner]
    if inner is not tree and owner not in code.co_freevars:
        body.insert(0, ast.Global([owner]))  # a method that names its own class of the module
    outer = ast.FunctionDef(
        "__weft_outer__", ast.arguments([], free, None, [], [], None, []), body, [],
        type_params=[],  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    return _located(ast.Module([outer], []), tree)


def _located(module: ast.Module, first: ast.stmt) -> ast.Module:
    """Gives what has no place that of what it stands in, the outermost that of ``first``: what
    ``ast.fix_missing_locations`` does, which calls itself for each term of a sum."""
    left: list[tuple[ast.AST, ast.AST]] = [(module, first)]
    while left:
        node, around = left.pop()
        if "lineno" in node._attributes:
            if not hasattr(node, "lineno"):
                ast.copy_location(node, around)
            around = node
        left += [(child, around) for child in children(node)]
    return module


def _compiled(tree: ast.stmt, function: Callable[..., Any], name: str) -> list[CodeType]:
    """The code objects called ``name`` in what Python makes of ``tree`` where ``function`` is."""
    code: CodeType = function.__code__  # type: ignore[attr-defined]
    flags = code.co_flags & FUTURE
    place = code.co_filename, tree.lineno
    text = linecache.getline(*place).rstrip("\n")
    with deep(Span(*place, 0, tree.lineno, len(text), text, code.co_name)):
        module = enclosed(tree, function)
        made = compile(module, code.co_filename, "exec", flags, dont_inherit=True)
    return [c for c in codes(made) if c.co_name == name]


def recompiled(
    tree: ast.FunctionDef, function: Callable[..., Any], globals: dict[str, Any],
    convert: Callable[[CellType], CellType] = lambda cell: cell,
) -> FunctionType:  # fmt: skip
    """``tree``, by a name that it does not read, as a function with the closure, defaults, names
    and place of ``function``. ``convert``: what becomes of each cell of the closure."""
    own: CodeType = function.__code__  # type: ignore[attr-defined]
    code = _compiled(tree, function, tree.name)[0]
    code = code.replace(co_name=own.co_name, co_qualname=own.co_qualname)
    cells = dict(zip(own.co_freevars, function.__closure__ or (), strict=True))  # type: ignore[attr-defined]
    closure = tuple(convert(cells[name]) for name in code.co_freevars)
    made = FunctionType(code, globals, function.__name__, function.__defaults__, closure)  # type: ignore[attr-defined]
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__"):
        setattr(made, name, getattr(function, name))
    return made


_COMPILED = "__weft_compiled__"


def _is_source_of(tree: ast.FunctionDef | ast.Lambda, function: Callable[..., Any]) -> bool:
    """Whether Python makes the code of ``function`` of ``tree``, so that it was read from the file
    as it was imported. What an import hook has rewritten (pytest's assertions) must have all of the
    source's names and constants, and the file must be older than weft in this process."""
    code: CodeType = function.__code__  # type: ignore[attr-defined]
    bare = copy.copy(tree)
    if isinstance(bare, ast.FunctionDef):  # not by its name, which its body may read
        bare.name, bare.decorator_list, bare.returns = _COMPILED, [], None
    statement = bare if isinstance(bare, ast.FunctionDef) else ast.Expr(bare)
    name = getattr(bare, "name", "<lambda>")
    try:
        made = _compiled(ast.copy_location(statement, tree), function, name)
    except SyntaxError:  # it needs more of what is around it
        return True
    if not made or any(_same(c, code) or _facts(c) == _facts(code) for c in made):
        return True
    loader = getattr(function, "__globals__", {}).get("__loader__")
    if loader is None or type(loader).__module__.startswith("_frozen_importlib"):
        return False
    try:
        older = os.stat(code.co_filename).st_mtime < _IMPORTED
    except OSError:
        older = True
    return older and any(_words(c) <= _words(code) for c in made)


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code objects inside of ``code``, outermost first."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes(constant)


def _same(a: CodeType, b: CodeType) -> bool:
    """Whether two functions have one bytecode. ``_facts`` of them are equal then: most often the
    answer, in a twentieth of the time."""
    if (
        a.co_code != b.co_code or a.co_names != b.co_names or a.co_varnames != b.co_varnames
        or a.co_freevars != b.co_freevars or a.co_cellvars != b.co_cellvars
        or len(a.co_consts) != len(b.co_consts)
    ):  # fmt: skip
        return False
    return all(
        _same(x, y) if isinstance(x, CodeType) and isinstance(y, CodeType)
        else not isinstance(x, CodeType) and _constant(x) == _constant(y)
        for x, y in zip(a.co_consts, b.co_consts, strict=True)
    )  # fmt: skip


def _constant(value: object) -> tuple[object, ...]:
    """A class's qualified name says where it stands."""
    return type(value), repr(value).rpartition("<locals>")[2]


def _facts(code: CodeType) -> tuple[object, ...]:
    """What a function does, apart from where it stands."""
    constants = tuple(
        _facts(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts
    )
    return _instructions(code), code.co_names, code.co_varnames, code.co_freevars, constants


def _instructions(code: CodeType) -> tuple[object, ...]:
    """The instructions of ``code``; those that call an attribute alike, whether its object was
    imported at the top of the file (CPython then takes it for a module) or not."""
    kept = [i for i in dis.get_instructions(code) if i.opname not in _UNTOLD]
    offsets = [i.offset for i in kept]
    jumps = {*dis.hasjabs, *dis.hasjrel}
    return tuple(
        (
            "LOAD_ATTR" if i.opname == "LOAD_METHOD" else i.opname,
            bisect.bisect_left(offsets, i.argval) if i.opcode in jumps
            else i.argval if i.opcode in dis.hasname else i.arg,
        )
        for i in kept
    )  # fmt: skip


_UNTOLD = ("PUSH_NULL", "EXTENDED_ARG", "NOP", "CACHE")


def _words(code: CodeType) -> set[object]:
    """The names and constants of a function and of those inside of it."""
    found: set[object] = set()
    for each in (code, *codes(code)):
        found |= {*each.co_names, *each.co_varnames, *each.co_freevars}
        found |= {(type(c), repr(c)) for c in each.co_consts if not isinstance(c, CodeType)}
    return found


def _mangle(tree: ast.AST, code: CodeType) -> None:
    """Gives ``__private`` names of a class the names that CPython has given them."""
    words = [word for word in _words(code) if isinstance(word, str) and word.startswith("_")]
    for node in subtree(tree):
        for place in () if isinstance(node, ast.keyword) else ("attr", "id", "arg"):
            name = getattr(node, place, None)
            if isinstance(name, str) and name.startswith("__") and not name.endswith("__"):
                made = [w for w in words if w.endswith(name) and not w.startswith("__")]
                setattr(node, place, made[0] if made else name)


def _typed(code: CodeType | None) -> list[str]:
    """The lines of a function that was typed at the prompt, from the line editor's history.

    Python 3.13 keeps them itself. What is found is only taken if it compiles to the same code.
    """
    readline = sys.modules.get("readline")
    if code is None or code.co_filename != "<stdin>" or readline is None:
        return []
    length = readline.get_current_history_length()
    history = [readline.get_history_item(k) or "" for k in range(1, length + 1)]
    for start in reversed(range(len(history))):
        if not history[start].startswith(f"def {code.co_name}"):
            continue
        end = start + 1
        while end < len(history) and history[end][:1] in (" ", "\t"):
            end += 1
        while start and history[start - 1].startswith("@"):
            start -= 1
        lines = [line + "\n" for line in history[start:end]]
        try:
            compiled = compile("".join(lines), code.co_filename, "exec", dont_inherit=True)
        except SyntaxError:
            continue
        what = (code.co_name, code.co_code, code.co_names, code.co_consts)
        made = [c for c in compiled.co_consts if isinstance(c, CodeType)]
        if any((c.co_name, c.co_code, c.co_names, c.co_consts) == what for c in made):
            return lines
    return []


def _read_lambda(function: Callable[..., Any], kernel: str) -> FunctionSource:
    """A lambda as a function that returns its expression. It is found by place and parameters."""
    code = function.__code__  # type: ignore[attr-defined]
    lines = linecache.getlines(code.co_filename, function.__globals__)  # type: ignore[attr-defined]
    parameters = code.co_varnames[: code.co_argcount]
    try:
        nodes = list(subtree(ast.parse("".join(lines))))
    except SyntaxError:  # an IPython cell with magic commands
        nodes = []
    found = [
        n for n in nodes if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno
        and tuple(a.arg for a in [*n.args.posonlyargs, *n.args.args]) == parameters
    ]  # fmt: skip
    if len(found) != 1:
        raise SourceUnavailableError(
            f"the source of a lambda at line {code.co_firstlineno} of {code.co_filename} is not "
            "available" if not found else f"line {code.co_firstlineno} of {code.co_filename} has "
            "more than one such lambda", help="write it as a `def`",
        )  # fmt: skip
    node = found[0]
    if not _is_source_of(node, function):
        raise _changed("<lambda>", code)
    _mangle(node, code)
    tree = ast.FunctionDef("lambda", node.args, [ast.Return(node.body)], [], type_params=[])  # pyright: ignore[reportCallIssue]
    for new in (tree, tree.body[0]):
        ast.copy_location(new, node.body if new is not tree else node)
    numbered = {k + 1: line.rstrip("\n") for k, line in enumerate(lines)}
    text = "".join(lines)
    return FunctionSource(function, "<lambda>", code.co_filename, text, tree, kernel, numbered)
