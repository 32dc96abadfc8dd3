"""What the disk cache knows of a loop that an earlier process has lowered.

An entry is found by all that lowering reads and that is plain text: the kernel's source, the loop
within it, the kinds of its arguments, options, versions. What else it read (globals, closure cells,
functions that it calls) is noted in the entry as **reads**: where, and what was there. Each is read
again; where one is another, or is something that no text tells (an object, a vector), the loop is
lowered.
"""

from __future__ import annotations

import ast
import hashlib
import logging
import os
import struct
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from weft.errors import SourceUnavailableError
from weft.frontend.hints import hints_of
from weft.frontend.names import is_known_module
from weft.frontend.parameters import annotations_of
from weft.frontend.scope import ABSENT, Guard
from weft.frontend.specs import ConstSpec, Spec, TupleSpec
from weft.frontend.split import Region
from weft.ir.types import SCALARS, MemRefType, ScalarType, Type
from weft.lang.dtypes import DType
from weft.lang.names import canonical
from weft.lang.types import is_template
from weft.options import Options
from weft.runtime.cache import DiskCache, hashed
from weft.runtime.maker import compiler
from weft.source import FunctionSource, read_function
from weft.values import frozen

_LOGS = ("weft.source", "weft.ir")  # of what only lowering has to show
_FORMAT = 2


@frozen
class Summary:
    """What launching asks of a loop's IR. ``types``: of its arguments. ``written``: which of its
    tensors it writes, counted among those. ``brief``: it has few iterations where
    its tensors have few elements, and no loop in one. ``unordered``: the result may depend on the
    order of iterations. ``results``: (name, dtype) of the scalars that it reduces into, whose 0-d
    tensors are the last memref arguments."""

    name: str
    types: tuple[Type, ...]
    written: frozenset[int]
    brief: bool
    unordered: bool
    results: tuple[tuple[str, str], ...]


class _Untold(Exception):
    """Something that no text tells."""


def key_of(
    region: Region, specs: dict[str, Spec], source: FunctionSource, options: Options, places: Places
) -> str | None:
    """The key of a loop; None where only lowering knows what it depends on. ``places`` knows the
    arguments from now on."""
    if region.varying or any(arg.read is not None for arg in region.args):
        return None
    if any(logging.getLogger(name).isEnabledFor(logging.DEBUG) for name in _LOGS):
        return None
    loops = [region.node, *hints_of(region.node)]
    try:
        told = [f"{name}: {_spec(name, spec, places)}" for name, spec in specs.items()]
        told += (f"{name} {_form(form)}" for name, form, _ in region.collections)
        told += map(str, _text(source.function, source))
    except _Untold:
        return None
    return hashed(
        "loop", _FORMAT, compiler(), sys.version, torch.__version__, options.debug, source.asserts,
        region.index,
        *(ast.dump(node, include_attributes=True) for node in loops),
        *(f"{a.name} {a.captured} {a.template} {a.pair}" for a in region.args),
        *region.results, *told,
    )  # fmt: skip


def find(cache: DiskCache, key: str, places: Places) -> tuple[Summary, str, list[Guard]] | None:
    """The summary, the hash of the IR and the guards of a loop; None where it has to be lowered."""
    entry = cache.load(key)
    if entry is None:
        return None
    header = entry[0]
    guards: list[Guard] = []
    try:
        for where, name, item, told in header["reads"]:
            owner = places.owners[where]
            guard = Guard(owner, name, None, item)
            value = guard.read()
            if places.tell(where, name, value) != told:
                return None
            guards.append(Guard(owner, name, value, item, places.key(owner, name, item, value)))
        summary = Summary(
            header["name"], tuple(_type(*told) for told in header["types"]),
            frozenset(header["written"]), header["brief"], header["unordered"],
            tuple((name, dtype) for name, dtype in header["results"]),
        )  # fmt: skip
        return summary, header["digest"], guards
    except (_Untold, KeyError, TypeError, ValueError):
        return None


def remember(
    cache: DiskCache, key: str, places: Places, summary: Summary, digest: str,
    guards: Sequence[Guard],
) -> None:  # fmt: skip
    """Stores what ``find`` is to give, where what was read can be told."""
    try:
        reads = [places.read(guard) for guard in guards]
    except _Untold:
        return
    header = {
        "name": summary.name, "types": [*map(_told, summary.types)],
        "written": sorted(summary.written), "brief": summary.brief,
        "unordered": summary.unordered, "results": [list(pair) for pair in summary.results],
        "digest": digest, "reads": reads,
    }  # fmt: skip
    cache.store(key, header, b"")


class Places:
    """Where values that lowering reads are found: the globals and cells of the kernel's function,
    and those of the functions and modules that are found there or are arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.owners: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self._enter("", function)

    def _enter(self, where: str, value: Any) -> None:
        """What is found in ``value`` has a place from now on."""
        self._put(where, value)
        if isinstance(value, types.FunctionType):
            self._put(f"{where}()", value.__globals__)
            for k, cell in enumerate(value.__closure__ or ()):
                self._put(f"{where}[{k}]", cell)

    def _put(self, where: str, owner: Any) -> None:
        self.owners.setdefault(where, owner)
        self.names.setdefault(id(owner), where)

    def read(self, guard: Guard) -> list[Any]:
        """A read, as the cache keeps it. Raises ``_Untold``."""
        where = self.names.get(id(guard.owner))
        if where is None:
            raise _Untold
        told = self.tell(where, guard.name, guard.value)
        value = guard.value
        if self.key(guard.owner, guard.name, guard.item, value) != guard.where:
            raise _Untold
        return [where, guard.name, guard.item, told]

    def tell(self, where: str, name: str, value: Any) -> list[Any]:
        """What ``value`` is, in words that JSON has. Raises ``_Untold``."""
        if isinstance(value, types.CodeType):
            return ["code"]  # the function that it is of was told
        if isinstance(value, types.ModuleType):
            if not is_known_module(value):
                self._enter(f"{where}.{name}", value)
            return ["module", value.__name__]
        if isinstance(value, types.FunctionType) and canonical(value) is None:
            self._enter(f"{where}.{name}", value)
            if hasattr(value, "__wrapped__"):
                raise _Untold
            try:
                return ["function", *_text(value, read_function(value)), *_hints(value)]
            except SourceUnavailableError:
                raise _Untold from None
        return _plain(value)

    @staticmethod
    def key(owner: Any, name: str, item: bool, value: Any) -> tuple[Any, ...]:
        """``Guard.where``."""
        if isinstance(owner, types.CellType):
            return ("cell", id(owner))
        if isinstance(owner, types.ModuleType):
            return ("global", id(vars(owner)), name)
        return ("global", id(owner), name) if item and value is not ABSENT else ()


def _text(function: Any, source: FunctionSource) -> Iterator[str | int]:
    """What tells a function: its text, the state of the file that it stands in, and how Python
    compiled it. Raises ``_Untold``."""
    try:
        state = os.stat(source.file)
    except OSError:  # a cell of a notebook, the prompt
        raise _Untold from None
    yield from (source.file, state.st_size, state.st_mtime_ns, source.tree.lineno, source.name)
    yield from (function.__qualname__, function.__code__.co_flags)
    yield hashlib.sha256(source.text.encode()).hexdigest()


def _form(form: Any) -> str:
    """What tells a collection from others. Raises ``_Untold`` of a class, which has methods."""
    if form is None:
        return "_"
    if form.kind not in (list, tuple, dict) and not form.shape:
        raise _Untold
    names = [f"{type(name).__name__} {name}" for name in form.names]
    return f"{form.kind.__name__}{form.shape}{names}({', '.join(map(_form, form.items))})"


def _hints(function: types.FunctionType) -> Iterator[str]:
    """What tells the annotations of a function that a loop calls. (Those of the kernel itself are
    in the specs of its arguments.)"""
    for name, hint in annotations_of(function).items():
        yield f"{name}: template" if is_template(hint) else f"{name}: {_plain(hint)}"


def _plain(value: Any) -> list[Any]:
    kind = type(value)
    if value is ABSENT:
        return ["absent"]
    if kind in (int, bool, str, type(None)):
        return [kind.__name__, value]
    if kind is float:
        return ["float", struct.pack("<d", value).hex()]
    if kind in (tuple, list):
        return [kind.__name__, *map(_plain, value)]
    if value is torch.Tensor:
        return ["tensor"]
    if kind is torch.dtype or isinstance(value, DType):
        return [kind.__name__, str(value)]
    name = canonical(value)
    if name is None:
        raise _Untold
    return ["known", name, str(getattr(value, "__module__", ""))]


def _told(type: Type) -> list[Any]:
    if isinstance(type, ScalarType):
        return [type.name]
    assert type.shape is None  # arguments are tensors
    return [type.element.name, type.rank, type.layout]


def _type(name: str, rank: int | None = None, layout: str = "") -> Type:
    return SCALARS[name] if rank is None else MemRefType(SCALARS[name], rank, layout)


def _spec(name: str, spec: Spec, places: Places) -> str:
    if isinstance(spec, ConstSpec):
        return str(places.tell("argument", name, spec.value))
    if isinstance(spec, TupleSpec) and spec.kind is not None:
        raise _Untold  # its class may have methods
    if isinstance(spec, TupleSpec):
        return str([_spec(f"{name}[{k}]", item, places) for k, item in enumerate(spec.items)])
    return repr(spec)
