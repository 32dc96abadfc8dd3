"""What names a function's code reads: of its own cells, of globals, of attributes."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from weft.frontend.names import dotted, root_name
from weft.frontend.split import SELF_EVIDENT
from weft.source import children, codes, subtree
from weft.values import frozen

_known = WeakKeyDictionary[CodeType, "Reads"]()
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_WHOLE = frozenset({"vars", "asdict", "astuple"})  # what gives all that an object holds
_EVALUATING = frozenset({"eval", "exec"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})


@frozen
class Reads:
    """The names of cells, globals, modules that are imported inside, and attributes."""

    cells: tuple[str, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]
    attributes: frozenset[str]

    def within(self, text: frozenset[str]) -> Reads:
        """Those that a part of the function names, whose names are ``text``."""
        private = {n for n in self.attributes if n.startswith("_") and "__" in n[1:]}
        return Reads(
            tuple(n for n in self.cells if n in text), tuple(n for n in self.names if n in text),
            self.modules, frozenset({*(self.attributes & text), *private}),
        )  # fmt: skip


def reads_of(code: CodeType) -> Reads:
    """What ``code``, and the functions that are defined in it, reads."""
    found = _known.get(code)
    if found is None:
        globals_, attributes, modules = dict[str, None](), set[str](), dict[str, None]()
        for each in (code, *codes(code), *_evaluated(code)):
            for one in dis.get_instructions(each):
                if one.opname in _GLOBALS:
                    globals_[one.argval] = None
                elif one.opname in _ATTRIBUTES:
                    attributes.add(one.argval)
                elif one.opname == "IMPORT_NAME":
                    modules[one.argval] = None
            if "getattr" in each.co_names:
                attributes.update(c for c in each.co_consts if isinstance(c, str))
            if "globals" in each.co_names:
                globals_.update((c, None) for c in each.co_consts if isinstance(c, str))
            if _WHOLE & {*each.co_names}:
                attributes.add("__dict__")
        found = Reads(code.co_freevars, tuple(globals_), tuple(modules), frozenset(attributes))
        _known[code] = found
    return found


def _evaluated(code: CodeType) -> list[CodeType]:
    """What ``eval`` and ``exec`` are given as a constant."""
    evaluating = [each for each in (code, *codes(code)) if _EVALUATING & {*each.co_names}]
    strings = [c for each in evaluating for c in each.co_consts if isinstance(c, str)]
    made = filter(None, map(_compiled, strings))
    return [inner for each in made for inner in (each, *codes(each))]


def _compiled(text: str) -> CodeType | None:
    """``text`` as Python's, if it is that."""
    try:
        return compile(text, "<text>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None


def text_of(statements: Iterable[ast.stmt]) -> frozenset[str]:
    """The names and attributes in ``statements``."""
    nodes = [n for s in statements for n in subtree(s)]
    strings = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    if _EVALUATING & names:
        made = filter(None, map(_compiled, [*strings]))
        strings = strings.union(*(each.co_names for code in made for each in (code, *codes(code))))
    return frozenset(
        names | strings
        | {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    )  # fmt: skip


def keys_of(statements: Iterable[ast.stmt]) -> dict[str, frozenset[Any] | None]:
    """Of each dotted name the constants that it is subscripted with; None where it stands for
    itself somewhere."""
    found: dict[str, frozenset[Any] | None] = {}
    left: list[ast.AST] = [*statements]
    while left:
        node = left.pop()
        place, key = node, None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            place, key = node.value, frozenset({node.slice.value})
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get" and node.args and isinstance(node.args[0], ast.Constant)
        ):  # fmt: skip
            place, key = node.func.value, frozenset({node.args[0].value})
            left += [*node.args[1:], *node.keywords]
        if isinstance(place, ast.Name | ast.Attribute) and root_name(place) is not None:
            name = dotted(place)
            before = found.get(name, frozenset())
            found[name] = None if key is None or before is None else before | key
        else:
            left += children(node)
    return found


def shaped(names: Iterable[str]) -> frozenset[str]:
    """The dotted names of which ``names``, those of a text, have shapes, dtypes and the like alone:
    what a write to the elements does not change."""
    found, others = set[str](), set[str]()
    for name in names:
        owner, _, last = name.rpartition(".")
        if last in SELF_EVIDENT:
            found.add(owner)
        else:
            others |= {name, owner}
    return frozenset(found - others)
