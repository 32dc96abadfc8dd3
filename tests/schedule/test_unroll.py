"""Loops that are written out: the same bits, local arrays without loops, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from tests.cuda.emulator import EmulatedCall, emulated
from tests.fuzz.check import function as function_of
from tests.fuzz.schedules import loops_of
from weft.errors import ScheduleError
from weft.ir.core import Function, Op, walk
from weft.ir.verify import verify
from weft.ir.views import constant_of
from weft.passes.cse import cse
from weft.passes.simplify import simplify
from weft.schedule.language import Unroll, only, parse, show
from weft.schedule.nest import loops_of as serial_of
from weft.schedule.prefetch import serial_steps
from weft.schedule.unroll import for_registers


@weft.kernel
def state(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A state of five numbers for each row, which each step updates and sums."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = weft.zeros(5)
        for t in range(x.shape[1]):
            total = 0.0
            for j in range(5):
                s[j] = s[j] * w[j] + math.sin(x[i, t] + j)
                total += s[4 - j]
            out[i, t] = total
    return out


def lowered(kernel: weft.Kernel, *args: torch.Tensor) -> tuple[Function, Op]:
    (function,) = loops_of(kernel, list(args))
    return function, next(op for op in walk(function.body) if op.name == "scf.parallel")


def test_turns_are_written_out() -> None:
    function, parallel = lowered(state, torch.rand(5), torch.rand(3, 5))
    assert for_registers(parallel) == ("j",)
    made, outer = serial_steps(function, parallel, ["j"], ())
    verify(made)
    assert list(serial_of(outer)) == ["t"]
    assert sum(op.name == "math.sin" for op in walk(made.body)) == 5
    (array,) = (op.result for op in walk(made.body) if op.name == "memref.alloca")
    used = [op for op in walk(made.body) if op.operands and array in op.operands]
    assert len(used) == 5 + 3 * 5  # filled with zeros; loaded, stored, and loaded from the end
    after = cse(simplify(made))
    (array,) = (op.result for op in walk(after.body) if op.name == "memref.alloca")
    subscripts = [op.operands[-1] for op in walk(after.body) if array in op.operands]
    assert all(constant_of(v) is not None for v in subscripts)


@pytest.mark.parametrize("text", ["unroll((j))", "unroll((j)); prefetch(t, 2)", None])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.sampled(3)
def test_bits_are_kept(n: int, text: str | None) -> None:
    w, x = torch.rand(5), torch.rand(3, n)
    kernel = weft.kernel(schedule={"cuda": text} if text else None)(state.function)
    plain = weft.kernel(schedule={"cuda": "index_width(32)"})(state.function)
    EmulatedCall.seen.clear()
    found = emulated(kernel)(w, x)
    assert [only(s, Unroll) for s in EmulatedCall.seen] == [Unroll(("j",))]
    assert torch.equal(found, emulated(plain)(w, x))


# Bodies around a local array `s` of 4 numbers, and the loops that keep it in memory.
BODIES = {
    "all subscripts are numbers of turns": ("for j in range(4):\n    s[j] += x[i, j]", ("j",)),
    "two loops": ("for j in range(4):\n    s[j] = x[i, j]\n"
                  "for k in range(1, 4):\n    s[k - 1] += s[k]", ("j", "k")),
    "one inside of the other": ("for j in range(4):\n    for k in range(2):\n"
                                "        s[j] += s[(j + k) % 4]", ("j", "k")),
    "a place that data picks": ("for j in range(4):\n    s[int(x[i, j])] += 1.0", ()),
    "a loop whose end is no number": ("for j in range(min(n, 4)):\n    s[j] += x[i, j]", ()),
    "numbers alone": ("s[0] = x[i, 0]\ns[1] = s[0] + x[i, 1]", ()),
    "backwards": ("for j in range(3, -1, -1):\n    s[j] += x[i, j]", ("j",)),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_what_keeps_an_array_in_registers(name: str) -> None:
    body, loops = BODIES[name]
    lines = "\n".join("        " + line for line in body.splitlines())
    kernel = weft.kernel(function_of(
        "def kernel(x: torch.Tensor, out: torch.Tensor, n: int):\n"
        "    for i in range(x.shape[0]):\n        s = weft.zeros(4)\n"
        f"{lines}\n        for k_ in weft.static(range(4)):\n            out[i, k_] = s[k_]\n"
    ))  # fmt: skip
    x, out = torch.rand(3, 4) * 3.9, torch.zeros(3, 4)
    (function,) = loops_of(kernel, [x, out], 4)
    parallel = next(op for op in walk(function.body) if op.name == "scf.parallel")
    assert tuple(sorted(for_registers(parallel))) == loops
    expected, found = out.clone(), out.clone()
    kernel(x, expected, 4)
    emulated(kernel)(x, found, 4)
    torch.testing.assert_close(found, expected)


REFUSED = {
    "unroll((t))": "`t` is no loop of 1 to 64 turns, by 1 from a number to a number",
    "unroll((j)); prefetch(j, 2)": "`j` is loaded ahead",
    "unroll((u))": "there is no loop `u`",
    "unroll((j)); cooperate((t), 8)": "it does not go with `cooperate((t), 8)`",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_loop_does_not_allow_is_said(text: str) -> None:
    kernel = weft.kernel(schedule={"cuda": text})(state.function)
    with pytest.raises(ScheduleError) as raised:
        emulated(kernel)(torch.rand(4), torch.rand(2, 3))
    assert REFUSED[text] in str(raised.value)


def test_its_text_is_read_back() -> None:
    assert show(parse("unroll((j, k))")) == "unroll((j, k))"
