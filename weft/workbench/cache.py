"""``weft cache``: what the disk cache of compiled loops holds, and making it smaller."""

from __future__ import annotations

import time
from typing import Any

from weft.options import default_options
from weft.runtime.cache import DiskCache, disk
from weft.values import frozen
from weft.workbench.report import Table, UsageError, listed


@frozen
class CacheReport:
    """``deleted``: entries that are gone. ``entries``: those that are listed, or None: what each
    is, its bytes, hours since it was used, and its key."""

    folder: str
    count: int
    bytes: int
    limit: int
    deleted: int | None = None
    entries: Table | None = None
    ok: bool = True

    def __str__(self) -> str:
        size = f"{megabytes(self.bytes)} of at most {megabytes(self.limit)}"
        lines = [("place", self.folder), ("entries", f"{self.count:,}"), ("size", size)]
        if self.deleted is not None:
            lines.insert(0, ("deleted", f"{self.deleted:,}"))
        return listed(lines) + (f"\n\n{self.entries}" if self.entries else "")

    def data(self) -> dict[str, Any]:
        data = {"folder": self.folder, "entries": self.count, "bytes": self.bytes,
                "limit": self.limit}  # fmt: skip
        if self.deleted is not None:
            data["deleted"] = self.deleted
        return data if self.entries is None else {**data, "list": self.entries.data()}


def megabytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MB"


def cache(
    action: str = "show", megabytes: float | None = None, days: float | None = None
) -> CacheReport:
    """``action``: "show" says where the cache is and how large; "list" has its entries, too;
    "clear" deletes all; "prune" deletes what was used longest ago until the rest is below
    ``megabytes`` (the cache's own limit, if it is not given), and what nobody has used for
    ``days``. Raises ``UsageError``."""
    if action not in ("show", "list", "clear", "prune"):
        raise UsageError(f"{action!r} is nothing that `weft cache` does\n"
                         "help: write show, list, clear or prune")  # fmt: skip
    if action != "prune" and (megabytes is not None or days is not None):
        raise UsageError("sizes and days are for `weft cache prune`")
    found = disk(default_options())
    if found is None:
        raise UsageError("there is no disk cache: WEFT_CACHE=0 is set\nhelp: unset WEFT_CACHE")
    deleted = None
    if action == "clear":
        deleted = found.clear()
    elif action == "prune":
        limit = None if megabytes is None else int(megabytes * (1 << 20))
        deleted = found.trim(limit, None if days is None else days * 86400)
    count, size = found.size()
    listing = _listing(found) if action == "list" else None
    return CacheReport(str(found.folder), count, size, found.limit, deleted, listing)


def _listing(found: DiskCache) -> Table:
    now, rows = time.time(), list[tuple[Any, ...]]()
    for key, size, used in found.entries():
        header = found.header(key)
        what = "damaged" if header is None else _what(header)
        rows.append((what, size, round((now - used) / 3600, 2), key[:16]))
    return Table(("what", "bytes", "hours unused", "key"), tuple(rows))


def _what(header: dict[str, Any]) -> str:
    """What an entry is, of the header that its writer gave it."""
    name = header.get("name") or header.get("symbol") or ", ".join(header.get("symbols", []))
    return str(name or "record of tuning")
