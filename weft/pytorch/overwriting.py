"""What the adjoint of a launch reads of tensors that are overwritten before it runs.

Torch saves a tensor for backward and refuses to use it once it has changed. Where the host part of
a kernel says that a later loop or statement may change it (``frontend/overwrites.py``), a launch
holds it instead. What only loops change that autograd sees is held by reference (``Referred``): the
launch that is about to overwrite some of the elements copies them before, and one that writes
others copies nothing, so that a time loop which fills a tensor step by step costs no memory. All
else is copied at once (``Copied``). Both copy no more than the box of elements that the loop reads.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import GradientError, Span
from weft.frontend.specs import Spec, TensorSpec
from weft.index.boxes import Box, boxes, hull
from weft.ir.types import MemRefType
from weft.pytorch.dynamo import untraced
from weft.pytorch.forward_level import within_level
from weft.pytorch.loop import NEVER, Later, Loop
from weft.pytorch.workspaces import numbers
from weft.runtime.fastpath import scalar_formats
from weft.runtime.launch import Launcher
from weft.runtime.overlap import dense
from weft.runtime.signature import layout
from weft.values import mutable

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false


def is_hooked() -> bool:
    """Whether what is saved for backward goes through hooks: then it is to be a copy, which they
    may move, or drop and compute again."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high + 1) for low, high in box)


@mutable
class Moment:
    """The version of a tensor at which it still has what refers to it (see ``references.py``)."""

    version: int


class Held(abc.ABC):
    """What the adjoint of a launch reads of the argument ``k``, which is ``name`` to its steps.
    ``graph``: what is saved is a result of the launch, which has written it. ``lost``: it should
    be, and cannot: a derivative of the derivative is not to be had."""

    graph = lost = False

    def __init__(self, k: int, name: str) -> None:
        self.k, self.name = k, name
        self._taken: torch.Tensor | None = None

    def take(self, tensor: torch.Tensor) -> None:
        """Before the launch, which does not write it: what is saved, with the history so far."""
        self._taken = Taken.apply(self, tensor)

    def taken(self, tensor: torch.Tensor) -> torch.Tensor:
        """After the launch: what is saved for backward."""
        taken, self._taken = self._taken, None
        return self.saved(tensor) if taken is None else taken

    @abc.abstractmethod
    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is saved for backward, without history."""

    @abc.abstractmethod
    def contents(self, saved: torch.Tensor) -> torch.Tensor:
        """A tensor of the shape that it had, with the elements that are read. Raises
        ``GradientError`` where they are gone."""

    @abc.abstractmethod
    def gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of the whole from that of what was saved."""

    @abc.abstractmethod
    def tangent(self, tangent: Any) -> Any:
        """The tangent of what was saved, from that of the whole."""

    @abc.abstractmethod
    def release(self) -> None:
        """The graph is not used again."""


class Copied(Held):
    """A copy of the elements that are read."""

    def __init__(self, k: int, name: str, boxes: Sequence[Box]) -> None:
        super().__init__(k, name)
        self.box = hull(boxes) if boxes else None
        self.shape = torch.Size(())

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        self.shape = tensor.size()
        return self._of(tensor.data).clone(memory_format=torch.contiguous_format)

    def contents(self, saved: torch.Tensor) -> torch.Tensor:
        return saved if saved.size() == self.shape else self._filled(saved)

    def gradient(self, grad: torch.Tensor) -> torch.Tensor:
        return self._filled(grad)

    def tangent(self, tangent: Any) -> Any:
        return self._of(tangent).clone()

    def release(self) -> None:
        """Nothing refers to the argument."""

    def _of(self, whole: torch.Tensor) -> torch.Tensor:
        return whole[_slices(self.box)] if self.box is not None else whole.flatten()[:0]

    def _filled(self, part: torch.Tensor) -> torch.Tensor:
        whole = part.new_zeros(self.shape)
        if self.box is not None:
            whole[_slices(self.box)] = part
        return whole


class Referred(Held):
    """The tensor itself, until some of the elements in ``boxes`` are overwritten, which are copied
    then. ``span``: the loop."""

    def __init__(self, k: int, name: str, boxes: Sequence[Box], span: Span | None) -> None:
        super().__init__(k, name)
        self.boxes, self.span = boxes, span
        self.tensor: torch.Tensor | None = None  # shares its version counter with the argument
        self.moment = Moment(0)
        self.copies: list[torch.Tensor] | None = None

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.data  # which torch does not see change

    def begin(self, tensor: torch.Tensor, moment: Moment) -> None:
        """After the launch: from now on nothing else may change the tensor."""
        self.tensor, self.moment = tensor.detach(), moment

    def copy(self) -> None:
        """Before some of the elements are overwritten."""
        assert self.tensor is not None
        self.copies = [self.tensor[_slices(box)].clone() for box in self.boxes]

    def contents(self, saved: torch.Tensor) -> torch.Tensor:
        if not self.boxes:  # its shape is all that is read
            return saved
        if self.copies is None:
            if self.tensor is None or self.tensor._version != self.moment.version:
                raise changed([self.name], self.span)
            return saved
        whole = torch.zeros(saved.size(), dtype=saved.dtype, device=saved.device)
        for box, part in zip(self.boxes, self.copies, strict=True):
            whole[_slices(box)] = part
        return Restored.apply(saved, [whole]) if torch.is_grad_enabled() else whole

    def gradient(self, grad: torch.Tensor) -> torch.Tensor:
        return grad

    def tangent(self, tangent: Any) -> Any:
        raise AssertionError("where there are tangents everything is copied")

    def release(self) -> None:
        self.tensor, self.copies = None, None


class Taken(torch.autograd.Function):
    """``apply(held, tensor)``: what is saved of ``tensor``."""

    @staticmethod
    def forward(ctx: Any, held: Held, tensor: torch.Tensor) -> torch.Tensor:
        ctx.held = held
        return held.saved(tensor)

    @staticmethod
    @untraced
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, ctx.held.gradient(grads[0])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return ctx.held.tangent(tangents[1])


class Restored(torch.autograd.Function):
    """``apply(saved, [whole])``: ``whole`` in the place of ``saved``, whose history it has."""

    @staticmethod
    def forward(ctx: Any, saved: torch.Tensor, whole: list[torch.Tensor]) -> torch.Tensor:
        return whole[0]

    @staticmethod
    @untraced
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], None


def changed(names: Sequence[str], span: Span | None) -> GradientError:
    """The error about a tensor, one of ``names``, that was changed after a launch had read it."""
    return GradientError(
        f"the gradient of this loop needs `{'` or `'.join(names)}`, which was modified by an "
        "inplace operation after the loop: its values are gone", span,
        help=f"change a copy of it: {names[0]}.clone()",
    )  # fmt: skip


def find_changed(
    names: Sequence[str], saved: Sequence[Any], message: str, span: Span | None
) -> GradientError:
    """The error for torch's ``message`` about one of the tensors ``saved``, which are of no use any
    more. There may be several at the version that it names."""
    found: list[str] = []

    def packed(name: str, tensor: torch.Tensor) -> None:
        if f"is at version {tensor._version};" in message:
            found.append(name)

    def unpacked(_: None) -> Any:
        raise changed(found, span)

    for name, tensor in zip(names, saved, strict=True):
        tensor.register_hooks(functools.partial(packed, name), unpacked)
    return changed(found, span)


def hold(
    loop: Loop, values: Sequence[Any], saved: Sequence[str], wanted: frozenset[int],
    later: Later, *, graph: bool, copied: bool,
) -> list[Held]:  # fmt: skip
    """What to hold of the tensors that are ``saved`` and that something may overwrite before the
    adjoint reads them (``later``). What needs no gradient may be overwritten by a launch that
    autograd does not see. ``graph``: the launch may have more results than what it writes.
    ``copied``: all is."""
    found: list[Held] = []
    by_loops, by_host = later
    for k in loop.memrefs:
        tensor, name = values[k], loop.names[k]
        if name not in saved or k not in by_loops | by_host:
            continue
        seen = tensor.is_floating_point() and (k in wanted or k in loop.written)
        if tensor.is_leaf and tensor.requires_grad:  # it must not change, and torch looks after it
            continue
        boxes = touched(loop, k, values, writes=False)
        if copied or k in by_host or not seen:
            held: Held = Copied(k, name, boxes)
        else:
            held = Referred(k, name, boxes, loop.function.span)
        if k in loop.written:
            held.graph, held.lost = graph and seen, seen and not graph
        else:
            held.take(tensor)
        found.append(held)
    return found


def release(held: Sequence[Held]) -> None:
    """At the end of a backward: lets go of what the graph holds, unless it may be used again."""
    if held and not torch._C._autograd._get_current_graph_task_keep_graph():
        for one in held:
            one.release()


def touched(loop: Loop, k: int, values: Sequence[Any], *, writes: bool) -> list[Box]:
    """Which elements of argument ``k`` a launch on ``values`` writes, or its adjoint reads."""
    args = loop.function.args
    of_it = [a for a in loop.accesses if a.memref is args[k]]
    found = ([a for a in of_it if a.writes] if writes else
             [a for a in of_it if a.kind != "store" and a.op not in loop.overwritten])  # fmt: skip
    return boxes(found, numbers(args, values), values[k].size())


def _as_it_was(
    loop: Loop, k: int, now: torch.Tensor, shape: torch.Size, dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:  # fmt: skip
    """The argument ``k``, which was saved, in the layout that the gradient's loops are made for.
    They check no subscripts, and torch counts neither ``x.data = other`` nor what a hook of saved
    tensors gives: raises ``GradientError`` where it is of another ``shape`` or ``dtype``, elsewhere
    or sparse."""
    was, is_ = (shape, dtype, device), (now.size(), now.dtype, now.device)
    if was != is_ or now.layout is not torch.strided:
        then, since = (f"{[*size]} of {str(of).removeprefix('torch.')}" +
                       (f" on {place}" if place != other else "")
                       for (size, of, place), other in ((was, is_[2]), (is_, device)))  # fmt: skip
        since += "" if now.layout is torch.strided else f", {str(now.layout)[6:]},"
        raise GradientError(
            f"`{loop.names[k]}` was {then} when the loop ran, and is {since} now: there is no "
            "gradient", loop.function.span,
            help="keep what a gradient reads as it is until backward: assign no other `.data`, "
            "and let hooks of saved tensors give back what they were given",
        )  # fmt: skip
    type_ = loop.function.args[k].type
    assert isinstance(type_, MemRefType)
    now = dense((now,))[0].resolve_neg()
    return now if type_.layout in ("strided", layout(now)) else now.contiguous()


def saved_by_name(ctx: Any) -> dict[str, Any]:
    """What was saved, by name. Raises ``GradientError`` where it has changed since."""
    call = ctx.call
    span = call.loop.function.span
    try:
        saved = dict(zip(call.saved, ctx.saved_tensors, strict=True))
    except GradientError:  # said before
        raise
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise find_changed(call.saved, ctx._raw_saved_tensors, str(error), span) from error
    kept = {held.name for held in call.held}  # which may be a part of a tensor
    for n, k in enumerate(call.loop.memrefs):
        name = call.loop.names[k]
        if name in saved and name not in kept:
            then = ctx.shapes[n], ctx.dtypes[n], ctx.device
            saved[name] = _as_it_was(call.loop, k, saved[name], *then)
    for held in call.held:
        if held.lost and (torch.is_grad_enabled() or within_level()):
            raise GradientError(
                f"a derivative of this order needs `{held.name}`, a view that the loop writes and "
                "that is overwritten later", span,
                help="write to the whole tensor, with one subscript more",
            )  # fmt: skip
        saved[held.name] = held.contents(saved[held.name])
    return saved


def with_held(
    loop: Loop, held: Sequence[Held], grads: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradients of what the loop has written, those of what is held of it among them."""
    found = dict(zip(loop.written, grads, strict=False))
    for one, grad in zip((h for h in held if h.graph), grads[len(found) :], strict=True):
        if grad is not None:
            whole, before = one.gradient(grad), found[one.k]
            found[one.k] = whole if before is None else before + whole
    return list(found.values())


def overwritten_later(launcher: Launcher, specs: Sequence[Spec]) -> Later:
    """Which arguments of the loop's function may be overwritten after it."""
    region, names = launcher.region, _names(launcher, specs)
    found = region.order.later(region.node, names)

    def places(which: frozenset[str]) -> frozenset[int]:
        return frozenset(k for k, name in enumerate(names) if name in which)

    later = places(found.by_loops), places(found.by_host)
    return later if later != NEVER else NEVER


def made_here(launcher: Launcher, specs: Sequence[Spec]) -> frozenset[int]:
    """Which arguments of the loop's function the host part has made, all by itself."""
    own = {arg.name for arg in launcher.region.args if arg.fresh}
    return frozenset(k for k, name in enumerate(_names(launcher, specs)) if name in own)


def _names(launcher: Launcher, specs: Sequence[Spec]) -> list[str]:
    """What the arguments of the loop's function are called in the host part."""
    region = launcher.region
    whole = {member: name for name, _, members in region.collections for member in members}
    names: list[str] = []
    for name, spec in zip(launcher.forms.names, specs, strict=True):
        count = 1 if isinstance(spec, TensorSpec) else len(scalar_formats(spec))
        names += [whole.get(name, name)] * count
    both, vectors = region.complex_results, region.vector_results
    counts = {n: 2 if n in both else len(vectors.get(n, (n,))) for n in region.results}
    return names + [n for n in region.results for _ in range(counts[n])]
