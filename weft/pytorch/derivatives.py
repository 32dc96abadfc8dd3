"""What the derivatives of an operator compute, carried out so that they can be differentiated.

``recorded`` carries the kernel's host part out again with gradients recorded, and differentiates
that: what is between loops then is what it was. The loop of a kernel that has one is not carried
out again: what it has written is what the operator has returned (``skip_forward.py``). ``pushed``
carries it out with tangents. Either can be differentiated in the same ways.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from weft.pytorch.ambient import autocast_state, under
from weft.pytorch.batches import storage
from weft.pytorch.inputs import Structure, items
from weft.pytorch.transforms import PLAIN, Pushed, gradients, is_float, of_floats
from weft.source import Span

if TYPE_CHECKING:
    from weft.pytorch.cost import Counter

# pyright: reportPrivateUsage=false

# Carries an operator out: ``made(inputs, outs)``. ``outs``, unless it is None, says that only the
# derivative is wanted: what the operator has returned before, or nothing if that is not read. After
# these, it takes what counts the loops instead of carrying them out.
Made = Callable[..., Any]


def recorded(
    made: Made, inputs: Sequence[Any], outs: Sequence[torch.Tensor] | None,
    grads: Sequence[torch.Tensor], wanted: Sequence[int], given: Sequence[int] | None, *,
    again: bool = False, counter: Counter | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of ``made(inputs, outs)`` for those of its tensors whose numbers are
    ``wanted``, given the gradients of its floats, or of those that ``given`` numbers. ``again``:
    they can be differentiated; ``counter`` counts what is carried out."""
    autocast = autocast_state()  # of the call; a backward pass has none
    watching = contextlib.nullcontext() if counter is None else counter.watching()
    with torch._C._ForceDispatchKeyGuard(*PLAIN), torch.enable_grad(), watching:
        tensors, form = Structure.of(inputs)
        for k in wanted:
            # A value of its own, with its tangent where there may be one.
            own = tensors[k].view_as(tensors[k]) if again else tensors[k].detach()
            tensors[k] = own if own.requires_grad else own.requires_grad_()
        with under(autocast):
            out = made(form.inputs(tensors), outs, counter)
        outs = of_floats(items(out), given)
        found = gradients(outs, [tensors[k] for k in wanted], grads, again=again)
    return _apart([g.contiguous().resolve_conj() for g in found], [*tensors, *grads])


def pushed(
    made: Made, inputs: Sequence[Any], which: Sequence[int], tangents: Sequence[torch.Tensor],
    span: Span, *, again: bool = False, counter: Counter | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """The tangents of what ``made(inputs, None)`` gives (a tensor of no meaning for what is not of
    floats), where those of its tensors whose numbers are ``which`` have ``tangents``. ``again`` and
    ``counter``: see ``recorded``."""
    tensors, form = Structure.of(inputs)
    others: list[torch.Tensor | None] = []  # what is not of floats
    watching = contextlib.nullcontext() if counter is None else counter.watching()

    def many(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outs = items(made(form.inputs(tensors), None, counter))
        others.extend(None if is_float(o) else torch.empty_like(o) for o in outs)
        return tuple(outs)

    tangents_of = Pushed(many, len(tensors), which, span)
    with torch._C._ForceDispatchKeyGuard(*PLAIN), torch.set_grad_enabled(again), watching:
        along = tangents_of(*tensors, *tangents)
        # Without ``again``, ``made`` may have recorded gradients of its own.
        found = iter(along if again else [t.detach() for t in along])
    made_of = [next(found).contiguous() if other is None else other for other in others]
    return _apart(made_of, [*Structure.of(inputs)[0], *tangents])


def _apart(found: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``found`` in memory that is not that of what was ``given``, which no operator may return: of
    a sum, a gradient is that of the result as it is."""
    taken = set(map(storage, given))
    return [t.clone() if storage(t) in taken else t for t in found]
