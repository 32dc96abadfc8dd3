"""The grid of the emulator as machine code: its blocks one after the other, a thread as a call.

Threads that wait for each other are fibers of one host thread (``ucontext``): one that waits hands
over to the next. So a block with a thousand barriers takes milliseconds, the order is the same in
each run, and threads that wait for what never comes are found out.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
from typing import Any

import llvmlite.binding as llvm

from weft.codegen.machine import machine

# Where things stand in the memory of a thread: its registers (`x, 32 bits
# each), number, whether it has ended, and what it hands to others; its ucontext; its stack.
NUMBER, ENDED, VALUE, UCONTEXT, STACK, BYTES = 48, 52, 56, 1024, 8192, 131_072
_WARP, _GROUPS = 32, 64  # lanes of a warp, and the most groups of them that wait together
_MOST = 4096  # threads of a block, or of a cluster

NAMES = ("emulated_barrier", "emulated_exchange", "emulated_meeting", "emulated_grid")
PROBLEMS = {
    1: "threads wait for others that never come",
    2: "a lane waits with others than itself",
    3: "the other lane takes no part",
    4: "lanes of a warp wait in too many groups",
}

# A place where threads wait: the mask of their lanes, how many have come, how many times all did.
_TEXT = f"""
%point = type {{ i32, i32, i32 }}
@memory = internal global ptr null
@current = internal global ptr null
@threads = internal global i32 0
@moved = internal global i32 0
@problem = internal global i32 0
@code = internal global ptr null
@arguments = internal global ptr null
@scheduler = internal global [8192 x i8] zeroinitializer, align 64
@barrier = internal global %point zeroinitializer
@groups = internal global [{_MOST // _WARP} x [{_GROUPS} x %point]] zeroinitializer

declare i32 @getcontext(ptr)
declare void @makecontext(ptr, ptr, i32, ...)
declare i32 @swapcontext(ptr, ptr)
declare i32 @llvm.ctpop.i32(i32)
declare i32 @llvm.smin.i32(i32, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal ptr @thread(i32 %number) {{
  %memory = load ptr, ptr @memory
  %wide = zext i32 %number to i64
  %place = mul i64 %wide, {BYTES}
  %thread = getelementptr i8, ptr %memory, i64 %place
  ret ptr %thread
}}

define internal i32 @field(ptr %thread, i64 %place) {{
  %at = getelementptr i8, ptr %thread, i64 %place
  %value = load i32, ptr %at
  ret i32 %value
}}

define internal void @hand_over(ptr %thread) {{
  %own = getelementptr i8, ptr %thread, i64 {UCONTEXT}
  %done = call i32 @swapcontext(ptr %own, ptr @scheduler)
  ret void
}}

define internal void @end(ptr %thread) {{
  %at = getelementptr i8, ptr %thread, i64 {ENDED}
  store i32 1, ptr %at
  store i32 1, ptr @moved
  call void @hand_over(ptr %thread)
  ret void
}}

define internal void @fail(ptr %thread, i32 %problem) {{
  %before = load i32, ptr @problem
  %none = icmp eq i32 %before, 0
  %first = select i1 %none, i32 %problem, i32 %before
  store i32 %first, ptr @problem
  call void @end(ptr %thread)
  ret void
}}

define internal void @start() {{
  %thread = load ptr, ptr @current
  %code = load ptr, ptr @code
  %arguments = load ptr, ptr @arguments
  call void %code(ptr %thread, ptr %arguments)
  call void @end(ptr %thread)
  ret void
}}

define internal void @wait(ptr %thread, ptr %place, i32 %many) {{
entry:
  store i32 1, ptr @moved
  %come.at = getelementptr %point, ptr %place, i32 0, i32 1
  %turn.at = getelementptr %point, ptr %place, i32 0, i32 2
  %before = load i32, ptr %come.at
  %come = add i32 %before, 1
  %turn = load i32, ptr %turn.at
  %all = icmp eq i32 %come, %many
  br i1 %all, label %last, label %others
last:
  store i32 0, ptr %come.at
  %next = add i32 %turn, 1
  store i32 %next, ptr %turn.at
  ret void
others:
  store i32 %come, ptr %come.at
  br label %again
again:
  call void @hand_over(ptr %thread)
  %now = load i32, ptr %turn.at
  %same = icmp eq i32 %now, %turn
  br i1 %same, label %again, label %on
on:
  store i32 1, ptr @moved
  ret void
}}

define void @emulated_barrier(ptr %thread) {{
  %threads = load i32, ptr @threads
  call void @wait(ptr %thread, ptr @barrier, i32 %threads)
  ret void
}}

define void @emulated_meeting(ptr %thread, i32 %mask) {{
entry:
  %number = call i32 @field(ptr %thread, i64 {NUMBER})
  %lane = urem i32 %number, {_WARP}
  %warp = udiv i32 %number, {_WARP}
  %shifted = lshr i32 %mask, %lane
  %own = trunc i32 %shifted to i1
  br i1 %own, label %count, label %wrong
wrong:
  call void @fail(ptr %thread, i32 2)
  ret void
count:
  %lanes = call i32 @llvm.ctpop.i32(i32 %mask)
  %threads = load i32, ptr @threads
  %first = mul i32 %warp, {_WARP}
  %rest = sub i32 %threads, %first
  %many = call i32 @llvm.smin.i32(i32 %lanes, i32 %rest)
  br label %look
look:
  %k = phi i32 [ 0, %count ], [ %next, %other ]
  %full = icmp eq i32 %k, {_GROUPS}
  br i1 %full, label %overflow, label %test
overflow:
  call void @fail(ptr %thread, i32 4)
  ret void
test:
  %place = getelementptr [{_GROUPS} x %point], ptr @groups, i32 %warp, i32 %k
  %there = load i32, ptr %place
  %free = icmp eq i32 %there, 0
  %same = icmp eq i32 %there, %mask
  %found = or i1 %free, %same
  br i1 %found, label %meet, label %other
other:
  %next = add i32 %k, 1
  br label %look
meet:
  store i32 %mask, ptr %place
  call void @wait(ptr %thread, ptr %place, i32 %many)
  ret void
}}

define i32 @emulated_exchange(ptr %thread, i32 %mask, i32 %value, i32 %offset) {{
entry:
  %number = call i32 @field(ptr %thread, i64 {NUMBER})
  %partner = xor i32 %number, %offset
  %lane = urem i32 %partner, {_WARP}
  %shifted = lshr i32 %mask, %lane
  %takes_part = trunc i32 %shifted to i1
  %threads = load i32, ptr @threads
  %there = icmp ult i32 %partner, %threads
  %fine = and i1 %takes_part, %there
  br i1 %fine, label %hand, label %wrong
wrong:
  call void @fail(ptr %thread, i32 3)
  ret i32 0
hand:
  %at = getelementptr i8, ptr %thread, i64 {VALUE}
  store i32 %value, ptr %at
  call void @emulated_meeting(ptr %thread, i32 %mask)
  %other = call ptr @thread(i32 %partner)
  %taken = call i32 @field(ptr %other, i64 {VALUE})
  call void @emulated_meeting(ptr %thread, i32 %mask)
  ret i32 %taken
}}

define internal void @place(ptr %thread, i32 %number, ptr %sizes, ptr %block) {{
  %bx = call i32 @field(ptr %sizes, i64 12)
  %by = call i32 @field(ptr %sizes, i64 16)
  %bz = call i32 @field(ptr %sizes, i64 20)
  %x = urem i32 %number, %bx
  %row = udiv i32 %number, %bx
  %y = urem i32 %row, %by
  %z = udiv i32 %row, %by
  %gx = call i32 @field(ptr %sizes, i64 0)
  %gy = call i32 @field(ptr %sizes, i64 4)
  %gz = call i32 @field(ptr %sizes, i64 8)
  %cx = call i32 @field(ptr %block, i64 0)
  %cy = call i32 @field(ptr %block, i64 4)
  %cz = call i32 @field(ptr %block, i64 8)
STORES
  ret void
}}

; 0, or the problem. %sizes: grid and block, x, y, z each.
define i32 @emulated_grid(ptr %code, ptr %arguments, ptr %sizes, ptr %memory, i1 %waits) {{
entry:
  %block = alloca [3 x i32]
  store ptr %memory, ptr @memory
  store ptr %code, ptr @code
  store ptr %arguments, ptr @arguments
  store i32 0, ptr @problem
  %bx = call i32 @field(ptr %sizes, i64 12)
  %by = call i32 @field(ptr %sizes, i64 16)
  %bz = call i32 @field(ptr %sizes, i64 20)
  %bxy = mul i32 %bx, %by
  %threads = mul i32 %bxy, %bz
  store i32 %threads, ptr @threads
  %gx = call i32 @field(ptr %sizes, i64 0)
  %gy = call i32 @field(ptr %sizes, i64 4)
  %gz = call i32 @field(ptr %sizes, i64 8)
  %gxy = mul i32 %gx, %gy
  %blocks = mul i32 %gxy, %gz
  br label %each
each:
  %b = phi i32 [ 0, %entry ], [ %b.next, %end ]
  %more = icmp ult i32 %b, %blocks
  br i1 %more, label %run, label %out
run:
  %cx = urem i32 %b, %gx
  %brow = udiv i32 %b, %gx
  %cy = urem i32 %brow, %gy
  %cz = udiv i32 %brow, %gy
  store i32 %cx, ptr %block
  %block.y = getelementptr i32, ptr %block, i32 1
  store i32 %cy, ptr %block.y
  %block.z = getelementptr i32, ptr %block, i32 2
  store i32 %cz, ptr %block.z
  br i1 %waits, label %fibers, label %plain

plain:
  %t = phi i32 [ 0, %run ], [ %t.next, %plain.run ]
  %t.more = icmp ult i32 %t, %threads
  br i1 %t.more, label %plain.run, label %end
plain.run:
  call void @place(ptr %memory, i32 %t, ptr %sizes, ptr %block)
  call void %code(ptr %memory, ptr %arguments)
  %t.next = add i32 %t, 1
  br label %plain

fibers:
  call void @llvm.memset.p0.i64(ptr @barrier, i8 0, i64 12, i1 false)
  call void @llvm.memset.p0.i64(ptr @groups, i8 0, i64 {_MOST // _WARP * _GROUPS * 12}, i1 false)
  br label %prepare
prepare:
  %f = phi i32 [ 0, %fibers ], [ %f.next, %make ]
  %f.more = icmp ult i32 %f, %threads
  br i1 %f.more, label %make, label %pass
make:
  %made = call ptr @thread(i32 %f)
  call void @place(ptr %made, i32 %f, ptr %sizes, ptr %block)
  %context = getelementptr i8, ptr %made, i64 {UCONTEXT}
  %got = call i32 @getcontext(ptr %context)
  ; uc_link, uc_stack.ss_sp, uc_stack.ss_size
  %link = getelementptr i8, ptr %context, i64 8
  store ptr null, ptr %link
  %stack = getelementptr i8, ptr %made, i64 {STACK}
  %stack.at = getelementptr i8, ptr %context, i64 16
  store ptr %stack, ptr %stack.at
  %size.at = getelementptr i8, ptr %context, i64 32
  store i64 {BYTES - STACK}, ptr %size.at
  call void (ptr, ptr, i32, ...) @makecontext(ptr %context, ptr @start, i32 0)
  %f.next = add i32 %f, 1
  br label %prepare

pass:
  store i32 0, ptr @moved
  br label %turn
turn:
  %n = phi i32 [ 0, %pass ], [ %n.next, %turned ]
  %left = phi i32 [ 0, %pass ], [ %left.next, %turned ]
  %n.more = icmp ult i32 %n, %threads
  br i1 %n.more, label %look, label %passed
look:
  %thread = call ptr @thread(i32 %n)
  %ended = call i32 @field(ptr %thread, i64 {ENDED})
  %alive = icmp eq i32 %ended, 0
  br i1 %alive, label %resume, label %turned
resume:
  store ptr %thread, ptr @current
  %its = getelementptr i8, ptr %thread, i64 {UCONTEXT}
  %swapped = call i32 @swapcontext(ptr @scheduler, ptr %its)
  br label %turned
turned:
  %one = phi i32 [ 0, %look ], [ 1, %resume ]
  %left.next = add i32 %left, %one
  %n.next = add i32 %n, 1
  br label %turn
passed:
  %problem = load i32, ptr @problem
  %fine = icmp eq i32 %problem, 0
  br i1 %fine, label %on, label %out
on:
  %over = icmp eq i32 %left, 0
  br i1 %over, label %end, label %stuck
stuck:
  %moved = load i32, ptr @moved
  %dead = icmp eq i32 %moved, 0
  br i1 %dead, label %deadlock, label %pass
deadlock:
  store i32 1, ptr @problem
  br label %out
end:
  %b.next = add i32 %b, 1
  br label %each
out:
  %result = load i32, ptr @problem
  ret i32 %result
}}
"""


def _stores() -> str:
    values = ["x", "y", "z", "bx", "by", "bz", "cx", "cy", "cz", "gx", "gy", "gz", "number", ""]
    lines = []
    for k, name in enumerate(values):
        lines.append(f"  %at{k} = getelementptr i32, ptr %thread, i32 {k}")
        lines.append(f"  store i32 {f'%{name}' if name else 0}, ptr %at{k}")
    return "\n".join(lines)


@functools.cache
def jit() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(machine(), use_jit_link=True, suppress_errors=False)


@functools.cache
def _library() -> tuple[Any, dict[str, int]]:
    builder = llvm.JITLibraryBuilder().add_ir(_TEXT.replace("STORES", _stores()))
    builder.add_current_process()
    for name in NAMES:
        builder.export_symbol(name)
    tracker = builder.link(jit(), "emulator")
    return tracker, {name: tracker[name] for name in NAMES}


def addresses() -> dict[str, int]:
    """The functions that emulated kernels call."""
    return {name: address for name, address in _library()[1].items() if name != "emulated_grid"}


@functools.cache
def _memory() -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, _MOST * BYTES)  # as much of it as is touched
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def trampoline(text: str, name: str) -> str:
    """A function ``name.call`` (context, arguments) that reads the arguments of ``name``, defined
    in ``text``, from words."""
    found = re.search(rf"define void @{re.escape(name)}\(ptr %context, ([^)]*)\)", text)
    assert found is not None, name
    types = [parameter.split()[0] for parameter in found[1].split(", ")]
    loads = "".join(
        f"  %p{k} = getelementptr i64, ptr %words, i64 {k}\n  %v{k} = load {type}, ptr %p{k}\n"
        for k, type in enumerate(types)
    )
    passed = "".join(f", {type} %v{k}" for k, type in enumerate(types))
    return (
        f"\ndefine void @{name}.call(ptr %context, ptr %words) {{\n{loads}"
        f"  call void @{name}(ptr %context{passed})\n  ret void\n}}\n"
    )


def run(
    code: int, grid: tuple[int, ...], block: tuple[int, ...], arguments: bytes, *, waits: bool
) -> None:
    """Calls ``code``, of a ``trampoline``, for each thread of a grid."""
    sizes = (ctypes.c_int * 6)(*grid, *block)
    call = ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_bool,
    )(_library()[1]["emulated_grid"])  # fmt: skip
    problem = call(code, arguments, ctypes.addressof(sizes), _memory()[1], waits)
    assert not problem, PROBLEMS[problem]
