"""The emulator's own threads: what they exchange, and that those which wait in vain are found."""

from __future__ import annotations

import ctypes
import re

import pytest

from tests.cuda.emulator import Function, host_text
from tests.cuda.fibers import PROBLEMS

TEXT = """
define ptx_kernel void @k(ptr addrspace(1) %out, i32 %mask) {
entry:
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %first = icmp eq i32 %t, 0
  br i1 %first, label %one, label %others
one:
  ONE
  br label %both
others:
  OTHERS
  br label %both
both:
  %v = phi i32 [ %a, %one ], [ %b, %others ]
  %at = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %v, ptr addrspace(1) %at
  ret void
}
"""
BARRIER = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"


def shuffled(name: str, offset: int) -> str:
    call = "call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 %mask, i32 %t, i32 {}, i32 31)"
    return f"%{name} = {call.format(offset)}"


def ran(one: str, others: str, threads: int, mask: int = -1) -> list[int]:
    """What threads leave: ``one`` says what the first computes (``a``), ``others`` the rest."""
    out = (ctypes.c_int * threads)()
    text = TEXT.replace("ONE", one).replace("OTHERS", others)
    words = ctypes.addressof(out).to_bytes(8, "little") + mask.to_bytes(8, "little", signed=True)
    Function(host_text(text), "k").run((1, 1, 1), (threads, 1, 1), words)
    return list(out)


def test_lanes_exchange_values() -> None:
    assert ran(shuffled("a", 1), shuffled("b", 1), 70) == [t ^ 1 for t in range(70)]
    assert ran(shuffled("a", 16), shuffled("b", 16), 32) == [t ^ 16 for t in range(32)]


def test_all_threads_come_to_a_barrier() -> None:
    assert ran(f"{BARRIER}\n  %a = add i32 7, 0", f"{BARRIER}\n  %b = add i32 8, 0", 3) == [7, 8, 8]


@pytest.mark.parametrize(
    ("one", "others", "mask", "problem"),
    [
        ("%a = add i32 7, 0", f"{BARRIER}\n  %b = add i32 8, 0", -1, 1),
        (shuffled("a", 1), "%b = add i32 8, 0", -1, 1),
        (shuffled("a", 2), shuffled("b", 2), 0b1110, 2),
        (shuffled("a", 2), shuffled("b", 2), 0b1011, 3),
    ],
)
def test_threads_that_wait_in_vain_are_found(
    one: str, others: str, mask: int, problem: int
) -> None:
    with pytest.raises(AssertionError, match=re.escape(PROBLEMS[problem])):
        ran(one, others, 4, mask)
