"""Calls under ``torch.use_deterministic_algorithms(True)``.

Where several iterations accumulate floats in one element, or look at what others have left there,
the result depends on which comes first. On the CPU such a loop then runs on one thread; on a GPU it
is refused, or warned of, as torch's own functions are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from weft.errors import KernelValueError
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType
from weft.ir.views import memory, written_by
from weft.runtime import cpu
from weft.source import Span
from weft.values import frozen


class Compiled(Protocol):
    """What is asked of a compiled loop."""

    @property
    def function(self) -> Function: ...


@frozen
class Ordered:
    """``call`` for a loop whose result may depend on the order of its iterations."""

    call: Callable[..., object]
    compiled: Compiled
    on_gpu: bool
    span: Span

    def __call__(self, *given: Any) -> None:
        if not torch.are_deterministic_algorithms_enabled():
            self.call(*given)
        elif self.on_gpu:
            self._alert()
            self.call(*given)
        else:
            with cpu.one_thread():
                self.call(*given)

    def _alert(self) -> None:
        """Does as torch does where there is no deterministic implementation."""
        # It needs index sets, which a call does not.
        from weft.passes.relax_atomics import relax_atomics

        met = next(_unordered(relax_atomics(self.compiled.function)), None)
        if met is None:
            return
        message = (
            f"what iterations do to `{met.name}` has no order on a GPU, so that the result is not "
            "deterministic"
        )
        help = (
            f"write the loop over the elements of `{met.name}`, run it on the CPU (on one thread), "
            "or allow it: torch.use_deterministic_algorithms(False), or warn_only=True"
        )
        error = KernelValueError(message, self.span, help)
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise error
        warnings.warn(str(error), stacklevel=2)


def is_unordered(function: Function) -> bool:
    """Whether the result may depend on the order of iterations. Index sets are not asked."""
    return any(_unordered(function))


def _unordered(function: Function) -> Iterator[Value]:
    """The arguments of which iterations may meet on an element in such a way. (No two meet where
    every parallel index is a subscript by itself.)"""
    arguments = {a for a in function.args if isinstance(a.type, MemRefType)}
    used = {v for op in walk(function.body) for v in op.operands}
    for loop in walk(function.body):
        if loop.name != "scf.parallel":
            continue
        for op in walk(loop.body):
            if written_by(op) not in arguments or op.name == "memref.store":
                continue
            memref, subscripts, _ = memory(op)
            if op.name == "memref.atomic_cas" or (
                op.attrs["atomic"]
                and not {*loop.body.args} <= {*subscripts}
                and (_is_rounded(op) or op.result in used)
            ):
                yield memref


def _is_rounded(op: Op) -> bool:
    """Whether an accumulation rounds: sums and products of floats."""
    return op.attrs["kind"] in ("addf", "mulf")
