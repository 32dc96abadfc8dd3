"""FLOPs of operators, for ``torch.utils.flop_counter.FlopCounterMode``."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode, flop_registry

# What asks for the modes has no public name.
# pyright: reportPrivateUsage=false
from weft.errors import warn
from weft.pytorch.namespace import KINDS, Family
from weft.pytorch.uncounted import CountWarning

if TYPE_CHECKING:
    from weft.pytorch.cost import Bounds, Counter

_MOST = 128  # sets of sizes of which an operator's count is remembered


class _Packet:
    """What a table finds for an operator without holding it."""

    def __init__(self, packet: Any) -> None:
        self.hash = hash(packet)
        self.packet = weakref.ref(packet, lambda _: flop_registry.pop(self, None))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return other is self or (other is not None and other is self.packet())


def register(
    family: Family,
    overload: Any,
    span: Any,
    count: Callable[[Counter, Sequence[Any]], object],
) -> None:
    """Has ``FlopCounterMode`` count the operator: ``count(counter, inputs)`` carries it out with
    the counter's loops."""
    known: dict[Hashable, Bounds | Exception] = {}
    name, mutable = overload._schema.name, overload._schema.is_mutable

    def flops(*passed: Any) -> int:
        key = _key(passed)
        found = None if key is None else known.get(key)
        if found is None:
            from weft.pytorch import cost  # only where somebody counts

            found = cost.flops(count, passed, mutable)
            if key is not None and len(known) < _MOST:
                known[key] = found
        if isinstance(found, Exception):
            warn(
                CountWarning, f"the FLOPs of `{name}` are not counted: {found}", span,
                "FlopCounterMode counts operators whose host part looks at shapes and numbers "
                "only: kernel.cost(...) carries the call out on copies",
            )  # fmt: skip
            return 0
        if not found.exact:
            warn(
                CountWarning, f"data or conditions decide how many FLOPs `{name}` has: {found} are "
                "counted", span,
                "kernel.cost(...) says of which loops",
            )  # fmt: skip
        return found.value

    own = name.rpartition(":")[2]
    held = family.held(family.complete(own, _of_samples(family, own) or flops))

    def formula(*passed: Any, out_val: Any = None, **_: Any) -> int:
        return held(*passed)

    key = _Packet(overload.overloadpacket)
    flop_registry[key] = formula
    for mode in _get_current_dispatch_mode_stack():  # which have copies of the table
        counter = getattr(mode, "counter", None)
        if isinstance(counter, FlopCounterMode):
            counter.flop_registry[key] = formula


_VMAP = re.compile(r"(\w+_[0-9a-f]{8}(?:_\d+)?(?:_vmap)*)_vmap((?:_backward|_jvp)*)")


def _of_samples(family: Family, name: str) -> Callable[..., int] | None:
    """The count of an operator for every sample: as many times that of one."""
    match = _VMAP.fullmatch(name)
    if match is None:
        return None

    def flops(*passed: Any) -> int:
        packets = family.namespace.packets
        kinds = KINDS.findall(match[2])
        family.derive(match[1], kinds)
        count = len(packets[match[1]].default._schema.arguments)
        size, have, _ = passed[count : count + 3]
        if not size:
            return 0
        batches = list[bool]()  # which of the tensors so far are some

        def sample(value: Any, which: Iterator[bool]) -> Any:
            if isinstance(value, list | tuple):
                return [sample(v, which) for v in value]
            if not isinstance(value, torch.Tensor):
                return value
            batches.append(next(which))
            return value.select(0, 0) if batches[-1] else value

        own = (k in have for k in itertools.count())
        one = [sample(v, own) for v in passed[:count]]
        rest = iter(passed[count + 3 :])
        for kind in kinds:  # what a derivative takes: tangents are as what they are those of
            along, numbers = next(rest), next(rest)
            backward = kind == "backward"
            every = itertools.repeat(True) if backward else iter([batches[k] for k in numbers])
            one += [sample(along, every), numbers]
            one += [sample(v, every) for v in itertools.islice(rest, 3 * backward)]
        return size * flop_registry[packets[match[1] + match[2]]](*one)

    return flops


def _key(value: Any) -> Hashable:
    """What the count of a call depends on; None where sizes are symbolic."""
    if isinstance(value, torch.Tensor):
        sizes = (*value.size(), *value.stride())
        plain = all(type(n) is int for n in sizes)
        return (value.size(), value.stride(), value.dtype) if plain else None
    if isinstance(value, list | tuple):
        keys = tuple(map(_key, value))
        return None if None in keys else keys
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    return (type(value), value)
