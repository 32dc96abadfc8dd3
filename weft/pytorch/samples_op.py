"""The operator of a kernel for every sample of a batch: what graphs and dispatch modes see of
``vmap``.

``weft::f_vmap(inputs..., size, have, randomness)`` takes batches of ``size`` samples along the
first dimension of the tensors whose numbers are ``have``, and gives such batches. Its derivatives
are made as those of ``weft::f`` are. ``vmap`` of ``f_backward`` is ``f_vmap_backward``, and that
of ``f_vmap`` is ``f_vmap_vmap``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.pytorch import flops
from weft.pytorch.batches import filled, in_front
from weft.pytorch.derivatives import Made
from weft.pytorch.hidden import asked_here
from weft.pytorch.inputs import Structure
from weft.pytorch.namespace import Family, without_defaults
from weft.pytorch.transforms import PLAIN, Batched, items

# pyright: reportPrivateUsage=false


def define_samples(family: Family, name: str, overload: Any, made: Made) -> tuple[Any, Made]:
    """Defines the operator for every sample of ``overload``, which is called ``name`` and which
    ``made`` carries out so that autograd sees it. Gives it, and what carries it out so."""
    inside, returns = without_defaults(str(overload._schema)).split("(", 1)[1].rsplit(") -> ", 1)
    schema = f"({inside}{', ' if inside else ''}{extra_arguments(name)})"
    single = len(overload._schema.returns) == 1

    def run(passed: Sequence[Any], outs: Sequence[torch.Tensor] | None, *_: Any) -> Any:
        *inputs, size, have, randomness = passed
        tensors, form = Structure.of(inputs)

        def one(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            out = made(form.inputs(tensors), None)
            return () if out is None else tuple(items(out))

        flags = [k in have for k in range(len(tensors))]
        found = Batched(size, randomness, one, flags)(*tensors)
        return (found[0] if single else found) if found else None

    def implementation(*passed: Any) -> Any:
        with asked_here(), torch._C._ForceDispatchKeyGuard(*PLAIN), torch.no_grad():
            out = run(passed, None)
        if out is None:
            return None
        return out.contiguous() if single else tuple(o.contiguous() for o in out)

    def fake(*passed: Any) -> Any:
        *inputs, size, have, _ = passed
        tensors, form = Structure.of(inputs)
        samples = [t.new_empty_strided(t.size()[1:], t.stride()[1:]) if k in have else t
                   for k, t in enumerate(tensors)]  # fmt: skip
        out = overload(*form.inputs(samples))
        if out is None:
            return None
        found = [o.new_empty((size, *o.size())) for o in items(out)]
        return found[0] if single else tuple(found)

    tags = [tag for tag in overload.tags if tag is torch.Tag.nondeterministic_seeded]
    made_of = family.define(f"{name}_vmap", f"{schema} -> {returns}", implementation, fake, *tags)
    flops.register(family, made_of, None, lambda *_: None)  # which counts those of one sample
    return made_of, run


def extra_arguments(name: str) -> str:
    """What the operator for every sample of the operator ``name`` takes besides, as schemas say
    it. Each ``vmap`` has names of its own."""
    n = name.count("_vmap") or ""
    return f"SymInt size{n}, int[] have{n}, str randomness{n}"


class Samples:
    """What ``vmap`` does with ``overload``, an operator of ``family`` that ``made`` carries out so
    that autograd sees it. ``derive(overload, made)`` makes the operator for every sample
    differentiable, and gives its rule, if there is one."""

    def __init__(
        self, family: Family, overload: Any, made: Made, derive: Callable[[Any, Made], Any]
    ) -> None:
        self.family, self.overload, self.made, self.derive = family, overload, made, derive
        self.name = overload._schema.name.rpartition(":")[2]
        family.samples[self.name] = self
        family.batch(self.name, lambda *passed: (self.operator[0], self.arguments(*passed)))

    @functools.cached_property
    def operator(self) -> tuple[Any, Any]:
        """The operator for every sample, and its rule."""
        with self.family.namespace.lock:
            overload, made = define_samples(self.family, self.name, self.overload, self.made)
            return overload, self.derive(overload, made)

    def arguments(
        self, passed: Sequence[Any], dims: Sequence[Any], size: Any, randomness: str,
        need: Sequence[int] = (),
    ) -> list[Any]:  # fmt: skip
        """Its arguments, of those of the operator for one sample, and the dimensions of batches in
        them. ``need``: the numbers of tensors that have to be batches."""
        tensors, have = in_front(passed, dims)
        _, form = Structure.of(passed)
        for k in need:
            tensors[k] = filled(tensors[k], size, have[k])
            have[k] = True
        return [*form.inputs(tensors), size, [k for k, has in enumerate(have) if has], randomness]
