"""The disk cache of compiled kernels.

One file per entry: a magic line, the SHA-256 of the rest, the key, the length of a JSON header, the
header, the object code. Entries are written to a temporary file and renamed, so a reader sees a
whole entry or none; an entry that is damaged, or stored under another key, is not used.

Object code from here is run, so an entry is used only if the user owns it and nobody else can write
to it, and the same holds of the folder (`docs/security.md`). Every operation opens the folder,
tests what it opened, and reaches entries through it: links are not followed, and what others rename
in between changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import logging
import os
import stat
import struct
import threading
import time
import types
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from weft.options import Options

T = TypeVar("T")
log = logging.getLogger("weft.cache")

MAGIC = b"weft-cache-2\n"
_LENGTH = struct.Struct("<Q")
_TRIMS = 64  # while as much is stored as the cache may hold
_STALE_SECONDS = 3600  # a temporary file this old was left by a writer that died


class CacheWarning(UserWarning):
    """The disk cache cannot be used; kernels are compiled anew in each process."""


@functools.cache
def _cache_in(folder: Path | None, limit: int) -> DiskCache:
    return DiskCache(folder, limit)


def disk(options: Options) -> DiskCache | None:
    """The cache that the options say; None where they say that there is none."""
    return _cache_in(options.cache_dir, options.cache_bytes) if options.cache else None


def hashed(*parts: object) -> str:
    """The key of an entry that depends on all of ``parts``."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


class DiskCache:
    """Entries by key (hex digits) in ``folder``, at most ``limit`` bytes of them.

    A folder that others may write to, or that belongs to another user, is left as it is: entries
    are kept in a private folder below it. Nothing here fails loudly: a cache that cannot be used is
    a warning, once, and a miss.
    """

    def __init__(self, folder: Path | None = None, limit: int = 512 << 20) -> None:
        self.folder = folder or _users_folder()
        self.limit = limit
        self._lock = threading.Lock()
        self._usable: bool | None = None
        self._writable = True

    def load(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """The header and the object code stored under ``key``; None if there is no sound entry."""
        name = _name(key)
        with self._opened() as folder:
            if folder is None:
                return None
            try:
                data = _read(name, folder, self.limit)
            except FileNotFoundError:
                return None
            except OSError as error:
                log.warning("entry %s is ignored: %s", name, error.strerror)
                return None
            entry = _decode(key, data)
            if entry is None:
                log.warning("damaged entry %s is ignored", name)
                return None
            with contextlib.suppress(OSError):  # the time of use, for the eviction; not essential
                os.utime(name, dir_fd=folder, follow_symlinks=False)
        log.debug("hit %s", key[:16])
        return entry

    def store(self, key: str, header: dict[str, Any], object_code: bytes) -> bool:
        """Stores an entry, replacing what was there. False where that was not possible."""
        name, temporary = _name(key), f"tmp-{os.getpid()}-{os.urandom(8).hex()}"
        entry = _encode(key, header, object_code)
        with self._opened() as folder:
            if folder is None or not self._writable:
                return False
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(entry)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                self._writable = False
                reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
                self._warn(f"compiled kernels are not kept in {self.folder}: {reason}")
                return False
        log.debug("stored %s (%d bytes)", key[:16], len(object_code))
        # Looking at a full cache takes a second. Whose turn it is follows from what is stored, so
        # that nothing has to be remembered from one process to the next.
        (drawn,) = _LENGTH.unpack_from(entry, len(MAGIC))
        if drawn * self.limit < len(entry) * _TRIMS << 64:
            self.trim()
        return True

    def trim(self, limit: int | None = None, unused: float | None = None) -> int:
        """Deletes the entries that were used longest ago until the rest is below ``limit`` bytes
        (the cache's own, if it is not given), and those that nobody has used for ``unused``
        seconds; gives their number."""
        limit, deleted = self.limit if limit is None else limit, 0
        with self._opened() as folder:
            if folder is None:
                return 0
            now, entries = time.time(), list[tuple[str, os.stat_result]]()
            for name, status in _files(folder):
                if name.endswith(".weft"):
                    entries.append((name, status))
                elif name.startswith("tmp-") and now - status.st_mtime > _STALE_SECONDS:
                    _delete(name, folder)
            total = sum(status.st_size for _, status in entries)
            for name, status in sorted(entries, key=lambda entry: entry[1].st_mtime):
                stale = unused is not None and now - status.st_mtime > unused
                if total <= limit and not stale:
                    break
                deleted += _delete(name, folder)
                total -= status.st_size
        return deleted

    def entries(self) -> list[tuple[str, int, float]]:
        """The key, the bytes and the time of use (seconds of the epoch) of each entry, the one
        that was used last first."""
        with self._opened() as folder:
            found = [] if folder is None else _files(folder, ".weft")
        by_use = sorted(found, key=lambda entry: -entry[1].st_mtime)
        return [(name.removesuffix(".weft"), s.st_size, s.st_mtime) for name, s in by_use]

    def header(self, key: str) -> dict[str, Any] | None:
        """The header of an entry, which does not count as a use; None if it is not sound."""
        with self._opened() as folder:
            try:
                data = None if folder is None else _read(_name(key), folder, self.limit)
            except OSError:  # deleted by another process, or not the user's own
                data = None
        entry = None if data is None else _decode(key, data)
        return None if entry is None else entry[0]

    @property
    def usable(self) -> bool:
        """Whether entries can be kept and found here."""
        with self._opened() as folder:
            return folder is not None and self._writable

    def clear(self) -> int:
        """Deletes all entries; gives their number."""
        with self._opened() as folder:
            if folder is None:
                return 0
            return sum(_delete(name, folder) for name, _ in _files(folder, ".weft"))

    def size(self) -> tuple[int, int]:
        """The number of entries and their bytes."""
        sizes = [size for _, size, _ in self.entries()]
        return len(sizes), sum(sizes)

    @contextlib.contextmanager
    def _opened(self) -> Generator[int | None]:
        """The folder's descriptor; None where it cannot be used."""
        if self._usable is None:
            with self._lock:
                if self._usable is None:
                    self._usable = self._find()
        try:
            folder = _open_private(self.folder) if self._usable else None
        except OSError as error:
            self._usable, folder = False, None
            self._warn(f"compiled kernels are no longer kept in {self.folder}: {error.strerror}")
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    def _find(self) -> bool:
        """Makes the folder, or a private one below it where others may write to it."""
        if os.open not in os.supports_dir_fd:
            self._warn("compiled kernels are not kept: not on this operating system")
            return False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                os.close(_open_private(self.folder))
            except PermissionError as refused:
                shared, self.folder = self.folder, self.folder / f"weft-{os.getuid()}"
                self.folder.mkdir(mode=0o700, exist_ok=True)
                os.close(_open_private(self.folder))
                self._warn(
                    f"{shared} {refused.strerror}: compiled kernels are kept in {self.folder}, "
                    "which is private"
                )
        except OSError as error:
            self._warn(f"compiled kernels are not kept: {self.folder}: {error.strerror}")
            return False
        return True

    def _warn(self, message: str) -> None:
        warnings.warn(message, CacheWarning, stacklevel=2)


def _users_folder() -> Path:
    import platformdirs  # not where a folder is given

    return platformdirs.user_cache_path("weft")


def _open_private(folder: Path) -> int:
    """A descriptor of ``folder``. Raises ``PermissionError`` unless it is the user's alone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _insist_on_own(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _insist_on_own(descriptor: int) -> os.stat_result:
    status = os.fstat(descriptor)
    if status.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise PermissionError(errno.EPERM, "may be written to by other users")
    return status


def _read(name: str, folder: int, limit: int) -> bytes:
    """The contents of a regular file of the user's own, of at most ``limit`` bytes."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # no waiting for a pipe
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        status = _insist_on_own(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        if status.st_size > limit:
            raise OSError(errno.EFBIG, "is larger than the whole cache may be")
        return file.read(status.st_size)


def _files(folder: int, suffix: str = "") -> list[tuple[str, os.stat_result]]:
    """Names and states of the files in ``folder`` whose names end so."""
    found: list[tuple[str, os.stat_result]] = []
    with os.scandir(folder) as files:
        for file in files:
            if file.name.endswith(suffix):
                with contextlib.suppress(OSError):  # another process deleted it
                    found.append((file.name, file.stat(follow_symlinks=False)))
    return found


def _delete(name: str, folder: int) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:  # another process deleted it
        return False
    return True


def _name(key: str) -> str:
    if not key.isalnum():
        raise ValueError(f"a cache key is made of letters and digits, not {key!r}")
    return f"{key}.weft"


def _encode(key: str, header: dict[str, Any], object_code: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    body = key.encode() + b"\n" + _LENGTH.pack(len(text)) + text + object_code
    return MAGIC + hashlib.sha256(body).digest() + body


def _decode(key: str, data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The parts of the entry stored under ``key``; None unless every byte is as it was written."""
    end = len(MAGIC) + 32
    digest, body, own = data[len(MAGIC) : end], data[end:], key.encode() + b"\n"
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
        return None
    if not body.startswith(own) or len(body) < len(own) + _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(body, len(own))
    rest = body[len(own) + _LENGTH.size :]
    try:
        header = json.loads(rest[:length])
    except ValueError:
        return None
    return (header, rest[length:]) if isinstance(header, dict) else None


# --- dataclasses as JSON has them, and back, by the names and the types of their fields -----------
def to_json(value: Any) -> Any:
    """``value``, made of dataclasses, tuples, lists and what JSON has, for ``json.dumps``."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [*map(to_json, value)] if isinstance(value, tuple | list) else value


def from_json(kind: type[T], data: Any) -> T:
    """What was encoded. Raises ``ValueError`` where ``data`` is not of this form."""
    return cast(T, _from_json(kind, data))


def _from_json(kind: Any, data: Any) -> Any:
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        if not isinstance(data, dict) or cast("dict[str, Any]", data).keys() != hints.keys():
            raise ValueError(f"no {kind}")
        return cast(Any, kind)(**{name: _from_json(of, data[name]) for name, of in hints.items()})
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for one in of:
            with contextlib.suppress(ValueError):
                return _from_json(one, data)
        raise ValueError(f"{data!r} is no {kind}")
    if origin in (tuple, list):
        if not isinstance(data, list):
            raise ValueError(f"no {kind}")
        items = cast("list[Any]", data)
        kinds = [of[0]] * len(items) if origin is list or of[1:] == (...,) else list(of)
        if len(kinds) != len(items):
            raise ValueError(f"not as many as {kind}")
        return origin(_from_json(k, item) for k, item in zip(kinds, items, strict=True))
    if type(data) is not kind:
        raise ValueError(f"{data!r} is no {kind}")
    return data


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
