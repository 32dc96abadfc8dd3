"""The house rules: how long files and functions are, what examples have."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "weft"

LINES_OF_A_MODULE, LINES_OF_A_CLASS, LINES_OF_A_FUNCTION = 600, 250, 80

MODULES = sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py"))


@functools.cache
def parsed(module: str) -> tuple[ast.Module, list[str]]:
    text = (PACKAGE / module).read_text()
    return ast.parse(text), text.splitlines()


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import that is carried out, and whether it is in a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, inside
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, inside or function)


def test_local_imports_say_why() -> None:
    silent = [
        f"{module}, line {node.lineno}: {ast.unparse(node)}"
        for module in MODULES
        for tree, lines in [parsed(module)]
        for node, local in imports(tree)
        if local and "#" not in lines[node.lineno - 1] and not commented(lines, node.lineno - 2)
    ]
    assert silent == []


def commented(lines: list[str], number: int) -> bool:
    """Whether this line is a comment, or an import under one."""
    while number >= 0 and lines[number].strip().startswith(("import ", "from ")):
        if "#" in lines[number]:
            return True
        number -= 1
    return lines[number].strip().startswith("#")


def test_modules_are_short() -> None:
    assert [m for m in MODULES if len(parsed(m)[1]) > LINES_OF_A_MODULE] == [], "split it"


def test_functions_are_short() -> None:
    long = set()
    for module in MODULES:
        for node in ast.walk(parsed(module)[0]):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > LINES_OF_A_FUNCTION:
                    long.add(f"{module}:{node.name}")
    assert long == set(), "split it"


def test_classes_are_short() -> None:
    long = {
        f"{module}:{node.name}"
        for module in MODULES
        for node in ast.walk(parsed(module)[0])
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > LINES_OF_A_CLASS
    }
    assert long == set(), "make it parts with one concern each"


def test_modules_say_what_they_are_for() -> None:
    silent = [m for m in MODULES if parsed(m)[1] and not ast.get_docstring(parsed(m)[0])]
    assert silent == []


def spoken(node: ast.AST) -> set[str]:
    """The names in ``node``: variables, parameters, attributes."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    found |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def test_what_dynamo_traces_looks_at_no_kernel() -> None:
    """Dynamo before PyTorch 2.13 does not find that attribute of the objects it traces."""
    traced, looking = set[str](), set[str]()
    for module in MODULES:
        for node in ast.walk(parsed(module)[0]):
            if not isinstance(node, ast.FunctionDef):
                continue
            if re.search(r"Dynamo(, which)? traces (this|it)", ast.get_docstring(node) or ""):
                traced.add(node.name)
                looking |= {f"{module}:{node.name}" for n in ast.walk(node)
                            if isinstance(n, ast.Attribute) and n.attr == "kernel"}  # fmt: skip
    assert {"traced", "assemble", "_returned", "members_of", "taken_apart"} <= traced
    assert looking == set()


STEPS = {"step", "steps", "by", "stride"}
UPPERS = {"upper", "uppers", "high", "last", "end", "stop", "hi"}


def divides_by_a_step(node: ast.AST) -> bool:
    """Whether ``node`` itself is a division whose divisor is a loop's step."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        return bool(spoken(node.right) & STEPS)
    if not isinstance(node, ast.Call) or not node.args:
        return False
    how = {n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)}
    how |= spoken(node.func)
    division = any(re.search(r"floordivsi|divui|[su]div\b|^floor$|^over$", str(w)) for w in how)
    return division and any(spoken(a) & STEPS for a in (node.args[-1], node.args[0]))


def trip_counts(tree: ast.Module) -> list[str]:
    """The functions that know of an upper bound, and divide by a step."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and spoken(node) & UPPERS
        and any(map(divides_by_a_step, ast.walk(node)))
    ]


SECOND_COUNTS = (
    "def _trips(first, last, by):\n    return int(-(-(last - first) // by))",
    "def f(lower, upper, step):\n    return self.b.op('arith.floordivsi', d, step)",
    "def f(e, lower, upper, step):\n    return e.inst(f'sdiv i64 {raised}, {e.name(step)}')",
    "def f(low, high, step):\n    return floor(high - low + step - ONE, step)",
)


def test_trip_counts_have_one_definition() -> None:
    for text in SECOND_COUNTS:  # what this test is there for
        assert trip_counts(ast.parse(text)), text
    found = {(m, name) for m in MODULES for name in trip_counts(parsed(m)[0])}
    assert found == set(), "write it with weft.ir.trips.trip_count"


def chooses_writes(test: ast.AST) -> bool:
    """Whether ``test`` holds, by their names, for operations that write and for no load."""
    texts = {n.value for n in ast.walk(test) if isinstance(n, ast.Constant)}
    names = {t for t in texts if str(t).startswith("memref.")}
    excluded = [n for n in ast.walk(test) if isinstance(n, ast.NotEq | ast.NotIn)]
    by_name = "memref.store" in names and "memref.load" not in names and not excluded
    rest = names == {"memref.load"} and bool(excluded) and len(names) == len(texts)
    return by_name or rest


def gives_a_memref(node: ast.AST, tests: list[ast.expr]) -> bool:
    """Whether ``node`` is the memref that an operation accesses: asked here, or in ``tests``."""
    if isinstance(node, ast.Name):
        named = (n for t in tests for n in ast.walk(t) if isinstance(n, ast.NamedExpr))
        return any(n.target.id == node.id for n in named)
    if isinstance(node, ast.Call):
        return bool(spoken(node.func) & {"accessed_by", "written_by"})
    return isinstance(node, ast.Subscript) and bool(
        spoken(node.value) & {"memory", "access_of", "operands"}
    )


def sets_of_written(tree: ast.AST) -> list[int]:
    """The lines that collect the memrefs of operations that write: ``{memory(op)[0] for op in ops
    if op.name == "memref.store"}``, or ``add`` under such an ``if``."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.SetComp | ast.ListComp | ast.GeneratorExp | ast.DictComp):
            tests = [t for g in node.generators for t in g.ifs]
            element = node.key if isinstance(node, ast.DictComp) else node.elt
            chosen = any(chooses_writes(t) or "written_by" in spoken(t) for t in tests)
            if chosen and gives_a_memref(element, tests):
                found.append(node.lineno)
        elif isinstance(node, ast.If) and chooses_writes(node.test):
            for n in (n for s in node.body for n in ast.walk(s)):
                adds = isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
                if (
                    adds
                    and n.func.attr in ("add", "append", "setdefault")
                    and any(gives_a_memref(a, [node.test]) for a in n.args)
                ):
                    found.append(n.lineno)
    return found


SECOND_WRITTEN = (
    "s = {memory(op)[0] for op in walk(b) if op.name == 'memref.store'}",
    "s = {op.operands[1] for op in ops if op.name in ('memref.store', 'memref.atomic_rmw')}",
    "s = {m: None for op in ops if (m := written_by(op)) is not None}",
    "s = [accessed_by(o) for o in ops if o.name != 'memref.load']",
    "for op in ops:\n    if op.name == 'memref.store':\n        found.add(memory(op)[0])",
)


OTHER_SETS = {
    "schedule/nest.py": "which arrays plain stores go to: what may stream past the caches",
}


def test_what_is_written_has_one_definition() -> None:
    for text in SECOND_WRITTEN:  # what this test is there for
        assert sets_of_written(ast.parse(text)), text
    found = [m for m in MODULES if m != "ir/writes.py" for _ in sets_of_written(parsed(m)[0])]
    assert found == [*OTHER_SETS], "ask weft.ir.writes.written"


def decoded_by_position(tree: ast.AST) -> list[int]:
    """The lines that count operands or regions: ``op.operands[2 * dims + k]``, ``op.regions[0]``,
    ``value, memref, *subscripts = op.operands``."""

    def is_listed(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in ("operands", "regions")

    found: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_listed(node.value):
            parts = list(ast.walk(node.slice))
            if any(isinstance(n, ast.Constant | ast.BinOp | ast.Slice) for n in parts):
                found.append(node.lineno)
        elif isinstance(node, ast.Assign) and is_listed(node.value):
            targets = [n for target in node.targets for n in ast.walk(target)]
            if any(isinstance(n, ast.Starred) for n in targets):
                found.append(node.lineno)
    return found


BY_POSITION = (
    "lowers = op.operands[:dims]",
    "step = parallel.operands[2 * dims + axis]",
    "memref = op.operands[0 if op.name == 'memref.load' else 1]",
    "value, memref, *subscripts = op.operands",
    "ends = op.regions[0].terminator.operands[1:]",
)


def test_operands_are_counted_in_one_place() -> None:
    for text in BY_POSITION:  # what this test is there for
        assert decoded_by_position(ast.parse(text)), text
    of_source = ("kernel.py", "runtime/entry.py", "pytorch/skip_forward.py")  # other regions
    found = {
        f"{m}:{line}"
        for m in MODULES
        if not m.startswith(("ir/", *of_source))
        for line in decoded_by_position(parsed(m)[0])
    }
    assert found == set(), "ask weft.ir.views"
    users = {m for m in MODULES if "MEMREF_AT" in spoken(parsed(m)[0])}
    assert users == {"ir/ops.py", "ir/views.py"}, "ask weft.ir.views.memory"


EXAMPLES = {p.name for p in (ROOT / "examples").glob("[!_]*.py")}
# What they have in common, and what needs packages that need not be there.
EXAMPLES -= {"photograph.py", "beside.py", "triton_kernels.py", "numba_kernels.py"}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_example_has_a_main(name: str) -> None:
    tree = ast.parse((ROOT / "examples" / name).read_text())
    assert any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)


def test_the_glossary_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.(?:py|md))`", text)
    assert len(named) > 40
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_sizes_beside_strides_are_the_tensors() -> None:
    """``shape`` of a field of vectors is the field's: without the vector, which strides have."""
    both = re.compile(r"\.shape\b.*\.stride\(\)|\.stride\(\).*\.shape\b")
    found = [
        f"{module}:{k}" for module in MODULES
        for k, line in enumerate(parsed(module)[1], 1) if both.search(line)
    ]  # fmt: skip
    assert not found, "write tensor.size()"
