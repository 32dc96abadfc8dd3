"""Optimisation leaves nothing behind in LLVM's memory."""

import ctypes
import gc

import llvmlite.binding as llvm
import pytest

from weft.codegen.machine import machine
from weft.codegen.optimize import optimize

STEPS = "\n".join(
    f"  %x{k} = load double, ptr %p\n  %y{k} = fmul double %x{k}, {k}.0\n"
    f"  store double %y{k}, ptr %p"
    for k in range(50)
)
TEXT = f"define void @f(ptr %p) {{\n{STEPS}\n  ret void\n}}"


class Mallinfo2(ctypes.Structure):
    """malloc's own account (glibc 2.33 and later), in bytes; ``uordblks`` is what is in use."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.sampled(5)
def test_nothing_is_left_in_memory(simplified: bool) -> None:
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("this C library does not say what is in use (mallinfo2)")
    mallinfo2.restype = Mallinfo2

    def in_use(times: int) -> int:
        for _ in range(times):
            options = llvm.create_pipeline_tuning_options(speed_level=2)
            optimize(llvm.parse_assembly(TEXT), machine(), options, simplified=simplified)
        gc.collect()
        return mallinfo2().uordblks

    before = in_use(10)
    assert in_use(50) - before < 50 * 8_000  # 67,000 a module where the passes were kept
