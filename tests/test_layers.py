"""Each layer imports only lower ones, as ARCHITECTURE.md lists them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "weft"
# Lower layers first; what shares a line does not import each other.
LAYERS = [
    {"version"},
    {"errors"},
    {"collector", "source", "options", "timing"},
    {"frames", "depth"},
    {"ir"},
    {"lang"},
    {"index"},
    {"schedule"},
    {"frontend"},
    {"passes"},
    {"autodiff"},
    {"codegen"},
    {"compiler"},
    {"runtime"},
    {"pytorch"},
    {"kernel"},
    {"tools"},
    {"__init__"},
]
FREE_OF_TORCH = {"ir", "index", "schedule", "passes", "autodiff", "codegen"}
MODULES = sorted(p for p in PACKAGE.rglob("*.py"))


def layer_of(part: str) -> int:
    return next(k for k, layer in enumerate(LAYERS) if part in layer)


def part_of(path: Path) -> str:
    """The package or top-level module that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, in functions too, but not for type checking alone."""
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "weft":
            yield from (f"weft.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def _without_type_checking(tree: ast.Module) -> ast.Module:
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_lower_layers_only(path: Path) -> None:
    part = part_of(path)
    for name in imports(path):
        root, *rest = name.split(".")
        if root == "torch":
            assert part not in FREE_OF_TORCH, f"{path} imports {name}"
        if root == "weft" and rest and rest[0] != part:
            assert layer_of(rest[0]) < layer_of(part), f"{path} imports {name}"
