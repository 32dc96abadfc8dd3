"""The gradient of a kernel as an operator: what ``torch.compile`` and ``torch.func`` go through.

The backward of ``weft::f`` is the operator ``weft::f_backward``. It carries the kernel out again
with gradients recorded, and differentiates that: the host part between loops then is what it was.
In plain eager calls no operator is involved, and nothing is carried out twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.errors import GradientError, KernelValueError
from weft.source import Span

# pyright: reportPrivateUsage=false
# What the dispatcher includes and excludes outside of any operator.
_PLAIN = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


def recorded(made: Callable[..., Any], inputs: Sequence[Any], wanted: Sequence[int],
             grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of ``made(*inputs)`` for the inputs ``wanted``, given those of its floats."""
    with torch._C._ForceDispatchKeyGuard(*_PLAIN), torch.enable_grad():
        values = list(inputs)
        for k in wanted:
            values[k] = values[k].detach().requires_grad_()
        out = made(*values)
        outs = [o for o in (out if isinstance(out, tuple | list) else (out,)) if _is_float(o)]
        pairs = [(o, g) for o, g in zip(outs, grads, strict=True) if o.requires_grad]
        leaves = [values[k] for k in wanted]
        if not pairs:
            return [torch.zeros_like(v) for v in leaves]
        found: Any = torch.autograd.grad(  # None where a leaf is unused: the stub does not say so
            [o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True
        )
    return [
        torch.zeros_like(v) if g is None else g.contiguous()
        for v, g in zip(leaves, found, strict=True)
    ]


def register(
    qualified: str,
    schema: str,
    made: Callable[..., Any],
    library: torch.library.Library,
    span: Span,
) -> Rule:
    """Makes the operator ``qualified`` (a kernel that writes to none of its arguments)
    differentiable. ``made`` carries the kernel out; ``schema`` is that of its arguments."""
    namespace, name = qualified.split("::")
    backward_name = f"{name}_backward"
    library.define(
        f"{backward_name}({schema}{', ' if schema else ''}Tensor[] grads, int[] wanted)"
        " -> Tensor[]",
        tags=(torch.Tag.pt2_compliant_tag,),
    )

    def implementation(*passed: Any) -> list[torch.Tensor]:
        *inputs, grads, wanted = passed
        return recorded(made, inputs, wanted, grads)

    def fake(*passed: Any) -> list[torch.Tensor]:
        *inputs, _, wanted = passed
        return [torch.empty(inputs[k].shape, dtype=inputs[k].dtype, device=inputs[k].device)
                for k in wanted]  # fmt: skip

    def refuse(*_: Any) -> Any:
        raise _second(span)

    library.impl(backward_name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{namespace}::{backward_name}", fake, lib=library)
    torch.library.register_autograd(
        f"{namespace}::{backward_name}",
        refuse,
        setup_context=lambda ctx, inputs, output: None,
        lib=library,
    )
    overload = getattr(getattr(torch.ops, namespace), backward_name).default

    rule = Rule(overload, span)
    torch.library.register_autograd(
        qualified, rule.backward, setup_context=rule.setup_context, lib=library
    )
    return rule


class Rule:
    """The derivative of one operator in autograd's form."""

    def __init__(self, backward: Any, span: Span) -> None:
        self.overload = backward
        self.span = span

    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        for value in inputs:
            if isinstance(value, list | tuple) and any(
                isinstance(v, torch.Tensor) and v.requires_grad for v in value
            ):
                raise KernelValueError(
                    "a list of tensors cannot be differentiated here",
                    self.span,
                    help="pass each tensor as an argument of its own",
                )
        ctx.save_for_backward(*(v for v in inputs if isinstance(v, torch.Tensor)))
        ctx.inputs = [None if isinstance(v, torch.Tensor) else v for v in inputs]
        ctx.tensors = [isinstance(v, torch.Tensor) for v in inputs]
        outs = output if isinstance(output, tuple | list) else (output,)
        ctx.floats = [_is_float(o) for o in outs]

    def backward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if is_tensor else v
                  for v, is_tensor in zip(ctx.inputs, ctx.tensors, strict=True)]  # fmt: skip
        needed = ctx.needs_input_grad[-len(inputs) :]
        wanted = [k for k, need in enumerate(needed) if need and ctx.tensors[k]]
        given = [g for g, is_float in zip(grads, ctx.floats, strict=True) if is_float]
        if torch._C._are_functorch_transforms_active():
            found = TransformedBackward.apply(self, len(inputs), wanted, *inputs, *given)
        else:
            found = self.overload(*inputs, given, wanted)
        result: list[Any] = [None] * len(inputs)
        for k, g in zip(wanted, found, strict=True):
            result[k] = g
        return tuple(result)


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
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (None, None, *ctx.rule.backward(ctx, *grads))


class TransformedBackward(torch.autograd.Function):
    """The backward likewise. ``apply(rule, count, wanted, *inputs, *grads)``, ``count`` inputs."""

    @staticmethod
    def forward(rule: Rule, count: int, wanted: list[int], *values: Any) -> tuple[Any, ...]:
        return tuple(rule.overload(*values[:count], list(values[count:]), wanted))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.span = inputs[0].span

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        raise _second(ctx.span)


def _second(span: Span) -> GradientError:
    return GradientError(
        "second derivatives are there in plain eager calls only",
        span,
        help="call the kernel outside of torch.compile and torch.func",
    )


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
