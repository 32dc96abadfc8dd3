"""The forms of an adjoint, which share what they have in common, and are compiled together."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import weft
from examples.bilateral import bilateral
from examples.layer_norm import inputs, layer_norm
from weft.autodiff.reverse import reverse
from weft.ir.text import print_function
from weft.options import Options
from weft.pytorch.loop import Loop, Reversed
from weft.tools.cross import lowered_loops

FORMS = [{}, {"split": frozenset({"d.weight", "d.bias"})}, {"private": frozenset({"d.weight"})}]


def texts(made: Reversed) -> list[str]:
    return [print_function(step) for step in made.adjoint.steps]


@pytest.mark.parametrize("lasting", [False, True])
def test_a_form_is_the_same_after_another(lasting: bool) -> None:
    (function,) = lowered_loops(layer_norm, *inputs(5, 3))
    one = Loop(function, Options())
    kept = frozenset(one.written)
    wanted = frozenset(one.memrefs) - kept
    found = [texts(one.reversed(wanted, kept, lasting=lasting, **form)) for form in FORMS]
    for form, text in zip(FORMS, found, strict=True):
        made = reverse(one.function, wanted, kept, lasting=lasting, **form)
        assert text == [print_function(step) for step in made.steps]
    assert found[0] != found[1] != found[2]


@weft.kernel
def faded(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        state = 0.0
        for j in range(x.shape[1]):
            state = 0.5 * state + x[i, j] * x[i, j]
            out[i, j] = state / (1.0 + x[i, j])
    return out


def test_a_form_is_the_same_after_one_in_which_no_gradient_is_taken_out() -> None:
    (function,) = lowered_loops(faded, torch.randn(3, 4))
    one = Loop(function, Options())
    kept = frozenset(one.written)
    wanted = frozenset(one.memrefs) - kept
    forms = [{}, {"stored": frozenset({"d.x"})}, {}]
    found = [texts(one.derived(function).reversed(wanted, kept, **forms[0]))]
    found += [texts(one.reversed(wanted, kept, **form)) for form in forms]
    one._adjoints.clear()
    found += [texts(one.reversed(wanted, kept, **form)) for form in forms]
    assert found[0] == found[1] == found[3] == found[4] == found[6]
    assert found[1] != found[2] == found[5]


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (layer_norm, inputs(5, 3)),  # sums, which nothing asks for
        (bilateral, (torch.rand(4, 5, 3), torch.tensor(2.0), torch.tensor(0.5), 1)),  # quotients
    ],
)
def test_results_that_save_nothing_change_nothing(kernel: Any, args: tuple[Any, ...]) -> None:
    (function,) = lowered_loops(kernel, *args)
    one = Loop(function, Options())
    kept = frozenset(one.written)
    wanted = frozenset(one.memrefs) - kept
    usual, other = (reverse(one.function, wanted, kept, results=r) for r in ((), kept))
    assert [*map(print_function, usual.steps)] == [*map(print_function, other.steps)]
    assert [b.name for b in usual.taped] == [b.name for b in other.taped]


@weft.kernel
def weighted(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i, j in x:
        out[i, j] = x[i, j] * w[j] + math.exp(x[i, j]) * u[j]
    return out


def steps(options: Options) -> tuple[list[str], list[object]]:
    """The names of the steps of the adjoint of `weighted` in ``u`` and ``w``, whose sums are in
    parts, and what carries them out."""
    x, w = torch.randn(9, 5), torch.randn(5)
    (function,) = lowered_loops(weighted, x, w, w)
    names = [a.name for a in function.args]
    made = Loop(function, options).reversed(
        frozenset(map(names.index, ("w", "u"))), frozenset([names.index("out")]),
        split=frozenset({"d.w", "d.u"}),
    )  # fmt: skip
    return [step.function.name for step in made.steps], [step.run for step in made.steps]


def test_steps_that_are_the_same_but_for_names_are_compiled_once() -> None:
    names, made = steps(Options())
    totals = [run for name, run in zip(names, made, strict=True) if name.endswith("_total")]
    assert len(totals) == 2
    assert totals[0] is totals[1]
    assert len({*made}) == len(made) - 1, "the others do different things"


@pytest.mark.parametrize(
    "options",
    [
        Options(debug=True),
        Options(lines=True),
        Options(schedules=(("cpu", "weighted_0_adjoint_d_u_total", "vectorize(d0, 8, 8)"),)),
    ],
)
def test_steps_that_a_person_asks_about_have_code_of_their_own(options: Options) -> None:
    _, made = steps(options)
    assert len({*made}) == len(made)


def test_gradients_by_code_that_two_of_them_share() -> None:
    x = torch.randn(2000, 5, dtype=torch.float64, requires_grad=True)
    w, u = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    for _ in range(3):
        g = torch.randn_like(x)
        found = torch.autograd.grad(weighted(x, w, u), (w, u), g)
        torch.testing.assert_close(found, ((g * x).sum(0), (g * x.exp()).sum(0)))
