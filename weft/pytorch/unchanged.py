"""Holds the backward of a compiled graph to what its forward has read around the kernel.

A graph has a place for arguments alone. What a kernel reads around it (globals, closures,
attributes, captured tensors) its backward reads again, which may run when these have changed. So
where PyTorch makes a graph with a backward, ``weft::f`` is ``weft::f_noted`` in it, which gives a
number more: one that tells what is there. In the backward, ``weft_graphs::unchanged`` raises
``GradientError`` where it is another one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._library.autograd import Info, make_autograd_impl
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from weft.frames import user_frames
from weft.pytorch.inputs import items

if TYPE_CHECKING:
    from weft.pytorch.around import Around
    from weft.pytorch.namespace import Family

# pyright: reportPrivateUsage=false
NOTED = "noted"
_TENSORS = (torch.Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)


def is_traced() -> bool:
    """Whether calls are recorded in a graph of operators: for ``torch.export``, say."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxies is not None and proxies.get_proxy_mode() is not None


def is_noting(family: Family, passed: Sequence[Any]) -> bool:
    """Whether a graph is made with a call of an operator of ``family``, in which that is to give a
    note of what is around it. DTensors and nested tensors have rules of their own."""
    if not is_traced() or not family.around.may_change():
        return False
    tensors = [v for x in passed for v in items(x) if isinstance(v, torch.Tensor)]
    return family.sharded is None and all(type(v) in _TENSORS for v in tensors)


class Noting:
    """``<name>_noted`` of the operator ``name``, whose derivatives ``rule`` (a ``Rule``) has: what
    autograd carries out in its place."""

    def __init__(self, rule: Any) -> None:
        self.family: Family = rule.family
        self.rule = rule
        schema = rule.overload._schema
        self.listed = rule.of is not None  # derivatives give lists
        results = ", ".join(["Tensor"] * (len(schema.returns) + 1))
        returns = "Tensor[]" if self.listed else f"({results})"
        arguments = str(schema).partition("(")[2].rpartition(") ->")[0]
        tags = [tag for tag in rule.overload.tags if tag is not torch.Tag.pt2_compliant_tag]
        self.overload = self.family.define(
            f"{rule.name}_{NOTED}", f"({arguments}) -> {returns}", self._run, self._fake, *tags
        )
        self._autograd = make_autograd_impl(self.overload, Info(self._backward, self._record))

    def __call__(self, keyset: Any, *passed: Any) -> Any:
        return self._without(self._autograd(keyset, *passed))

    def _run(self, *passed: Any) -> Any:
        note = torch.scalar_tensor(self.family.around.note(), dtype=torch.int64, device="cpu")
        return self._with(self.rule.overload(*passed), note)

    def _fake(self, *passed: Any) -> Any:
        note = torch.empty((), dtype=torch.int64, device="cpu")
        return self._with(self.rule.overload(*passed), note)

    def _with(self, out: Any, note: torch.Tensor) -> Any:
        return [*out, note] if self.listed else (*items(out), note)

    def _without(self, output: Any) -> Any:
        *made, _ = output
        return made if self.listed else made[0] if len(made) == 1 else tuple(made)

    def _record(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.mark_non_differentiable(output[-1])
        self.rule.record(ctx, inputs, self._without(output), output[-1])

    def _backward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return self.rule.backward(ctx, *((grads[0][:-1],) if self.listed else grads[:-1]))


def held_to(note: torch.Tensor, overload: Any, grads: Sequence[torch.Tensor]) -> torch.Tensor:
    """What the backward is given to be carried out behind the comparison. ``grads``: so that it is
    a part of the backward."""
    return torch.ops.weft_graphs.unchanged(note, grads, overload._schema.name)


@user_frames
def _compare(note: torch.Tensor, grads: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    space, _, own = name.partition("::")
    around: Around = getattr(getattr(torch.ops, space), own).default.family.around
    around.compare(int(note.item()))
    return grads[0].new_empty(0)


_library = torch.library.Library("weft_graphs", "FRAGMENT")
_library.define(
    "unchanged(Tensor note, Tensor[] grads, str name) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
)
_library.impl("unchanged", _compare, "CompositeExplicitAutograd")
_library.impl("unchanged", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake(
    "weft_graphs::unchanged", lambda note, grads, name: grads[0].new_empty(0), lib=_library
)
