"""Derivatives of random kernels at special numbers, zeros and equal ones among them, against
PyTorch's own derivatives of the undecorated Python: no differences, which say nothing at a kink.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

import weft
from tests.fuzz.check import function, shaped
from tests.fuzz.gradients import in_float64, results
from tests.fuzz.smooth import smooth_kernel
from weft.errors import GradientError

VALUES = (0.0, 0.0, 1.0, -1.0, 3.0)  # no constant of the kernels: a tie with one is weft's own
EXACT = 1e-9

Tensors = tuple[torch.Tensor, ...]


def check_special(random: Random) -> str:
    """Draws a kernel and compares; AssertionError where derivatives differ. Gives "compared", or
    "refused: <why>"."""
    drawn = smooth_kernel(random)
    while "weft.zeros(" in drawn.text or "vec" in drawn.text:  # which Python cuts gradients at
        drawn = smooth_kernel(random)
    text = re.sub(r"(?<![\w.])(min|max)\(", r"weft.\1(", in_float64(drawn))  # ties are shared
    text = text.replace("total = 0.0", "total = 0.25")  # for it, not with it
    text = text.replace("] = 0.0\n", "] = 0.0137\n")  # what elements are before a maximum of them
    text = text.replace("f0 = 0.5\n", "f0 = 0.5137\n")
    text = text.replace("torch.softmax(", "0.97 * torch.softmax(")  # of two equal ones a half
    # Of three equal ones each has a third; by pairs, as in Python, one has a half.
    apart = "0.0137 * i" + " + 0.0071 * j" * (drawn.rank > 1)
    text = re.sub(r"(total = weft\.(?:min|max)\(total, f\d)\)", rf"\1 + {apart})", text)
    text = _unlike(text)
    kernel = weft.kernel(function(text))
    rows, n, a = random.choice((1, 2, 3)), random.randint(0, 4), random.choice((0.75, -1.5))
    shape = (rows, random.choice((1, 2, 3)))[: drawn.rank]
    floats = [shaped(random, _drawn(random, s)) for s in
              (shape, (rows, random.choice((1, 2, 3))), (random.choice((1, 2, 3)),))]  # fmt: skip
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    m = torch.randint(-9, 20, shape, generator=generator)
    second = random.random() < 0.4
    # At some results, and some gradients, nobody looks: their slopes may be anything.
    seen = [random.random() < 0.7 for _ in range(8)]
    asked = [random.random() < 0.6 for _ in floats] if random.random() < 0.5 else [True] * 3

    def derivatives(call: Any) -> list[torch.Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in floats]
        outs = [o for o, has in zip(results(call(*leaves, m, n, a)), seen, strict=False)
                if has and o.is_floating_point()]  # fmt: skip
        weights = torch.Generator().manual_seed(0)

        def along(values: Sequence[torch.Tensor]) -> torch.Tensor:
            drawn = [torch.randn(v.shape, generator=weights, dtype=v.dtype) for v in values]
            total = sum((v * w).sum() for v, w in zip(values, drawn, strict=True))
            return torch.as_tensor(total)

        first = _gradients(along(outs), leaves, second)
        of = [*itertools.compress(first, asked)]
        more = _gradients(along(of), leaves) if second and of else []
        return [o.detach() for o in outs] + [g.detach() for g in (*first, *more)]

    try:
        found = derivatives(kernel)
    except GradientError as caught:
        return f"refused: {caught}"
    try:
        expected = derivatives(kernel.interpret)
    except RuntimeError:  # what torch saved has changed
        return "no oracle"
    for k, (e, f) in enumerate(zip(expected, found, strict=True)):
        if e.dtype is not f.dtype:  # weft.max of two of Python's floats
            return "no oracle"
        if not bool((e.abs() < 1e8).all()):
            return "rough"
        assert torch.allclose(e, f, EXACT, EXACT * (1 + float(e.abs().amax()))), (
            f"number {k}\n{text}\nexpected {e}\nfound {f}\n{floats}\n{m}\n{n=} {a=}"
        )
    return "compared"


def _unlike(text: str) -> str:
    """``text`` where a constant or ``a``, times a whole number (``0.5 * (i % 3)``), taken from
    itself or with a value added, is none of the values."""
    text = re.sub(r"\((a|f\d) - \1\)", r"(\1 - \1 + 0.0371)", text)
    text = re.sub(r"\((a [+-] f\d|f\d [+-] a)\)", r"(\1 + 0.0371)", text)  # of 0.0 it is ``a``
    for found in reversed([*re.finditer(r"\((?:0\.5|-1\.25|2\.0|a) \* \(", text)]):
        end, depth = found.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if text[: end - 1].endswith(" % 3"):
            text = f"{text[: end - 1]} + 0.0371{text[end - 1 :]}"
    return text


def _drawn(random: Random, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.empty(shape, dtype=torch.float64)
    return values.apply_(lambda _: random.choice(VALUES))


def _gradients(
    total: torch.Tensor | int, leaves: list[torch.Tensor], more: bool = False
) -> Tensors:
    if not isinstance(total, torch.Tensor) or not total.requires_grad:
        return tuple(map(torch.zeros_like, leaves))
    return torch.autograd.grad(total, leaves, create_graph=more, allow_unused=True,
                               materialize_grads=True)  # fmt: skip
