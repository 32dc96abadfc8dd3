"""Signals during a long loop: Ctrl-C, alarms, and what else Python has handlers for.

Compiled code runs without returning to the interpreter, which is where Python carries its handlers
out. So the calling thread asks for them itself now and then: between chunks, and inside the loops
of an iteration that no tensor's size bounds. If a handler raises an exception, the loop ends where
it is, on the other threads, too: all look at the same places for the word that tells them. What was
written stays, and what would have been written is missing. The exception is put aside and raised by
a pending call, which the interpreter carries out as soon as the launch has returned, whichever way
that was made. On other threads than the main one there is nothing to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.emit import Emitter
from weft.ir.core import Op, walk

# What an object file asks of the process: CPython's functions, by name.
FUNCTIONS = (
    "PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch",
    "PyErr_Restore", "PyErr_SetInterrupt", "Py_AddPendingCall", "PyMem_RawMalloc", "PyMem_RawFree",
)  # fmt: skip

DUE = "weft.due"  # i1 (ptr last, ptr stop): whether the loop has to end, as ``stop`` then says

# ``last`` is when handlers were asked for; LIMIT is some 50 ms. It is part of ``pool``'s module.
TEXT = f"""
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)
declare void @PyErr_SetInterrupt()
declare i32 @Py_AddPendingCall(ptr, ptr)
declare ptr @PyMem_RawMalloc(i64)
declare void @PyMem_RawFree(ptr)
declare i64 @llvm.COUNTER()

define i1 @{DUE}(ptr %last, ptr %stop) nounwind cold {{
entry:
  %told = load atomic i64, ptr %stop monotonic, align 8
  %ended = icmp ne i64 %told, 0
  br i1 %ended, label %yes, label %look
look:
  %now = call i64 @llvm.COUNTER()
  %then = load i64, ptr %last
  %since = sub i64 %now, %then
  %due = icmp ugt i64 %since, LIMIT
  br i1 %due, label %whose, label %no
whose:
  store i64 %now, ptr %last
  %thread = call i32 @omp_get_thread_num()  ; another than the caller's must not wait for the GIL
  %caller = icmp eq i32 %thread, 0
  br i1 %caller, label %ask, label %no
ask:
  %state = call i32 @PyGILState_Ensure()
  %raised = call i32 @PyErr_CheckSignals()
  %any = icmp ne i32 %raised, 0
  br i1 %any, label %keep, label %give
keep:
  store atomic i64 1, ptr %stop monotonic, align 8
  %triple = call ptr @PyMem_RawMalloc(i64 24)
  %none = icmp eq ptr %triple, null
  br i1 %none, label %again, label %fetch
fetch:
  %value = getelementptr ptr, ptr %triple, i64 1
  %trace = getelementptr ptr, ptr %triple, i64 2
  call void @PyErr_Fetch(ptr %triple, ptr %value, ptr %trace)
  %full = call i32 @Py_AddPendingCall(ptr @weft.raise, ptr %triple)
  %lost = icmp ne i32 %full, 0
  br i1 %lost, label %again, label %give
again:
  call void @PyErr_SetInterrupt()
  br label %give
give:
  call void @PyGILState_Release(i32 %state)
  ret i1 %any
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal i32 @weft.raise(ptr %triple) nounwind {{
entry:
  %value = getelementptr ptr, ptr %triple, i64 1
  %trace = getelementptr ptr, ptr %triple, i64 2
  %a = load ptr, ptr %triple
  %b = load ptr, ptr %value
  %c = load ptr, ptr %trace
  call void @PyErr_Restore(ptr %a, ptr %b, ptr %c)
  call void @PyMem_RawFree(ptr %triple)
  ret i32 -1
}}
"""


def asks(parallel: Op) -> bool:
    """Whether handlers are asked for inside of an iteration: see ``schedule/marks.py``."""
    return any("poll" in op.attrs or "strips" in op.attrs for op in walk(parallel.body))


def timed(text: str, intrinsic: tuple[str, int]) -> str:
    """``text`` with a machine's clock: see ``CpuMachine.clock``."""
    name, limit = intrinsic
    return text.replace("COUNTER", name).replace("LIMIT", str(limit))


def clock(e: Emitter, intrinsic: tuple[str, int], stop: str) -> tuple[str, str]:
    """The places that a poll looks at: when handlers were asked for last, which is now, and
    ``stop``, the launch's word that all have to end. ``intrinsic``: see ``CpuMachine.clock``."""
    place = e.fresh("last")
    e.allocas.append(f"{place} = alloca i64")
    e.line(f"store i64 {e.intrinsic(f'llvm.{intrinsic[0]}', 'i64')}, ptr {place}")
    return place, stop


def poll(e: Emitter, places: tuple[str, str], leave: str) -> None:
    """Goes to ``leave`` if a handler raised an exception."""
    on = e.label("on")
    e.branch(e.intrinsic(DUE, "i1", *(("ptr", place) for place in places)), leave, on)
    e.start(on)


def poll_every(e: Emitter, count: int, places: tuple[str, str], leave: str) -> None:
    """``poll`` in one of ``count`` iterations (a power of two)."""
    counter = e.fresh("passed")
    e.allocas += [f"{counter} = alloca i64", f"store i64 0, ptr {counter}"]
    passed = e.inst(f"add i64 {e.inst(f'load i64, ptr {counter}')}, 1")
    e.line(f"store i64 {passed}, ptr {counter}")
    look, on = e.label("look"), e.label("go")
    rest = e.inst(f"and i64 {passed}, {count - 1}")
    e.branch(e.inst(f"icmp eq i64 {rest}, 0"), look, on)
    e.start(look)
    poll(e, places, leave)
    e.jump(on)
    e.start(on)


def in_strips(
    e: Emitter, count: int, upper: str, places: tuple[str, str], leave: str,
    run: Callable[[str, str, list[str]], Sequence[str]],
) -> Callable[[str, list[str]], Sequence[str]]:  # fmt: skip
    """The body of a loop with step ``count``: ``run`` (from, to, carried values), and a ``poll``
    where there is a next one."""

    def strip(begin: str, carried: list[str]) -> Sequence[str]:
        end = e.inst(f"add nsw i64 {begin}, {count}")
        end = e.extreme("smin", end, upper)
        handed = run(begin, end, carried)
        more, on = e.label("more"), e.label("strip")
        e.branch(e.inst(f"icmp slt i64 {end}, {upper}"), more, on)
        e.start(more)
        poll(e, places, leave)
        e.jump(on)
        e.start(on)
        return handed

    return strip
