"""Machine code says which source lines it comes from, where that is asked for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import weft
from weft.codegen import ptx
from weft.codegen.lines import Lines, _escaped
from weft.errors import Span
from weft.runtime.inspection import inspected
from weft.runtime.launch import Launcher
from weft.tools.cross import compiled, lowered_loops


def twice(x: float) -> float:
    return x + x


@weft.kernel
def lengths(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0])
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += twice(x[i, j]) * x[i, j]
        out[i] = weft.sqrt(s)
    return out


FIRST = twice.__code__.co_firstlineno + 1
LOOP = lengths.function.__code__.co_firstlineno + 3
INSIDE = {LOOP + 2, LOOP + 3, LOOP + 4}
LINES = replace(lengths.options, lines=True)


def test_assembly_and_llvm_have_the_lines_of_the_loop_and_of_what_it_calls() -> None:
    launchers = [Launcher(r, lengths.source, LINES) for r in lengths.parts.regions]
    found = inspected(lengths.parts.host, launchers, (torch.rand(3, 5),), {}, lambda *_: "")
    loc = {int(n) for n in re.findall(r"^\t\.loc\t\d+ (\d+) ", found["assembly"], re.MULTILINE)}
    assert {*INSIDE, LOOP} <= loc
    assert FIRST in loc
    said = {int(n) for n in re.findall(r"!DILocation\(line: (\d+)", found["llvm optimized"])}
    assert said >= INSIDE
    plain = lengths.inspect(torch.rand(3, 5))
    assert ".loc" not in plain["assembly"]
    assert "!dbg" not in plain["llvm"]
    assert plain["schedule"] == found["schedule"]


def test_code_with_lines_computes_the_same_and_is_not_cached(tmp_path) -> None:
    x = torch.rand(17, 127)
    launcher = Launcher(
        lengths.parts.regions[0], lengths.source, replace(LINES, cache_dir=tmp_path)
    )
    out = lengths.parts.host([lambda *values: launcher.slow(values)], x)
    torch.testing.assert_close(out, (2 * x * x).sum(1).sqrt())
    assert not list(tmp_path.rglob("*"))


def test_ptx_has_directives_that_nvidias_assembler_takes() -> None:
    (function,) = lowered_loops(lengths, torch.empty(3, 5, device="meta"))
    text = compiled(function, "sm_90", LINES, False).ptx
    loc = {int(n) for n in re.findall(r"^\t\.loc\t\d+ (\d+) ", text, re.MULTILINE)}
    assert {*INSIDE, FIRST} <= loc
    assert f'\t.file\t1 "{__file__}"' in text
    assert ".target sm_90\n" in text, "not for debugging"
    if ptx.ptxas() is None:
        pytest.skip("there is no ptxas")
    assert b".debug_line" in ptx.cubin(text, "sm_90")


def test_names_of_files_are_escaped() -> None:
    assert _escaped('a "b"\\é') == "a \\22b\\22\\5C\\C3\\A9"
    names: dict[bool, str] = {}
    for gpu in (False, True):
        nodes: list[str] = []
        lines = Lines(Span('/a "b"/k.py', 3), gpu=gpu)
        lines.located(lambda text, distinct=False, nodes=nodes: nodes.append(text) or "!0",
                      "define void @f()", ["ret void"], [None])  # fmt: skip
        names[gpu] = next(node for node in nodes if node.startswith("!DIFile"))
    assert 'filename: "/a \\22b\\22/k.py", directory: ""' in names[False]
    assert 'filename: "k.py", directory: "/a _b_"' in names[True], "PTX cannot say it"
