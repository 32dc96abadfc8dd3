"""The derivatives of a kernel as operators: what ``torch.compile`` and dispatch modes go through.

The backward of ``weft::f`` is the operator ``weft::f_backward`` (``double_backward_op.py``), and
``weft::f_jvp`` gives the tangents of the results. In plain eager calls no operator is involved;
``torch.func`` has its own way (``transforms.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from weft.errors import GradientError
from weft.frames import shorten, user_frames
from weft.pytorch import flops
from weft.pytorch.ambient import drawing_nothing
from weft.pytorch.batches import filled, in_front
from weft.pytorch.boxed import BoxedKernel
from weft.pytorch.double_backward_op import Backward, Form, Made, Offering
from weft.pytorch.forward_level import has_dual, is_dual, is_open, primal_of
from weft.pytorch.namespace import Family
from weft.pytorch.samples_op import Samples, extra_arguments
from weft.pytorch.transforms import PLAIN, Pushed, is_float, items, list_error
from weft.source import Span

if TYPE_CHECKING:
    from weft.pytorch.cost import Counter

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false


def pushed(made: Callable[..., Any], inputs: Sequence[Any], which: Sequence[int],
           tangents: Sequence[torch.Tensor], span: Span) -> list[torch.Tensor]:  # fmt: skip
    """The tangents of what ``made(*inputs)`` gives, an empty tensor for what is not of floats,
    where the inputs ``which`` have ``tangents``."""
    places = [k for k, v in enumerate(inputs) if isinstance(v, torch.Tensor)]
    floats: list[bool] = []

    def many(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for k, tensor in zip(places, tensors, strict=True):
            values[k] = tensor
        outs = items(made(*values))
        floats.extend(map(is_float, outs))
        return tuple(outs)

    along = Pushed(many, len(places), [places.index(k) for k in which], span)
    with torch._C._ForceDispatchKeyGuard(*PLAIN), torch.no_grad():
        found = iter(along(*(inputs[k] for k in places), *tangents))
    return [next(found).contiguous() if has else torch.empty(0) for has in floats]


def register(
    name: str, schema: str, made: Made, reads: Callable[[Sequence[Any]], bool], family: Family,
    span: Span, direct: Callable[..., Any] | None = None,
    boxed: Callable[[], BoxedKernel | None] = lambda: None, offering: Offering | None = None,
) -> Rule:  # fmt: skip
    """Makes the operator ``name`` of ``family`` (a kernel that writes to none of its arguments)
    differentiable. ``made`` and ``reads``: see ``Backward``; ``schema`` is that of its arguments.

    Two more operators are made: ``<name>_backward``, and ``<name>_jvp``, which gives the tangents
    of the results (for a result that is not of floats, an empty tensor). ``direct`` carries out
    calls that are plain (see ``is_plain``), ``boxed`` makes machine code of the backward;
    ``offering``: see ``Backward``.
    """
    overload = getattr(getattr(torch.ops, family.namespace.namespace), name).default
    rule = Rule(family, name, schema, made, reads, functools.partial(_second, span), span,
                boxed=boxed, offering=offering)  # fmt: skip
    _ = rule.operator  # a compiled graph from torch's cache may be the first to ask for it
    rule.forwards = rule.forward_operator(overload)

    def derive(overload: Any, made: Made) -> Rule:
        more = f"{schema}{', ' if schema else ''}{extra_arguments(name)}"
        return register(f"{name}_vmap", more, made, lambda _: False, family, span)

    Samples(family, overload, made, derive)
    differentiable = make_autograd_impl(overload, Info(rule.backward, rule.setup_context))

    def autograd(keyset: Any, *passed: Any) -> Any:
        if direct is not None and is_plain(keyset, passed):
            return direct(*passed)
        # The graph that Dynamo makes of a transform calls the operator at each level by itself.
        if has_dual(passed) or (
            torch._C._are_functorch_transforms_active() and torch._C._any_requires_grad(*passed)
        ):
            tensors, form = Form.of(passed)
            with enable_single_level_autograd_function():
                return Dual.apply(keyset, overload, rule, form, *tensors)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*passed):
            return differentiable(keyset, *passed)
        try:
            with torch._C._AutoDispatchBelowAutograd():
                return overload.redispatch(keyset & torch._C._after_autograd_keyset, *passed)
        except Exception as error:
            shorten(error)
            raise

    family.differentiate(name, autograd)
    return rule


def is_plain(keyset: Any, passed: Sequence[Any]) -> bool:
    """Whether nothing stands between autograd and the device, and no derivative is asked for."""
    return (
        _reaches_device(keyset.raw_repr())
        and not (torch.is_grad_enabled() and torch._C._any_requires_grad(*passed))
        and not is_open()
        and not torch._C._len_torch_function_stack()  # which would see that modes change
    )


@functools.lru_cache(64)
def _reaches_device(raw: int) -> bool:
    key = torch._C.DispatchKey
    below = torch._C.DispatchKeySet.from_raw_repr(raw) & torch._C._after_autograd_keyset
    below = below.remove(key.ADInplaceOrView).remove(key.BackendSelect)  # which do nothing
    return below.highestPriorityTypeId() in (key.CPU, key.CUDA)


class Rule(Backward):
    """The derivatives of the operator of a kernel: also in forward mode, by the operator
    ``forwards``."""

    forwards: Any

    def plain(self, *inputs: Any) -> Any:
        """Carries the operator out so that autograd sees it."""
        return self.made(inputs, None)

    def forward_operator(self, overload: Any) -> Any:
        """The operator ``<name>_jvp(inputs..., tangents, which)``."""
        name, family = f"{self.name}_jvp", self.family
        ahead = f"{self.schema}{', ' if self.schema else ''}"

        def run(*passed: Any) -> list[torch.Tensor]:
            *inputs, tangents, which = passed
            with drawing_nothing(inputs, self.span):
                return pushed(self.plain, inputs, which, tangents, self.span)

        def fake(*passed: Any) -> list[torch.Tensor]:
            return [torch.empty_like(o) if is_float(o) else o.new_empty(0)
                    for o in items(overload(*passed[:-2]))]  # fmt: skip

        schema = f"({ahead}Tensor[] tangents, int[] which) -> Tensor[]"
        forwards = family.define(name, schema, run, fake)

        def counted(counter: Counter, passed: Sequence[Any]) -> None:
            def made(*inputs: Any) -> Any:
                with counter.watching():
                    return self.made(inputs, None, counter)

            *inputs, tangents, which = passed
            pushed(made, inputs, which, tangents, self.span)

        flops.register(family, forwards, self.span, counted)

        def refuse(*_: Any) -> Any:
            raise self.refuse()

        differentiable = make_autograd_impl(forwards, Info(refuse, lambda *_, **__: None))

        def autograd(keyset: Any, *passed: Any) -> Any:
            if has_dual(passed):
                refuse()
            return differentiable(keyset, *passed)

        family.differentiate(name, autograd)

        def sampled(
            passed: Sequence[Any], dims: Sequence[Any], size: Any, randomness: str
        ) -> tuple[Any, list[Any]]:
            *inputs, tangents, which = passed
            need = [len(Form.of(inputs[:k])[0]) for k in which]
            _, rule, args = self.sampled(inputs, dims[:-2], size, randomness, need)
            tensors, have = in_front([tangents], [dims[-2]])
            along = [filled(t, size, has) for t, has in zip(tensors, have, strict=True)]
            return cast(Rule, rule).forwards, [*args, along, which]

        family.batch(name, sampled)
        return forwards

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        for value in inputs:
            if isinstance(value, list | tuple) and any(
                isinstance(v, torch.Tensor) and (v.requires_grad or is_dual(v)) for v in value
            ):
                raise list_error(self.span)
        super().setup_context(ctx, inputs, output)
        ctx.save_for_forward(*Form.of(inputs)[0])
        ctx.shapes = [(o.shape, o.dtype, o.device) for o in items(output)]

    def jvp(self, ctx: Any, tangents: Sequence[Any]) -> Any:
        tensors = [primal_of(v) if is_float(v) else v for v in ctx.saved_tensors[: ctx.count]]
        given = ctx.form.inputs(tangents, others=False)
        which = [k for k, t in enumerate(given) if isinstance(t, torch.Tensor)]
        found = self.forwards(*ctx.form.inputs(tensors), [given[k] for k in which], which)
        made = [t if has else None for t, has in zip(found, ctx.floats, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)


class Dual(_SingleLevelFunction):
    """The operator, called with dual tensors. ``apply(keyset, overload, rule, form, *tensors)``."""

    @staticmethod
    def forward(
        ctx: Any, keyset: Any, overload: Any, rule: Rule, form: Form, *tensors: torch.Tensor
    ) -> Any:
        inputs = form.inputs(tensors)
        if any(isinstance(v, list | tuple) and any(map(is_float, v)) for v in inputs):
            raise list_error(rule.span)
        outer = torch._C._are_functorch_transforms_active()  # whose levels below this one record
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(outer),
            forward_ad._set_fwd_grad_enabled(outer or torch._C._is_fwd_grad_enabled()),
        ):
            output = overload.redispatch(keyset & torch._C._after_autograd_keyset, *inputs)
        ctx.rule = rule
        ctx.set_materialize_grads(False)
        rule.setup_context(ctx, inputs, output)
        ctx.mark_non_differentiable(*(o for o in items(output) if not is_float(o)))
        return output

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return ctx.rule.jvp(ctx, tangents[4:])

    @staticmethod
    @user_frames
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        filled = [torch.zeros(shape, dtype=dtype, device=device) if g is None and has else g
                  for g, has, (shape, dtype, device)
                  in zip(grads, ctx.floats, ctx.shapes, strict=True)]  # fmt: skip
        return (*[None] * 4, *ctx.rule.gradients(ctx, ctx.needs_input_grad[4:], filled))


def _second(span: Span) -> GradientError:
    return GradientError(
        "forward mode of a derivative is there in plain eager calls and under torch.func only",
        span,
        help="call the kernel outside of torch.compile and of dispatch modes",
    )
