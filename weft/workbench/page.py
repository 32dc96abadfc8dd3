"""The page of ``weft report`` as HTML: one file, which loads nothing."""

from __future__ import annotations

import ast
import difflib
import functools
import linecache
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from weft.source import subtree
from weft.values import frozen
from weft.version import VERSION
from weft.workbench.linked import Line, Place, linked
from weft.workbench.report import Table, shown

_CODE = ("ir", "scheduled ir", "llvm", "llvm optimized", "assembly", "ptx", "sass")
_FIRST = ("sass", "ptx", "assembly")  # the tab that is open


@frozen
class Section:
    """A part of the page. ``html`` is markup."""

    name: str
    title: str
    html: str


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole file."""
    here = Path(__file__).parent
    style, script = ((here / f"page.{kind}").read_text() for kind in ("css", "js"))
    links = "".join(f'<li><a href="#{s.name}">{escape(s.title)}</a></li>' for s in sections)
    body = "\n".join(
        f'<section id="{s.name}" aria-labelledby="{s.name}-title">'
        f'<h2 id="{s.name}-title">{escape(s.title)}</h2>\n{s.html}</section>'
        for s in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="weft {VERSION}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#{sections[0].name}">Skip to the report</a>
<header><div><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></div>
<button type="button" id="theme" hidden aria-label="Dark colours" aria-pressed="false">Dark</button>
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main>
{body}
</main>
<script>
{script}</script>
</body>
</html>
"""


def facts(values: Sequence[tuple[str, str, str]]) -> str:
    """Names, values, and a note on each."""
    cells = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in values
    )
    return f'<dl class="facts">{"".join(cells)}</dl>\n'


def table(caption: str, content: Table) -> str:
    """A table, numbers to the right."""
    right = [all(isinstance(row[k], int | float | None) for row in content.rows)
             for k in range(len(content.columns))]  # fmt: skip
    kinds = [' class="r"' if to_right else "" for to_right in right]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>'
                   for name, kind in zip(content.columns, kinds, strict=True))  # fmt: skip
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(shown(cell))}</td>"
                         for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in content.rows
    )  # fmt: skip
    return (f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
            f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}"
            "</tbody></table></div>\n")  # fmt: skip


def text(content: str, label: str) -> str:
    """Text as it is, in a box that scrolls."""
    return f'<pre tabindex="0" role="region" aria-label="{escape(label)}">{escape(content)}</pre>\n'


def folded(summary: str, html: str, note: str = "", *, opened: bool = False) -> str:
    """What is shown when it is asked for."""
    return (f'<details{" open" if opened else ""}><summary><span class="d">{escape(note)}</span>'
            f"{escape(summary)}</summary>\n{html}</details>\n")  # fmt: skip


# --- source beside code --------------------------------------------------------------------------
def code(number: int, name: str, texts: dict[str, str], home: Place) -> str:
    """The source of the loop ``name`` beside each stage, lines linked both ways. ``home``: where
    the kernel begins."""
    stages = {s: linked(s, texts[s]) for s in _CODE if texts.get(s)}
    places = {line.place for lines in stages.values() for line in lines if line.place is not None}
    numbers: dict[Place, str] = {}
    rows: list[str] = []
    counts = {s: _counted(lines) for s, lines in stages.items()}
    last = next((s for s in _FIRST if s in stages), None)
    for file, begin, end in _functions({*places, home}, home[0]):
        if rows or file != home[0]:
            rows.append(f'<span><b class="n"></b>{escape(Path(file).name)}</span>')
        for k in range(begin, end + 1):
            line = linecache.getline(file, k).rstrip()
            linked_to = ""
            if (file, k) in places:
                numbers[file, k] = str(len(numbers))
                linked_to = f' data-s="{numbers[file, k]}" data-n="{k}"'
            many = counts.get(last or "", {}).get((file, k), 0)
            note = f'<b class="k">{many}</b>' if many else ""
            rows.append(f'<span{linked_to}>{note}<b class="n">{k}</b>{escape(line)}</span>')
    tabs: list[str] = []
    panels: list[str] = []
    for stage, lines in stages.items():
        key = f"loop{number}-{stage.replace(' ', '-')}"
        selected = stage == (last or next(iter(stages)))
        tabs.append(
            f'<button type="button" role="tab" id="{key}-tab" aria-controls="{key}" '
            f'aria-selected="{str(selected).lower()}">{escape(_SPOKEN.get(stage, stage))}</button>'
        )
        panels.append(
            f'<div role="tabpanel" id="{key}" aria-labelledby="{key}-tab"><div class="code" '
            f'role="region" tabindex="-1" aria-label="{escape(_SPOKEN.get(stage, stage))}">'
            + "".join(_row(line, numbers) for line in lines) + "</div></div>"
        )  # fmt: skip
    note = (
        f"Numbers at the right of the source: lines of {_SPOKEN.get(last, last)}. " if last else ""
    )
    return f"""<div class="loop"><h3>{escape(name)}</h3>
<p class="note">{note}Point at a line, or focus it with Tab and the arrow keys, and what belongs to
it lights up on the other side; Enter or a click keeps it, Escape lets it go.</p>
<div class="sides"><div class="side"><div class="tabs"><span>Source</span></div>
<div class="code" role="region" tabindex="-1" aria-label="source">{"".join(rows)}</div></div>
<div class="side"><div class="tabs" role="tablist" aria-label="Stages of {escape(name)}" hidden>\
{"".join(tabs)}</div>
{"".join(panels)}</div></div>
<p class="status" role="status" aria-live="polite"></p></div>
"""


_SPOKEN = {"ir": "IR", "scheduled ir": "scheduled IR", "llvm": "LLVM",
           "llvm optimized": "LLVM optimized", "ptx": "PTX", "sass": "SASS"}  # fmt: skip


def _row(line: Line, numbers: dict[Place, str]) -> str:
    number = numbers.get(line.place) if line.place is not None else None
    linked_to = "" if number is None else f" data-s={number}"
    return f"<span{linked_to}>{escape(line.text.expandtabs(8)) or ' '}</span>"


def _counted(lines: Sequence[Line]) -> dict[Place, int]:
    counts: dict[Place, int] = {}
    for line in lines:
        if line.place is not None:
            counts[line.place] = counts.get(line.place, 0) + 1
    return counts


def _functions(places: set[Place], home: str) -> list[tuple[str, int, int]]:
    """The functions that hold ``places``: file, first and last line; those of ``home`` first."""
    found: dict[tuple[str, int, int], None] = {}
    for file, line in sorted(places, key=lambda place: (place[0] != home, place)):
        spans = [(b, e) for b, e in _defined(file) if b <= line <= e]
        begin, end = min(spans, key=lambda span: span[1] - span[0], default=(line, line))
        if not any(f == file and b <= begin and end <= e for f, b, e in found):
            found[file, begin, end] = None
    return list(found)


@functools.lru_cache(64)
def _defined(file: str) -> tuple[tuple[int, int], ...]:
    tree = ast.parse("".join(linecache.getlines(file)) or "pass")
    return tuple(
        (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or 0)
        for node in subtree(tree) if isinstance(node, ast.FunctionDef)
    )  # fmt: skip


# --- what changed --------------------------------------------------------------------------------
def changes(texts: dict[str, str]) -> str:
    """What each pass changed, and then each step of the schedule."""
    parts: list[str] = []
    before = texts.get("ir", "")
    quiet: list[str] = []
    opened = False
    for stage, after in texts.items():
        if not stage.startswith(("ir after ", "step ")):
            continue
        name = stage.removeprefix("ir after ")
        lines = [*_diff(before, after, linked(stage, before), linked(stage, after))]
        before = after
        if not lines:
            quiet.append(name)
            continue
        plus, minus = (sum(kind == k for kind, _ in lines) for k in "+-")
        shown = "\n".join(_CHANGE[kind].format(escape(line)) for kind, line in lines[:_MOST])
        if len(lines) > _MOST:
            shown += f"\n({len(lines) - _MOST:,} more lines: weft inspect --stage {stage!r})"
        box = f'<pre tabindex="0" role="region" aria-label="{escape(name)}">{shown}</pre>'
        parts.append(folded(name, box, f"{plus} lines more, {minus} less", opened=not opened))
        opened = True
    if quiet:
        parts.append(f'<p class="note">Changed nothing: {escape(", ".join(quiet))}.</p>')
    return "".join(parts)


_CHANGE = {"+": "<ins>+ {}</ins>", "-": "<del>- {}</del>", " ": "  {}", "@": "  ..."}
_MOST = 1500  # lines of a difference: one may be that of unrolled loops


def _diff(
    before: str, after: str, old: Sequence[Line], new: Sequence[Line]
) -> Iterator[tuple[str, str]]:
    """Kind ("+", "-", " ", "@") and text of each line of the difference, with some around it."""
    if before == after:
        return
    first = True
    for line in difflib.unified_diff(
        [x.text for x in old], [x.text for x in new], n=2, lineterm=""
    ):
        if line.startswith(("---", "+++")) and first:
            first = not line.startswith("+++")
            continue
        yield (line[0], "" if line[0] == "@" else line[1:])


def described(value: Any) -> str:
    """A value of an argument in a few words."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"{value!r}"[:60]
    return f"{str(value.dtype).removeprefix('torch.')}{list(shape)}, {value.device}"
