"""What the threads of a block load of rows is in shared memory: the same bits, whatever tiles
divide, no races, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import weft
from examples.causal_conv import causal_conv
from tests.cuda.emulator import EmulatedCall, emulated
from tests.fuzz.check import function as function_of
from tests.fuzz.schedules import loops_of
from tests.schedule.test_register_window import refused
from weft.codegen import cuda
from weft.errors import ScheduleError
from weft.ir.core import walk
from weft.ir.uniform import divergent_wait
from weft.ir.views import For, constant_of
from weft.schedule.language import BlockDim, RegisterWindow, only, parse, show


@weft.kernel
def later(w: torch.Tensor, g: torch.Tensor, n: int) -> torch.Tensor:
    """Loops of which neighbours begin one after the other, as a gradient has them, and a condition
    on them. ``w`` (C, T), ``g`` (B, C, T)."""
    B, C, T = g.shape
    out = torch.empty_like(g)
    for b, c, i in weft.ndrange(B, C, T):
        s = 0.25
        if b < n:
            for t in range(i, T):
                s += g[b, c, t] * w[c, T - 1 - t + i]
        out[b, c, i] = s
    return out


@weft.kernel
def lags(k: torch.Tensor, g: torch.Tensor, P: int) -> torch.Tensor:
    """Sums over batches, in P parts, of products of elements so far from each other."""
    B, C, T = k.shape
    out = k.new_empty(P, C, T)
    n = (B + P - 1) // P
    for p, c, i in weft.ndrange(P, C, T):
        s = 0.0
        for b in range(p * n, min(p * n + n, B)):
            for t in range(T - 1 - i, T):
                s += g[b, c, t] * k[b, c, t + 1 + i - T]
        out[p, c, i] = s
    return out


def text(kernel: weft.Kernel, first: str, second: str, window: str, *, swapped: bool) -> str:
    """Two tiles, each as `index, iterations, threads`, and what stages."""
    (a, n, x), (b, m, y) = (tile.split() for tile in (first, second))
    sides, bound = ((y, x), (b, a)) if swapped else ((x, y), (a, b))
    reverse = "" if kernel is causal_conv else "reverse(t); "
    return (
        f"{reverse}unroll_jam({b}, {m}, overlap={y}); unroll_jam({a}, {n}, overlap={x}); "
        f"register_window({window}); bind({bound[0]}, x); bind({bound[1]}, y); "
        f"block_dim(({', '.join(sides)}))"
    )


Case = tuple[weft.Kernel, str, str, str, bool]
CASES: list[Case] = [
    (causal_conv, "t 4 4", "b 2 2", "u, 4, staged=8", False),
    (causal_conv, "t 4 4", "b 2 2", "u, 4, staged=16", True),
    (causal_conv, "t 2 8", "b 1 2", "u, 3, staged=9", True),
    (causal_conv, "t 8 2", "c 1 2", "u, 8, staged=16", False),
    (later, "i 4 4", "b 2 2", "t, 4, staged=8", False),
    (later, "i 2 8", "b 2 2", "t, 2, staged=16", True),
    (lags, "i 4 2", "c 1 2", "t, 4, staged=16", False),
    (lags, "i 2 4", "c 1 2", "t, 4, staged=4", True),
]


def args_of(kernel: weft.Kernel, batch: int, time: int) -> list[Any]:
    w, k = torch.randn(2, time), torch.randn(batch, 2, time)
    if kernel is causal_conv:
        return [w, k, 0.1]
    return [w, k, batch - 1] if kernel is later else [k, torch.randn_like(k), 2]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sizes", [(4, 16), (5, 37)])
def test_bits_are_kept(case: Case, sizes: tuple[int, int]) -> None:
    kernel, *how, swapped = case
    args = args_of(kernel, *sizes)
    usual = "index_width(32)" if kernel is causal_conv else "reverse(t)"
    plain = weft.kernel(schedule={"cuda": usual})(kernel.function)
    staged = weft.kernel(schedule={"cuda": text(kernel, *how, swapped=swapped)})(kernel.function)
    EmulatedCall.seen.clear()
    found = emulated(staged)(*args)
    (taken,) = {only(s, RegisterWindow) for s in EmulatedCall.seen}
    assert taken is not None
    assert taken.staged > 0
    assert torch.equal(found, emulated(plain)(*args))


@pytest.fixture
def interpreted() -> Iterator[None]:
    EmulatedCall.interpreted = True
    yield
    EmulatedCall.interpreted = False


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[6]])
def test_threads_wait_for_each_other(case: Case, interpreted: None) -> None:
    kernel, *how, swapped = case
    args = args_of(kernel, 4, 17)
    staged = weft.kernel(schedule={"cuda": text(kernel, *how, swapped=swapped)})(kernel.function)
    torch.testing.assert_close(emulated(staged)(*args), kernel(*args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [CASES[0], CASES[5], CASES[7]])
def test_all_threads_come_to_where_they_wait(case: Case) -> None:
    kernel, *how, swapped = case
    (function,) = loops_of(kernel, args_of(kernel, 4, 16))
    given = text(kernel, *how, swapped=swapped)
    facts = cuda.analyse(function, given)
    schedule = parse(facts.candidates[0].split("->")[1])
    made = cuda.scheduled(function, schedule)
    for stage in made.bound.stages:
        assert divergent_wait(stage) is None


WHOLE = [  # of the candidates with vectors, and without: what bounds whole chunks, and copies of it
    (causal_conv, "u, 4, staged=8", [None, ([0, 8, 4], 2)]),
    (causal_conv, "u, 8, staged=16", [([0, 16, 8], 2), ([0, 16, 8], 1)]),
    (later, "t, 4, staged=8", [([0, 8, 4], 4), ([0, 8, 4], 2)]),
]


@pytest.mark.parametrize(("kernel", "window", "expected"), WHOLE)
def test_where_all_turns_of_a_chunk_are_there_their_number_is_known(
    kernel: weft.Kernel, window: str, expected: list[Any]
) -> None:
    (function,) = loops_of(kernel, args_of(kernel, 4, 16))
    index = "t" if kernel is causal_conv else "i"
    given = text(kernel, f"{index} 4 4", "b 2 2", window, swapped=False)
    facts = cuda.analyse(function, asked=given)
    found: list[Any] = []
    for candidate in facts.candidates[:2]:
        schedule = parse(candidate.split("->")[1])
        made = cuda.scheduled(function, schedule)
        loops = [For(op) for stage in made.bound.stages for op in walk(stage.body)
                 if op.name == "scf.for"]  # fmt: skip
        bounds = {tuple(map(constant_of, loop.bounds)): loop.op.attrs["unroll"] for loop in loops}
        found.append(next(((list(b), n) for b, n in bounds.items() if None not in b), None))
    assert found == expected


def test_elements_of_several_types_and_rows_that_are_not_shared() -> None:
    kernel = weft.kernel(function_of(
        "def kernel(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, out: torch.Tensor):\n"
        "    for i, j in weft.ndrange(out.shape[0], out.shape[1]):\n        s = 0.5\n"
        "        for t in range(12):\n"
        "            s += x[i, t] * y[i + j, t] - z[j + t] * x[i, t + 1] + x[0, 11 - t]\n"
        "        out[i, j] = s\n"
    ))  # fmt: skip
    x, y = torch.randn(5, 13, dtype=torch.float64), torch.randn(11, 12)
    z, out = torch.randint(9, (20,), dtype=torch.int16), torch.zeros(5, 7)
    expected = out.clone()
    kernel(x, y, z, expected)
    kernel.schedule(
        "cuda", "unroll_jam(i, 2, overlap=2); unroll_jam(j, 2, overlap=3); "
        "register_window(t, 4, staged=8); bind(j, x); bind(i, y); block_dim((3, 2))",
    )  # fmt: skip
    emulated(kernel)(x, y, z, out)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


TILED = "unroll_jam(b, 2, overlap=2); unroll_jam(t, 4, overlap=4); "
PLACED = "; bind(t, x); bind(b, y); block_dim((4, 2))"
WHOLE_TILE = "a block that stages rows has a whole tile"
REFUSED = {
    TILED + "register_window(u, 4, staged=6)" + PLACED:
        "a multiple of 4 turns is staged, 512 at most",
    TILED + "register_window(u, 4, staged=8)": WHOLE_TILE,
    TILED + "register_window(u, 4, staged=8); bind(t, x); bind(b, y); block_dim((8, 2))":
        WHOLE_TILE,
    "unroll_jam(t, 4); register_window(u, 4, staged=8)" + PLACED: WHOLE_TILE,
    TILED + "register_window(u, 4, staged=8); persist(2)" + PLACED:
        "it does not go with `persist(2)`",
    "unroll_jam(b, 8, overlap=16); unroll_jam(t, 8, overlap=8); register_window(u, 4, staged=128); "
    "bind(t, x); bind(b, y); block_dim((8, 16))":
        "it takes 68400 bytes of shared memory, 49152 are there",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_loop_does_not_allow_is_said(text: str) -> None:
    assert REFUSED[text] in refused(text, 4, 64)


# The bounds of a loop and a condition on it, and whether a block's threads come to it together.
LOOPS = {
    "for t in range(n):": True, "for t in range(i):": True, "for t in range(i, n):": False,
    "for t in range(int(x[0, 0])):": True, "for t in range(int(x[i, 0])):": False,
    "if i < n - j:\n            for t in range(n):": True,
    "if i != n:\n            for t in range(n):": False,
    "if x[i, 0] > 0.0:\n            for t in range(n):": False,
    "if x[0, 0] > -1.0:\n            for t in range(n):": True,
    "for m in range(3):\n            for t in range(n):": True,
    "for m in range(i):\n            for t in range(n):": False,
}  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.sampled(3)
def test_threads_come_to_the_loop_together(loop: str) -> None:
    deep = "    " * (loop.count("\n"))
    kernel = weft.kernel(function_of(
        "def kernel(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, n: int):\n"
        "    for i, j in weft.ndrange(out.shape[0], out.shape[1]):\n        s = 0.5\n"
        f"        {loop}\n            {deep}s += x[i, t] * y[j + t]\n        out[i, j] = s\n"
    ))  # fmt: skip
    x, y, n = torch.rand(6, 30) * 9, torch.randn(40), 9
    out, expected = torch.zeros(6, 7), torch.zeros(6, 7)
    kernel(x, y, expected, n)
    kernel.schedule(
        "cuda", "unroll_jam(i, 2, overlap=2); unroll_jam(j, 2, overlap=2); "
        "register_window(t, 2, staged=4); bind(j, x); bind(i, y); block_dim((2, 2))",
    )  # fmt: skip
    if not LOOPS[loop]:
        with pytest.raises(ScheduleError, match="threads of a block do not come to `t` together"):
            emulated(kernel)(x, y, out, n)
        return
    EmulatedCall.seen.clear()
    emulated(kernel)(x, y, out, n)
    assert only(EmulatedCall.seen[0], BlockDim) == BlockDim((2, 2))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_its_text_is_read_back() -> None:
    for given in ("register_window(t, 8, staged=32)", "unroll_jam(t, 8, overlap=4)"):
        assert show(parse(given)) == given
