"""Gradients of what rows of a state share: sums over rows, by threads that have columns."""

from __future__ import annotations

import os
import re
from random import Random
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

import weft
from benchmarks import recurrences
from benchmarks.selective_scan import selective_scan, torch_selective_scan
from tests.cuda import emulator
from tests.fuzz.check import function
from tests.fuzz.states import state_kernel
from weft.autodiff.activity import read_and_written
from weft.autodiff.columns import by_columns
from weft.autodiff.reverse import reverse
from weft.autodiff.state import state_of
from weft.ir.core import walk
from weft.ir.views import memory
from weft.pytorch import workspaces
from weft.schedule.language import Stage, several
from weft.tools.cross import lowered_loops

COUNT = int(os.environ.get("WEFT_FUZZ_STATES", "6"))


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "_SHORT", 0)
    monkeypatch.setattr(workspaces, "CHUNK", {"cpu": 4})
    monkeypatch.setattr(workspaces, "LEAST_CHUNK", 1 << 30)
    monkeypatch.setattr(workspaces, "REMEMBERED", 0)
    monkeypatch.setattr(workspaces, "_ROOM", 1 << 60)
    monkeypatch.setattr(workspaces.Workspaces, "tape_bytes", 1 << 60)


def arguments(time: int) -> list[torch.Tensor]:
    shapes = ((2, time, 8), (2, time, 8), (2, time, 8), (2, 8), (2, time, 8, 8), (time,), (8,))
    return [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_states(seed: int, columns: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All forms say the same, by rows in chunks, too; and whoever is not eligible has the usual
    one."""
    random = Random(seed)
    text = state_kernel(random)
    torch.manual_seed(seed)
    args = arguments(random.choice((1, 3, 4, 9)))
    results = weft.kernel(function(text))(*args)
    weights = [torch.randn_like(r) for r in results]
    found = torch.autograd.grad(results, args, weights, allow_unused=True)
    monkeypatch.setattr(workspaces, "LEAST_CHUNK", 1)
    results = weft.kernel(function(text))(*args)
    by_rows = torch.autograd.grad(results, args, weights, allow_unused=True)
    monkeypatch.setattr(workspaces, "CHUNK", {})
    results = weft.kernel(function(text))(*args)
    expected = torch.autograd.grad(results, args, weights, allow_unused=True)
    for a, c, b in zip(found, by_rows, expected, strict=True):
        assert (a is None) == (b is None) == (c is None), text
        if a is not None:
            torch.testing.assert_close(a, b, msg=lambda m: f"{m}\n{text}")
            torch.testing.assert_close(c, b, msg=lambda m: f"by rows: {m}\n{text}")


@weft.kernel
def states(x, k, s0, last):
    """A state that begins as ``s0`` and ends in ``last``."""
    out = torch.empty_like(x)
    for b, i in weft.ndrange(x.shape[0], x.shape[2]):
        s = weft.zeros((8,), weft.f64)
        for j in range(8):
            s[j] = s0[b, i, j] * k[b, 0, j]
        for t in range(x.shape[1]):
            y = 0.0
            for j in range(8):
                y += s[j] * k[b, t, j]
            z = 0.0
            for j in range(8):
                s[j] = weft.math.sin(s[j]) + y * k[b, t, j] * x[b, t, i]
                z += s[j] * s[j]
            out[b, t, i] = z * y
        for j in range(8):
            last[b, i, j] = 2.0 * s[j]
    return out


@weft.kernel
def pairs(x, k, s0, last):
    """Two arrays, of which sums are known: the elements of one of them move those of the other."""
    out = torch.empty_like(x)
    for b, i in weft.ndrange(x.shape[0], x.shape[2]):
        s = weft.zeros((8,), weft.f64)
        r = weft.zeros((8,), weft.f64)
        for j in range(8):
            s[j] = s0[b, i, j]
            r[j] = 0.5 * s0[b, i, j] * s0[b, i, j]
        for t in range(x.shape[1]):
            y = 0.0
            for j in range(8):
                y += s[j] * k[b, t, j]
            for j in range(8):
                s[j] = weft.math.sin(r[j]) + 0.2 * y * k[b, t, j]
                r[j] = 0.3 * r[j] * k[b, t, j] + 0.1 * y * x[b, t, i]
            out[b, t, i] = y
        for j in range(8):
            last[b, i, j] = s[j] - 2.0 * r[j]
    return out


@pytest.mark.sampled(6)
@pytest.mark.parametrize("turns", [1, 3, 4, 6, 8])
def test_states_are_kept_where_chunks_begin(turns: int, columns: None) -> None:
    """By the loop that keeps the sums; behind the last chunk, too."""
    args = [torch.rand(2, turns, 8), torch.rand(2, turns, 8), torch.rand(2, 8, 8)]
    args = [a.double().requires_grad_() for a in args]

    def call(x: torch.Tensor, k: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last = torch.empty_like(s)
        return pairs(x, k, s, last), last

    (loop,) = lowered_loops(pairs, *args, torch.empty_like(args[2]))
    wanted, written = read_and_written(loop)
    state = state_of(loop, written)
    assert state is not None
    form: dict[str, Any] = {"rows": 8, "checkpoints": [state.loop], "chunk": 4}
    made = by_columns(loop, wanted, written, **form)
    assert made is not None
    names = {a.name for a in made.steps[0].args}
    assert {"kept.tape1.0.v", "kept.tape1.1.v", "kept.0.y"} <= names
    assert gradcheck(call, args)


@pytest.mark.parametrize("turns", [1, 6])
@pytest.mark.slow
def test_a_state_that_is_given_and_handed_on(turns: int, columns: None) -> None:
    args = [torch.rand(2, turns, 8), torch.rand(2, turns, 8), torch.rand(2, 8, 8)]
    args = [a.double().requires_grad_() for a in args]

    def call(x: torch.Tensor, k: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last = torch.empty_like(s)
        return states(x, k, s, last), last

    (loop,) = lowered_loops(states, *args, torch.empty_like(args[2]))
    wanted, written = read_and_written(loop)
    state = state_of(loop, written)
    assert state is not None
    assert by_columns(loop, wanted, written, rows=8, checkpoints=[state.loop], chunk=4) is not None
    assert gradcheck(call, args)


def test_what_the_loops_are(columns: None) -> None:
    """The sums, their adjoints by rows, and the rest by columns: a thread adds up what rows do."""
    args = [(0.5 * torch.randn(1, 9, 2, 8)).requires_grad_() for _ in range(6)]
    kernel = weft.kernel(recurrences.rwkv7.function)
    kernel(*args, 8).sum().backward()
    text = kernel.backward.inspect(*args, 8)
    head = text.split("func.func")[0]
    assert [line.split("(")[0] for line in text.splitlines() if line.startswith("func.func")] == [
        "func.func @rwkv7_0_sums", "func.func @rwkv7_0_ports_adjoint",
        "func.func @rwkv7_0_elements_adjoint",
    ]  # fmt: skip
    assert "d.w: plain store" in head  # a thread has all rows
    assert "d.v: plain store" in head
    assert [line.split(":")[0] for line in head.splitlines() if line.startswith("workspace")] == [
        "workspace kept.tape1.0.v", "workspace d.sum.0.known", "workspace kept.0.known",
    ]  # fmt: skip
    sums, rows, elements = text.split("func.func")[1:]
    assert "alloca() : memref<8xf32>" in sums
    assert sums.count("%kept.tape1.0.v[") == 2  # where chunks begin, and behind the last one
    assert not re.search(r"store .*%kept.tape1.0.v\[", elements)
    assert "%tape" not in rows  # the state itself is not needed for its adjoint
    assert "sum.0.known[" in rows
    assert "scf.parallel (%n, %h, %j)" in elements


TURNS = {  # of the loop through elements
    "s[j] += k[b, t, j]\ny += s[j]": True,
    "s[j] = s[(j + 1) % 8] + k[b, t, j]\ny += s[j]": False,
    "if k[b, t, j] > 0.5:\n s[j] += k[b, t, j]\ny += s[j]": False,
    "y = y * (s[j] + k[b, t, j])": False,
    "s[j] += k[b, t, j]\ny += s[j]\ns[j] += y": False,
    "s[j] += k[b, t, j] * out[b, t, i]\ny += s[j]": False,
}


@pytest.mark.parametrize("turn", TURNS)
def test_what_has_columns(turn: str) -> None:
    body = "\n".join("    " + line for line in turn.splitlines())
    text = f"""def kernel(x, k):
 out = torch.zeros_like(x)
 for b, i in weft.ndrange(x.shape[0], x.shape[2]):
  s = weft.zeros((8,), weft.f64)
  for t in range(x.shape[1]):
   y = x[b, t, i]
   for j in range(8):
{body}
   out[b, t, i] = y
 return out
"""
    (loop,) = lowered_loops(weft.kernel(function(text)), *arguments(3)[:2])
    _, written = read_and_written(loop)
    assert (state_of(loop, written) is not None) == TURNS[turn]


@pytest.mark.slow
def test_tapes_have_a_bound(columns: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "_ROOM", 1)
    args = [(0.5 * torch.randn(1, 9, 2, 8)).requires_grad_() for _ in range(6)]
    kernel = weft.kernel(recurrences.rwkv7.function)
    kernel(*args, 8).sum().backward()
    text = kernel.backward.inspect(*args, 8)
    assert "elements" not in text
    assert "segment" in text  # not chunks either: checkpoints, and a tape between two of them
    found = re.findall(r"workspace \S+: .*: ([\d,]+) bytes", text)
    total = sum(int(bytes.replace(",", "")) for bytes in found)
    assert f"all workspaces: {total:,} bytes" in text
    wide = [a.detach().double().requires_grad_() for a in args]
    recurrences.torch_rwkv7(*wide, 8).sum().backward()
    for a, b in zip(args, wide, strict=True):
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("turns", [9])
def test_on_a_gpu(turns: int, columns: None) -> None:
    """With the rows that threads share in shared memory."""
    torch.manual_seed(turns)
    shapes = ((1, turns, 2, 32),) * 2, ((1, turns, 2, 16), (1, turns, 2, 32))
    args = [torch.randn(s).requires_grad_() for some in shapes for s in some]
    wide = [a.detach().double().requires_grad_() for a in args]
    y = recurrences.torch_gated_attention(*wide, 32)
    grad = torch.randn_like(y)
    emulator.EmulatedCall.seen.clear()
    found = emulator.gradients(recurrences.gated_attention, *args, 32, grad=grad.float())
    for a, b in zip(found, torch.autograd.grad(y, wide, grad), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
    assert len(several(emulator.EmulatedCall.seen[-1], Stage)) == 2


def test_what_chunks_keep_of_small_states_can_be_loaded_a_chunk_ahead() -> None:
    """It stands in the chunk itself, not in a loop there, in which nobody looks for it."""
    u, a, b = (torch.empty(s, device="meta") for s in ((2, 9, 40), (40, 16), (2, 9, 16)))
    (loop,) = lowered_loops(selective_scan, u, u, a, b, b, 16)
    wanted, written = read_and_written(loop)
    state = state_of(loop, written)
    assert state is not None
    made = reverse(loop, wanted, written, checkpoints=[state.loop], chunk=2, wide=False)
    *_, chunks = (op for op in walk(made.steps[0].body) if "turns" in op.attrs)
    loads = [op for op in chunks.body.ops if op.name == "memref.load"]
    assert sum(memory(op)[0].name.startswith("tape") for op in loads) == 16


@pytest.mark.slow
@pytest.mark.parametrize("turns", [9])
def test_narrow_states_on_a_gpu(turns: int, columns: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows, in chunks of four turns; lanes add up sums over rows, of sixteen elements at a time,
    and a sum over turns is in registers until the end."""
    monkeypatch.setattr(workspaces, "LEAST_CHUNK", 4)
    monkeypatch.setattr(emulator, "LANES", -1)
    torch.manual_seed(turns)
    u, dt = torch.randn(2, 2, turns, 40).unbind()
    b, c = torch.randn(2, 2, turns, 16).unbind()
    args = [x.requires_grad_() for x in (u, 0.1 * dt.sigmoid(), -torch.rand(40, 16), b, c)]
    wide = [a.detach().double().requires_grad_() for a in args]
    y = torch_selective_scan(*wide, 16)
    grad = torch.randn_like(y)
    emulator.EmulatedCall.seen.clear()
    found = emulator.gradients(selective_scan, *args, 16, grad=grad.float())
    for a, b in zip(found, torch.autograd.grad(y, wide, grad), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
    assert several(emulator.EmulatedCall.seen[-1], Stage)
