"""Kernels under ``torch.func``: derivatives of any order and kind, made of eager calls.

``Eager.apply(f, *tensors)`` calls ``f``; its derivatives are again ``Eager.apply`` of functions
that differentiate eagerly what ``f`` does, and under ``vmap`` it is ``Eager.apply`` of one that
does for every sample what ``f`` does for one: derivatives are outside, batches inside, where the
host part runs under ``vmap`` and each device loop has one more index (``batching.py``).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch import pyfunctorch
from torch._functorch.vmap import vmap_increment_nesting
from torch.autograd import forward_ad

from weft.errors import KernelValueError
from weft.frames import user_frames
from weft.pytorch import batches
from weft.pytorch.ambient import Draws, function_modes, under_dtype, under_modes
from weft.pytorch.around import Around
from weft.pytorch.batches import Fresh, is_batched, level_of, unbatched, under_vmap, wrapped
from weft.pytorch.dynamo import untraced
from weft.pytorch.forward_level import is_dual, level, primal_of
from weft.pytorch.hidden import AGAIN, Asked, Hidden, foreign_error
from weft.pytorch.inputs import Structure, items
from weft.source import Span

# pyright: reportPrivateUsage=false


def _outside() -> tuple[Any, Any]:
    """What the dispatcher includes and excludes outside of any operator and mode: in a new thread,
    because this module may be imported inside of some."""
    found: list[Any] = []

    def find() -> None:
        found.append(torch._C._dispatch_tls_local_include_set())
        found.append(torch._C._dispatch_tls_local_exclude_set())

    thread = threading.Thread(target=find)
    thread.start()
    thread.join()
    return found[0], found[1]


PLAIN = _outside()

Many = Callable[..., tuple[torch.Tensor, ...]]


def is_float(value: Any) -> bool:
    """Whether ``value`` is a tensor of floats, or of complex numbers: of what has derivatives."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def of_floats(outs: Sequence[Any], given: Sequence[int] | None = None) -> list[torch.Tensor]:
    """Those of ``outs`` that are tensors of floats, or of these the ones that ``given`` numbers."""
    floats = [o for o in outs if is_float(o)]
    return floats if given is None else [floats[k] for k in given]


def gradients(
    outs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], grads: Sequence[torch.Tensor],
    *, again: bool = False,
) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of ``outs`` for ``leaves``, zeros where one is not used. ``again``: they can be
    differentiated."""
    pairs = [(o, g) for o, g in zip(outs, grads, strict=True) if o.requires_grad]
    found: Any = [None] * len(leaves)
    if pairs:
        found = torch.autograd.grad(
            [o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True,
            create_graph=again,
        )  # fmt: skip
    return [torch.zeros_like(v) if g is None else g for v, g in zip(leaves, found, strict=True)]


def is_functionalized(written: frozenset[str], span: Span) -> bool:
    """Whether ``torch.func.functionalize`` sees a call first: for it an operator is enough. Raises
    ``KernelValueError`` where torch has no rule for what is to happen then."""
    around = pyfunctorch.retrieve_all_functorch_interpreters()
    functional = [isinstance(i, pyfunctorch.FunctionalizeInterpreter) for i in around]
    if not any(functional):
        return False
    if written:
        raise KernelValueError(
            "the kernel writes to its arguments, and torch.func.functionalize has no rule for "
            "operators that do", span, help="return new tensors, or use torch.compile or "
            "torch.export, which functionalize kernels, too",
        )  # fmt: skip
    if not functional[-1]:
        raise KernelValueError(
            "torch.func.functionalize around another transform of torch.func has no rule for "
            "functions with derivatives of their own", span,
            help="functionalize inside: torch.func.grad(torch.func.functionalize(f))",
        )  # fmt: skip
    return True


def is_batch(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a batch, whose elements are those of another."""
    if type(tensor) is not torch.Tensor:
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:
        return True
    return False


def called(f: Callable[..., Any], values: Sequence[Any], span: Span, around: Around) -> Any:
    """``f(*values)`` under transforms of ``torch.func``: a tensor or a tuple of tensors. ``around``
    is what else it reads."""
    tensors, form = Structure.of(values)
    single = False
    draws: Draws | None = None
    seen, dtype = around.seen(), torch.get_default_dtype()
    # Torch takes modes (``torch.device``, say) away while it transforms.
    modes = [mode for mode in function_modes() if not isinstance(mode, Fresh | Hidden)]
    asked = Asked(torch.is_grad_enabled(), batches.level())

    def many(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The first time it is called for the values, then for derivatives."""
        nonlocal single, draws
        given = form.inputs(tensors)
        again = contextlib.nullcontext() if draws is None else draws.again()
        if draws is not None:
            around.check(seen)
        known = (asked if draws is None else AGAIN).known()
        draws = draws or Draws(given, [*seen.sources.values()])
        with under_modes(modes), under_dtype(dtype), again, known:
            out = f(*given)
        single = not isinstance(out, tuple | list)
        return tuple(items(out))

    many.floor = batches.level()  # type: ignore[attr-defined]
    many.layers = batches.layers()  # type: ignore[attr-defined]
    found = Eager.apply(many, span, *tensors)
    return found[0] if single else found


class Eager(torch.autograd.Function):
    """``apply(f, span, *tensors)``: ``f(*tensors)``, a tuple. ``f`` is differentiable in eager
    mode; ``span`` is where errors point."""

    @staticmethod
    def forward(f: Many, span: Span, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch._C._ForceDispatchKeyGuard(*PLAIN), torch.no_grad():
            found = f(*tensors)
            # Torch wants no argument back as it is: a gradient, say, that is that of the result.
            return tuple(o.view_as(o) if any(o is t for t in tensors) else o for o in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.f, ctx.span, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.floats = [is_float(o) for o in output]
        ctx.mark_non_differentiable(*(o for o in output if not is_float(o)))
        ctx.set_materialize_grads(False)  # see ``Launch.setup_context``

    @staticmethod
    @untraced
    @user_frames
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return tuple(under_vmap(functools.partial(Eager.gradients, ctx), grads))

    @staticmethod
    def gradients(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[-len(tensors) :]
        wanted = [k for k, need in enumerate(needed) if need]
        floats = [g for g, has in zip(grads, ctx.floats, strict=True) if has]
        among = [k for k, g in enumerate(floats) if g is not None]
        pulled = Pulled(ctx.f, len(tensors), wanted, ctx.span, among)
        found = Eager.apply(pulled, ctx.span, *tensors, *(floats[k] for k in among))
        result: list[Any] = [None] * len(tensors)
        for k, g in zip(wanted, found, strict=True):
            result[k] = g
        return (None, None, *result)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        if not torch._C._are_functorch_transforms_active():  # they have these tangents themselves
            tensors = [primal_of(t) if is_float(t) else t for t in tensors]
        return tuple(under_vmap(functools.partial(Eager.pushed, ctx, tensors), tangents))

    @staticmethod
    def pushed(ctx: Any, tensors: Sequence[torch.Tensor], *tangents: Any) -> tuple[Any, ...]:
        given = tangents[-len(tensors) :]
        which = [k for k, t in enumerate(given) if t is not None and is_float(tensors[k])]
        along = [given[k] for k in which]
        pushed = Pushed(ctx.f, len(tensors), which, ctx.span)
        found = iter(_applied(pushed, ctx.span, *tensors, *along))
        return tuple(next(found) if has else None for has in ctx.floats)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        f, span, *tensors = args
        pairs = zip(tensors, in_dims[2:], strict=True)
        moved = [t if d is None else t.movedim(d, 0) for t, d in pairs]
        have = [d is not None for d in in_dims[2:]]
        found = over_batch(f, span, moved, have, info.batch_size, info.randomness)
        return found, (0,) * len(found)


def over_batch(
    f: Many, span: Span, tensors: Sequence[torch.Tensor], have: Sequence[bool], size: int,
    randomness: str,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """``Eager.apply(f, span, *tensors)`` of each sample, where ``have`` says which tensors are
    batches along their first dimension. Results are."""
    every, need = _for_samples(f, have, functools.partial(Batched, size, randomness))
    given = [t.expand(size, *t.size()) if wanted and not has else t
             for t, has, wanted in zip(tensors, have, need, strict=True)]  # fmt: skip
    return Eager.apply(every, span, *given)


def _applied(f: Many, span: Span, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``Eager.apply`` where the tensors may be batches whose ``vmap`` does not see the call, as of
    tangents (``vectorize=True``)."""
    if torch._C._are_functorch_transforms_active() or not any(map(is_batched, tensors)):
        return Eager.apply(f, span, *tensors)
    level = max(map(level_of, tensors))
    own = [level_of(t) == level for t in tensors]
    moved = [unbatched(t, level, 0) if has else t for t, has in zip(tensors, own, strict=True)]
    size = moved[own.index(True)].size(0)
    found = over_batch(f, span, moved, own, size, "same")
    return tuple(wrapped(t, [level]) for t in found)


def _for_samples(
    f: Any, have: Sequence[bool], batched: Callable[[Many, Sequence[bool]], Many]
) -> tuple[Many, Sequence[bool]]:
    """``f`` for every sample, and which of its arguments it wants as batches (along their first
    dimension), where it could have those of ``have``. ``batched``: what makes it of a function that
    is no derivative. A derivative of samples is that of the function of all of them: each has
    elements of its own."""
    if not isinstance(f, Derivative):
        return batched(f, have), have
    need = [has or k in f.which for k, has in enumerate(have[: f.count])]
    inner, need = _for_samples(f.f, need, batched)
    return f.of(inner), [*need, *[True] * (len(have) - f.count)]


class Batched:
    """``f(*tensors)`` of every sample. ``have``: which of the tensors are batches, along their
    first dimension; results are, too."""

    def __init__(self, size: int, randomness: str, f: Many, have: Sequence[bool]) -> None:
        self.size, self.f, self.have = size, f, have
        # Levels begin where those of the call end, whose tensors are none of these batches.
        self.floor: int = getattr(f, "floor", 0)
        # A vmap that was not around the call batches its derivative, as that of ``jacrev``: which
        # is that of the numbers that the call has drawn.
        self.layers: Any = getattr(f, "layers", None)
        here = (*batches.layers(), batches.layer(size, randomness))
        around = self.layers is None or self.layers[: len(here)] == here
        self.randomness = randomness if around else "same"

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with contextlib.ExitStack() as stack:
            around = batches.level()
            outermost = around <= self.floor
            for _ in range(around, self.floor):
                stack.enter_context(vmap_increment_nesting(1, "same"))
            level = stack.enter_context(vmap_increment_nesting(self.size, self.randomness))
            stack.enter_context(Fresh(self.floor))
            given = [wrapped(t, [level]) if has else t
                     for t, has in zip(tensors, self.have, strict=True)]  # fmt: skip
            found = tuple(unbatched(o, level, self.size) for o in self.f(*given))
            if outermost and any(map(is_batched, found)):
                raise foreign_error()
            return found


class Derivative:
    """A derivative of a function of ``count`` tensors for those that ``which`` names. It takes
    gradients or tangents after these tensors. ``among``: the results of floats that have a
    gradient, by place."""

    def __init__(
        self, f: Many, count: int, which: Sequence[int], span: Span, among: Sequence[int] = ()
    ) -> None:
        self.f, self.count, self.which, self.span = f, count, which, span
        self.among = among

    def of(self, f: Many) -> Any:
        """The same derivative of another function."""
        return type(self)(f, self.count, self.which, self.span, self.among)


def _own(tensors: list[torch.Tensor], which: Sequence[int]) -> list[torch.Tensor]:
    """Those of ``tensors`` that ``which`` names, which become values of their own, with their
    tangents, that require gradients."""
    for k in which:
        tensors[k] = tensors[k].view_as(tensors[k])
        if not tensors[k].requires_grad:
            tensors[k].requires_grad_()
    return [tensors[k] for k in which]


class Pulled(Derivative):
    """``(*tensors, *grads)`` -> the gradients of ``f(*tensors)`` for those of ``tensors`` that
    ``which`` names, given those of its floats."""

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors, grads = list(values[: self.count]), values[self.count :]
        more = torch.is_grad_enabled() and any(v.requires_grad for v in values)
        with torch.enable_grad():
            leaves = _own(tensors, self.which)
            floats = [o for o in self.f(*tensors) if is_float(o)]
            outs = [floats[k] for k in self.among]
            return tuple(gradients(outs, leaves, grads, again=more))


class Pushed(Derivative):
    """``(*tensors, *tangents)`` -> the tangents of the floats that ``f(*tensors)`` gives, where
    those of ``tensors`` that ``which`` names have ``tangents``."""

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if any(map(is_dual, values)):
            return self._pulled_twice(values)
        with level(), forward_ad._set_fwd_grad_enabled(True):
            return self._pushed(values)

    def _pulled_twice(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The same where the values have tangents themselves, of which torch gives a tensor one.
        Gradients are linear in those of the results: the derivative of that map, transposed, takes
        tangents to tangents."""
        tensors, tangents = list(values[: self.count]), values[self.count :]
        more = torch.is_grad_enabled() and any(v.requires_grad for v in values)
        with torch.enable_grad():
            leaves = _own(tensors, self.which)
            outs = [o for o in self.f(*tensors) if is_float(o)]
            zeros = [torch.zeros_like(primal_of(o)).requires_grad_() for o in outs]
            found = gradients(outs, leaves, zeros, again=True)
            return tuple(gradients(found, zeros, tangents, again=more))

    def _pushed(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        tensors, tangents = list(values[: self.count]), values[self.count :]
        for k, tangent in zip(self.which, tangents, strict=True):
            primal = tensors[k]
            if 0 in primal.stride():  # torch gives tangents the same layout: no memory of their own
                primal = primal.clone(memory_format=torch.contiguous_format)
            tensors[k] = forward_ad.make_dual(primal, tangent)
        parts = [forward_ad.unpack_dual(o) for o in self.f(*tensors) if is_float(o)]
        return tuple(torch.zeros_like(p.primal) if p.tangent is None else p.tangent for p in parts)
