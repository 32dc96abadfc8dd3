"""Autocast policies: which arguments of a call are cast where ``torch.autocast`` is on.

A policy is a dtype (all arguments of floats go to it), names of parameters (these go to autocast's
dtype), or True: parameters that loops use for contractions alone do. Tensors of float64 and what
the kernel writes to stay as they are. A kernel that says nothing and is one loop with new tensors
for it does as PyTorch's own products of matrices do: what its iterations use for contractions alone
is cast. Everything stays as it is with ``autocast=False``.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from weft.errors import KernelTypeError, WeftError
from weft.lang.dtypes import DType
from weft.pytorch.annotations import is_checked
from weft.runtime.launch import KernelLike
from weft.source import subtree

log = logging.getLogger("weft.specialize")
_DEVICES = ("cpu", "cuda", "mps")
_MOST = 256  # kinds of arguments, numbers among them, of which is remembered what is cast
# What a host part may call for sizes to decide on nothing, and may not write.
_MAKERS = {"empty", "zeros", "ones", "full", "size", "dim", "numel", "empty_like", "zeros_like",
           "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full"}  # fmt: skip
_VALUES = (torch.Tensor, bool, int, float, str, type(None), torch.SymInt, torch.SymFloat)
_CHOOSING = (ast.IfExp, ast.BoolOp, ast.Compare, ast.Lambda, ast.comprehension, ast.NamedExpr)


def policy_of(kernel: KernelLike, asked: Any) -> Policy | None:
    """The policy ``asked`` of a kernel, or its own if that is None; None where nothing is cast."""
    if asked is False or (asked is None and not _may_contract(kernel)):
        return None
    return Policy(kernel, asked)


def _may_contract(kernel: KernelLike) -> bool:
    """Whether its only loop may add products up, its host part makes tensors and nothing else,
    and neither a tensor of the caller's is written nor an annotation says what is taken."""
    loops = kernel.parts.regions
    return (
        len(loops) == 1
        and not kernel.mutated
        and not any(map(is_checked, kernel.parts.parameters))
        and any(isinstance(n, ast.Mult) for n in subtree(loops[0].node))
        and _only_makes(kernel)
    )


def _only_makes(kernel: KernelLike) -> bool:
    """Whether the host part names sizes and makes tensors of them, and does nothing else."""
    loops = [region.node for region in kernel.parts.regions]
    for statement in kernel.source.tree.body:
        if statement in loops or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            continue
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return):
            return False
        for node in subtree(statement):
            if isinstance(node, ast.Call) and _called(node) not in _MAKERS:
                return False
            if isinstance(node, _CHOOSING):
                return False
    return True


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


class Policy:
    """The policy ``asked`` of a kernel, None for its own. Raises ``KernelTypeError`` where that is
    none."""

    def __init__(self, kernel: KernelLike, asked: Any) -> None:
        self.kernel = kernel
        names = [p.name for p in kernel.parts.parameters]
        self.dtype = asked.torch if isinstance(asked, DType) else asked
        self.names: tuple[str, ...] | None = None
        if isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point:
            self.names = tuple(names)
        elif isinstance(asked, tuple | list) and {*asked} <= {*names}:
            self.dtype, self.names = None, tuple(asked)
        elif asked is True or asked is None:
            self.dtype = None
        else:
            raise KernelTypeError(
                f"autocast={asked!r} is no policy of `{kernel.__name__}`", kernel.span,
                help="write autocast=True, a dtype, or names of parameters: "
                f"autocast=({', '.join(map(repr, names))},)",
            )  # fmt: skip
        self.own = asked is None
        # Where the host part only makes tensors, sizes decide on nothing.
        self.any_size = self.names is None and _only_makes(kernel)
        self.parameters = tuple(n for n in names if n not in kernel.mutated)
        self.order = tuple(names)
        self.known: dict[Hashable, tuple[str, ...]] = {}

    def cast(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments of a call, cast where autocast is on. Dynamo traces this."""
        if not any(map(torch.is_autocast_enabled, _DEVICES)):
            return args, kwargs
        if self.own and not all(isinstance(v, _VALUES) for v in (*args, *kwargs.values())):
            return args, kwargs
        names = self._names(args, kwargs)
        given = []
        for k, value in enumerate(args):
            name = self.order[k] if k < len(self.order) else ""
            given.append(self._cast(value) if name in names and name in self.parameters else value)
        named = {}
        for name, value in kwargs.items():
            named[name] = self._cast(value) if name in names and name in self.parameters else value
        return tuple(given), named

    def casts(self, args: Sequence[Any]) -> bool:
        """Whether some of these arguments, or others of their kinds, are cast where autocast is
        on."""
        return bool(self._names(tuple(args), {}))

    def _names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        if self.names is not None:
            return self.names
        sizes = not self.any_size
        kinds = (tuple(_kind(v, sizes) for v in args),
                 tuple((n, _kind(v, sizes)) for n, v in kwargs.items()))  # fmt: skip
        return self.derived(kinds)

    def _cast(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            kind = value.device.type
            if (
                kind not in _DEVICES or not torch.is_autocast_enabled(kind)
                or not value.is_floating_point() or value.dtype is torch.float64
            ):  # fmt: skip
                return value
            return value.to(self.dtype or torch.get_autocast_dtype(kind))
        if isinstance(value, list | tuple):
            return type(value)([self._cast(v) for v in value])
        return value

    def derived(self, kinds: Any) -> tuple[str, ...]:
        """The parameters that loops use for contractions alone, where arguments are of these
        ``kinds``. A constant to Dynamo."""
        found = self.known.get(kinds)
        if found is None:
            if len(self.known) >= _MOST:
                self.known.clear()
            found = self.known[kinds] = self._unasked(kinds) if self.own else self._asked(kinds)
        return found

    def _asked(self, kinds: Any) -> tuple[str, ...]:
        from weft.pytorch.contractions import contracted, launches  # where autocast is on

        return contracted(launches(self.kernel, kinds, not self.any_size))

    def _unasked(self, kinds: Any) -> tuple[str, ...]:
        """The same where nobody asked for a policy: nothing where a call is wrong."""
        from weft.pytorch.contractions import contracted, launches  # where autocast is on

        try:
            found = launches(self.kernel, kinds, not self.any_size)
        except Exception:  # whatever a host part raises: the call does, with its own arguments
            return ()
        try:
            return contracted(found, inside=True)
        except WeftError:  # likewise
            return ()
        except Exception:
            log.warning("nothing of `%s` is cast under autocast", self.kernel, exc_info=True)
            return ()

    derived._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _kind(value: Any, sizes: bool = True) -> Any:
    """What a tensor is like, as a tuple, or another argument; without ``sizes``, what decides
    where these and numbers do not."""
    if isinstance(value, torch.Tensor) and not sizes:
        return "unsized", value.dtype, value.dim()
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, tuple(value.size())
    if isinstance(value, list | tuple):
        return ("list", *(_kind(v, sizes) for v in value))
    if not sizes and isinstance(value, float | torch.SymFloat):
        return "value", 1.0
    if not sizes and isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
        return ("number",)
    return "value", value
