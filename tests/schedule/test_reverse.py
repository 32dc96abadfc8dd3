"""Turns of a serial loop from the last to the first: the same terms, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from examples.causal_conv import causal_conv
from tests.cuda.emulator import EmulatedCall, emulated
from tests.fuzz.check import function as function_of
from weft.codegen import cuda
from weft.compiler import optimize
from weft.errors import ScheduleError
from weft.ir import interp
from weft.ir.core import walk
from weft.ir.verify import verify
from weft.ir.views import For
from weft.options import Options
from weft.schedule import apply_cuda
from weft.schedule.language import Reverse, parse, several, show
from weft.schedule.reverse import reverse
from weft.tools.cross import gradient_loops, lowered_loops


def test_turns_are_counted_from_the_end() -> None:
    (function,) = lowered_loops(causal_conv, torch.zeros(3, 9), torch.zeros(2, 3, 9), 0.1)
    function = optimize(function)
    parallel = apply_cuda.outermost(function)
    assert parallel is not None
    (loop,) = (op for op in walk(parallel.body) if op.name == "scf.for")
    made, after = reverse(function, parallel, [loop])
    verify(made)
    (backwards,) = (op for op in walk(after.body) if op.name == "scf.for")
    assert For(backwards).index.name == For(loop).index.name
    read: list[list[int]] = []
    rng = np.random.default_rng(1)
    w, k = rng.random((1, 4), np.float32), rng.random((1, 1, 4), np.float32)
    for each in (function, made):
        places: list[int] = []

        def watch(op, operands, results, places=places) -> None:
            if op.name == "memref.load" and len(operands) == 4:
                places.append(operands[3])

        interp.run(each, [1, 1, 4, 0.1, w, k, np.zeros((1, 1, 4), np.float32)], watch=watch)
        read.append(places)
    assert read == [[0, 0, 1, 0, 1, 2, 0, 1, 2, 3], [0, 1, 0, 2, 1, 0, 3, 2, 1, 0]]


TEXTS = ["reverse(u)", "reverse(u); register_window(u, 4)", "reverse(u); unroll_jam(t, 4)",
         "unroll_jam(b, 2); reverse(u); unroll_jam(t, 4); register_window(u, 4)"]  # fmt: skip


@pytest.mark.parametrize("length", [1, 8, 33])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.sampled(3)
def test_sums_have_the_same_terms(text: str, length: int) -> None:
    w, k = torch.randn(3, length), torch.randn(4, 3, length)
    kernel = weft.kernel(schedule={"cuda": text})(causal_conv.function)
    EmulatedCall.seen.clear()
    found = emulated(kernel)(w, k, 0.1)
    assert several(EmulatedCall.seen[-1], Reverse) == [Reverse("u")]
    torch.testing.assert_close(found, causal_conv(w, k, 0.1), rtol=1e-4, atol=1e-4)


def test_a_gradient_whose_loops_begin_later_goes_backwards() -> None:
    """Neighbours that begin one after the other, and end together."""
    args = torch.empty(768, 768, device="meta"), torch.empty(32, 768, 768, device="meta")
    rows = causal_conv.backward.schedules(*args, 0.1, device="cuda")
    taken = [row.schedule for row in rows if row.taken]
    assert ["reverse(t)" in text for text in taken] == [False, True]
    assert "register_window(t, 4, staged=" in taken[1]
    (whole,) = (row.schedule for row in rows if "unroll_jam(i1, 8)" in row.schedule)
    assert whole.startswith(
        "index_width(32); reverse(t); unroll_jam(i1, 8); register_window(t, 16)"
    )
    (loop,) = lowered_loops(causal_conv, *args, 0.1)
    for step in gradient_loops(loop):
        strict = optimize(step, Options(strict_math=True))
        facts = cuda.analyse(strict)
        assert not any("reverse" in text for text in facts.candidates)


REFUSED = {
    "s = s * 0.5 + x[i, t]": "`s` is carried along `t` by no associative combination",
    "out[i, t + 1] = out[i, t] + s": "iterations along `t` touch what others of them write",
    "if x[i, t] > s:\n    s = x[i, t]\n    k = t\n": "what `t` carries goes by the numbers of",
}


@pytest.mark.parametrize("body", REFUSED)
def test_loops_with_an_order_do_not(body: str) -> None:
    lines = "\n".join("            " + line for line in body.splitlines())
    kernel = weft.kernel(schedule={"cuda": "reverse(t)"})(function_of(
        "def kernel(x: torch.Tensor, out: torch.Tensor, n: int):\n"
        "    for i in range(x.shape[0]):\n        s = 0.25\n        k = 0\n"
        f"        for t in range(n):\n{lines}\n        out[i, 0] = s + k\n"
    ))  # fmt: skip
    with pytest.raises(ScheduleError) as raised:
        emulated(kernel)(torch.rand(2, 9), torch.rand(2, 9), 5)
    assert REFUSED[body] in str(raised.value)


def test_strict_sums_keep_their_order() -> None:
    kernel = weft.kernel(schedule={"cuda": "reverse(u)"}, strict_math=True)(causal_conv.function)
    with pytest.raises(ScheduleError, match="strict_math keeps the order of the sum `s` along `u`"):
        emulated(kernel)(torch.rand(2, 9), torch.rand(1, 2, 9), 0.5)


def test_its_text_is_read_back() -> None:
    assert show(parse("reverse(t)")) == "reverse(t)"
