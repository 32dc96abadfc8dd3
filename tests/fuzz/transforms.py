"""Random kernels under PyTorch's transforms, against the same kernel without them: only some inputs
require a gradient and only some results have one, of any strides; ``vmap`` over any dimension of
some inputs, of values, gradients and tangents; graphs of ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch.func import grad, jvp, vmap

import weft
from tests.fuzz.check import function, shaped
from tests.fuzz.gradients import arguments, in_float64, results
from tests.fuzz.recurrences import recurrent_kernel
from tests.fuzz.smooth import smooth_kernel
from weft.errors import GradientError

EXACT = 1e-9  # relative; both are compiled, in float64, from one text
SAMPLES = 3
LARGE = 1e8
NEARLY = 1e-13  # relative

Tensors = tuple[torch.Tensor, ...]


def check_transforms(random: Random) -> str:
    """Draws a kernel, arguments and a transform; AssertionError where it changes the numbers. Gives
    "compared", or "refused: <why>"."""
    drawn = random.choice((smooth_kernel, smooth_kernel, recurrent_kernel))(random)
    text = in_float64(drawn)
    kernel = weft.kernel(function(text))
    floats, m = arguments(random, drawn)
    n, a = random.randint(0, 4), random.choice((0.75, -1.5))

    def call(*given: torch.Tensor) -> Tensors:
        return results(kernel(*given, n, a))

    form = random.choice((_some_gradients, _some_gradients, _samples, _samples, _graph))
    try:
        form(random, call, (*(t.double() for t in floats), m))
    except GradientError as caught:
        return f"refused: {caught}"
    except (AssertionError, weft.WeftError) as error:
        if "has no samples of its own" in str(error):  # torch refuses that, too
            return "refused: what vmap gives no samples is written"
        error.add_note(f"{form.__name__}, n = {n}, a = {a}\n{text}\n{floats}\n{m}")
        raise
    return "compared"


def _some_gradients(random: Random, call: Callable[..., Tensors], args: Tensors) -> None:
    """Gradients of some results by some inputs are those of all by all."""
    outs = [o for o in call(*args) if o.is_floating_point()]
    given = [random.random() < 0.6 for _ in outs]
    weights = [shaped(random, _normal(random, o)) if g else None
               for o, g in zip(outs, given, strict=True)]  # fmt: skip

    def gradients(wanted: Sequence[bool], some: bool) -> list[torch.Tensor]:
        leaves = [t.detach().clone().requires_grad_(w)
                  for t, w in zip(args[:3], wanted, strict=True)]  # fmt: skip
        made = [o for o in call(*leaves, args[3]) if o.is_floating_point()]
        pairs = [(o, torch.zeros_like(o) if w is None else w)
                 for o, w in zip(made, weights, strict=True)
                 if o.requires_grad and not (some and w is None)]  # fmt: skip
        asked = [t for t in leaves if t.requires_grad]
        if not pairs:
            return [torch.zeros_like(t) for t in asked]
        return list(torch.autograd.grad(
            [o for o, _ in pairs], asked, [w for _, w in pairs], materialize_grads=True,
            allow_unused=True,
        ))  # fmt: skip

    wanted = [random.random() < 0.5 for _ in range(3)]
    wanted[random.randrange(3)] = True
    everything = gradients([True] * 3, some=False)
    expected = [g for g, w in zip(everything, wanted, strict=True) if w]
    _compare(expected, gradients(wanted, some=True), f"by {wanted}, of {given}")


def _samples(random: Random, call: Callable[..., Tensors], args: Tensors) -> None:
    """``vmap`` gives what each sample alone gives."""
    batched = [random.random() < 0.6 for _ in args]
    batched[random.randrange(len(args))] = True
    dims = tuple(random.randrange(t.dim() + 1) if b else None
                 for t, b in zip(args, batched, strict=True))  # fmt: skip
    stacked = [t if d is None else torch.stack([_like(random, t) for _ in range(SAMPLES)], d)
               for t, d in zip(args, dims, strict=True)]  # fmt: skip
    way = random.choice((_values, _values, _gradient, _tangent))
    asked = random.randrange(3)
    one = way(call, asked)
    pairs = list(zip(stacked, dims, strict=True))
    expected = [one(*(t if d is None else t.select(d, k) for t, d in pairs))
                for k in range(SAMPLES)]  # fmt: skip
    found = vmap(one, in_dims=dims)(*stacked)
    stacks = [torch.stack(each) for each in zip(*expected, strict=True)]
    _compare(stacks, found, f"vmap of {way.__name__} by {asked} over {dims}")


def _values(call: Callable[..., Tensors], asked: int) -> Callable[..., Tensors]:
    return call


def _gradient(call: Callable[..., Tensors], asked: int) -> Callable[..., Tensors]:
    def total(*args: torch.Tensor) -> torch.Tensor:
        made = [o for o in call(*args) if o.is_floating_point()]
        return sum((torch.sin(o) * o).sum() for o in made)  # type: ignore[return-value]

    return lambda *args: (grad(total, asked)(*args),)


def _tangent(call: Callable[..., Tensors], asked: int) -> Callable[..., Tensors]:
    def along(*args: torch.Tensor) -> Tensors:
        def of_one(t: torch.Tensor) -> Tensors:
            made = call(*args[:asked], t, *args[asked + 1 :])
            return tuple(o for o in made if o.is_floating_point())

        return jvp(of_one, (args[asked],), (torch.cos(args[asked]),))[1]

    return along


def _graph(random: Random, call: Callable[..., Tensors], args: Tensors) -> None:
    """A compiled graph with torch's operations around a kernel, and its gradient."""

    def inside(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, m: torch.Tensor) -> Tensors:
        return call(x * 1.25, y, z[:1] + z, m)

    def around(*given: torch.Tensor) -> Tensors:
        return tuple(torch.sin(o) if o.is_floating_point() else o + 1 for o in inside(*given))

    if not all(bool((o.double().abs() < LARGE).all()) for o in inside(*args)):
        return  # the sine of it has no digit that both agree on
    torch.compiler.reset()
    compiled = torch.compile(around, backend="aot_eager", dynamic=random.choice((None, True)))
    runs: list[list[torch.Tensor]] = []
    for run, factor in ((around, 1.0), (compiled, 1.0), (around, 1.0 + NEARLY)):
        leaves = [(t.detach() * factor).requires_grad_() for t in args[:3]]
        outs = run(*leaves, args[3])
        made: list[Any] = [o for o in outs if o.requires_grad]
        gradients = torch.autograd.grad(
            [(o * o).sum() for o in made], leaves, allow_unused=True, materialize_grads=True
        ) if made else map(torch.zeros_like, leaves)  # fmt: skip
        runs.append([*(o.detach() for o in outs), *gradients])
    expected, found, nearly = runs
    _compare(expected, found, "torch.compile", nearly)


def _compare(
    expected: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
    what: str,
    nearly: Sequence[torch.Tensor] | None = None,
) -> None:
    """``nearly`` is what comes of arguments that are off by about a thousand roundings: a sine of
    large numbers differs so much between libraries."""
    for e, f, n in zip(expected, found, nearly or expected, strict=True):
        assert (e.shape, e.dtype) == (f.shape, f.dtype), f"{what}: {e}\n{f}"
        if not bool((e.double().abs() < LARGE).all()):
            continue  # a map that amplifies every rounding
        slack = EXACT * (1 + e.double().abs().amax()) if e.numel() else 0.0
        slack = slack + (e.double() - n.double()).abs()
        off = (e.double() - f.double()).abs()  # a result may be a bool
        assert (off <= slack).all(), f"{what}\nexpected {e}\nfound {f}"


def _like(random: Random, t: torch.Tensor) -> torch.Tensor:
    if t.is_floating_point():
        return _normal(random, t)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    return torch.randint(0, 20, t.shape, generator=generator).to(t.dtype)


def _normal(random: Random, t: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    return torch.randn(t.shape, generator=generator, dtype=t.dtype)
