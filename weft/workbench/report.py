"""What a function of the workbench answers: text for people, data for programs, and whether all
is well; and the tables that the texts have."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any, Protocol

from weft.errors import WeftError
from weft.values import frozen


class UsageError(WeftError, ValueError):
    """What was asked for cannot be done so; the message says how it can."""


class Report(Protocol):
    """``str`` of it is what a person reads. ``ok``: nothing was found to be wrong."""

    @property
    def ok(self) -> bool: ...

    def data(self) -> dict[str, Any]:
        """The same of what JSON has."""
        ...


def as_json(report: Report) -> str:
    """The report as one JSON object, with ``ok`` in it. Numbers that JSON lacks are null."""
    return json.dumps({"ok": report.ok, **_plain(report.data())}, indent=1, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}  # pyright: ignore
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]  # pyright: ignore
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)


def shown(value: Any) -> str:
    """A cell of a table: floats with three digits, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, float):
        if value != value:
            return ""
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@frozen
class Table:
    """Rows of cells under names of columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        """In columns, numbers to the right."""
        cells = [list(map(shown, row)) for row in self.rows]
        lines = [list(self.columns), *cells]
        wide = [max(len(line[k]) for line in lines) for k in range(len(self.columns))]
        right = [all(isinstance(row[k], int | float | None) for row in self.rows) and bool(cells)
                 for k in range(len(self.columns))]  # fmt: skip
        lines.insert(1, ["-" * width for width in wide])
        return "\n".join(
            "  ".join(
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(line, wide, right, strict=True)
            ).rstrip()
            for line in lines
        )

    def csv(self) -> str:
        """Comma-separated, numbers with all of their digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def data(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def listed(lines: Sequence[tuple[str, str]]) -> str:
    """Names and what they are, one a line."""
    wide = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name:<{wide}}  {value}".rstrip() for name, value in lines)
