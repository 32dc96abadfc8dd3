"""What the documents say is run: every Python block, every pass and every public name."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.conftest import adapter
from weft.compiler import PIPELINE
from weft.runtime import tuned

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SLOW = {"tutorial.md", "profiling.md", "workbench.md"}  # they profile models
NEEDED = {"webgpu.md": adapter}  # what is called first, and may skip the test
FENCE = re.compile(r"^```python(?: raises=(\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    """A block of Python at ``line`` of a document; ``raises`` names the error that ends it."""

    line: int
    text: str
    raises: str


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    return [
        Block(text.count("\n", 0, m.start(2)) + 1, m.group(2), m.group(1) or "")
        for m in FENCE.finditer(text)
    ]


@pytest.mark.parametrize("document", [
    pytest.param(d, id=d.name, marks=[pytest.mark.slow] if d.name in SLOW else [])
    for d in DOCUMENTS if blocks(d)
])  # fmt: skip
def test_every_python_block_runs(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a document are one module. Each has a file, for kernels need a source; the
    file's name ends with the line in the document. What is tuned there is forgotten after it."""
    NEEDED.get(document.name, lambda: None)()
    monkeypatch.setattr(tuned.records, "_files", {})
    module = types.ModuleType(document.stem)
    monkeypatch.setitem(sys.modules, document.stem, module)
    names: dict[str, Any] = vars(module)
    for block in blocks(document):
        file = tmp_path / f"{document.stem}_{block.line}.py"
        file.write_text(block.text)
        expected = pytest.raises(getattr(weft, block.raises)) if block.raises else None
        with expected or contextlib.nullcontext():
            exec(compile(block.text, file, "exec"), names)


def test_every_fence_is_recognised() -> None:
    for document in DOCUMENTS:
        assert document.read_text().count("\n```python") == len(blocks(document)), document.name


def test_blocks_that_need_a_gpu_are_python() -> None:
    """Those of Triton and Numba are not run: ``examples/implementations.py`` has what is."""
    fence = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    parsed = 0
    for document in DOCUMENTS:
        for language, text in fence.findall(document.read_text()):
            written = re.search(r"^(?:def |@)", text, re.MULTILINE)
            if language == "py" or (language == "" and written):
                ast.parse(text, document.name)
                parsed += 1
    assert parsed >= 4


def test_every_pass_is_in_the_page_of_passes_in_order() -> None:
    listed = re.findall(r"^\| \d+ \| `(\w+)`", (ROOT / "docs/passes.md").read_text(), re.MULTILINE)
    assert listed == [step.__name__ for step in PIPELINE]


@pytest.mark.parametrize("name", weft.__all__)
def test_every_public_name_is_in_the_language_page(name: str) -> None:
    text = (ROOT / "docs/language.md").read_text()
    assert re.search(rf"\bweft\.{name}\b|`{name}`", text), f"weft.{name}"


def test_every_error_class_is_in_the_page_of_errors() -> None:
    text = (ROOT / "docs/errors.md").read_text()
    classes = [
        n for n, v in vars(weft.errors).items() if isinstance(v, type) and issubclass(v, Exception)
    ]
    for name in classes:
        assert re.search(rf"`weft\.(errors\.)?{name}`", text), name


def test_checkouts_are_installed_with_what_was_tested() -> None:
    told = [c for d in DOCUMENTS for c in re.findall(r"`(pip install [^`]*)`", d.read_text())]
    own = [command for command in told if re.search(r"(?:^| )'?\.(?:\[|'?$)", command)]
    assert len(own) >= 4
    assert [command for command in own if "--constraint constraints.txt" not in command] == []


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*DOCUMENTS, ROOT / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\(([^)#:\s]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_page_is_in_the_sites_navigation_once() -> None:
    listed = re.findall(r": ([a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(d.name for d in DOCUMENTS[1:])


def test_the_reference_has_every_function_of_the_package_that_takes_kernels() -> None:
    text = (ROOT / "docs/reference.md").read_text()
    named = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    for dotted in named:
        module, _, name = dotted.rpartition(".")
        assert module == "weft" or hasattr(importlib.import_module(module), name), dotted
    objects = {name: getattr(weft, name) for name in weft._LATER}
    wanted = {getattr(value, "__name__", type(value).__name__) for value in objects.values()}
    assert wanted <= {dotted.rpartition(".")[2] for dotted in named}
    (members,) = re.findall(r"members: \[(interpret.*)\]", text)
    for member in members.split(", "):
        found = inspect.getattr_static(weft.Kernel, member)
        function = getattr(found, "func", getattr(found, "fget", found))
        assert inspect.getdoc(function), member
