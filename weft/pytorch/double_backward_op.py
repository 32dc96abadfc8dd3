"""The backward of an operator as an operator, and its backward, and so on.

``weft::f_backward`` carries the kernel's host part out again with gradients recorded, and
differentiates that: what is between loops then is what it was. The loop of a kernel that has one
is not carried out again: what it has written is what the operator has returned
(``skip_forward.py``). The backward of ``f_backward`` is made in the same way when it is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._library.autograd import Info, make_autograd_impl

from weft.frames import user_frames
from weft.pytorch import flops
from weft.pytorch.ambient import autocast_state, drawing_nothing, under
from weft.pytorch.batches import filled, in_front, under_vmap
from weft.pytorch.boxed import BoxedKernel
from weft.pytorch.forward_level import is_dual
from weft.pytorch.namespace import Family, without_defaults
from weft.pytorch.transforms import PLAIN, gradients, is_float, items
from weft.source import Span
from weft.values import frozen

if TYPE_CHECKING:
    from weft.pytorch.cost import Counter

# pyright: reportPrivateUsage=false

# Carries an operator out: ``made(inputs, outs)``. ``outs``, unless it is None, says that only the
# derivative is wanted: what the operator has returned before, or nothing if that is not read. After
# these, it takes what counts the loops instead of carrying them out.
Made = Callable[..., Any]

# Gives a fake kernel that tells Inductor of the operator, whose name it takes, and what takes apart
# the operator's arguments.
Offering = Callable[[Callable[..., Any], str, Callable[..., Any]], Callable[..., Any]]


@frozen
class Form:
    """Where tensors are among an operator's inputs: for each input 1, the length of a list of
    tensors as a tuple of one, or None; and the inputs that are no tensors."""

    places: tuple[int | tuple[int] | None, ...]
    others: tuple[Any, ...]

    @staticmethod
    def of(inputs: Sequence[Any]) -> tuple[list[torch.Tensor], Form]:
        """The tensors in ``inputs``, and where they were."""
        tensors: list[torch.Tensor] = []
        places: list[int | tuple[int] | None] = []
        others: list[Any] = []
        for value in inputs:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                places.append(1)
            elif isinstance(value, list | tuple) and all(
                isinstance(v, torch.Tensor) for v in value
            ):
                tensors += value
                places.append((len(value),))
            else:
                others.append(value)
                places.append(None)
        return tensors, Form(tuple(places), tuple(others))

    def inputs(self, tensors: Sequence[Any], *, others: bool = True) -> list[Any]:
        """The inputs again, with ``tensors`` in their places; without ``others``, None for them."""
        given, rest = iter(tensors), iter(self.others)

        def value(place: int | tuple[int] | None) -> Any:
            if place is None:
                return next(rest) if others else None
            if isinstance(place, int):
                return next(given)
            return [next(given) for _ in range(place[0])]

        return [value(place) for place in self.places]


def recorded(
    made: Made, inputs: Sequence[Any], outs: Sequence[torch.Tensor] | None,
    grads: Sequence[torch.Tensor], wanted: Sequence[int], *, again: bool = False,
    counter: Counter | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of ``made(inputs, outs)`` for those of its tensors whose numbers are
    ``wanted``, given the gradients of its floats. ``again``: they can be differentiated;
    ``counter`` counts what is carried out."""
    autocast = autocast_state()  # of the call; a backward pass has none
    watching = contextlib.nullcontext() if counter is None else counter.watching()
    with torch._C._ForceDispatchKeyGuard(*PLAIN), torch.enable_grad(), watching:
        tensors, form = Form.of(inputs)
        for k in wanted:
            if not (again and tensors[k].requires_grad):
                tensors[k] = tensors[k].detach().requires_grad_()
        with under(autocast):
            out = made(form.inputs(tensors), outs, counter)
        outs = [o for o in items(out) if is_float(o)]
        found = gradients(outs, [tensors[k] for k in wanted], grads, again=again)
    return [g.contiguous().resolve_conj() for g in found]


def _batches(tensors: Sequence[torch.Tensor], dims: Any, size: Any) -> list[torch.Tensor]:
    """``tensors`` as batches."""
    return [filled(t, size, has) for t, has in zip(*in_front([tensors], [dims]), strict=True)]


class Backward:
    """The derivative of the operator ``name`` of ``family``, whose arguments are ``schema``.

    ``made`` carries it out so that autograd sees it. ``reads(inputs)``: whether ``made`` gains from
    what the operator has returned, which then is saved. ``refuse(name)`` raises the error that says
    that the operator ``name`` has no forward mode. ``of``: the rule of the operator whose backward
    this one is, if it is one.
    """

    def __init__(
        self, family: Family, name: str, schema: str, made: Made,
        reads: Callable[[Sequence[Any]], bool], refuse: Callable[[], Any], span: Span,
        of: Backward | None = None,
        boxed: Callable[[], BoxedKernel | None] = lambda: None, offering: Offering | None = None,
    ) -> None:  # fmt: skip
        self.family, self.name, self.schema, self.of = family, name, schema, of
        self.made, self.reads, self.refuse, self.span = made, reads, refuse, span
        self.boxed, self.offering = boxed, offering  # of the operator that is made here
        self._lock = threading.RLock()

    @functools.cached_property
    def operator(self) -> tuple[Any, Backward]:
        """The operator ``<name>_backward(inputs..., grads, wanted, outs)``, and its derivative.

        ``outs`` may be left out: graphs do that which torch keeps from before there was such an
        argument.
        """
        with self._lock:
            name = f"{self.name}_backward"
            ahead = f"{without_defaults(self.schema)}{', ' if self.schema else ''}"
            n = self.name.count("_backward") or ""  # Inductor wants names that differ
            schema = f"{ahead}Tensor[] grads{n}, int[] wanted{n}, Tensor[]? outs{n}=None"
            split = self.split

            def implementation(*passed: Any) -> list[torch.Tensor]:
                with drawing_nothing(passed, self.span):
                    return recorded(self.made, *split(passed))

            def again(
                passed: Sequence[Any], _: Sequence[torch.Tensor] | None,
                counter: Counter | None = None,
            ) -> list[torch.Tensor]:  # fmt: skip
                return recorded(self.made, *split(passed), again=True, counter=counter)

            def counted(counter: Counter, passed: Sequence[Any]) -> None:
                recorded(self.made, *split(passed), counter=counter)

            def fake(*passed: Any) -> list[torch.Tensor]:
                inputs, _, _, numbers = split(passed)
                tensors, _ = Form.of(inputs)
                wanted = [tensors[k] for k in numbers]
                return [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in wanted]

            family, code = self.family, self.boxed()
            run = implementation if code is None else code.taught(implementation)
            told = fake if self.offering is None else self.offering(fake, name, split)
            overload = family.define(name, f"({schema}) -> Tensor[]", run, told)
            rule = Backward(family, name, schema, again, lambda _: False, self.refuse, self.span,
                            self)  # fmt: skip
            differentiable = make_autograd_impl(overload, Info(rule.backward, rule.setup_context))

            def autograd(keyset: Any, *passed: Any) -> Any:
                if any(map(is_dual, Form.of(passed)[0])):
                    raise self.refuse()
                return differentiable(keyset, *passed)

            family.differentiate(name, autograd)
            family.batch(name, rule.on_samples)
            if code is not None:
                code.attach(family, name)
            # The hash of the packet is that of what ``attach`` puts there.
            flops.register(family, overload, self.span, counted)
            return overload, rule

    @functools.cached_property
    def count(self) -> int:
        """How many arguments the operator ``name`` has."""
        operators = getattr(torch.ops, self.family.namespace.namespace)
        return len(getattr(operators, self.name).default._schema.arguments)

    def split(self, passed: Sequence[Any]) -> tuple[Sequence[Any], Any, Any, Any]:
        """Of arguments of the backward: those of the operator, and ``outs``, ``grads``,
        ``wanted``."""
        grads, wanted, *outs = passed[self.count :]
        return passed[: self.count], outs[0] if outs else None, grads, wanted

    # --- vmap ------------------------------------------------------------------------------------
    def sampled(
        self, passed: Sequence[Any], dims: Sequence[Any], size: Any, randomness: str,
        need: Sequence[int] = (),
    ) -> tuple[Any, Backward, list[Any]]:  # fmt: skip
        """The operator for every sample of ``name``, its rule, and its arguments (see
        ``Samples``): the backward of all samples."""
        if self.of is None:
            samples = self.family.samples[self.name]
            return *samples.operator, samples.arguments(passed, dims, size, randomness, need)
        inputs, outs, grads, wanted = self.of.split(passed)
        own, given = dims[: self.of.count], dims[self.of.count :]
        tensors = len(Form.of(inputs)[0])
        more = sorted({*wanted, *(k for k in need if k < tensors)})
        _, rule, args = self.of.sampled(inputs, own, size, randomness, more)
        grads = _batches(grads, given[0], size)
        outs = None if outs is None else _batches(outs, given[2], size)
        return *rule.operator, [*args, grads, wanted, outs]

    def on_samples(
        self, passed: Sequence[Any], dims: Sequence[Any], size: Any, randomness: str
    ) -> tuple[Any, list[Any]]:
        overload, _, args = self.sampled(passed, dims, size, randomness)
        return overload, args

    # --- autograd --------------------------------------------------------------------------------
    def setup_context(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        tensors, ctx.form = Form.of(inputs)
        made = items(output)
        outs = [o for o in made if isinstance(o, torch.Tensor)] if self.reads(inputs) else []
        ctx.save_for_backward(*tensors, *outs)
        ctx.count = len(tensors)
        ctx.floats = [is_float(o) for o in made]
        ctx.autocast = autocast_state()

    def gradients(
        self, ctx: Any, needed: Sequence[bool], grads: Sequence[Any]
    ) -> Sequence[Any]:  # fmt: skip
        """The gradient of each of the tensors that are ``needed``, None for the others."""
        return under_vmap(functools.partial(self._gradients, ctx, needed), grads)

    def _gradients(self, ctx: Any, needed: Sequence[bool], *grads: Any) -> list[Any]:
        saved = ctx.saved_tensors  # once: a checkpoint lets each be taken out a single time
        tensors, outs = saved[: ctx.count], list(saved[ctx.count :])
        inputs = ctx.form.inputs(tensors)
        wanted = [k for k, need in enumerate(needed) if need]
        given = [g for g, is_float in zip(grads, ctx.floats, strict=True) if is_float]
        overload, rule = self.operator
        passed = [*inputs, given, wanted, outs]
        with under(ctx.autocast):
            sharded = self.family.sharded
            if torch._C._are_functorch_transforms_active():
                found = transformed(overload, rule, passed)
            elif sharded is not None and self.of is None and sharded.concerns(passed):
                found = sharded.gradients(self, inputs, given, wanted, outs)
            else:
                found = overload(*passed)
        result: list[Any] = [None] * len(tensors)
        for k, g in zip(wanted, found, strict=True):
            result[k] = g
        return result

    @user_frames
    def backward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """As ``make_autograd_impl`` wants it: by input, lists of tensors being lists."""
        form: Form = ctx.form
        needed: list[bool] = []
        for place, need in zip(form.places, ctx.needs_input_grad, strict=True):
            if place is not None:
                needed += [need] if isinstance(place, int) else need
        flat = grads[0] if len(grads) == 1 and isinstance(grads[0], list | tuple) else grads
        return tuple(form.inputs(self.gradients(ctx, needed, flat), others=False))

    def jvp(self, ctx: Any, tangents: Sequence[Any]) -> Any:
        """The tangents of the results, where the tensors have ``tangents``."""
        raise self.refuse()


def transformed(overload: Any, rule: Backward, inputs: Sequence[Any]) -> Any:
    """``overload(*inputs)`` as ``torch.func`` wants a function to be."""
    tensors, form = Form.of(inputs)
    return Transformed.apply(overload, rule, form, *tensors)


class Transformed(torch.autograd.Function):
    """An operator with its rule. ``apply(overload, rule, form, *tensors)``."""

    @staticmethod
    def forward(overload: Any, rule: Backward, form: Form, *tensors: torch.Tensor) -> Any:
        out = overload(*form.inputs(tensors))
        return tuple(out) if isinstance(out, list) else out

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.rule, form, *tensors = inputs
        ctx.rule.setup_context(ctx, form.inputs(tensors), output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return ctx.rule.jvp(ctx, tangents[3:])

    @staticmethod
    @user_frames
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (None, None, None, *ctx.rule.gradients(ctx, ctx.needs_input_grad[3:], grads))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        _, rule, form, *tensors = args
        dims = form.inputs(in_dims[3:], others=False)
        found = transformed(*rule.sampled(form.inputs(tensors), dims, *info))
        return found, (0,) * len(found) if isinstance(found, tuple) else 0
