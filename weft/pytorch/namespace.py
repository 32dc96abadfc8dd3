"""The operators of one namespace, ``torch.ops.<namespace>``."""

from __future__ import annotations

import functools
import re
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch
from torch._ops import _OpNamespace

from weft.errors import KernelNameError
from weft.source import Span

# pyright: reportPrivateUsage=false


class Named(Protocol):
    """What is asked of a kernel."""

    __name__: str

    @property
    def op(self) -> Any: ...
    @property
    def span(self) -> Span: ...


class Namespace:
    """The kernels and the operators of one namespace; the library lives as long as the process."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.kernels: dict[str, weakref.WeakKeyDictionary[Named, None]] = {}
        self.made: dict[Hashable, Any] = {}  # operators that kernels of one text share
        self.lock = threading.RLock()
        self.defining = ""
        found = getattr(torch.ops, namespace)
        if type(found) is _OpNamespace:
            found.__class__ = _Operators

    @functools.cached_property
    def library(self) -> torch.library.Library:
        return torch.library.Library(self.namespace, "FRAGMENT")

    def announce(self, name: str, kernel: Named) -> None:
        """``kernel`` is what ``torch.ops.<namespace>.<name>`` means from now on."""
        self.kernels.setdefault(name, weakref.WeakKeyDictionary())[kernel] = None

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make()`` has given for ``key``."""
        with self.lock:
            if key not in self.made:
                self.made[key] = make()
            return self.made[key]

    def free_name(self, name: str) -> str:
        """``name``, or with a number after it where it is taken."""
        candidate, number = name, 2
        while _is_taken(f"{self.namespace}::{candidate}"):
            candidate, number = f"{name}_{number}", number + 1
        return candidate

    def define(self, schema: str, *tags: torch.Tag) -> None:
        """Makes an operator, which has no implementation yet."""
        self.defining = schema.partition("(")[0]  # torch asks whether it is there
        self.library.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
        self.defining = ""

    def packet_of(self, name: str) -> Any:
        """What ``torch.ops.<namespace>.<name>`` is where there is no operator of that name: the
        operator of the kernel ``name`` that was defined last. None where there is none.

        Operators whose names have a hash are made here, if a kernel of today has it; otherwise
        ``KernelNameError`` is raised.
        """
        if self.kernels.get(name):
            return list(self.kernels[name])[-1].op.overloadpacket
        match = re.fullmatch(r"(\w+)_[0-9a-f]{8}(_\d+)?(_backward|_jvp)*", name)
        if match is None or name == self.defining:
            return None
        kernels = list(self.kernels.get(match[1], ()))
        for kernel in kernels:
            first = kernel.op._schema.name.rpartition(":")[2]
            if name == first or name.startswith(f"{first}_"):
                return None  # it is there now
        if kernels:
            raise KernelNameError(
                f"no kernel `{match[1]}` of this process has the operator "
                f"`{self.namespace}::{name}`", kernels[-1].span,
                help="the hash in the name is that of the kernel's text, of what it calls, of the "
                "kinds of its arguments and of weft. If one has changed, export the graph again; "
                "otherwise call the kernel once as the graph does, under torch.compile, say",
            )  # fmt: skip
        return None


class _Operators(_OpNamespace):
    """Makes the operator of a kernel when it is asked for: by a graph that was exported, say."""

    __module__ = _OpNamespace.__module__  # a part of the names of operators in saved graphs

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
        found = namespace_of(self.name).packet_of(name)
        return super().__getattr__(name) if found is None else found


def _is_taken(qualified: str) -> bool:
    try:
        torch._C._dispatch_find_schema_or_throw(qualified, "")
    except RuntimeError:
        return False
    return True


@functools.cache
def namespace_of(name: str) -> Namespace:
    return Namespace(name)
