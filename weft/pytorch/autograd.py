"""Device loops as functions that autograd knows.

Each launch is an ``autograd.Function`` of the tensors that the loop reads and writes; what the host
part does between loops is ordinary PyTorch, which torch differentiates itself. The backward of a
launch launches the steps of its adjoint, in the same way: hence second derivatives.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd.function import _SingleLevelFunction

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
from weft.autodiff.adjoint import Adjoint
from weft.errors import GradientError
from weft.frames import user_frames
from weft.frontend.specs import Spec
from weft.ir.types import MemRefType
from weft.pytorch import overwriting, tape
from weft.pytorch.batches import (
    expanded,
    is_batched,
    outside,
    samples_of,
    under_vmap,
    unwrapped,
    wrapped,
)
from weft.pytorch.dynamo import untraced, with_zeros
from weft.pytorch.fitting import Sizes
from weft.pytorch.forward_fields import constants
from weft.pytorch.forward_level import is_dual, tangent_of, within_level
from weft.pytorch.forward_mode import Along
from weft.pytorch.loop import NEVER, Loop, Make, Reversed
from weft.pytorch.overwriting import Held, Referred
from weft.pytorch.ownership import owned
from weft.pytorch.references import REFERENCES
from weft.pytorch.sorted_rows import added, order_of
from weft.pytorch.workspaces import computed_in, of_gradient
from weft.runtime import record
from weft.runtime.backing import backed, is_backed, put_back
from weft.runtime.fastpath import passed
from weft.runtime.launch import Launcher, one_or_all, overlaps
from weft.runtime.overlap import dense, is_uniform, strided, uniform_in
from weft.runtime.pairs import apart
from weft.runtime.signature import TORCH_DTYPES, come_apart
from weft.settings import rarely_collected
from weft.values import mutable

_WRITTEN_OUT = record.MOST_SPREAD


@mutable
class Call:
    """One launch: ``values`` for the arguments, with None where ``tensors`` go, in this order: the
    memref arguments, then copies of those in ``before``."""

    loop: Loop
    values: list[Any]
    reversed: Reversed | None  # None where no gradient is wanted
    wanted: frozenset[int]
    run: Callable[[Sequence[Any]], None]
    saved: list[str]
    along: Along | None = None  # where there are tangents
    before: Sequence[int] = ()
    held: Sequence[Held] = ()  # instead of what is saved: what may be overwritten
    constant: Collection[int] = ()  # of what is written: it has no derivative
    learn: Callable[[Reversed, Mapping[str, Any]], None] | None = None

    def carry_out(self, tensors: Sequence[torch.Tensor]) -> None:
        if self.along is not None and not self.along.recording:
            self.along.carry_out()
            return
        values = list(self.values)
        for k, tensor in zip(self.loop.memrefs, tensors, strict=False):
            values[k] = tensor
        self.run(values)

    def seen(self, results: Collection[int]) -> Loop:
        """The loop that writes no more than these ``results``, if all is saved that its gradient
        reads."""
        loop = self.loop
        floats = {k for k in loop.written if loop.function.args[k].memref.element.is_float}
        unseen = frozenset(floats - self.wanted - {*results})
        found = loop.without(unseen) if unseen else loop
        if found is loop:
            return loop
        made = found.reversed(self.wanted, frozenset(found.written) - self.wanted)
        names = [loop.names[k] for k in loop.memrefs]
        given = {*names, *map(loop.before_name, loop.memrefs)} & made.reads - {*self.saved}
        return found if all(given & {*s.names} <= s.sized for s in made.steps) else loop

    def named(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Everything by the name that the steps know it by."""
        names = [self.loop.names[k] for k in self.loop.memrefs]
        names += map(self.loop.before_name, self.before)
        env = dict(zip(names, tensors, strict=True))
        for name, value in zip(self.loop.names, self.values, strict=True):
            if name not in env:
                env[name] = value
        return env


class Launch(torch.autograd.Function):
    """``forward(call, *tensors)`` gives the tensors that the loop has written, then what is held of
    them, so that it has a derivative."""

    generate_vmap_rule = False

    @staticmethod
    def forward(call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call.carry_out(tensors)
        places = {k: n for n, k in enumerate(call.loop.memrefs)}
        held = (h.saved(tensors[places[h.k]]) for h in call.held if h.graph)
        return (*(tensors[places[k]] for k in call.loop.written), *held)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, *tensors = inputs
        written = output[: len(call.loop.written)]
        ctx.mark_dirty(*written)
        ctx.call = call
        if call.reversed is None:
            return
        if call.constant:
            kept = zip(call.loop.written, written, strict=True)
            ctx.mark_non_differentiable(*(o for k, o in kept if k in call.constant))
        env = call.named(tensors)
        env.update(zip((call.loop.names[k] for k in call.loop.written), written, strict=True))
        if call.held:
            results = iter(output[len(written) :])
            env |= {h.name: next(results) if h.graph else h.taken(env[h.name]) for h in call.held}
        # Zeros would have derivatives: NaN, where those of a result at which nobody looks are not
        # finite. Of what is held there is seldom a gradient.
        ctx.set_materialize_grads(len(output) == 1)
        sizes = call.loop.sizes_of  # whose contents a later step may write
        ctx.save_for_backward(*(torch.empty_like(env[name]) if name in sizes else env[name]
                                for name in call.saved))  # fmt: skip
        ctx.shapes = [t.size() for t in tensors]
        ctx.dtypes = [t.dtype for t in tensors]
        ctx.device = tensors[0].device

    @staticmethod
    def jvp(ctx: Any, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call: Call = ctx.call
        along, call.along = call.along, None  # it holds the results, which hold ``ctx``
        assert along is not None
        found = along.handed_over()
        tangents = dict(zip(call.loop.written, found, strict=True))
        return (*found, *(h.tangent(tangents[h.k]) for h in call.held if h.graph))

    @staticmethod
    @untraced
    @user_frames
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        if torch._C._len_torch_dispatch_stack() and (loop := ctx.call.loop).make is None:
            from weft.pytorch.uncounted import warn_of_missed  # where something watches

            warn_of_missed(loop.function.span)
        call = functools.partial(Launch.gradients, ctx, owned(ctx, grads))
        return with_zeros(ctx, tuple(under_vmap(call, grads)))

    @staticmethod
    def gradients(ctx: Any, mine: frozenset[int], *grads: torch.Tensor | None) -> tuple[Any, ...]:
        call: Call = ctx.call
        loop, made = call.loop, call.reversed
        assert made is not None
        given = overwriting.with_held(loop, call.held, grads)
        of = call.seen({k for k, g in zip(loop.written, given, strict=True) if g is not None})
        lasting = torch.is_grad_enabled()  # a derivative of this derivative will be asked for
        if lasting or of is not loop:
            kept = frozenset(of.written) - call.wanted
            made = of.reversed(call.wanted, kept, lasting=lasting)
        prefix = loop.prefix
        places = {k: n for n, k in enumerate(loop.memrefs)}
        env: dict[str, Any] = dict(zip(loop.names, call.values, strict=True))
        env |= overwriting.saved_by_name(ctx)
        if of is not loop:  # which may ask for the sizes of what is not saved
            env |= {loop.names[k]: torch.empty(ctx.shapes[n], dtype=ctx.dtypes[n],
                                               device=ctx.device)
                    for k, n in places.items() if env[loop.names[k]] is None}  # fmt: skip
        spare, filled = set[str](), False
        for position, (k, grad) in enumerate(zip(loop.written, given, strict=True)):
            name, n = prefix + loop.names[k], places[k]
            if grad is None and k in of.written and ctx.dtypes[n].is_floating_point:
                filled = True
                grad = torch.zeros(ctx.shapes[n], dtype=ctx.dtypes[n], device=ctx.device)
            if grad is None or not grad.is_floating_point():
                continue
            env[name] = strided(dense((grad,))[0]).resolve_neg()
            if position in mine and grads[position] is env[name]:
                spare.add(name)
        shapes = {of.function.args[k]: ctx.shapes[n] for k, n in places.items()}
        batched = any(map(is_batched, grads))
        plain = not torch.is_grad_enabled() and not within_level() and not batched
        made, sizes = Sizes(of, call.values, call.wanted, env, shapes, ctx.device, plain).fitting(
            made
        )
        _check_deterministic(loop, made.adjoint)
        again = loop.launched is made.adjoint
        if plain:
            loop.launched = made.adjoint
            loop.sizes = sizes.remembered() if made.measure is not None else sizes
        if plain and loop.make is None:
            names = (prefix + loop.names[k] for k in loop.written)
            made = made.for_uniform(n for n in names if _is_read_uniform(env.get(n)))
        env |= sizes.make(ctx.device, plain=plain)
        for k, n in places.items():
            name, dtype = prefix + loop.names[k], ctx.dtypes[n]
            wide = computed_in(dtype, name in made.adjoint.narrow)
            if name in made.uniform:
                env[name] = uniform_in(env[name], wide)
            elif k in loop.written and name in env:
                g = env[name].to(wide).contiguous()
                copied = g is env[name] and name not in spare and name in made.writes
                env[name] = g.clone() if copied else g
            elif k in call.wanted and k not in loop.written:
                fill = name not in made.adjoint.defined
                env[name] = of_gradient(
                    ctx.shapes[n], wide, ctx.device, env.values(), plain=plain, fill=fill
                )
        with nullcontext() if again else rarely_collected:  # until the last of them is compiled
            _carry_out(made, env, plain=plain, batched=batched)
        for x in made.adjoint.listed:
            env[x.gradient] = added(env[x.gradient], env[x.places], env[x.values])
        found: list[Any] = [None] * len(ctx.shapes)
        for k in call.wanted:
            n = places[k]
            found[n] = env[prefix + loop.names[k]].to(ctx.dtypes[n])
        if plain and call.learn is not None and not filled:
            call.learn(made, env)
        overwriting.release(call.held)
        return (None, *found)


def _is_read_uniform(gradient: torch.Tensor | None) -> bool:
    """Whether steps are to read one element of a gradient given. Small ones on a CPU are written
    out by the builtin that launches (see ``history._spread``), which is code for any layout."""
    if not is_uniform(gradient):
        return False
    place = gradient.device.type
    return place == "cuda" or (place == "cpu" and gradient.nbytes > _WRITTEN_OUT)


def _carry_out(made: Reversed, env: dict[str, Any], *, plain: bool, batched: bool) -> None:
    """The steps, on what goes by name. ``plain``: nobody asks for a derivative of that."""
    for step in made.steps:
        for x in made.adjoint.sorted:
            if x.order in step.names and x.order not in env:
                env[x.order], env[x.starts] = order_of(env[x.keys], env[x.gradient], x.axes)
        values = made.values(step, env)
        if plain:
            step.run(values)
        elif batched:
            env |= on_samples(step, values)
        else:
            launch(step, values)


def on_samples(step: Loop, values: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Launches a step under ``vmap``. Gives what it writes, by name: batches, if there is one among
    ``values``."""
    with outside():
        pairs = [unwrapped(v) for v in values]
        tensors, levels = [t for t, _ in pairs], [own for _, own in pairs]
        sizes = samples_of(tensors, levels)
        if not sizes:
            launch(step, tensors)
            return {}
        every = tuple(sizes)
        for k in step.written:
            tensors[k], levels[k] = expanded(tensors[k], levels[k], sizes), every
        launch(step.over_samples(tensors, levels), tensors)
    return {step.names[k]: wrapped(tensors[k], every) for k in step.written}


def applied(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Its ``apply``, without what torch asks of signatures at each call for transforms' sake."""
    if torch._C._are_functorch_transforms_active():
        return function.apply
    return super(_SingleLevelFunction, function).apply  # type: ignore[misc]


@functools.cache
def _named(name: str) -> type[Launch]:
    """``Launch`` under the name that ``grad_fn`` and the profiler show."""
    return type(name, (Launch,), {})


def launch(
    loop: Loop, values: list[Any], run: Callable[[Sequence[Any]], None] | None = None,
    outs: Mapping[str, torch.Tensor | None] | None = None, met: Collection[int] = (),
) -> Sequence[Held]:  # fmt: skip
    """Launches ``loop`` on ``values`` for its function's arguments; autograd gets to know of it.
    Gives what is held of them.

    ``run``: how to carry it out, if not as the loop itself does. ``outs``: what it writes, by name,
    None if that is not to be had; if all that the gradient reads is there, it is not carried out.
    ``met``: what it writes and others know, which has no history where it has no derivative.
    """
    run = run or loop.run
    tensors = [values[k] for k in loop.memrefs]
    wanted = frozenset(
        k for k in loop.memrefs if values[k].requires_grad and values[k].is_floating_point()
    )
    recording = bool(wanted) and torch.is_grad_enabled()
    if recording and any(tape.field_of(values[k]) is not None for k in loop.written):
        found = tape.recorded(values, loop.written, wanted, loop.function.span)
        recording, values = found is not None, found or values
        tensors = [values[k] for k in loop.memrefs]
    tangents = {k: t for k in loop.memrefs if (t := tangent_of(values[k])) is not None}
    if not recording and not tangents:
        with torch.no_grad():
            run(values)
        return ()
    for k in loop.written:
        _check_written(loop, k, values[k], recording)
    views = [k for k in loop.written if values[k]._is_view()]
    if views and recording and len(loop.written) > 1:
        raise GradientError(
            f"the loop writes to {len(loop.written)} tensors, and `{loop.names[views[0]]}` is a "
            "view: torch cannot follow that",
            loop.function.span,
            help="write each in a loop of its own, or write to whole tensors",
        )
    fixed = [None if isinstance(v, torch.Tensor) else v for v in values]
    call = Call(loop, fixed, None, wanted, run, [])
    if tangents:
        call.along = Along(loop, values, tangents, on_samples)
        again = next((k for k in loop.written if k in tangents), None)
        if call.along.batches and again is not None:
            raise GradientError(
                f"the tangents are a batch, and the loop overwrites `{loop.names[again]}`, which "
                "has some: torch cannot follow that", loop.function.span,
                help="call torch.func.jacfwd in place of jacobian(..., vectorize=True)",
            )  # fmt: skip
    if recording:
        made = loop.reversed(wanted, frozenset(loop.written) - wanted)
        if made.steps or tangents:
            call.before = [k for k in loop.before if loop.before_name(k) in made.reads]
            tensors += [values[k].clone() for k in call.before]
            call.reversed = made
            if not tangents:
                call.constant = loop.constant(wanted) & {*met}
            if outs is not None and not tangents:
                call.run = _filling(loop, made, outs) or run
            call.saved = [n for n, v in call.named(tensors).items()
                          if n in made.reads and isinstance(v, torch.Tensor)]  # fmt: skip
            later = tape.overwritten_later(loop, values)
            if later is not NEVER:
                copied = bool(tangents) or overwriting.is_hooked()
                call.held = overwriting.hold(
                    loop, values, call.saved, wanted, later, graph=not views, copied=copied
                )
        else:
            with torch.no_grad():
                run(values)
            return ()
    applied(_named(loop.function.name))(call, *unwrap_dead_wrappers((*tensors,)))
    call.run = loop.run  # lets go of the tensors, which hold ``call`` by their history
    if (active := tape.Tape.active()) is not None:
        for k in loop.written:
            field = tape.field_of(values[k])
            if field is not None:
                active.wrote(field, loop.names[k])
    return call.held


def _filling(
    loop: Loop, made: Reversed, outs: Mapping[str, torch.Tensor | None]
) -> Callable[[Sequence[Any]], None] | None:
    """Instead of carrying ``loop`` out: what ``made`` reads of its results is copied. None where
    ``outs`` does not say all of it."""
    written = {k: loop.names[k] for k in loop.written}
    needed = {k: outs.get(name) for k, name in written.items() if name in made.reads}
    if not all(name in outs for name in written.values()):
        return None
    if any(out is None for out in needed.values()):
        return None

    def run(values: Sequence[Any]) -> None:
        for k, out in needed.items():
            values[k].copy_(out)

    return run


def _check_deterministic(loop: Loop, adjoint: Adjoint) -> None:
    """Under ``torch.use_deterministic_algorithms(True)``: refuses sums whose order is not fixed."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    for name, note in adjoint.notes.items():
        if note.startswith("atomic"):
            message = f"the gradient `{name}` is {note}, which is not deterministic"
            help = (
                "turn torch.use_deterministic_algorithms off, or write the loop over the elements "
                "that are read"
            )
            if not torch.is_deterministic_algorithms_warn_only_enabled():
                raise GradientError(message, loop.function.span, help)
            warnings.warn(message, stacklevel=2)


_META = torch._C._autograd.CreationMeta
_VIEWS = {
    _META.MULTI_OUTPUT_NODE: "one of several views that one call made",
    _META.NO_GRAD_MODE: "one of several views, or one that was made in no_grad mode",
    _META.INFERENCE_MODE: "a view that was made in inference mode",
    _META.IN_CUSTOM_FUNCTION: "a view that an autograd.Function gave",
}


def _check_written(loop: Loop, k: int, tensor: torch.Tensor, recording: bool) -> None:
    """Raises ``GradientError`` where torch would refuse what is written once it is: the memory is
    as it was then, and so are gradients that need it. ``recording``: not for tangents alone."""
    base = tensor if tensor._base is None else tensor._base
    if base.requires_grad and base.is_leaf:
        name = loop.names[k]
        raise GradientError(
            f"`{name}` requires grad and is written by the loop", loop.function.span,
            help=f"write to a new tensor, or to a copy: `{name} = {name}.clone()` in the host part",
        )  # fmt: skip
    if (
        recording
        and tensor._is_view()
        and (how := _VIEWS.get(torch._C._autograd._get_creation_meta(tensor)))
    ):
        raise GradientError(
            f"`{loop.names[k]}` is {how}, the loop writes to it, and a gradient is recorded: torch "
            "cannot follow that", loop.function.span,
            help="write to a view by a subscript that is made where gradients are recorded, "
            "base[a:b], or to a tensor of its own",
        )  # fmt: skip


def differentiate(
    launcher: Launcher, args: tuple[Any, ...], make: Make | None = None,
    outs: Mapping[str, torch.Tensor | None] | None = None,
) -> Any:  # fmt: skip
    """A launch of a kernel's loop while gradients are recorded. Gives what the launcher gives.
    ``make``: what carries the loop out, and all that is derived from it, if it is not compiled.
    ``outs``: what the loop writes, by name, if that is known already (see ``launch``)."""
    given, args = args, dense(args)
    specs = list(launcher.forms.specs(args).values())
    launcher.forms.check(args)
    place = next(v.device.type for v in args if isinstance(v, torch.Tensor))
    loop = loop_of(launcher, specs, place, make)
    values = passed(specs, args)
    own = passed(specs, given)
    if any(values[k].device != own[k].device for k in loop.written if k < len(own)):
        launcher.forms.check(given)  # it would write to the copy
    if place != "meta" and overlaps(launcher, specs, given, loop.function):
        raise GradientError(
            "memory that the loop writes is also read or written through another argument, and a "
            "gradient is asked for", loop.function.span, help="pass a copy: x.clone()",
        )  # fmt: skip
    device = next(v.device for v in values if isinstance(v, torch.Tensor))
    results = []
    for argument in loop.function.args[len(values) :]:
        assert isinstance(argument.type, MemRefType)
        dtype = TORCH_DTYPES[argument.type.element.name]
        results.append(torch.empty((), dtype=dtype, device=device))

    def run(values: Sequence[Any]) -> None:
        found = launcher.entry(*args)
        for made, result in zip(
            results, (found,) if len(results) == 1 else found or (), strict=True
        ):
            made.copy_(result)

    if outs is not None:  # results come last, under names of their own
        totals = zip(launcher.region.totals, loop.names[len(values) :], strict=True)
        outs = {**outs, **{own: outs[name] for name, own in totals if name in outs}}
    fresh = {arg.name for arg in launcher.region.args if arg.fresh}
    met = [k for k in loop.written if k < len(values) and loop.function.args[k].name not in fresh]
    tracked(loop, values, results, run if make is None else None, outs, met)
    return one_or_all(results)


def tracked(
    loop: Loop, values: list[Any], results: Sequence[torch.Tensor],
    run: Callable[[Sequence[Any]], None] | None = None,
    outs: Mapping[str, torch.Tensor | None] | None = None, met: Collection[int] = (),
) -> None:  # fmt: skip
    """``launch`` of a kernel's loop on ``values``, and on ``results`` that it reduces into: what it
    overwrites, and what was held of it, is known from then on."""
    written = [k for k in loop.written if k < len(values)]
    spared = REFERENCES.overwritten(
        [values[k] for k in written],
        lambda n: overwriting.touched(loop, written[n], values, writes=True),
    )
    values = [*values, *results]
    held = launch(loop, values, run, outs, met)
    for moment, tensor in spared:
        moment.version = tensor._version
    for one in (h for h in held if isinstance(h, Referred)):
        REFERENCES.add(one, values[one.k])


def with_tangents(launcher: Launcher, plain: Callable[[], Callable[..., Any]], *args: Any) -> Any:
    """A launch of a kernel's loop inside of a level of forward mode; ``plain`` gives the launch
    without, which is another one where more is found that called functions reach."""
    if come_apart(launcher.region, args):
        return apart(
            launcher, args, lambda own, given: with_tangents(own, lambda: own.current, *given)
        )

    def call(given: tuple[Any, ...]) -> Any:
        if not any(map(is_dual, given)):  # unless there is more to be given
            _settle(launcher, dense(given))
            return plain()(*given)
        return differentiate(launcher, constants(given))

    return extended(launcher, args, call)


def _settle(launcher: Launcher, args: tuple[Any, ...]) -> None:
    """Finds the tensors that called functions reach: raises ``RegionChanged`` where there are."""
    place = next((v.device.type for v in args if isinstance(v, torch.Tensor)), None)
    if place is not None:
        loop_of(launcher, list(launcher.forms.specs(args).values()), place)


def with_functions(launcher: Launcher, make: Make, *args: Any) -> Any:
    """A launch of a kernel's loop that ``make`` carries out, and all that is derived from it."""
    if come_apart(launcher.region, args):
        return apart(launcher, args, lambda own, given: with_functions(own, make, *given))
    return extended(launcher, args, lambda given: differentiate(launcher, given, make))


def extended(
    launcher: Launcher, args: tuple[Any, ...], call: Callable[[tuple[Any, ...]], Any]
) -> Any:
    """``call`` of the arguments and the tensors that called functions reach."""
    if is_backed(launcher.region, args):
        tensors = backed(launcher.region, args)
        results = extended(launcher, tensors, call)
        put_back(launcher.region, args, tensors)
        return results
    return launcher.forms.retried(args, call)


def loop_of(
    launcher: Launcher, specs: Sequence[Spec], place: str, make: Make | None = None
) -> Loop:
    """The loop for arguments of these specs."""
    special = launcher.forms.specialize(list(specs), place=place)
    if make is None and special.derived is not None:
        return special.derived
    loop = Loop(special.compiled.function, launcher.options, make)
    loop.later = overwriting.overwritten_later(launcher, specs)
    if not launcher.options.strict_math:
        loop.results = overwriting.made_here(launcher, specs) - frozenset().union(*loop.later)
    if make is None:
        special.derived = loop
    return loop
