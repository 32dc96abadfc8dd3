"""Derivatives of one random kernel: forward mode, reverse mode, and differences of the Python."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from tests.fuzz.check import function, shaped
from tests.fuzz.recurrences import recurrent_kernel
from tests.fuzz.smooth import SmoothKernel, smooth_kernel
from weft.errors import GradientError
from weft.pytorch import autograd
from weft.runtime.overlap import is_uniform, uniform_in

STEP = 1e-4
EXACT = 1e-7  # relative, of derivatives in float64
NARROW = 2e-3  # of those in float32
HALF = 5e-2  # of those of f16 and bf16, which have 8 to 11 bits
# Where differences with two steps disagree by more than this, there is a branch in between or the
# kernel amplifies without bound, and they say nothing.
STABLE = 1e-3
# A derivative beyond it belongs to values whose sines two steps do not follow; float16 ends.
LARGE, LARGE_HALF = 1e10, 1e4

INTERPRETED = 0.15  # how often the derived loops are carried out by the interpreter as well

Tensors = tuple[torch.Tensor, ...]


def check_recurrences(random: Random) -> str:
    """The same of loops that carry local arrays."""
    return check_gradients(random, recurrent_kernel)


def check_gradients(random: Random, draw: Callable[[Random], SmoothKernel] = smooth_kernel) -> str:
    """Draws a kernel and compares its derivatives; AssertionError where they differ. Gives what
    became of it: "compared", "refused: <why>", or "rough" (it has no derivative here)."""
    drawn = draw(random)
    kernel = weft.kernel(function(drawn.text))
    exact = weft.kernel(function(in_float64(drawn)))
    floats, m = arguments(random, drawn)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    n, a = random.randint(0, 4), random.choice((0.75, -1.5))
    directions = tuple(_normal(generator, t) for t in floats)
    differences, *errors = finite_differences(exact, floats, directions, m, n, a)
    error = tuple(map(torch.add, *errors))
    large = LARGE_HALF if drawn.half else LARGE
    if not all((d.abs() < large).all() and (e <= STABLE * _size(d)).all()
               for d, e in zip(differences, error, strict=True)):  # fmt: skip
        return "rough"
    tolerance = HALF if drawn.half else NARROW if drawn.narrow else EXACT
    refused: list[str] = []
    tangents = pulled = None
    weights = tuple(_normal(generator, d) for d in differences)
    if random.random() < 0.4:  # those of sums of results
        weights = tuple(w if w.dim() == 0 or random.random() < 0.2 else w.reshape(-1)[:1].reshape(
            [1] * w.dim()).expand(w.shape) if w.numel() else w for w in weights)  # fmt: skip

    def spread() -> Tensors:
        """How far derivatives move where all is off by what rounding is off: what is stored on the
        way is, too, and some kernels amplify it. In float32, what those of the Python itself are
        off, if in float64 they and the compiled ones are not."""
        if drawn.narrow and not drawn.half:
            wide = [tuple(t.double() for t in each) for each in (floats, directions)]
            sure = [forward_mode(k, *wide, m, n, a) for k in (exact, exact.interpret)]
            if all(
                ((p - d).abs() <= EXACT * _size(d) + 4 * e).all()
                for each in sure
                for p, d, e in zip(each, differences, error, strict=True)
            ):
                rounded = forward_mode(kernel.interpret, floats, directions, m, n, a)
                return tuple((t.double() - d).abs()
                             for t, d in zip(rounded, differences, strict=True))  # fmt: skip
        eps = torch.finfo(floats[0].dtype).eps / 2
        moved = [finite_differences(exact, tuple(t.double() * (1 + eps * _normal(generator, t))
                                                 for t in floats), directions, m, n, a)[0]
                 for _ in range(2 if drawn.half else 0)]  # fmt: skip
        return tuple(sum(((v - d).abs() for v in each), torch.zeros_like(d))
                     for d, *each in zip(differences, *moved, strict=True))  # fmt: skip

    try:
        tangents = forward_mode(kernel, floats, directions, m, n, a)
    except GradientError as caught:
        refused.append(str(caught))
    try:
        with written_out(random.random() < 0.5):
            pulled = reverse_mode(kernel, floats, weights, m, n, a)
            later = [reverse_mode(kernel, floats, w, m, n, a) for w in (weights, weights)]
        for again in later:
            for first, then in zip(pulled, again, strict=True):
                same = torch.allclose(first, then, tolerance, tolerance, equal_nan=True)
                assert same, _says(drawn, "a later gradient", first, then, floats, m, n, a)
    except GradientError as caught:
        refused.append(str(caught))
    found = (*(tangents or ()), *(pulled or ()))
    if any(t.isnan().any() for t in found):  # such as 0 * infinity, where torch's own is, too
        own = reverse_mode(kernel.interpret, floats, weights, m, n, a)
        if any(g.isnan().any() for g in own):
            return "rough"
    if tangents is not None:
        off = [(t.double() - d).abs() - tolerance * _size(d) - 4 * e
               for t, d, e in zip(tangents, differences, error, strict=True)]  # fmt: skip
        if not all((o <= 0).all() for o in off):  # NaN is off
            if ties(kernel, floats, m, n, a):
                return "rough"
            for o, t, d, s in zip(off, tangents, differences, spread(), strict=True):
                assert (o <= 4 * s).all(), _says(drawn, "tangents", d, t, floats, m, n, a)
    if pulled is not None:
        terms = torch.cat([(w * d).reshape(-1) for w, d in zip(weights, differences, strict=True)])
        parts = [(g.double() * u.double()).reshape(-1)
                 for g, u in zip(pulled, directions, strict=True)]  # fmt: skip
        found = torch.cat(parts)
        slack = sum((w.abs() * 4 * e).sum() for w, e in zip(weights, error, strict=True))
        slack = slack + tolerance * (1 + terms.abs().sum() + found.abs().sum())
        off = abs(found.sum() - terms.sum()) - slack
        if not off <= 0:
            if ties(kernel, floats, m, n, a):
                return "rough"
            more = sum((w.abs() * 4 * s).sum() for w, s in zip(weights, spread(), strict=True))
            assert off <= more, _says(drawn, "gradients", terms.sum(), found.sum(), floats, m, n, a)
    if not refused and random.random() < INTERPRETED:
        _interpreted(kernel, (*floats, m, n, a), weights, directions, drawn)
    return f"refused: {refused[0]}" if refused else "compared"


def _interpreted(
    kernel: weft.Kernel, args: tuple[Any, ...], weights: Tensors, directions: Tensors,
    drawn: SmoothKernel,
) -> None:  # fmt: skip
    """The derived loops by the interpreter: nothing is out of bounds, no iterations meet, and it
    computes what compiled code does."""
    floats = args[:3]
    floating = [out.is_floating_point() for out in results(kernel(*args))]  # counts are not

    def of_floats(values: Iterable[torch.Tensor]) -> Tensors:
        return tuple(itertools.compress(values, floating))

    given = tuple(w.to(floats[0].dtype) for w in of_floats(weights))
    loose = HALF if drawn.half else NARROW if drawn.narrow else EXACT
    pairs = [
        (kernel.backward.interpret(*args, grad=given)[:3],
         reverse_mode(kernel, floats, weights, *args[3:])),
        (kernel.jvp.interpret(*args, tangents=[*directions, None, None, None]),
         of_floats(forward_mode(kernel, floats, directions, *args[3:]))),
    ]  # fmt: skip
    for mine, theirs in pairs:
        for x, y in zip(mine, theirs, strict=True):
            assert x is not None
            assert ((x - y).abs() <= loose * _size(y)).all(), f"{drawn.text}\n{x}\n{y}"


def check_second(random: Random) -> str:
    """Draws a kernel and compares its second derivative along a direction, taken in three ways,
    with differences of its gradient. As ``check_gradients``."""
    drawn = smooth_kernel(random)
    kernel = weft.kernel(function(in_float64(drawn)))
    floats, m = arguments(random, drawn)
    floats = tuple(t.double() for t in floats)
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    n, a = random.randint(0, 4), random.choice((0.75, -1.5))
    directions = tuple(_normal(generator, t) for t in floats)

    def gradient(*given: torch.Tensor, more: bool = False) -> Tensors:
        leaves = [t if t.requires_grad else t.view_as(t).requires_grad_() for t in given]
        weights = torch.Generator().manual_seed(1)
        total = sum((o.double() * _normal(weights, o).double()).sum()
                    for o in results(kernel(*leaves, m, n, a)))  # fmt: skip
        if not isinstance(total, torch.Tensor) or not total.requires_grad:
            return tuple(map(torch.zeros_like, leaves))
        found: Any = torch.autograd.grad(total, leaves, allow_unused=True, create_graph=more)
        return tuple(torch.zeros_like(t) if g is None else g
                     for t, g in zip(leaves, found, strict=True))  # fmt: skip

    def along(us: Tensors) -> tuple[Tensors, ...]:
        return slopes(lambda step: gradient(*map(lambda t, u: t + step * u, floats, us)))

    def linear() -> bool:
        """Whether differences of the gradient are linear in the direction, as they are but where
        it has a kink: at ties of an even function each direction has a winner of its own."""
        for _ in range(6):
            other = tuple(_normal(generator, t) for t in floats)
            both = along(tuple(map(torch.add, directions, other)))
            parts = zip(fine, error, *along(other), *both, strict=True)
            for f, e, g, *off, h, more, bent in parts:
                if ((f + g - h).abs() > 4 * (e + sum(off) + more + bent) + EXACT * _size(h)).any():
                    return False
        return True

    def forward_over_reverse() -> Tensors:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, u) for t, u in zip(floats, directions, strict=True)]
            parts = [forward_ad.unpack_dual(g) for g in gradient(*duals)]
            return tuple(torch.zeros_like(p.primal) if p.tangent is None else p.tangent
                         for p in parts)  # fmt: skip

    def reverse_over_reverse() -> Tensors:
        leaves = [t.clone().requires_grad_() for t in floats]
        found = gradient(*leaves, more=True)
        total = sum((g * u).sum() for g, u in zip(found, directions, strict=True))
        return _gradients(total, leaves)

    def reverse_over_forward() -> Tensors:
        leaves = tuple(t.clone().requires_grad_() for t in floats)
        tangents = forward_mode(kernel, leaves, directions, m, n, a)
        weights = torch.Generator().manual_seed(1)
        total = sum((t.double() * _normal(weights, t).double()).sum() for t in tangents)
        return _gradients(total, leaves)

    try:
        fine, *errors = along(directions)
    except GradientError as caught:
        return f"refused: {caught}"
    error = tuple(map(torch.add, *errors))
    if not all((f.abs() < LARGE).all() and (e <= STABLE * _size(f)).all()
               for f, e in zip(fine, error, strict=True)):  # fmt: skip
        return "rough"
    refused: list[str] = []
    for way in (forward_over_reverse, reverse_over_reverse, reverse_over_forward):
        try:
            found = way()
        except GradientError as caught:
            refused.append(str(caught))
            continue
        for g, f, e in zip(found, fine, error, strict=True):
            slack = 10 * EXACT * _size(f) + 4 * e
            if not ((g - f).abs() <= slack).all():
                what = f"second derivatives ({way.__name__})"
                rough = ties(kernel, floats, m, n, a) or not linear()
                assert rough, _says(drawn, what, f, g, floats, m, n, a)
                return "rough"
    return f"refused: {refused[0]}" if refused else "compared"


@contextlib.contextmanager
def written_out(small: bool) -> Iterator[None]:
    """Whether builtins write small gradients out that are one element for all of their places: if
    not, steps read that element, as they do of large ones."""
    most = autograd._WRITTEN_OUT
    autograd._WRITTEN_OUT = most if small else 0
    try:
        yield
    finally:
        autograd._WRITTEN_OUT = most


def _gradients(total: Any, leaves: Sequence[torch.Tensor]) -> Tensors:
    if not isinstance(total, torch.Tensor) or not total.requires_grad:
        return tuple(map(torch.zeros_like, leaves))
    found: Any = torch.autograd.grad(total, leaves, allow_unused=True)
    return tuple(torch.zeros_like(t) if g is None else g
                 for t, g in zip(leaves, found, strict=True))  # fmt: skip


def in_float64(drawn: SmoothKernel) -> str:
    """The text of the kernel for arguments in float64: its local arrays follow."""
    return drawn.text.replace("weft.f32", "weft.f64")


def arguments(random: Random, drawn: SmoothKernel) -> tuple[Tensors, torch.Tensor]:
    """x, y, z and m, in memory of any form."""
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    dtype = torch.float32 if drawn.narrow else torch.float64
    # Now and then there are more than a vector has lanes.
    rows = 19 if random.random() < 0.06 else random.choice((1, 2, 3, 5))
    sizes = (19,) if random.random() < 0.06 else (1, 2, 3, 4)
    shape = (rows, random.choice(sizes))[: drawn.rank]
    shapes = (shape, (rows, random.choice(sizes)), (random.choice((1, 2, 3, 7)),))
    x, y, z = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    if random.random() < 0.1:  # factors of a product
        x[torch.rand(shape, generator=generator) < 0.3] = 0.0
    if drawn.half:
        x = x.to(random.choice((torch.float16, torch.bfloat16)))
    m = torch.randint(-9, 20, shape, generator=generator)
    m = m.to(random.choice((torch.int64, torch.int64, torch.int32, torch.int16, torch.uint8)))
    return tuple(shaped(random, t) for t in (x, y, z)), shaped(random, m)


def results(out: Any) -> Tensors:
    """What a kernel returned, as tensors."""
    values = out if isinstance(out, tuple) else (out,)
    return tuple(torch.as_tensor(v) for v in values)


def finite_differences(
    kernel: weft.Kernel, floats: Tensors, directions: Tensors, m: torch.Tensor, n: int, a: float
) -> tuple[Tensors, Tensors, Tensors]:
    """(derivatives along ``directions``, how far two step sizes disagree, how far the slopes of
    the two sides do), by the Python itself in float64."""

    def value(step: float) -> Tensors:
        moved = [t.double() + step * u.double() for t, u in zip(floats, directions, strict=True)]
        return tuple(v.double() for v in results(kernel.interpret(*moved, m, n, a)))

    return slopes(value)


def slopes(value: Callable[[float], Tensors]) -> tuple[Tensors, Tensors, Tensors]:
    """(slopes of ``value`` at 0, how far two step sizes disagree, how far the two sides do: a kink
    at 0 itself, which the former does not see). Of a smooth function the slopes of the sides
    differ by step times curvature, which two steps cancel."""
    here, central, bends = value(0.0), [], []
    for step in (STEP, STEP / 2):
        sides = list(zip(value(step), value(-step), here, strict=True))
        central.append([(above - below) / (2 * step) for above, below, _ in sides])
        bends.append([(above - 2 * at + below) / step for above, below, at in sides])
    pairs = list(zip(*central, strict=True))
    bent = tuple((2 * f - c).abs() for c, f in zip(*bends, strict=True))
    return tuple((4 * f - c) / 3 for c, f in pairs), tuple((f - c).abs() for c, f in pairs), bent


class _Ties(TorchDispatchMode):
    """Notes whether two numbers that are compared are equal, or one that loses its sign is zero."""

    found = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        values = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if values is not None and values.is_floating_point():
            match func.overloadpacket.__name__:
                case "lt" | "gt" | "le" | "ge" | "maximum" | "minimum":
                    self.found |= bool((values == args[1]).any())
                case "abs":
                    self.found |= bool((values == 0).any())
                case "max" | "min" | "amax" | "amin" if isinstance(result, torch.Tensor):
                    self.found |= int((values == result).sum()) > result.numel()
        return result


def ties(kernel: weft.Kernel, floats: Tensors, m: torch.Tensor, n: int, a: float) -> bool:
    """Whether zeros are among the numbers, and the Python meets a tie: several kinks may leave the
    slopes of both sides the same, and what each has by convention does not add up to them."""
    if not any((t == 0).any() for t in floats):
        return False
    with _Ties() as met:
        kernel.interpret(*(t.detach().requires_grad_() for t in floats), m, n, a)
    return met.found


def forward_mode(
    kernel: Callable[..., Any],
    floats: Tensors,
    directions: Tensors,
    m: torch.Tensor,
    n: int,
    a: float,
) -> Tensors:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, u) for t, u in zip(floats, directions, strict=True)]
        parts = [forward_ad.unpack_dual(o) for o in results(kernel(*duals, m, n, a))]
        return tuple(torch.zeros_like(p.primal) if p.tangent is None else p.tangent for p in parts)


def reverse_mode(
    kernel: Callable[..., Any], floats: Tensors, weights: Tensors, m: torch.Tensor, n: int, a: float
) -> Tensors:
    leaves = [t.detach().requires_grad_() for t in floats]
    outs = results(kernel(*leaves, m, n, a))
    pairs = [(o, uniform_in(w, o.dtype) if is_uniform(w) else w.to(o.dtype))
             for o, w in zip(outs, weights, strict=True) if o.requires_grad]  # fmt: skip
    if not pairs:
        return tuple(map(torch.zeros_like, leaves))
    found: Any = torch.autograd.grad(
        [o for o, _ in pairs], leaves, [w for _, w in pairs], allow_unused=True
    )
    return tuple(torch.zeros_like(v) if g is None else g
                 for v, g in zip(leaves, found, strict=True))  # fmt: skip


def _normal(generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


def _size(values: torch.Tensor) -> torch.Tensor:
    """What relative means: 1, or the largest of the values."""
    return torch.tensor([1.0, *values.abs().reshape(-1).tolist()], dtype=torch.float64).max()


def _says(
    drawn: SmoothKernel, what: str, expected: Any, found: Any, floats: Tensors, m: torch.Tensor,
    n: int, a: float,
) -> str:  # fmt: skip
    x, y, z = floats
    return (f"{what} differ:\n{drawn.text}\nexpected {expected}\nfound {found}\n"
            f"x = {x}\ny = {y}\nz = {z}\nm = {m}\nn = {n}, a = {a}")  # fmt: skip
