"""Source lines of machine code: LLVM's debug locations, from which come the tables of lines of an
object file, ``.loc`` in PTX and what profilers say of instructions.

They cost time when LLVM reads the text, and are written where ``Options.lines`` asks for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import field

from weft.errors import Span
from weft.values import mutable

_TABLES, _DIRECTIVES = "LineTablesOnly", "DebugDirectivesOnly"
_SYMBOL = re.compile(r"@([\w.$]+)\(")


@mutable
class Lines:
    """The metadata of one module. ``span``: of lines that belong to no operation. ``gpu``: PTX has
    directives for its assembler, which makes the tables itself."""

    span: Span
    gpu: bool = False
    named: list[str] = field(default_factory=list)  # metadata that has names, for the module
    _nodes: dict[str, str] = field(default_factory=dict)

    def located(
        self, node: Callable[..., str], header: str, lines: Sequence[str],
        spans: Sequence[Span | None],
    ) -> tuple[str, list[str]]:  # fmt: skip
        """The header and the lines of a function with their locations. ``node`` makes metadata."""
        known = self._nodes

        def one(text: str) -> str:
            if text not in known:
                known[text] = node(text)
            return known[text]

        def file(path: str) -> str:
            folder, name = "", path
            if self.gpu:  # which puts a slash between the two, and has no escapes
                folder, name = os.path.split(re.sub(r'["\\]', "_", path))
            return one(f'!DIFile(filename: "{_escaped(name)}", directory: "{_escaped(folder)}")')

        home = file(self.span.file)
        if not self.named:
            unit = node(f"!DICompileUnit(language: DW_LANG_C, file: {home}, emissionKind: "
                        f"{_DIRECTIVES if self.gpu else _TABLES})", distinct=True)  # fmt: skip
            known["unit"] = unit
            flags = one('!{i32 2, !"Debug Info Version", i32 3}')
            if not self.gpu:
                flags += ", " + one('!{i32 7, !"Dwarf Version", i32 4}')  # see runtime/jitdump.py
            self.named += [f"!llvm.dbg.cu = !{{{unit}}}", f"!llvm.module.flags = !{{{flags}}}"]
        symbol = _SYMBOL.search(header)
        assert symbol is not None
        type = one(f"!DISubroutineType(types: {one('!{null}')})")
        scope = node(
            f'!DISubprogram(name: "{symbol[1]}", scope: {home}, file: {home}, line: '
            f"{self.span.line}, type: {type}, spFlags: DISPFlagDefinition | DISPFlagOptimized, "
            f"unit: {known['unit']})", distinct=True,
        )  # fmt: skip

        def location(span: Span) -> str:
            inside = scope
            if span.file != self.span.file:
                inside = one(f"!DILexicalBlockFile(scope: {scope}, file: {file(span.file)}, "
                             "discriminator: 0)")  # fmt: skip
            return one(f"!DILocation(line: {span.line}, scope: {inside})")

        found = [
            line if line.endswith(":") else f"{line}, !dbg {location(span or self.span)}"
            for line, span in zip(lines, spans, strict=True)
        ]
        return f"{header} !dbg {scope}", found


def _escaped(text: str) -> str:
    """As LLVM writes strings: all but plain characters by their bytes."""
    return "".join(
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:02X}" for b in text.encode()
    )
