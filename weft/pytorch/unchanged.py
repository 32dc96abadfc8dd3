"""Holds the backward of a compiled graph to what its forward has read around the kernel.

A graph has a place for arguments alone. What a kernel reads around it (globals, closures,
attributes, captured tensors) its backward reads again, which may run when these have changed. So
where PyTorch makes a graph with a backward, ``weft_graphs::around`` gives a number in it that tells
what is there, and ``weft::f`` is ``weft::f_noted`` in it, whose argument that is, so that its place
is the forward. In the backward, ``weft_graphs::unchanged`` raises ``GradientError`` where it is
another one.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._library.autograd import Info, make_autograd_impl
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils.checkpoint import CheckpointPolicy

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
    return get_proxy_mode() is not None


def get_proxy_mode() -> Any:
    """What records them, or None."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return None if proxies is None else proxies.get_proxy_mode()


def is_noting(family: Family, passed: Sequence[Any]) -> bool:
    """Whether a graph is made with a call of an operator of ``family``, in which that is to have a
    note of what is around it. DTensors and nested tensors have rules of their own."""
    if not is_traced() or not family.around.may_change():
        return False
    tensors = [v for x in passed for v in items(x) if isinstance(v, torch.Tensor)]
    return family.sharded is None and all(type(v) in _TENSORS for v in tensors)


class Noting:
    """``<name>_noted`` of the operator ``name``, whose derivatives ``rule`` (a ``Rule``) has: what
    autograd carries out in its place. Its first argument is the note, which thereby belongs to the
    forward."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule
        schema = rule.overload._schema
        arguments, returns = str(schema).partition("(")[2].rsplit(") -> ", 1)
        self.overload = rule.family.define(
            f"{rule.name}_{NOTED}", f"(Tensor weft_note, {arguments}) -> {returns}", self._run,
            self._run, *rule.overload.tags,
        )  # fmt: skip
        self._autograd = make_autograd_impl(self.overload, Info(self._backward, self._record))

    def __call__(self, keyset: Any, *passed: Any) -> Any:
        near = next(v for x in passed for v in items(x) if isinstance(v, torch.Tensor))
        note = _once(lambda: torch.ops.weft_graphs.around(near, self.rule.overload._schema.name))
        return self._autograd(keyset, note, *passed)

    def _run(self, note: torch.Tensor, *passed: Any) -> Any:
        return self.rule.overload(*passed)

    def _record(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        note, *passed = inputs
        self.rule.record(ctx, passed, output, note)

    def _backward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return None, *self.rule.backward(ctx, *grads)


def _once(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What ``call`` gives, which no backward computes again, as checkpoints have it: a note would
    tell what is there then."""
    nodes = get_proxy_mode().tracer.graph.nodes
    before = len(nodes)
    made = call()
    for node in itertools.islice(reversed(nodes), len(nodes) - before):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return made


def held_to(note: torch.Tensor, overload: Any, grads: Sequence[torch.Tensor]) -> torch.Tensor:
    """What the backward is given to be carried out behind the comparison. ``grads``: so that it is
    a part of the backward."""
    return torch.ops.weft_graphs.unchanged(note, grads, overload._schema.name)


@user_frames
def _compare(note: torch.Tensor, grads: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    _around(name).compare(int(note.item()))
    return grads[0].new_empty(0)


def _note(near: torch.Tensor, name: str) -> torch.Tensor:
    return torch.scalar_tensor(_around(name).note(), dtype=torch.int64, device="cpu")


def _around(name: str) -> Around:
    """Of the operator of that name."""
    space, _, own = name.partition("::")
    return getattr(getattr(torch.ops, space), own).default.family.around


def _define(
    name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any], *tags: torch.Tag
) -> None:
    own = (torch.Tag.pt2_compliant_tag, torch.Tag.cudagraph_unsafe, *tags)
    _library.define(f"{name}{schema}", tags=own)
    _library.impl(name, run, "CompositeExplicitAutograd")
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"weft_graphs::{name}", fake, lib=_library)


_library = torch.library.Library("weft_graphs", "FRAGMENT")
_define(
    "around", "(Tensor near, str name) -> Tensor", _note,
    lambda near, name: torch.empty((), dtype=torch.int64, device="cpu"),
)  # fmt: skip
_define(
    "unchanged", "(Tensor note, Tensor[] grads, str name) -> Tensor", _compare,
    lambda note, grads, name: grads[0].new_empty(0), torch.Tag.nondeterministic_seeded,
)  # fmt: skip
