"""Which parameters of a kernel loops use for contractions alone: factors of what is added up."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# What is asked of torch's modes has no public name.
# pyright: reportPrivateUsage=false
from weft.errors import KernelValueError
from weft.frontend.lower import lower
from weft.ir.core import Function, Op, Value, walk
from weft.ir.views import For, If, is_constant, memory
from weft.pytorch.batches import storage
from weft.pytorch.fake import fake_launchers, loose_spec
from weft.pytorch.unsized import Size, without_sizes
from weft.runtime.inspection import visited
from weft.runtime.launch import KernelLike, Launcher
from weft.values import frozen, remembered

_CASTS = ("arith.extf", "arith.truncf")
# What torch says where a tensor without data is asked for it.
_ASKS_FOR_DATA = re.compile("meta tensor|register_meta", re.IGNORECASE)
# Operators that ask of a tensor what it is like, and do not read it.
_LIKE = ("_like", "new_empty", "new_zeros", "new_ones", "new_full")


def _made(kind: Any) -> Any:
    match kind:
        case "tensor", dtype, shape:
            return torch.empty(shape, dtype=dtype, device="meta")
        case "unsized", dtype, rank:
            return torch.empty((1,) * rank, dtype=dtype, device="meta")
        case ("number",):
            return Size()
        case "list", *items:
            return tuple(map(_made, items))
        case _:
            return kind[1]


class _Reads(TorchDispatchMode):
    """Notes the memory that PyTorch's own operators read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not func.is_view and not any(name.endswith(like) for like in _LIKE):
            self.read |= {storage(v) for v in args if isinstance(v, torch.Tensor)}
        return out


@frozen
class Launches:
    """What a call launches: ``values`` of the arguments of each launcher. ``names``: the parameters
    by their memory; ``read``: what PyTorch's operators read of these."""

    launched: list[tuple[Launcher, tuple[Any, ...]]]
    names: dict[int, str]
    read: set[str]


def launches(kernel: KernelLike, kinds: Any, sizes: bool = True) -> Launches:
    """Carries the host part out on tensors without data, and raises what that raises: a call would,
    too. Raises ``KernelValueError`` where the host part looks at elements. Without ``sizes`` the
    ``kinds`` have none."""
    args, kwargs = [_made(k) for k in kinds[0]], {n: _made(k) for n, k in kinds[1]}
    bound = kernel.bind(tuple(args), kwargs).arguments
    names = {storage(v): n for n, v in bound.items() if isinstance(v, torch.Tensor)}
    reads, host = _Reads(), kernel.parts.host
    if not sizes:
        host = without_sizes(host)
    try:
        with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False), reads:
            launched = visited(
                host, kernel.launchers, fake_launchers(kernel), args, kwargs,
                lambda launcher, values: (launcher, values),
            )  # fmt: skip
    except RuntimeError as error:
        if not _ASKS_FOR_DATA.search(str(error)):
            raise  # as a call would
        raise KernelValueError(
            "autocast=True follows what the loops do with each argument, and the host part looks "
            f"at elements: {error}", kernel.span,
            help="name the parameters that are to be cast: autocast=('x', 'w')",
        ) from None  # fmt: skip
    read = {names[memory] for memory in reads.read if memory in names}
    return Launches(launched, names, read)


def contracted(found: Launches, inside: bool = False) -> tuple[str, ...]:
    """The parameters that are used for contractions alone, ``inside`` of iterations: whose sums
    are none of all iterations. Raises what lowering a loop raises."""
    uses: dict[str, bool] = {}
    for launcher, values in found.launched:
        pairs = list(zip(launcher.region.args, values, strict=True))
        specs = {arg.name: loose_spec(arg, value) for arg, value in pairs}
        function = lower(launcher.region, specs, launcher.source).function
        arrays = {a.name: a for a in function.args}
        for arg, value in pairs:
            if isinstance(value, torch.Tensor) and arg.name in arrays:
                name = found.names.get(storage(value), "")
                uses[name] = uses.get(name, True) and only_contracted(
                    function, arrays[arg.name], inside
                )
    return tuple(n for n, alone in uses.items() if n and alone and n not in found.read)


def only_contracted(function: Function, array: Value, inside: bool) -> bool:
    """Whether all that is loaded of ``array`` is multiplied by what is loaded of another one, and
    the product added to a sum that a loop carries, ``inside`` of an iteration: which is rounded
    once."""
    uses = _Uses(function, inside)
    found = uses.users.get(array, ())
    loads = [op for op in found if op.name == "memref.load"]
    others = [op for op in found if op.name not in ("memref.load", "memref.dim")]
    return bool(loads) and not others and all(uses.multiplied(op.result, array) for op in loads)


class _Uses:
    """What is done with the values of a function."""

    def __init__(self, function: Function, inside: bool) -> None:
        self.inside = inside
        self.users: dict[Value, list[Op]] = {}
        self.branches: dict[Op, Op] = {}  # by what ends their regions
        for op in walk(function.body):
            for operand in op.operands:
                self.users.setdefault(operand, []).append(op)
            if op.name == "scf.if":
                self.branches |= {region.terminator: op for region in op.regions}

    @remembered
    def multiplied(self, value: Value, array: Value) -> bool:
        """Whether ``value``, loaded of ``array``, is a factor of sums' terms alone."""
        for op in self.users.get(value, ()):
            if op.name in _CASTS:
                if not self.multiplied(op.result, array):
                    return False
                continue
            if op.name != "arith.mulf":
                return False
            factor = op.right if op.left is value else op.left
            if _loaded_of(factor) in (None, array) or not self.summed(op.result):
                return False
        return True

    @remembered
    def summed(self, value: Value, added: bool = False) -> bool:
        """Whether ``value`` is added to what a loop carries, and nothing else is done with it."""
        found = self.users.get(value, ())
        return bool(found) and all(self._adds(op, value, added) for op in found)

    def _adds(self, op: Op, value: Value, added: bool) -> bool:
        match op.name:
            case "arith.addf":
                other = op.right if op.left is value else op.left
                return self.summed(op.result, added or _carried(other))
            case "scf.yield" if op in self.branches:
                result = self.branches[op].results[op.operands.index(value)]
                return added and self.summed(result, True)
            case "scf.yield":
                return added
            case "scf.reduce":
                return added and not self.inside
            case "memref.atomic_rmw":
                return op.attrs["kind"] == "addf" and not self.inside
            case _:
                return False


def _carried(value: Value) -> bool:
    """Whether it is what a loop carries, or begins at."""
    asked, open_ = set[Value](), [value]
    while open_:
        value = open_.pop()
        op = value.op
        if op is None or is_constant(value, 0.0):  # of what a reduction begins at
            return True
        if value in asked:
            continue
        asked.add(value)
        match op.name:
            case "arith.addf":
                open_ += op.operands
            case "scf.if":
                open_ += If(op).arms(op.results.index(value))
            case "scf.for":
                open_.append(For(op).inits[op.results.index(value)])
            case _:
                pass
    return False


def _loaded_of(value: Value) -> Value | None:
    """The array that a number was loaded of."""
    op = value.op
    while op is not None and op.name in _CASTS:
        op = op.operand.op
    return memory(op)[0] if op is not None and op.name == "memref.load" else None
