"""The disk cache of compiled kernels.

One file per entry: a magic line, the SHA-256 of the rest, the length of a JSON header, the header,
the object code. Entries are written to a temporary file and renamed, so a reader sees a whole entry
or none; whatever is damaged is not used. The folder belongs to the user alone (mode 0700): object
code from it is run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import stat
import struct
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import platformdirs

log = logging.getLogger("weft.cache")

MAGIC = b"weft-cache-1\n"
_LENGTH = struct.Struct("<Q")
_STORES_BETWEEN_TRIMS = 64
_STALE_SECONDS = 3600  # a temporary file this old was left by a writer that died


class CacheWarning(UserWarning):
    """The disk cache cannot be used; kernels are compiled anew in each process."""


class DiskCache:
    """Entries by key (hex digits) below ``folder``, at most ``limit`` bytes of them.

    Nothing here fails loudly: a cache that cannot be used is a warning, once, and a miss.
    """

    def __init__(self, folder: Path | None = None, limit: int = 512 << 20) -> None:
        self.folder = folder or platformdirs.user_cache_path("weft")
        self.limit = limit
        self._lock = threading.Lock()
        self._usable: bool | None = None
        self._writable = True
        self._stores = 0

    def load(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """The header and the object code stored under ``key``; None if there is no sound entry."""
        if not self._ready():
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        entry = _decode(data)
        if entry is None:
            log.warning("damaged entry %s is ignored", path.name)
            return None
        with contextlib.suppress(OSError):  # the time of use, for the eviction; not essential
            os.utime(path)
        log.debug("hit %s", key[:16])
        return entry

    def store(self, key: str, header: dict[str, Any], object_code: bytes) -> bool:
        """Stores an entry, replacing what was there. False where that was not possible."""
        if not self._ready() or not self._writable:
            return False
        name = ""
        try:
            handle, name = tempfile.mkstemp(dir=self.folder, prefix="tmp-")
            with os.fdopen(handle, "wb") as file:
                file.write(_encode(header, object_code))
            os.replace(name, self._path(key))
        except OSError as error:
            if name:
                with contextlib.suppress(OSError):
                    os.unlink(name)
            self._writable = False
            reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
            self._warn(f"compiled kernels are not kept in {self.folder}: {reason}")
            return False
        log.debug("stored %s (%d bytes)", key[:16], len(object_code))
        self._stores += 1
        if self._stores % _STORES_BETWEEN_TRIMS == 1:
            self.trim()
        return True

    def trim(self) -> None:
        """Deletes the entries that were used longest ago until the rest is below the limit."""
        entries, now = [], time.time()
        try:
            files = list(os.scandir(self.folder))
        except OSError:
            return
        for file in files:
            try:
                status = file.stat(follow_symlinks=False)
            except OSError:
                continue  # another process deleted it
            if file.name.startswith("tmp-"):
                if now - status.st_mtime > _STALE_SECONDS:
                    with contextlib.suppress(OSError):
                        os.unlink(file.path)
            elif file.name.endswith(".weft"):
                entries.append((status.st_mtime, status.st_size, file.path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limit:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size

    def clear(self) -> int:
        """Deletes all entries; gives their number."""
        count = 0
        if self._ready():
            for path in self.folder.glob("*.weft"):
                with contextlib.suppress(OSError):
                    path.unlink()
                    count += 1
        return count

    def size(self) -> tuple[int, int]:
        """The number of entries and their bytes."""
        sizes = []
        if self._ready():
            for path in self.folder.glob("*.weft"):
                with contextlib.suppress(OSError):
                    sizes.append(path.stat().st_size)
        return len(sizes), sum(sizes)

    def _path(self, key: str) -> Path:
        if not key.isalnum():
            raise ValueError(f"a cache key is made of letters and digits, not {key!r}")
        return self.folder / f"{key}.weft"

    def _ready(self) -> bool:
        if self._usable is None:
            with self._lock:
                if self._usable is None:
                    self._usable = self._open()
        return self._usable

    def _open(self) -> bool:
        """Makes the folder, and checks that it is the user's own."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.stat(self.folder)
        except OSError as error:
            self._warn(f"compiled kernels are not kept: {error}")
            return False
        if os.name == "nt":  # the user's folder is protected by its access list there
            return True
        if status.st_uid != os.getuid():
            self._warn(
                f"{self.folder} belongs to another user: compiled kernels are not kept there"
            )
            return False
        if stat.S_IMODE(status.st_mode) & 0o022:
            try:
                os.chmod(self.folder, 0o700)
            except OSError:
                self._warn(
                    f"others may write to {self.folder}: compiled kernels are not kept there"
                )
                return False
        return True

    def _warn(self, message: str) -> None:
        warnings.warn(message, CacheWarning, stacklevel=2)


def _encode(header: dict[str, Any], object_code: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    body = _LENGTH.pack(len(text)) + text + object_code
    return MAGIC + hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The parts of an entry; None unless every byte is as it was written."""
    start = len(MAGIC) + 32
    if not data.startswith(MAGIC) or len(data) < start + _LENGTH.size:
        return None
    body = data[start:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : start]:
        return None
    (length,) = _LENGTH.unpack_from(body)
    text, object_code = body[_LENGTH.size : _LENGTH.size + length], body[_LENGTH.size + length :]
    try:
        header = json.loads(text)
    except ValueError:
        return None
    return (header, object_code) if isinstance(header, dict) else None
