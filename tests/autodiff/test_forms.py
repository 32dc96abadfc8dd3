"""The forms of an adjoint, which share what they have in common, and are compiled together."""

from __future__ import annotations

import pytest

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
