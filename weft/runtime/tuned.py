"""What tuning has found: which choice is the fastest for a text, on a machine, at a class of sizes.

Records are kept in the disk cache and in files that ship with a model. Nothing is measured here. A
record is used where text, machine and size class are its own; what else it asks for (that the steps
of a schedule are legal, that a config is still among those of its kernel) its reader tests, and
takes the default where it does not hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import logging
import os
import tempfile
import threading
import weakref
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch

from weft.errors import WeftError
from weft.options import Options
from weft.runtime.cache import disk, from_json, hashed, to_json
from weft.runtime.maker import processor
from weft.values import frozen

FORMAT, VERSION = "weft-tuned", 1
Kind = Literal["config", "schedule"]
DEFAULT = "default"  # the schedule of a record that says that no other was faster
log = logging.getLogger("weft.tune")


class TunedFileError(WeftError, ValueError):
    """A file that has no records of tuning."""


@frozen
class Record:
    """``name`` is for people, ``digest`` is a hash of the text that ``choice`` was measured for.
    ``milliseconds``: of the choice and, before it, of the default."""

    kind: str
    name: str
    digest: str
    machine: str
    sizes: str
    choice: str
    default_milliseconds: float
    milliseconds: float

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.kind, self.digest, self.machine, self.sizes


class Chooser(Protocol):
    """What has chosen by records, and has to choose again when there are others."""

    def forget(self) -> None: ...


class Records:
    """The records of this process: of files that were read, and of the disk cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, list[Record]] = {}
        self._choosers: weakref.WeakSet[Chooser] = weakref.WeakSet()
        self._absent: set[tuple[Any, ...]] = set()  # of what the cache has no record

    def announce(self, chooser: Chooser) -> None:
        """``chooser`` is told when there are new records."""
        with self._lock:
            self._choosers.add(chooser)

    def find(
        self, options: Options, kind: Kind, name: str, digest: str, machine: str, sizes: str
    ) -> Record | None:
        """The record of a file that was read, of the last one first; else that of the cache."""
        key = (kind, digest, machine, sizes)
        for path, records in reversed(self._files.items()):
            found = next((r for r in records if r.key == key), None)
            if found is not None:
                return found
            of_name = [r for r in records if (r.kind, r.name) == (kind, name)]
            if of_name and all(r.digest != digest for r in of_name):
                log.debug("%s: `%s` was tuned with another text, or other dtypes and layouts: the "
                          "default", path, name)  # fmt: skip
            elif of_name and all(r.machine != machine for r in of_name):
                log.debug("%s: `%s` was tuned on another machine (%s): the default", path, name,
                          of_name[0].machine)  # fmt: skip
        # One entry says that there are any, so that a loop that was never tuned looks once.
        cache, place = disk(options), (options.cache_dir, *key[:3])
        if cache is None or place in self._absent:
            return None
        if cache.load(_any(*key[:3])) is None:
            self._absent.add(place)
            return None
        entry = cache.load(hashed("tuned", VERSION, *key))
        try:
            record = from_json(Record, entry[0]) if entry is not None else None
        except ValueError:
            return None
        return record if record is not None and record.key == key else None

    def none(self, options: Options, digest: str, device: torch.device) -> bool:
        """Whether it is known that no schedule was tuned for a loop, for any sizes."""
        own = "schedule", digest, machine_of(device)
        if not options.tuned:
            return True
        if any(r.key[:3] == own for records in [*self._files.values()] for r in records):
            return False
        return disk(options) is None or (options.cache_dir, *own) in self._absent

    def schedule(
        self, options: Options, name: str, digest: str, tensors: Sequence[torch.Tensor]
    ) -> str | None:
        """The text of the schedule that was tuned for a loop and tensors of these sizes."""
        machine = machine_of(tensors[0].device)
        place = options.cache_dir, "schedule", digest, machine
        if not options.tuned or (not self._files and place in self._absent):
            return None
        found = self.find(options, "schedule", name, digest, machine, class_of(tensors))
        return None if found is None or found.choice == DEFAULT else found.choice

    def keep(self, options: Options, records: Iterable[Record]) -> None:
        """Puts records into the disk cache."""
        cache = disk(options)
        for record in records if cache is not None else ():
            assert cache is not None
            cache.store(hashed("tuned", VERSION, *record.key), to_json(record), b"")
            cache.store(_any(record.kind, record.digest, record.machine), {}, b"")
        self._absent.clear()

    def read(self, path: Path) -> list[Record]:
        """Uses the records of a file from now on. Raises ``TunedFileError`` and ``OSError``."""
        found = read(path)
        with self._lock:
            self._files.pop(path, None)
            self._files[path] = found
        self.tell()
        return found

    def tell(self) -> None:
        """What has chosen before chooses again."""
        with self._lock:
            choosers = [*self._choosers]
        for chooser in choosers:
            chooser.forget()


def _any(kind: str, digest: str, machine: str) -> str:
    return hashed("tuned", VERSION, kind, digest, machine)


records = Records()


# -- files


def read(path: Path) -> list[Record]:
    """The records of a file. Raises ``TunedFileError`` and ``OSError``."""
    return _parsed(path, path.read_text(encoding="utf-8"))


def write(path: Path, records: Sequence[Record]) -> None:
    """Adds records to a file, in place of what it has for the same text, machine and sizes. Other
    processes may do so at the same time. Raises ``TunedFileError`` and ``OSError``."""
    with _locked(path) as text:
        before = _parsed(path, text)
        merged = {r.key: r for r in [*before, *records]}
        ordered = sorted(merged.values(), key=lambda r: (r.kind, r.name, r.machine, r.sizes))
        data = {"format": FORMAT, "version": VERSION, "records": [to_json(r) for r in ordered]}
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}-", delete=False
        ) as file:
            file.write(json.dumps(data, indent=1) + "\n")
        os.chmod(file.name, os.stat(path).st_mode & 0o777)
        os.replace(file.name, path)


@contextlib.contextmanager
def _locked(path: Path) -> Generator[str]:
    """The text of a file, which is made if need be, while no other process writes it."""
    while True:
        with open(path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    file.seek(0)
                    yield file.read()
                    return
        # Another process has put its file in the place of the one that was waited for.


def _parsed(path: Path, text: str) -> list[Record]:
    def refused(why: str) -> TunedFileError:
        return TunedFileError(
            f"{path} has no records of tuning: {why}\n"
            "help: weft.tuned(path, table) writes such a file, with what weft.tune has given"
        )

    if not text.strip():  # another process has just made it
        return []
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise refused(str(error)) from None
    if not isinstance(data, dict) or cast("dict[str, Any]", data).get("format") != FORMAT:
        raise refused(f'its "format" is not "{FORMAT}"')
    content = cast("dict[str, Any]", data)
    if content.get("version") != VERSION:
        raise refused(f"it is of version {content.get('version')!r}, and this weft reads {VERSION}")
    try:
        return [from_json(Record, entry) for entry in content["records"]]
    except (ValueError, KeyError, TypeError):
        names = ", ".join(field.name for field in dataclasses.fields(Record))
        raise refused(f"each record has {names}") from None


# -- where and at which sizes


def size_class(n: int) -> int:
    """The class of a size or number: the next power of two, with the sign; 0 for 0."""
    power = 1 << (abs(n) - 1).bit_length() if n else 0
    return power if n >= 0 else -power


def class_of(tensors: Sequence[torch.Tensor]) -> str:
    """The size class of tensors, in words."""
    return ", ".join(shape_class(t) for t in tensors)


def shape_class(tensor: torch.Tensor) -> str:
    return " x ".join(str(size_class(n)) for n in tensor.size()) or "0-d"


def machine_of(device: torch.device) -> str:
    """What a record is for: a GPU by its name and architecture, a CPU by its name and threads."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)}, sm_{major}{minor}"
    return f"{_cpu()}, {torch.get_num_threads()} threads"


@functools.cache
def _cpu() -> str:
    parts = (line.partition(":") for line in processor().splitlines())
    named = next((told.strip() for what, _, told in parts if what.strip() == "model name"), "")
    return named or hashed(processor())[:8]
