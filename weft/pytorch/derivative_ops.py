"""The derivatives of a kernel as operators: what ``torch.compile`` and dispatch modes go through.

The backward of ``weft::f`` is the operator ``weft::f_backward`` (``double_backward_op.py``), and
``weft::f_jvp`` gives the tangents of the results. In plain eager calls no operator is involved;
``torch.func`` has its own way (``transforms.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from weft.errors import GradientError
from weft.frames import shorten, user_frames
from weft.pytorch.ambient import drawing_nothing
from weft.pytorch.double_backward_op import Backward, Made
from weft.pytorch.forward_level import has_dual, is_dual, primal_of
from weft.pytorch.namespace import Family
from weft.pytorch.transforms import PLAIN, Pushed, is_float, list_error
from weft.source import Span

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
        out = made(*values)
        outs = out if isinstance(out, tuple | list) else (out,)
        floats.extend(map(is_float, outs))
        return tuple(outs)

    along = Pushed(many, len(places), [places.index(k) for k in which], span)
    with torch._C._ForceDispatchKeyGuard(*PLAIN), torch.no_grad():
        found = iter(along(*(inputs[k] for k in places), *tangents))
    return [next(found).contiguous() if has else torch.empty(0) for has in floats]


def register(
    name: str,
    schema: str,
    made: Made,
    reads: Callable[[Sequence[Any]], bool],
    family: Family,
    span: Span,
) -> Rule:
    """Makes the operator ``name`` of ``family`` (a kernel that writes to none of its arguments)
    differentiable. ``made`` and ``reads``: see ``nested.Backward``; ``schema`` is that of its
    arguments.

    Two more operators are made: ``<name>_backward``, and ``<name>_jvp``, which gives the tangents
    of the results (for a result that is not of floats, an empty tensor).
    """
    ahead = f"{schema}{', ' if schema else ''}"
    operators = getattr(torch.ops, family.namespace.namespace)
    overload = getattr(operators, name).default

    def plain(*inputs: Any) -> Any:
        return made(inputs, None)

    def define(suffix: str, arguments: str, run: Callable[..., Any], fake: Callable[..., Any]
               ) -> Any:  # fmt: skip
        overload = family.define(name + suffix, f"({ahead}{arguments}) -> Tensor[]", run, fake)

        def refuse(*_: Any) -> Any:
            raise _second(span)

        differentiable = make_autograd_impl(overload, Info(refuse, lambda *_, **__: None))

        def autograd(keyset: Any, *passed: Any) -> Any:
            if has_dual(passed):
                raise _second(span)
            return differentiable(keyset, *passed)

        family.differentiate(name + suffix, autograd)
        return overload

    def jvp(*passed: Any) -> list[torch.Tensor]:
        *inputs, tangents, which = passed
        with drawing_nothing(inputs, span):
            return pushed(plain, inputs, which, tangents, span)

    def fake_jvp(*passed: Any) -> list[torch.Tensor]:
        out = overload(*passed[:-2])
        return [torch.empty_like(o) if is_float(o) else o.new_empty(0)
                for o in (out if isinstance(out, tuple | list) else (out,))]  # fmt: skip

    backward = Backward(family, name, schema, made, reads, functools.partial(_second, span), span)
    _ = backward.operator  # a compiled graph from torch's cache may be the first to ask for it
    jvp_operator = define("_jvp", "Tensor[] tangents, int[] which", jvp, fake_jvp)
    rule = Rule(backward, jvp_operator, plain, span)
    differentiable = make_autograd_impl(overload, Info(rule.backward, rule.setup_context))

    def autograd(keyset: Any, *passed: Any) -> Any:
        # The graph that Dynamo makes of a transform calls the operator at each level by itself.
        if has_dual(passed) or (
            torch._C._are_functorch_transforms_active() and torch._C._any_requires_grad(*passed)
        ):
            with enable_single_level_autograd_function():
                return Dual.apply(keyset, overload, rule, *passed)
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


class Rule:
    """The derivative of one operator in autograd's form."""

    def __init__(self, backward: Backward, jvp: Any, made: Callable[..., Any], span: Span) -> None:
        self.reversed = backward
        self.pushed = jvp
        self.made = made
        self.span = span

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        for value in inputs:
            if isinstance(value, list | tuple) and any(
                isinstance(v, torch.Tensor) and (v.requires_grad or is_dual(v)) for v in value
            ):
                raise list_error(self.span)
        self.reversed.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*(v for v in inputs if isinstance(v, torch.Tensor)))
        outs = output if isinstance(output, tuple | list) else (output,)
        ctx.shapes = [(o.shape, o.dtype, o.device) for o in outs]

    def inputs(self, ctx: Any) -> list[Any]:
        return ctx.form.inputs(ctx.saved_tensors[: ctx.count])

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        inputs = [primal_of(v) if is_float(v) else v for v in self.inputs(ctx)]
        given = tangents[-len(inputs) :]
        which = [k for k, t in enumerate(given) if isinstance(t, torch.Tensor)]
        found = self.pushed(*inputs, [given[k] for k in which], which)
        made = [t if has else None for t, has in zip(found, ctx.floats, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    @user_frames
    def backward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """The gradients of all inputs, of which none is a list."""
        needed = ctx.needs_input_grad[-len(ctx.form.places) :]
        places = zip(needed, ctx.form.places, strict=True)
        found = self.reversed.gradients(ctx, [n for n, place in places if place is not None], grads)
        return tuple(ctx.form.inputs(found, others=False))


class Dual(_SingleLevelFunction):
    """The operator, called with dual tensors. ``apply(keyset, overload, rule, *inputs)``."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, overload: Any, rule: Rule, *inputs: Any) -> Any:
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
        outs = output if isinstance(output, tuple | list) else (output,)
        ctx.mark_non_differentiable(*(o for o in outs if not is_float(o)))
        return output

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return ctx.rule.jvp(ctx, *tangents)

    @staticmethod
    @user_frames
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        filled = [torch.zeros(shape, dtype=dtype, device=device) if g is None and has else g
                  for g, has, (shape, dtype, device)
                  in zip(grads, ctx.floats, ctx.shapes, strict=True)]  # fmt: skip
        return (None, None, None, *ctx.rule.backward(ctx, *filled))


class Transformed(torch.autograd.Function):
    """The operator as ``torch.func`` wants a function to be. ``apply(overload, rule, *inputs)``."""

    @staticmethod
    def forward(overload: Any, rule: Rule, *inputs: Any) -> Any:
        return overload(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.rule, *rest = inputs
        ctx.rule.setup_context(ctx, rest, output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return ctx.rule.jvp(ctx, *tangents)

    @staticmethod
    @user_frames
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (None, None, *ctx.rule.backward(ctx, *grads))


def _second(span: Span) -> GradientError:
    return GradientError(
        "forward mode of a derivative is there in plain eager calls and under torch.func only",
        span,
        help="call the kernel outside of torch.compile and of dispatch modes",
    )
