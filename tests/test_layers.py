"""Each layer imports only lower ones, as ARCHITECTURE.md lists them, and no modules are in a ring.

All imports count: those in functions, and those for type checking alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Lower layers first; what shares a line does not import each other.
LAYERS = [
    {"version"},
    {"values"},
    {"errors"},
    {"settings", "options", "timing"},
    {"source"},
    {"frames"},
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
    {"tools", "tuning", "webgpu", "ad"},
    {"workbench"},
    {"weft"},  # the package itself: `import weft`
    {"__main__"},
]
FREE_OF_TORCH = {"ir", "index", "schedule", "passes", "autodiff", "codegen"}


def name_of(path: Path) -> str:
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return dotted.removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted((ROOT / "weft").rglob("*.py"))}


def part_of(module: str) -> str:
    """The package or top-level module that a module belongs to."""
    return [*module.split("."), "weft"][1]


def layer_of(module: str) -> int:
    return next(k for k, layer in enumerate(LAYERS) if part_of(module) in layer)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of all that a file imports: of weft, the modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "absolute imports only"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name.startswith("weft.") and name not in MODULES:
                name = name.rpartition(".")[0]
            yield node.lineno, name


def test_imports_lower_layers_only() -> None:
    wrong = []
    for module, path in MODULES.items():
        part, layer = part_of(module), layer_of(module)
        for line, name in imports(path):
            of_torch = name.partition(".")[0] == "torch" and part in FREE_OF_TORCH
            higher = name in MODULES and part_of(name) != part and layer_of(name) >= layer
            if of_torch or higher:
                wrong.append(f"{module}, line {line}: {name}")
    assert wrong == []


def rings(graph: dict[str, set[str]]) -> list[set[str]]:
    """Modules that are left when those that import none of the others are taken out, and those that
    none of the others imports, until nothing changes."""
    left = {name: targets & graph.keys() - {name} for name, targets in graph.items()}
    while True:
        used = {target for targets in left.values() for target in targets}
        free = {name for name, targets in left.items() if not targets or name not in used}
        if not free:
            break
        left = {name: targets - free for name, targets in left.items() if name not in free}
    return [{name, *targets} for name, targets in left.items()]


def test_no_modules_are_in_a_ring() -> None:
    assert rings({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}, {"c", "b"}]
    assert rings({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    graph = {name: {target for _, target in imports(path)} for name, path in MODULES.items()}
    assert rings(graph) == []
