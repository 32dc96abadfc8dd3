"""The derivatives of a kernel as operators: what ``torch.compile`` and dispatch modes go through.

The backward of ``weft::f`` is the operator ``weft::f_backward``, and ``weft::f_jvp`` gives the
tangents of its results. Each is an operator like ``f``, whose derivatives are made in the same way
when they are asked for: ``f_backward_jvp`` is forward over reverse mode. In plain eager calls no
operator is involved; ``torch.func`` has its own way (``transforms.py``).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from weft.frames import shorten, user_frames
from weft.pytorch import flops
from weft.pytorch.ambient import autocast_state, drawing_nothing, under, under_dtype
from weft.pytorch.around import Seen
from weft.pytorch.batches import filled, in_front, under_vmap
from weft.pytorch.boxed import BoxedKernel, reaches_device
from weft.pytorch.derivatives import Made, pushed, recorded
from weft.pytorch.dynamo import untraced
from weft.pytorch.forward_level import has_dual, is_open, primal_of
from weft.pytorch.hidden import AGAIN, asked_here
from weft.pytorch.inputs import Structure, items
from weft.pytorch.namespace import Family, without_defaults
from weft.pytorch.samples_op import Samples, extra_arguments
from weft.pytorch.transforms import is_float
from weft.pytorch.unchanged import Noting, held_to, is_noting
from weft.source import Span

if TYPE_CHECKING:
    from weft.pytorch.cost import Counter

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
BACKWARD, JVP = "backward", "jvp"  # kinds of derivatives

# Gives a fake kernel that tells Inductor of the operator, whose name it takes, and what takes apart
# the operator's arguments.
Offering = Callable[[Callable[..., Any], str, Callable[..., Any]], Callable[..., Any]]


def register(
    name: str, schema: str, made: Made, reads: Callable[[Sequence[Any]], bool], family: Family,
    span: Span, direct: Callable[..., Any] | None = None,
    boxed: Callable[[], BoxedKernel | None] = lambda: None, offering: Offering | None = None,
    constant: Callable[[Sequence[Any]], Collection[int]] = lambda _: (),
) -> Rule:  # fmt: skip
    """Makes the operator ``name`` of ``family`` (a kernel that writes to none of its arguments)
    differentiable. ``made`` and ``reads``: see ``Rule``; ``schema`` is that of its arguments.
    ``direct`` carries out calls that are plain (see ``is_plain``), ``boxed`` makes machine code of
    the backward; ``offering`` and ``constant``: see ``Rule``."""
    rule = Rule(family, name, schema, made, span, reads, boxed=boxed, offering=offering,
                constant=constant)  # fmt: skip

    def derive(overload: Any, made: Made) -> Rule:
        more = f"{schema}{', ' if schema else ''}{extra_arguments(name)}"
        return register(f"{name}_vmap", more, made, lambda _: False, family, span)

    Samples(family, rule.overload, made, derive)
    rule.differentiate(direct)
    return rule


def is_plain(keyset: Any) -> bool:
    """Whether nothing stands between autograd and the device, and there are no tangents."""
    return (
        reaches_device(keyset.raw_repr())
        and not torch._C._are_functorch_transforms_active()
        and not is_open()
        and not torch._C._len_torch_function_stack()  # which would see that modes change
    )


class Rule:
    """The derivatives of the operator ``name`` of ``family``, whose arguments are ``schema``.

    ``made`` carries it out so that autograd sees it. ``reads(inputs)``: whether ``made`` gains from
    what the operator has returned, which then is saved. ``of``: the rule of the operator whose
    derivative this one is, of the ``kind``, if it is one. ``boxed`` makes machine code of the
    backward, of which ``offering`` tells Inductor. ``constant(inputs)``: which of the results have
    no history, as they do not depend on what has one.
    """

    def __init__(
        self, family: Family, name: str, schema: str, made: Made, span: Span,
        reads: Callable[[Sequence[Any]], bool] = lambda _: False,
        of: Rule | None = None, kind: str = "",
        boxed: Callable[[], BoxedKernel | None] = lambda: None, offering: Offering | None = None,
        constant: Callable[[Sequence[Any]], Collection[int]] = lambda _: (),
    ) -> None:  # fmt: skip
        self.family, self.name, self.schema, self.made = family, name, schema, made
        self.span, self.reads, self.of, self.kind = span, reads, of, kind
        self.boxed, self.offering, self.constant = boxed, offering, constant
        operators = getattr(torch.ops, family.namespace.namespace)
        self.overload = getattr(operators, name).default
        self.count = len(self.overload._schema.arguments)
        self._derived = dict[str, Rule]()
        self._before = threading.local()  # the operator is carried out: what it has ``seen``
        family.rules[name] = self

    def plain(self, *inputs: Any) -> Any:
        """Carries the operator out so that autograd sees it."""
        return self.made(inputs, None)

    # --- the operators ---------------------------------------------------------------------------
    def derived(self, kind: str) -> Rule:
        """The rule of the operator that is the derivative of this ``kind``."""
        with self.family.namespace.lock:
            if kind not in self._derived:
                make = self._backward if kind == BACKWARD else self._jvp
                self._derived[kind] = make()
            return self._derived[kind]

    def _backward(self) -> Rule:
        """The operator ``<name>_backward(inputs..., grads, wanted, outs, given, unchanged)``.

        ``grads`` are those of the results of floats that ``given`` numbers, None: of all. Nobody
        looks at the others, whose slopes may be infinite: no zeros stand for them. ``unchanged``
        is of no meaning: what gives it (``unchanged.py``) comes before. The last three may be left
        out: graphs do that which torch keeps from before there were such arguments.
        """
        n = self._number()
        arguments = f"Tensor[] grads{n}, int[] wanted{n}, Tensor[]? outs{n}=None"
        arguments += f", int[]? given{n}=None, Tensor? unchanged{n}=None"
        split = self.split

        def made(
            passed: Sequence[Any], _: Sequence[torch.Tensor] | None = None,
            counter: Counter | None = None, *, again: bool = True,
        ) -> list[torch.Tensor]:  # fmt: skip
            return recorded(self.made, *split(passed), again=again, counter=counter)

        def fake(*passed: Any) -> list[torch.Tensor]:
            inputs, _, _, numbers, _ = split(passed)
            tensors, _ = Structure.of(inputs)
            wanted = [tensors[k] for k in numbers]
            return [torch.empty(t.size(), dtype=t.dtype, device=t.device) for t in wanted]

        return self._derivative(BACKWARD, arguments, made, fake, self.boxed(), self.offering)

    def _jvp(self) -> Rule:
        """The operator ``<name>_jvp(inputs..., tangents, which)``."""
        n, count = self._number(), self.count
        arguments = f"Tensor[] tangents{n}, int[] which{n}"

        def made(
            passed: Sequence[Any], _: Sequence[torch.Tensor] | None = None,
            counter: Counter | None = None, *, again: bool = True,
        ) -> list[torch.Tensor]:  # fmt: skip
            tangents, which = passed[count:]
            given = self.made, passed[:count], which, tangents
            return pushed(*given, self.span, again=again, counter=counter)

        def fake(*passed: Any) -> list[torch.Tensor]:
            return [torch.empty_like(o) for o in items(self.overload(*passed[:count]))]

        return self._derivative(JVP, arguments, made, fake)

    def _number(self) -> int | str:
        """What tells the arguments of a derivative from those of ``name``: Inductor wants names
        that differ."""
        return self.name.count(f"_{BACKWARD}") + self.name.count(f"_{JVP}") or ""

    def _derivative(
        self, kind: str, arguments: str, made: Made, fake: Callable[..., Any],
        code: BoxedKernel | None = None, offering: Offering | None = None,
    ) -> Rule:  # fmt: skip
        family, name = self.family, f"{self.name}_{kind}"
        ahead = f"{without_defaults(self.schema)}{', ' if self.schema else ''}"
        schema = f"{ahead}{arguments}"

        run, counted = _runs(made, family, self.span)
        carried_out = run if code is None else code.taught(run)
        told = fake if offering is None else offering(fake, name, self.split)
        overload = family.define(name, f"({schema}) -> Tensor[]", carried_out, told)
        rule = Rule(family, name, schema, made, self.span, of=self, kind=kind)
        rule.differentiate()
        family.batch(name, rule.on_samples)
        if code is not None:
            code.attach(family, name)
        # The hash of the packet is that of what ``attach`` puts there.
        flops.register(family, overload, self.span, counted)
        return rule

    def split(self, passed: Sequence[Any]) -> tuple[Sequence[Any], Any, Any, Any, Any]:
        """Of arguments of the backward: those of the operator, and ``outs``, ``grads``,
        ``wanted``, ``given``."""
        grads, wanted, outs, given = (*passed[self.count :], None, None)[:4]
        return passed[: self.count], outs, grads, wanted, given

    # --- vmap ------------------------------------------------------------------------------------
    def sampled(
        self, passed: Sequence[Any], dims: Sequence[Any], size: Any, randomness: str,
        need: Sequence[int] = (),
    ) -> tuple[Any, Rule, list[Any]]:  # fmt: skip
        """The operator for every sample of ``name``, its rule, and its arguments (see
        ``Samples``): the derivative of all samples."""
        if self.of is None:
            samples = self.family.samples[self.name]
            return *samples.operator, samples.arguments(passed, dims, size, randomness, need)
        count = self.of.count
        inputs, (along, numbers, *others) = passed[:count], passed[count:]
        tensors = len(Structure.of(inputs)[0])
        more = sorted({*numbers, *(k for k in need if k < tensors)})
        _, rule, args = self.of.sampled(inputs, dims[:count], size, randomness, more)
        args += [_batches(along, dims[count], size), numbers]
        for outs in others[:1]:
            args.append(None if outs is None else _batches(outs, dims[count + 2], size))
        args += others[1:]  # which are given
        derived = rule.derived(self.kind)
        return derived.overload, derived, args

    def on_samples(
        self, passed: Sequence[Any], dims: Sequence[Any], size: Any, randomness: str
    ) -> tuple[Any, list[Any]]:
        overload, _, args = self.sampled(passed, dims, size, randomness)
        return overload, args

    # --- autograd --------------------------------------------------------------------------------
    def differentiate(self, direct: Callable[..., Any] | None = None) -> None:
        """Tells autograd of the operator. ``direct``: see ``register``."""
        if direct is not None:
            self.family.direct[self.name] = direct
        overload = self.overload
        differentiable = make_autograd_impl(overload, Info(self.backward, self.record))

        def autograd(keyset: Any, *passed: Any) -> Any:
            if direct is not None and is_plain(keyset):
                return direct(*passed)
            # The graph that Dynamo makes of a transform calls the operator at each level by itself.
            if has_dual(passed) or (
                torch._C._are_functorch_transforms_active() and torch._C._any_requires_grad(*passed)
            ):
                tensors, form = Structure.of(passed)
                with enable_single_level_autograd_function():
                    found: Any = Dual.apply(keyset, overload, self, form, *tensors)
                return found if self.of is None else [*found]
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*passed):
                self._before.seen = self.family.around.seen()
                noting = is_noting(self.family, passed)
                with asked_here():  # autograd is off where it is carried out
                    return (self.noting if noting else differentiable)(keyset, *passed)
            try:
                with torch._C._AutoDispatchBelowAutograd():
                    return overload.redispatch(keyset & torch._C._after_autograd_keyset, *passed)
            except Exception as error:
                shorten(error)
                raise

        self.family.differentiate(self.name, autograd)

    @functools.cached_property
    def noting(self) -> Noting:
        """What a graph with a backward has of the operator."""
        with self.family.namespace.lock:
            return Noting(self)

    def record(
        self, ctx: Any, inputs: Sequence[Any], output: Any, note: torch.Tensor | None = None
    ) -> None:
        self.setup_context(ctx, inputs, output, self._before.seen, note)
        if constant := self.constant(inputs):
            made = items(output)
            ctx.mark_non_differentiable(*(made[k] for k in constant))

    def setup_context(
        self, ctx: Any, inputs: Sequence[Any], output: Any, seen: Seen,
        note: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """``seen``: what was around before the call, ``note``: what a graph has of that."""
        tensors, ctx.form = Structure.of(inputs)
        made = items(output)
        outs = [o for o in made if isinstance(o, torch.Tensor)] if self.reads(inputs) else []
        ctx.noted = note is not None
        ctx.save_for_backward(*tensors, *outs, *([note] if note is not None else ()))
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)  # see ``_backward``
        ctx.count = len(tensors)
        ctx.floats = [is_float(o) for o in made]
        ctx.shapes = [(o.size(), o.dtype, o.device) for o in made]
        ctx.autocast, ctx.dtype, ctx.seen = autocast_state(), torch.get_default_dtype(), seen

    def gradients(
        self, ctx: Any, needed: Sequence[bool], grads: Sequence[Any]
    ) -> Sequence[Any]:  # fmt: skip
        """The gradient of each of the tensors that are ``needed``, None for the others."""
        return under_vmap(functools.partial(_gradients, self, ctx, needed), grads)

    @untraced
    @user_frames
    def backward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """As ``make_autograd_impl`` wants it: by input, lists of tensors being lists."""
        form: Structure = ctx.form
        needed: list[bool] = []
        for place, need in zip(form.places, ctx.needs_input_grad[ctx.noted :], strict=True):
            if place is not None:
                needed += [need] if isinstance(place, int) else need
        flat = grads[0] if len(grads) == 1 and isinstance(grads[0], list | tuple) else grads
        return tuple(form.inputs(self.gradients(ctx, needed, flat), others=False))

    def jvp(self, ctx: Any, tangents: Sequence[Any]) -> Any:
        """The tangents of the results, where the tensors have ``tangents``."""
        tensors = [primal_of(v) if is_float(v) else v for v in ctx.saved_tensors[: ctx.count]]
        which = [k for k, t in enumerate(tangents) if isinstance(t, torch.Tensor)]
        passed = [*ctx.form.inputs(tensors), [tangents[k] for k in which], which]
        self.family.around.check(ctx.seen)
        # Torch turns forward mode off while it asks for tangents, for the levels around, too.
        outer = torch._C._are_functorch_transforms_active()
        with forward_ad._set_fwd_grad_enabled(outer or torch._C._is_fwd_grad_enabled()):
            found = self.derived(JVP).overload(*passed)
        made = [t if has else None for t, has in zip(found, ctx.floats, strict=True)]
        return made[0] if len(made) == 1 and self.of is None else tuple(made)


def _gradients(rule: Rule, ctx: Any, needed: Sequence[bool], *grads: Any) -> list[Any]:
    saved = ctx.saved_tensors  # once: a checkpoint lets each be taken out a single time
    end = len(saved) - ctx.noted
    tensors, outs = saved[: ctx.count], list(saved[ctx.count : end])
    inputs = ctx.form.inputs(tensors)
    wanted = [k for k, need in enumerate(needed) if need]
    floats = [g for g, is_float in zip(grads, ctx.floats, strict=True) if is_float]
    given = [k for k, g in enumerate(floats) if g is not None]
    if not given:
        return [None] * len(tensors)
    known = [floats[k] for k in given]
    rule.family.around.check(ctx.seen)
    held = held_to(saved[-1], rule.overload, known) if ctx.noted else None
    passed = [*inputs, known, wanted, outs, given, held]
    with under(ctx.autocast), under_dtype(ctx.dtype):
        sharded = rule.family.sharded
        if sharded is not None and rule.of is None and sharded.concerns(passed):
            found = sharded.gradients(rule, inputs, _filled(ctx, grads), wanted, outs)
        else:
            derived = rule.derived(BACKWARD)
            active = torch._C._are_functorch_transforms_active()
            found = (transformed(derived.overload, derived, passed) if active
                     else derived.overload(*passed))  # fmt: skip
    result: list[Any] = [None] * len(tensors)
    for k, g in zip(wanted, found, strict=True):
        result[k] = g
    return result


def _runs(made: Made, family: Family, span: Span) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What carries a derivative out, whose host part must be the same again, and what counts it."""

    def run(*passed: Any) -> list[torch.Tensor]:
        seen = family.around.seen()
        family.around.refuse(seen)
        with AGAIN.known(), drawing_nothing(passed, span, [*seen.sources.values()]):
            return made(passed, again=False)

    def counted(counter: Counter, passed: Sequence[Any]) -> None:
        with AGAIN.known():
            made(passed, None, counter, again=False)

    return run, counted


def _batches(tensors: Sequence[torch.Tensor], dims: Any, size: Any) -> list[torch.Tensor]:
    """``tensors`` as batches."""
    return [filled(t, size, has) for t, has in zip(*in_front([tensors], [dims]), strict=True)]


def _filled(ctx: Any, grads: Sequence[Any]) -> list[torch.Tensor]:
    """The gradients of the results of floats, zeros where there is none."""
    return [torch.zeros(shape, dtype=dtype, device=device) if g is None else g
            for g, is_float, (shape, dtype, device)
            in zip(grads, ctx.floats, ctx.shapes, strict=True) if is_float]  # fmt: skip


class Dual(_SingleLevelFunction):
    """The operator, called with dual tensors. ``apply(keyset, overload, rule, form, *tensors)``."""

    @staticmethod
    def forward(
        ctx: Any, keyset: Any, overload: Any, rule: Rule, form: Structure, *tensors: torch.Tensor
    ) -> Any:
        inputs, seen = form.inputs(tensors), rule.family.around.seen()
        outer = torch._C._are_functorch_transforms_active()  # whose levels below this one record
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(outer),
            forward_ad._set_fwd_grad_enabled(outer or torch._C._is_fwd_grad_enabled()),
        ):
            output = overload.redispatch(keyset & torch._C._after_autograd_keyset, *inputs)
        ctx.rule = rule
        rule.setup_context(ctx, inputs, output, seen)
        ctx.mark_non_differentiable(*(o for o in items(output) if not is_float(o)))
        return tuple(output) if isinstance(output, list) else output

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return ctx.rule.jvp(ctx, tangents[4:])

    @staticmethod
    @untraced
    @user_frames
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (*[None] * 4, *ctx.rule.gradients(ctx, ctx.needs_input_grad[4:], grads))


def transformed(overload: Any, rule: Rule, inputs: Sequence[Any]) -> Any:
    """``overload(*inputs)`` as ``torch.func`` wants a function to be."""
    tensors, form = Structure.of(inputs)
    return Transformed.apply(overload, rule, form, rule.family.around.seen(), *tensors)


class Transformed(torch.autograd.Function):
    """An operator with its rule. ``apply(overload, rule, form, seen, *tensors)``; ``seen``: see
    ``Rule.setup_context``."""

    @staticmethod
    def forward(
        overload: Any, rule: Rule, form: Structure, seen: Seen, *tensors: torch.Tensor
    ) -> Any:
        out = overload(*form.inputs(tensors))
        return tuple(out) if isinstance(out, list) else out

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.rule, form, seen, *tensors = inputs
        ctx.rule.setup_context(ctx, form.inputs(tensors), output, seen)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return ctx.rule.jvp(ctx, tangents[4:])

    @staticmethod
    @untraced
    @user_frames
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (*[None] * 4, *ctx.rule.gradients(ctx, ctx.needs_input_grad[4:], grads))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        _, rule, form, _, *tensors = args
        dims = form.inputs(in_dims[4:], others=False)
        found = transformed(*rule.sampled(form.inputs(tensors), dims, *info))
        return found, (0,) * len(found) if isinstance(found, tuple) else 0
