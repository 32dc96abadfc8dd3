"""Object code is linked without LLVM where it is as LLVM writes it for loops."""

import ctypes
import math
import os
import platform
from pathlib import Path

import pytest

from tests import processes
from weft.codegen import libraries
from weft.runtime import cpu, jit
from weft.runtime.link import link
from weft.runtime.maker import processor

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM links elsewhere")

CALLS = """
@table = internal constant [4 x double] [double 1.0, double 10.0, double 100.0, double 1000.0]
declare double @cos(double)
define internal double @twice(double %x) noinline {
  %y = call double @cos(double %x)
  %z = fmul double %y, 2.5
  ret double %z
}
define void @weft_test(ptr %block) {
  %x = load double, ptr %block
  %k = fptosi double %x to i64
  %at = getelementptr [4 x double], ptr @table, i64 0, i64 %k
  %t = load double, ptr %at
  %y = call double @twice(double %x)
  %z = fadd double %y, %t
  store double %z, ptr %block
  ret void
}
"""
WRITES = """
@count = internal global i64 0
define void @weft_test(ptr %block) {
  %n = load i64, ptr @count
  %next = add i64 %n, 1
  store i64 %next, ptr @count
  store i64 %next, ptr %block
  ret void
}
"""

SCATTERED = '''
import ctypes
from weft.runtime import jit
c = ctypes.CDLL(None)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long
c.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
reserve = lambda size, protection: c.mmap(None, size, protection, 0x22, -1, 0)
data = jit.emit("""{text}""")
pages = [reserve(4096, 3 * (k % 2)) for k in range(20000)]
reserve(6 << 30, 0)  # between the last pages and what is free
for page in pages[-400::2]:
    c.munmap(page, 4096)
linked = jit.link(data, ["weft_test"], {{}})
call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(linked.addresses["weft_test"])
block = ctypes.c_int64()
print(*[call(ctypes.addressof(block)) or block.value for _ in range(3)])
'''


def test_constants_and_calls():
    linked = link(jit.emit(CALLS), ["weft_test"], libraries.address_of)
    assert linked is not None
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(linked.addresses["weft_test"])
    for x, t in ((0.5, 1.0), (2.25, 100.0), (3.5, 1000.0)):
        block = ctypes.c_double(x)
        call(ctypes.addressof(block))
        assert block.value == math.cos(x) * 2.5 + t


@pytest.mark.parametrize("damage", ["data that is written", "another symbol", "no object", "cut"])
def test_the_rest_is_left_to_llvm(damage):
    data = jit.emit(WRITES if damage == "data that is written" else CALLS)
    data = {"no object": b"!<arch>\n" + data, "cut": data[:200]}.get(damage, data)
    name = "other" if damage == "another symbol" else "weft_test"
    assert link(data, [name], libraries.address_of) is None


def test_llvm_links_the_rest():
    loaded = cpu.load(jit.emit(WRITES), "weft_test")
    block = ctypes.c_int64()
    for n in (1, 2, 3):
        loaded.call(ctypes.addressof(block))
        assert block.value == n


def test_llvm_links_where_free_memory_is_scattered(tmp_path):
    """Sections too far from each other ended the process: `isInt<32>(RealOffset)`."""
    program = tmp_path / "program.py"
    program.write_text(
        SCATTERED.format(text=WRITES.replace("i64 0", "[9999999 x i64] zeroinitializer", 1))
    )
    found = processes.run(program, {**os.environ, "PYTHONPATH": str(ROOT)})
    assert (found.returncode, found.stdout) == (0, "1 2 3\n"), found.stderr


def test_a_function_that_is_not_there():
    data = jit.emit(CALLS.replace("@cos", "@weft_no_such_function"))
    with pytest.raises(RuntimeError, match="weft_no_such_function"):
        cpu.load(data, "weft_test")


def test_code_cannot_be_written():
    linked = link(jit.emit(CALLS), ["weft_test"], libraries.address_of)
    assert linked is not None
    address = linked.addresses["weft_test"]
    with open("/proc/self/maps") as maps:
        ranges = [(line.split()[0].split("-"), line.split()[1]) for line in maps]
    (found,) = [p for (a, b), p in ranges if int(a, 16) <= address < int(b, 16)]
    assert found.startswith("r-x")


def test_the_processor_is_told_without_llvm():
    text = processor()
    assert platform.machine() in text
    assert "flags" in text or "Features" in text
