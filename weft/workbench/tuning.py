"""``weft tune``: the fastest schedule of each loop of a kernel, measured and kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.frames import user_frames
from weft.tuning.tune import Row, Table, tune, tuned
from weft.values import frozen
from weft.workbench.arguments import call_arguments
from weft.workbench.cases import shapes
from weft.workbench.report import UsageError


@frozen
class Tuned:
    """``arguments``: with which it was measured, in words. ``saved``: the file that has the records
    besides the disk cache."""

    arguments: str
    table: Table
    saved: str = ""
    ok: bool = True

    def __str__(self) -> str:
        kept = f"{len(self.table.records)} schedules are kept in the disk cache"
        return f"{self.arguments}\n\n{self.table}\n\n{kept}{self.saved and f' and {self.saved}'}"

    def data(self) -> dict[str, Any]:
        rows = [{name: getattr(row, name) for name in Row.__match_args__}
                for row in self.table.rows]  # fmt: skip
        return {"arguments": self.arguments, "rows": rows, "saved": self.saved}


@user_frames
def tuned_kernel(
    kernel: Any, *args: Any, backward: bool = False, most: int = 16, save: str = "",
    device: str = "", sizes: Mapping[str, int] | None = None,
    names: Mapping[str, Any] | None = None,
) -> Tuned:  # fmt: skip
    """``weft.tune`` with arguments that are given or made as for ``weft.check``, of ``sizes``, on
    ``device``. ``save``: a file for ``weft.tuned``. Raises ``UsageError``."""
    given = call_arguments(kernel, args, names, sizes, device)
    table = tune(kernel, *given, backward=backward, most=most)
    if save:
        try:
            tuned(Path(save), table)
        except OSError as error:
            raise UsageError(f"{save} cannot be written: {error.strerror}") from error
    named = kernel.bind(given, {}).arguments
    return Tuned(shapes(dict(named)), table, save)
